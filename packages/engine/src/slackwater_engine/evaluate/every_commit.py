"""Evaluates keys before a batch and after each of its commits, and hands on the differences.

If only the results after the batch are wanted, the whole batch counts as one commit. What follows from a
commit does not depend on the batch it comes in: at every commit if all are evaluated, at the end in any case.
"""

from collections.abc import Collection, Iterator, Sequence

from slackwater_engine.evaluate.calls import KeyVersions, PointCalls, RowVersion, row_versions
from slackwater_engine.evaluate.evaluators import PartEvaluator
from slackwater_engine.evaluate.results import route_of
from slackwater_engine.evaluate.touched_keys import TouchedKey, TouchedKeys
from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.outcome import Outcome
from slackwater_engine.payloads import Event
from slackwater_engine.state.entry import DOCUMENT_TAG, input_tag
from slackwater_sql.plan import PartialsOutput, Reads, RowsPart, StagePlan
from slackwater_sql.stage_evaluation import OPEN_LSN


class CommitEvaluation:
    """Evaluates a stage's rows part at commits; for one thread."""

    def __init__(self, stage: StagePlan, rows: RowsPart, evaluator: PartEvaluator) -> None:
        self._touched = TouchedKeys(stage, rows)
        self._neighbours = _NeighbourRows(rows.reads, has_accumulators=stage.accumulate is not None)
        has_steps = isinstance(rows.output, PartialsOutput)
        self._is_global = not stage.key and not has_steps
        self._route = route_of(rows.output, stage.number)
        self._calls = PointCalls(evaluator, self._touched.codecs, has_steps=has_steps)

    def __call__(
        self, events: Sequence[Event], contents: IndexTransaction, outcome: Outcome, lsn: int | None
    ) -> None:
        """Adds to the outcome what these events change, and the results. Changes no contents.

        Args:
            events: By commit LSN.
            contents: The bucket's entries before the batch.
            outcome: Takes what changes, and what is to be handed on.
            lsn: None if results at every commit are wanted; else only those after all events, as of this LSN,
                or `OWN_LSN`.

        Raises:
            EngineInputError: An event needs a row that the contents do not have.
            EvaluationError: The part's SQL fails on the rows of a key.
        """
        touched = self._touched.find(events, contents, lsn)
        for points, rows in self._calls.evaluate(self._versions(touched, contents, outcome, lsn)):
            self._route(points, rows, outcome)

    def _versions(
        self,
        touched: Iterator[TouchedKey],
        contents: IndexTransaction,
        outcome: Outcome,
        lsn: int | None,
    ) -> Iterator[KeyVersions]:
        for of_key in touched:
            changed = of_key.changed
            is_fresh = self._is_global and self._becomes_known(of_key, contents, outcome)
            if not changed and not is_fresh:
                continue
            versions: list[RowVersion] = [
                (number, row, 0, OPEN_LSN)
                for number, row in self._neighbours.read(contents, of_key.group, changed, whole=is_fresh)
            ]
            width = len(of_key.group)
            lsns: set[int] = set()
            for name, transitions in changed.items():
                old = of_key.stored.get(name)
                versions += row_versions(name[width] - 1, old, transitions)
                lsns.update(each[0] for each in transitions)
                outcome.change(name, old, transitions[-1][1])
            if is_fresh and of_key.touch_lsn is not None:
                lsns.add(of_key.touch_lsn if lsn is None else lsn)
            yield KeyVersions(of_key.key, versions, sorted(lsns), is_fresh)

    def _becomes_known(self, of_key: TouchedKey, contents: IndexTransaction, outcome: Outcome) -> bool:
        """Notes that the group of no columns has a result; returns whether it had none until now."""
        name = of_key.group + DOCUMENT_TAG
        if contents.get(name) is not None:
            return False
        outcome.change(name, None, b"")
        return True


class _NeighbourRows:
    """Reads the unchanged rows of a key that changed ones meet: only those that can change a result."""

    def __init__(self, reads: Sequence[Reads], *, has_accumulators: bool) -> None:
        """Prepares reading.

        Args:
            reads: The mode of each input.
            has_accumulators: Keys have other entries beside their rows, perhaps very many.
        """
        self._reads = tuple(reads)
        self._tags = [input_tag(number) for number in range(len(reads))]
        self._has_accumulators = has_accumulators
        self._all_inputs = frozenset(range(len(reads)))
        self._meeting = frozenset(n for n, mode in enumerate(reads) if mode is not Reads.ALONE)

    def read(
        self, contents: IndexTransaction, group: bytes, changed: Collection[bytes], *, whole: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """Yields input and contents of the rows to be read beside the changed ones.

        Args:
            contents: The bucket's entries.
            group: The beginning of the names of the key's entries.
            changed: Names of the rows that differ at some point.
            whole: All rows are wanted, whatever the modes.
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
        self, contents: IndexTransaction, group: bytes, changed: Collection[bytes], inputs: frozenset[int]
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
