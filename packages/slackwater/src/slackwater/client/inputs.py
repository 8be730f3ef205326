"""What a consumer can read, and how the members of its group share the work. Pure.

A *lane* is what one member owns at a time: everything, a number of units, or a partition. Each lane has a
position of its own in the group's committed offsets.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slackwater.cdc.avro import ToJson
from slackwater.cdc.batch import Record
from slackwater.client.transaction import Place
from slackwater.protocol import ConfigError, Cut, SourceTopics
from slackwater.protocol.keys import commit_topic, cut_log_topic, readers_topic, units_topic

KeyOf = Callable[[Record], bytes | str | None]
"""Returns the key of the unit that a record belongs to; None: no member receives the record."""
Ranges = Mapping[Place, tuple[int, int]]
"""For each partition, the first offset and the offset after the last."""


@dataclass(frozen=True, slots=True)
class Everything:
    """One member receives every transaction whole, in commit order; the others stand by.

    It preserves everything: transactions, their order, and the order of records. It does not scale.
    """

    is_by_partition = False
    """True if a lane is the set of partitions with one number, and positions are kept per partition."""

    def ownership(self, group: str, log: str) -> tuple[str, int | None]:
        """Returns the topic whose partitions represent the lanes, and their number if it must be created.

        It is the log of commits, so that Kafka's tools show the lag in commits.
        """
        return log, None


@dataclass(frozen=True, slots=True)
class ByUnit:
    """Each member receives the part of every transaction that concerns its units, in commit order.

    A unit is what one key identifies, for example an order with its lines, or a customer. All changes that a
    transaction made to a unit arrive at once, and the transactions of a unit arrive in commit order. A
    transaction that spans several units is split: each owner receives its part at a different time, and each
    part says so.
    """

    key_of: KeyOf
    """Returns a record's unit. It must return the same in all members."""
    lanes: int = 64
    """The number of lanes into which units are divided; it cannot change while the group exists."""
    is_by_partition = False

    def ownership(self, group: str, log: str) -> tuple[str, int | None]:
        """Returns an empty topic, ``<group>.units``, and the number of its partitions."""
        return units_topic(group), self.lanes

    def lane_of(self, record: Record) -> int | None:
        """Returns the lane of a record; None: no lane."""
        key = self.key_of(record)
        if key is None:
            return None
        return zlib.crc32(key.encode() if isinstance(key, str) else key) % self.lanes


@dataclass(frozen=True, slots=True, init=False)
class ByPartition:
    """Each partition is a lane; with several topics, the partitions with the same number form a lane.

    All changes that a transaction made in a lane arrive at once, and the transactions of a lane arrive in
    commit order. If one topic contains several tables or documents with the same business key, or several
    topics are partitioned alike by that key, these are all changes that a transaction made to the key. The
    changes of a transaction in other lanes arrive at other times, nothing indicates that they exist, and
    lanes have no common order.
    """

    topics: tuple[str, ...]
    is_by_partition = True

    def __init__(self, *topics: str) -> None:
        object.__setattr__(self, "topics", topics)

    def ownership(self, group: str, log: str) -> tuple[str, int | None]:
        """Returns the first topic."""
        return self.topics[0], None


Share = Everything | ByUnit | ByPartition
"""Divides a source's transactions into lanes."""


def divide(share: Share, ranges: Ranges, lanes: Sequence[int]) -> list[tuple[tuple[int, ...], Ranges]]:
    """Divides a commit into parts that are delivered at once, each with its lanes and its offsets."""
    if not share.is_by_partition:
        return [(tuple(lanes), ranges)] if lanes else []
    by_lane = {lane: {place: held for place, held in ranges.items() if place[1] == lane} for lane in lanes}
    return [((lane,), found) for lane, found in by_lane.items() if found]


def select(share: Share, lanes: Sequence[int], records: list[Record]) -> tuple[list[Record], int]:
    """Returns the records of some lanes, and the number of records that belong to other lanes."""
    if not isinstance(share, ByUnit):
        return records, 0
    mine: list[Record] = []
    elsewhere = 0
    for record in records:
        lane = share.lane_of(record)
        if lane in lanes:
            mine.append(record)
        elif lane is not None:
            elsewhere += 1
    return mine, elsewhere


@dataclass(frozen=True, slots=True, init=False)
class OutputTopics:
    """Output topics of one pipeline, or topics of one producer.

    Args:
        topics: At least one topic.
        commits: The topic with their commit records. None: the commit topic of the first topic, which is
            right for pipelines. A producer has a single one for all of its topics, ``<source>.commits``.
    """

    topics: tuple[str, ...]
    commits: str | None

    def __init__(self, *topics: str, commits: str | None = None) -> None:
        if not topics:
            raise ConfigError("no topic was given", "name at least one output topic of the pipeline")
        object.__setattr__(self, "topics", topics)
        object.__setattr__(self, "commits", commits)

    @property
    def log(self) -> str:
        """The topic with the commit records; each commit topic of a pipeline has all commits."""
        return self.commits or commit_topic(self.topics[0])

    @property
    def data_topics(self) -> tuple[str, ...]:
        """The topics with the records."""
        return self.topics


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTopics:
    """Topics of tables as Debezium writes them. The source needs a running sidecar."""

    source: str
    """The connector's ``topic.prefix``."""
    tables: tuple[str, ...]
    """As ``schema.table``."""
    routed: Mapping[str, str] = field(default_factory=dict)
    """Maps tables to topics, for tables whose records a transform sends to another topic."""
    to_json: ToJson | None = None
    """Converts values to JSON, see ``slackwater.kafka.registry.avro_to_json``; None: the values are JSON."""

    @property
    def log(self) -> str:
        """The topic with the cuts."""
        return cut_log_topic(self.source)

    @property
    def topics(self) -> SourceTopics:
        """All topics of the connector."""
        return SourceTopics(self.source, self.routed)

    @property
    def data_topics(self) -> tuple[str, ...]:
        """The topics with the records."""
        topics = self.topics
        return tuple(dict.fromkeys(topics.data(table) for table in self.tables))

    def places_of(self, cut: Cut, lane: int | None) -> dict[Place, int]:
        """Returns the partitions that a cut names, each with its end; with a lane those of that number."""
        return {
            (topic, partition): end
            for topic in self.data_topics
            for partition, end in enumerate(cut.end_offsets.get(topic, ()))
            if lane is None or partition == lane
        }


@dataclass(frozen=True, slots=True, init=False)
class PipelineViews:
    """Views of a pipeline in Kafka, in the revision that its readers were switched to.

    A consumer follows each switch at one commit: it finishes the old revision up to that commit, and
    continues after it in the topics of the new revision. ``slackwater revise switch`` must have been run once
    before.

    Args:
        views: At least one view, by its name in the pipeline; all revisions must have these views.
    """

    pipeline: str
    views: tuple[str, ...]

    def __init__(self, pipeline: str, *views: str) -> None:
        if not views:
            raise ConfigError("no view was given", "name at least one view of the pipeline")
        object.__setattr__(self, "pipeline", pipeline)
        object.__setattr__(self, "views", views)

    @property
    def log(self) -> str:
        """The topic that records which revision is read."""
        return readers_topic(self.pipeline)

    @property
    def data_topics(self) -> tuple[str, ...]:
        """Empty, because the topics with the records differ between revisions."""
        return ()


Inputs = OutputTopics | ChangeTopics | PipelineViews


def check_inputs(inputs: Inputs, share: Share) -> None:
    """Checks that inputs can be read, and shared.

    Raises:
        ConfigError: No table is named, or work is shared by the partitions of other topics.
    """
    if isinstance(inputs, ChangeTopics) and not inputs.tables:
        raise ConfigError(f"no table of source {inputs.source} was given", "name at least one table")
    if isinstance(share, ByPartition) and isinstance(inputs, PipelineViews):
        raise ConfigError(
            f"{inputs} cannot be shared by partition, because revisions may differ in their partitions",
            "share the work by unit (ByUnit), or read the topics of one revision (OutputTopics)",
        )
    if isinstance(share, ByPartition) and set(share.topics) != set(inputs.data_topics):
        raise ConfigError(
            f"ByPartition names the topics {', '.join(share.topics)}, but {inputs} reads "
            f"{', '.join(inputs.data_topics)}",
            "name the same topics in both",
        )
