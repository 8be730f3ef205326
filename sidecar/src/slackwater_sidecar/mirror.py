"""Mirrors part of the cut log in Redis, without ever waiting long for it."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from slackwater.cuts import (
    CutLog,
    FrontierStatus,
    MarkerStoreUnavailableError,
    RedisMarkerStore,
    StoredPosition,
    StoreFault,
    cuts_of,
    markers_of,
    merged_markers,
)
from slackwater.protocol import AheadMarkers, Clock, CommitPosition, OpenTransaction, PublishedCut

logger = logging.getLogger(__name__)

MARKERS_INTERVAL = timedelta(milliseconds=50)
"""Least time between two publications of the markers of all partitions: there may be thousands."""
_REST_FACTOR = 4
"""After a failure or repair, the store is left alone for this multiple of its duration."""
_LONGEST_REST_SECONDS = 1.5
"""The longest rest after a failure. Commands wait two and a half seconds for a report when Redis is back."""
_FIRST_STEP = 8
"""How many offsets of the log are read back at first, then twice as many each time: cuts may be large."""
_RESTORED_TRANSACTIONS = 100_000
"""How many transactions of cuts are put back at most: cuts are written one by one, and nothing else is done
meanwhile."""


class RedisMirror:
    """Copies the log into a store, and repairs it: it may be away, emptied, set back or replaced.

    No method raises because of the store. Methods that read the log raise ``TopicUnavailableError``. Used by
    one thread.

    Without a store, nothing is done. A store that has lost cuts gets the last ``restored_cuts`` back.
    """

    def __init__(
        self, source: str, log: CutLog, store: RedisMarkerStore | None, restored_cuts: int, clock: Clock
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
        self._shown: object = None
        self._shows_again_at = float("-inf")
        self.error: str | None = None
        """Why the store is not up to date; None when it is."""
        self.corrections = 0
        """How often the store held what the cut log does not."""

    def position(self) -> StoredPosition | None:
        """Returns how far the store is, as far as the log confirms it; None when nothing is known."""
        held = None
        if self._store is not None and self.error is None:
            with self._noting_errors():
                store = self._bound(self._store)
                held = store.position(self._source) if store else None
        if held is None or self._is_in_log(held):
            return held
        self._note_wrong(f"a cut at {held.position} that is not at offset {held.log_offset} of the log")
        return None

    def put(self, cuts: Sequence[PublishedCut], status: FrontierStatus, *, is_whole: bool) -> None:
        """Puts cuts into the store that the log has acknowledged.

        ``is_whole`` says that the store has everything before them; else older cuts go in first.
        """
        self._confirmed = cuts[-1]
        with self._healthy_store() as store:
            if store is None:
                return
            if not is_whole:
                self._restore(store, cuts[-1], status)
                return
            for cut in cuts:
                store.put_cut(cut, status)

    def show_markers(self, newest: PublishedCut | None, ahead: AheadMarkers | None) -> None:
        """Shows the markers of all partitions when they have changed, not more often than it may.

        ``ahead`` are the markers beyond the newest cut that the log has.
        """
        if self._clock.monotonic() < self._shows_again_at or self._shown == (newest, ahead):
            return
        with self._healthy_store() as store:
            if store is not None:
                self._show_markers(store, newest, ahead)

    def refresh(
        self,
        newest: PublishedCut | None,
        ahead: AheadMarkers | None,
        status: FrontierStatus,
        open_transactions: Sequence[OpenTransaction],
    ) -> None:
        """Fills a store that is behind, removes wrong content, and writes the state to it."""
        if self._store is None or self._clock.monotonic() < self._rests_until:
            return
        with self._noting_errors():
            store = self._bound(self._store)
            if store is None:
                return
            began_at = self._clock.monotonic()
            is_wrong = self._remove_wrong_content(store, status.timeline or 0)
            if newest is not None and (self._is_behind or is_behind(store.position(self._source), newest)):
                self._restore(store, newest, status)
                if is_behind(store.position(self._source), newest):
                    is_wrong = True
                    self._remove(store, newest.cut.timeline, "content that makes it refuse cuts")
                    self._restore(store, newest, status)
            self._show_markers(store, newest, ahead)
            store.set_status(self._source, status)
            store.set_open(self._source, self._all_open(store, open_transactions))
            self._is_behind, self.error = False, None
            if is_wrong:
                self._rest_after(began_at)

    def _all_open(self, store: RedisMarkerStore, own: Sequence[OpenTransaction]) -> Sequence[OpenTransaction]:
        """Adds what another sidecar, which has published newer cuts than this one, waits for."""
        held = store.position(self._source) if own else None
        lsn = 0 if held is None else held.position.lsn
        if all(_commits_after(lsn, each) for each in own):
            return own
        known = {each.xid for each in own}
        others = (each for each in store.open(self._source) if each.xid not in known)
        return [*own, *(each for each in others if _commits_after(lsn, each))]

    def forget_log(self) -> None:
        """Says that the log is another one: :meth:`refresh` removes what the store has of the one before."""
        self._is_bound = False

    def close(self) -> None:
        """Frees connections."""
        if self._store is not None:
            self._store.close()

    @contextmanager
    def _healthy_store(self) -> Iterator[RedisMarkerStore | None]:
        """Yields the store while nothing is known to be wrong with it."""
        with self._noting_errors():
            yield None if self._is_behind else self._store

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        """Notes an error: from then on only :meth:`refresh` uses the store, less often if that takes long."""
        asked_at = self._clock.monotonic()
        try:
            yield
        except MarkerStoreUnavailableError as error:
            if error.fault is StoreFault.CONTENT:
                self._note_wrong(error.reason)
                return
            if self.error is None:
                logger.warning("Redis is unavailable: %s", error, extra={"source": self._source})
            self._rest_after(asked_at)
            self._rests_until = min(self._rests_until, self._clock.monotonic() + _LONGEST_REST_SECONDS)
            self._is_behind, self.error = True, str(error)

    def _rest_after(self, began_at: float) -> None:
        now = self._clock.monotonic()
        self._rests_until = now + _REST_FACTOR * (now - began_at)

    def _bound(self, store: RedisMarkerStore) -> RedisMarkerStore | None:
        """Returns the store once it knows which log the cuts come from."""
        if not self._is_bound and (log_id := self._log.identity()) is not None:
            store.bind(log_id)
            self._is_bound = True
        return store if self._is_bound else None

    def _is_in_log(self, held: StoredPosition) -> bool:
        """Returns whether the log has that cut at the offset that the store names: the log decides."""
        cut = self._logged_cut(held.log_offset)
        return cut is not None and cut.cut.position == held.position

    def _logged_cut(self, log_offset: int) -> PublishedCut | None:
        """Returns the cut at an offset of the log; the one that was asked for last is remembered."""
        if self._confirmed is None or self._confirmed.log_offset != log_offset:
            found = (
                cuts_of(self._log.records(log_offset - 1, limit=1)) if log_offset < self._log.end() else []
            )
            self._confirmed = found[0] if found and found[0].log_offset == log_offset else None
        return self._confirmed

    def _note_wrong(self, what: str) -> None:
        """Stops the use of the store until :meth:`refresh` has repaired it."""
        text = f"Redis contained data that the cut log does not confirm, and is being refilled: {what}"
        if self.error is None:
            self.corrections += 1
            logger.warning("%s", text, extra={"source": self._source})
        self._is_behind, self.error = True, text

    def _remove_wrong_content(self, store: RedisMarkerStore, timeline: int) -> bool:
        """Removes a copy of another store, cuts that the log does not have, and all that is none of ours.

        Returns:
            Whether there was any.
        """
        if store.adopt(self._source):
            self._note_wrong("content of another cut log")
            return True
        try:
            wrong = self._wrong_content(store)
        except MarkerStoreUnavailableError as error:
            if error.fault is not StoreFault.CONTENT:
                raise
            wrong = error.reason
        if wrong:
            self._remove(store, timeline, wrong)
        return bool(wrong)

    def _remove(self, store: RedisMarkerStore, timeline: int, what: str) -> None:
        self._note_wrong(what)
        store.clear(self._source, timeline)

    def _wrong_content(self, store: RedisMarkerStore) -> str:
        """Says what is wrong with frontier or newest cut, which change together; empty: nothing."""
        held = store.position(self._source)
        if held is None:
            return ""
        tip = store.newest(self._source, held.position.timeline)
        if not self._is_in_log(held):
            return f"a frontier at {held.position} that is not at offset {held.log_offset} of the log"
        if tip is None or tip.cut.position < held.position:
            return "a frontier, but not its cut"
        return "" if self._logged_cut(tip.log_offset) == tip else f"a cut at {tip.cut.position} of its own"

    def _restore(self, store: RedisMarkerStore, newest: PublishedCut, status: FrontierStatus) -> None:
        """Puts the end of the log into the store; what it holds already it refuses, which is harmless."""
        timeline = newest.cut.timeline
        held = store.position(self._source)
        after = max(-1, newest.log_offset - self._restored_cuts)
        if held is not None and held.position.timeline == timeline:
            after = max(after, held.log_offset)
        cuts = self._newest_cuts(after, timeline)
        for cut in cuts:
            store.put_cut(cut, status)
        logger.info(
            "Redis filled with %d cuts up to %d",
            len(cuts),
            newest.cut.lsn,
            extra={"source": self._source},
        )

    def _show_markers(
        self, store: RedisMarkerStore, newest: PublishedCut | None, ahead: AheadMarkers | None
    ) -> None:
        position = newest.cut.position if newest else CommitPosition(ahead.timeline if ahead else 0, 0)
        markers = markers_of(newest.cut) if newest else {}
        if ahead is not None and ahead.timeline == position.timeline:
            markers = merged_markers(markers, ahead.markers)
        store.set_markers(self._source, position, markers)
        self._shown = newest, ahead
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
    """Returns whether a store lacks a cut, of its own timeline or a newer one."""
    return held is None or held.position < newest.cut.position


def _commits_after(lsn: int, transaction: OpenTransaction) -> bool:
    return transaction.commit_lsn is None or lsn < transaction.commit_lsn
