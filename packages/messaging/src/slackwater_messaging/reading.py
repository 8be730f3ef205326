"""Reads topics, as a member of a group or without one, and with this package's own errors."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.kafka.reader import TopicReader
from slackwater.kafka.retry import (
    ABSENT_CODES,
    OUT_OF_RANGE_CODES,
    KafkaRetry,
    NeededRights,
    Retry,
    await_topic,
    create_topics,
    is_transient,
    kafka_error,
)
from slackwater.protocol import Clock, ConfigError, KafkaSettings, StateError, UnavailableError
from slackwater_messaging.message import Place, ReceivedMessage

READING: Final = NeededRights(
    user="the service's user", on_topics="Read on the topic", on_group="Read on the consumer's group"
)
_SECONDS: Final = 30.0
_ONLY_CRITICAL: Final = "2"


def quiet(kafka: KafkaSettings) -> KafkaSettings:
    """Returns settings with which librdkafka does not write a line for each of its own attempts.

    Otherwise it writes to standard error several times a second while no broker answers. ``log_level`` among
    the options has precedence.
    """
    return replace(kafka, options={"log_level": _ONLY_CRITICAL, **kafka.options})


@contextmanager
def topic_reader(
    kafka: KafkaSettings, patience: timedelta, clock: Clock | None = None
) -> Iterator[TopicReader]:
    """Provides a reader of committed records. Its errors become errors of this package in the block.

    Raises:
        StateError: A topic does not exist.
        UnavailableError: Kafka rejects a request or does not answer, or a transaction stays open.
    """
    config, seconds = quiet(kafka).client_config, patience.total_seconds()
    with (
        explained(f"reading topics at {kafka.bootstrap}"),
        TopicReader(config, _SECONDS, patience=seconds, clock=clock) as reader,
    ):
        yield reader


def ensure_compacted_topic(kafka: KafkaSettings, topic: str) -> None:
    """Creates a compacted topic with one partition, unless it exists.

    Raises:
        UnavailableError: Kafka rejects the request or does not answer.
    """
    admin = AdminClient({**quiet(kafka).client_config})
    wanted = NewTopic(topic, 1, -1, config={"cleanup.policy": "compact"})

    what = f"creating topic {topic}"
    with explained(f"{what} at {kafka.bootstrap}"):
        KafkaRetry(what, _SECONDS).call(partial(create_topics, admin, [wanted]))


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Translates errors of Kafka's client into errors of this package."""
    try:
        yield
    except KafkaException as error:
        found = kafka_error(error)
        if found is not None and found.code() in ABSENT_CODES:
            raise StateError(
                f"{what} failed: the topic does not exist", "create it, or correct its name"
            ) from error
        known = found or KafkaError(KafkaError._FAIL, str(error))  # noqa: SLF001
        hint = READING.advice(known) or (
            "check that the brokers are up and reachable; a transaction that stays open is hanging: see "
            "docs/runbooks.md#readers-stand-still"
        )
        raise UnavailableError(f"{what} failed: {known.str()} ({known.name()})", hint) from error


logger = logging.getLogger(__name__)

_ASK_SECONDS = 10.0
_STRATEGY = "partition.assignment.strategy"


class GroupMember:
    """Reads topics together with the other members of its group. Use it from one thread.

    Messages stay in :attr:`batch` until :meth:`done`. Messages of revoked or lost partitions are removed from
    it automatically.

    Args:
        latest: Where a group without committed offsets begins: with new messages only, or with the oldest
            one.
        patience: How long attempts to process a batch may fail.
        on_revoke: Called with partitions before they are revoked.
        skips_lost: Whether reading continues with the oldest record if the next one is no longer in Kafka.

    Raises:
        ConfigError: A librdkafka setting cannot be used here.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        topics: Sequence[str],
        group: str,
        *,
        latest: bool,
        patience: timedelta = timedelta.max,
        on_revoke: Callable[[Sequence[Place]], None] = lambda places: None,
        skips_lost: bool = False,
    ) -> None:
        if "cooperative" in kafka.options.get(_STRATEGY, ""):
            problem = f"{_STRATEGY} is {kafka.options[_STRATEGY]}"
            raise ConfigError(
                problem, "expected range or roundrobin; cooperative assignment is not supported"
            )
        self._group = group
        self._reading = Retry(f"group {group}: Kafka")
        self._processing = Retry(f"group {group}", patience.total_seconds(), pause=self.wait)
        self._start = OFFSET_END if latest else OFFSET_BEGINNING
        self._on_revoke = on_revoke
        self._consumer = Consumer(
            {
                **quiet(kafka).client_config,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest" if skips_lost else "error",
                "isolation.level": "read_committed",
                "allow.auto.create.topics": False,
                "on_commit": self._committed,
            },
            logger=logger,
        )
        self.places: tuple[Place, ...] = ()
        """The assigned partitions."""
        self.is_begun = True
        """False after an assignment: nothing is read until :meth:`begin`."""
        self.batch: list[ReceivedMessage] = []
        """Messages that were read, but are not done."""
        self._ends: dict[Place, int] = {}
        """Offsets of messages that are done, but were not sent to the group yet."""
        self._is_committing = False
        """Whether a commit is in progress. A second one at the same time could be overtaken by it."""
        self._consumer.subscribe(
            list(topics), on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose
        )

    def begin(self, positions: Mapping[Place, int]) -> None:
        """Starts to read the assigned partitions, from these positions or from the group's offsets.

        Raises:
            KafkaException: Kafka does not answer.
        """
        stored = self.committed()
        starts = {place: positions.get(place, stored.get(place, self._start)) for place in self.places}
        self._consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
        self.is_begun = True

    def read(self, at_most: int, seconds: float) -> None:
        """Fills an empty batch with available messages; waits for the first one for up to ``seconds``.

        Raises:
            StateError: The next record is no longer in Kafka, or a topic does not exist and was not created
                within a few seconds.
            UnavailableError: Kafka rejects the request.
        """
        if self.batch:
            return
        first = self._consumer.poll(seconds)
        found = [] if first is None else [first, *self._consumer.consume(at_most - 1, 0)]
        self._take(found)

    def wait(self, seconds: float) -> None:
        """Stays in the group for ``seconds`` without reading."""
        parts = [TopicPartition(*place) for place in self.places] if self.is_begun else []
        self._consumer.pause(parts)
        message = self._consumer.poll(seconds)
        self._take([] if message is None else [message])
        if self.is_begun:
            self._consumer.resume(
                [part for part in parts if Place(part.topic, part.partition) in self.places]
            )

    def wait_after(self, error: Exception) -> None:
        """Stays in the group before the next attempt to process the batch, longer after each failure.

        Raises:
            UnavailableError: Attempts have failed for too long.
        """
        self._processing.note(error)
        if self._processing.is_over:
            problem = f"group {self._group}: {self._processing.outcome}"
            hint = "check that the server is up; nothing was lost"
            raise UnavailableError(problem, hint) from error
        self._processing.pause()

    def succeeded(self) -> None:
        """Reports that an attempt did not fail."""
        self._processing.reset()

    def done(self) -> None:
        """Reports the batch as processed."""
        self._ends.update(ends_of(self.batch))
        self.batch = []

    def drop_below(self, ends: Mapping[Place, int]) -> None:
        """Removes messages from the batch that were processed according to the group's offsets."""
        self.batch = [each for each in self.batch if each.offset >= ends.get(each.place, 0)]

    def commit(self) -> None:
        """Commits the offsets of messages that are done, unless a commit is in progress.

        Call it again later; it then sends the offsets that failed or had to wait.
        """
        if not self._is_committing:
            self._is_committing = self._send_ends(is_waiting=False)

    def committed(self) -> dict[Place, int]:
        """Returns the group's offsets of the assigned partitions that have any.

        Raises:
            KafkaException: Kafka does not answer.
        """
        if not self.places:
            return {}
        asked = [TopicPartition(*place) for place in self.places]
        found = self._consumer.committed(asked, timeout=_ASK_SECONDS)
        for part in found:
            if part.error is not None:
                raise KafkaException(part.error)
        return {Place(p.topic, p.partition): p.offset for p in found if p.offset >= 0}

    def metadata(self) -> Any:
        """Returns what a producer needs to commit offsets on behalf of this member."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        """Calls ``on_revoke``, and leaves the group."""
        self._consumer.close()

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Notes partitions. The callback does not query the database, because it cannot retry."""
        consumer.assign([])
        self.places = tuple(sorted(Place(p.topic, p.partition) for p in partitions))
        self.is_begun = not partitions

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._on_revoke([Place(p.topic, p.partition) for p in partitions])
        self._send_ends(is_waiting=True)
        self._lose(consumer, partitions)

    def _send_ends(self, *, is_waiting: bool) -> bool:
        """Commits the offsets of messages that are done; returns whether a request was sent."""
        parts = [TopicPartition(*place, end) for place, end in self._ends.items()]
        self._ends.clear()
        try:
            if parts and is_waiting:
                self._consumer.commit(offsets=parts, asynchronous=False)
            elif parts:
                self._consumer.commit(offsets=parts, asynchronous=True)
        except KafkaException as error:
            self._note_commit(kafka_error(error), parts)
            return False
        return bool(parts)

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._is_committing = False
        self._note_commit(error, partitions)

    def _note_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Keeps offsets that could not be committed for the next attempt, unless there are newer ones."""
        for part in partitions:
            failed, place = error or part.error, Place(part.topic, part.partition)
            if failed is not None and place in self.places:
                logger.warning("group %s: an offset could not be committed: %s", self._group, failed.str())
                self._ends.setdefault(place, part.offset)

    def _lose(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {Place(p.topic, p.partition) for p in partitions}
        self.places = tuple(place for place in self.places if place not in gone)
        self.batch = [message for message in self.batch if message.place not in gone]
        self._ends = {place: end for place, end in self._ends.items() if place not in gone}

    def _take(self, messages: Sequence[KafkaMessage]) -> None:
        for message in messages:
            if message.error() is not None:
                continue
            received = as_received(message)
            # A rebalance in between has revoked the partition, or restarted it.
            if self.is_begun and received.place in self.places:
                self.batch.append(received)
                self._reading.reset()
        for message in messages:  # after all were kept, because the consumer's position is behind all of them
            if (error := message.error()) is not None:
                self._refuse(message, error)

    def _refuse(self, message: KafkaMessage, error: KafkaError) -> None:
        place = f"{message.topic()}/{message.partition()}"
        if error.code() in OUT_OF_RANGE_CODES:
            problem = f"group {self._group}: the next record of {place} is no longer in Kafka"
            hint = "records were deleted, or the topic was recreated; set the group's offset to continue"
            raise StateError(f"{problem}: {error.str()}", hint)
        if error.code() in ABSENT_CODES:
            await_topic(self._consumer, message.topic() or "", "create it, or correct its name")
        elif not is_transient(error):
            problem = f"group {self._group}: reading failed: {error.str()}"
            hint = READING.advice(error) or "check the address, and the rights of the client's user"
            raise UnavailableError(problem, hint)
        else:
            self._reading.note(error)


def as_received(message: KafkaMessage) -> ReceivedMessage:
    """Returns a message of Kafka's client as a received message."""
    kind, timestamp = message.timestamp()
    value, key = message.value(), message.key()
    headers = cast("list[tuple[str, str | bytes | None]]", message.headers() or [])
    return ReceivedMessage(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp_ms=timestamp if kind else None,
        value=_as_bytes(value),
        key=_as_bytes(key),
        headers=tuple((name, _as_bytes(each) or b"") for name, each in headers),
    )


def ends_of(messages: Sequence[ReceivedMessage]) -> dict[Place, int]:
    """Returns the offset after the last message of each partition."""
    return {message.place: message.offset + 1 for message in messages}


def _as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
