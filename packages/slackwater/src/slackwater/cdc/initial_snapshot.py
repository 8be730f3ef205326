"""The initial snapshot: its attempts as they are announced, and the rows of the one that counts.

The rows of an initial snapshot have one LSN and together form one pseudo-transaction. Attempts are
distinguished by the time at which their rows were read and by their announcements, or without announcements
by the connector's run (``docs/design/0004-evidence.md``). If records do not name the run either, any further
portion may belong to another attempt.

Without a snapshot, the rows that a table had before its changes are unknown, and cuts name its topic. A table
may be shown once there is one of the following:

* a completed snapshot that the notifications announce, initial or ad hoc, of which all rows were read;
* without notifications, an initial snapshot that has rows of it, of which the row marked ``last`` was read;
* an earlier cut that has its topic and does not name it;
* an operator's statement that it is complete, for example because it was created after the first snapshot.

A source that has had no snapshot at all has no cut. One that pipelines or services write needs none: its
topics begin with it.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field

from slackwater.cdc.commits import Commits
from slackwater.cdc.envelope import Notification
from slackwater.cdc.partition_queues import EndOffsets, PartitionQueue, Partitions, Waiting
from slackwater.cdc.postgres import CLOCK_SKEW_MS, ON_ITS_WAY_MS, STARTED_SKEW_MS
from slackwater.cdc.transaction import Subscription
from slackwater.protocol import Cut, SourceTopics

ALL_TABLES = "*"
"""Among tables that need no snapshot: all that the connector's first one did not contain."""
SNAPSHOT_HINT = (
    "let the connector take an ad hoc snapshot of the table (signal execute-snapshot); if the table was "
    "created after the connector's first snapshot, name it in sidecar.complete_tables"
)
"""The remedy for a table without a complete snapshot."""
FIRST_SNAPSHOT_HINT = (
    "stop the connector, delete its offsets (DELETE /connectors/NAME/offsets) and its slot, and start it "
    "with snapshot.mode=initial; if tables were empty when it began, name them in sidecar.complete_tables"
)
"""The remedy for a source that has had no snapshot."""

_INITIAL = "Initial Snapshot"
_INCREMENTAL = "Incremental Snapshot"
_EMPTY = "EMPTY"
_READ = ("SUCCEEDED", _EMPTY)
"""The status of tables of which an incremental snapshot has read all rows."""
_RECENT_ROWS = 20_000
"""Rows of a partition that are compared with the next one: more than a producer's batch contains."""

_NEVER = 1 << 63


@dataclass(slots=True, eq=False)
class Announcement:
    """One attempt at a snapshot, from STARTED on."""

    started_ms: int
    scanned: dict[str, int] = field(default_factory=dict)
    """Rows per table (``schema.table``), as far as they were announced."""
    completed_ms: int | None = None
    """The time at which all rows had been read from the database; None if that is not known."""
    is_given_up: bool = False
    """Whether the connector restarted without repeating it, because its offset says that it need not."""
    unreadable: str = ""
    """The fault of a notification that may be about it, if any: its counts are then unknown."""

    @property
    def is_completed(self) -> bool:
        """True if all rows were announced."""
        return self.completed_ms is not None

    def may_have_rows_from(self, first_ms: int) -> bool:
        """Returns whether rows, the first of which was read at this time, may be of this attempt."""
        is_begun = self.started_ms <= first_ms + STARTED_SKEW_MS
        return is_begun and (self.completed_ms is None or first_ms <= self.completed_ms + STARTED_SKEW_MS)


class Announcements:
    """Follows the notification topic."""

    def __init__(self) -> None:
        self._announced: list[Announcement] = []
        self._latest: Announcement | None = None
        self._first_ms = 0
        self._skipped_ms = _NEVER
        self._incremental: dict[str, dict[int, int | None]] = {}
        self.has_notifications = False
        """Whether the connector writes notifications about snapshots."""

    def __bool__(self) -> bool:
        return bool(self._announced)

    def skip_to(self, commit_ts_ms: int) -> None:
        """Notes when the previous timeline committed last: attempts that had STARTED by then are ignored."""
        self._first_ms = commit_ts_ms - CLOCK_SKEW_MS

    def read(self, notification: Notification) -> None:
        """Takes a notification; only those of initial and blocking snapshots matter.

        Raises:
            UndecodableRecordError: It does not contain the number of rows of each table.
        """
        if notification.aggregate_type == _INCREMENTAL:
            self._read_incremental(notification)
        if notification.aggregate_type != _INITIAL:
            return
        self.has_notifications = True
        if notification.type == "SKIPPED":
            if notification.timestamp_ms >= self._first_ms:
                self._skipped_ms = min(self._skipped_ms, notification.timestamp_ms)
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
        """Takes a record that is not a notification: it may have been one about the current snapshot."""
        if self._latest is not None and not self._latest.is_completed:
            self._latest.unreadable = problem

    def announcement_at(self, first_ms: int) -> Announcement | None:
        """Returns the announcement of the attempt whose first row was read at a time, if any."""
        return next((a for a in reversed(self._announced) if a.may_have_rows_from(first_ms)), None)

    def up_to(self, announced: Announcement) -> list[Announcement]:
        """Returns the announcements up to and including one, oldest first."""
        return self._announced[: self._announced.index(announced) + 1]

    def newest(self) -> Announcement | None:
        """Returns the last one; None before the first."""
        return self._announced[-1] if self._announced else None

    def is_again(self, announced: Announcement | None) -> bool:
        """Returns whether an attempt is not the first; rows of the first may be lost, even all."""
        if announced is None:
            return False
        return announced is not self._announced[0] or announced.started_ms > self._skipped_ms

    # --- which tables have had one

    def has_completed(self) -> bool:
        """Returns whether an attempt is complete."""
        return any(announced.is_completed for announced in self._announced)

    def began_with_snapshot(self) -> bool:
        """Returns whether the connector skipped no snapshot before one was complete."""
        completed = (a.completed_ms for a in self._announced if a.completed_ms is not None)
        return min(completed, default=_NEVER) < self._skipped_ms

    def tables(self) -> set[str]:
        """Returns the tables of completed snapshots."""
        completed = (a.scanned for a in self._announced if a.is_completed)
        return set(self._incremental).union(*completed)

    def scanned_tables(self) -> set[str]:
        """Returns the tables that any snapshot names, complete or not."""
        return set(self._incremental).union(*(announced.scanned for announced in self._announced))

    def counts_of(self, table: str) -> dict[int, int | None]:
        """Returns the rows of a table in each completed snapshot, by the time of that; None if unknown."""
        completed = (a for a in self._announced if table in a.scanned)
        counts = {a.completed_ms: a.scanned[table] for a in completed if a.completed_ms is not None}
        return {**self._incremental.get(table, {}), **counts}

    @property
    def is_under_way(self) -> bool:
        """Whether an attempt has begun and may still become complete."""
        newest = self._latest
        return newest is not None and not (newest.is_completed or newest.is_given_up)

    def why_incomplete(self) -> str:
        """Returns why no attempt is complete, for people."""
        if self._latest is None:
            return "the connector has skipped its first snapshot"
        if self._latest.is_given_up:
            return "the connector failed in its first snapshot, and skipped it when it started again"
        return "the connector has begun its first snapshot, and has not announced that it is complete"

    def _read_incremental(self, notification: Notification) -> None:
        data = notification.additional_data or {}
        if notification.type != "TABLE_SCAN_COMPLETED" or data.get("status") not in _READ:
            return
        scans = self._incremental.setdefault(str(data.get("scanned_collection")), {})
        scans[notification.timestamp_ms] = 0 if data["status"] == _EMPTY else None


@dataclass(eq=False)
class Portion:
    """Rows that one database transaction of one connector run has read: a run reads with several at once."""

    lsn: int
    ts_ms: int
    """The beginning of the transaction, by the database's clock."""
    run: str
    is_ad_hoc: bool
    """Whether its snapshot paused the stream."""
    first_ms: int = _NEVER
    """The time at which its first row was read from the database, by the connector's clock."""
    received: dict[str, int] = field(default_factory=dict)
    """Rows per table, without those written twice."""
    has_last: bool = False
    """Whether it contains the row marked ``last``."""


class RecentRows:
    """The newest rows of a partition: a producer that retries may write a batch twice."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._hashes: set[int] = set()

    def has(self, value: bytes) -> bool:
        """Returns whether it contains a row, which it does from now on."""
        key = hash(value)
        if key in self._hashes:
            return True
        self._hashes.add(key)
        self._order.append(key)
        if len(self._order) > _RECENT_ROWS:
            self._hashes.discard(self._order.popleft())
        return False


@dataclass(eq=False)
class InitialSnapshot(Waiting):
    """All attempts at the initial snapshot since the frontier, of which the newest counts."""

    newest: Portion
    """The portion that began last: its attempt is the one that counts."""
    _announced: Announcements
    _subscription: Subscription
    is_late: bool = False
    """Whether its rows are newer than its LSN: it repeats an interrupted one."""
    newest_ms: int = 0
    """The time at which the newest row was read from the database, by the connector's clock."""
    partitions: dict[PartitionQueue, RecentRows] = field(default_factory=dict)
    is_repeated: bool = False
    """Whether a row was written twice."""
    over: Waiting | None = None
    """The fence after which no more rows can come, once it was requested."""
    written_ms: int = 0
    """A lower bound of the record timestamp of the newest row."""

    def __post_init__(self) -> None:
        self.portions = {self.newest: None}

    @property
    def lsn(self) -> int:
        """The LSN at which rows are shown."""
        return self.newest.lsn

    @property
    def ts_ms(self) -> int:
        """The beginning of the newest attempt, by the database's clock."""
        return self.newest.ts_ms

    def add(self, portion: Portion) -> None:
        """Takes a further portion."""
        self.portions[portion] = None
        self.newest = max(self.newest, portion, key=lambda p: (p.ts_ms, p.lsn))

    @property
    def announcement(self) -> Announcement | None:
        """The announcement of the newest attempt; None if unknown."""
        return self._announcement(self.newest)

    def attempt(self) -> list[Portion]:
        """Returns the portions of the newest attempt."""
        newest = self.newest
        announced = self.announcement
        same = [p for p in self.portions if p.lsn == newest.lsn and self._announcement(p) is announced]
        return same if self._announced else [p for p in same if p.run == newest.run]

    def is_counted(self) -> bool:
        """Returns whether all rows of the newest attempt were read, according to the notifications."""
        announced = self.announcement
        if announced is None or not announced.is_completed or announced.unreadable:
            return False
        return all(read >= count for count, read in self._counts().values())

    def has_last(self) -> bool:
        """Returns whether the row marked ``last`` of the newest attempt was read."""
        return any(portion.has_last for portion in self.attempt())

    def expected(self) -> dict[str, int]:
        """Returns the rows per table, as far as notifications announce them."""
        return {table: count for table, (count, _) in self._counts().items()}

    def received(self) -> dict[str, int]:
        """Returns the rows per table that were read of the newest attempt."""
        counted = {table: read for table, (_, read) in self._counts().items() if read}
        return _received(self.attempt()) | counted

    def repeats_interrupted_one(self) -> bool:
        """Returns whether the newest attempt repeats an interrupted one of which something was read."""
        newest = self.newest
        if self._announced.is_again(self.announcement):
            return True
        is_known_by = self._announced or newest.run
        return len(self.attempt() if is_known_by else [newest]) < len(self.portions)

    def _announcement(self, portion: Portion) -> Announcement | None:
        return self._announced.announcement_at(portion.first_ms)

    def _counts(self) -> dict[str, tuple[int, int]]:
        """Returns per table the number of announced rows, and of those that were read.

        An ad hoc snapshot of an idle database may look like a further attempt that has only some of the
        tables. For the others an earlier attempt counts, if it was completed at the same LSN.
        """
        newest, is_followed = self.announcement, self._subscription.is_followed
        result: dict[str, tuple[int, int]] = {}
        for announced in [] if newest is None else self._announced.up_to(newest):
            portions = [p for p in self.portions if self._announcement(p) is announced]
            here = [p for p in portions if p.lsn == self.lsn]
            if announced is newest or (announced.is_completed and (here or not portions)):
                received = _received(here)
                counts = announced.scanned.items()
                result |= {t: (count, received.get(t, 0)) for t, count in counts if is_followed(t)}
        return result


def _received(portions: Iterable[Portion]) -> dict[str, int]:
    result: dict[str, int] = {}
    for portion in portions:
        for table, count in portion.received.items():
            result[table] = result.get(table, 0) + count
    return result


@dataclass(eq=False)
class TableSnapshots:
    """Knows which topics have tables without a complete snapshot."""

    _topics: SourceTopics
    _announced: Announcements
    _commits: Commits
    _partitions: Partitions
    start: InitVar[Cut | None]
    complete: InitVar[frozenset[str]]

    def __post_init__(self, start: Cut | None, complete: frozenset[str]) -> None:
        self._accepts_later = ALL_TABLES in complete
        self._tables = set(complete - {ALL_TABLES})
        self._shown = set() if start is None else start.end_offsets.keys() - set(start.without_snapshot)
        self._has_finished = bool(self._shown)
        self._ad_hoc_rows: dict[str, int] = {}
        self._behind: dict[str, EndOffsets] = {}
        self.missing: dict[str, str] = {}
        """The topics of tables without a snapshot at the newest cut, with what they lack."""

    def read_ad_hoc(self, table: str) -> None:
        """Counts a row of an ad hoc snapshot."""
        self._ad_hoc_rows[table] = self._ad_hoc_rows.get(table, 0) + 1

    def finish(self, snapshot: InitialSnapshot) -> None:
        """Notes that an initial snapshot is on the frontier."""
        self._tables |= snapshot.expected().keys() | snapshot.received().keys()
        self._has_finished = True

    def why_none(self) -> str:
        """Returns why the source has had no snapshot; empty if it has, or needs none."""
        announced = self._announced
        if not announced.has_notifications or self._tables or announced.has_completed() or announced.tables():
            return ""
        return announced.why_incomplete()

    @property
    def are_unmentioned(self) -> bool:
        """Whether no record mentions a snapshot, and the tables are not known to need none."""
        return not (self._announced.has_notifications or self._tables or self._commits.are_whole)

    def why_unmentioned(self) -> str:
        """Returns the reason that the connector writes no notifications, and how to change that."""
        return (
            "the connector writes no notifications, so nothing proves that a snapshot is complete; set "
            "notification.enabled.channels=sink and "
            f"notification.sink.topic.name={self._topics.notifications}"
        )

    @property
    def has_new_topics(self) -> bool:
        """Whether a topic is read that no cut has classified."""
        return not self._partitions.topics <= self._shown | self.missing.keys()

    def find_missing(self) -> tuple[str, ...]:
        """Returns the topics that a cut at the present frontier has to name."""
        self.missing = {}
        if self._commits.are_whole and not self._announced.has_notifications:
            self._shown |= self._partitions.topics
        for topic in self._partitions.topics - self._shown:
            reason = self._why_incomplete(topic)
            if reason:
                self.missing[topic] = reason
            else:
                self._shown.add(topic)
        return tuple(sorted(self.missing))

    # --- rules

    def _why_incomplete(self, topic: str) -> str:
        """Returns what the tables of a topic lack; empty if nothing."""
        named = {t for t in self._tables | self._announced.tables() if self._topics.data(t) == topic}
        tables = self._partitions.tables_of(topic) or named
        if not tables:
            return "" if self._is_later() else self._why_none_of("its table")
        reasons = (self._what_lacks(table) for table in sorted(tables - self._tables))
        return next(filter(None, reasons), "") or self._wait_behind(topic, tables)

    def _what_lacks(self, table: str) -> str:
        counts = self._announced.counts_of(table)
        if not counts:
            return "" if self._is_later() else self._why_none_of(table)
        if 0 in counts.values():
            return ""
        completed_ms, rows = max(counts.items())
        read = self._ad_hoc_rows.get(table, 0)
        if rows is not None and read < rows:
            return f"{read:,} of the {rows:,} rows of the snapshot of {table} can be read"
        if self._commits.newest_written_ms < completed_ms + ON_ITS_WAY_MS:
            return f"rows of the snapshot of {table} may be on their way"
        return ""

    def _why_none_of(self, table: str) -> str:
        reason = f"no completed snapshot contains {table}"
        return reason if self._announced.has_notifications else f"{reason}: {self.why_unmentioned()}"

    def _is_later(self) -> bool:
        """Returns whether a table without a snapshot was created after the first one, as an operator says."""
        if not self._accepts_later:
            return False
        return self._announced.began_with_snapshot() or (self._has_finished and not self._announced)

    def _wait_behind(self, topic: str, tables: set[str]) -> str:
        """Waits until a cut contains all rows of an ad hoc snapshot that have been read by now.

        A table that was empty in its first snapshot needs no later one.
        """
        counts = {table: self._announced.counts_of(table) for table in tables - self._tables}
        by_snapshot = (table for table, rows in counts.items() if rows and rows[min(rows)] != 0)
        if not any(table in self._ad_hoc_rows for table in by_snapshot):
            return ""
        partitions = [p for p in self._partitions if p.topic == topic]
        behind = self._behind.setdefault(topic, {p.key: p.position for p in partitions})
        is_behind = all(p.end_offset() >= behind.get(p.key, 0) for p in partitions)
        return "" if is_behind else "rows of the snapshot are above the frontier"
