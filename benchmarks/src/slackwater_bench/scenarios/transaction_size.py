"""Throughput by the size of a transaction."""

from functools import partial

from slackwater_bench.backlog.catchup import CatchUp, measure_catch_up
from slackwater_bench.backlog.steady_load import SteadyLoad
from slackwater_bench.backlog.steady_orders import SteadyOrders
from slackwater_bench.runs.pipelines import ORDERS_PIPELINE
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario

ORDERS = 10_000


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rows, events = int(parameters["rows"]), int(parameters["events"])
    plan = CatchUp(pipeline=ORDERS_PIPELINE)
    load = partial(SteadyLoad, orders=SteadyOrders(ORDERS), rows=rows, events=events, clock=context.clock)
    return measure_catch_up(plan, load, context)


TRANSACTION_SIZE = Scenario(
    name="transaction-size",
    version=1,
    unit="change events/s",
    direction=Direction.HIGHER,
    measures="Catch-up rate over 10,000 orders, as in throughput, with the same changes cut into transactions"
    " of one size.",
    why="Small transactions cost bookkeeping per transaction, huge ones must not cost memory or a cliff: a "
    "transaction is never split.",
    points=tuple({"rows": rows, "events": max(rows, 500_000)} for rows in (1, 100, 10_000, 1_000_000)),
    quick_points=({"rows": 1, "events": 100_000}, {"rows": 100_000, "events": 100_000}),
    run=run,
    axis="rows",
    columns=("seconds", "batches", "cpu_seconds.sidecar", "peak_mib.sidecar", "peak_mib.pipeline workers"),
)
