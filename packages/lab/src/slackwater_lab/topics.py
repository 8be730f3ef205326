"""Topics of tests and measurements: made, and read as plain ``read_committed`` consumers without groups."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from slackwater.kafka.reader import TopicReader, list_offsets
from slackwater.kafka.retry import KafkaRetry, create_topics, reason_of
from slackwater.protocol.keys import cut_log_topic
from slackwater_lab.debezium.recording import RecordedRecord, Recording, Spot
from slackwater_lab.debezium.records import RUN_HEADER
from slackwater_lab.errors import RunFailedError

_log = logging.getLogger(__name__)
_MAKE_SECONDS = 300.0
_NOT_YET = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._NOENT,  # noqa: SLF001
)
"""A broker that has made a topic may not know it yet."""
_SILENCE_SECONDS = 20.0
"""Nothing for this long means that nothing will come."""


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
    with TopicReader({"bootstrap.servers": bootstrap}, _MAKE_SECONDS, expected=topics) as reader:
        places = [place for topic in topics for place in reader.places(topic)]
    with closing(open_consumer(bootstrap)) as consumer:
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
        while not stop.is_set():
            messages = consumer.consume(batch, wait_seconds)
            if found := [message for message in messages if message.error() is None]:
                yield found  # librdkafka repeats by itself what failed


class TopicRecorder:
    """Reads every topic named ``<source>.…`` but the cut log, also topics and partitions that come later.

    Used by one thread; close it.
    """

    def __init__(self, bootstrap: str, source: str) -> None:
        self._source = source
        self._topics: dict[Spot, list[RecordedRecord]] = {}
        self._ends: dict[Spot, int] = {}
        self._reader = TopicReader({"bootstrap.servers": bootstrap}, _SILENCE_SECONDS)

    def __enter__(self) -> "TopicRecorder":
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def record_count(self) -> int:
        return sum(map(len, self._topics.values()))

    def read(self, seconds: float = 0.5) -> int:
        """Takes what has come, after this many seconds if nothing has; returns the number of records."""
        before = self.record_count
        self.read_to_end()
        if self.record_count == before:
            threading.Event().wait(seconds)
            self.read_to_end()
        return self.record_count - before

    def read_to_end(self) -> Recording:
        """Takes everything that is readable now."""
        reader, spans = self._reader, dict[Spot, tuple[int, int]]()
        for topic, count in reader.topics().items():
            if topic.startswith(f"{self._source}.") and topic != cut_log_topic(self._source):
                for spot in ((topic, number) for number in range(count)):
                    low, end = reader.bounds(spot)
                    spans[spot] = max(low, self._ends.get(spot, 0)), end
        for message in reader.read(spans):
            self._take(message)
        self._ends |= {spot: end for spot, (_, end) in spans.items()}
        return self.recording

    @property
    def recording(self) -> Recording:
        """The records read so far; it keeps growing."""
        return Recording(self._source, self._topics, self._ends)

    def _take(self, message: Message) -> None:
        run = dict(message.headers() or []).get(RUN_HEADER, b"")
        value, key = message.value(), message.key()
        record = RecordedRecord(
            message.offset() or 0,
            message.timestamp()[1],
            run.decode() if isinstance(run, bytes) else "",
            None if key is None else bytes(key),
            None if value is None else bytes(value),
        )
        self._topics.setdefault((message.topic() or "", message.partition() or 0), []).append(record)
