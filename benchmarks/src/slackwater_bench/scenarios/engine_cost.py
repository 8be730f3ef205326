"""What one changed row costs, by the size of its group."""

from slackwater_bench.runs.probe import run_probe
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario

CHANGES = 100
LARGEST = {"line of an order": 100_000, "customer of orders": 100_000, "global sum": 10_000_000}
_PROBE_SECONDS = 900.0


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One group."""
    case, rows = str(parameters["case"]), int(parameters["rows"])
    context.say(f"{case}: {rows:,} rows")
    found = run_probe(context.subject, "engine_cost", case, rows, CHANGES, seconds=_PROBE_SECONDS)
    return Measured(found["ms_per_change"], {**found})


ENGINE_COST = Scenario(
    name="engine-cost",
    version=1,
    unit="ms per change",
    direction=Direction.LOWER,
    measures="Processor time of the stages for a batch with one changed row (median of 100), by the rows of"
    " its group: a line of an order whose lines are added up; a customer, in a column that the documents of"
    " its orders do not show; a row of a global sum. Indexes on disk, without Spark and Kafka.",
    why="Cost must follow what changes, not what is there.",
    points=tuple(
        {"case": case, "rows": largest // part} for case, largest in LARGEST.items() for part in (100, 10, 1)
    ),
    quick_points=tuple({"case": case, "rows": rows} for case in LARGEST for rows in (100, 10_000)),
    run=run,
    columns=("ms_of_slowest_change", "documents", "us_per_row_filled"),
    axis="rows",
    series="case",
)
