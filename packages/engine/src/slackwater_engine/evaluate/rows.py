"""What a batch does to the rows part of a stage: changes of a bucket's contents, and results.

Pure: no Spark, disk or clock. The same events give the same results in any batching when every commit is
evaluated, and the same final results in any case.
"""

from collections.abc import Iterator, Sequence

from slackwater_engine.evaluate.calls import KeyVersions, PartEvaluator, PointCalls
from slackwater_engine.evaluate.reads import RowReader
from slackwater_engine.evaluate.results import route_of
from slackwater_engine.evaluate.row_changes import OPEN_LSN, RowVersion, versions_of
from slackwater_engine.evaluate.touched import TouchedKey, TouchedKeys
from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.outcome import Outcome
from slackwater_engine.payloads import Event
from slackwater_engine.state.entry import DOCUMENT_TAG
from slackwater_sql.plan import PartialsOutput, RowsPart, StagePlan


class RowsLogic:
    """Differences of a rows part's results from commit to commit, or over a batch; for one thread."""

    def __init__(self, stage: StagePlan, rows: RowsPart, evaluator: PartEvaluator) -> None:
        """The logic of a stage's rows part."""
        self._touched = TouchedKeys(stage, rows)
        self._reader = RowReader(rows.reads, has_accumulators=stage.accumulate is not None)
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
            contents: Of the bucket.
            outcome: Takes what changes, and what is to be handed on.
            lsn: None: results at every commit are wanted; else only those after all events, as of this LSN,
                or `OWN_LSN`.

        Raises:
            EngineInputError: an event needs a row that the contents do not have.
            EvaluationError: the part's SQL fails on the rows of a key.
        """
        touched = self._touched.of(events, contents, lsn)
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
                for number, row in self._reader.unchanged(contents, of_key.group, changed, whole=is_fresh)
            ]
            width = len(of_key.group)
            lsns: set[int] = set()
            for name, transitions in changed.items():
                old = of_key.stored.get(name)
                versions += versions_of(name[width] - 1, old, transitions)
                lsns.update(each[0] for each in transitions)
                outcome.change(name, old, transitions[-1][1])
            if is_fresh and of_key.touch_lsn is not None:
                lsns.add(of_key.touch_lsn if lsn is None else lsn)
            yield KeyVersions(of_key.key, versions, sorted(lsns), is_fresh)

    def _becomes_known(self, of_key: TouchedKey, contents: IndexTransaction, outcome: Outcome) -> bool:
        """Whether the group of no columns had no result until now."""
        name = of_key.group + DOCUMENT_TAG
        if contents.get(name) is not None:
            return False
        outcome.change(name, None, b"")
        return True
