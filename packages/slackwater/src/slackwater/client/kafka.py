"""Implements what a consumer needs from Kafka with confluent_kafka."""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cached_property, partial
from itertools import groupby
from typing import Any, cast

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from slackwater.cdc.records.record import Record
from slackwater.client.broker import Portion, ProducerSettings, Stored, Writer
from slackwater.client.errors import TransactionLostError
from slackwater.client.kafka_writer import KafkaWriter
from slackwater.client.transaction import Place
from slackwater.kafka.retry import (
    ABSENT_CODES,
    GROUP_REFUSED,
    OUT_OF_RANGE_CODES,
    KafkaRetry,
    NeededRights,
    await_topic,
    check_visible,
    code_of,
    create_topics,
    is_transient,
    kafka_error,
    reason_of,
    watermark_offsets,
)
from slackwater.protocol import Clock, ConfigError, KafkaSettings, StateError, SystemClock, UnavailableError

logger = logging.getLogger(__name__)

_SECONDS = 30.0
"""How long a request to Kafka is retried while its errors are transient."""
_SILENCE_SECONDS = 60.0
"""The time between two lines in the log while brokers do not answer."""
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
_NOT_A_MEMBER = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError._DESTROY,  # noqa: SLF001 - a consumer that is being closed has left the group before it asked us
)


class KafkaBroker:
    """Implements :class:`slackwater.client.broker.Broker`.

    Args:
        kafka: The brokers, and further librdkafka settings for every client.
        group: The consumer group in whose name partitions are read.
        max_bytes: The approximate size of what librdkafka may prefetch.
        clock: Determines how often it is logged that Kafka does not answer.
    """

    def __init__(self, kafka: KafkaSettings, group: str, max_bytes: int, clock: Clock | None = None) -> None:
        self._kafka = kafka
        self._config: dict[str, str | int | float | bool] = {"log_level": _QUIET, **kafka.client_config}
        self._silence = BrokerSilence(kafka.bootstrap, clock or SystemClock())
        self._group = group
        self._max_kbytes = max(1024, max_bytes // 1024)

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self._config)

    def reader(self) -> "KafkaReader":
        """See the protocol."""
        config = {
            "group.id": self._group,
            "error_cb": self._silence.report,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
            "queued.max.messages.kbytes": self._max_kbytes,
            "fetch.queue.backoff.ms": 5,
            # Both the end of a topic and a partition that is resumed after a pause wait for the answer to the
            # fetch request that is in flight.
            "fetch.wait.max.ms": 20,
            **self._config,
        }
        return KafkaReader(Consumer(config), self._silence)

    def member(
        self, group: str, topic: str, partitions: int | None, on_revoke: Callable[[frozenset[int]], None]
    ) -> "KafkaMember":
        """See the protocol."""
        if partitions is not None:
            hint = "all members must use the same number, which cannot change while the group exists"
            _check_partitions(topic, _make(self._admin, topic, partitions), partitions, hint)
        config = {
            "group.id": group,
            "error_cb": self._silence.report,
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "partition.assignment.strategy": "cooperative-sticky",
            "allow.auto.create.topics": False,
            **self._config,
        }
        return KafkaMember(Consumer(config), topic, on_revoke, self._silence)

    def partitions(self, topic: str) -> int:
        """See the protocol."""
        what = f"looking up topic {topic}"
        try:
            return KafkaRetry(what, _SECONDS).call(partial(_count, self._admin, topic))
        except KafkaException as error:
            raise _unavailable(what, error) from error

    def ensure_topic(self, topic: str, partitions: int, *, exactly: bool) -> None:
        """See the protocol."""
        found = _make(self._admin, topic, partitions, _FOR_EVER)
        if exactly:
            _check_partitions(topic, found, partitions, "delete the topic, or use another name")

    def compaction_lag(self, topic: str) -> timedelta | None:
        """See the protocol. Also zero if the user may not read the topic's configuration."""
        what, resource = f"reading the configuration of {topic}", ConfigResource(ResourceType.TOPIC, topic)

        def ask(seconds: float) -> Mapping[str, ConfigEntry]:
            answer = self._admin.describe_configs([resource], request_timeout=seconds)
            found: Mapping[str, ConfigEntry] = answer[resource].result(seconds)
            return found

        try:
            config = KafkaRetry(what, _SECONDS).call(ask)
        except KafkaException as error:
            found = kafka_error(error)
            if found is not None and found.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return timedelta(0)
            raise _unavailable(what, error) from error
        if "compact" not in str(config["cleanup.policy"].value):
            return None
        return timedelta(milliseconds=int(config["min.compaction.lag.ms"].value or 0))

    def writer(self, transactional_id: str, settings: ProducerSettings) -> Writer:
        """See the protocol."""
        return KafkaWriter(self._kafka, transactional_id, settings)


class BrokerSilence:
    """Logs that brokers do not answer: librdkafka reports it for each of its attempts to connect.

    Args:
        bootstrap: The brokers.
        clock: Determines how often.
    """

    def __init__(self, bootstrap: str, clock: Clock) -> None:
        self._bootstrap, self._clock = bootstrap, clock
        self._logged_at = float("-inf")

    def note(self, error: KafkaError) -> None:
        """Notes an error of a connection.

        Raises:
            UnavailableError: It does not pass.
        """
        if not is_transient(error):
            raise UnavailableError(f"Kafka refused the client: {error.str()}", _hint(error))
        self.report(error)

    def report(self, error: KafkaError) -> None:
        """Logs an error that librdkafka reports apart from messages; it connects again by itself."""
        now = self._clock.monotonic()
        if now - self._logged_at >= _SILENCE_SECONDS:
            self._logged_at = now
            logger.warning(
                "Kafka at %s does not answer: %s; reading continues when it answers again; %s",
                self._bootstrap,
                error.str(),
                _OTHER_ADVICE,
            )


class KafkaReader:
    """Implements :class:`slackwater.client.broker.Reader`."""

    def __init__(self, consumer: Consumer, silence: "BrokerSilence") -> None:
        self._consumer = consumer
        self._silence = silence
        self._positions: dict[Place, int] = {}
        self._paused: frozenset[Place] = frozenset()
        self._absent: KafkaRetry | None = None
        self._visible: set[str] = set()
        """Topics that the user may see, as far as they were requested."""

    def begin(self, starts: Mapping[Place, int]) -> None:
        """See the protocol."""
        if starts:
            for topic in sorted({topic for topic, _ in starts} - self._visible):
                self._look_up(topic)
            self._positions.update(starts)
            self._consumer.incremental_assign([TopicPartition(*place, at) for place, at in starts.items()])

    def reset(self) -> None:
        """See the protocol."""
        self._consumer.unassign()
        self._positions.clear()
        self._paused = frozenset()

    def pause(self, places: frozenset[Place]) -> None:
        """See the protocol."""
        if places == self._paused:
            return
        if resumed := self._paused - places:
            self._consumer.resume([TopicPartition(*place) for place in resumed])
        if paused := places - self._paused:
            self._consumer.pause([TopicPartition(*place) for place in paused])
        self._paused = places

    def read(self, seconds: float) -> list[Portion]:
        """See the protocol."""
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(_AT_ONCE, 0)]
        found: list[Portion] = []
        for place, run in groupby(messages, key=_place):
            if place in self._positions:
                found += self._portions(place, list(run))
            else:
                self._note_errors(run)
        return found

    def bounds(self, place: Place) -> tuple[int, int]:
        """See the protocol."""
        what, part = f"reading the end offsets of {place[0]}/{place[1]}", TopicPartition(*place)
        try:
            return KafkaRetry(what, _SECONDS).call(partial(watermark_offsets, self._consumer, part))
        except KafkaException as error:
            raise _unavailable(what, error) from error

    def close(self) -> None:
        """See the protocol."""
        self._consumer.close()

    def _look_up(self, topic: str) -> None:
        """Raises if the user may not see a topic: librdkafka reads nothing of it, and reports no error."""
        what = f"looking up topic {topic}"
        try:
            KafkaRetry(what, _SECONDS).call(partial(check_visible, self._consumer, topic))
        except KafkaException as error:
            raise _unavailable(what, error) from error
        self._visible.add(topic)

    def _portions(self, place: Place, messages: list[Message]) -> list[Portion]:
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
        return [Portion(place, records, position)]

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
            if error is None or message.topic() or error.code() == GROUP_REFUSED:
                continue
            self._silence.note(error)


class KafkaMember:
    """Implements :class:`slackwater.client.broker.Member`."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        on_revoke: Callable[[frozenset[int]], None],
        silence: "BrokerSilence",
    ) -> None:
        self._consumer = consumer
        self._silence = silence
        self._topic = topic
        self._on_revoke = on_revoke
        self._lanes: frozenset[int] = frozenset()
        self._gone: frozenset[int] = frozenset()
        consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose)

    @property
    def lanes(self) -> frozenset[int]:
        """See the protocol."""
        return self._lanes

    def take_gone(self) -> frozenset[int]:
        """See the protocol."""
        gone, self._gone = self._gone, frozenset()
        return gone

    def poll(self, seconds: float) -> None:
        """See the protocol."""
        message = self._consumer.poll(seconds)
        if message is not None and (error := message.error()) is not None:
            if error.code() in ABSENT_CODES:
                self._look_again()
            elif error.code() == _AWAY_TOO_LONG:
                logger.warning("%s: this consumer was removed from its group and joins it again", error.str())
                self._gone, self._lanes = self._gone | self._lanes, frozenset()
            else:
                self._silence.note(error)

    def stored(self, places: Iterable[Place]) -> dict[Place, Stored]:
        """See the protocol."""
        asked = [TopicPartition(*place) for place in places]

        def ask(seconds: float) -> list[TopicPartition]:
            return self._consumer.committed(asked, timeout=seconds) if asked else []

        what = "reading the group's committed offsets"
        try:
            found = KafkaRetry(what, _SECONDS).call(ask)
        except KafkaException as error:
            raise _unavailable(what, error) from error
        return {(p.topic, p.partition): Stored(p.offset, p.metadata or "") for p in found if p.offset >= 0}

    def store(self, offsets: Mapping[Place, Stored]) -> bool:
        """See the protocol."""
        if not offsets:
            return True
        parts = [TopicPartition(*place, each.offset, each.metadata) for place, each in offsets.items()]

        def commit(_: float) -> None:
            for part in self._consumer.commit(offsets=parts, asynchronous=False) or ():
                if part.error is not None:
                    raise KafkaException(part.error)

        what = "committing the group's offsets"
        try:
            KafkaRetry(what, _SECONDS).call(commit)
        except KafkaException as error:
            found = kafka_error(error)
            if found is None or found.code() not in _NOT_A_MEMBER:
                raise _unavailable(what, error) from error
            logger.warning("offsets were not committed: %s; transactions may be delivered again", found.str())
            return False
        return True

    def group_metadata(self) -> Any:
        """See the protocol."""
        member = self._consumer.memberid()
        metadata = self._consumer.consumer_group_metadata()
        if not member or self._consumer.memberid() != member:  # Kafka asks nobody about such a member's lanes
            hint = "abort what it has in hand; the new owner of its lane receives the transaction again"
            raise TransactionLostError("the consumer was removed from its group", hint)
        return metadata

    def close(self) -> None:
        """See the protocol."""
        self._consumer.close()

    def _look_again(self) -> None:
        """Waits for a topic that brokers deny.

        Raises:
            StateError: Brokers have denied the topic for too long.
            UnavailableError: Kafka does not answer.
        """
        try:
            await_topic(self._consumer, self._topic)
        except KafkaException as error:
            if code_of(error) not in ABSENT_CODES:
                raise _unavailable(f"looking up topic {self._topic}", error) from error
            raise StateError(
                f"topic {self._topic} does not exist",
                "correct the name, or start the process that creates it: the sidecar of a source, or the "
                "pipeline of an output",
            ) from error

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Takes over partitions. They are paused, because separate readers read them."""
        parts = [TopicPartition(p.topic, p.partition, OFFSET_END) for p in partitions]
        consumer.incremental_assign(parts)
        consumer.pause(parts)
        self._lanes |= {p.partition for p in partitions}

    def _revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        lanes = frozenset(p.partition for p in partitions)
        self._on_revoke(lanes)
        self._lanes -= lanes
        self._gone |= lanes

    def _lose(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        lost = frozenset(p.partition for p in partitions)
        self._lanes -= lost
        self._gone |= lost


def _count(admin: AdminClient, topic: str, seconds: float) -> int:
    """Returns the number of partitions of a topic; 0 if it does not exist."""
    known = admin.list_topics(topic, timeout=seconds).topics[topic]
    if known.error is not None:
        if known.error.code() in ABSENT_CODES:
            return 0
        raise KafkaException(known.error)
    return len(known.partitions)


def _make(admin: AdminClient, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> int:
    """Creates a topic unless it exists; returns its number of partitions."""

    def create(seconds: float) -> None:
        new = NewTopic(topic, partitions, -1, config=dict(config or {}))
        try:
            create_topics(admin, [new], seconds)
        except KafkaException as error:
            found = kafka_error(error)
            if found is not None and found.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                problem = f"creation of topic {topic} failed: {found.str()}"
                raise UnavailableError(problem, _CREATION_ADVICE) from error
            raise

    def count_new(seconds: float) -> int:
        found = _count(admin, topic, seconds)
        if not found:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return found

    what = f"looking up topic {topic}"
    try:
        if found := KafkaRetry(what, _SECONDS).call(partial(_count, admin, topic)):
            return found
        what = f"creation of topic {topic}"
        KafkaRetry(what, _SECONDS).call(create)
        return KafkaRetry(what, _SECONDS, also=ABSENT_CODES).call(count_new)
    except KafkaException as error:
        raise _unavailable(what, error) from error


def _check_partitions(topic: str, found: int, expected: int, hint: str) -> None:
    if found != expected:
        raise ConfigError(f"topic {topic} has {found} partitions, but {expected} are expected", hint)


def _place(message: Message) -> Place:
    return message.topic() or "", message.partition() or 0


def _unavailable(what: str, error: KafkaException) -> UnavailableError:
    return UnavailableError(f"{what} failed: {reason_of(error)}", _hint(kafka_error(error)))


def _hint(error: KafkaError | None) -> str:
    """Returns what the user can do about an error."""
    if error is not None and error.code() in ABSENT_CODES:
        return _ABSENCE_ADVICE
    advice = None if error is None else _NEEDED.advice(error)
    return advice or _OTHER_ADVICE
