"""The sidecar by itself: on the topics of whole workloads, and at a steady rate of records."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from slackwater.protocol import Cut, encode_cut
from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.latencies import summary
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_bench.traffic import OpenLoop, SteadyOrders, TransactionAppender
from slackwater_bench.usage import cpu_between, cpu_of, cpu_use
from slackwater_lab.errors import RunFailedError
from slackwater_lab.generator.fill import TopicFiller
from slackwater_lab.watching import read_ends
from slackwater_lab.workloads.orders import OrdersWorkload
from slackwater_lab.workloads.transfers import TransfersWorkload
from slackwater_lab.workloads.workload import Workload

DEADLINE_SECONDS = 300.0
SEED = 5
WORKLOADS: Mapping[str, Workload] = {
    "orders": OrdersWorkload(SEED, 20_000),
    "transfers": TransfersWorkload(SEED, 10_000),
}


@dataclass(frozen=True, slots=True)
class Moment:
    """A cut, with the time and the processor time that were spent when it was seen."""

    cut: Cut
    at: float
    cpu_seconds: float

    @property
    def records(self) -> int:
        """Change events, BEGINs and ENDs up to the cut; tombstones are read, too, but not counted."""
        return self.cut.event_count + self.cut.transaction_offset

    @property
    def offsets(self) -> int:
        """Everything in the topics up to the cut."""
        data = sum(sum(offsets) for offsets in self.cut.end_offsets.values())
        return data + self.cut.transaction_offset


def run_sidecar(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    workload = WORKLOADS[str(parameters["workload"])]
    partitions, workers = int(parameters["partitions"]), int(parameters["workers"])
    with Bed(context, kafka_heap="256m") as bed:
        context.say("writing topics")
        filler = TopicFiller(bed.bootstrap, workload, prefix=SOURCE, partitions=partitions)
        last_lsn = filler.fill(int(parameters["events"])).last_commit_lsn
        options = ["--workers", str(workers)] if workers > 1 else []
        bed.start_sidecar(*options)
        began = context.clock.monotonic()
        cut = bed.wait_for_cut(last_lsn, DEADLINE_SECONDS).cut
        last = Moment(cut, context.clock.monotonic(), cpu_of(bed.roles()["sidecar"]))
        peak_mib = _peak_mib(bed.roles()["sidecar"])
    seconds = last.at - began
    return Measured(
        round(last.records / last.cpu_seconds),
        {
            "records_per_second": round(last.records / seconds),
            "offsets_per_cpu_second": round(last.offsets / last.cpu_seconds),
            "records": last.records,
            "seconds": round(seconds, 2),
            "cpu_seconds": round(last.cpu_seconds, 2),
            "peak_mib": peak_mib,
        },
    )


def _peak_mib(pid: int) -> float:
    """Largest resident sizes of a process and its children, added up."""
    root = psutil.Process(pid)
    pids = [root.pid, *(child.pid for child in root.children(recursive=True))]
    return round(sum(_high_water_mark_kib(each) for each in pids) / 1024, 1)


def _high_water_mark_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0


CUT_WATCH = "sidecar/probes/cut_watch.py"
ORDERS = 2_000
WARM_UP_SECONDS = 5.0
END_SECONDS = 60.0
CUT_SECONDS = 120.0


def run_delay(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rate, seconds = int(parameters["records_per_second"]), float(parameters["seconds"])
    orders, clock = SteadyOrders(ORDERS), context.clock
    with Bed(context, kafka_heap="512m") as bed:
        appender = TransactionAppender(bed.bootstrap, SOURCE, int(parameters["partitions"]), append_time=True)
        appender.append_all(map(orders.changes_of, range(ORDERS)), clock)
        bed.start_sidecar()
        watch = subprocess.Popen(
            context.environment.probe(CUT_WATCH, bed.stack.redis.url, SOURCE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        loop = OpenLoop(
            appender,
            orders.transactions(orders.rows_per_order, ORDERS),
            rate / (orders.rows_per_order + 2),
            clock,
        )
        context.say(f"{rate:,} records/s for {seconds:g} s")
        loop.start()
        bed.rest(WARM_UP_SECONDS)
        used, since_ms = cpu_use(bed.roles()), 1000 * clock.now().timestamp()
        bed.rest(seconds)
        cpu = cpu_between(used, cpu_use(bed.roles()))
        loop.stop()
        seen = _seen(watch, loop.intended[-1][0])
        appended = [(lsn, at) for lsn, at in read_ends(bed.bootstrap, SOURCE).items() if at >= since_ms]
    found = summary(delays(appended, seen))
    return Measured(
        found["p99"],
        {
            "delay_ms": found,
            "cuts": sum(at >= since_ms for _, at in seen),
            "generator_late_ms": round(1000 * loop.latest_seconds, 1),
            "cpu_seconds": cpu,
        },
    )


def _seen(watch: "subprocess.Popen[str]", last_lsn: int) -> list[tuple[int, float]]:
    try:
        output, _ = watch.communicate(f"{last_lsn}\n", timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        watch.kill()
        raise RunFailedError("the sidecar", f"no cut at {last_lsn} within {END_SECONDS:g} s") from None
    return [(lsn, at) for lsn, at in json.loads(output)]


def delays(appended: Sequence[tuple[int, int]], seen: Sequence[tuple[int, float]]) -> list[float]:
    """Computes for every END the time until the first cut at or above it was seen; both ascend."""
    result, index = [], 0
    for lsn, at in appended:
        while seen[index][0] < lsn:
            index += 1
        result.append(seen[index][1] - at)
    return result


IDLE_SECONDS = 10.0
TOPICS = 2


def run_partitions(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rate, seconds = int(parameters["records_per_second"]), float(parameters["seconds"])
    orders, clock = SteadyOrders(ORDERS), context.clock
    with Bed(context, kafka_heap="512m") as bed:
        appender = TransactionAppender(bed.bootstrap, SOURCE, int(parameters["partitions"]) // TOPICS)
        prepared = appender.append_all(map(orders.changes_of, range(ORDERS)), clock)
        started = clock.monotonic()
        bed.start_sidecar()
        start_bytes = len(encode_cut(bed.wait_for_cut(prepared, CUT_SECONDS).cut))
        start_seconds = clock.monotonic() - started
        context.say(f"idle for {IDLE_SECONDS:g} s")
        idle = _cpu_while(bed, IDLE_SECONDS)
        transactions = orders.transactions(orders.rows_per_order, ORDERS)
        loop = OpenLoop(appender, transactions, rate / (orders.rows_per_order + TOPICS), clock)
        context.say(f"{rate:,} records/s for {seconds:g} s")
        before = bed.count_cuts()
        loop.start()
        busy = _cpu_while(bed, seconds)
        loop.stop()
        last = bed.wait_for_cut(loop.intended[-1][0], CUT_SECONDS)
    return Measured(
        round(100 * busy / seconds, 1),
        {
            "idle_percent": round(100 * idle / IDLE_SECONDS, 1),
            "cut_bytes": len(encode_cut(last.cut)),
            "start_cut_bytes": start_bytes,
            "cuts_per_second": round((last.log_offset + 1 - before) / seconds, 1),
            "start_seconds": round(start_seconds, 1),
        },
    )


def _cpu_while(bed: Bed, seconds: float) -> float:
    before = cpu_of(bed.roles()["sidecar"])
    bed.rest(seconds)
    return cpu_of(bed.roles()["sidecar"]) - before
