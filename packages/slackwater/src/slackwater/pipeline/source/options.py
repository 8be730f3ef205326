"""The options of ``format("slackwater")``, read once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import orjson
from msgspec import Meta

from slackwater.engine.settings import Scope
from slackwater.protocol import (
    ConfigError,
    KafkaSettings,
    RedisSettings,
    RegistrySettings,
    Servers,
    SourceTopics,
)
from slackwater.protocol.keys import listed_names
from slackwater.settings.declared import Checks, Reader, Reads, named
from slackwater.settings.model import Count, check_keys, check_table

if TYPE_CHECKING:
    from slackwater.pipeline.source.typed_rows import TypedTable

_KAFKA_PREFIX = "kafka."
_OWN_KAFKA_SETTINGS = {
    "bootstrap.servers": "use the option 'bootstrap'",
    "auto.offset.reset": "a missing offset is always an error",
    "enable.auto.commit": "offsets are kept in Spark's checkpoint",
    "isolation.level": "only committed records are read",
    "enable.partition.eof": "needed to see the end of a range",
}


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text.strip()


def _word(text: str) -> str:
    return text.strip().lower()


def _once(tables: tuple[str, ...]) -> tuple[str, ...]:
    if not tables or len(set(tables)) < len(tables):
        raise ValueError("it names a table twice" if tables else "it names no table")
    return tables


def _redis_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError("it does not have the form redis://host:port/db")
    if parts.password:
        raise ValueError("it holds a password, which Spark would log; use option 'redis.password'")
    return url


_Text = Annotated[str, Checks(_filled)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    source: _Text
    """The connector's ``topic.prefix``. Required."""
    tables: Annotated[tuple[Annotated[str, Checks(check_table)], ...], Reads(listed_names), Checks(_once)]
    """The tables as ``schema.table``. Required; a comma-separated list. Quote other names as in SQL:
    ``public."a.b"``."""
    routed: Annotated[dict[str, _Text], Reads(orjson.loads), Checks(check_keys)] = field(
        default_factory=dict, metadata=named("topics")
    )
    """The option ``topics`` as JSON: the topic of each table whose rows a transform routes to another topic.

    Several tables may share a topic. Rows of tables that the query does not read are ignored there.
    """
    connect_properties: Annotated[dict[str, str], Reads(orjson.loads)] = field(
        default_factory=dict, repr=False
    )
    """The connector's configuration as JSON, for views and typed rows, if nobody else can tell it."""
    timeline: Count = 1
    scope: Annotated[Scope, Reads(_word)] = Scope.STRICT
    """``strict``: batches end at cuts. ``aggregate``: each group of partitions advances as far as its own
    markers allow; all inputs must be partitioned in the same way."""
    starting: Annotated[Literal["earliest", "latest"], Reads(_word)] = "earliest"
    """Where a query without a checkpoint starts: ``earliest`` or ``latest``."""
    allow_truncated_start: Annotated[bool, Reads(_word)] = False
    """Whether a query without a checkpoint may start with what is left of truncated topics."""
    max_events_per_batch: Count = 400_000
    """The maximum number of records of the read topics, and of transactions of the source; a single cut may
    exceed it."""
    parallelism: Count = 2
    """The number of tasks of a large batch; the number of cores is a good value."""
    min_task_events: Count = 20_000
    """The minimum size of the tasks of a divided batch, because a task costs 60-100 ms in addition to its
    work."""
    target_task_events: Count = 500_000
    """Tasks larger than this are divided even beyond ``parallelism``."""
    read_timeout_ms: Annotated[int, Meta(ge=100)] = 120_000
    """How long Kafka may deliver nothing, to a task or to the planning of a batch, before these fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GivenOptions(_Options):
    bootstrap: _Text
    redis_url: Annotated[str, Checks(_redis_address)] | None = None
    redis_password: _Text | None = field(default=None, repr=False, metadata=named("redis.password"))
    schema_registry: str | None = None
    registry_user: str | None = field(default=None, metadata=named("schema_registry.user"))
    registry_password: str | None = field(
        default=None, repr=False, metadata=named("schema_registry.password")
    )

    def servers(self, kafka: Mapping[str, str]) -> Servers:
        redis = None if self.redis_url is None else RedisSettings(self.redis_url, self.redis_password)
        registry = None
        if self.schema_registry is not None:
            registry = RegistrySettings(
                url=self.schema_registry, user=self.registry_user, password=self.registry_password
            )
        return Servers(KafkaSettings(self.bootstrap, kafka), redis, registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(_Options):
    """The options of a query: which tables it reads, from which servers, and in which portions."""

    servers: Servers
    """The servers, from several options. Spark hides passwords with these names in its logs and on its pages.

    - ``bootstrap``, required, and ``kafka.*``: further librdkafka settings, e.g. ``kafka.sasl.password``.
    - ``redis_url`` without a password, and ``redis.password``. Without Redis, cuts are read from the cut log.
    - ``schema_registry``, ``schema_registry.user``, ``schema_registry.password``: if topics are in Avro.
    """
    typing: "TypedTable | None" = field(default=None, repr=False)
    """Internal: the only table that is read, whose rows are typed, as JSON."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Reads the options as Spark passes them: names in lower case, values as text.

        Raises:
            ConfigError: An option cannot be used; the error names the first one and the reason.
        """
        kafka = {
            name.removeprefix(_KAFKA_PREFIX): value
            for name, value in options.items()
            if name.startswith(_KAFKA_PREFIX)
        }
        for setting in kafka.keys() & _OWN_KAFKA_SETTINGS:
            raise _unusable_option(_KAFKA_PREFIX + setting, "it cannot be set", _OWN_KAFKA_SETTINGS[setting])
        others = {n: v for n, v in options.items() if n != "typing" and not n.startswith(_KAFKA_PREFIX)}
        reader = Reader(takes_texts=True, shows_values=False)
        given = reader.read(_GivenOptions, others)
        if given is None:
            first = reader.problems[0]
            raise _unusable_option(first.path, first.text, first.hint)
        for table in given.routed:
            if table not in given.tables:
                raise _unusable_option("topics", f"it names {table!r}, which is not in 'tables'")
        try:
            servers = given.servers(kafka)
        except ConfigError as error:
            raise _unusable_option("schema_registry", error.problem, error.hint) from error
        own = {each.name: getattr(given, each.name) for each in fields(_Options)}
        typing = None
        if (text := options.get("typing")) is not None:
            from slackwater.pipeline.source.typed_rows import TypedTable

            typing = TypedTable.from_json(text)
        return cls(**own, servers=servers, typing=typing)

    @property
    def source_topics(self) -> SourceTopics:
        """The topics of the source's tables."""
        return SourceTopics(self.source, self.routed)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are read."""
        return frozenset(map(self.source_topics.data, self.tables))


_EXAMPLES = {
    "source": 'the connector\'s topic.prefix, e.g. option("source", "inv")',
    "bootstrap": 'e.g. option("bootstrap", "broker:9092")',
    "tables": 'e.g. option("tables", "inventory.orders,inventory.order_lines")',
    "topics": 'e.g. option("topics", \'{"inventory.orders": "routed.orders"}\')',
    "connect_properties": 'e.g. option("connect_properties", \'{"time.precision.mode": "adaptive"}\')',
    "schema_registry": 'e.g. option("schema_registry", "http://registry:8081")',
    "redis_url": 'e.g. option("redis_url", "redis://redis:6379/0")',
}


def _unusable_option(name: str, problem: str, hint: str = "") -> ConfigError:
    return ConfigError(f'format("slackwater"): option {name!r}: {problem}', hint or _EXAMPLES.get(name, ""))
