"""Reads all topics of a source into a recording, while they grow."""

import uuid

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from slackwater_cdc.testing import RUN_HEADER
from slackwater_cdc.testing.recording import RecordedRecord, Recording, Spot
from slackwater_protocol import Clock, SystemClock
from slackwater_protocol.keys import cut_log_topic

_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - no public name
_ASK_SECONDS = 10.0
_LOOK_SECONDS = 0.5


class TopicRecorder:
    """Follows every topic named ``<source>.…`` but the cut log, also topics and partitions that come later.

    Used by one thread; close it.
    """

    def __init__(self, bootstrap: str, source: str, clock: Clock | None = None) -> None:
        self._source = source
        self._clock = clock or SystemClock()
        self._look_at = 0.0
        self._topics: dict[Spot, list[RecordedRecord]] = {}
        self._ends: dict[Spot, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )

    def __enter__(self) -> "TopicRecorder":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    @property
    def record_count(self) -> int:
        """Records read so far."""
        return sum(map(len, self._topics.values()))

    def read(self, seconds: float = 0.5) -> int:
        """Takes what has come within so many seconds; returns the number of records."""
        if self._clock.monotonic() >= self._look_at:
            self._discover()
        before = self.record_count
        for message in self._consumer.consume(10_000, seconds) if self._topics else ():
            self._take(message)
        return self.record_count - before

    def read_to_end(self) -> Recording:
        """Everything that is readable now."""
        self._discover()
        wanted = {spot: self._end(spot) for spot in self._topics}
        while any(self._ends[spot] < end for spot, end in wanted.items()):
            self.read()
        return self.recording

    @property
    def recording(self) -> Recording:
        """The records read so far; it goes on growing."""
        return Recording(self._source, self._topics, self._ends)

    def _discover(self) -> None:
        self._look_at = self._clock.monotonic() + _LOOK_SECONDS
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
