"""Reads topics without joining a consumer group, and commits nothing."""

import logging
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from slackwater.kafka.retry import (
    ABSENT_CODES,
    GROUP_REFUSED,
    OUT_OF_RANGE_CODES,
    KafkaRetry,
    check_visible,
    code_of,
    watermark_offsets,
)
from slackwater.protocol import Clock, SystemClock

if TYPE_CHECKING:  # most readers need no administration, and start without its modules
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._listoffsets import OffsetSpec  # public in confluent_kafka.admin, but untyped

Place = tuple[str, int]

_FOR_EVER = sys.maxsize
"""The end of what is followed: no partition has this many offsets."""
_CHUNK = 1_000
_WAIT_SECONDS = 0.1
"""The longest wait for a record: a request to stop is noticed between two of them."""
_LONGEST_REQUEST_SECONDS = 5.0
"""The longest request, for the same reason."""
_FIRST_LOOK_BACK = 16
_END_OF_PARTITION = KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's own codes have no other name
_TIMED_OUT = KafkaError._TIMED_OUT  # noqa: SLF001

_log = logging.getLogger(__name__)

T = TypeVar("T")


class TopicReader:
    """Reads records of partitions. Use it from one thread, and close it; a ``with`` block does.

    Transient errors are waited for. Offsets without a record (transaction markers, aborted and compacted
    records) are skipped, also at an end. Every method raises only ``KafkaException``: for a permanent error
    or, when the time is over, with the last error, the place and the duration. A missing right to read or
    describe a topic is such an error; a right on a group is not needed.

    Args:
        config: librdkafka's settings, with ``bootstrap.servers``.
        seconds: How long to wait for an answer.
        patience: How many seconds to wait for the next record, which an open transaction may hold back; by
            default as long as for an answer.
        expected: Topics that exist: a broker that denies one does not know it yet. Topics that were seen are
            added.
        is_committed: Whether records of open and aborted transactions are omitted.
        clock: Measures the time.
        pause: Waits for a number of seconds; called at least every five seconds while waiting for Kafka. An
            exception that it raises ends the wait.
    """

    def __init__(
        self,
        config: Mapping[str, str | int | float | bool],
        seconds: float,
        *,
        patience: float | None = None,
        expected: Collection[str] = (),
        is_committed: bool = True,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config, self._pause = dict(config), pause
        self._seconds, self._patience = seconds, seconds if patience is None else patience
        self._clock = clock or SystemClock()
        self.expected = set(expected)
        self._admin: AdminClient | None = None
        self._is_closed = False
        self._consumer = Consumer(
            {
                "group.id": "slackwater-reader",
                "fetch.wait.max.ms": 10,
                **self._config,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if is_committed else "read_uncommitted",
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
            },
            logger=_log,
        )

    def __enter__(self) -> "TopicReader":
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def close(self) -> None:
        """Frees connections."""
        self._is_closed, self._admin = True, None
        self._consumer.close()

    def topics(self) -> dict[str, int]:
        """Returns the number of partitions of every topic that the user may see."""
        found = self._asked("listing topics", lambda seconds: self._consumer.list_topics(timeout=seconds))
        return {name: len(topic.partitions) for name, topic in found.topics.items()}

    def places(self, topic: str) -> list[Place]:
        """Returns the partitions of a topic."""

        def ask(seconds: float) -> list[Place]:
            found = self._consumer.list_topics(topic, seconds).topics[topic]
            if found.error is not None:
                raise KafkaException(found.error)
            return [(topic, number) for number in sorted(found.partitions)]

        places = self._asked(f"looking up topic {topic}", ask, topic)
        self.expected.add(topic)
        return places

    def bounds(self, place: Place) -> tuple[int, int]:
        """Returns the first offset of a partition, and the one after the last that can be read.

        That is the beginning of the first open transaction, unless this reader reads those, too.
        """
        topic, number = place

        def ask(seconds: float) -> tuple[int, int]:
            try:
                return watermark_offsets(self._consumer, TopicPartition(topic, number), seconds)
            except KafkaException as error:
                if code_of(error) in ABSENT_CODES:
                    check_visible(self._consumer, topic, seconds)
                raise

        found = self._asked(f"asking where {topic}/{number} ends", ask, topic)
        self.expected.add(topic)
        return found

    def ends(self, places: Collection[Place], *, is_committed: bool) -> dict[Place, int]:
        """Returns the ends of partitions, with open transactions or up to the first of them."""
        return self._offsets(places, None, is_committed=is_committed)

    def read(self, spans: Mapping[Place, tuple[int, int]]) -> Generator[Message, None, None]:
        """Yields every record from an offset to another one (exclusive), in order within each partition.

        Args:
            spans: By partition. An empty span is not read.

        Raises:
            KafkaException: Also with a code of ``OUT_OF_RANGE_CODES``: the first record to be read is gone.
        """
        left = {place: end for place, (start, end) in spans.items() if start < end}
        if not left:
            return
        positions = {place: spans[place][0] for place in left}
        self._consumer.assign([TopicPartition(*place, start) for place, start in positions.items()])
        try:
            yield from self._read(positions, left)
        finally:
            if not self._is_closed:  # assigned partitions would continue to be fetched
                self._consumer.unassign()

    def follow(self, place: Place, start: int) -> Generator[Message, None, None]:
        """Yields the records of a partition from an offset on, and new ones until `pause` raises."""
        return self.read({place: (start, _FOR_EVER)})

    def newest(
        self,
        place: Place,
        count: int = 1,
        *,
        is_wanted: Callable[[Message], bool] = lambda _: True,
        waits: bool = False,
    ) -> list[Message]:
        """Returns the newest records of a partition up to its present end, oldest first.

        Args:
            place: The partition.
            count: The most to return.
            is_wanted: Which records count.
            waits: Whether to wait for open transactions, because they may contain newer records.
        """
        found: list[Message] = []
        (low, end), step = self.bounds(place), max(_FIRST_LOOK_BACK, 2 * count)
        if waits:
            end = self.ends([place], is_committed=False)[place]
        while low < end and len(found) < count:
            start = max(low, end - step)
            try:
                found[:0] = filter(is_wanted, self.read({place: (start, end)}))
            except KafkaException as error:
                begin = low
                low = self.bounds(place)[0]
                if code_of(error) not in OUT_OF_RANGE_CODES or low <= begin:
                    raise
            else:
                end, step = start, 8 * step
        return found[-count:]

    def since(self, topics: Collection[str], time_ms: int) -> Iterator[Message]:
        """Yields the records of topics that were written at or after a time, up to their present ends.

        Waits for open transactions, because records after them cannot be read.
        """
        places = [place for topic in topics for place in self.places(topic)]
        starts = self._offsets(places, time_ms, is_committed=False)
        ends = self.ends(places, is_committed=False)
        yield from self.read({place: (starts[place], ends[place]) for place in places if starts[place] >= 0})

    def _read(self, positions: dict[Place, int], left: dict[Place, int]) -> Iterator[Message]:
        """Yields records until nothing is left, according to positions, since offsets may have gaps."""
        topics = {topic for topic, _ in left}
        retry = self._retry("reading", topics, self._patience)
        while left:
            before = dict(positions)
            yield from self._taken(self._next(), positions, left, retry)
            if positions != before:
                retry = self._retry("reading", topics, self._patience)
            elif retry.is_over and _FOR_EVER not in left.values():
                raise _stuck(positions, left, retry)

    def _taken(
        self, messages: list[Message], positions: dict[Place, int], left: dict[Place, int], retry: KafkaRetry
    ) -> Iterator[Message]:
        for message in messages:
            place, error = (message.topic() or "", message.partition() or 0), message.error()
            if error is not None and error.code() != _END_OF_PARTITION:
                self._judge(error, place, positions, retry)
            elif (end := left.get(place)) is not None:
                position = message.offset() or 0
                if error is None:
                    if position < end:
                        yield message
                    position += 1
                positions[place] = max(position, positions[place])
                if position >= end:
                    del left[place]

    def _next(self) -> list[Message]:
        """Returns the records that have arrived. Waits only for the first: ``consume`` waits for the last."""
        found = self._consumer.consume(_CHUNK, 0) or self._consumer.consume(1, _WAIT_SECONDS)
        if not found:
            self._pause(0)
        return found

    def _judge(
        self, error: KafkaError, place: Place, positions: Mapping[Place, int], retry: KafkaRetry
    ) -> None:
        """Raises an error from which the consumer, which retries by itself, will not recover."""
        if error.code() in OUT_OF_RANGE_CODES and place in positions:
            low, end = self.bounds(place)
            reason = f"{_name(place)} holds offsets {low} to {end}, not {positions[place]}"
            raise KafkaException(KafkaError(error.code(), reason))
        if retry.is_transient(error):
            retry.note(error)
        elif error.code() != GROUP_REFUSED:
            raise KafkaException(error)

    def _offsets(
        self, places: Collection[Place], time_ms: int | None, *, is_committed: bool
    ) -> dict[Place, int]:
        """Returns the first offset at or after a time (-1 if there is none), or the end without a time."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.admin._listoffsets import OffsetSpec

        admin = self._admin = self._admin or AdminClient(self._config)
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        spec = latest if time_ms is None else OffsetSpec.for_timestamp(time_ms)
        return self._asked(
            "asking for offsets",
            lambda seconds: list_offsets(admin, places, spec, seconds, is_committed=is_committed),
            *(topic for topic, _ in places),
        )

    def _asked(self, what: str, ask: Callable[[float], T], *topics: str) -> T:
        retry = self._retry(what, topics, self._seconds)
        return retry.call(lambda seconds: ask(min(seconds, _LONGEST_REQUEST_SECONDS)))

    def _retry(self, what: str, topics: Collection[str], seconds: float) -> KafkaRetry:
        also = ABSENT_CODES if topics and self.expected.issuperset(topics) else ()
        return KafkaRetry(what, seconds, also=also, clock=self._clock, pause=self._pause)


def list_offsets(
    admin: "AdminClient",
    places: Collection[Place],
    spec: "OffsetSpec",
    seconds: float,
    *,
    is_committed: bool = False,
) -> dict[Place, int]:
    """Returns an offset of each partition.

    Raises:
        KafkaException: The broker does not answer, or a partition does not exist.
    """
    if not places:
        return {}
    level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
    answers = admin.list_offsets(
        {TopicPartition(*place): spec for place in places}, isolation_level=level, request_timeout=seconds
    )
    try:
        return {(at.topic, at.partition): found.result(2 * seconds).offset for at, found in answers.items()}
    except TimeoutError:
        raise KafkaException(KafkaError(_TIMED_OUT)) from None


def _stuck(positions: Mapping[Place, int], left: Mapping[Place, int], retry: KafkaRetry) -> KafkaException:
    place, end = next(iter(sorted(left.items())))
    silence = "" if retry.last_error else ": no record came; an open Kafka transaction may hold records back"
    reason = f"{_name(place)} at offset {positions[place]} of {end}, {retry.outcome}{silence}"
    last = retry.last_error
    return KafkaException(KafkaError(last.code() if isinstance(last, KafkaError) else _TIMED_OUT, reason))


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"
