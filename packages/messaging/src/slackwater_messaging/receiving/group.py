"""A member of a consumer group that reads batches, and can wait with one without leaving the group."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from slackwater_markers.kafka_retry import is_transient, kafka_error
from slackwater_messaging.errors import MessagingConfigError, MessagingStateError, MessagingUnavailableError
from slackwater_messaging.message import Place
from slackwater_messaging.receiving.receipt import ReceivedMessage
from slackwater_protocol import KafkaSettings

logger = logging.getLogger(__name__)

_ASK_SECONDS = 10.0
_OUT_OF_RANGE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001 - their names
_ABSENT = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)  # noqa: SLF001
_STRATEGY = "partition.assignment.strategy"


class GroupMember:
    """Reads topics together with the other members of its group. Used by one thread.

    What was read stays in :attr:`batch` until :meth:`done`; messages of partitions that are given away or
    lost leave it by themselves.

    Args:
        kafka: Where it is, and further librdkafka settings.
        topics: What is read.
        group: The consumer group.
        latest: Where a group without positions begins: at what comes from now on, or at all there is.
        on_revoke: Called with partitions that are given away in order, before they are.

    Raises:
        MessagingConfigError: A setting that cannot be used here.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        topics: Sequence[str],
        group: str,
        *,
        latest: bool,
        on_revoke: Callable[[Sequence[Place]], None],
    ) -> None:
        if "cooperative" in kafka.options.get(_STRATEGY, ""):
            problem = f"{_STRATEGY} is {kafka.options[_STRATEGY]}"
            raise MessagingConfigError(
                problem, "expected range or roundrobin: partitions are assigned together"
            )
        self._group = group
        self._start = OFFSET_END if latest else OFFSET_BEGINNING
        self._on_revoke = on_revoke
        self._consumer = Consumer(
            {
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "allow.auto.create.topics": False,
                "on_commit": self._committed,
                **kafka.client_config,
            },
            logger=logger,
        )
        self.places: tuple[Place, ...] = ()
        """The partitions that are assigned."""
        self.is_begun = True
        """False: partitions were assigned, and nothing is read until :meth:`begin`."""
        self.batch: list[ReceivedMessage] = []
        """What was read and is not done."""
        self._ends: dict[Place, int] = {}
        """What was done and is not on its way to the group's offsets."""
        self._is_committing = False
        """Whether offsets are on their way: if others went beside them, the older ones could arrive last."""
        self._consumer.subscribe(
            list(topics), on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose
        )

    def begin(self, positions: Mapping[Place, int]) -> None:
        """Reads the assigned partitions, from here or, where nothing is said, from the group's offsets.

        Raises:
            KafkaException: Kafka does not answer.
        """
        stored = self.committed()
        starts = {place: positions.get(place, stored.get(place, self._start)) for place in self.places}
        self._consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
        self.is_begun = True

    def read(self, at_most: int, seconds: float) -> None:
        """Fills the batch, unless there is one, with what there is; waits for the first message so long.

        Raises:
            MessagingStateError: What is to be read next is not in Kafka any more, or a topic is not there.
            MessagingUnavailableError: Kafka refuses.
        """
        if self.batch:
            return
        first = self._consumer.poll(seconds)
        found = [] if first is None else [first, *self._consumer.consume(at_most - 1, 0)]
        self._take(found)

    def wait(self, seconds: float) -> None:
        """Stays in the group so long without reading."""
        parts = [TopicPartition(*place) for place in self.places] if self.is_begun else []
        self._consumer.pause(parts)
        message = self._consumer.poll(seconds)
        self._take([] if message is None else [message])
        if self.is_begun:
            self._consumer.resume(
                [part for part in parts if Place(part.topic, part.partition) in self.places]
            )

    def done(self) -> None:
        """Says that the batch was processed."""
        self._ends.update(ends_of(self.batch))
        self.batch = []

    def drop_below(self, ends: Mapping[Place, int]) -> None:
        """Takes messages out of the batch that were processed, as the group's offsets say."""
        self.batch = [each for each in self.batch if each.offset >= ends.get(each.place, 0)]

    def commit(self) -> None:
        """Sends the offsets of what is done, unless some are on their way.

        Call it again later: what has failed, or could not be sent, is sent then.
        """
        parts = [] if self._is_committing else self._take_ends()
        if parts:
            try:
                self._consumer.commit(offsets=parts, asynchronous=True)
                self._is_committing = True
            except KafkaException as error:
                self._note_commit(kafka_error(error), parts)

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
        """Returns what a producer needs to commit offsets in this member's name."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        """Leaves the group, after ``on_revoke``."""
        self._consumer.close()

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Notes partitions. A database is not asked within a callback, which cannot try again."""
        consumer.assign([])
        self.places = tuple(sorted(Place(p.topic, p.partition) for p in partitions))
        self.is_begun = not partitions

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._on_revoke([Place(p.topic, p.partition) for p in partitions])
        parts = self._take_ends()
        if parts:
            try:
                consumer.commit(offsets=parts, asynchronous=False)
            except KafkaException as error:
                self._note_commit(kafka_error(error), parts)
        self._lose(consumer, partitions)

    def _take_ends(self) -> list[TopicPartition]:
        parts = [TopicPartition(*place, end) for place, end in self._ends.items()]
        self._ends.clear()
        return parts

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._is_committing = False
        self._note_commit(error, partitions)

    def _note_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Keeps offsets that were not stored, unless there are newer ones, to be sent again."""
        for part in partitions:
            failed, place = error or part.error, Place(part.topic, part.partition)
            if failed is not None and place in self.places:
                logger.warning("group %s: an offset is not stored: %s", self._group, failed.str())
                self._ends.setdefault(place, part.offset)

    def _lose(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {Place(p.topic, p.partition) for p in partitions}
        self.places = tuple(place for place in self.places if place not in gone)
        self.batch = [message for message in self.batch if message.place not in gone]
        self._ends = {place: end for place, end in self._ends.items() if place not in gone}

    def _take(self, messages: Sequence[KafkaMessage]) -> None:
        for message in messages:
            error = message.error()
            if error is not None:
                self._refuse(message, error)
                continue
            received = as_received(message)
            # A rebalance in between has taken the partition, or begins it anew.
            if self.is_begun and received.place in self.places:
                self.batch.append(received)

    def _refuse(self, message: KafkaMessage, error: KafkaError) -> None:
        place = f"{message.topic()}/{message.partition()}"
        if error.code() in _OUT_OF_RANGE:
            problem = f"group {self._group}: what is to be read next of {place} is not in Kafka any more"
            hint = "records were deleted or the topic was made anew; set the group's offset where to go on"
            raise MessagingStateError(f"{problem}: {error.str()}", hint)
        if error.code() in _ABSENT:
            raise MessagingStateError(
                f"topic {message.topic()} does not exist", "create it, or correct its name"
            )
        if not is_transient(error):
            problem = f"group {self._group}: Kafka refuses: {error.str()}"
            raise MessagingUnavailableError(problem, "check address and rights of the client's user")
        logger.warning("group %s: Kafka: %s; trying again", self._group, error.str())


def as_received(message: KafkaMessage) -> ReceivedMessage:
    """Returns a message of Kafka's client as a value."""
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
    """Returns the offsets behind the last message of each partition."""
    return {message.place: message.offset + 1 for message in messages}


def is_passing(error: BaseException) -> bool:
    """Says whether an error of Kafka passes by itself."""
    found = kafka_error(error)
    return found is not None and is_transient(found)


def _as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
