"""When each cut of a source was published: the time stamps of the cut log."""

from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from slackwater_protocol import Cut, decode_cut
from slackwater_protocol.keys import cut_log_topic

ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class TimedCut:
    """A cut and when the sidecar handed it to Kafka."""

    cut: Cut
    at_ms: int
    """Wall clock, milliseconds since the epoch."""


def timed_cuts(bootstrap: str, source: str) -> list[TimedCut]:
    """All cuts that are in the log now, ascending."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "slackwater-bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(cut_log_topic(source), 0, OFFSET_BEGINNING)])
    found: list[TimedCut] = []
    try:
        while (message := consumer.poll(ANSWER_SECONDS)) is not None:
            error = message.error()
            if error is None:
                found.append(TimedCut(decode_cut(message.value() or b""), message.timestamp()[1]))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                break
    finally:
        consumer.close()
    return found
