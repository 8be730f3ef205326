"""Messages to be received, processes that receive them, and the judge.

Members are killed at their steps or at random moments, and servers under them.
"""

import multiprocessing
import os
import random
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from multiprocessing.process import BaseProcess
from signal import SIGSTOP
from typing import Any, Final

import psutil
import psycopg
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from slackwater.dev import Server
from slackwater.protocol import SystemClock
from slackwater_lab.errors import RunFailedError
from slackwater_lab.messaging.receiving.member import (
    Effects,
    MemberSettings,
    Twin,
    Way,
    is_bad_item,
    processor,
    receiver,
    run_member,
)
from slackwater_lab.probes import At, Servers
from slackwater_lab.topics import make_topics, read_to_end
from slackwater_lab.watching import wait_until
from slackwater_messaging.receiving import ProcessorStep, ReceiverStep

PARTITIONS = 2
_SECONDS = 120.0
"""For whatever is waited for: on a machine with other work everything takes longer."""
_TABLES = (
    "CREATE SCHEMA {0}",
    "CREATE TABLE {0}.effect (id bigserial PRIMARY KEY, item text NOT NULL)",
    "CREATE TABLE {0}.answer (item text NOT NULL, answer text NOT NULL)",
)
_EFFECTS = "SELECT item, id FROM {}.effect ORDER BY id DESC"
_ANSWERS = "SELECT item, answer FROM {}.answer"
_LETTERS = "SELECT convert_from(key, 'UTF8') FROM {}.letters"


@dataclass(frozen=True, slots=True)
class ReceiveVerdict:
    """What went wrong, in numbers."""

    lost: int
    """Items, or messages, without an effect."""
    repeated: int
    """Effects beyond the first one."""
    unanswered: int = 0
    wrong_answers: int = 0
    """Answers that are not that of the effect."""
    messages: int = field(default=0, compare=False)
    """That were to have an effect."""


RIGHT = ReceiveVerdict(0, 0)


class World:
    """A topic, tables, and members that come and go."""

    def __init__(self, bootstrap: str, dsn: str, way: Way | Twin | None, **settings: Any) -> None:
        name = f"r{uuid.uuid4().hex[:10]}"
        self.settings = MemberSettings(
            bootstrap=bootstrap, dsn=dsn, schema=name, topic=name, group=name, way=way, **settings
        )
        self._written: list[str] = []
        """The item of each message."""
        self._places: list[str] = []
        self._members = multiprocessing.get_context("forkserver")
        self._members.set_forkserver_preload(["slackwater_lab.messaging.receiving.member"])
        make_topics(bootstrap, [name, f"{name}.out"], PARTITIONS, message_timestamp_type="LogAppendTime")
        with psycopg.connect(dsn, autocommit=True) as connection:
            for statement in _TABLES:
                connection.execute(statement.format(name).encode())
            if way is not None:
                self.settings.inbox.create(connection)
            if self.settings.letters is not None:
                self.settings.letters.create(connection)

    def write(self, items: range) -> None:
        """Writes a message for each item; every third one twice at once, and once more at the end."""
        again = [item for item in items if item % 3 == 0]
        order = sorted([*items, *again]) + again
        places = self._produce(order)
        if len(places) != len(order):
            raise RunFailedError(self.settings.topic, "did not take all messages")
        self._written += [str(item) for item in order]
        self._places += places

    def append(self, items: range, rate: float | None = None) -> None:
        """Writes a message for each item once: this many per second at intended times; None: all at once."""
        self._produce(items, rate)

    def _produce(self, items: Sequence[int], rate: float | None = None) -> list[str]:
        """Returns the places of the messages that Kafka has taken."""
        settings = {"bootstrap.servers": self.settings.bootstrap, "enable.idempotence": True}
        producer = Producer({**settings, "linger.ms": 0 if rate else 5})
        places: list[str] = []

        def note(error: Any, message: Any) -> None:
            places.extend([] if error else [f"{message.partition()}/{message.offset()}"])

        clock, pause = SystemClock(), threading.Event()
        start = clock.monotonic()
        for place, item in enumerate(items):
            if rate is not None:
                pause.wait(max(0.0, start + place / rate - clock.monotonic()))
            key = str(item).encode()
            producer.produce(self.settings.topic, b"", key, partition=item % PARTITIONS, on_delivery=note)
            producer.poll(0)
        producer.flush(_SECONDS)
        return places

    def start(
        self, step: str | None = None, times: int = 1, number: signal.Signals = signal.SIGKILL, **changed: Any
    ) -> BaseProcess:
        """Starts a member that kills, or stops, itself at a step."""
        settings = replace(self.settings, **changed)
        member = self._members.Process(target=run_member, args=(settings, step, times, number))
        member.start()
        return member

    def run_until_killed(self, step: str, **changed: Any) -> None:
        member = self.start(step, **changed)
        member.join(_SECONDS)
        if member.exitcode != -9:
            stop(member)
            raise RunFailedError(step, f"was not reached: the member ended with {member.exitcode}")

    def finish(self) -> None:
        member = self.start()
        try:
            self.wait_until_done(lambda: member.is_alive())
        finally:
            stop(member)

    def letters(self) -> list[str]:
        """Returns the items of the dead letters."""
        if self.settings.letters is None:
            return []
        with psycopg.connect(self.settings.dsn) as connection:
            found = connection.execute(_LETTERS.format(self.settings.schema).encode())
            return [item for (item,) in found]

    def retry_letters(self) -> None:
        """Hands the dead letters back to members that can process them; one is killed before it has answered.

        Raises:
            RunFailedError: They are not processed.
        """
        if (letters := self.settings.letters) is None:
            return
        with psycopg.connect(self.settings.dsn) as connection:
            letters.retry(connection)
        self.run_until_killed(ReceiverStep.RETRIED, is_bad=False)
        member = self.start(is_bad=False)
        try:
            if not wait_until(lambda: not self.letters(), _SECONDS):
                raise RunFailedError(self.settings.topic, "has dead letters that nobody processes")
        finally:
            stop(member)

    def wait_until_done(self, is_working: Callable[[], bool]) -> None:
        """Waits until the group's offsets are at the end of the topic.

        Raises:
            RunFailedError: Nobody works any more, or it takes too long.
        """

        def check() -> None:
            if not is_working():
                raise RunFailedError(self.settings.topic, "is read by nobody")

        if not wait_until(self.is_done, _SECONDS, check=check):
            raise RunFailedError(self.settings.topic, "was not read to its end")

    def is_done(self) -> bool:
        """Says whether the group's offsets are at the end of the topic; False if Kafka does not say."""
        parts = [TopicPartition(self.settings.topic, n) for n in range(PARTITIONS)]
        asking = Consumer({"bootstrap.servers": self.settings.bootstrap, "group.id": self.settings.group})
        try:
            ends = {part.partition: asking.get_watermark_offsets(part, 10)[1] for part in parts}
            found = {part.partition: part.offset for part in asking.committed(parts, 10)}
        except KafkaException:
            return False
        finally:
            asking.close()
        return {n: end for n, end in ends.items() if end} == {n: at for n, at in found.items() if at > 0}

    def judge(self) -> ReceiveVerdict:
        if self.settings.way is None:
            records = read_to_end(self.settings.bootstrap, f"{self.settings.topic}.out")
            outputs = Counter(_text(record.value()) for record in records)
            return _verdict(set(self._places), outputs)
        with psycopg.connect(self.settings.dsn) as connection:
            rows = connection.execute(_EFFECTS.format(self.settings.schema).encode()).fetchall()
            answers = connection.execute(_ANSWERS.format(self.settings.schema).encode()).fetchall()
        effects, letters = [(item, str(number)) for item, number in rows], self.letters()
        verdict = _verdict(set(self._written), Counter([*(item for item, _ in effects), *letters]))
        if not self.settings.has_answers:
            return verdict
        right = dict(effects)
        wrong = sum(right.get(item) != answer for item, answer in answers)
        missing = len(set(self._written) - {item for item, _ in answers} - set(letters))
        return replace(verdict, unanswered=missing, wrong_answers=wrong)


def stop(member: BaseProcess) -> None:
    """Ends a member in order; kills it when that takes too long."""
    member.terminate()
    member.join(_SECONDS)
    if member.exitcode is None:
        member.kill()
        member.join()
        raise RunFailedError("member", f"did not end within {_SECONDS:g} s")


def wait_until_stopped(member: BaseProcess) -> None:
    """Waits until a member has stopped itself."""
    process = psutil.Process(member.pid)

    def is_over() -> bool:
        return not member.is_alive() or process.status() == psutil.STATUS_STOPPED

    if not wait_until(is_over, _SECONDS) or not member.is_alive():
        raise RunFailedError("member", "did not stop itself")


def go_on_and_end(member: BaseProcess) -> None:
    """Lets a member that was stopped continue with its batch, and end then."""
    if member.pid is not None:
        os.kill(member.pid, signal.SIGTERM)
        os.kill(member.pid, signal.SIGCONT)
    member.join(_SECONDS)
    stop(member)


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _verdict(expected: set[str], found: Counter[str]) -> ReceiveVerdict:
    repeated = sum(found.values()) - len(found)
    return ReceiveVerdict(len(expected - found.keys()), repeated, messages=len(expected))


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
    has_bad_items: bool = False
    """Whether some items become dead letters, and are handed back after the fault."""

    def __str__(self) -> str:
        """Names it, for tests and tables."""
        bad = "-with-bad-items" if self.has_bad_items else ""
        return f"{self.way or 'processor'}-{self.fault.replace(' ', '-')}-after-{self.step}{bad}"


def steps_of(way: Way | Twin | None) -> list[ReceiverStep] | list[ProcessorStep]:
    """Returns the steps of a way, in order."""
    if way is None:
        return list(ProcessorStep)
    has_answers = way not in (Way.BLOOM, Twin.UNFENCED)
    left_out = {ReceiverStep.RETRIED, *([] if has_answers else [ReceiverStep.REPLIED])}
    return [step for step in ReceiverStep if step not in left_out]


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
    is_bad = True if point.has_bad_items else None
    world = World(servers.kafka.bootstrap, servers.postgres.dsn(), point.way, is_bad=is_bad)
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
    verdict = world.judge()
    if verdict != RIGHT or not point.has_bad_items:
        return verdict
    if not all(map(is_bad_item, world.letters())) or not world.letters():
        raise RunFailedError(str(point), f"the dead letters are {world.letters()}")
    world.retry_letters()
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
    world = World(servers.kafka.bootstrap, servers.postgres.dsn(), way)
    rng = random.Random(seed)
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
