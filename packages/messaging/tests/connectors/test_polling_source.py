"""What a connector keeps that polls a table: Camel's SQL source, in its two usual shapes.

One goes by a growing column, the other removes each row that it took. Nothing here depends on luck: moments
are held open by locks, and by a broker that is away.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlencode

import psycopg
import pytest
from psycopg import sql

from slackwater.dev import ConnectMode, KafkaBroker
from slackwater.protocol import UnavailableError
from slackwater_lab.messaging.connectors import Ends, StatementLog, open_worker
from slackwater_lab.messaging.sending.world import World

Database = psycopg.Connection[Any]

pytestmark = [pytest.mark.integration, pytest.mark.slow]


_GATE: LiteralString = """
    CREATE FUNCTION {3}() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtext({4}));
        RETURN coalesce(NEW, OLD);
    END $$;
    CREATE TRIGGER gate BEFORE DELETE ON {0} FOR EACH ROW EXECUTE FUNCTION {3}();
    CREATE TRIGGER gate BEFORE UPDATE ON {1} FOR EACH ROW EXECUTE FUNCTION {3}()
"""
SHAPES = pytest.mark.parametrize("column", ["id", None], ids=["growing-column", "removing"])


def polling_source(ends: Ends, topic: str, query: str, after: str) -> dict[str, str]:
    """Camel's SQL source: polls with a query, and runs a statement for each row that it took.

    Args:
        ends: The database.
        topic: Where the rows go, as JSON.
        query: Selects the rows to be sent, in order.
        after: Run after each row, whose columns it names as ``:#column``.
    """
    options = {"dataSource": "#bean:database", "onConsume": after, "delay": 200, "initialDelay": 0}
    return {
        "name": topic,
        "connector.class": "org.apache.camel.kafkaconnector.CamelSourceConnector",
        "tasks.max": "1",
        "topics": topic,
        "camel.source.url": f"sql:{query}?{urlencode(options)}",
        "camel.source.marshal": "json-jackson",
        "camel.beans.database": "#class:org.postgresql.ds.PGSimpleDataSource",
        "camel.beans.database.url": ends.jdbc,
        "camel.beans.database.user": ends.user,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    }


class Table:
    """A table of messages that a connector polls."""

    def __init__(self, world: World, column: str | None = None) -> None:
        self._world, self._column = world, column
        self.name, self.progress = f"{world.name}_polled", f"{world.name}_progress"
        self.run("CREATE TABLE {0} (id bigserial PRIMARY KEY, made_at timestamptz DEFAULT now(), value text)")
        self.run("CREATE TABLE {1} AS SELECT 0::bigint AS id, 'epoch'::timestamptz AS made_at")
        self.run(_GATE)

    def source(self, ends: Ends) -> dict[str, str]:
        """The connector: by the column, or by removing."""
        if self._column:
            query = "SELECT * FROM {0} WHERE {2} > (SELECT {2} FROM {1}) ORDER BY {2}"
            after = self._text("UPDATE {1} SET {2} = :#") + self._column
            return polling_source(ends, self._world.topic, self._text(query), after)
        query, after = "SELECT * FROM {0} ORDER BY id", self._text("DELETE FROM {0} WHERE id = :#id")
        return polling_source(ends, self._world.topic, self._text(query), after)

    def _text(self, statement: LiteralString) -> str:
        """A statement about both tables and the column."""
        names = (self.name, self.progress, self._column or "id", f"{self.name}_gate")
        return sql.SQL(statement).format(*map(sql.Identifier, names), sql.Literal(self.name)).as_string(None)

    def run(self, statement: LiteralString, *values: object, over: Database | None = None) -> Any:
        """Runs a statement about them; returns the first row, if there is one."""
        cursor = (over or self._world.connection).execute(self._text(statement).encode(), values)
        return cursor.fetchone() if cursor.description else None

    def write(self, *messages: str, over: Database | None = None) -> None:
        """Inserts messages in one transaction, or in the open one of a connection."""
        self.run("INSERT INTO {0} (value) SELECT * FROM unnest(%s::text[])", list(messages), over=over)

    def hold(self, over: Database) -> None:
        """Lets nobody write down that a row was taken, until the connection's transaction ends."""
        over.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [self.name])

    @property
    def rows(self) -> int:
        return int(self.run("SELECT count(*) FROM {0}")[0])

    @property
    def are_taken(self) -> bool:
        """Whether every row was removed, or is below what was written down."""
        if self._column:
            return bool(self.run("SELECT {2} = (SELECT max({2}) FROM {0}) FROM {1}")[0])
        return self.rows == 0

    @property
    def is_held(self) -> bool:
        """Whether somebody waits for what is held."""
        return bool(self.run("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")[0])

    def end_waiting(self) -> None:
        """Ends the connections that wait; they would not notice that their client is dead."""
        self.run("SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_locks WHERE NOT granted")

    @property
    def sent(self) -> list[str]:
        """The messages in the topic."""
        return [json.loads(value)["value"] for value in self._world.values()]


@pytest.mark.parametrize("column", ["id", "made_at"])
def test_a_growing_column_loses_rows_of_a_transaction_that_commits_late(
    world: World, ends: Ends, tmp_path: Path, wait_until: Callable[..., None], column: str
) -> None:
    table = Table(world, column)
    with psycopg.connect(world.dsn) as slow, open_worker(tmp_path, ends, table.source(ends)):
        table.write("late", over=slow)
        table.write("early")
        wait_until(lambda: table.sent == ["early"])
        slow.commit()
        table.write("next")
        wait_until(lambda: "next" in table.sent)
    assert table.rows == 3
    assert table.sent == ["early", "next"]


def test_removing_rows_loses_none_of_them_and_keeps_no_order_of_ids(
    world: World, ends: Ends, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    table = Table(world)
    with psycopg.connect(world.dsn) as slow, open_worker(tmp_path, ends, table.source(ends)):
        table.write("late", over=slow)
        table.write("early")
        wait_until(lambda: table.sent == ["early"])
        slow.commit()
        wait_until(lambda: len(table.sent) == 2)
    assert table.sent == ["early", "late"]


@SHAPES
def test_rows_of_one_transaction_become_visible_one_by_one(
    world: World, ends: Ends, tmp_path: Path, wait_until: Callable[..., None], column: str | None
) -> None:
    table = Table(world, column)
    with psycopg.connect(world.dsn) as other, open_worker(tmp_path, ends, table.source(ends)):
        table.hold(other)
        table.write("a", "b", "c")
        wait_until(lambda: table.is_held and bool(table.sent))
        assert table.sent == ["a"]
        other.rollback()
        wait_until(lambda: len(table.sent) == 3)
    assert table.sent == ["a", "b", "c"]


@SHAPES
def test_a_worker_that_is_killed_behind_sending_sends_again(
    world: World, ends: Ends, tmp_path: Path, wait_until: Callable[..., None], column: str | None
) -> None:
    table = Table(world, column)
    with psycopg.connect(world.dsn) as other, open_worker(tmp_path, ends, table.source(ends)) as worker:
        table.hold(other)
        table.write("a", "b", "c")
        wait_until(lambda: table.is_held and table.sent == ["a"])
        worker.kill()
        table.end_waiting()
        other.rollback()
        worker.start()
        wait_until(lambda: "c" in table.sent)
    assert table.sent == ["a", "a", "b", "c"]


@SHAPES
def test_a_worker_that_is_killed_while_kafka_is_away_loses_rows_that_it_had_taken(
    world: World,
    ends: Ends,
    kafka_broker: KafkaBroker,
    tmp_path: Path,
    wait_until: Callable[..., None],
    column: str | None,
) -> None:
    table = Table(world, column)
    with open_worker(tmp_path, ends, table.source(ends)) as worker:
        table.write("a")
        wait_until(lambda: table.sent == ["a"])
        kafka_broker.kill()
        table.write("b", "c")
        wait_until(lambda: table.are_taken)
        worker.kill()
        kafka_broker.start()
        worker.start()
        table.write("d")
        wait_until(lambda: "d" in table.sent)
    assert table.sent == ["a", "d"]


def test_exactly_once_is_refused(world: World, ends: Ends, tmp_path: Path) -> None:
    connector = {**Table(world).source(ends), "exactly.once.support": "required"}
    opened = open_worker(tmp_path, ends, connector, mode=ConnectMode.EXACTLY_ONCE)
    with pytest.raises(UnavailableError, match="exactly-once"), opened:
        pass


def test_a_poll_is_a_statement_and_so_is_each_message(
    world: World, statements: StatementLog, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    table = Table(world)
    ends = Ends(dsn=world.dsn, bootstrap=world.bootstrap, user=statements.account)
    found: list[str] = []

    def polls(count: int) -> bool:
        found.extend(statements.take())
        return found.count("SELECT") >= count

    with open_worker(tmp_path, ends, table.source(ends)):
        wait_until(lambda: polls(3))
        assert "DELETE" not in found
        found.clear()
        table.write(*(f"m{n}" for n in range(10)))
        wait_until(lambda: len(table.sent) == 10 and polls(2))
    assert found.count("DELETE") == 10
