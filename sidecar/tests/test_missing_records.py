"""Topics in which records are missing: dropped by a transform, aborted, compacted away."""

import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from slackwater.cdc import Frontier
from slackwater.dev import KafkaBroker
from slackwater.protocol import Evidence, KafkaSettings, Servers
from slackwater_lab.debezium.records import begin_value, change_value, end_value
from slackwater_lab.topics import make_topics
from slackwater_sidecar import SidecarSettings
from slackwater_sidecar.reader import SourceReader

pytestmark = pytest.mark.integration

Wait = Callable[[Callable[[], object]], None]
TABLE = "s.a"
PARTITIONS = 2
COMPACTION = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1",
}


class Topics:
    """A source with one table. Every transaction changes the same two rows, one in each partition."""

    def __init__(self, bootstrap: str, **config: str) -> None:
        self.name, self.bootstrap = f"m{uuid.uuid4().hex[:10]}", bootstrap
        self.data = f"{self.name}.{TABLE}"
        self.producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        make_topics(bootstrap, [self.data], PARTITIONS, **config)
        make_topics(bootstrap, [f"{self.name}.transaction"], 1)

    def commit(self, xid: int, *, dropped: int = 0) -> int:
        """Rows 1 and 2; END also counts rows that a transform dropped. Its commit LSN."""
        self.producer.produce(f"{self.name}.transaction", begin_value(xid, xid * 100))
        for number in range(PARTITIONS):
            position, orders = (xid, xid * 100 + number), (number + 1, number + 1)
            value = change_value(TABLE, "u", position=position, orders=orders, after={"id": number})
            key = b'{"id":%d}' % number
            self.producer.produce(self.data, value, key, partition=number, timestamp=1_000_000 + xid)
        counts = {TABLE: PARTITIONS + dropped}
        self.producer.produce(f"{self.name}.transaction", end_value(xid, xid * 100 + 50, counts))
        assert self.producer.flush(30) == 0
        return xid * 100 + 50

    def abort(self, records: int) -> None:
        """A Kafka transaction that comes to nothing, but for the gap in the offsets."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(records):
            producer.produce(self.data, b"not for readers", b"k", partition=number % PARTITIONS)
        producer.flush(30)
        producer.abort_transaction(30)


class Following:
    """A sidecar's reader and frontier, from the beginning of the topics."""

    def __init__(self, topics: Topics, evidence: Evidence) -> None:
        kinds = {TABLE: evidence}
        settings = SidecarSettings(
            source=topics.name, servers=Servers(KafkaSettings(topics.bootstrap)), evidence=kinds
        )
        self.frontier = Frontier(topics.name, evidence=kinds, complete_tables=frozenset({TABLE}))
        self.reader = SourceReader(settings, lambda _topic, _number: None, self.frontier)
        self.records = 0

    def turn(self) -> None:
        frontier = self.frontier
        self.reader.discover()
        self.records += self.reader.poll(0.05)
        frontier.advance()
        if frontier.end_offsets_wanted:
            frontier.end_offsets(self.reader.end_offsets())
            frontier.advance()

    def is_at(self, lsn: int) -> bool:
        self.turn()
        return self.frontier.lsn >= lsn

    def has_read(self, offset: int) -> bool:
        self.turn()
        return all(p.position >= offset for p in self.frontier.partitions)


def test_a_topic_with_dropped_and_aborted_records_is_followed_by_overtaking(
    kafka_broker: KafkaBroker, wait_until: Wait
) -> None:
    topics = Topics(kafka_broker.bootstrap)
    topics.abort(6)
    lsns = [topics.commit(xid, dropped=xid % 2) for xid in range(1, 9)]
    topics.abort(4)

    following = Following(topics, Evidence.OVERTAKEN)
    wait_until(lambda: following.has_read(4 + 8 + 3))
    wait_until(lambda: following.is_at(lsns[-2]))
    cuts = following.frontier.cuts()
    following.reader.close()

    assert [t.commit_lsn for cut in cuts for t in cut.transactions] == lsns[:-1], "the last is not overtaken"
    ends = cuts[-1].end_offsets[topics.data]
    assert all(4 + 7 <= end <= 4 + 8 + 3 for end in ends), "behind row 7, counted with the gaps"


def test_by_counts_such_a_topic_stands_still_at_the_first_dropped_record(
    kafka_broker: KafkaBroker, wait_until: Wait
) -> None:
    """The test above can fail: its transactions are not complete by any count."""
    topics = Topics(kafka_broker.bootstrap)
    for xid in range(1, 9):
        topics.commit(xid, dropped=xid % 2)

    following = Following(topics, Evidence.COUNTS)
    wait_until(lambda: following.has_read(8))
    following.turn()
    following.reader.close()

    assert following.frontier.cuts() == []
    (first, *_) = following.frontier.open_transactions()
    assert (first.xid, first.expected, first.received) == (1, {TABLE: 3}, {TABLE: 2})


@pytest.mark.slow
def test_a_compacted_topic_is_followed_by_overtaking(kafka_broker: KafkaBroker, wait_until: Wait) -> None:
    """Kafka looks for something to compact every 15 seconds."""
    topics = Topics(kafka_broker.bootstrap, **COMPACTION)
    xids = iter(range(1, 10_000))
    lsns = [topics.commit(next(xids)) for _ in range(50)]

    def is_compacted() -> bool:
        lsns.append(topics.commit(next(xids)))
        following = Following(topics, Evidence.OVERTAKEN)
        while not following.has_read(len(lsns)):
            pass
        following.reader.close()
        return following.records < 3 * len(lsns)

    wait_until(is_compacted)
    following = Following(topics, Evidence.OVERTAKEN)
    wait_until(lambda: following.is_at(lsns[-2]))
    cuts = following.frontier.cuts()
    following.reader.close()

    assert [t.commit_lsn for cut in cuts for t in cut.transactions] == lsns[:-1]
    assert following.records < 3 * len(lsns), "some are gone: all would be two rows, BEGIN and END each"
