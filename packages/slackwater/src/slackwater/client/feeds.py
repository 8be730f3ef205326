"""How a consumer reads outputs of a pipeline, or Debezium's own topics: where it begins, what comes next."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from slackwater.cdc.initial_snapshot import SNAPSHOT_HINT
from slackwater.client.broker import Stored
from slackwater.client.changes import ChangeMerge
from slackwater.client.inputs import ChangeTopics
from slackwater.client.log import Log
from slackwater.client.outputs import OutputMerge
from slackwater.client.queues import PartitionQueues
from slackwater.client.shares import Share
from slackwater.client.transaction import LanePosition, Piece, Place
from slackwater.protocol import CommitPosition, PublishedCut, StateError
from slackwater.protocol.commit_lookup import (
    PlacedCommit,
    Reached,
    first_reached,
    has_reached_lsn,
    has_reached_offset,
)


class Merge(Protocol):
    """A pure state machine: receives commits and records, and returns whole transactions."""

    @property
    def queues(self) -> PartitionQueues:
        """Receives the records, and knows from where on which partitions are to be read."""
        ...

    @property
    def wants_commits(self) -> bool:
        """True if it can take more commits."""
        ...

    @property
    def waits(self) -> bool:
        """True if it has to be given records."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether its lanes continue elsewhere: then a new merge begins with them."""
        ...

    def paused(self) -> frozenset[Place]:
        """Returns the partitions that must not be read now."""
        ...

    def next(self) -> Piece | None:
        """Returns the next transaction, or stretch of one; None: more has to be read."""
        ...


class Feed(Protocol):
    """What a consumer does differently for outputs and change topics. Methods wait for Kafka's answers."""

    def begin(self, lanes: Mapping[int, LanePosition]) -> tuple[Mapping[int, LanePosition], Merge]:
        """Starts over at the positions of lanes, of which there is one at least.

        Returns where they continue: in another log if readers were switched to another revision.
        """
        ...

    def read_commits(self, seconds: float) -> None:
        """Tells the merge of new commits, as soon as there are any."""
        ...

    def at_start(self, *, latest: bool) -> LanePosition:
        """Returns where a lane without a position begins."""
        ...

    def at_commit(self, position: CommitPosition) -> LanePosition:
        """Returns the position before a commit."""
        ...

    def at_time(self, time_ms: int) -> LanePosition:
        """Returns the position before the first commit at or after a time."""
        ...

    def at_offsets(self, lane: int, offsets: Mapping[Place, int]) -> LanePosition:
        """Returns the position that offsets of a lane's partitions stand for, or an earlier one."""
        ...

    def at_log_offset(self, stored: Stored) -> LanePosition:
        """Returns the position that an offset of the log stands for."""
        ...

    def close(self) -> None:
        """Frees connections."""
        ...


class OutputFeed:
    """Implements :class:`Feed`: commit records and the documents that they name."""

    def __init__(self, topics: Sequence[str], share: Share, max_bytes: int, log: Log[PlacedCommit]) -> None:
        self._topics, self._share, self._max_bytes, self.log = topics, share, max_bytes, log

    def begin(self, lanes: Mapping[int, LanePosition]) -> tuple[Mapping[int, LanePosition], Merge]:
        """See the protocol."""
        self._merge = OutputMerge(self._topics, self._share, self._max_bytes, lanes)
        first = min(position.log_offset for position in lanes.values())
        self.log.check(first)
        self.log.follow(first)
        return lanes, self._merge

    def read_commits(self, seconds: float) -> None:
        """See the protocol."""
        for placed in self.log.read(seconds):
            self._merge.expect(placed)

    def at_start(self, *, latest: bool) -> LanePosition:
        """See the protocol."""
        low, end = self.log.bounds()
        return LanePosition(end if latest else low)

    def at_commit(self, position: CommitPosition) -> LanePosition:
        """See the protocol."""
        return self._first(has_reached_lsn(position))

    def at_time(self, time_ms: int) -> LanePosition:
        """See the protocol."""
        return self._first(lambda record: record.commit_ts_ms >= time_ms)

    def at_offsets(self, lane: int, offsets: Mapping[Place, int]) -> LanePosition:
        """See the protocol."""
        found = [
            self._first(has_reached_offset(topic, lane, offsets.get((topic, lane), 0)))
            for topic in self._topics
        ]
        return min(found)

    def at_log_offset(self, stored: Stored) -> LanePosition:
        """See the protocol."""
        return LanePosition(stored.offset)

    def close(self) -> None:
        """See the protocol."""
        self.log.close()

    def _first(self, reached: Reached) -> LanePosition:
        low, end = self.log.bounds()
        placed = first_reached(low, end, self.log.first, reached)
        return LanePosition(end if placed is None else placed.offset)


class ChangeFeed:
    """Implements :class:`Feed`: cuts and the change records between them.

    Reading raises :class:`StateError` while the newest cut names a table without a complete snapshot.
    """

    def __init__(self, inputs: ChangeTopics, share: Share, max_bytes: int, log: Log[PublishedCut]) -> None:
        self._inputs, self._share, self._max_bytes, self._log = inputs, share, max_bytes, log
        self._judged = 0
        """Cuts below this offset of the log are not newer than one that names none of the tables."""

    def begin(self, lanes: Mapping[int, LanePosition]) -> tuple[Mapping[int, LanePosition], Merge]:
        """See the protocol."""
        base = {position: self._base(position) for position in set(lanes.values())}
        cuts = {lane: None if (at := base[p]) is None else at.cut for lane, p in lanes.items()}
        self._merge = ChangeMerge(self._inputs, self._share, self._max_bytes, lanes, cuts)
        self._check_snapshots()
        first = min(0 if at is None else at.log_offset + 1 for at in base.values())
        self._log.check(first)  # a log that has lost the cut of a position does not begin at 0
        self._log.check(max(position.log_offset for position in lanes.values()))
        self._log.follow(first)
        return lanes, self._merge

    def read_commits(self, seconds: float) -> None:
        """See the protocol."""
        for published in self._log.read(seconds):
            if published.log_offset >= self._judged and self._without_snapshot(published):
                self._check_snapshots()
            self._merge.expect(published)

    def at_start(self, *, latest: bool) -> LanePosition:
        """See the protocol."""
        newest = self._newest(self._log.bounds()[1], lambda _: True) if latest else None
        return LanePosition(0) if newest is None else _behind(newest)

    def at_commit(self, position: CommitPosition) -> LanePosition:
        """See the protocol."""
        low, end = self._log.bounds()
        base = self._newest(end, lambda found: found.cut.position < position)
        start = low if base is None else base.log_offset + 1
        return self._before(start, lambda found, _: found >= position)

    def at_time(self, time_ms: int) -> LanePosition:
        """See the protocol."""
        return self._before(self._log.bounds()[0], lambda _, commit_ts_ms: commit_ts_ms >= time_ms)

    def at_offsets(self, lane: int, offsets: Mapping[Place, int]) -> LanePosition:
        """See the protocol."""

        def is_below(found: PublishedCut) -> bool:
            ends = self._inputs.places_of(found.cut, lane)
            return all(end <= offsets.get(place, 0) for place, end in ends.items())

        newest = self._newest(self._log.bounds()[1], is_below)
        return LanePosition(0) if newest is None else _behind(newest)

    def at_log_offset(self, stored: Stored) -> LanePosition:
        """See the protocol."""
        if stored.metadata:
            return LanePosition.parse(stored.metadata)
        newest = self._newest(stored.offset, lambda _: True)
        return LanePosition(0) if newest is None else _behind(newest)

    def close(self) -> None:
        """See the protocol."""
        self._log.close()

    def _check_snapshots(self) -> None:
        """Refuses tables if the newest cut does not know the rows that they had before."""
        newest = self._newest(self._log.bounds()[1], lambda _: True)
        if newest is None:
            return
        missing = self._without_snapshot(newest)
        if missing:
            source = self._inputs.source
            hint = f"{SNAPSHOT_HINT}; `slackwater status --source {source}` says what is lacking"
            problem = (
                f"source {source!r}: no complete snapshot contains the tables of {', '.join(missing)}, so "
                "nothing of them is delivered"
            )
            raise StateError(problem, hint)
        self._judged = newest.log_offset + 1

    def _without_snapshot(self, published: PublishedCut) -> list[str]:
        return [topic for topic in self._inputs.data_topics if topic in published.cut.without_snapshot]

    def _base(self, position: LanePosition) -> PublishedCut | None:
        """Finds the newest cut that a position has passed; None: the log has none, or has lost it."""
        done = position.done
        if done is None:
            return None
        return self._newest(position.log_offset + 1, lambda each: each.cut.position <= done)

    def _before(self, start: int, is_wanted: Callable[[CommitPosition, int], bool]) -> LanePosition:
        """Returns the position before the first wanted transaction of the cuts from an offset on."""
        for published in self._log.entries(start, self._log.bounds()[1]):
            cut = published.cut
            done = CommitPosition(cut.timeline, cut.previous_lsn)
            for transaction in cut.transactions:
                position = CommitPosition(cut.timeline, transaction.commit_lsn)
                if is_wanted(position, transaction.commit_ts_ms):
                    return LanePosition(published.log_offset, done)
                done = position
        return self.at_start(latest=True)

    def _newest(self, end: int, is_wanted: Callable[[PublishedCut], bool]) -> PublishedCut | None:
        """Returns the newest of the cuts below an offset of the log that are wanted."""
        found = self._log.newest(end, is_wanted=is_wanted)
        return max(found, key=lambda each: each.cut.position, default=None)


def _behind(published: PublishedCut) -> LanePosition:
    return LanePosition(published.log_offset + 1, published.cut.position)
