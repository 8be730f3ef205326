"""Looks for the topics of a source, and where their partitions begin and end."""

import re
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from slackwater_cdc import EndOffsets
from slackwater_protocol.keys import cut_log_topic
from slackwater_sidecar.consumption import Failure, Key, reason_of
from slackwater_sidecar.errors import (
    ScatteredTopicError,
    SchemasUnavailableError,
    SidecarError,
    SourceTruncatedError,
    SourceUnavailableError,
)
from slackwater_sidecar.kafka_config import admin_config
from slackwater_sidecar.offsets import first_offsets, high_watermarks
from slackwater_sidecar.reader import Starts
from slackwater_sidecar.settings import SidecarSettings

_SECONDS = 3.0
T = TypeVar("T")


class Found(NamedTuple):
    """What there is."""

    data_topics: list[str]
    starts: dict[Key, int]
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
        self.transactions: Key = topics.transactions, 0
        self.notifications: Key = topics.notifications, 0
        self.is_data_topic = data_topics(settings)
        self._bootstrap = settings.bootstrap
        self._starts = starts
        self._admin = AdminClient(admin_config(settings)) if admin is None else admin

    def find(self, known: Collection[Key]) -> Found:
        """The data topics, and the partitions of all topics that are not known.

        Raises:
            SourceUnavailableError: Kafka does not answer.
            SourceTruncatedError: a partition does not have the offset from which it must be read.
            ScatteredTopicError: a topic that tells of order has several partitions.
        """
        metadata = self._ask("listing topics", lambda: self._admin.list_topics(timeout=_SECONDS))
        found = {name: len(t.partitions) for name, t in metadata.topics.items() if t.error is None}
        for topic, _ in (self.transactions, self.notifications):
            if found.get(topic, 1) > 1:
                raise ScatteredTopicError(topic, found[topic])
        data = sorted(filter(self.is_data_topic, found))
        wanted = [(topic, number) for topic in data for number in range(found[topic])]
        wanted += [key for key in (self.transactions, self.notifications) if key[0] in found]
        new = [key for key in wanted if key not in known]
        if not new:
            return Found(data, {})
        low = self._ask("asking for first offsets", lambda: first_offsets(self._admin, new))
        high = self.end_offsets(new)
        return Found(data, {key: self._start(key, low[key], high[key]) for key in new})

    def end_offsets(self, keys: Collection[Key]) -> EndOffsets:
        """High watermarks as of now.

        Raises:
            SourceUnavailableError: Kafka does not answer.
        """
        return self._ask("asking for end offsets", lambda: high_watermarks(self._admin, keys))

    def error_of(self, failure: Failure, known: Collection[Key]) -> SidecarError | None:
        """What a failure of a consumer means; None when it does not concern a partition that is read.

        Raises:
            SourceUnavailableError: Kafka does not answer.
        """
        if failure.registry:
            return SchemasUnavailableError(failure.registry, failure.reason)
        key = failure.topic, failure.number
        if failure.is_lost and key in known:
            low = self._ask("asking for first offsets", lambda: first_offsets(self._admin, [key]))
            return SourceTruncatedError(*key, failure.offset, low[key], self.end_offsets([key])[key])
        if failure.is_fatal or failure.topic in {topic for topic, _ in known}:
            place = f"reading {failure.topic}/{failure.number}"
            return SourceUnavailableError(place, self._bootstrap, failure.reason)
        return None

    def _start(self, key: Key, low: int, high: int) -> int:
        wanted = self._starts(*key)
        if wanted is None:
            return low
        if not low <= wanted <= high:
            raise SourceTruncatedError(*key, wanted, low, high)
        return wanted

    def _ask(self, operation: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except KafkaException as error:
            raise SourceUnavailableError(operation, self._bootstrap, reason_of(error)) from error


def data_topics(settings: SidecarSettings) -> Callable[[str], bool]:
    """Which topics hold rows: those of the tables, or everything named or routed like one."""
    source, topics = settings.source, settings.source_topics
    if settings.tables is not None:
        return frozenset(map(topics.data, settings.tables)).__contains__
    others = {cut_log_topic(source), topics.transactions, topics.notifications}
    routed = frozenset(topics.routed.values())
    named = re.compile(re.escape(source) + r"\.[^.]+\.[^.]+").fullmatch
    return lambda topic: topic not in others and (topic in routed or named(topic) is not None)
