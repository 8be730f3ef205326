"""Settings of the stages of a pipeline that are not part of its plan, and what evaluates their SQL.

DuckDB and Arrow are imported where they are used: a process that only describes a pipeline needs neither.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from slackwater.sql.limits import DEFAULT_LIMITS, StatementLimits

_LEAST_BUCKETS = 8
_BUCKETS_PER_CORE = 2


class FormProof(StrEnum):
    """What proves that the values of records have the form in which they are read."""

    CONFIGURATION = "configuration"
    """The connector's configuration, which is known."""
    WRITER = "writer"
    """The writer: records that neither a pipeline nor a service wrote are refused."""
    VALUES = "values"
    """Each value: one that may be another in another form is refused."""


class Scope(StrEnum):
    """The part of a pipeline that always shows the state of a single commit LSN."""

    STRICT = "strict"
    """Everything that a pipeline publishes."""
    AGGREGATE = "aggregate"
    """Each document by itself: partitions with the same number advance together, others independently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """The settings of every stage of a pipeline, which are sent to the executors."""

    buckets: int = _LEAST_BUCKETS
    """The number of buckets of a stage. It is fixed for the life of a pipeline, so it must be at least the
    largest parallelism that will be needed."""
    every_commit: bool = False
    """Whether a document is emitted after each commit that changes it (`transactions`), or once per batch
    (`latest`)."""
    scope: Scope = Scope.STRICT
    """In scope `aggregate`, partitions are at different LSNs, so all rows of a key must come from one
    partition."""
    limits: StatementLimits = DEFAULT_LIMITS
    """The limits of one statement of a view, for each Python worker."""
    proof: FormProof = FormProof.CONFIGURATION
    """What proves the form of values."""


def default_buckets(cores: int) -> int:
    """Returns the number of buckets for a machine; each touched bucket takes time in a batch."""
    return max(_LEAST_BUCKETS, _BUCKETS_PER_CORE * cores)


if TYPE_CHECKING:
    from slackwater.sql.plan import EnginePlan, StagePlan
    from slackwater.sql.stage_evaluation import Failures, ResultPoints, ResultRows, RowVersions


class PartEvaluator(Protocol):
    """Runs the statements of one rows part. Use it from one thread.

    :class:`slackwater.sql.stage_evaluation.RowsEvaluator` is the implementation for SQL. Methods raise
    EvaluationError if the statement fails on the rows of a key; the error names it. If they are given
    `failures`, they may leave out the points or keys that fail, and add them to it instead.
    """

    def at_points(
        self, versions: "Sequence[RowVersions]", points: "ResultPoints", keys: Sequence[bytes]
    ) -> "ResultRows":
        """Returns the result of the part's statement at each of the points."""

    def latest(
        self,
        rows: "Sequence[RowVersions]",
        keys: Sequence[bytes],
        lsn_of: Callable[[int], int],
        failures: "Failures | None" = None,
    ) -> "ResultRows":
        """Returns the result over rows that are all live; `lsn_of` gives the LSN of a key's newest change."""


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
        """See :class:`Evaluators`."""
        from slackwater.sql.stage_evaluation import RowsEvaluator

        assert stage.rows is not None  # noqa: S101 - only stages with one are evaluated
        return RowsEvaluator(stage.rows, stage.key, name=stage_name(plan, stage), limits=limits)


def stage_name(plan: "EnginePlan", stage: "StagePlan") -> str:
    """Returns the names of the views that need a stage. They are used in errors."""
    return ", ".join(view.name for view in plan.views if stage.number in view.stages) or str(stage.number)
