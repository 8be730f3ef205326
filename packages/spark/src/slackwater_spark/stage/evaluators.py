"""What evaluates the parts of stages: DuckDB, unless somebody else is given."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from slackwater_spark.stage.errors import UnsupportedScopeError

if TYPE_CHECKING:
    from slackwater_spark.stage.accumulate import AccumulateLogic
    from slackwater_spark.stage.calls import PartEvaluator
    from slackwater_sql.limits import StatementLimits
    from slackwater_sql.stages import EnginePlan, StagePlan


class Evaluators(Protocol):
    """Makes evaluators of rows parts; travels to the executors, so it pickles, and compares by value."""

    def rows(self, plan: "EnginePlan", stage: "StagePlan", limits: "StatementLimits") -> "PartEvaluator":
        """The evaluator of a stage's rows part; for one thread."""
        ...

    def __hash__(self) -> int:
        """Of its value."""
        ...


@dataclass(frozen=True, slots=True)
class SqlEvaluators:
    """Runs the statements of the plan."""

    def rows(self, plan: "EnginePlan", stage: "StagePlan", limits: "StatementLimits") -> "PartEvaluator":
        """See :class:`Evaluators`."""
        from slackwater_sql.stage_evaluation import RowsEvaluator

        if stage.rows is None:
            msg = f"stage {stage.number} has no rows part"
            raise ValueError(msg)
        return RowsEvaluator(stage.rows, stage.key, name=stage_name(plan, stage), limits=limits)


@dataclass(frozen=True, slots=True)
class StageEvaluators:
    """What evaluates a stage's parts; None for a part that it does not have."""

    rows: "PartEvaluator | None"
    accumulators: "AccumulateLogic | None"


def stage_evaluators(
    plan: "EnginePlan",
    stage: "StagePlan",
    limits: "StatementLimits",
    *,
    every_commit: bool,
    evaluators: Evaluators,
) -> "StageEvaluators":
    """The evaluators of a stage's parts."""
    from slackwater_spark.stage.accumulate import AccumulateLogic

    accumulate = stage.accumulate
    return StageEvaluators(
        None if stage.rows is None else evaluators.rows(plan, stage, limits),
        None
        if accumulate is None
        else AccumulateLogic(
            accumulate, name=stage_name(plan, stage), every_commit=every_commit, limits=limits
        ),
    )


def stage_name(plan: "EnginePlan", stage: "StagePlan") -> str:
    """The views that need a stage, for errors."""
    return ", ".join(view.name for view in plan.views if stage.number in view.stages) or str(stage.number)


def check_aggregate(plan: "EnginePlan") -> None:
    """Whether a pipeline can run in scope ``aggregate``.

    Raises:
        UnsupportedScopeError: it has rows that move between keys, whose groups are at different commits.
    """
    from slackwater_sql.stages import DocumentsOutput

    stage = plan.stages[0]
    if len(plan.stages) > 1:
        raise UnsupportedScopeError(f"has {len(plan.stages)} stages")
    if stage.rows is None or not isinstance(stage.rows.output, DocumentsOutput):
        raise UnsupportedScopeError("keeps aggregates without their rows")
    if not stage.key:
        raise UnsupportedScopeError("has one group without a key")
