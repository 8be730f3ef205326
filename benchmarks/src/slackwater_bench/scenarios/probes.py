"""Parts of the product alone, timed by probes: stages, sidecar, frontier, cuts, the sink."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from slackwater.dev import PostgresServer
from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.catch_up import SEED
from slackwater_bench.environment import run_probe
from slackwater_bench.latencies import summary
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.scenarios import sidecar
from slackwater_bench.scenarios.engine import CASES, SIZE, with_emit
from slackwater_bench.usage import redis_counters
from slackwater_lab.errors import RunFailedError
from slackwater_lab.generator.fill import TopicFiller
from slackwater_lab.workloads.workload import REPOSITORY, Workload

PIPELINES = REPOSITORY / "pipelines"
CUTS_SECONDS = 300.0
PARTITIONS = 4


def _fill(bed: Bed, workload: Workload, events: int, context: RunContext) -> int:
    """Writes a workload's topics; returns the last commit LSN."""
    context.say("writing topics")
    with TopicFiller(bed.bootstrap, workload, prefix=SOURCE, partitions=PARTITIONS) as filler:
        return filler.fill(events).last_commit_lsn


ENGINE_PROFILE_SECONDS = 600.0


def run_engine_profile(parameters: Parameters, context: RunContext) -> Measured:
    """One case."""
    workload = CASES[str(parameters["case"])].workload(SEED, int(parameters.get("size", SIZE)))
    with Bed(context, kafka_heap="256m") as bed:
        last_lsn = _fill(bed, workload, int(parameters["events"]), context)
        context.say("the sidecar publishes cuts")
        bed.start_sidecar()
        bed.wait_for_cut(last_lsn, CUTS_SECONDS)
        bed.stop("sidecar")
        folder = with_emit(workload.pipeline, bed.folder / "pipelines", emit=str(parameters["emit"]))
        probe = "packages/slackwater/probes/pipeline/pipeline_profile.py"
        found = run_probe(context.environment, probe, bed.bootstrap, folder, seconds=ENGINE_PROFILE_SECONDS)
    return Measured(round(sum(found["us_per_event"].values()), 2), {**found})


ENGINE_PROFILE = Scenario(
    name="engine-profile",
    version=2,
    unit="us per change event",
    direction=Direction.LOWER,
    measures="The processor time of a pipeline's parts in one process, without Spark: taking records from "
    "librdkafka, decoding and packing, each stage (indexes on disk), the state, the sink. `other "
    "threads` are librdkafka's. Batches have 200,000 change events; the first one is not counted.",
    why="It shows which part limits the speed of the engine.",
    points=tuple(
        {"case": case, "emit": emit, "events": 1_000_000}
        for case in CASES
        for emit in ("latest", "transactions")
    ),
    quick_points=tuple({"case": case, "emit": "latest", "events": 300_000, "size": 2_000} for case in CASES),
    run=run_engine_profile,
    columns=tuple(
        f"us_per_event.{part}"
        for part in (
            "consume",
            "decode and pack",
            "stage 1",
            "stage 2",
            "stage 3",
            "state",
            "sink",
            "planning",
            "other threads",
        )
    ),
)


SHARED_ROWS_SECONDS = 600.0
TOGETHER, APART = "together", "apart"


def run_shared_rows(parameters: Parameters, context: RunContext) -> Measured:
    """One run: each way twice, in a process of its own each time; the machine may become faster or slower."""
    found: dict[str, dict[str, Any]] = {}
    for way in (APART, TOGETHER, TOGETHER, APART):
        context.say(f"rows are kept {way}")
        once = run_probe(
            context.environment,
            "packages/slackwater/probes/engine/shared_rows.py",
            PIPELINES / "shop",
            way,
            parameters["orders"],
            parameters["events"],
            SMALL_BATCHES,
            seconds=SHARED_ROWS_SECONDS,
        )
        found[way] = _with_mean_speed(found[way], once) if way in found else once
    if found[APART]["documents"] != found[TOGETHER]["documents"]:
        raise RunFailedError("shared rows", f"the ways do not publish the same: {found}")
    ratios = {
        f"{name}_ratio": round(found[TOGETHER][name] / found[APART][name], 3)
        for name in ("events_per_second", "state_bytes", "ms_per_small_batch")
    }
    return Measured(found[TOGETHER]["events_per_second"], {**found, **ratios})


def _with_mean_speed(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return one | {name: round((one[name] + other[name]) / 2, 2) for name in _SPEEDS}


_SPEEDS = ("events_per_second", "ms_per_small_batch")
SMALL_BATCHES = 200

SHARED_ROWS = Scenario(
    name="shared-rows",
    version=1,
    unit="change events per CPU second",
    direction=Direction.HIGHER,
    measures="The number of change events of orders and their lines that the stages of `pipelines/shop` "
    "process per second of processor time, including packing, in batches of 50,000; the processor "
    "milliseconds of a batch of ten; and the live bytes of the state. Everything runs in one "
    "process with indexes on disk, without Spark; the values are means of two runs. `together` is "
    "the way a pipeline runs: stages that read the same tables by the same keys keep their rows "
    "once. With `apart`, each stage keeps its own rows.",
    why="It shows what sharing saves, and that it does not cost speed.",
    points=({"orders": 20_000, "events": 300_000},),
    quick_points=({"orders": 2_000, "events": 50_000},),
    run=run_shared_rows,
    columns=(
        "apart.events_per_second",
        "events_per_second_ratio",
        "together.state_bytes",
        "apart.state_bytes",
        "state_bytes_ratio",
        "together.ms_per_small_batch",
        "apart.ms_per_small_batch",
        "ms_per_small_batch_ratio",
    ),
)


CHANGES = 100
LARGEST = {"line of an order": 100_000, "customer of orders": 100_000, "global sum": 10_000_000}
ENGINE_COST_SECONDS = 900.0


def run_engine_cost(parameters: Parameters, context: RunContext) -> Measured:
    """One group."""
    case, rows = str(parameters["case"]), int(parameters["rows"])
    context.say(f"{case}: {rows:,} rows")
    probe = "packages/slackwater/probes/engine/change_cost.py"
    found = run_probe(context.environment, probe, case, rows, CHANGES, seconds=ENGINE_COST_SECONDS)
    return Measured(found["ms_per_change"], {**found})


ENGINE_COST = Scenario(
    name="engine-cost",
    version=1,
    unit="ms per change",
    direction=Direction.LOWER,
    measures="The processor time of the stages for a batch with one changed row (median of 100), by the "
    "number of rows of its group: a line of an order whose lines are added up; a customer, in a "
    "column that the documents of the orders do not show; a row of a global sum. Indexes are on "
    "disk; neither Spark nor Kafka takes part.",
    why="The cost must follow what changes, not what exists.",
    points=tuple(
        {"case": case, "rows": largest // part} for case, largest in LARGEST.items() for part in (100, 10, 1)
    ),
    quick_points=tuple({"case": case, "rows": rows} for case in LARGEST for rows in (100, 10_000)),
    run=run_engine_cost,
    columns=("ms_of_slowest_change", "documents", "us_per_row_filled"),
    axis="rows",
    series="case",
)


EXTRA = ("decode", "parse for another process")
"""Stages that the probe adds to see what they would cost alone."""


def run_sidecar_profile(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    workload = sidecar.WORKLOADS[str(parameters["workload"])]
    with Bed(context, kafka_heap="256m") as bed:
        last_lsn = _fill(bed, workload, int(parameters["events"]), context)
        probe = "sidecar/probes/stage_profile.py"
        found = run_probe(context.environment, probe, bed.bootstrap, SOURCE, last_lsn)
    stages = found["ns_per_record"]
    return Measured(sum(ns for name, ns in stages.items() if name not in EXTRA), {**found})


SIDECAR_PROFILE = Scenario(
    name="sidecar-profile",
    version=1,
    unit="ns per record",
    direction=Direction.LOWER,
    measures="The CPU time of the sidecar's thread per record of full topics (tombstones included), "
    "without publishing, by stage: taking records from librdkafka, taking values out of messages, "
    "rows (decoding included), BEGIN and END (decoding included), moving the frontier. The other "
    "columns contain the cost of decoding alone, and of decoding for another process.",
    why="It shows which part limits the speed of the sidecar.",
    points=({"workload": "orders", "events": 1_000_000}, {"workload": "transfers", "events": 1_000_000}),
    quick_points=({"workload": "orders", "events": 200_000},),
    run=run_sidecar_profile,
    columns=tuple(
        f"ns_per_record.{stage}"
        for stage in ("consume", "unpack", "rows", "BEGIN and END", "advance", "decode", *EXTRA[1:])
    ),
)


FRONTIER_SOAK = "packages/slackwater/probes/cdc/frontier_soak.py"
SIMULATED_PARTITIONS = 8
MEMORY_SECONDS = 1_800.0


def run_sidecar_memory(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    millions = float(parameters["transactions"]) / 1_000_000
    found = run_probe(
        context.environment, FRONTIER_SOAK, millions, SIMULATED_PARTITIONS, seconds=MEMORY_SECONDS
    )
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
    measures="The largest resident size of a process that feeds records of this number of transactions to "
    "the frontier, without Kafka: in its second half, minus that in its first half. Every "
    "thousandth transaction is repeated, and every hundred thousandth begins a new run of the "
    "connector.",
    why="A sidecar runs for months. It remembers the newest two million transactions, to recognise "
    "repeated rows; nothing else may grow.",
    points=({"transactions": 10_000_000},),
    quick_points=({"transactions": 200_000},),
    run=run_sidecar_memory,
    columns=("first_half_mib", "second_half_mib", "transactions_per_cpu_second"),
)


TRANSACTIONS_PER_CUT = 20


def run_cut_cost(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    partitions, cuts = int(parameters["partitions"]), int(parameters["cuts"])
    with Bed(context) as bed:
        url = bed.stack.redis.url
        context.say(f"{cuts:,} cuts of {partitions:,} partitions")
        before = redis_counters(url)
        arguments = (bed.bootstrap, url, SOURCE, partitions, cuts, TRANSACTIONS_PER_CUT)
        found = run_probe(context.environment, "sidecar/probes/cut_cost.py", *arguments)
        redis = redis_counters(url) - before
    return Measured(
        round(found["write_cpu_ms"], 3),
        {name: round(value, 3) for name, value in found.items()}
        | {
            "redis_cpu_ms": round(1000 * redis.cpu_seconds / cuts, 3),
            "redis_received_bytes": round(redis.received_bytes / cuts),
            "redis_sent_bytes": round(redis.sent_bytes / cuts),
        },
    )


CUT_COST = Scenario(
    name="cut-cost",
    version=1,
    unit="CPU ms per cut",
    direction=Direction.LOWER,
    measures="The CPU time of the sidecar's publisher for one cut of 20 transactions, to a real cut log "
    "and a real Redis, with simulated partitions. The other columns contain, per cut, the bytes, "
    "the CPU of Redis, and the CPU time of a reader that plans a batch for every single cut.",
    why="The cost must not explode with the number of partitions, although a cut contains the end "
    "offset of each.",
    points=tuple({"partitions": partitions, "cuts": 1_000} for partitions in (1, 10, 100, 1_000)),
    quick_points=tuple({"partitions": partitions, "cuts": 200} for partitions in (1, 100)),
    run=run_cut_cost,
    axis="partitions",
    columns=(
        "write_ms",
        "plan_cpu_ms",
        "redis_cpu_ms",
        "bytes_per_cut",
        "redis_received_bytes",
        "redis_sent_bytes",
    ),
    curves=("plan_cpu_ms", "redis_cpu_ms", "redis_received_bytes"),
)


def run_sink(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    documents, transactions = int(parameters["documents"]), int(parameters["transactions"])
    outputs = int(parameters["outputs"])
    with Bed(context) as bed:
        context.say(f"{transactions:,} transactions of {documents:,} documents in {outputs} outputs")
        probe = "packages/slackwater/probes/pipeline/sink_speed.py"
        found = run_probe(context.environment, probe, bed.bootstrap, documents, transactions, outputs)
    total = documents * transactions
    return Measured(
        round(total / found["seconds"], 1),
        {
            "documents_per_cpu_second": round(total / found["cpu_seconds"]),
            "transaction_ms": round(1000 * found["seconds"] / transactions, 1),
            "commit_ms": summary(found["commit_ms"]),
        },
    )


SINK_ALONE = Scenario(
    name="sink-alone",
    version=2,
    unit="documents/s",
    direction=Direction.HIGHER,
    measures="The number of documents per second through the exactly-once Kafka sink, one Kafka "
    "transaction after another. The documents have about 300 bytes, in the form in which the last "
    "stage passes them on, and are divided evenly among the output topics of one pipeline.",
    why="It shows the cost of the sink alone: small transactions pay for the commit, large ones for "
    "the documents.",
    points=(
        {"documents": 1, "outputs": 1, "transactions": 300},
        {"documents": 100, "outputs": 1, "transactions": 200},
        {"documents": 10_000, "outputs": 1, "transactions": 40},
        {"documents": 100_000, "outputs": 1, "transactions": 8},
        {"documents": 100_000, "outputs": 4, "transactions": 8},
        {"documents": 100_000, "outputs": 16, "transactions": 8},
    ),
    quick_points=(
        {"documents": 100, "outputs": 1, "transactions": 50},
        {"documents": 10_000, "outputs": 4, "transactions": 5},
    ),
    run=run_sink,
    axis="documents",
    columns=("transaction_ms", "commit_ms.p50", "commit_ms.p99", "documents_per_cpu_second"),
)


def run_lake(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rows, changed, batches = (int(parameters[name]) for name in ("rows", "changed", "batches"))
    context.say(f"{batches:,} batches of {changed:,} changed rows of {rows:,}")
    probe = "packages/slackwater/probes/pipeline/lake_speed.py"
    found = run_probe(context.environment, probe, parameters["format"], rows, changed, batches)
    total = changed * batches
    return Measured(
        round(total / found["seconds"], 1),
        {
            "rows_per_cpu_second": round(total / found["cpu_seconds"]),
            "batch_ms": summary(found["batch_ms"]),
        },
    )


LAKE = Scenario(
    name="lake",
    version=1,
    unit="changed rows/s",
    direction=Direction.HIGHER,
    measures="The number of changed rows per second through the sink for lakes, one batch after another, "
    "on a local disk. The rows have about 250 bytes and contain a list of structs, in the form in "
    "which the last stage passes them on. Two of three rows are already in the table, at random "
    "places, and one is new. A compaction after every tenth batch is included.",
    why="Files that contain a changed row are rewritten, so it shows how large a batch should be.",
    points=tuple(
        {"format": form, "rows": 1_000_000, "changed": changed, "batches": 20}
        for form in ("delta", "iceberg")
        for changed in (100, 10_000, 100_000)
    ),
    quick_points=tuple(
        {"format": form, "rows": 10_000, "changed": 1_000, "batches": 3} for form in ("delta", "iceberg")
    ),
    run=run_lake,
    axis="changed",
    series="format",
    columns=("batch_ms.p50", "batch_ms.p99", "rows_per_cpu_second"),
)


def run_postgres_output(parameters: Parameters, context: RunContext) -> Measured:
    """One run, on a server that waits for its disk."""
    documents, transactions = int(parameters["documents"]), int(parameters["transactions"])
    with TemporaryDirectory(prefix="slackwater-bench-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder), fsync=True)
        server.start()
        try:
            context.say(f"{transactions:,} transactions that change {documents:,} rows")
            probe, keys = "packages/slackwater/probes/pipeline/sink_speed.py", int(parameters["rows"])
            found = run_probe(context.environment, probe, server.dsn(), documents, transactions, 1, keys)
        finally:
            server.stop()
            server.delete_data()
    total = documents * transactions
    return Measured(
        round(total / found["seconds"], 1),
        {
            "rows_per_cpu_second": round(total / found["cpu_seconds"]),
            "write_ms": summary(found["write_ms"]),
            "commit_ms": summary(found["commit_ms"]),
        },
    )


POSTGRES_OUTPUT = Scenario(
    name="postgres-output",
    version=1,
    unit="changed rows/s",
    direction=Direction.HIGHER,
    measures="The number of rows per second that the exactly-once PostgreSQL sink changes, one database "
    "transaction after another. The documents have about 300 bytes with a list of lines as jsonb, "
    "in a table that already contains all of them. PostgreSQL runs on the same machine, with "
    "fsync. With one row, the time of a whole write is the latency.",
    why="It shows the cost of the sink alone: small transactions pay for the commit, large ones for "
    "the rows.",
    points=(
        {"documents": 1, "rows": 200_000, "transactions": 300},
        {"documents": 100, "rows": 200_000, "transactions": 100},
        {"documents": 10_000, "rows": 200_000, "transactions": 20},
        {"documents": 100_000, "rows": 200_000, "transactions": 4},
    ),
    quick_points=(
        {"documents": 1, "rows": 1_000, "transactions": 50},
        {"documents": 1_000, "rows": 1_000, "transactions": 5},
    ),
    run=run_postgres_output,
    axis="documents",
    columns=("write_ms.p50", "write_ms.p99", "commit_ms.p50", "rows_per_cpu_second"),
)
