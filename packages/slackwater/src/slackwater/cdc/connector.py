"""The properties of Debezium's PostgreSQL connector on which the reading of its topics depends.

JSON without schemas does not contain the form of a value: only the connector's configuration does. A property
that gives values another form, or that omits rows, is therefore a fault.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from slackwater.cdc.initial_snapshot import SNAPSHOT_HINT
from slackwater.protocol import Finding, SourceTopics, Verdict

_JSON_CONVERTER: Final = "org.apache.kafka.connect.json.JsonConverter"
_OTHER_FORM: Final = "the declared types of columns expect this form"
_LOSES_ROWS: Final = "otherwise rows are silently omitted"
CONNECTOR_HINT: Final = (
    "set connect.url, for the run or for the sidecar, or state the connector's properties in "
    "[connect.properties] of slackwater.toml (from Python, pass connect_properties)"
)
"""What to do if the configuration of a connector is unknown."""
_SNAPSHOT_HINT: Final = (
    "change it, then take a new snapshot of the tables: what was written before keeps its form"
)


class Fault(NamedTuple):
    """A property of a connector that prevents its topics from being read correctly."""

    name: str
    has: str
    needs: str
    reason: str
    is_silent: bool
    """Whether views would be wrong although no record contradicts the declared tables."""

    @property
    def text(self) -> str:
        """The fault, without the property's name."""
        return f"{self.has}, but must be {self.needs}: {self.reason}"

    @property
    def hint(self) -> str:
        """What to do besides changing the property; may be empty."""
        return _SNAPSHOT_HINT if self.is_silent else ""


class _Rule(NamedTuple):
    default: str
    """What the connector does without the property."""
    needs: str
    reason: str
    is_silent: bool = True
    accepts: Callable[[str], bool] | None = None
    """Whether a value is correct; by default, only the value that is needed."""


_SETS_HARMLESS: Final = re.compile(
    r"(\s*SET\s+(SESSION\s+)?(application_name|client_min_messages|work_mem|\w+_timeout)\b[^;]*|\s*)(;|\Z)",
    re.IGNORECASE,
)
_NOTHING: Final = "nothing"
_RULES: Final[Mapping[str, _Rule]] = {
    "plugin.name": _Rule("decoderbufs", "pgoutput", _OTHER_FORM),
    "provide.transaction.metadata": _Rule(
        "false", "true", "BEGIN and END state which change events belong to a transaction", is_silent=False
    ),
    "decimal.handling.mode": _Rule("precise", "string", "decimal numbers stay exact as text"),
    "time.precision.mode": _Rule("adaptive", "adaptive", _OTHER_FORM),
    "binary.handling.mode": _Rule("bytes", "bytes", _OTHER_FORM),
    "unavailable.value.placeholder": _Rule(
        "__debezium_unavailable_value",
        "__debezium_unavailable_value",
        "otherwise the placeholder of an unchanged large value is mistaken for a value",
    ),
    "skipped.operations": _Rule(
        "t", "none", "otherwise TRUNCATE is omitted, and views keep rows that the database has removed"
    ),
    "event.processing.failure.handling.mode": _Rule("fail", "fail", _LOSES_ROWS),
    "errors.tolerance": _Rule("none", "none", _LOSES_ROWS),
    "snapshot.select.statement.overrides": _Rule(_NOTHING, _NOTHING, _LOSES_ROWS),
    "snapshot.query.mode": _Rule("select_all", "select_all", _LOSES_ROWS),
    "snapshot.max.threads": _Rule(
        "1", "1", "several threads may read the rows of a snapshot as of different commits"
    ),
    "converters": _Rule(_NOTHING, _NOTHING, _OTHER_FORM),
    "post.processors": _Rule(_NOTHING, _NOTHING, "they change values, for example to those of later commits"),
    "transaction.metadata.factory": _Rule(
        "io.debezium.pipeline.txmetadata.DefaultTransactionMetadataFactory",
        "io.debezium.pipeline.txmetadata.DefaultTransactionMetadataFactory",
        "BEGIN and END are read in Debezium's own form",
    ),
    "notification.enabled.channels": _Rule(
        _NOTHING, "sink", "notifications announce when an initial snapshot is complete", is_silent=False
    ),
    "heartbeat.interval.ms": _Rule(
        "0",
        "more than 0",
        "a slot that does not advance keeps the database from removing its log",
        is_silent=False,
        accepts=lambda has: has != "0",
    ),
    "offset.mismatch.strategy": _Rule(
        "no_validation",
        "no_validation or trust_offset",  # the others omit what is between the offset and the slot's
        _LOSES_ROWS,
        accepts=lambda has: has not in {"trust_slot", "trust_greater_lsn"},
    ),
    "snapshot.isolation.mode": _Rule(
        "serializable",
        "serializable or repeatable_read",
        "otherwise the rows of a snapshot are not all as of one commit",
        accepts=lambda has: has in {"serializable", "repeatable_read"},
    ),
    "database.initial.statements": _Rule(
        "",
        "left out",
        "they may change which rows a snapshot has, and in which form; only time-outs, work_mem and "
        "application_name may be set there",
        accepts=lambda has: not _SETS_HARMLESS.sub("", has),
    ),
}
_NAME_RULES: Final[Mapping[str, _Rule]] = {
    r"topic\.creation\..+\.cleanup\.policy\Z": _Rule(
        "",
        "delete",
        "compaction removes changes of earlier transactions",
        accepts=lambda has: "compact" not in has,
    ),
    r"column\.(mask|truncate)\.": _Rule(
        "",
        "left out",
        "views would contain other values than the database. Leave the column out (column.exclude.list), or "
        "change its values in the view",
        accepts=lambda _: False,
    ),
}
"""By the beginning of a property's name, as a regular expression."""
_TAKES_SNAPSHOT: Final = frozenset({"always", "initial", "initial_only", "when_needed"})
_SAFE_TRANSFORMS: Final = frozenset(
    {
        "io.debezium.transforms.ByLogicalTableRouter",
        "io.debezium.transforms.ToLogicalTopicRouter",
        "io.debezium.transforms.partitions.PartitionRouting",
        "io.debezium.transforms.tracing.ActivateTracingSpan",
        "org.apache.kafka.connect.transforms.InsertHeader",
        "org.apache.kafka.connect.transforms.RegexRouter",
        "org.apache.kafka.connect.transforms.TimestampRouter",
    }
)
"""Transforms that neither change values nor add or remove records."""

_KEEPS_NULL: Final[Mapping[str, tuple[str, str]]] = {
    _JSON_CONVERTER: ("replace.null.with.default", "false"),
    "io.confluent.connect.avro.AvroConverter": ("ignore.default.for.nullables", "true"),
    "io.apicurio.registry.utils.converter.AvroConverter": ("ignore.default.for.nullables", "true"),
}
"""By converter, the property and value with which NULL stays NULL in a column with a DEFAULT."""


def reading_properties(prefix: str, heartbeat_ms: int = 3_000) -> dict[str, str]:
    """Returns the properties that a connector needs so that its topics can be read as whole transactions."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "plugin.name": "pgoutput",
        "slot.name": replication_name(prefix),
        "publication.name": publication_name(prefix),
        "publication.autocreate.mode": "disabled",
        "topic.prefix": prefix,
        "snapshot.mode": "initial",
        "provide.transaction.metadata": "true",
        "tombstones.on.delete": "true",
        "skipped.operations": "none",
        "decimal.handling.mode": "string",
        "time.precision.mode": "adaptive",
        "interval.handling.mode": "string",
        "binary.handling.mode": "bytes",
        "heartbeat.interval.ms": str(heartbeat_ms),
        "notification.enabled.channels": "sink",
        "notification.sink.topic.name": SourceTopics(prefix).notifications,
        **_converter_properties("key"),
        **_converter_properties("value"),
    }


def _converter_properties(part: str) -> dict[str, str]:
    name, value = _KEEPS_NULL[_JSON_CONVERTER]
    return {
        f"{part}.converter": _JSON_CONVERTER,
        f"{part}.converter.schemas.enable": "false",
        f"{part}.converter.{name}": value,
    }


def table_list(tables: Iterable[str]) -> str:
    """Returns the value of ``table.include.list`` for these tables, ``schema.table``.

    Debezium splits the list at commas and removes spaces around its parts, which are regular expressions.
    """
    return ",".join(re.escape(each).replace("\\ ", r"\x20").replace(",", r"\x2c") for each in tables)


def topic_properties(prefix: str, partitions: int, replication_factor: int) -> dict[str, str]:
    """Returns the properties by which Connect creates the connector's topics.

    The partitions are those of each table's topic; topics of transactions have one, since their order counts.
    A replication factor of -1 is the broker's default.
    """
    topics = SourceTopics(prefix)
    single = (topics.transactions, topics.notifications, topics.heartbeats)
    return {
        "topic.creation.default.partitions": str(partitions),
        "topic.creation.default.replication.factor": str(replication_factor),
        "topic.creation.groups": "single",
        "topic.creation.single.include": ",".join(re.escape(topic) for topic in single),
        "topic.creation.single.partitions": "1",
        "topic.creation.single.replication.factor": str(replication_factor),
    }


def faults_of(properties: Mapping[str, str]) -> list[Fault]:
    """Returns the properties that prevent a connector's topics from being read correctly, in any order."""
    rules = [(name, properties.get(name) or rule.default, rule) for name, rule in _RULES.items()]
    rules += [
        (name, has, rule)
        for beginning, rule in _NAME_RULES.items()
        for name, has in properties.items()
        if re.match(beginning, name)
    ]
    found = [
        Fault(name, has, rule.needs, rule.reason, rule.is_silent)
        for name, has, rule in rules
        if not (has == rule.needs if rule.accepts is None else rule.accepts(has))
    ]
    return [*found, *(fault for find in _FINDERS for fault in find(properties))]


def property_findings(properties: Mapping[str, str]) -> Iterator[Finding]:
    """Yields findings about a connector's configuration."""
    faults = faults_of(properties)
    for fault in faults:
        verdict = Verdict.FAULT if fault.is_silent else Verdict.PROBLEM
        yield Finding(fault.name, verdict, fault.text, fault.hint)
    if not faults:
        yield Finding("connector", Verdict.OK, "all properties that Slackwater depends on are correct")
    yield from _snapshots(properties)


def foreign_change(table: str) -> str:
    """Returns what is wrong with a change that only a known connector may have written."""
    return (
        f"a change of table {table} that neither a pipeline nor a service wrote, but a connector whose "
        f"configuration is not known, so that its values may have another form; {CONNECTOR_HINT}, and start "
        "again"
    )


def unknown_properties(source: str) -> Finding:
    """Returns the finding for a source whose connector's properties are unknown."""
    text = (
        f"the configuration of the connector of source {source} is unknown: values that may have another "
        "form are refused, and so are pipelines that use a column with a DEFAULT or one that may be stored "
        "out of line, but skipped.operations (by default TRUNCATE) and filters that omit rows or tables "
        "cannot be noticed"
    )
    return Finding("connector", Verdict.WARNING, text, CONNECTOR_HINT)


def _snapshots(properties: Mapping[str, str]) -> Iterator[Finding]:
    """Yields what may leave tables without a snapshot; such tables are not shown."""
    mode, list_ = properties.get("snapshot.mode", "initial"), "snapshot.include.collection.list"
    if mode not in _TAKES_SNAPSHOT:
        text = f"{mode}: the connector may take no snapshot, and tables without one are not shown"
        yield Finding("snapshot.mode", Verdict.WARNING, text, SNAPSHOT_HINT)
    if list_ in properties:
        text = f"{properties[list_]}: other tables have no snapshot and are not shown"
        yield Finding(list_, Verdict.WARNING, text, SNAPSHOT_HINT)


def _sink_topic(properties: Mapping[str, str]) -> Iterator[Fault]:
    name = "notification.sink.topic.name"
    if not properties.get(name):
        needs = SourceTopics(properties.get("topic.prefix", "")).notifications
        yield Fault(name, _NOTHING, needs, "the sidecar reads the notifications there", is_silent=False)


def _publication(properties: Mapping[str, str]) -> Iterator[Fault]:
    name = "publication.autocreate.mode"
    has = properties.get(name, "all_tables")
    if has != "disabled" and properties.get("publish.via.partition.root") != "true":
        needs = "disabled, or publish.via.partition.root=true as well"
        reason = "a publication created beforehand can have publish_via_partition_root"
        yield Fault(name, has, needs, reason, is_silent=False)


def _transforms(properties: Mapping[str, str]) -> Iterator[Fault]:
    for alias in filter(None, (part.strip() for part in properties.get("transforms", "").split(","))):
        name = f"transforms.{alias}.type"
        kind = properties.get(name, _NOTHING).removesuffix("$Key").removesuffix("$Value")
        if kind not in _SAFE_TRANSFORMS:
            reason = "it may change values or leave records out, and records are read as Debezium writes them"
            yield Fault(
                name, kind, "absent, or one that only changes topic or partition", reason, is_silent=True
            )


def _nulls(properties: Mapping[str, str]) -> Iterator[Fault]:
    for part in ("key", "value"):
        kind = properties.get(f"{part}.converter")
        if kind is None and part == "key":
            continue
        name, needs = _KEEPS_NULL.get(kind or "", _KEEPS_NULL[_JSON_CONVERTER])
        has = properties.get(f"{part}.converter.{name}", _NOTHING)
        if kind is None:
            needs += f" together with {part}.converter (a worker's own converter cannot be seen)"
        if kind is None or has.lower() != needs:
            reason = "otherwise NULL becomes the column's DEFAULT"
            yield Fault(f"{part}.converter.{name}", has, needs, reason, is_silent=part == "value")


_FINDERS: Final[tuple[Callable[[Mapping[str, str]], Iterator[Fault]], ...]] = (
    _sink_topic,
    _publication,
    _transforms,
    _nulls,
)


def publication_name(prefix: str) -> str:
    """Returns the name of the publication that the connector with this prefix reads."""
    return f"slackwater_{replication_name(prefix)}"[:63]


def replication_name(prefix: str) -> str:
    """Returns the prefix as the name of a replication slot, which allows fewer characters."""
    return re.sub(r"[^a-z0-9_]", "_", prefix.lower())[:63]
