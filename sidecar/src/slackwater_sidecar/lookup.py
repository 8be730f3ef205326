"""Looks for the topics of a source, and where their partitions begin and end."""

import re
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec  # public in confluent_kafka.admin, but not typed so

from slackwater.cdc import EndOffsets
from slackwater.kafka.reader import list_offsets
from slackwater.kafka.retry import reason_of
from slackwater.protocol import ConfigError, InputError, SlackwaterError
from slackwater.protocol.keys import cut_log_topic, progress_topic
from slackwater_sidecar.consumption import Failure, PartitionId
from slackwater_sidecar.errors import SchemasUnavailableError, SidecarUnavailableError
from slackwater_sidecar.settings import SidecarSettings

_SECONDS = 3.0
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_CONNECTION_SETTINGS = (
    "security.",
    "sasl.",
    "ssl.",
    "socket.",
    "client.",
    "broker.",
    "metadata.",
    "reconnect.",
    "log_level",
    "retry.",
)
"""What librdkafka's settings that say how to connect begin with: an admin client complains about others."""

Starts = Callable[[str, int], int | None]
"""Topic and partition to the offset from which they must be read; None: from the beginning."""

T = TypeVar("T")


class Found(NamedTuple):
    """Names the topics of a source and where to begin with their partitions."""

    data_topics: list[str]
    starts: dict[PartitionId, int]
    """Where to begin with each partition that is not read yet."""


class Lookup:
    """Asks the broker; used by one thread.

    Args:
        settings: Source, brokers, tables.
        starts: From where partitions must be read.
        admin: Whom to ask; None: connects as the settings say.
    """

    def __init__(self, settings: SidecarSettings, starts: Starts, admin: AdminClient | None = None) -> None:
        topics = settings.source_topics
        self.transactions: PartitionId = topics.transactions, 0
        self.notifications: PartitionId = topics.notifications, 0
        self.is_data_topic = data_topics(settings)
        self._named: set[str] = set()
        self._bootstrap = settings.servers.kafka.bootstrap
        self._starts = starts
        self._admin = AdminClient(admin_config(settings)) if admin is None else admin

    def find(self, known: Collection[PartitionId], named: Collection[str] = ()) -> Found:
        """Finds the data topics, and the partitions of all topics that are not known.

        Args:
            known: Partitions that are read already.
            named: Topics of tables that the connector has named: they may have more dots than others.

        Raises:
            SidecarUnavailableError: Kafka does not answer.
            InputError: a partition does not have the offset from which it must be read.
            ConfigError: a topic that tells of order has several partitions.
        """
        metadata = self._ask("listing topics", lambda: self._admin.list_topics(timeout=_SECONDS))
        found = {name: len(t.partitions) for name, t in metadata.topics.items() if t.error is None}
        for topic, _ in (self.transactions, self.notifications):
            if found.get(topic, 1) > 1:
                raise _scattered(topic, found[topic])
        self._named.update(named)
        data = sorted(topic for topic in found if self.is_data_topic(topic) or topic in self._named)
        wanted = [(topic, number) for topic in data for number in range(found[topic])]
        wanted += [key for key in (self.transactions, self.notifications) if key[0] in found]
        new = [key for key in wanted if key not in known]
        if not new:
            return Found(data, {})
        low = self._first_offsets(new)
        high = self.end_offsets(new)
        return Found(data, {key: self._start(key, low[key], high[key]) for key in new})

    def end_offsets(self, keys: Collection[PartitionId]) -> EndOffsets:
        """Returns high watermarks as of now.

        Raises:
            SidecarUnavailableError: Kafka does not answer.
        """
        # The high watermark: everything whose writing any producer was acknowledged before lies below.
        return self._offsets("asking for end offsets", keys, _LATEST)

    def held_back(self, keys: Collection[PartitionId]) -> int:
        """Returns how many offsets lie behind the beginning of a Kafka transaction that is open, in all.

        Raises:
            SidecarUnavailableError: Kafka does not answer.
        """
        # In this order: what is committed in between makes the difference smaller, not larger.
        ends = self.end_offsets(keys)
        stable = self._offsets("asking for last stable offsets", keys, _LATEST, is_committed=True)
        return sum(max(0, end - stable[key]) for key, end in ends.items())

    def error_of(self, failure: Failure, known: Collection[PartitionId]) -> SlackwaterError | None:
        """Returns what a failure of a consumer means; None when it does not concern a partition that is read.

        Raises:
            SidecarUnavailableError: Kafka does not answer.
        """
        if failure.registry:
            return SchemasUnavailableError(failure.registry, failure.reason)
        key = failure.topic, failure.number
        if failure.is_lost and key in known:
            low = self._first_offsets([key])
            return truncated(*key, failure.offset, low[key], self.end_offsets([key])[key])
        if failure.is_fatal or failure.topic in {topic for topic, _ in known}:
            place = f"reading {failure.topic}/{failure.number}"
            return SidecarUnavailableError(place, self._bootstrap, failure.reason)
        return None

    def _start(self, key: PartitionId, low: int, high: int) -> int:
        wanted = self._starts(*key)
        if wanted is None:
            return low
        if not low <= wanted <= high:
            raise truncated(*key, wanted, low, high)
        return wanted

    def _first_offsets(self, keys: Collection[PartitionId]) -> dict[PartitionId, int]:
        return self._offsets("asking for first offsets", keys, _EARLIEST)

    def _offsets(
        self, operation: str, keys: Collection[PartitionId], spec: OffsetSpec, *, is_committed: bool = False
    ) -> dict[PartitionId, int]:
        return self._ask(
            operation, lambda: list_offsets(self._admin, keys, spec, _SECONDS, is_committed=is_committed)
        )

    def _ask(self, operation: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except KafkaException as error:
            raise SidecarUnavailableError(operation, self._bootstrap, reason_of(error)) from error


def data_topics(settings: SidecarSettings) -> Callable[[str], bool]:
    """Returns which topics hold rows: those of the tables, or everything named or routed like one."""
    source, topics = settings.source, settings.source_topics
    if settings.tables is not None:
        return frozenset(map(topics.data, settings.tables)).__contains__
    own = {cut_log_topic(source), progress_topic(source)}  # a pipeline may be named like its source
    others = own | {topics.transactions, topics.notifications}
    routed = frozenset(topics.routed.values())
    named = re.compile(re.escape(source) + r"\.[^.]+\.[^.]+").fullmatch
    return lambda topic: topic not in others and (topic in routed or named(topic) is not None)


def truncated(topic: str, partition: int, wanted: int, low: int, high: int) -> InputError:
    """Returns the error for a partition that does not have the offset from which reading has to continue.

    Args:
        topic: Its topic.
        partition: Its number.
        wanted: Where reading has to continue.
        low: The first offset that it has.
        high: The offset after the last one.
    """
    if wanted < low:
        gone = f"offsets {wanted} to {low - 1} of {topic}/{partition} are gone"
    else:
        gone = f"{topic}/{partition} ends at {high}, but was read up to {wanted}: it was recreated"
    return InputError(
        f"{gone}. The frontier cannot advance without loss",
        "take a new snapshot and start over: new checkpoints, a new cut log (delete its topic), longer "
        "retention.ms on the data topics",
    )


def _scattered(topic: str, partitions: int) -> ConfigError:
    """Returns the error for a topic whose records must be in one order and are not."""
    return ConfigError(
        f"{topic} has {partitions} partitions, expected 1: BEGIN and END have different keys, so their order "
        "would be lost",
        "delete the topic, let the connector create it with one partition "
        "(topic.creation.<group>.partitions=1 in its configuration), and take a new snapshot",
    )


def admin_config(settings: SidecarSettings) -> dict[str, str | int | float | bool]:
    """Returns the settings of the client that asks for topics and offsets."""
    kafka = settings.servers.kafka
    connection = {k: v for k, v in kafka.options.items() if k.startswith(_CONNECTION_SETTINGS)}
    return {"bootstrap.servers": kafka.bootstrap, **connection}
