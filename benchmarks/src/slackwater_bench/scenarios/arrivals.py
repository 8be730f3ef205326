"""Load by clients of a real database that arrive in shapes."""

from slackwater_bench.load.locust_run import LoadOptions, run_load
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    options = LoadOptions(
        arrivals=str(parameters["arrivals"]),
        rate=float(parameters["transactions_per_second"]),
        seconds=float(parameters["seconds"]),
    )
    found = run_load(options, context)
    visible = found["visible_ms"]
    if not isinstance(visible, dict):
        raise TypeError(f"visible_ms is {visible!r}")
    return Measured(visible["p99"], found)


ARRIVALS = Scenario(
    name="arrivals",
    version=1,
    unit="ms, p99",
    direction=Direction.LOWER,
    measures="Time from the commit of a business transaction in PostgreSQL until it is visible in the view."
    " Locust's users are clients of the database; transactions arrive at random times that do not depend on"
    " how long earlier ones take. A process of its own measures.",
    why="The whole way, connector included, under arrivals as they are in life: steady, in bursts, rising.",
    points=tuple(
        {"arrivals": arrivals, "transactions_per_second": 200, "seconds": 60}
        for arrivals in ("steady", "burst", "ramp")
    ),
    quick_points=({"arrivals": "steady", "transactions_per_second": 50, "seconds": 15},),
    run=run,
    columns=(
        "visible_ms.p50",
        "visible_ms.p90",
        "visible_ms.p99",
        "visible_ms.max",
        "commit_ms.p50",
        "commit_ms.p99",
        "visible_count",
    ),
    threshold=0.25,
)
