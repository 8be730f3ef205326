"""Decides when to publish, whose turn it is, and what is still to be written and reported.

Nothing here does I/O or has a clock: the caller passes the time, in monotonic seconds, and the content of
Redis and the cut log.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from enum import Enum, auto

from slackwater.cuts import StoredPosition, merged_markers
from slackwater.protocol import (
    AheadMarkers,
    CommitPosition,
    ConnectorReport,
    Cut,
    PublishedCut,
    Refusal,
    format_position,
)
from slackwater_sidecar.settings import SidecarSettings

PATIENCE = timedelta(milliseconds=500)
"""The time for which a sidecar leaves a cut to the one that published last before it appends it itself."""
_SHARE = 0.2
"""The most of the time that an action may take while other work waits."""
_LONGEST_REST_SECONDS = 0.25
"""A slower action has waited for another process, so a longer rest would only add to the delay."""


class FaultHold:
    """Returns whether a connector's faults forbid cuts: those of now, and those that were seen before.

    What was committed since the last check without a fault may have been written with it, whichever sidecar
    saw it: the source stays refused until an operator says that the values are right, or begins a new
    timeline.
    Only a fault that was gone before anything was read leaves nothing behind.

    A fault that was seen may have been there until the first look that finds none, so all that the
    transaction topic holds at that look may be wrong, read or not. An operator's decision counts once this is
    known.

    Args:
        source: The connector's ``topic.prefix``.
        timeline: The one that is followed.
        sound_lsn: Commits up to here were published already.
        sees_connector: Whether looks are expected; without any, an operator's decision counts at once.
    """

    def __init__(self, source: str, timeline: int, sound_lsn: int, *, sees_connector: bool = False) -> None:
        self._source = source
        self._timeline = timeline
        self._sound_lsn = sound_lsn
        self._sees_connector = sees_connector
        self._fault = ""
        self._is_without_properties = False
        """Whether the fault was seen without the connector's properties, such as one of the topics."""
        self._is_sound = False
        """Whether the newest look found no fault."""
        self._is_bounded = False
        """Whether all commits that may have been written with the fault are known."""
        self._word_lsn = -1
        """The highest LSN up to which an operator says that values are right, since the refusal began."""
        self._refusal: Refusal | None = None
        self._recorded_lsn = -1

    @property
    def reason(self) -> str:
        """Why no cut may be published; empty: cuts may be."""
        refusal = self._refusal
        if refusal is None:
            return f"{self._fault}; no cut is published" if self._fault else ""
        what = f"{self._fault}; correct it" if self._fault else f"{refusal.reason}; it was seen earlier"
        since = f"commits after {format_position(refusal.since_lsn)}" if refusal.since_lsn else "all commits"
        return (
            f"{what}. Values of {since} may be wrong, so no cut is published. Let the connector take a new "
            f"snapshot, and start the sidecars with timeline {self._timeline + 1}; or, if you know that the "
            f"values are right, `slackwater source skip --source {self._source} --to LSN` with the newest "
            f"commit before the correction, at least {format_position(refusal.newest_lsn)}"
        )

    @property
    def unrecorded(self) -> Refusal | None:
        """What the cut log has to hold so that no sidecar forgets it; None: it holds it.

        It is written when a refusal begins, and with the last commit when the fault is gone.
        """
        refusal, recorded = self._refusal, self._recorded_lsn
        if refusal is None or refusal.newest_lsn <= recorded or (self._fault and recorded >= 0):
            return None
        return refusal

    @property
    def needs_bound(self) -> bool:
        """Whether :meth:`bound` needs the newest commit that the source's topics hold."""
        return self._refusal is not None and self._is_sound and not self._is_bounded

    def update(self, report: ConnectorReport | None, newest_lsn: int, *, has_read: bool) -> None:
        """Takes the newest look.

        Args:
            report: The look; one that could not see the connector's properties does not end its fault.
            newest_lsn: The newest commit that was read.
            has_read: Whether any record was, by this process or before.
        """
        if report is None or not (report.properties or report.faults or self._is_without_properties):
            return
        self._is_without_properties = bool(report.faults) and not report.properties
        before, faults = self._fault, report.faults
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        self._fault = f"{faults[0].subject}: {faults[0].text}{more}" if faults else ""
        self._is_sound = not faults
        self._is_bounded = self._is_bounded and self._is_sound
        if has_read and (self._fault or before):
            self._refuse(self._fault or before, newest_lsn)
        elif self._refusal is None:
            self._sound_lsn = newest_lsn

    def bound(self, newest_lsn: int) -> None:
        """Takes the newest commit that could be read after a look that found no fault."""
        if self._refusal is not None:
            self._refuse(self._refusal.reason, newest_lsn)
            self._is_bounded = True
            self.skip_to(self._word_lsn)

    def take(self, refusal: Refusal) -> None:
        """Takes a refusal that the cut log contains, whichever sidecar wrote it."""
        self._recorded_lsn = max(self._recorded_lsn, refusal.newest_lsn)
        self._sound_lsn = min(self._sound_lsn, refusal.since_lsn)
        self._refuse(refusal.reason, refusal.newest_lsn)

    def skip_to(self, lsn: int) -> None:
        """Takes an operator's decision that values up to a commit are right; a present fault starts over."""
        if self._refusal is None:
            return
        self._word_lsn = lsn = max(self._word_lsn, lsn)
        if lsn >= self._refusal.newest_lsn and (self._is_bounded or self._fault or not self._sees_connector):
            self._refusal, self._recorded_lsn, self._sound_lsn = None, -1, lsn
            self._is_bounded, self._word_lsn = False, -1

    def _refuse(self, reason: str, newest_lsn: int) -> None:
        if self._refusal is not None:
            reason, newest_lsn = self._refusal.reason, max(self._refusal.newest_lsn, newest_lsn)
        self._refusal = Refusal(
            source=self._source,
            timeline=self._timeline,
            since_lsn=self._sound_lsn,
            newest_lsn=newest_lsn,
            reason=reason,
        )


class Spacing:
    """Spaces a repeated action: an interval apart, and so that it takes a fifth of the time.

    So an action whose cost grows, such as with the number of partitions, slows down only itself.
    """

    def __init__(self) -> None:
        self._started_at = self._due_at = float("-inf")

    def is_due(self, now: float, interval_seconds: float, *, others_wait: bool = True) -> bool:
        """Returns whether it is time to act again.

        Args:
            now: The time.
            interval_seconds: The least time from one start to the next.
            others_wait: Whether there is other work for the time in between; without, no rest is needed.
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
    """Says when cuts, or markers ahead of a frontier that stands still, are to be published.

    Args:
        settings: The intervals.
        now: The time at which publishing begins.
    """

    def __init__(self, settings: SidecarSettings, now: float) -> None:
        self._publish_seconds = settings.publish_interval.total_seconds()
        self._quiet_seconds = settings.quiet_interval.total_seconds()
        self._ahead_after_seconds = settings.ahead_after.total_seconds()
        self._ahead_seconds = settings.ahead_interval.total_seconds()
        self._cuts = Spacing()
        self._markers_ahead = Spacing()
        self._moved_at = now

    def due(
        self, now: float, *, has_cuts: bool, has_events: bool, is_waiting: bool, is_behind: bool = True
    ) -> Due:
        """Says what is due.

        Args:
            now: The time.
            has_cuts: Whether the frontier has moved since cuts were published.
            has_events: Whether there are change events in these cuts.
            is_waiting: Whether cuts were left to another sidecar.
            is_behind: Whether many records wait to be read, so that publishing must leave time for that.
        """
        if has_cuts or is_waiting:
            is_urgent = has_events or is_waiting
            interval = self._publish_seconds if is_urgent else self._quiet_seconds
            return Due.CUTS if self._cuts.is_due(now, interval, others_wait=is_behind) else Due.NOTHING
        has_rested = now - self._moved_at >= self._ahead_after_seconds
        if has_rested and self._markers_ahead.is_due(now, self._ahead_seconds):
            return Due.MARKERS_AHEAD
        return Due.NOTHING

    def record_cuts(self, started: float, ended: float) -> None:
        """Notes when cuts were published; markers ahead wait again."""
        self._cuts.record(started, ended)
        self._moved_at = ended

    def record_markers_ahead(self, started: float, ended: float) -> None:
        """Notes when markers ahead were published, or when there were none."""
        self._markers_ahead.record(started, ended)


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
        self._markers: list[AheadMarkers] = []
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

    def add_markers(self, markers: AheadMarkers) -> None:
        """Takes markers to write."""
        self._markers.append(markers)

    def drop_written(self, held: StoredPosition | None) -> None:
        """Drops what another sidecar has written, and shortens a cut that continues before it.

        Args:
            held: A cut that the log has; None: nothing is known.
        """
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

        Args:
            held: How far Redis is, and who published last; None: not known, then everybody writes.
            sidecar: The id of this sidecar.
            now: The time.
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

    def markers_to_write(self) -> list[AheadMarkers]:
        """Returns the markers that say more than the newest cut."""
        return [m for m in self._markers if self._is_news(m)]

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

    def drop_markers(self) -> None:
        """Drops all markers to write: the log has them, or they are no news."""
        self._markers = []

    def _is_news(self, markers: AheadMarkers) -> bool:
        position = CommitPosition(markers.timeline, markers.lsn)
        return self.newest is None or position > self.newest.cut.position


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
    return replace(cut, previous_lsn=position.lsn, transactions=above)
