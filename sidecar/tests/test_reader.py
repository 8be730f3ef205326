"""What the readers of a source do with a real broker, one turn at a time."""

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from slackwater.cdc import Frontier
from slackwater.dev import KafkaBroker
from slackwater.protocol import ConfigError, InputError, KafkaSettings, Servers, SourceTopics
from slackwater.protocol.keys import data_topic
from slackwater_lab.debezium.recording import Oracle
from slackwater_lab.debezium.records import RUN_HEADER, transaction_values
from slackwater_lab.topics import make_topics
from slackwater_sidecar import SidecarSettings, SidecarUnavailableError
from slackwater_sidecar.reader import SourceReader, admin_config, data_topics

pytestmark = pytest.mark.integration

Wait = Callable[[Callable[[], object]], None]
TABLE = "s.a"
ODD_NAMES = ["s.my.table", "s.dotted.name.", "s.größe 🍏"]
TABLES = frozenset({TABLE, *ODD_NAMES})


class Topics:
    """The topics of a source of one test; one table, of which transactions of two rows are written."""

    def __init__(self, bootstrap: str) -> None:
        self.name = f"r{uuid.uuid4().hex[:10]}"
        self.bootstrap = bootstrap
        self.data = f"{self.name}.{TABLE}"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.producer = self.new_producer()

    def new_producer(self) -> Producer:
        """Knows the partitions that there are now."""
        return Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1, "enable.idempotence": True})

    def has_partitions(self, count: int) -> bool:
        self.producer = self.new_producer()
        return len(self.producer.list_topics(self.data, 10).topics[self.data].partitions) == count

    def create(self, *names: str, partitions: int = 2) -> None:
        make_topics(self.bootstrap, names, partitions)

    def create_all(self) -> None:
        self.create(self.data)
        self.create(f"{self.name}.transaction", partitions=1)

    def commit(self, xid: int, partition: int, topic: str | None = None, table: str = TABLE) -> int:
        """Its commit LSN."""
        lsn = self.hand_over(xid, partition, topic, table)
        assert self.producer.flush(30) == 0
        return lsn

    def hand_over(self, xid: int, partition: int, topic: str | None = None, table: str = TABLE) -> int:
        begin, rows, end = transaction_values(xid, xid * 100, [(table, {"id": n}) for n in range(2)])
        headers: list[tuple[str, str | bytes | None]] = [(RUN_HEADER, b"run")]
        self.producer.produce(f"{self.name}.transaction", begin, partition=0)
        for _, value in rows:
            self.producer.produce(topic or self.data, value, key=b"k", partition=partition, headers=headers)
        self.producer.produce(f"{self.name}.transaction", end, partition=0)
        return xid * 100 + 2

    def settings(self, *, workers: int = 1, topics: SourceTopics | None = None) -> SidecarSettings:
        return SidecarSettings(
            source=self.name, servers=Servers(KafkaSettings(self.bootstrap)), topics=topics, workers=workers
        )


def new_frontier(topics: Topics) -> Frontier:
    return Frontier(topics.name, complete_tables=TABLES)


def from_beginning(_topic: str, _number: int) -> int | None:
    return None


def is_at(reader: SourceReader, frontier: Frontier, lsn: int) -> bool:
    reader.discover()
    reader.poll(0.05)
    frontier.advance()
    if frontier.end_offsets_wanted:
        frontier.end_offsets(reader.end_offsets())
    return frontier.lsn >= lsn


@pytest.fixture
def topics(kafka_broker: KafkaBroker) -> Topics:
    return Topics(kafka_broker.bootstrap)


@pytest.fixture
def frontier(topics: Topics) -> Frontier:
    return new_frontier(topics)


@pytest.fixture(params=[1, 2], ids=["one process", "two workers"])
def reader(topics: Topics, frontier: Frontier, request: pytest.FixtureRequest) -> Iterator[SourceReader]:
    result = SourceReader(topics.settings(workers=request.param), from_beginning, frontier)
    yield result
    result.close()


def test_partitions_that_are_added_are_read_from_their_beginning(
    topics: Topics, frontier: Frontier, reader: SourceReader, wait_until: Wait
) -> None:
    topics.create_all()
    wait_until(partial(is_at, reader, frontier, topics.commit(1, 0)))

    for made in topics.admin.create_partitions([NewPartitions(topics.data, 3)]).values():
        made.result(300)
    wait_until(lambda: topics.has_partitions(3))
    wait_until(partial(is_at, reader, frontier, topics.commit(2, 2)))

    assert frontier.cuts()[-1].end_offsets == {topics.data: (2, 0, 2)}


@pytest.mark.full
@pytest.mark.parametrize("table", ODD_NAMES)
def test_a_topic_whose_table_has_any_name_is_read_when_the_connector_names_it(
    topics: Topics, frontier: Frontier, reader: SourceReader, wait_until: Wait, table: str
) -> None:
    topics.create_all()
    topic = data_topic(topics.name, table)
    topics.create(topic, f"{topics.name}.another.source.t")
    wait_until(partial(is_at, reader, frontier, topics.commit(1, 0, topic, table)))

    (cut,) = frontier.cuts()
    assert cut.end_offsets[topic] == (2, 0)
    assert f"{topics.name}.another.source.t" not in cut.end_offsets


def test_a_transaction_topic_of_several_partitions_is_an_error_that_says_what_to_do(topics: Topics) -> None:
    topics.create(topics.data)
    topics.create(f"{topics.name}.transaction", partitions=2)
    reader = SourceReader(topics.settings(), from_beginning, new_frontier(topics))

    with pytest.raises(ConfigError, match="has 2 partitions, expected 1"):
        reader.discover()
    reader.close()


def test_end_offsets_count_records_of_kafka_transactions_that_are_still_open(
    topics: Topics, frontier: Frontier, reader: SourceReader, wait_until: Wait
) -> None:
    topics.create_all()
    wait_until(partial(is_at, reader, frontier, topics.commit(1, 0)))
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": topics.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topics.data, b"{}", partition=1)
    producer.flush(30)

    assert reader.end_offsets()[topics.data, 1] == 1
    assert reader.held_back() == 1
    is_at(reader, frontier, 0)
    assert {p.number: p.position for p in frontier.partitions} == {0: 2, 1: 0}

    producer.abort_transaction(30)
    wait_until(lambda: reader.held_back() == 0)

    def has_passed_the_marker() -> bool:
        is_at(reader, frontier, 0)
        return {p.number: p.position for p in frontier.partitions} == {0: 2, 1: 2}

    wait_until(has_passed_the_marker)


def test_a_topic_made_anew_below_the_reader_is_an_error_that_says_so(
    topics: Topics, frontier: Frontier, reader: SourceReader, wait_until: Wait
) -> None:
    topics.create_all()
    for xid in range(1, 20):
        lsn = topics.commit(xid, 0)
    wait_until(partial(is_at, reader, frontier, lsn))

    for gone in topics.admin.delete_topics([topics.data]).values():
        gone.result(300)
    wait_until(lambda: topics.data not in topics.admin.list_topics(timeout=120).topics)
    topics.create(topics.data)

    def is_noticed() -> bool:
        try:
            is_at(reader, frontier, 0)
        except SidecarUnavailableError:
            return False
        except InputError as error:
            return "it was recreated" in str(error)
        return False

    wait_until(is_noticed)


def test_rows_are_read_where_a_transform_has_routed_them(topics: Topics, wait_until: Wait) -> None:
    elsewhere = f"{topics.name}-everything"
    topics.create(elsewhere)
    topics.create(f"{topics.name}.transaction", partitions=1)
    routed = SourceTopics(topics.name, routed={TABLE: elsewhere})
    frontier = new_frontier(topics)
    reader = SourceReader(topics.settings(topics=routed), from_beginning, frontier)

    wait_until(partial(is_at, reader, frontier, topics.commit(1, 1, elsewhere)))

    assert frontier.cuts()[-1].end_offsets == {elsewhere: (0, 2)}
    reader.close()


@pytest.mark.full
def test_a_killed_worker_is_replaced_and_its_partitions_are_read_on(topics: Topics, wait_until: Wait) -> None:
    topics.create_all()
    oracle, frontier = Oracle(), new_frontier(topics)
    reader = SourceReader(topics.settings(workers=2), from_beginning, frontier)
    for first in range(1, 4000, 1000):
        for xid in range(first, first + 1000):
            lsn = topics.hand_over(xid, xid % 2)
            oracle.add_commit(xid, lsn)
            for row in range(2):
                oracle.add_row(lsn, row, (topics.data, xid % 2, (xid - 1) // 2 * 2 + row))
        topics.producer.flush(30)
        wait_until(partial(is_at, reader, frontier, lsn - 50_000))
        os.kill(reader.pids[first // 1000 % 2], signal.SIGKILL)
    wait_until(partial(is_at, reader, frontier, lsn))

    assert oracle.complaints(frontier.cuts()) == []
    assert frontier.obstacles == []
    reader.close()


def test_workers_end_with_the_process_they_read_for(topics: Topics, wait_until: Wait) -> None:
    topics.create_all()
    frontier = new_frontier(topics)
    reader = SourceReader(topics.settings(workers=2), from_beginning, frontier)
    wait_until(partial(is_at, reader, frontier, topics.commit(1, 0)))
    pids = reader.pids

    reader.close()

    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_the_client_that_asks_for_topics_is_as_quiet_as_the_others() -> None:
    kafka = KafkaSettings("h:1", {"log_level": "2", "sasl.username": "ada", "fetch.wait.max.ms": "5"})
    config = admin_config(SidecarSettings(source="inv", servers=Servers(kafka)))
    assert config == {"bootstrap.servers": "h:1", "log_level": "2", "sasl.username": "ada"}


def test_topics_of_other_kinds_are_no_data_topics() -> None:
    topics = SourceTopics("inv", routed={"s.b": "all"}, transaction_name="inv.my.tx")
    is_data = data_topics(SidecarSettings(source="inv", servers=Servers(KafkaSettings("h:1")), topics=topics))

    names = ["inv.s.a", "all", "inv.my.tx", "inv.notifications", "inv.a", "x.s.a"]
    names += ["inv.slackwater.cuts", "inv.slackwater.progress"]

    assert [name for name in names if is_data(name)] == ["inv.s.a", "all"]


def test_only_the_topics_of_named_tables_are_data_topics() -> None:
    topics = SourceTopics("inv", routed={"s.b": "all"})
    settings = SidecarSettings(
        source="inv", servers=Servers(KafkaSettings("h:1")), topics=topics, tables=frozenset({"s.a", "s.b"})
    )

    assert [name for name in ("inv.s.a", "inv.s.b", "inv.s.c", "all") if data_topics(settings)(name)] == [
        "inv.s.a",
        "all",
    ]
