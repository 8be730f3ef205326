"""Turns changes into events, one for each input that reads the row, packed by stage and bucket.

This is the hot loop of a source task. The same changes always result in the same events.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec
import zstandard

from slackwater.engine.payloads import (
    CLOCK_INPUT,
    COMPRESSION_LEVEL,
    EMPTY_KEY,
    TOUCH_INPUT,
    Events,
    array_header,
    bucket_of,
)
from slackwater.engine.settings import FormProof
from slackwater.engine.table_packer import TablePacker
from slackwater.protocol import InputError
from slackwater.sql.plan import EnginePlan, InputPlan
from slackwater.sql.row_codec import in_unknown_forms

_FIX_ARRAY: Final = 16
_ARRAY_16: Final = 65_535

Packed = tuple[dict[int, bytearray], dict[int, int]]
"""Packed events and their number, by bucket."""


class PackingInput(NamedTuple):
    """An input whose rows come from a table. A table that occurs twice in FROM is two inputs."""

    stage: int
    number: int
    """The number of the input in events."""
    plan: InputPlan


@dataclass(frozen=True, slots=True)
class PackingSpec:
    """What a source needs to pack changes for the stages of a pipeline."""

    inputs: tuple[PackingInput, ...]
    """The inputs of all stages that keep rows of tables."""
    key: tuple[str, ...]
    """The names of the key's columns in documents; only if there is one stage."""
    buckets: int
    """The number of buckets of each stage; fixed for the life of a pipeline."""
    touched: tuple[int, ...]
    """The stages without key columns; each batch informs them that their only group exists."""
    timed: tuple[int, ...]
    """The stages whose rows expire; each batch moves their clock."""
    every_commit: bool
    """Whether rows expire at each commit."""
    takes_only_own: bool
    """Whether records that neither a pipeline nor a service wrote are refused."""

    @property
    def tables(self) -> frozenset[str]:
        """The full names of the tables whose changes are packed."""
        return frozenset(each.plan.table.full_name for each in self.inputs)

    def key_json(self, key: bytes) -> bytes:
        """Returns a packed stage key in the form that documents contain."""
        return msgspec.json.encode(dict(zip(self.key, msgspec.msgpack.decode(key), strict=True)))


def packing_spec(
    plan: EnginePlan,
    buckets: int,
    *,
    proof: FormProof = FormProof.CONFIGURATION,
    every_commit: bool = True,
) -> PackingSpec:
    """Returns the specification for a pipeline.

    Raises:
        ValueError: `buckets` is not positive.
    """
    if buckets < 1:
        msg = f"buckets is {buckets}, expected a positive number"
        raise ValueError(msg)
    stages = plan.stages
    return PackingSpec(
        inputs=tuple(
            PackingInput(stage.number, number, _in_unknown_forms(each) if proof is FormProof.VALUES else each)
            for stage in stages
            if not stage.kept_by and stage.rows is not None
            for number, each in enumerate(stage.rows.inputs)
            if not stage.rows.origins[number]
        ),
        key=tuple(column.name for column in stages[0].key) if len(stages) == 1 else (),
        buckets=buckets,
        touched=tuple(each.number for each in stages if not each.key),
        timed=tuple(each.number for each in stages if each.is_timed),
        every_commit=every_commit,
        takes_only_own=proof is FormProof.WRITER,
    )


def _in_unknown_forms(plan: InputPlan) -> InputPlan:
    table = in_unknown_forms(replace(plan.table, columns=plan.columns))
    return replace(plan, table=table, columns=table.columns)


class EventPacker:
    """Collects and packs the events of changes. Use it from one thread.

    Events of one bucket and input keep the order in which they were added. The memory needed is the packed
    size of the events, if :meth:`settle` is called regularly.
    """

    def __init__(self, spec: PackingSpec, *, keeps_old: bool = False) -> None:
        """Creates a packer; on request, events contain old rows as records do (REPLICA IDENTITY FULL)."""
        self._buckets = spec.buckets
        self._touched = spec.touched
        self._timed, self._every_commit = spec.timed, spec.every_commit
        self.takes_only_own = spec.takes_only_own
        """Whether records that neither a pipeline nor a service wrote are refused."""
        self._buffers = {(each.stage, each.number): _Buffers() for each in spec.inputs}
        self._buffers |= {(stage, TOUCH_INPUT): _Buffers() for stage in spec.touched}
        self._buffers |= {(stage, CLOCK_INPUT): _Buffers() for stage in spec.timed}
        inputs: dict[str, list[tuple[int, InputPlan, Events]]] = {}
        for each in spec.inputs:
            events = self._buffers[each.stage, each.number].events
            inputs.setdefault(each.plan.table.full_name, []).append((each.number, each.plan, events))
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

    def tick(self, ticks: Sequence[tuple[int, int]]) -> None:
        """Moves the clock of rows that expire.

        The ticks are LSNs of commits with their times in seconds since the epoch, both ascending.
        """
        for stage in self._timed:
            events = self._buffers[stage, CLOCK_INPUT].events
            for lsn, seconds in ticks if self._every_commit else ticks[-1:]:
                event = (lsn, CLOCK_INPUT, EMPTY_KEY, seconds.to_bytes(8, "big"), None, 0)
                for bucket in range(self._buckets):
                    events.setdefault(bucket, []).append(event)

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
