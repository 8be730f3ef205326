"""The ways of sending as services use them, and what each promises when the service dies."""

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

import psycopg
from confluent_kafka import Producer

from slackwater.protocol import KafkaSettings
from slackwater_lab.errors import RunFailedError
from slackwater_lab.messaging.connectors import Ends, event_router, make_slot, open_worker
from slackwater_lab.messaging.sending.service import (
    BUSINESS,
    Business,
    Database,
    Order,
    Probe,
    Send,
    judge,
    make_business_table,
)
from slackwater_messaging import (
    CapturedOutbox,
    CaptureRelay,
    ChainedSender,
    CommitOrder,
    DeliveryListener,
    Message,
    Outbox,
    PollingRelay,
    PreparedSender,
    ProvenSender,
    SavedSender,
    SendStep,
)
from slackwater_messaging.outbox import MessageTable

Sender = ChainedSender | SavedSender | PreparedSender

_WAIT: Final = timedelta(seconds=60)
_FLUSH_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.05


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


class Delivery(Protocol):
    """What delivers for a service beside it: a relay, a listener, a connector."""

    def run_once(self) -> object:
        """Delivers what is there, or waits a while for something to come."""

    def run(self, stop: threading.Event) -> None:
        """Delivers until it is asked to stop."""


class _Nobody:
    """Delivers for services that need nobody for it."""

    def run_once(self) -> object:
        raise RunFailedError("a service without a relay", "has left messages to be delivered")

    def run(self, stop: threading.Event) -> None:
        stop.wait()


def _needs_nobody(order: Order, probe: Probe) -> AbstractContextManager[Delivery]:
    del order, probe
    return nullcontext(_Nobody())


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way of sending."""

    open: Callable[[Order, Probe], AbstractContextManager[Business]]
    """Makes the tables, unless they are there, and opens a service."""
    deaths: Mapping[str, Loss]
    """Its steps in order, and what a death just behind each costs: behind one is before the next."""
    deliver: Callable[[Order, Probe], AbstractContextManager[Delivery]] = _needs_nobody
    """Opens what delivers beside the service."""
    is_delivered: Callable[[Order], bool] = lambda order: True
    """Whether everything that is committed was delivered."""
    open_sender: Callable[[Order, Probe], Sender] | None = None
    """Makes the sender, of ways that have one."""
    needs_capture: bool = False
    """Whether it needs a connector of all tables, with the source's name :data:`SOURCE`, and a sidecar."""

    is_connector: bool = False
    """Whether a connector that others have made delivers: it starts slowly, and no probe is within it."""

    @property
    def costs(self) -> frozenset[str]:
        """The fields of :class:`Loss` that a death at some step may cost; nothing else ever."""
        losses = [asdict(loss) for loss in self.deaths.values()]
        return frozenset(name for loss in losses for name, value in loss.items() if value != 0)

    @property
    def needs_delivery(self) -> bool:
        return self.deliver is not _needs_nobody


# --- ways with a sender


def _with_sender(
    make: Callable[[Order, Probe], Sender],
) -> Callable[[Order, Probe], AbstractContextManager[Business]]:
    @contextmanager
    def open_service(order: Order, probe: Probe) -> Iterator[Business]:
        make_business_table(order)
        with make(order, probe) as sender:

            @contextmanager
            def transaction(connection: Database) -> Iterator[Send]:
                with sender.transaction(connection) as sending:
                    yield sending.send

            with closing(Business(order, transaction, probe)) as business:
                yield business

    return open_service


def _chained(commits: CommitOrder) -> Callable[[Order, Probe], Sender]:
    def make(order: Order, probe: Probe) -> Sender:
        return ChainedSender(order.kafka, order.name, order=commits, settings=order.settings, probe=probe)

    return make


def _saved(order: Order, probe: Probe) -> Sender:
    return SavedSender(order.kafka, _made_outbox(order), order.name, settings=order.settings, probe=probe)


def _proven(order: Order, probe: Probe) -> Sender:
    return ProvenSender(order.kafka, _made_outbox(order), order.name, settings=order.settings, probe=probe)


def _prepared(order: Order, probe: Probe) -> Sender:
    return PreparedSender(order.kafka, order.name, settings=order.settings, probe=probe)


# --- ways with a table alone


def _with_table(
    make: Callable[[Order], MessageTable],
) -> Callable[[Order, Probe], AbstractContextManager[Business]]:
    @contextmanager
    def open_service(order: Order, probe: Probe) -> Iterator[Business]:
        make_business_table(order)
        table = make(order)

        @contextmanager
        def transaction(connection: Database) -> Iterator[Send]:
            with connection.transaction():
                yield lambda *messages: table.send(connection, *messages)

        with closing(Business(order, transaction, probe)) as business:
            yield business

    return open_service


def _made_outbox(order: Order) -> Outbox:
    outbox = Outbox(order.outbox)
    with psycopg.connect(order.database, autocommit=True) as connection:
        outbox.create(connection)
    return outbox


def _made_captured(order: Order) -> CapturedOutbox:
    outbox = CapturedOutbox(f"public.{order.outbox}")
    with psycopg.connect(order.database, autocommit=True) as connection:
        outbox.create(connection)
    return outbox


def _made_routed(order: Order) -> CapturedOutbox:
    outbox = _made_captured(order)
    with psycopg.connect(order.database, autocommit=True) as connection:
        make_slot(connection, order.outbox)
    return outbox


# --- the plain way, to compare with


@contextmanager
def _open_after_commit(order: Order, probe: Probe) -> Iterator[Business]:
    make_business_table(order)
    producer = Producer({**order.kafka.client_config, "enable.idempotence": True})

    @contextmanager
    def transaction(connection: Database) -> Iterator[Send]:
        messages: list[Message] = []
        with connection.transaction():
            yield lambda *sent: messages.extend(sent)
        probe(SendStep.DATABASE_COMMITTED)
        for each in messages:
            producer.produce(each.topic, each.value, each.key)
        producer.flush(_FLUSH_SECONDS)
        probe(SendStep.PRODUCED)

    with closing(Business(order, transaction, probe)) as business:
        yield business


# --- what delivers


def _poll(order: Order, probe: Probe) -> PollingRelay:
    return PollingRelay(order.database, order.kafka, _made_outbox(order), probe=probe)


def _listen(order: Order, probe: Probe) -> DeliveryListener:
    # as a static member it takes over at once from one that has died
    kafka = KafkaSettings(order.bootstrap, {"group.instance.id": order.name})
    return DeliveryListener(
        order.database, kafka, _made_outbox(order), topics=[order.topic], group=order.name, probe=probe
    )


def _capture(order: Order, probe: Probe) -> CaptureRelay:
    # the group notices soon that a relay has died
    kafka = KafkaSettings(order.bootstrap, {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"})
    table = CapturedOutbox(f"public.{order.outbox}")
    return CaptureRelay(kafka, table, source=SOURCE, name=order.name, batch=order.capture_batch, probe=probe)


class _Connector:
    """A connector at work."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def run_once(self) -> None:
        pause = threading.Event()
        while not _is_in_topic(self._order):
            pause.wait(_LOOK_SECONDS)

    def run(self, stop: threading.Event) -> None:
        stop.wait()


@contextmanager
def _route(order: Order, probe: Probe) -> Iterator[Delivery]:
    del probe  # nobody can look into it
    ends = Ends(dsn=order.database, bootstrap=order.bootstrap)
    folder = Path(tempfile.gettempdir()) / f"slackwater-{order.name}"  # found again after a death
    with open_worker(folder, ends, event_router(ends, order.outbox)):
        yield _Connector(order)
    shutil.rmtree(folder, ignore_errors=True)


def _is_empty(order: Order) -> bool:
    query = f"SELECT NOT EXISTS (SELECT FROM {order.outbox})".encode()  # noqa: S608 - our own name
    with psycopg.connect(order.database, autocommit=True) as connection:
        return connection.execute(query).fetchone() == (True,)


def _is_in_topic(order: Order) -> bool:
    return judge(order).lost == 0


def _costs_nothing(*steps: SendStep) -> dict[str, Loss]:
    return dict.fromkeys([BUSINESS, *steps], NOTHING)


_SAVED_STEPS: Final = (
    SendStep.SAVED,
    SendStep.DATABASE_COMMITTED,
    SendStep.PRODUCED,
    SendStep.KAFKA_COMMITTED,
)

WAYS: Final[Mapping[str, Way]] = MappingProxyType(
    {
        "after-commit": Way(
            open=_open_after_commit,
            deaths={
                BUSINESS: NOTHING,
                SendStep.DATABASE_COMMITTED: Loss(lost=2),
                SendStep.PRODUCED: NOTHING,
            },
        ),
        "polling": Way(
            open=_with_table(_made_outbox),
            deaths={
                BUSINESS: NOTHING,
                SendStep.TAKEN: NOTHING,
                SendStep.PRODUCED: Loss(repeated=None),
                SendStep.REMOVED: Loss(repeated=None),
                SendStep.DATABASE_COMMITTED: NOTHING,
            },
            deliver=_poll,
            is_delivered=_is_empty,
        ),
        "captured": Way(
            open=_with_table(_made_captured),
            deaths=_costs_nothing(SendStep.TAKEN, SendStep.PRODUCED, SendStep.KAFKA_COMMITTED),
            deliver=_capture,
            is_delivered=_is_in_topic,
            needs_capture=True,
        ),
        "event-router": Way(
            open=_with_table(_made_routed),
            # its connector dies with the service, and has not stored how far it had come before
            deaths={BUSINESS: Loss(repeated=None)},
            deliver=_route,
            is_delivered=_is_in_topic,
            is_connector=True,
        ),
        "chained-database-first": Way(
            open=_with_sender(_chained(CommitOrder.DATABASE_FIRST)),
            deaths={
                BUSINESS: NOTHING,
                SendStep.PRODUCED: NOTHING,
                SendStep.DATABASE_COMMITTED: Loss(lost=2),
                SendStep.KAFKA_COMMITTED: NOTHING,
            },
            open_sender=_chained(CommitOrder.DATABASE_FIRST),
        ),
        "chained-kafka-first": Way(
            open=_with_sender(_chained(CommitOrder.KAFKA_FIRST)),
            deaths={
                BUSINESS: NOTHING,
                SendStep.PRODUCED: NOTHING,
                SendStep.KAFKA_COMMITTED: Loss(ghosts=2, early=2),
                SendStep.DATABASE_COMMITTED: NOTHING,
            },
            open_sender=_chained(CommitOrder.KAFKA_FIRST),
        ),
        "saved": Way(
            open=_with_sender(_saved),
            deaths=_costs_nothing(*_SAVED_STEPS, SendStep.REMOVED),
            open_sender=_saved,
        ),
        "proven": Way(
            open=_with_sender(_proven),
            deaths=_costs_nothing(*_SAVED_STEPS, SendStep.TAKEN, SendStep.REMOVED),
            deliver=_listen,
            is_delivered=_is_empty,
            open_sender=_proven,
        ),
        "prepared": Way(
            open=_with_sender(_prepared),
            deaths={
                **_costs_nothing(SendStep.PRODUCED, SendStep.PREPARED),
                SendStep.KAFKA_COMMITTED: Loss(early=2),
                SendStep.DATABASE_COMMITTED: NOTHING,
            },
            open_sender=_prepared,
        ),
    }
)
