"""A marker store for tests and for pipelines without Redis."""

from collections.abc import Mapping, Sequence
from typing import Any

from slackwater_markers.status import FrontierStatus, PipelineStatus
from slackwater_markers.store import StoredPosition
from slackwater_protocol import CommitPosition, Marker, OpenTransaction, PublishedCut


class InMemoryMarkerStore:
    """A :class:`~slackwater_markers.store.MarkerStore` in this process; keeps every cut until trimmed."""

    def __init__(self) -> None:
        self._cuts: dict[tuple[str, int], list[PublishedCut]] = {}
        self._refuse_up_to: dict[tuple[str, int], int] = {}
        self._timelines: dict[str, int] = {}
        self._positions: dict[str, StoredPosition] = {}
        self._markers: dict[str, dict[tuple[str, int], Marker]] = {}
        self._status: dict[str, FrontierStatus] = {}
        self._open: dict[str, list[OpenTransaction]] = {}
        self._pipelines: dict[str, PipelineStatus] = {}
        self._log_ids: dict[str, str] = {}
        self.bound = ""
        """The id of the cut log that was bound; empty: none was."""

    def bind(self, log_id: str) -> None:
        """See the protocol."""
        self.bound = log_id

    def adopt(self, source: str) -> bool:
        """See the protocol."""
        if not self.bound:
            return False
        is_foreign = self._is_foreign(source)
        if is_foreign:
            self.clear(source, 0)
        self._claim(source)
        return is_foreign

    def clear(self, source: str, timeline: int) -> None:
        """See the protocol."""
        for key in [key for key in self._cuts if key[0] == source]:
            del self._cuts[key], self._refuse_up_to[key]
        of_sources: tuple[dict[str, Any], ...] = (
            self._timelines,
            self._positions,
            self._markers,
            self._status,
            self._open,
            self._log_ids,
        )
        for of_source in of_sources:
            of_source.pop(source, None)

    def publish(self, cut: PublishedCut, status: FrontierStatus) -> bool:
        """See the protocol."""
        source, timeline = cut.cut.source, cut.cut.timeline
        if self._is_foreign(source) or timeline < self._timelines.get(source, timeline):
            return False
        if cut.cut.lsn <= self._refuse_up_to.get((source, timeline), 0):
            return False
        self._cuts.setdefault((source, timeline), []).append(cut)
        self._refuse_up_to[source, timeline] = cut.cut.lsn
        self._timelines[source] = timeline
        self._positions[source] = StoredPosition(cut.cut.position, cut.log_offset, status.sidecar)
        self._status[source] = status
        self._claim(source)
        return True

    def position(self, source: str) -> StoredPosition | None:
        """See the protocol."""
        return None if self._is_foreign(source) else self._positions.get(source)

    def set_markers(
        self, source: str, position: CommitPosition, markers: Mapping[tuple[str, int], Marker]
    ) -> bool:
        """See the protocol."""
        held = self._positions.get(source)
        if self._is_foreign(source) or (held is not None and held.position > position):
            return False
        self._markers[source] = dict(markers)
        self._claim(source)
        return True

    def newest(self, source: str, timeline: int) -> PublishedCut | None:
        """See the protocol."""
        cuts = self._cuts_of(source, timeline)
        return cuts[-1] if cuts else None

    def cuts_after(self, source: str, timeline: int, lsn: int, *, limit: int) -> list[PublishedCut]:
        """See the protocol."""
        return [c for c in self._cuts_of(source, timeline) if c.cut.lsn > lsn][:limit]

    def markers(self, source: str) -> dict[tuple[str, int], Marker]:
        """See the protocol."""
        return {} if self._is_foreign(source) else dict(self._markers.get(source, {}))

    def set_status(self, source: str, status: FrontierStatus) -> None:
        """See the protocol."""
        self._status[source] = status

    def status(self, source: str) -> FrontierStatus | None:
        """See the protocol."""
        return self._status.get(source)

    def set_open(self, source: str, transactions: Sequence[OpenTransaction]) -> None:
        """See the protocol."""
        self._open[source] = list(transactions)

    def open(self, source: str) -> list[OpenTransaction]:
        """See the protocol."""
        return sorted(self._open.get(source, ()), key=lambda t: (t.since_ms, t.xid))

    def trim(self, source: str, timeline: int, min_lsn: int) -> None:
        """See the protocol."""
        cuts = self._cuts.get((source, timeline), [])
        cuts[:] = [c for c in cuts if c.cut.lsn >= min_lsn]

    def register_pipeline(self, pipeline: PipelineStatus) -> None:
        """See the protocol."""
        self._pipelines[pipeline.name] = pipeline

    def pipeline(self, name: str) -> PipelineStatus | None:
        """See the protocol."""
        return self._pipelines.get(name)

    def pipelines(self) -> list[PipelineStatus]:
        """See the protocol."""
        return [self._pipelines[name] for name in sorted(self._pipelines)]

    def close(self) -> None:
        """See the protocol."""

    def _cuts_of(self, source: str, timeline: int) -> list[PublishedCut]:
        return [] if self._is_foreign(source) else self._cuts.get((source, timeline), [])

    def _is_foreign(self, source: str) -> bool:
        return bool(self.bound) and self._log_ids.get(source, self.bound) != self.bound

    def _claim(self, source: str) -> None:
        if self.bound:
            self._log_ids[source] = self.bound
