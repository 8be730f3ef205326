"""What Debezium's outbox event router keeps, over the table of a captured outbox.

The same table with a sidecar and a relay of ours: ``tests/system/test_messaging.py``.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slackwater.dev import ConnectMode, KafkaBroker, PostgresServer
from slackwater_lab.messaging.connectors import (
    Ends,
    StatementLog,
    event_router,
    make_slot,
    open_worker,
)
from slackwater_lab.messaging.sending.crash import CrashPoint, crash_and_recover, crash_points, new_order
from slackwater_lab.messaging.sending.world import World
from slackwater_messaging import CapturedOutbox

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MODES = [ConnectMode.STANDALONE, ConnectMode.EXACTLY_ONCE]


def drop_slot(connection: psycopg.Connection[Any], table: str) -> None:
    """Removes it, so that the database need not keep its log, unless somebody reads there."""
    query = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
    connection.execute(query + " WHERE slot_name = %s AND NOT active", [table])


class Outbox:
    """A captured outbox, and its connector."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.name = f"{world.name}_captured"
        self._table = CapturedOutbox(f"public.{self.name}")
        self._table.create(world.connection)
        make_slot(world.connection, self.name)

    def write(self, *values: str, over: psycopg.Connection[tuple[object, ...]] | None = None) -> None:
        """Sends messages in one transaction, or in the open one of a connection."""
        self._table.send(over or self._world.connection, *(self._world.message(each) for each in values))


@pytest.fixture
def outbox(world: World) -> Iterator[Outbox]:
    made = Outbox(world)
    yield made
    drop_slot(world.connection, made.name)


@pytest.mark.parametrize("point", list(crash_points(connector=True)), ids=str)
def test_a_death_costs_what_the_way_says(
    point: CrashPoint, postgres_server: PostgresServer, kafka_broker: KafkaBroker
) -> None:
    order = new_order(point.way, postgres_server.dsn(), kafka_broker.bootstrap)
    found = crash_and_recover(point, order).recovered
    with psycopg.connect(order.database, autocommit=True) as connection:
        drop_slot(connection, order.outbox)
    assert (found.lost, found.ghosts, found.disordered) == (0, 0, 0)
    assert (point.loss.repeated, found.repeated > 0) == (None, True)
    assert found.rows > 0


def test_messages_have_the_order_of_commits_and_none_is_lost(
    world: World, ends: Ends, outbox: Outbox, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    with psycopg.connect(world.dsn) as slow, open_worker(tmp_path, ends, event_router(ends, outbox.name)):
        outbox.write("late", over=slow)
        outbox.write("early")
        wait_until(lambda: world.values() == ["early"])
        slow.commit()
        wait_until(lambda: len(world.values()) == 2)
    assert world.values() == ["early", "late"]
    assert [record.key() for record in world.records()] == [b"k", b"k"]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_worker_that_is_killed_repeats_unless_it_is_exactly_once(
    world: World,
    ends: Ends,
    outbox: Outbox,
    tmp_path: Path,
    wait_until: Callable[..., None],
    mode: ConnectMode,
) -> None:
    connector = event_router(ends, outbox.name)
    with open_worker(tmp_path, ends, connector, mode=mode):
        outbox.write("a")
        wait_until(lambda: world.values() == ["a"])
    with open_worker(tmp_path, ends, connector, mode=mode) as worker:
        outbox.write("b", "c")
        wait_until(lambda: world.values() == ["a", "b", "c"])
        worker.kill()
        worker.start()
        outbox.write("d")
        wait_until(lambda: "d" in world.values())
    repeats = ["b", "c"] if mode is ConnectMode.STANDALONE else []
    assert world.values() == ["a", "b", "c", *repeats, "d"]


def test_exactly_once_tears_a_transaction_over_several_of_kafka(
    world: World, ends: Ends, outbox: Outbox, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    connector = event_router(ends, outbox.name, batch=8)
    with open_worker(tmp_path, ends, connector, mode=ConnectMode.EXACTLY_ONCE):
        outbox.write(*(f"m{n}" for n in range(20)))
        wait_until(lambda: len(world.values()) == 20)
    offsets = [record.offset() for record in world.records()]
    ends_of_transactions = set(range(20)) - set(offsets)
    assert len(ends_of_transactions) > 1
    assert world.values() == [f"m{n}" for n in range(20)]


def test_it_asks_the_database_nothing_while_it_sends(
    world: World, outbox: Outbox, statements: StatementLog, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    ends = Ends(dsn=world.dsn, bootstrap=world.bootstrap, user=statements.account)
    with open_worker(tmp_path, ends, event_router(ends, outbox.name)):
        outbox.write("first")
        wait_until(lambda: world.values() == ["first"])
        assert statements.take() != [], "it has looked at the table before"
        outbox.write(*(f"m{n}" for n in range(10)))
        wait_until(lambda: len(world.values()) == 11)
        assert statements.take() == []
