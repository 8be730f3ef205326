"""What partials do to the groups of a bucket: their numbers, and what the stage hands on.

Pure: no Spark, disk or clock. A group's rows are not kept; what a batch costs follows the number of changed
values, whatever the size of the group.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa

from slackwater_spark.stage.accumulators import AccumulatorLayout, Numbers, Shown
from slackwater_spark.stage.entry import ACCUMULATORS_TAG, Change, part
from slackwater_spark.stage.errors import ImpossibleCountError
from slackwater_spark.stage.index import IndexTransaction
from slackwater_spark.stage.multiset import OrderedMultiset, Refusal, multiset_prefix, sort_key_of
from slackwater_spark.stage.outbox import Partial
from slackwater_spark.stage.results import BEFORE, ResultPoints, ResultRows
from slackwater_spark.stage.wire import TOUCH_INPUT, array_header
from slackwater_sql.stage_evaluation import POINTS_SCHEMA, STEPS_SCHEMA, StatementEvaluator
from slackwater_sql.stages import (
    ACCUMULATORS_TABLE,
    STEPS_TABLE,
    AccumulatePart,
    AccumulatorKind,
    PartialsOutput,
)
from slackwater_sql.statement import POINTS_TABLE

MAX_POINTS_PER_CALL: Final = 100_000
"""Bounds the memory of one evaluation."""

_NUMBERS: Final = -1
"""Number of a partial that adds to the group's numbers; others name a multiset."""

_decode_rests = msgspec.msgpack.Decoder(list[list[Any]]).decode
_decode_key = msgspec.msgpack.Decoder(tuple[Any, ...]).decode


@dataclass(slots=True)
class AccumulateOutcome:
    """What a batch does to the groups of a bucket."""

    results: list[tuple[ResultPoints, ResultRows]] = field(default_factory=list)
    """Of the part's statement, in the order of the groups' keys; for the route of the part's output."""
    changes: list[Change] = field(default_factory=list)
    """Of entries; each name at most once."""
    live_bytes: int = 0
    """By how much names and values of the live entries grow."""


@dataclass(slots=True)
class _Step:
    """What is added to a group at one commit."""

    numbers: Numbers
    values: dict[int, dict[bytes, int]] = field(default_factory=dict)
    """By multiset and sort key."""


@dataclass(slots=True)
class _Additions:
    """What a batch adds to a group."""

    steps: dict[int, _Step] = field(default_factory=dict)
    """By commit LSN."""
    texts: dict[int, dict[bytes, str]] = field(default_factory=dict)
    """By multiset and sort key."""


@dataclass(frozen=True, slots=True)
class _GroupPoints:
    """A group where it differs, after the point to compare with."""

    key: bytes
    lsns: list[int]
    shown: list[Shown | None]
    """None: the group is not there."""
    is_fresh: bool
    """There was no result before."""


class AccumulateLogic:
    """Applies partials to the groups of buckets; for one thread."""

    def __init__(
        self,
        accumulate: AccumulatePart,
        *,
        name: str,
        every_commit: bool,
        memory_limit: str = "1GB",
        max_points: int = MAX_POINTS_PER_CALL,
    ) -> None:
        """The logic of a part.

        Args:
            accumulate: The part.
            name: Of what is computed, for errors.
            every_commit: Results at each commit that changes a group (`transactions`), not only after the
                batch (`latest`).
            memory_limit: DuckDB's limit for one call.
            max_points: Of one evaluation.
        """
        self._key_names = [column.name for column in accumulate.key]
        self._is_global = accumulate.is_global
        self._layout = AccumulatorLayout(accumulate)
        self._multiset_texts = {a.multiset: a.text for a in reversed(accumulate.accumulators)}
        self._every_commit = every_commit
        self._max_points = max_points
        self._has_steps = isinstance(accumulate.output, PartialsOutput)
        tables = {ACCUMULATORS_TABLE: self._layout.schema, POINTS_TABLE: POINTS_SCHEMA}
        if self._has_steps:
            tables[STEPS_TABLE] = STEPS_SCHEMA
        self._evaluator = StatementEvaluator(
            accumulate.statement, tables, name=name, memory_limit=memory_limit
        )

    def close(self) -> None:
        """Give the evaluator's memory back; may be called twice."""
        self._evaluator.close()

    def __call__(self, partials: Sequence[Partial], contents: IndexTransaction) -> AccumulateOutcome:
        """The outcome of these partials, in any order; reads `contents`, changes nothing.

        Raises:
            ImpossibleCountError: more is taken from a group than was ever added.
            EvaluationError: the part's SQL fails on a group.
        """
        outcome = AccumulateOutcome()
        additions = self._by_group(partials)
        names = {key: part(key) + ACCUMULATORS_TAG for key in sorted(additions)}
        stored = contents.get_many(names.values())
        groups = (
            self._applied(_Group(key, name, stored.get(name)), additions[key], contents, outcome)
            for key, name in names.items()
        )
        for chunk in self._chunks(group for group in groups if group is not None):
            outcome.results.append(self._evaluated(chunk))
        return outcome

    def _by_group(self, partials: Sequence[Partial]) -> dict[bytes, _Additions]:
        """What is added to each group at each commit; with `latest`, at its newest one."""
        groups: dict[bytes, _Additions] = {}
        rests = b"".join(rest or b"\x90" for *_, rest in partials)
        decoded = _decode_rests(array_header(len(partials)) + rests)
        for (lsn, number, key, _), values in zip(partials, decoded, strict=True):
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Additions()
            step = group.steps.get(lsn)
            if step is None:
                step = self._step(group, lsn)
            if number == _NUMBERS:
                for position, more in enumerate(self._layout.addition(values)):
                    step.numbers[position] += more
            elif number != TOUCH_INPUT:
                sort_key, text, more = sort_key_of(values[0]), values[1], values[2]
                of_multiset = step.values.setdefault(number, {})
                of_multiset[sort_key] = of_multiset.get(sort_key, 0) + more
                group.texts.setdefault(number, {}).setdefault(sort_key, text)
        return groups

    def _step(self, group: _Additions, lsn: int) -> _Step:
        if self._every_commit or not group.steps:
            step = group.steps[lsn] = _Step([0] * self._layout.added)
            return step
        ((newest, step),) = group.steps.items()
        if newest < lsn:
            group.steps = {lsn: step}
        return step

    def _applied(
        self, group: "_Group", additions: _Additions, contents: IndexTransaction, outcome: AccumulateOutcome
    ) -> _GroupPoints | None:
        """Where a group differs; None if nowhere."""
        before = self._layout.empty() if group.stored is None else self._layout.decode(group.stored)
        history = _History(self._layout, group.prefix, before, additions, contents)
        is_fresh = self._is_global and group.stored is None
        lsns: list[int] = [] if is_fresh else [BEFORE]
        shown = [] if is_fresh else [self._shown(history)]
        for lsn in sorted(additions.steps):
            self._advance(history, additions.steps[lsn], group.key, lsn)
            now = self._shown(history)
            if not shown or now != shown[-1]:
                lsns.append(lsn)
                shown.append(now)
        self._keep(group, history, outcome)
        return _GroupPoints(group.key, lsns, shown, is_fresh) if is_fresh or len(lsns) > 1 else None

    def _advance(self, history: "_History", step: _Step, key: bytes, lsn: int) -> None:
        def refusal(what: str, count: int) -> Exception:
            return ImpossibleCountError(self._key_name(key), what, count, lsn)

        for number, additions in step.values.items():
            aggregate = self._multiset_texts[number]
            history.multisets[number].add(additions, _value_refusal(refusal, aggregate))
        history.add(step.numbers)
        problem = self._layout.impossible(history.numbers)
        if problem is not None:
            raise refusal(*problem)

    def _shown(self, history: "_History") -> Shown | None:
        if not history.numbers[0] and not self._is_global:
            return None
        ends = tuple(
            history.multisets[end.multiset].smallest()
            if end.kind is AccumulatorKind.MIN
            else history.multisets[end.multiset].largest()
            for end in self._layout.ends
        )
        return Shown(tuple(history.numbers), ends)

    def _keep(self, group: "_Group", history: "_History", outcome: AccumulateOutcome) -> None:
        is_there = self._is_global or history.numbers[0]
        data = self._layout.encode(history.numbers, group.key) if is_there else None
        if data != group.stored:
            outcome.changes.append((group.name, data))
            outcome.live_bytes += _bytes(group.name, data) - _bytes(group.name, group.stored)
        for multiset in history.multisets.values():
            for change, growth in multiset.changes():
                outcome.changes.append(change)
                outcome.live_bytes += growth

    def _chunks(self, groups: Iterable[_GroupPoints]) -> Iterator["_Chunk"]:
        """The groups in calls of bounded size; of a group that is cut, a point stands in both calls."""
        chunk = _Chunk()
        for group in groups:
            start = 0
            while True:
                end = min(len(group.lsns), start + max(2, self._max_points - len(chunk.lsns)))
                chunk.add(group, start, end)
                if len(chunk.lsns) >= self._max_points:
                    yield chunk
                    chunk = _Chunk()
                if end == len(group.lsns):
                    break
                start = end - 1
        if chunk.lsns:
            yield chunk

    def _evaluated(self, chunk: "_Chunk") -> tuple[ResultPoints, ResultRows]:
        points = ResultPoints(chunk.groups, chunk.lsns, frozenset(chunk.fresh))
        there = [(number, shown) for number, shown in enumerate(chunk.shown) if shown is not None]
        numbers = [number for number, _ in there]
        groups = [chunk.groups[number] for number in numbers]
        keys = [_decode_key(key) for key in chunk.keys]
        rows = self._layout.table(
            numbers, groups, [keys[group] for group in groups], [shown for _, shown in there]
        )
        tables = {
            ACCUMULATORS_TABLE: rows,
            POINTS_TABLE: _table(POINTS_SCHEMA, range(len(points)), points.groups, points.lsns),
        }
        if self._has_steps:
            steps = points.steps()
            tables[STEPS_TABLE] = _table(STEPS_SCHEMA, steps.points, steps.lsns, steps.weights)
        return points, self._evaluator.rows(tables, lambda group: self._key_name(chunk.keys[group]))

    def _key_name(self, key: bytes) -> str:
        return msgspec.json.encode(dict(zip(self._key_names, _decode_key(key), strict=True))).decode()


class _Group:
    """A group before the batch."""

    def __init__(self, key: bytes, name: bytes, stored: bytes | None) -> None:
        self.key = key
        self.name = name
        self.stored = stored

    @property
    def prefix(self) -> bytes:
        return self.name[: -len(ACCUMULATORS_TAG)]


class _History:
    """A group as it is at some commit of a batch."""

    def __init__(
        self,
        layout: AccumulatorLayout,
        prefix: bytes,
        before: Numbers,
        additions: _Additions,
        contents: IndexTransaction,
    ) -> None:
        self.numbers = list(before)
        self.multisets = {
            number: OrderedMultiset(
                contents, multiset_prefix(prefix, number), additions.texts.get(number, {}).items()
            )
            for number in layout.multisets
        }
        self._added = layout.added
        self._different_before = before[layout.added :]

    def add(self, numbers: Numbers) -> None:
        """Adds to the numbers, and counts the values of the multisets anew."""
        for position, more in enumerate(numbers):
            self.numbers[position] += more
        for index, multiset in enumerate(self.multisets.values()):
            self.numbers[self._added + index] = self._different_before[index] + multiset.gained


class _Chunk:
    """Groups of one call, as columns."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.groups: list[int] = []
        self.lsns: list[int] = []
        self.shown: list[Shown | None] = []
        self.fresh: list[int] = []

    def add(self, group: _GroupPoints, start: int, end: int) -> None:
        """Adds some points of a group."""
        number = len(self.keys)
        self.keys.append(group.key)
        self.groups += [number] * (end - start)
        self.lsns += group.lsns[start:end]
        self.shown += group.shown[start:end]
        if group.is_fresh and not start:
            self.fresh.append(number)


def _value_refusal(refusal: Refusal, aggregate: str) -> Refusal:
    return lambda text, count: refusal(f"{text!r} in {aggregate}", count)


def _bytes(name: bytes, data: bytes | None) -> int:
    return 0 if data is None else len(name) + len(data)


def _table(schema: pa.Schema, *columns: Sequence[int]) -> pa.Table:
    arrays = [pa.array(values, column.type) for column, values in zip(schema, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
