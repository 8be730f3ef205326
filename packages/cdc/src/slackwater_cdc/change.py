"""The full view of a change record: what a reader of rows needs."""

import msgspec

from slackwater_cdc.envelope import INITIAL_SNAPSHOT, UNREADABLE, RowBlock, RowSource
from slackwater_cdc.errors import MissingTransactionMetadataError, UndecodableRecordError
from slackwater_protocol import MalformedRecordError, parse_transaction_id

_NULL = msgspec.Raw(b"null")


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
    """Whether this is a row of an initial snapshot; rows of incremental snapshots have no LSN and are not."""
    before: msgspec.Raw | None
    """The row before, as JSON; None if there is none. Raw values keep the whole record in memory."""
    after: msgspec.Raw | None
    """The row after, as JSON; None if there is none."""


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    op: str = ""
    source: RowSource = RowSource()
    transaction: RowBlock | None = None
    before: msgspec.Raw = _NULL
    after: msgspec.Raw = _NULL
    payload: msgspec.Raw = _NULL


_decode = msgspec.json.Decoder(_Envelope).decode


def decode_change(value: bytes) -> Change:
    """Reads the value of a data record, with or without the ``{"schema": …, "payload": …}`` wrapper.

    Tombstones have no value and never come here.

    Raises:
        UndecodableRecordError: the value is no change event.
        MissingTransactionMetadataError: a streamed change without ``transaction``.
    """
    envelope = _envelope(value)
    source = envelope.source
    block = envelope.transaction
    before: msgspec.Raw | None = envelope.before
    after: msgspec.Raw | None = envelope.after
    table = f"{source.schema}.{source.table}" if source.table else ""
    if block is None:
        return _outside(envelope, table)
    xid = source.txId
    return Change(
        envelope.op,
        table,
        xid or _xid(block.id, value),
        source.lsn,
        source.ts_ms,
        block.data_collection_order,
        block.total_order,
        False,
        None if before == _NULL else before,
        None if after == _NULL else after,
    )


def _envelope(value: bytes) -> _Envelope:
    try:
        envelope = _decode(value)
        if not envelope.op and envelope.payload != _NULL:
            envelope = _decode(envelope.payload)
    except UNREADABLE as error:
        raise UndecodableRecordError("change", str(error), value) from None
    if not envelope.op:
        raise UndecodableRecordError("change", "it has no 'op'", value)
    return envelope


def _outside(envelope: _Envelope, table: str) -> Change:
    source = envelope.source
    snapshot = _snapshot(source.snapshot)
    if envelope.op != "m" and snapshot not in INITIAL_SNAPSHOT and snapshot != "incremental":
        raise MissingTransactionMetadataError(table)
    return Change(
        op=envelope.op,
        table=table,
        xid=None,
        lsn=source.lsn,
        commit_ts_ms=source.ts_ms,
        order=0,
        total_order=0,
        is_snapshot=snapshot in INITIAL_SNAPSHOT,
        before=None if envelope.before == _NULL else envelope.before,
        after=None if envelope.after == _NULL else envelope.after,
    )


def _snapshot(value: str | bool | None) -> str:
    """Older connectors write a boolean."""
    return str(value).lower() if value is not None else "false"


def _xid(text: str, value: bytes) -> int:
    try:
        return parse_transaction_id(text)[0]
    except MalformedRecordError as error:
        raise UndecodableRecordError("change", str(error), value) from None
