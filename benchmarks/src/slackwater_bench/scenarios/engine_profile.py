"""Where the engine's time goes."""

from slackwater_bench.backlog.workload_load import SEED
from slackwater_bench.generator.fill import TopicFiller
from slackwater_bench.runs.bed import SOURCE, Bed
from slackwater_bench.runs.cuts import wait_for_cut
from slackwater_bench.runs.probe import run_probe
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.scenarios.engine import CASES, SIZE, with_emit

PARTITIONS = 4
_CUTS_SECONDS = 300.0
_PROBE_SECONDS = 600.0


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One case."""
    workload = CASES[str(parameters["case"])].workload(SEED, int(parameters.get("size", SIZE)))
    with Bed(context, kafka_heap="256m") as bed:
        context.say("writing topics")
        with TopicFiller(bed.bootstrap, workload, prefix=SOURCE, partitions=PARTITIONS) as filler:
            last_lsn = filler.fill(int(parameters["events"])).last_commit_lsn
        context.say("the sidecar publishes cuts")
        bed.start_sidecar()
        wait_for_cut(bed, last_lsn, _CUTS_SECONDS, context.clock)
        bed.stop("sidecar")
        folder = with_emit(workload.pipeline, bed.folder / "pipelines", emit=str(parameters["emit"]))
        found = run_probe(context.subject, "engine_profile", bed.bootstrap, folder, seconds=_PROBE_SECONDS)
    return Measured(round(sum(found["us_per_event"].values()), 2), {**found})


ENGINE_PROFILE = Scenario(
    name="engine-profile",
    version=1,
    unit="us per change event",
    direction=Direction.LOWER,
    measures="Processor time of a pipeline's parts in one process, without Spark: taking records from"
    " librdkafka, decoding and packing, each stage (indexes on disk), the sink; `other threads` are"
    " librdkafka's. Batches of 200,000 change events; the first one is not counted.",
    why="It says what stands between the engine and twice its speed.",
    points=tuple(
        {"case": case, "emit": emit, "events": 1_000_000}
        for case in CASES
        for emit in ("latest", "transactions")
    ),
    quick_points=tuple({"case": case, "emit": "latest", "events": 300_000, "size": 2_000} for case in CASES),
    run=run,
    columns=tuple(
        f"us_per_event.{part}"
        for part in (
            "consume",
            "decode and pack",
            "hand over",
            "stage 1",
            "stage 2",
            "stage 3",
            "sink",
            "planning",
            "other threads",
        )
    ),
)
