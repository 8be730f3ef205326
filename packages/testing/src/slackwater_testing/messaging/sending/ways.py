"""The ways of sending as services use them, and what each promises when the service dies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Final

import psycopg

from slackwater_messaging.sending import (
    CapturedOutbox,
    CaptureRelay,
    ChainedSender,
    CommitOrder,
    DeliveryListener,
    Outbox,
    PollingRelay,
    PreparedSender,
    ProvenSender,
    SavedSender,
    SenderSettings,
    SendProbe,
    SendStep,
)
from slackwater_protocol import KafkaSettings
from slackwater_testing.messaging.sending.judge import judge
from slackwater_testing.messaging.sending.service import (
    Order,
    do_business,
    failing_business,
    make_business_table,
)

Sender = ChainedSender | SavedSender | PreparedSender

_SETTINGS: Final = SenderSettings(clock_margin=timedelta(minutes=1))
_WAIT: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a death at a step costs, in messages. None: any number above 0."""

    lost: int | None = 0
    repeated: int | None = 0
    ghosts: int | None = 0
    early: int | None = 0
    """Messages that were visible without their data between death and recovery."""


NOTHING: Final = Loss()
SOURCE: Final = "inv"
"""The connector of ways that need one."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way of sending."""

    run: Callable[[Order, SendProbe], None]
    """Does an order's business transactions, and sends until nothing is left to be sent."""
    deaths: Mapping[SendStep, Loss]
    """Its steps, and what a death just behind each costs."""
    needs_capture: bool = False
    """Whether it needs a connector of all tables, with the source's name :data:`SOURCE`, and a sidecar."""


def _connect(order: Order) -> psycopg.Connection[tuple[object, ...]]:
    connection = psycopg.connect(order.database, autocommit=True)
    make_business_table(connection, order)
    return connection


def _run_polling(order: Order, probe: SendProbe) -> None:
    outbox = _made_outbox(order)
    with (
        _connect(order) as connection,
        PollingRelay(order.database, order.kafka, outbox, probe=probe) as relay,
    ):
        for number in order.numbers:
            with failing_business(), connection.transaction():
                do_business(connection, order, number, lambda *m: outbox.send(connection, *m))
            while relay.run_once():
                pass


def _run_chained(commits: CommitOrder) -> Callable[[Order, SendProbe], None]:
    def run(order: Order, probe: SendProbe) -> None:
        with ChainedSender(order.kafka, order.name, order=commits, settings=_SETTINGS, probe=probe) as sender:
            _send(order, sender)

    return run


def _run_saved(order: Order, probe: SendProbe) -> None:
    outbox = _made_outbox(order)
    with SavedSender(order.kafka, outbox, order.name, settings=_SETTINGS, probe=probe) as sender:
        _send(order, sender)


def _run_proven(order: Order, probe: SendProbe) -> None:
    outbox = _made_outbox(order)
    # as a static member it takes over at once from one that has died
    kafka = KafkaSettings(order.bootstrap, {"group.instance.id": order.name})
    with (
        ProvenSender(order.kafka, outbox, order.name, settings=_SETTINGS, probe=probe) as sender,
        DeliveryListener(
            order.database, kafka, outbox, topics=[order.topic], group=order.name, probe=probe
        ) as listener,
        _connect(order) as connection,
    ):
        for number in order.numbers:
            _send(replace(order, first=number, count=1), sender)
            while outbox.read(connection, order.name):
                listener.run_once(_WAIT)


def _run_prepared(order: Order, probe: SendProbe) -> None:
    with PreparedSender(order.kafka, order.name, settings=_SETTINGS, probe=probe) as sender:
        _send(order, sender)


def _run_captured(order: Order, probe: SendProbe) -> None:
    outbox = CapturedOutbox(f"public.{order.outbox}")
    with _connect(order) as connection:
        outbox.create(connection)
        for number in order.numbers:
            with failing_business(), connection.transaction():
                do_business(connection, order, number, lambda *m: outbox.send(connection, *m))
    # the group notices soon that a relay has died
    kafka = KafkaSettings(order.bootstrap, {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"})
    with CaptureRelay(kafka, outbox, source=SOURCE, name=order.name, batch=1, probe=probe) as relay:
        while judge(order.database, order.bootstrap, order.table, order.topic).lost:
            relay.run_once()


def _made_outbox(order: Order) -> Outbox:
    outbox = Outbox(order.outbox)
    with _connect(order) as connection:
        outbox.create(connection)
    return outbox


def _send(order: Order, sender: Sender) -> None:
    with _connect(order) as connection:
        for number in order.numbers:
            with failing_business(), sender.transaction(connection) as sending:
                do_business(sending.connection, order, number, sending.send)


WAYS: Final[Mapping[str, Way]] = MappingProxyType(
    {
        "polling": Way(
            _run_polling,
            {
                SendStep.TAKEN: NOTHING,
                SendStep.PRODUCED: Loss(repeated=None),
                SendStep.REMOVED: Loss(repeated=None),
                SendStep.DATABASE_COMMITTED: NOTHING,
            },
        ),
        "captured": Way(
            _run_captured,
            dict.fromkeys([SendStep.TAKEN, SendStep.PRODUCED, SendStep.KAFKA_COMMITTED], NOTHING),
            needs_capture=True,
        ),
        "chained-database-first": Way(
            _run_chained(CommitOrder.DATABASE_FIRST),
            {
                SendStep.PRODUCED: NOTHING,
                SendStep.DATABASE_COMMITTED: Loss(lost=2),
                SendStep.KAFKA_COMMITTED: NOTHING,
            },
        ),
        "chained-kafka-first": Way(
            _run_chained(CommitOrder.KAFKA_FIRST),
            {
                SendStep.PRODUCED: NOTHING,
                SendStep.KAFKA_COMMITTED: Loss(ghosts=2, early=2),
                SendStep.DATABASE_COMMITTED: NOTHING,
            },
        ),
        "saved": Way(
            _run_saved,
            dict.fromkeys(
                [
                    SendStep.SAVED,
                    SendStep.DATABASE_COMMITTED,
                    SendStep.PRODUCED,
                    SendStep.KAFKA_COMMITTED,
                    SendStep.REMOVED,
                ],
                NOTHING,
            ),
        ),
        "proven": Way(
            _run_proven,
            dict.fromkeys(
                [
                    SendStep.SAVED,
                    SendStep.DATABASE_COMMITTED,
                    SendStep.PRODUCED,
                    SendStep.KAFKA_COMMITTED,
                    SendStep.TAKEN,
                    SendStep.REMOVED,
                ],
                NOTHING,
            ),
        ),
        "prepared": Way(
            _run_prepared,
            {
                SendStep.PRODUCED: NOTHING,
                SendStep.PREPARED: NOTHING,
                SendStep.KAFKA_COMMITTED: Loss(early=2),
                SendStep.DATABASE_COMMITTED: NOTHING,
            },
        ),
    }
)
