"""TLS in tests: certificates, and its end in front of a server that has none built in."""

import asyncio
import ipaddress
import ssl
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from slackwater.dev.server import LOOPBACK


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of a certificate and its key."""

    path: Path
    key_path: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def certificate(folder: Path, name: str, issuer: Certificate | None, *, host: str = LOOPBACK) -> Certificate:
    """Makes a certificate for a day, and writes it into a folder.

    Args:
        folder: Gets NAME.pem and NAME.key.
        name: The common name.
        issuer: Who signs it; None: an authority that signs itself.
        host: The address of the server that shows it.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)  # noqa: TID251 - certificates are checked by the machine's clock
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    signer = issuer.key if issuer else key
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )
    if issuer is None:
        builder = builder.add_extension(_signs_certificates(), critical=True)
    signed = builder.sign(signer, hashes.SHA256())
    result = Certificate(folder / f"{name}.pem", folder / f"{name}.key", signed, key)
    result.path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    result.key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return result


def _signs_certificates() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


class TlsEnd:
    """Takes TLS connections on a port of its own and hands them on in the clear.

    Args:
        target: The port on loopback to which they go.
        context: The certificate that is shown, and what is asked of clients.
    """

    def __init__(self, target: int, context: ssl.SSLContext) -> None:
        self.port = 0
        """Where it listens on loopback, once it was started."""
        self._target = target
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self) -> None:
        """Begins to take connections."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(300)

    def stop(self) -> None:
        """Ends all of them."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(300)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(300)
        self._loop.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._accept, LOOPBACK, 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._server = server

    async def _close(self) -> None:
        self._server.close()
        mine = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far = await asyncio.open_connection(LOOPBACK, self._target)
        try:
            await asyncio.gather(_hand_on(reader, far), _hand_on(far_reader, writer))
        except OSError:
            pass  # one side is gone, so is the connection
        finally:
            far.transport.abort()
            writer.transport.abort()


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
