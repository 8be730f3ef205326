"""Debezium's records: one shape for each kind, and the shared decoders.

The light view of a change omits its data: completeness needs only its place. The full view is the same shape
with the data added (``docs/design/0008-speed.md`` says what decoding it for every row would cost). Everything
here accepts schemaless JSON and the ``{"schema": …, "payload": …}`` wrapper.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from slackwater.cdc.errors import UndecodableRecordError, missing_transaction, shortened
from slackwater.cdc.postgres import (
    FullOrigin,
    Milliseconds,
    Origin,
    Whole,
    is_logical_message,
    parse_transaction_id,
)
from slackwater.protocol import MalformedRecordError

MAX_ROWS = 1 << 28
"""The most rows of one table in one transaction: each takes a byte of memory in a sidecar."""

RowNumber = Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)]
RowCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]
_NULL = msgspec.Raw(b"null")
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors that decoding JSON raises for a value that is not as expected."""
_DIGITS = 19
"""A number with this many digits may have more than 63 bits."""


class RowBlock(msgspec.Struct, frozen=True, gc=False):
    """The transaction block of a change."""

    id: str
    total_order: Whole
    data_collection_order: RowNumber


class Row(msgspec.Struct, frozen=True, gc=False):
    """A data record without its data. ``op`` is empty for anything that is not a change event."""

    op: str = ""
    source: Origin = Origin()
    transaction: RowBlock | None = None
    payload: "Row | None" = None
    ts_ms: Any = None
    """The time of the record by the connector's clock, not validated, since few rows need it."""


class FullRow(Row, frozen=True, gc=False):
    """A data record with its data, as JSON. Raw values keep the whole record in memory."""

    source: FullOrigin = FullOrigin()
    payload: "FullRow | None" = None
    before: msgspec.Raw = _NULL
    after: msgspec.Raw = _NULL
    schema: msgspec.Raw = _NULL
    """Connect's schema of the record, as JSON; None if the record has none."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """One change event."""

    op: str
    """``c``, ``u``, ``d``, ``r`` (snapshot), ``t`` (truncate) or ``m`` (logical message, no table)."""
    table: str
    """``schema.table`` as the database names it; empty for logical messages."""
    xid: int | None
    """Transaction id; None for snapshot rows and non-transactional messages."""
    lsn: int | None
    """The change's own LSN, never a commit LSN; the snapshot's LSN for rows of an initial snapshot."""
    commit_ts_ms: int
    """Commit time of the transaction (time of the snapshot), milliseconds since the epoch."""
    order: int
    """Number of the change among those of its table in the transaction, from 1; 0 outside transactions."""
    total_order: int
    """Number of the change in the transaction, from 1; 0 outside transactions."""
    is_snapshot: bool
    """Whether this is a row of an initial snapshot. Rows of incremental snapshots, without LSN, are not."""
    before: msgspec.Raw | None
    """The row before, as JSON; None if there is none. Raw values keep the whole record in memory."""
    after: msgspec.Raw | None
    """The row after, as JSON; None if there is none."""
    schema: bytes | None = None
    """Connect's schema of the record, as JSON; None if the record does not contain it."""
    is_own: bool = False
    """Whether a pipeline or a service wrote it."""


class Begin(msgspec.Struct, frozen=True, gc=False):
    """BEGIN of a transaction."""

    xid: int
    lsn: int
    """A connector writes the position of BEGIN in the log; pipelines and services write the commit's."""


class End(msgspec.Struct, frozen=True, gc=False):
    """END of a transaction: the commit."""

    xid: int
    commit_lsn: int
    commit_ts_ms: int
    counts: dict[str, int]
    """Change events per table (``schema.table``); without logical messages."""


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A record of Debezium's notification topic."""

    type: str = ""
    aggregate_type: str = ""
    additional_data: Mapping[str, Any] | None = None
    timestamp: int | str = 0
    payload: "Notification | None" = None

    @property
    def timestamp_ms(self) -> int:
        """The time of writing, by the clock of Connect."""
        return int(self.timestamp)

    def scanned(self) -> dict[str, int]:
        """Returns the table that was scanned, and its number of rows.

        Raises:
            UndecodableRecordError: The record does not contain them.
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
    event_count: RowCount


class _Transaction(msgspec.Struct, frozen=True, gc=False):
    status: Literal["BEGIN", "END", ""] = ""
    id: str = ""
    event_count: Whole | None = None
    data_collections: list[_Collection] | None = None
    ts_ms: Milliseconds = 0
    payload: "_Transaction | None" = None


decode_row = msgspec.json.Decoder(Row).decode
"""The light view, still in its wrapper if it has one; raises one of :data:`UNREADABLE`."""
_decode_full_row = msgspec.json.Decoder(FullRow).decode
_decode_transaction = msgspec.json.Decoder(_Transaction).decode
_decode_notification = msgspec.json.Decoder(Notification).decode


def decode_full_row(value: bytes) -> FullRow:
    """Reads a data record with its data.

    Raises:
        UndecodableRecordError: The value is not a record of a data topic.
    """
    record = _full_record(value)
    return record if record.op or record.payload is None else record.payload


def _full_record(value: bytes) -> FullRow:
    try:
        return _decode_full_row(value)
    except UNREADABLE as error:
        raise UndecodableRecordError("change", str(error), value) from None


def decode_change(value: bytes) -> Change:
    """Reads the value of a data record, with or without the ``{"schema": …, "payload": …}`` wrapper.

    Tombstones have no value and are never passed here.

    Raises:
        UndecodableRecordError: The value is not a change event. ConfigError: A streamed change has no
            ``transaction``.
    """
    record = _full_record(value)
    row = record if record.op or record.payload is None else record.payload
    if not row.op:
        raise UndecodableRecordError("change", "it has no 'op'", value)
    source, block, before, after = row.source, row.transaction, row.before, row.after
    table = f"{source.schema}.{source.table}" if source.table else ""
    is_snapshot = block is None and source.is_initial_snapshot
    if block is None and row.op != "m" and not is_snapshot and not source.is_incremental_snapshot:
        raise missing_transaction(table)
    return Change(
        row.op,
        table,
        None if block is None else xid_of(row, value),
        source.lsn,
        source.ts_ms,
        0 if block is None else block.data_collection_order,
        0 if block is None else block.total_order,
        is_snapshot,
        None if before == _NULL else before,
        None if after == _NULL else after,
        None if record.schema == _NULL else bytes(record.schema),
        source.is_own,
    )


def xid_of(row: Row, value: bytes = b"") -> int:
    """Returns the transaction of a row that has one.

    Raises:
        UndecodableRecordError: The row does not name it, or not as a PostgreSQL connector does.
    """
    block = row.transaction
    try:
        return row.source.xid or parse_transaction_id("" if block is None else block.id)[0]
    except MalformedRecordError as error:
        raise UndecodableRecordError("change", str(error), value) from None


def decode_transaction(value: bytes) -> Begin | End:
    """Reads a record of the transaction topic.

    Raises:
        UndecodableRecordError: The value is neither BEGIN nor END of a PostgreSQL connector.
    """
    try:
        record = _decode_transaction(value)
        record = record.payload or record
        xid, lsn = parse_transaction_id(record.id)
    except (*UNREADABLE, MalformedRecordError) as error:
        raise UndecodableRecordError("transaction record", str(error), value) from None
    if record.status == "BEGIN":
        return Begin(xid, lsn)
    if record.status == "END":
        if not lsn:
            raise UndecodableRecordError("transaction record", "it has no commit LSN", value)
        return End(xid, lsn, record.ts_ms, _counts(record, value))
    raise UndecodableRecordError("transaction record", "it has no 'status'", value)


def decode_notification(value: bytes) -> Notification:
    """Reads a record of the notification topic.

    Raises:
        UndecodableRecordError: The value is not a notification.
    """
    try:
        record = _decode_notification(value)
    except UNREADABLE as error:
        raise UndecodableRecordError("notification", str(error), value) from None
    record = record.payload or record
    if not record.type:
        raise UndecodableRecordError("notification", "it has no 'type'", value)
    # The time is a number on the wire, although the documentation shows text in places.
    if not _is_whole(str(record.timestamp)):
        reason = f"'timestamp' is {shortened(record.timestamp)}, expected milliseconds"
        raise UndecodableRecordError("notification", reason, value)
    return record


def _is_whole(text: str) -> bool:
    """Returns whether a text is a number from 0 to less than 2^63."""
    return text.isascii() and text.isdigit() and len(text) < _DIGITS


def _counts(record: _Transaction, value: bytes) -> dict[str, int]:
    """Returns the number of rows to be read, by table, without logical messages."""
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
    return {t: n for t, n in counts.items() if n and not is_logical_message(t)}
