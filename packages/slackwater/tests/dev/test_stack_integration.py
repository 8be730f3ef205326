"""The real servers together: a database change is read from Kafka; servers die and come back."""

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest
import redis
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from slackwater.dev import DevStack, DevStackSettings, RunState, resolve_jars
from slackwater.dev.server import Deadline
from slackwater.protocol import StateError

pytestmark = pytest.mark.integration

TABLES = ("inventory.orders", "inventory.lines")
DDL = """
CREATE SCHEMA inventory;
CREATE TABLE inventory.orders (id int PRIMARY KEY, note text);
CREATE TABLE inventory.lines (id int PRIMARY KEY, order_id int NOT NULL, price numeric(10, 2));
INSERT INTO inventory.orders VALUES (1, 'before the connector');
"""


@pytest.fixture(scope="module")
def stack(dev_stack: Callable[..., DevStack]) -> DevStack:
    """A stack whose connector streams."""
    started = dev_stack(partitions=3, offset_flush_interval=timedelta(milliseconds=200))
    with psycopg.connect(started.postgres.dsn(), autocommit=True) as connection:
        connection.execute(DDL)
    started.start_connector(TABLES)
    started.wait_until_streaming()
    return started


class TopicReader:
    """Reads topics from the beginning, also topics that appear later."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
        self._seen: dict[str, int] = {}
        self.records: dict[str, list[dict[str, object]]] = {}

    def read_until(self, topics: tuple[str, ...], done: Callable[[], bool]) -> None:
        deadline = Deadline(timedelta(seconds=900))
        while not done():
            assert not deadline.is_expired, f"only read {self.records}"
            self._assign(topics)
            for message in self._consumer.consume(1000, timeout=0.2):
                value = message.value()
                topic = message.topic()
                if message.error() is None and value is not None and topic is not None:
                    self.records.setdefault(topic, []).append(json.loads(value))

    def _assign(self, topics: tuple[str, ...]) -> None:
        known = self._consumer.list_topics(timeout=120).topics
        for topic in set(topics) & set(known) - set(self._seen):
            self._seen[topic] = len(known[topic].partitions)
            added = [TopicPartition(topic, number, 0) for number in range(self._seen[topic])]
            self._consumer.incremental_assign(added)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def reader(stack: DevStack) -> Iterator[TopicReader]:
    opened = TopicReader(stack.kafka.bootstrap)
    yield opened
    opened.close()


def commit_order(stack: DevStack, number: int) -> str:
    """One transaction with an order and two lines; returns its id in the database."""
    with psycopg.connect(stack.postgres.dsn()) as connection:
        connection.execute("INSERT INTO inventory.orders VALUES (%s, 'x')", [number])
        for line in (1, 2):
            values = [number * 10 + line, number, "1.50"]
            connection.execute("INSERT INTO inventory.lines VALUES (%s, %s, %s)", values)
        row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return str(row[0])


def wal_end(stack: DevStack) -> str:
    """Where the database writes next."""
    with psycopg.connect(stack.postgres.dsn()) as connection:
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def is_confirmed(stack: DevStack, lsn: str) -> bool:
    """Whether the connector has stored that it need not read below an LSN again; heartbeats take it there."""
    with psycopg.connect(stack.postgres.dsn()) as connection:
        row = connection.execute(
            "SELECT bool_and(confirmed_flush_lsn >= %s::pg_lsn) FROM pg_replication_slots", [lsn]
        ).fetchone()
    return row is not None and row[0] is True


def transaction(record: dict[str, object]) -> str:
    inner = record["transaction"]
    return str(inner["id"]).split(":")[0] if isinstance(inner, dict) else ""


def test_a_transaction_arrives_with_begin_rows_and_end(stack: DevStack, reader: TopicReader) -> None:
    xid = commit_order(stack, 100)

    def of_topic(topic: str) -> list[dict[str, object]]:
        return [record for record in reader.records.get(topic, []) if transaction(record) == xid]

    def markers() -> list[dict[str, object]]:
        records = reader.records.get("inv.transaction", [])
        return [record for record in records if str(record["id"]).startswith(f"{xid}:")]

    def complete() -> bool:
        rows = of_topic("inv.inventory.orders") + of_topic("inv.inventory.lines")
        return len(rows) == 3 and len(markers()) == 2

    reader.read_until(("inv.transaction", *(f"inv.{table}" for table in TABLES)), complete)
    assert [record["status"] for record in markers()] == ["BEGIN", "END"]
    assert markers()[1]["event_count"] == 3
    line = of_topic("inv.inventory.lines")[0]["after"]
    assert isinstance(line, dict)
    assert line["price"] == "1.50"


def test_rows_from_before_the_connector_are_delivered(stack: DevStack, reader: TopicReader) -> None:
    def snapshot_rows() -> list[dict[str, object]]:
        return [record for record in reader.records.get("inv.inventory.orders", []) if record["op"] == "r"]

    reader.read_until(("inv.inventory.orders",), lambda: bool(snapshot_rows()))
    assert snapshot_rows()[0]["after"] == {"id": 1, "note": "before the connector"}


def test_data_topics_have_the_partitions_asked_for_and_the_others_one(
    stack: DevStack, reader: TopicReader
) -> None:
    commit_order(stack, 200)
    names = ("inv.transaction", "inv.notifications", "__debezium-heartbeat.inv", "inv.inventory.orders")
    reader.read_until(names, lambda: set(names) <= set(reader.records))
    topics = AdminClient({"bootstrap.servers": stack.kafka.bootstrap}).list_topics(timeout=120).topics
    assert [len(topics[name].partitions) for name in names] == [1, 1, 1, 3]


@pytest.mark.slow  # every run of tests/chaos kills Connect
def test_a_killed_connect_goes_on_where_it_was(stack: DevStack, reader: TopicReader) -> None:
    def arrived(xid: str) -> bool:
        records = reader.records.get("inv.inventory.orders", [])
        return any(transaction(record) == xid for record in records)

    commit_order(stack, 300)
    end = wal_end(stack)
    reader.read_until(("inv.inventory.orders",), lambda: is_confirmed(stack, end))
    stack.connect.kill()
    assert not stack.connect.is_running
    xid = commit_order(stack, 301)
    stack.connect.start()

    reader.read_until(("inv.inventory.orders",), lambda: arrived(xid))
    snapshots = [record for record in reader.records["inv.inventory.orders"] if record["op"] == "r"]
    assert len(snapshots) == 1


def test_a_killed_redis_comes_back_empty_on_its_port(stack: DevStack) -> None:
    client = redis.Redis.from_url(stack.redis.url)
    client.set("key", "value")
    before = stack.redis.port
    stack.redis.kill()
    stack.redis.start()
    assert stack.redis.port == before
    assert client.get("key") is None
    client.close()


def test_a_killed_postgres_keeps_what_was_committed(stack: DevStack) -> None:
    commit_order(stack, 400)
    stack.postgres.kill()
    stack.postgres.start()
    with psycopg.connect(stack.postgres.dsn()) as connection:
        row = connection.execute("SELECT count(*) FROM inventory.orders WHERE id = 400").fetchone()
    assert row == (1,)


def test_a_paused_redis_answers_after_it_was_resumed(stack: DevStack) -> None:
    client = redis.Redis.from_url(stack.redis.url, socket_timeout=0.2, retry=None)
    stack.redis.pause()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    stack.redis.resume()
    client.close()
    patient = redis.Redis.from_url(stack.redis.url, socket_timeout=20)
    assert patient.ping() is True
    patient.close()


def test_the_state_file_tells_another_process_what_runs(stack: DevStack) -> None:
    found = stack.status()
    assert {server.name: server.state for server in found.servers} == dict.fromkeys(
        ("postgres", "kafka", "redis", "connect"), RunState.RUNNING
    )
    assert found.is_running
    connect = found.server("connect")
    assert connect is not None
    assert connect.version == stack.connect.version != ""


def test_a_second_stack_in_the_same_folder_is_refused(stack: DevStack) -> None:
    second = DevStack(DevStackSettings(folder=stack.settings.folder))
    with pytest.raises(StateError, match="another folder"):
        second.start()
    assert stack.redis.is_running


def test_the_jars_are_in_the_cache_now(stack: DevStack) -> None:
    lines: list[str] = []
    resolve_jars(progress=lines.append)
    assert lines == []


@pytest.mark.slow
def test_a_table_that_is_added_to_the_connector_is_streamed(stack: DevStack, reader: TopicReader) -> None:
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE inventory.later (id int PRIMARY KEY)")
    pid = stack.connect.pid
    stack.start_connector(TABLES)
    assert stack.connect.pid == pid, "nothing changed, so nothing had to start again"
    stack.start_connector((*TABLES, "inventory.later"))
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
        connection.execute("INSERT INTO inventory.later VALUES (1)")
    reader.read_until(("inv.inventory.later",), lambda: bool(reader.records))
    assert reader.records["inv.inventory.later"][0]["after"] == {"id": 1}
