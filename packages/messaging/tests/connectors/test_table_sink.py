"""What Debezium's JDBC sink keeps when it writes records into tables."""

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg import sql

from slackwater_lab.messaging.connectors import (
    Ends,
    StatementLog,
    open_worker,
)
from slackwater_lab.messaging.sending.world import World
from slackwater_lab.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

Row = tuple[int, str]
JSON = "org.apache.kafka.connect.json.JsonConverter"


_HISTORY: LiteralString = """
    CREATE TABLE {1} (at bigserial, xid xid8, id bigint, note text);
    CREATE FUNCTION {2}() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO {1} (xid, id, note) VALUES (pg_current_xact_id(), NEW.id, NEW.note);
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE ON {0} FOR EACH ROW EXECUTE FUNCTION {2}()
"""


def table_sink(
    ends: Ends,
    name: str,
    topics: tuple[str, ...],
    *,
    upsert: bool = False,
    keyed: bool = True,
    batch: int = 500,
) -> dict[str, str]:
    """Debezium's JDBC sink: writes the committed records of each topic into the table of the topic's name.

    Args:
        ends: The database.
        name: Of the connector; its group is ``connect-<name>``.
        topics: What it reads, of :func:`table_record`.
        upsert: Whether a row that is there is written over.
        keyed: Whether the record's key is the table's primary key.
        batch: Records of one table in a transaction at most.
    """
    return {
        "name": name,
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": "1",
        "topics": ",".join(topics),
        "connection.url": ends.jdbc,
        "connection.username": ends.user,
        "connection.password": "unused",
        "insert.mode": "upsert" if upsert else "insert",
        "primary.key.mode": "record_key" if keyed else "none",
        "schema.evolution": "none",
        "collection.name.format": "${topic}",
        "batch.size": str(batch),
        "consumer.override.isolation.level": "read_committed",
        "consumer.override.auto.offset.reset": "earliest",
        # a worker that is started again takes over at once from the one that was killed
        "consumer.override.group.instance.id": name,
        "key.converter": JSON,
        "key.converter.schemas.enable": "true",
        "value.converter": JSON,
        "value.converter.schemas.enable": "true",
    }


def table_record(number: int, note: str) -> tuple[bytes, bytes]:
    """Key and value of a record for :func:`table_sink`, of a table with the columns ``id`` and ``note``."""
    identity = {"field": "id", "type": "int64", "optional": False}
    text = {"field": "note", "type": "string", "optional": False}
    key = {"schema": _struct(identity), "payload": {"id": number}}
    value = {"schema": _struct(identity, text), "payload": {"id": number, "note": note}}
    return json.dumps(key).encode(), json.dumps(value).encode()


def _struct(*fields: dict[str, object]) -> dict[str, object]:
    return {"type": "struct", "optional": False, "fields": list(fields)}


class Target:
    """A table that a topic of its name is written into, with a history of what was."""

    def __init__(self, world: World, name: str = "target", *, keyed: bool = True) -> None:
        self._world = world
        self.topic = self.name = f"{world.name}_{name}"
        make_topics(world.bootstrap, [self.topic], 1)
        self.run("CREATE TABLE {0} (id bigint, note text)")
        if keyed:
            self.run("ALTER TABLE {0} ADD PRIMARY KEY (id)")
        self.run(_HISTORY)

    def run(self, statement: LiteralString, over: psycopg.Connection[Any] | None = None) -> list[Any]:
        """Runs a statement about the table and its history; returns the rows, if there are any."""
        names = (sql.Identifier(self.name + end) for end in ("", "_history", "_note"))
        cursor = (over or self._world.connection).execute(sql.SQL(statement).format(*names))
        return cursor.fetchall() if cursor.description else []

    @property
    def rows(self) -> list[Row]:
        return self.run("SELECT id, note FROM {0} ORDER BY id, note")

    @property
    def history(self) -> list[Row]:
        """Everything that was ever written, in order."""
        return self.run("SELECT id, note FROM {1} ORDER BY at")

    @property
    def transactions(self) -> int:
        """How many have written."""
        return len(self.run("SELECT DISTINCT xid::text FROM {1}"))

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for a lock of the table."""
        query = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = %s::regclass)"
        return self._world.connection.execute(query, [self.name]).fetchone() == (True,)


def produce(world: World, *records: tuple[Target, int, str]) -> None:
    """Writes records in one Kafka transaction."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": world.name})
    producer.init_transactions(60)
    producer.begin_transaction()
    for target, number, note in records:
        key, value = table_record(number, note)
        producer.produce(target.topic, value, key)
    producer.commit_transaction(60)


def test_inserting_without_a_key_repeats_after_a_kill(
    world: World, ends: Ends, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    target = Target(world, keyed=False)
    produce(world, (target, 1, "a"), (target, 2, "b"))
    with open_worker(tmp_path, ends, table_sink(ends, world.name, (target.topic,), keyed=False)) as worker:
        wait_until(lambda: len(target.rows) == 2)
        worker.kill()
        produce(world, (target, 3, "c"))
        worker.start()
        wait_until(lambda: (3, "c") in target.rows)
    assert target.rows == [(1, "a"), (1, "a"), (2, "b"), (2, "b"), (3, "c")]


def test_inserting_with_a_key_stands_still_after_a_kill(
    world: World, ends: Ends, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    target = Target(world)
    produce(world, (target, 1, "a"), (target, 2, "b"))
    with open_worker(tmp_path, ends, table_sink(ends, world.name, (target.topic,))) as worker:
        wait_until(lambda: len(target.rows) == 2)
        worker.kill()
        produce(world, (target, 3, "c"))
        worker.start()

        def has_failed() -> bool:
            produce(world, (target, 4, "d"))  # it says so when it gets the next records
            return "duplicate key" in worker.state().trace

        wait_until(has_failed)
    assert target.rows == [(1, "a"), (2, "b")]


@pytest.mark.parametrize(("batch", "transactions"), [(500, 2), (1, 7)])
def test_upserting_ends_right_after_a_kill_but_goes_back_in_time_on_the_way(
    world: World, ends: Ends, tmp_path: Path, wait_until: Callable[..., None], batch: int, transactions: int
) -> None:
    target = Target(world)
    sink = table_sink(ends, world.name, (target.topic,), upsert=True, batch=batch)
    produce(world, (target, 1, "old"), (target, 2, "b"), (target, 1, "new"))
    with open_worker(tmp_path, ends, sink) as worker:
        wait_until(lambda: len(target.history) == 3)
        worker.kill()
        produce(world, (target, 3, "c"))
        worker.start()
        wait_until(lambda: (3, "c") in target.rows)
    assert target.rows == [(1, "new"), (2, "b"), (3, "c")]
    once = [(1, "old"), (2, "b"), (1, "new")]
    assert target.history == [*once, *once, (3, "c")]
    assert target.transactions == transactions


def test_a_reader_sees_half_of_what_one_transaction_wrote_into_two_topics(
    world: World, ends: Ends, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    orders, lines = Target(world, "orders"), Target(world, "lines")
    sink = table_sink(ends, world.name, (orders.topic, lines.topic))
    numbers, torn = itertools.count(1), 0
    with psycopg.connect(world.dsn) as other, open_worker(tmp_path, ends, sink):
        while not torn:  # whichever table it writes first, one of the two locks stops it between them
            for locked, free in ((orders, lines), (lines, orders)):
                locked.run("LOCK TABLE {0} IN EXCLUSIVE MODE", over=other)
                written = next(numbers)
                produce(world, (orders, written, "order"), (lines, written, "line"))
                wait_until(partial(getattr, locked, "is_waited_for"))
                torn += len(free.rows) > len(locked.rows)
                other.rollback()
                wait_until(lambda count=written: len(orders.rows) == len(lines.rows) == count)
    assert torn > 0


def test_a_record_is_a_statement_and_a_batch_of_a_table_a_transaction(
    world: World, statements: StatementLog, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    target = Target(world)
    ends = Ends(dsn=world.dsn, bootstrap=world.bootstrap, user=statements.account)
    produce(world, *((target, n, "x") for n in range(10)))
    with open_worker(tmp_path, ends, table_sink(ends, world.name, (target.topic,))):
        wait_until(lambda: len(target.rows) == 10)
        statements.take()
        produce(world, *((target, n, "x") for n in range(10, 20)))
        wait_until(lambda: len(target.rows) == 20)
        found = statements.take()
    assert found.count("INSERT") == 10
    assert found.count("BEGIN") == found.count("COMMIT") <= 10
    assert target.transactions == 1 + found.count("BEGIN")
    assert found.count("SELECT") > 0, "it looks at the table's columns"
