"""Whether the frontier's memory stays flat over very many transactions."""

from slackwater_bench.runs.probe import run_probe
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario

PARTITIONS = 8
PROBE_SECONDS = 1_800.0


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    millions = float(parameters["transactions"]) / 1_000_000
    found = run_probe(context.subject, "frontier_soak", millions, PARTITIONS, seconds=PROBE_SECONDS)
    resident = list(found["resident_mib"].values())
    half = len(resident) // 2
    return Measured(
        round(max(resident[half:]) - max(resident[:half]), 1),
        {
            "first_half_mib": max(resident[:half]),
            "second_half_mib": max(resident[half:]),
            "transactions_per_cpu_second": round(found["transactions"] / found["cpu_seconds"]),
            **found,
        },
    )


SIDECAR_MEMORY = Scenario(
    name="sidecar-memory",
    version=1,
    unit="MiB of growth",
    direction=Direction.LOWER,
    measures="Largest resident size of a process that feeds generated records of so many transactions to the"
    " frontier, without Kafka, in its second half minus that in its first half. Every thousandth transaction"
    " is repeated, every hundred thousandth begins a new run of the connector.",
    why="A sidecar runs for months. It remembers the newest two million transactions, to recognise rows that"
    " come again; nothing else may grow.",
    points=({"transactions": 10_000_000},),
    quick_points=({"transactions": 200_000},),
    run=run,
    columns=("first_half_mib", "second_half_mib", "transactions_per_cpu_second"),
)
