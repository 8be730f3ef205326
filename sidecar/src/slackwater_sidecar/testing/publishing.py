"""Logs and stores that fail, and cuts to publish to them."""

from collections.abc import Sequence

from slackwater_markers import (
    CutLogUnavailableError,
    FrontierState,
    FrontierStatus,
    InMemoryCutLog,
    InMemoryMarkerStore,
    MarkerStoreContentError,
    MarkerStoreUnavailableError,
    StoredPosition,
)
from slackwater_protocol import (
    AheadMarkers,
    CommittedTransaction,
    Cut,
    LogRecord,
    Marker,
    PublishedCut,
    SystemClock,
)
from slackwater_sidecar.mirror import MARKERS_INTERVAL
from slackwater_sidecar.publisher import Publisher

SOURCE = "inv"
STATUS = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1, sidecar="me")
OTHER = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1, sidecar="other")


class StillClock(SystemClock):
    """Keeps a monotonic time that moves only when told to."""

    seconds = 1000.0

    def monotonic(self) -> float:
        """Returns the time that was set, in seconds."""
        return self.seconds


class FailingStore(InMemoryMarkerStore):
    """Can be away, and slow to say so, or hold what somebody else wrote until it is cleared."""

    is_away = False
    answers_after = 0.0
    clock: StillClock | None = None
    questions = 0
    clears_after = 0.0
    refuses = False
    is_damaged = False
    forged_position: tuple[StoredPosition | None, ...] = ()
    forged_newest: tuple[PublishedCut | None, ...] = ()

    def position(self, source: str) -> StoredPosition | None:
        """Returns the forged one, if there is one."""
        self._answer()
        return self.forged_position[0] if self.forged_position else super().position(source)

    def newest(self, source: str, timeline: int) -> PublishedCut | None:
        """Returns the forged one, if there is one."""
        self._answer()
        return self.forged_newest[0] if self.forged_newest else super().newest(source, timeline)

    def put_cut(self, cut: PublishedCut, status: FrontierStatus) -> bool:
        """Returns False while it refuses."""
        return not self.refuses and super().put_cut(cut, status)

    def clear(self, source: str, timeline: int) -> None:
        """Ends all damage; takes its time."""
        self.refuses = self.is_damaged = False
        self.forged_position = self.forged_newest = ()
        if self.clock is not None:
            self.clock.seconds += self.clears_after
        super().clear(source, timeline)

    def set_status(self, source: str, status: FrontierStatus) -> None:
        """Fails while it is away."""
        self._answer()
        super().set_status(source, status)

    def _answer(self) -> None:
        self.questions += 1
        if self.clock is not None:
            self.clock.seconds += self.answers_after
        if self.is_away:
            raise MarkerStoreUnavailableError("ask", "h:1", "refused")
        if self.is_damaged:
            raise MarkerStoreContentError("ask", "h:1", "WRONGTYPE")


class FailingLog(InMemoryCutLog):
    """Can be away."""

    is_away = False

    def append_records(self, records: Sequence[LogRecord]) -> list[int]:
        """Fails while it is away."""
        if self.is_away:
            raise CutLogUnavailableError("append", "inv.slackwater.cuts", "refused")
        return super().append_records(records)


def cut(lsn: int, source: str = SOURCE) -> Cut:
    """Returns a cut of one transaction; the cut before it is at the LSN before."""
    return Cut(
        source=source,
        timeline=1,
        lsn=lsn,
        previous_lsn=lsn - 1,
        commit_ts_ms=5,
        event_count=lsn,
        transactions=(CommittedTransaction(700 + lsn, lsn, 5),),
        end_offsets={f"{source}.s.a": (lsn, 2 * lsn)},
        transaction_offset=lsn,
    )


def ahead(lsn: int, partition: int = 0) -> AheadMarkers:
    """Returns a marker of one partition."""
    return AheadMarkers(
        source=SOURCE,
        timeline=1,
        previous_lsn=lsn - 1,
        lsn=lsn,
        transactions=(),
        markers={("inv.s.a", partition): Marker(lsn, lsn)},
    )


def held(store: InMemoryMarkerStore) -> list[int]:
    """Returns the LSNs of the cuts of the first timeline in a store."""
    return [c.cut.lsn for c in store.cuts_after(SOURCE, 1, 0, limit=1000)]


def logged(log: InMemoryCutLog) -> list[int]:
    """Returns the LSNs of the cuts in a log."""
    return [c.cut.lsn for c in log.tail(-1)]


def shown(
    publisher: Publisher, store: InMemoryMarkerStore, clock: StillClock
) -> dict[tuple[str, int], Marker]:
    """Returns the markers in the store when they are due again."""
    clock.seconds += MARKERS_INTERVAL.total_seconds()
    publisher.show_markers()
    return store.markers(SOURCE)
