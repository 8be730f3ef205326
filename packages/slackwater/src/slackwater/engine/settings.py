"""Settings of the stages of a pipeline that are not part of its plan."""

from dataclasses import dataclass
from enum import StrEnum

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
