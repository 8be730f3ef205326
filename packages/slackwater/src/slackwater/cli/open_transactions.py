"""Finds the Kafka transactions that hold back readers of a pipeline's topics.

librdkafka does not list a cluster's transactions. But where a reader of committed records is held back, the
first record of the oldest open transaction comes next, and a pipeline's records name the pipeline.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Message

from slackwater.cli.topics import explained
from slackwater.kafka.reader import TopicReader
from slackwater.protocol import KafkaSettings
from slackwater.protocol.keys import HEADER_PIPELINE, progress_topic

_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class OpenKafkaTransaction:
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


def find_open_transactions(kafka: KafkaSettings, topics: Iterable[str]) -> list[OpenKafkaTransaction]:
    """Finds the oldest open transaction of each partition of these topics, also that of a healthy run.

    Raises:
        UnavailableError: Kafka does not answer.
    """
    with (
        explained("which transactions are open"),
        TopicReader(kafka.client_config, _SECONDS, is_committed=False) as reader,
    ):
        known = reader.topics()
        places = [(topic, number) for topic in topics if topic in known for number in range(known[topic])]
        ends = reader.ends(places, is_committed=False)
        stable = reader.ends(places, is_committed=True)
        behind = {place: offset for place, offset in stable.items() if offset < ends[place]}
        return [
            _open_transaction(first, offset, ends[place])
            for place, offset in behind.items()
            # None: nothing but a transaction's end was behind it.
            if (first := next(reader.read({place: (offset, ends[place])}), None)) is not None
        ]


def _open_transaction(first: Message, stable: int, end: int) -> OpenKafkaTransaction:
    topic = first.topic() or ""
    return OpenKafkaTransaction(
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
