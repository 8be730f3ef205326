"""Packs change events by bucket. This is the hot loop of a source task."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

import msgspec
import zstandard

from slackwater.engine.pack.specification import PackingInput, PackingSpec
from slackwater.engine.pack.table import TablePacker
from slackwater.engine.payloads import (
    COMPRESSION_LEVEL,
    EMPTY_KEY,
    TOUCH_INPUT,
    Events,
    array_header,
    bucket_of,
)
from slackwater.protocol import InputError

_FIX_ARRAY: Final = 16
_ARRAY_16: Final = 65_535

Packed = tuple[dict[int, bytearray], dict[int, int]]
"""Packed events and their number, by bucket."""


class EventPacker:
    """Collects and packs the events of changes. Use it from one thread.

    Events of one bucket and input keep the order in which they were added. The memory needed is the packed
    size of the events, if :meth:`settle` is called regularly.
    """

    def __init__(self, spec: PackingSpec, *, keeps_old: bool = False) -> None:
        """Creates a packer; on request, events contain old rows as records do (REPLICA IDENTITY FULL)."""
        self._buckets = spec.buckets
        self._touched = spec.touched
        self.takes_only_own = spec.takes_only_own
        """Whether records that neither a pipeline nor a service wrote are refused."""
        self._buffers = {(each.stage, each.number): _Buffers() for each in spec.inputs}
        self._buffers |= {(stage, TOUCH_INPUT): _Buffers() for stage in spec.touched}
        inputs: dict[str, list[tuple[PackingInput, Events]]] = {}
        for each in spec.inputs:
            events = self._buffers[each.stage, each.number].events
            inputs.setdefault(each.table.full_name, []).append((each, events))
        self._tables = {
            name: TablePacker(of_table, spec.buckets, keeps_old=keeps_old, takes_only_own=spec.takes_only_own)
            for name, of_table in inputs.items()
        }

    def table(self, name: str) -> TablePacker:
        """Returns the part of this packer for the changes of a table, `schema.table`.

        Raises:
            InputError: No input reads the table.
        """
        try:
            return self._tables[name]
        except KeyError:
            known = ", ".join(self._tables)
            raise InputError(f"a change of table {name}, but the view reads {known}") from None

    def add(
        self,
        table: str,
        op: str,
        commit_lsn: int,
        before: bytes | None,
        after: bytes | None,
        lsn: int | None = None,
        schema: bytes | None = None,
    ) -> None:
        """Packs one change of a table; see :meth:`TablePacker.add`.

        Raises:
            InputError: No input reads the table.
        """
        self.table(table).add(op, commit_lsn, before, after, lsn, schema)

    @property
    def can_touch(self) -> bool:
        """Whether there are stages without key columns."""
        return bool(self._touched)

    def take_has_moves(self) -> bool:
        """Returns whether rows that lack values have come from other primary keys since the last call."""
        found = [table for table in self._tables.values() if table.has_moves]
        for table in found:
            table.has_moves = False
        return bool(found)

    def touch(self, lsn: int) -> None:
        """Informs stages without key columns that their group exists from this LSN on, if it does not yet."""
        event = (lsn, TOUCH_INPUT, EMPTY_KEY, b"", None, 0)
        for stage in self._touched:
            events = self._buffers[stage, TOUCH_INPUT].events
            events.setdefault(bucket_of(EMPTY_KEY, self._buckets), []).append(event)

    def settle(self) -> None:
        """Packs the events that were added, which then take a fifth of the memory."""
        for table in self._tables.values():
            table.flush()
        for buffers in self._buffers.values():
            buffers.settle()

    def payloads(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields `(stage, bucket, payload)` of the events added so far, ascending, and removes them."""
        compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress
        self.settle()
        for stage, numbers in groupby(sorted(self._buffers), key=itemgetter(0)):
            packed, counts = _joined([self._buffers[number].taken() for number in numbers])
            for bucket in sorted(packed):
                yield stage, bucket, compress(array_header(counts[bucket]) + packed.pop(bucket))


class _Buffers:
    """The events of one input by bucket: the newest events as objects, the earlier ones packed."""

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
        """Returns the packed events and their number, and removes them."""
        taken = self._packed, self._counts
        self._packed, self._counts = {}, {}
        return taken


def _header_width(length: int) -> int:
    """Returns the width of an array's header, as msgspec encodes it."""
    return 1 if length < _FIX_ARRAY else 3 if length <= _ARRAY_16 else 5


def _joined(inputs: Sequence[Packed]) -> Packed:
    """Joins the events of several inputs, one after the other."""
    packed, counts = inputs[0]
    for more, numbers in inputs[1:]:
        for bucket, items in more.items():
            packed.setdefault(bucket, bytearray()).extend(items)
            counts[bucket] = counts.get(bucket, 0) + numbers[bucket]
    return packed, counts
