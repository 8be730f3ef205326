"""Evaluators run the SQL of a stage's rows part, in DuckDB unless a pipeline provides its own functions.

Importing this module costs little, because a process that only describes a pipeline needs neither DuckDB nor
Arrow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from slackwater.sql.limits import StatementLimits
    from slackwater.sql.plan import EnginePlan, StagePlan
    from slackwater.sql.stage_evaluation import PointColumns, RowVersions, StepColumns

ResultRows = Sequence[tuple[Any, ...]]
"""The rows of a statement's result; :mod:`slackwater.sql.plan` describes the columns."""


class PartEvaluator(Protocol):
    """Runs the statements of one rows part. Use it from one thread.

    :class:`slackwater.sql.stage_evaluation.RowsEvaluator` is the implementation for SQL.
    """

    def at_points(
        self,
        versions: "Sequence[RowVersions]",
        points: "PointColumns",
        steps: "StepColumns | None",
        keys: Sequence[bytes],
    ) -> ResultRows:
        """Returns the result of the part's statement at each of the points.

        Raises:
            EvaluationError: The statement fails on the rows of a key; the error names it.
        """

    def latest(self, rows: "Sequence[RowVersions]", keys: Sequence[bytes], lsns: Sequence[int]) -> ResultRows:
        """Returns the result over rows that are all live; `lsns` are those of the newest changes of the keys.

        Raises:
            EvaluationError: The statement fails on the rows of a key; the error names it.
        """


class Evaluators(Protocol):
    """Creates the evaluators of rows parts. It is sent to the executors: picklable, compared by value."""

    def rows(self, plan: "EnginePlan", stage: "StagePlan", limits: "StatementLimits") -> PartEvaluator:
        """Returns a new evaluator of the stage's rows part."""

    def __hash__(self) -> int:
        """Returns the same for equal values, because a process stores its evaluators by this hash."""


@dataclass(frozen=True, slots=True)
class SqlEvaluators:
    """Creates evaluators that run the statements of the plan in DuckDB."""

    def rows(self, plan: "EnginePlan", stage: "StagePlan", limits: "StatementLimits") -> PartEvaluator:
        """See :class:`Evaluators`.

        Raises:
            ValueError: The stage has no rows part.
        """
        from slackwater.sql.stage_evaluation import RowsEvaluator

        if stage.rows is None:
            msg = f"stage {stage.number} has no rows part"
            raise ValueError(msg)
        return RowsEvaluator(stage.rows, stage.key, name=stage_name(plan, stage), limits=limits)


def stage_name(plan: "EnginePlan", stage: "StagePlan") -> str:
    """Returns the names of the views that need a stage. They are used in errors."""
    return ", ".join(view.name for view in plan.views if stage.number in view.stages) or str(stage.number)
