"""Publishes cuts and markers: the policy says what, the cut log gets it first, then Redis."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from slackwater.cuts import (
    CutLog,
    CutLogReplacedError,
    CutLogUnavailableError,
    FrontierStatus,
    MarkerStore,
    StoredPosition,
)
from slackwater.protocol import (
    AheadMarkers,
    Clock,
    Cut,
    OpenTransaction,
    PublishedCut,
    Refusal,
    SystemClock,
)
from slackwater.protocol.keys import cut_log_topic
from slackwater_sidecar.mirror import RedisMirror, is_behind
from slackwater_sidecar.policy import MarkersAhead, PendingRecords

logger = logging.getLogger(__name__)


class Publisher:
    """Writes cuts to the cut log and, when they are acknowledged there, to the marker store.

    The cut log decides: what is not in it does not exist. A store that is away, or has lost or exchanged its
    content, costs nothing but a detour: :meth:`report` fills it again. A cut goes to the store only after the
    log has acknowledged it, so what the store holds of another sidecar need not be appended again. Without a
    store all sidecars append: harmless repeats. Used by one thread.

    Args:
        source: The connector's ``topic.prefix``.
        log: The source's cut log.
        store: None: only the log is written.
        restored_cuts: How many cuts are put back into a store that has lost them.
        clock: The time.
        on_written: Receives the cuts that this sidecar has written.
    """

    def __init__(
        self,
        source: str,
        log: CutLog,
        store: MarkerStore | None,
        restored_cuts: int,
        *,
        clock: Clock | None = None,
        on_written: Callable[[Sequence[PublishedCut]], None] = lambda _: None,
    ) -> None:
        self._on_written = on_written
        self._clock = clock or SystemClock()
        self._writer = _CutWriter(source, log)
        self._mirror = RedisMirror(source, log, store, restored_cuts, self._clock)
        self._pending = PendingRecords()
        self._is_replaced = False
        self.log_error: str | None = None
        """Why the newest cuts are not in the log; None when they are."""

    @property
    def newest(self) -> PublishedCut | None:
        """The newest cut of this sidecar that the log holds, itself or within a later one."""
        return self._pending.newest

    @property
    def store_error(self) -> str | None:
        """Says why the store is not up to date; None when it is."""
        return self._mirror.error

    @property
    def corrections(self) -> int:
        """Counts how often the store held what the cut log does not, and was refilled."""
        return self._mirror.corrections

    @property
    def is_waiting(self) -> bool:
        """Says if cuts are left to another sidecar for a moment: call :meth:`publish` again soon."""
        return self._pending.is_waiting

    @property
    def is_settled(self) -> bool:
        """Says if the log has all cuts that were to be published."""
        return self.log_error is None and not self.is_waiting

    def resume_from(self, newest: PublishedCut | None) -> None:
        """Says what is in the log already. Forgets what was not written: it is found again."""
        self._pending = PendingRecords(newest)

    def publish(self, cuts: Sequence[Cut], status: FrontierStatus) -> None:
        """Publishes cuts, ascending; those that could not be written are tried again by the next call.

        Raises:
            slackwater.cuts.CutLogReplacedError: the log has lost what was written to it.
        """
        self._pending.add_cuts(cuts)
        if self._pending.has_cuts:
            with self._noting_log_errors():
                self._write_cuts(status)

    def publish_ahead(self, markers: AheadMarkers) -> None:
        """Publishes markers of partitions that are ahead of the frontier."""
        pending = self._pending
        pending.add_markers(markers)
        with self._noting_log_errors():
            self._writer.append_markers(pending.markers_to_write(), after=pending.newest_offset)
            pending.drop_markers()

    def refuse(self, refusal: Refusal) -> None:
        """Has the log remember for all sidecars that the source is refused; not written: call it again."""
        with self._noting_log_errors():
            self._writer.append_refusal(refusal)

    def show_markers(self) -> None:
        """Tells the store the markers of all partitions, if it is time. Call it often."""
        self._mirror.show_markers(self.newest, self._writer.markers_ahead)

    def report(
        self,
        status: FrontierStatus,
        open_transactions: Sequence[OpenTransaction],
        *,
        asks_log: bool = True,
    ) -> None:
        """Looks after the store and tells it the state. Call it now and then, also when there are no cuts.

        Fills a store that is behind the log, e.g. because it was away or emptied.

        Args:
            status: The state.
            open_transactions: What the frontier waits for.
            asks_log: Whether to ask the log as well: False while Kafka is known to be silent.

        Raises:
            slackwater.cuts.CutLogReplacedError: cuts would continue in the middle of another log. Raised
                once: from then on only the state is published.
        """
        if asks_log and not self._is_replaced:
            if self.log_error is None:  # while it is away each question would wait
                with self._noting_log_errors():
                    self._writer.check_log()
            self.publish([], status)
        with self._noting_log_errors():
            newest = None if self._is_replaced else self.newest
            self._mirror.refresh(newest, self._writer.markers_ahead, status, open_transactions)

    def close(self) -> None:
        """Frees connections."""
        self._writer.close()
        self._mirror.close()

    def _write_cuts(self, status: FrontierStatus) -> None:
        pending = self._pending
        held = self._mirror.position()
        pending.drop_written(held)
        if not pending.has_cuts or not pending.take_turn(held, status.sidecar, self._clock.monotonic()):
            return
        if pending.must_check_log:
            pending.drop_written(self._writer.newest_position())
            pending.must_check_log = False
        cuts, before = pending.cuts_to_write(), pending.newest
        if not cuts:
            return
        published = self._writer.append_cuts(cuts, after=pending.newest_offset)
        pending.record_written(published)
        self._on_written(published)
        is_whole = held is not None and (before is None or not is_behind(held, before))
        self._mirror.put(published, status, is_whole=is_whole)

    @contextmanager
    def _noting_log_errors(self) -> Iterator[None]:
        try:
            yield
        except CutLogReplacedError:
            self._is_replaced = True
            self._mirror.forget_log()
            raise
        except CutLogUnavailableError as error:
            if self.log_error is None:
                logger.warning("cut log is unavailable: %s", error)
            self.log_error = str(error)
        else:
            if not self._pending.has_cuts or self.is_waiting:
                self.log_error = None


class _CutWriter:
    """Appends to a cut log as long as it is the one that was written to before. Used by one thread.

    All methods but :meth:`close` block for at most the log's time-out, and raise ``CutLogUnavailableError``
    when it does not answer.

    Args:
        source: The connector's ``topic.prefix``.
        log: The source's cut log.
    """

    def __init__(self, source: str, log: CutLog) -> None:
        self._topic = cut_log_topic(source)
        self._log = log
        self._log_id: str | None = None
        self._markers_read_to = 0
        self.markers_ahead = MarkersAhead()
        """The markers ahead of the frontier that the log has, as far as this sidecar wrote or read them."""

    def check_log(self) -> None:
        """Compares the id of the log with the one that it had before.

        Raises:
            slackwater.cuts.CutLogReplacedError: it is another log.
        """
        log_id = self._log.identity()
        if None not in (log_id, self._log_id) and log_id != self._log_id:
            raise CutLogReplacedError(self._topic, f"its id was {self._log_id} and is {log_id}")
        self._log_id = log_id or self._log_id

    def newest_position(self) -> StoredPosition | None:
        """Returns where the newest cut of the log is, whichever sidecar wrote it; None if there is none."""
        newest = self._log.newest()
        return StoredPosition(newest.cut.position, newest.log_offset, "") if newest else None

    def append_cuts(self, cuts: Sequence[Cut], *, after: int) -> list[PublishedCut]:
        """Appends cuts and returns them with their offsets when the log has acknowledged all of them.

        When it raises, any prefix of them may have been written.

        Args:
            cuts: At least one; ascending.
            after: The offset of a record that the log has.

        Raises:
            slackwater.cuts.CutLogReplacedError: they got offsets below that one: it is another log.
        """
        published = self._log.append(cuts)
        if after >= 0 and published[0].log_offset <= after:
            evidence = f"a cut was written to offset {published[0].log_offset}, the one before it to {after}"
            raise CutLogReplacedError(self._topic, evidence)
        return published

    def append_markers(self, records: Sequence[AheadMarkers], *, after: int) -> None:
        """Appends markers ahead of the frontier, unless the log has all of them, or higher ones.

        Args:
            records: The markers; none: nothing is done.
            after: Records of the log at or below this offset do not matter any more.
        """
        if not records or self._has_markers(records, after):
            return
        self._log.append_records(records)
        for record in records:
            self.markers_ahead = self.markers_ahead.joined_by(record)

    def append_refusal(self, refusal: Refusal) -> None:
        """Appends a refusal."""
        self._log.append_records([refusal])

    def close(self) -> None:
        """Closes the log."""
        self._log.close()

    def _has_markers(self, records: Sequence[AheadMarkers], after: int) -> bool:
        begin = max(after + 1, self._markers_read_to)
        for logged in self._log.records(begin - 1, with_cuts=False):
            self._markers_read_to = logged.log_offset + 1
            if isinstance(logged.record, AheadMarkers):
                self.markers_ahead = self.markers_ahead.joined_by(logged.record)
        return self.markers_ahead.has_all(records)
