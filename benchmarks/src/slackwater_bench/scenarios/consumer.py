"""A consumer of whole transactions by itself, timed by a probe."""

from itertools import islice

from slackwater.protocol import Clock
from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.environment import run_probe
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.traffic import SteadyOrders, TransactionAppender

ORDERS = 5_000
CUTS_SECONDS = 300.0
SECONDS = 600.0
PARTITIONS = 4
_PROBE = "packages/slackwater/probes/client/consumer_speed.py"


def run_consumer(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    kind, share = str(parameters["input"]), str(parameters["share"])
    rows, records = int(parameters["rows"]), int(parameters["records"])
    with Bed(context, kafka_heap="256m") as bed:
        if kind == "changes":
            _write_changes(bed, rows, records, context.clock)
        context.say(f"reading {records:,} records")
        found = run_probe(
            context.environment, _PROBE, bed.bootstrap, kind, share, records, rows, seconds=SECONDS
        )
    return Measured(
        round(found["records"] / found["cpu_seconds"]),
        {
            **{name: round(value, 2) for name, value in found.items()},
            "records_per_second": round(found["records"] / found["seconds"]),
            "librdkafka_share": round(found["librdkafka_cpu_seconds"] / found["cpu_seconds"], 2),
        },
    )


def _write_changes(bed: Bed, rows: int, records: int, clock: Clock) -> None:
    """Writes change events and has a sidecar publish the cuts."""
    appender = TransactionAppender(bed.bootstrap, SOURCE, PARTITIONS)
    transactions = SteadyOrders(ORDERS).transactions(rows)
    last_lsn = appender.append_all(islice(transactions, records // rows), clock)
    bed.start_sidecar()
    bed.wait_for_cut(last_lsn, CUTS_SECONDS)
    bed.stop("sidecar")


CONSUMER = Scenario(
    name="consumer",
    version=1,
    unit="records/CPU s",
    direction=Direction.HIGHER,
    measures="The number of records per second of processor time that one `TransactionalConsumer` delivers "
    "from its start, including librdkafka's threads; it runs on one core, the broker on another "
    "one. It reads documents of an output by commit records, or change events by cuts; "
    "everything, or by units of which one member owns all; by the number of rows of a "
    "transaction. The other columns contain the records per second after the first transaction, "
    "and librdkafka's share of the processor time.",
    why="It shows what whole transactions cost a service.",
    points=tuple(
        {"input": kind, "share": share, "rows": rows, "records": 500_000}
        for kind in ("outputs", "changes")
        for share in ("everything", "units")
        for rows in (4, 1_000)
    ),
    quick_points=tuple(
        {"input": kind, "share": "everything", "rows": rows, "records": 100_000}
        for kind in ("outputs", "changes")
        for rows in (4, 1_000)
    ),
    run=run_consumer,
    columns=("records_per_second", "librdkafka_share", "transactions", "seconds"),
)
