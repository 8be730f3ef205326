"""Settings that promises rest on: what a service sets for its clients does not switch them off."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from slackwater.protocol import KafkaSettings
from slackwater_messaging import (
    CapturedOutbox,
    CaptureRelay,
    DeliveryListener,
    Outbox,
    RelaySettings,
    SenderSettings,
)
from slackwater_messaging.database import KeptConnection, make_durable
from slackwater_messaging.kafka import MessageTransactions
from slackwater_messaging.outbox import BatchProducer
from slackwater_messaging.reading import GroupMember, topic_reader
from slackwater_messaging.receiving import ProcessorSettings, ReceiverSettings, TransactionalProcessor

SECOND = timedelta(seconds=1)
HOSTILE = KafkaSettings(
    "127.0.0.1:1",
    {
        "isolation.level": "read_uncommitted",
        "enable.auto.commit": "true",
        "auto.offset.reset": "latest",
        "allow.auto.create.topics": "true",
        "group.id": "theirs",
        "transactional.id": "theirs",
        "transaction.timeout.ms": "1",
        "enable.idempotence": "false",
        "message.timeout.ms": "1",
        "partitioner": "random",
        "client.id": "mine",
    },
)


class Client:
    """Takes the configuration of a client of Kafka."""

    def __init__(self, config: dict[str, Any], **_: Any) -> None:
        made.append(config)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


made: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    for place in ("slackwater_messaging.reading", "slackwater.kafka.reader"):
        monkeypatch.setattr(f"{place}.Consumer", Client)
    for place in ("slackwater_messaging.outbox", "slackwater.kafka.transactions"):
        monkeypatch.setattr(f"{place}.Producer", Client)


def listener() -> None:
    DeliveryListener("", HOSTILE, Outbox("outbox"), topics=["paid"], group="ours")


def member() -> None:
    GroupMember(
        HOSTILE,
        ["said"],
        "ours",
        latest=False,
    )


READS = {"isolation.level": "read_committed", "enable.auto.commit": False, "allow.auto.create.topics": False}
CONSUMERS: dict[str, tuple[Callable[[], object], dict[str, Any]]] = {
    "listener": (listener, {**READS, "auto.offset.reset": "earliest", "group.id": "ours"}),
    "member": (member, {**READS, "auto.offset.reset": "error", "group.id": "ours"}),
    "reader": (
        lambda: topic_reader(HOSTILE, timedelta(1)).__enter__(),
        {**READS, "auto.offset.reset": "error"},
    ),
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_consumer_reads_committed_records_and_commits_only_what_is_done(name: str) -> None:
    make, expected = CONSUMERS[name]
    make()
    (config,) = made
    assert {key: config[key] for key in expected} == expected
    assert config["client.id"] == "mine"


def test_a_sender_s_transactions_are_its_own_and_end_in_time() -> None:
    MessageTransactions(HOSTILE, "ours", SenderSettings())
    (config,) = made
    assert (config["transactional.id"], config["transaction.timeout.ms"]) == ("ours", 60_000)
    assert config["partitioner"] == "murmur2_random"


def test_a_processor_s_transactions_are_its_own_and_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = TransactionalProcessor(HOSTILE, ["said"], group="ours", transactional_id="shouter-0")
    processor._take_over()  # noqa: SLF001
    consumer, producer = made
    assert consumer["isolation.level"] == "read_committed"
    assert (producer["transactional.id"], producer["transaction.timeout.ms"]) == ("shouter-0", 60_000)


def test_a_relay_s_producer_repeats_nothing_and_keeps_keys_in_their_partitions() -> None:
    BatchProducer(HOSTILE, timedelta(seconds=7)).deliver([])
    (config,) = made
    expected = {"enable.idempotence": True, "message.timeout.ms": 7_000, "partitioner": "murmur2_random"}
    assert {key: config[key] for key in expected} == expected


def test_the_defaults_that_the_pages_name() -> None:
    settings = SenderSettings()
    assert settings.clock_margin == timedelta(minutes=10)
    assert settings.transaction_timeout == timedelta(seconds=60)
    assert settings.request_timeout == timedelta(seconds=30)
    assert settings.retry_after == timedelta(seconds=5)
    assert settings.patience > settings.transaction_timeout  # it waits for transactions until they time out


def test_the_defaults_of_relays_and_loops_that_the_pages_name() -> None:
    relay = RelaySettings()
    assert (relay.batch, relay.first_pause, relay.longest_pause) == (500, timedelta(milliseconds=10), SECOND)
    assert relay.retry_after == timedelta(seconds=30)
    for loop in (ReceiverSettings(), ProcessorSettings()):
        assert (loop.max_batch, loop.latest, loop.patience) == (500, False, timedelta(minutes=5))


def test_a_kept_connection_is_one_connection_until_it_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers have few connections: what polls for years must not open one for each call."""
    opened: list[SimpleNamespace] = []

    def connect(*_: object, **__: object) -> Any:
        opened.append(SimpleNamespace(closed=False, transaction=nullcontext, execute=lambda statement: None))
        opened[-1].close = lambda: setattr(opened[-1], "closed", True)
        return opened[-1]

    monkeypatch.setattr(psycopg.Connection, "connect", connect)
    for kept in (KeptConnection("postgresql://shop"), KeptConnection(connect)):
        opened.clear()
        kept.close()
        assert {id(kept.open()) for _ in range(3)} == {id(opened[0])}
        opened[0].closed = True
        kept.open()
        kept.close()
        kept.close()
        assert [each.closed for each in opened] == [True, True]
        kept.open()
        assert len(opened) == 3


def test_a_connection_that_cannot_be_made_durable_is_not_left_open() -> None:
    closed: list[bool] = []

    def fail() -> None:
        raise psycopg.OperationalError("away")

    connection: Any = SimpleNamespace(transaction=fail, close=lambda: closed.append(True))
    with pytest.raises(psycopg.OperationalError):
        make_durable(connection)
    assert closed == [True]


def test_a_capture_relay_does_not_store_positions_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are committed with the messages, or messages would be lost or repeated after a crash."""
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "slackwater_messaging.captured.TransactionalConsumer",
        lambda *_, **options: opened.append(options),
    )
    relay = CaptureRelay(KafkaSettings("127.0.0.1:1"), CapturedOutbox(), source="inv", name="relay")
    relay._open_consumer()  # noqa: SLF001
    (options,) = opened
    assert options["settings"].stores_positions is False
    assert options["group"] == "relay"
    assert options["positions"] == relay._take_over  # noqa: SLF001


def test_a_connection_string_s_password_is_not_in_what_is_reported() -> None:
    outbox = Outbox("outbox")
    from slackwater_messaging import PollingRelay

    with PollingRelay("postgresql://app:geheim@127.0.0.1:1/shop", KafkaSettings("a:1"), outbox) as relay:
        with pytest.raises(psycopg.OperationalError) as caught:
            relay.run_once()
        assert "geheim" not in f"{caught.value} {relay!r} {relay._connection!r}"  # noqa: SLF001
