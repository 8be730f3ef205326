"""Latency: from intended times, and from commits in a real database."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import Final

from slackwater.protocol import Clock
from slackwater_bench.bed import ORDERS_PIPELINE, SOURCE, Bed, output_of
from slackwater_bench.catch_up import barrier_options
from slackwater_bench.latencies import latencies_ms, summary
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_bench.traffic import OpenLoop, SteadyOrders, TransactionAppender
from slackwater_bench.usage import LoggedBatch, batch_parts, cpu_between, cpu_use, logged_batches
from slackwater_lab.database.statements import create_tables, write_first
from slackwater_lab.database.writers import Writers
from slackwater_lab.watching import CommitWatcher, SeenCommit, SeenCut, read_cuts, read_ends
from slackwater_lab.workloads import WORKLOADS
from slackwater_lab.workloads.workload import Workload

PARTS: Final = ("plan", "read", "evaluate", "schedule", "state", "produce", "commit")
"""The parts of a batch, one after the other, as the line of the command names them."""
HOPS: Final = ("end", "cut", "wait", *PARTS, "visible")
"""The steps from the commit in the database to a reader, in the order of the way.

``end``: until the connector hands END to Kafka; ``cut``: until the sidecar hands the cut that covers the
transaction to Kafka; ``wait``: until the batch begins that takes it, mostly for the end of the batch before;
then the parts of that batch; ``visible``: until a ``read_committed`` consumer sees the commit record.
"""
ORDERS = 2_000
OPEN_LOOP_START_SECONDS = 120.0
OPEN_LOOP_WARM_UP_SECONDS = 10.0


def hops_ms(
    cuts: Sequence[SeenCut],
    ends_ms: Mapping[int, float],
    batches: Sequence[LoggedBatch],
    seen: Sequence[SeenCommit],
    *,
    since: float,
) -> dict[str, dict[str, float]]:
    """Sums up over transactions, for each of :data:`HOPS` in that order, how many milliseconds it took.

    The steps of a transaction add up to its latency: a batch that began before the cut was published, and
    found it while it planned, is charged from the cut on. A part that the command does not show counts as
    nothing, and as waiting.

    Args:
        cuts: All cuts, ascending.
        ends_ms: When END was handed to Kafka by commit LSN, milliseconds since the epoch.
        batches: What the command said of its batches.
        seen: The commit records of an output that has one for each batch, ascending.
        since: Transactions committed before this are left out (warm-up); seconds since the epoch.

    Returns:
        Nothing when of no transaction the whole way is known; others than those are left out.
    """
    ways = list(_ways(cuts, ends_ms, batches, seen, 1000 * since))
    if not ways:
        return {}
    return {hop: summary(took) for hop, took in zip(HOPS, zip(*ways, strict=True), strict=True)}


def _ways(
    cuts: Sequence[SeenCut],
    ends_ms: Mapping[int, float],
    batches: Sequence[LoggedBatch],
    seen: Sequence[SeenCommit],
    since_ms: float,
) -> Iterator[tuple[float, ...]]:
    """Yields what each step took, for each transaction."""
    by_lsn = {batch.commit_lsn: batch for batch in batches}
    stations = [_batch_stations(by_lsn.get(commit.commit_lsn), commit) for commit in seen]
    visible = [commit.commit_lsn for commit in seen]
    for cut in cuts:
        for transaction in cut.cut.transactions:
            lsn, committed_ms = transaction.commit_lsn, transaction.commit_ts_ms
            number = bisect_left(visible, lsn)
            if committed_ms < since_ms or lsn not in ends_ms or number == len(seen) or not stations[number]:
                continue
            reached = accumulate((committed_ms, ends_ms[lsn], cut.at_ms, *stations[number]), max)
            yield tuple(after - before for before, after in pairwise(reached))


def _batch_stations(batch: LoggedBatch | None, commit: SeenCommit) -> tuple[float, ...]:
    """Returns when a batch began, when each part of it ended, and when a reader saw it; none: not known."""
    if batch is None:
        return ()
    took = [1000 * batch.seconds.get(part, 0.0) for part in PARTS]
    began = commit.record.commit_ts_ms + batch.lag_ms - sum(took)
    return (*accumulate(took, initial=began), commit.wall_ms)


def run_latency(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rate, seconds = int(parameters["changes_per_second"]), float(parameters["seconds"])
    orders, clock = SteadyOrders(ORDERS), context.clock
    with Bed(context) as bed:
        appender = TransactionAppender(bed.bootstrap, SOURCE, 4)
        prepared = appender.append_all(map(orders.changes_of, range(ORDERS)), clock)
        with closing(CommitWatcher(bed.bootstrap, output_of(ORDERS_PIPELINE), clock, bed.check)) as watcher:
            bed.start_sidecar(*barrier_options(parameters))
            bed.start_pipeline(ORDERS_PIPELINE)
            context.say("sidecar and pipeline start")
            watcher.until(prepared, OPEN_LOOP_START_SECONDS)
            transactions = orders.transactions(orders.rows_per_order, ORDERS)
            loop = OpenLoop(appender, transactions, rate / orders.rows_per_order, clock)
            context.say(f"{rate:,} changes/s for {seconds:g} s")
            loop.start()
            watcher.poll_until(clock.monotonic() + OPEN_LOOP_WARM_UP_SECONDS)
            used, since, log = cpu_use(bed.roles()), clock.monotonic(), len(bed.log("pipeline"))
            since_time = clock.now().timestamp()
            watcher.poll_until(since + seconds)
            cpu = cpu_between(used, cpu_use(bed.roles()))
            parts = batch_parts(bed.log("pipeline")[log:])
            loop.stop()
            watcher.until(loop.intended[-1][0], OPEN_LOOP_START_SECONDS)
            hops = _hops(bed, watcher, read_cuts(bed.bootstrap, SOURCE), since_time)
        details = {"hops_ms": hops, "batch_seconds": parts, "cpu_seconds": cpu}
        return _latency_measured(loop, watcher, since, details)


def _hops(
    bed: Bed, watcher: CommitWatcher, cuts: Sequence[SeenCut], since: float
) -> Mapping[str, Mapping[str, float]]:
    ends = read_ends(bed.bootstrap, SOURCE)
    return hops_ms(cuts, ends, logged_batches(bed.log("pipeline")), watcher.seen, since=since)


def _latency_measured(
    loop: OpenLoop, watcher: CommitWatcher, since: float, details: Mapping[str, object]
) -> Measured:
    seen = [(commit.commit_lsn, commit.at) for commit in watcher.seen]
    found = summary(list(latencies_ms(loop.intended, seen, since=since)))
    return Measured(
        found["p99"],
        {
            "latency_ms": found,
            "generator_late_ms": round(1000 * loop.latest_seconds, 1),
            "batches": sum(at >= since for _, at in seen),
            **details,
        },
    )


SIZE = 2_000
WRITERS = 4
START_SECONDS = 180.0
WARM_UP_SECONDS = 15.0
SETTLED_SECONDS = 3.0


def run_live(parameters: Parameters, context: RunContext) -> Measured:
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
            watcher.poll_until(clock.monotonic() + WARM_UP_SECONDS)
            used, since, log = cpu_use(bed.roles()), clock.now().timestamp(), len(bed.log("pipeline"))
            before = writers.counts()
            watcher.poll_until(clock.monotonic() + seconds)
            cpu, counts = cpu_between(used, cpu_use(bed.roles())), writers.counts()
            parts = batch_parts(bed.log("pipeline")[log:])
            writers.stop()
            writers.raise_failure()
            cuts = _wait_for_all(bed, watcher, clock)
            hops = _hops(bed, watcher, cuts, since)
        details = {
            "hops_ms": hops,
            "changes_per_second": round((counts.changes - before.changes) / seconds),
            "writers": asdict(counts),
            "batch_seconds": parts,
            "cpu_seconds": cpu,
        }
        return _live_measured(watcher.seen, cuts, since, details)


def _start(bed: Bed, workload: Workload, context: RunContext) -> CommitWatcher:
    context.say("starting connector, sidecar and pipeline")
    bed.stack.start_connector()
    bed.stack.wait_until_streaming()
    bed.start_sidecar()
    bed.start_pipeline(workload.pipeline)
    watcher = CommitWatcher(bed.bootstrap, output_of(workload.pipeline), context.clock, bed.check)
    watcher.until(1, START_SECONDS)
    return watcher


def _wait_for_all(bed: Bed, watcher: CommitWatcher, clock: Clock) -> list[SeenCut]:
    """Waits until nothing more comes and all of it is visible; every cut.

    Cuts are read only when nothing becomes visible for a while: meanwhile the watcher sees nothing, and would
    take a later time for whatever does.
    """
    while True:
        newest = watcher.newest_lsn
        watcher.poll_until(clock.monotonic() + SETTLED_SECONDS)
        if watcher.newest_lsn == newest:
            cuts = read_cuts(bed.bootstrap, SOURCE)
            if not cuts or cuts[-1].cut.lsn <= newest:
                return cuts
            watcher.until(cuts[-1].cut.lsn, START_SECONDS)


def _live_measured(
    seen: Sequence[SeenCommit], cuts: Sequence[SeenCut], since: float, details: Mapping[str, object]
) -> Measured:
    """Latencies of the whole way and of its first part, from the commit to the cut that covers it."""
    commits, visible = committed(cuts), [(commit.commit_lsn, commit.wall_ms / 1000) for commit in seen]
    published = [(each.cut.lsn, each.at_ms / 1000) for each in cuts]
    found = summary(list(latencies_ms(commits, visible, since=since)))
    return Measured(
        found["p99"],
        {
            "latency_ms": found,
            "commit_to_cut_ms": summary(list(latencies_ms(commits, published, since=since))),
            "batches": sum(each.wall_ms / 1000 >= since for each in seen),
            **details,
        },
    )


def committed(cuts: Sequence[SeenCut]) -> list[tuple[int, float]]:
    """The LSN and the time of each commit, seconds since the epoch."""
    return [(t.commit_lsn, t.commit_ts_ms / 1000) for each in cuts for t in each.cut.transactions]
