"""The topics of a sink: created if absent, checked if present."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from slackwater_markers.kafka_retry import KafkaRetry
from slackwater_spark.sink.errors import OutputTopicError, OutputUnavailableError
from slackwater_spark.sink.settings import Emit, KafkaSinkSettings

DEFAULT_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class TopicRule:
    """How a topic is created and what it must be."""

    name: str
    create_partitions: int
    partitions: int | None
    """Required number; None accepts any."""
    config: Mapping[str, str] = field(default_factory=dict)
    compacted: bool = False
    """Whether the topic must be compacted only."""


def topic_rules(settings: KafkaSinkSettings) -> list[TopicRule]:
    """Output, commit and progress topics of a sink.

    The output of ``latest`` is created compacted: the newest document of each key stays. Commit records stay
    for ever.
    """
    output_config = {"cleanup.policy": "compact"} if settings.emit is Emit.LATEST else {}
    rules = [TopicRule(settings.progress_topic, 1, 1, {"cleanup.policy": "compact"}, compacted=True)]
    for output in settings.outputs:
        create = output.partitions or DEFAULT_PARTITIONS
        rules += [
            TopicRule(output.name, create, output.partitions, output_config),
            TopicRule(output.commits, 1, 1, {"cleanup.policy": "delete", "retention.ms": "-1"}),
        ]
    return rules


def ensure_topics(settings: KafkaSinkSettings) -> None:
    """Creates what is missing and checks what is there; idempotent.

    Raises:
        OutputTopicError: an existing topic does not fit.
        OutputUnavailableError: the broker does not answer in time, or refuses.
    """
    admin = AdminClient({**settings.client_config()})
    what = f"the check of the topics of {settings.pipeline}"
    retry = KafkaRetry(what, settings.request_timeout.total_seconds())
    try:
        known = retry.call(lambda seconds: admin.list_topics(timeout=seconds).topics)
        missing = []
        for rule in topic_rules(settings):
            if rule.name in known:
                _check(admin, rule, len(known[rule.name].partitions), retry)
            else:
                missing.append(
                    NewTopic(
                        rule.name,
                        rule.create_partitions,
                        settings.replication_factor,
                        config=dict(rule.config),
                    )
                )
        if missing:
            retry.call(lambda seconds: _create(admin, missing, seconds))
    except KafkaException as error:
        raise OutputUnavailableError(settings.pipeline, "the check of its topics", 1, str(error)) from error


def existing_topics(settings: KafkaSinkSettings) -> frozenset[str]:
    """All topics that the broker tells of.

    Raises:
        OutputUnavailableError: the broker does not answer or refuses.
    """
    admin = AdminClient({**settings.client_config()})
    retry = KafkaRetry("the list of topics", settings.request_timeout.total_seconds())
    try:
        return frozenset(retry.call(lambda seconds: admin.list_topics(timeout=seconds).topics))
    except KafkaException as error:
        raise OutputUnavailableError(settings.pipeline, "the list of topics", 1, str(error)) from error


def _check(admin: AdminClient, rule: TopicRule, partitions: int, retry: KafkaRetry) -> None:
    if rule.partitions is not None and partitions != rule.partitions:
        raise OutputTopicError(rule.name, f"{rule.partitions} partition(s)", f"{partitions}")
    if rule.compacted:
        resource = ConfigResource(ResourceType.TOPIC, rule.name)
        answer = retry.call(lambda seconds: admin.describe_configs([resource])[resource].result(seconds))
        policy = answer["cleanup.policy"].value
        if policy != "compact":
            raise OutputTopicError(rule.name, "cleanup.policy=compact", f"cleanup.policy={policy}")


def _create(admin: AdminClient, topics: list[NewTopic], seconds: float) -> None:
    for future in admin.create_topics(topics, request_timeout=seconds).values():
        try:
            future.result(seconds)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
