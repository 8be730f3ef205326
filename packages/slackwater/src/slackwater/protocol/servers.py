"""The addresses of servers, everything that clients need to reach them, and what of it is secret.

Plain values that are passed from the settings to the clients. Their text contains no passwords: secrets are
recognised by the names of options, and hidden wherever a text leaves a process.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from msgspec import Meta

from slackwater.protocol import ConfigError


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The address of Kafka, with the settings of its clients."""

    bootstrap: str
    """``host:port[,host:port]``, as ``bootstrap.servers``."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further librdkafka settings of every client, e.g. for security."""

    @property
    def client_config(self) -> dict[str, str]:
        """The configuration that every client starts with. Contains secrets."""
        return {"bootstrap.servers": self.bootstrap, **self.options}


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """The address of Redis, with its password."""

    url: str
    """``redis://host:port/db`` without a password."""
    password: str | None = field(default=None, repr=False)
    """The password, which the URL must not contain."""


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """The address of a PostgreSQL database that outputs are written to, with the password."""

    url: str
    """``postgresql://user@host:port/database`` without a password."""
    password: str | None = field(default=None, repr=False)
    """None: the password that libpq finds, for example in ``PGPASSFILE``."""

    @property
    def place(self) -> str:
        """The address without user and options, for people."""
        parts = urlsplit(self.url)
        return f"{parts.netloc.rpartition('@')[2]}{parts.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSettings:
    """The location of the tables of a lake, and how long their history is kept."""

    place: str
    """The address of a folder, of Delta tables; the name of a catalogue, of Iceberg's."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the lake's library, by their own names, such as endpoints and credentials; only in the
    file."""
    keep: timedelta = timedelta(days=1)
    """Minimum time for which every state in the ledger stays readable, in seconds."""
    maintain_every: Annotated[int, Meta(ge=1)] = 100
    """Number of batches between compactions, which also remove older files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """The address of a schema registry, with the credentials.

    Raises:
        ConfigError: The address holds credentials or cannot be one.
    """

    what: ClassVar[str] = "the schema registry"
    """The server, for messages."""
    url: str | None = None
    """http://host:port[/path] of the schema registry, if records are in Avro or outputs have schemas. Several
    addresses, comma-separated, are tried in turn. Apicurio: with the path of its Confluent interface,
    /apis/ccompat/v7."""
    user: str | None = None
    """User name there."""
    password: str | None = field(default=None, repr=False)
    """Password there."""
    ca: Path | None = None
    """File with the certificates to trust there; default: those that the system trusts."""
    timeout: timedelta = timedelta(seconds=5)
    """Maximum time for a request to one address, in seconds."""

    def __post_init__(self) -> None:
        for address in self.addresses:
            parts = urlsplit(address)
            if parts.username or parts.password:
                problem = "contains credentials, which would be logged; pass them separately"
                raise ConfigError(f"{self.what}'s address {problem}", _HTTP_EXAMPLE)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ConfigError(f"{self.what}'s address is {address!r}", _HTTP_EXAMPLE)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Each address by itself, without a slash at its end."""
        if self.url is None:
            return ()
        return tuple(part.strip().rstrip("/") for part in self.url.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings(RegistrySettings):
    """The address of a cluster of OpenSearch or Elasticsearch, with the credentials; raises the same."""

    what: ClassVar[str] = "the search cluster"
    url: str | None = None
    """http://host:port[/path] of the cluster for outputs of kind opensearch. Several addresses,
    comma-separated, are tried in turn."""
    timeout: timedelta = timedelta(seconds=30)
    """Maximum time for a request to one address, in seconds."""
    keep: timedelta = timedelta(minutes=5)
    """Minimum time for which replaced versions of documents stay in the indexes, in seconds."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers that a sidecar or a pipeline works with."""

    kafka: KafkaSettings
    redis: RedisSettings | None = None
    """None: cuts are only in the cut log."""
    registry: RegistrySettings | None = None
    """None: no topic is in Avro."""
    postgres: PostgresSettings | None = None
    """None: no output is in PostgreSQL."""
    delta: LakeSettings | None = None
    """None: no output is a Delta table."""
    iceberg: LakeSettings | None = None
    """None: no output is an Iceberg table."""
    search: SearchSettings | None = None
    """None: no output is a search index."""

    @property
    def secrets(self) -> frozenset[str]:
        """Everything that :func:`~slackwater.protocol.hide` has to remove from texts."""
        passwords = [
            each.password for each in (self.redis, self.registry, self.postgres, self.search) if each
        ]
        options = [self.kafka.options, *(each.options for each in (self.delta, self.iceberg) if each)]
        return frozenset(filter(None, passwords)).union(*map(secret_options, options))


NO_SERVERS = Servers(KafkaSettings(""))
"""Used instead of servers if Spark is started only to read files."""

_HTTP_EXAMPLE = "expected e.g. http://host:8081"

HIDDEN: Final = "********"
_SHORTEST: Final = 4
"""Shorter secrets are not hidden: hiding every ``x`` would reveal more about a secret than it conceals."""
_NAMES: Final = re.compile(
    r"secret|password|passwd|credential|access[._-]?key|account[._-]?key|jaas|[.]pem$|oauthbearer[.]config"
    r"|(?<!public)[._-]key$|[._-]token$|^token$",
    re.IGNORECASE,
)


def secret_options(options: Mapping[str, str]) -> frozenset[str]:
    """Returns the secrets in options of Kafka, Spark and lakes.

    These are the values of options whose names denote secrets, and the passwords in addresses.
    """
    named = {value for name, value in options.items() if _NAMES.search(name) and "://" not in value}
    return frozenset(named).union(*map(address_secrets, options.values()))


def address_secrets(address: str) -> frozenset[str]:
    """Returns the passwords in an address, as written and decoded."""
    if "://" not in address:
        return frozenset()
    try:
        parts = urlsplit(address)
        written = [parts.password, *(value for name, value in parse_qsl(parts.query) if _NAMES.search(name))]
    except ValueError:
        return frozenset({address})
    return frozenset(form for each in written if each for form in (each, unquote(each)))


def hide(text: str, secrets: Iterable[str]) -> str:
    """Returns a text without secrets, including their forms in JSON, in addresses and in Python literals.

    Args:
        text: A text such as the message of an error.
        secrets: What it must not contain; secrets of fewer than four characters are not removed.
    """
    forms = {form for secret in secrets if len(secret) >= _SHORTEST for form in _forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        if form in text:
            text = text.replace(form, HIDDEN)
    return text


def _forms(secret: str) -> tuple[str, ...]:
    return (
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        quote(secret, safe=""),
        repr(secret)[1:-1],
    )
