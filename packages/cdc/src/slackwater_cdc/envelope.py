"""The light view of Debezium's records: only what completeness needs.

Everything here accepts schemaless JSON and the ``{"schema": …, "payload": …}`` wrapper.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from slackwater_cdc.errors import UndecodableRecordError
from slackwater_protocol import MalformedRecordError, parse_transaction_id

INITIAL_SNAPSHOT = frozenset({"true", "first", "first_in_data_collection", "last_in_data_collection", "last"})
"""Values of ``source.snapshot`` in rows of an initial snapshot."""


class RowSource(msgspec.Struct, frozen=True, gc=False):
    """Where a change comes from."""

    schema: str = ""
    table: str = ""
    lsn: int | None = None
    txId: int | None = None
    ts_ms: int = 0
    snapshot: str | bool | None = None


class RowBlock(msgspec.Struct, frozen=True, gc=False):
    """The transaction block of a change."""

    id: str
    total_order: int
    data_collection_order: int


class Row(msgspec.Struct, frozen=True, gc=False):
    """A data record without its data. ``op`` is empty for anything that is no change event."""

    op: str = ""
    source: RowSource = RowSource()
    transaction: RowBlock | None = None
    payload: "Row | None" = None

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
    additional_data: Mapping[str, str] | None = None
    timestamp_ms: int = 0
    """By the clock of Connect."""


class _Collection(msgspec.Struct, frozen=True, gc=False):
    data_collection: str
    event_count: int


class _Transaction(msgspec.Struct, frozen=True, gc=False):
    status: Literal["BEGIN", "END", ""] = ""
    id: str = ""
    data_collections: list[_Collection] | None = None
    ts_ms: int = 0
    payload: "_Transaction | None" = None


class _MaybeNotification(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    aggregate_type: str = ""
    additional_data: Mapping[str, str] | None = None
    timestamp: int | str = 0
    payload: "_MaybeNotification | None" = None


_decode_transaction = msgspec.json.Decoder(_Transaction).decode
_decode_notification = msgspec.json.Decoder(_MaybeNotification).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)


def decode_transaction(value: bytes) -> Begin | End:
    """Reads a record of the transaction topic.

    Raises:
        UndecodableRecordError: the value is neither BEGIN nor END of a PostgreSQL connector.
    """
    try:
        record = _decode_transaction(value)
        record = record.payload or record
        xid, lsn = parse_transaction_id(record.id)
    except (*_UNREADABLE, MalformedRecordError) as error:
        raise UndecodableRecordError("transaction record", str(error), value) from None
    if record.status == "BEGIN":
        return Begin(xid)
    if record.status == "END":
        return End(xid, lsn, record.ts_ms, _counts(record.data_collections or []))
    raise UndecodableRecordError("transaction record", "it has no 'status'", value)


def decode_notification(value: bytes) -> Notification:
    """Reads a record of the notification topic.

    Raises:
        UndecodableRecordError: the value is no notification.
    """
    try:
        record = _decode_notification(value)
    except _UNREADABLE as error:
        raise UndecodableRecordError("notification", str(error), value) from None
    record = record.payload or record
    if not record.type:
        raise UndecodableRecordError("notification", "it has no 'type'", value)
    return Notification(
        record.type, record.aggregate_type, record.additional_data, _milliseconds(record.timestamp)
    )


def _milliseconds(timestamp: int | str) -> int:
    """A number on the wire; the documentation shows text in places."""
    try:
        return int(timestamp)
    except ValueError:
        return 0


def _counts(collections: list[_Collection]) -> dict[str, int]:
    """Logical messages are counted under the name of a Java object, a new one per message: left out."""
    return {
        c.data_collection: c.event_count
        for c in collections
        if c.event_count > 0 and not c.data_collection.startswith("io.debezium.")
    }
