"""How a consumer reads its inputs: where it begins, what comes next, and how it follows readers' switches."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from slackwater.cdc.batch import Record
from slackwater.cdc.initial_snapshot import SNAPSHOT_HINT
from slackwater.client.changes import ChangeMerge
from slackwater.client.inputs import ChangeTopics, Inputs, OutputTopics, PipelineViews, Share
from slackwater.client.kafka import KafkaBroker, Stored
from slackwater.client.log import Log, commit_log, cut_log
from slackwater.client.merges import OutputMerge
from slackwater.client.readers import never_switched
from slackwater.client.transaction import LanePosition, Place
from slackwater.protocol import (
    Clock,
    CommitPosition,
    ConfigError,
    PublishedCut,
    ReaderSwitch,
    StateError,
    decode_reader_switch,
)
from slackwater.protocol.commit_lookup import (
    PlacedCommit,
    Reached,
    first_reached,
    has_reached_lsn,
    has_reached_offset,
)
from slackwater.protocol.keys import commit_topic, readers_topic, topic_of_view

Merge = OutputMerge | ChangeMerge


class _OutputFeed:
    """Reads commit records and the documents that they name. Methods wait for Kafka's answers."""

    def __init__(self, topics: Sequence[str], share: Share, max_bytes: int, log: Log[PlacedCommit]) -> None:
        self._topics, self._share, self._max_bytes, self.log = topics, share, max_bytes, log

    def begin(
        self,
        lanes: Mapping[int, LanePosition],
        revision: int | None = None,
        is_left: Callable[[CommitPosition], bool] = lambda _: False,
    ) -> tuple[Mapping[int, LanePosition], Merge]:
        """Starts over at the positions of lanes, of which there is one at least.

        Returns where they continue: in another log if readers were switched to another revision.
        """
        self._merge = OutputMerge(self._topics, self._share, self._max_bytes, lanes, revision, is_left)
        first = min(position.log_offset for position in lanes.values())
        self.log.check(first)
        self.log.follow(first)
        return lanes, self._merge

    def read_commits(self, seconds: float) -> None:
        """Tells the merge of new commits, as soon as there are any."""
        for placed in self.log.read(seconds):
            self._merge.expect(placed)

    def at_start(self, *, latest: bool) -> LanePosition:
        """Returns where a lane without a position begins."""
        low, end = self.log.bounds()
        return LanePosition(end if latest else low)

    def at_commit(self, position: CommitPosition) -> LanePosition:
        return self._first(has_reached_lsn(position))

    def at_time(self, time_ms: int) -> LanePosition:
        return self._first(lambda record: record.commit_ts_ms >= time_ms)

    def at_offsets(self, lane: int, offsets: Mapping[Place, int]) -> LanePosition:
        """Returns the position that offsets of a lane's partitions stand for, or an earlier one."""
        found = [
            self._first(has_reached_offset(topic, lane, offsets.get((topic, lane), 0)))
            for topic in self._topics
        ]
        return min(found)

    def at_log_offset(self, stored: Stored) -> LanePosition:
        return LanePosition(stored.offset)

    def close(self) -> None:
        self.log.close()

    def _first(self, reached: Reached) -> LanePosition:
        low, end = self.log.bounds()
        placed = first_reached(low, end, self.log.first, reached)
        return LanePosition(end if placed is None else placed.offset)


class _ChangeFeed:
    """Reads cuts and the change records between them, with the methods of an output's feed.

    Reading raises :class:`StateError` while the newest cut names a table without a complete snapshot.
    """

    def __init__(self, inputs: ChangeTopics, share: Share, max_bytes: int, log: Log[PublishedCut]) -> None:
        self._inputs, self._share, self._max_bytes, self._log = inputs, share, max_bytes, log
        self._judged = 0
        """Cuts below this offset of the log are not newer than one that names none of the tables."""

    def begin(self, lanes: Mapping[int, LanePosition]) -> tuple[Mapping[int, LanePosition], Merge]:
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
        for published in self._log.read(seconds):
            if published.log_offset >= self._judged and self._without_snapshot(published):
                self._check_snapshots()
            self._merge.expect(published)

    def at_start(self, *, latest: bool) -> LanePosition:
        return _behind(self._newest(self._log.bounds()[1], lambda _: True) if latest else None)

    def at_commit(self, position: CommitPosition) -> LanePosition:
        low, end = self._log.bounds()
        base = self._newest(end, lambda found: found.cut.position < position)
        start = low if base is None else base.log_offset + 1
        return self._before(start, lambda found, _: found >= position)

    def at_time(self, time_ms: int) -> LanePosition:
        return self._before(self._log.bounds()[0], lambda _, commit_ts_ms: commit_ts_ms >= time_ms)

    def at_offsets(self, lane: int, offsets: Mapping[Place, int]) -> LanePosition:

        def is_below(found: PublishedCut) -> bool:
            ends = self._inputs.places_of(found.cut, lane)
            return all(end <= offsets.get(place, 0) for place, end in ends.items())

        return _behind(self._newest(self._log.bounds()[1], is_below))

    def at_log_offset(self, stored: Stored) -> LanePosition:
        if stored.metadata:
            return LanePosition.parse(stored.metadata)
        return _behind(self._newest(stored.offset, lambda _: True))

    def close(self) -> None:
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


def _behind(published: PublishedCut | None) -> LanePosition:
    if published is None:
        return LanePosition(0)
    return LanePosition(published.log_offset + 1, published.cut.position)


_AGAIN_SECONDS = 0.1
"""The interval of checks whether the other revision has reached a commit."""


def switch_log(broker: KafkaBroker, pipeline: str, clock: Clock) -> Log[ReaderSwitch]:
    """Returns the switches of a pipeline's readers; the newest one counts."""
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


class _FollowedFeed:
    """Reads whichever revision is read, with the methods of an output's feed.

    A lane's position names the revision that it is in. It goes over at the first commit at or behind that of
    the newest switch at which it has processed everything, and the other revision ended a batch, too.
    """

    def __init__(
        self, broker: KafkaBroker, inputs: PipelineViews, share: Share, max_bytes: int, clock: Clock
    ) -> None:
        pipeline = inputs.pipeline
        self._broker, self._pipeline, self._views = broker, pipeline, inputs.views
        self._share, self._max_bytes, self._clock = share, max_bytes, clock
        if not broker.partitions(readers_topic(pipeline)):
            raise never_switched(pipeline)
        self._log = switch_log(broker, pipeline, clock)
        self._switches: dict[int, ReaderSwitch] = {}
        """By revision the newest switch to it, in the order of the switches."""
        self._feeds: dict[int, _OutputFeed] = {}
        self._reads: int | None = None
        """The revision whose commits are read now."""
        self._asked: tuple[tuple[int, CommitPosition], float] | None = None
        """The last search without result, and its time."""
        self._log.follow(self._catch_up())
        if not self._switches:
            raise never_switched(pipeline)
        self._feed(self._newest.revision)

    def begin(self, lanes: Mapping[int, LanePosition]) -> tuple[Mapping[int, LanePosition], Merge]:
        """Lanes of an earlier revision finish it first; the others wait for them."""
        self._catch_up()
        lanes = {lane: self._moved(position) for lane, position in lanes.items()}
        newest = self._newest.revision
        behind = [each.revision for each in lanes.values() if each.revision not in (None, newest)]
        self._reads = behind[0] if behind else newest
        mine = {lane: each for lane, each in lanes.items() if each.revision == self._reads}
        is_left = partial(self._is_left, self._reads)
        return lanes, self._feed(self._reads).begin(mine, self._reads, is_left)[1]

    def _is_left(self, revision: int, done: CommitPosition) -> bool:
        """Returns whether lanes that have processed a commit of a revision continue in another one."""
        newest = self._newest
        return revision != newest.revision and done >= newest.position and self._place(done) is not None

    def read_commits(self, seconds: float) -> None:
        self._note(self._log.read(0))
        if self._reads is not None:
            self._feed(self._reads).read_commits(seconds)

    def at_start(self, *, latest: bool) -> LanePosition:
        feed = self._newest_feed()
        start = feed.at_start(latest=latest)
        if latest:  # a commit that is done: a switch may come before the next one
            end = start.log_offset
            found = feed.log.newest(end)
            start = LanePosition(end, found[-1].position if found else None)
        return self._of_newest(start)

    def at_commit(self, position: CommitPosition) -> LanePosition:
        return self._of_newest(self._newest_feed().at_commit(position))

    def at_time(self, time_ms: int) -> LanePosition:
        return self._of_newest(self._newest_feed().at_time(time_ms))

    def at_offsets(self, lane: int, offsets: Mapping[Place, int]) -> LanePosition:
        raise NotImplementedError("work is never shared by partitions here")

    def at_log_offset(self, stored: Stored) -> LanePosition:
        return LanePosition.parse(stored.metadata)

    def close(self) -> None:
        self._log.close()
        for feed in self._feeds.values():
            feed.close()

    @property
    def _newest(self) -> ReaderSwitch:
        *_, newest = self._switches.values()
        return newest

    def _newest_feed(self) -> _OutputFeed:
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
        if done is None or not self._is_left(position.revision, done):
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
        topics = list(dict.fromkeys(topic_of_view(switch.views[view]) for view in self._views))
        for view, name in switch.views.items():
            if name not in topics and topic_of_view(name) in topics and view not in self._views:
                raise ConfigError(
                    f"view {view!r} of {switch.pipeline!r} is in topic {topic_of_view(name)!r}, too",
                    "name all views of a topic: its transactions are read as a whole",
                )
        return topics

    def _feed(self, revision: int) -> _OutputFeed:
        if revision not in self._feeds:
            topics = self._topics(revision)
            log = commit_log(self._broker, commit_topic(topics[0]), self._clock)
            self._feeds[revision] = _OutputFeed(topics, self._share, self._max_bytes, log)
        return self._feeds[revision]


Feed = _OutputFeed | _ChangeFeed | _FollowedFeed
"""What a consumer does differently for each kind of inputs."""


def feed_of(inputs: Inputs, broker: KafkaBroker, share: Share, max_bytes: int, clock: Clock) -> Feed:
    """Returns the feed that reads inputs.

    Raises:
        ConfigError: Readers of the pipeline were never switched.
    """
    if isinstance(inputs, ChangeTopics):
        return _ChangeFeed(inputs, share, max_bytes, cut_log(broker, inputs.source, clock))
    if isinstance(inputs, OutputTopics):
        return _OutputFeed(inputs.topics, share, max_bytes, commit_log(broker, inputs.log, clock))
    return _FollowedFeed(broker, inputs, share, max_bytes, clock)


def _decode(record: Record) -> ReaderSwitch | None:
    value = record.value()
    return None if value is None else decode_reader_switch(value)
