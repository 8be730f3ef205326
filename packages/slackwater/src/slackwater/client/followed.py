"""Follows readers from one revision of a pipeline to the next, at one commit."""

from collections.abc import Iterable, Mapping, Sequence

from slackwater.cdc.batch import Record
from slackwater.client.broker import Broker, Stored
from slackwater.client.feeds import ChangeFeed, Feed, Merge, OutputFeed
from slackwater.client.inputs import ChangeTopics, Inputs, OutputTopics
from slackwater.client.log import Log, commit_log, cut_log
from slackwater.client.readers import never_switched
from slackwater.client.shares import Share
from slackwater.client.transaction import LanePosition, Piece, Place
from slackwater.protocol import (
    Clock,
    CommitPosition,
    ConfigError,
    ReaderSwitch,
    StateError,
    decode_reader_switch,
)
from slackwater.protocol.commit_lookup import PlacedCommit, first_reached, has_reached_lsn
from slackwater.protocol.keys import commit_topic, readers_topic

_AGAIN_SECONDS = 0.1
"""The interval of checks whether the other revision has reached a commit."""


def switch_log(broker: Broker, pipeline: str, clock: Clock) -> Log[ReaderSwitch]:
    """Returns the switches of a pipeline's readers; the newest one counts.

    Args:
        broker: Where it is.
        pipeline: The name without a revision.
        clock: For deadlines.
    """
    return Log(broker, readers_topic(pipeline), _decode, clock)


def place_behind(commits: Log[PlacedCommit], position: CommitPosition) -> int | None:
    """Returns where a commit log continues after a commit up to which another revision was read.

    None: nowhere, or not yet. The log has not come so far, or a batch of it has changes from before the
    commit and from behind it.
    """
    placed = first_reached(*commits.bounds(), commits.first, has_reached_lsn(position))
    if placed is None:
        return None
    if placed.position == position:
        return placed.offset + 1
    record = placed.record
    begins = CommitPosition(record.timeline, record.previous_lsn)
    return placed.offset if record.xid is not None or begins >= position else None


class FollowedFeed:
    """Implements :class:`slackwater.client.feeds.Feed` over whichever revision is read.

    A lane's position names the revision that it is in. It goes over at the first commit at or behind that of
    the newest switch at which it has processed everything, and the other revision ended a batch, too.

    Args:
        broker: Where topics are.
        pipeline: The name without a revision.
        views: The views that are wanted.
        share: How members share the work.
        max_bytes: See :class:`~slackwater.client.queues.PartitionQueues`.
        clock: For deadlines.

    Raises:
        ConfigError: Readers were never switched, or a view is not in the revision that they read.
    """

    def __init__(
        self, broker: Broker, pipeline: str, views: Sequence[str], share: Share, max_bytes: int, clock: Clock
    ) -> None:
        self._broker, self._pipeline, self._views = broker, pipeline, views
        self._share, self._max_bytes, self._clock = share, max_bytes, clock
        if not broker.partitions(readers_topic(pipeline)):
            raise never_switched(pipeline)
        self._log = switch_log(broker, pipeline, clock)
        self._switches: dict[int, ReaderSwitch] = {}
        """By revision the newest switch to it, in the order of the switches."""
        self._feeds: dict[int, OutputFeed] = {}
        self._reads: int | None = None
        """The revision whose commits are read now."""
        self._asked: tuple[tuple[int, CommitPosition], float] | None = None
        """The last search without result, and its time."""
        self._log.follow(self._catch_up())
        if not self._switches:
            raise never_switched(pipeline)
        self._feed(self._newest.revision)

    def begin(self, lanes: Mapping[int, LanePosition]) -> tuple[Mapping[int, LanePosition], Merge]:
        """See the protocol. Lanes of an earlier revision finish it first; the others wait for them."""
        self._catch_up()
        lanes = {lane: self._moved(position) for lane, position in lanes.items()}
        newest = self._newest.revision
        behind = [each.revision for each in lanes.values() if each.revision not in (None, newest)]
        self._reads = behind[0] if behind else newest
        mine = {lane: each for lane, each in lanes.items() if each.revision == self._reads}
        merge = self._feed(self._reads).begin(mine)[1]
        return lanes, _FollowedMerge(merge, self._reads, mine, self)

    def is_left(self, revision: int, done: CommitPosition) -> bool:
        """Returns whether lanes that have processed a commit of a revision continue in another one."""
        newest = self._newest
        return revision != newest.revision and done >= newest.position and self._place(done) is not None

    def read_commits(self, seconds: float) -> None:
        """See the protocol."""
        self._note(self._log.read(0))
        if self._reads is not None:
            self._feed(self._reads).read_commits(seconds)

    def at_start(self, *, latest: bool) -> LanePosition:
        """See the protocol: in the revision that is read now."""
        feed = self._newest_feed()
        start = feed.at_start(latest=latest)
        if latest:  # a commit that is done: a switch may come before the next one
            end = start.log_offset
            found = feed.log.newest(end)
            start = LanePosition(end, found[-1].position if found else None)
        return self._of_newest(start)

    def at_commit(self, position: CommitPosition) -> LanePosition:
        """See the protocol: in the revision that is read now."""
        return self._of_newest(self._newest_feed().at_commit(position))

    def at_time(self, time_ms: int) -> LanePosition:
        """See the protocol: in the revision that is read now."""
        return self._of_newest(self._newest_feed().at_time(time_ms))

    def at_offsets(self, lane: int, offsets: Mapping[Place, int]) -> LanePosition:
        """Raises: work is never shared by partitions here."""
        raise NotImplementedError

    def at_log_offset(self, stored: Stored) -> LanePosition:
        """See the protocol: what was stored names the revision."""
        return LanePosition.parse(stored.metadata)

    def close(self) -> None:
        """See the protocol."""
        self._log.close()
        for feed in self._feeds.values():
            feed.close()

    @property
    def _newest(self) -> ReaderSwitch:
        *_, newest = self._switches.values()
        return newest

    def _newest_feed(self) -> OutputFeed:
        """Returns the feed of the revision that is read now."""
        self._catch_up()
        return self._feed(self._newest.revision)

    def _catch_up(self) -> int:
        """Reads every switch that there is; returns where the next one will be."""
        low, end = self._log.bounds()
        self._note(self._log.entries(low, end))
        return end

    def _note(self, switches: Iterable[ReaderSwitch]) -> None:
        for each in switches:
            self._switches.pop(each.revision, None)
            self._switches[each.revision] = each

    def _moved(self, position: LanePosition) -> LanePosition:
        if position.revision is None:
            raise StateError(
                f"position {position} does not name a revision of pipeline {self._pipeline!r}",
                "it was stored for another kind of input; use another group, and start it with seek()",
            )
        done = position.done
        if done is None or not self.is_left(position.revision, done):
            return position
        return LanePosition(self._place(done) or 0, done, self._newest.revision)

    def _place(self, done: CommitPosition) -> int | None:
        """Returns where the newest revision continues after a commit; looks again only now and then."""
        revision = self._newest.revision
        asked, now = (revision, done), self._clock.monotonic()
        if self._asked is not None and self._asked[0] == asked and now < self._asked[1] + _AGAIN_SECONDS:
            return None
        found = place_behind(self._feed(revision).log, done)
        self._asked = None if found is not None else (asked, now)
        return found

    def _of_newest(self, position: LanePosition) -> LanePosition:
        return position._replace(revision=self._newest.revision)

    def _topics(self, revision: int) -> list[str]:
        switch = self._switches.get(revision)
        if switch is None:
            raise StateError(
                f"the position of this group is in revision {revision} of pipeline {self._pipeline!r}, but "
                "no switch of readers to that revision is recorded",
                "the record of the switch was removed; continue with seek()",
            )
        missing = [view for view in self._views if view not in switch.views]
        if missing:
            raise ConfigError(
                f"{switch.pipeline!r} has no view {missing[0]!r}",
                f"its views are {', '.join(sorted(switch.views))}",
            )
        return [switch.views[view] for view in self._views]

    def _feed(self, revision: int) -> OutputFeed:
        if revision not in self._feeds:
            topics = self._topics(revision)
            log = commit_log(self._broker, commit_topic(topics[0]), self._clock)
            self._feeds[revision] = OutputFeed(topics, self._share, self._max_bytes, log)
        return self._feeds[revision]


def feed_of(inputs: Inputs, broker: Broker, share: Share, max_bytes: int, clock: Clock) -> Feed:
    """Returns the feed that reads inputs.

    Raises:
        ConfigError: Readers of the pipeline were never switched.
    """
    if isinstance(inputs, ChangeTopics):
        return ChangeFeed(inputs, share, max_bytes, cut_log(broker, inputs.source, clock))
    if isinstance(inputs, OutputTopics):
        return OutputFeed(inputs.topics, share, max_bytes, commit_log(broker, inputs.log, clock))
    return FollowedFeed(broker, inputs.pipeline, inputs.views, share, max_bytes, clock)


class _FollowedMerge:
    """Implements :class:`slackwater.client.feeds.Merge`: hands out a revision until it is left."""

    def __init__(
        self, merge: Merge, revision: int, lanes: Mapping[int, LanePosition], feed: FollowedFeed
    ) -> None:
        self._merge, self._revision, self._feed = merge, revision, feed
        self.queues = merge.queues
        self._done = min(each.done or CommitPosition(0, 0) for each in lanes.values())
        """What is processed: of some lane at the beginning, then of those that were handed something."""
        self._is_open = False
        self.is_over = False

    @property
    def wants_commits(self) -> bool:
        return self._merge.wants_commits

    @property
    def waits(self) -> bool:
        return self._merge.waits

    def paused(self) -> frozenset[Place]:
        return self._merge.paused()

    def next(self) -> Piece | None:
        if not self._is_open and self._feed.is_left(self._revision, self._done):
            self.is_over = True
            return None
        piece = self._merge.next()
        if piece is None:
            return None
        self._is_open, self._done = not piece.is_last, piece.commit.position
        return piece._replace(after=piece.after._replace(revision=self._revision))


def _decode(record: Record) -> ReaderSwitch | None:
    value = record.value()
    return None if value is None else decode_reader_switch(value)
