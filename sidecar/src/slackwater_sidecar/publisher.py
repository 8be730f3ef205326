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
from slackwater_sidecar.policy import PublishingState

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
        self._topic = cut_log_topic(source)
        self._log = log
        self._log_id: str | None = None
        self.mirror = RedisMirror(source, log, store, restored_cuts, self._clock)
        """Has the store, and says what is wrong with it."""
        self.state = PublishingState()
        """What the log has, and what is still to be written. While cuts are left to another sidecar for a
        moment, call :meth:`publish` again soon; once it is overruled, begin again from the log."""
        self._markers_read_to = 0
        self._is_replaced = False
        self.log_error: str | None = None
        """Why the newest cuts are not in the log; None when they are."""

    def publish(self, cuts: Sequence[Cut], status: FrontierStatus) -> None:
        """Publishes cuts, ascending; those that could not be written are tried again by the next call.

        Raises:
            slackwater.cuts.CutLogReplacedError: the log has lost what was written to it.
        """
        self.state.add_cuts(cuts)
        if self.state.has_cuts:
            with self._noting_log_errors():
                self._write_cuts(status)

    def publish_ahead(self, markers: AheadMarkers) -> None:
        """Publishes markers of partitions that are ahead of the frontier, unless the log has them."""
        state = self.state
        state.add_markers(markers)
        with self._noting_log_errors():
            records = state.markers_to_write()
            if records and not self._has_markers(records):
                self._log.append_records(records)
                for record in records:
                    state.record_markers(record)
            state.drop_markers()

    def refuse(self, refusal: Refusal) -> None:
        """Records in the log, for all sidecars, that the source is refused. If that fails, call it again."""
        with self._noting_log_errors():
            self._log.append_records([refusal])

    def show_markers(self) -> None:
        """Shows the markers of all partitions in the store, if it is time. Call it often."""
        self.mirror.show_markers(self.state.newest, self.state.ahead)

    def report(
        self,
        status: FrontierStatus,
        open_transactions: Sequence[OpenTransaction],
        *,
        asks_log: bool = True,
    ) -> None:
        """Maintains the store and writes the state to it. Call it regularly, also when there are no cuts.

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
                    self._check_log()
            self.publish([], status)
        with self._noting_log_errors():
            newest = None if self._is_replaced else self.state.newest
            self.mirror.refresh(newest, self.state.ahead, status, open_transactions)

    def close(self) -> None:
        """Frees connections."""
        self._log.close()
        self.mirror.close()

    def _write_cuts(self, status: FrontierStatus) -> None:
        state = self.state
        held = self.mirror.position()
        state.drop_written(held)
        if not state.has_cuts or not state.take_turn(held, status.sidecar, self._clock.monotonic()):
            return
        if state.must_check_log or state.has_skips:
            newest = self._log.newest()
            state.drop_written(StoredPosition(newest.cut.position, newest.log_offset, "") if newest else None)
            state.must_check_log = False
        cuts, before = state.cuts_to_write(), state.newest
        if not cuts:
            return
        published = self._append(cuts, after=state.newest_offset)
        state.record_written(published)
        self._on_written(published)
        is_whole = held is not None and (before is None or not is_behind(held, before))
        self.mirror.put(published, status, is_whole=is_whole)

    def _append(self, cuts: Sequence[Cut], *, after: int) -> list[PublishedCut]:
        """Appends cuts to the log that has a record at the offset `after`, and to no other one."""
        published = self._log.append(cuts)
        if after >= 0 and published[0].log_offset <= after:
            evidence = f"a cut was written to offset {published[0].log_offset}, the one before it to {after}"
            raise CutLogReplacedError(self._topic, evidence)
        return published

    def _check_log(self) -> None:
        """Compares the id of the log with the one that it had before."""
        log_id = self._log.identity()
        if None not in (log_id, self._log_id) and log_id != self._log_id:
            raise CutLogReplacedError(self._topic, f"its id was {self._log_id} and is {log_id}")
        self._log_id = log_id or self._log_id

    def _has_markers(self, records: Sequence[AheadMarkers]) -> bool:
        """Reads what was written since the newest cut, and says whether it has all these markers."""
        begin = max(self.state.newest_offset + 1, self._markers_read_to)
        for logged in self._log.records(begin - 1, with_cuts=False):
            self._markers_read_to = logged.log_offset + 1
            if isinstance(logged.record, AheadMarkers):
                self.state.record_markers(logged.record)
        return self.state.has_markers(records)

    @contextmanager
    def _noting_log_errors(self) -> Iterator[None]:
        try:
            yield
        except CutLogReplacedError:
            self._is_replaced = True
            self.mirror.forget_log()
            raise
        except CutLogUnavailableError as error:
            if self.log_error is None:
                logger.warning("cut log is unavailable: %s", error)
            self.log_error = str(error)
        else:
            if not self.state.has_cuts or self.state.is_waiting:
                self.log_error = None
