"""The evaluation of a stage as a bucket runs it: the rows part, then the accumulators."""

from collections.abc import Sequence

from slackwater_engine.accumulate.groups import AccumulateEvaluation
from slackwater_engine.evaluate.evaluators import Evaluators, PartEvaluator, stage_name
from slackwater_engine.evaluate.every_commit import CommitEvaluation
from slackwater_engine.evaluate.latest import LatestEvaluation
from slackwater_engine.evaluate.lone_rows import LoneRowEvaluation, has_lone_rows
from slackwater_engine.evaluate.results import route_of
from slackwater_engine.evaluate.touched_keys import OWN_LSN
from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.outcome import Outcome
from slackwater_engine.payloads import EMPTY_KEY, TOUCH_INPUT, Event
from slackwater_engine.settings import Scope, StageSettings
from slackwater_sql.plan import EnginePlan, Reads, RowsPart, StagePlan


class StageEvaluation:
    """Evaluates what events do to the contents of a stage's buckets; for one thread.

    Pure: the same events and contents give the same outcome.
    """

    def __init__(
        self, plan: EnginePlan, stage: StagePlan, settings: StageSettings, evaluators: Evaluators
    ) -> None:
        """Prepares the evaluation of a stage.

        Args:
            plan: The pipeline's.
            stage: One of its stages.
            settings: How the stages run. In scope `aggregate` each document has the LSN of its newest change.
            evaluators: Make the evaluator of the stage's rows part.
        """
        self._settings = settings
        self._rows: CommitEvaluation | LatestEvaluation | LoneRowEvaluation | None = None
        if stage.rows is not None:
            evaluator = evaluators.rows(plan, stage, settings.limits)
            self._rows = _rows_evaluation(stage, stage.rows, evaluator, every_commit=settings.every_commit)
        self._accumulators: AccumulateEvaluation | None = None
        if stage.accumulate is not None:
            self._route = route_of(stage.accumulate.output, stage.number)
            self._accumulators = AccumulateEvaluation(
                stage.accumulate,
                name=stage_name(plan, stage),
                every_commit=settings.every_commit,
                limits=settings.limits,
            )

    @property
    def keeps_digests(self) -> bool:
        """The state says which documents were published last, so that only `latest` can go on with it."""
        return isinstance(self._rows, LatestEvaluation)

    def __call__(self, events: Sequence[Event], contents: IndexTransaction) -> Outcome:
        """Returns the outcome of events that are sorted by commit LSN; reads `contents`, changes nothing.

        Raises:
            EngineInputError: An event needs a row that the contents do not have.
            EngineStateError: More is taken from a group than was ever added.
            EvaluationError: SQL fails on the rows of a key.
        """
        outcome = Outcome(self._settings.buckets)
        if events:
            self._change_rows(events, contents, outcome)
        self._change_groups(events, contents, outcome)
        return outcome

    def _change_rows(self, events: Sequence[Event], contents: IndexTransaction, outcome: Outcome) -> None:
        if self._rows is None:
            for at, number, key, _, rest, _ in events:
                outcome.partials.append((at, number, key, rest if isinstance(rest, bytes) else b""))
        elif self._settings.every_commit:
            self._rows(events, contents, outcome, None)
        else:
            is_aligned = self._settings.scope is Scope.STRICT
            self._rows(events, contents, outcome, events[-1][0] if is_aligned else OWN_LSN)

    def _change_groups(self, events: Sequence[Event], contents: IndexTransaction, outcome: Outcome) -> None:
        """Adds the partials of this bucket to its groups and hands on the differences."""
        if self._accumulators is None:
            return
        if self._rows is not None:
            touches = [event for event in events if event[1] == TOUCH_INPUT]
            outcome.partials += [(event[0], TOUCH_INPUT, EMPTY_KEY, b"") for event in touches]
        if not outcome.partials:
            return
        for points, rows in self._accumulators(outcome.partials, contents, outcome):
            self._route(points, rows, outcome)


def _rows_evaluation(
    stage: StagePlan, rows: RowsPart, evaluator: PartEvaluator, *, every_commit: bool
) -> CommitEvaluation | LatestEvaluation | LoneRowEvaluation:
    """Chooses the way of a rows part."""
    if not every_commit and _is_read_whole(rows):
        return LatestEvaluation(stage, rows, evaluator)
    return (LoneRowEvaluation if has_lone_rows(rows) else CommitEvaluation)(stage, rows, evaluator)


def _is_read_whole(rows: RowsPart) -> bool:
    """Returns whether touched keys are read whole anyway, so that the state before need not be evaluated."""
    if rows.latest_statement is None:
        return False
    if all(mode is Reads.GROUP for mode in rows.reads):
        return True
    return all(set(each.table.primary_key) <= set(each.key) for each in rows.inputs)
