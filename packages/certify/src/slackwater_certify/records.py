"""Debezium's records in JSON, with or without schemas: only what the certifier needs of them."""

from typing import Any, TypeVar

import msgspec

from slackwater_certify.errors import MalformedRecordError

UNAVAILABLE = "__debezium_unavailable_value"
"""Stands in a row for a large value that the transaction did not change."""
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding JSON raises for a value that is not as expected."""
_SHOWN = 200
_DIGITS = 20

T = TypeVar("T")


class Source(msgspec.Struct, gc=False):
    """Where a change comes from."""

    schema: str | None = None
    table: str | None = None
    lsn: int | None = None
    ts_ms: int = 0
    snapshot: str | bool | None = None


class Block(msgspec.Struct, gc=False):
    """To which transaction it belongs."""

    id: str


class ChangeEvent(msgspec.Struct, gc=False):
    """A value of a data topic."""

    op: str | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    source: Source | None = None
    transaction: Block | None = None
    payload: "ChangeEvent | None" = None
    """With schemas, the event itself."""


class CollectionCount(msgspec.Struct, gc=False):
    """How many changes of a table a transaction has."""

    data_collection: str
    event_count: int


class TransactionRecord(msgspec.Struct, gc=False):
    """A value of the transaction topic."""

    status: str | None = None
    id: str | None = None
    ts_ms: int | None = None
    data_collections: list[CollectionCount] | None = None
    payload: "TransactionRecord | None" = None
    """With schemas, the record itself."""


_CHANGES = msgspec.json.Decoder(ChangeEvent, float_hook=str)
_TRANSACTIONS = msgspec.json.Decoder(TransactionRecord)


def decode_change(value: bytes, place: str) -> ChangeEvent:
    """A change event.

    Raises:
        MalformedRecordError: it is none.
    """
    event = _decode(_CHANGES, value, place)
    return event if event.payload is None else event.payload


def decode_transaction(value: bytes, place: str) -> TransactionRecord:
    """A BEGIN or END.

    Raises:
        MalformedRecordError: it is none.
    """
    record = _decode(_TRANSACTIONS, value, place)
    return record if record.payload is None else record.payload


def split_id(transaction_id: str, place: str) -> tuple[int, int]:
    """The xid and the LSN of a transaction's id.

    Raises:
        MalformedRecordError: it is not ``xid:lsn``.
    """
    xid, _, lsn = transaction_id.partition(":")
    if not all(part.isascii() and part.isdigit() and len(part) <= _DIGITS for part in (xid, lsn)):
        raise MalformedRecordError(place, "id is not xid:lsn", transaction_id[:_SHOWN])
    return int(xid), int(lsn)


def _decode(decoder: "msgspec.json.Decoder[T]", value: bytes, place: str) -> T:
    try:
        return decoder.decode(value)
    except UNREADABLE as error:
        raise MalformedRecordError(place, str(error), value[:_SHOWN].decode(errors="replace")) from error
