"""Messages out of the database's log, with a connector and a sidecar that are played, over a real broker.

``tests/system/test_messaging.py`` has real ones. How the promises were seen to fail. Exactly once:
``_route`` without ``send_offsets``. Whole transactions: ``producer.commit`` after each message.
"""

import base64
import threading
from datetime import timedelta
from typing import Any

import pytest

from slackwater.cdc import BadInputError
from slackwater.client import ChangeTopics, TransactionalConsumer
from slackwater.protocol import ConfigError
from slackwater.protocol.keys import HEADER_COMMIT_LSN
from slackwater_lab.fakes.outputs import ChangeWriter, KafkaTopics
from slackwater_lab.messaging.sending.world import World
from slackwater_lab.probes import At, Death
from slackwater_messaging import HEADER_MESSAGE, CapturedOutbox, CaptureRelay, SendStep
from slackwater_messaging.message import header_of

pytestmark = pytest.mark.integration
TABLE = "public.outbox"
SOON = timedelta(seconds=0.3)


class Log:
    """A connector that reads a captured outbox and an ordinary table."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.outbox = CapturedOutbox(TABLE)
        topics = KafkaTopics(world.bootstrap, f"{world.name}-connector")
        self.changes = ChangeWriter(topics, world.name, {TABLE: 3, "public.orders": 1})
        self._next = 0

    def commit(self, *values: str, **others: Any) -> int:
        """One transaction with these messages, rows of which are removed at once; returns its LSN."""
        rows: list[tuple[str, int, Any]] = [("public.orders", 1, {"id": 1})]
        for value in values:
            self._next += 1
            rows += [(TABLE, self._next, self.row(value) | others), (TABLE, self._next, None)]
        lsn = self.changes.transaction(rows)
        self.changes.cut()
        return lsn

    def row(self, value: str) -> dict[str, Any]:
        return {
            "id": self._next,
            "topic": self.world.topic,
            "key": base64.b64encode(b"k").decode(),
            "value": base64.b64encode(value.encode()).decode(),
            "headers": '[["trace", "abc"]]',
            "created_at": "2026-11-25T04:37:43.150517Z",
        }

    def relay(self, **options: Any) -> CaptureRelay:
        return CaptureRelay(
            self.world.kafka, self.outbox, source=self.world.name, name=f"{self.world.name}-relay", **options
        )


@pytest.fixture
def log(world: World) -> Log:
    return Log(world)


def route(relay: CaptureRelay, world: World, count: int) -> None:
    """Routes until this many messages are in the topic, and nothing more comes."""
    while len(world.values()) < count:
        relay.run_once(SOON)
    assert relay.run_once(SOON) == 0


def test_messages_get_to_their_topics_in_commit_order_with_headers(world: World, log: Log) -> None:
    lsns = [log.commit("a", "b"), log.commit(), log.commit("c")]
    with log.relay() as relay:
        route(relay, world, 3)
        lsns.append(log.commit("d"))
        route(relay, world, 4)
    records = world.records()
    assert world.values() == ["a", "b", "c", "d"]
    assert [header_of(r.headers(), HEADER_COMMIT_LSN) for r in records] == [
        str(lsns[n]) for n in (0, 0, 2, 3)
    ]
    first = records[0]
    assert (first.key(), header_of(first.headers(), "trace")) == (b"k", "abc")
    assert header_of(first.headers(), HEADER_MESSAGE) == f"{TABLE}/1/1795581463150517"


@pytest.mark.full
@pytest.mark.parametrize("step", [SendStep.TAKEN, SendStep.PRODUCED, SendStep.KAFKA_COMMITTED])
def test_a_death_repeats_and_loses_nothing(world: World, log: Log, step: SendStep) -> None:
    log.commit("a", "b")
    log.commit("c")
    with pytest.raises(Death), log.relay(probe=At(step)) as relay:
        route(relay, world, 3)
    with log.relay() as relay:
        log.commit("d")
        route(relay, world, 4)
    assert world.values() == ["a", "b", "c", "d"]


def test_progress_that_is_not_committed_with_the_messages_repeats_them(
    world: World, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin."""
    monkeypatch.setattr("slackwater_messaging.kafka.SenderProducer.send_offsets", lambda *_: None)
    log.commit("a")
    for number in range(2):
        with log.relay() as relay:
            route(relay, world, number + 1)
    assert world.values() == ["a", "a"]


def test_a_transaction_is_never_torn_however_small_a_batch_is(world: World, log: Log) -> None:
    log.commit("a", "b", "c")
    log.commit("d")
    sizes: list[int] = []
    with log.relay(batch=1) as relay:
        while sum(sizes) < 4:
            sizes += [found] if (found := relay.run_once(SOON)) else []
    assert sizes == [3, 1]
    assert world.values() == ["a", "b", "c", "d"]


def test_a_service_may_read_whole_transactions_itself(world: World, log: Log) -> None:
    log.commit("a", "b")
    inputs = ChangeTopics(source=world.name, tables=("public.orders", TABLE))
    with TransactionalConsumer(world.kafka, inputs, group=f"{world.name}-direct") as consumer:
        transaction = next(iter(consumer))
        found = [each.message.value for each in log.outbox.messages(transaction)]
    assert found == [b"a", b"b"]


def test_a_row_that_is_no_message_is_named_with_its_place(world: World, log: Log) -> None:
    log.commit("a", value="//hex//!")
    with (
        log.relay() as relay,
        pytest.raises(BadInputError, match=r"partition 1, offset 0: .*binary\.handling\.mode"),
    ):
        route(relay, world, 1)
    assert world.values() == []


@pytest.mark.full
def test_a_topic_that_is_not_there_is_named_and_nothing_is_passed_over(world: World, log: Log) -> None:
    log.commit("a", "b", topic=f"{world.name}.later")
    stop = threading.Event()
    with log.relay() as relay:
        with pytest.raises(ConfigError, match="create the topic"):
            relay.run(stop)
        later = world.make_topic("later")
        while not world.values(later):
            relay.run_once(SOON)
    assert world.values(later) == ["a", "b"]


def test_the_table_is_empty_for_everybody(world: World) -> None:
    outbox = CapturedOutbox(f"public.{world.name}_captured")
    outbox.create(world.connection)
    outbox.create(world.connection)
    query = f"SELECT count(*) FROM {outbox.table}".encode()  # noqa: S608
    with world.connection.transaction():
        outbox.send(world.connection, world.message("1"), world.message("2"))
        assert world.connection.execute(query).fetchone() == (0,)
    assert world.connection.execute(query).fetchone() == (0,)


def test_change_topics_name_the_schema() -> None:
    with pytest.raises(ConfigError, match=r"expected schema\.table"):
        CapturedOutbox("outbox")
