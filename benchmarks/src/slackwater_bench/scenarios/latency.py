"""Latency of an open loop: records appear at intended times, whatever the system does."""

from collections.abc import Mapping
from contextlib import closing

from slackwater_bench.backlog.steady_orders import SteadyOrders
from slackwater_bench.backlog.traffic import OpenLoop, TransactionAppender
from slackwater_bench.percentiles import summary
from slackwater_bench.runs.batch_log import batch_parts
from slackwater_bench.runs.bed import SOURCE, Bed
from slackwater_bench.runs.latencies import latencies_ms, latency_timeline
from slackwater_bench.runs.pipelines import ORDERS_PIPELINE, output_of
from slackwater_bench.runs.processes import cpu_between, cpu_use
from slackwater_bench.runs.watcher import CommitWatcher
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario

ORDERS = 2_000
START_SECONDS = 120.0
WARM_UP_SECONDS = 10.0


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rate, seconds = int(parameters["changes_per_second"]), float(parameters["seconds"])
    orders, clock = SteadyOrders(ORDERS), context.clock
    with Bed(context) as bed:
        appender = TransactionAppender(bed.bootstrap, SOURCE, 4)
        prepared = appender.append_all(map(orders.changes_of, range(ORDERS)), clock)
        with closing(CommitWatcher(bed.bootstrap, output_of(ORDERS_PIPELINE), clock, bed.check)) as watcher:
            bed.start_sidecar()
            bed.start_pipeline(ORDERS_PIPELINE)
            context.say("sidecar and pipeline start")
            watcher.until(prepared, START_SECONDS)
            transactions = orders.transactions(orders.rows_per_order, ORDERS)
            loop = OpenLoop(appender, transactions, rate / orders.rows_per_order, clock)
            context.say(f"{rate:,} changes/s for {seconds:g} s")
            loop.start()
            watcher.look_until(clock.monotonic() + WARM_UP_SECONDS)
            used, since, log = cpu_use(bed.roles()), clock.monotonic(), len(bed.log("pipeline"))
            watcher.look_until(since + seconds)
            cpu = cpu_between(used, cpu_use(bed.roles()))
            parts = batch_parts(bed.log("pipeline")[log:])
            loop.stop()
            watcher.until(loop.intended[-1][0], START_SECONDS)
        return _measured(loop, watcher, since, {"batch_seconds": parts, "cpu_seconds": cpu})


def _measured(
    loop: OpenLoop, watcher: CommitWatcher, since: float, details: Mapping[str, object]
) -> Measured:
    seen = [(commit.commit_lsn, commit.at) for commit in watcher.seen]
    found = summary(list(latencies_ms(loop.intended, seen, since=since)))
    return Measured(
        found["p99"],
        {
            "latency_ms": found,
            "timeline_ms": latency_timeline(loop.intended, seen, since=since - WARM_UP_SECONDS),
            "generator_late_ms": round(1000 * loop.latest_seconds, 1),
            "batches": sum(at >= since for _, at in seen),
            **details,
        },
    )


LATENCY = Scenario(
    name="latency",
    version=1,
    unit="ms, p99",
    direction=Direction.LOWER,
    measures="Time from the moment at which a transaction (an order and its three lines) was *meant* to be"
    " appended to the topics until a read_committed consumer sees it in the view. An open loop appends at a"
    " fixed rate, so a system that stalls is charged for every transaction that had to wait (no coordinated"
    " omission).",
    why="What Slackwater adds, without database and connector: the time from the topics to the view.",
    points=tuple({"changes_per_second": rate, "seconds": 30} for rate in (2_000, 8_000, 20_000)),
    quick_points=({"changes_per_second": 2_000, "seconds": 15},),
    run=run,
    axis="changes_per_second",
    columns=(
        "latency_ms.p50",
        "latency_ms.p90",
        "latency_ms.p99",
        "latency_ms.max",
        "generator_late_ms",
        "cpu_seconds.others",
    ),
    curves=("latency_ms.p50",),
    threshold=0.25,
)
