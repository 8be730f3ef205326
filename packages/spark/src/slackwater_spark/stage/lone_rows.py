"""The hot loop of rows parts in which no row meets another: rows by themselves, no object per key.

Regular events say what a row is, or that it is gone. A batch with others (TRUNCATE, rows that lack values,
the news that the group of no columns exists) takes the way of :class:`RowsLogic`, which says what all mean.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slackwater_spark.stage.calls import MAX_ROWS_PER_CALL, PartEvaluator
from slackwater_spark.stage.entry import input_tag, part
from slackwater_spark.stage.index import IndexTransaction
from slackwater_spark.stage.outbox import Outbox
from slackwater_spark.stage.part_changes import PartChanges
from slackwater_spark.stage.results import BEFORE, ResultPoints, route_of
from slackwater_spark.stage.row_changes import OPEN_LSN, Transitions
from slackwater_spark.stage.rows_logic import RowsLogic
from slackwater_spark.stage.touched import OWN_LSN, TouchedKeys
from slackwater_spark.stage.wire import Event
from slackwater_sql.stage_evaluation import RowVersions
from slackwater_sql.stages import PartialsOutput, Reads, RowsPart, StagePlan


@dataclass(slots=True)
class _Rows:
    """What regular events make of rows, by name of the entry."""

    transitions: dict[bytes, Transitions] = field(default_factory=dict)
    keys: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    """Input and packed stage key."""
    deletes: list[tuple[bytes, int]] = field(default_factory=list)
    """Names and commit LSNs of deletes of rows that must be there before the batch."""


@dataclass(slots=True)
class _Versions:
    """Rows of one input, as columns."""

    groups: list[int] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    from_lsns: list[int] = field(default_factory=list)
    to_lsns: list[int] = field(default_factory=list)


class _Call:
    """Rows of one call; each has points of its own."""

    def __init__(self, inputs: int) -> None:
        self.keys: list[bytes] = []
        self.groups: list[int] = []
        self.lsns: list[int] = []
        self.versions = [_Versions() for _ in range(inputs)]

    def add(self, number: int, key: bytes, old: bytes | None, transitions: Transitions) -> bytes | None:
        """Adds a row, unless nothing changes it; gives the row after the batch."""
        row, start = old, BEFORE
        versions, group = self.versions[number], len(self.keys)
        for at, new in transitions:
            if new == row:
                continue
            if start == BEFORE:
                self.keys.append(key)
                self.groups.append(group)
                self.lsns.append(BEFORE)
            self.groups.append(group)
            self.lsns.append(at)
            if row is not None:
                versions.groups.append(group)
                versions.rows.append(row)
                versions.from_lsns.append(start)
                versions.to_lsns.append(at)
            row, start = new, at
        if row is not None and start != BEFORE:
            versions.groups.append(group)
            versions.rows.append(row)
            versions.from_lsns.append(start)
            versions.to_lsns.append(OPEN_LSN)
        return row


def has_lone_rows(rows: RowsPart) -> bool:
    """Whether no row of the part meets another."""
    return all(mode is Reads.ALONE for mode in rows.reads)


class LoneRowsLogic:
    """See :class:`RowsLogic`, whose results it gives; for parts that :func:`has_lone_rows` is true of."""

    def __init__(
        self, stage: StagePlan, rows: RowsPart, evaluator: PartEvaluator, *, max_rows: int = MAX_ROWS_PER_CALL
    ) -> None:
        """The logic of a stage's rows part; `max_rows` bounds the size of a call."""
        self._general = RowsLogic(stage, rows, evaluator)
        self._evaluator = evaluator
        self._touched = TouchedKeys(stage, rows)
        self._tags = [input_tag(number) for number in range(len(rows.inputs))]
        self._of_stages = frozenset(n for n, origin in enumerate(rows.origins) if origin)
        self._has_steps = isinstance(rows.output, PartialsOutput)
        self._is_global = not stage.key and not self._has_steps
        self._route = route_of(rows.output, stage.number)
        self._max_points = max_rows

    def __call__(
        self, events: Sequence[Event], contents: IndexTransaction, outbox: Outbox, lsn: int | None
    ) -> PartChanges:
        """See :meth:`RowsLogic.__call__`."""
        rows = None if self._is_global or lsn == OWN_LSN else self._rows(events, lsn)
        if rows is None:
            return self._general(events, contents, outbox, lsn)
        changes = PartChanges()
        for call in self._calls(rows, contents, changes):
            self._evaluate(call, outbox)
        return changes

    def _rows(self, events: Sequence[Event], lsn: int | None) -> _Rows | None:
        """What the events make of rows; None if some are not regular.

        Args:
            events: By commit LSN.
            lsn: Only the state after all events is wanted, and this is its LSN.

        Raises:
            UnknownRowError: a row is deleted twice that must be there.
        """
        rows = _Rows()
        transitions, tags = rows.transitions, self._tags
        for commit_lsn, number, key, primary_key, row, _ in events:
            if number < 0 or not key or isinstance(row, tuple):
                return None
            at = commit_lsn if lsn is None else lsn
            name = part(key) + tags[number] + part(primary_key)
            known = transitions.get(name)
            if known is None:
                transitions[name] = [(at, row)]
                rows.keys[name] = (number, key)
                if row is None:
                    rows.deletes.append((name, commit_lsn))
                continue
            if row is None and known[-1][1] is None:
                self._touched.check_delete(key, number, commit_lsn)
            if known[-1][0] != at:
                known.append((at, row))
            elif row is not None or number not in self._of_stages:
                known[-1] = (at, row)
        return rows

    def _calls(self, rows: _Rows, contents: IndexTransaction, changes: PartChanges) -> Iterator[_Call]:
        """The changed rows, in calls of bounded size.

        Raises:
            UnknownRowError: a row is deleted that must be there.
        """
        stored = contents.get_many(rows.transitions)
        for name, commit_lsn in rows.deletes:
            if name not in stored:
                number, key = rows.keys[name]
                self._touched.check_delete(key, number, commit_lsn)
        call = _Call(len(self._tags))
        for name in sorted(rows.transitions):
            old = stored.get(name)
            changes.set(name, old, call.add(*rows.keys[name], old, rows.transitions[name]))
            if len(call.lsns) >= self._max_points:
                yield call
                call = _Call(len(self._tags))
        if call.keys:
            yield call

    def _evaluate(self, call: _Call, outbox: Outbox) -> None:
        points = ResultPoints(call.groups, call.lsns)
        versions = [
            RowVersions(each.groups, codec.unpack_columns(each.rows), each.from_lsns, each.to_lsns)
            for each, codec in zip(call.versions, self._touched.codecs, strict=True)
        ]
        steps = points.steps() if self._has_steps else None
        self._route(points, self._evaluator.at_points(versions, points, steps, call.keys), outbox)
