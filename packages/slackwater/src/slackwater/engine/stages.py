"""Evaluates the events in the buckets of a stage, and of the stages whose rows it keeps.

The module is pure: the same events and contents give the same outcome.
"""

from collections.abc import Collection, Sequence

from slackwater.engine.accumulate.groups import AccumulateEvaluation
from slackwater.engine.evaluate.evaluators import Evaluators, PartEvaluator, stage_name
from slackwater.engine.evaluate.every_commit import CommitEvaluation, LoneRowEvaluation, has_lone_rows
from slackwater.engine.evaluate.latest import LatestEvaluation
from slackwater.engine.evaluate.results import route_of
from slackwater.engine.evaluate.touched_keys import OWN_LSN
from slackwater.engine.index import Contents
from slackwater.engine.payloads import EMPTY_KEY, TOUCH_INPUT, Event, Outcome
from slackwater.engine.settings import Scope, StageSettings
from slackwater.sql.plan import EnginePlan, Reads, RowsPart, StagePlan


class GroupElsewhereError(Exception):
    """A group may be in another bucket than its key indicates, so buckets must be evaluated one by one."""


class StagesEvaluation:
    """Evaluates a stage together with the stages whose rows it keeps. Use it from one thread."""

    def __init__(
        self, plan: EnginePlan, stage: StagePlan, settings: StageSettings, evaluators: Evaluators
    ) -> None:
        """Prepares the evaluation of the stages.

        Args:
            plan: The pipeline's plan.
            stage: A stage of the plan that keeps its own rows.
            settings: How the stages run. In scope `aggregate`, each document has the LSN of its newest
                change.
            evaluators: Create the evaluators of rows parts.
        """
        self._settings = settings
        self._stages = [
            _StageEvaluation(plan, each, settings, evaluators, sharer)
            for sharer, each in enumerate(plan.kept_with(stage.number))
        ]

    @property
    def may_be_together(self) -> bool:
        """Whether the key of every entry determines its bucket, so that buckets can be evaluated as one."""
        return all(stage.may_be_together for stage in self._stages)

    def __call__(
        self, events: Sequence[Event], contents: Contents, keys: Collection[bytes] | None = None
    ) -> Outcome:
        """Returns the outcome of events that are sorted by commit LSN; reads `contents` and changes nothing.

        Args:
            events: The events of one bucket, or of several if they may be evaluated together.
            contents: The contents of the same buckets.
            keys: The stage keys of the events of several buckets; None for a single bucket.

        Raises:
            InputError: An event needs a row that the contents do not have.
            StateError: More is subtracted from a group than was ever added.
            EvaluationError: The SQL fails on the rows of a key.
            GroupElsewhereError: A group has none of the keys, so its bucket is not known.
        """
        outcome = Outcome(self._settings.buckets)
        for stage in self._stages:
            with outcome.changed_once():
                stage(events, contents, outcome, keys)
        return outcome


class _StageEvaluation:
    """Evaluates one stage. Use it from one thread."""

    def __init__(
        self, plan: EnginePlan, stage: StagePlan, settings: StageSettings, evaluators: Evaluators, sharer: int
    ) -> None:
        self._settings = settings
        self.may_be_together = (
            stage.rows is None or stage.accumulate is None or stage.accumulate.has_stage_key
        )
        self._rows: CommitEvaluation | LatestEvaluation | LoneRowEvaluation | None = None
        if stage.rows is not None:
            evaluator = evaluators.rows(plan, stage, settings.limits)
            self._rows = _rows_evaluation(
                stage, stage.rows, evaluator, sharer, every_commit=settings.every_commit
            )
        self._accumulators: AccumulateEvaluation | None = None
        if stage.accumulate is not None:
            self._route = route_of(stage.accumulate.output, stage.number)
            self._accumulators = AccumulateEvaluation(
                stage.accumulate,
                name=stage_name(plan, stage),
                every_commit=settings.every_commit,
                limits=settings.limits,
                sharer=sharer,
            )

    def __call__(
        self, events: Sequence[Event], contents: Contents, outcome: Outcome, keys: Collection[bytes] | None
    ) -> None:
        if events:
            self._change_rows(events, contents, outcome)
        if keys is not None and any(group not in keys for _, _, group, _ in outcome.partials):
            raise GroupElsewhereError
        self._change_groups(events, contents, outcome)

    def _change_rows(self, events: Sequence[Event], contents: Contents, outcome: Outcome) -> None:
        if self._rows is None:
            for at, number, key, _, rest, _ in events:
                outcome.partials.append((at, number, key, rest if isinstance(rest, bytes) else b""))
        elif self._settings.every_commit:
            self._rows(events, contents, outcome, None)
        else:
            is_aligned = self._settings.scope is Scope.STRICT
            self._rows(events, contents, outcome, events[-1][0] if is_aligned else OWN_LSN)

    def _change_groups(self, events: Sequence[Event], contents: Contents, outcome: Outcome) -> None:
        """Adds the partials of this bucket to its groups, and emits the differences."""
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
    stage: StagePlan, rows: RowsPart, evaluator: PartEvaluator, sharer: int, *, every_commit: bool
) -> CommitEvaluation | LatestEvaluation | LoneRowEvaluation:
    """Chooses how a rows part is evaluated."""
    if not every_commit and _is_read_whole(rows):
        return LatestEvaluation(stage, rows, evaluator, sharer)
    return (LoneRowEvaluation if has_lone_rows(rows) else CommitEvaluation)(stage, rows, evaluator)


def _is_read_whole(rows: RowsPart) -> bool:
    """Returns whether touched keys are read completely, so that the state before need not be evaluated."""
    if rows.latest_statement is None:
        return False
    if all(mode is Reads.GROUP for mode in rows.reads):
        return True
    return all(set(each.table.primary_key) <= set(each.key) for each in rows.inputs)
