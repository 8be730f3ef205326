"""The sidecar on the topics of whole workloads, with no pipeline beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from slackwater_bench.errors import RunFailedError
from slackwater_bench.generator.fill import TopicFiller
from slackwater_bench.runs.bed import SOURCE, Bed
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.workloads.orders import OrdersWorkload
from slackwater_bench.workloads.transfers import TransfersWorkload
from slackwater_bench.workloads.workload import Workload
from slackwater_markers import KafkaCutLog
from slackwater_protocol import Cut

DEADLINE_SECONDS = 300.0
SEED = 5
WORKLOADS: Mapping[str, Workload] = {
    "orders": OrdersWorkload(SEED, 20_000),
    "transfers": TransfersWorkload(SEED, 10_000),
}


@dataclass(frozen=True, slots=True)
class Moment:
    """What had been published and spent when a cut was seen."""

    cut: Cut
    at: float
    cpu_seconds: float

    @property
    def records(self) -> int:
        """Change events, BEGINs and ENDs up to the cut; tombstones are read, too, but not counted."""
        return self.cut.event_count + self.cut.transaction_offset

    @property
    def offsets(self) -> int:
        """Everything in the topics up to the cut."""
        data = sum(sum(offsets) for offsets in self.cut.end_offsets.values())
        return data + self.cut.transaction_offset


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    workload = WORKLOADS[str(parameters["workload"])]
    partitions, workers = int(parameters["partitions"]), int(parameters["workers"])
    with Bed(context, kafka_heap="256m") as bed:
        context.say("writing topics")
        with TopicFiller(bed.bootstrap, workload, prefix=SOURCE, partitions=partitions) as filler:
            last_lsn = filler.fill(int(parameters["events"])).last_commit_lsn
        options = ["--workers", str(workers)] if workers > 1 else []
        bed.start_sidecar(*options)
        began = context.clock.monotonic()
        last = _follow(bed, last_lsn, context)
        peak_mib = _peak_mib(bed.roles()["sidecar"])
    seconds = last.at - began
    return Measured(
        round(last.records / last.cpu_seconds),
        {
            "records_per_second": round(last.records / seconds),
            "offsets_per_cpu_second": round(last.offsets / last.cpu_seconds),
            "records": last.records,
            "seconds": round(seconds, 2),
            "cpu_seconds": round(last.cpu_seconds, 2),
            "peak_mib": peak_mib,
        },
    )


def _follow(bed: Bed, lsn: int, context: RunContext) -> Moment:
    """The moment when a cut at an LSN was seen."""
    log = KafkaCutLog(SOURCE, bed.bootstrap)
    deadline = context.clock.monotonic() + DEADLINE_SECONDS
    position = -1
    try:
        while context.clock.monotonic() < deadline:
            bed.check()
            for published in log.tail(position):
                position = published.log_offset
                now = Moment(published.cut, context.clock.monotonic(), cpu_of(bed.roles()["sidecar"]))
                if published.cut.lsn >= lsn:
                    return now
    finally:
        log.close()
    raise RunFailedError("the sidecar", f"published no cut at {lsn} within {DEADLINE_SECONDS:g} s")


def cpu_of(pid: int) -> float:
    """Processor seconds of a process and its children so far."""
    spent = 0.0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        times = process.cpu_times()
        spent += times.user + times.system
    return spent


def _peak_mib(pid: int) -> float:
    """Largest resident sizes of a process and its children, added up."""
    root = psutil.Process(pid)
    pids = [root.pid, *(child.pid for child in root.children(recursive=True))]
    return round(sum(_high_water_mark_kib(each) for each in pids) / 1024, 1)


def _high_water_mark_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0


SIDECAR = Scenario(
    name="sidecar",
    version=2,
    unit="records per CPU second",
    direction=Direction.HIGHER,
    measures="Records (change events, BEGIN and END) of full topics that the sidecar takes up, tracks and"
    " publishes cuts of, to a real cut log and a real Redis, per second of its CPU time, all rules on; from"
    " the start of its process to its last cut. Tombstones are read, too, and not counted. Beside it: per"
    " second of wall time, and its largest resident size.",
    why="The sidecar is the one part of a source that every record passes.",
    points=(
        {"workload": "orders", "events": 2_000_000, "partitions": 4, "workers": 1},
        {"workload": "transfers", "events": 2_000_000, "partitions": 4, "workers": 1},
        {"workload": "orders", "events": 2_000_000, "partitions": 64, "workers": 1},
        {"workload": "orders", "events": 2_000_000, "partitions": 4, "workers": 2},
    ),
    quick_points=tuple(
        {"workload": "orders", "events": 300_000, "partitions": 4, "workers": w} for w in (1, 2)
    ),
    run=run,
    columns=("records_per_second", "offsets_per_cpu_second", "cpu_seconds", "peak_mib"),
)
