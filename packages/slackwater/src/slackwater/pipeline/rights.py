"""The rights in Kafka that the runs of a pipeline need, and those that brokers do not give."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined,unused-ignore]
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from slackwater.kafka.retry import kafka_error
from slackwater.outputs.contract import Emit, SinkKind
from slackwater.pipeline.definition import PipelineDefinition
from slackwater.protocol import KafkaSettings, SourceTopics
from slackwater.protocol.rights import Operation, Resource, Right, pipeline_rights

_LOG: Final = logging.getLogger(f"{__name__}.librdkafka")
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_FOREVER_MS: Final = 2**31 - 1
"""A time-out that no broker accepts. A broker rejects it after checking the rights, and before any other
effect."""


def rights_of(definition: PipelineDefinition) -> list[Right]:
    """Returns the rights that the runs of a pipeline need."""
    outputs = {
        each.name: each.prefix if each.is_source else ""
        for each in definition.outputs
        if each.kind is SinkKind.KAFKA
    }
    inputs = SourceTopics(definition.source, definition.topics)
    is_latest = definition.emit is Emit.LATEST
    return pipeline_rights(definition.name, inputs, definition.tables, outputs, is_latest=is_latest)


@dataclass(frozen=True, slots=True)
class GivenRights:
    """The rights that brokers give."""

    missing: tuple[Right, ...]
    """The rights that they do not give."""
    absent: tuple[str, ...]
    """Topics that do not exist and that may be created."""


def ask_for_rights(kafka: KafkaSettings, rights: Iterable[Right], patience: timedelta) -> GivenRights:
    """Asks the brokers for rights without changing anything; an active run is not affected.

    For a topic that does not exist, it cannot be determined whether it may be read or written. These two
    rights are only reported as missing if both are.

    Args:
        kafka: The brokers, and the user.
        rights: Rights on names, not on prefixes.
        patience: The time-out of each of a few requests.

    Raises:
        KafkaException: The brokers do not answer.
    """
    admin = AdminClient({**kafka.client_config}, logger=_LOG)
    by_name: dict[Resource, dict[str, list[Right]]] = {each: {} for each in Resource}
    for right in rights:
        by_name[right.resource].setdefault(right.name, []).append(right)
    topics = _Topics(admin, by_name[Resource.TOPIC], patience)
    missing = topics.missing()
    for name, wanted in by_name[Resource.TRANSACTIONAL_ID].items():
        if not _may_write_as(kafka, name, patience):
            missing += wanted
    return GivenRights(tuple(sorted(missing)), tuple(sorted(topics.absent)))


class _Topics:
    """What brokers report about topics. If a topic is not shown, each right is requested separately."""

    def __init__(self, admin: AdminClient, wanted: Mapping[str, list[Right]], patience: timedelta) -> None:
        self._admin, self._wanted, self._seconds = admin, wanted, patience.total_seconds()
        self.absent: list[str] = []

    def missing(self) -> list[Right]:
        """Returns the rights that are not given."""
        if not self._wanted:
            return []
        shown = self._admin.describe_topics(
            TopicCollection(list(self._wanted)),
            include_authorized_operations=True,
            request_timeout=self._seconds,
        )
        found: list[Right] = []
        refused: list[Right] = []
        unseen: set[str] = set()
        for name, answer in shown.items():
            try:
                allowed = answer.result().authorized_operations
            except KafkaException as error:
                unseen.add(name)
                if _is_refusal(error):  # who may read or write a topic is shown it
                    refused += self._those(name, Operation.READ, Operation.WRITE, Operation.DESCRIBE)
                elif _code(error) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                elif self._those(name, Operation.CREATE):
                    self.absent.append(name)
                continue
            if allowed is not None:
                found += [
                    right
                    for right in self._wanted[name]
                    if right.operation is not Operation.CREATE
                    and AclOperation[right.operation.name] not in allowed
                ]
        return found + refused + self._of_unseen(sorted(unseen))

    def _those(self, name: str, *operations: Operation) -> list[Right]:
        return [right for right in self._wanted[name] if right.operation in operations]

    def _of_unseen(self, names: Sequence[str]) -> list[Right]:
        """Requests what would be refused; nothing is created or changed."""

        def make(wanted: Sequence[str]) -> Mapping[Any, "Future[Any]"]:
            topics = [NewTopic(name, 1, -1) for name in wanted]
            return self._admin.create_topics(topics, validate_only=True, request_timeout=self._seconds)

        def look(wanted: Sequence[str]) -> Mapping[Any, "Future[Any]"]:
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in wanted]
            return self._admin.describe_configs(resources, request_timeout=self._seconds)

        def change(wanted: Sequence[str]) -> Mapping[Any, "Future[Any]"]:
            entry = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
            resources = [
                ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in wanted
            ]
            return self._admin.incremental_alter_configs(
                resources, validate_only=True, request_timeout=self._seconds
            )

        found = []
        asks: dict[Operation, Callable[[Sequence[str]], Mapping[Any, Future[Any]]]] = {
            Operation.CREATE: make,
            Operation.DESCRIBE_CONFIGS: look,
            Operation.ALTER_CONFIGS: change,
        }
        for operation, ask in asks.items():
            rights = [right for name in names for right in self._those(name, operation)]
            if rights:
                answers = ask([right.name for right in rights])
                refused = {getattr(key, "name", key) for key, answer in answers.items() if _refuses(answer)}
                found += [right for right in rights if right.name in refused]
        return found


def _may_write_as(kafka: KafkaSettings, transactional_id: str, patience: timedelta) -> bool:
    producer = Producer(
        {
            **kafka.client_config,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": _FOREVER_MS,
        },
        logger=_LOG,
    )
    try:
        producer.init_transactions(patience.total_seconds())
    except KafkaException as error:
        if _code(error) == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return True
        if _is_refusal(error):
            return False
        raise
    return True


def _refuses(answer: "Future[Any]") -> bool:
    """Returns whether a right is missing. Other errors will appear when the right is used."""
    try:
        answer.result()
    except KafkaException as error:
        return _is_refusal(error)
    return False


def _is_refusal(error: KafkaException) -> bool:
    return _code(error) in _REFUSED


def _code(error: KafkaException) -> int | None:
    found = kafka_error(error)
    return None if found is None else found.code()
