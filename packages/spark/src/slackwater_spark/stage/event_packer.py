"""Packs change events by bucket; the hot loop of a source's task."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import msgspec
import zstandard

from slackwater_spark.stage.errors import (
    MissingOldRowError,
    MissingRowImageError,
    UnknownTableError,
    UnsupportedChangeError,
)
from slackwater_spark.stage.packing import PackingInput, PackingSpec
from slackwater_spark.stage.wire import (
    COMPRESSION_LEVEL,
    EMPTY_KEY,
    TOUCH_INPUT,
    Events,
    PackedRow,
    array_header,
    bucket_of,
)
from slackwater_sql.column_type import TypeKind
from slackwater_sql.row_codec import UNAVAILABLE, RowCodec, WireRow

if TYPE_CHECKING:
    from slackwater_spark.stage.bulk_packer import TablePacker

_FIX_ARRAY: Final = 16
_ARRAY_16: Final = 65_535
_UNAVAILABLE_TEXT: Final = UNAVAILABLE.encode()
_UNAVAILABLE_BASE64: Final = b64encode(_UNAVAILABLE_TEXT)
_UPSERTS: Final = frozenset({"c", "r", "u"})

Write = Callable[[int, bytes, bytes, PackedRow, int], None]
"""Takes commit LSN, stage key, primary key, row and lead of an event of one input."""

Packed = tuple[dict[int, bytearray], dict[int, int]]
"""Packed events and their number, by bucket."""

Truncate = Callable[[int, int], None]
"""Takes commit LSN and lead of a TRUNCATE of one input."""


class EventPacker:
    """Collects change events, packed; not for several threads.

    Events of one bucket and input keep the order in which they were added. Memory: the packed size of the
    events, if :meth:`settle` is called now and then.
    """

    def __init__(self, spec: PackingSpec) -> None:
        self._buckets = spec.buckets
        self._spec = spec
        self._bulk: dict[str, TablePacker | None] = {}
        self._buffers = {(each.stage, each.number): _Buffers() for each in spec.inputs}
        self._buffers |= {(stage, TOUCH_INPUT): _Buffers() for stage in spec.touched}
        self._touched = spec.touched
        self._inputs: dict[str, list[_InputPacker]] = {}
        for packing_input in spec.inputs:
            number = packing_input.number
            events = self._buffers[packing_input.stage, number].events
            packer = _InputPacker(
                packing_input, self._writer(events, number), self._broadcaster(events, number)
            )
            self._inputs.setdefault(packing_input.table.full_name, []).append(packer)

    def add(
        self,
        table: str,
        op: str,
        commit_lsn: int,
        before: bytes | None,
        after: bytes | None,
        lsn: int | None = None,
    ) -> None:
        """Packs one change event for every input that reads its table; TRUNCATE for all buckets.

        Args:
            table: `schema.table`.
            op: Debezium's operation.
            commit_lsn: Of the event's transaction.
            before: The old row as JSON; None or ``null`` if there is none.
            after: The new row, likewise.
            lsn: The change's own; None: it was there before everything in its transaction.

        Raises:
            PackingError: the event lacks what a stage needs.
            RowContradictsSchemaError: a row is not what its table's declaration says.
        """
        packers = self._inputs.get(table)
        if packers is None:
            raise UnknownTableError(table, tuple(self._inputs))
        lead = commit_lsn if lsn is None else commit_lsn - lsn
        for packer in packers:
            if op in _UPSERTS:
                packer.upsert(op, commit_lsn, before, after, lead)
            elif op == "d":
                packer.delete(commit_lsn, before, lead)
            elif op == "t":
                packer.truncate(commit_lsn, lead)
            else:
                raise UnsupportedChangeError(table, op)

    @property
    def can_touch(self) -> bool:
        """There are stages of no key columns."""
        return bool(self._touched)

    def touch(self, lsn: int) -> None:
        """Tells stages of no key columns that their group exists from this LSN on, if it does not yet."""
        for stage in self._touched:
            self._writer(self._buffers[stage, TOUCH_INPUT].events, TOUCH_INPUT)(lsn, EMPTY_KEY, b"", None, 0)

    def bulk(self, table: str) -> "TablePacker | None":
        """What packs regular changes of a table into this packer; None if the table can have none."""
        if table not in self._bulk:
            from slackwater_spark.stage.bulk_packer import TablePacker

            inputs = [
                (each, self._buffers[each.stage, each.number].events) for each in self._spec.inputs_of(table)
            ]
            can_pack = inputs and TablePacker.can_pack(each for each, _ in inputs)
            self._bulk[table] = TablePacker(inputs, self._buckets) if can_pack else None
        return self._bulk[table]

    def settle(self) -> None:
        """Makes bytes of the events that were added: they take a fifth of the memory then."""
        for buffers in self._buffers.values():
            buffers.settle()

    def payloads(self) -> Iterator[tuple[int, int, bytes]]:
        """`(stage, bucket, payload)` of the events added so far, ascending; then the packer is empty."""
        compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress
        for stage, numbers in groupby(sorted(self._buffers), key=itemgetter(0)):
            packed, counts = _joined([self._buffers[number].taken() for number in numbers])
            for bucket in sorted(packed):
                yield stage, bucket, compress(array_header(counts[bucket]) + packed.pop(bucket))

    def _writer(self, events: Events, number: int) -> Write:
        buckets = self._buckets

        def write(commit_lsn: int, key: bytes, primary_key: bytes, row: PackedRow, lead: int) -> None:
            event = (commit_lsn, number, key, primary_key, row, lead)
            events.setdefault(bucket_of(key, buckets), []).append(event)

        return write

    def _broadcaster(self, events: Events, number: int) -> Truncate:
        def truncate(commit_lsn: int, lead: int) -> None:
            for bucket in range(self._buckets):
                events.setdefault(bucket, []).append((commit_lsn, number, b"", b"", None, lead))

        return truncate


class _Buffers:
    """Events of one input by bucket: the newest as they are, those before them packed."""

    def __init__(self) -> None:
        self.events: Events = {}
        self._packed: dict[int, bytearray] = {}
        self._counts: dict[int, int] = {}
        self._encode = msgspec.msgpack.Encoder().encode

    def settle(self) -> None:
        """Packs all events."""
        packed, counts = self._packed, self._counts
        for bucket, events in self.events.items():
            items = memoryview(self._encode(events))[_header_width(len(events)) :]
            if bucket in packed:
                packed[bucket] += items
                counts[bucket] += len(events)
            else:
                packed[bucket] = bytearray(items)
                counts[bucket] = len(events)
        self.events.clear()

    def taken(self) -> Packed:
        """Packed events and their number; afterwards there are none."""
        self.settle()
        taken = self._packed, self._counts
        self._packed, self._counts = {}, {}
        return taken


def _header_width(length: int) -> int:
    """Of what precedes the items of an array, as msgspec encodes it."""
    return 1 if length < _FIX_ARRAY else 3 if length <= _ARRAY_16 else 5


def _joined(inputs: Sequence[Packed]) -> Packed:
    """Of several inputs, one behind the other."""
    packed, counts = inputs[0]
    for more, numbers in inputs[1:]:
        for bucket, items in more.items():
            packed.setdefault(bucket, bytearray()).extend(items)
            counts[bucket] = counts.get(bucket, 0) + numbers[bucket]
    return packed, counts


class _InputPacker:
    """Packs the changes of one input."""

    def __init__(self, packing_input: PackingInput, write: Write, truncate: Truncate) -> None:
        table, key, primary_key = packing_input.table, packing_input.key, packing_input.table.primary_key
        self._table = table
        self._input = packing_input
        self._write = write
        self.truncate = truncate
        self._codec = RowCodec(table, packing_input.columns)
        self._key_codec = RowCodec(table, key)
        identity = tuple(dict.fromkeys((*key, *primary_key)))
        self._identity_codec = RowCodec(table, identity)
        self._identity_key = _projection(tuple(identity.index(name) for name in key))
        self._identity_primary_key = _projection(tuple(identity.index(name) for name in primary_key))
        self._pack = msgspec.msgpack.Encoder().encode
        self._pack_key = _projection(packing_input.positions(key))
        self._pack_primary_key = _projection(packing_input.positions(primary_key))
        self._same_keys = key == primary_key
        key_is_never_null = not any(c.nullable for c in table.columns if c.name in key)
        self._keeps_all = packing_input.keeps_null_keys or key_is_never_null
        kinds = {column.type.kind for column in table.columns if column.type.is_toastable}
        self._has_toastable = bool(kinds)
        self._has_binary = TypeKind.BYTEA in kinds
        self._has_array = TypeKind.ARRAY in kinds

    def upsert(self, op: str, commit_lsn: int, before: bytes | None, after: bytes | None, lead: int) -> None:
        """A row is inserted or changed, perhaps leaving another key."""
        if after is None or after == b"null":
            raise MissingRowImageError(self._table.full_name, op, "after")
        row = self._codec.decode(after)
        packed: PackedRow = None
        if self._has_toastable and op == "u" and self._lacks_values(after, row):
            row, packed = self._completed(row, before)
        if packed is None:
            packed = self._codec.encode(row)
        key = self._pack_key(row)
        primary_key = key if self._same_keys else self._pack_primary_key(row)
        if self._input.moves and op == "u":
            old_key = self._old_key(before)
            if old_key != key:
                self._move(commit_lsn, old_key, primary_key, packed, lead)
        if self._keeps_all or self._keeps(key):
            self._write(commit_lsn, key, primary_key, packed, lead)

    def _lacks_values(self, raw: bytes, row: WireRow) -> bool:
        may_lack = (
            _UNAVAILABLE_TEXT in raw or (self._has_binary and _UNAVAILABLE_BASE64 in raw) or self._has_array
        )
        return may_lack and self._codec.has_unavailable(row)

    def delete(self, commit_lsn: int, before: bytes | None, lead: int) -> None:
        """A row is deleted."""
        if before is None or before == b"null":
            raise MissingRowImageError(self._table.full_name, "d", "before")
        identity = self._identity_codec.decode(before)
        key = self._identity_key(identity)
        if self._keeps(key):
            self._write(commit_lsn, key, self._identity_primary_key(identity), None, lead)

    def _move(
        self, commit_lsn: int, old_key: bytes, primary_key: bytes, packed: PackedRow, lead: int
    ) -> None:
        if isinstance(packed, tuple):
            raise MissingOldRowError(self._table.full_name, "u", "a value stored out of line (TOAST)")
        if self._keeps(old_key):
            self._write(commit_lsn, old_key, primary_key, None, lead)

    def _old_key(self, before: bytes | None) -> bytes:
        if before is None or before == b"null":
            raise MissingOldRowError(self._table.full_name, "u", ", ".join(self._input.key))
        return self._pack(self._key_codec.decode(before))

    def _completed(self, row: WireRow, before: bytes | None) -> tuple[WireRow, PackedRow]:
        """Values that the record leaves out are taken from the old row; else the stage has to find them."""
        if self._table.replica_identity_full and before is not None and before != b"null":
            row = self._codec.merge(row, self._codec.decode(before))
        return row, (self._codec.encode(row),) if self._codec.has_unavailable(row) else None

    def _keeps(self, key: bytes) -> bool:
        return self._keeps_all or b"\xc0" not in key or None not in msgspec.msgpack.decode(key)


def _projection(positions: tuple[int, ...]) -> Callable[[WireRow], bytes]:
    """Packs the values at these positions of a row."""
    encode = msgspec.msgpack.Encoder().encode
    if len(positions) == 1:
        only = positions[0]
        return lambda row: encode((row[only],))
    return lambda row: encode(tuple(row[position] for position in positions))
