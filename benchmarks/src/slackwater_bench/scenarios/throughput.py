"""Throughput: a backlog worked off, by workload, partitions, cores, executors, keys, size of transactions."""

from functools import partial

from slackwater_bench.bed import ORDERS_PIPELINE
from slackwater_bench.catch_up import SEED, CatchUp, SteadyBacklog, WorkloadBacklog, measure_catch_up
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_bench.traffic import SteadyOrders
from slackwater_lab.workloads import WORKLOADS

SIZE = 20_000


def run_throughput(parameters: Parameters, context: RunContext) -> Measured:
    """One run of a workload."""
    name, partitions = str(parameters.get("workload", "orders")), int(parameters.get("partitions", 4))
    workload = WORKLOADS[name](SEED, int(parameters.get("size", SIZE)))
    options: tuple[str, ...] = ()
    if "master" in parameters:
        options = ("--master", str(parameters["master"]))
    plan = CatchUp(
        pipeline=workload.pipeline,
        sidecar_options=barrier_options(parameters),
        partitions=partitions,
        cores=int(parameters["cores"]) if "cores" in parameters else None,
        options=options,
    )
    backlog = partial(
        WorkloadBacklog, workload=workload, events=int(parameters["events"]), partitions=partitions
    )
    return measure_catch_up(plan, backlog, context)


def barrier_options(parameters: Parameters) -> tuple[str, ...]:
    """Returns the options of a sidecar with barriers this many seconds apart, if the point says so."""
    if "barrier_interval" not in parameters:
        return ()
    return ("--barrier-interval", str(parameters["barrier_interval"]))


LINES_PER_ORDER = 1


def run_state_size(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    keys, events = int(parameters["keys"]), int(parameters["events"])
    orders = SteadyOrders(keys, LINES_PER_ORDER)
    plan = CatchUp(pipeline=ORDERS_PIPELINE)
    backlog = partial(
        SteadyBacklog, orders=orders, rows=orders.rows_per_order, events=events, clock=context.clock
    )
    return measure_catch_up(plan, backlog, context)


ORDERS = 10_000


def run_transaction_size(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rows, events = int(parameters["rows"]), int(parameters["events"])
    plan = CatchUp(pipeline=ORDERS_PIPELINE)
    backlog = partial(
        SteadyBacklog, orders=SteadyOrders(ORDERS), rows=rows, events=events, clock=context.clock
    )
    return measure_catch_up(plan, backlog, context)
