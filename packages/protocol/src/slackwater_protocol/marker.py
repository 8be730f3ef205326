"""Markers: up to where each partition may be processed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater_protocol.cut import CommittedTransaction


@dataclass(frozen=True, slots=True)
class Marker:
    """Up to where one partition may be processed."""

    safe_commit_lsn: int
    """Every record of a commit at or below this LSN is in the partition, below ``safe_offset``."""
    safe_offset: int
    """First offset that may belong to a later commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadMarkers:
    """Markers of partitions that are further than the frontier, while a sibling holds it back.

    Order within a partition is commit order, so all before the newest transaction seen in a partition is
    complete there. Sound for one partition at a time: for scope ``aggregate``, never for a whole view.
    """

    source: str
    timeline: int
    previous_lsn: int
    """The transaction table covers commits in ``(previous_lsn, lsn]``; not below the frontier at the time."""
    lsn: int
    """The largest ``safe_commit_lsn`` of the markers."""
    transactions: tuple[CommittedTransaction, ...]
    """Transactions with at least one change event, in commit order."""
    markers: Mapping[tuple[str, int], Marker]
    """By topic and partition; only those that are ahead of the frontier."""
    repeated: frozenset[int] = field(default=frozenset())
    """Commit LSNs of which rows may stand in Kafka more than once."""


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
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By ``<topic>/<partition>`` of its tables: the offset of its first row there (-1: none was read), and
    the next offset to be read."""
