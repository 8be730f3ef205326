"""Parts of the product alone, timed by probes: stages, sidecar, frontier, cuts, the sink, a consumer."""

from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from slackwater.dev import PostgresServer
from slackwater.protocol import Clock
from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.catch_up import SEED
from slackwater_bench.environment import run_probe
from slackwater_bench.latencies import summary
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_bench.scenarios import sidecar
from slackwater_bench.scenarios.engine import CASES, SIZE, with_emit
from slackwater_bench.traffic import SteadyOrders, TransactionAppender
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


CHANGES = 100
ENGINE_COST_SECONDS = 900.0


def run_engine_cost(parameters: Parameters, context: RunContext) -> Measured:
    """One group."""
    case, rows = str(parameters["case"]), int(parameters["rows"])
    context.say(f"{case}: {rows:,} rows")
    probe = "packages/slackwater/probes/engine/change_cost.py"
    found = run_probe(context.environment, probe, case, rows, CHANGES, seconds=ENGINE_COST_SECONDS)
    return Measured(found["ms_per_change"], {**found})


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


CONSUMED_ORDERS = 5_000
CONSUMER_SECONDS = 600.0
_CONSUMER_PROBE = "packages/slackwater/probes/client/consumer_speed.py"


def run_consumer(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    kind, share = str(parameters["input"]), str(parameters["share"])
    rows, records = int(parameters["rows"]), int(parameters["records"])
    with Bed(context, kafka_heap="256m") as bed:
        if kind == "changes":
            _write_changes(bed, rows, records, context.clock)
        context.say(f"reading {records:,} records")
        found = run_probe(
            context.environment,
            _CONSUMER_PROBE,
            bed.bootstrap,
            kind,
            share,
            records,
            rows,
            seconds=CONSUMER_SECONDS,
        )
    return Measured(
        round(found["records"] / found["cpu_seconds"]),
        {
            **{name: round(value, 2) for name, value in found.items()},
            "records_per_second": round(found["records"] / found["seconds"]),
            "librdkafka_share": round(found["librdkafka_cpu_seconds"] / found["cpu_seconds"], 2),
        },
    )


def _write_changes(bed: Bed, rows: int, records: int, clock: Clock) -> None:
    """Writes change events and has a sidecar publish the cuts."""
    appender = TransactionAppender(bed.bootstrap, SOURCE, PARTITIONS)
    transactions = SteadyOrders(CONSUMED_ORDERS).transactions(rows)
    last_lsn = appender.append_all(islice(transactions, records // rows), clock)
    bed.start_sidecar()
    bed.wait_for_cut(last_lsn, CUTS_SECONDS)
    bed.stop("sidecar")
