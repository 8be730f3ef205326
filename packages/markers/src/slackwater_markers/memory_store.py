"""A marker store for tests and for pipelines without Redis."""

from collections.abc import Mapping, Sequence

from slackwater_markers.status import FrontierStatus, PipelineStatus
from slackwater_protocol import Marker, OpenTransaction, PublishedCut


class InMemoryMarkerStore:
    """A :class:`~slackwater_markers.store.MarkerStore` in this process; keeps every cut until trimmed."""

    def __init__(self) -> None:
        self._cuts: dict[tuple[str, int], list[PublishedCut]] = {}
        self._refuse_up_to: dict[tuple[str, int], int] = {}
        self._timelines: dict[str, int] = {}
        self._markers: dict[str, dict[tuple[str, int], Marker]] = {}
        self._status: dict[str, FrontierStatus] = {}
        self._open: dict[str, list[OpenTransaction]] = {}
        self._pipelines: dict[str, PipelineStatus] = {}

    def publish(
        self, cut: PublishedCut, markers: Mapping[tuple[str, int], Marker], status: FrontierStatus
    ) -> bool:
        """See the protocol."""
        source, timeline = cut.cut.source, cut.cut.timeline
        if timeline < self._timelines.get(source, timeline):
            return False
        if cut.cut.lsn <= self._refuse_up_to.get((source, timeline), 0):
            return False
        self._cuts.setdefault((source, timeline), []).append(cut)
        self._refuse_up_to[source, timeline] = cut.cut.lsn
        self._timelines[source] = timeline
        self._markers.setdefault(source, {}).update(markers)
        self._status[source] = status
        return True

    def newest(self, source: str, timeline: int) -> PublishedCut | None:
        """See the protocol."""
        cuts = self._cuts.get((source, timeline))
        return cuts[-1] if cuts else None

    def cuts_after(self, source: str, timeline: int, lsn: int, *, limit: int) -> list[PublishedCut]:
        """See the protocol."""
        return [c for c in self._cuts.get((source, timeline), ()) if c.cut.lsn > lsn][:limit]

    def markers(self, source: str) -> dict[tuple[str, int], Marker]:
        """See the protocol."""
        return dict(self._markers.get(source, {}))

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
