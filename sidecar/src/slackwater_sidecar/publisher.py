"""Cuts to where readers find them: first the cut log, then Redis."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from slackwater_markers import (
    CutLog,
    CutLogUnavailableError,
    FrontierStatus,
    MarkerStore,
    MarkerStoreUnavailableError,
    StoredPosition,
    merged_markers,
)
from slackwater_protocol import (
    AheadMarkers,
    Clock,
    CommitPosition,
    Cut,
    Marker,
    OpenTransaction,
    PublishedCut,
    SystemClock,
)

logger = logging.getLogger(__name__)

PATIENCE = timedelta(milliseconds=250)
"""How long a sidecar leaves a cut to the one that published last, before it appends the cut itself."""
_REST_FACTOR = 4
"""A store that failed is left alone for so many times as long as it took to fail."""


class Publisher:
    """Writes cuts to the cut log and, when they are acknowledged there, to the marker store.

    The cut log decides: what is not in it does not exist. A store that is away, or has lost or exchanged its
    content, costs nothing but a detour: :meth:`report` fills it again.

    Several sidecars of one source write one sequence of cuts. A cut goes to the store only after the log has
    acknowledged it, so what the store holds need not be appended again; and whoever published last goes on,
    while the others wait for :data:`PATIENCE`. Without a store all append: harmless repeats.

    Args:
        source: The connector's ``topic.prefix``.
        log: The source's cut log.
        store: None: only the log is written.
        restored_cuts: How many cuts are put back into a store that has lost them.
        clock: The time.
    """

    def __init__(
        self,
        source: str,
        log: CutLog,
        store: MarkerStore | None,
        restored_cuts: int,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._source = source
        self._log = log
        self._store = store
        self._restored_cuts = restored_cuts
        self._clock = clock or SystemClock()
        self._unwritten: list[Cut] = []
        self._unwritten_ahead: list[AheadMarkers] = []
        self._ahead: tuple[int, dict[tuple[str, int], Marker]] = (0, {})
        self._waits_since: float | None = None
        self._newest: PublishedCut | None = None
        self._log_end = 0
        self._is_bound = False
        self._is_store_behind = True
        self._store_rests_until = float("-inf")
        self.store_error: str | None = None
        """Why the store is not up to date; None when it is."""
        self.log_error: str | None = None
        """Why the newest cuts are not in the log; None when they are."""

    @property
    def newest(self) -> PublishedCut | None:
        """The newest cut of this sidecar that the log holds, itself or within a later one."""
        return self._newest

    @property
    def is_waiting(self) -> bool:
        """Whether cuts are left to another sidecar for a moment: call :meth:`publish` again soon."""
        return self._waits_since is not None

    def go_on_from(self, newest: PublishedCut | None) -> None:
        """Says what is in the log already. Forgets what was not written: it is found again."""
        self._newest = newest
        self._unwritten, self._unwritten_ahead, self._waits_since = [], [], None

    def publish(self, cuts: Sequence[Cut], status: FrontierStatus) -> None:
        """Publishes cuts, ascending; those that could not be written are tried again by the next call."""
        self._unwritten += cuts
        if not self._unwritten:
            return
        try:
            self._write(status)
            self._note_log()
        except CutLogUnavailableError as error:
            self._note_log_error(error)

    def publish_ahead(self, markers: AheadMarkers) -> None:
        """Publishes markers of partitions that are ahead of the frontier."""
        self._unwritten_ahead.append(markers)
        try:
            self._write_ahead()
            self._note_log()
        except CutLogUnavailableError as error:
            self._note_log_error(error)

    def report(self, status: FrontierStatus, open_transactions: Sequence[OpenTransaction]) -> None:
        """Looks after the store and tells it the state. Call it now and then, also when there are no cuts.

        Fills a store that is behind the log, e.g. because it was away or emptied.
        """
        self.publish([], status)
        store = self._store
        if store is None or self._clock.monotonic() < self._store_rests_until:
            return
        asked_at = self._clock.monotonic()
        try:
            if not self._bind(store):
                return
            self._remove_what_is_wrong(store)
            newest = self._newest
            if newest is not None and (self._is_store_behind or self._lacks(store.position(self._source))):
                self._restore(store, newest, status)
            store.set_status(self._source, status)
            store.set_open(self._source, open_transactions)
            self._is_store_behind, self.store_error = False, None
            self._note_log()
        except MarkerStoreUnavailableError as error:
            self._note_absence(error, asked_at)
        except CutLogUnavailableError as error:
            self._note_log_error(error)

    def close(self) -> None:
        """Frees connections."""
        self._log.close()
        if self._store is not None:
            self._store.close()

    # --- cuts

    def _write(self, status: FrontierStatus) -> None:
        store = self._usable_store()
        held = self._position_in(store)
        self._pass_over(held)
        if not self._unwritten or self._leaves_it_to_another(held, status):
            return
        published = self._log.append(self._unwritten)
        is_whole = held is not None and not self._lacks(held)
        self._unwritten, self._waits_since = [], None
        self._newest, self._log_end = published[-1], published[-1].log_offset + 1
        if (store := self._usable_store()) is not None:
            self._publish_to(store, published, status, is_whole=is_whole)

    def _position_in(self, store: MarkerStore | None) -> StoredPosition | None:
        """How far the store is, as far as that can be believed."""
        if store is None:
            return None
        asked_at = self._clock.monotonic()
        try:
            held = store.position(self._source)
        except MarkerStoreUnavailableError as error:
            self._note_absence(error, asked_at)
            return None
        return held if held is not None and self._is_in_log(held) else None

    def _pass_over(self, held: StoredPosition | None) -> None:
        """Drops what another sidecar has written."""
        if held is None or self._unwritten[0].position > held.position:
            return
        covered = [c for c in self._unwritten if c.position <= held.position]
        self._unwritten = self._unwritten[len(covered) :]
        self._waits_since = None
        if covered[-1].timeline == held.position.timeline:
            self._newest = PublishedCut(covered[-1], held.log_offset)

    def _is_in_log(self, held: StoredPosition) -> bool:
        """The store is no authority: what it names must at least lie below the end of the log."""
        if held.log_offset >= self._log_end:
            self._log_end = self._log.end()
        return held.log_offset < self._log_end

    def _leaves_it_to_another(self, held: StoredPosition | None, status: FrontierStatus) -> bool:
        if held is None or held.publisher in ("", status.sidecar):
            self._waits_since = None
            return False
        now = self._clock.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        return now - self._waits_since < PATIENCE.total_seconds()

    def _publish_to(
        self, store: MarkerStore, published: Sequence[PublishedCut], status: FrontierStatus, *, is_whole: bool
    ) -> None:
        asked_at = self._clock.monotonic()
        try:
            if is_whole:
                for cut in published:
                    store.publish(cut, status)
            else:  # emptied or set back: older cuts must go in first
                self._restore(store, published[-1], status)
        except MarkerStoreUnavailableError as error:
            self._note_absence(error, asked_at)

    # --- markers ahead

    def _write_ahead(self) -> None:
        store = self._usable_store()
        pending = [m for m in self._unwritten_ahead if self._is_above_newest(m)]
        if pending and not self._are_held(store, pending):
            self._log.append_records(pending)
        self._unwritten_ahead = []
        if not pending:
            return
        for each in pending:
            timeline, held = self._ahead
            self._ahead = (
                each.timeline,
                merged_markers(held if timeline == each.timeline else {}, each.markers),
            )
        if (store := self._usable_store()) is not None:
            asked_at = self._clock.monotonic()
            try:
                store.set_markers_ahead(self._source, *self._ahead)
            except MarkerStoreUnavailableError as error:
                self._note_absence(error, asked_at)

    def _is_above_newest(self, markers: AheadMarkers) -> bool:
        position = CommitPosition(markers.timeline, markers.lsn)
        return self._newest is None or position > self._newest.cut.position

    def _are_held(self, store: MarkerStore | None, pending: Sequence[AheadMarkers]) -> bool:
        """Whether another sidecar has written them."""
        if store is None:
            return False
        asked_at = self._clock.monotonic()
        try:
            held = store.markers(self._source)
        except MarkerStoreUnavailableError as error:
            self._note_absence(error, asked_at)
            return False
        return all(
            key in held and held[key].safe_commit_lsn >= marker.safe_commit_lsn
            for each in pending
            for key, marker in each.markers.items()
        )

    # --- the store

    def _usable_store(self) -> MarkerStore | None:
        return self._store if self._is_bound and not self._is_store_behind else None

    def _bind(self, store: MarkerStore) -> bool:
        """Whether the store knows which log the cuts come from."""
        if not self._is_bound and (log_id := self._log.identity()) is not None:
            store.bind(log_id)
            self._is_bound = True
        return self._is_bound

    def _remove_what_is_wrong(self, store: MarkerStore) -> None:
        """A copy of another store, or cuts that the log never had, or no longer has."""
        held = None if store.adopt(self._source) else store.position(self._source)
        if held is not None and not self._is_in_log(held):
            store.clear(self._source)
            logger.warning("marker store held cuts that are not in the cut log: removed")

    def _lacks(self, held: StoredPosition | None) -> bool:
        """Whether the store is behind what this sidecar has seen in it."""
        return self._newest is not None and (held is None or held.position < self._newest.cut.position)

    def _restore(self, store: MarkerStore, newest: PublishedCut, status: FrontierStatus) -> None:
        """Puts the end of the log into the store; what it holds already it refuses, which is harmless."""
        timeline = newest.cut.timeline
        held = store.position(self._source)
        after = newest.log_offset - self._restored_cuts
        if held is not None and held.position.timeline == timeline:
            after = max(after, held.log_offset)
        cuts = [c for c in self._log.tail(max(-1, after)) if c.cut.timeline == timeline]
        for cut in cuts:
            store.publish(cut, status)
        store.set_markers_ahead(self._source, *self._ahead)
        logger.info("marker store filled with %d cuts up to %d", len(cuts), newest.cut.lsn)

    def _note_absence(self, error: MarkerStoreUnavailableError, asked_at: float) -> None:
        """From now on only :meth:`report` talks to the store, and not all the time if it is slow to fail."""
        if self.store_error is None:
            logger.warning("marker store is away: %s", error)
        now = self._clock.monotonic()
        self._store_rests_until = now + _REST_FACTOR * (now - asked_at)
        self._is_store_behind, self.store_error = True, str(error)

    def _note_log(self) -> None:
        if not self._unwritten or self.is_waiting:
            self.log_error = None

    def _note_log_error(self, error: CutLogUnavailableError) -> None:
        if self.log_error is None:
            logger.warning("cut log is away: %s", error)
        self.log_error = str(error)
