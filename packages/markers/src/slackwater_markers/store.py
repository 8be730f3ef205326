"""The marker store: what readers ask for many times a second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slackwater_markers.status import FrontierStatus, PipelineStatus
from slackwater_protocol import Marker, OpenTransaction, PublishedCut


@dataclass(frozen=True, slots=True)
class CutRetention:
    """How many cuts a marker store keeps; older ones are read from the cut log."""

    max_cuts: int = 50_000
    max_bytes: int = 64 * 1024 * 1024
    """Encoded size; the newest cut stays even when it alone is larger."""


class MarkerStore(Protocol):
    """Cuts and markers of sources, states of sources and pipelines.

    A cache without authority: it may lose everything at any moment and may lag behind the cut log. All
    methods block for at most the store's time-out and raise
    :class:`~slackwater_markers.errors.MarkerStoreUnavailableError`, and nothing else, when the store is away.
    Not thread-safe.
    """

    def publish(
        self, cut: PublishedCut, markers: Mapping[tuple[str, int], Marker], status: FrontierStatus
    ) -> bool:
        """Makes a cut, its markers (by topic and partition) and the frontier visible at once.

        Called by sidecars, after the cut log has acknowledged the cut. Idempotent, and safe with several
        sidecars: a cut that is not above the newest one of its timeline, or belongs to an older timeline,
        changes nothing and returns False.
        """
        ...

    def newest(self, source: str, timeline: int) -> PublishedCut | None:
        """The newest cut of a timeline; None when there is none."""
        ...

    def cuts_after(self, source: str, timeline: int, lsn: int, *, limit: int) -> list[PublishedCut]:
        """The oldest ``limit`` cuts above ``lsn``, ascending.

        Not guaranteed: that they connect to ``lsn`` (see ``Cut.previous_lsn``); older ones may be trimmed.
        """
        ...

    def markers(self, source: str) -> dict[tuple[str, int], Marker]:
        """Marker of each topic and partition, all of the same cut."""
        ...

    def set_status(self, source: str, status: FrontierStatus) -> None:
        """Replaces the state of the frontier; leaves the newest cut alone."""
        ...

    def status(self, source: str) -> FrontierStatus | None:
        """What a sidecar last said; None when none ever did."""
        ...

    def set_open(self, source: str, transactions: Sequence[OpenTransaction]) -> None:
        """Replaces the list of transactions the frontier has been waiting for, at once."""
        ...

    def open(self, source: str) -> list[OpenTransaction]:
        """The transactions the frontier waits for, longest wait first."""
        ...

    def trim(self, source: str, timeline: int, min_lsn: int) -> None:
        """Forgets cuts below ``min_lsn``."""
        ...

    def register_pipeline(self, pipeline: PipelineStatus) -> None:
        """Registers a pipeline or replaces what is known of it."""
        ...

    def pipeline(self, name: str) -> PipelineStatus | None:
        """What a pipeline last said; None when it never did."""
        ...

    def pipelines(self) -> list[PipelineStatus]:
        """Every registered pipeline, by name."""
        ...

    def close(self) -> None:
        """Frees connections. The store must not be used afterwards."""
        ...
