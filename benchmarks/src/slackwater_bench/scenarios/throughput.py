"""Throughput: a backlog worked off, by workload, partitions, cores, executors, keys, size of transactions."""

from functools import partial
from typing import Any

from slackwater_bench.bed import ORDERS_PIPELINE
from slackwater_bench.catch_up import SEED, CatchUp, SteadyBacklog, WorkloadBacklog, measure_catch_up
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.traffic import SteadyOrders
from slackwater_lab.workloads import WORKLOADS

SIZE = 20_000
EVENTS = 1_000_000
QUICK_EVENTS = 150_000
COLUMNS = (
    "seconds",
    "batches",
    "cpu_seconds.sidecar",
    "cpu_seconds.pipeline jvm",
    "cpu_seconds.pipeline workers",
    "cpu_seconds.kafka",
    "peak_mib.sidecar",
    "cpu_seconds.others",
)


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


def _scenario(name: str, measures: str, why: str, points: list[Parameters], **more: Any) -> Scenario:
    return Scenario(
        name=name,
        version=1,
        unit="change events/s",
        direction=Direction.HIGHER,
        measures=measures,
        why=why,
        points=tuple({**point, "events": EVENTS} for point in points),
        quick_points=tuple({**point, "events": QUICK_EVENTS, "size": 2_000} for point in points[:2]),
        run=run_throughput,
        columns=COLUMNS,
        **more,
    )


THROUGHPUT = _scenario(
    "throughput",
    "The number of change events per second at which a running sidecar and pipeline work off a "
    "backlog, from the moment at which the sidecar may resume until a read_committed consumer "
    "sees the last transaction. The initial state of 20,000 main rows and the start of Spark come "
    "before.",
    "It shows the reserve for bursts, outages and first loads.",
    [{"workload": "orders"}, {"workload": "transfers"}],
)

PARTITIONS = _scenario(
    "partitions",
    "The throughput of the orders workload by the number of partitions of each data topic.",
    "Partitions must neither be needed for speed nor cost it.",
    [{"partitions": count} for count in (1, 4, 16, 64)],
    axis="partitions",
)

CORES = _scenario(
    "cores",
    "The throughput of the orders workload with everything, including the broker, on one core and on two.",
    "More cores must help, because tasks do not wait for each other.",
    [{"cores": count} for count in (1, 2)],
    axis="cores",
)

LOCAL_CLUSTER = _scenario(
    "local-cluster",
    "The throughput of the orders workload with executors in separate processes: a Spark master "
    "with two workers of one core each.",
    "It shows what a cluster costs compared with threads of one process, on the same machine.",
    [{"master": "local-cluster[2,1,1024]"}],
)


BARRIERS = _scenario(
    "barriers",
    "The throughput of the orders workload by the seconds of commit time from one barrier to the "
    "next; 0 means that there are none.",
    "Ending batches at common cuts must cost pipelines next to nothing.",
    [{"barrier_interval": seconds} for seconds in (0, 1)],
    axis="barrier_interval",
)


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


STATE_SIZE = Scenario(
    name="state-size",
    version=1,
    unit="change events/s",
    direction=Direction.HIGHER,
    measures="The catch-up rate by the number of keys (orders with one line each) in the pipeline's state. "
    "The keys are changed one after another, in an order without locality.",
    why="The cost must follow the changes, not the keys. With few keys, a batch changes a key several "
    "times and publishes it once, which is faster.",
    points=tuple({"keys": 10**power, "events": 500_000} for power in (4, 5, 6, 7)),
    quick_points=tuple({"keys": 10**power, "events": 100_000} for power in (3, 4)),
    run=run_state_size,
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


ORDERS = 10_000


def run_transaction_size(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rows, events = int(parameters["rows"]), int(parameters["events"])
    plan = CatchUp(pipeline=ORDERS_PIPELINE)
    backlog = partial(
        SteadyBacklog, orders=SteadyOrders(ORDERS), rows=rows, events=events, clock=context.clock
    )
    return measure_catch_up(plan, backlog, context)


TRANSACTION_SIZE = Scenario(
    name="transaction-size",
    version=1,
    unit="change events/s",
    direction=Direction.HIGHER,
    measures="The catch-up rate over 10,000 orders, as in throughput, with the same changes divided into "
    "transactions of one size.",
    why="Small transactions cost bookkeeping per transaction. A huge one is never split, and must "
    "cause neither a jump in memory nor a drop in speed.",
    points=tuple({"rows": rows, "events": max(rows, 500_000)} for rows in (1, 100, 10_000, 1_000_000)),
    quick_points=({"rows": 1, "events": 100_000}, {"rows": 100_000, "events": 100_000}),
    run=run_transaction_size,
    axis="rows",
    columns=("seconds", "batches", "cpu_seconds.sidecar", "peak_mib.sidecar", "peak_mib.pipeline workers"),
)
