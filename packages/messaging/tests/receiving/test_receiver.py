"""The loop, while servers and other members do what they do."""

import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from slackwater.dev import KafkaBroker, PostgresServer, Server
from slackwater.protocol import ConfigError, KafkaSettings, StateError, UnavailableError
from slackwater_lab.messaging.receiving.member import Effects, Twin, Way, make_inbox, processor, receiver
from slackwater_lab.messaging.receiving.world import (
    IMPATIENT,
    RIGHT,
    SOON,
    Fault,
    ReceivePoint,
    World,
    receive_here,
    stop,
    suffer_and_finish,
)
from slackwater_lab.probes import Servers
from slackwater_lab.topics import make_topics
from slackwater_messaging.receiving import (
    ProcessorStep,
    ReceivedMessage,
    Receiver,
    ReceiverSettings,
    ReceiverStep,
)

pytestmark = pytest.mark.integration
MANY = 40
S = TypeVar("S", bound=Server)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One that may be killed, and that soon gives members up."""
    yield from running(KafkaBroker(tmp_path_factory.mktemp("broker"), overrides=SOON))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One that may be killed."""
    yield from running(PostgresServer(tmp_path_factory.mktemp("server")))


def running(server: S) -> Iterator[S]:
    try:
        server.start()
        yield server
    finally:
        server.stop()
        server.delete_data()


DATABASE_STEPS = [ReceiverStep.RECEIVED, ReceiverStep.HANDLED, ReceiverStep.COMMITTED]


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "step"),
    [
        (way, step)
        for way in Way
        for step in DATABASE_STEPS
        if (way, step) == (Way.BLOOM, ReceiverStep.HANDLED)
    ]
    + [
        pytest.param(way, step, marks=pytest.mark.slow)
        for way in Way
        for step in DATABASE_STEPS
        if (way, step) != (Way.BLOOM, ReceiverStep.HANDLED)
    ],
)
def test_a_database_that_is_killed_costs_nothing_but_time(
    broker: KafkaBroker, server: PostgresServer, way: Way, step: ReceiverStep
) -> None:
    point = ReceivePoint(way, step, Fault.DATABASE_KILLED)
    assert suffer_and_finish(point, Servers(server, broker)) == RIGHT


@pytest.mark.parametrize(
    ("way", "step"),
    [
        pytest.param(Way.TABLE, ReceiverStep.COMMITTED, marks=pytest.mark.slow),
        pytest.param(None, ProcessorStep.OFFSETS_SENT, marks=pytest.mark.slow),
        pytest.param(None, ProcessorStep.PRODUCED, marks=pytest.mark.slow),
        pytest.param(Way.BLOOM, ReceiverStep.POLLED, marks=pytest.mark.slow),
        pytest.param(Way.FILTERED, ReceiverStep.STORED, marks=pytest.mark.slow),
    ],
)
def test_a_broker_that_is_killed_costs_nothing_but_time(
    broker: KafkaBroker, server: PostgresServer, way: Way | None, step: ReceiverStep | ProcessorStep
) -> None:
    assert suffer_and_finish(ReceivePoint(way, step, Fault.BROKER_KILLED), Servers(server, broker)) == RIGHT


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "step"),
    [
        (Way.TABLE, ReceiverStep.HANDLED),
        (None, ProcessorStep.PRODUCED),
        pytest.param(Way.BLOOM, ReceiverStep.POLLED, marks=pytest.mark.slow),
        pytest.param(Way.BLOOM, ReceiverStep.HANDLED, marks=pytest.mark.slow),
        pytest.param(Way.TABLE, ReceiverStep.POLLED, marks=pytest.mark.slow),
        pytest.param(Way.FILTERED, ReceiverStep.POLLED, marks=pytest.mark.slow),
        pytest.param(Way.FILTERED, ReceiverStep.HANDLED, marks=pytest.mark.slow),
        pytest.param(Way.FILTERED, ReceiverStep.COMMITTED, marks=pytest.mark.slow),
        pytest.param(None, ProcessorStep.OFFSETS_SENT, marks=pytest.mark.slow),
    ],
)
def test_a_member_that_was_stopped_and_has_lost_its_partitions_repeats_nothing(
    broker: KafkaBroker, server: PostgresServer, way: Way | None, step: ReceiverStep | ProcessorStep
) -> None:
    assert suffer_and_finish(ReceivePoint(way, step, Fault.OVERTAKEN), Servers(server, broker)) == RIGHT


@pytest.mark.full
def test_without_the_comparison_of_positions_it_repeats_effects(
    broker: KafkaBroker, server: PostgresServer
) -> None:
    point = ReceivePoint(Twin.UNFENCED, ReceiverStep.POLLED, Fault.OVERTAKEN)
    assert suffer_and_finish(point, Servers(server, broker)).repeated > 0


def test_an_error_of_the_service_is_passed_on_and_its_batch_comes_again(
    broker: KafkaBroker, server: PostgresServer
) -> None:
    world = World(broker.bootstrap, server.dsn(), Way.BLOOM)
    world.write(range(MANY))
    effects = Effects(world.settings)
    failed: list[ReceivedMessage] = []

    def fail_once(connection: psycopg.Connection[Any], message: ReceivedMessage) -> bytes | None:
        if message.key == b"8" and not failed:
            failed.append(message)
            raise ZeroDivisionError
        return effects.handle(connection, message)

    with receiver(world.settings) as receiving:
        with pytest.raises(ZeroDivisionError) as caught:
            receiving.run(fail_once)
        assert caught.value.__notes__[0].startswith(f"message at {world.settings.topic}/0, offset ")
        while not world.is_done():
            receiving.poll(fail_once)
    assert world.judge() == RIGHT


def test_a_batch_whose_transaction_the_database_has_ended_for_its_age_is_tried_again(
    broker: KafkaBroker, server: PostgresServer
) -> None:
    """PostgreSQL ends the connection, which is no operational error for psycopg."""
    world = World(broker.bootstrap, server.dsn(), Way.TABLE)
    world.write(range(MANY))
    effects = Effects(world.settings)
    ended: list[int] = []

    def handle(connection: psycopg.Connection[Any], message: ReceivedMessage) -> bytes | None:
        if not ended:
            ended.append(connection.info.backend_pid)
            connection.execute("SET idle_in_transaction_session_timeout = 1")
            wait_until_gone(server, ended[0])
        return effects.handle(connection, message)

    with receiver(world.settings) as receiving:
        while not world.is_done():
            receiving.poll(handle, reply=effects.reply)
    assert ended
    assert world.judge() == RIGHT


def wait_until_gone(server: PostgresServer, backend: int) -> None:
    pause = threading.Event()
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        while connection.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [backend]).fetchone():
            pause.wait(0.01)


@pytest.mark.full
def test_an_error_of_the_service_gives_the_kafka_transaction_up(
    broker: KafkaBroker, server: PostgresServer
) -> None:
    world = World(broker.bootstrap, server.dsn(), None)
    world.write(range(MANY))
    effects = Effects(world.settings)
    failed: list[ReceivedMessage] = []

    def fail_once(message: ReceivedMessage) -> Any:
        if message.key == b"8" and not failed:
            failed.append(message)
            raise ZeroDivisionError
        return effects.process(message)

    with processor(world.settings) as working:
        with pytest.raises(ZeroDivisionError):
            working.run(fail_once)
        while not world.is_done():
            working.poll(fail_once)
    assert world.judge() == RIGHT


@pytest.mark.full
def test_members_share_the_partitions_and_give_them_away_in_order(
    broker: KafkaBroker, server: PostgresServer
) -> None:
    world = World(broker.bootstrap, server.dsn(), Way.BLOOM)
    world.settings.options.update(IMPATIENT)
    world.write(range(MANY))
    effects = Effects(world.settings)
    second = world.start(instance="two")
    with receiver(world.settings) as receiving:
        while not world.is_done():
            receiving.poll(effects.handle)
    world.write(range(MANY, 2 * MANY))
    try:
        world.wait_until_done(second.is_alive)
    finally:
        stop(second)
    assert world.judge() == RIGHT


def test_a_database_that_stays_away_is_named_in_the_end(broker: KafkaBroker, server: PostgresServer) -> None:
    world = World(broker.bootstrap, server.dsn(), Way.TABLE)
    world.write(range(1))

    def refuse() -> psycopg.Connection[Any]:
        raise psycopg.OperationalError("nobody listens")

    with (
        Receiver(
            KafkaSettings(broker.bootstrap),
            [world.settings.topic],
            group=world.settings.group,
            inbox=make_inbox(Way.TABLE, f"{world.settings.schema}.inbox"),
            connect=refuse,
            settings=ReceiverSettings(patience=timedelta(milliseconds=300)),
        ) as receiving,
        pytest.raises(UnavailableError, match=r"tried for 0.3 s: nobody listens"),
    ):
        receiving.run(lambda connection, message: None)


def test_a_receiver_ends_when_it_is_told_to(broker: KafkaBroker, server: PostgresServer) -> None:
    world = World(broker.bootstrap, server.dsn(), Way.TABLE)
    with receiver(world.settings) as receiving:
        working = threading.Thread(target=receiving.run, args=[Effects(world.settings).handle])
        working.start()
        receiving.stop()
        working.join(60)
        assert not working.is_alive()


def test_answers_without_a_place_for_them_are_refused(broker: KafkaBroker, server: PostgresServer) -> None:
    world = World(broker.bootstrap, server.dsn(), Way.BLOOM)
    effects = Effects(world.settings)
    with (
        receiver(world.settings) as receiving,
        pytest.raises(ConfigError, match="BloomInbox does not store them"),
    ):
        receiving.poll(effects.handle, reply=effects.reply)


def test_a_way_to_assign_partitions_one_by_one_is_refused(
    broker: KafkaBroker, server: PostgresServer
) -> None:
    world = World(broker.bootstrap, server.dsn(), Way.TABLE)
    world.settings.options["partition.assignment.strategy"] = "cooperative-sticky"
    with pytest.raises(ConfigError, match="expected range or roundrobin"):
        receiver(world.settings)


@pytest.mark.full
def test_a_topic_that_does_not_exist_is_named(broker: KafkaBroker, server: PostgresServer) -> None:
    world = World(broker.bootstrap, server.dsn(), Way.TABLE)
    with (
        Receiver(
            KafkaSettings(broker.bootstrap),
            ["nowhere"],
            group=world.settings.group,
            inbox=make_inbox(Way.TABLE, f"{world.settings.schema}.inbox"),
            connect=lambda: psycopg.connect(server.dsn()),
        ) as receiving,
        pytest.raises(StateError, match="topic nowhere does not exist; create it"),
    ):
        receiving.run(lambda connection, message: None)


@pytest.mark.full
def test_records_that_were_deleted_before_they_were_read_are_named(
    broker: KafkaBroker, server: PostgresServer
) -> None:
    """Fails if reading continues at what is there: the messages in between would be lost without a word."""
    world = World(broker.bootstrap, server.dsn(), Way.BLOOM)
    world.write(range(MANY))
    receive_here(world, lambda step: None)
    world.write(range(MANY, 2 * MANY))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    at = TopicPartition(world.settings.topic, 0, MANY)
    for done in admin.delete_records([at]).values():
        done.result(30)
    effects = Effects(world.settings)
    with (
        receiver(world.settings) as receiving,
        pytest.raises(StateError, match="is no longer in Kafka"),
    ):
        receiving.run(effects.handle)


@pytest.mark.full
@pytest.mark.parametrize("latest", [True, False])
def test_a_group_without_positions_begins_where_it_is_told_to(
    broker: KafkaBroker, server: PostgresServer, latest: bool
) -> None:
    topic = f"l{uuid.uuid4().hex[:10]}"
    make_topics(broker.bootstrap, [topic], 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    producer.produce(topic, b"before", b"0")
    producer.flush(30)
    seen: list[bytes | None] = []
    is_begun: list[ReceiverStep] = []

    def handle(connection: psycopg.Connection[Any], message: ReceivedMessage) -> None:
        seen.append(message.value)

    inbox = make_inbox(Way.TABLE, topic)
    with psycopg.connect(server.dsn()) as connection:
        inbox.create(connection)
    with Receiver(
        KafkaSettings(broker.bootstrap),
        [topic],
        group=topic,
        inbox=inbox,
        connect=lambda: psycopg.connect(server.dsn()),
        settings=ReceiverSettings(latest=latest),
        probe=is_begun.append,
    ) as receiving:
        while ReceiverStep.LOADED not in is_begun:
            receiving.poll(handle)
        # Until the end was found, what is written is before it: write on until something comes.
        while b"after" not in seen:
            producer.produce(topic, b"after", str(uuid.uuid4()))
            producer.flush(30)
            receiving.poll(handle, timeout=timedelta(milliseconds=200))
    assert (b"before" in seen) is not latest
