"""A broker in this process: for tests of consumers and of what is built on them."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from zlib import crc32

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaException, Message, TopicPartition

from slackwater.cdc.batch import Record
from slackwater.client.errors import TransactionLostError
from slackwater.client.kafka import KafkaBroker, KafkaMember, KafkaReader, Portion, Stored
from slackwater.client.transaction import Place
from slackwater.client.writer import ProducerSettings
from slackwater.kafka.transactions import DeliveryReport, Headers, KafkaTransactions
from slackwater.protocol import (
    Clock,
    ConfigError,
    OvertakenError,
    SlackwaterError,
    StateError,
    SystemClock,
    epoch_ms,
)


def memory_record(
    place: Place,
    at: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[Any] = (),
    written_ms: int = 0,
) -> Message:
    """Makes a record of a topic in memory, written at a time by its writer's clock."""
    topic, partition = place
    return Message(
        topic=topic,
        partition=partition,
        offset=at,
        key=key,
        value=value,
        headers=list(headers) or None,
        timestamp=(TIMESTAMP_CREATE_TIME, written_ms),
    )


@dataclass(slots=True)
class _Partition:
    records: list[Record] = field(default_factory=list)
    low: int = 0
    end: int = 0


class MemoryBroker(KafkaBroker):
    """A broker in memory. What is written is committed at once. Thread-safe.

    Args:
        at_once: Records that a reader returns at once, of all its partitions.
        clock: Says when records are written.
    """

    def __init__(self, at_once: int = 1000, clock: Clock | None = None) -> None:
        self.at_once = at_once
        self.clock = clock or SystemClock()
        self.compaction_lags: dict[str, timedelta] = {}
        """By topic that is compacted; nothing is removed by itself, see :meth:`remove`."""
        self.lock = threading.RLock()
        """Held while topics are read or changed."""
        self._topics: dict[Place, _Partition] = {}
        self._groups: dict[str, _Group] = {}
        self.writers: dict[str, MemoryWriter] = {}
        """By transactional id the writer that opened it last."""

    def make_topic(self, topic: str, partitions: int = 1) -> None:
        """Makes a topic; one that is there stays as it is."""
        for number in range(partitions):
            self._topics.setdefault((topic, number), _Partition())

    def append(
        self, place: Place, value: bytes | None, key: bytes | None = None, headers: Iterable[Any] = ()
    ) -> int:
        with self.lock:
            partition = self._topics[place]
            offset, partition.end = partition.end, partition.end + 1
            written_ms = epoch_ms(self.clock.now())
            partition.records.append(memory_record(place, offset, key, value, headers, written_ms))
        return offset

    def skip(self, place: Place, offsets: int = 1) -> None:
        """Takes offsets that are never delivered, as Kafka's transaction markers do."""
        with self.lock:
            self._topics[place].end += offsets

    def remove(self, place: Place, offset: int) -> None:
        """Removes a record, as compaction does."""
        with self.lock:
            held = self._topics[place]
            held.records = [record for record in held.records if record.offset() != offset]

    def truncate(self, place: Place, low: int) -> None:
        """Removes all records below an offset, as retention does."""
        with self.lock:
            held = self._topics[place]
            held.low = low
            held.records = [record for record in held.records if (record.offset() or 0) >= low]

    def committed(self, group: str) -> dict[Place, Stored]:
        return dict(self._groups[group].offsets) if group in self._groups else {}

    def members(self, group: str) -> int:
        return len(self._groups[group].members) if group in self._groups else 0

    def expel(self, group: str) -> None:
        """Throws all members out of a group, as a broker does that has not heard of them for too long."""
        for member in list(self._groups[group].members):
            member.vanish()

    def upset(self, group: str) -> None:
        """Takes everything from the members of a group; what they do not get back at once, others have."""
        for member in self._groups[group].members:
            member.lose()

    def partitions(self, topic: str) -> int:
        return sum(name == topic for name, _ in self._topics)

    def reader(self) -> "MemoryReader":
        return MemoryReader(self)

    def member(self, group: str, topic: str, on_revoke: Callable[[frozenset[int]], None]) -> "MemoryMember":
        shared = self._groups.setdefault(group, _Group())
        member = MemoryMember(shared, on_revoke)
        shared.members.append(member)
        shared.share_out(self.partitions(topic))
        return member

    def partition(self, place: Place) -> _Partition:
        return self._topics[place]

    def ensure_topic(self, topic: str, partitions: int, *, exactly: bool) -> None:
        if not self.partitions(topic):
            self.make_topic(topic, partitions)
        if exactly and self.partitions(topic) != partitions:
            raise ConfigError(f"topic {topic} has {self.partitions(topic)} partitions", "")

    def compaction_lag(self, topic: str) -> timedelta | None:
        return self.compaction_lags.get(topic)

    def writer(self, transactional_id: str, settings: ProducerSettings) -> "MemoryWriter":
        return MemoryWriter(self, transactional_id)


class MemoryReader(KafkaReader):
    """Reads from a broker in memory."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._positions: dict[Place, int] = {}
        self.paused: frozenset[Place] = frozenset()

    def begin(self, starts: Mapping[Place, int]) -> None:
        """See the base class; refuses partitions that are being read, as librdkafka does."""
        if again := starts.keys() & self._positions.keys():
            raise StateError(f"{sorted(again)} are read already", "reset the reader first")
        self._positions.update(starts)

    def reset(self) -> None:
        self._positions.clear()
        self.paused = frozenset()

    def pause(self, places: frozenset[Place]) -> None:
        self.paused = places

    def read(self, seconds: float) -> list[Portion]:
        """See the base class; never waits. Each time another partition is read first."""
        with self._broker.lock:
            return self._read()

    def _read(self) -> list[Portion]:
        found: list[Portion] = []
        left = self._broker.at_once
        for place in [p for p in self._positions if p not in self.paused]:
            held, at = self._broker.partition(place), self._positions[place]
            if not held.low <= at <= held.end:
                problem = (
                    f"{place[0]}/{place[1]}: offset {at} is needed, but it holds {held.low} to {held.end}"
                )
                raise StateError(problem, "")
            if left == 0 or at == held.end:
                continue
            records = [record for record in held.records if (record.offset() or 0) >= at][:left]
            left -= len(records)
            last = (records[-1].offset() or 0) if records else held.end - 1
            is_end = not records or records[-1] is held.records[-1]
            self._positions[place] = held.end if is_end else last + 1
            found.append(Portion(place, records, self._positions[place]))
        self._positions = dict([*list(self._positions.items())[1:], *list(self._positions.items())[:1]])
        return found

    def bounds(self, place: Place) -> tuple[int, int]:
        held = self._broker.partition(place)
        return held.low, held.end

    def close(self) -> None:
        """Has no connections."""


class MemoryMember(KafkaMember):
    """One member of a group of a broker in memory."""

    def __init__(self, group: "_Group", on_revoke: Callable[[frozenset[int]], None]) -> None:
        self._group = group
        self._on_revoke = on_revoke
        self.lanes: frozenset[int] = frozenset()
        self._gone: frozenset[int] = frozenset()
        self.target: frozenset[int] = frozenset()

    def poll(self, seconds: float) -> None:
        """See the base class; never waits."""
        if leaving := self.lanes - self.target:
            self._on_revoke(leaving)
            self.lanes -= leaving
            self._gone |= leaving
        others = [m.lanes for m in self._group.members if m is not self]
        self.lanes |= self.target.difference(*others)

    def stored(self, places: Iterable[Place]) -> dict[Place, Stored]:
        return {place: self._group.offsets[place] for place in places if place in self._group.offsets}

    def store(self, offsets: Mapping[Place, Stored]) -> bool:
        is_member = self in self._group.members
        if is_member:
            self._group.offsets.update(offsets)
        return is_member

    def group_metadata(self) -> Any:
        """See the base class: the member itself."""
        return self

    @property
    def group(self) -> "_Group | None":
        """The group, while it is a member of it."""
        return self._group if self in self._group.members else None

    def close(self) -> None:
        if self in self._group.members:
            self._on_revoke(self.lanes)
            self.vanish()

    def lose(self) -> None:
        """Loses what it has; it may be given back at the next poll."""
        self._gone |= self.lanes
        self.lanes = frozenset()

    def vanish(self) -> None:
        """Leaves the group as a process does that is killed."""
        if self in self._group.members:
            self._group.members.remove(self)
            self.lose()
            self.target = frozenset()
            self._group.share_out(self._group.partitions)


class MemoryWriter(KafkaTransactions):
    """Writes transactions to a broker in memory; nobody else may write to its topics meanwhile."""

    def __init__(self, broker: MemoryBroker, transactional_id: str) -> None:
        self._broker = broker
        self._id = transactional_id
        self._written: dict[Place, list[Message]] = {}
        self._offsets: tuple[dict[Place, Stored], _Group | None] = {}, None
        self._reports: list[Callable[[], None]] = []

    def _meaning(self, what: str, error: KafkaException) -> SlackwaterError:
        raise AssertionError("it asks no Kafka")

    def open(self) -> None:
        self._broker.writers[self._id] = self

    def begin(self) -> None:
        self.check()

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        report: DeliveryReport | None,
        partition: int = -1,
    ) -> None:
        self.check()
        count = self._broker.partitions(topic)
        if not count:
            raise StateError(f"topic {topic} does not exist", "create it")
        place = topic, crc32(key or b"") % count if partition < 0 else partition
        written = self._written.setdefault(place, [])
        offset = self._broker.partition(place).end + len(written)
        written.append(memory_record(place, offset, key, value, headers))
        if report is not None:
            self._reports.append(partial(report, None, written[-1]))

    def serve(self) -> None:
        for report in self._reports:
            report()
        self._reports = []

    def flush(self, has_failed: Callable[[], bool] = lambda: False) -> None:
        self.serve()

    def check(self) -> None:
        if self._broker.writers[self._id] is not self:
            raise OvertakenError(f"{self._id} was opened by another writer", "")

    def send_offsets(self, offsets: list[TopicPartition], member: Any) -> None:
        if member.group is None:
            raise TransactionLostError("the consumer has left its group", "")
        found = {(o.topic, o.partition): Stored(o.offset, o.metadata or "") for o in offsets}
        self._offsets = found, member.group

    def commit(self) -> None:
        self.check()
        for place, records in self._written.items():
            for record in records:
                self._broker.append(place, record.value(), record.key(), record.headers() or ())
        offsets, group = self._offsets
        if group is not None:
            group.offsets.update(offsets)
        self._end()

    def abort(self) -> SlackwaterError | None:
        for place, records in self._written.items():
            self._broker.skip(place, len(records))
        self._end()
        return None

    def discard(self) -> None:
        """Has no connections."""

    def _end(self) -> None:
        """Writes the transaction's markers."""
        for place in self._written:
            self._broker.skip(place)
        self._written, self._offsets, self._reports = {}, ({}, None), []


class _Group:
    """A consumer group: its members, and what it has committed."""

    def __init__(self) -> None:
        self.members: list[MemoryMember] = []
        self.offsets: dict[Place, Stored] = {}
        self.partitions = 0

    def share_out(self, partitions: int) -> None:
        """Decides who is to own what; members obey when they poll."""
        self.partitions = partitions
        for number, member in enumerate(self.members):
            member.target = frozenset(range(number, partitions, len(self.members)))
