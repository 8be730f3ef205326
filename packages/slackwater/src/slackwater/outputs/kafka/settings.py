"""The settings of a Kafka sink, and the form of its records: how values and keys are encoded, and schemas."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import msgspec
from duckdb import sqltype
from duckdb.sqltypes import DuckDBPyType

from slackwater.engine.payloads import Document
from slackwater.kafka.registry import Schema, SchemaKind, SubjectStrategy
from slackwater.kafka.transactions import partition_of
from slackwater.outputs.avro import NAMESPACE, AvroEncoder, avro_name
from slackwater.outputs.contract import (
    Format,
    KeyFormat,
    OutputTable,
    SinkSettings,
    UnfitValueError,
)
from slackwater.protocol import (
    CommitFormat,
    ConfigError,
    InputError,
    KafkaSettings,
    RegistrySettings,
    SourceTopics,
)
from slackwater.protocol.keys import avro_commit_topic, commit_topic, progress_topic
from slackwater.sql.duckdb_sql import type_children, type_kind
from slackwater.sql.plan import OutputColumn, PublishedView

_SLOWEST_BYTES_PER_SECOND = 2_000_000
"""A twentieth of the rate at which one producer writes on two idle cores."""
_LONGEST_TRANSACTION = timedelta(minutes=15)
"""The broker's default limit (``transaction.max.timeout.ms``)."""
_KEY: Final = "key"
_SHOWN: Final = 200
_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_Encode = Callable[[bytes], bytes]
_DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_NULL: Final = {"type": "null"}
_NAMES_OF_NUMBERS: Final = {"enum": ["NaN", "Infinity", "-Infinity"]}
_INTEGER: Final = {"type": "integer"}
_NUMBER: Final = {"anyOf": [{"type": "number"}, _NAMES_OF_NUMBERS]}
_SCALARS: Final[dict[str, dict[str, Any]]] = {
    "boolean": {"type": "boolean"},
    **dict.fromkeys(
        (
            "tinyint", "utinyint", "smallint", "usmallint", "integer", "uinteger", "bigint", "ubigint",
            "hugeint", "uhugeint",
        ),
        _INTEGER,
    ),
    "float": _NUMBER,
    "double": _NUMBER,
    "uuid": {"type": "string", "format": "uuid"},
    "blob": {"type": "string", "contentEncoding": "base64"},
}  # fmt: skip
"""By DuckDB's name of the type; all other types are text. Dates and times have no format, because those of
DuckDB have a larger range than those of RFC 3339, including infinity."""


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The form of an output's values and keys. Plain data, which is sent to the workers."""

    view: str
    columns: tuple[OutputColumn, ...]
    key: tuple[OutputColumn, ...]
    """The columns of its keys; columns that are not selected have no type."""
    value: Format
    keys: KeyFormat

    @property
    def value_schema(self) -> Schema | None:
        """The schema of values that has to be registered."""
        if self.value is Format.AVRO:
            return Schema(SchemaKind.AVRO, self._value_encoder().schema, self._record)
        if self.value is Format.JSON_SCHEMA:
            return Schema(SchemaKind.JSON, json_schema(self.view, self.columns), self.view)
        return None

    @property
    def key_schema(self) -> Schema | None:
        """The schema of keys that has to be registered."""
        if self.keys is KeyFormat.AVRO:
            return Schema(SchemaKind.AVRO, self._key_encoder().schema, f"{self._record}.{_KEY}")
        if self.keys is KeyFormat.JSON_SCHEMA:
            title = f"{self.view} {_KEY}"
            return Schema(SchemaKind.JSON, json_schema(title, self.key), title)
        return None

    def encoder(self) -> Callable[[Document], Document] | None:
        """Returns the function that turns documents into records, without schema ids; None if not needed.

        The function is pure. It raises :class:`InputError` for a value that the form cannot
        represent.
        """
        encode_value = self._value_encoder() if self.value is Format.AVRO else None
        encode_key: _Encode | None = None
        if self.keys is KeyFormat.AVRO:
            encode_key = self._key_encoder()
        elif self.keys is KeyFormat.STRING:
            encode_key = plain_text
        if encode_value is None and encode_key is None:
            return None
        view = self.view

        def encode(document: Document) -> Document:
            lsn, key, value = document
            try:
                return (
                    lsn,
                    key if encode_key is None else encode_key(key),
                    value if encode_value is None or value is None else encode_value(value),
                )
            except UnfitValueError as error:
                shown = key[:_SHOWN].decode(errors="replace")
                raise InputError(
                    f"view {view!r}, key {shown}: a value cannot be written to the output: {error}",
                    "correct the row, or cast the column to text in the view (a new revision)",
                ) from error

        return encode

    @property
    def _record(self) -> str:
        return f"{NAMESPACE}.{avro_name(self.view)}"

    def _value_encoder(self) -> AvroEncoder:
        return AvroEncoder(self._record, self.columns)

    def _key_encoder(self) -> AvroEncoder:
        return AvroEncoder(f"{self._record}.{_KEY}", self.key)


@dataclass(frozen=True, slots=True)
class RecordBegin:
    """The beginning of keys and values: the ids of their schemas; empty if they have none."""

    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """The topic of one view's documents."""

    name: str
    partitions: int | None = None
    """The number of partitions. None accepts an existing topic, and creates a new one with four."""

    keys_move: bool = False
    """Whether a document's key may move from one bucket to another, which sends a delete in addition."""

    view: str = ""
    """The name of the view for messages; empty for the name of the topic."""

    schema: str = ""
    """The name of the documents' schema in commit records; empty for the name of the view."""

    cloudevents: bool = False
    """Whether the headers contain the attributes of a CloudEvent."""

    commit_format: CommitFormat = CommitFormat.JSON
    """The form of its commit records."""

    form: OutputForm | None = None
    """The form in which documents and keys are passed; None for JSON."""

    begin: RecordBegin = RecordBegin()
    """The beginning of records; set after their schemas were registered."""

    subject_strategy: SubjectStrategy = SubjectStrategy.TOPIC
    """How the subjects of its schemas are named."""

    partition_by: str = ""
    """The column of the key whose value determines the partition; empty for the whole key."""

    place: int = 0
    """Views that share a topic are written in the order of their places."""

    table: OutputTable | None = None
    """The table whose changes the topic appears to contain; None if it has plain documents."""

    def partition(self, key: bytes) -> int:
        """Returns the partition of a document, given the number of partitions; -1 for that of its key."""
        if not self.partition_by or self.partitions is None:
            return -1
        return partition_of(column_text(key, self.partition_by), self.partitions)

    @property
    def schema_name(self) -> str:
        """The name of the documents' schema in commit records."""
        return self.schema or self.view or self.name

    @property
    def commits(self) -> str:
        """The topic of the view's commit records."""
        return commit_topic(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSinkSettings(SinkSettings):
    """The topics of a pipeline.

    The transactional id and the progress topic are derived from the pipeline's name.
    """

    outputs: tuple[OutputTopic, ...]
    """The outputs by number of the view."""
    prefix: str = ""
    """The ``topic.prefix`` of outputs that are tables; empty if there are none."""
    kafka: KafkaSettings
    registry: RegistrySettings | None = None
    """The registry of the outputs' schemas; None if no output has one."""
    commit_begins: Mapping[str, bytes] = field(default_factory=dict)
    """By topic the beginning of commit records in Avro; set after their schema was registered."""
    replication_factor: int = -1
    """The number of replicas of topics that have to be created; -1 for the broker's default."""
    keep: timedelta = timedelta(minutes=10)
    """The minimum time for which topics of ``latest`` that have to be created keep replaced documents, so
    that views can be read at the ends of recent batches."""
    transaction_timeout: timedelta = timedelta(seconds=60)
    """The time-out of a transaction, which is how long readers wait for a run that died and is not restarted.
    It is longer for a large batch, see :meth:`timeout_for`."""
    attempts: int = 3
    """The number of attempts at a batch before the run ends, even if they take longer than its patience."""
    pause: Callable[[float], None] = field(default=time.sleep, compare=False)
    """Waits between two attempts, for a number of seconds. An error that it raises ends the attempts."""

    @property
    def transactional_id(self) -> str:
        """The producer's id, of which each pipeline has one, so that a new run fences the previous one."""
        return f"slackwater-{self.pipeline}"

    def timeout_for(self, batch_bytes: int) -> timedelta:
        """Returns the time-out for the transaction of a batch of this size."""
        writing = timedelta(seconds=batch_bytes / _SLOWEST_BYTES_PER_SECOND)
        return max(self.transaction_timeout, min(writing, _LONGEST_TRANSACTION))

    @property
    def source_topics(self) -> SourceTopics | None:
        """The topics of the source that consists of the outputs that are tables; None if there are none."""
        return SourceTopics(self.prefix) if self.prefix else None

    @property
    def order_topics(self) -> tuple[str, ...]:
        """Those of them that contain transactions and the initial snapshot."""
        topics = self.source_topics
        return () if topics is None else (topics.transactions, topics.notifications)

    @property
    def avro_commits(self) -> tuple[str, ...]:
        """The topics of commit records in Avro."""
        formed = [each.name for each in self.outputs if each.commit_format is CommitFormat.AVRO]
        return tuple(dict.fromkeys(map(avro_commit_topic, formed)))

    @property
    def topics(self) -> Mapping[str, Sequence[int]]:
        """The output topics, each with the numbers of its views, in the order in which they are written."""
        found: dict[str, list[int]] = {}
        for number in sorted(range(len(self.outputs)), key=lambda each: self.outputs[each].place):
            found.setdefault(self.outputs[number].name, []).append(number)
        return found

    @property
    def views_in_topics(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the views in each topic that several share."""
        names = {topic: tuple(self.outputs[v].view for v in views) for topic, views in self.topics.items()}
        return {topic: views for topic, views in names.items() if len(views) > 1}

    @property
    def written_topics(self) -> tuple[str, ...]:
        """All topics except the progress topic."""
        outputs = (name for topic in self.topics for name in (commit_topic(topic), topic))
        return (*outputs, *self.avro_commits, *self.order_topics)

    @property
    def progress_topic(self) -> str:
        """The topic of the progress records."""
        return progress_topic(self.pipeline)


def plain_text(key: bytes) -> bytes:
    """Returns the only value of a key as text: text without quotes, anything else as in JSON.

    Raises:
        UnfitValueError: It is NULL, for which there is no text.
    """
    (raw,) = _values(key).values()
    if bytes(raw) == b"null":
        raise UnfitValueError("the key is NULL, which cannot be written as text")
    return _text(raw)


def column_text(key: bytes, column: str) -> bytes:
    """Returns the value of a column of a key in the same form; ``null`` for NULL."""
    return _text(_values(key)[column])


def _text(raw: msgspec.Raw) -> bytes:
    value = bytes(raw)
    return msgspec.json.decode(value, type=str).encode() if value.startswith(b'"') else value


def output_form(view: PublishedView, value: Format, keys: KeyFormat) -> OutputForm | None:
    """Returns the form of a view's records; None if they are its documents and keys without changes.

    Raises:
        ConfigError: The form cannot represent the view's columns or its key.
    """
    if value in (Format.JSON, Format.DEBEZIUM) and keys is KeyFormat.JSON:
        return None
    types = {column.name: column.type for column in view.outputs}
    key = tuple(OutputColumn(name, types.get(name, "")) for name in view.key)
    of_view = f"view {view.name!r}"
    if keys is KeyFormat.STRING and len(key) != 1:
        raise ConfigError(
            f'{of_view}: key_format = "string" needs a key of one column, but it has {len(key)}',
            'set another key_format; the default is "json"',
        )
    missing = [column.name for column in key if not column.type]
    if keys in (KeyFormat.AVRO, KeyFormat.JSON_SCHEMA) and missing:
        raise ConfigError(
            f"{of_view}: its key has column {missing[0]!r}, which it does not select",
            f'select it, or set another key_format than "{keys}"',
        )
    form = OutputForm(view.name, view.outputs, key, value, keys)
    try:
        form.encoder()
    except UnfitValueError as error:
        raise ConfigError(f"{of_view}: {error}", "give one another name with AS") from error
    return form


def json_schema(title: str, columns: Sequence[OutputColumn]) -> str:
    """Returns the JSON Schema of documents, or of keys, as JSON text.

    It is draft 7, which all registries support. Objects allow no further members, and no member is required,
    so that a column may be added under the compatibility BACKWARD. Documents always contain all members.
    """
    schema = _object_schema((column.name, sqltype(column.type)) for column in columns)
    return json.dumps({"$schema": _DRAFT, "title": title, **schema})


def _object_schema(members: Iterable[tuple[str, DuckDBPyType]]) -> dict[str, Any]:
    properties = {name: _value_schema(member) for name, member in members}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _value_schema(column_type: DuckDBPyType) -> dict[str, Any]:
    """Returns the schema of values that may be null."""
    kind = type_kind(column_type)
    if kind == "json":
        return {}
    if kind == "null":
        return _NULL
    schema = _present_schema(kind, column_type)
    if "anyOf" in schema:
        return {"anyOf": [*schema["anyOf"], _NULL]}
    return {**schema, "type": [schema["type"], "null"]}


def _present_schema(kind: str, column_type: DuckDBPyType) -> dict[str, Any]:
    children = type_children(column_type)
    if kind in ("list", "array"):
        return {"type": "array", "items": _value_schema(children[0][1])}
    if kind == "struct":
        return _object_schema(children)
    if kind == "map":
        return {"type": "object", "additionalProperties": _value_schema(children[1][1])}
    if kind == "decimal":
        _, scale = (value for _, value in column_type.children)
        fraction = rf"\.[0-9]{{{scale}}}" if scale else ""
        return {"type": "string", "pattern": f"^-?[0-9]*{fraction}$" if scale else "^-?[0-9]+$"}
    return _SCALARS.get(kind, {"type": "string"})
