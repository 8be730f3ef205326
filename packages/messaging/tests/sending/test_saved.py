"""Saved messages: what recovery finds, sends and waits for, and what happens while Kafka is away.

The promise under deaths is tested in ``test_crashes.py``; ``test_twins.py`` switches its mechanisms off.
"""

import logging
import os
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from slackwater.protocol import ConfigError, KafkaSettings, StateError, UnavailableError
from slackwater_lab.messaging.sending.world import World
from slackwater_lab.probes import At, Death
from slackwater_messaging import (
    DeliveryListener,
    Message,
    ProvenSender,
    Recovery,
    SavedSender,
    SenderSettings,
    SendStep,
)
from slackwater_messaging.kafka import SenderProducer

pytestmark = pytest.mark.integration
AT_ONCE = SenderSettings(retry_after=timedelta(0), clock_margin=timedelta(minutes=1))
NOWHERE = KafkaSettings("127.0.0.1:1")


def saved(world: World, **options: Any) -> SavedSender:
    kafka = options.pop("kafka", world.kafka)
    return SavedSender(kafka, world.outbox, world.name, **{"settings": AT_ONCE, **options})


def do(world: World, sender: SavedSender, number: int, *messages: Message) -> None:
    with sender.transaction(world.connection) as sending:
        sending.connection.execute(*world.insert(number))
        sending.send(*messages or [world.message(str(number))])


def test_messages_are_sent_with_the_transaction_and_their_rows_removed(world: World) -> None:
    with saved(world) as sender:
        for number in range(3):
            do(world, sender, number)
            assert sender.is_settled
            assert world.waiting == 0
    assert world.values() == ["0", "1", "2"]


def test_transactions_commit_while_kafka_is_away_and_messages_follow_in_order(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    short = SenderSettings(request_timeout=timedelta(seconds=0.5), retry_after=timedelta(0))
    with saved(world, kafka=NOWHERE, settings=short) as sender, caplog.at_level(logging.WARNING):
        for number in range(2):
            do(world, sender, number)
        assert not sender.is_settled
    assert "messages remain saved" in caplog.text
    assert (world.numbers, world.values(), world.waiting) == ([0, 1], [], 2)
    with saved(world) as sender:
        do(world, sender, 2)
        assert sender.is_settled
    assert (world.values(), world.waiting) == (["0", "1", "2"], 0)


def test_messages_behind_ones_that_wait_wait_with_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    later = SenderSettings(retry_after=timedelta(hours=1), clock_margin=timedelta(minutes=1))
    with saved(world, settings=later) as sender:
        do(world, sender, 1)
        monkeypatch.setattr(SenderProducer, "write", _away)
        do(world, sender, 2)
        monkeypatch.undo()
        do(world, sender, 3)
        assert (world.values(), world.waiting) == (["1"], 2)
        assert sender.recover(world.connection) == Recovery(0, 2)
    assert world.values() == ["1", "2", "3"]


def _away(*_: object) -> None:
    raise UnavailableError("away")


def test_a_sender_looks_for_kafka_only_now_and_then(world: World) -> None:
    short = SenderSettings(request_timeout=timedelta(seconds=0.5), retry_after=timedelta(hours=1))
    looks = 0

    class Counting(SavedSender):
        def _recover(self, connection: Any) -> Recovery:
            nonlocal looks
            looks += 1
            return super()._recover(connection)

    with Counting(NOWHERE, world.outbox, world.name, settings=short) as sender:
        for number in range(3):
            do(world, sender, number)
    assert (looks, world.numbers) == (1, [0, 1, 2])


@pytest.mark.full
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (SendStep.DATABASE_COMMITTED, Recovery(0, 1)),
        (SendStep.PRODUCED, Recovery(0, 1)),
        (SendStep.KAFKA_COMMITTED, Recovery(1, 0)),
        (SendStep.REMOVED, Recovery(0, 0)),
    ],
)
def test_recovery_sends_only_what_the_topic_does_not_hold(
    world: World, step: SendStep, expected: Recovery
) -> None:
    with pytest.raises(Death):
        do(world, saved(world, probe=At(step)), 1)
    with saved(world) as sender:
        assert sender.recover(world.connection) == expected
        assert sender.recover(world.connection) == Recovery(0, 0)
    assert (world.values(), world.waiting) == (["1"], 0)


def test_what_a_service_has_sent_whose_clock_is_behind_is_not_sent_again(world: World) -> None:
    """Its records are older than their rows, by less than the margin; fails without the margin."""
    ahead = f"ALTER TABLE {world.outbox.table} ALTER created_at SET DEFAULT now() + interval '30 seconds'"
    world.connection.execute(ahead.encode())
    with pytest.raises(Death):
        do(world, saved(world, probe=At(SendStep.KAFKA_COMMITTED)), 1)
    with saved(world) as sender:
        assert sender.recover(world.connection) == Recovery(1, 0)
    assert (world.values(), world.waiting) == (["1"], 0)


@pytest.mark.full
def test_messages_of_a_table_that_was_made_anew_are_not_taken_for_old_ones(world: World) -> None:
    with saved(world) as sender:
        do(world, sender, 1)
    world.connection.execute(f"DROP TABLE {world.outbox.table}".encode())
    world.outbox.create(world.connection)
    with pytest.raises(Death):
        do(world, saved(world, probe=At(SendStep.DATABASE_COMMITTED)), 2)
    with saved(world) as sender:
        assert sender.recover(world.connection) == Recovery(0, 1)
    assert world.values() == ["1", "2"]


@pytest.mark.full
def test_recovery_waits_for_transactions_of_others_that_stand_open(world: World) -> None:
    """Behind one nobody can read, so nobody can tell whether a message is there."""
    other = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": f"{world.name}-other"})
    other.init_transactions(60)
    other.begin_transaction()
    other.produce(world.topic, b"open", b"k")
    assert other.flush(60) == 0
    with pytest.raises(Death):
        do(world, saved(world, probe=At(SendStep.KAFKA_COMMITTED)), 1)
    impatient = SenderSettings(patience=timedelta(seconds=0.5), retry_after=timedelta(0))
    stuck = pytest.raises(UnavailableError, match=rf"{world.topic}/0 at offset 0 of 3")
    with saved(world, settings=impatient) as sender, stuck:
        sender.recover(world.connection)
    other.abort_transaction(60)
    with saved(world) as sender:
        assert sender.recover(world.connection) == Recovery(1, 0)
    assert world.values() == ["1"]


def test_what_a_process_has_saved_that_was_overtaken_is_found(world: World) -> None:
    """It was paused before its commit; its successor finds its rows with its own next message."""
    with saved(world) as sender:
        do(world, sender, 1)
        world.outbox.save(world.connection, [world.message("late")], world.name)
        do(world, sender, 2)
        assert (sender.is_settled, world.waiting) == (False, 1)
        do(world, sender, 3)
        assert (sender.is_settled, world.waiting) == (True, 0)
    assert (world.values(), world.waiting) == (["1", "2", "late", "3"], 0)


@pytest.mark.parametrize("kind", [SavedSender, ProvenSender])
def test_a_commit_of_which_nobody_hears_is_sent_by_the_next_transaction(
    world: World, kind: type[SavedSender], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = psycopg.Connection.commit

    def lose(connection: psycopg.Connection[Any]) -> None:
        commit(connection)
        raise psycopg.OperationalError("the answer is lost")

    with kind(world.kafka, world.outbox, world.name, settings=AT_ONCE) as sender:
        do(world, sender, 1)
        monkeypatch.setattr(psycopg.Connection, "commit", lose)
        with pytest.raises(psycopg.OperationalError, match="the answer is lost"):
            do(world, sender, 2)
        monkeypatch.undo()
        do(world, sender, 3)
    assert (world.numbers, world.values()) == ([1, 2, 3], ["1", "2", "3"])


def test_a_row_of_a_table_that_was_created_again_is_not_taken_for_the_one_that_was_sent(world: World) -> None:
    """Ids start over, so that two messages have the same one."""

    def recreate() -> None:
        world.connection.execute(f"TRUNCATE {world.outbox.table} RESTART IDENTITY".encode())
        world.outbox.save(world.connection, [world.message("new")], world.name)

    with saved(world, probe=At(SendStep.KAFKA_COMMITTED, recreate)) as sender:
        do(world, sender, 1)
        assert (sender.is_settled, world.waiting) == (False, 1)
        do(world, sender, 2)
        assert (sender.is_settled, world.waiting) == (True, 0)
    assert world.values() == ["1", "new", "2"]


def test_two_processes_with_one_name_lose_and_repeat_nothing(world: World) -> None:
    with saved(world) as one, saved(world) as other:
        for number in range(6):
            do(world, one if number % 2 else other, number)
        one.recover(world.connection)
    assert sorted(world.values()) == [str(number) for number in range(6)]
    assert world.waiting == 0


def test_a_message_that_kafka_refuses_stays_saved_and_recovery_says_why(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with saved(world) as sender, caplog.at_level(logging.WARNING):
        do(world, sender, 1, world.message("1"), Message(topic=world.topic, value=os.urandom(2_000_000)))
        plain = Producer({"bootstrap.servers": world.bootstrap, "enable.idempotence": True})
        plain.produce(world.topic, b"of others")
        plain.flush(60)
        assert world.values() == ["of others"]  # nothing is open before it
        assert "MSG_SIZE_TOO_LARGE" in caplog.text
        with pytest.raises(ConfigError, match=r"raise the topic's max\.message\.bytes"):
            sender.recover(world.connection)
    assert (world.numbers, world.values(), world.waiting) == ([1], ["of others"], 2)


def test_recovery_refuses_a_topic_that_is_gone(world: World) -> None:
    world.outbox.save(world.connection, [Message(topic=f"{world.name}.gone", value=b"")], world.name)
    with saved(world) as sender, pytest.raises(StateError, match="does not exist"):
        sender.recover(world.connection)


def test_rows_of_other_senders_are_left_alone(world: World) -> None:
    world.outbox.save(world.connection, [world.message("theirs")], "other")
    world.outbox.send(world.connection, world.message("a relay's"))
    with saved(world) as sender:
        do(world, sender, 1)
    assert (world.values(), world.waiting) == (["1"], 2)


@pytest.mark.full
def test_a_listener_removes_what_the_topic_holds_and_passes_over_the_records_of_others(world: World) -> None:
    with ProvenSender(world.kafka, world.outbox, world.name, settings=AT_ONCE) as sender:
        for number in range(5):
            do(world, sender, number)
    (kept,) = world.outbox.save(world.connection, [world.message("not sent")], "other")
    plain = Producer({"bootstrap.servers": world.bootstrap, "enable.idempotence": True})
    for other in (kept.id._replace(outbox=f"{world.name}_else"), kept.id._replace(created_us=1)):
        plain.produce(world.topic, b"", headers=[("slackwater-message", str(other))])
    plain.produce(world.topic, b"", headers=[("slackwater-message", b"\xff")])
    plain.produce(world.topic, b"")
    plain.flush(60)
    assert world.waiting == 6
    listener = DeliveryListener(world.dsn, world.kafka, world.outbox, topics=[world.topic], group=world.name)
    with listener:
        removed = 0
        while _read_by(world) < 14:  # records and the ends of five transactions
            removed += listener.run_once(timedelta(seconds=60))
    assert (removed, world.waiting) == (5, 1)


def _read_by(world: World) -> int:
    """Returns the offset that the listener's group has committed."""
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    asked = [ConsumerGroupTopicPartitions(world.name, [TopicPartition(world.topic, 0)])]
    (found,) = admin.list_consumer_group_offsets(asked)[world.name].result(60).topic_partitions
    return int(found.offset)


def test_recovery_of_a_sender_whose_rows_a_listener_has_not_removed_sends_nothing_again(world: World) -> None:
    with ProvenSender(world.kafka, world.outbox, world.name, settings=AT_ONCE) as sender:
        do(world, sender, 1)
    with ProvenSender(world.kafka, world.outbox, world.name, settings=AT_ONCE) as sender:
        assert sender.recover(world.connection) == Recovery(1, 0)
    assert (world.values(), world.waiting) == (["1"], 0)
