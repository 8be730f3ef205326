"""The engine: views over one, two and three tables worked off from a backlog; its parts; a single change."""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.catch_up import CatchUp, measure_catch_up
from slackwater_bench.cuts import wait_for_cut
from slackwater_bench.final_state import Check, check_final_state
from slackwater_bench.loads import SEED, WorkloadLoad
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_bench.subject import run_probe
from slackwater_testing.generator.fill import TopicFiller
from slackwater_testing.workloads.chain import ChainWorkload
from slackwater_testing.workloads.hot_key import HotKeyWorkload
from slackwater_testing.workloads.orders import OrdersWorkload
from slackwater_testing.workloads.pipelines import tables_of, workload_pipeline
from slackwater_testing.workloads.transfers import TransfersWorkload
from slackwater_testing.workloads.workload import PipelineOf, Workload

SIZE = 20_000
EVENTS = 1_000_000
QUICK: Parameters = {"size": 2_000, "events": 100_000}

ALONE = "engine"
"""All cuts are published before the pipeline begins with the backlog."""
TOGETHER = "end to end"
"""The sidecar finds the cuts while the pipeline works."""


@dataclass(frozen=True, slots=True)
class Case:
    """A workload, its pipeline, and what its views must be at the end."""

    workload: Callable[[int, int], Workload]
    checks: tuple[Check, ...]


def _document(*columns: str) -> str:
    return f"SELECT {', '.join(columns)} FROM documents"  # noqa: S608 - columns of this module


_ORDERS = Check(
    "orders_with_lines",
    _document(
        "count(*)",
        "sum((document->>'id')::BIGINT)",
        "sum((document->>'total')::DECIMAL(18, 2))",
        "sum(json_array_length(document->'lines'))",
        "sum(list_sum(list_transform((document->'lines')::JSON[], lambda l: "
        "(l->>'id')::HUGEINT * (l->>'quantity')::HUGEINT)))",
    ),
    "SELECT (SELECT count(*) FROM orders), (SELECT sum(id) FROM orders), (SELECT sum(total) FROM orders),"
    " (SELECT count(*) FROM order_lines), (SELECT sum(id::HUGEINT * quantity) FROM order_lines)",
)
_CHAIN = Check(
    "customer_orders",
    _document(
        "count(*)",
        "sum((document->>'lines')::BIGINT)",
        "sum((document->>'total')::DECIMAL(18, 2))",
        "sum(hash(concat_ws('|', document->>'id', document->>'customer', document->>'region',"
        " document->>'status', (document->>'total')::DECIMAL(18, 2))))",
    ),
    "SELECT count(*), sum(lines), sum(total),"
    " sum(hash(concat_ws('|', id, name, region, status, total::DECIMAL(18, 2)))) FROM"
    " (SELECT o.id, c.name, c.region, o.status, count(l.id) AS lines,"
    " coalesce(sum(l.quantity * l.price), 0)::DECIMAL(18, 2) AS total FROM orders o"
    " JOIN customers c ON c.id = o.customer_id LEFT JOIN lines l ON l.order_id = o.id GROUP BY ALL)",
)
_BALANCES = Check(
    "account_balances",
    _document(
        "count(*)",
        "sum((document->>'entries')::BIGINT)",
        "sum(hash(concat_ws('|', document->>'id', (document->>'balance')::DECIMAL(18, 2),"
        " (document->>'moved')::DECIMAL(18, 2))))",
    ),
    "SELECT count(*), sum(n), sum(hash(concat_ws('|', id, balance::DECIMAL(18, 2), moved))) FROM"
    " (SELECT a.id, a.balance, count(e.id) AS n, coalesce(sum(e.amount), 0)::DECIMAL(18, 2) AS moved"
    " FROM accounts a LEFT JOIN entries e ON e.account_id = a.id GROUP BY ALL)",
)
_TOTAL = Check(
    "bank_total",
    _document(
        "count(*)", "sum((document->>'accounts')::BIGINT)", "sum((document->>'total')::DECIMAL(18, 2))"
    ),
    "SELECT 1, count(*), sum(balance)::DECIMAL(18, 2) FROM accounts",
)
_METERS = Check(
    "meter_totals",
    _document(
        "count(*)", "sum((document->>'counted')::BIGINT)", "sum((document->>'summed')::DECIMAL(18, 2))"
    ),
    "SELECT (SELECT count(*) FROM meters), (SELECT count(*) FROM readings),"
    " (SELECT sum(amount)::DECIMAL(18, 2) FROM readings)",
)


def _balances(seed: int, size: int) -> Workload:
    return PipelineOf(TransfersWorkload(seed, size), workload_pipeline("balances"))


CASES: Mapping[str, Case] = {
    "orders": Case(OrdersWorkload, (_ORDERS,)),
    "chain": Case(ChainWorkload, (_CHAIN,)),
    "balances": Case(_balances, (_BALANCES, _TOTAL)),
}


def run_engine(parameters: Parameters, context: RunContext) -> Measured:
    """One case."""
    case = CASES[str(parameters["case"])]
    return _measure(case.workload(SEED, int(parameters.get("size", SIZE))), case.checks, parameters, context)


def run_skewed(parameters: Parameters, context: RunContext) -> Measured:
    """Meters of which one has a share of all changes."""
    size, share = int(parameters.get("size", SIZE)), float(parameters["hot_share"])
    return _measure(HotKeyWorkload(SEED, size, hot_share=share), (_METERS,), parameters, context)


def _measure(
    workload: Workload, checks: tuple[Check, ...], parameters: Parameters, context: RunContext
) -> Measured:
    partitions = int(parameters.get("partitions", 4))

    def check(bed: Bed) -> Mapping[str, object]:
        context.say("comparing the views with the tables")
        found = check_final_state(bed.bootstrap, SOURCE, tables_of(workload), checks)
        return {"checked": dict(zip((each.topic for each in checks), found, strict=True))}

    plan = CatchUp(
        pipeline=workload.pipeline,
        adapt=partial(with_emit, emit=str(parameters.get("emit", "latest"))),
        partitions=partitions,
        is_published_first=parameters.get("measured", TOGETHER) == ALONE,
        watches_memory=False,
        check=check,
    )
    events = int(parameters["events"])
    load = partial(WorkloadLoad, workload=workload, events=events, partitions=partitions)
    return measure_catch_up(plan, load, context)


def with_emit(pipeline: Path, folder: Path, *, emit: str) -> Path:
    """A copy of a pipeline below `folder` that emits so."""
    copy = folder / pipeline.name
    shutil.copytree(pipeline, copy)
    file = copy / "pipeline.toml"
    text, found = re.subn(r'(?m)^emit = "\w+"', f'emit = "{emit}"', file.read_text())
    if not found:
        raise ValueError(f"{file} does not say what it emits")
    file.write_text(text)
    return copy


COLUMNS = (
    "seconds",
    "batches",
    "cpu_seconds.sidecar",
    "cpu_seconds.pipeline",
    "cpu_seconds.pipeline jvm",
    "cpu_seconds.pipeline workers",
    "cpu_seconds.kafka",
    "cpu_seconds.others",
)
_POINTS: tuple[Parameters, ...] = tuple(
    {"case": case, "emit": emit, "measured": measured, "events": EVENTS}
    for case in CASES
    for emit in ("latest", "transactions")
    for measured in (TOGETHER, ALONE)
)

ENGINE = Scenario(
    name="engine",
    version=1,
    unit="change events/s",
    direction=Direction.HIGHER,
    measures="Change events per second with which a running pipeline works off a backlog until a"
    " read_committed consumer sees the last transaction: `orders`, two tables joined on one key into nested"
    " documents; `chain`, three tables joined on two keys and added up; `balances`, account balances and the"
    " total of all of them. `end to end`: the running sidecar has to find the cuts meanwhile. `engine`: all"
    " cuts are published before. Count and checksum of every view are compared with the tables at the end.",
    why="What SQL costs, by the shape of the query.",
    points=_POINTS,
    quick_points=tuple({**point, **QUICK} for point in _POINTS if point["emit"] == "latest"),
    run=run_engine,
    columns=COLUMNS,
)

_SKEW: tuple[Parameters, ...] = tuple(
    {"hot_share": share, "measured": ALONE, "events": EVENTS} for share in (0.0, 0.5)
)

ENGINE_SKEW = Scenario(
    name="engine-skew",
    version=1,
    unit="change events/s",
    direction=Direction.HIGHER,
    measures="As `engine`, for meters and their readings added up, when one meter gets a share of all"
    " changes.",
    why="A key that everybody changes must not serialise a stage.",
    points=_SKEW,
    quick_points=tuple({**point, **QUICK} for point in _SKEW),
    run=run_skewed,
    columns=COLUMNS,
    axis="hot_share",
)


PROFILE_PARTITIONS = 4
_CUTS_SECONDS = 300.0
_PROFILE_SECONDS = 600.0


def run_profile(parameters: Parameters, context: RunContext) -> Measured:
    """One case."""
    workload = CASES[str(parameters["case"])].workload(SEED, int(parameters.get("size", SIZE)))
    with Bed(context, kafka_heap="256m") as bed:
        context.say("writing topics")
        with TopicFiller(bed.bootstrap, workload, prefix=SOURCE, partitions=PROFILE_PARTITIONS) as filler:
            last_lsn = filler.fill(int(parameters["events"])).last_commit_lsn
        context.say("the sidecar publishes cuts")
        bed.start_sidecar()
        wait_for_cut(bed, last_lsn, _CUTS_SECONDS, context.clock)
        bed.stop("sidecar")
        folder = with_emit(workload.pipeline, bed.folder / "pipelines", emit=str(parameters["emit"]))
        found = run_probe(context.subject, "engine_profile", bed.bootstrap, folder, seconds=_PROFILE_SECONDS)
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
    run=run_profile,
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


CHANGES = 100
LARGEST = {"line of an order": 100_000, "customer of orders": 100_000, "global sum": 10_000_000}
_COST_SECONDS = 900.0


def run_cost(parameters: Parameters, context: RunContext) -> Measured:
    """One group."""
    case, rows = str(parameters["case"]), int(parameters["rows"])
    context.say(f"{case}: {rows:,} rows")
    found = run_probe(context.subject, "engine_cost", case, rows, CHANGES, seconds=_COST_SECONDS)
    return Measured(found["ms_per_change"], {**found})


ENGINE_COST = Scenario(
    name="engine-cost",
    version=1,
    unit="ms per change",
    direction=Direction.LOWER,
    measures="Processor time of the stages for a batch with one changed row (median of 100), by the rows of"
    " its group: a line of an order whose lines are added up; a customer, in a column that the documents of"
    " its orders do not show; a row of a global sum. Indexes on disk, without Spark and Kafka.",
    why="Cost must follow what changes, not what is there.",
    points=tuple(
        {"case": case, "rows": largest // part} for case, largest in LARGEST.items() for part in (100, 10, 1)
    ),
    quick_points=tuple({"case": case, "rows": rows} for case in LARGEST for rows in (100, 10_000)),
    run=run_cost,
    columns=("ms_of_slowest_change", "documents", "us_per_row_filled"),
    axis="rows",
    series="case",
)
