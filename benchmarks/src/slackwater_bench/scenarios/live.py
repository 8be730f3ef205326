"""Latency with a real database: from commit to visible."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict

from slackwater_bench.cut_times import TimedCut, timed_cuts
from slackwater_bench.database import Writers, create_tables, write_first
from slackwater_bench.percentiles import summary
from slackwater_bench.runs.batch_log import batch_parts
from slackwater_bench.runs.bed import SOURCE, Bed
from slackwater_bench.runs.latencies import latencies_ms, latency_timeline
from slackwater_bench.runs.pipelines import output_of
from slackwater_bench.runs.processes import cpu_between, cpu_use
from slackwater_bench.runs.watcher import CommitWatcher, SeenCommit
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.workloads.registry import WORKLOADS
from slackwater_bench.workloads.workload import Workload

SIZE = 2_000
WRITERS = 4
START_SECONDS = 180.0
WARM_UP_SECONDS = 15.0
SETTLED_SECONDS = 3.0


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rate, seconds = int(parameters["changes_per_second"]), float(parameters["seconds"])
    workload, clock = WORKLOADS["orders"](1, SIZE), context.clock
    with Bed(context, has_database=True) as bed:
        dsn = bed.stack.postgres.dsn()
        create_tables(dsn, workload)
        write_first(dsn, workload)
        with closing(_start(bed, workload, context)) as watcher:
            writers = Writers(dsn, workload, count=WRITERS, changes_per_second=rate, clock=clock)
            context.say(f"{WRITERS} writers, {rate:,} changes/s for {seconds:g} s")
            writers.start()
            watcher.look_until(clock.monotonic() + WARM_UP_SECONDS)
            used, since, log = cpu_use(bed.roles()), clock.now().timestamp(), len(bed.log("pipeline"))
            before = writers.counts()
            watcher.look_until(clock.monotonic() + seconds)
            cpu, counts = cpu_between(used, cpu_use(bed.roles())), writers.counts()
            parts = batch_parts(bed.log("pipeline")[log:])
            writers.stop()
            writers.raise_failure()
            cuts = _wait_for_all(bed, watcher)
        details = {
            "changes_per_second": round((counts.changes - before.changes) / seconds),
            "writers": asdict(counts),
            "batch_seconds": parts,
            "cpu_seconds": cpu,
        }
        return _measured(watcher.seen, cuts, since, details)


def _start(bed: Bed, workload: Workload, context: RunContext) -> CommitWatcher:
    context.say("starting connector, sidecar and pipeline")
    bed.stack.start_connector()
    bed.stack.wait_until_streaming()
    bed.start_sidecar()
    bed.start_pipeline(workload.pipeline)
    watcher = CommitWatcher(bed.bootstrap, output_of(workload.pipeline), context.clock, bed.check)
    watcher.until(1, START_SECONDS)
    return watcher


def _wait_for_all(bed: Bed, watcher: CommitWatcher) -> list[TimedCut]:
    """Waits until nothing more comes and all of it is visible; every cut."""
    pause, newest = threading.Event(), 0
    while True:
        cuts = timed_cuts(bed.bootstrap, SOURCE)
        if not cuts or cuts[-1].cut.lsn == newest:
            return cuts
        newest = cuts[-1].cut.lsn
        watcher.until(newest, START_SECONDS)
        pause.wait(SETTLED_SECONDS)


def _measured(
    seen: Sequence[SeenCommit], cuts: Sequence[TimedCut], since: float, details: Mapping[str, object]
) -> Measured:
    """Latencies of the whole way and of its first part, from the commit to the cut that covers it."""
    commits = [(t.commit_lsn, t.commit_ts_ms / 1000) for each in cuts for t in each.cut.transactions]
    visible = [(commit.commit_lsn, commit.wall_ms / 1000) for commit in seen]
    published = [(each.cut.lsn, each.at_ms / 1000) for each in cuts]
    found = summary(list(latencies_ms(commits, visible, since=since)))
    return Measured(
        found["p99"],
        {
            "latency_ms": found,
            "commit_to_cut_ms": summary(list(latencies_ms(commits, published, since=since))),
            "timeline_ms": latency_timeline(commits, visible, since=since - WARM_UP_SECONDS),
            "batches": sum(each.wall_ms / 1000 >= since for each in seen),
            **details,
        },
    )


LIVE = Scenario(
    name="live",
    version=2,
    unit="ms, p99",
    direction=Direction.LOWER,
    measures="Time from the commit in PostgreSQL to the moment at which a read_committed consumer sees the"
    " transaction in the view, for every transaction of four writers at a steady rate (orders workload,"
    " REPLICA IDENTITY FULL, Debezium, everything on this machine).",
    why="What a user of the view waits for, all of the way.",
    points=tuple({"changes_per_second": rate, "seconds": 45} for rate in (500, 3_000)),
    quick_points=({"changes_per_second": 500, "seconds": 10},),
    run=run,
    columns=(
        "latency_ms.p50",
        "latency_ms.p90",
        "latency_ms.p99",
        "latency_ms.max",
        "commit_to_cut_ms.p50",
        "commit_to_cut_ms.p99",
        "changes_per_second",
        "batch_seconds.triggerExecution",
        "cpu_seconds.others",
    ),
    threshold=0.25,
)
