"""Kills a service, at a step or at random moments, judges what it left, and starts it again."""

import random
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

from slackwater_lab.errors import RunFailedError
from slackwater_lab.messaging.sending.judge import SendVerdict, judge
from slackwater_lab.messaging.sending.service import Order, run_in_process, start
from slackwater_lab.messaging.sending.ways import WAYS, Loss
from slackwater_lab.topics import make_topics

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


def new_order(way: str, database: str, bootstrap: str, *, count: int = 3) -> Order:
    """Makes the topic of a new service, and returns what it is to do."""
    name = f"m{uuid.uuid4().hex[:10]}"
    order = Order(way=way, database=database, bootstrap=bootstrap, name=name, count=count)
    make_topics(bootstrap, [order.topic], PARTITIONS)
    return order


def crash_and_recover(point: CrashPoint, order: Order, *, occurrence: int = 2) -> CrashReport:
    """Runs a service that dies at a step, and then one that continues.

    Raises:
        RunFailedError: It did not die there, or the next one failed.
    """
    code = run_in_process(replace(order, kill_at=(point.step, occurrence)))
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
