"""The marker store: cuts and markers for frequent readers, and states of sidecars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slackwater.protocol import CommitPosition, Cut, FrontierStatus, Marker, OpenTransaction, PublishedCut


@dataclass(frozen=True, slots=True)
class CutRetention:
    """The limit of the cuts that a marker store keeps; older ones are read from the cut log."""

    max_cuts: int = 50_000
    max_bytes: int = 64 * 1024 * 1024
    """Encoded size; the newest cut is kept even if it alone is larger."""


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """The position of a store's newest cut, without the cut itself."""

    position: CommitPosition
    """Position of the newest cut."""
    log_offset: int
    """The offset at which the cut log keeps it."""
    publisher: str
    """Id of the sidecar that published it."""


class MarkerStore(Protocol):
    """Cuts, markers and states of sources.

    A cache without authority: it may lose everything at any moment, may be older than the cut log, may be
    replaced by a copy of itself or of another store, and may contain data of other writers. What it contains
    is true only if the cut log confirms it. All methods block for at most the store's time-out and raise only
    :class:`~slackwater.cuts.errors.MarkerStoreUnavailableError`, with the fault if the content
    cannot be read. Not thread-safe.
    """

    def bind(self, log_id: str) -> None:
        """Names the cut log that the cuts of this process must come from.

        From then on everything published from another log counts as absent, and publishing from one is
        refused until :meth:`adopt`. Does not connect to the server.
        """
        ...

    def adopt(self, source: str) -> bool:
        """Removes everything published from another log than the bound one; returns whether there was any.

        Called by sidecars only. Without :meth:`bind` it does nothing.
        """
        ...

    def clear(self, source: str, timeline: int) -> None:
        """Removes everything about a source, at least up to a timeline.

        Called by sidecars only, for content that cannot be right.
        """
        ...

    def put_cut(self, cut: PublishedCut, status: FrontierStatus) -> bool:
        """Makes a cut and the frontier visible at once.

        Called by sidecars, after the cut log has acknowledged the cut. Idempotent, and safe with several
        sidecars: a cut that is not above the newest one of its timeline, or belongs to an older timeline,
        changes nothing and returns False.
        """
        ...

    def position(self, source: str) -> StoredPosition | None:
        """Returns the position of the newest cut; None if there is none. One short round trip."""
        ...

    def set_markers(
        self, source: str, position: CommitPosition, markers: Mapping[tuple[str, int], Marker]
    ) -> bool:
        """Replaces the markers of all partitions, at once.

        Called by sidecars, after the cut log has acknowledged what they follow from: a cut, and markers that
        are ahead of it. Returns False and does nothing if the store has a newer cut than the one at
        ``position``.
        """
        ...

    def newest(self, source: str, timeline: int) -> PublishedCut | None:
        """Returns the newest cut of a timeline; None if there is none."""
        ...

    def cuts_after(self, source: str, timeline: int, lsn: int, *, limit: int) -> list[PublishedCut]:
        """Returns the oldest ``limit`` cuts above ``lsn``, ascending.

        Not guaranteed: that they connect to ``lsn`` (see ``Cut.previous_lsn``); older ones may be trimmed.
        """
        ...

    def markers(self, source: str) -> dict[tuple[str, int], Marker]:
        """Returns the marker of each topic and partition, as :meth:`set_markers` left them."""
        ...

    def set_status(self, source: str, status: FrontierStatus) -> None:
        """Replaces the state of the frontier; leaves the newest cut alone."""
        ...

    def status(self, source: str) -> FrontierStatus | None:
        """Returns the state that a sidecar reported last; None if there was none."""
        ...

    def set_open(self, source: str, transactions: Sequence[OpenTransaction]) -> None:
        """Replaces the list of transactions that the frontier waits for, at once."""
        ...

    def open(self, source: str) -> list[OpenTransaction]:
        """Returns the transactions the frontier waits for, longest wait first."""
        ...

    def close(self) -> None:
        """Frees connections. The store must not be used afterwards."""
        ...


def markers_of(cut: Cut) -> dict[tuple[str, int], Marker]:
    """Returns the marker of every partition at a cut."""
    return {
        (topic, number): Marker(cut.lsn, offset)
        for topic, offsets in cut.end_offsets.items()
        for number, offset in enumerate(offsets)
    }


def merged_markers(
    at_cut: Mapping[tuple[str, int], Marker], ahead: Mapping[tuple[str, int], Marker]
) -> dict[tuple[str, int], Marker]:
    """Returns for each partition the further one of its two markers, of one timeline."""
    result = dict(at_cut)
    for key, marker in ahead.items():
        held = result.get(key)
        if held is None or held.safe_commit_lsn < marker.safe_commit_lsn:
            result[key] = marker
    return result
