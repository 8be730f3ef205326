"""Messages that cannot be processed or sent, over real servers.

How the promises were seen to fail: the reviewed mutants of ``dead_letters.py`` and ``attempts.py``.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater.protocol import ConfigError
from slackwater_lab.messaging.sending.world import World
from slackwater_lab.probes import At, Death
from slackwater_messaging import DeadLetters, Message, PollingRelay, RelaySettings, SendStep
from slackwater_messaging.dead_letters import reason_of
from slackwater_messaging.message import HEADER_MESSAGE, Place, ReceivedMessage
from slackwater_messaging.receiving import (
    AsyncReceiver,
    BloomInbox,
    FilteredInbox,
    FilterPolicy,
    Inbox,
    Receipt,
    Receiver,
    ReceiverSettings,
    ReceiverStep,
    TableInbox,
)

Connection = psycopg.Connection[Any]
POLICY = FilterPolicy(capacity=1_000, error_rate=1e-9)
ATTEMPTS = 3


def key_of(message: ReceivedMessage) -> bytes:
    return message.value or b""


@pytest.fixture
def world(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> Iterator[World]:
    made = World(postgres_server.dsn(), kafka_broker.bootstrap)
    letters(made).create(made.connection)
    yield made
    made.connection.close()


def letters(world: World, attempts: int = ATTEMPTS) -> DeadLetters:
    return DeadLetters(f"{world.name}_letters", attempts=attempts)


def make_inbox(world: World, kind: str = "table") -> Inbox:
    name = f"{world.name}_inbox"
    inboxes: dict[str, Callable[[], Inbox]] = {
        "table": lambda: TableInbox(name, key_of=key_of),
        "filtered": lambda: FilteredInbox(TableInbox(name, key_of=key_of), policy=POLICY),
        "bloom": lambda: BloomInbox(name, key_of=key_of, policy=POLICY),
    }
    made = inboxes[kind]()
    made.create(world.connection)
    return made


class Service:
    """Writes a number for each message, unless it is among the bad ones."""

    def __init__(self, world: World, *bad: int) -> None:
        self.world, self.bad = world, set(bad)
        self.calls = list[int]()
        self.answers = list[tuple[str, bytes | None]]()

    def __call__(self, connection: Connection, message: ReceivedMessage) -> bytes:
        number = int(message.value or b"")
        self.calls.append(number)
        connection.execute(*self.world.insert(number))
        if number in self.bad:
            raise ValueError(f"{number} is bad\0")
        return f"done {number}".encode()

    def reply(self, receipts: Sequence[Receipt]) -> None:
        self.answers += [
            ((each.message.value or b"").decode(), each.answer) for each in receipts if each.message
        ]


def receiver(world: World, inbox: Inbox, attempts: int = ATTEMPTS, **options: Any) -> Receiver:
    settings = ReceiverSettings(dead_letters=letters(world, attempts), maintain_interval=timedelta(0))
    connect = lambda: psycopg.connect(world.dsn)  # noqa: E731
    return Receiver(
        world.kafka,
        [world.topic],
        group=world.name,
        inbox=inbox,
        connect=connect,
        settings=settings,
        **options,
    )


def publish(world: World, *values: int) -> None:
    world.outbox.send(world.connection, *(world.message(str(each)) for each in values))
    with PollingRelay(world.dsn, world.kafka, world.outbox) as relay:
        while world.waiting:
            relay.run_once()


def work(receiver: Receiver, service: Service, count: int) -> None:
    """Receives until this many messages are done."""
    while count > 0:
        count -= receiver.poll(service, reply=service.reply if service.answers is not None else None)


def work_without_answers(receiver: Receiver, service: Any, count: int) -> None:
    while count > 0:
        count -= receiver.poll(lambda connection, message: service(connection, message) and None)


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["table", "filtered", "bloom"])
def test_messages_that_fail_time_after_time_become_dead_letters_and_the_others_are_processed(
    world: World, kind: str
) -> None:
    inbox, service = make_inbox(world, kind), Service(world, 2, 4)
    publish(world, 1, 2, 3, 4, 5)
    with receiver(world, inbox) as receiving:
        work_without_answers(receiving, service, 5)
    assert world.numbers == [1, 3, 5]
    assert [service.calls.count(number) for number in (2, 4)] == [ATTEMPTS] * 2
    first, second = letters(world).find(world.connection)
    assert isinstance(first.message, ReceivedMessage)
    assert (first.message.value, second.message.value, first.message.offset) == (b"2", b"4", 1)
    assert first.message.place == Place(world.topic, 0)
    assert HEADER_MESSAGE in dict(first.message.headers)
    assert (first.origin, first.attempts, first.state) == (f"group {world.name}", ATTEMPTS, "dead")
    assert first.reason.startswith("ValueError: 2 is bad\n")
    assert "in __call__" in first.reason


@pytest.mark.integration
def test_the_attempts_do_not_depend_on_how_many_messages_fail(world: World) -> None:
    numbers = range(1, 31)
    inbox, service = make_inbox(world), Service(world, *numbers)
    publish(world, *numbers)
    with receiver(world, inbox) as receiving:
        work_without_answers(receiving, service, len(numbers))
    assert len(letters(world).find(world.connection)) == len(numbers)
    assert max(service.calls.count(number) for number in numbers) == ATTEMPTS
    assert world.numbers == []


@pytest.mark.integration
def test_a_message_that_the_database_rejects_takes_no_other_with_it(world: World) -> None:
    """The transaction of the batch is aborted by its error."""
    inbox, service = make_inbox(world), Service(world)

    def divide(connection: Connection, message: ReceivedMessage) -> bytes:
        answer = service(connection, message)
        if message.value in (b"2", b"4"):
            connection.execute("SELECT 1 / 0")
        return answer

    publish(world, 1, 2, 3, 4, 5)
    with receiver(world, inbox) as receiving:
        work_without_answers(receiving, divide, 5)
    assert world.numbers == [1, 3, 5]
    assert [each.message.value for each in letters(world).find(world.connection)] == [b"2", b"4"]


@pytest.mark.integration
def test_one_member_processes_a_letter_at_a_time(world: World) -> None:
    inbox, service = make_inbox(world), Service(world, 1)
    publish(world, 1)
    with receiver(world, inbox, 1) as receiving:
        work_without_answers(receiving, service, 1)
    letters(world).retry(world.connection)
    with psycopg.connect(world.dsn) as one, psycopg.connect(world.dsn) as two:
        assert letters(world).take(one, world.name) is not None
        assert letters(world).take(two, world.name) is None


@pytest.mark.integration
def test_with_one_attempt_a_message_is_tried_once(world: World) -> None:
    inbox, service = make_inbox(world), Service(world, 1)
    publish(world, 1)
    with receiver(world, inbox, 1) as receiving:
        work_without_answers(receiving, service, 1)
    assert service.calls == [1]
    assert len(letters(world).find(world.connection)) == 1


@pytest.mark.integration
def test_a_message_that_succeeds_in_time_is_no_dead_letter(world: World) -> None:
    inbox, service = make_inbox(world), Service(world, 2)

    def mend(connection: Connection, message: ReceivedMessage) -> bytes:
        service.bad = set() if service.calls.count(2) == ATTEMPTS - 1 else service.bad
        return service(connection, message)

    publish(world, 1, 2)
    with receiver(world, inbox) as receiving:
        work_without_answers(receiving, mend, 2)
        service.bad = {3}
        publish(world, 3)
        work_without_answers(receiving, service, 1)
    assert world.numbers == [1, 2]
    assert service.calls.count(3) == ATTEMPTS  # the attempts with others do not count
    assert [each.message.value for each in letters(world).find(world.connection)] == [b"3"]


@pytest.mark.integration
def test_what_a_server_is_the_reason_of_is_not_an_attempt(world: World) -> None:
    inbox, service = make_inbox(world), Service(world)
    errors: list[Exception] = [
        psycopg.errors.DeadlockDetected("deadlock"),
        KafkaException(KafkaError(KafkaError._TRANSPORT)),  # noqa: SLF001 - librdkafka's name
    ]

    def fail(connection: Connection, message: ReceivedMessage) -> bytes:
        if errors:
            raise errors.pop()
        return service(connection, message)

    publish(world, 1)
    with receiver(world, inbox, 1) as receiving:
        work_without_answers(receiving, fail, 1)
    assert (world.numbers, letters(world).find(world.connection)) == ([1], [])


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["table", "filtered", "bloom"])
def test_a_letter_that_is_handed_back_is_processed_once_with_its_answer(world: World, kind: str) -> None:
    inbox, service = make_inbox(world, kind), Service(world, 2)
    publish(world, 1, 2, 3)
    has_answers = inbox.keeps_answers
    with receiver(world, inbox) as receiving:
        (work if has_answers else work_without_answers)(receiving, service, 3)
        assert not has_answers or service.answers == [("1", b"done 1"), ("2", None), ("3", b"done 3")]
        service.answers.clear()
        (letter,) = letters(world).find(world.connection)
        assert letters(world).retry(world.connection, [letter.id]) == 1
        while letters(world).find(world.connection):  # it is still bad
            if letters(world).find(world.connection)[0].state == "dead":
                break
            receiving.poll(lambda connection, message: service(connection, message) and None)
        (letter,) = letters(world).find(world.connection)
        assert (letter.attempts, letter.state) == (ATTEMPTS + 1, "dead")
        service.bad.clear()
        assert letters(world).retry(world.connection) == 1
        while letters(world).find(world.connection):
            if has_answers:
                receiving.poll(service, reply=service.reply)
            else:
                receiving.poll(lambda connection, message: service(connection, message) and None)
        assert world.numbers == [1, 2, 3]
        assert not has_answers or service.answers == [("2", b"done 2")]
        service.answers.clear()
        publish(world, 2)  # its producer repeats it
        (work if has_answers else work_without_answers)(receiving, service, 1)
    assert world.numbers == [1, 2, 3]
    assert not has_answers or service.answers == [("2", b"done 2")]


@pytest.mark.integration
@pytest.mark.parametrize("step", [ReceiverStep.HANDLED, ReceiverStep.COMMITTED, ReceiverStep.STORED])
def test_a_receiver_that_dies_leaves_a_message_in_one_place(world: World, step: ReceiverStep) -> None:
    service = Service(world, 2)
    publish(world, 1, 2)
    inbox = make_inbox(world)
    with pytest.raises(Death), receiver(world, inbox, probe=At(step)) as receiving:
        work_without_answers(receiving, service, 2)
    assert (world.numbers == [1]) == (len(letters(world).find(world.connection)) == 1)
    publish(world, 3)
    with receiver(world, inbox) as receiving:
        while 3 not in world.numbers:
            receiving.poll(lambda connection, message: service(connection, message) and None)
    assert world.numbers == [1, 3]
    assert [each.message.value for each in letters(world).find(world.connection)] == [b"2"]


@pytest.mark.integration
def test_a_receiver_that_dies_before_it_has_answered_a_letter_answers_it_later(world: World) -> None:
    inbox, service = make_inbox(world), Service(world, 1)
    publish(world, 1)
    with receiver(world, inbox) as receiving:
        work(receiving, service, 1)
    service.bad.clear()
    service.answers.clear()
    letters(world).retry(world.connection)
    with pytest.raises(Death), receiver(world, inbox, probe=At(ReceiverStep.RETRIED)) as receiving:
        receiving.run(service, reply=service.reply)
    assert (world.numbers, service.answers) == ([1], [])
    assert letters(world).find(world.connection) == []
    assert letters(world).retry(world.connection) == 0
    with receiver(world, inbox) as receiving:
        while not service.answers:
            receiving.poll(service, reply=service.reply)
    assert (world.numbers, service.answers, service.calls.count(1)) == ([1], [("1", b"done 1")], ATTEMPTS + 1)


@pytest.mark.integration
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_receiver_in_an_event_loop_has_dead_letters_too(world: World, driver: str) -> None:
    inbox = make_inbox(world)
    publish(world, 1, 2)
    settings = ReceiverSettings(dead_letters=letters(world), maintain_interval=timedelta(0))
    bad = {2}

    async def connect() -> Any:
        if driver == "asyncpg":
            return await asyncpg.connect(world.dsn)
        return await psycopg.AsyncConnection.connect(world.dsn)

    async def handle(connection: Any, message: ReceivedMessage) -> None:
        number = int(message.value or b"")
        statement = world.insert(number)[0].decode().replace("%s", str(number))
        await connection.execute(statement)
        if number in bad:
            raise ValueError(number)

    async def run_until(is_done: Callable[[], bool]) -> None:
        async with AsyncReceiver(
            world.kafka, [world.topic], group=world.name, inbox=inbox, connect=connect, settings=settings
        ) as receiving:
            task = asyncio.create_task(receiving.run(handle))
            while not is_done():
                await asyncio.sleep(0.05)
            receiving.stop()
            await task

    asyncio.run(run_until(lambda: len(letters(world).find(world.connection)) == 1))
    assert world.numbers == [1]
    bad.clear()
    letters(world).retry(world.connection)
    asyncio.run(run_until(lambda: not letters(world).find(world.connection)))
    assert world.numbers == [1, 2]


@pytest.mark.integration
def test_without_dead_letters_an_error_ends_the_receiver(world: World) -> None:
    inbox, service = make_inbox(world), Service(world, 1)
    publish(world, 1)
    connect = lambda: psycopg.connect(world.dsn)  # noqa: E731
    with (
        Receiver(world.kafka, [world.topic], group=world.name, inbox=inbox, connect=connect) as receiving,
        pytest.raises(ValueError, match="1 is bad"),
    ):
        receiving.run(service)


# --- relays


def unsendable(world: World) -> Message:
    return Message(topic=f"{world.name}.nowhere", key=b"k", value=b"bad", headers=(("a", b"\xff"),))


def relay(world: World, attempts: int = 2, **options: Any) -> PollingRelay:
    settings = RelaySettings(
        dead_letters=letters(world, attempts),
        retry_after=timedelta(0),
        request_timeout=timedelta(seconds=4),
    )
    return PollingRelay(world.dsn, world.kafka, world.outbox, settings=settings, **options)


@pytest.mark.integration
def test_a_message_that_kafka_rejects_time_after_time_no_longer_blocks_its_lane(world: World) -> None:
    world.outbox.send(world.connection, unsendable(world), world.message("next"))
    with relay(world) as sending:
        assert sending.run_once() == 1
        assert (len(sending.refused), world.waiting) == (1, 1)
        assert sending.run_once() == 0
        assert (sending.refused, world.waiting) == ({}, 0)
        (letter,) = letters(world).find(world.connection)
        assert (letter.origin, letter.message) == (f"outbox {world.outbox.table}", unsendable(world))
        assert letter.reason.startswith("ConfigError: writing a message failed")
    world.make_topic("nowhere")
    assert letters(world).retry(world.connection, [letter.id]) == 1
    assert letters(world).find(world.connection) == []
    with relay(world) as sending:
        assert sending.run_once() == 1
    (record,) = world.records(f"{world.name}.nowhere")
    assert f"{world.outbox.table}/1/" in str(dict(record.headers() or [])[HEADER_MESSAGE])
    assert world.values() == ["next"]


@pytest.mark.integration
@pytest.mark.parametrize(
    "step", [SendStep.TAKEN, SendStep.PRODUCED, SendStep.REMOVED, SendStep.DATABASE_COMMITTED]
)
def test_a_relay_that_dies_leaves_a_message_in_one_place(world: World, step: SendStep) -> None:
    world.outbox.send(world.connection, unsendable(world))
    with pytest.raises(Death), relay(world, 1, probe=At(step)) as sending:
        sending.run_once()
    assert world.waiting + len(letters(world).find(world.connection)) == 1
    with relay(world, 1) as sending:
        sending.run_once()
    assert (world.waiting, len(letters(world).find(world.connection))) == (0, 1)


@pytest.mark.integration
def test_a_message_that_returns_to_its_outbox_is_the_same_message(world: World) -> None:
    world.outbox.send(world.connection, unsendable(world))
    row = f"SELECT id, created_at, topic, key, value, headers, sender FROM {world.outbox.table}".encode()  # noqa: S608
    before = world.connection.execute(row).fetchall()
    with relay(world, 1) as sending:
        sending.run_once()
    assert letters(world).retry(world.connection) == 1
    assert world.connection.execute(row).fetchall() == before


# --- the table


@pytest.fixture
def role(world: World) -> Iterator[str]:
    """A user who may do nothing with the table at first."""
    name = f"{world.name}_user"
    world.connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'word'".encode())
    yield name
    world.connection.execute(f"DROP OWNED BY {name}".encode())
    world.connection.execute(f"DROP ROLE {name}".encode())


@pytest.mark.integration
def test_a_table_that_is_missing_or_another_one_is_refused_by_name_at_the_start(world: World) -> None:
    for table, problem in ((f"{world.name}_none", "does not exist"), (world.table, "column")):
        settings = ReceiverSettings(dead_letters=DeadLetters(table))
        connect = lambda: psycopg.connect(world.dsn)  # noqa: E731
        with (
            Receiver(
                world.kafka,
                [world.topic],
                group=world.name,
                inbox=make_inbox(world),
                connect=connect,
                settings=settings,
            ) as receiving,
            pytest.raises(
                ConfigError, match=f"the table {table} of dead letters cannot be used: .*{problem}"
            ),
        ):
            receiving.run(Service(world))
        of_relay = RelaySettings(dead_letters=DeadLetters(table))
        with (
            PollingRelay(world.dsn, world.kafka, world.outbox, settings=of_relay) as sending,
            pytest.raises(
                ConfigError, match=f"the table {table} of dead letters cannot be used: .*{problem}"
            ),
        ):
            sending.run_once()


@pytest.mark.integration
@pytest.mark.parametrize("missing", ["SELECT", "INSERT", "UPDATE", "DELETE"])
def test_a_missing_right_is_refused_by_name(world: World, role: str, missing: str) -> None:
    table = letters(world).table
    rights = ", ".join({"SELECT", "INSERT", "UPDATE", "DELETE"} - {missing})
    address = world.dsn.rpartition("@")[2]
    world.connection.execute(f"GRANT {rights} ON {table} TO {role}".encode())
    with psycopg.connect(f"postgresql://{role}:word@{address}", autocommit=True) as connection:
        said = "permission denied" if missing == "SELECT" else f"the user {role} may not use"
        with pytest.raises(ConfigError, match=said) as raised:
            letters(world).check(connection)
        assert missing == "SELECT" or raised.value.hint == f'GRANT {missing} ON "{table}" TO {role}'
        world.connection.execute(f"GRANT {missing} ON {table} TO {role}".encode())
        letters(world).check(connection)


@pytest.mark.integration
def test_letters_are_deleted_by_their_number(world: World) -> None:
    world.outbox.send(world.connection, unsendable(world), unsendable(world))
    with relay(world, 1) as sending:
        sending.run_once()
    first, second = letters(world).find(world.connection)
    assert letters(world).find(world.connection, [first.id]) == [first]
    assert letters(world).delete(world.connection, [first.id]) == 1
    assert letters(world).find(world.connection) == [second]
    assert letters(world).retry(world.connection, [first.id]) == 0


@pytest.mark.parametrize("attempts", [0, 101])
def test_a_number_of_attempts_that_makes_no_sense_is_refused(attempts: int) -> None:
    with pytest.raises(ConfigError, match=f"letters: attempts is {attempts}"):
        DeadLetters("letters", attempts=attempts)


def test_a_reason_is_text_that_a_database_takes() -> None:
    reason = reason_of(ValueError("a\0b\ud800" + "x" * 20_000))
    assert reason.startswith("ValueError: ab?x")
    assert len(reason) <= 8_000
    reason.encode()
