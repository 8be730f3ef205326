"""What a consumer reads: outputs of a pipeline, or Debezium's own topics."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater_cdc.avro import ToJson
from slackwater_client.broker import Broker
from slackwater_client.changes import ChangeRules
from slackwater_client.errors import ClientConfigError
from slackwater_client.feeds import ChangeFeed, Feed, OutputFeed
from slackwater_client.followed import FollowedFeed
from slackwater_client.log import commit_log, cut_log
from slackwater_client.shares import ByPartition, Share
from slackwater_protocol import Clock, SourceTopics
from slackwater_protocol.keys import commit_topic, cut_log_topic, readers_topic


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
        return OutputFeed(self.topics, share, max_bytes, commit_log(broker, self.log, clock))


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
        return ChangeFeed(self.rules, share, max_bytes, cut_log(broker, self.source, clock))


@dataclass(frozen=True, slots=True, init=False)
class PipelineViews:
    """Views of a pipeline in Kafka, in the revision that its readers were switched to.

    A consumer follows each switch at one commit: it finishes what it read before, and goes on behind that in
    the other revision's topics. The first ``slackwater revise switch`` has to be made before.

    Args:
        pipeline: The name without a revision.
        views: At least one, as the pipeline names them; all revisions have them.
    """

    pipeline: str
    views: tuple[str, ...]

    def __init__(self, pipeline: str, *views: str) -> None:
        if not views:
            raise ClientConfigError("no view is named", "name at least one view of the pipeline")
        object.__setattr__(self, "pipeline", pipeline)
        object.__setattr__(self, "views", views)

    @property
    def log(self) -> str:
        """The topic that says which revision is read."""
        return readers_topic(self.pipeline)

    @property
    def data_topics(self) -> tuple[str, ...]:
        """The topics with the records: none that stay the same."""
        return ()

    def connect(self, broker: Broker, share: Share, max_bytes: int, clock: Clock) -> Feed:
        """Returns what reads them.

        Raises:
            ClientConfigError: Readers of the pipeline were never switched.
        """
        return FollowedFeed(broker, self.pipeline, self.views, share, max_bytes, clock)


Inputs = OutputTopics | ChangeTopics | PipelineViews


def check_share(inputs: Inputs, share: Share) -> None:
    """Refuses a division by partitions of other topics than are read.

    Raises:
        ClientConfigError: It is one.
    """
    if isinstance(share, ByPartition) and isinstance(inputs, PipelineViews):
        raise ClientConfigError(
            f"work on {inputs} is to be shared by partitions, and revisions may have others",
            "share it by units, ByUnit, or name the topics of one revision, OutputTopics",
        )
    if isinstance(share, ByPartition) and set(share.topics) != set(inputs.data_topics):
        raise ClientConfigError(
            f"work is to be shared by partitions of {', '.join(share.topics)}, and {inputs} has "
            f"{', '.join(inputs.data_topics)}",
            "name the same topics",
        )
