"""Writers against a real PostgreSQL."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg import sql

from slackwater.dev import DevStack
from slackwater.protocol import SystemClock
from slackwater_lab.database.statements import create_tables, send, write_first
from slackwater_lab.database.writers import WriterCounts, Writers, is_committed
from slackwater_lab.generator.debezium_records import ConnectorIdentity
from slackwater_lab.generator.share import Share
from slackwater_lab.workloads.huge import HugeWorkload, MixedWorkload
from slackwater_lab.workloads.interleaved import InterleavedWorkload
from slackwater_lab.workloads.orders import OrdersWorkload
from slackwater_lab.workloads.tpcc import TpccWorkload
from slackwater_lab.workloads.transfers import TransfersWorkload
from slackwater_lab.workloads.workload import BusinessTransaction, Insert, Plus, Update, Workload

pytestmark = pytest.mark.integration

BROKEN_ORDERS = """
SELECT o.id FROM inventory.orders o LEFT JOIN (
    SELECT order_id, count(*) AS n, sum(quantity * price) AS amount
    FROM inventory.order_lines GROUP BY order_id
) l ON l.order_id = o.id
WHERE o.line_count <> coalesce(l.n, 0) OR o.total <> coalesce(l.amount, 0)
"""
SCHEMAS = ("inventory", "bank", "tpcc")


@pytest.fixture(scope="module")
def stack(dev_stack: Callable[..., DevStack]) -> DevStack:
    return dev_stack(kafka=False, connect=False, redis=False)


@pytest.fixture
def dsn(stack: DevStack) -> str:
    with psycopg.connect(stack.postgres.dsn()) as connection:
        for schema in SCHEMAS:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))
    return stack.postgres.dsn()


def run(dsn: str, workload: Workload, *, writers: int, until: Callable[[WriterCounts], bool]) -> Writers:
    """Writers that are stopped as soon as their counts are as wanted."""
    running = Writers(dsn, workload, count=writers, changes_per_second=None, clock=SystemClock())
    running.start()
    wait_until(running, until)
    running.stop()
    return running


def wait_until(writers: Writers, condition: Callable[[WriterCounts], bool]) -> None:
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + 900
    while not condition(writers.counts()):
        writers.raise_failure()
        assert clock.monotonic() < deadline, f"not within a minute: {writers.counts()}"
        pause.wait(0.02)


def rows_in_database(dsn: str, workload: Workload) -> dict[str, dict[int, list[Any]]]:
    found: dict[str, dict[int, list[Any]]] = {}
    with psycopg.connect(dsn) as connection:
        for name, table in workload.tables.items():
            columns = sql.SQL(", ").join(_column(c.name, str(c.type)) for c in table.columns)
            query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(*name.split(".")))
            found[name] = {row[0]: list(row) for row in connection.execute(query)}
    return found


def _column(name: str, type_name: str) -> sql.Composed:
    column = sql.Identifier(name)
    if not type_name.startswith("timestamp"):
        return sql.Composed([column])
    return sql.SQL("to_char({} AT TIME ZONE 'UTC', {})").format(
        column, sql.Literal('YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
    )


@dataclass(frozen=True, slots=True)
class Beginnings(Workload):
    """The beginnings of several writers' streams, one after the other: the end is the same."""

    name: ClassVar[str] = "beginnings"
    workload: Workload = field(kw_only=True)
    done: list[int] = field(kw_only=True)

    def first(self) -> Iterator[BusinessTransaction]:
        return self.workload.first()

    def transactions(self, writer: int, writers: int) -> Iterator[BusinessTransaction]:
        del writer, writers
        for number, taken in enumerate(self.done):
            yield from islice(self.workload.transactions(number, len(self.done)), taken)


def rows_of_generator(workload: Workload, done: list[int]) -> dict[str, dict[int, list[Any]]]:
    beginnings = Beginnings(
        workload.seed, workload.size, pipeline=workload.pipeline, workload=workload, done=done
    )
    share = Share(beginnings, ConnectorIdentity("p"), lambda *_: None)
    share.begin()
    share.advance(10**9)
    return {
        name: {row_id: list(row.values()) for row_id, row in table.rows.items()}
        for name, table in share.tables.items()
    }


@pytest.mark.parametrize(
    "workload",
    [
        OrdersWorkload(1, 50),
        TransfersWorkload(1, 20),
        TpccWorkload(1, 300),
        HugeWorkload(1, 50, 3_000),
        MixedWorkload(1, 50),
    ],
)
def test_the_database_of_one_writer_is_what_the_generator_simulates(dsn: str, workload: Workload) -> None:
    create_tables(dsn, workload)
    write_first(dsn, workload)
    writers = run(dsn, workload, writers=1, until=lambda counts: counts.committed >= 300)
    (counts,) = writers.counts_by_writer()
    assert rows_in_database(dsn, workload) == rows_of_generator(
        workload, [counts.committed + counts.rolled_back]
    )


@pytest.mark.parametrize("workload", [OrdersWorkload(2, 60), MixedWorkload(2, 60)])
def test_several_writers_keep_the_invariants(dsn: str, workload: Workload) -> None:
    create_tables(dsn, workload)
    write_first(dsn, workload)
    counts = run(
        dsn, workload, writers=4, until=lambda c: c.committed >= 1_000 and c.rolled_back > 0
    ).counts()
    with psycopg.connect(dsn) as connection:
        assert connection.execute(BROKEN_ORDERS.encode()).fetchall() == []
    assert counts.changes > counts.committed


@pytest.mark.full
def test_writers_survive_a_killed_database_and_execute_each_transaction_once(
    dsn: str, stack: DevStack
) -> None:
    """Without asking what became of the last transactions, money appears or a key is inserted twice."""
    workload = TransfersWorkload(3, 50)
    create_tables(dsn, workload)
    write_first(dsn, workload)
    writers = Writers(dsn, workload, count=3, changes_per_second=None, clock=SystemClock())
    writers.start()
    for _ in range(3):
        before = writers.counts().committed
        wait_until(writers, lambda counts, before=before: counts.committed > before + 100)  # type: ignore[misc]
        stack.postgres.kill()
        stack.postgres.start()
    before = writers.counts().committed
    wait_until(writers, lambda counts: counts.committed > before + 100)
    writers.stop()
    done = [each.committed + each.rolled_back for each in writers.counts_by_writer()]
    assert writers.counts().retried >= 3
    assert rows_in_database(dsn, workload) == rows_of_generator(workload, done)


def test_a_long_transaction_commits_after_others_that_began_later(dsn: str) -> None:
    workload = InterleavedWorkload(1, 100)
    create_tables(dsn, workload)
    write_first(dsn, workload)
    run(dsn, workload, writers=4, until=lambda counts: counts.committed >= 300)
    with psycopg.connect(dsn) as connection:
        assert connection.execute(BROKEN_ORDERS.encode()).fetchall() == []


def test_a_row_of_the_writer_tells_what_became_of_a_transaction(dsn: str) -> None:
    workload = OrdersWorkload(1, 20)
    create_tables(dsn, workload)
    write_first(dsn, workload)
    line = Insert(
        "inventory.order_lines",
        {"id": 999, "order_id": 5, "product": "x", "quantity": 1, "price": None},
    )
    transaction = BusinessTransaction(
        (
            Update("inventory.orders", 5, {"status": "seen"}),
            Update("inventory.orders", 6, {"line_count": Plus(1)}),
        )
    )
    with psycopg.connect(dsn) as writer, psycopg.connect(dsn) as judge:
        xid = send(writer, transaction.operations) or ""
        assert is_committed(judge, transaction, xid) is None
        writer.rollback()
        assert is_committed(judge, transaction, xid) is False
        xid = send(writer, transaction.operations) or ""
        writer.commit()
        assert is_committed(judge, transaction, xid) is True
        assert is_committed(judge, BusinessTransaction((line,)), xid) is False, (
            "another transaction has this id"
        )
        assert is_committed(judge, transaction, str(int(xid) + 1_000_000)) is False


def test_a_rate_spreads_transactions_over_time(dsn: str) -> None:
    workload = OrdersWorkload(2, 60)
    create_tables(dsn, workload)
    write_first(dsn, workload)
    clock = SystemClock()
    writers = Writers(dsn, workload, count=2, changes_per_second=500, clock=clock)
    started = clock.monotonic()
    writers.start()
    wait_until(writers, lambda counts: counts.changes >= 300)
    seconds = clock.monotonic() - started
    writers.stop()
    ahead = 2 * 15  # each writer's last transaction counts when it is due, not when it is paid for
    assert seconds >= (300 - ahead) / 500
