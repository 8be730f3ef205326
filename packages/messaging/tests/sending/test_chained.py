"""One commit after the other: what is tried before, and what is said when one side is missing."""

import os
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from slackwater.protocol import ConfigError, StateError
from slackwater_lab.messaging.sending.world import World
from slackwater_lab.probes import At, Death
from slackwater_messaging import (
    ChainedSender,
    CommitOrder,
    HalfCommittedError,
    Message,
    SendStep,
)

pytestmark = pytest.mark.integration
ORDERS = pytest.mark.parametrize("order", list(CommitOrder))


def chained(world: World, order: CommitOrder = CommitOrder.DATABASE_FIRST, **options: Any) -> ChainedSender:
    return ChainedSender(world.kafka, world.name, order=order, **options)


def do(
    world: World,
    sender: ChainedSender,
    number: int,
    *messages: Message,
    over: psycopg.Connection[Any] | None = None,
) -> None:
    with sender.transaction(over or world.connection) as sending:
        sending.connection.execute(*world.insert(number))
        sending.send(*messages or [world.message(str(number))])


@ORDERS
def test_both_sides_commit_or_the_error_of_the_business_undoes_both(world: World, order: CommitOrder) -> None:
    with chained(world, order) as sender:
        do(world, sender, 1)
        with pytest.raises(psycopg.errors.UniqueViolation):
            do(world, sender, 1)
        do(world, sender, 2)
    assert (world.numbers, world.values()) == ([1, 2], ["1", "2"])


@ORDERS
def test_a_message_that_kafka_refuses_undoes_both_sides(world: World, order: CommitOrder) -> None:
    with chained(world, order) as sender:
        do(world, sender, 1)
        with pytest.raises(ConfigError, match=r"raise the topic's max\.message\.bytes"):
            do(world, sender, 2, world.message("2"), Message(topic=world.topic, value=os.urandom(2_000_000)))
        do(world, sender, 3)
    assert (world.numbers, world.values()) == ([1, 3], ["1", "3"])


@ORDERS
def test_a_transaction_without_messages_does_not_touch_kafka(world: World, order: CommitOrder) -> None:
    sender = ChainedSender(world.kafka, world.name, order=order, probe=At(SendStep.PRODUCED))
    with sender, sender.transaction(world.connection) as sending:
        sending.connection.execute(*world.insert(1))
    assert (world.numbers, world.values()) == ([1], [])


@ORDERS
def test_an_error_that_was_swallowed_is_not_committed_by_one_side(world: World, order: CommitOrder) -> None:
    """COMMIT of a failed transaction is a rollback that says nothing."""
    refused = pytest.raises(StateError, match=r"has failed or was ended \(INERROR\)")
    with chained(world, order) as sender, refused:
        _swallow(world, sender)
    assert (world.numbers, world.values()) == ([], [])


@ORDERS
def test_a_connection_in_a_transaction_is_refused(world: World, order: CommitOrder) -> None:
    with (
        chained(world, order) as sender,
        world.connection.transaction(),
        pytest.raises(ConfigError, match="already has an open transaction"),
    ):
        do(world, sender, 1)


def test_kafka_that_is_lost_after_the_database_s_commit_is_named_with_the_messages(world: World) -> None:
    fence = _fence(world)
    with chained(world, probe=At(SendStep.DATABASE_COMMITTED, fence)) as sender:
        with pytest.raises(HalfCommittedError, match="the database has committed") as failed:
            do(world, sender, 1)
        assert failed.value.messages == (world.message("1"),)
        do(world, sender, 2)
    assert (world.numbers, world.values()) == ([1, 2], ["2"])


def test_a_database_that_is_lost_after_kafka_s_commit_is_named_with_the_messages(world: World) -> None:
    connection = psycopg.connect(world.dsn, autocommit=True)
    probe = At(SendStep.KAFKA_COMMITTED, lambda: _terminate(world, connection))
    with chained(world, CommitOrder.KAFKA_FIRST, probe=probe) as sender:
        with pytest.raises(HalfCommittedError, match="Kafka has committed") as failed:
            do(world, sender, 1, over=connection)
        assert failed.value.messages == (world.message("1"),)
        do(world, sender, 2)
    assert (world.numbers, world.values()) == ([2], ["1", "2"])


def test_the_database_may_fail_at_its_commit(world: World) -> None:
    deferred = (
        f"ALTER TABLE {world.table} ADD FOREIGN KEY (number) REFERENCES {world.name}_parents DEFERRABLE"
    )
    world.connection.execute(f"CREATE TABLE {world.name}_parents (number bigint PRIMARY KEY)".encode())
    world.connection.execute(f"{deferred} INITIALLY DEFERRED".encode())
    with chained(world) as sender:
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            do(world, sender, 1)
        world.connection.execute(f"INSERT INTO {world.name}_parents VALUES (2)".encode())  # noqa: S608
        do(world, sender, 2)
    assert (world.numbers, world.values()) == ([2], ["2"])


def test_a_transaction_has_the_properties_of_its_connection(world: World) -> None:
    query = "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')"
    with psycopg.connect(world.dsn) as connection, chained(world) as sender:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only, connection.deferrable = True, False
        with sender.transaction(connection):
            assert connection.execute(query).fetchone() == ("repeatable read", "on")
        assert not connection.autocommit


def test_a_death_leaves_nothing_open_for_the_next_one(world: World) -> None:
    with pytest.raises(Death):
        do(world, chained(world, probe=At(SendStep.PRODUCED)), 1)
    with chained(world) as sender:
        do(world, sender, 2)
    assert (world.numbers, world.values()) == ([2], ["2"])


def _swallow(world: World, sender: ChainedSender) -> None:
    with sender.transaction(world.connection) as sending:
        sending.send(world.message("ghost"))
        with pytest.raises(psycopg.errors.UndefinedTable):
            sending.connection.execute("SELECT * FROM nowhere")


def _fence(world: World) -> Callable[[], None]:
    """Another process takes over the name."""

    def act() -> None:
        topic = world.make_topic("other")
        with (
            ChainedSender(world.kafka, world.name) as other,
            psycopg.connect(world.dsn) as connection,
            other.transaction(connection) as sending,
        ):
            sending.send(Message(topic=topic, value=b""))

    return act


def _terminate(world: World, connection: psycopg.Connection[Any]) -> None:
    world.connection.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
