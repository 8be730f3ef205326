"""The one settings model of all commands.

A setting has a path, e.g. ``kafka.bootstrap``. ``slackwater.settings.loading`` merges flags, environment and
file into this model, which checks types and ranges and supplies the defaults. The docstrings of the
fields are what ``slackwater config`` shows.
"""

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from slackwater.protocol import (
    Evidence,
    LakeSettings,
    PostgresSettings,
    RedisSettings,
    RegistrySettings,
    TableNameError,
)
from slackwater.protocol.keys import listed_names, table_name

Value = TypeVar("Value")
_ALL_TABLES = "*"


def _split(value: object) -> object:
    return list(listed_names(value)) if isinstance(value, str) else value


def _check_tables(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name if name == _ALL_TABLES else _check_table(name) for name in names)


def _check_table(name: str) -> str:
    try:
        return table_name(name)
    except TableNameError as error:
        raise ValueError(str(error)) from None


def _check_keys(by_table: dict[str, Value]) -> dict[str, Value]:
    return {_check_table(name): value for name, value in by_table.items()}


def _seconds(value: object) -> object:
    return float(value) if isinstance(value, str) and value.replace(".", "", 1).isdigit() else value


def _pairs(value: object) -> object:
    if not isinstance(value, str):
        return value
    pairs = [part.rpartition("=") for part in listed_names(value)]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("expected name=value, comma-separated")
    return {name.strip(): text.strip() for name, _, text in pairs}


def _ordered(value: object) -> object:
    names = _split(value)
    return list(dict.fromkeys(names)) if isinstance(names, list) else names


def _check_brokers(value: str) -> str:
    for address in value.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or "/" in host or not _is_port(port):
            raise ValueError("expected host:port[,host:port], without http:// or another scheme")
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


def _check_collector(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    else:
        is_address = is_address and parts.username is None and parts.password is None
    if not is_address:
        raise ValueError("expected http://host[:port] or https://, without user and password")
    return value


Brokers = Annotated[str, AfterValidator(_check_brokers)]
"""``host:port``, comma-separated."""
RedisUrl = Annotated[SecretStr, AfterValidator(_check_redis_url)]
"""An address that redis-py takes."""
DatabaseUrl = Annotated[SecretStr, AfterValidator(_check_database_url)]
"""An address that libpq takes."""
TopicPrefix = Annotated[str, AfterValidator(_check_topic_prefix)]
"""A name that the names of Kafka's topics may begin with."""
CollectorUrl = Annotated[str, AfterValidator(_check_collector)]
"""An address to which OTLP is sent over HTTP."""
TableNames = Annotated[frozenset[str], BeforeValidator(_split), AfterValidator(_check_tables)]
"""Names of tables: a list in the file, comma-separated text elsewhere."""
TopicPrefixes = Annotated[tuple[TopicPrefix, ...], BeforeValidator(_ordered)]
"""The same, in the given order, each once."""
TableTexts = Annotated[dict[str, str], BeforeValidator(_pairs), AfterValidator(_check_keys)]
"""A table in the file; ``name=value`` pairs, comma-separated, elsewhere."""
TableEvidence = Annotated[dict[str, Evidence], BeforeValidator(_pairs), AfterValidator(_check_keys)]
"""The same, of kinds of evidence."""
Duration = Annotated[timedelta, BeforeValidator(_seconds)]
"""A number of seconds."""


def _plain(value: "str | SecretStr | Path") -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True
    )


class KafkaSection(_Section):
    """Says how to reach Kafka."""

    bootstrap: Brokers | None = None
    """Brokers, host:port[,host:port]."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Protocol for connections to the brokers."""
    sasl_mechanism: str | None = None
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."""
    sasl_username: str | None = None
    """User name for the brokers."""
    sasl_password: SecretStr | None = None
    """Password for the brokers."""
    oauth_token_url: str | None = None
    """Where OAUTHBEARER gets its tokens, with the client credentials grant of OpenID Connect."""
    oauth_client_id: str | None = None
    """Client id there."""
    oauth_client_secret: SecretStr | None = None
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
    ssl_key_password: SecretStr | None = None
    """Password of that key, if it has one."""
    replication_factor: int = -1
    """Replication factor of topics that are created; -1: the broker's default."""
    keep: Duration = timedelta(minutes=10)
    """How long topics with emit = "latest" that a pipeline creates keep replaced documents, in seconds. Views
    can be read at the ends of batches for this long, less one minute to allow for clock differences."""
    options: dict[str, str] = Field(default_factory=dict)
    """Any other librdkafka properties, by their own names; only in the file."""

    @model_validator(mode="after")
    def _is_used(self) -> "KafkaSection":
        """Refuses what librdkafka would pass over silently: it would talk in the clear, or as nobody."""
        options = self.client_options()
        protocol = options.get("security.protocol", "PLAINTEXT").upper()
        for prefix, word in (("sasl.", "SASL"), ("ssl.", "SSL")):
            if word not in protocol and any(name.startswith(prefix) for name in options):
                names = {"SASL": "kafka.sasl_* and kafka.oauth_*", "SSL": "kafka.ssl_*"}[word]
                expected = {"SASL": "SASL_SSL or SASL_PLAINTEXT", "SSL": "SSL or SASL_SSL"}[word]
                raise ValueError(f"{names} need kafka.security_protocol {expected}")
        if "SASL" in protocol and not {"sasl.mechanism", "sasl.mechanisms"} & options.keys():
            raise ValueError(f"kafka.security_protocol {protocol} needs kafka.sasl_mechanism")
        if self.oauth_token_url and self.sasl_mechanism != "OAUTHBEARER":
            raise ValueError("kafka.oauth_* need kafka.sasl_mechanism OAUTHBEARER")
        if (self.ssl_certificate is None) != (self.ssl_key is None):
            raise ValueError("kafka.ssl_certificate and kafka.ssl_key need each other, and one is missing")
        return self

    def client_options(self) -> dict[str, str]:
        """Everything but ``bootstrap.servers``, as librdkafka wants it. Holds secrets."""
        named: dict[str, str | SecretStr | Path | None] = {
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
        return {name: _plain(value) for name, value in named.items() if value is not None} | self.options


class RegistrySection(_Section):
    """Says how to reach the schema registry of the records that are read, and of outputs with schemas."""

    url: str | None = None
    """http://host:port[/path] of the schema registry, if records are in Avro or outputs have schemas. Several
    addresses, comma-separated, are tried in turn."""
    user: str | None = None
    """User name for the schema registry."""
    password: SecretStr | None = None
    """Password for the schema registry."""
    ca: Path | None = None
    """File with the certificates to trust there; default: those that the system trusts."""

    def server(self) -> RegistrySettings | None:
        """Returns the registry. Holds a secret.

        Raises:
            ConfigError: The address holds credentials or cannot be one.
        """
        if self.url is None:
            return None
        password = self.password.get_secret_value() if self.password else None
        return RegistrySettings(url=self.url, user=self.user, password=password, ca_file=self.ca)


class RedisSection(_Section):
    """Says how to reach Redis."""

    url: RedisUrl | None = None
    """redis://[user[:password]@]host:port[/db], rediss:// for TLS; secret, since it may hold a password."""
    password: SecretStr | None = None
    """Password, if it is not part of the URL."""
    ssl_ca: Path | None = None
    """File with the trusted certificates; default: those that the system trusts."""
    ssl_certificate: Path | None = None
    """File with the client certificate, if the server requires one."""
    ssl_key: Path | None = None
    """File with the key of the client certificate."""

    @model_validator(mode="after")
    def _files_need_tls(self) -> "RedisSection":
        if self._files() and self.url and not self.url.get_secret_value().startswith("rediss://"):
            raise ValueError("redis.ssl_* require a redis.url that begins with rediss://")
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

    tables: TableNames | None = None
    """As sidecar.tables."""
    timeline: int | None = Field(default=None, ge=1)
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
    open_after: Duration | None = None
    """As sidecar.open_after; seconds."""
    workers: int | None = Field(default=None, ge=1)
    """As sidecar.workers."""


class SidecarSection(_Section):
    """Says how the sidecar works."""

    tables: TableNames | None = None
    """Tables of the source as schema.table, comma-separated; default: all, including those added later.
    Quote other names as in SQL: public."a.b"."""
    evidence: TableEvidence = Field(default_factory=dict)
    """Evidence that a table is complete: TABLE=counts, overtaken or offsets, comma-separated; default:
    counts."""
    complete_tables: TableNames = frozenset()
    """Tables that are complete without a snapshot, as schema.table, comma-separated, because they were empty
    when the connector began to follow them; *: all that its first snapshot did not contain."""
    topics: TableTexts = Field(default_factory=dict)
    """TABLE=TOPIC, comma-separated, for tables whose records are routed to other topics by a transform."""
    transaction_topic: str | None = None
    """Topic with BEGIN and END records; default: SOURCE.transaction."""
    notification_topic: str | None = None
    """Topic with the connector's notifications; default: SOURCE.notifications."""
    http: str | None = None
    """host:port for /metrics, /healthz, /readyz and /status; port 0: any free port; default: none."""
    workers: int = Field(default=1, ge=1)
    """Processes that read and decode the partitions of a source; 1: the sidecar's own process."""
    publish_interval: Duration = timedelta(milliseconds=5)
    """Minimum interval between cuts, in seconds."""
    barrier_interval: Duration = timedelta(seconds=1)
    """Interval between barriers, at which all pipelines end a batch, in seconds of commit time; 0: no
    barriers."""
    open_after: Duration = timedelta(seconds=5)
    """Transactions that are open for longer than this are listed in the status; seconds."""
    restored_cuts: int = Field(default=2_000, ge=1)
    """Number of cuts that are restored to a Redis that has lost them."""
    of: dict[str, SourceSection] = Field(default_factory=dict)
    """Settings that differ between several sources, in tables [sidecar.of.SOURCE]; only in the file."""


class HttpSection(_Section):
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
    requests_per_second: float = Field(default=50, gt=0)
    """Requests per second that are answered per client address, with bursts of up to five times as many."""


class ControlSection(HttpSection):
    """Says where and to whom the control plane answers, which a sidecar starts beside itself."""

    listen: str | None = None
    """host:port of the page and the API; port 0: any free port; default: no control plane."""


class ConnectSection(_Section):
    """Says how to reach Kafka Connect, and as whom a connector reads the database."""

    url: str | None = None
    """http://host:port of Kafka Connect's REST interface; a sidecar then watches the connector's state and
    configuration, and a run refuses a configuration that gives values another form."""
    properties: dict[str, str] = Field(default_factory=dict)
    """The properties of a source's connector, by their own names, if nobody can ask Kafka Connect: all that
    it has. A run relies on them unless the sidecar knows better; only in the file."""
    database_user: str = "slackwater"
    """The connector's user in the source database."""
    database_password: SecretStr | None = None
    """Password of this user."""
    database_host: str | None = None
    """host[:port] at which Kafka Connect reaches the source database; default: that of postgres.url."""


class PostgresSection(_Section):
    """Says how to reach the source database, and the one that pipelines publish tables to."""

    url: DatabaseUrl | None = None
    """The source database, postgresql://user:password@host:port/database; secret. A sidecar watches the
    connector's replication slot there, and runs look for what changes rows without an event."""
    output_url: DatabaseUrl | None = None
    """The database for outputs of kind postgres; secret. It has no default, because postgres.url is the
    source database."""
    output_password: SecretStr | None = None
    """Password for postgres.output_url, if it is not part of the URL."""

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
    """Options of the lake's library, by their own names, such as endpoints and credentials; only in the
    file."""
    keep: Duration = timedelta(days=1)
    """Minimum time for which every state in the ledger stays readable, in seconds."""
    maintain_every: int = Field(default=100, ge=1)
    """Number of batches between compactions, which also remove older files."""

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
    """Name of the catalogue, as configured in iceberg.options or in pyiceberg's own configuration."""

    def lake(self) -> LakeSettings | None:
        """Returns the catalogue of the tables. Holds secrets."""
        return self._at(self.catalog)


class RunSection(_Section):
    """Says how a pipeline runs."""

    checkpoint: str | None = None
    """Location of the pipeline's state: a folder, or a URL such as ``s3://bucket/folder``."""
    master: str | None = None
    """Spark master; default: from Spark's own configuration, else local[*]."""
    available_now: bool = False
    """Process what exists now, then stop."""
    driver_memory: str | None = None
    """Heap of Spark's driver; default: from Spark's own configuration, else 768m."""
    parallelism: int | None = Field(default=None, ge=1)
    """Number of tasks for a large batch, and for each of its levels; default: the number of Spark's cores."""
    max_events_per_batch: int | None = Field(default=None, ge=1)
    """Number of change events at which a batch is closed."""
    statement_memory: int = Field(default=512, ge=1)
    """Memory for one SQL statement of a view, in MiB, in each of Spark's Python processes. A process may grow
    by three times as much while the statement runs."""
    statement_seconds: float = Field(default=120, gt=0)
    """CPU seconds after which a SQL statement of a view is aborted, and the pipeline with it."""
    longest_lease: Duration = timedelta(days=1)
    """Longest lease that a pipeline accepts, in seconds; longer ones are refused."""
    allow_missing_tables: bool = False
    """Treat tables without a topic as empty. Otherwise the run is refused, since a name may be wrong."""
    http: str | None = None
    """host:port for /metrics, /healthz and /readyz of the run; port 0: any free port; default: none."""
    silent_after: Duration = timedelta(minutes=15)
    """/healthz fails when the run has not taken a step for this long, in seconds. Running a batch in Spark is
    one step: set more than your longest transaction takes."""
    accept_changed_output: bool = False
    """Continue with output topics that were changed since the last run; missing documents stay missing."""
    index_root: Path | None = None
    """Local folder for the stages' indexes, which are a cache; default: with a local master,
    slackwater/indexes in the user's cache folder, so that a restart finds them, else Spark's local folder."""
    class_archive: bool = True
    """Use the archive of `slackwater archive-classes`, if it exists, so that Spark starts faster."""
    spark_log: Path | None = None
    """File for the log of Spark's JVM and for everything that the JVM and its Python workers print; with
    log.level = "debug", this also goes to the log."""
    spark_conf: dict[str, str] = Field(default_factory=dict)
    """Any other Spark settings, which override spark-defaults.conf and spark-submit; only in the file."""


class LogSection(_Section):
    """Says what is logged, and where."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    file: Path | None = None
    """Write the log to this file instead of to standard error."""
    format: Literal["text", "json"] = "text"
    """Format of the log; json: one object per line, with the values of each event as fields."""


class TelemetrySection(_Section):
    """Says where sidecars and runs send what they measure, beside what they answer."""

    otlp: CollectorUrl | None = None
    """http://host:port of an OpenTelemetry collector that takes OTLP over HTTP, or https:// for TLS; default:
    nothing is sent."""
    token: SecretStr | None = None
    """Token for the collector, if it requires one."""
    token_header: str = Field(default="Authorization", pattern=r"^[A-Za-z0-9-]+$")
    """Header in which the token is sent: as a bearer token in Authorization, and as it is in any other."""
    ssl_ca: Path | None = None
    """File with the certificates to trust there; default: those that the system trusts."""
    ssl_certificate: Path | None = None
    """File with the client certificate, for collectors that ask for one."""
    ssl_key: Path | None = None
    """File with the private key of that certificate."""
    interval: Duration = timedelta(seconds=15)
    """The interval at which metrics are sent."""
    trace_ratio: float = Field(default=0.0, ge=0, le=1)
    """The share of transactions that is traced from commit to visible; the same for sidecars and runs."""

    @model_validator(mode="after")
    def _is_used(self) -> "TelemetrySection":
        """Refuses what would be passed over silently."""
        files = (self.ssl_ca, self.ssl_certificate, self.ssl_key)
        if self.otlp and not self.otlp.startswith("https://") and any(files):
            raise ValueError("telemetry.ssl_* require a telemetry.otlp that begins with https://")
        if (self.ssl_certificate is None) != (self.ssl_key is None):
            raise ValueError(
                "telemetry.ssl_certificate and telemetry.ssl_key need each other, and one is missing"
            )
        return self

    def headers(self) -> dict[str, str]:
        """Returns what every request carries. Holds a secret."""
        if self.token is None:
            return {}
        token = self.token.get_secret_value()
        is_bearer = self.token_header.lower() == "authorization"
        return {self.token_header: f"Bearer {token}" if is_bearer else token}


class DevSection(_Section):
    """Settings of the local stack."""

    folder: Path = Path(".slackwater/dev")
    """Folder for the data, logs and state of the local stack."""


class Settings(_Section):
    """Everything that can be set."""

    source: TopicPrefix | None = None
    """The connector's topic.prefix."""
    sources: TopicPrefixes | None = None
    """Several sources, comma-separated, for one sidecar; instead of source."""
    timeline: int = Field(default=1, ge=1)
    """Raise it when the database's LSNs start over (failover, restore)."""
    kafka: KafkaSection = KafkaSection()
    connect: ConnectSection = ConnectSection()
    redis: RedisSection = RedisSection()
    registry: RegistrySection = RegistrySection()
    postgres: PostgresSection = PostgresSection()
    delta: DeltaSection = DeltaSection()
    iceberg: IcebergSection = IcebergSection()
    sidecar: SidecarSection = SidecarSection()
    http: HttpSection = HttpSection()
    control: ControlSection = ControlSection()
    run: RunSection = RunSection()
    telemetry: TelemetrySection = TelemetrySection()
    dev: DevSection = DevSection()
    log: LogSection = LogSection()
