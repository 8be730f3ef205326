"""What a stage must know besides its plan."""

from dataclasses import dataclass

from slackwater_engine.scope import Scope
from slackwater_sql.limits import DEFAULT_LIMITS, StatementLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """How a stage runs; travels to the executors."""

    buckets: int = 64
    """Slices of the stage's keys; fixed for a pipeline's life, so at least the largest parallelism wanted."""
    every_commit: bool = False
    """Emit a document after each commit that changes it (`transactions`), else once a batch (`latest`)."""
    scope: Scope = Scope.STRICT
    """`aggregate`: partitions are at different LSNs, so all rows of a key must come from one of them."""
    index_root: str | None = None
    """Folder on the executors' local disks under which indexes are kept. None: Spark's local folders, which
    Spark removes when the application ends, so that a restart begins with rebuilding the indexes."""
    limits: StatementLimits = DEFAULT_LIMITS
    """Of one statement of a view, per Python worker."""
