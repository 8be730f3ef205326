"""What a consumer needs from Kafka, for :mod:`slackwater.client.kafka` and for brokers of tests."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from slackwater.cdc.batch import Record
from slackwater.client.transaction import Place
from slackwater.kafka.transactions import KafkaTransactions


class Portion(NamedTuple):
    """What was read from a partition."""

    place: Place
    records: list[Record]
    position: int
    """The offset that was reached; no more records below it will follow."""


class Stored(NamedTuple):
    """A committed offset of a consumer group."""

    offset: int
    metadata: str = ""


class Reader(Protocol):
    """Reads committed records of partitions from given offsets on. Not thread-safe.

    Methods raise only :class:`slackwater.client.errors.SlackwaterError`. Transient errors are not raised: the
    call waits for their end, and so do later calls.
    """

    def begin(self, starts: Mapping[Place, int]) -> None:
        """Starts to read further partitions. Does not block."""

    def reset(self) -> None:
        """Stops reading all partitions. Does not block."""

    def pause(self, places: frozenset[Place]) -> None:
        """Pauses exactly these partitions. Records that were prefetched from them may be read again."""

    def read(self, seconds: float) -> list[Portion]:
        """Returns the available records, or waits for up to ``seconds``; empty if none arrived.

        Raises:
            StateError: Records at the position of a partition are no longer in Kafka.
            StateError: A topic or partition does not exist.
            UnavailableError: Kafka rejects the request.
        """

    def bounds(self, place: Place) -> tuple[int, int]:
        """Returns a partition's first offset, and the offset after its last. May block for some seconds.

        Raises:
            UnavailableError: Kafka does not answer, or does not have the partition.
        """

    def close(self) -> None:
        """Frees connections."""


class Member(Protocol):
    """One member of a consumer group that shares the partitions of a topic. It does not read them.

    :meth:`poll` must be called more often than the group's ``max.poll.interval.ms``; otherwise the member
    loses its partitions. Not thread-safe.
    """

    @property
    def lanes(self) -> frozenset[int]:
        """The partitions that the member owned at the last :meth:`poll`."""

    def take_gone(self) -> frozenset[int]:
        """Returns the partitions that were revoked or lost since the last call.

        A partition that has come back since then is included, because another member may have owned it.
        """

    def poll(self, seconds: float) -> None:
        """Polls the group: gives up partitions, after calling ``on_revoke``, and takes over others.

        Blocks for at most ``seconds``, unless partitions are reassigned.

        Raises:
            UnavailableError: Kafka rejects the request.
        """

    def stored(self, places: Iterable[Place]) -> dict[Place, Stored]:
        """Returns the group's committed offsets of the partitions that have any.

        Raises:
            UnavailableError: Kafka does not answer.
        """

    def store(self, offsets: Mapping[Place, Stored]) -> bool:
        """Commits offsets for the group; returns when they were acknowledged or rejected.

        Returns False if nothing was committed, because the group is rebalancing or has removed this member;
        the next :meth:`poll` reports that.

        Raises:
            UnavailableError: Kafka does not answer.
        """

    def group_metadata(self) -> Any:
        """Returns what a transactional producer needs to commit offsets on behalf of this member.

        Raises:
            TransactionLostError: The group has removed this member.
        """

    def close(self) -> None:
        """Calls ``on_revoke``, and leaves the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """The settings of a producer."""

    transaction_timeout: timedelta = timedelta(seconds=60)
    """How long a transaction may be open, and therefore how long readers wait for a producer that died and is
    not restarted. Brokers allow up to 15 minutes by default."""
    request_timeout: timedelta = timedelta(seconds=60)
    """How long to wait for Kafka's answer to one call."""
    max_bytes: int = 64 * 1024 * 1024
    """Memory for records that have not been sent yet. While it is full, writing a record blocks."""
    partitions: int = 4
    """Partitions of the topics that the producer creates for tables."""


class Broker(Protocol):
    """Creates readers, members and writers."""

    def reader(self) -> Reader:
        """Returns a reader without any partitions."""

    def member(self, group: str, topic: str, on_revoke: Callable[[frozenset[int]], None]) -> Member:
        """Joins a group. Does not block.

        Args:
            group: The name of the group.
            topic: The topic whose partitions the members share.
            on_revoke: Called within :meth:`Member.poll` with partitions that are revoked; offsets that it
                commits still count. It is not called for partitions that were lost.
        """

    def partitions(self, topic: str) -> int:
        """Returns the number of partitions of a topic; 0 if it does not exist.

        Raises:
            UnavailableError: Kafka does not answer.
        """

    def ensure_topic(self, topic: str, partitions: int, *, exactly: bool) -> None:
        """Creates a topic that keeps its records forever, unless it exists.

        Args:
            topic: The name.
            partitions: The number of partitions of a new topic.
            exactly: Whether an existing topic must have the same number.

        Raises:
            ConfigError: An existing topic has a different number.
            UnavailableError: Kafka does not answer, or rejects the request.
        """

    def compaction_lag(self, topic: str) -> timedelta | None:
        """Returns how long a topic keeps records at least, after newer ones with the same key replaced them.

        Returns:
            The time since they were written; zero if it is not known. None: the topic is not compacted.

        Raises:
            UnavailableError: Kafka does not answer.
        """

    def writer(self, transactional_id: str, settings: ProducerSettings) -> KafkaTransactions:
        """Returns a writer that has not been opened yet."""
