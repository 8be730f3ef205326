"""Throughput: a backlog of a workload, and the same by partitions, by cores and on a small cluster."""

from functools import partial
from typing import Any

from slackwater_bench.backlog.catchup import CatchUp, measure_catch_up
from slackwater_bench.backlog.workload_load import SEED, WorkloadLoad
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.workloads.registry import WORKLOADS

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


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run of a workload."""
    name, partitions = str(parameters.get("workload", "orders")), int(parameters.get("partitions", 4))
    workload = WORKLOADS[name](SEED, int(parameters.get("size", SIZE)))
    options: tuple[str, ...] = ()
    if "master" in parameters:
        options = ("--master", str(parameters["master"]))
    plan = CatchUp(
        pipeline=workload.pipeline,
        partitions=partitions,
        cores=int(parameters["cores"]) if "cores" in parameters else None,
        options=options,
    )
    load = partial(WorkloadLoad, workload=workload, events=int(parameters["events"]), partitions=partitions)
    return measure_catch_up(plan, load, context)


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
        run=run,
        columns=COLUMNS,
        **more,
    )


THROUGHPUT = _scenario(
    "throughput",
    "Change events per second with which a running sidecar and pipeline work off a backlog, from the moment"
    " the sidecar may go on until a read_committed consumer sees the last transaction. Initial state, 20,000"
    " main rows, and the start of Spark come before.",
    "What there is to spare for bursts, outages and first loads.",
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
    "The throughput of the orders workload with everything, the broker included, on one core and on two.",
    "More cores must help: tasks do not wait for each other.",
    [{"cores": count} for count in (1, 2)],
    axis="cores",
)

LOCAL_CLUSTER = _scenario(
    "local-cluster",
    "The throughput of the orders workload with executors in processes of their own:"
    " a Spark master with two workers of one core each.",
    "What a cluster costs over threads of one process, on the same machine.",
    [{"master": "local-cluster[2,1,1024]"}],
)
