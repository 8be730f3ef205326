"""Relays that sleep, and outboxes that wake them. A relay that sleeps polls once an hour here.

How the promises were seen to fail: the reviewed mutants of ``waking.py`` and of the trigger.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from slackwater.dev import PostgresServer
from slackwater_lab.messaging.sending.world import World
from slackwater_lab.servers.proxy import TcpProxy
from slackwater_lab.watching import wait_until
from slackwater_messaging import Outbox, PollingRelay, RelaySettings
from slackwater_messaging.waking import CHANNEL, LOCK_CLASS

pytestmark = pytest.mark.integration
NEVER = timedelta(hours=1)
SETTINGS = RelaySettings(safety_pause=NEVER, longest_pause=timedelta(seconds=1))
SECONDS = 120.0


@contextmanager
def running(
    world: World,
    dsn: str | None = None,
    *,
    tries: list[bool] | None = None,
    probe: Callable[[str], object] = lambda step: None,
) -> Iterator[PollingRelay]:
    """A relay in a thread, which has to end when it is to stop; ``tries`` notes whether it could sleep."""
    stop = threading.Event()
    noted: Any = probe
    with PollingRelay(dsn or world.dsn, world.kafka, world.outbox, settings=SETTINGS, probe=noted) as relay:
        if tries is not None:
            waking: Any = relay._waking  # noqa: SLF001 - nobody else knows
            sleep, note = waking.sleep, tries.append

            def try_to_sleep() -> bool:
                note(sleep())
                return tries[-1]

            waking.sleep = try_to_sleep
        thread = threading.Thread(target=relay.run, args=(stop,))
        thread.start()
        try:
            yield relay
        finally:
            stop.set()
            thread.join(SECONDS)
            assert not thread.is_alive()


def await_that(condition: Callable[[], bool]) -> None:
    assert wait_until(condition, SECONDS)


def sleepers(world: World) -> list[int]:
    """The connections of relays that sleep over the outbox of a world."""
    found = world.connection.execute(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s::regclass::oid"
        " AND mode = 'ExclusiveLock' AND granted",
        [LOCK_CLASS, world.outbox.table],
    )
    return [pid for (pid,) in found]


def await_sleep(world: World) -> None:
    await_that(lambda: bool(sleepers(world)))


def send(world: World, *values: str) -> None:
    world.outbox.send(world.connection, *map(world.message, values))


def await_sent(world: World, *values: str) -> None:
    await_that(lambda: world.waiting == 0)
    assert world.values() == list(values)


def channel(world: World) -> str:
    row = world.connection.execute("SELECT %s::regclass::oid::int8", [world.outbox.table]).fetchone()
    return f"{CHANNEL}{row[0] if row else 0}"


def test_a_relay_that_sleeps_is_woken_time_after_time(world: World) -> None:
    with running(world) as relay:
        for number in range(3):
            await_sleep(world)
            send(world, str(number))
            await_sent(world, *map(str, range(number + 1)))
        assert relay.polls_because is None


def test_nobody_notifies_while_a_relay_looks_by_itself(world: World) -> None:
    found = list[list[int]]()
    with running(world, probe=lambda step: found.append(sleepers(world)) if step == "taken" else None):
        await_sleep(world)
        send(world, "one")
        await_sent(world, "one")
    assert found == [[]]


def test_rows_that_other_programs_insert_wake_the_relay_too(world: World) -> None:
    with running(world):
        await_sleep(world)
        insert = f"INSERT INTO {world.outbox.table} (topic, value) VALUES (%s, 'x')"  # noqa: S608
        world.connection.execute(insert.encode(), [world.topic])
        await_sent(world, "x")


def test_a_message_whose_transaction_began_before_the_relay_slept_is_not_missed(world: World) -> None:
    """Its trigger did not notify; so the relay stays awake until the transaction has ended."""
    tries = list[bool]()
    with psycopg.connect(world.dsn) as slow:
        world.outbox.send(slow, world.message("slow"))
        with running(world, tries=tries):
            await_that(lambda: len(tries) >= 2)
            assert not any(tries)
            slow.commit()
            await_sent(world, "slow")


@pytest.mark.parametrize("is_asleep", [True, False])
def test_a_transaction_keeps_relays_awake_or_notifies(world: World, is_asleep: bool) -> None:
    """One of the two, whenever the relay looks: that is the whole rule."""
    with (
        psycopg.connect(world.dsn, autocommit=True) as relay,
        psycopg.connect(world.dsn) as service,
        psycopg.connect(world.dsn) as another,
    ):
        relay.execute(f'LISTEN "{channel(world)}"'.encode())

        def try_to_sleep() -> bool:
            query = "SELECT pg_try_advisory_lock(%s, %s::regclass::oid::int)"
            row = relay.execute(query, [LOCK_CLASS, world.outbox.table]).fetchone()
            return row == (True,)

        assert not is_asleep or try_to_sleep()
        world.outbox.send(service, world.message("1"))
        world.outbox.send(another, world.message("2"))
        assert is_asleep or not try_to_sleep()
        another.rollback()
        assert is_asleep or not try_to_sleep()
        service.commit()
        assert len(list(relay.notifies(timeout=SECONDS if is_asleep else 0, stop_after=1))) == is_asleep
        assert is_asleep or try_to_sleep()


def test_messages_of_senders_neither_notify_nor_keep_relays_awake(world: World) -> None:
    with psycopg.connect(world.dsn) as service:
        world.outbox.save(service, [world.message("mine")], "sender")
        with running(world):
            await_sleep(world)
            world.outbox.save(world.connection, [world.message("mine")], "sender")
            assert sleepers(world)


def test_a_transaction_that_notifies_late_wakes_a_relay_that_was_awake_in_between(world: World) -> None:
    with running(world), psycopg.connect(world.dsn) as late:
        await_sleep(world)
        world.outbox.send(late, world.message("late"))
        send(world, "one")
        await_that(lambda: world.values() == ["one"])
        await_sleep(world)
        late.commit()
        await_sent(world, "one", "late")


def test_a_relay_whose_connection_is_lost_while_it_sleeps_listens_again(world: World) -> None:
    with running(world):
        for number in range(2):
            await_sleep(world)
            (pid,) = sleepers(world)
            world.connection.execute("SELECT pg_terminate_backend(%s)", [pid])
            await_that(lambda pid=pid: sleepers(world) not in ([], [pid]))  # type: ignore[misc]
            send(world, str(number))
            await_sent(world, *map(str, range(number + 1)))


def test_of_two_relays_one_sleeps_and_the_work_of_a_dead_one_is_done(world: World) -> None:
    with running(world):
        await_sleep(world)
        with running(world):
            send(world, "both")
            await_sent(world, "both")
            await_sleep(world)
        send(world, "one")
        await_sent(world, "both", "one")


class Pooler(TcpProxy):
    """Answers as poolers do: with another number than that of the server process, by which they cancel."""

    async def _deliver(self, waiting: Any, sink: Any) -> None:
        while True:
            at, chunk = await waiting.get()
            place = chunk.find(b"K\x00\x00\x00\x0c")
            if place >= 0:
                chunk = chunk[: place + 5] + b"\x7f\x00\x00\x01" + chunk[place + 9 :]
            del at
            if not chunk:
                sink.write_eof()
                return
            sink.write(chunk)


@pytest.fixture
def pooler(postgres_server: PostgresServer) -> Iterator[Pooler]:
    made = Pooler(lambda: postgres_server.port)
    made.start()
    yield made
    made.stop()


def test_behind_a_pooler_a_relay_polls_and_says_so(
    world: World, postgres_server: PostgresServer, pooler: Pooler, caplog: pytest.LogCaptureFixture
) -> None:
    dsn = world.dsn.replace(f":{postgres_server.port}/", f":{pooler.port}/")
    assert dsn != world.dsn
    with caplog.at_level(logging.WARNING), running(world, dsn) as relay:
        send(world, "one")
        await_sent(world, "one")
        send(world, "two")
        await_sent(world, "one", "two")
        assert "goes through a pooler" in (relay.polls_because or "")
        assert sleepers(world) == []
    assert f"outbox {world.outbox.quoted}: the relay only polls, because its connection" in caplog.text


@pytest.mark.parametrize(
    "how", ["DROP TRIGGER wake_relay ON {}", "ALTER TABLE {} DISABLE TRIGGER wake_relay"]
)
def test_without_its_trigger_a_relay_polls_and_says_so(world: World, how: str) -> None:
    world.connection.execute(how.format(world.outbox.table).encode())
    with running(world) as relay:
        send(world, "one")
        await_sent(world, "one")
        assert "let the owner of the table call Outbox.create" in (relay.polls_because or "")
    if how.startswith("DROP"):
        world.outbox.create(world.connection)
        with running(world):
            await_sleep(world)


@pytest.fixture
def guarded(postgres_server: PostgresServer, world: World) -> Iterator[str]:
    """A database of its own, with two users: one may only insert, and one may only what a relay needs."""
    name = f"{world.name}_guarded"
    world.connection.execute(f"CREATE DATABASE {name}".encode())
    dsn = postgres_server.dsn(name)
    with psycopg.connect(dsn, autocommit=True) as owner:
        world.outbox.create(owner)
        for role, rights in (("writer", "INSERT"), ("relay", "SELECT, UPDATE, DELETE")):
            owner.execute(f"CREATE ROLE {world.name}_{role} LOGIN PASSWORD 'word'".encode())
            owner.execute(f"GRANT {rights} ON {world.outbox.table} TO {world.name}_{role}".encode())
    yield dsn
    with psycopg.connect(dsn, autocommit=True) as owner:
        for role in ("writer", "relay"):
            owner.execute(f"DROP OWNED BY {world.name}_{role}".encode())
            owner.execute(f"DROP ROLE {world.name}_{role}".encode())


@pytest.mark.parametrize("has_rights", [True, False])
def test_nobody_needs_more_rights_than_without_notifications(
    world: World, guarded: str, has_rights: bool
) -> None:
    """A relay that may not lock polls, and says so; who writes needs to insert, and nothing else."""
    user = f"{world.name}_%s:word@"
    address = guarded.partition("@")[2] or guarded.partition("//")[2]
    dsns = {role: f"postgresql://{user % role}{address}" for role in ("writer", "relay")}
    with psycopg.connect(guarded, autocommit=True) as owner:
        if not has_rights:
            owner.execute("REVOKE EXECUTE ON FUNCTION pg_try_advisory_lock(int, int) FROM PUBLIC")
        with (
            running(world, dsns["relay"]) as relay,
            psycopg.connect(dsns["writer"], autocommit=True) as writer,
        ):
            writer.execute("SET search_path = public")
            world.outbox.send(writer, world.message("one"))
            count = f"SELECT count(*) FROM {world.outbox.table}".encode()  # noqa: S608 - our own name
            await_that(lambda: owner.execute(count).fetchone() == (0,))
            assert (relay.polls_because is None) is has_rights
            assert has_rights or "pg_try_advisory_lock" in str(relay.polls_because)


def test_several_processes_may_create_an_outbox_at_once(world: World) -> None:
    outbox, errors = Outbox(f"{world.name}_new"), list[BaseException]()

    def create() -> None:
        try:
            with psycopg.connect(world.dsn) as connection:
                outbox.create(connection)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_table_from_before_is_given_the_trigger(world: World) -> None:
    """And one that has it is not locked again, so a service may create its outbox at each start."""
    table = world.outbox.table
    world.connection.execute(f"DROP TRIGGER wake_relay ON {table}".encode())
    with ExitStack() as open_one:
        writer = open_one.enter_context(psycopg.connect(world.dsn))
        world.outbox.create(writer)
        writer.commit()
        world.outbox.send(writer, world.message("1"))
        with psycopg.connect(world.dsn, options="-c lock_timeout=5s") as other:
            world.outbox.create(other)
