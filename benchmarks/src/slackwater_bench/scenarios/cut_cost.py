"""What a cut costs, by the number of partitions."""

from slackwater_bench.runs.bed import Bed
from slackwater_bench.runs.probe import run_probe
from slackwater_bench.runs.redis_counters import redis_counters
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario

TRANSACTIONS_PER_CUT = 20


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    partitions, cuts = int(parameters["partitions"]), int(parameters["cuts"])
    with Bed(context) as bed:
        url = bed.stack.redis.url
        context.say(f"{cuts:,} cuts of {partitions:,} partitions")
        before = redis_counters(url)
        found = run_probe(
            context.subject, "cut_cost", bed.bootstrap, url, "inv", partitions, cuts, TRANSACTIONS_PER_CUT
        )
        redis = redis_counters(url) - before
    return Measured(
        round(found["write_cpu_ms"], 3),
        {name: round(value, 3) for name, value in found.items()}
        | {
            "redis_cpu_ms": round(1000 * redis.cpu_seconds / cuts, 3),
            "redis_received_bytes": round(redis.received_bytes / cuts),
            "redis_sent_bytes": round(redis.sent_bytes / cuts),
        },
    )


CUT_COST = Scenario(
    name="cut-cost",
    version=1,
    unit="CPU ms per cut",
    direction=Direction.LOWER,
    measures="CPU time of the sidecar's publisher for one cut of 20 transactions, to a real cut log and a"
    " real Redis, with simulated partitions. Beside it, per cut: bytes, CPU of Redis, and the CPU time of a"
    " reader that plans a batch for every single cut.",
    why="Cost must not explode with the number of partitions: a cut names the end offset of each.",
    points=tuple({"partitions": partitions, "cuts": 1_000} for partitions in (1, 10, 100, 1_000)),
    quick_points=tuple({"partitions": partitions, "cuts": 200} for partitions in (1, 100)),
    run=run,
    axis="partitions",
    columns=(
        "write_ms",
        "plan_cpu_ms",
        "redis_cpu_ms",
        "bytes_per_cut",
        "redis_received_bytes",
        "redis_sent_bytes",
    ),
    curves=("plan_cpu_ms", "redis_cpu_ms", "redis_received_bytes"),
)
