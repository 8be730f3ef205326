"""Kills members at their steps or at random moments, and servers under them; judges what is left."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.process import BaseProcess
from signal import SIGSTOP
from typing import Any, Final

from slackwater.dev import KafkaBroker, PostgresServer, Server
from slackwater_lab.errors import RunFailedError
from slackwater_lab.messaging.receiving.member import Effects, Twin, Way, processor, receiver
from slackwater_lab.messaging.receiving.world import (
    ReceiveVerdict,
    World,
    go_on_and_end,
    stop,
    wait_until_stopped,
)
from slackwater_lab.probes import At
from slackwater_messaging.receiving import ProcessorStep, ReceiverStep

ITEMS: Final = 24
_ITEMS_OF_ROUND: Final = 200
IMPATIENT: Final = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "300"}
"""Settings of members that are soon given up; for brokers with :data:`SOON`."""
SOON: Final = {"group.min.session.timeout.ms": "500"}
"""Properties of a broker that soon gives members up."""


class Fault(StrEnum):
    """What happens at a step."""

    KILLED = "killed"
    """The member is, by SIGKILL."""
    DATABASE_KILLED = "database killed"
    BROKER_KILLED = "broker killed"
    OVERTAKEN = "member overtaken"
    """It is stopped, another one gets its partitions and does its work, and it continues."""


@dataclass(frozen=True, slots=True)
class ReceivePoint:
    """A fault just behind a step of a way: behind one is before the next."""

    way: Way | Twin | None
    """None: within Kafka."""
    step: ReceiverStep | ProcessorStep
    fault: Fault = Fault.KILLED

    def __str__(self) -> str:
        """Names it, for tests and tables."""
        return f"{self.way or 'processor'}-{self.fault.replace(' ', '-')}-after-{self.step}"


@dataclass(frozen=True, slots=True)
class Servers:
    """What can be killed; the broker has the properties :data:`SOON`."""

    postgres: PostgresServer
    kafka: KafkaBroker

    def world(self, way: Way | Twin | None) -> World:
        """Makes a topic, tables and members of a way."""
        return World(self.kafka.bootstrap, self.postgres.dsn(), way)


def steps_of(way: Way | Twin | None) -> list[ReceiverStep] | list[ProcessorStep]:
    """Returns the steps of a way, in order."""
    if way is None:
        return list(ProcessorStep)
    has_answers = way not in (Way.BLOOM, Twin.UNFENCED)
    return [step for step in ReceiverStep if has_answers or step is not ReceiverStep.REPLIED]


def faults_of(way: Way | Twin | None) -> list[Fault]:
    """Returns what a way can meet: within Kafka there is no database."""
    return [fault for fault in Fault if way is not None or fault is not Fault.DATABASE_KILLED]


def receive_points(way: Way | Twin | None) -> Iterator[ReceivePoint]:
    """Yields every fault at every step of a way."""
    for fault in faults_of(way):
        for step in steps_of(way):
            yield ReceivePoint(way, step, fault)


def suffer_and_finish(point: ReceivePoint, servers: Servers) -> ReceiveVerdict:
    """Lets members receive through a fault, to the end of what was written; judges."""
    world = servers.world(point.way)
    world.write(range(ITEMS))
    match point.fault:
        case Fault.KILLED:
            world.run_until_killed(point.step)
            world.write(range(ITEMS, ITEMS + 5))
            world.finish()
        case Fault.DATABASE_KILLED:
            receive_here(world, At(point.step, lambda: restart(servers.postgres)))
        case Fault.BROKER_KILLED:
            receive_here(world, At(point.step, lambda: restart(servers.kafka)))
        case Fault.OVERTAKEN:
            lost = world.start(point.step, 1, SIGSTOP, options=IMPATIENT)
            wait_until_stopped(lost)
            finish_beside(world, lost)
    return world.judge()


def restart(server: Server) -> None:
    """Kills a server, and starts it again."""
    server.kill()
    server.start()


def receive_here(world: World, probe: Any) -> None:
    """Receives in this process until everything is done.

    Raises:
        RunFailedError: It takes too long.
    """
    effects = Effects(world.settings)
    if world.settings.way is None:
        with processor(world.settings, probe) as working:
            world.wait_until_done(lambda: working.poll(effects.process) >= 0)
        return
    reply = effects.reply if world.settings.has_answers else None
    with receiver(world.settings, probe) as receiving:
        world.wait_until_done(lambda: receiving.poll(effects.handle, reply=reply) >= 0)


def finish_beside(world: World, stopped: BaseProcess) -> None:
    """Has another member do the work of one that is stopped, which then continues and ends."""
    other = world.start(instance="two", options=IMPATIENT)
    try:
        world.wait_until_done(other.is_alive)
        go_on_and_end(stopped)
    finally:
        stop(other)


def receive_through_deaths(
    way: Way | Twin | None, servers: Servers, *, kills: int, seed: int
) -> ReceiveVerdict:
    """Kills a member after a drawn time, again and again; every fourth one is stopped until another is done.

    Raises:
        RunFailedError: A member ended by itself.
    """
    world, rng = servers.world(way), random.Random(seed)
    for number in range(kills):
        world.write(range(number * _ITEMS_OF_ROUND, (number + 1) * _ITEMS_OF_ROUND))
        member = world.start(options=IMPATIENT)
        member.join(rng.uniform(0.5, 2.5))
        if member.exitcode is not None or member.pid is None:
            raise RunFailedError(str(way), f"the member ended with {member.exitcode} before it was killed")
        if number % 4 == 3:
            os.kill(member.pid, SIGSTOP)
            finish_beside(world, member)
        else:
            member.kill()
            member.join()
    world.finish()
    return world.judge()
