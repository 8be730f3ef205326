"""Plays pipelines, connectors and sidecars for tests of consumers, over Kafka or a broker in memory."""

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from slackwater.client.consumer import ConsumerSettings, PositionOf, TransactionalConsumer
from slackwater.client.inputs import Inputs, Share
from slackwater.client.transaction import Place, Transaction
from slackwater.protocol import (
    SNAPSHOT_XID,
    CommitRecord,
    CommittedTransaction,
    Cut,
    KafkaSettings,
    OffsetRange,
    ProgressRecord,
    SystemClock,
    TopicState,
    encode_commit_record,
    encode_cut,
    encode_progress_record,
)
from slackwater.protocol.keys import commit_topic, cut_log_topic, data_topic, progress_topic
from slackwater_lab.debezium.records import change_value, incremental_value, snapshot_value
from slackwater_lab.fakes.broker import MemoryBroker
from slackwater_lab.topics import make_topics, open_consumer

COMMIT_MS = 1_795_206_861_000
_SECONDS = 120.0
_MARKER_SECONDS = 5.0  # a transaction of somebody else may be open before them
_Rows = Sequence[tuple[str, int, Any]]


class Topics(ABC):
    """Writes Kafka transactions."""

    def __init__(self) -> None:
        self._written: dict[Place, list[int]] = {}

    @abstractmethod
    def make(self, topic: str, partitions: int = 1) -> None:
        """Makes a topic; it may exist already."""

    @abstractmethod
    def begin(self) -> None:
        """Begins a transaction."""

    @abstractmethod
    def write(self, place: Place, value: bytes | None, key: bytes | None = None) -> None:
        """Writes a record."""

    def written(self) -> dict[Place, list[int]]:
        """Returns the offsets of what was written since it was asked last."""
        written, self._written = self._written, {}
        return {place: sorted(offsets) for place, offsets in written.items()}

    @abstractmethod
    def end(self, *, commits: bool = True) -> None:
        """Commits, or aborts."""


class MemoryTopics(Topics):
    """Over a broker in memory; a transaction's markers take offsets."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__()
        self.broker = broker
        self._records: list[tuple[Place, int]] = []

    def make(self, topic: str, partitions: int = 1) -> None:
        self.broker.make_topic(topic, partitions)

    def begin(self) -> None:
        self._records.clear()

    def write(self, place: Place, value: bytes | None, key: bytes | None = None) -> None:
        offset = self.broker.append(place, value, key)
        self._written.setdefault(place, []).append(offset)
        self._records.append((place, offset))

    def end(self, *, commits: bool = True) -> None:
        for place, offset in () if commits else self._records:
            self.broker.remove(place, offset)
        for place in dict(self._records):
            self.broker.skip(place)


class KafkaTopics(Topics):
    """Over Kafka."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__()
        self.bootstrap = bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        self._producer.init_transactions(_SECONDS)
        self._reader = open_consumer(bootstrap)
        self._ends: dict[Place, int] = {}

    def make(self, topic: str, partitions: int = 1) -> None:
        make_topics(self.bootstrap, [topic], partitions)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def write(self, place: Place, value: bytes | None, key: bytes | None = None) -> None:
        topic, partition = place
        self._producer.produce(topic, value, key, partition, on_delivery=self._note)

    def written(self) -> dict[Place, list[int]]:
        self._producer.flush(_SECONDS)
        return super().written()

    def end(self, *, commits: bool = True) -> None:
        if commits:
            self._producer.commit_transaction(_SECONDS)
        else:
            self._producer.abort_transaction(_SECONDS)
        deadline = time.monotonic() + _MARKER_SECONDS
        while not self._has_markers() and time.monotonic() < deadline:
            pass
        self._ends.clear()

    def _has_markers(self) -> bool:
        """Whether readers see the transaction: its markers are written after the answer."""
        return all(
            self._reader.get_watermark_offsets(TopicPartition(*place), _SECONDS)[1] > offset
            for place, offset in self._ends.items()
        )

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            place = message.topic() or "", message.partition() or 0
            self._written.setdefault(place, []).append(message.offset() or 0)
            self._ends[place] = message.offset() or 0


class OutputWriter:
    """Plays a pipeline: documents with their commit records. LSNs are 100, 200, 300.

    Partitions are by output topic, named without the pipeline's name in front.
    """

    def __init__(self, topics: Topics, name: str, partitions: Mapping[str, int]) -> None:
        self.topics = topics
        self.name = name
        self.outputs = {f"{name}.{each}": count for each, count in partitions.items()}
        self._lsn = 0
        _make_outputs(topics, self.outputs)

    def commit(
        self,
        documents: Iterable[tuple[str, int, str, str | None]] = (),
        *,
        commits: bool = True,
        timeline: int = 1,
    ) -> int:
        """Publishes one source transaction: (topic, partition, key, value) of each document; returns its LSN.

        Or aborts it. Commits of a new timeline have lower LSNs than those before.
        """
        lsn = self._lsn + 100
        self.topics.begin()
        for topic, partition, key, value in documents:
            place = f"{self.name}.{topic}", partition
            self.topics.write(place, None if value is None else value.encode(), key.encode())
        record = CommitRecord(
            pipeline=self.name,
            source="src",
            timeline=timeline,
            commit_lsn=lsn,
            previous_lsn=self._lsn,
            xid=lsn + 7,
            commit_ts_ms=COMMIT_MS + lsn,
            offsets=_ranges(self.topics.written()),
            commit_ts_ns=(COMMIT_MS + lsn) * 1_000_000,
        )
        _write_commits(self.topics, self.outputs, record)
        self.topics.written()
        self.topics.end(commits=commits)
        self._lsn = lsn if commits else self._lsn
        return lsn


class ChangeWriter:
    """Plays a connector and its sidecar: change records of transactions, and cuts. LSNs are 100, 200, 300.

    All tables may have one topic, as a transform makes it.
    """

    def __init__(
        self, topics: Topics, source: str, partitions: Mapping[str, int], topic: str | None = None
    ) -> None:
        self.topics = topics
        self.source = source
        self._partitions = partitions
        self._topics = {table: topic or data_topic(source, table) for table in partitions}
        self._ends = {self._topics[table]: [0] * count for table, count in partitions.items()}
        self._open: list[CommittedTransaction] = []
        self._lsn = self._cut_lsn = self._events = self._order = 0
        for topic, ends in self._ends.items():
            topics.make(topic, len(ends))
        topics.make(cut_log_topic(source))

    def transaction(self, rows: _Rows, *, is_listed: bool = True) -> int:
        """Writes a transaction: (table, key, row) of each change; returns its commit LSN.

        Rows are in partition ``key % partitions``. Several are written in turn, so transactions interleave
        in a topic's partitions as keys do.
        """
        xid, lsn = self.begin(), self._lsn
        self.rows(xid, rows)
        if is_listed:
            self._open.append(CommittedTransaction(xid, lsn, COMMIT_MS + lsn))
        return lsn

    def begin(self) -> int:
        """Begins a transaction; returns its xid, which is its commit LSN plus 7."""
        self._lsn += 100
        self._order = 0
        return self._lsn + 7

    def rows(self, xid: int, rows: _Rows, *, first: int = 1, has_keys: bool = True, lsn: int = 0) -> None:
        """Writes changes of a transaction, the first of which has this number; with an LSN, all have that."""
        values = [(t, k, self.value(t, xid, n, row, lsn=lsn)) for n, (t, k, row) in enumerate(rows, first)]
        self._write(values, has_keys=has_keys)

    def loose_rows(self, rows: _Rows, *, lsn: int | None = None) -> None:
        """Writes rows of a snapshot that belong to no commit: of an incremental one, or of a late one."""
        kind = "incremental" if lsn is None else "true"
        values = [(t, key, self.value(t, None, 0, row, lsn=lsn or 0, snapshot=kind)) for t, key, row in rows]
        self._write(values)

    def snapshot(self, rows: _Rows) -> int:
        """Writes an initial snapshot; returns its LSN."""
        self._lsn += 100
        self._write([(t, key, self.value(t, None, 0, row, lsn=self._lsn)) for t, key, row in rows])
        self._open.append(CommittedTransaction(SNAPSHOT_XID, self._lsn, COMMIT_MS + self._lsn))
        return self._lsn

    def cut(self, **others: Any) -> Cut:
        """Publishes that everything committed so far is complete."""
        cut = Cut(
            **{
                "source": self.source,
                "timeline": 1,
                "lsn": self._lsn,
                "previous_lsn": self._cut_lsn,
                "commit_ts_ms": COMMIT_MS + self._lsn,
                "event_count": self._events,
                "transactions": tuple(self._open),
                "end_offsets": {topic: tuple(ends) for topic, ends in self._ends.items()},
                "transaction_offset": 0,
                **others,
            }
        )
        self._open, self._cut_lsn = [], self._lsn
        self.append(encode_cut(cut))
        return cut

    def append(self, record: bytes) -> None:
        self.topics.begin()
        self.topics.write((cut_log_topic(self.source), 0), record)
        self.topics.written()
        self.topics.end()

    def value(
        self, table: str, xid: int | None, order: int, row: Any, *, lsn: int = 0, snapshot: str = "true"
    ) -> bytes:
        """Makes a change record; a row of None is a delete."""
        own = lsn or (xid or 0) - 107 + order
        if xid:
            op, position, orders = "d" if row is None else "c", (xid, max(own, 0)), (order, order)
            return change_value(table, op, position=position, orders=orders, after=row, ts_ms=COMMIT_MS)
        if own < 0:
            return incremental_value(table, row, ts_ms=COMMIT_MS)
        return snapshot_value(table, own, row, snapshot=snapshot, ts_ms=COMMIT_MS)

    def _write(self, rows: Sequence[tuple[str, int, bytes]], *, has_keys: bool = True) -> None:
        self.topics.begin()
        for table, key, value in rows:
            place = self._topics[table], key % self._partitions[table]
            self.topics.write(place, value, json.dumps({"id": key}).encode() if has_keys else None)
        for (topic, partition), offsets in self.topics.written().items():
            self._ends[topic][partition] = offsets[-1] + 1
        self.topics.end()
        self._events += len(rows)


def _make_outputs(topics: Topics, partitions: Mapping[str, int]) -> None:
    for topic, count in partitions.items():
        topics.make(topic, count)
        topics.make(commit_topic(topic))


def _write_commits(topics: Topics, outputs: Iterable[str], record: CommitRecord) -> None:
    for topic in outputs:
        topics.write((commit_topic(topic), 0), encode_commit_record(record))


def _ranges(written: Mapping[Place, Sequence[int]]) -> dict[str, dict[int, OffsetRange]]:
    """Returns what a commit record says of the offsets that were written."""
    ranges: dict[str, dict[int, OffsetRange]] = {}
    for (topic, partition), offsets in sorted(written.items()):
        ranges.setdefault(topic, {})[partition] = OffsetRange(len(offsets), offsets[0], offsets[-1])
    return ranges


Change = tuple[str, int, int | None]
"""View, key and value; None: the key's document is gone."""


class ViewWriter:
    """Plays a pipeline whose views can be read: batches of one commit each; LSNs are 100, 200, 300.

    Views have documents of ``id`` and ``value``, keyed by ``id``. If it is latest, a record of a commit is
    that of a batch.
    """

    def __init__(
        self,
        world: "World",
        *views: str,
        partitions: int = 2,
        is_latest: bool = False,
        name: str | None = None,
    ) -> None:
        self.topics, self.is_latest = world.topics, is_latest
        self.name = name or f"p{uuid.uuid4().hex[:10]}"
        self.source, self.root, self.lsn = "inv", "", 0
        """The connector's ``topic.prefix``, that at the beginning of the chain, and the newest batch."""
        self.views = {view: f"{self.name}_{view}" for view in views}
        self.partitions = partitions
        self.batch_id = -1
        self.lag_ms: int | None = None
        self.raised_ms = 0
        self.ends = {topic: [0] * partitions for topic in self.views.values()}
        self.states: dict[int, dict[str, dict[int, int]]] = {0: {view: {} for view in views}}
        """By LSN."""
        _make_outputs(self.topics, dict.fromkeys(self.views.values(), partitions))
        self.topics.make(progress_topic(self.name))

    def publish(self, *changes: Change, commits: bool = True, lsn: int | None = None) -> int:
        """Makes a batch visible, or aborts it; returns its LSN: the given one, or 100 more than before."""
        lsn = lsn or self.lsn + 100
        self.topics.begin()
        state = {view: dict(rows) for view, rows in self.states[self.lsn].items()}
        for view, key, value in changes:
            place = self.views[view], key % self.partitions
            document = None if value is None else json.dumps({"id": key, "value": value}).encode()
            self.topics.write(place, document, json.dumps({"id": key}).encode())
            if value is None:
                state[view].pop(key, None)
            else:
                state[view][key] = value
        ranges = _ranges(self.topics.written())
        ends = {topic: list(found) for topic, found in self.ends.items()}
        for topic, of_topic in ranges.items():
            for partition, each in of_topic.items():
                ends[topic][partition] = each.last_offset + 1
        record = CommitRecord(
            pipeline=self.name,
            source=self.source,
            timeline=1,
            commit_lsn=lsn,
            previous_lsn=self.lsn,
            xid=None if self.is_latest else lsn,
            commit_ts_ms=lsn,
            offsets=ranges,
        )
        _write_commits(self.topics, self.views.values(), record)
        commit_ends = {topic: offsets[-1] + 1 for (topic, _), offsets in self.topics.written().items()}
        start = (0,) * self.partitions
        progress = ProgressRecord(
            pipeline=self.name,
            query_id="q",
            batch_id=self.batch_id + 1,
            source=self.source,
            timeline=1,
            commit_lsn=lsn,
            root=self.root,
            topics={
                topic: TopicState("", start, tuple(found), self.lag_ms, self.raised_ms)
                for topic, found in ends.items()
            }
            | {topic: TopicState("", (0,), (end,)) for topic, end in commit_ends.items()},
        )
        self.topics.write(
            (progress_topic(self.name), 0), encode_progress_record(progress), self.name.encode()
        )
        self.topics.written()
        self.topics.end(commits=commits)
        if commits:
            self.lsn, self.batch_id, self.ends, self.states[lsn] = lsn, self.batch_id + 1, ends, state
        return lsn


class Ticking(SystemClock):
    """Every look at it is a second later: whatever is done now and then is done each time."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic(self) -> float:
        self._seconds += 1.0
        return self._seconds


class World:
    """A broker, what writes to it, and consumers."""

    def __init__(
        self,
        kafka: KafkaSettings | MemoryBroker,
        topics: Topics,
        running: ExitStack,
        make: Callable[..., TransactionalConsumer] = TransactionalConsumer,
    ) -> None:
        self.kafka, self.topics, self._make = kafka, topics, make
        self.name = f"w{uuid.uuid4().hex[:10]}"
        """Nobody else's."""
        self._running = running
        self._patience = timedelta(seconds=0 if isinstance(kafka, MemoryBroker) else 0.3)

    @property
    def broker(self) -> MemoryBroker:
        """The broker in memory.

        Raises:
            TypeError: It is a real one.
        """
        if not isinstance(self.kafka, MemoryBroker):
            raise TypeError("the broker is a real one")
        return self.kafka

    def output(self, **partitions: int) -> OutputWriter:
        return OutputWriter(self.topics, self.name, partitions)

    def changes(self, partitions: Mapping[str, int], topic: str | None = None) -> ChangeWriter:
        return ChangeWriter(self.topics, self.name, partitions, topic)

    def consumer(
        self,
        inputs: Inputs,
        *,
        group: str = "g",
        share: Share | None = None,
        positions: PositionOf | None = None,
        **settings: Any,
    ) -> TransactionalConsumer:
        consumer = self._make(
            self.kafka,
            inputs,
            group=f"{self.name}.{group}",
            share=share,
            positions=positions,
            settings=ConsumerSettings(**settings),
            clock=Ticking() if isinstance(self.kafka, MemoryBroker) else None,
        )
        self._running.callback(consumer.close)
        return consumer

    def read(self, consumer: TransactionalConsumer, count: int, *, tries: int = 400) -> list[Transaction]:
        """Returns this many transactions; fewer if nothing came too often."""
        found: list[Transaction] = []
        while len(found) < count and tries:
            transaction = consumer.poll(self._patience)
            if transaction is None:
                tries -= 1
            else:
                found.append(transaction)
        return found

    def is_idle(self, consumer: TransactionalConsumer) -> bool:
        """Says whether nothing comes, however often it is asked."""
        return not self.read(consumer, 1, tries=6)

    def stored(self, group: str = "g") -> dict[Place, int]:
        """Returns the committed offsets of a group, as Kafka's tools show them."""
        name = f"{self.name}.{group}"
        if isinstance(self.kafka, MemoryBroker):
            return {place: each.offset for place, each in self.kafka.committed(name).items()}
        admin = AdminClient(dict(self.kafka.client_config))
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])
        found = asked[name].result(_SECONDS).topic_partitions
        return {(each.topic, each.partition): each.offset for each in found}


def contents(transaction: Transaction) -> list[tuple[str, str]]:
    """Returns key and value of each record, as text."""
    return [(_text(record.key()), _text(record.value())) for record in transaction]


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode()
