"""Catch-up: a running sidecar and pipeline work off a backlog. The rate is taken from outside.

The pipeline first makes the initial state visible. Then the sidecar is stopped (SIGSTOP), so that nothing
sees the records that are appended: the backlog. The clock runs from the moment the sidecar goes on until a
``read_committed`` consumer sees the last of them. So the start of Spark is not in the rate, and all the work
is: the sidecar's, too.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from slackwater_bench.backlogs import Backlog
from slackwater_bench.bed import Bed, output_of
from slackwater_bench.scenario import Measured, RunContext
from slackwater_bench.usage import MemoryWatch, batch_parts, batch_sizes, cpu_between, cpu_use
from slackwater_testing.watching import CommitWatcher

START_SECONDS = 240.0
DEADLINE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """The plan of a catch-up run."""

    pipeline: Path
    """Folder of the pipeline."""
    partitions: int = 4
    cores: int | None = None
    """Everything, servers included, on so many cores; None: all there are."""
    options: tuple[str, ...] = ()
    """Further options of ``slackwater run``."""
    kafka_heap: str = "128m"
    adapt: Callable[[Path, Path], Path] | None = None
    """Makes another pipeline of it in a folder; None: it runs as it is."""
    is_published_first: bool = False
    """The pipeline waits until the sidecar has published all cuts of the backlog."""
    watches_memory: bool = True
    """Takes a second of processor time for twenty seconds."""
    check: Callable[[Bed], Mapping[str, object]] | None = None
    """Judges what is there at the end; more details of the result."""


def measure_catch_up(plan: CatchUp, make_backlog: Callable[[str], Backlog], context: RunContext) -> Measured:
    """One run: change events per second.

    Args:
        plan: What runs, and how.
        make_backlog: Makes what is to be caught up with, for the broker with these bootstrap servers.
        context: Of the run.

    Raises:
        TestingError: a process ended, or the output did not arrive in time.
    """
    with on_cores(plan.cores), Bed(context, partitions=plan.partitions, kafka_heap=plan.kafka_heap) as bed:
        if plan.adapt is not None:
            plan = replace(plan, pipeline=plan.adapt(plan.pipeline, bed.folder / "pipelines"))
        backlog = make_backlog(bed.bootstrap)
        watcher = CommitWatcher(bed.bootstrap, output_of(plan.pipeline), context.clock, bed.check)
        try:
            return _measure(plan, backlog, bed, watcher, context)
        finally:
            watcher.close()
            backlog.close()


def _measure(
    plan: CatchUp, backlog: Backlog, bed: Bed, watcher: CommitWatcher, context: RunContext
) -> Measured:
    context.say("writing the initial state")
    prepared = backlog.prepare()
    started = context.clock.monotonic()
    bed.start_sidecar()
    bed.start_pipeline(plan.pipeline, *plan.options)
    context.say("sidecar and pipeline start, the initial state becomes visible")
    ready = watcher.until(prepared, START_SECONDS)
    waiting = "pipeline" if plan.is_published_first else "sidecar"
    bed.programs[waiting].pause()
    context.say("writing the backlog")
    events, last_lsn = backlog.append()
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
    if plan.check is not None:
        details |= plan.check(bed)
    return Measured(round(events / seconds), details)


@contextmanager
def on_cores(count: int | None) -> Iterator[None]:
    """All threads of this process, and every process that they start, on so many cores.

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
