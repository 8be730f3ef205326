"""What a consumer needs of Kafka; :mod:`slackwater_client.kafka` does it, and ``memory`` stands in for it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, TopicPartition

from slackwater_cdc.records.record import Record
from slackwater_client.transaction import Place
from slackwater_markers.kafka_transactions import DeliveredRecord, Headers
from slackwater_protocol import SlackwaterError

DeliveryReport = Callable[[KafkaError | None, DeliveredRecord], None]
"""Is told of an error, or where a record stands now."""


class Portion(NamedTuple):
    """What was read of a partition."""

    place: Place
    records: list[Record]
    position: int
    """The offset that was reached: below it nothing more comes."""


class Stored(NamedTuple):
    """A committed offset of a consumer group."""

    offset: int
    metadata: str = ""


class Reader(Protocol):
    """Reads partitions from given offsets, committed Kafka transactions only. Not thread-safe.

    Methods raise :class:`slackwater_client.errors.ClientError` and nothing else: what passes by itself is
    waited for, by later calls, too.
    """

    def begin(self, starts: Mapping[Place, int]) -> None:
        """Reads these partitions, too. Does not block."""
        ...

    def reset(self) -> None:
        """Reads nothing any more. Does not block."""
        ...

    def pause(self, places: frozenset[Place]) -> None:
        """Pauses these partitions and no others; what was read of them ahead may be read again."""
        ...

    def read(self, seconds: float) -> list[Portion]:
        """Returns what there is, as soon as there is something; nothing after so many seconds.

        Raises:
            RecordsMissingError: Records at the position of a partition are no longer in Kafka.
            ClientStateError: A topic or partition does not exist.
            ClientUnavailableError: Kafka refuses.
        """
        ...

    def bounds(self, place: Place) -> tuple[int, int]:
        """Returns a partition's first offset and the one behind the last. Blocks for some seconds at most.

        Raises:
            ClientUnavailableError: Kafka does not answer, or does not have the partition.
        """
        ...

    def close(self) -> None:
        """Frees connections."""
        ...


class Member(Protocol):
    """One member of a consumer group that shares the partitions of a topic. Reads nothing of it.

    Calls of :meth:`poll` have to come more often than the group's ``max.poll.interval.ms`` says, or the
    member loses what it has. Not thread-safe.
    """

    @property
    def lanes(self) -> frozenset[int]:
        """The partitions that it owns, as of the newest :meth:`poll`."""
        ...

    def take_gone(self) -> frozenset[int]:
        """Returns the partitions that were given away or lost since it was asked last.

        One that has come back meanwhile is among them: somebody else may have had it.
        """
        ...

    def poll(self, seconds: float) -> None:
        """Takes part in the group: gives partitions away, after ``on_revoke``, and takes others.

        Blocks for so long at most, unless partitions change hands.

        Raises:
            ClientUnavailableError: Kafka refuses.
        """
        ...

    def stored(self, places: Iterable[Place]) -> dict[Place, Stored]:
        """Returns the group's committed offsets, of partitions that have any.

        Raises:
            ClientUnavailableError: Kafka does not answer.
        """
        ...

    def store(self, offsets: Mapping[Place, Stored]) -> bool:
        """Commits offsets for the group; returns when they are acknowledged, or refused.

        False: nothing was stored, for the group is dividing its partitions anew, or has gone on without this
        member, which the next :meth:`poll` says.

        Raises:
            ClientUnavailableError: Kafka does not answer.
        """
        ...

    def group_metadata(self) -> Any:
        """Returns what a transactional producer needs to commit offsets in this member's name.

        Raises:
            TransactionLostError: It is no longer a member.
        """
        ...

    def close(self) -> None:
        """Leaves the group, after ``on_revoke``."""
        ...


class Writer(Protocol):
    """Writes Kafka transactions under a transactional id; whoever opened it before is fenced.

    Methods block until Kafka has answered, for the request time-out at most, and raise :class:`ClientError`
    and nothing else; of these :class:`ProducerFencedError` means that somebody else has opened it. Not
    thread-safe.
    """

    def open(self) -> None:
        """Fences earlier writers; what they left open is ended when this returns."""
        ...

    def begin(self) -> None:
        """Begins a transaction; asks nobody."""
        ...

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        report: DeliveryReport | None,
    ) -> None:
        """Hands over a record; blocks only while the memory for records is full.

        Args:
            topic: Its topic; the key decides about the partition.
            key: Its key.
            value: Its value.
            headers: Names and values.
            report: Called within a later call with what became of it.
        """
        ...

    def serve(self) -> None:
        """Runs due delivery reports; does not block."""
        ...

    def flush(self, has_failed: Callable[[], bool]) -> None:
        """Returns when every record has its delivery report, or soon after one has failed."""
        ...

    def check(self) -> None:
        """Raises what has broken the open transaction, if anything has; asks nobody."""
        ...

    def send_offsets(self, offsets: list[TopicPartition], member: Any) -> None:
        """Commits a group's offsets with the transaction.

        Args:
            offsets: By partition.
            member: See :meth:`Member.group_metadata`.

        Raises:
            TransactionLostError: The member is no longer one.
        """
        ...

    def commit(self) -> None:
        """Commits.

        Raises:
            OutcomeUnknownError: Nobody has said whether it is committed; only :meth:`discard` may follow.
            ClientError: It is not committed.
        """
        ...

    def abort(self) -> SlackwaterError | None:
        """Aborts, and returns None, or why it could not; then only :meth:`discard` may follow."""
        ...

    def discard(self) -> None:
        """Frees connections; an open transaction is left to the next :meth:`open`, or its time-out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer works."""

    transaction_timeout: timedelta = timedelta(seconds=60)
    """So long may a transaction stand open; so long do readers wait for a producer that died and is not
    started again. Brokers allow 15 minutes by default."""
    request_timeout: timedelta = timedelta(seconds=60)
    """How long Kafka's answer to one call is waited for."""
    max_bytes: int = 64 * 1024 * 1024
    """Memory for records that are not sent yet; when it is full, handing over another one waits."""
    partitions: int = 4
    """Of topics that the producer makes for tables."""


class Broker(Protocol):
    """Makes readers, members and writers."""

    def reader(self) -> Reader:
        """Returns a reader that reads nothing yet."""
        ...

    def member(
        self, group: str, topic: str, partitions: int | None, on_revoke: Callable[[frozenset[int]], None]
    ) -> Member:
        """Joins a group.

        Args:
            group: Its name.
            topic: Whose partitions are shared.
            partitions: Makes the topic with so many if it does not exist; None: it has to.
            on_revoke: Called within :meth:`Member.poll` with partitions that are given away in order; what it
                stores still counts. Not called for what was lost.

        Raises:
            ClientConfigError: The topic has another number of partitions.
            ClientUnavailableError: Kafka does not answer.
        """
        ...

    def partitions(self, topic: str) -> int:
        """Returns the number of partitions of a topic; 0 if it does not exist.

        Raises:
            ClientUnavailableError: Kafka does not answer.
        """
        ...

    def ensure_topic(self, topic: str, partitions: int, *, exactly: bool) -> None:
        """Makes a topic that keeps everything for ever, if it does not exist.

        Args:
            topic: Its name.
            partitions: Of a new one.
            exactly: Whether one that exists has to have as many.

        Raises:
            ClientConfigError: It has another number.
            ClientUnavailableError: Kafka does not answer, or refuses.
        """
        ...

    def compaction_lag(self, topic: str) -> timedelta | None:
        """Returns for how long a topic keeps records, at least, that newer ones of their key replace.

        Returns:
            The time since they were written; zero where nobody says. None: it is not compacted.

        Raises:
            ClientUnavailableError: Kafka does not answer.
        """
        ...

    def writer(self, transactional_id: str, settings: ProducerSettings) -> Writer:
        """Returns a writer that is not open yet."""
        ...
