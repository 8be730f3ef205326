"""What an operator decided about a source; kept in its cut log, so that every sidecar obeys."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipDecision:
    """Let everything up to a commit LSN pass, complete or not."""

    source: str
    timeline: int
    to_lsn: int
    """Incomplete transactions with a commit LSN at or below this are passed and named in ``Cut.skipped``."""
    wall_ms: int
    """When it was decided, milliseconds since the epoch."""
    decided_by: str
    """Who: free text, e.g. user@host."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineDecision:
    """The source's LSNs started over: a new timeline begins."""

    source: str
    timeline: int
    """The new one; larger than every timeline before."""
    transaction_offset: int
    """Where it begins in the transaction topic; data topics are read on from the newest cut."""
    wall_ms: int
    """When it was decided, milliseconds since the epoch."""
    decided_by: str
    """Who: free text, e.g. user@host."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassDecision:
    """Read on past a record of the cut log that is damaged: what it said is lost."""

    source: str
    log_offset: int
    """Where it stands in the cut log."""
    wall_ms: int
    """When it was decided, milliseconds since the epoch."""
    decided_by: str
    """Who: free text, e.g. user@host."""
    reason: str = ""
