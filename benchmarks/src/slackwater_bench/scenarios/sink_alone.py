"""The Kafka sink without Spark."""

from slackwater_bench.percentiles import summary
from slackwater_bench.runs.bed import Bed
from slackwater_bench.runs.probe import run_probe
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario


def run(parameters: Parameters, context: RunContext) -> Measured:
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
    run=run,
    axis="documents",
    columns=("transaction_ms", "commit_ms.p50", "commit_ms.p99", "documents_per_cpu_second"),
)
