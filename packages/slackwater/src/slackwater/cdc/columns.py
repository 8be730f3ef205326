"""Rows without their data, column by column, as the decoding process passes them to the tracking one.

Decoding needs no knowledge of other records, so it can be done in another process.
:meth:`Partition.read_parsed` does with the result what :meth:`Partition.read` does with the records
themselves.
"""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from slackwater.cdc.envelope import UNREADABLE, Row, decode_row, xid_of
from slackwater.cdc.errors import UndecodableRecordError

IS_TRUNCATE = 1
"""Flag: a truncation, which has no key."""

_KEPT_BYTES = 200
_MAX_PLACES = 255


class RowColumns(NamedTuple):
    """Rows of transactions, in the order of their offsets."""

    places: list[tuple[str, str]]
    """Schemas and tables that have rows."""
    offsets: "array[int]"
    xids: "array[int]"
    orders: "array[int]"
    """``data_collection_order``."""
    place: bytearray
    """The index in ``places`` of each row's table."""
    flags: bytearray


class OtherRow(NamedTuple):
    """A record that belongs to no transaction, at its position between the rows."""

    offset: int
    row: Row
    value: bytes


class BadRow(NamedTuple):
    """A record that cannot be read."""

    offset: int
    reason: str
    value: bytes
    """The first 200 bytes."""

    @property
    def error(self) -> UndecodableRecordError:
        """The error that reading the record directly would have raised."""
        return UndecodableRecordError("change", self.reason, self.value)


Segment = RowColumns | OtherRow | BadRow


class ParsedRows(NamedTuple):
    """Records of one partition written by one run of the connector."""

    segments: list[Segment]
    """The segments in the order of their offsets."""
    position: int
    """The offset after the last record, tombstones included; 0 if there was no record."""


def parse_rows(records: Iterable[tuple[int, bytes | None]]) -> ParsedRows:
    """Decodes records (offset and value, offsets ascending); never raises because of their content."""
    segments: list[Segment] = []
    columns = _Columns()
    offset = -1
    for offset, value in records:
        if value is None:
            continue
        other = columns.add(offset, value)
        if other is None:
            continue
        if columns.offsets:
            segments.append(columns.taken())
        columns = _Columns()
        if isinstance(other, Row):
            columns.add_row(offset, other)
        else:
            segments.append(other)
    if columns.offsets:
        segments.append(columns.taken())
    return ParsedRows(segments, offset + 1)


class _Columns:
    __slots__ = ("flags", "index", "offsets", "orders", "place", "xids")

    def __init__(self) -> None:
        self.index: dict[tuple[str, str], int] = {}
        self.offsets: array[int] = array("q")
        self.xids: array[int] = array("q")
        self.orders: array[int] = array("q")
        self.place = bytearray()
        self.flags = bytearray()

    def add(self, offset: int, value: bytes) -> Row | OtherRow | BadRow | None:
        """Takes a record, or returns it if it does not fit: a row when there are too many tables."""
        try:
            row = decode_row(value)
        except UNREADABLE as error:
            return BadRow(offset, str(error), value[:_KEPT_BYTES])
        if row.transaction is None:
            if row.payload is not None:
                row = row.payload
            if row.transaction is None:
                return OtherRow(offset, row, value)
        if len(self.index) == _MAX_PLACES:
            return row
        try:
            self.add_row(offset, row)
        except UndecodableRecordError as error:
            return BadRow(offset, error.reason, value[:_KEPT_BYTES])
        return None

    def add_row(self, offset: int, row: Row) -> None:
        block, source = row.transaction, row.source
        if block is None:
            return
        self.xids.append(source.xid or xid_of(row))
        self.orders.append(block.data_collection_order)
        self.offsets.append(offset)
        key = source.schema, source.table
        index = self.index
        try:
            self.place.append(index[key])
        except KeyError:
            index[key] = len(index)
            self.place.append(index[key])
        self.flags.append(row.op == "t")

    def taken(self) -> RowColumns:
        return RowColumns(list(self.index), self.offsets, self.xids, self.orders, self.place, self.flags)
