"""What partials do to the groups of a bucket: their numbers, and what the stage hands on.

Pure: no Spark, disk or clock. A group's rows are not kept; what a batch costs follows the number of changed
values, whatever the size of the group.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from slackwater_spark.stage.accumulators import AccumulatorLayout, Numbers, Shown
from slackwater_spark.stage.additions import Additions, Step
from slackwater_spark.stage.entry import ACCUMULATORS_TAG, Change, is_digest, part
from slackwater_spark.stage.errors import ImpossibleCountError
from slackwater_spark.stage.index import IndexTransaction
from slackwater_spark.stage.multiset import OrderedMultiset, Refusal, multiset_prefix
from slackwater_spark.stage.outbox import Partial
from slackwater_spark.stage.results import BEFORE, ResultPoints, ResultRows
from slackwater_sql.limits import DEFAULT_LIMITS, StatementLimits
from slackwater_sql.stage_evaluation import POINTS_SCHEMA, STEPS_SCHEMA, StatementEvaluator
from slackwater_sql.stages import (
    AccumulatePart,
    AccumulatorKind,
    PartialsOutput,
)
from slackwater_sql.statement import ACCUMULATORS_TABLE, POINTS_TABLE, STEPS_TABLE

MAX_POINTS_PER_CALL: Final = 100_000
"""Bounds the memory of one evaluation."""

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


class _GroupPoints(NamedTuple):
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
        limits: StatementLimits = DEFAULT_LIMITS,
        max_points: int = MAX_POINTS_PER_CALL,
    ) -> None:
        """The logic of a part.

        Args:
            accumulate: The part.
            name: Of what is computed, for errors.
            every_commit: Results at each commit that changes a group (`transactions`), not only after the
                batch (`latest`).
            limits: Of one call.
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
            accumulate.statement,
            tables,
            name=name,
            inputs={ACCUMULATORS_TABLE: "the group"},
            limits=limits,
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
        additions = Additions(self._layout, partials, every_commit=self._every_commit)
        prefixes = {key: part(key) for key in sorted(additions.groups)}
        stored = contents.get_many([prefix + ACCUMULATORS_TAG for prefix in prefixes.values()])
        groups = (
            self._applied(self._group(key, prefix, stored), additions, contents, outcome)
            for key, prefix in prefixes.items()
        )
        for chunk in self._chunks(group for group in groups if group is not None):
            outcome.results.append(self._evaluated(chunk))
        return outcome

    def _group(self, key: bytes, prefix: bytes, stored: Mapping[bytes, bytes]) -> "_Group":
        data = stored.get(prefix + ACCUMULATORS_TAG)
        numbers = [0] * self._layout.width if data is None else self._layout.decode(data)
        return _Group(key, prefix, data, numbers, {})

    def _applied(
        self, group: "_Group", additions: Additions, contents: IndexTransaction, outcome: AccumulateOutcome
    ) -> _GroupPoints | None:
        """Where a group differs; None if nowhere."""
        steps = additions.groups[group.key]
        different = group.numbers[self._layout.added :]
        for number in self._layout.multisets:
            prefix = multiset_prefix(group.prefix, number)
            group.multisets[number] = OrderedMultiset(contents, prefix, additions.touched(steps, number))
        is_fresh = self._is_global and group.stored is None
        lsns: list[int] = [] if is_fresh else [BEFORE]
        shown = [] if is_fresh else [self._shown(group)]
        for lsn in sorted(steps) if len(steps) > 1 else steps:
            self._advance(group, steps[lsn], different, lsn)
            now = self._shown(group)
            if not shown or now != shown[-1]:
                lsns.append(lsn)
                shown.append(now)
        self._keep(group, outcome)
        return _GroupPoints(group.key, lsns, shown, is_fresh) if is_fresh or len(lsns) > 1 else None

    def _advance(self, group: "_Group", step: Step, different: Numbers, lsn: int) -> None:
        """Makes a step; `different` says how many values the multisets had before the batch."""

        def refusal(what: str, count: int) -> Exception:
            return ImpossibleCountError(self._key_name(group.key), what, count, lsn)

        numbers, added = group.numbers, self._layout.added
        if step.numbers is not None:
            numbers[:added] = map(add, numbers, step.numbers)
        if step.values is not None:
            for number, values in step.values.items():
                group.multisets[number].add(values, _value_refusal(refusal, self._multiset_texts[number]))
            for index, multiset in enumerate(group.multisets.values()):
                numbers[added + index] = different[index] + multiset.gained
        problem = self._layout.impossible(numbers)
        if problem is not None:
            raise refusal(*problem)

    def _shown(self, group: "_Group") -> Shown | None:
        if not group.numbers[0] and not self._is_global:
            return None
        if not self._layout.ends:
            return tuple(group.numbers)
        return (
            *group.numbers,
            *(
                group.multisets[end.multiset].smallest()
                if end.kind is AccumulatorKind.MIN
                else group.multisets[end.multiset].largest()
                for end in self._layout.ends
            ),
        )

    def _keep(self, group: "_Group", outcome: AccumulateOutcome) -> None:
        is_there = self._is_global or group.numbers[0]
        key = group.key if is_digest(group.prefix) else None
        data = self._layout.encode(group.numbers, key) if is_there else None
        if data != group.stored:
            name = group.prefix + ACCUMULATORS_TAG
            outcome.changes.append((name, data))
            outcome.live_bytes += _bytes(name, data) - _bytes(name, group.stored)
        for multiset in group.multisets.values():
            for change, growth in multiset.changes():
                outcome.changes.append(change)
                outcome.live_bytes += growth

    def _chunks(self, groups: Iterable[_GroupPoints]) -> Iterator["_Chunk"]:
        """The groups in calls of bounded size; of a group that is cut, a point stands in both calls."""
        chunk = _Chunk()
        for group in groups:
            start, end = 0, 0
            while end < len(group.lsns):
                end = min(len(group.lsns), start + max(2, self._max_points - len(chunk.lsns)))
                chunk.add(group, start, end)
                start = end - 1
                if len(chunk.lsns) >= self._max_points:
                    yield chunk
                    chunk = _Chunk()
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


@dataclass(slots=True)
class _Group:
    """A group as it is before the batch, and then at each of its commits."""

    key: bytes
    prefix: bytes
    stored: bytes | None
    numbers: Numbers
    multisets: dict[int, OrderedMultiset]


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
