"""Evaluates keys before a batch and after each of its commits, and emits the differences.

If only the results after the batch are wanted, the whole batch counts as one commit. What a commit causes
does not depend on the batch that contains it: at every commit if all commits are evaluated, and at the end in
any case.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from slackwater.engine.evaluate.points import (
    BEFORE,
    MAX_ROWS_PER_CALL,
    Call,
    PointCalls,
    RowVersion,
    route_of,
    row_versions,
)
from slackwater.engine.evaluate.touched_keys import OWN_LSN, TouchedKey, TouchedKeys, Transitions
from slackwater.engine.evaluate.withheld import WithheldKeys, WithholdableKey, WithholdingCalls
from slackwater.engine.index import Contents
from slackwater.engine.payloads import Event, Outcome
from slackwater.engine.settings import PartEvaluator
from slackwater.engine.state.entry import DOCUMENT_TAG, input_tag, part
from slackwater.sql.errors import EvaluationError
from slackwater.sql.plan import PartialsOutput, Reads, RowsPart, StagePlan
from slackwater.sql.stage_evaluation import OPEN_LSN


class CommitEvaluation:
    """Evaluates a stage's rows part at commits. Use it from one thread."""

    def __init__(
        self,
        stage: StagePlan,
        rows: RowsPart,
        evaluator: PartEvaluator,
        withheld: WithheldKeys | None = None,
    ) -> None:
        """Prepares the evaluation. Without withheld keys, one that cannot be evaluated ends it."""
        self._touched = TouchedKeys(stage, rows)
        self._withheld = withheld
        if withheld is not None:
            self._withholding = WithholdingCalls(evaluator, self._touched.codecs, withheld)
        self._neighbours = _NeighbourRows(rows.reads, has_accumulators=stage.accumulate is not None)
        self._is_global = not stage.key and not isinstance(rows.output, PartialsOutput)
        self._route = route_of(rows.output, stage.number)
        self._calls = PointCalls(evaluator, self._touched.codecs)

    def __call__(
        self, events: Sequence[Event], contents: Contents, outcome: Outcome, lsn: int | None
    ) -> None:
        """Adds the changes that these events cause, and the results, to the outcome. It changes no contents.

        The events are sorted by commit LSN. With an `lsn`, only results after all events are wanted, as of
        this LSN, or of `OWN_LSN`.

        Raises:
            InputError: An event needs a row that the contents do not have.
            EvaluationError: The part's SQL fails on the rows of a key.
        """
        touched = self._touched.find(events, contents, lsn)
        versions = self._versions(touched, contents, outcome, lsn)
        results = self._calls.evaluate(versions)
        if self._withheld is not None:
            results = self._withholding.evaluate_all(versions, outcome)
        for points, rows in results:
            self._route(points, rows, outcome)

    def _versions(
        self,
        touched: Iterator[TouchedKey],
        contents: Contents,
        outcome: Outcome,
        lsn: int | None,
    ) -> Iterator[WithholdableKey]:
        for of_key in touched:
            changed = of_key.changed
            is_fresh = self._is_global and self._becomes_known(of_key, contents, outcome)
            if not changed and not is_fresh:
                continue
            withheld = None if self._withheld is None or self._withheld.of_rows else self._withheld
            is_withheld = withheld is not None and contents.get(withheld.entry(of_key.key)) is not None
            is_whole = is_fresh or is_withheld
            versions = self._unchanged(of_key, contents, whole=is_whole)
            read = len(versions)
            width = len(of_key.group)
            lsns: set[int] = set()
            for name, transitions in changed.items():
                old = of_key.stored.get(name)
                versions += row_versions(name[width] - 1, old, transitions)
                lsns.update(each[0] for each in transitions)
                outcome.change(name, old, transitions[-1][1])
            if is_fresh and of_key.touch_lsn is not None:
                lsns.add(of_key.touch_lsn if lsn is None else lsn)
            whole = None
            if withheld is not None and not is_whole:
                whole = partial(self._all_versions, of_key, contents, versions[read:])
            yield WithholdableKey(of_key.key, versions, sorted(lsns), is_whole, is_withheld, whole)

    def _unchanged(self, of_key: TouchedKey, contents: Contents, *, whole: bool) -> list[RowVersion]:
        found = self._neighbours.read(contents, of_key.group, of_key.changed, whole=whole)
        return [(number, row, 0, OPEN_LSN) for number, row in found]

    def _all_versions(
        self, of_key: TouchedKey, contents: Contents, changed: Sequence[RowVersion]
    ) -> list[RowVersion]:
        return [*self._unchanged(of_key, contents, whole=True), *changed]

    def _becomes_known(self, of_key: TouchedKey, contents: Contents, outcome: Outcome) -> bool:
        """Records that the group of no columns has a result; returns whether it had none until now."""
        name = of_key.group + DOCUMENT_TAG
        if contents.get(name) is not None:
            return False
        outcome.change(name, None, b"")
        return True


class _NeighbourRows:
    """Reads the unchanged rows of a key that can change a result together with the changed rows."""

    def __init__(self, reads: Sequence[Reads], *, has_accumulators: bool) -> None:
        """Prepares reading. Keys with accumulators have other entries besides their rows, maybe very many."""
        self._reads = tuple(reads)
        self._tags = [input_tag(number) for number in range(len(reads))]
        self._has_accumulators = has_accumulators
        self._all_inputs = frozenset(range(len(reads)))
        self._meeting = frozenset(n for n, mode in enumerate(reads) if mode is not Reads.ALONE)

    def read(
        self, contents: Contents, group: bytes, changed: Collection[bytes], *, whole: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """Yields input and contents of the rows to be read besides the changed ones.

        With `whole`, all rows are wanted, whatever the modes are.
        """
        width = len(group)
        inputs = {name[width] - 1 for name in changed}
        meeting = self._all_inputs
        if not whole:
            meeting = self._meeting
            inputs &= meeting
            if not inputs:
                return
        mode = Reads.GROUP
        only = -1
        if len(inputs) == 1 and not whole:
            (only,) = inputs
            mode = self._reads[only]
        if mode is Reads.GROUP:
            yield from self._all(contents, group, changed, meeting)
            return
        for number in sorted(meeting - {only}):
            for _, row in contents.group(group + self._tags[number]):
                yield number, row
        if mode is Reads.CHANGED_AND_WITNESS:
            witness = next((e for e in contents.scan(group + self._tags[only]) if e[0] not in changed), None)
            if witness is not None:
                yield only, witness[1]

    def _all(
        self, contents: Contents, group: bytes, changed: Collection[bytes], inputs: frozenset[int]
    ) -> Iterator[tuple[int, bytes]]:
        if self._has_accumulators or inputs != self._all_inputs:
            for number in sorted(inputs):
                for name, row in contents.group(group + self._tags[number]):
                    if name not in changed:
                        yield number, row
            return
        width = len(group)
        for name, row in contents.group(group):
            number = name[width] - 1
            if number in inputs and name not in changed:
                yield number, row


@dataclass(slots=True)
class _Rows:
    """The rows that regular events change, by the name of their entry."""

    transitions: dict[bytes, Transitions] = field(default_factory=dict)
    keys: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    """The input and the packed stage key of each row."""
    deletes: list[tuple[bytes, int]] = field(default_factory=list)
    """Names and commit LSNs of deletes of rows that must exist before the batch."""
    arrivals: dict[bytes, int] = field(default_factory=dict)
    """The newest commit LSN that brings another row of a name that may have several ones."""

    def is_one_of_several(self, name: bytes, commit_lsn: int, row: bytes | None, lead: int) -> bool:
        """Returns whether a delete may be about another row than the newest one of its name."""
        if not lead & 1:
            self.arrivals[name] = commit_lsn
        return row is None and self.arrivals.get(name) == commit_lsn


def has_lone_rows(rows: RowsPart) -> bool:
    """Returns whether no row of the part is combined with another one."""
    return all(mode is Reads.ALONE for mode in rows.reads)


class LoneRowEvaluation(CommitEvaluation):
    """Does the same as :class:`CommitEvaluation`, faster, for parts in which rows are not combined.

    ``test_lone_rows.py`` compares both. It handles regular events, which contain a row, or state that it is
    gone, in a hot loop. A batch with other events (TRUNCATE, rows that lack values, the announcement that the
    group of no columns exists) is evaluated in the general way.
    """

    def __init__(
        self,
        stage: StagePlan,
        rows: RowsPart,
        evaluator: PartEvaluator,
        withheld: WithheldKeys | None = None,
        *,
        max_rows: int = MAX_ROWS_PER_CALL,
    ) -> None:
        """Prepares the evaluation of a stage's rows part; `max_rows` limits the size of a call."""
        super().__init__(stage, rows, evaluator, withheld)
        self._tags = self._touched.tags
        self._max_points = max_rows

    def __call__(
        self, events: Sequence[Event], contents: Contents, outcome: Outcome, lsn: int | None
    ) -> None:
        """See :meth:`CommitEvaluation.__call__`."""
        rows = None if self._is_global or lsn == OWN_LSN else self._rows(events, lsn)
        if rows is None or (self._withheld is not None and self._is_withheld(rows, contents)):
            super().__call__(events, contents, outcome, lsn)
            return
        attempt = outcome if self._withheld is None else outcome.attempt()
        try:
            for call in self._changed(rows, contents, attempt):
                self._route(*self._calls.results(call), attempt)
        except EvaluationError as error:
            if self._withheld is None or error.is_limit:
                raise
            super().__call__(events, contents, outcome, lsn)
        else:
            if attempt is not outcome:
                outcome.add(attempt)

    def _is_withheld(self, rows: _Rows, contents: Contents) -> bool:
        """Returns whether some of the keys are withheld."""
        assert self._withheld is not None  # noqa: S101 - asked only then
        keys = () if self._withheld.of_rows else {key for _, key in rows.keys.values()}
        return bool(contents.get_many(self._withheld.entry(key) for key in keys))

    def _rows(self, events: Sequence[Event], lsn: int | None) -> _Rows | None:
        """Returns the rows that the events change; None if some of the events are not regular.

        With an `lsn`, only the state after all events is wanted.

        Raises:
            InputError: A row that must exist is deleted twice.
        """
        rows = _Rows()
        transitions, tags, may_overlap = rows.transitions, self._tags, self._touched.may_overlap
        for commit_lsn, number, key, primary_key, row, lead in events:
            if number < 0 or not key or isinstance(row, tuple):
                return None
            at = commit_lsn if lsn is None else lsn
            name = part(key) + tags[number] + part(primary_key)
            known = transitions.get(name)
            if may_overlap[number] and rows.is_one_of_several(name, commit_lsn, row, lead):
                return None
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
            elif row is not None or number not in self._touched.of_stages:
                known[-1] = (at, row)
        return rows

    def _changed(self, rows: _Rows, contents: Contents, outcome: Outcome) -> Iterator[Call]:
        """Yields the changed rows, in calls of limited size.

        Raises:
            InputError: A row that must exist is deleted, but does not exist.
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

    This is the hot loop. It fills the columns of the call itself, because one function call per row would
    cost more.
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
