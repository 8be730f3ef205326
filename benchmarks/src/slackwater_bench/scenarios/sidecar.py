"""The sidecar by itself: on the topics of whole workloads, stage by stage, and its memory in the long run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.cuts import wait_for_cut
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.subject import run_probe
from slackwater_bench.usage import cpu_of
from slackwater_protocol import Cut
from slackwater_testing.generator.fill import TopicFiller
from slackwater_testing.workloads.orders import OrdersWorkload
from slackwater_testing.workloads.transfers import TransfersWorkload
from slackwater_testing.workloads.workload import Workload

DEADLINE_SECONDS = 300.0
SEED = 5
WORKLOADS: Mapping[str, Workload] = {
    "orders": OrdersWorkload(SEED, 20_000),
    "transfers": TransfersWorkload(SEED, 10_000),
}


@dataclass(frozen=True, slots=True)
class Moment:
    """A cut, with the time and the processor time that were spent when it was seen."""

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


def run_sidecar(parameters: Parameters, context: RunContext) -> Measured:
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
        cut = wait_for_cut(bed, last_lsn, DEADLINE_SECONDS, context.clock).cut
        last = Moment(cut, context.clock.monotonic(), cpu_of(bed.roles()["sidecar"]))
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
    run=run_sidecar,
    columns=("records_per_second", "offsets_per_cpu_second", "cpu_seconds", "peak_mib"),
)


PROFILE_PARTITIONS = 4
EXTRA = ("decode", "parse for another process")
"""Stages that the probe adds to see what they would cost alone."""


def run_profile(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    workload = WORKLOADS[str(parameters["workload"])]
    with Bed(context, kafka_heap="256m") as bed:
        context.say("writing topics")
        with TopicFiller(bed.bootstrap, workload, prefix=SOURCE, partitions=PROFILE_PARTITIONS) as filler:
            last_lsn = filler.fill(int(parameters["events"])).last_commit_lsn
        found = run_probe(context.subject, "sidecar_profile", bed.bootstrap, SOURCE, last_lsn)
    stages = found["ns_per_record"]
    return Measured(sum(ns for name, ns in stages.items() if name not in EXTRA), {**found})


SIDECAR_PROFILE = Scenario(
    name="sidecar-profile",
    version=1,
    unit="ns per record",
    direction=Direction.LOWER,
    measures="CPU time of the sidecar's thread for a record of full topics (tombstones included), without"
    " publishing; by stage: taking records from librdkafka, taking values out of messages, rows (decoding"
    " included), BEGIN and END (decoding included), moving the frontier. Beside it what decoding costs by"
    " itself, and decoding for another process.",
    why="It says what stands between the sidecar and twice its speed.",
    points=({"workload": "orders", "events": 1_000_000}, {"workload": "transfers", "events": 1_000_000}),
    quick_points=({"workload": "orders", "events": 200_000},),
    run=run_profile,
    columns=tuple(
        f"ns_per_record.{stage}"
        for stage in ("consume", "unpack", "rows", "BEGIN and END", "advance", "decode", *EXTRA[1:])
    ),
)


SIMULATED_PARTITIONS = 8
PROBE_SECONDS = 1_800.0


def run_memory(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    millions = float(parameters["transactions"]) / 1_000_000
    found = run_probe(context.subject, "frontier_soak", millions, SIMULATED_PARTITIONS, seconds=PROBE_SECONDS)
    resident = list(found["resident_mib"].values())
    half = len(resident) // 2
    return Measured(
        round(max(resident[half:]) - max(resident[:half]), 1),
        {
            "first_half_mib": max(resident[:half]),
            "second_half_mib": max(resident[half:]),
            "transactions_per_cpu_second": round(found["transactions"] / found["cpu_seconds"]),
            **found,
        },
    )


SIDECAR_MEMORY = Scenario(
    name="sidecar-memory",
    version=1,
    unit="MiB of growth",
    direction=Direction.LOWER,
    measures="Largest resident size of a process that feeds generated records of so many transactions to the"
    " frontier, without Kafka, in its second half minus that in its first half. Every thousandth transaction"
    " is repeated, every hundred thousandth begins a new run of the connector.",
    why="A sidecar runs for months. It remembers the newest two million transactions, to recognise rows that"
    " come again; nothing else may grow.",
    points=({"transactions": 10_000_000},),
    quick_points=({"transactions": 200_000},),
    run=run_memory,
    columns=("first_half_mib", "second_half_mib", "transactions_per_cpu_second"),
)
