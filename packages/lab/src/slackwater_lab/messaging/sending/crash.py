"""Kills a service, at a step or at random moments, judges what it left, and starts it again.

Servers are killed and producers overtaken at a step, too: then the service continues as services do. It
connects again and takes the next piece of work.
"""

import random
import signal
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from itertools import count
from types import MappingProxyType
from typing import Final

import psycopg
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from slackwater.protocol import SlackwaterError
from slackwater_lab.errors import RunFailedError
from slackwater_lab.messaging.sending.service import (
    Business,
    Order,
    SendVerdict,
    judge,
    run_in_process,
    start,
)
from slackwater_lab.messaging.sending.ways import WAYS, Delivery, Loss
from slackwater_lab.probes import At, Servers
from slackwater_lab.topics import make_topics
from slackwater_lab.watching import wait_until
from slackwater_messaging import ChainedSender, SenderSettings, SendStep

PARTITIONS = 2
"""Of the topic of a service."""
_PER_RUN = 100_000
"""More business transactions than a run gets done before it is killed."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Where a service of a way dies."""

    way: str
    step: str

    def __str__(self) -> str:
        """Names it, for tests and tables."""
        return f"{self.way}-after-{self.step}"

    @property
    def loss(self) -> Loss:
        """What that costs by the way's promise."""
        return WAYS[self.way].deaths[self.step]


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What was visible after the death, and after the next run."""

    at_death: SendVerdict
    recovered: SendVerdict

    @property
    def early(self) -> int:
        """Messages that were visible without their data."""
        return self.at_death.ghosts


def crash_points(*, captured: bool = False, connector: bool = False) -> Iterator[CrashPoint]:
    """Yields every step of every way that runs no connector, that needs one of all tables, or that is one."""
    for name, way in WAYS.items():
        if (way.needs_capture, way.is_connector) == (captured, connector):
            for step in way.deaths:
                yield CrashPoint(name, step)


def new_order(way: str, database: str, bootstrap: str) -> Order:
    """Makes the topic of a new service, and returns what it is to do."""
    name = f"m{uuid.uuid4().hex[:10]}"
    order = Order(way=way, database=database, bootstrap=bootstrap, name=name)
    make_topics(bootstrap, [order.topic], PARTITIONS)
    return order


def crash_and_recover(point: CrashPoint, order: Order) -> CrashReport:
    """Runs a service that dies at a step, and then one that continues.

    Raises:
        RunFailedError: It did not die there, or the next one failed.
    """
    code = run_in_process(replace(order, kill_at=(point.step, _OCCURRENCE)))
    if code != -signal.SIGKILL:
        raise RunFailedError(str(point), f"the service ended with {code}, expected to be killed at the step")
    at_death = judge(order)
    code = run_in_process(replace(order, first=order.first + order.count))
    if code != 0:
        raise RunFailedError(str(point), f"the service that continued ended with {code}")
    return CrashReport(at_death, judge(order))


def measure_losses(way: str, database: str, bootstrap: str, *, kills: int, seed: int) -> SendVerdict:
    """Runs a service again and again, kills it each time after a drawn time, and counts.

    Raises:
        RunFailedError: The service failed by itself.
    """
    order, rng = new_order(way, database, bootstrap), random.Random(seed)
    for number in range(kills):
        process = start(replace(order, first=1 + number * _PER_RUN, count=_PER_RUN))
        process.join(rng.uniform(0.4, 2.0))
        if process.exitcode is not None:
            raise RunFailedError(way, f"the service ended with {process.exitcode} before it was killed")
        process.kill()
        process.join()
    if code := run_in_process(replace(order, first=1 + kills * _PER_RUN, count=1)):
        raise RunFailedError(way, f"the last service ended with {code}")
    return judge(order)


SOON: Final[Mapping[str, str]] = MappingProxyType(
    {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "broker.session.timeout.ms": "3000",  # so soon a killed broker may register again
        "broker.heartbeat.interval.ms": "300",
    }
)
"""Properties of a broker with which faults are over soon."""
_MARGIN: Final = timedelta(minutes=1)
_PATIENT: Final = SenderSettings(retry_after=timedelta(0), clock_margin=_MARGIN)
_IMPATIENT: Final = replace(_PATIENT, transaction_timeout=timedelta(seconds=1))
_SECONDS: Final = 240.0
_LOOK_SECONDS: Final = 0.05
_OCCURRENCE: Final = 2
_NOTHING: Final = At(None)
"""Happens to the service that continues."""


class Fault(StrEnum):
    """What happens at a step."""

    DATABASE_KILLED = "database killed"
    BROKER_KILLED = "broker killed"
    FENCED = "producer fenced"
    TIMED_OUT = "transaction timed out"


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """A fault just behind a step of a way."""

    way: str
    step: str
    fault: Fault

    def __str__(self) -> str:
        """Names it, for tests and tables."""
        return f"{self.way}-{self.fault.replace(' ', '-')}-after-{self.step}"

    @property
    def is_in_transaction(self) -> bool:
        """Whether a Kafka transaction is open there."""
        steps = list(WAYS[self.way].deaths)
        if SendStep.KAFKA_COMMITTED not in steps:
            return False
        produced, committed = steps.index(SendStep.PRODUCED), steps.index(SendStep.KAFKA_COMMITTED)
        return produced <= steps.index(self.step) < committed


def fault_points() -> Iterator[FaultPoint]:
    """Yields every fault that a way can meet, at each of its steps; of ways that run no connector.

    Who has no Kafka transactions can neither be fenced nor be timed out.
    """
    for name, way in WAYS.items():
        if way.needs_capture or way.is_connector:
            continue
        for fault in Fault:
            if way.open_sender or fault in (Fault.DATABASE_KILLED, Fault.BROKER_KILLED):
                for step in way.deaths:
                    yield FaultPoint(name, step, fault)


def suffer_and_go_on(point: FaultPoint, servers: Servers) -> SendVerdict:
    """Runs a service through a fault, then another one in its name; judges when all is delivered.

    Raises:
        RunFailedError: The step was not reached, or messages stay undelivered.
    """
    order = new_order(point.way, servers.postgres.dsn(), servers.kafka.bootstrap)
    order = replace(order, settings=_IMPATIENT if point.fault is Fault.TIMED_OUT else _PATIENT)
    probe = At(point.step, lambda: _strike(point, order, servers), _OCCURRENCE)
    way, numbers = WAYS[order.way], count(1)
    with way.open(order, probe) as business, way.deliver(order, probe) as delivery, _running(delivery):
        _work(business, numbers, probe, str(point))
    order = replace(order, settings=_PATIENT)
    with way.open(order, _NOTHING) as business, way.deliver(order, _NOTHING) as delivery, _running(delivery):
        for _ in range(3):
            _attempt(business, next(numbers))
        if not wait_until(lambda: way.is_delivered(order), _SECONDS):
            raise RunFailedError(str(point), f"messages were not delivered within {_SECONDS:g} s")
    return judge(order)


def _work(business: Business, numbers: Iterator[int], probe: At, what: str) -> None:
    """Does business until the fault is over, and a little more."""
    done: list[int] = []

    def is_done() -> bool:
        _attempt(business, next(numbers))
        done.extend([1] if probe.is_done else [])
        return len(done) == 2

    if not wait_until(is_done, _SECONDS):
        raise RunFailedError(what, f"the step was not reached within {_SECONDS:g} s")


def _attempt(business: Business, number: int) -> None:
    """Does a piece of business; what fails is left, and the next is done over another connection."""
    try:
        business.do(number)
    except (SlackwaterError, psycopg.Error, KafkaException):
        business.close()


@contextmanager
def _running(delivery: Delivery) -> Iterator[None]:
    """Runs what delivers in a thread, to the end of the block."""
    stop = threading.Event()
    thread = threading.Thread(target=delivery.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _strike(point: FaultPoint, order: Order, servers: Servers) -> None:
    match point.fault:
        case Fault.DATABASE_KILLED:
            servers.postgres.kill()
            servers.postgres.start()
        case Fault.BROKER_KILLED:
            # Not between a commit that it has acknowledged and the records that end it: a single broker that
            # comes up again may take its own partitions for deleted before it has registered, and then never
            # writes them. The transaction hangs, and nobody reads behind it.
            if not point.is_in_transaction:
                _outlast(order)
            servers.kafka.kill()
            servers.kafka.start()
        case Fault.FENCED:
            _overtake(order)
        case Fault.TIMED_OUT:
            _outlast(order)


def _overtake(order: Order) -> None:
    """Another process takes the sender's name."""
    make = WAYS[order.way].open_sender
    if make is None:
        raise RunFailedError(order.way, "has no sender that could be fenced")
    with (
        make(order, _NOTHING) as other,
        suppress(SlackwaterError),
        psycopg.connect(order.database, autocommit=True) as connection,
    ):
        if isinstance(other, ChainedSender):
            other._producer.open()  # noqa: SLF001 - it has nothing to send
        else:
            other.recover(connection)


def _outlast(order: Order) -> None:
    """Waits until Kafka has ended every open transaction, for its age if need be."""
    admin, pause = AdminClient({"bootstrap.servers": order.bootstrap}), threading.Event()
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(order.topic, number): latest for number in range(PARTITIONS)}
    while len({_ends(admin, asked, level) for level in IsolationLevel}) > 1:
        pause.wait(_LOOK_SECONDS)


def _ends(
    admin: AdminClient, asked: dict[TopicPartition, OffsetSpec], level: IsolationLevel
) -> tuple[int, ...]:
    found = admin.list_offsets(asked, isolation_level=level)
    return tuple(each.result(60).offset for each in found.values())
