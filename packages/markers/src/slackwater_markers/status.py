"""What sidecars and pipelines say about themselves, for people and for the control plane."""

from dataclasses import dataclass
from enum import StrEnum


class FrontierState(StrEnum):
    """Whether a source's frontier can move."""

    RUNNING = "running"
    WAITING = "waiting"
    """For something that has to appear first: a topic, the end of an initial snapshot."""
    STALLED = "stalled"
    """A transaction cannot complete; the ``open`` hash names it."""
    REGRESSED = "regressed"
    """LSNs went back without a new timeline: an operator has to decide."""
    BAD_INPUT = "bad_input"
    MISCONFIGURED = "misconfigured"
    STOPPED = "stopped"
    FAILED = "failed"
    """The sidecar gave up on this source; the detail says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionNotice:
    """Where a source's LSNs went back, for the operator who has to decide."""

    transaction_offset: int
    """The first END of the lower LSNs, in the transaction topic: a new timeline begins there."""
    xid: int
    commit_lsn: int
    """Of that END."""
    newest_lsn: int
    """The commit LSN that was the newest until then."""
    has_snapshot: bool
    """Whether a snapshot at an LSN that is not higher has begun in the data topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierStatus:
    """State of a source's frontier as its sidecar last saw it."""

    state: FrontierState
    detail: str = ""
    """What a person needs to know beyond the state; empty when all is well."""
    wall_ms: int
    """When the sidecar said so, milliseconds since the epoch."""
    sidecar: str
    """Id of the sidecar process."""
    timeline: int | None = None
    """The timeline that the sidecar follows; None when it did not say."""
    regression: RegressionNotice | None = None
    """Why the state is ``regressed``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """A pipeline and how far it has come."""

    name: str
    source: str
    output: str
    """The output topic."""
    query_id: str
    """Spark's query id, kept in the checkpoint."""
    batch_id: int = -1
    """The newest visible batch; -1 before the first."""
    timeline: int = 1
    commit_lsn: int = 0
    """The view shows everything up to and including this commit; 0 before the first batch."""
    wall_ms: int
    """When this was reported, milliseconds since the epoch."""
