"""A peer while it runs: started, watched from outside, stopped; Slackwater and the others alike."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.cuts import KafkaRetry
from slackwater.protocol import Clock
from slackwater_bench.bed import ORDERS_PIPELINE, SOURCE, Bed
from slackwater_bench.peers.registry import Installed, Peer
from slackwater_lab.errors import RunFailedError
from slackwater_lab.programs import Program

READING = "reading"
"""The line that a program prints when it begins to read."""
_WITHOUT_OURS = {name: "" for name in os.environ if name.startswith("PYTHON")}
"""What is set for this Python does not hold for a peer's; an empty setting counts as none."""


LOOK_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 20.0
PARTITIONS = 4
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Running:
    """A started peer, as far as a run needs to know it."""

    roles: Mapping[str, int]
    """Its processes."""
    is_reading: Callable[[], bool]
    """Whether it has begun to read the topics."""
    check: Callable[[], None]
    """Raises when it has ended."""


@contextmanager
def started(peer: Peer, installed: Installed | None, bed: Bed, output: str) -> Iterator[Running]:
    """Starts a peer; stops it at the end. Slackwater needs no installation and ends with the bed."""
    if installed is None:
        yield _slackwater(bed)
        return
    folder = bed.folder / peer.name
    folder.mkdir(parents=True)
    program = Program(peer.name, lambda: _command(peer, installed, bed, output, folder), folder)
    program.start(folder=folder, environment={**_WITHOUT_OURS, **peer.environment})
    try:
        roles = {} if program.pid is None else {peer.name: program.pid}
        yield Running(roles, lambda: READING in program.output().splitlines(), program.check)
    finally:
        program.stop()


def _command(peer: Peer, installed: Installed, bed: Bed, output: str, folder: Path) -> list[str]:
    command = [str(installed.python), str(peer.folder / "program.py"), "--bootstrap", bed.bootstrap]
    command += ["--input-prefix", SOURCE, "--output", output, "--folder", str(folder)]
    return command if installed.jars is None else [*command, "--jars", str(installed.jars)]


def _slackwater(bed: Bed) -> Running:
    before = set(bed.roles())
    bed.start_sidecar()
    bed.start_pipeline(ORDERS_PIPELINE)
    roles = {name: pid for name, pid in bed.roles().items() if name not in before}
    roles["redis"] = bed.roles()["redis"]
    claimed = bed.folder / "checkpoint" / "slackwater.json"  # when Spark has started
    return Running(roles, claimed.exists, bed.check)


class Patience:
    """Waits for a peer, looking at it and at its output topic from outside.

    Args:
        peer: For messages.
        running: The peer.
        written: The number of records in its output topic.
        clock: The time.
        nap: How the time between two looks is spent; takes seconds.
    """

    def __init__(
        self,
        peer: Peer,
        running: Running,
        written: Callable[[], int],
        clock: Clock,
        nap: Callable[[float], object],
    ) -> None:
        self._peer, self._running, self._written = peer, running, written
        self._clock, self._nap = clock, nap

    def until_reading(self, seconds: float) -> float:
        """Waits until it reads; returns that time as seconds since the epoch.

        Raises:
            RunFailedError: it ends, or does not read in time.
        """
        deadline = self._clock.monotonic() + seconds
        while not self._running.is_reading():
            self._look(deadline, "did not begin to read", seconds)
        return self._clock.now().timestamp()

    def until_quiet(self, *, records: int, quiet_seconds: float, seconds: float) -> None:
        """Waits until it has written this many records and then nothing for a while.

        The while is twice its longest pause so far, the time to its first record included, within limits.

        Raises:
            RunFailedError: it ends, or does not come to rest in time.
        """
        deadline = self._clock.monotonic() + seconds
        end, since, pause = 0, self._clock.monotonic(), 0.0
        while end < records or self._clock.monotonic() < since + max(quiet_seconds, pause):
            self._look(deadline, f"was not finished with {end:,} documents", seconds)
            found = self._written()
            if found != end:
                end, now = found, self._clock.monotonic()
                pause = min(max(pause, 2 * (now - since)), LONGEST_PAUSE_SECONDS)
                since = now

    def _look(self, deadline: float, what: str, seconds: float) -> None:
        self._running.check()
        if self._clock.monotonic() > deadline:
            raise RunFailedError(self._peer.name, f"{what} after {seconds:g} s")
        self._nap(LOOK_SECONDS)


def total_mib(peaks: Mapping[str, float]) -> float:
    """Peaks of all processes added up."""
    return round(sum(peaks.values()), 1)


@dataclass(frozen=True, slots=True)
class Appended:
    """The records of a topic: how many, and when the broker appended the first and the last."""

    records: int
    first_ms: int
    last_ms: int


class WatchedTopic:
    """One topic, created so that each record has the time of its append.

    Args:
        bootstrap: The broker.
        name: Must not exist.
    """

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        admin = AdminClient({"bootstrap.servers": bootstrap})
        config = {"message.timestamp.type": "LogAppendTime"}
        for created in admin.create_topics([NewTopic(name, PARTITIONS, 1, config=config)]).values():
            created.result(TIMEOUT_SECONDS)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"watch-{name}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )

    def end(self) -> int:
        """Offsets of all partitions added up."""
        return sum(high for _, high in self._watermarks())

    def appended(self) -> Appended | None:
        """First and last record; None while there are none. Reads a few records."""
        times: list[int] = []
        for partition, (low, high) in enumerate(self._watermarks()):
            newest = (self._time_at(partition, offset) for offset in range(high - 1, low - 1, -1))
            last = next((time for time in newest if time is not None), None)
            if last is not None:
                times += [self._time_at(partition, low) or last, last]
        return Appended(self.end(), min(times), max(times)) if times else None

    def close(self) -> None:
        """Leaves the broker."""
        self._consumer.close()

    def _watermarks(self) -> list[tuple[int, int]]:
        return [
            KafkaRetry(f"asking where {self.name}/{number} ends", TIMEOUT_SECONDS).call(
                partial(self._watermarks_of, number)
            )
            for number in range(PARTITIONS)
        ]

    def _watermarks_of(self, partition: int, seconds: float) -> tuple[int, int]:
        found = self._consumer.get_watermark_offsets(TopicPartition(self.name, partition), timeout=seconds)
        if found is None:
            raise TimeoutError
        return found

    def _time_at(self, partition: int, offset: int) -> int | None:
        """When the record at the offset was appended; None where a Kafka transaction ends."""
        self._consumer.assign([TopicPartition(self.name, partition, offset)])
        message = self._consumer.poll(TIMEOUT_SECONDS)
        return None if message is None or message.error() else int(message.timestamp()[1])
