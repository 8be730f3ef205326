"""Where the sidecar's time goes."""

from slackwater_bench.generator.fill import TopicFiller
from slackwater_bench.runs.bed import SOURCE, Bed
from slackwater_bench.runs.probe import run_probe
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.scenarios.sidecar import WORKLOADS

PARTITIONS = 4
EXTRA = ("decode", "parse for another process")
"""Stages that the probe adds to see what they would cost alone."""


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    workload = WORKLOADS[str(parameters["workload"])]
    with Bed(context, kafka_heap="256m") as bed:
        context.say("writing topics")
        with TopicFiller(bed.bootstrap, workload, prefix=SOURCE, partitions=PARTITIONS) as filler:
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
    run=run,
    columns=tuple(
        f"ns_per_record.{stage}"
        for stage in ("consume", "unpack", "rows", "BEGIN and END", "advance", "decode", *EXTRA[1:])
    ),
)
