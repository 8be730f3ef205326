"""What evaluates the parts of stages: DuckDB, unless somebody else is given."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from slackwater_engine.errors import EngineConfigError

if TYPE_CHECKING:
    from slackwater_engine.evaluate.calls import PartEvaluator
    from slackwater_sql.limits import StatementLimits
    from slackwater_sql.plan import EnginePlan, StagePlan


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


def stage_name(plan: "EnginePlan", stage: "StagePlan") -> str:
    """The views that need a stage, for errors."""
    return ", ".join(view.name for view in plan.views if stage.number in view.stages) or str(stage.number)


def check_aggregate(plan: "EnginePlan") -> None:
    """Whether a pipeline can run in scope ``aggregate``.

    Raises:
        EngineConfigError: it has rows that move between keys, whose groups are at different commits.
    """
    from slackwater_sql.plan import DocumentsOutput

    stage = plan.stages[0]
    if len(plan.stages) > 1:
        raise _unsupported(f"has {len(plan.stages)} stages")
    if stage.rows is None or not isinstance(stage.rows.output, DocumentsOutput):
        raise _unsupported("keeps aggregates without their rows")
    if not stage.key:
        raise _unsupported("has one group without a key")


def _unsupported(problem: str) -> EngineConfigError:
    return EngineConfigError(
        f"scope 'aggregate': the pipeline {problem}; its partitions are at different commits, so only views "
        "that one key joins and groups are possible. Use scope 'strict'"
    )
