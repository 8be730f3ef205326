"""Topics of tests and measurements: made, and read as plain ``read_committed`` consumers without groups."""

import logging
import threading
from collections.abc import Iterator, Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from slackwater.kafka.reader import TopicReader, list_offsets
from slackwater.kafka.retry import KafkaRetry, create_topics, reason_of
from slackwater.protocol import SystemClock
from slackwater.protocol.keys import cut_log_topic
from slackwater_lab.debezium.recording import RecordedRecord, Recording, Spot
from slackwater_lab.debezium.records import RUN_HEADER
from slackwater_lab.errors import RunFailedError

_log = logging.getLogger(__name__)
_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - has no other name
_ASK_SECONDS = 10.0
_MAKE_SECONDS = 60.0
_NOT_YET = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._NOENT,  # noqa: SLF001
)
"""A broker that has made a topic may not know it yet."""
_SILENCE_SECONDS = 20.0
"""Nothing for this long means that nothing will come."""
_LOOK_AGAIN_SECONDS = 0.2
_DISCOVER_SECONDS = 0.5
"""Between two looks for new topics and partitions."""


def make_topics(bootstrap: str, names: Sequence[str], partitions: int, **config: str) -> None:
    """Makes topics, and returns when they can be read; one that exists stays as it is.

    More settings are the topics', with ``_`` for ``.``.

    Raises:
        KafkaException: The broker refuses or does not answer.
    """
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create_topics(admin, [NewTopic(name, partitions, 1, config=settings) for name in names], _MAKE_SECONDS)
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    places = [(name, number) for name in names for number in range(partitions)]

    def ask(seconds: float) -> None:
        list_offsets(admin, places, latest, seconds)

    KafkaRetry(f"making {', '.join(names)}", _MAKE_SECONDS, also=_NOT_YET).call(ask)


def open_consumer(bootstrap: str, **settings: object) -> Consumer:
    """Opens a consumer of committed records; more settings are librdkafka's, with ``_`` for ``.``."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "slackwater-testing",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 20,
            "topic.metadata.refresh.interval.ms": 500,
            **{name.replace("_", "."): value for name, value in settings.items()},
        },
        logger=_log,
    )


def read_to_end(bootstrap: str, topic: str) -> Iterator[Message]:
    """Yields every committed record that is in a topic now; in order within each partition.

    Raises:
        RunFailedError: the topic cannot be read to its end.
    """
    try:
        with TopicReader({"bootstrap.servers": bootstrap}, _SILENCE_SECONDS) as reader:
            yield from reader.read({place: reader.bounds(place) for place in reader.places(topic)})
    except KafkaException as error:
        raise RunFailedError(topic, reason_of(error)) from error


def follow(
    bootstrap: str, topics: Sequence[str], stop: threading.Event, *, batch: int, wait_seconds: float
) -> Iterator[list[Message]]:
    """Yields what each poll returns, from the beginning until stopped. Waits for topics and brokers."""
    consumer = open_consumer(bootstrap)
    try:
        while not stop.is_set() and not (places := _known_places(consumer, topics)):
            stop.wait(_LOOK_AGAIN_SECONDS)
        if not stop.is_set():
            consumer.assign(places)
        while not stop.is_set():
            messages = consumer.consume(batch, wait_seconds)
            if found := [message for message in messages if message.error() is None]:
                yield found  # librdkafka repeats by itself what failed
    finally:
        consumer.close()


def _known_places(consumer: Consumer, topics: Sequence[str]) -> list[TopicPartition]:
    try:
        known = consumer.list_topics(timeout=_ASK_SECONDS).topics
    except KafkaException:
        return []
    if any(topic not in known for topic in topics):
        return []
    return [TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in sorted(known[t].partitions)]


class TopicRecorder:
    """Follows every topic named ``<source>.…`` but the cut log, also topics and partitions that come later.

    Used by one thread; close it.
    """

    def __init__(self, bootstrap: str, source: str) -> None:
        self._source = source
        self._clock = SystemClock()
        self._look_at = 0.0
        self._topics: dict[Spot, list[RecordedRecord]] = {}
        self._ends: dict[Spot, int] = {}
        self._consumer = open_consumer(bootstrap, enable_partition_eof=True)

    def __enter__(self) -> "TopicRecorder":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    @property
    def record_count(self) -> int:
        return sum(map(len, self._topics.values()))

    def read(self, seconds: float = 0.5) -> int:
        """Takes what has come within this many seconds; returns the number of records."""
        if self._clock.monotonic() >= self._look_at:
            self._discover()
        before = self.record_count
        for message in self._consumer.consume(10_000, seconds) if self._topics else ():
            self._take(message)
        return self.record_count - before

    def read_to_end(self) -> Recording:
        self._discover()
        wanted = {spot: self._end(spot) for spot in self._topics}
        while any(self._ends[spot] < end for spot, end in wanted.items()):
            self.read()
        return self.recording

    @property
    def recording(self) -> Recording:
        """The records read so far; it keeps growing."""
        return Recording(self._source, self._topics, self._ends)

    def _discover(self) -> None:
        self._look_at = self._clock.monotonic() + _DISCOVER_SECONDS
        prefix, cuts = f"{self._source}.", cut_log_topic(self._source)
        metadata = self._consumer.list_topics(timeout=_ASK_SECONDS)
        found = [
            (name, number)
            for name, topic in metadata.topics.items()
            if name.startswith(prefix) and name != cuts and topic.error is None
            for number in range(len(topic.partitions))
        ]
        new = [spot for spot in found if spot not in self._topics]
        if new:
            self._consumer.incremental_assign([TopicPartition(*spot, OFFSET_BEGINNING) for spot in new])
            for spot in new:
                self._topics[spot] = []
                self._ends[spot] = 0

    def _take(self, message: Message) -> None:
        spot, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
        error = message.error()
        if error is not None:
            if error.code() == _AT_END:
                self._ends[spot] = max(self._ends[spot], offset)
            return
        headers = dict(message.headers() or [])
        run = headers.get(RUN_HEADER, b"")
        value, key = message.value(), message.key()
        self._topics[spot].append(
            RecordedRecord(
                offset,
                message.timestamp()[1],
                run.decode() if isinstance(run, bytes) else "",
                None if key is None else bytes(key),
                None if value is None else bytes(value),
            )
        )
        self._ends[spot] = offset + 1

    def _end(self, spot: Spot) -> int:
        bounds = self._consumer.get_watermark_offsets(TopicPartition(*spot), _ASK_SECONDS)
        return bounds[1] if bounds is not None else 0
