"""The short cut of parts in which no row meets another: rows by themselves, no object per key.

This is a hot loop. It takes regular events, which say what a row is, or that it is gone. A batch with others
(TRUNCATE, rows that lack values, the news that the group of no columns exists) goes the way of
:class:`CommitEvaluation`, which defines what events mean; ``tests/test_lone_rows.py`` compares the two.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slackwater_engine.evaluate.calls import MAX_ROWS_PER_CALL, Call, PointCalls
from slackwater_engine.evaluate.evaluators import PartEvaluator
from slackwater_engine.evaluate.every_commit import CommitEvaluation
from slackwater_engine.evaluate.results import BEFORE, route_of
from slackwater_engine.evaluate.touched_keys import OWN_LSN, TouchedKeys, Transitions
from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.outcome import Outcome
from slackwater_engine.payloads import Event
from slackwater_engine.state.entry import input_tag, part
from slackwater_sql.plan import PartialsOutput, Reads, RowsPart, StagePlan
from slackwater_sql.stage_evaluation import OPEN_LSN


@dataclass(slots=True)
class _Rows:
    """The rows that regular events change, by name of the entry."""

    transitions: dict[bytes, Transitions] = field(default_factory=dict)
    keys: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    """The input and the packed stage key of each."""
    deletes: list[tuple[bytes, int]] = field(default_factory=list)
    """Names and commit LSNs of deletes of rows that must be there before the batch."""


def has_lone_rows(rows: RowsPart) -> bool:
    """Returns whether no row of the part meets another."""
    return all(mode is Reads.ALONE for mode in rows.reads)


class LoneRowEvaluation:
    """Evaluates what :class:`CommitEvaluation` does, with its results, faster; for parts with lone rows."""

    def __init__(
        self, stage: StagePlan, rows: RowsPart, evaluator: PartEvaluator, *, max_rows: int = MAX_ROWS_PER_CALL
    ) -> None:
        """Prepares the evaluation of a stage's rows part; `max_rows` bounds the size of a call."""
        self._general = CommitEvaluation(stage, rows, evaluator)
        self._touched = TouchedKeys(stage, rows)
        self._tags = [input_tag(number) for number in range(len(rows.inputs))]
        self._of_stages = frozenset(n for n, origin in enumerate(rows.origins) if origin)
        has_steps = isinstance(rows.output, PartialsOutput)
        self._is_global = not stage.key and not has_steps
        self._calls = PointCalls(evaluator, self._touched.codecs, has_steps=has_steps)
        self._route = route_of(rows.output, stage.number)
        self._max_points = max_rows

    def __call__(
        self, events: Sequence[Event], contents: IndexTransaction, outcome: Outcome, lsn: int | None
    ) -> None:
        """See :meth:`CommitEvaluation.__call__`."""
        rows = None if self._is_global or lsn == OWN_LSN else self._rows(events, lsn)
        if rows is None:
            self._general(events, contents, outcome, lsn)
            return
        for call in self._changed(rows, contents, outcome):
            self._route(*self._calls.results(call), outcome)

    def _rows(self, events: Sequence[Event], lsn: int | None) -> _Rows | None:
        """Returns the rows that the events change; None if some of the events are not regular.

        Args:
            events: By commit LSN.
            lsn: If only the state after all events is wanted, its LSN.

        Raises:
            EngineInputError: A row is deleted twice that must be there.
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

    def _changed(self, rows: _Rows, contents: IndexTransaction, outcome: Outcome) -> Iterator[Call]:
        """Yields the changed rows, in calls of bounded size.

        Raises:
            EngineInputError: A row is deleted that must be there.
        """
        stored = contents.get_many(rows.transitions)
        for name, commit_lsn in rows.deletes:
            if name not in stored:
                number, key = rows.keys[name]
                self._touched.check_delete(key, number, commit_lsn)
        call = Call(len(self._tags))
        for name in sorted(rows.transitions):
            old = stored.get(name)
            outcome.change(name, old, _add(call, *rows.keys[name], old, rows.transitions[name]))
            if len(call.points) >= self._max_points:
                yield call
                call = Call(len(self._tags))
        if call.keys:
            yield call


def _add(call: Call, number: int, key: bytes, old: bytes | None, transitions: Transitions) -> bytes | None:
    """Adds a row, unless nothing changes it, and returns the row after the batch.

    The hot loop: it fills the columns of the call itself, since a call of a function per row costs more.
    """
    row, start = old, BEFORE
    columns, points, of_key = call.rows[number], call.points, len(call.keys)
    for at, new in transitions:
        if new == row:
            continue
        if start == BEFORE:
            call.keys.append(key)
            points.groups.append(of_key)
            points.lsns.append(BEFORE)
        points.groups.append(of_key)
        points.lsns.append(at)
        if row is not None:
            columns.keys.append(of_key)
            columns.rows.append(row)
            columns.from_lsns.append(start)
            columns.to_lsns.append(at)
        row, start = new, at
    if row is not None and start != BEFORE:
        columns.keys.append(of_key)
        columns.rows.append(row)
        columns.from_lsns.append(start)
        columns.to_lsns.append(OPEN_LSN)
    return row
