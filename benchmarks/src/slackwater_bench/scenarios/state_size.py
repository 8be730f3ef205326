"""Throughput by the number of keys in the state."""

from functools import partial

from slackwater_bench.backlog.catchup import CatchUp, measure_catch_up
from slackwater_bench.backlog.steady_load import SteadyLoad
from slackwater_bench.backlog.steady_orders import SteadyOrders
from slackwater_bench.runs.pipelines import ORDERS_PIPELINE
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario

LINES_PER_ORDER = 1


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    keys, events = int(parameters["keys"]), int(parameters["events"])
    orders = SteadyOrders(keys, LINES_PER_ORDER)
    plan = CatchUp(pipeline=ORDERS_PIPELINE)
    load = partial(SteadyLoad, orders=orders, rows=orders.rows_per_order, events=events, clock=context.clock)
    return measure_catch_up(plan, load, context)


STATE_SIZE = Scenario(
    name="state-size",
    version=1,
    unit="change events/s",
    direction=Direction.HIGHER,
    measures="Catch-up rate by the number of keys (orders with one line each) in the pipeline's state; one"
    " key after another is changed, in an order without locality.",
    why="Cost must follow the changes, not the keys. Few keys have it easier: a batch that changes a key"
    " several times publishes it once.",
    points=tuple({"keys": 10**power, "events": 500_000} for power in (4, 5, 6, 7)),
    quick_points=tuple({"keys": 10**power, "events": 100_000} for power in (3, 4)),
    run=run,
    axis="keys",
    columns=(
        "seconds",
        "seconds_to_initial_state",
        "batches",
        "peak_mib.pipeline workers",
        "peak_mib.sidecar",
    ),
    curves=("peak_mib.pipeline workers",),
)
