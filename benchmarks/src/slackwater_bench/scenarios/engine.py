"""The engine: views over one, two and three tables worked off from a backlog and compared with the tables."""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa

from slackwater.sql.catalog import Table
from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.catch_up import SEED, CatchUp, WorkloadBacklog, measure_catch_up
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_lab.errors import RunFailedError
from slackwater_lab.topics import read_to_end
from slackwater_lab.workloads.chain import ChainWorkload
from slackwater_lab.workloads.hot_key import HotKeyWorkload
from slackwater_lab.workloads.orders import OrdersWorkload
from slackwater_lab.workloads.transfers import TransfersWorkload
from slackwater_lab.workloads.workload import Workload, workload_pipeline

SIZE = 20_000

ALONE = "engine"
"""All cuts are published before the pipeline begins with the backlog."""
TOGETHER = "end to end"
"""The sidecar finds the cuts while the pipeline works."""


@dataclass(frozen=True, slots=True)
class Check:
    """Two queries that must give the same row.

    Attributes:
        topic: Of a view's documents.
        found: Over the table ``documents (document JSON)``.
        expected: Over the source's tables, by their names without the schema, as they are at the end.
    """

    topic: str
    found: str
    expected: str


@dataclass(frozen=True, slots=True)
class JudgedWorkload:
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
    return TransfersWorkload(seed, size, pipeline=workload_pipeline("balances"))


CASES: Mapping[str, JudgedWorkload] = {
    "orders": JudgedWorkload(OrdersWorkload, (_ORDERS,)),
    "chain": JudgedWorkload(ChainWorkload, (_CHAIN,)),
    "balances": JudgedWorkload(_balances, (_BALANCES, _TOTAL)),
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
        found = check_final_state(bed.bootstrap, SOURCE, workload.tables, checks)
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
    backlog = partial(WorkloadBacklog, workload=workload, events=events, partitions=partitions)
    return measure_catch_up(plan, backlog, context)


class _Envelope(msgspec.Struct, gc=False):
    after: msgspec.Raw = msgspec.Raw(b"null")


def check_final_state(
    bootstrap: str, source: str, tables: Mapping[str, Table], checks: tuple[Check, ...]
) -> list[tuple[str, ...]]:
    """Runs both queries of each check and returns their common answers, as text.

    Raises:
        RunFailedError: they differ.
    """
    decode = msgspec.json.Decoder(_Envelope).decode
    found = []
    with duckdb.connect() as database:
        for name, table in tables.items():
            values = newest_values(bootstrap, f"{source}.{name}").values()
            rows = (bytes(decode(value).after) for value in values if value is not None)
            _create(database, table, [row for row in rows if row != b"null"])
        for check in checks:
            documents = [
                value for value in newest_values(bootstrap, check.topic).values() if value is not None
            ]
            _load(database, documents)
            expected, got = (_row(database, query) for query in (check.expected, check.found))
            if expected != got:
                raise RunFailedError(f"the view in {check.topic}", f"is {got}, expected {expected}")
            found.append(got)
    return found


def newest_values(bootstrap: str, topic: str) -> dict[bytes | None, bytes | None]:
    """The last committed value of each key; None where it was a tombstone.

    Raises:
        RunFailedError: the topic cannot be read to its end.
    """
    return {message.key(): message.value() for message in read_to_end(bootstrap, topic)}


def _create(database: duckdb.DuckDBPyConnection, table: Table, rows: list[bytes]) -> None:
    """A table with these rows. Debezium writes decimals and times as text, which DuckDB casts exactly."""
    image = pa.table({"image": pa.array([row.decode() for row in rows], pa.string())})
    columns = ", ".join(
        f"(image->>'$.{column.name}')::{column.type.name} AS {column.name}"
        for column in table.columns
        if column.type.is_supported
    )
    database.register("images", image)
    database.execute(f"CREATE TABLE {table.name} AS SELECT {columns} FROM images")  # noqa: S608 - our names
    database.unregister("images")


def _load(database: duckdb.DuckDBPyConnection, documents: list[bytes]) -> None:
    texts = pa.table({"document": pa.array([document.decode() for document in documents], pa.string())})
    database.register("texts", texts)
    database.execute("CREATE OR REPLACE TABLE documents AS SELECT document::JSON AS document FROM texts")
    database.unregister("texts")


def _row(database: duckdb.DuckDBPyConnection, query: str) -> tuple[str, ...]:
    (row,) = database.execute(query).fetchall()
    return tuple(map(str, row))


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
