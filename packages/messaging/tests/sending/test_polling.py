"""The outbox and its relay, over a real database and a real broker.

How the promises were seen to fail. Order: ``take`` without the advisory lock. At least once: the relay
removes rows in another transaction, before it sends.
"""

import logging
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from slackwater.protocol import ConfigError, KafkaSettings, UnavailableError
from slackwater_lab.messaging.sending.world import World
from slackwater_lab.probes import At, Death
from slackwater_messaging import (
    HEADER_MESSAGE,
    Message,
    MessageId,
    Outbox,
    PollingRelay,
    RelaySettings,
    SendStep,
)
from slackwater_messaging.message import header_of
from slackwater_messaging.outbox import LANES

pytestmark = pytest.mark.integration
SOON = RelaySettings(request_timeout=timedelta(seconds=4))


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The statements of all connections from now on, but for BEGIN and COMMIT."""
    found: list[object] = []
    execute = psycopg.Connection.execute

    def noted(self: psycopg.Connection[Any], query: Any, *args: Any, **kwargs: Any) -> psycopg.Cursor[Any]:
        found.append(query)
        return execute(self, query, *args, **kwargs)

    monkeypatch.setattr(psycopg.Connection, "execute", noted)
    return found


def relay(world: World, **options: Any) -> PollingRelay:
    return PollingRelay(world.dsn, world.kafka, world.outbox, **{"settings": SOON, **options})


def test_what_is_committed_is_sent_with_its_headers_and_then_removed(world: World) -> None:
    with world.connection.transaction():
        message = Message(topic=world.topic, key=b"k", value=None, headers=(("a", b"\0"), ("b", b"2")))
        world.outbox.send(world.connection, message, world.message("two"))
    with world.connection.transaction(force_rollback=True):
        world.outbox.send(world.connection, world.message("never"))
    with relay(world) as each:
        assert each.run_once() == 2
        assert each.run_once() == 0
    first, second = world.records()
    assert (first.key(), first.value(), second.value()) == (b"k", None, b"two")
    assert list(first.headers() or [])[:2] == [("a", b"\0"), ("b", b"2")]
    found = MessageId.parse(header_of(first.headers(), HEADER_MESSAGE) or "")
    assert found is not None
    assert (found.outbox, found.id) == (world.outbox.table, 1)
    assert world.waiting == 0


def test_many_messages_are_one_statement(world: World, statements: list[object]) -> None:
    world.outbox.send(world.connection, *(world.message(str(n)) for n in range(1000)))
    world.outbox.send(world.connection)
    assert len(statements) == 1


def test_a_batch_takes_two_statements_and_an_idle_look_one(world: World, statements: list[object]) -> None:
    with relay(world) as each:
        assert each.run_once() == 0  # connects, which takes a statement of its own
        statements.clear()
        assert each.run_once() == 0
        assert len(statements) == 1
        world.outbox.send(world.connection, *(world.message(str(n)) for n in range(SOON.batch)))
        statements.clear()
        assert each.run_once() == SOON.batch
        assert len(statements) == 3  # a look, the batch, its removal


def test_all_messages_of_a_key_are_in_one_lane_and_those_without_spread(world: World) -> None:
    world.outbox.send(world.connection, *(world.message(str(n), "one") for n in range(20)))
    assert len(world.outbox.busy_lanes(world.connection)) == 1
    world.outbox.send(world.connection, *(Message(topic=world.topic, value=b"") for _ in range(LANES)))
    assert world.outbox.busy_lanes(world.connection) == list(range(LANES))


def test_relays_share_lanes_and_keep_the_order_of_each_key(world: World) -> None:
    """While one relay has sent the first messages of a key, another one does not send the next."""
    others: list[int] = []
    settings = RelaySettings(batch=2, request_timeout=SOON.request_timeout)
    with relay(world, settings=settings) as other:
        first = At(SendStep.TAKEN, lambda: others.append(other.run_once()))
        with relay(world, settings=settings, probe=first) as each:
            messages = [world.message(str(n), "a") for n in range(5)]
            world.outbox.send(world.connection, *messages)
            assert each.run_once() == 2
            assert others == [0]
            world.outbox.send(world.connection, world.message("b", _key_of_another_lane(world, "a")))
            assert other.run_once() == 3
            assert each.run_once() + other.run_once() == 1
    assert [value for value in world.values() if value != "b"] == ["0", "1", "2", "3", "4"]


def test_relays_of_two_outboxes_do_not_keep_each_other_out(world: World) -> None:
    outbox, others = Outbox(f"{world.name}_other"), list[int]()
    outbox.create(world.connection)
    for table in (world.outbox, outbox):
        table.send(world.connection, world.message("1", "a"))
    with PollingRelay(world.dsn, world.kafka, outbox, settings=SOON) as other:
        probe = At(SendStep.TAKEN, lambda: others.append(other.run_once()))
        with relay(world, probe=probe) as each:
            assert (each.run_once(), others) == (1, [1])


def _key_of_another_lane(world: World, key: str) -> str:
    lanes: dict[int, str] = {}
    for number in range(100):
        row = world.connection.execute(
            "SELECT get_byte(sha256(%s), 0) & 15", [f"key-{number}".encode()]
        ).fetchone()
        lanes[row[0] if row else -1] = f"key-{number}"
    row = world.connection.execute("SELECT get_byte(sha256(%s), 0) & 15", [key.encode()]).fetchone()
    lanes.pop(row[0] if row else -1, None)
    return next(iter(lanes.values()))


def test_a_relay_without_its_lock_would_mix_up_a_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: with SKIP LOCKED alone a second relay takes the next messages of the key, and is faster."""
    monkeypatch.setattr(
        "slackwater_messaging.outbox._TAKE",
        """SELECT id, created_at, topic, key, value, headers FROM {table}
        WHERE lane = %s AND (%s::int, %s::int) IS NOT NULL ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED""",
    )
    settings = RelaySettings(batch=2, request_timeout=SOON.request_timeout)
    with relay(world, settings=settings) as other:
        probe = At(SendStep.TAKEN, other.run_once)
        with relay(world, settings=settings, probe=probe) as each:
            world.outbox.send(world.connection, *(world.message(str(n)) for n in range(4)))
            each.run_once()
    assert world.values() == ["2", "3", "0", "1"]


def test_messages_that_a_sender_saved_are_not_the_relays(world: World) -> None:
    world.outbox.save(world.connection, [world.message("mine")], "sender")
    assert world.outbox.busy_lanes(world.connection) == []
    world.outbox.send(world.connection, world.message("the relay's"))
    with relay(world) as each:
        assert each.run_once() == 1
    assert (world.values(), world.waiting) == (["the relay's"], 1)


@pytest.mark.parametrize(
    ("wanted", "used"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
)
def test_a_message_s_transaction_is_on_disk_when_it_is_visible(world: World, wanted: str, used: str) -> None:
    """A relay sends what it sees, and a crash of the database would take back what it has sent."""
    show = b"SHOW synchronous_commit"
    with psycopg.connect(world.dsn, options=f"-c synchronous_commit={wanted}") as connection:
        for write in (
            lambda: world.outbox.send(connection, world.message("1")),
            lambda: world.outbox.save(connection, [world.message("2")], "sender"),
        ):
            write()
            assert connection.execute(show).fetchone() == (used,)
            connection.commit()
            assert connection.execute(show).fetchone() == (wanted,)
            connection.commit()


def test_a_row_that_another_transaction_has_locked_is_not_waited_for(world: World) -> None:
    world.outbox.send(world.connection, world.message("held", "a"), world.message("free", "a"))
    with psycopg.connect(world.dsn) as other:
        other.execute(f"SELECT FROM {world.outbox.table} WHERE id = 1 FOR UPDATE".encode())
        dsn = f"{world.dsn}?options=-c%20lock_timeout%3D1s"
        with PollingRelay(dsn, world.kafka, world.outbox, settings=SOON) as each:
            assert each.run_once() == 1
            other.rollback()
            assert each.run_once() == 1
    assert world.values() == ["free", "held"]


@pytest.mark.full
def test_a_refused_message_holds_up_its_lane_and_no_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Message(topic=f"{world.name}.nowhere", key=b"a", value=b"")
    other = _key_of_another_lane(world, "a")
    world.outbox.send(world.connection, bad, world.message("behind", "a"), world.message("beside", other))
    with relay(world) as each, caplog.at_level(logging.ERROR):
        assert each.run_once() == 2
        (error,) = each.refused.values()
        assert isinstance(error, ConfigError)
        assert f"{world.outbox.table}/1/" in caplog.text
        world.outbox.send(world.connection, world.message("later", "a"), world.message("on", other))
        assert each.run_once() == 1
    assert sorted(world.values()) == ["behind", "beside", "on"]
    assert world.waiting == 2
    world.connection.execute(f"DELETE FROM {world.outbox.table} WHERE id = 1".encode())  # noqa: S608
    with relay(world) as each:
        assert each.run_once() == 1


def test_a_lane_is_no_longer_held_up_when_its_message_is_gone(world: World) -> None:
    world.outbox.send(world.connection, Message(topic=f"{world.name}.nowhere", key=b"a", value=b""))
    settings = RelaySettings(request_timeout=SOON.request_timeout, retry_after=timedelta(0))
    with relay(world, settings=settings) as each:
        assert each.run_once() == 0
        assert len(each.refused) == 1
        world.connection.execute(f"DELETE FROM {world.outbox.table}".encode())  # noqa: S608
        world.outbox.send(world.connection, world.message("next", "a"))
        assert each.run_once() == 1
        assert each.refused == {}


def test_nothing_is_removed_while_kafka_is_away(world: World) -> None:
    world.outbox.send(world.connection, world.message("one"))
    settings = RelaySettings(request_timeout=timedelta(seconds=1))
    nowhere = KafkaSettings("127.0.0.1:1")
    each = PollingRelay(world.dsn, nowhere, world.outbox, settings=settings)
    with pytest.raises(UnavailableError, match="1 of 1 messages did not arrive"), each:
        each.run_once()
    assert world.waiting == 1
    with relay(world) as each:
        assert each.run_once() == 1


def test_a_relay_runs_until_it_is_told_to_stop_and_survives_its_connection(world: World) -> None:
    stop, connected = threading.Event(), threading.Event()

    def break_off() -> None:
        connected.set()
        _break_connections(world)

    probe = At(SendStep.TAKEN, break_off)
    with relay(world, probe=probe) as each:
        thread = threading.Thread(target=each.run, args=(stop,))
        thread.start()
        try:
            world.outbox.send(world.connection, world.message("one"))
            assert connected.wait(60)
            deadline = threading.Event()
            while world.waiting:
                assert not deadline.wait(0.05)
        finally:
            stop.set()
            thread.join()
    assert set(world.values()) == {"one"}


def _break_connections(world: World) -> None:
    world.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND query LIKE %s",
        [f"%{world.outbox.table}%"],
    )


def test_a_death_leaves_what_it_had_taken(world: World) -> None:
    world.outbox.send(world.connection, world.message("one"))
    with pytest.raises(Death), relay(world, probe=At(SendStep.REMOVED)) as each:
        each.run_once()
    assert world.waiting == 1


def test_the_definition_is_what_create_executes(world: World) -> None:
    outbox = Outbox(f"public.{world.name}_by_hand")
    world.connection.execute(outbox.definition.encode())
    outbox.create(world.connection)
    outbox.send(world.connection, world.message("one"))
    with PollingRelay(world.dsn, world.kafka, outbox, settings=SOON) as each:
        assert each.run_once() == 1


def test_a_relay_goes_on_when_the_database_has_ended_its_transaction_for_its_age(world: World) -> None:
    """PostgreSQL ends the connection, which is no operational error for psycopg."""
    mine = f"relay-{world.name}"
    options = f"application_name={mine}&options=-c%20idle_in_transaction_session_timeout%3D500"
    stop, pause = threading.Event(), threading.Event()

    def outstay() -> None:
        with psycopg.connect(world.dsn, autocommit=True) as other:
            query = "SELECT FROM pg_stat_activity WHERE application_name = %s"
            while other.execute(query, [mine]).fetchone():
                pause.wait(0.01)

    world.outbox.send(world.connection, world.message("one"))
    probe = At(SendStep.TAKEN, outstay)
    with PollingRelay(
        f"{world.dsn}?{options}", world.kafka, world.outbox, settings=SOON, probe=probe
    ) as each:
        thread = threading.Thread(target=each.run, args=(stop,))
        thread.start()
        try:
            while world.waiting:
                assert thread.is_alive()
                pause.wait(0.05)
        finally:
            stop.set()
            thread.join()
    assert probe.is_done
    assert set(world.values()) == {"one"}
