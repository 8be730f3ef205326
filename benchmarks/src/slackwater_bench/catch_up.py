"""Catch-up: a running sidecar and pipeline work off a backlog. The rate is taken from outside.

The pipeline first makes the initial state visible. Then the sidecar is stopped (SIGSTOP), so that nothing
sees the records that are appended: the backlog. The clock runs from the moment the sidecar continues until a
``read_committed`` consumer sees the last of them. So the start of Spark is not in the rate, and all the work
is: the sidecar's, too.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from slackwater.protocol import Clock
from slackwater_bench.bed import ORDERS_PIPELINE, SOURCE, Bed, output_of
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_bench.traffic import SteadyOrders, TransactionAppender
from slackwater_bench.usage import MemoryWatch, batch_parts, batch_sizes, cpu_between, cpu_use
from slackwater_lab.generator.fill import TopicFiller
from slackwater_lab.watching import CommitWatcher
from slackwater_lab.workloads import WORKLOADS
from slackwater_lab.workloads.chain import ChainWorkload
from slackwater_lab.workloads.orders import OrdersWorkload
from slackwater_lab.workloads.transfers import TransfersWorkload
from slackwater_lab.workloads.workload import Workload, copy_pipeline, workload_pipeline

INSERTED_TOGETHER = 100
"""Orders of one transaction of the initial state."""
SEED = 1
START_SECONDS = 240.0
DEADLINE_SECONDS = 600.0


Backlog = Iterator[tuple[int, int]]
"""Writes the topics of a run: first the initial state, then, when asked again, what is measured.

Gives the number of change events and the last commit LSN of each.
"""


def steady_backlog(bootstrap: str, orders: SteadyOrders, *, rows: int, events: int, clock: Clock) -> Backlog:
    """Inserts the orders, then changes them in transactions of one size.

    Args:
        bootstrap: The broker.
        orders: What is written; their number is a multiple of a hundred.
        rows: Changes of a transaction of the backlog.
        events: Changes of the backlog; at least one transaction is written.
        clock: The time.
    """
    appender = TransactionAppender(bootstrap, SOURCE, partitions=4)
    inserts = orders.transactions(INSERTED_TOGETHER * orders.rows_per_order)
    yield orders.orders, appender.append_all(islice(inserts, orders.orders // INSERTED_TOGETHER), clock)
    count = max(1, events // rows)
    changes = islice(orders.transactions(rows, orders.orders), count)
    yield count * rows, appender.append_all(changes, clock)


def workload_backlog(bootstrap: str, workload: Workload, *, events: int, partitions: int = 4) -> Backlog:
    """Writes the rows a workload begins with, then its transactions."""
    filler = TopicFiller(bootstrap, workload, prefix=SOURCE, partitions=partitions)
    for wanted in (1, events):
        filled = filler.fill(wanted)
        yield filled.events, filled.last_commit_lsn


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """The plan of a catch-up run."""

    pipeline: Path
    """Folder of the pipeline."""
    partitions: int = 4
    cores: int | None = None
    """Everything, servers included, on this many cores; None for all."""
    options: tuple[str, ...] = ()
    """Further options of ``slackwater run``."""
    sidecar_options: tuple[str, ...] = ()
    """Further options of ``slackwater sidecar``."""
    emit: str | None = None
    """What it emits instead; None: it runs as it is."""
    is_published_first: bool = False
    """The pipeline waits until the sidecar has published all cuts of the backlog."""
    watches_memory: bool = True
    """Takes a second of processor time for twenty seconds."""


def measure_catch_up(plan: CatchUp, make_backlog: Callable[[str], Backlog], context: RunContext) -> Measured:
    """One run: change events per second.

    Args:
        plan: What runs, and how.
        make_backlog: Makes what is to be caught up with, for the broker with these bootstrap servers.
        context: Of the run.

    Raises:
        TestingError: a process ended, or the output did not arrive in time.
    """
    with on_cores(plan.cores), Bed(context, partitions=plan.partitions) as bed:
        if plan.emit is not None:
            changed = with_emit(plan.pipeline, bed.folder / "pipelines", emit=plan.emit)
            plan = replace(plan, pipeline=changed)
        backlog = make_backlog(bed.bootstrap)
        watcher = CommitWatcher(bed.bootstrap, output_of(plan.pipeline), context.clock, bed.check)
        with closing(watcher):
            return _measure(plan, backlog, bed, watcher, context)


def _measure(
    plan: CatchUp, backlog: Backlog, bed: Bed, watcher: CommitWatcher, context: RunContext
) -> Measured:
    context.say("writing the initial state")
    _, prepared = next(backlog)
    started = context.clock.monotonic()
    bed.start_sidecar(*plan.sidecar_options)
    bed.start_pipeline(plan.pipeline, *plan.options)
    context.say("sidecar and pipeline start, the initial state becomes visible")
    ready = watcher.until(prepared, START_SECONDS)
    waiting = "pipeline" if plan.is_published_first else "sidecar"
    bed.programs[waiting].pause()
    context.say("writing the backlog")
    events, last_lsn = next(backlog)
    if plan.is_published_first:
        bed.wait_for_cut(last_lsn, DEADLINE_SECONDS)
    roles, before, seen = dict(bed.roles()), len(watcher.seen), len(bed.log("pipeline"))
    used = cpu_use(roles)
    with MemoryWatch(roles) if plan.watches_memory else nullcontext() as memory:
        released = context.clock.monotonic()
        bed.programs[waiting].resume()
        context.say(f"catching up with {events:,} change events")
        done = watcher.until(last_lsn, DEADLINE_SECONDS)
        cpu = cpu_between(used, cpu_use(roles))
    seconds = done.at - released
    details: dict[str, object] = {
        "events": events,
        "seconds": round(seconds, 2),
        "seconds_to_initial_state": round(ready.at - started, 2),
        "batches": len(watcher.seen) - before,
        "cpu_seconds": cpu,
        "peak_mib": {} if memory is None else memory.peaks,
        "batch_seconds": batch_parts(bed.log("pipeline")[seen:]),
        "batch_events": batch_sizes(bed.log("pipeline")[seen:]),
    }
    return Measured(round(events / seconds), details)


@contextmanager
def on_cores(count: int | None) -> Iterator[None]:
    """All threads of this process, and every process that they start, on this many cores.

    All threads: processes are started by one that may be older than this block.
    """
    allowed = os.sched_getaffinity(0)
    if count is not None:
        _keep_to(sorted(allowed)[:count])
    try:
        yield
    finally:
        _keep_to(allowed)


def _keep_to(cores: Iterable[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)


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
        workload_backlog, workload=workload, events=int(parameters["events"]), partitions=partitions
    )
    return measure_catch_up(plan, backlog, context)


def barrier_options(parameters: Parameters) -> tuple[str, ...]:
    """Returns the options of a sidecar with barriers this many seconds apart, if the point says so."""
    if "barrier_interval" not in parameters:
        return ()
    return ("--barrier-interval", str(parameters["barrier_interval"]))


ORDERS = 10_000


def run_steady(parameters: Parameters, context: RunContext) -> Measured:
    """One run over this many keys (orders of one line), or in transactions of this many rows."""
    orders = SteadyOrders(int(parameters["keys"]), 1) if "keys" in parameters else SteadyOrders(ORDERS)
    rows = int(parameters.get("rows", orders.rows_per_order))
    events, clock = int(parameters["events"]), context.clock
    backlog = partial(steady_backlog, orders=orders, rows=rows, events=events, clock=clock)
    return measure_catch_up(CatchUp(pipeline=ORDERS_PIPELINE), backlog, context)


def _balances(seed: int, size: int) -> Workload:
    return TransfersWorkload(seed, size, pipeline=workload_pipeline("balances"))


CASES: Mapping[str, Callable[[int, int], Workload]] = {
    "orders": OrdersWorkload,
    "chain": ChainWorkload,
    "balances": _balances,
}
"""By the shape of the view: two tables nested, three tables added up, sums of sums."""
ALONE = "engine"
"""All cuts are published before the pipeline begins with the backlog."""


def run_engine(parameters: Parameters, context: RunContext) -> Measured:
    """One case."""
    workload = CASES[str(parameters["case"])](SEED, int(parameters.get("size", SIZE)))
    plan = CatchUp(
        pipeline=workload.pipeline,
        emit=str(parameters["emit"]),
        is_published_first=parameters["measured"] == ALONE,
        watches_memory=False,
    )
    backlog = partial(workload_backlog, workload=workload, events=int(parameters["events"]))
    return measure_catch_up(plan, backlog, context)


def with_emit(pipeline: Path, folder: Path, *, emit: str) -> Path:
    """A copy of a pipeline below `folder` that emits so."""

    def edit(text: str) -> str:
        text, found = re.subn(r'(?m)^emit = "\w+"', f'emit = "{emit}"', text)
        if not found:
            raise ValueError(f"the pipeline in {pipeline} does not say what it emits")
        return text

    return copy_pipeline(pipeline, folder / pipeline.name, edit)
