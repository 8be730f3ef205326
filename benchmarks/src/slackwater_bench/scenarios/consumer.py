"""A consumer of whole transactions by itself, timed by a probe."""

from itertools import islice

from slackwater.protocol import Clock
from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.environment import run_probe
from slackwater_bench.scenario import Measured, Parameters, RunContext
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
