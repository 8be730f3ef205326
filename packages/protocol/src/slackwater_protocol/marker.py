"""Markers: the per-partition view of the newest cut."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marker:
    """Up to where one partition may be processed."""

    safe_commit_lsn: int
    """Every record of a commit at or below this LSN is in the partition, below ``safe_offset``."""
    safe_offset: int
    """First offset that may belong to a later commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction the frontier waits for, as an operator sees it."""

    xid: int
    commit_lsn: int | None
    """None while the END record has not been read."""
    since_ms: int
    """When the sidecar first saw it, milliseconds since the epoch."""
    expected: dict[str, int]
    """Change events per table that END announced; empty before END."""
    received: dict[str, int]
    """Change events per table that were read."""
    hint: str = ""
    """Likely cause, where one is known."""
