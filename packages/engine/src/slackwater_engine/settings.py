"""Settings of a pipeline's stages, besides its plan."""

from dataclasses import dataclass
from enum import StrEnum

from slackwater_sql.limits import DEFAULT_LIMITS, StatementLimits

_LEAST_BUCKETS = 8
_BUCKETS_PER_CORE = 2


class Scope(StrEnum):
    """The part of a pipeline that always shows the state of one commit LSN."""

    STRICT = "strict"
    """Everything that a pipeline publishes."""
    AGGREGATE = "aggregate"
    """Each document by itself: partitions of one number go together, other partitions at their own pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """The settings of every stage of a pipeline; they travel to the executors."""

    buckets: int = _LEAST_BUCKETS
    """Slices of the stage's keys; fixed for a pipeline's life, so at least the largest parallelism wanted."""
    every_commit: bool = False
    """Emit a document after each commit that changes it (`transactions`), else once a batch (`latest`)."""
    scope: Scope = Scope.STRICT
    """`aggregate`: partitions are at different LSNs, so all rows of a key must come from one of them."""
    limits: StatementLimits = DEFAULT_LIMITS
    """The limits of one statement of a view, per Python worker."""


def default_buckets(cores: int) -> int:
    """Returns the number of buckets for a machine: each costs time in every batch, and none is shared."""
    return max(_LEAST_BUCKETS, _BUCKETS_PER_CORE * cores)
