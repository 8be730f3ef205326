"""The topic that lists commits, with one partition: it can be followed as it grows, and searched."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Generic, TypeVar

from slackwater.cdc.batch import Record
from slackwater.client.kafka import KafkaBroker, KafkaReader, Portion
from slackwater.client.transaction import Place
from slackwater.cuts.cut_log import RecordDecoder
from slackwater.protocol import (
    Clock,
    Cut,
    PassDecision,
    PublishedCut,
    StateError,
    UnavailableError,
    decode_commit_record,
)
from slackwater.protocol.commit_lookup import PlacedCommit
from slackwater.protocol.keys import cut_log_topic

_PATIENCE_SECONDS = 60.0
"""How long to wait for a record that must exist."""
_WAIT_SECONDS = 0.1

_LOOK_BACK = 64
"""The number of offsets that are first searched for the newest entry: transaction markers take some, too."""

T = TypeVar("T")


class Log(Generic[T]):
    """A log of commits. Not thread-safe. It raises the same errors as a reader.

    Args:
        decode: Decodes a record into an entry; None: the record is not an entry.
    """

    def __init__(
        self, broker: KafkaBroker, topic: str, decode: Callable[[Record], T | None], clock: Clock
    ) -> None:
        self.place: Place = (topic, 0)
        self._decode = decode
        self._clock = clock
        self._tail = broker.reader()
        self._past = broker.reader()

    def follow(self, offset: int) -> None:
        """Continues at an offset."""
        self._tail.reset()
        self._tail.begin({self.place: offset})

    def read(self, seconds: float) -> list[T]:
        """Returns the next entries, or waits for up to ``seconds``; empty if none arrived."""
        return list(self._decoded(self._tail.read(seconds)))

    def bounds(self) -> tuple[int, int]:
        """Returns the first offset, and the offset after the last."""
        return self._tail.bounds(self.place)

    def entries(self, start: int, end: int) -> Iterator[T]:
        """Yields the entries between two offsets.

        Raises:
            UnavailableError: Existing records could not be read for a minute.
        """
        return self._decoded(read_between(self._past, {self.place: (start, end)}, self._clock))

    def first(self, start: int, end: int) -> T | None:
        """Returns the first entry between two offsets; raises like :meth:`entries`."""
        return next(self.entries(start, end), None)

    def newest(self, end: int | None = None, *, is_wanted: Callable[[T], bool] = lambda _: True) -> list[T]:
        """Returns the newest wanted entry below an offset, behind some that precede it; empty: there is none.

        Raises like :meth:`entries`.
        """
        low, high = self.bounds()
        end, step = high if end is None else min(end, high), _LOOK_BACK
        while end > low:
            start = max(low, end - step)
            if found := list(filter(is_wanted, self.entries(start, end))):
                return found
            end, step = start, 16 * step
        return []

    def check(self, offset: int) -> None:
        """Checks that the log can be read from an offset on.

        Raises:
            StateError: The log begins after the offset.
            StateError: The log ends before the offset, so it was recreated.
        """
        low, end = self.bounds()
        topic = self.place[0]
        if offset < low:
            hint = "the topic must be kept forever; to continue elsewhere, use seek() or start='latest'"
            raise StateError(f"{topic} begins at offset {low}, but offset {offset} is needed", hint)
        if offset > end:
            hint = (
                "the topic was recreated, so positions stored for the old one are invalid; use another group"
            )
            raise StateError(f"{topic} ends at offset {end}, but was read up to {offset}", hint)

    def close(self) -> None:
        """Frees connections."""
        self._tail.close()
        self._past.close()

    def _decoded(self, portions: Iterable[Portion]) -> Iterator[T]:
        records = (record for portion in portions for record in portion.records)
        return (entry for record in records if (entry := self._decode(record)) is not None)


def read_between(
    reader: KafkaReader,
    spans: Mapping[Place, tuple[int, int]],
    clock: Clock,
    patience_seconds: float = _PATIENCE_SECONDS,
) -> Iterator[Portion]:
    """Yields the records of partitions between two offsets of each, which exist.

    Raises:
        UnavailableError: The next records could not be read in time.
    """
    reader.reset()
    positions = {place: start for place, (start, end) in spans.items() if start < end}
    reader.begin(positions)
    deadline = clock.monotonic() + patience_seconds
    while positions:
        portions = reader.read(_WAIT_SECONDS)
        if portions:
            deadline = clock.monotonic() + patience_seconds
        elif clock.monotonic() > deadline:
            (topic, number), position = next(iter(positions.items()))
            raise UnavailableError(
                f"{topic}/{number} cannot be read beyond offset {position}, although it has records there",
                "an open Kafka transaction may hide records; try again in a minute",
            )
        for place, records, position in portions:
            if place not in positions:
                continue
            end = spans[place][1]
            positions[place] = position
            if position >= end:
                del positions[place]
            if position > end:
                records = [record for record in records if (record.offset() or 0) < end]
            yield Portion(place, records, position)
    reader.reset()


def commit_log(broker: KafkaBroker, topic: str, clock: Clock) -> Log[PlacedCommit]:
    """Returns the commit records of a pipeline, from one of its commit topics."""

    def decode(record: Record) -> PlacedCommit:
        commit = decode_commit_record(record.value() or b"")
        return PlacedCommit(record.offset() or 0, commit, record.timestamp()[1])

    return Log(broker, topic, decode, clock)


def cut_log(broker: KafkaBroker, source: str, clock: Clock) -> Log[PublishedCut]:
    """Returns the cuts of a source. Damaged records are skipped if an operator has decided so."""

    def decisions(after_offset: int) -> list[PassDecision]:
        with closing(Log(broker, topic, decode_pass, clock)) as ahead:
            return list(ahead.entries(after_offset + 1, ahead.bounds()[1]))

    def decode(record: Record) -> PublishedCut | None:
        offset = record.offset() or 0
        logged = decoder.decode(record.value(), offset)
        return PublishedCut(logged.record, offset) if logged and isinstance(logged.record, Cut) else None

    def decode_pass(record: Record) -> PassDecision | None:
        return decoder.decision(record.value(), record.offset() or 0)

    topic, decoder = cut_log_topic(source), RecordDecoder(source, decisions)
    return Log(broker, topic, decode, clock)
