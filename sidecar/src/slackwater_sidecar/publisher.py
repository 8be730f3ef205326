"""Cuts to where readers find them: first the cut log, then Redis."""

import logging
from collections.abc import Mapping, Sequence

from slackwater_markers import (
    CutLog,
    CutLogUnavailableError,
    FrontierStatus,
    MarkerStore,
    MarkerStoreUnavailableError,
)
from slackwater_protocol import Cut, Marker, OpenTransaction, PublishedCut

logger = logging.getLogger(__name__)


def markers_of(cut: Cut) -> dict[tuple[str, int], Marker]:
    """The marker of every partition at a cut."""
    return {
        (topic, number): Marker(cut.lsn, offset)
        for topic, offsets in cut.end_offsets.items()
        for number, offset in enumerate(offsets)
    }


class Publisher:
    """Writes cuts to the cut log and, when they are acknowledged there, to the marker store.

    The cut log decides: what is not in it does not exist. A store that is away or has lost its content costs
    nothing but a detour: :meth:`report` fills it again.

    Args:
        source: The connector's ``topic.prefix``.
        log: The source's cut log.
        store: None: only the log is written.
        restored_cuts: How many cuts are put back into a store that has lost them.
    """

    def __init__(self, source: str, log: CutLog, store: MarkerStore | None, restored_cuts: int) -> None:
        self._source = source
        self._log = log
        self._store = store
        self._restored_cuts = restored_cuts
        self._unwritten: list[Cut] = []
        self._newest: PublishedCut | None = None
        self._is_store_behind = True
        self.store_error: str | None = None
        """Why the store is not up to date; None when it is."""
        self.log_error: str | None = None
        """Why the newest cuts are not in the log; None when they are."""

    @property
    def newest(self) -> PublishedCut | None:
        """The newest cut that the log has acknowledged."""
        return self._newest

    def go_on_from(self, newest: PublishedCut | None) -> None:
        """Says what is in the log already."""
        self._newest = newest

    def publish(self, cuts: Sequence[Cut], status: FrontierStatus) -> None:
        """Publishes cuts, ascending; those that could not be written are tried again by the next call."""
        self._unwritten += cuts
        if not self._unwritten:
            return
        try:
            published = self._log.append(self._unwritten)
        except CutLogUnavailableError as error:
            self.log_error = str(error)
            logger.warning("cut log is away: %s", error)
            return
        self._unwritten, self.log_error = [], None
        self._newest = published[-1]
        if self._store is not None and not self._is_store_behind:
            self._publish_to_store(self._store, published, status)

    def report(self, status: FrontierStatus, open_transactions: Sequence[OpenTransaction]) -> None:
        """Looks after the store and tells it the state. Call it now and then, also when there are no cuts.

        Fills a store that is behind the log, e.g. because it was away or emptied.
        """
        store, newest = self._store, self._newest
        if store is None:
            return
        try:
            if newest is not None and (self._is_store_behind or self._lacks(store, newest)):
                self._restore(store, newest, status)
            source = self._source
            store.set_status(source, status)
            store.set_open(source, open_transactions)
            self._is_store_behind, self.store_error = False, None
        except MarkerStoreUnavailableError as error:
            self._note_absence(error)
        except CutLogUnavailableError as error:
            self.log_error = str(error)

    def close(self) -> None:
        """Frees connections."""
        self._log.close()
        if self._store is not None:
            self._store.close()

    def _publish_to_store(
        self, store: MarkerStore, published: Sequence[PublishedCut], status: FrontierStatus
    ) -> None:
        newest = published[-1]
        try:
            if store.status(self._source) is None:  # emptied: older cuts must go in first
                self._restore(store, newest, status)
                return
            for cut in published[:-1]:
                store.publish(cut, _NO_MARKERS, status)
            store.publish(newest, markers_of(newest.cut), status)
        except MarkerStoreUnavailableError as error:
            self._note_absence(error)

    def _lacks(self, store: MarkerStore, newest: PublishedCut) -> bool:
        held = store.newest(self._source, newest.cut.timeline)
        return held is None or held.cut.lsn < newest.cut.lsn

    def _restore(self, store: MarkerStore, newest: PublishedCut, status: FrontierStatus) -> None:
        """Puts the end of the log into the store; what it holds already it refuses, which is harmless."""
        timeline = newest.cut.timeline
        held = store.newest(self._source, timeline)
        after = newest.log_offset - self._restored_cuts
        if held is not None:
            after = max(after, held.log_offset)
        cuts = [c for c in self._log.tail(max(-1, after)) if c.cut.timeline == timeline]
        for cut in cuts[:-1]:
            store.publish(cut, _NO_MARKERS, status)
        for cut in cuts[-1:]:
            store.publish(cut, markers_of(cut.cut), status)
        logger.info("marker store filled with %d cuts up to %d", len(cuts), newest.cut.lsn)

    def _note_absence(self, error: MarkerStoreUnavailableError) -> None:
        if self.store_error is None:
            logger.warning("marker store is away: %s", error)
        self._is_store_behind, self.store_error = True, str(error)


_NO_MARKERS: Mapping[tuple[str, int], Marker] = {}
