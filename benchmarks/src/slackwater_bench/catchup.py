"""Catch-up: topics are already full; sidecar and pipeline start from nothing and work them off.

Everything runs on this machine: broker, Redis, sidecar, Spark. Rates are taken from outside, from the commit
records that a ``read_committed`` consumer sees.
"""

import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from slackwater_bench.fill import Filled, TopicFiller
from slackwater_bench.processes import MemoryWatch, cpu_seconds, stop_all
from slackwater_bench.workloads.orders import OrdersWorkload
from slackwater_devstack import DevStack, DevStackSettings
from slackwater_protocol import Clock, SystemClock, decode_commit_record
from slackwater_protocol.keys import commit_topic

PIPELINE = Path(__file__).parents[3] / "pipelines" / "orders"
OUTPUT = "orders_with_lines"
DEADLINE_SECONDS = 1_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpOptions:
    """Sizes of a run."""

    orders: int = 20_000
    """Orders in the state. The first transactions insert them with three lines each."""
    events: int = 1_000_000
    """Change events after the inserts."""
    partitions: int = 4
    max_events_per_batch: int | None = None
    """The pipeline's own default if None."""


@dataclass(frozen=True, slots=True)
class SeenCommit:
    """A commit record and when the consumer got it."""

    commit_lsn: int
    at: float
    """Seconds of the monotonic clock."""


def run_catch_up(
    options: CatchUpOptions, say: Callable[[str], None], clock: Clock | None = None
) -> dict[str, object]:
    """One run; returns what goes into the result line.

    Raises:
        RuntimeError: sidecar or pipeline ended, or the output did not arrive within half an hour.
    """
    clock = clock or SystemClock()
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-") as folder, _servers(Path(folder)) as stack:
        say(f"filling topics with {4 * options.orders + options.events:,} change events")
        filler = TopicFiller(stack.kafka.bootstrap, "inv", options.partitions)
        workload = OrdersWorkload(orders=options.orders)
        filled = filler.write(workload, 4 * options.orders + options.events)
        say(f"{filled.events:,} change events in {filled.transactions:,} transactions; starting the pipeline")
        started = clock.monotonic()
        processes = _start(stack, Path(folder), options)
        roles = {name: process.pid for name, process in processes.items()}
        roles |= {"kafka": stack.kafka.pid, "redis": stack.redis.pid}
        try:
            with MemoryWatch(roles) as memory:
                commits = list(_commits(stack.kafka.bootstrap, filled, processes, clock, say))
                cpu = cpu_seconds(roles)
        finally:
            stop_all(processes.values())
        inserted_lsn = filler.lsn_at(4 * options.orders)
        return {
            "options": asdict(options),
            "events": filled.events,
            "transactions": filled.transactions,
            "batches": len(commits),
            **_rates(commits, started, filler.events_at, inserted_lsn),
            "cpu_seconds": cpu,
            "peak_mib": memory.peaks,
            "batch_log": [[filler.events_at(c.commit_lsn), round(c.at - started, 2)] for c in commits],
        }


def _rates(
    commits: list[SeenCommit], started: float, events_at: Callable[[int], int], inserted_lsn: int
) -> dict[str, object]:
    first, last = commits[0], commits[-1]
    at = [commit.commit_lsn for commit in commits]
    loaded = commits[min(bisect_right(at, inserted_lsn), len(commits) - 2)]
    return {
        "seconds_to_first_batch": round(first.at - started, 2),
        "seconds": round(last.at - started, 2),
        "events_per_second_with_start": round(events_at(last.commit_lsn) / (last.at - started)),
        "events_per_second": round(_rate(first, last, events_at)),
        "events_per_second_with_full_state": round(_rate(loaded, last, events_at)),
    }


def _rate(first: SeenCommit, last: SeenCommit, events_at: Callable[[int], int]) -> float:
    return (events_at(last.commit_lsn) - events_at(first.commit_lsn)) / max(last.at - first.at, 1e-9)


@contextmanager
def _servers(folder: Path) -> Iterator[DevStack]:
    settings = DevStackSettings(folder=folder / "stack", postgres=False, connect=False)
    with DevStack(settings) as stack:
        yield stack


def _start(stack: DevStack, folder: Path, options: CatchUpOptions) -> dict[str, subprocess.Popen[bytes]]:
    servers = ["--bootstrap", stack.kafka.bootstrap, "--redis-url", stack.redis.url]
    run = ["run", str(PIPELINE), *servers, "--checkpoint", str(folder / "checkpoint")]
    if options.max_events_per_batch:
        run += ["--max-events-per-batch", str(options.max_events_per_batch)]
    commands = {"sidecar": ["sidecar", "--source", "inv", *servers], "pipeline": run}
    return {name: _spawn(name, arguments, folder) for name, arguments in commands.items()}


def _spawn(name: str, arguments: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, "-m", "slackwater", *arguments]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)


def _commits(
    bootstrap: str,
    filled: Filled,
    processes: dict[str, subprocess.Popen[bytes]],
    clock: Clock,
    say: Callable[[str], None],
) -> Iterator[SeenCommit]:
    """Commit records as they become visible, up to the last transaction that was written."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "slackwater-bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
        }
    )
    consumer.assign([TopicPartition(commit_topic(OUTPUT), 0, OFFSET_BEGINNING)])
    deadline = clock.monotonic() + DEADLINE_SECONDS
    try:
        while clock.monotonic() < deadline:
            for name, process in processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"the {name} ended with exit code {process.returncode}")
            message = consumer.poll(0.2)
            if message is None or message.error():
                continue
            record = decode_commit_record(message.value() or b"")
            say(f"visible up to {record.commit_lsn} of {filled.last_commit_lsn}")
            yield SeenCommit(record.commit_lsn, clock.monotonic())
            if record.commit_lsn >= filled.last_commit_lsn:
                return
    finally:
        consumer.close()
    raise RuntimeError(f"the output did not arrive within {DEADLINE_SECONDS:.0f} s")
