"""What the connector's notifications say about snapshots.

Initial snapshots and ad hoc ones that block the stream are announced in the same words. Which rows an
announcement belongs to is told by time: rows carry the moment their snapshot began, by the clock that stamps
notifications.
"""

from dataclasses import dataclass, field

from slackwater_cdc.envelope import Notification

_INITIAL = "Initial Snapshot"


@dataclass(slots=True)
class Announcement:
    """One snapshot, from STARTED on."""

    started_ms: int
    scanned: dict[str, int] = field(default_factory=dict)
    """Rows per table (``schema.table``), as far as they were told."""
    is_completed: bool = False


class Announcements:
    """Follows the notification topic."""

    def __init__(self) -> None:
        self._announced: list[Announcement] = []

    def __bool__(self) -> bool:
        return bool(self._announced)

    def read(self, notification: Notification) -> None:
        """Takes a notification; only those of initial and blocking snapshots matter."""
        if notification.aggregate_type != _INITIAL or notification.type == "SKIPPED":
            return
        if notification.type == "STARTED" or not self._announced:
            self._announced.append(Announcement(notification.timestamp_ms))
        newest, data = self._announced[-1], notification.additional_data or {}
        if notification.type == "TABLE_SCAN_COMPLETED":
            newest.scanned[data.get("scanned_collection", "")] = int(data.get("total_rows_scanned", "0"))
        elif notification.type == "COMPLETED":
            newest.is_completed = True

    def of(self, ts_ms: int) -> Announcement | None:
        """The announcement of the snapshot whose rows carry a time; None before the first."""
        begun = [a for a in self._announced if a.started_ms <= ts_ms] or self._announced
        return begun[-1] if begun else None

    def is_again(self, ts_ms: int) -> bool:
        """Whether a snapshot had begun before the one of a time; rows of that may be lost, even all."""
        announced = self.of(ts_ms)
        return announced is not None and announced is not self._announced[0]
