"""Follows the connector's notifications about snapshots.

Initial snapshots and ad hoc ones that block the stream are announced in the same words. Which rows an
announcement belongs to is decided by time: rows carry the moment they were read, by the clock that stamps
notifications.
"""

from dataclasses import dataclass, field

from slackwater_cdc.envelope import Notification
from slackwater_cdc.postgres import CLOCK_SKEW_MS, STARTED_SKEW_MS

_INITIAL = "Initial Snapshot"


@dataclass(slots=True, eq=False)
class Announcement:
    """One attempt at a snapshot, from STARTED on."""

    started_ms: int
    scanned: dict[str, int] = field(default_factory=dict)
    """Rows per table (``schema.table``), as far as they were announced."""
    completed_ms: int | None = None
    """The time at which all rows had been read from the database; None if that is not known."""
    is_given_up: bool = False
    """True if the connector has started again without taking it again: its offset says that it need not."""
    unreadable: str = ""
    """The fault of a notification that may be about it, if there is one: its counts are not known then."""

    @property
    def is_completed(self) -> bool:
        """True if all rows were announced."""
        return self.completed_ms is not None

    def may_have_rows_from(self, first_ms: int) -> bool:
        """Returns whether rows of which the first was read at a time may be of this attempt."""
        is_begun = self.started_ms <= first_ms + STARTED_SKEW_MS
        return is_begun and (self.completed_ms is None or first_ms <= self.completed_ms + STARTED_SKEW_MS)


class Announcements:
    """Follows the notification topic."""

    def __init__(self) -> None:
        self._announced: list[Announcement] = []
        self._latest: Announcement | None = None
        self._first_ms = 0

    def __bool__(self) -> bool:
        return bool(self._announced)

    def skip_to(self, commit_ts_ms: int) -> None:
        """Says when the timeline before committed last: attempts that had STARTED by then are not read."""
        self._first_ms = commit_ts_ms - CLOCK_SKEW_MS

    def read(self, notification: Notification) -> None:
        """Takes a notification; only those of initial and blocking snapshots matter.

        Raises:
            UndecodableRecordError: It does not say how many rows of which table there are.
        """
        if notification.aggregate_type != _INITIAL:
            return
        if notification.type == "SKIPPED":
            if self._latest is not None:
                self._latest.is_given_up = not self._latest.is_completed
            return
        newest = self._latest
        if notification.type == "STARTED" or newest is None:
            newest = self._latest = Announcement(notification.timestamp_ms)
            if newest.started_ms >= self._first_ms:
                self._announced.append(newest)
        if notification.type == "TABLE_SCAN_COMPLETED":
            newest.scanned |= notification.scanned()
        elif notification.type == "COMPLETED":
            newest.completed_ms = notification.timestamp_ms

    def read_unreadable(self, problem: str) -> None:
        """Takes a record that is no notification: it may have been one about the snapshot under way."""
        if self._latest is not None and not self._latest.is_completed:
            self._latest.unreadable = problem

    def announcement_at(self, first_ms: int) -> Announcement | None:
        """Returns the announcement of the attempt whose first row was read at a time; None if none is."""
        return next((a for a in reversed(self._announced) if a.may_have_rows_from(first_ms)), None)

    def up_to(self, announced: Announcement) -> list[Announcement]:
        """Returns the announcements before one, and that one, oldest first."""
        return self._announced[: self._announced.index(announced) + 1]

    def newest(self) -> Announcement | None:
        """Returns the last one; None before the first."""
        return self._announced[-1] if self._announced else None

    def is_again(self, announced: Announcement | None) -> bool:
        """Returns whether an attempt is not the first; rows of that may be lost, even all."""
        return announced is not None and announced is not self._announced[0]
