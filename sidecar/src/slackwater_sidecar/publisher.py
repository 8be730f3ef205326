"""Cuts to where readers find them: first the cut log, then Redis."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NoReturn

from slackwater_markers import (
    CutLog,
    CutLogReplacedError,
    CutLogUnavailableError,
    FrontierStatus,
    MarkerStore,
    StoredPosition,
)
from slackwater_protocol import (
    AheadMarkers,
    Clock,
    CommitPosition,
    Cut,
    OpenTransaction,
    PublishedCut,
    SystemClock,
)
from slackwater_protocol.keys import cut_log_topic
from slackwater_sidecar.store_keeper import StoreKeeper, is_behind

logger = logging.getLogger(__name__)

PATIENCE = timedelta(milliseconds=500)
"""How long a sidecar leaves a cut to the one that published last, before it appends the cut itself."""


@dataclass(frozen=True, slots=True)
class Untold:
    """What cuts of this sidecar say of rows that stand in Kafka, when another one had written them already.

    The other one's cuts may end before those rows, so the next cut must tell of them: saying so for nothing
    only costs readers a second look.
    """

    repeated: frozenset[int] = frozenset()
    late_snapshots: frozenset[int] = frozenset()
    has_incremental_rows: bool = False

    def and_of(self, cut: Cut) -> "Untold":
        """With what another cut says."""
        return Untold(
            self.repeated | cut.repeated,
            self.late_snapshots.union(cut.late_snapshots),
            self.has_incremental_rows or cut.has_incremental_rows,
        )

    def told_with(self, cut: Cut) -> Cut:
        """A cut that tells of these, too."""
        if self == Untold():
            return cut
        told = self.and_of(cut)
        return replace(
            cut,
            repeated=told.repeated,
            late_snapshots=tuple(sorted(told.late_snapshots)),
            has_incremental_rows=told.has_incremental_rows,
        )


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
        self._clock = clock or SystemClock()
        self._keeper = StoreKeeper(source, log, store, restored_cuts, self._clock)
        self._unwritten: list[Cut] = []
        self._unwritten_ahead: list[AheadMarkers] = []
        self._untold = Untold()
        self._waits_since: float | None = None
        self._has_turn = False
        self._newest: PublishedCut | None = None
        self._log_id: str | None = None
        self._is_replaced = False
        self.log_error: str | None = None
        """Why the newest cuts are not in the log; None when they are."""

    @property
    def newest(self) -> PublishedCut | None:
        """The newest cut of this sidecar that the log holds, itself or within a later one."""
        return self._newest

    @property
    def store_error(self) -> str | None:
        """Why the store is not up to date; None when it is."""
        return self._keeper.error

    @property
    def corrections(self) -> int:
        """How often the store held what the cut log does not, and was filled anew."""
        return self._keeper.corrections

    @property
    def is_waiting(self) -> bool:
        """Whether cuts are left to another sidecar for a moment: call :meth:`publish` again soon."""
        return self._waits_since is not None

    def go_on_from(self, newest: PublishedCut | None) -> None:
        """Says what is in the log already. Forgets what was not written: it is found again."""
        self._newest = newest
        self._unwritten, self._unwritten_ahead, self._waits_since = [], [], None
        self._untold = Untold()

    def publish(self, cuts: Sequence[Cut], status: FrontierStatus) -> None:
        """Publishes cuts, ascending; those that could not be written are tried again by the next call.

        Raises:
            slackwater_markers.CutLogReplacedError: the log has lost what was written to it.
        """
        self._unwritten += cuts
        if self._unwritten:
            with self._noting_log():
                self._write(status)

    def publish_ahead(self, markers: AheadMarkers) -> None:
        """Publishes markers of partitions that are ahead of the frontier."""
        self._unwritten_ahead.append(markers)
        with self._noting_log():
            self._write_ahead()

    def show_markers(self) -> None:
        """Tells the store the markers of all partitions, if it is time. Call it often."""
        self._keeper.show_markers(self._newest)

    def report(self, status: FrontierStatus, open_transactions: Sequence[OpenTransaction]) -> None:
        """Looks after the store and tells it the state. Call it now and then, also when there are no cuts.

        Fills a store that is behind the log, e.g. because it was away or emptied.

        Raises:
            slackwater_markers.CutLogReplacedError: cuts would go on in the middle of another log. Raised
                once: from then on only the state is told.
        """
        if not self._is_replaced:
            with self._noting_log():
                self._check_log()
            self.publish([], status)
        with self._noting_log():
            self._keeper.report(None if self._is_replaced else self._newest, status, open_transactions)

    def close(self) -> None:
        """Frees connections."""
        self._log.close()
        self._keeper.close()

    def _write(self, status: FrontierStatus) -> None:
        held = self._keeper.position()
        self._pass_over(held)
        if not self._unwritten or self._leaves_it_to_another(held, status):
            return
        if not self._has_turn:
            self._pass_over(self._end_of_log())
            self._has_turn = True
            if not self._unwritten:
                return
        self._unwritten[0] = self._untold.told_with(self._unwritten[0])
        published = self._log.append(self._unwritten)
        if self._newest is not None and published[0].log_offset <= self._newest.log_offset:
            before, now = self._newest.log_offset, published[0].log_offset
            self._refuse(f"a cut was written to offset {now}, the one before it to {before}")
        self._untold = Untold()
        is_whole = held is not None and (self._newest is None or not is_behind(held, self._newest))
        self._unwritten, self._waits_since = [], None
        self._newest = published[-1]
        self._keeper.publish(published, status, is_whole=is_whole)

    def _check_log(self) -> None:
        """Whether the log is still the one that was written to; while it is away each question would wait."""
        if self.log_error is not None:
            return
        log_id = self._log.identity()
        if None not in (log_id, self._log_id) and log_id != self._log_id:
            self._refuse(f"its id was {self._log_id} and is {log_id}")
        self._log_id = log_id or self._log_id

    def _refuse(self, evidence: str) -> NoReturn:
        self._is_replaced = True
        self._keeper.forget_log()
        raise CutLogReplacedError(cut_log_topic(self._source), evidence)

    def _pass_over(self, held: StoredPosition | None) -> None:
        """Drops what another sidecar has written."""
        if held is None:
            return
        covered = [c for c in self._unwritten if c.position <= held.position]
        self._unwritten = [_above(c, held.position) for c in self._unwritten[len(covered) :]]
        for cut in covered:
            self._untold = self._untold.and_of(cut)
            self._waits_since = None
            if cut.timeline == held.position.timeline:
                self._newest = PublishedCut(cut, held.log_offset)

    def _end_of_log(self) -> StoredPosition | None:
        """The newest cut in the log: whoever had the turn may have ended before it told the store."""
        newest = self._log.newest()
        return StoredPosition(newest.cut.position, newest.log_offset, "") if newest else None

    def _leaves_it_to_another(self, held: StoredPosition | None, status: FrontierStatus) -> bool:
        if held is None or held.publisher in ("", status.sidecar):
            self._waits_since = None
            return False
        self._has_turn = False
        now = self._clock.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        return now - self._waits_since < PATIENCE.total_seconds()

    def _write_ahead(self) -> None:
        pending = [m for m in self._unwritten_ahead if self._is_news(m)]
        after = self._newest.log_offset if self._newest else -1
        if pending and not self._keeper.has_markers(pending, after):
            self._log.append_records(pending)
            for markers in pending:
                self._keeper.add_ahead(markers)
        self._unwritten_ahead = []

    def _is_news(self, markers: AheadMarkers) -> bool:
        position = CommitPosition(markers.timeline, markers.lsn)
        return self._newest is None or position > self._newest.cut.position

    @contextmanager
    def _noting_log(self) -> Iterator[None]:
        try:
            yield
        except CutLogUnavailableError as error:
            if self.log_error is None:
                logger.warning("cut log is away: %s", error)
            self.log_error = str(error)
        else:
            if not self._unwritten or self.is_waiting:
                self.log_error = None


def _above(cut: Cut, position: CommitPosition) -> Cut:
    """A cut without the transactions at or below another cut of its timeline, which lists them already."""
    lsn = position.lsn
    if cut.timeline != position.timeline or cut.previous_lsn >= lsn:
        return cut
    listed = {t.xid for t in cut.transactions if t.commit_lsn <= lsn}
    return replace(
        cut,
        previous_lsn=lsn,
        transactions=tuple(t for t in cut.transactions if t.commit_lsn > lsn),
        skipped=tuple(xid for xid in cut.skipped if xid not in listed),
    )
