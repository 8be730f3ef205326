"""Parts of the product alone, by probes: a cut with its readers, the sink."""

from slackwater_bench.bed import Bed
from slackwater_bench.latencies import summary
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.subject import run_probe
from slackwater_bench.usage import redis_counters

TRANSACTIONS_PER_CUT = 20


def run_cut_cost(parameters: Parameters, context: RunContext) -> Measured:
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
    run=run_cut_cost,
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


def run_sink(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    documents, transactions = int(parameters["documents"]), int(parameters["transactions"])
    with Bed(context) as bed:
        context.say(f"{transactions:,} transactions of {documents:,} documents")
        found = run_probe(context.subject, "sink", bed.bootstrap, documents, transactions)
    total = documents * transactions
    return Measured(
        round(total / found["seconds"], 1),
        {
            "documents_per_cpu_second": round(total / found["cpu_seconds"]),
            "transaction_ms": round(1000 * found["seconds"] / transactions, 1),
            "commit_ms": summary(found["commit_ms"]),
        },
    )


SINK_ALONE = Scenario(
    name="sink-alone",
    version=1,
    unit="documents/s",
    direction=Direction.HIGHER,
    measures="Documents per second through the exactly-once Kafka sink, one Kafka transaction after another, "
    "documents of about 300 bytes in the form in which the last stage hands them over.",
    why="What the sink costs by itself: small transactions pay for the commit, large ones for the documents.",
    points=(
        {"documents": 1, "transactions": 300},
        {"documents": 100, "transactions": 200},
        {"documents": 10_000, "transactions": 40},
        {"documents": 100_000, "transactions": 8},
    ),
    quick_points=({"documents": 100, "transactions": 50}, {"documents": 10_000, "transactions": 5}),
    run=run_sink,
    axis="documents",
    columns=("transaction_ms", "commit_ms.p50", "commit_ms.p99", "documents_per_cpu_second"),
)
