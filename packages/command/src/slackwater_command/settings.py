"""The one settings model of all commands.

A setting has a path, e.g. ``kafka.bootstrap``. ``slackwater_command.loading`` merges flags, environment and
file into this model, which checks types and ranges and supplies the defaults. The docstrings of the
fields are what ``slackwater config`` shows.
"""

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from slackwater_protocol import Evidence, LakeSettings, PostgresSettings, RedisSettings


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _seconds(value: object) -> object:
    return float(value) if isinstance(value, str) and value.replace(".", "", 1).isdigit() else value


def _pairs(value: object) -> object:
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("expected name=value, comma-separated")
    return {name.strip(): text.strip() for name, _, text in pairs}


def _ordered(value: object) -> object:
    names = _split(value)
    return list(dict.fromkeys(names)) if isinstance(names, list) else names


def _check_brokers(value: str) -> str:
    for address in value.split(","):
        host, colon, port = address.strip().rpartition(":")
        if not (host if colon else port) or (colon and not _is_port(port)):
            raise ValueError("expected host:port[,host:port]")
    return value


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16


def _check_topic_prefix(value: str) -> str:
    """Checks a name as Kafka checks the names of topics."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value):
        raise ValueError("expected the connector's topic.prefix: letters, digits, '.', '_' and '-'")
    return value


def _check_redis_url(secret: SecretStr) -> SecretStr:
    """Checks an address without repeating any of it in the message: it may be a misplaced password."""
    try:
        parts = urlsplit(secret.get_secret_value())
        is_address = parts.scheme in ("redis", "rediss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    else:
        database = parts.path.strip("/")
        is_address = parts.scheme == "unix" or (is_address and (not database or database.isdigit()))
    if not is_address:
        raise ValueError(
            "expected redis://[[user]:password@]host[:port][/number of the database], or rediss://"
        )
    return secret


def _check_database_url(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().startswith(("postgresql://", "postgres://")):
        raise ValueError("expected postgresql://[user[:password]@]host[:port]/database")
    return secret


Brokers = Annotated[str, AfterValidator(_check_brokers)]
"""``host:port``, comma-separated."""
RedisUrl = Annotated[SecretStr, AfterValidator(_check_redis_url)]
"""An address that redis-py takes."""
DatabaseUrl = Annotated[SecretStr, AfterValidator(_check_database_url)]
"""An address that libpq takes."""
TopicPrefix = Annotated[str, AfterValidator(_check_topic_prefix)]
"""A name that the names of Kafka's topics may begin with."""
Names = Annotated[frozenset[str], BeforeValidator(_split)]
"""A list in the file, comma-separated text elsewhere."""
TopicPrefixes = Annotated[tuple[TopicPrefix, ...], BeforeValidator(_ordered)]
"""The same, in the given order, each once."""
TableTexts = Annotated[dict[str, str], BeforeValidator(_pairs)]
"""A table in the file; ``name=value`` pairs, comma-separated, elsewhere."""
TableEvidence = Annotated[dict[str, Evidence], BeforeValidator(_pairs)]
"""The same, of kinds of evidence."""
Duration = Annotated[timedelta, BeforeValidator(_seconds)]
"""A number of seconds."""


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True
    )


class KafkaSection(_Section):
    """Says how to reach Kafka."""

    bootstrap: Brokers | None = None
    """Brokers, host:port[,host:port]."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How to talk to the brokers."""
    sasl_mechanism: str | None = None
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, ..."""
    sasl_username: str | None = None
    """User at the brokers."""
    sasl_password: SecretStr | None = None
    """Password at the brokers."""
    ssl_ca: Path | None = None
    """File with the certificates to trust."""
    replication_factor: int = -1
    """Copies of each topic that has to be created; -1: the broker's default."""
    keep: Duration = timedelta(minutes=10)
    """So long topics of emit = "latest" that a pipeline makes keep documents that were replaced, and views
    can be read where batches ended, but for a minute by which clocks may differ; seconds."""
    options: dict[str, str] = Field(default_factory=dict)
    """Any other librdkafka properties, by their own names; only in the file."""

    def client_options(self) -> dict[str, str]:
        """Everything but ``bootstrap.servers``, as librdkafka wants it. Holds secrets."""
        named = {
            "security.protocol": self.security_protocol if self.security_protocol != "PLAINTEXT" else None,
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.sasl_username,
            "sasl.password": self.sasl_password.get_secret_value() if self.sasl_password else None,
            "ssl.ca.location": str(self.ssl_ca) if self.ssl_ca else None,
        }
        return {name: value for name, value in named.items() if value is not None} | self.options


class RedisSection(_Section):
    """Says how to reach Redis."""

    url: RedisUrl | None = None
    """redis://[user[:password]@]host:port[/db], rediss:// for TLS; secret, since it may hold a password."""
    password: SecretStr | None = None
    """Password, when it shall not stand in the URL."""
    ssl_ca: Path | None = None
    """File with the certificates to trust; default: what the system trusts."""
    ssl_certificate: Path | None = None
    """File with the certificate to show to a server that asks for one."""
    ssl_key: Path | None = None
    """File with the key of that certificate."""

    @model_validator(mode="after")
    def _files_need_tls(self) -> "RedisSection":
        if self._files() and self.url and not self.url.get_secret_value().startswith("rediss://"):
            raise ValueError("redis.ssl_* need a redis.url that begins with rediss://")
        return self

    def server(self) -> RedisSettings | None:
        """Returns the address without a password, and the password. Only the latter is a secret."""
        if self.url is None:
            return None
        parts = self._parts(self.url)
        user = f"{parts.username}@" if parts.username else ""
        password = self.password.get_secret_value() if self.password else None
        if password is None and parts.password is not None:
            password = unquote(parts.password)
        host = parts.netloc.rpartition("@")[2]
        return RedisSettings(urlunsplit(parts._replace(netloc=f"{user}{host}")), password)

    def _parts(self, url: SecretStr) -> SplitResult:
        """Puts the files into the query, where every client of Redis finds them."""
        parts = urlsplit(url.get_secret_value())
        return parts._replace(query="&".join(filter(None, [parts.query, urlencode(self._files())])))

    def _files(self) -> dict[str, str]:
        named = {
            "ssl_ca_certs": self.ssl_ca,
            "ssl_certfile": self.ssl_certificate,
            "ssl_keyfile": self.ssl_key,
        }
        return {name: str(path) for name, path in named.items() if path is not None}


class SourceSection(_Section):
    """Settings for one source of several; those that are left out are taken from ``[sidecar]``."""

    tables: Names | None = None
    """As sidecar.tables."""
    timeline: int | None = Field(default=None, ge=1)
    """As timeline."""
    evidence: TableEvidence | None = None
    """As sidecar.evidence."""
    topics: TableTexts | None = None
    """As sidecar.topics."""
    transaction_topic: str | None = None
    """As sidecar.transaction_topic."""
    notification_topic: str | None = None
    """As sidecar.notification_topic."""
    open_after: Duration | None = None
    """As sidecar.open_after; seconds."""
    workers: int | None = Field(default=None, ge=1)
    """As sidecar.workers."""


class SidecarSection(_Section):
    """Says how the sidecar works."""

    tables: Names | None = None
    """Tables of the source, schema.table each, comma-separated; default: all, also later ones."""
    evidence: TableEvidence = Field(default_factory=dict)
    """What proves a table complete: TABLE=counts, overtaken or offsets, comma-separated; default: counts."""
    topics: TableTexts = Field(default_factory=dict)
    """TABLE=TOPIC, comma-separated, of tables whose records a transform sends elsewhere."""
    transaction_topic: str | None = None
    """Topic with BEGIN and END; default: SOURCE.transaction."""
    notification_topic: str | None = None
    """Topic with the connector's notifications; default: SOURCE.notifications."""
    schema_registry: str | None = None
    """http://host:port of the registry, when the records are in Avro."""
    schema_registry_user: str | None = None
    """User at the registry."""
    schema_registry_password: SecretStr | None = None
    """Password at the registry."""
    http: str | None = None
    """host:port for /metrics, /healthz, /readyz and /status; port 0: any free one; default: none."""
    workers: int = Field(default=1, ge=1)
    """Processes that read and decode a source's partitions; 1: the sidecar's own does."""
    publish_interval: Duration = timedelta(milliseconds=5)
    """Cuts are at least so far apart; seconds."""
    barrier_interval: Duration = timedelta(seconds=1)
    """From one barrier, where all pipelines end a batch, to the next; commit time in seconds; 0: none."""
    open_after: Duration = timedelta(seconds=5)
    """A transaction that has been open for longer is named in the status; seconds."""
    restored_cuts: int = Field(default=2_000, ge=1)
    """Cuts that are put back into a Redis that lost them."""
    of: dict[str, SourceSection] = Field(default_factory=dict)
    """What differs for one source of several: tables [sidecar.of.SOURCE]; only in the file."""


class ControlSection(_Section):
    """Says where and to whom the control plane answers, which a sidecar starts beside itself."""

    listen: str | None = None
    """host:port of page and API; port 0: any free one; default: there is no control plane."""
    tokens: Path | None = None
    """File of tokens, see `slackwater token`; default: who reaches the port may read, nobody decide."""
    certificate: Path | None = None
    """File with the certificate to show, and those it is signed by; default: no TLS."""
    key: Path | None = None
    """File with the key of that certificate."""
    client_ca: Path | None = None
    """File with the certificates that clients' have to be signed by; default: clients need none."""
    requests_per_second: float = Field(default=50, gt=0)
    """So many requests of one address are answered, and five times as many at once."""


class ConnectSection(_Section):
    """Says how to reach Kafka Connect, and as whom a connector reads the database."""

    url: str | None = None
    """http://host:port of Kafka Connect's REST interface."""
    database_user: str = "slackwater"
    """The connector's user in the source database."""
    database_password: SecretStr | None = None
    """Its password there."""
    database_host: str | None = None
    """host[:port] under which Kafka Connect finds the source database; default: that of postgres.url."""


class PostgresSection(_Section):
    """Says how to reach the source database, and the one that pipelines publish tables to."""

    url: DatabaseUrl | None = None
    """The source database, postgresql://user:password@host:port/database; secret; for schema and certify."""
    output_url: DatabaseUrl | None = None
    """The database of outputs of kind postgres; secret. Without a default, since postgres.url is the
    source database."""
    output_password: SecretStr | None = None
    """Password there, when it shall not stand in the URL."""

    def output(self) -> PostgresSettings | None:
        """Returns the address of the outputs without a password, and the password, which is the secret."""
        if self.output_url is None:
            return None
        parts = urlsplit(self.output_url.get_secret_value())
        user = f"{parts.username}@" if parts.username else ""
        password = self.output_password.get_secret_value() if self.output_password else None
        if password is None and parts.password is not None:
            password = unquote(parts.password)
        options = dict(parse_qsl(parts.query))
        password = options.pop("password", None) if password is None else password
        host = parts.netloc.rpartition("@")[2]
        plain = parts._replace(netloc=f"{user}{host}", query=urlencode(options, quote_via=quote))
        return PostgresSettings(urlunsplit(plain), password)


class _LakeSection(_Section):
    """Says what is kept of outputs in a lake."""

    options: dict[str, str] = Field(default_factory=dict)
    """What the lake's library needs to get there, by its own names; only in the file."""
    keep: Duration = timedelta(days=1)
    """So long, at least, every state that the ledger names stays readable; seconds."""
    maintain_every: int = Field(default=100, ge=1)
    """Batches from one compaction, and one removal of what is older, to the next."""

    def _at(self, place: str | None) -> LakeSettings | None:
        if place is None:
            return None
        return LakeSettings(
            place=place, options=self.options, keep=self.keep, maintain_every=self.maintain_every
        )


class DeltaSection(_LakeSection):
    """Says where outputs of kind delta are."""

    location: str | None = None
    """Folder of the tables, such as /var/lib/lake or s3://bucket/lake."""

    def lake(self) -> LakeSettings | None:
        """Returns where the tables are. Holds secrets."""
        return self._at(self.location)


class IcebergSection(_LakeSection):
    """Says where outputs of kind iceberg are."""

    catalog: str | None = None
    """Name of the catalogue; where it is say iceberg.options or pyiceberg's own configuration."""

    def lake(self) -> LakeSettings | None:
        """Returns the catalogue of the tables. Holds secrets."""
        return self._at(self.catalog)


class RunSection(_Section):
    """Says how a pipeline runs."""

    checkpoint: str | None = None
    """Folder, or address such as ``s3://bucket/folder``, where the pipeline's state is kept."""
    master: str | None = None
    """Spark master; default: what Spark's own configuration says, else local[*]."""
    available_now: bool = False
    """Process what is there, then end."""
    driver_memory: str | None = None
    """Heap of Spark's driver; default: what Spark's own configuration says, else 768m."""
    parallelism: int | None = Field(default=None, ge=1)
    """Tasks of a large batch, and of each of its levels; default: the cores Spark has."""
    max_events_per_batch: int | None = Field(default=None, ge=1)
    """Change events at which a batch is closed."""
    statement_memory: int = Field(default=512, ge=1)
    """MiB for one SQL statement of a view, in each of Spark's Python processes, which may grow by three times
    as much meanwhile."""
    statement_seconds: float = Field(default=120, gt=0)
    """CPU seconds after which a SQL statement of a view is ended, and the pipeline with it."""
    longest_lease: Duration = timedelta(days=1)
    """Leases by which readers would hold states of the views for longer are refused; seconds."""
    allow_missing_tables: bool = False
    """Tables without a topic count as empty; else a run is refused, since their name may be wrong."""
    http: str | None = None
    """host:port for /metrics and /healthz of the run; port 0: any free one; default: none."""
    accept_changed_output: bool = False
    """Go on with output topics that are not as the pipeline left them; what is missing stays missing."""
    index_root: Path | None = None
    """Local folder for the stages' indexes, a cache; default: with a local master slackwater/indexes in the
    user's cache folder, so that a restart finds them, else Spark's local folder."""
    class_archive: bool = True
    """Use the archive of `slackwater archive-classes`, if there is one, with which Spark starts faster."""
    spark_log: Path | None = None
    """File for the log of Spark's JVM, and for all that it and its Python workers print; with
    log.level = "debug" that is in the log, too."""
    spark_conf: dict[str, str] = Field(default_factory=dict)
    """Any other Spark settings; win over spark-defaults.conf and spark-submit; only in the file."""


class LogSection(_Section):
    """Says what is logged, and where."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""
    file: Path | None = None
    """Write the log here instead of to standard error."""
    format: Literal["text", "json"] = "text"
    """json: one object per line, with the values of each event as fields."""


class DevSection(_Section):
    """Settings of the local stack."""

    folder: Path = Path(".slackwater/dev")
    """Where the stack keeps its data, logs and state."""


class Settings(_Section):
    """Everything that can be set."""

    source: TopicPrefix | None = None
    """The connector's topic.prefix."""
    sources: TopicPrefixes | None = None
    """Several of them, comma-separated, for one sidecar; instead of source."""
    timeline: int = Field(default=1, ge=1)
    """Raise it when the database's LSNs start over (failover, restore)."""
    kafka: KafkaSection = KafkaSection()
    connect: ConnectSection = ConnectSection()
    redis: RedisSection = RedisSection()
    postgres: PostgresSection = PostgresSection()
    delta: DeltaSection = DeltaSection()
    iceberg: IcebergSection = IcebergSection()
    sidecar: SidecarSection = SidecarSection()
    control: ControlSection = ControlSection()
    run: RunSection = RunSection()
    dev: DevSection = DevSection()
    log: LogSection = LogSection()
