"""Merges commit records with the documents that they name. Pure: records in, whole transactions out."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slackwater.cdc.batch import Record
from slackwater.client.queues import PartitionQueue, PartitionQueues
from slackwater.client.shares import Share, divide, select
from slackwater.client.transaction import Commit, LanePosition, Piece, Place
from slackwater.protocol import CommitRecord
from slackwater.protocol.commit_lookup import PlacedCommit

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
        topics: The output topics that are wanted.
        share: How members share the work.
        max_bytes: See :class:`PartitionQueues`.
        lanes: The lanes of this member, and their positions.
    """

    def __init__(
        self, topics: Sequence[str], share: Share, max_bytes: int, lanes: Mapping[int, LanePosition]
    ) -> None:
        self._topics = topics
        self._share = share
        self.queues = PartitionQueues(max_bytes)
        self._lanes = {lane: position.log_offset for lane, position in sorted(lanes.items())}
        self._expected: deque[_Expected] = deque()

    is_over = False

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
        if not self._expected:
            return None
        front = self._expected[0]
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
        return Piece(
            commit_of(front.placed.record),
            mine,
            is_whole,
            front.lanes,
            elsewhere,
            LanePosition(front.placed.offset + 1, front.placed.position),
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
