"""Many pipelines on one source: what each costs the sidecar and Redis."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.latencies import summary
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_bench.traffic import LINES, ORDERS, OpenLoop, SteadyOrders, TransactionAppender
from slackwater_bench.usage import RedisCounters, cpu_seconds, redis_counters
from slackwater_lab.errors import RunFailedError

CUT_READERS = "packages/slackwater/probes/pipeline/cut_readers.py"
BATCH_SECONDS = 0.3
"""How long a reader is busy after each batch it planned: what a small batch of a pipeline takes."""
WARM_UP_SECONDS = 5.0


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    readers, rate = int(parameters["readers"]), int(parameters["changes_per_second"])
    seconds = float(parameters["seconds"])
    orders = SteadyOrders(1_000)
    with Bed(context) as bed:
        appender = TransactionAppender(bed.bootstrap, SOURCE, 4)
        appender.append_all((orders.changes_of(number) for number in range(1_000)), context.clock)
        bed.start_sidecar()
        transactions = orders.transactions(orders.rows_per_order, 1_000)
        loop = OpenLoop(appender, transactions, max(rate, 1) / orders.rows_per_order, context.clock)
        with _readers(bed, readers, context) as probe:
            if rate:
                loop.start()
            context.say(f"{readers} readers, {rate:,} changes/s, {seconds:g} s")
            bed.rest(WARM_UP_SECONDS)
            before, redis_before = _cpu(bed), redis_counters(bed.stack.redis.url)
            probe.tell("measure")
            bed.rest(seconds)
            after, redis_after = _cpu(bed), redis_counters(bed.stack.redis.url)
            found = probe.stop()
        if rate:
            loop.stop()
    cpu = {name: round(100 * (after[name] - before[name]) / seconds, 2) for name in before}
    return _measured(readers, seconds, cpu, redis_after - redis_before, found)


def _measured(
    readers: int, seconds: float, cpu: Mapping[str, float], redis: RedisCounters, found: list[dict[str, Any]]
) -> Measured:
    ages = [age for reader in found for age in reader["ages_ms"]]
    total = {
        name: sum(reader[name] for reader in found) for name in ("polls", "cuts", "batches", "cpu_seconds")
    }
    each = max(readers, 1)
    return Measured(
        cpu["sidecar"],
        {
            "cpu_percent": cpu,
            "redis_commands_per_second": round(redis.commands / seconds, 1),
            "redis_sent_bytes_per_second": round(redis.sent_bytes / seconds),
            "redis_received_bytes_per_second": round(redis.received_bytes / seconds),
            "redis_cpu_percent": round(100 * redis.cpu_seconds / seconds, 2),
            "reader_cpu_percent": round(100 * total["cpu_seconds"] / seconds / each, 2),
            "polls_per_second_and_reader": round(total["polls"] / seconds / each, 1),
            "batches_per_second_and_reader": round(total["batches"] / seconds / each, 2),
            "cuts_per_second_and_reader": round(total["cuts"] / seconds / each, 1),
            "cut_age_ms": summary(ages) if ages else {},
        },
    )


class _Readers:
    """The probe with the readers, spoken to over its standard input."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def wait_until_ready(self) -> None:
        """Returns when every reader polls."""
        self._line("ready")

    def tell(self, order: str) -> None:
        """Sends an order to every reader."""
        if self._process.stdin is not None:
            self._process.stdin.write(f"{order}\n")
            self._process.stdin.flush()

    def stop(self) -> list[dict[str, Any]]:
        """Ends them; what each has counted."""
        self.tell("stop")
        found: list[dict[str, Any]] = json.loads(self._line("["))
        return found

    def _line(self, beginning: str) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line.startswith(beginning):
            raise RunFailedError(
                "the readers", f"said {line!r} and {self._process.poll()}; see their errors above"
            )
        return line


@contextmanager
def _readers(bed: Bed, count: int, context: RunContext) -> Iterator[_Readers]:
    arguments = [
        bed.bootstrap,
        bed.stack.redis.url,
        SOURCE,
        f"{ORDERS},{LINES}",
        str(count),
        str(BATCH_SECONDS),
    ]
    command = context.environment.probe(CUT_READERS, *arguments)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        readers = _Readers(process)
        readers.wait_until_ready()
        yield readers
    finally:
        for child in psutil.Process(process.pid).children() if process.poll() is None else ():
            with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                child.kill()
        process.kill()
        process.communicate()


def _cpu(bed: Bed) -> dict[str, float]:
    names = ("sidecar", "redis", "kafka")
    return cpu_seconds({name: pid for name, pid in bed.roles().items() if name in names})
