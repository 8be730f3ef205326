"""The light view of Debezium's records: only what completeness needs.

Everything here accepts schemaless JSON and the ``{"schema": …, "payload": …}`` wrapper.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from slackwater_cdc.errors import UndecodableRecordError, shortened
from slackwater_protocol import MalformedRecordError, parse_transaction_id

MAX_ROWS = 1 << 28
"""Of one table in one transaction: each takes a byte of memory in a sidecar."""

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""An LSN, a transaction id: what 63 bits hold."""
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""Since the epoch, up to the year 9999."""
RowNumber = Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)]

INITIAL_SNAPSHOT = frozenset({"true", "first", "first_in_data_collection", "last_in_data_collection", "last"})
"""Values of ``source.snapshot`` in rows of an initial snapshot."""


class RowSource(msgspec.Struct, frozen=True, gc=False):
    """Where a change comes from."""

    schema: str = ""
    table: str = ""
    lsn: Whole | None = None
    txId: Whole | None = None
    ts_ms: Milliseconds = 0
    snapshot: str | bool | None = None


class RowBlock(msgspec.Struct, frozen=True, gc=False):
    """The transaction block of a change."""

    id: str
    total_order: Whole
    data_collection_order: RowNumber


class Row(msgspec.Struct, frozen=True, gc=False):
    """A data record without its data. ``op`` is empty for anything that is no change event."""

    op: str = ""
    source: RowSource = RowSource()
    transaction: RowBlock | None = None
    payload: "Row | None" = None
    ts_ms: Any = None
    """When the connector made the record, by its clock; whatever stands there, for few rows need it."""

    @property
    def is_initial_snapshot(self) -> bool:
        """Whether the row belongs to an initial snapshot; older connectors write booleans."""
        value = self.source.snapshot
        return value is True or value in INITIAL_SNAPSHOT

    @property
    def is_incremental_snapshot(self) -> bool:
        """Whether the row belongs to an incremental snapshot: never counted, never waited for."""
        return self.source.snapshot == "incremental"


class Begin(msgspec.Struct, frozen=True, gc=False):
    """BEGIN of a transaction."""

    xid: int


class End(msgspec.Struct, frozen=True, gc=False):
    """END of a transaction: the commit."""

    xid: int
    commit_lsn: int
    commit_ts_ms: int
    counts: dict[str, int]
    """Change events per table (``schema.table``); without logical messages."""


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A record of Debezium's notification topic."""

    type: str
    aggregate_type: str
    additional_data: Mapping[str, Any] | None = None
    timestamp_ms: int = 0
    """By the clock of Connect."""

    def scanned(self) -> dict[str, int]:
        """The table that was scanned, and its number of rows.

        Raises:
            UndecodableRecordError: it does not say.
        """
        data = self.additional_data or {}
        table, count = data.get("scanned_collection"), data.get("total_rows_scanned")
        if not isinstance(table, str) or not table:
            reason = f"'scanned_collection' is {shortened(table)}, expected the name of a table"
            raise UndecodableRecordError("notification", reason, b"")
        if not isinstance(count, str) or not _is_whole(count):
            reason = f"'total_rows_scanned' is {shortened(count)}, expected a number of rows, as text"
            raise UndecodableRecordError("notification", reason, b"")
        return {table: int(count)}


class _Collection(msgspec.Struct, frozen=True, gc=False):
    data_collection: str
    event_count: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]


class _Transaction(msgspec.Struct, frozen=True, gc=False):
    status: Literal["BEGIN", "END", ""] = ""
    id: str = ""
    event_count: Whole | None = None
    data_collections: list[_Collection] | None = None
    ts_ms: Milliseconds = 0
    payload: "_Transaction | None" = None


class _MaybeNotification(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    aggregate_type: str = ""
    additional_data: Mapping[str, Any] | None = None
    timestamp: int | str = 0
    payload: "_MaybeNotification | None" = None


_decode_transaction = msgspec.json.Decoder(_Transaction).decode
_decode_notification = msgspec.json.Decoder(_MaybeNotification).decode
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding JSON raises for a value that is not as expected."""
_DIGITS = 19
"""A number of as many digits may have more than 63 bits."""


def decode_transaction(value: bytes) -> Begin | End:
    """Reads a record of the transaction topic.

    Raises:
        UndecodableRecordError: the value is neither BEGIN nor END of a PostgreSQL connector.
    """
    try:
        record = _decode_transaction(value)
        record = record.payload or record
        xid, lsn = parse_transaction_id(record.id)
    except (*UNREADABLE, MalformedRecordError) as error:
        raise UndecodableRecordError("transaction record", str(error), value) from None
    if record.status == "BEGIN":
        return Begin(xid)
    if record.status == "END":
        if not lsn:
            raise UndecodableRecordError("transaction record", "it has no commit LSN", value)
        return End(xid, lsn, record.ts_ms, _counts(record, value))
    raise UndecodableRecordError("transaction record", "it has no 'status'", value)


def decode_notification(value: bytes) -> Notification:
    """Reads a record of the notification topic.

    Raises:
        UndecodableRecordError: the value is no notification.
    """
    try:
        record = _decode_notification(value)
    except UNREADABLE as error:
        raise UndecodableRecordError("notification", str(error), value) from None
    record = record.payload or record
    if not record.type:
        raise UndecodableRecordError("notification", "it has no 'type'", value)
    return Notification(
        record.type, record.aggregate_type, record.additional_data, _milliseconds(record.timestamp, value)
    )


def _milliseconds(timestamp: int | str, value: bytes) -> int:
    """A number on the wire; the documentation shows text in places."""
    text = str(timestamp)
    if not _is_whole(text):
        reason = f"'timestamp' is {shortened(timestamp)}, expected milliseconds"
        raise UndecodableRecordError("notification", reason, value)
    return int(text)


def _is_whole(text: str) -> bool:
    """Whether a text is a number from 0 to less than 2^63."""
    return text.isascii() and text.isdigit() and len(text) < _DIGITS


def _counts(record: _Transaction, value: bytes) -> dict[str, int]:
    """Logical messages are counted under the name of a Java object, a new one per message: left out."""
    collections = record.data_collections or []
    if record.event_count and not collections:
        reason = f"it counts {record.event_count} changes, but names no table"
        raise UndecodableRecordError("transaction record", reason, value)
    counts: dict[str, int] = {}
    for each in collections:
        if each.data_collection in counts:
            reason = f"it names {shortened(each.data_collection)} twice"
            raise UndecodableRecordError("transaction record", reason, value)
        counts[each.data_collection] = each.event_count
    return {t: n for t, n in counts.items() if n and not t.startswith("io.debezium.")}
