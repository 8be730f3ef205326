"""The options of ``format("slackwater")``, read once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from slackwater.engine.settings import Scope
from slackwater.protocol import (
    ConfigError,
    KafkaSettings,
    RedisSettings,
    RegistrySettings,
    Servers,
    SourceTopics,
)
from slackwater.protocol.keys import listed_names, table_name
from slackwater.settings.errors import did_you_mean

if TYPE_CHECKING:
    from slackwater.pipeline.source.typed_rows import TypedTable

_KAFKA_PREFIX = "kafka."
_REGISTRY = "schema_registry"
_OWN_KAFKA_SETTINGS = {
    "bootstrap.servers": "use the option 'bootstrap'",
    "auto.offset.reset": "a missing offset is always an error",
    "enable.auto.commit": "offsets are kept in Spark's checkpoint",
    "isolation.level": "only committed records are read",
    "enable.partition.eof": "needed to see the end of a range",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a query: which tables it reads, from which servers, and in which portions."""

    source: str
    """The connector's ``topic.prefix``. Required."""
    servers: Servers
    """The servers, from several options. Spark hides passwords with these names in its logs and on its pages.

    - ``bootstrap``, required, and ``kafka.*``: further librdkafka settings, e.g. ``kafka.sasl.password``.
    - ``redis_url`` without a password, and ``redis.password``. Without Redis, cuts are read from the cut log.
    - ``schema_registry``, ``schema_registry.user``, ``schema_registry.password``: if topics are in Avro.
    """
    tables: tuple[str, ...]
    """The tables as ``schema.table``. Required; a comma-separated list. Quote other names as in SQL:
    ``public."a.b"``."""
    routed: Mapping[str, str] = field(default_factory=dict)
    """The option ``topics`` as JSON: the topic of each table whose rows a transform routes to another topic.

    Several tables may share a topic. Rows of tables that the query does not read are ignored there.
    """
    connect_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The connector's configuration as JSON, for views and typed rows, if nobody else can tell it."""
    timeline: int = 1
    scope: Scope = Scope.STRICT
    """``strict``: batches end at cuts. ``aggregate``: each group of partitions advances as far as its own
    markers allow; all inputs must be partitioned in the same way."""
    starting: str = "earliest"
    """Where a query without a checkpoint starts: ``earliest`` or ``latest``."""
    allow_truncated_start: bool = False
    """Whether a query without a checkpoint may start with what is left of truncated topics."""
    max_events_per_batch: int = 400_000
    """The maximum number of records of the read topics, and of transactions of the source; a single cut may
    exceed it."""
    parallelism: int = 2
    """The number of tasks of a large batch; the number of cores is a good value."""
    min_task_events: int = 20_000
    """The minimum size of the tasks of a divided batch, because a task costs 60-100 ms in addition to its
    work."""
    target_task_events: int = 500_000
    """Tasks larger than this are divided even beyond ``parallelism``."""
    read_timeout_ms: int = 120_000
    """How long Kafka may deliver nothing, to a task or to the planning of a batch, before these fail."""
    typing: "TypedTable | None" = field(default=None, repr=False)
    """Internal: the only table that is read, whose rows are typed, as JSON."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Reads the options as Spark passes them: names in lower case, values as text.

        Raises:
            ConfigError: An option cannot be used; the error names the first one and the reason.
        """
        for name in options:
            if name not in _NAMES and not name.startswith(_KAFKA_PREFIX):
                raise _unknown_option(name)
        parsed: dict[str, Any] = {
            attribute: read(options, name) for name, (attribute, read) in _KNOWN.items() if name in options
        }
        for required in ("source", "bootstrap", "tables"):
            if required not in options:
                raise _unusable_option(required, "is required", _EXAMPLES[required])
        for table in parsed.get("routed", {}):
            if table not in parsed["tables"]:
                raise _unusable_option(
                    "topics", f"names {table!r}, which is not in 'tables'", _EXAMPLES["topics"]
                )
        return cls(**parsed, servers=_servers(options))

    @property
    def source_topics(self) -> SourceTopics:
        """The topics of the source's tables."""
        return SourceTopics(self.source, self.routed)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are read."""
        return frozenset(map(self.source_topics.data, self.tables))


def _servers(options: Mapping[str, str]) -> Servers:
    redis = None
    if "redis_url" in options:
        password = _text(options, "redis.password") if "redis.password" in options else None
        redis = RedisSettings(_redis_url(options, "redis_url"), password)
    kafka = KafkaSettings(_text(options, "bootstrap"), _kafka(options))
    return Servers(kafka, redis, _registry(options))


def _text(options: Mapping[str, str], name: str) -> str:
    value = options[name].strip()
    if not value:
        raise _unusable_option(name, "is empty", _EXAMPLES.get(name, ""))
    return value


def _tables(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    tables = tuple(_table(part, name) for part in listed_names(_text(options, name)))
    if len(set(tables)) < len(tables):
        raise _unusable_option(name, "names a table twice", options[name])
    return tables


def _table(written: str, option: str) -> str:
    try:
        return table_name(written)
    except ConfigError as error:
        raise _unusable_option(option, f"holds {error.problem}", error.hint) from None


def _texts(options: Mapping[str, str], name: str) -> dict[str, str]:
    try:
        texts = orjson.loads(options[name])
    except ValueError as error:
        raise _unusable_option(name, f"is not JSON: {error}", _EXAMPLES[name]) from None
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise _unusable_option(name, "is not a JSON object of texts", _EXAMPLES[name])
    return texts


def _topics(options: Mapping[str, str], name: str) -> dict[str, str]:
    topics = _texts(options, name)
    if not all(topics.values()):
        raise _unusable_option(name, "is not a JSON object that maps tables to topics", _EXAMPLES[name])
    return {_table(table, name): topic for table, topic in topics.items()}


def _registry(options: Mapping[str, str]) -> RegistrySettings | None:
    url = options.get(_REGISTRY)
    if url is None:
        return None
    user, password = options.get(f"{_REGISTRY}.user"), options.get(f"{_REGISTRY}.password")
    try:
        return RegistrySettings(url=url, user=user, password=password)
    except ConfigError as error:
        raise _unusable_option(
            _REGISTRY, f"names no registry: {error.problem}", _EXAMPLES[_REGISTRY]
        ) from error


def _integer(minimum: int) -> Callable[[Mapping[str, str], str], int]:
    def read(options: Mapping[str, str], name: str) -> int:
        try:
            value = int(options[name])
        except ValueError:
            raise _unusable_option(name, f"is {options[name]!r}, expected a whole number") from None
        if value < minimum:
            raise _unusable_option(name, f"is {value}, expected at least {minimum}")
        return value

    return read


def _boolean(options: Mapping[str, str], name: str) -> bool:
    value = options[name].strip().lower()
    if value not in ("true", "false"):
        raise _unusable_option(name, f"is {options[name]!r}, expected true or false")
    return value == "true"


def _starting(options: Mapping[str, str], name: str) -> str:
    value = options[name].strip().lower()
    if value not in ("earliest", "latest"):
        raise _unusable_option(name, f"is {options[name]!r}, expected earliest or latest")
    return value


def _scope(options: Mapping[str, str], name: str) -> Scope:
    try:
        return Scope(options[name].strip().lower())
    except ValueError:
        expected = " or ".join(Scope)
        raise _unusable_option(name, f"is {options[name]!r}, expected {expected}") from None


def _typing(options: Mapping[str, str], name: str) -> "TypedTable":
    from slackwater.pipeline.source.typed_rows import TypedTable

    return TypedTable.from_json(options[name])


def _redis_url(options: Mapping[str, str], name: str) -> str:
    url = _text(options, name)
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise _unusable_option(name, "does not have the form redis://host:port/db", _EXAMPLES[name])
    if parts.password:
        raise _unusable_option(name, "holds a password, which Spark would log", "use option 'redis.password'")
    return url


def _kafka(options: Mapping[str, str]) -> dict[str, str]:
    settings = {
        name.removeprefix(_KAFKA_PREFIX): value
        for name, value in options.items()
        if name.startswith(_KAFKA_PREFIX)
    }
    for setting in settings:
        if setting in _OWN_KAFKA_SETTINGS:
            raise _unusable_option(_KAFKA_PREFIX + setting, "cannot be set", _OWN_KAFKA_SETTINGS[setting])
    return settings


_EXAMPLES = {
    "source": 'the connector\'s topic.prefix, e.g. option("source", "inv")',
    "bootstrap": 'e.g. option("bootstrap", "broker:9092")',
    "tables": 'e.g. option("tables", "inventory.orders,inventory.order_lines")',
    "topics": 'e.g. option("topics", \'{"inventory.orders": "routed.orders"}\')',
    "connect_properties": 'e.g. option("connect_properties", \'{"time.precision.mode": "adaptive"}\')',
    "schema_registry": 'e.g. option("schema_registry", "http://registry:8081")',
    "redis_url": 'e.g. option("redis_url", "redis://redis:6379/0")',
}

_KNOWN: dict[str, tuple[str, Callable[[Mapping[str, str], str], object]]] = {
    "source": ("source", _text),
    "tables": ("tables", _tables),
    "topics": ("routed", _topics),
    "connect_properties": ("connect_properties", _texts),
    "timeline": ("timeline", _integer(1)),
    "scope": ("scope", _scope),
    "starting": ("starting", _starting),
    "allow_truncated_start": ("allow_truncated_start", _boolean),
    "max_events_per_batch": ("max_events_per_batch", _integer(1)),
    "parallelism": ("parallelism", _integer(1)),
    "min_task_events": ("min_task_events", _integer(1)),
    "target_task_events": ("target_task_events", _integer(1)),
    "read_timeout_ms": ("read_timeout_ms", _integer(100)),
    "typing": ("typing", _typing),
}
_NAMES = _KNOWN.keys() | {
    "bootstrap",
    "redis_url",
    "redis.password",
    _REGISTRY,
    f"{_REGISTRY}.user",
    f"{_REGISTRY}.password",
}


def _unknown_option(name: str) -> ConfigError:
    hint = did_you_mean(name, sorted(_NAMES)) or f"known: {', '.join(sorted(_NAMES))}, kafka.*"
    return _unusable_option(name, "is not an option of this source", hint)


def _unusable_option(name: str, problem: str, hint: str = "") -> ConfigError:
    return ConfigError(f'format("slackwater"): option {name!r} {problem}', hint)
