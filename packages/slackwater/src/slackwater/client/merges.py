"""How commits find the records that they name: what merges have in common, and that of outputs. Pure."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slackwater.cdc.batch import Record
from slackwater.client.inputs import Share, divide, select
from slackwater.client.transaction import Commit, LanePosition, Piece, Place
from slackwater.protocol import CommitPosition, CommitRecord
from slackwater.protocol.commit_lookup import PlacedCommit

_RECORD_BYTES = 400
"""What a record takes besides its value, about: objects of Python and of the client."""


class PartitionQueue:
    """Records of one partition in their order."""

    __slots__ = ("_begin", "_offsets", "_records", "position", "size")

    def __init__(self, start: int) -> None:
        self.position = start
        """Everything below was read: records with higher offsets come, or nothing does."""
        self.size = 0
        """Bytes, about."""
        self._records: list[Record] = []
        self._offsets: list[int] = []
        self._begin = 0

    def add(self, records: Sequence[Record], position: int) -> None:
        """Takes records behind those that it has, and the offset that was reached."""
        self._records += records
        self._offsets += [record.offset() or 0 for record in records]
        self.size += size_of(records)
        self.position = max(self.position, position)

    def take_below(self, bound: int) -> list[Record]:
        """Removes and returns the records below an offset."""
        begin = self._begin
        end = bisect_left(self._offsets, bound, begin)
        if end == begin:
            return []
        taken = self._records[begin:end]
        self.size -= size_of(taken)
        if 2 * end >= len(self._records):
            del self._records[:end], self._offsets[:end]
            end = 0
        self._begin = end
        return taken


class PartitionQueues:
    """The queues of all partitions that are read, and when they have enough.

    Args:
        max_bytes: From here on only partitions are read that the next transaction waits for. From twice as
            much on a transaction is streamed.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._queues: dict[Place, PartitionQueue] = {}
        self._starts: dict[Place, int] = {}

    def start(self, place: Place, offset: int) -> PartitionQueue:
        """Returns a partition's queue; a new one begins at the offset, and is to be read from there."""
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = PartitionQueue(offset)
            self._starts[place] = offset
        return queue

    def take_starts(self) -> dict[Place, int]:
        """Returns the partitions that nobody reads yet, and from where on; each once."""
        starts, self._starts = self._starts, {}
        return starts

    def add(self, place: Place, records: Sequence[Record], position: int) -> None:
        """Takes what was read of a partition."""
        queue = self._queues.get(place)
        if queue is not None:
            queue.add(records, position)

    def paused(self, needed: Iterable[Place], held: int = 0) -> frozenset[Place]:
        """Returns the partitions that must not be read now, as ``held`` bytes are kept elsewhere."""
        if self.size + held < self._max_bytes:
            return frozenset()
        return frozenset(self._queues).difference(needed)

    def is_overfull(self, held: int = 0) -> bool:
        """Says that what the next transaction has already is too much to wait for the rest of it."""
        return self.size + held >= 2 * self._max_bytes

    @property
    def size(self) -> int:
        """Bytes in all queues, about."""
        return sum(queue.size for queue in self._queues.values())


def size_of(records: Iterable[Record]) -> int:
    """Returns the bytes that records take in memory, about."""
    return sum([_RECORD_BYTES + len(record.value() or b"") for record in records])


_ENOUGH = 2_000
"""Deliveries that are known in advance: the partitions of the nearest ones are read together."""


@dataclass(slots=True)
class _Expected:
    """What is to be delivered at once."""

    placed: PlacedCommit
    lanes: tuple[int, ...]
    parts: list[tuple[Place, PartitionQueue, int, int]]
    """Partition, its queue, the first offset, and the one behind the last."""
    is_open: bool = False
    """Whether its first piece was handed out."""

    @property
    def is_whole(self) -> bool:
        """True if all of it was read."""
        return all(queue.position >= end for _, queue, _, end in self.parts)

    @property
    def missing(self) -> list[Place]:
        """The partitions that it waits for."""
        return [place for place, queue, _, end in self.parts if queue.position < end]


class OutputMerge:
    """Finds each commit's documents among those of the output's partitions.

    Partitions are read from the first document on that a commit names, and then on and on. Documents that no
    commit names are dropped. Documents that a commit names and that are not there were removed by
    compaction: a later commit has replaced them.

    Args:
        revision: The revision of the pipeline that positions name; None: readers are not switched.
        is_left: Says whether lanes that have processed a commit continue elsewhere.
    """

    def __init__(
        self,
        topics: Sequence[str],
        share: Share,
        max_bytes: int,
        lanes: Mapping[int, LanePosition],
        revision: int | None = None,
        is_left: Callable[[CommitPosition], bool] = lambda _: False,
    ) -> None:
        self._topics, self._share = topics, share
        self._revision, self._is_left = revision, is_left
        self._done = min(position.done or CommitPosition(0, 0) for position in lanes.values())
        """What is processed: of some lane at the beginning, then of those that were handed something."""
        self.queues = PartitionQueues(max_bytes)
        self._lanes = {lane: position.log_offset for lane, position in sorted(lanes.items())}
        self._expected: deque[_Expected] = deque()
        self.is_over = False
        """Whether its lanes continue elsewhere: then a new merge begins with them."""

    @property
    def wants_commits(self) -> bool:
        """True if it can take more commits."""
        return len(self._expected) < _ENOUGH

    @property
    def waits(self) -> bool:
        """True if a commit is known whose documents are not all here."""
        return bool(self._expected)

    def expect(self, placed: PlacedCommit) -> None:
        """Takes the next commit record."""
        offsets = placed.record.offsets
        ranges = {
            (topic, partition): (held.first_offset, held.last_offset + 1)
            for topic in self._topics
            for partition, held in offsets.get(topic, {}).items()
        }
        lanes = [lane for lane, log_offset in self._lanes.items() if log_offset <= placed.offset]
        for of_lanes, found in divide(self._share, ranges, lanes):
            start = self.queues.start
            parts = [(place, start(place, first), first, end) for place, (first, end) in found.items()]
            self._expected.append(_Expected(placed, of_lanes, parts))

    def paused(self) -> frozenset[Place]:
        """See :class:`PartitionQueues`."""
        return self.queues.paused(self._expected[0].missing if self._expected else ())

    def next(self) -> Piece | None:
        """Returns the next transaction, or stretch of one; None: more has to be read."""
        front = self._expected[0] if self._expected else None
        if (front is None or not front.is_open) and self._is_left(self._done):
            self.is_over = True
            return None
        if front is None:
            return None
        is_whole = front.is_whole
        if not (is_whole or front.is_open or self.queues.is_overfull()):
            return None
        records: list[Record] = []
        for _, queue, first, end in front.parts:
            queue.take_below(first)
            records += queue.take_below(end)
        if front.is_open and not records and not is_whole:
            return None
        return self._piece(front, records, is_whole=is_whole)

    def _piece(self, front: _Expected, records: list[Record], *, is_whole: bool) -> Piece:
        mine, elsewhere = select(self._share, front.lanes, records)
        front.is_open = True
        if is_whole:
            self._expected.popleft()
        by_partition = self._share.is_by_partition
        self._done = front.placed.position
        return Piece(
            commit_of(front.placed.record),
            mine,
            is_whole,
            front.lanes,
            elsewhere,
            LanePosition(front.placed.offset + 1, self._done, self._revision),
            {place: end for place, _, _, end in front.parts} if by_partition else {},
        )


def commit_of(record: CommitRecord) -> Commit:
    """Returns the commit that a commit record names."""
    return Commit(
        source=record.source,
        timeline=record.timeline,
        lsn=record.commit_lsn,
        xid=record.xid,
        commit_ts_ms=record.commit_ts_ms,
        skipped=record.skipped,
    )
