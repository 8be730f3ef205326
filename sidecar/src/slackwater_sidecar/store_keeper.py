"""Looks after the marker store: what is in it is a part of the cut log, and it is never waited for long."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from slackwater_markers import (
    CutLog,
    FrontierStatus,
    MarkerStore,
    MarkerStoreContentError,
    MarkerStoreUnavailableError,
    StoredPosition,
    cuts_of,
    markers_of,
    merged_markers,
)
from slackwater_protocol import (
    AheadMarkers,
    Clock,
    CommitPosition,
    Marker,
    OpenTransaction,
    PublishedCut,
)

logger = logging.getLogger(__name__)

MARKERS_INTERVAL = timedelta(milliseconds=50)
"""Least time between two publications of the markers of all partitions: there may be thousands."""
_REST_FACTOR = 4
"""A store that failed, or had to be put right, is left alone for so many times as long as that took."""
_FIRST_STEP = 8
"""So much of the log is read back at first, then twice as much each time: cuts may be large."""
_RESTORED_TRANSACTIONS = 100_000
"""No more cuts are put back once they have so many: cuts are written one by one, and nothing else is done
meanwhile."""


class StoreKeeper:
    """Publishes to a store, and repairs it: it may be away, emptied, set back or exchanged at any moment.

    No method raises because of the store. Methods that read the log raise ``CutLogUnavailableError``. Used by
    one thread.

    Args:
        source: The connector's ``topic.prefix``.
        log: The source's cut log.
        store: None: there is none, and nothing is done.
        restored_cuts: How many cuts are put back into a store that has lost them.
        clock: The time.
    """

    def __init__(
        self, source: str, log: CutLog, store: MarkerStore | None, restored_cuts: int, clock: Clock
    ) -> None:
        self._source = source
        self._log = log
        self._store = store
        self._restored_cuts = restored_cuts
        self._clock = clock
        self._confirmed: PublishedCut | None = None
        self._is_bound = False
        self._is_behind = True
        self._rests_until = float("-inf")
        self._ahead: tuple[int, Mapping[tuple[str, int], Marker]] = (0, {})
        self._ahead_read_to = 0
        self._shown: object = None
        self._shows_again_at = float("-inf")
        self.error: str | None = None
        """Why the store is not up to date; None when it is."""
        self.corrections = 0
        """How often the store held what the cut log does not."""

    def position(self) -> StoredPosition | None:
        """How far the store is, as far as the log confirms it; None when nothing is known."""
        held = None
        if self._store is not None and self.error is None:
            with self._watched():
                store = self._bound(self._store)
                held = store.position(self._source) if store else None
        if held is None or self._is_in_log(held):
            return held
        self._note_wrong(f"a cut at {held.position} which offset {held.log_offset} of the log is not")
        return None

    def has_markers(self, markers: Sequence[AheadMarkers], after: int) -> bool:
        """Whether the log has all of these markers, or higher ones: another sidecar may have written them.

        Args:
            markers: Ahead of the frontier.
            after: Records of the log at or below this offset do not matter any more.
        """
        begin = max(after + 1, self._ahead_read_to)
        for logged in self._log.records(begin - 1, with_cuts=False):
            self._ahead_read_to = logged.log_offset + 1
            if isinstance(logged.record, AheadMarkers):
                self.add_ahead(logged.record)
        timeline, held = self._ahead
        return all(
            each.timeline == timeline and key in held and held[key].safe_commit_lsn >= marker.safe_commit_lsn
            for each in markers
            for key, marker in each.markers.items()
        )

    def add_ahead(self, markers: AheadMarkers) -> None:
        """Takes markers that the log has; :meth:`show_markers` publishes them."""
        timeline, held = self._ahead
        if markers.timeline >= timeline:
            base = held if timeline == markers.timeline else {}
            self._ahead = markers.timeline, merged_markers(base, markers.markers)

    def publish(self, cuts: Sequence[PublishedCut], status: FrontierStatus, *, is_whole: bool) -> None:
        """Publishes cuts that the log has acknowledged.

        Args:
            cuts: Ascending.
            status: The state to publish with them.
            is_whole: Whether the store has everything before them; else older cuts go in first.
        """
        self._confirmed = cuts[-1]
        with self._using() as store:
            if store is None:
                return
            if not is_whole:
                self._restore(store, cuts[-1], status)
                return
            for cut in cuts:
                store.publish(cut, status)

    def show_markers(self, newest: PublishedCut | None) -> None:
        """Publishes the markers of all partitions when they have changed, not more often than it may."""
        if self._clock.monotonic() < self._shows_again_at or self._shown == (newest, self._ahead):
            return
        with self._using() as store:
            if store is not None:
                self._show_markers(store, newest)

    def report(
        self,
        newest: PublishedCut | None,
        status: FrontierStatus,
        open_transactions: Sequence[OpenTransaction],
    ) -> None:
        """Fills a store that is behind, removes what is wrong in it, and tells it the state."""
        if self._store is None or self._clock.monotonic() < self._rests_until:
            return
        with self._watched():
            store = self._bound(self._store)
            if store is None:
                return
            began_at = self._clock.monotonic()
            is_wrong = self._removes_what_is_wrong(store, status.timeline or 0)
            if newest is not None and (self._is_behind or is_behind(store.position(self._source), newest)):
                self._restore(store, newest, status)
                if is_behind(store.position(self._source), newest):
                    is_wrong = True
                    self._remove(store, newest.cut.timeline, "something that makes it refuse cuts")
                    self._restore(store, newest, status)
            self._show_markers(store, newest)
            store.set_status(self._source, status)
            store.set_open(self._source, open_transactions)
            self._is_behind, self.error = False, None
            if is_wrong:
                self._rest_after(began_at)

    def forget_log(self) -> None:
        """The log is another one now: what the store has of the one before goes with the next report."""
        self._is_bound = False

    def close(self) -> None:
        """Frees connections."""
        if self._store is not None:
            self._store.close()

    @contextmanager
    def _using(self) -> Iterator[MarkerStore | None]:
        """The store while nothing is known to be wrong with it."""
        with self._watched():
            yield None if self._is_behind else self._store

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """From an error on only :meth:`report` talks to the store; less often if it is slow to fail."""
        asked_at = self._clock.monotonic()
        try:
            yield
        except MarkerStoreContentError as error:
            self._note_wrong(error.reason)
        except MarkerStoreUnavailableError as error:
            if self.error is None:
                logger.warning("marker store is away: %s", error, extra={"source": self._source})
            self._rest_after(asked_at)
            self._is_behind, self.error = True, str(error)

    def _rest_after(self, began_at: float) -> None:
        now = self._clock.monotonic()
        self._rests_until = now + _REST_FACTOR * (now - began_at)

    def _bound(self, store: MarkerStore) -> MarkerStore | None:
        """The store, once it knows which log the cuts come from."""
        if not self._is_bound and (log_id := self._log.identity()) is not None:
            store.bind(log_id)
            self._is_bound = True
        return store if self._is_bound else None

    def _is_in_log(self, held: StoredPosition) -> bool:
        """The store is no authority: at the offset that it names the log must have that very cut."""
        cut = self._logged_cut(held.log_offset)
        return cut is not None and cut.cut.position == held.position

    def _logged_cut(self, log_offset: int) -> PublishedCut | None:
        """The cut at an offset of the log; the one that was asked for last is remembered."""
        if self._confirmed is None or self._confirmed.log_offset != log_offset:
            found = (
                cuts_of(self._log.records(log_offset - 1, limit=1)) if log_offset < self._log.end() else []
            )
            self._confirmed = found[0] if found and found[0].log_offset == log_offset else None
        return self._confirmed

    def _note_wrong(self, what: str) -> None:
        """The store is not used until :meth:`report` has put it right."""
        text = f"Redis held what the cut log does not, and is filled anew: {what}"
        if self.error is None:
            self.corrections += 1
            logger.warning("%s", text, extra={"source": self._source})
        self._is_behind, self.error = True, text

    def _removes_what_is_wrong(self, store: MarkerStore, timeline: int) -> bool:
        """A copy of another store; cuts that the log does not have; anything that is none of ours."""
        if store.adopt(self._source):
            self._note_wrong("content of another cut log")
            return True
        try:
            wrong = self._wrong_content(store)
        except MarkerStoreContentError as error:
            wrong = error.reason
        if wrong:
            self._remove(store, timeline, wrong)
        return bool(wrong)

    def _remove(self, store: MarkerStore, timeline: int, what: str) -> None:
        self._note_wrong(what)
        store.clear(self._source, timeline)

    def _wrong_content(self, store: MarkerStore) -> str:
        """What is wrong with frontier or newest cut of the store, which change together; empty: nothing."""
        held = store.position(self._source)
        if held is None:
            return ""
        tip = store.newest(self._source, held.position.timeline)
        if not self._is_in_log(held):
            return f"a frontier at {held.position} which offset {held.log_offset} of the log is not"
        if tip is None or tip.cut.position < held.position:
            return "a frontier, but not its cut"
        return "" if self._logged_cut(tip.log_offset) == tip else f"a cut at {tip.cut.position} of its own"

    def _restore(self, store: MarkerStore, newest: PublishedCut, status: FrontierStatus) -> None:
        """Puts the end of the log into the store; what it holds already it refuses, which is harmless."""
        timeline = newest.cut.timeline
        held = store.position(self._source)
        after = max(-1, newest.log_offset - self._restored_cuts)
        if held is not None and held.position.timeline == timeline:
            after = max(after, held.log_offset)
        cuts = self._newest_cuts(after, timeline)
        for cut in cuts:
            store.publish(cut, status)
        logger.info(
            "marker store filled with %d cuts up to %d",
            len(cuts),
            newest.cut.lsn,
            extra={"source": self._source},
        )

    def _show_markers(self, store: MarkerStore, newest: PublishedCut | None) -> None:
        timeline, ahead = self._ahead
        position = newest.cut.position if newest else CommitPosition(timeline, 0)
        markers = markers_of(newest.cut) if newest else {}
        if timeline == position.timeline:
            markers = merged_markers(markers, ahead)
        store.set_markers(self._source, position, markers)
        self._shown = newest, self._ahead
        self._shows_again_at = self._clock.monotonic() + MARKERS_INTERVAL.total_seconds()

    def _newest_cuts(self, after: int, timeline: int) -> list[PublishedCut]:
        found: list[PublishedCut] = []
        end, transactions, step = self._log.end(), 0, _FIRST_STEP
        while end > after + 1 and transactions < _RESTORED_TRANSACTIONS:
            begin = max(after + 1, end - step)
            logged = cuts_of(self._log.records(begin - 1, limit=end - begin))
            cuts = [c for c in logged if c.log_offset < end and c.cut.timeline == timeline]
            transactions += sum(len(c.cut.transactions) for c in cuts)
            found, end, step = cuts + found, begin, 2 * step
        return found


def is_behind(held: StoredPosition | None, newest: PublishedCut) -> bool:
    """Whether a store lacks a cut, of its own timeline or a newer one."""
    return held is None or held.position < newest.cut.position
