"""Finds the Kafka transactions that keep readers of a pipeline's topics from going on.

librdkafka does not list a cluster's transactions. But where a reader of committed records stands still, the
first record of the oldest open transaction comes next, and a pipeline's records name the pipeline.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec  # public in confluent_kafka.admin, but not typed so

from slackwater.cli.topics import open_consumer
from slackwater.kafka.retry import KafkaRetry, reason_of
from slackwater.protocol import KafkaSettings
from slackwater.protocol.keys import HEADER_PIPELINE, progress_topic
from slackwater.settings.errors import unreachable

_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The oldest transaction of a partition that is neither committed nor aborted."""

    topic: str
    partition: int
    stable: int
    """The last stable offset: readers of committed records get as far as here."""
    end: int
    """The high watermark."""
    since_ms: int
    """Time of its first record, milliseconds since the epoch."""
    pipeline: str
    """The pipeline that its first record names; empty: none."""

    @property
    def lag(self) -> int:
        """Offsets that are held back."""
        return self.end - self.stable


def find_open_transactions(kafka: KafkaSettings, topics: Iterable[str]) -> list[OpenTransaction]:
    """Finds the oldest open transaction of each partition of these topics, also that of a healthy run.

    Raises:
        CommandUnavailableError: Kafka does not answer.
    """
    admin = AdminClient(dict(kafka.client_config))
    consumer = open_consumer(kafka.bootstrap, {**kafka.options, "isolation.level": "read_uncommitted"})
    try:
        places = _partitions(admin, topics)
        ends = _ends(admin, places, IsolationLevel.READ_UNCOMMITTED)
        stable = _ends(admin, places, IsolationLevel.READ_COMMITTED)
        behind = {place: offset for place, offset in stable.items() if offset < ends[place]}
        return [
            _open_transaction(first, behind[place], ends[place])
            for place in behind
            if (first := _first_record(consumer, *place, behind[place])) is not None
        ]
    except KafkaException as error:
        raise unreachable("Kafka", "which transactions are open", reason_of(error)) from error
    finally:
        consumer.close()


def _partitions(admin: AdminClient, topics: Iterable[str]) -> list[TopicPartition]:
    known = KafkaRetry("listing topics", _SECONDS).call(lambda left: admin.list_topics(timeout=left).topics)
    return [TopicPartition(t, p) for t in topics if t in known for p in sorted(known[t].partitions)]


def _ends(
    admin: AdminClient, places: list[TopicPartition], isolation: IsolationLevel
) -> dict[tuple[str, int], int]:
    if not places:
        return {}

    def ask(left: float) -> dict[tuple[str, int], int]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        answers = admin.list_offsets(
            dict.fromkeys(places, latest), isolation_level=isolation, request_timeout=left
        )
        return {(at.topic, at.partition): found.result(left).offset for at, found in answers.items()}

    return KafkaRetry("asking where topics end", _SECONDS).call(ask)


def _first_record(consumer: Consumer, topic: str, partition: int, offset: int) -> Message | None:
    """Returns the record at or behind an offset; None if nothing but a transaction's end comes any more."""
    consumer.assign([TopicPartition(topic, partition, offset)])
    message = consumer.poll(_SECONDS)
    if message is not None and (error := message.error()) is not None:
        raise KafkaException(error)
    return message


def _open_transaction(first: Message, stable: int, end: int) -> OpenTransaction:
    topic = first.topic() or ""
    return OpenTransaction(
        topic=topic,
        partition=first.partition() or 0,
        stable=stable,
        end=end,
        since_ms=first.timestamp()[1],
        pipeline=_pipeline(topic, first),
    )


def _pipeline(topic: str, record: Message) -> str:
    """Returns the pipeline that has written a record; its progress records have its name as their key."""
    key = (record.key() or b"").decode(errors="replace")
    if topic == progress_topic(key):
        return key
    return dict(_headers(record)).get(HEADER_PIPELINE, "")


def _headers(record: Message) -> Iterator[tuple[str, str]]:
    found = record.headers() or []
    for name, value in found.items() if isinstance(found, Mapping) else found:
        yield name, value.decode(errors="replace") if isinstance(value, bytes) else value or ""
