"""Certificates for tests of TLS."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of a certificate and its key."""

    path: Path
    key_path: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def certificate(
    folder: Path, name: str, issuer: Certificate | None, *, host: str = "127.0.0.1"
) -> Certificate:
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
