"""What a consumer can read: outputs of a pipeline, or Debezium's own topics. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater.cdc.avro import ToJson
from slackwater.client.shares import ByPartition, Share
from slackwater.client.transaction import Place
from slackwater.protocol import ConfigError, Cut, SourceTopics
from slackwater.protocol.keys import commit_topic, cut_log_topic, readers_topic


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
        pipeline: The name without a revision.
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
