"""Publishes cuts and markers: when, whose turn it is, what is still to be written; the cut log gets it first.

Only :class:`Publisher` does I/O and has a clock. The others receive the time, in monotonic seconds, and the
content of Redis and the cut log.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from enum import Enum, auto

from slackwater.cuts import (
    CutLog,
    CutLogReplacedError,
    FrontierStatus,
    RedisMarkerStore,
    StoredPosition,
    TopicUnavailableError,
    merged_markers,
)
from slackwater.protocol import (
    AheadMarkers,
    Clock,
    CommitPosition,
    Cut,
    OpenTransaction,
    PublishedCut,
    Refusal,
    SystemClock,
)
from slackwater.protocol.keys import cut_log_topic
from slackwater_sidecar.mirror import RedisMirror, is_behind
from slackwater_sidecar.settings import SidecarSettings

logger = logging.getLogger(__name__)

PATIENCE = timedelta(milliseconds=500)
"""The time for which a sidecar leaves a cut to the one that published last before it appends it itself."""
_SHARE = 0.2
"""The most of the time that an action may take while other work waits."""
_LONGEST_REST_SECONDS = 0.25
"""A slower action has waited for another process, so a longer rest would only add to the delay."""


class Spacing:
    """Spaces a repeated action: an interval apart, and so that it takes a fifth of the time.

    So an action whose cost grows, such as with the number of partitions, slows down only itself.
    """

    def __init__(self) -> None:
        self._started_at = self._due_at = float("-inf")

    def is_due(self, now: float, interval_seconds: float, *, others_wait: bool = True) -> bool:
        """Returns whether it is time to act again.

        Without other work for the time in between (``others_wait``), no rest is needed.
        """
        due_at = self._started_at + interval_seconds
        return now >= (max(self._due_at, due_at) if others_wait else due_at)

    def record(self, started: float, ended: float) -> None:
        """Notes when the action was done last, and how long it took."""
        self._started_at = started
        self._due_at = ended + min((ended - started) * (1 / _SHARE - 1), _LONGEST_REST_SECONDS)


class Due(Enum):
    """Names what is to be published now."""

    NOTHING = auto()
    CUTS = auto()
    MARKERS_AHEAD = auto()


class PublishingSchedule:
    """Says when cuts, or markers ahead of a frontier that stands still, are to be published."""

    def __init__(self, settings: SidecarSettings, now: float) -> None:
        self._publish_seconds = settings.publish_interval.total_seconds()
        self._quiet_seconds = settings.quiet_interval.total_seconds()
        self._ahead_after_seconds = settings.ahead_after.total_seconds()
        self._ahead_seconds = settings.ahead_interval.total_seconds()
        self._cuts = Spacing()
        self.markers_ahead = Spacing()
        """When markers ahead were published, or when there were none."""
        self._moved_at = now

    def due(
        self, now: float, *, has_cuts: bool, has_events: bool, is_waiting: bool, is_behind: bool = True
    ) -> Due:
        """Says what is due.

        Cuts may hold change events, or be left to another sidecar (``is_waiting``). ``is_behind``: many
        records wait to be read, so publishing must leave time for that.
        """
        if has_cuts or is_waiting:
            is_urgent = has_events or is_waiting
            interval = self._publish_seconds if is_urgent else self._quiet_seconds
            return Due.CUTS if self._cuts.is_due(now, interval, others_wait=is_behind) else Due.NOTHING
        has_rested = now - self._moved_at >= self._ahead_after_seconds
        if has_rested and self.markers_ahead.is_due(now, self._ahead_seconds):
            return Due.MARKERS_AHEAD
        return Due.NOTHING

    def record_cuts(self, started: float, ended: float) -> None:
        """Notes when cuts were published; markers ahead wait again."""
        self._cuts.record(started, ended)
        self._moved_at = ended


class PublishingState:
    """Holds what the log has of a source, what it does not have yet, and whose turn it is to write cuts.

    Several sidecars of one source write one sequence of cuts: the last one to publish continues, the others
    wait for :data:`PATIENCE`. That decides nothing: a cut that is written twice is harmless.
    """

    def __init__(self) -> None:
        self.ahead: AheadMarkers | None = None
        """The highest marker beyond the frontier that the log has of each partition, as far as this sidecar
        wrote or read them, on one timeline; None: it has none."""
        self.resume_from(None)

    def resume_from(self, newest: PublishedCut | None) -> None:
        """Takes the cut of the log from which this sidecar continues; forgets what was not written."""
        self.newest = newest
        """The newest cut of this sidecar that the log holds, itself or within a later one."""
        self.must_check_log = True
        """Whether this sidecar has yet to read the end of the log before it appends cuts: the one that had
        the turn may have ended before it notified Redis."""
        self._cuts: list[Cut] = []
        self._unsettled: list[Cut] = []
        """Cuts to write, and those that were written since :meth:`take_settled`."""
        self.markers: list[AheadMarkers] = []
        """Markers to write."""
        self._noticed: Cut | None = None
        """A cut that another sidecar had written already, with all notices of such cuts. The other one's cuts
        may end before those rows, so the next cut must have them, too: a notice that is not needed only costs
        readers a second look."""
        self._waits_since: float | None = None
        self.is_overruled = False
        """Whether another sidecar has written a cut where this one has passed what operators skip. What had
        been read by then decides what is skipped, so the two may differ, and the log's cut counts: this
        sidecar must begin again there, and writes no more cuts."""

    @property
    def has_cuts(self) -> bool:
        """Returns whether there are cuts to write."""
        return bool(self._cuts)

    @property
    def has_skips(self) -> bool:
        """Returns whether cuts to write name transactions that an operator has skipped."""
        return any(cut.skipped for cut in self._cuts)

    @property
    def is_waiting(self) -> bool:
        """Returns whether cuts are left to another sidecar for a moment."""
        return self._waits_since is not None

    @property
    def newest_offset(self) -> int:
        """The offset of the newest cut in the log; -1: it has none."""
        return -1 if self.newest is None else self.newest.log_offset

    def add_cuts(self, cuts: Sequence[Cut]) -> None:
        """Takes cuts to write, ascending; drops them once the log has overruled this sidecar."""
        if not self.is_overruled:
            self._cuts += cuts
            self._unsettled += cuts

    def drop_written(self, held: StoredPosition | None) -> None:
        """Drops what another sidecar has written, and shortens a cut that continues before it."""
        if held is None:
            return
        if any(c.skipped and _overlaps(c, held.position) for c in self._cuts):
            self.is_overruled = True
            self._cuts, self._unsettled, self._waits_since = [], [], None
            return
        covered = [c for c in self._cuts if c.position <= held.position]
        self._cuts = [_shortened(c, held.position) for c in self._cuts[len(covered) :]]
        for cut in covered:
            self._noticed = _with_notices(cut, self._noticed)
            self._waits_since = None
            if cut.timeline == held.position.timeline:
                self.newest = PublishedCut(cut, held.log_offset)

    def take_turn(self, held: StoredPosition | None, sidecar: str, now: float) -> bool:
        """Returns whether this sidecar is to write now; else it waits, and asks again soon.

        ``held`` is how far Redis is, and who published last; None: not known, then everybody writes.
        """
        if held is None or held.publisher in ("", sidecar):
            self._waits_since = None
            return True
        self.must_check_log = True
        if self._waits_since is None:
            self._waits_since = now
        return now - self._waits_since >= PATIENCE.total_seconds()

    def cuts_to_write(self) -> list[Cut]:
        """Returns the cuts, the first with everything that earlier ones could not say."""
        return [*(_with_notices(cut, self._noticed) for cut in self._cuts[:1]), *self._cuts[1:]]

    def record_written(self, published: Sequence[PublishedCut]) -> None:
        """Notes that the log has acknowledged all cuts."""
        self._noticed = None
        self._cuts, self._waits_since = [], None
        self.newest = published[-1]

    def take_settled(self) -> list[Cut]:
        """Returns the cuts that the log has, of any sidecar, once it has all; each cut once."""
        if self._cuts:
            return []
        settled, self._unsettled = self._unsettled, []
        return settled

    def is_news(self, markers: AheadMarkers) -> bool:
        """Returns whether markers say more than the newest cut."""
        position = CommitPosition(markers.timeline, markers.lsn)
        return self.newest is None or position > self.newest.cut.position

    def has_markers(self, records: Sequence[AheadMarkers]) -> bool:
        """Returns whether the log has all markers of these records, or higher ones."""
        timeline, held = (0, {}) if self.ahead is None else (self.ahead.timeline, self.ahead.markers)
        return all(
            each.timeline == timeline and key in held and held[key].safe_commit_lsn >= marker.safe_commit_lsn
            for each in records
            for key, marker in each.markers.items()
        )

    def record_markers(self, record: AheadMarkers) -> None:
        """Notes markers that the log has; those of an earlier timeline are forgotten."""
        if self.ahead is None or record.timeline > self.ahead.timeline:
            self.ahead = record
        elif record.timeline == self.ahead.timeline:
            self.ahead = replace(self.ahead, markers=merged_markers(self.ahead.markers, record.markers))


def _with_notices(cut: Cut, other: Cut | None) -> Cut:
    """Returns a cut with the notices of another one, too: which rows are not where their commit has them."""
    if other is None:
        return cut
    return replace(
        cut,
        repeated=cut.repeated | other.repeated,
        late_snapshots=tuple(sorted({*cut.late_snapshots, *other.late_snapshots})),
        has_incremental_rows=cut.has_incremental_rows or other.has_incremental_rows,
    )


def _overlaps(cut: Cut, position: CommitPosition) -> bool:
    """Returns whether a cut covers commits that another one of its timeline, at a position, covers too."""
    return cut.timeline == position.timeline and cut.previous_lsn < position.lsn


def _shortened(cut: Cut, position: CommitPosition) -> Cut:
    """Returns a cut without the transactions at or below another one of its timeline, which lists them."""
    if not _overlaps(cut, position):
        return cut
    above = tuple(t for t in cut.transactions if t.commit_lsn > position.lsn)
    ends_ms = cut.ends_ms[len(cut.transactions) - len(above) :]
    return replace(cut, previous_lsn=position.lsn, transactions=above, ends_ms=ends_ms)


class Publisher:
    """Writes cuts to the cut log and, when they are acknowledged there, to the marker store.

    The cut log decides: what is not in it does not exist. A store that is away, or has lost or exchanged its
    content, costs nothing but a detour: :meth:`report` fills it again. A cut goes to the store only after the
    log has acknowledged it, so what the store holds of another sidecar need not be appended again. Without a
    store all sidecars append: harmless repeats. Used by one thread.

    A store that has lost cuts gets the last ``restored_cuts`` back. ``on_written`` receives the cuts that
    this sidecar has written.
    """

    def __init__(
        self,
        source: str,
        log: CutLog,
        store: RedisMarkerStore | None,
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
        state.markers.append(markers)
        with self._noting_log_errors():
            records = list(filter(state.is_news, state.markers))
            if records and not self._has_markers(records):
                self._log.append_records(records)
                for record in records:
                    state.record_markers(record)
            state.markers = []

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

        ``asks_log`` is False while Kafka is known to be silent.

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
        published, after = self._log.append(cuts), state.newest_offset
        if after >= 0 and published[0].log_offset <= after:
            evidence = f"a cut was written to offset {published[0].log_offset}, the one before it to {after}"
            raise CutLogReplacedError(self._topic, evidence)
        state.record_written(published)
        self._on_written(published)
        is_whole = held is not None and (before is None or not is_behind(held, before))
        self.mirror.put(published, status, is_whole=is_whole)

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
        except TopicUnavailableError as error:
            if self.log_error is None:
                logger.warning("cut log is unavailable: %s", error)
            self.log_error = str(error)
        else:
            if not self.state.has_cuts or self.state.is_waiting:
                self.log_error = None
