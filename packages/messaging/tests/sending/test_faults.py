"""Servers that are killed and producers that are overtaken while a service sends, at every step of every way.

The service goes on as services do: it connects anew and takes the next piece of work.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from slackwater_devstack import DevStack
from slackwater_messaging import (
    ChainedSender,
    CommitOrder,
    MessagingError,
    Outbox,
    PollingRelay,
    PreparedSender,
    ProvenSender,
    RelaySettings,
    SavedSender,
    SenderSettings,
)
from slackwater_messaging.sending import SendProbe, SendStep
from slackwater_messaging.sending.step import no_probe
from slackwater_testing.messaging.sending import WAYS, Verdict, judge
from slackwater_testing.messaging.sending.crash import new_order
from slackwater_testing.messaging.sending.service import Order, do_business, make_business_table

pytestmark = [pytest.mark.integration, pytest.mark.full]

SETTINGS = SenderSettings(retry_after=timedelta(0), clock_margin=timedelta(minutes=1))
IMPATIENT = SenderSettings(
    retry_after=timedelta(0), clock_margin=timedelta(minutes=1), transaction_timeout=timedelta(seconds=1)
)
Sender = ChainedSender | SavedSender | PreparedSender
STEPS = {name: list(way.deaths) for name, way in WAYS.items() if name not in ("polling", "captured")}
STEPS["proven"] = [step for step in STEPS["saved"] if step is not SendStep.REMOVED]


class Shop:
    """A service, its servers and its faults."""

    def __init__(self, stack: DevStack, order: Order) -> None:
        self.stack, self.order = stack, order
        self.is_open = False
        """Whether the Kafka transaction stands open at the step of the fault."""
        self.outbox = Outbox(order.outbox)
        with self.connect() as connection:
            make_business_table(connection, order)
            self.outbox.create(connection)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.order.database, autocommit=True)

    def sender(self, settings: SenderSettings = SETTINGS, probe: SendProbe = no_probe) -> Sender:
        kafka, name = self.order.kafka, self.order.name
        match self.order.way:
            case "saved":
                return SavedSender(kafka, self.outbox, name, settings=settings, probe=probe)
            case "proven":
                return ProvenSender(kafka, self.outbox, name, settings=settings, probe=probe)
            case "prepared":
                return PreparedSender(kafka, name, settings=settings, probe=probe)
            case way:
                order = CommitOrder(way.removeprefix("chained-"))
                return ChainedSender(kafka, name, order=order, settings=settings, probe=probe)

    def work(self, sender: Sender, numbers: range) -> None:
        """Does business; what fails is left, and the next is done over another connection."""
        for number in numbers:
            with (
                suppress(MessagingError, psycopg.Error),
                self.connect() as connection,
                sender.transaction(connection) as sending,
            ):
                do_business(sending.connection, self.order, number, sending.send)

    @property
    def waiting(self) -> bool:
        """Whether the outbox has rows; so it counts as long as the database is away."""
        with suppress(psycopg.Error), self.connect() as connection:
            query = f"SELECT EXISTS (SELECT FROM {self.outbox.table})".encode()  # noqa: S608 - our own name
            return connection.execute(query).fetchone() == (True,)
        return True

    def verdict(self) -> Verdict:
        order = self.order
        return judge(order.database, order.bootstrap, order.table, order.topic)

    # --- faults

    def kill_database(self) -> None:
        self.stack.postgres.kill()
        self.stack.postgres.start()

    def kill_broker(self) -> None:
        """Kills it, but not between a commit that it has acknowledged and the records that end it.

        A single broker that comes up again may take its own partitions for deleted before it has registered,
        and then never writes them: the transaction hangs, and nobody reads behind it.
        """
        if not self.is_open:
            self.outlast()
        self.stack.kafka.kill()
        self.stack.kafka.start()

    def overtake(self) -> None:
        """Another process takes the sender's name."""
        with self.sender() as other, suppress(MessagingError), self.connect() as connection:
            if isinstance(other, ChainedSender):
                other._producer.open()  # noqa: SLF001 - it has nothing to send
            else:
                other.recover(connection)

    def outlast(self) -> None:
        """Waits until Kafka has ended every open transaction for its age."""
        admin = AdminClient({"bootstrap.servers": self.order.bootstrap})
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        places = [TopicPartition(self.order.topic, number) for number in range(2)]
        pause = threading.Event()
        while len({self._ends(admin, places, latest, level) for level in IsolationLevel}) > 1:
            pause.wait(0.05)

    @staticmethod
    def _ends(
        admin: AdminClient, places: list[TopicPartition], latest: OffsetSpec, level: IsolationLevel
    ) -> tuple[int, ...]:
        found = admin.list_offsets(dict.fromkeys(places, latest), isolation_level=level)
        return tuple(each.result(60).offset for each in found.values())


FAULTS: dict[str, Callable[[Shop], None]] = {
    "database killed": Shop.kill_database,
    "broker killed": Shop.kill_broker,
    "producer fenced": Shop.overtake,
    "transaction timed out": Shop.outlast,
}
CASES = [(way, step, fault) for way, steps in STEPS.items() for step in steps for fault in FAULTS]


@pytest.fixture(scope="module")
def stack(dev_stack: Callable[..., DevStack]) -> DevStack:
    soon = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "broker.session.timeout.ms": "3000",  # so soon a killed broker may register again
        "broker.heartbeat.interval.ms": "300",
    }
    return dev_stack(connect=False, redis=False, broker_overrides=soon)


@pytest.mark.parametrize(("way", "step", "fault"), CASES)
def test_a_fault_costs_nothing_but_what_the_way_says(
    stack: DevStack, way: str, step: SendStep, fault: str
) -> None:
    shop = Shop(stack, new_order(way, stack.postgres.dsn(), stack.kafka.bootstrap))
    steps = STEPS[way]
    shop.is_open = steps.index(SendStep.PRODUCED) <= steps.index(step) < steps.index(SendStep.KAFKA_COMMITTED)
    settings = IMPATIENT if fault == "transaction timed out" else SETTINGS
    probe = _Second(step, lambda: FAULTS[fault](shop))
    with shop.sender(settings, probe) as sender:
        shop.work(sender, range(1, 4))
    with shop.sender() as sender:
        shop.work(sender, range(5, 7))
    verdict = shop.verdict()
    assert probe.is_done
    assert verdict.rows >= 4
    assert (verdict.repeated, verdict.disordered) == (0, 0)
    assert verdict.lost in ((0, 2) if way == "chained-database-first" else (0,))
    assert verdict.ghosts in ((0, 2) if way == "chained-kafka-first" else (0,))


@pytest.mark.parametrize("fault", ["database killed", "broker killed"])
@pytest.mark.parametrize("step", WAYS["polling"].deaths)
def test_a_relay_goes_on_after_a_fault(stack: DevStack, step: SendStep, fault: str) -> None:
    shop = Shop(stack, new_order("polling", stack.postgres.dsn(), stack.kafka.bootstrap))
    with shop.connect() as connection:
        for number in range(1, 4):
            with connection.transaction():
                do_business(connection, shop.order, number, lambda *m: shop.outbox.send(connection, *m))
    probe, stop = _Second(step, lambda: FAULTS[fault](shop)), threading.Event()
    settings = RelaySettings(longest_pause=timedelta(milliseconds=100))
    with PollingRelay(
        shop.order.database, shop.order.kafka, shop.outbox, settings=settings, probe=probe
    ) as relay:
        thread = threading.Thread(target=relay.run, args=(stop,))
        thread.start()
        pause = threading.Event()
        while not probe.is_done or shop.waiting:
            pause.wait(0.1)
        stop.set()
        thread.join()
    verdict = shop.verdict()
    assert (verdict.rows, verdict.lost, verdict.ghosts, verdict.disordered) == (3, 0, 0, 0)
    assert verdict.repeated <= 2


class _Second:
    """Does something at the second occurrence of a step."""

    def __init__(self, step: SendStep, act: Callable[[], object]) -> None:
        self._step, self._left, self._act = step, 2, act
        self.is_done = False

    def __call__(self, step: SendStep) -> None:
        if step is self._step:
            self._left -= 1
            if self._left == 0:
                self._act()
                self.is_done = True
