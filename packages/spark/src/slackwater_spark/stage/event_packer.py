"""Packs change events by bucket; the hot loop of a source's task."""

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Final

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
    PackedRow,
    array_header,
    bucket_of,
)
from slackwater_sql.column_type import TypeKind
from slackwater_sql.row_codec import UNAVAILABLE, RowCodec, WireRow

_UNAVAILABLE_TEXT: Final = UNAVAILABLE.encode()
_UNAVAILABLE_BASE64: Final = b64encode(_UNAVAILABLE_TEXT)
_UPSERTS: Final = frozenset({"c", "r", "u"})

Write = Callable[[int, bytes, bytes, PackedRow, int], None]
"""Takes commit LSN, stage key, primary key, row and lead of an event of one input."""

Truncate = Callable[[int, int], None]
"""Takes commit LSN and lead of a TRUNCATE of one input."""


class EventPacker:
    """Collects change events, packed; not for several threads.

    Events of one bucket keep the order in which they were added. Memory: the packed size of the events.
    """

    def __init__(self, spec: PackingSpec) -> None:
        self._buckets = spec.buckets
        self._stages = {number: _StageBuffers() for number in _stage_numbers(spec)}
        self._touched = spec.touched
        self._encode_into = msgspec.msgpack.Encoder().encode_into
        self._inputs: dict[str, list[_InputPacker]] = {}
        for packing_input in spec.inputs:
            buffers, number = self._stages[packing_input.stage], packing_input.number
            packer = _InputPacker(
                packing_input, self._writer(buffers, number), self._broadcaster(buffers, number)
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
            self._writer(self._stages[stage], TOUCH_INPUT)(lsn, EMPTY_KEY, b"", None, 0)

    def payloads(self) -> Iterator[tuple[int, int, bytes]]:
        """`(stage, bucket, payload)` of the events added so far, ascending; then the packer is empty."""
        compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress
        for stage, buffers in self._stages.items():
            packed, counts = buffers.taken()
            for bucket in sorted(packed):
                yield stage, bucket, compress(array_header(counts[bucket]) + packed.pop(bucket))

    def _writer(self, buffers: "_StageBuffers", number: int) -> Write:
        encode_into, buckets = self._encode_into, self._buckets
        packed, counts = buffers.packed, buffers.counts

        def write(commit_lsn: int, key: bytes, primary_key: bytes, row: PackedRow, lead: int) -> None:
            bucket = bucket_of(key, buckets)
            buffer = packed.get(bucket)
            if buffer is None:
                buffer = packed[bucket] = bytearray()
                counts[bucket] = 0
            encode_into((commit_lsn, number, key, primary_key, row, lead), buffer, -1)
            counts[bucket] += 1

        return write

    def _broadcaster(self, buffers: "_StageBuffers", number: int) -> Truncate:
        def truncate(commit_lsn: int, lead: int) -> None:
            for bucket in range(self._buckets):
                buffer = buffers.packed.setdefault(bucket, bytearray())
                self._encode_into((commit_lsn, number, b"", b"", None, lead), buffer, -1)
                buffers.counts[bucket] = buffers.counts.get(bucket, 0) + 1

        return truncate


class _StageBuffers:
    """Events of one stage, packed by bucket."""

    def __init__(self) -> None:
        self.packed: dict[int, bytearray] = {}
        self.counts: dict[int, int] = {}

    def taken(self) -> tuple[dict[int, bytearray], dict[int, int]]:
        """Packed events and their number; afterwards there are none."""
        taken = dict(self.packed), dict(self.counts)
        self.packed.clear()
        self.counts.clear()
        return taken


def _stage_numbers(spec: PackingSpec) -> list[int]:
    return sorted({*(each.stage for each in spec.inputs), *spec.touched})


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
        may_lack = _UNAVAILABLE_TEXT in raw or (self._has_binary and _UNAVAILABLE_BASE64 in raw)
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
