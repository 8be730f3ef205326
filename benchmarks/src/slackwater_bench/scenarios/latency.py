"""Latency of an open loop: records appear at intended times, whatever the system does."""

from slackwater_bench.batch_log import batch_parts
from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.latencies import latencies_ms, latency_timeline
from slackwater_bench.percentiles import summary
from slackwater_bench.pipelines import ORDERS_PIPELINE, output_of
from slackwater_bench.processes import cpu_between, cpu_use
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.steady_orders import SteadyOrders
from slackwater_bench.traffic import OpenLoop, TransactionAppender
from slackwater_bench.watcher import CommitWatcher

ORDERS = 2_000
START_SECONDS = 120.0
WARM_UP_SECONDS = 10.0


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rate, seconds = int(parameters["changes_per_second"]), float(parameters["seconds"])
    orders = SteadyOrders(ORDERS)
    with Bed(context) as bed:
        appender = TransactionAppender(bed.bootstrap, SOURCE, 4)
        first = (orders.changes_of(number) for number in range(ORDERS))
        prepared = appender.append_all(first, context.clock)
        watcher = CommitWatcher(bed.bootstrap, output_of(ORDERS_PIPELINE), context.clock, bed.check)
        bed.start_sidecar()
        bed.start_pipeline(ORDERS_PIPELINE)
        context.say("sidecar and pipeline start")
        watcher.until(prepared, START_SECONDS)
        roles, used = bed.roles(), cpu_use(bed.roles())
        transactions = orders.transactions(orders.rows_per_order, ORDERS)
        loop = OpenLoop(appender, transactions, rate / orders.rows_per_order, context.clock)
        context.say(f"{rate:,} changes/s for {seconds:g} s")
        begun = context.clock.monotonic()
        loop.start()
        while context.clock.monotonic() < begun + WARM_UP_SECONDS + seconds:
            watcher.look()
        loop.stop()
        watcher.until(loop.intended[-1][0], START_SECONDS)
        watcher.close()
        cpu = cpu_between(used, cpu_use(roles))
        seen = [(commit.commit_lsn, commit.at) for commit in watcher.seen]
        found = summary(list(latencies_ms(loop.intended, seen, since=begun + WARM_UP_SECONDS)))
        return Measured(
            found["p99"],
            {
                "latency_ms": found,
                "timeline_ms": latency_timeline(loop.intended, seen, since=begun),
                "generator_late_ms": round(1000 * loop.latest_seconds, 1),
                "batches": len(seen),
                "batch_seconds": batch_parts(bed.log("pipeline")),
                "cpu_seconds": cpu,
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
    columns=("latency_ms.p50", "latency_ms.p90", "latency_ms.p99", "latency_ms.max", "generator_late_ms"),
    curves=("latency_ms.p50",),
    threshold=0.25,
)
