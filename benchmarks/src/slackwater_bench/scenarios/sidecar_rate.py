"""The sidecar at a steady rate of records: what it adds to every latency, what partitions cost it."""

import json
import subprocess
from collections.abc import Sequence

from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.cuts import count_cuts, wait_for_cut
from slackwater_bench.latencies import summary
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.steady_orders import SteadyOrders
from slackwater_bench.traffic import OpenLoop, TransactionAppender
from slackwater_bench.usage import cpu_between, cpu_of, cpu_use
from slackwater_cdc.envelope import End, decode_transaction
from slackwater_protocol import encode_cut
from slackwater_protocol.keys import transaction_topic
from slackwater_testing.errors import RunFailedError
from slackwater_testing.topics import read_to_end

ORDERS = 2_000
WARM_UP_SECONDS = 5.0
END_SECONDS = 60.0


def run_delay(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rate, seconds = int(parameters["records_per_second"]), float(parameters["seconds"])
    orders, clock = SteadyOrders(ORDERS), context.clock
    with Bed(context, kafka_heap="512m") as bed:
        appender = TransactionAppender(bed.bootstrap, SOURCE, int(parameters["partitions"]), append_time=True)
        appender.append_all(map(orders.changes_of, range(ORDERS)), clock)
        bed.start_sidecar()
        watch = subprocess.Popen(
            context.subject.probe("cut_watch", bed.stack.redis.url, SOURCE),
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
        bed.rest(WARM_UP_SECONDS, clock)
        used, since_ms = cpu_use(bed.roles()), 1000 * clock.now().timestamp()
        bed.rest(seconds, clock)
        cpu = cpu_between(used, cpu_use(bed.roles()))
        loop.stop()
        seen = _seen(watch, loop.intended[-1][0])
        appended = [(lsn, at) for lsn, at in _append_times(bed.bootstrap) if at >= since_ms]
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


def _append_times(bootstrap: str) -> list[tuple[int, int]]:
    """Commit LSN of every END and when the broker appended it (ms since the epoch)."""
    found: list[tuple[int, int]] = []
    for message in read_to_end(bootstrap, transaction_topic(SOURCE)):
        value = message.value()
        record = None if value is None else decode_transaction(value)
        if isinstance(record, End):
            found.append((record.commit_lsn, message.timestamp()[1]))
    return found


def delays(appended: Sequence[tuple[int, int]], seen: Sequence[tuple[int, float]]) -> list[float]:
    """Computes for every END the time until the first cut at or above it was seen; both ascend."""
    result, index = [], 0
    for lsn, at in appended:
        while seen[index][0] < lsn:
            index += 1
        result.append(seen[index][1] - at)
    return result


SIDECAR_DELAY = Scenario(
    name="sidecar-delay",
    version=1,
    unit="ms, p99",
    direction=Direction.LOWER,
    measures="Time from the moment at which the broker appended an END until a blocking reader of Redis has"
    " the cut that contains it, at a steady rate of records (change events, BEGIN and END; transactions of"
    " four rows). Kafka's clock has milliseconds.",
    why="What the sidecar adds to every pipeline's latency.",
    points=(
        {"records_per_second": 2_000, "partitions": 4, "seconds": 20},
        {"records_per_second": 20_000, "partitions": 4, "seconds": 20},
        {"records_per_second": 20_000, "partitions": 500, "seconds": 20},
    ),
    quick_points=({"records_per_second": 20_000, "partitions": 4, "seconds": 8},),
    run=run_delay,
    columns=(
        "delay_ms.p50",
        "delay_ms.p90",
        "delay_ms.p99",
        "delay_ms.max",
        "cuts",
        "cpu_seconds.sidecar",
        "cpu_seconds.others",
    ),
    threshold=0.25,
)


PARTITION_ORDERS = 2_000
DEADLINE_SECONDS = 120.0
IDLE_SECONDS = 10.0
TOPICS = 2


def run_partitions(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rate, seconds = int(parameters["records_per_second"]), float(parameters["seconds"])
    orders, clock = SteadyOrders(PARTITION_ORDERS), context.clock
    with Bed(context, kafka_heap="512m") as bed:
        appender = TransactionAppender(bed.bootstrap, SOURCE, int(parameters["partitions"]) // TOPICS)
        prepared = appender.append_all(map(orders.changes_of, range(PARTITION_ORDERS)), clock)
        started = clock.monotonic()
        bed.start_sidecar()
        start_bytes = len(encode_cut(wait_for_cut(bed, prepared, DEADLINE_SECONDS, clock).cut))
        start_seconds = clock.monotonic() - started
        context.say(f"idle for {IDLE_SECONDS:g} s")
        idle = _cpu_while(bed, IDLE_SECONDS, context)
        transactions = orders.transactions(orders.rows_per_order, PARTITION_ORDERS)
        loop = OpenLoop(appender, transactions, rate / (orders.rows_per_order + TOPICS), clock)
        context.say(f"{rate:,} records/s for {seconds:g} s")
        before = count_cuts(bed.bootstrap)
        loop.start()
        busy = _cpu_while(bed, seconds, context)
        loop.stop()
        last = wait_for_cut(bed, loop.intended[-1][0], DEADLINE_SECONDS, clock)
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


def _cpu_while(bed: Bed, seconds: float, context: RunContext) -> float:
    before = cpu_of(bed.roles()["sidecar"])
    bed.rest(seconds, context.clock)
    return cpu_of(bed.roles()["sidecar"]) - before


SIDECAR_PARTITIONS = Scenario(
    name="sidecar-partitions",
    version=1,
    unit="% of a core",
    direction=Direction.LOWER,
    measures="CPU time of the sidecar at a steady rate of records, by the number of partitions that its two"
    " topics have together. Beside it: with nothing to do, how many cuts per second there were, and the size"
    " of one.",
    why="A cut names the end offset of every partition, and the broker is asked for all now and then.",
    points=tuple(
        {"partitions": partitions, "records_per_second": 2_000, "seconds": 15}
        for partitions in (8, 100, 1_000)
    ),
    quick_points=({"partitions": 100, "records_per_second": 2_000, "seconds": 5},),
    run=run_partitions,
    axis="partitions",
    columns=("idle_percent", "cut_bytes", "cuts_per_second", "start_seconds"),
    curves=("idle_percent",),
)
