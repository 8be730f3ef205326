"""The initial snapshot: its attempts, and the rows of the one that counts.

The rows of an initial snapshot carry one LSN and together are one pseudo-transaction. It is complete by the
counts in Debezium's notifications, rows that the producer wrote twice left out.

An interrupted attempt is void; the next one repeats everything. It usually has a higher LSN, but the same
when nothing was written to the database in between, and a lower one was seen. So attempts are kept apart by
time: the portion of rows that was begun last says which announcement counts, and every portion counts for the
announcement of its own time only. Without announcements the connector's run keeps them apart. Where records
do not name that either, every further portion may be of another attempt.
"""

from collections import deque
from collections.abc import Iterable

from slackwater_cdc.announcements import Announcement, Announcements
from slackwater_cdc.partition_queues import PartitionQueue
from slackwater_cdc.pending import Waiting
from slackwater_cdc.subscription import Subscription

_RECENT_ROWS = 20_000
"""Rows of a partition that are compared with the next one: more than one batch of a producer holds."""
_NEVER = 1 << 63


class Portion:
    """Rows that one database transaction of one connector run has read: a run reads with several at once."""

    __slots__ = ("first_ms", "has_last", "is_ad_hoc", "lsn", "received", "run", "ts_ms")

    def __init__(self, lsn: int, ts_ms: int, run: str, *, is_ad_hoc: bool) -> None:
        self.lsn = lsn
        self.ts_ms = ts_ms
        """The beginning of the transaction, by the database's clock."""
        self.run = run
        self.is_ad_hoc = is_ad_hoc
        """Whether its snapshot paused the stream."""
        self.first_ms = _NEVER
        """The time at which its first row was read from the database, by the connector's clock."""
        self.received: dict[str, int] = {}
        """Rows per table, those written twice left out."""
        self.has_last = False
        """Whether the row marked ``last`` is among them."""


class RecentRows:
    """The newest rows of a partition: a producer that tries again may write a batch twice."""

    __slots__ = ("_hashes", "_order")

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._hashes: set[int] = set()

    def has(self, value: bytes) -> bool:
        """Returns whether a row is among them; it is from now on."""
        key = hash(value)
        if key in self._hashes:
            return True
        self._hashes.add(key)
        self._order.append(key)
        if len(self._order) > _RECENT_ROWS:
            self._hashes.discard(self._order.popleft())
        return False


class InitialSnapshot(Waiting):
    """All attempts at the initial snapshot since the frontier, of which the newest counts.

    Args:
        first: The first portion that was read.
        announced: The notifications; only read.
        subscription: The tables that are followed.
    """

    __slots__ = (
        "_announced",
        "_subscription",
        "is_late",
        "is_repeated",
        "newest",
        "newest_ms",
        "over",
        "partitions",
        "portions",
        "written_ms",
    )

    def __init__(self, first: Portion, announced: Announcements, subscription: Subscription) -> None:
        super().__init__()
        self._announced = announced
        self._subscription = subscription
        self.portions = {first: None}
        self.newest = first
        """The portion that was begun last: its attempt is the one that counts."""
        self.is_late = False
        """Whether its rows are newer than its LSN: it repeats an interrupted one."""
        self.newest_ms = 0
        """The time at which the newest row was read from the database, by the connector's clock."""
        self.partitions: dict[PartitionQueue, RecentRows] = {}
        self.is_repeated = False
        """Whether a row was written twice."""
        self.over: Waiting | None = None
        """The fence behind which no more rows can come, once it was asked for."""
        self.written_ms = 0
        """Record timestamp, at least, of the newest row."""

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
        """The announcement of the newest attempt; None if that is not known."""
        return self._announcement(self.newest)

    def attempt(self) -> list[Portion]:
        """Returns the portions of the newest attempt."""
        newest = self.newest
        announced = self.announcement
        same = [p for p in self.portions if p.lsn == newest.lsn and self._announcement(p) is announced]
        return same if self._announced else [p for p in same if p.run == newest.run]

    def is_counted(self) -> bool:
        """Returns whether the notifications say that all rows of the newest attempt were read."""
        announced = self.announcement
        if announced is None or not announced.is_completed or announced.unreadable:
            return False
        return all(read >= count for count, read in self._counts().values())

    def has_last(self) -> bool:
        """Returns whether the row marked ``last`` of the newest attempt was read."""
        return any(portion.has_last for portion in self.attempt())

    def expected(self) -> dict[str, int]:
        """Returns the rows per table, as far as the notifications say."""
        return {table: count for table, (count, _) in self._counts().items()}

    def received(self) -> dict[str, int]:
        """Returns the rows per table that were read of the newest attempt."""
        counted = {table: read for table, (_, read) in self._counts().items() if read}
        return _received(self.attempt()) | counted

    def repeats_interrupted_one(self) -> bool:
        """Returns whether the newest attempt repeats one that was interrupted, with rows or a start read."""
        newest = self.newest
        if self._announced.is_again(self.announcement):
            return True
        is_known_by = self._announced or newest.run
        return len(self.attempt() if is_known_by else [newest]) < len(self.portions)

    def _announcement(self, portion: Portion) -> Announcement | None:
        return self._announced.announcement_at(portion.first_ms)

    def _counts(self) -> dict[str, tuple[int, int]]:
        """Returns per table the number of announced rows, and of those that were read.

        An ad hoc snapshot of an idle database may look like a further attempt, but has some of the tables
        only: for the others an earlier attempt counts, if it was completed at the same LSN.
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
