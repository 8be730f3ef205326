"""Looks after the marker store: what is in it is a part of the cut log, and it is never waited for long."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from slackwater_markers import (
    CutLog,
    FrontierStatus,
    MarkerStore,
    MarkerStoreUnavailableError,
    StoredPosition,
    cuts_of,
    merged_markers,
)
from slackwater_protocol import (
    AheadMarkers,
    Clock,
    Marker,
    OpenTransaction,
    PublishedCut,
)

logger = logging.getLogger(__name__)

_REST_FACTOR = 4
"""A store that failed is left alone for so many times as long as it took to fail."""
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
        self._log_end = 0
        self._is_bound = False
        self._is_behind = True
        self._rests_until = float("-inf")
        self._ahead: tuple[int, Mapping[tuple[str, int], Marker]] = (0, {})
        self.error: str | None = None
        """Why the store is not up to date; None when it is."""

    def position(self) -> StoredPosition | None:
        """How far the store is, as far as that can be believed; None when nothing is known."""
        held = None
        if self._store is not None and self.error is None:
            with self._watched():
                store = self._bound(self._store)
                held = store.position(self._source) if store else None
        return held if held is not None and self._is_in_log(held) else None

    def has_markers(self, markers: Sequence[AheadMarkers]) -> bool:
        """Whether the store has all of these markers, or higher ones."""
        held: Mapping[tuple[str, int], Marker] = {}
        with self._using() as store:
            held = store.markers(self._source) if store else {}
        return all(
            key in held and held[key].safe_commit_lsn >= marker.safe_commit_lsn
            for each in markers
            for key, marker in each.markers.items()
        )

    def publish(self, cuts: Sequence[PublishedCut], status: FrontierStatus, *, is_whole: bool) -> None:
        """Publishes cuts that the log has acknowledged.

        Args:
            cuts: Ascending.
            status: The state to publish with them.
            is_whole: Whether the store has everything before them; else older cuts go in first.
        """
        with self._using() as store:
            if store is None:
                return
            if not is_whole:
                self._restore(store, cuts[-1], status)
                return
            for cut in cuts:
                store.publish(cut, status)

    def set_ahead(self, markers: Sequence[AheadMarkers]) -> None:
        """Publishes markers that the log has acknowledged."""
        for each in markers:
            timeline, held = self._ahead
            base = held if timeline == each.timeline else {}
            self._ahead = each.timeline, merged_markers(base, each.markers)
        with self._using() as store:
            if store is not None:
                store.set_markers_ahead(self._source, *self._ahead)

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
            self._remove_what_is_wrong(store)
            if newest is not None and (self._is_behind or is_behind(store.position(self._source), newest)):
                self._restore(store, newest, status)
            store.set_status(self._source, status)
            store.set_open(self._source, open_transactions)
            self._is_behind, self.error = False, None

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
        except MarkerStoreUnavailableError as error:
            if self.error is None:
                logger.warning("marker store is away: %s", error, extra={"source": self._source})
            now = self._clock.monotonic()
            self._rests_until = now + _REST_FACTOR * (now - asked_at)
            self._is_behind, self.error = True, str(error)

    def _bound(self, store: MarkerStore) -> MarkerStore | None:
        """The store, once it knows which log the cuts come from."""
        if not self._is_bound and (log_id := self._log.identity()) is not None:
            store.bind(log_id)
            self._is_bound = True
        return store if self._is_bound else None

    def _is_in_log(self, held: StoredPosition) -> bool:
        """The store is no authority: what it names must at least lie below the end of the log."""
        if held.log_offset >= self._log_end:
            self._log_end = self._log.end()
        return held.log_offset < self._log_end

    def _remove_what_is_wrong(self, store: MarkerStore) -> None:
        """A copy of another store, or cuts that the log never had, or no longer has."""
        held = None if store.adopt(self._source) else store.position(self._source)
        if held is not None and not self._is_in_log(held):
            store.clear(self._source)
            logger.warning("marker store held what the cut log does not", extra={"source": self._source})

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
        store.set_markers_ahead(self._source, *self._ahead)
        logger.info(
            "marker store filled with %d cuts up to %d",
            len(cuts),
            newest.cut.lsn,
            extra={"source": self._source},
        )

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
