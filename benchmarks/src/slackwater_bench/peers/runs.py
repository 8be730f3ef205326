"""A peer measured, on full topics and beside a steady writer, and judged by the checker of all peers."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from confluent_kafka import TopicPartition

from slackwater.cuts import KafkaRetry
from slackwater.protocol import Clock, epoch_ms
from slackwater_bench.bed import ORDERS_PIPELINE, SOURCE, Bed
from slackwater_bench.peers.registry import PROGRAMS, SLACKWATER, Installed, Peer
from slackwater_bench.peers.results import Details, Setting, run_details
from slackwater_bench.scenario import RunContext
from slackwater_bench.traffic import OpenLoop, SteadyOrders, TransactionAppender
from slackwater_bench.usage import MemoryWatch
from slackwater_certify import (
    Certificate,
    Connections,
    Mode,
    OutputRecords,
    Specification,
    certify,
    load_specification,
    watch_output,
)
from slackwater_lab.errors import RunFailedError
from slackwater_lab.generator.fill import TopicFiller
from slackwater_lab.programs import Program
from slackwater_lab.topics import make_topics, open_consumer, read_to_end
from slackwater_lab.workloads.orders import OrdersWorkload

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


class WatchedTopic:
    """One topic, created so that each record has the time of its append.

    Args:
        bootstrap: The broker.
        name: Must not exist.
    """

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        make_topics(bootstrap, [name], PARTITIONS, message_timestamp_type="LogAppendTime")
        self._bootstrap = bootstrap
        self._consumer = open_consumer(bootstrap)

    def end(self) -> int:
        """Offsets of all partitions added up."""
        return sum(
            KafkaRetry(f"asking where {self.name}/{number} ends", TIMEOUT_SECONDS).call(
                partial(self._end_of, number)
            )
            for number in range(PARTITIONS)
        )

    def last_ms(self) -> int | None:
        """When the broker appended the last record; None while there are none. Reads all of them."""
        found = read_to_end(self._bootstrap, self.name)
        return max((message.timestamp()[1] for message in found), default=None)

    def close(self) -> None:
        """Leaves the broker."""
        self._consumer.close()

    def _end_of(self, partition: int, seconds: float) -> int:
        found = self._consumer.get_watermark_offsets(TopicPartition(self.name, partition), timeout=seconds)
        if found is None:
            raise TimeoutError
        return found[1]


SEED = 7
FIRST_ORDERS = 20
"""Live: there before the peer starts, so that it is seen to work."""
ORDERS = 5_000
START_SECONDS = 150.0
SETTLE_SECONDS = 3.0
QUIET_SECONDS = 8.0
DEADLINE_SECONDS = 240.0
WARM_UP_SECONDS = 10.0
"""Live: at the full rate, before delays count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogOptions:
    """Sizes of a run."""

    orders: int = 20_000
    events: int = 1_000_000
    """After the orders and their lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """Load of a run."""

    events_per_second: int = 5_000
    seconds: int = 45


Drive = Callable[[Specification, Patience, Running], tuple[datetime, OutputRecords] | None]
"""Waits until a peer is done; a live one says since when events were written, and what was read meanwhile."""


def run_peer(
    peer: Peer, installed: Installed | None, options: BacklogOptions | LiveOptions, context: RunContext
) -> Details:
    """One run on servers of its own; every backlog of the same size has the same events in the topics.

    Raises:
        RunFailedError: the peer ends, or does not come to rest in time.
    """
    clock, setting = context.clock, setting_of(options)
    with Bed(context, partitions=PARTITIONS, kafka_heap="512m") as bed:
        if isinstance(options, LiveOptions):
            drive = _live(bed, options, context)
        else:
            drive = _backlog(bed, options)
        output = WatchedTopic(bed.bootstrap, peer.output)
        specification = specification_of(peer, bed.folder / "judge")
        context.say(f"{peer.title}: {setting}")
        begun = clock.now().timestamp()
        with (
            started(peer, installed, bed, output.name) as running,
            MemoryWatch(dict(running.roles)) as memory,
        ):
            patience = Patience(peer, running, output.end, clock, threading.Event().wait)
            reading = patience.until_reading(START_SECONDS)
            watched = drive(specification, patience, running)
        last_ms = output.last_ms()
        output.close()
        if last_ms is None:
            raise RunFailedError(peer.name, "wrote no document")
        certificate = judge(specification, bed.bootstrap, context.say, watched)
    seconds = round(last_ms / 1000 - (watched[0].timestamp() if watched else reading), 2)
    return run_details(
        peer,
        setting,
        certificate,
        has_delay=watched is not None,  # the generator's commit times are not those of this clock
        startup_seconds=round(reading - begun, 2),
        seconds=seconds,
        memory_mib=total_mib(memory.peaks),
    )


def setting_of(options: BacklogOptions | LiveOptions) -> Setting:
    """The setting that options are for."""
    return Setting.LIVE if isinstance(options, LiveOptions) else Setting.BACKLOG


def _backlog(bed: Bed, options: BacklogOptions) -> Drive:
    # REPLICA IDENTITY FULL on both tables: Flink's debezium-json ends the job at an update without its old
    # row, and Pathway's reader does not take the old row out. Slackwater does not need it for orders.
    workload = OrdersWorkload(SEED, options.orders, pipeline=PROGRAMS)
    TopicFiller(bed.bootstrap, workload, prefix=SOURCE, partitions=PARTITIONS).fill(options.events)

    def drive(specification: Specification, patience: Patience, running: Running) -> None:
        patience.until_quiet(
            records=options.orders // 2, quiet_seconds=QUIET_SECONDS, seconds=DEADLINE_SECONDS
        )

    return drive


def _live(bed: Bed, options: LiveOptions, context: RunContext) -> Drive:
    """An open loop: the writer does not wait for the peer. Each transaction changes an order and its lines.

    Documents are read by a ``read_committed`` consumer while they are written; delays count from the moment
    at which the transaction was meant to be written.
    """
    orders, clock = SteadyOrders(ORDERS), context.clock
    appender = TransactionAppender(bed.bootstrap, SOURCE, PARTITIONS)
    appender.append_all((orders.changes_of(number) for number in range(FIRST_ORDERS)), clock)

    def drive(
        specification: Specification, patience: Patience, running: Running
    ) -> tuple[datetime, OutputRecords]:
        patience.until_quiet(records=FIRST_ORDERS, quiet_seconds=SETTLE_SECONDS, seconds=START_SECONDS)
        since = clock.now()
        with _watched(specification, bed.bootstrap) as watched:
            _write(appender, orders, options, context, running)
            patience.until_quiet(records=0, quiet_seconds=QUIET_SECONDS, seconds=DEADLINE_SECONDS)
        return since, watched[0]

    return drive


def _write(
    appender: TransactionAppender,
    orders: SteadyOrders,
    options: LiveOptions,
    context: RunContext,
    running: Running,
) -> None:
    transactions = orders.transactions(orders.rows_per_order, FIRST_ORDERS)
    rate = options.events_per_second / orders.rows_per_order
    loop = OpenLoop(appender, transactions, rate, context.clock)
    ended = context.clock.monotonic() + options.seconds
    nap = threading.Event()
    loop.start()
    try:
        while context.clock.monotonic() < ended:
            running.check()
            nap.wait(0.5)
    finally:
        loop.stop()


@contextmanager
def _watched(specification: Specification, bootstrap: str) -> Iterator[list[OutputRecords]]:
    """The output, read while the block runs; the list has it afterwards."""
    found: list[OutputRecords] = []
    is_over = threading.Event()

    def watch() -> None:
        found.append(watch_output(specification, Connections(bootstrap=bootstrap), is_over.is_set))

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def specification_of(peer: Peer, folder: Path) -> Specification:
    """Makes the specification that a peer is judged by; ``folder`` takes its file.

    Slackwater by its pipeline's own specification, so by the commit LSNs that its documents claim, too;
    the peers, which claim none, by whether each document is a committed state of its order.
    """
    if peer.name == SLACKWATER:
        return load_specification(ORDERS_PIPELINE / "certify.toml")
    text = (PROGRAMS / "certify.toml").read_text()
    for name, value in (
        ("output", peer.output),
        ("source", SOURCE),
        ("schema", str(ORDERS_PIPELINE / "schema.sql")),
        ("view", str(PROGRAMS / "documents.sql")),
    ):
        text = text.replace(f'"${name}"', json.dumps(value))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "certify.toml"
    path.write_text(text)
    return load_specification(path)


def judge(
    specification: Specification,
    bootstrap: str,
    say: Callable[[str], None],
    watched: tuple[datetime, OutputRecords] | None = None,
) -> Certificate:
    """The certificate of what a peer wrote; of a live run its delays, too."""
    since, records = watched or (None, None)
    return certify(
        specification,
        Connections(bootstrap=bootstrap),
        mode=Mode.BOTH,
        records=records,
        delays_since_ms=epoch_ms(since) + int(WARM_UP_SECONDS * 1000) if since else None,
        on_progress=say,
    )
