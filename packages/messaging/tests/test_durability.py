"""Commits that Kafka learns of are on disk, also for a role whose default is ``synchronous_commit = off``.

A deferred trigger notes the setting with which each transaction commits. Prepared transactions are not among
them, because PostgreSQL flushes them in any case.
"""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater_lab.messaging.sending.world import World
from slackwater_messaging import (
    ChainedSender,
    CommitOrder,
    DeliveryListener,
    PollingRelay,
    SavedSender,
    SenderPool,
    SenderSettings,
)
from slackwater_messaging.receiving import Receiver, TableInbox
from slackwater_messaging.sender import Sender

pytestmark = pytest.mark.integration
SOON = timedelta(milliseconds=300)


class Hasty(World):
    """A world whose service has a role that does not wait for the disk by default."""

    @property
    def app(self) -> str:
        """The address for the role."""
        return make_conninfo(self.dsn, user=f"{self.name}_app")

    def watch(self, table: str) -> None:
        """Notes the setting of each transaction that changes the table, when it commits."""
        self.connection.execute(
            f"CREATE CONSTRAINT TRIGGER note AFTER INSERT OR DELETE ON {table} DEFERRABLE INITIALLY DEFERRED "
            f"FOR EACH ROW EXECUTE FUNCTION {self.name}_note()".encode()
        )

    @property
    def settings(self) -> set[str]:
        """What was noted."""
        return {row[0] for row in self.connection.execute(f"SELECT setting FROM {self.name}_notes".encode())}  # noqa: S608


@pytest.fixture
def world(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> Iterator[Hasty]:
    made = Hasty(postgres_server.dsn(), kafka_broker.bootstrap)
    name = made.name
    for statement in (
        f"CREATE ROLE {name}_app LOGIN SUPERUSER",
        f"ALTER ROLE {name}_app SET synchronous_commit = off",
        f"CREATE TABLE {name}_notes (id serial PRIMARY KEY, setting text)",
        f"CREATE FUNCTION {name}_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"INSERT INTO {name}_notes (setting) SELECT current_setting('synchronous_commit'); "
        "RETURN NULL; END $$",
    ):
        made.connection.execute(statement.encode())
    yield made
    made.connection.close()


SENDERS: dict[str, Callable[[Hasty, str], Sender]] = {
    "database first": lambda w, name: ChainedSender(w.kafka, name, order=CommitOrder.DATABASE_FIRST),
    "Kafka first": lambda w, name: ChainedSender(w.kafka, name, order=CommitOrder.KAFKA_FIRST),
    "saved": lambda w, name: SavedSender(w.kafka, w.outbox, name),
}


@pytest.mark.parametrize("kind", SENDERS)
def test_a_transaction_with_messages_is_on_disk_and_one_without_has_the_role_s_setting(
    world: Hasty, kind: str
) -> None:
    world.watch(world.table)
    with psycopg.connect(world.app) as connection, SENDERS[kind](world, world.name) as sender:
        with sender.transaction(connection) as sending:
            connection.execute(*world.insert(1))
        assert world.settings == {"off"}
        world.connection.execute(f"DELETE FROM {world.name}_notes".encode())  # noqa: S608
        with sender.transaction(connection) as sending:
            connection.execute(*world.insert(2))
            sending.send(world.message("2"))
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
    assert (world.settings, world.numbers) == ({"on"}, [1, 2])


@pytest.mark.full
@pytest.mark.parametrize("kind", SENDERS)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_pool_s_transaction_is_on_disk_with_either_driver(world: Hasty, kind: str, driver: str) -> None:
    world.watch(world.table)
    pool = SenderPool(lambda name: SENDERS[kind](world, name), world.name, size=1)

    async def work() -> None:
        connection: Any
        if driver == "psycopg":
            connection = await psycopg.AsyncConnection.connect(world.app)
        else:
            parts = conninfo_to_dict(world.app)
            address = {"host": parts["host"], "port": int(parts["port"] or 0), "user": parts["user"]}
            connection = await asyncpg.connect(**address, database=parts["dbname"])
        async with pool.transaction_async(connection) as sending:
            await connection.execute(f"INSERT INTO {world.table} VALUES (1)")  # noqa: S608
            sending.send(world.message("1"))
        await connection.close()

    asyncio.run(work())
    pool.close()
    assert (world.settings, world.numbers) == ({"on"}, [1])


def test_what_a_relay_has_sent_is_removed_on_disk(world: Hasty) -> None:
    """Otherwise a crash of the database would repeat all batches of the last moment, not one of a relay."""
    world.watch(world.outbox.table)
    with psycopg.connect(world.app) as connection:
        world.outbox.send(connection, world.message("1"))
    with PollingRelay(world.app, world.kafka, world.outbox) as relay:
        assert relay.run_once() == 1
    assert (world.settings, world.waiting, world.values()) == ({"on"}, 0, ["1"])


def test_what_a_listener_has_seen_is_removed_on_disk(world: Hasty) -> None:
    """Otherwise a crash of the database would bring back rows whose records nobody reads again."""
    group = f"{world.name}-listener"
    settings = SenderSettings()
    with psycopg.connect(world.app) as connection:
        saved = world.outbox.save(connection, [world.message("1")], "sender")
        connection.commit()
        with ChainedSender(world.kafka, world.name, settings=settings) as sender:
            sender._producer.write((each.message, each.id) for each in saved)  # noqa: SLF001
            sender._producer.commit()  # noqa: SLF001
    world.watch(world.outbox.table)
    with DeliveryListener(
        world.app, world.kafka, world.outbox, topics=[world.topic], group=group
    ) as listener:
        while world.waiting:
            listener.run_once(SOON)
    assert world.settings == {"on"}


def test_what_a_receiver_has_handled_is_on_disk(world: Hasty) -> None:
    world.watch(world.table)
    inbox = TableInbox(f"{world.name}_inbox")
    inbox.create(world.connection)
    with ChainedSender(world.kafka, world.name) as sender, sender.transaction(world.connection) as sending:
        sending.send(world.message("1"))

    def handle(connection: psycopg.Connection[Any], _: object) -> None:
        connection.execute(*world.insert(1))

    with Receiver(
        world.kafka, [world.topic], group=world.name, inbox=inbox, connect=lambda: psycopg.connect(world.app)
    ) as receiver:
        while not world.numbers:
            receiver.poll(handle, timeout=SOON)
    assert world.settings == {"on"}
