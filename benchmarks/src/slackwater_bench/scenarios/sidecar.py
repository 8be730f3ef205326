"""The sidecar by itself: on the topics of whole workloads, and at a steady rate of records."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil

from slackwater.protocol import encode_cut
from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.latencies import latencies_ms, summary
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_bench.traffic import OpenLoop, SteadyOrders, TransactionAppender
from slackwater_bench.usage import cpu_between, cpu_of, cpu_use
from slackwater_lab.errors import RunFailedError
from slackwater_lab.generator.fill import TopicFiller
from slackwater_lab.watching import read_cuts, read_ends
from slackwater_lab.workloads.orders import OrdersWorkload
from slackwater_lab.workloads.transfers import TransfersWorkload
from slackwater_lab.workloads.workload import Workload

DEADLINE_SECONDS = 300.0
SEED = 5
WORKLOADS: Mapping[str, Workload] = {
    "orders": OrdersWorkload(SEED, 20_000),
    "transfers": TransfersWorkload(SEED, 10_000),
}


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
        seconds, cpu = context.clock.monotonic() - began, cpu_of(bed.roles()["sidecar"])
        peak_mib = _peak_mib(bed.roles()["sidecar"])
    records = cut.event_count + cut.transaction_offset  # tombstones are read, too, but not counted
    offsets = sum(map(sum, cut.end_offsets.values())) + cut.transaction_offset
    return Measured(
        round(records / cpu),
        {
            "records_per_second": round(records / seconds),
            "offsets_per_cpu_second": round(offsets / cpu),
            "records": records,
            "seconds": round(seconds, 2),
            "cpu_seconds": round(cpu, 2),
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
        used, since = cpu_use(bed.roles()), clock.now().timestamp()
        bed.rest(seconds)
        cpu = cpu_between(used, cpu_use(bed.roles()))
        loop.stop()
        seen = _seen(watch, loop.intended[-1][0])
        appended = [(lsn, at / 1000) for lsn, at in read_ends(bed.bootstrap, SOURCE).items()]
    found = summary(list(latencies_ms(appended, seen, since=since)))
    return Measured(
        found["p99"],
        {
            "delay_ms": found,
            "cuts": sum(at >= since for _, at in seen),
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
    return [(lsn, at_ms / 1000) for lsn, at_ms in json.loads(output)]


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
        before = len(read_cuts(bed.bootstrap, SOURCE))
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
