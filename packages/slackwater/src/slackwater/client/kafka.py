"""What clients need from Kafka: readers, members of groups, topics and writers."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property, partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, cast

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from slackwater.cdc.batch import Record
from slackwater.client.errors import TransactionLostError
from slackwater.client.transaction import Place
from slackwater.client.writer import NOT_A_MEMBER, KafkaWriter, ProducerSettings
from slackwater.kafka.retry import (
    ABSENT_CODES,
    GROUP_REFUSED,
    OUT_OF_RANGE_CODES,
    KafkaRetry,
    NeededRights,
    Retry,
    await_topic,
    check_visible,
    code_of,
    create_topics,
    is_transient,
    kafka_error,
    reason_of,
    watermark_offsets,
)
from slackwater.kafka.transactions import KafkaTransactions
from slackwater.protocol import ConfigError, KafkaSettings, StateError, UnavailableError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SECONDS = 30.0
"""How long a request to Kafka is retried while its errors are transient."""
_QUIET = "2"
"""librdkafka's level of messages on standard error: only critical ones. What is wrong is in our own messages,
and settings of one kind of client are no mistake for the others."""
_AT_ONCE = 1_000
"""Records that are taken from librdkafka in one call."""
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's own codes have no other name
_AWAY_TOO_LONG = KafkaError._MAX_POLL_EXCEEDED  # noqa: SLF001
_FOR_EVER = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_NEEDED = NeededRights(user="the client's user", on_topics="Read on the topic")
_CREATION_ADVICE = "grant the client's user Create on the topic, or create it"
_ABSENCE_ADVICE = (
    "check the name; a topic also appears to be missing if the client's user has no Describe right on it"
)
_OTHER_ADVICE = "check that the brokers are up and reachable, and check the address, the rights and the group"
_LEAVING = KafkaError._DESTROY  # noqa: SLF001
"""A consumer that is being closed has left the group before it asked us."""


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


class KafkaBroker:
    """Makes readers, members and writers. Brokers in the memory of tests are subclasses.

    Args:
        group: The consumer group in whose name partitions are read.
        max_bytes: The approximate size of what librdkafka may prefetch.
    """

    def __init__(self, kafka: KafkaSettings, group: str, max_bytes: int) -> None:
        self._kafka, self._group = kafka, group
        self._config: dict[str, str | int | float | bool] = {"log_level": _QUIET, **kafka.client_config}
        self._silence = Retry(f"Kafka at {kafka.bootstrap} does not answer ({_OTHER_ADVICE})")
        """Logs errors of connections, of which librdkafka reports one for each attempt."""
        self._max_kbytes = max(1024, max_bytes // 1024)

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self._config)

    def reader(self) -> "KafkaReader":
        """Returns a reader without any partitions."""
        config: dict[str, str | int | float | bool] = {
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": self._max_kbytes,
            "fetch.queue.backoff.ms": 5,
            # Both the end of a topic and a partition that is resumed after a pause wait for the answer to the
            # fetch request that is in flight.
            "fetch.wait.max.ms": 20,
        }
        return KafkaReader(self._consumer(self._group, config), self._silence)

    def member(self, group: str, topic: str, on_revoke: Callable[[frozenset[int]], None]) -> "KafkaMember":
        """Joins a group whose members share the partitions of a topic. Does not block.

        ``on_revoke`` is called within :meth:`KafkaMember.poll` with partitions that are revoked; offsets that
        it commits still count. It is not called for partitions that were lost.
        """
        config = {"auto.offset.reset": "latest", "partition.assignment.strategy": "cooperative-sticky"}
        return KafkaMember(self._consumer(group, config), topic, on_revoke, self._silence)

    def partitions(self, topic: str) -> int:
        """Returns the number of partitions of a topic; 0 if it does not exist.

        Raises:
            UnavailableError: Kafka does not answer, also in all methods below.
        """
        return _asked(f"looking up topic {topic}", partial(_count, self._admin, topic))

    def ensure_topic(self, topic: str, partitions: int, *, exactly: bool) -> None:
        """Creates a topic that keeps its records forever, unless it exists.

        Raises:
            ConfigError: It has another number of partitions, although it must have exactly this one.
            UnavailableError: Kafka rejects the request.
        """

        def create(seconds: float) -> None:
            new = NewTopic(topic, partitions, -1, config=_FOR_EVER)
            try:
                create_topics(self._admin, [new], seconds)
            except KafkaException as error:
                if code_of(error) == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    problem = f"creation of topic {topic} failed: {reason_of(error)}"
                    raise UnavailableError(problem, _CREATION_ADVICE) from error
                raise

        found = self.partitions(topic)
        if not found:
            _asked(f"creation of topic {topic}", create)
            count = partial(_count, self._admin, topic, is_there=True)
            found = _asked(f"creation of topic {topic}", count, ABSENT_CODES)
        if exactly and found != partitions:
            raise ConfigError(
                f"topic {topic} has {found} partitions, but {partitions} are expected",
                "use another name, or the number of the existing topic, which must be the same for all",
            )

    def compaction_lag(self, topic: str) -> timedelta | None:
        """Returns how long a topic keeps records at least, after newer ones with the same key replaced them.

        Returns:
            The time since they were written; zero if the user may not read the topic's configuration. None:
            the topic is not compacted.
        """
        resource = ConfigResource(ResourceType.TOPIC, topic)

        def ask(seconds: float) -> Mapping[str, ConfigEntry] | None:
            answer = self._admin.describe_configs([resource], request_timeout=seconds)
            try:
                found: Mapping[str, ConfigEntry] = answer[resource].result(seconds)
            except KafkaException as error:
                if code_of(error) == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    return None
                raise
            return found

        config = _asked(f"reading the configuration of {topic}", ask)
        if config is None:
            return timedelta(0)
        if "compact" not in str(config["cleanup.policy"].value):
            return None
        return timedelta(milliseconds=int(config["min.compaction.lag.ms"].value or 0))

    def writer(self, transactional_id: str, settings: ProducerSettings) -> KafkaTransactions:
        """Returns a writer that has not been opened yet."""
        return KafkaWriter(self._kafka, transactional_id, settings)

    def _consumer(self, group: str, config: Mapping[str, str | int | float | bool]) -> Consumer:
        return Consumer(
            {
                "group.id": group,
                "error_cb": self._silence.note,
                "enable.auto.commit": False,
                "allow.auto.create.topics": False,
                **config,
                **self._config,
            }
        )


class KafkaReader:
    """Reads committed records of partitions from given offsets on. Not thread-safe.

    Methods raise only :class:`SlackwaterError`, such as :class:`UnavailableError` if Kafka does not answer or
    rejects a request. Transient errors are not raised: the call waits for their end, and so do later calls.
    """

    def __init__(self, consumer: Consumer, silence: Retry) -> None:
        self._consumer = consumer
        self._silence = silence
        self._positions: dict[Place, int] = {}
        self._paused: frozenset[Place] = frozenset()
        self._absent: KafkaRetry | None = None
        self._visible: set[str] = set()
        """Topics that the user may see, as far as they were requested."""

    def begin(self, starts: Mapping[Place, int]) -> None:
        """Starts to read further partitions."""
        if starts:
            for topic in sorted({topic for topic, _ in starts} - self._visible):
                # Of a topic that the user may not see, librdkafka reads nothing, and reports no error.
                _asked(f"looking up topic {topic}", partial(check_visible, self._consumer, topic))
                self._visible.add(topic)
            self._positions.update(starts)
            self._consumer.incremental_assign([TopicPartition(*place, at) for place, at in starts.items()])

    def reset(self) -> None:
        """Stops reading all partitions. Does not block."""
        self._consumer.unassign()
        self._positions.clear()
        self._paused = frozenset()

    def pause(self, places: frozenset[Place]) -> None:
        """Pauses exactly these partitions. Records that were prefetched from them may be read again."""
        if places == self._paused:
            return
        if resumed := self._paused - places:
            self._consumer.resume([TopicPartition(*place) for place in resumed])
        if paused := places - self._paused:
            self._consumer.pause([TopicPartition(*place) for place in paused])
        self._paused = places

    def read(self, seconds: float) -> list[Portion]:
        """Returns the available records, or waits for up to ``seconds``; empty if none arrived.

        Raises:
            StateError: Records at the position of a partition are no longer in Kafka, or there is none.
        """
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(_AT_ONCE, 0)]
        found: list[Portion] = []
        for place, run in groupby(messages, lambda each: (each.topic() or "", each.partition() or 0)):
            if place in self._positions:
                found.append(self._portion(place, run))
            else:
                self._note_errors(run)
        return found

    def bounds(self, place: Place) -> tuple[int, int]:
        """Returns a partition's first offset, and the offset after its last. May block for some seconds."""
        ask = partial(watermark_offsets, self._consumer, TopicPartition(*place))
        return _asked(f"reading the end offsets of {place[0]}/{place[1]}", ask)

    def close(self) -> None:
        """Frees connections."""
        self._consumer.close()

    def _portion(self, place: Place, messages: Iterable[Message]) -> Portion:
        records: list[Record] = []
        position = self._positions[place]
        for message in messages:
            if message.error() is None:
                records.append(cast("Record", message))
                position = (message.offset() or 0) + 1
            else:
                position = max(position, self._look_at(place, message))
        self._positions[place] = position
        self._absent = None if records else self._absent
        return Portion(place, records, position)

    def _look_at(self, place: Place, message: Message) -> int:
        """Returns the position that an error refers to; raises if reading cannot continue."""
        error = message.error()
        position = self._positions[place]
        if error is None or error.code() == _END:
            return message.offset() or 0
        if error.code() in OUT_OF_RANGE_CODES:
            low, end = self.bounds(place)
            raise StateError(
                f"{place[0]}/{place[1]}: offset {position} is needed, but the partition holds {low} to {end}",
                "records were deleted, or the topic was recreated; continue with seek() or start='latest'",
            )
        if error.code() in ABSENT_CODES:
            self._absent = self._absent or KafkaRetry(f"reading {place[0]}", _SECONDS, also=ABSENT_CODES)
            self._absent.note(error)
            if self._absent.is_over:
                raise StateError(
                    f"topic {place[0]} does not exist or has no partition {place[1]}",
                    "check the topic's name",
                )
        elif not is_transient(error):
            problem = f"reading {place[0]}/{place[1]} failed: {error.str()}"
            raise UnavailableError(problem, _hint(error))
        return position

    def _note_errors(self, messages: Iterable[Message]) -> None:
        """Notes errors of connections; ignores records of partitions that are no longer read."""
        for message in messages:
            error = message.error()
            if error is not None and not message.topic() and error.code() != GROUP_REFUSED:
                _note(self._silence, error)


class KafkaMember:
    """One member of a consumer group that shares the partitions of a topic. It does not read them.

    :meth:`poll` must be called more often than the group's ``max.poll.interval.ms``; otherwise the member
    loses its partitions. Methods raise :class:`UnavailableError` if Kafka does not answer or rejects a
    request. Not thread-safe.
    """

    def __init__(
        self, consumer: Consumer, topic: str, on_revoke: Callable[[frozenset[int]], None], silence: Retry
    ) -> None:
        self._consumer = consumer
        self._silence = silence
        self._topic = topic
        self._on_revoke = on_revoke
        self.lanes: frozenset[int] = frozenset()
        """The partitions that the member owned at the last :meth:`poll`."""
        self._gone: frozenset[int] = frozenset()
        consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose)

    def take_gone(self) -> frozenset[int]:
        """Returns the partitions that were revoked or lost since the last call.

        A partition that has come back since then is included, because another member may have owned it.
        """
        gone, self._gone = self._gone, frozenset()
        return gone

    def poll(self, seconds: float) -> None:
        """Polls the group: gives up partitions, after calling ``on_revoke``, and takes over others.

        Blocks for at most ``seconds``, unless partitions are reassigned.
        """
        message = self._consumer.poll(seconds)
        if message is not None and (error := message.error()) is not None:
            if error.code() in ABSENT_CODES:
                self._look_again()
            elif error.code() == _AWAY_TOO_LONG:
                logger.warning("%s: this consumer was removed from its group and joins it again", error.str())
                self._gone, self.lanes = self._gone | self.lanes, frozenset()
            else:
                _note(self._silence, error)

    def stored(self, places: Iterable[Place]) -> dict[Place, Stored]:
        """Returns the group's committed offsets of the partitions that have any."""
        asked = [TopicPartition(*place) for place in places]

        def ask(seconds: float) -> list[TopicPartition]:
            return self._consumer.committed(asked, timeout=seconds) if asked else []

        found = _asked("reading the group's committed offsets", ask)
        return {(p.topic, p.partition): Stored(p.offset, p.metadata or "") for p in found if p.offset >= 0}

    def store(self, offsets: Mapping[Place, Stored]) -> bool:
        """Commits offsets for the group; returns when they were acknowledged or rejected.

        Returns False if nothing was committed, because the group is rebalancing or has removed this member;
        the next :meth:`poll` reports that.
        """
        if not offsets:
            return True
        parts = [TopicPartition(*place, each.offset, each.metadata) for place, each in offsets.items()]

        def commit(_: float) -> bool:
            try:
                for part in self._consumer.commit(offsets=parts, asynchronous=False) or ():
                    if part.error is not None:
                        raise KafkaException(part.error)
            except KafkaException as error:
                if code_of(error) not in (*NOT_A_MEMBER, _LEAVING):
                    raise
                what = "offsets were not committed: %s; transactions may be delivered again"
                logger.warning(what, reason_of(error))
                return False
            return True

        return _asked("committing the group's offsets", commit)

    def group_metadata(self) -> Any:
        """Returns what a transactional producer needs to commit offsets on behalf of this member.

        Raises:
            TransactionLostError: The group has removed this member.
        """
        member = self._consumer.memberid()
        metadata = self._consumer.consumer_group_metadata()
        if not member or self._consumer.memberid() != member:  # Kafka asks nobody about such a member's lanes
            hint = "abort what it has in hand; the new owner of its lane receives the transaction again"
            raise TransactionLostError("the consumer was removed from its group", hint)
        return metadata

    def close(self) -> None:
        """Calls ``on_revoke``, and leaves the group."""
        self._consumer.close()

    def _look_again(self) -> None:
        """Waits for a topic that brokers deny."""
        hint = (
            "correct the name, or start the process that creates it: the sidecar of a source, or the "
            "pipeline of an output"
        )
        with _explained(f"looking up topic {self._topic}"):
            await_topic(self._consumer, self._topic, hint)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Takes over partitions. They are paused, because separate readers read them."""
        parts = [TopicPartition(p.topic, p.partition, OFFSET_END) for p in partitions]
        consumer.incremental_assign(parts)
        consumer.pause(parts)
        self.lanes |= {p.partition for p in partitions}

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._on_revoke(frozenset(p.partition for p in partitions))
        self._lose(consumer, partitions)

    def _lose(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        lost = frozenset(p.partition for p in partitions)
        self.lanes -= lost
        self._gone |= lost


def _count(admin: AdminClient, topic: str, seconds: float, *, is_there: bool = False) -> int:
    """Returns the number of partitions of a topic; 0 if it does not exist, unless it was just created."""
    known = admin.list_topics(topic, timeout=seconds).topics[topic]
    if known.error is not None:
        if known.error.code() in ABSENT_CODES and not is_there:
            return 0
        raise KafkaException(known.error)
    return len(known.partitions)


def _asked(what: str, request: Callable[[float], T], also: Iterable[int] = ()) -> T:
    """Makes a request until it succeeds; waits for transient errors, and for those with codes of ``also``."""
    with _explained(what):
        return KafkaRetry(what, _SECONDS, also=tuple(also)).call(request)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise UnavailableError(f"{what} failed: {reason_of(error)}", _hint(kafka_error(error))) from error


def _note(silence: Retry, error: KafkaError) -> None:
    """Notes an error of a connection; librdkafka connects again by itself."""
    if not is_transient(error):
        raise UnavailableError(f"Kafka refused the client: {error.str()}", _hint(error))
    silence.note(error)


def _hint(error: KafkaError | None) -> str:
    """Returns what the user can do about an error."""
    if error is not None and error.code() in ABSENT_CODES:
        return _ABSENCE_ADVICE
    advice = None if error is None else _NEEDED.advice(error)
    return advice or _OTHER_ADVICE
