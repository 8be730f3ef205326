"""Writes a case into a real broker: every record and every marker gets the offset that was recorded."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from slackwater.kafka.reader import TopicReader
from slackwater.protocol import SystemClock
from slackwater_lab.conformance.case import Case, End, Place, Record, text_of
from slackwater_lab.errors import RunFailedError
from slackwater_lab.topics import make_topics

_log = logging.getLogger(__name__)

SECONDS = 120.0
LOOK_SECONDS = 0.02
_OPEN_MS = 900_000
FILLER = "filler"
"""The transaction that takes the offsets of which nothing is left. It is aborted at the end."""


@contextmanager
def replayed(case: Case, bootstrap: str) -> Iterator["Replay"]:
    """Creates the topics of a case and writes them, up to what is held; ends open transactions afterwards."""
    replay = Replay(case, bootstrap)
    try:
        replay.write()
        yield replay
    finally:
        replay.close()


class Replay:
    """The topics of a case, which must not exist yet, while they are written."""

    def __init__(self, case: Case, bootstrap: str) -> None:
        self._case, self._bootstrap = case, bootstrap
        self._producers: dict[str, Producer] = {}
        self._next = {(t, p): 0 for t, count in case.head.topics.items() for p in range(count)}
        self._written: dict[str, set[Place]] = {}
        """By transaction: the partitions in which it has records."""
        self._held: list[Record | End] = []
        self._reader = TopicReader({"bootstrap.servers": bootstrap}, SECONDS, is_committed=False)

    def write(self) -> None:
        """Writes everything before the end of the held transaction."""
        for topic, partitions in self._case.head.topics.items():
            make_topics(self._bootstrap, [topic], partitions)
        steps, held = self._case.steps, self._case.head.held
        ends = [n for n, each in enumerate(steps) if isinstance(each, End) and each.transaction == held]
        for each in steps[: ends[0] if ends else None]:
            self._step(each)
        self._held = steps[ends[0] :] if ends else []
        if not ends:
            self.release()

    def release(self) -> None:
        """Writes the rest, and deletes what was deleted."""
        for each in self._held:
            self._step(each)
        if FILLER in self._producers:
            self._end(FILLER, committed=False)
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        for name, offset in self._case.head.deleted.items():
            topic, _, partition = name.rpartition("/")
            place = TopicPartition(topic, int(partition), offset)
            for done in admin.delete_records([place]).values():
                done.result(SECONDS)

    def close(self) -> None:
        """Frees connections. Transactions that are still open are aborted."""
        self._reader.close()
        for transaction in self._written:
            self._producer(transaction).abort_transaction(SECONDS)
        self._producers.clear()

    def _step(self, step: Record | End) -> None:
        if isinstance(step, Record):
            place = step.topic, step.partition
            self._fill(place, step.offset)
            key, value = text_of(step.key), text_of(step.value)
            self._produce(step.transaction, place, key, value, step.headers)
            return
        written = self._written.get(step.transaction, set())  # compaction may have left nothing
        for name, offset in step.markers.items():
            if (place := _place(name)) in written:
                self._fill(place, offset)
        self._end(step.transaction, committed=step.committed)

    def _fill(self, place: Place, offset: int) -> None:
        while self._next[place] < offset:
            self._produce(FILLER, place, None, None, {})

    def _produce(
        self, transaction: str, place: Place, key: str | None, value: str | None, headers: dict[str, str]
    ) -> None:
        arrived: list[int | None] = []

        def report(error: KafkaError | None, message: Message) -> None:
            arrived.append(None if error is not None else message.offset())

        producer = self._producer(transaction)
        named: dict[str, str | bytes | None] = {**headers}
        producer.produce(place[0], value, key, place[1], on_delivery=report, headers=named)
        producer.flush(SECONDS)
        if arrived != [self._next[place]]:
            raise self._failed(f"a record of {place} is at {arrived}, expected {self._next[place]}")
        self._next[place] += 1
        self._written.setdefault(transaction, set()).add(place)

    def _end(self, transaction: str, *, committed: bool) -> None:
        """Ends a transaction, and waits for its markers, which brokers write a little later."""
        producer = self._producer(transaction)
        (producer.commit_transaction if committed else producer.abort_transaction)(SECONDS)
        clock = SystemClock()
        deadline = clock.monotonic() + SECONDS
        for place in self._written.pop(transaction, ()):
            self._next[place] += 1
            while (end := self._reader.bounds(place)[1]) != self._next[place]:
                if end > self._next[place] or clock.monotonic() > deadline:
                    raise self._failed(f"{place} ends at {end}, expected {self._next[place]}")
                producer.poll(LOOK_SECONDS)

    def _producer(self, transaction: str) -> Producer:
        if transaction not in self._producers:
            name = f"{self._case.head.commits}.{transaction}"
            settings = {"transactional.id": name, "transaction.timeout.ms": _OPEN_MS, "linger.ms": 0}
            producer = Producer({"bootstrap.servers": self._bootstrap, **settings}, logger=_log)
            producer.init_transactions(SECONDS)
            producer.begin_transaction()
            self._producers[transaction] = producer
        return self._producers[transaction]

    def _failed(self, reason: str) -> RunFailedError:
        return RunFailedError(f"writing case {self._case.name}", reason)


def _place(name: str) -> Place:
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)
