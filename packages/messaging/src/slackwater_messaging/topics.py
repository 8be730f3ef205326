"""Reads topics from a time on to their current ends, and waits for open transactions on the way."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import (
    Message as Record,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec  # public in confluent_kafka.admin, but not typed so
from confluent_kafka.cimpl import NewTopic

from slackwater.kafka.retry import GROUP_REFUSED, KafkaRetry, create_topics, is_transient, kafka_error
from slackwater.protocol import Clock, KafkaSettings, SystemClock, epoch_ms
from slackwater_messaging.errors import READING, MessagingStateError, MessagingUnavailableError
from slackwater_messaging.message import Place
from slackwater_messaging.retrying import quiet

_SECONDS: Final = 30.0
_AT_ONCE: Final = 1_000
_WAIT_SECONDS: Final = 0.1
_FIRST_LOOK_BACK: Final = 16
_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's own codes have no other name
_NO_FAILURES: Final = (_END, GROUP_REFUSED)
_ABSENT: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)  # noqa: SLF001

T = TypeVar("T")


class TopicReader:
    """Reads committed records of topics. Use it from one thread, and close it.

    Args:
        kafka: The brokers.
        patience: How long to wait for open transactions, and for records.
        clock: Measures deadlines.
    """

    def __init__(self, kafka: KafkaSettings, patience: timedelta, clock: Clock | None = None) -> None:
        kafka, self._bootstrap = quiet(kafka), kafka.bootstrap
        self._patience, self._clock = patience.total_seconds(), clock or SystemClock()
        self._admin = AdminClient({**kafka.client_config})
        self._consumer = Consumer(
            {
                "fetch.wait.max.ms": 10,
                **kafka.client_config,
                "group.id": "slackwater-messaging",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
            }
        )

    def __enter__(self) -> "TopicReader":
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def close(self) -> None:
        """Frees connections."""
        self._consumer.close()

    def since(self, topics: Collection[str], time: datetime) -> Iterator[Record]:
        """Yields every committed record that was written at or after a time, up to the topics' current ends.

        It waits for transactions that are open at the moment, because it cannot read past them.

        Raises:
            MessagingStateError: A topic does not exist.
            MessagingUnavailableError: Kafka does not answer, or a transaction stays open.
        """
        places = [place for topic in topics for place in self._places(topic)]
        spec = OffsetSpec.for_timestamp(epoch_ms(time))
        starts = self._offsets(places, spec)
        ends = self._ends(places)
        wanted = {p: (starts[p] if starts[p] >= 0 else ends[p], ends[p]) for p in places}
        yield from self._read({p: each for p, each in wanted.items() if each[0] < each[1]})

    def newest(self, topic: str, *, waits: bool = True) -> Record | None:
        """Returns the newest committed record of a topic with one partition; None if there is none.

        Args:
            topic: Its name.
            waits: Whether to wait for a transaction that is open, because it may contain a newer record.

        Raises:
            MessagingStateError: The topic does not exist.
            MessagingUnavailableError: Kafka does not answer, or a transaction stays open.
        """
        place = self._places(topic)[0]
        first = self._offsets([place], OffsetSpec.earliest())[place]  # type: ignore[no-untyped-call]
        end, look_back = self._ends([place], waits=waits)[place], _FIRST_LOOK_BACK
        while first < end:
            start = max(first, end - look_back)
            found = list(self._read({place: (start, end)}))
            if found:
                return found[-1]
            if start == first:
                break
            look_back *= 8  # control records and aborted records are no records
        return None

    def _read(self, wanted: Mapping[Place, tuple[int, int]]) -> Iterator[Record]:
        if not wanted:
            return
        self._consumer.assign([TopicPartition(*place, start) for place, (start, _) in wanted.items()])
        left = {place: end for place, (_, end) in wanted.items()}
        deadline = self._clock.monotonic() + self._patience
        while left:
            records = self._consumer.consume(_AT_ONCE, 0) or self._consumer.consume(1, _WAIT_SECONDS)
            if not records and self._clock.monotonic() > deadline:
                raise _stuck(left, self._patience)
            for record in records:
                place, offset, error = _place(record), record.offset() or 0, record.error()
                if error is None and offset < left.get(place, 0):
                    deadline = self._clock.monotonic() + self._patience
                    yield record
                elif error is not None and error.code() not in _NO_FAILURES and not is_transient(error):
                    raise _unavailable("reading", error)
                reached = offset + 1 if error is None else offset if error.code() == _END else 0
                if reached >= left.get(place, reached + 1):
                    del left[place]
        self._consumer.unassign()

    def _places(self, topic: str) -> list[Place]:
        def ask(seconds: float) -> list[Place]:
            found = self._admin.list_topics(topic, timeout=seconds).topics[topic]
            if found.error is not None:
                raise KafkaException(found.error)
            return [Place(topic, number) for number in sorted(found.partitions)]

        return self._asked(f"looking up topic {topic}", ask)

    def _ends(self, places: Collection[Place], *, waits: bool = True) -> dict[Place, int]:
        """Returns the ends of partitions; without ``waits``, the ends before the first open transaction."""
        level = IsolationLevel.READ_UNCOMMITTED if waits else IsolationLevel.READ_COMMITTED
        return self._offsets(places, OffsetSpec.latest(), level)  # type: ignore[no-untyped-call]

    def _offsets(
        self,
        places: Collection[Place],
        spec: OffsetSpec,
        level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[Place, int]:
        asked = {TopicPartition(*place): spec for place in places}

        def ask(seconds: float) -> dict[Place, int]:
            answers = self._admin.list_offsets(asked, isolation_level=level, request_timeout=seconds)
            return {Place(p.topic, p.partition): found.result(seconds).offset for p, found in answers.items()}

        return self._asked("reading the offsets of topics", ask) if places else {}

    def _asked(self, what: str, ask: Callable[[float], T]) -> T:
        with explained(f"{what} at {self._bootstrap}"):
            return KafkaRetry(what, _SECONDS).call(ask)


def ensure_compacted_topic(kafka: KafkaSettings, topic: str) -> None:
    """Creates a compacted topic with one partition, unless it exists.

    Raises:
        MessagingUnavailableError: Kafka rejects the request or does not answer.
    """
    admin = AdminClient({**quiet(kafka).client_config})
    wanted = NewTopic(topic, 1, -1, config={"cleanup.policy": "compact"})

    what = f"creating topic {topic}"
    with explained(f"{what} at {kafka.bootstrap}"):
        KafkaRetry(what, _SECONDS).call(partial(create_topics, admin, [wanted]))


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Translates errors of Kafka's client into errors of this package."""
    try:
        yield
    except KafkaException as error:
        found: Any = kafka_error(error)
        if found is not None and found.code() in _ABSENT:
            raise MessagingStateError(
                f"{what} failed: the topic does not exist", "create it, or correct its name"
            ) from error
        raise _unavailable(what, found or KafkaError(KafkaError._FAIL, str(error))) from error  # noqa: SLF001


def _place(record: Record) -> Place:
    return Place(record.topic() or "", record.partition() or 0)


def _unavailable(what: str, error: KafkaError) -> MessagingUnavailableError:
    hint = READING.advice(error) or "check that the brokers are up and reachable"
    return MessagingUnavailableError(f"{what} failed: {error.str()} ({error.name()})", hint)


def _stuck(left: Mapping[Place, int], seconds: float) -> MessagingUnavailableError:
    where = ", ".join(f"{topic}/{partition} below {end}" for (topic, partition), end in sorted(left.items()))
    hint = (
        "a transaction is open there; its time-out should end it, and if it stays open, it is hanging: see "
        "docs/runbooks.md#readers-stand-still"
    )
    return MessagingUnavailableError(f"nothing could be read for {seconds:g} s from {where}", hint)
