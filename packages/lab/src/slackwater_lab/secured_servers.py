"""Servers that want to know who comes: Kafka with every kind of login and access control, Redis with users.

Everything goes over TLS, with certificates that are made for the occasion.
"""

import base64
import ipaddress
import json
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.message import Message
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import parse_qs, unquote

import redis
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import NameOID

from slackwater.dev import RedisServer
from slackwater.dev.server import LOOPBACK
from slackwater.protocol import SystemClock
from slackwater.protocol.rights import Right
from slackwater.settings.model import KafkaSection
from slackwater_lab.fakes.http import HttpFake
from slackwater_lab.servers.proxy import TcpProxy
from slackwater_lab.servers.stack import NOBODY_SAYS, LabBroker, plain_users, scram_users, token_users


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of a certificate and its key."""

    path: Path
    key_path: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def certificate(folder: Path, name: str, issuer: Certificate | None, *, host: str = LOOPBACK) -> Certificate:
    """Makes a certificate for a day, and writes it into a folder.

    The authority that signs itself has no issuer.
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
    )
    signed = builder.sign(issuer.key if issuer else key, hashes.SHA256())
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


AUDIENCE = "kafka"
WAYS = ("scram", "tokens", "certificates")
"""How users log in to Kafka."""
LIFETIME_SECONDS = 3600
"""Of a token."""
_KEY_ID = "key-of-the-test"
_SECONDS = 60.0


@contextmanager
def broker_with_user(folder: Path, user: str, password: str) -> Iterator[LabBroker]:
    """Runs a broker with a listener ``users``, whose user may do what ACLs say; others may do everything."""
    server = LabBroker(folder, secured={"users": plain_users({user: password})})
    server.start()
    try:
        yield server
    finally:
        server.stop()


class SecuredServers:
    """A broker, a Redis and an identity provider; a context manager.

    Every user can come in every way. Masters may do everything, others in Kafka what ACLs allow.
    """

    def __init__(self, folder: Path, users: Mapping[str, str], masters: Sequence[str] = ()) -> None:
        self._folder, self._users = folder, dict(users)
        self._running = ExitStack()
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = certificate(folder, "authority", None)
        own = certificate(folder, "server", self.authority)
        self._clients = {name: certificate(folder, name, self.authority) for name in users}
        keys = folder / "server-keys.pem"
        keys.write_bytes(own.key_path.read_bytes() + own.path.read_bytes())
        self.identity = IdentityProvider(users, AUDIENCE)
        tokens = token_users(f"{self.identity.url}/keys", self.identity.url, AUDIENCE)
        files = (keys, self.authority.path)
        self.kafka = LabBroker(
            folder / "kafka",
            secured={
                "scram": scram_users().over_tls(*files),
                "tokens": tokens.over_tls(*files),
                "certificates": NOBODY_SAYS.over_tls(*files, wants_certificate=True),
            },
            overrides={"super.users": ";".join(f"User:{name}" for name in ("ANONYMOUS", *masters))},
        )
        self.redis = RedisServer(folder / "redis")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(own.path, own.key_path)
        self._redis_end = TcpProxy(lambda: self.redis.port, tls=context)

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for server in (self.identity, self.kafka, self.redis):
                server.start()
                starting.callback(server.stop)
            self._make_users()
            self._redis_end.start()
            starting.callback(self._redis_end.stop)
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def admin(self) -> AdminClient:
        """Of a user who may do everything in Kafka."""
        return AdminClient({"bootstrap.servers": self.kafka.bootstrap})

    def client(self, user: str) -> Certificate:
        return self._clients[user]

    def environment(self, user: str, way: str) -> dict[str, str]:
        """The settings with which a program comes as a user."""
        found = {
            "BOOTSTRAP": self.kafka.bootstrap_for(way),
            "KAFKA_SSL_CA": str(self.authority.path),
            "REDIS_URL": f"rediss://{user}@127.0.0.1:{self._redis_end.port}/0",
            "REDIS_PASSWORD": self._users[user],
            "REDIS_SSL_CA": str(self.authority.path),
        }
        return {f"SLACKWATER_{name}": value for name, value in (found | self._login(user, way)).items()}

    def options(self, user: str, way: str) -> dict[str, str]:
        """The settings of a client of Kafka that comes as a user, by librdkafka's names."""
        login: dict[str, Any] = {
            name.removeprefix("KAFKA_").lower(): value for name, value in self._login(user, way).items()
        }
        return KafkaSection(ssl_ca=self.authority.path, **login).client_options()

    def grant(self, user: str, rights: Iterable[Right]) -> None:
        """Lets a user do this and nothing else in Kafka; returns when the brokers obey."""
        own = AclBindingFilter(
            ResourceType.ANY,
            None,  # type: ignore[arg-type]  # any
            ResourcePatternType.ANY,
            f"User:{user}",
            None,  # type: ignore[arg-type]
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        given = [_binding(user, right) for right in rights]
        admin = self.admin  # which ends its requests when it is gone
        for gone in admin.delete_acls([own]).values():
            gone.result(_SECONDS)
        for made in (admin.create_acls(given) if given else {}).values():
            made.result(_SECONDS)
        while set(admin.describe_acls(own).result(_SECONDS)) != set(given):
            pass

    def limit_in_redis(self, user: str, rules: Sequence[str]) -> None:
        """Lets a user do what rules of Redis say, and nothing else."""
        with closing(redis.Redis(port=self.redis.port)) as client:
            word = self._users[user]
            cast("Any", client).execute_command("ACL", "SETUSER", user, "reset", "on", f">{word}", *rules)

    def _login(self, user: str, way: str) -> dict[str, str]:
        own, password = self._clients[user], self._users[user]
        login = {
            "scram": {
                "SECURITY_PROTOCOL": "SASL_SSL",
                "SASL_MECHANISM": "SCRAM-SHA-512",
                "SASL_USERNAME": user,
                "SASL_PASSWORD": password,
            },
            "tokens": {
                "SECURITY_PROTOCOL": "SASL_SSL",
                "SASL_MECHANISM": "OAUTHBEARER",
                "OAUTH_TOKEN_URL": f"{self.identity.url}/token",
                "OAUTH_CLIENT_ID": user,
                "OAUTH_CLIENT_SECRET": password,
            },
            "certificates": {
                "SECURITY_PROTOCOL": "SSL",
                "SSL_CERTIFICATE": str(own.path),
                "SSL_KEY": str(own.key_path),
            },
        }
        return {f"KAFKA_{name}": value for name, value in login[way].items()}

    def _make_users(self) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        admin = self.admin  # which ends its requests when it is gone
        made = admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(name, info, word.encode()) for name, word in self._users.items()]
        )
        for answer in made.values():
            answer.result(_SECONDS)
        for name in self._users:
            self.limit_in_redis(name, ("allkeys", "allchannels", "+@all"))


def _binding(user: str, right: Right) -> AclBinding:
    return AclBinding(
        ResourceType[right.resource.name],
        right.name,
        ResourcePatternType.PREFIXED if right.is_prefix else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[right.operation.name],
        AclPermissionType.ALLOW,
    )


class IdentityProvider(HttpFake):
    """Gives clients that know their secret signed tokens, as by OpenID Connect.

    It answers the client credentials grant, and tells with which key tokens are signed. A token's subject is
    its client.
    """

    def __init__(self, clients: Mapping[str, str], audience: str) -> None:
        super().__init__()
        self.audience = audience
        self._clients = dict(clients)
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def answer(self, method: str, path: str, headers: Message, body: bytes) -> tuple[int, object]:
        del method
        if path == "/keys":
            return 200, {"keys": [self._public_key()]}
        form = {name: texts[0] for name, texts in parse_qs(body.decode()).items()}
        client, secret = _credentials(headers.get("Authorization", ""), form)
        if path != "/token" or not secret or self._clients.get(client) != secret:
            return 401, {"error": "invalid_client"}
        token = self._token(client)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": LIFETIME_SECONDS}

    def _public_key(self) -> dict[str, str]:
        numbers = self._key.public_key().public_numbers()
        return {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": _KEY_ID,
            "n": _encoded(numbers.n.to_bytes((numbers.n.bit_length() + 7) // 8)),
            "e": _encoded(numbers.e.to_bytes(3)),
        }

    def _token(self, client: str) -> str:
        now = int(SystemClock().now().timestamp())
        claims = {
            "iss": self.url,
            "aud": self.audience,
            "sub": client,
            "iat": now,
            "exp": now + LIFETIME_SECONDS,
        }
        head = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}"


def _credentials(authorization: str, form: Mapping[str, str]) -> tuple[str, str]:
    if not authorization.startswith("Basic "):
        return form.get("client_id", ""), form.get("client_secret", "")
    client, _, secret = base64.b64decode(authorization[6:]).decode().partition(":")
    return unquote(client), unquote(secret)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
