"""Last resource commit: what decides, what is found in doubt, and who may decide when."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from slackwater.protocol import ConfigError, StateError, UnavailableError
from slackwater.protocol.keys import outcome_topic
from slackwater_lab.messaging.sending.world import World
from slackwater_lab.probes import At, Death
from slackwater_messaging import (
    InDoubtError,
    Message,
    Outcome,
    PreparedSender,
    SenderSettings,
    SendStep,
    find_prepared,
    resolve,
)
from slackwater_messaging.kafka import SenderProducer

pytestmark = pytest.mark.integration
STEPS = pytest.mark.parametrize(
    ("step", "outcome"),
    [(SendStep.PREPARED, Outcome.ROLLED_BACK), (SendStep.KAFKA_COMMITTED, Outcome.COMMITTED)],
)


def prepared(world: World, **options: Any) -> PreparedSender:
    return PreparedSender(world.kafka, world.name, **options)


def do(
    world: World, sender: PreparedSender, number: int, *, over: psycopg.Connection[Any] | None = None
) -> None:
    with sender.transaction(over or world.connection) as sending:
        sending.connection.execute(*world.insert(number))
        sending.send(world.message(str(number)))


def left(world: World) -> list[str]:
    return [each.gid for each in find_prepared(world.connection, world.name)]


@pytest.mark.parametrize("is_autocommit", [True, False])
def test_both_sides_commit_or_the_error_of_the_business_undoes_both(
    world: World, is_autocommit: bool
) -> None:
    world.connection.autocommit = is_autocommit
    with prepared(world) as sender:
        do(world, sender, 1)
        with pytest.raises(psycopg.errors.UniqueViolation):
            do(world, sender, 1)
        with sender.transaction(world.connection) as sending:
            sending.connection.execute(*world.insert(2))
        do(world, sender, 3)
    assert world.connection.autocommit is is_autocommit
    assert (world.numbers, world.values(), left(world)) == ([1, 2, 3], ["1", "3"], [])


@STEPS
def test_the_next_transaction_decides_about_what_a_death_has_left(
    world: World, step: SendStep, outcome: Outcome
) -> None:
    with prepared(world) as sender:
        do(world, sender, 0)
    assert left(world) == []
    gid = _die(world, step)
    assert left(world) == [gid]
    with prepared(world) as sender:
        do(world, sender, 2)
    expected = [0, 1, 2] if outcome is Outcome.COMMITTED else [0, 2]
    assert (world.numbers, world.values(), left(world)) == (expected, [str(n) for n in expected], [])


@pytest.mark.full
@STEPS
def test_an_operator_decides_as_the_topic_shows(world: World, step: SendStep, outcome: Outcome) -> None:
    gid = _die(world, step)
    (found,) = find_prepared(world.connection, world.name)
    assert (found.gid, found.sender, found.is_here) == (gid, world.name, True)
    assert resolve(world.connection, world.kafka, world.name) == {gid: outcome}
    assert resolve(world.connection, world.kafka, world.name) == {}
    done = outcome is Outcome.COMMITTED
    assert (world.numbers, world.values()) == (([1], ["1"]) if done else ([], []))


@STEPS
def test_an_operator_may_decide_while_the_sender_lives(
    world: World, step: SendStep, outcome: Outcome
) -> None:
    with psycopg.connect(world.dsn, autocommit=True) as operators:
        decided: list[Outcome] = []

        def decide() -> None:
            decided.extend(resolve(operators, world.kafka, world.name).values())

        with prepared(world, probe=At(step, decide)) as sender:
            if outcome is Outcome.COMMITTED:
                do(world, sender, 1)
            with pytest.raises(StateError, match="FENCED"):
                do(world, sender, 1 + len(world.numbers))
            do(world, sender, 2)
    assert decided == [outcome]
    expected = [1, 2] if outcome is Outcome.COMMITTED else [2]
    assert (world.numbers, world.values(), left(world)) == (expected, [str(n) for n in expected], [])


def test_transactions_of_others_are_named_and_left_alone(world: World) -> None:
    gid = f"{world.name}-foreign"
    foreign = psycopg.connect(world.dsn)
    foreign.tpc_begin(gid)
    foreign.execute(*world.insert(7))
    foreign.tpc_prepare()
    foreign.close()
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        assert [each.sender for each in find_prepared(connection) if each.gid == gid] == [None]
        with prepared(world) as sender:
            do(world, sender, 1)
        assert gid in {each.gid for each in find_prepared(connection)}
        connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())


@pytest.mark.parametrize("is_done", [True, False])
def test_an_answer_of_kafka_that_is_lost_is_looked_up(
    world: World, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lose_answers(monkeypatch, is_done=is_done)
    with prepared(world, settings=SenderSettings(patience=timedelta(seconds=5))) as sender:
        if is_done:
            do(world, sender, 1)
        else:
            with pytest.raises(UnavailableError, match="lost"):
                do(world, sender, 1)
        monkeypatch.undo()
        do(world, sender, 2)
    expected = [1, 2] if is_done else [2]
    assert (world.numbers, world.values(), left(world)) == (expected, [str(n) for n in expected], [])


def test_a_transaction_that_nobody_can_tell_of_stays_in_doubt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lose_answers(monkeypatch, is_done=True)
    with prepared(world) as sender:
        sender.recover(world.connection)
        monkeypatch.setattr(SenderProducer, "open", _away)
        with pytest.raises(InDoubtError, match="in doubt") as failed:
            do(world, sender, 1)
        assert left(world) == [failed.value.gid]
        monkeypatch.undo()
        do(world, sender, 2)
    assert (world.numbers, world.values(), left(world)) == ([1, 2], ["1", "2"], [])


def test_what_another_process_left_is_decided_after_an_own_failure_too(world: World) -> None:
    """The name was somebody else's between the failure and the next transaction."""
    with prepared(world) as sender:
        do(world, sender, 0)
        with pytest.raises(ConfigError, match=r"raise the topic's max\.message\.bytes"):
            _send_too_much(world, sender)
        _die(world, SendStep.KAFKA_COMMITTED)
        do(world, sender, 2)
    assert (world.numbers, world.values(), left(world)) == ([0, 1, 2], ["0", "1", "2"], [])


def _send_too_much(world: World, sender: PreparedSender) -> None:
    with sender.transaction(world.connection) as sending:
        sending.send(Message(topic=world.topic, value=os.urandom(2_000_000)))


def test_a_database_that_goes_away_behind_kafka_s_commit_commits_later(world: World) -> None:
    connection = psycopg.connect(world.dsn)

    def terminate() -> None:
        world.connection.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])

    with prepared(world, probe=At(SendStep.KAFKA_COMMITTED, terminate)) as sender:
        with pytest.raises(psycopg.OperationalError):
            do(world, sender, 1, over=connection)
        assert (world.numbers, world.values()) == ([], ["1"])
        do(world, sender, 2)
    assert (world.numbers, world.values(), left(world)) == ([1, 2], ["1", "2"], [])


def test_an_error_that_was_swallowed_undoes_both_sides(world: World) -> None:
    with prepared(world) as sender, pytest.raises(StateError, match="has failed or was ended"):
        _swallow(world, sender)
    assert (world.values(), left(world)) == ([], [])


def test_a_failed_transaction_that_the_database_calls_prepared_is_none(world: World) -> None:
    """PREPARE TRANSACTION of a transaction in which a statement has failed rolls back, and raises nothing."""

    def fail() -> None:
        with pytest.raises(psycopg.errors.UndefinedTable):
            world.connection.execute("SELECT * FROM nowhere")

    with prepared(world, probe=At(SendStep.PRODUCED, fail)) as sender:
        with pytest.raises(StateError, match="but answered ROLLBACK"):
            do(world, sender, 1)
        do(world, sender, 2)
    assert (world.numbers, world.values()) == ([2], ["2"])


def test_without_its_outcomes_nobody_decides(world: World) -> None:
    gid = _die(world, SendStep.KAFKA_COMMITTED)
    topic = outcome_topic(world.name)
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    admin.delete_topics([topic])[topic].result(60)
    with pytest.raises(StateError, match="does not exist"):
        resolve(world.connection, world.kafka, world.name)
    with prepared(world) as sender, pytest.raises(StateError, match="does not exist"):
        do(world, sender, 2)
    assert left(world) == [gid]
    world.connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())


def _swallow(world: World, sender: PreparedSender) -> None:
    with sender.transaction(world.connection) as sending:
        sending.send(world.message("ghost"))
        with pytest.raises(psycopg.errors.UndefinedTable):
            sending.connection.execute("SELECT * FROM nowhere")


def _die(world: World, step: SendStep) -> str:
    """Leaves a prepared transaction, as a process does that is killed; returns its name."""
    connection = psycopg.connect(world.dsn)
    sender = prepared(world, probe=At(step))
    transaction = sender.transaction(connection)
    sending = transaction.__enter__()
    sending.connection.execute(*world.insert(1))
    sending.send(world.message("1"))
    with pytest.MonkeyPatch.context() as dead:
        dead.setattr(SenderProducer, "abort", lambda _: None)
        dead.setattr(psycopg.Connection, "rollback", lambda _: None)
        with pytest.raises(Death):
            transaction.__exit__(None, None, None)
    connection.close()
    (found,) = find_prepared(world.connection, world.name)
    return found.gid


def _lose_answers(monkeypatch: pytest.MonkeyPatch, *, is_done: bool) -> None:
    commit: Callable[[SenderProducer], None] = SenderProducer.commit

    def lose(producer: SenderProducer) -> None:
        if is_done:
            commit(producer)
        producer.close()
        raise UnavailableError("the answer is lost")

    monkeypatch.setattr(SenderProducer, "commit", lose)


def _away(_: SenderProducer) -> None:
    raise UnavailableError("away")
