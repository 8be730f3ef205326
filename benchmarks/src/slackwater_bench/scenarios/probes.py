"""Parts of the product alone, timed by probes: stages, the sidecar, the sinks, a consumer."""

from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from slackwater.dev import PostgresServer
from slackwater.protocol import Clock
from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.catch_up import CASES, SEED, SIZE, with_emit
from slackwater_bench.environment import run_probe
from slackwater_bench.latencies import summary
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_bench.scenarios import sidecar
from slackwater_bench.traffic import SteadyOrders, TransactionAppender
from slackwater_lab.generator.fill import TopicFiller
from slackwater_lab.workloads.workload import Workload

CUTS_SECONDS = 300.0
PARTITIONS = 4


def _fill(bed: Bed, workload: Workload, events: int, context: RunContext) -> int:
    """Writes a workload's topics; returns the last commit LSN."""
    context.say("writing topics")
    filler = TopicFiller(bed.bootstrap, workload, prefix=SOURCE, partitions=PARTITIONS)
    return filler.fill(events).last_commit_lsn


ENGINE_PROFILE_SECONDS = 600.0


def run_engine_profile(parameters: Parameters, context: RunContext) -> Measured:
    """One case."""
    workload = CASES[str(parameters["case"])](SEED, int(parameters.get("size", SIZE)))
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


def _sink(
    context: RunContext, address: object, documents: int, transactions: int, outputs: int, *rows: int
) -> dict[str, Any]:
    """What the probe of sinks finds, with documents per second and per second of processor time."""
    context.say(f"{transactions:,} transactions of {documents:,} documents in {outputs} outputs")
    probe = "packages/slackwater/probes/pipeline/sink_speed.py"
    found = run_probe(context.environment, probe, address, documents, transactions, outputs, *rows)
    total = documents * transactions
    return {
        "rate": round(total / found["seconds"], 1),
        "per_cpu_second": round(total / found["cpu_seconds"]),
        "transaction_ms": round(1000 * found["seconds"] / transactions, 1),
        **{name: summary(found[name]) for name in ("write_ms", "commit_ms")},
    }


def run_sink(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    documents, transactions = int(parameters["documents"]), int(parameters["transactions"])
    with Bed(context) as bed:
        found = _sink(context, bed.bootstrap, documents, transactions, int(parameters["outputs"]))
    times = {name: found[name] for name in ("transaction_ms", "commit_ms")}
    return Measured(found["rate"], {"documents_per_cpu_second": found["per_cpu_second"], **times})


def run_lake(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rows, changed, batches = (int(parameters[name]) for name in ("rows", "changed", "batches"))
    found = _sink(context, parameters["format"], changed, batches, 1, rows)
    details = {"rows_per_cpu_second": found["per_cpu_second"], "batch_ms": found["write_ms"]}
    return Measured(found["rate"], details)


def run_postgres_output(parameters: Parameters, context: RunContext) -> Measured:
    """One run, on a server that waits for its disk."""
    documents, transactions, rows = (int(parameters[n]) for n in ("documents", "transactions", "rows"))
    with TemporaryDirectory(prefix="slackwater-bench-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder), fsync=True)
        server.start()
        try:
            found = _sink(context, server.dsn(), documents, transactions, 1, rows)
        finally:
            server.stop()
            server.delete_data()
    times = {name: found[name] for name in ("write_ms", "commit_ms")}
    return Measured(found["rate"], {"rows_per_cpu_second": found["per_cpu_second"], **times})


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
