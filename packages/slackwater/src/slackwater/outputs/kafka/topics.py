"""The topics of a sink as the broker describes them: created if they do not exist, otherwise checked."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec  # public in confluent_kafka.admin, but not typed so
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from slackwater.kafka.reader import list_offsets
from slackwater.kafka.retry import create_topics
from slackwater.outputs.contract import Emit, OutputRefusedError
from slackwater.outputs.kafka.answers import until_answered
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.protocol import StateError, TopicState, UnavailableError
from slackwater.protocol.keys import commit_topic

T = TypeVar("T")

UNKNOWN_ID = ""
"""The id of topics on a broker that does not assign ids."""

_DEFAULT_PARTITIONS = 4
_LAG = "min.compaction.lag.ms"
_ADVICE = "delete it, or use other names"
_ID_OF_NONE = "A" * 22
"""Kafka's notation for the id of a topic without one."""


@dataclass(frozen=True, slots=True)
class TopicRule:
    """The configuration with which a topic is created, and which an existing topic must have."""

    name: str
    create_partitions: int
    partitions: int | None
    """The required number; None accepts any."""
    config: Mapping[str, str] = field(default_factory=dict)
    compacted: bool = False
    """Whether the topic must be compacted only."""


def topic_rules(settings: KafkaSinkSettings) -> list[TopicRule]:
    """Returns the rules of a sink's output, commit and progress topics.

    The output of ``latest`` is created compacted: the newest document of each key stays, and others stay for
    a while. Documents of ``transactions``, the records that make a source of them, and commit records stay
    for ever.
    """
    for_ever = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    compact = {"cleanup.policy": "compact"}
    lag_ms = int(settings.keep.total_seconds() * 1000)
    latest = {**compact, _LAG: str(lag_ms)}
    output_config = latest if settings.emit is Emit.LATEST else for_ever
    rules = [TopicRule(settings.progress_topic, 1, 1, compact, compacted=True)]
    for name, (view, *_) in settings.topics.items():
        partitions = settings.outputs[view].partitions
        rules += [
            TopicRule(name, partitions or _DEFAULT_PARTITIONS, partitions, output_config),
            TopicRule(commit_topic(name), 1, 1, for_ever),
        ]
    others = (*settings.avro_commits, *settings.order_topics)
    return [*rules, *(TopicRule(name, 1, 1, for_ever) for name in others)]


class SinkTopics:
    """The topics of a sink on their broker. Every method blocks, at most for the request time-out.

    Every method raises :class:`UnavailableError` if the broker does not answer, and
    :class:`OutputRefusedError` if it refuses.
    """

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._client: AdminClient | None = None
        self._written = list(settings.written_topics)
        self._views = settings.views_in_topics

    def missing(self) -> list[TopicRule]:
        """Returns the rules of the topics that do not exist.

        Raises:
            StateError: An existing topic does not match its rule.
        """
        return self._ask("the check of its topics", self._missing)

    def create(self, rules: Iterable[TopicRule]) -> None:
        """Creates topics; those that exist in the meantime are not changed."""
        replicas = self._settings.replication_factor
        new = [
            NewTopic(rule.name, rule.create_partitions, replicas, config=dict(rule.config)) for rule in rules
        ]
        if new:
            self._ask(
                f"the creation of topics {', '.join(topic.topic for topic in new)}",
                partial(create_topics, self._admin, new),
            )

    def identities(self) -> dict[str, tuple[str, int]]:
        """Returns id and number of partitions of each existing output and commit topic, with one request."""
        return self._ask("the description of its topics", self._identities)

    def states(self) -> dict[str, TopicState]:
        """Returns the state of each output and commit topic; waits for those that do not exist."""
        return self._ask("the description of its topics", self._states)

    def largest_records(self) -> dict[str, int]:
        """Returns ``max.message.bytes`` of each output, as far as it can be read."""
        found = {}
        for topic in self._settings.topics:
            with suppress(OutputRefusedError, UnavailableError):
                what = f"the configuration of {topic}"
                found[topic] = self._ask(what, partial(self._largest_record, topic))
        return found

    def compaction_lags(self) -> dict[str, int]:
        """Returns ``min.compaction.lag.ms`` of each output that is compacted."""
        return self._ask("the configuration of its topics", self._compaction_lags)

    def set_compaction_lags(self, lags: Mapping[str, int]) -> None:
        """Sets ``min.compaction.lag.ms`` of topics. One request each."""
        for name, lag_ms in lags.items():
            self._ask(f"the change of {_LAG} of {name}", partial(self._set_compaction_lag, name, lag_ms))

    def close(self) -> None:
        """Closes the connection."""
        self._client = None

    @property
    def _admin(self) -> AdminClient:
        """The client, connected on first use."""
        if self._client is None:
            self._client = AdminClient({**self._settings.kafka.client_config})
        return self._client

    def _ask(self, what: str, ask: Callable[[float], T]) -> T:
        return until_answered(self._settings, what, ask)

    def _largest_record(self, topic: str, seconds: float) -> int:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answer = self._admin.describe_configs([resource], request_timeout=seconds)[resource]
        return int(answer.result(seconds)["max.message.bytes"].value)

    def _compaction_lags(self, seconds: float) -> dict[str, int]:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in self._settings.topics]
        answers = self._admin.describe_configs(resources, request_timeout=seconds)
        configs = {resource.name: answer.result(seconds) for resource, answer in answers.items()}
        return {
            name: int(config[_LAG].value)
            for name, config in configs.items()
            if "compact" in str(config["cleanup.policy"].value)
        }

    def _set_compaction_lag(self, topic: str, lag_ms: int, seconds: float) -> None:
        entry = ConfigEntry(_LAG, str(lag_ms), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        answers = self._admin.incremental_alter_configs([resource], request_timeout=seconds)
        answers[resource].result(seconds)

    def _missing(self, seconds: float) -> list[TopicRule]:
        known = self._admin.list_topics(timeout=seconds).topics
        missing = []
        for rule in topic_rules(self._settings):
            if rule.name in known:
                _check(self._admin, rule, len(known[rule.name].partitions), seconds)
            else:
                missing.append(rule)
        return missing

    def _identities(self, seconds: float) -> dict[str, tuple[str, int]]:
        answers = self._admin.describe_topics(TopicCollection(self._written), request_timeout=seconds)
        found = {}
        for name, answer in answers.items():
            try:
                topic = answer.result(seconds)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise
            topic_id = str(topic.topic_id)
            found[name] = UNKNOWN_ID if topic_id == _ID_OF_NONE else topic_id, len(topic.partitions)
        return found

    def _states(self, seconds: float) -> dict[str, TopicState]:
        identities = self._identities(seconds)
        if len(identities) < len(self._written):  # made a moment ago, and not known everywhere yet
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        places = [(name, p) for name, (_, count) in identities.items() for p in range(count)]
        earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        first, end = (list_offsets(self._admin, places, each, seconds) for each in (earliest, latest))
        return {
            name: TopicState(
                topic_id,
                tuple(first[name, p] for p in range(count)),
                tuple(end[name, p] for p in range(count)),
                views=self._views.get(name, ()),
            )
            for name, (topic_id, count) in identities.items()
        }


def unusable_topic(topic: str, expected: str, found: str, advice: str) -> StateError:
    """Returns the error for a topic that cannot be used, or that others have changed."""
    return StateError(f"topic {topic!r}: expected {expected}, found {found}", advice)


def _check(admin: AdminClient, rule: TopicRule, partitions: int, seconds: float) -> None:
    if rule.partitions is not None and partitions != rule.partitions:
        raise unusable_topic(rule.name, f"{rule.partitions} partition(s)", f"{partitions}", _ADVICE)
    if rule.compacted:
        resource = ConfigResource(ResourceType.TOPIC, rule.name)
        answer = admin.describe_configs([resource])[resource].result(seconds)
        policy = answer["cleanup.policy"].value
        if policy != "compact":
            raise unusable_topic(rule.name, "cleanup.policy=compact", f"cleanup.policy={policy}", _ADVICE)
