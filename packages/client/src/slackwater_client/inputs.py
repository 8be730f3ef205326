"""What a consumer reads: outputs of a pipeline, or Debezium's own topics; and where it begins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slackwater_cdc.avro import ToJson
from slackwater_cdc.records.record import Record
from slackwater_client.broker import Broker, Stored
from slackwater_client.changes import ChangeMerge, ChangeRules
from slackwater_client.errors import ClientConfigError, RecordsMissingError
from slackwater_client.log import Log, commit_log, cut_log
from slackwater_client.outputs import OutputMerge
from slackwater_client.shares import ByPartition, Share
from slackwater_client.transaction import LanePosition, Piece, Place
from slackwater_protocol import Clock, CommitPosition, PublishedCut, SourceTopics
from slackwater_protocol.commit_lookup import (
    PlacedCommit,
    Reached,
    first_reached,
    has_reached_lsn,
    has_reached_offset,
)
from slackwater_protocol.keys import commit_topic, cut_log_topic

_LOOK_BACK = 64
"""Records of the cut log in which the newest cut below a position is looked for first."""


class Merge(Protocol):
    """A pure state machine: it is told of commits and given records, and hands out whole transactions."""

    @property
    def wants_commits(self) -> bool:
        """True if it can take more commits."""
        ...

    @property
    def waits(self) -> bool:
        """True if it has to be given records."""
        ...

    def take_starts(self) -> dict[Place, int]:
        """Returns the partitions that are to be read, too, and from where on; each once."""
        ...

    def add(self, place: Place, records: Sequence[Record], position: int) -> None:
        """Takes records of a partition, and the offset that was reached."""
        ...

    def paused(self) -> frozenset[Place]:
        """Returns the partitions that must not be read now."""
        ...

    def next(self) -> Piece | None:
        """Returns the next transaction, or stretch of one; None: more has to be read."""
        ...


class Feed(Protocol):
    """What a consumer does differently for outputs and change topics. Methods wait for Kafka's answers."""

    def begin(self, lanes: Mapping[int, LanePosition]) -> Merge:
        """Starts anew where lanes stand; the log is followed from there."""
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


@dataclass(frozen=True, slots=True, init=False)
class OutputTopics:
    """Output topics of one pipeline, or topics of one producer.

    Args:
        topics: At least one.
        commits: The topic with their commit records; None: the one beside the first topic, as pipelines have
            it. A producer has one for all of its topics, ``<source>.commits``.
    """

    topics: tuple[str, ...]
    commits: str | None

    def __init__(self, *topics: str, commits: str | None = None) -> None:
        if not topics:
            raise ClientConfigError("no topic is named", "name at least one output topic of the pipeline")
        object.__setattr__(self, "topics", topics)
        object.__setattr__(self, "commits", commits)

    @property
    def log(self) -> str:
        """The topic with the commits: of all that a pipeline has, any will do."""
        return self.commits or commit_topic(self.topics[0])

    @property
    def data_topics(self) -> tuple[str, ...]:
        """The topics with the records."""
        return self.topics

    def connect(self, broker: Broker, share: Share, max_bytes: int, clock: Clock) -> Feed:
        """Returns what reads them."""
        return _Outputs(self.topics, share, max_bytes, commit_log(broker, self.log, clock))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTopics:
    """Topics of tables as Debezium writes them; a sidecar has to work for the source."""

    source: str
    """The connector's ``topic.prefix``."""
    tables: tuple[str, ...]
    """As ``schema.table``."""
    routed: Mapping[str, str] = field(default_factory=dict)
    """Table to topic, for tables whose records a transform sends elsewhere."""
    to_json: ToJson | None = None
    """Makes JSON of values, see ``slackwater_registry.avro_to_json``; None: topics are JSON."""

    @property
    def log(self) -> str:
        """The topic with the cuts."""
        return cut_log_topic(self.source)

    @property
    def rules(self) -> ChangeRules:
        """Which records count."""
        return ChangeRules(self.source, self.tables, SourceTopics(self.source, self.routed), self.to_json)

    @property
    def data_topics(self) -> tuple[str, ...]:
        """The topics with the records."""
        return self.rules.data_topics

    def connect(self, broker: Broker, share: Share, max_bytes: int, clock: Clock) -> Feed:
        """Returns what reads them.

        Raises:
            ClientConfigError: No table is named.
        """
        if not self.tables:
            raise ClientConfigError(f"no table of source {self.source} is named", "name at least one")
        return _Changes(self.rules, share, max_bytes, cut_log(broker, self.source, clock))


Inputs = OutputTopics | ChangeTopics


def check_share(inputs: Inputs, share: Share) -> None:
    """Refuses a division by partitions of other topics than are read.

    Raises:
        ClientConfigError: It is one.
    """
    if isinstance(share, ByPartition) and set(share.topics) != set(inputs.data_topics):
        raise ClientConfigError(
            f"work is to be shared by partitions of {', '.join(share.topics)}, and {inputs} has "
            f"{', '.join(inputs.data_topics)}",
            "name the same topics",
        )


class _Outputs:
    """Commit records and the documents that they name."""

    def __init__(self, topics: Sequence[str], share: Share, max_bytes: int, log: Log[PlacedCommit]) -> None:
        self._topics, self._share, self._max_bytes, self._log = topics, share, max_bytes, log
        self._merge = OutputMerge(topics, share, max_bytes, {})

    def begin(self, lanes: Mapping[int, LanePosition]) -> Merge:
        self._merge = OutputMerge(self._topics, self._share, self._max_bytes, lanes)
        if lanes:
            first = min(position.log_offset for position in lanes.values())
            self._log.check(first)
            self._log.follow(first)
        return self._merge

    def read_commits(self, seconds: float) -> None:
        for placed in self._log.read(seconds):
            self._merge.expect(placed)

    def at_start(self, *, latest: bool) -> LanePosition:
        low, end = self._log.bounds()
        return LanePosition(end if latest else low)

    def at_commit(self, position: CommitPosition) -> LanePosition:
        return self._first(has_reached_lsn(position))

    def at_time(self, time_ms: int) -> LanePosition:
        return self._first(lambda record: record.commit_ts_ms >= time_ms)

    def at_offsets(self, lane: int, offsets: Mapping[Place, int]) -> LanePosition:
        found = [
            self._first(has_reached_offset(topic, lane, offsets.get((topic, lane), 0)))
            for topic in self._topics
        ]
        return min(found)

    def at_log_offset(self, stored: Stored) -> LanePosition:
        return LanePosition(stored.offset)

    def close(self) -> None:
        self._log.close()

    def _first(self, reached: Reached) -> LanePosition:
        low, end = self._log.bounds()
        placed = first_reached(low, end, self._record_from, reached)
        return LanePosition(end if placed is None else placed.offset)

    def _record_from(self, start: int, end: int) -> PlacedCommit | None:
        return next(self._log.entries(start, end), None)


class _Changes:
    """Cuts and the change records between them."""

    def __init__(self, rules: ChangeRules, share: Share, max_bytes: int, log: Log[PublishedCut]) -> None:
        self._rules, self._share, self._max_bytes, self._log = rules, share, max_bytes, log
        self._merge = ChangeMerge(rules, share, max_bytes, {}, {})

    def begin(self, lanes: Mapping[int, LanePosition]) -> Merge:
        base = {position: self._base(position) for position in set(lanes.values())}
        cuts = {lane: None if (at := base[p]) is None else at.cut for lane, p in lanes.items()}
        self._merge = ChangeMerge(self._rules, self._share, self._max_bytes, lanes, cuts)
        if lanes:
            first = min(0 if at is None else at.log_offset + 1 for at in base.values())
            self._log.check(first)
            self._log.follow(first)
        return self._merge

    def read_commits(self, seconds: float) -> None:
        for published in self._log.read(seconds):
            self._merge.expect(published)

    def at_start(self, *, latest: bool) -> LanePosition:
        newest = self._newest(self._log.bounds()[1], lambda _: True) if latest else None
        return LanePosition(0) if newest is None else _behind(newest)

    def at_commit(self, position: CommitPosition) -> LanePosition:
        low, end = self._log.bounds()
        base = self._newest(end, lambda found: found.cut.position < position)
        start = low if base is None else base.log_offset + 1
        return self._before(start, lambda found, _: found >= position)

    def at_time(self, time_ms: int) -> LanePosition:
        return self._before(self._log.bounds()[0], lambda _, commit_ts_ms: commit_ts_ms >= time_ms)

    def at_offsets(self, lane: int, offsets: Mapping[Place, int]) -> LanePosition:
        def is_below(found: PublishedCut) -> bool:
            ends = self._rules.places_of(found.cut, lane)
            return all(end <= offsets.get(place, 0) for place, end in ends.items())

        newest = self._newest(self._log.bounds()[1], is_below)
        return LanePosition(0) if newest is None else _behind(newest)

    def at_log_offset(self, stored: Stored) -> LanePosition:
        if stored.metadata:
            return LanePosition.parse(stored.metadata)
        newest = self._newest(stored.offset, lambda _: True)
        return LanePosition(0) if newest is None else _behind(newest)

    def close(self) -> None:
        self._log.close()

    def _base(self, position: LanePosition) -> PublishedCut | None:
        """Finds the newest cut that a position has passed."""
        done = position.done
        if done is None:
            return None
        found = self._newest(position.log_offset + 1, lambda each: each.cut.position <= done)
        if found is None and self._log.bounds()[0] > 0:
            hint = "it has to be kept for ever; go on with seek(), or with start='latest'"
            raise RecordsMissingError(f"{self._log.place[0]} tells of no cut at or below {done}", hint)
        return found

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
        low, high = self._log.bounds()
        end, step = min(end, high), _LOOK_BACK
        while end > low:
            start = max(low, end - step)
            found = [each for each in self._log.entries(start, end) if is_wanted(each)]
            if found:
                return max(found, key=lambda each: each.cut.position)
            end, step = start, step * 16
        return None


def _behind(published: PublishedCut) -> LanePosition:
    return LanePosition(published.log_offset + 1, published.cut.position)
