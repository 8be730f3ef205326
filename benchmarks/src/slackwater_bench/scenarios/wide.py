"""Wide: what a batch costs a pipeline of many stages, beside one of a single stage."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median

from slackwater_bench.bed import SOURCE, Bed, output_of
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.shop import Shop
from slackwater_bench.traffic import TransactionAppender
from slackwater_bench.usage import batch_parts, cpu_between, cpu_use
from slackwater_lab.watching import CommitWatcher
from slackwater_lab.workloads.workload import REPOSITORY

PIPELINES = REPOSITORY / "benchmarks" / "pipelines"
MEASURED, REFERENCE = "wide", "narrow"
"""Folders of the pipelines."""
ORDERS = 5_000
WARM_UP_BATCHES = 2
START_SECONDS = 240.0
BATCH_SECONDS = 120.0


def run_wide(parameters: Parameters, context: RunContext) -> Measured:
    """One run: both pipelines, one after the other, on the same topics."""
    rows, batches = int(parameters["rows"]), int(parameters["batches"])
    shop = Shop(int(parameters.get("orders", ORDERS)))
    with Bed(context, kafka_heap="256m") as bed:
        appender = TransactionAppender(bed.bootstrap, SOURCE, 4, tables=tuple(shop.counts))
        appender.append_all(shop.inserts(), context.clock)
        bed.start_sidecar()
        found = {
            name: _measure(PIPELINES / name, shop, rows, batches, appender, bed, context)
            for name in (MEASURED, REFERENCE)
        }
    return wide_measured(found)


def _measure(
    pipeline: Path,
    shop: Shop,
    rows: int,
    batches: int,
    appender: TransactionAppender,
    bed: Bed,
    context: RunContext,
) -> dict[str, object]:
    """Batches of one pipeline; each is appended when the one before is visible."""
    clock = context.clock
    with closing(CommitWatcher(bed.bootstrap, output_of(pipeline), clock, bed.check)) as watcher:
        last, began = appender.append_all([shop.change(1)], clock), clock.monotonic()
        bed.start_pipeline(pipeline, "--checkpoint", str(bed.folder / "checkpoints" / pipeline.name))
        context.say(f"{pipeline.name}: the initial state becomes visible")
        started = watcher.until(last, START_SECONDS).at - began
        for _ in range(WARM_UP_BATCHES):
            watcher.until(appender.append_all([shop.change(rows)], clock), BATCH_SECONDS)
        transactions = [shop.change(rows) for _ in range(batches)]
        context.say(f"{pipeline.name}: {batches} batches of {rows:,} changed rows")
        used, log, before = cpu_use(bed.roles()), len(bed.log("pipeline")), len(watcher.seen)
        visible = [clock.monotonic()]
        for transaction in transactions:
            last = appender.append_all([transaction], clock)
            visible.append(watcher.until(last, BATCH_SECONDS).at)
        cpu, parts = cpu_between(used, cpu_use(bed.roles())), batch_parts(bed.log("pipeline")[log:])
        documents = sum(commit.documents for commit in watcher.seen[before:])
        bed.stop("pipeline")
    return {
        **period_summary(visible),
        "start_seconds": round(started, 2),
        "documents": round(documents / batches, 1),
        "batch_seconds": parts,
        "cpu_seconds": cpu,
    }


def period_summary(visible: Sequence[float]) -> dict[str, float]:
    """Median and maximum of the seconds from one to the next; at least two moments, ascending."""
    periods = [later - earlier for earlier, later in pairwise(visible)]
    return {"median": round(median(periods), 3), "max": round(max(periods), 3)}


def wide_measured(found: Mapping[str, Mapping[str, object]]) -> Measured:
    """The wide pipeline's median, and how many times that of the narrow one it is."""
    wide, narrow = (float(str(found[name]["median"])) for name in (MEASURED, REFERENCE))
    return Measured(wide, {**found, "ratio": round(wide / narrow, 2)})


WIDE = Scenario(
    name="wide",
    version=1,
    unit="s per batch, median",
    direction=Direction.LOWER,
    measures="The seconds from one visible batch to the next in a pipeline of six views over eleven "
    "tables, in twenty stages. Each batch is one transaction with this number of changed rows, "
    "written when the previous batch is visible; writing it and the sidecar's part are included. "
    "The other columns contain the same for one view over two of the tables, in one stage, the "
    "ratio of both medians, and the seconds from the start of each pipeline until its initial "
    "state is visible.",
    why="It shows what each stage costs a batch, whatever the batch contains.",
    points=(
        {"rows": 1, "batches": 30},
        {"rows": 10_000, "batches": 5},
        {"rows": 1, "batches": 30, "orders": 50},
    ),
    quick_points=({"rows": 1, "batches": 3, "orders": 500}, {"rows": 1_000, "batches": 2, "orders": 500}),
    run=run_wide,
    columns=(
        "wide.max",
        "narrow.median",
        "narrow.max",
        "ratio",
        "wide.start_seconds",
        "narrow.start_seconds",
        "wide.documents",
        "wide.cpu_seconds.pipeline jvm",
        "wide.cpu_seconds.pipeline workers",
        "wide.cpu_seconds.others",
    ),
    threshold=0.25,
)
