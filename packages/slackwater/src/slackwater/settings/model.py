"""The one settings model of all commands.

A setting has a path, e.g. ``kafka.bootstrap``. ``slackwater.settings.loading`` merges flags, environment and
file into this model, which checks types and ranges and supplies the defaults. The docstrings of the
fields are what ``slackwater config`` shows.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Meta

from slackwater.protocol import (
    ConfigError,
    Evidence,
    LakeSettings,
    PostgresSettings,
    RedisSettings,
    RegistrySettings,
    SearchSettings,
)
from slackwater.protocol.keys import listed_names, table_name
from slackwater.settings.declared import Checks, Reads, named

Value = TypeVar("Value")
_ALL_TABLES = "*"


def _check_tables(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name if name == _ALL_TABLES else check_table(name) for name in names)


def check_table(name: str) -> str:
    """Returns the full name of a table; raises ValueError if it is none."""
    try:
        return table_name(name)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def check_keys(by_table: dict[str, Value]) -> dict[str, Value]:
    """Returns values by the full names of tables; raises ValueError if a name is none."""
    return {check_table(name): value for name, value in by_table.items()}


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.rpartition("=") for part in listed_names(text)]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("expected name=value, comma-separated")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _check_brokers(value: str) -> str:
    for address in value.split(","):
        host, _, port = address.strip().rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
        if not host or "/" in host or not is_port:
            raise ValueError("expected host:port[,host:port], without http:// or another scheme")
    return value


def _check_topic_prefix(value: str) -> str:
    """Checks a name as Kafka checks the names of topics."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value):
        raise ValueError("expected the connector's topic.prefix: letters, digits, '.', '_' and '-'")
    return value


def _address(text: str, *schemes: str) -> SplitResult | None:
    """Returns the parts of an address with a host; None: it is none of these schemes."""
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_address else None


def _check_redis_url(url: str) -> str:
    """Checks an address without repeating any of it in the message: it may be a misplaced password."""
    parts = _address(url, "redis", "rediss")
    database = "" if parts is None else parts.path.strip("/")
    if not url.startswith("unix:") and (parts is None or (database and not database.isdigit())):
        raise ValueError(
            "expected redis://[[user]:password@]host[:port][/number of the database], or rediss://"
        )
    return url


def _check_database_url(url: str) -> str:
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("expected postgresql://[user[:password]@]host[:port]/database")
    return url


def _check_collector(value: str) -> str:
    parts = _address(value, "http", "https")
    if parts is None or parts.username is not None or parts.password is not None:
        raise ValueError("expected http://host[:port] or https://, without user and password")
    return value


def _without_password(url: str) -> tuple[SplitResult, str | None]:
    """Returns an address without its password, and the password."""
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    plain = parts._replace(netloc=f"{user}{parts.netloc.rpartition('@')[2]}")
    return plain, None if parts.password is None else unquote(parts.password)


PLACE: Final = "place"
"""Notes that a text names a file, a folder or an address: relative ones in a file are relative to it."""

Brokers = Annotated[str, Checks(_check_brokers)]
"""``host:port``, comma-separated."""
RedisUrl = Annotated[str, Checks(_check_redis_url)]
"""An address that redis-py takes."""
DatabaseUrl = Annotated[str, Checks(_check_database_url)]
"""An address that libpq takes."""
TopicPrefix = Annotated[str, Checks(_check_topic_prefix)]
"""A name that the names of Kafka's topics may begin with."""
CollectorUrl = Annotated[str, Checks(_check_collector)]
"""An address to which OTLP is sent over HTTP."""
TableNames = Annotated[frozenset[str], Reads(listed_names), Checks(_check_tables)]
"""Names of tables: a list in the file, comma-separated text elsewhere."""
TopicPrefixes = Annotated[
    tuple[TopicPrefix, ...], Reads(listed_names), Checks(lambda names: tuple(dict.fromkeys(names)))
]
"""The same, in the given order, each once."""
TableTexts = Annotated[dict[str, str], Reads(_pairs), Checks(check_keys)]
"""A table in the file; ``name=value`` pairs, comma-separated, elsewhere."""
TableEvidence = Annotated[dict[str, Evidence], Reads(_pairs), Checks(check_keys)]
"""The same, of kinds of evidence."""
Place = Annotated[str, PLACE]
"""The name or the address of a file or folder."""
Count = Annotated[int, Meta(ge=1)]
"""A number from 1 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSection:
    """Says how to reach Kafka."""

    bootstrap: Brokers | None = None
    """Brokers, host:port[,host:port]."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Protocol for connections to the brokers."""
    sasl_mechanism: str | None = None
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."""
    sasl_username: str | None = None
    """User name for the brokers."""
    sasl_password: str | None = field(default=None, repr=False)
    """Password for the brokers."""
    oauth_token_url: str | None = None
    """Where OAUTHBEARER gets its tokens, with the client credentials grant of OpenID Connect."""
    oauth_client_id: str | None = None
    """Client id there."""
    oauth_client_secret: str | None = field(default=None, repr=False)
    """Secret of that client."""
    oauth_scope: str | None = None
    """Scope to ask for there, if it needs one."""
    oauth_ca: Path | None = None
    """File with the certificates to trust there; default: those that the system trusts."""
    ssl_ca: Path | None = None
    """File with the trusted certificates; default: those that the system trusts."""
    ssl_certificate: Path | None = None
    """File with the client certificate, for brokers that ask for one."""
    ssl_key: Path | None = None
    """File with the private key of that certificate."""
    ssl_key_password: str | None = field(default=None, repr=False)
    """Password of that key, if it has one."""
    replication_factor: int = -1
    """Replication factor of topics that are created; -1: the broker's default."""
    keep: timedelta = timedelta(minutes=10)
    """How long topics with emit = "latest" that a pipeline creates keep replaced documents, in seconds. Views
    can be read at the ends of batches for this long, less one minute to allow for clock differences."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Any other librdkafka properties, by their own names; only in the file."""

    def __post_init__(self) -> None:
        """Refuses what librdkafka would pass over silently: it would talk in the clear, or as nobody."""
        options = self.client_options()
        protocol = options.get("security.protocol", "PLAINTEXT").upper()
        for prefix, word in (("sasl.", "SASL"), ("ssl.", "SSL")):
            if word not in protocol and any(name.startswith(prefix) for name in options):
                names = {"SASL": "kafka.sasl_* and kafka.oauth_*", "SSL": "kafka.ssl_*"}[word]
                expected = {"SASL": "SASL_SSL or SASL_PLAINTEXT", "SSL": "SSL or SASL_SSL"}[word]
                raise ConfigError(f"{names} need kafka.security_protocol {expected}")
        if "SASL" in protocol and not {"sasl.mechanism", "sasl.mechanisms"} & options.keys():
            raise ConfigError(f"kafka.security_protocol {protocol} needs kafka.sasl_mechanism")
        if self.oauth_token_url and self.sasl_mechanism != "OAUTHBEARER":
            raise ConfigError("kafka.oauth_* need kafka.sasl_mechanism OAUTHBEARER")
        if (self.ssl_certificate is None) != (self.ssl_key is None):
            raise ConfigError("kafka.ssl_certificate and kafka.ssl_key need each other, and one is missing")

    def client_options(self) -> dict[str, str]:
        """Everything but ``bootstrap.servers``, as librdkafka wants it. Holds secrets."""
        named: dict[str, str | Path | None] = {
            "security.protocol": self.security_protocol if self.security_protocol != "PLAINTEXT" else None,
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.sasl_username,
            "sasl.password": self.sasl_password,
            "sasl.oauthbearer.method": "oidc" if self.oauth_token_url else None,
            "sasl.oauthbearer.token.endpoint.url": self.oauth_token_url,
            "sasl.oauthbearer.client.id": self.oauth_client_id,
            "sasl.oauthbearer.client.secret": self.oauth_client_secret,
            "sasl.oauthbearer.scope": self.oauth_scope,
            "https.ca.location": self.oauth_ca,
            "ssl.ca.location": self.ssl_ca,
            "ssl.certificate.location": self.ssl_certificate,
            "ssl.key.location": self.ssl_key,
            "ssl.key.password": self.ssl_key_password,
        }
        return {name: str(value) for name, value in named.items() if value is not None} | dict(self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSection:
    """Says how to reach Redis."""

    url: RedisUrl | None = field(default=None, repr=False)
    """redis://[user[:password]@]host:port[/db], rediss:// for TLS; secret, since it may hold a password."""
    password: str | None = field(default=None, repr=False)
    """Password, if it is not part of the URL."""
    ssl_ca: Path | None = None
    """File with the trusted certificates; default: those that the system trusts."""
    ssl_certificate: Path | None = None
    """File with the client certificate, if the server requires one."""
    ssl_key: Path | None = None
    """File with the key of the client certificate."""

    def __post_init__(self) -> None:
        if self._files() and self.url and not self.url.startswith("rediss://"):
            raise ConfigError("redis.ssl_* require a redis.url that begins with rediss://")

    def server(self) -> RedisSettings | None:
        """Returns the address without a password, and the password. Only the latter is a secret."""
        if self.url is None:
            return None
        parts, password = _without_password(self.url)
        query = "&".join(
            filter(None, [parts.query, urlencode(self._files())])
        )  # where every client finds them
        return RedisSettings(
            urlunsplit(parts._replace(query=query)), password if self.password is None else self.password
        )

    def _files(self) -> dict[str, str]:
        named = {
            "ssl_ca_certs": self.ssl_ca,
            "ssl_certfile": self.ssl_certificate,
            "ssl_keyfile": self.ssl_key,
        }
        return {name: str(path) for name, path in named.items() if path is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSection:
    """Settings for one source of several; those that are left out are taken from ``[sidecar]``."""

    tables: TableNames | None = None
    """As sidecar.tables."""
    timeline: Count | None = None
    """As timeline."""
    evidence: TableEvidence | None = None
    """As sidecar.evidence."""
    complete_tables: TableNames | None = None
    """As sidecar.complete_tables."""
    topics: TableTexts | None = None
    """As sidecar.topics."""
    transaction_topic: str | None = None
    """As sidecar.transaction_topic."""
    notification_topic: str | None = None
    """As sidecar.notification_topic."""
    open_after: timedelta | None = None
    """As sidecar.open_after; seconds."""
    workers: Count | None = None
    """As sidecar.workers."""
    commit_format: Literal["avro"] | None = None
    """As sidecar.commit_format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarOptions:
    """What a sidecar is given for a source by the command and from Python alike."""

    tables: TableNames | None = None
    """Tables of the source as schema.table, comma-separated; default: all, including those added later.
    Quote other names as in SQL: public."a.b"."""
    evidence: TableEvidence = field(default_factory=dict)
    """Evidence that a table is complete: TABLE=counts, overtaken or offsets, comma-separated; default:
    counts."""
    complete_tables: TableNames = frozenset()
    """Tables that are complete without a snapshot, as schema.table, comma-separated, because they were empty
    when the connector began to follow them; *: all that its first snapshot did not contain."""
    workers: Count = 1
    """Processes that read and decode the partitions of a source; 1: the sidecar's own process."""
    publish_interval: timedelta = timedelta(milliseconds=5)
    """Minimum interval between cuts, in seconds."""
    barrier_interval: timedelta = timedelta(seconds=1)
    """Interval between barriers, at which all pipelines end a batch, in seconds of commit time; 0: no
    barriers."""
    open_after: timedelta = timedelta(seconds=5)
    """Transactions that are open for longer than this are listed in the status; seconds."""
    restored_cuts: Count = 2_000
    """Number of cuts that are restored to a Redis that has lost them."""
    commit_format: Literal["avro"] | None = None
    """avro: a commit record of each cut is written to SOURCE.commits-avro, with a schema registry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSection(SidecarOptions):
    """Says how the sidecar works."""

    topics: TableTexts = field(default_factory=dict)
    """TABLE=TOPIC, comma-separated, for tables whose records are routed to other topics by a transform."""
    transaction_topic: str | None = None
    """Topic with BEGIN and END records; default: SOURCE.transaction."""
    notification_topic: str | None = None
    """Topic with the connector's notifications; default: SOURCE.notifications."""
    http: str | None = None
    """host:port for /metrics, /healthz, /readyz and /status; port 0: any free port; default: none."""
    of: dict[str, SourceSection] = field(default_factory=dict)
    """Settings that differ between several sources, in tables [sidecar.of.SOURCE]; only in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSection:
    """Says to whom the pages of sidecars and runs are shown, which sidecar.http and run.http switch on."""

    tokens: Path | None = None
    """File of access tokens, see `slackwater token`; default: anyone who reaches the port can read, and
    nobody can make decisions."""
    certificate: Path | None = None
    """File with the server certificate and its chain; default: no TLS."""
    key: Path | None = None
    """File with the key of the server certificate."""
    client_ca: Path | None = None
    """File with the CA certificates for client certificates; default: clients need no certificate."""
    requests_per_second: Annotated[float, Meta(gt=0)] = 50
    """Requests per second that are answered per client address, with bursts of up to five times as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSection(HttpSection):
    """Says where and to whom the control plane answers, which a sidecar starts beside itself."""

    listen: str | None = None
    """host:port of the page and the API; port 0: any free port; default: no control plane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectSection:
    """Says how to reach Kafka Connect, and as whom a connector reads the database."""

    url: str | None = None
    """http://host:port of Kafka Connect's REST interface; a sidecar then watches the connector's state and
    configuration, and a run refuses a configuration that gives values another form."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The properties of a source's connector, by their own names, if nobody can ask Kafka Connect: all that
    it has. A run relies on them unless the sidecar knows better; only in the file."""
    database_user: str = "slackwater"
    """The connector's user in the source database."""
    database_password: str | None = field(default=None, repr=False)
    """Password of this user."""
    database_host: str | None = None
    """host[:port] at which Kafka Connect reaches the source database; default: that of postgres.url."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSection:
    """Says how to reach the source database, and the one that pipelines publish tables to."""

    url: DatabaseUrl | None = field(default=None, repr=False)
    """The source database, postgresql://user:password@host:port/database; secret. A sidecar watches the
    connector's replication slot there, and runs look for what changes rows without an event."""
    output_url: DatabaseUrl | None = field(default=None, repr=False)
    """The database for outputs of kind postgres; secret. It has no default, because postgres.url is the
    source database."""
    output_password: str | None = field(default=None, repr=False)
    """Password for postgres.output_url, if it is not part of the URL."""

    def output(self) -> PostgresSettings | None:
        """Returns the address of the outputs without a password, and the password, which is the secret."""
        if self.output_url is None:
            return None
        parts, password = _without_password(self.output_url)
        options = dict(parse_qsl(parts.query))
        given = [self.output_password, password, options.pop("password", None)]
        plain = urlunsplit(parts._replace(query=urlencode(options, quote_via=quote)))
        return PostgresSettings(plain, next((each for each in given if each is not None), None))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSection(LakeSettings):
    """Says where outputs of kind delta are."""

    place: Place = field(default="", metadata=named("location"))
    """Folder of the tables, such as /var/lib/lake or s3://bucket/lake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSection(LakeSettings):
    """Says where outputs of kind iceberg are."""

    place: str = field(default="", metadata=named("catalog"))
    """Name of the catalogue, as configured in iceberg.options or in pyiceberg's own configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run of a pipeline is given by the command and from Python alike."""

    checkpoint: Place | None = None
    """Location of the pipeline's state: a folder, or a URL such as ``s3://bucket/folder``."""
    master: str | None = None
    """Spark master; default: from Spark's own configuration, else local[*]."""
    available_now: bool = False
    """Process what exists now, then stop."""
    driver_memory: str | None = None
    """Heap of Spark's driver; default: from Spark's own configuration, else 768m."""
    parallelism: Count | None = None
    """Number of tasks for a large batch, and for each of its levels; default: the number of Spark's cores."""
    max_events_per_batch: Count | None = None
    """Number of change events at which a batch is closed."""
    longest_lease: timedelta = timedelta(days=1)
    """Longest lease that a pipeline accepts, in seconds; longer ones are refused."""
    allow_missing_tables: bool = False
    """Treat tables without a topic as empty. Otherwise the run is refused, since a name may be wrong."""
    accept_changed_output: bool = False
    """Continue with output topics that were changed since the last run; missing documents stay missing."""
    index_root: Path | None = None
    """Local folder for the stages' indexes, which are a cache; default: with a local master,
    slackwater/indexes in the user's cache folder, so that a restart finds them, else Spark's local folder."""
    spark_log: Path | None = None
    """File for the log of Spark's JVM and for everything that the JVM and its Python workers print; with
    log.level = "debug", this also goes to the log."""
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Any other Spark settings, which override spark-defaults.conf and spark-submit; only in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSection(RunOptions):
    """Says how a pipeline runs."""

    statement_memory: Count = 512
    """Memory for one SQL statement of a view, in MiB, in each of Spark's Python processes. A process may grow
    by three times as much while the statement runs."""
    statement_seconds: Annotated[float, Meta(gt=0)] = 120
    """CPU seconds after which a SQL statement of a view is aborted, and the pipeline with it."""
    http: str | None = None
    """host:port for /metrics, /healthz and /readyz of the run; port 0: any free port; default: none."""
    silent_after: timedelta = timedelta(minutes=15)
    """/healthz fails when the run has not taken a step for this long, in seconds. Running a batch in Spark is
    one step: set more than your longest transaction takes."""
    class_archive: bool = True
    """Use the archive of `slackwater archive-classes`, if it exists, so that Spark starts faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSection:
    """Says what is logged, and where."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    file: Path | None = None
    """Write the log to this file instead of to standard error."""
    format: Literal["text", "json"] = "text"
    """Format of the log; json: one object per line, with the values of each event as fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySection:
    """Says where sidecars and runs send what they measure, beside what they answer."""

    otlp: CollectorUrl | None = None
    """http://host:port of an OpenTelemetry collector that takes OTLP over HTTP, or https:// for TLS; default:
    nothing is sent."""
    token: str | None = field(default=None, repr=False)
    """Token for the collector, if it requires one."""
    token_header: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+$")] = "Authorization"  # noqa: S105 - a header
    """Header in which the token is sent: as a bearer token in Authorization, and as it is in any other."""
    ssl_ca: Path | None = None
    """File with the certificates to trust there; default: those that the system trusts."""
    ssl_certificate: Path | None = None
    """File with the client certificate, for collectors that ask for one."""
    ssl_key: Path | None = None
    """File with the private key of that certificate."""
    interval: timedelta = timedelta(seconds=15)
    """The interval at which metrics are sent."""
    trace_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """The share of transactions that is traced from commit to visible; the same for sidecars and runs."""

    def __post_init__(self) -> None:
        """Refuses what would be passed over silently."""
        files = (self.ssl_ca, self.ssl_certificate, self.ssl_key)
        if self.otlp and not self.otlp.startswith("https://") and any(files):
            raise ConfigError("telemetry.ssl_* require a telemetry.otlp that begins with https://")
        if (self.ssl_certificate is None) != (self.ssl_key is None):
            raise ConfigError(
                "telemetry.ssl_certificate and telemetry.ssl_key need each other, and one is missing"
            )

    def headers(self) -> dict[str, str]:
        """Returns what every request carries. Holds a secret."""
        if self.token is None:
            return {}
        is_bearer = self.token_header.lower() == "authorization"
        return {self.token_header: f"Bearer {self.token}" if is_bearer else self.token}


@dataclass(frozen=True, slots=True, kw_only=True)
class DevSection:
    """Settings of the local stack."""

    folder: Path = Path(".slackwater/dev")
    """Folder for the data, logs and state of the local stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set."""

    source: TopicPrefix | None = None
    """The connector's topic.prefix."""
    sources: TopicPrefixes | None = None
    """Several sources, comma-separated, for one sidecar; instead of source."""
    timeline: Count = 1
    """Raise it when the database's LSNs start over (failover, restore)."""
    kafka: KafkaSection = KafkaSection()
    connect: ConnectSection = ConnectSection()
    redis: RedisSection = RedisSection()
    registry: RegistrySettings = field(default_factory=RegistrySettings)
    postgres: PostgresSection = PostgresSection()
    delta: DeltaSection = DeltaSection()
    iceberg: IcebergSection = IcebergSection()
    opensearch: SearchSettings = field(default_factory=SearchSettings)
    sidecar: SidecarSection = SidecarSection()
    http: HttpSection = HttpSection()
    control: ControlSection = ControlSection()
    run: RunSection = RunSection()
    telemetry: TelemetrySection = TelemetrySection()
    dev: DevSection = DevSection()
    log: LogSection = LogSection()
