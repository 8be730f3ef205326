"""What many partitions cost the sidecar."""

from slackwater_bench.backlog.steady_orders import SteadyOrders
from slackwater_bench.backlog.traffic import OpenLoop, TransactionAppender
from slackwater_bench.errors import RunFailedError
from slackwater_bench.runs.bed import SOURCE, Bed
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.scenarios.sidecar import cpu_of
from slackwater_markers import KafkaCutLog
from slackwater_protocol import encode_cut

ORDERS = 2_000
DEADLINE_SECONDS = 120.0
IDLE_SECONDS = 10.0
TOPICS = 2


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rate, seconds = int(parameters["records_per_second"]), float(parameters["seconds"])
    orders, clock = SteadyOrders(ORDERS), context.clock
    with Bed(context, kafka_heap="512m") as bed:
        appender = TransactionAppender(bed.bootstrap, SOURCE, int(parameters["partitions"]) // TOPICS)
        prepared = appender.append_all(map(orders.changes_of, range(ORDERS)), clock)
        started = clock.monotonic()
        bed.start_sidecar()
        start_bytes, _ = _wait_for_cut(bed, prepared, context)
        start_seconds = clock.monotonic() - started
        context.say(f"idle for {IDLE_SECONDS:g} s")
        idle = _cpu_while(bed, IDLE_SECONDS, context)
        transactions = orders.transactions(orders.rows_per_order, ORDERS)
        loop = OpenLoop(appender, transactions, rate / (orders.rows_per_order + TOPICS), clock)
        context.say(f"{rate:,} records/s for {seconds:g} s")
        before = _cuts(bed)
        loop.start()
        busy = _cpu_while(bed, seconds, context)
        loop.stop()
        cut_bytes, cuts = _wait_for_cut(bed, loop.intended[-1][0], context)
    return Measured(
        round(100 * busy / seconds, 1),
        {
            "idle_percent": round(100 * idle / IDLE_SECONDS, 1),
            "cut_bytes": cut_bytes,
            "start_cut_bytes": start_bytes,
            "cuts_per_second": round((cuts - before) / seconds, 1),
            "start_seconds": round(start_seconds, 1),
        },
    )


def _cpu_while(bed: Bed, seconds: float, context: RunContext) -> float:
    before = cpu_of(bed.roles()["sidecar"])
    bed.rest(seconds, context.clock)
    return cpu_of(bed.roles()["sidecar"]) - before


def _cuts(bed: Bed) -> int:
    log = KafkaCutLog(SOURCE, bed.bootstrap)
    try:
        newest = log.newest()
        return 0 if newest is None else newest.log_offset + 1
    finally:
        log.close()


def _wait_for_cut(bed: Bed, lsn: int, context: RunContext) -> tuple[int, int]:
    """Size of the first cut at an LSN, and how many cuts there are then."""
    log = KafkaCutLog(SOURCE, bed.bootstrap)
    deadline = context.clock.monotonic() + DEADLINE_SECONDS
    try:
        while context.clock.monotonic() < deadline:
            bed.check()
            newest = log.newest()
            if newest is not None and newest.cut.lsn >= lsn:
                return len(encode_cut(newest.cut)), newest.log_offset + 1
    finally:
        log.close()
    raise RunFailedError("the sidecar", f"published no cut at {lsn} within {DEADLINE_SECONDS:g} s")


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
    run=run,
    axis="partitions",
    columns=("idle_percent", "cut_bytes", "cuts_per_second", "start_seconds"),
    curves=("idle_percent",),
)
