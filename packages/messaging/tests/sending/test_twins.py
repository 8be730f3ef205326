"""The same deaths with the mechanisms switched off: what the crash suite would find without them."""

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from slackwater_lab.messaging.sending.world import World
from slackwater_lab.probes import At, Death
from slackwater_messaging import (
    PollingRelay,
    PreparedSender,
    Recovery,
    SavedMessage,
    SavedSender,
    SendStep,
)
from slackwater_messaging.kafka import SenderProducer

pytestmark = pytest.mark.integration


def die_and_recover(world: World, kind: type[SavedSender], step: SendStep) -> Recovery:
    with pytest.raises(Death):
        do(world, kind(world.kafka, world.outbox, world.name, probe=At(step)))
    with kind(world.kafka, world.outbox, world.name) as sender:
        return sender.recover(world.connection)


def do(
    world: World, sender: SavedSender | PreparedSender, over: psycopg.Connection[Any] | None = None
) -> None:
    with sender.transaction(over or world.connection) as sending:
        sending.connection.execute(*world.insert(1))
        sending.send(world.message("1"))


def test_recovery_that_does_not_look_into_the_topic_repeats(world: World) -> None:
    class Blind(SavedSender):
        def _missing(self, saved: Sequence[SavedMessage]) -> list[SavedMessage]:
            return list(saved)

    assert die_and_recover(world, Blind, SendStep.KAFKA_COMMITTED) == Recovery(0, 1)
    assert world.values() == ["1", "1"]


def test_recovery_that_takes_every_message_for_sent_loses(world: World) -> None:
    class Trusting(SavedSender):
        def _missing(self, saved: Sequence[SavedMessage]) -> list[SavedMessage]:
            return []

    die_and_recover(world, Trusting, SendStep.DATABASE_COMMITTED)
    assert (world.numbers, world.values()) == ([1], [])


def test_recovery_that_does_not_fence_repeats_what_a_paused_process_sends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process had committed in the database, was paused, and continues when another one has recovered."""
    found: list[str] = []
    for is_fenced in (False, True):
        world.connection.execute(f"TRUNCATE {world.table}".encode())
        other = SavedSender(world.kafka, world.outbox, world.name if is_fenced else f"{world.name}-unfenced")
        monkeypatch.setattr(other, "name", world.name)

        def recover(other: SavedSender = other) -> None:
            with psycopg.connect(world.dsn, autocommit=True) as connection:
                other.recover(connection)

        probe = At(SendStep.DATABASE_COMMITTED, recover)
        with SavedSender(world.kafka, world.outbox, world.name, probe=probe) as paused, other:
            do(world, paused)
            paused.recover(world.connection)
        found.append(",".join(world.values()))
    assert found == ["1,1", "1,1,1"]


@pytest.mark.parametrize(
    ("always", "step", "numbers", "values"),
    [(False, SendStep.KAFKA_COMMITTED, [], ["1"]), (True, SendStep.PREPARED, [1], [])],
)
def test_a_decision_that_does_not_ask_the_topic_tears_both_sides_apart(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    always: bool,
    step: SendStep,
    numbers: list[int],
    values: list[str],
) -> None:
    with monkeypatch.context() as dead:
        dead.setattr(SenderProducer, "abort", lambda _: None)
        dead.setattr(psycopg.Connection, "rollback", lambda _: None)
        with pytest.raises(Death), psycopg.connect(world.dsn, autocommit=True) as connection:
            do(world, PreparedSender(world.kafka, world.name, probe=At(step)), connection)
    monkeypatch.setattr("slackwater_messaging.committing.is_committed", lambda *_: always)
    with PreparedSender(world.kafka, world.name) as sender:
        sender.recover(world.connection)
    assert (world.numbers, world.values()) == (numbers, values)


def test_a_relay_that_removes_before_it_sends_loses(world: World) -> None:
    class Hasty(PollingRelay):
        def _send(self, connection: psycopg.Connection[Any], lane: int) -> int:
            with connection.transaction():
                taken = self._outbox.take(connection, lane, 10)
                self._outbox.remove_taken(connection, lane, taken)
            self._probe(SendStep.REMOVED)
            self._producer.deliver(taken)
            return len(taken)

    world.outbox.send(world.connection, world.message("1"))
    with (
        pytest.raises(Death),
        Hasty(world.dsn, world.kafka, world.outbox, probe=At(SendStep.REMOVED)) as relay,
    ):
        relay.run_once()
    with Hasty(world.dsn, world.kafka, world.outbox) as relay:
        assert relay.run_once() == 0
    assert (world.values(), world.waiting) == ([], 0)
