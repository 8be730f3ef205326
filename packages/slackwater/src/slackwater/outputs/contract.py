"""The words of sinks: kinds of outputs, forms of documents, settings, what a sink reports, and its errors.

::

    ConfigError
    └── OutputRefusedError      the output rejects something, and would reject it again
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec

from slackwater.engine.settings import Scope
from slackwater.protocol import BatchHeader, ConfigError, StateError, format_position
from slackwater.sql.plan import OutputColumn

CHANGE_VALUE: Final = (
    "correct the value in the source database or change the view (a new revision), then start the pipeline "
    "again"
)
"""The remedy for a value that an output cannot contain."""
_SHOWN_KEY: Final = 200
_POSTGRES_TYPES: Final = {
    "BOOLEAN": "boolean",
    **dict.fromkeys(("TINYINT", "UTINYINT", "SMALLINT"), "smallint"),
    **dict.fromkeys(("USMALLINT", "INTEGER"), "integer"),
    **dict.fromkeys(("UINTEGER", "BIGINT"), "bigint"),
    "UBIGINT": "numeric(20,0)",
    **dict.fromkeys(("HUGEINT", "UHUGEINT"), "numeric(39,0)"),
    "FLOAT": "real",
    "DOUBLE": "double precision",
    "VARCHAR": "text",
    "UUID": "uuid",
    "DATE": "date",
    "TIME": "time without time zone",
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), "timestamp without time zone"),
    **dict.fromkeys(("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ"), "timestamp with time zone"),
    "TIME WITH TIME ZONE": "time with time zone",
    "INTERVAL": "interval",
    "BIT": "bit varying",
    "BLOB": "bytea",
    "JSON": "jsonb",
}
"""By DuckDB type; the names are those of PostgreSQL's ``format_type``."""
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
_NESTED: Final = ("STRUCT(", "MAP(", "UNION(")
REBUILD: Final = "raise `revision` in pipeline.toml, which rebuilds the views in new tables"
"""The remedy for tables that cannot be restored."""
HISTORY_SUFFIX: Final = "_history"
"""Ends the name of a table that has every version of the rows of another one."""
REQUEST_TIMEOUT = timedelta(seconds=30)
"""The default time-out of one call to an output's server."""


class SinkKind(StrEnum):
    """The kinds of outputs that views can be published to."""

    KAFKA = "kafka"
    POSTGRES = "postgres"
    DELTA = "delta"
    ICEBERG = "iceberg"
    OPENSEARCH = "opensearch"


class Format(StrEnum):
    """The form of documents in Kafka."""

    JSON = "json"
    """Each document as it is."""
    DEBEZIUM = "debezium"
    """Each change of a document, as Debezium writes the changes of a table's rows."""
    AVRO = "avro"
    """Each document in Avro, with the id of its schema in a registry."""
    JSON_SCHEMA = "json-schema"
    """Each document as it is, after the id of its JSON Schema in a registry."""


class Emit(StrEnum):
    """Which states of a view are published."""

    LATEST = "latest"
    """The state at each cut: at most one document per key and batch."""
    TRANSACTIONS = "transactions"
    """The state after each source transaction that changes it."""


class ErrorPolicy(StrEnum):
    """What happens if a view cannot be evaluated for a key, because a value does not fit."""

    STOP = "stop"
    """The pipeline stops."""
    QUARANTINE = "quarantine"
    """The key is withheld until its rows are mended, and everything else continues."""


class KeyFormat(StrEnum):
    """The form of keys in Kafka."""

    JSON = "json"
    """A JSON object."""
    STRING = "string"
    """The text of the only column."""
    AVRO = "avro"
    JSON_SCHEMA = "json-schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """The pipeline, and how its outputs are written."""

    pipeline: str
    """The name of the pipeline, by which the output knows its progress."""
    emit: Emit = Emit.LATEST
    scope: Scope = Scope.STRICT
    """In ``aggregate``, documents of a batch have different commits, and a batch has one commit record."""
    accept_changed_output: bool = False
    """Whether to continue with outputs that were changed by others. What is missing in them stays missing."""
    request_timeout: timedelta = REQUEST_TIMEOUT
    """How long a run that begins waits for the server, and how long one call may take."""
    patience: timedelta = timedelta(minutes=2)
    """The time for which a batch is tried again while all errors are transient."""

    @property
    def has_versions(self) -> bool:
        """Whether a batch may have several documents of a key."""
        return self.emit is not Emit.LATEST or self.scope is not Scope.STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """The result of one call of :meth:`~slackwater.outputs.sink.Sink.write`."""

    batch_id: int
    header: BatchHeader
    documents: int
    """The number of records in the outputs, including deletes; 0 for a batch that was already visible."""
    deletes: int
    was_covered: bool
    """Whether the output already contained the batch, because the answer to its commit was lost."""
    produce_seconds: float
    commit_seconds: float
    visible_at: datetime
    """When the batch was known to be visible."""


class SinkStep(StrEnum):
    """The steps of a batch, in this order. A sink without one of these steps does not report it."""

    COLLECTED = "collected"
    """The batch is in the driver; its transaction has not begun."""
    BEGUN = "begun"
    PRODUCED = "produced"
    FLUSHED = "flushed"
    """All documents are acknowledged, and none is visible."""
    COMMIT_RECORDS = "commit_records"
    PROGRESS = "progress"
    """All records are produced; the next call commits."""
    COMMITTED = "committed"
    """Everything is visible, but the run has not recorded it yet."""


SinkProbe = Callable[[SinkStep, int], None]
"""Called with each step and the number of the batch, in the thread that writes, so that tests can stop a
sink.

It may block. It may raise, which ends the run like a crash at this step.
"""


class UnfitValueError(ValueError):
    """A name or a value that a form of documents, or a column, cannot represent; the message names it."""


class OutputRefusedError(ConfigError):
    """The output rejects something, and would reject it again; nothing of the batch is visible."""

    def __init__(self, pipeline: str, what: str, reason: str, hint: str) -> None:
        super().__init__(f"pipeline {pipeline!r}: the output refuses {what}: {reason}", hint)
        self.args = pipeline, what, reason, hint
        self.reason = reason
        """The output's own message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTable:
    """The table of one view's documents, or the one whose changes a topic appears to contain."""

    name: str
    """``schema.name``."""
    columns: tuple[OutputColumn, ...]
    key: tuple[str, ...]
    """The columns that identify rows; empty if the view has one row."""
    view: str = ""
    """The name of the view, for messages."""
    keys_move: bool = False
    """Whether a document's key may move from one bucket to another, which sends a delete in addition."""
    history: bool = False
    """Whether to keep every version in a second table, in PostgreSQL."""
    what: str = "table"
    """The word for it in messages."""

    @property
    def title(self) -> str:
        """The view and its table, for messages."""
        return f"view {self.view!r} in {self.what} {self.name}"

    def document(self, lsn: int, key: bytes) -> str:
        """Returns how messages name a document."""
        shown = key.decode(errors="replace")[:_SHOWN_KEY]
        return f"a document of {self.title}, key {shown}, commit LSN {format_position(lsn)}"


def unfit_document(
    pipeline: str, output: OutputTable, lsn: int, key: bytes, error: UnfitValueError
) -> OutputRefusedError:
    """Returns the error for a document with a value that does not fit its column."""
    return OutputRefusedError(pipeline, output.document(lsn, key), str(error), CHANGE_VALUE)


def table_taken(pipeline: str, table: str, owner: str, more: str = "") -> ConfigError:
    """Returns the error for a table that another pipeline writes; the hint ends with what else to do."""
    return ConfigError(
        f"pipeline {pipeline!r}: table {table} is written by pipeline {owner!r}",
        "each table has one writer: name another table in pipeline.toml; if the other pipeline no longer "
        f"exists, drop the table{more}",
    )


def table_lost(pipeline: str, output: OutputTable, table: str, found: str, restored: str) -> StateError:
    """Returns the error for a table that is not the pipeline's, with what was found and what to restore."""
    return StateError(
        f"pipeline {pipeline!r}: {output.what} {table} of view {output.view!r} is not the one that its "
        f"batches were written to{found}",
        f"restore {restored}; or {REBUILD}. --accept-changed-output continues with the rows that exist, and "
        "missing rows stay missing",
    )


def row_decoder(fields: Sequence[tuple[str, Any]]) -> Callable[[bytes], tuple[Any, ...]]:
    """Returns the function that decodes a document, or a key, to the values of its members.

    The function raises :class:`UnfitValueError` for other members than these.

    Args:
        fields: The members, in the order of the values, each with the type that msgspec decodes it to.
    """
    names = [f"c{number}" for number in range(len(fields))]
    members = [(name, kind) for name, (_, kind) in zip(names, fields, strict=True)]
    renamed = {name: column for name, (column, _) in zip(names, fields, strict=True)}
    decode_row = msgspec.json.Decoder(msgspec.defstruct("Row", members, rename=renamed)).decode
    values = msgspec.structs.astuple

    def decode(document: bytes) -> tuple[Any, ...]:
        try:
            return values(decode_row(document))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnfitValueError(f"the document does not match the view's columns: {error}") from error

    return decode


def is_nested(duckdb_type: str) -> bool:
    """Returns whether values of a DuckDB type are arrays or objects in documents."""
    return duckdb_type.endswith("]") or duckdb_type.startswith(_NESTED)


def postgres_type(duckdb_type: str) -> str:
    """Returns the PostgreSQL type that can contain every value of a DuckDB type as documents write it."""
    decimal = _DECIMAL.fullmatch(duckdb_type)
    if decimal is not None:
        return f"numeric({decimal[1]},{decimal[2]})"
    return "jsonb" if is_nested(duckdb_type) else _POSTGRES_TYPES.get(duckdb_type, "text")
