"""The partitions of a source's data topics: their progress, and the queues of what is not passed yet.

Pending items hold back the end offsets of cuts. Some of them wait until the partitions were read past a
fence: the end offsets at some moment. A reader that is past them has read everything that was readable then.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from slackwater.protocol import SourceTopics

EndOffsets = Mapping[tuple[str, int], int]
"""(topic, partition) to the first offset that was not readable at the time of the request."""

_UNKNOWN = 1 << 62


class Pending(Protocol):
    """Something whose records hold back the end offsets of cuts until it is done.

    Its owner changes it; the queues of partitions only read it.
    """

    is_done: bool
    """Whether the frontier has passed it, or it turned out to be void."""
    sequence: int | None
    """The position in the commit order; None while unknown."""
    fence: EndOffsets | None
    """End offsets that were requested when everything else pointed to completeness."""

    @property
    def is_transaction(self) -> bool:
        """Whether it is a transaction: those are in the order of their commits in every partition."""


@dataclass(eq=False)
class Waiting:
    """Implements :class:`Pending` for everything that is not a transaction."""

    is_transaction: ClassVar[bool] = False

    is_done: bool = field(default=False, init=False)
    sequence: int | None = field(default=None, init=False)
    fence: EndOffsets | None = field(default=None, init=False)


@dataclass(eq=False)
class Obstacle(Waiting):
    """A record that cannot be attributed to a transaction: no cut ever passes it."""

    topic: str
    partition: int
    offset: int
    detail: str
    is_misconfiguration: bool = field(kw_only=True)
    """Whether the connector lacks a setting, as opposed to an unreadable value."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} offset {self.offset}: {self.detail}"


class PartitionQueue:
    """The progress in one partition of a data topic, and everything that holds back its end offset.

    The first records of transactions are in commit order in a partition, so a queue of them yields the end
    offset of any cut. The reader of the partition appends; the owner of a pending item marks it as done.
    """

    def __init__(self, topic: str, number: int, start: int) -> None:
        self.topic = topic
        self.number = number
        self.start = start
        """The offset at which reading began."""
        self.position = start
        """The next offset to be read, as far as known."""
        self.tables: set[str] = set()
        """Tables with rows that were read here."""
        self.run = ""
        """The connector run that wrote the current records; empty if they do not name it."""
        self.timestamp_ms = 0
        """A lower bound of the record timestamp of what was read last."""
        self.has_new_siblings = False
        """Whether partitions were added to the topic: a repeated row may be in another one."""
        self.has_keyless_rows = False
        """Whether a repeated row may be in another partition: rows without keys, added partitions."""
        self._firsts: deque[tuple[Pending, int, str]] = deque()
        self._passed_sequence = 0

    @property
    def key(self) -> tuple[str, int]:
        """Topic and number."""
        return self.topic, self.number

    @property
    def backlog(self) -> int:
        """An upper bound of the number of transactions above the frontier with rows here."""
        return len(self._firsts)

    def skip_to(self, position: int) -> None:
        """Notes that nothing more can be read below an offset: gaps, markers of Kafka transactions."""
        self.position = max(self.position, position)

    def append(self, pending: Pending, offset: int) -> None:
        """Queues something that holds back end offsets from an offset on."""
        self._firsts.append((pending, offset, self.run))

    def newest(self) -> Pending | None:
        """Returns the last in the queue, done or not; None if it is empty."""
        return self._firsts[-1][0] if self._firsts else None

    def front(self) -> Pending | None:
        """Returns the first in the queue that is not done; None if nothing here is above the frontier."""
        firsts = self._firsts
        while firsts and firsts[0][0].is_done:
            done = firsts.popleft()[0]
            if done.is_transaction:
                self._passed_sequence = max(self._passed_sequence, done.sequence or 0)
        return firsts[0][0] if firsts else None

    def end_offset(self) -> int:
        """Returns the end offset of a cut at the present frontier."""
        return self.position if self.front() is None else self._firsts[0][1]

    def last_sequence_before(self, transaction: Pending) -> int | None:
        """Returns the largest sequence before a transaction's last rows; None if one has none yet."""
        largest = found = 0
        for pending, _, _ in self._firsts:
            if pending is transaction:
                found = largest
            elif not pending.is_done and pending.sequence is None:
                largest = _UNKNOWN
            elif not pending.is_done:
                largest = max(largest, pending.sequence or 0)
        return None if found == _UNKNOWN else found

    def newest_sequence(self) -> int:
        """Returns the largest sequence of a transaction with END that has rows here; 0 without one."""
        transactions = (p for p, _, _ in reversed(self._firsts) if p.is_transaction)
        known = (t.sequence for t in transactions if t.sequence is not None)
        return next(known, self._passed_sequence)

    def newest_certain(self) -> tuple[int, int] | None:
        """Returns the sequence and first offset of the newest transaction with END before anything undecided.

        Order within a partition is commit order, so all commits before that one are complete here.
        """
        firsts: dict[int, int] = {}
        for pending, offset, _ in self._firsts:
            if pending.is_done:
                continue
            if pending.sequence is None or not pending.is_transaction:
                break
            firsts.setdefault(pending.sequence, offset)
        newest = max(firsts, default=None)
        return None if newest is None else (newest, firsts[newest])

    def runs_after(self, sequence: int) -> frozenset[str]:
        """Returns the connector runs that wrote rows of later commits here."""
        return frozenset(
            run
            for p, _, run in self._firsts
            if p.is_transaction and p.sequence is not None and p.sequence > sequence
        )

    def has_streamed_rows(self) -> bool:
        """Returns whether a row of a transaction above the frontier was read here."""
        return any(first[0].is_transaction for first in self._firsts)


class Partitions:
    """All declared partitions."""

    def __init__(self, topics: SourceTopics, counts: Mapping[str, int]) -> None:
        self._topics = topics
        self._by_key: dict[tuple[str, int], PartitionQueue] = {}
        self._by_topic: dict[str, list[PartitionQueue]] = {}
        self._counts = dict(counts)
        self._remembered = 0

    def __iter__(self) -> Iterator[PartitionQueue]:
        return iter(self._by_key.values())

    def add(self, partition: PartitionQueue) -> None:
        """Takes a partition that was not known before."""
        self._by_key[partition.key] = partition
        siblings = self._by_topic.setdefault(partition.topic, [])
        siblings.append(partition)
        if len(siblings) > self._counts.get(partition.topic, len(siblings)):
            for each in siblings:  # a key may have moved to another one
                each.has_new_siblings = True

    def remember_counts(self) -> None:
        """Treats partitions that are added from now on as new: their topics have grown."""
        if len(self._by_key) != self._remembered:
            self._remembered = len(self._by_key)
            self._counts |= {topic: len(partitions) for topic, partitions in self._by_topic.items()}

    @property
    def topics(self) -> Set[str]:
        """The topics that are read."""
        return self._by_topic.keys()

    def tables_of(self, topic: str) -> set[str]:
        """Returns the tables with rows that were read in a topic."""
        return {table for p in self._by_topic.get(topic, ()) for table in p.tables}

    def with_table(self, table: str) -> list[PartitionQueue]:
        """Returns the partitions of a table: its topic is named after it, or contained rows of it."""
        topic = self._topics.data(table)
        return [p for p in self._by_key.values() if p.topic == topic or table in p.tables]

    def end_offsets(self) -> dict[str, tuple[int, ...]]:
        """Returns the end offsets of a cut at the present frontier, by topic."""
        return {
            topic: tuple(p.end_offset() for p in sorted(partitions, key=lambda p: p.number))
            for topic, partitions in sorted(self._by_topic.items())
        }


class Fences:
    """Requests end offsets for everything that waits for them; one answer serves all."""

    def __init__(self) -> None:
        self._waiting: list[Pending] = []

    @property
    def are_wanted(self) -> bool:
        """Whether something waits for end offsets."""
        return bool(self._waiting)

    def answer(self, ends: EndOffsets) -> None:
        """Takes end offsets that were requested after everything up to now was read."""
        for pending in self._waiting:
            pending.fence = ends
        self._waiting.clear()

    def fence(self, pending: Pending) -> EndOffsets | None:
        """Returns the end offsets that something must be read past; requests them at the first call."""
        if pending.fence is None and pending not in self._waiting:
            self._waiting.append(pending)
        return pending.fence

    def is_read_past(self, pending: Pending, partitions: Iterable[PartitionQueue]) -> bool:
        """Returns whether partitions were read past the end offsets that something waits for."""
        fence = self.fence(pending)
        return fence is not None and all(p.position >= fence.get(p.key, 0) for p in partitions)
