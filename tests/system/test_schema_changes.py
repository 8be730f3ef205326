"""A table is altered while a pipeline runs: what no view uses may change, else the run stops with a reason.

What each kind of change does to records and views is shown case by case, without servers, in
packages/slackwater/tests/pipeline/test_schema_changes.py.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from slackwater.cli import main
from slackwater.dev import DevStack
from slackwater.protocol import parse_position
from slackwater_lab.errors import ProgramEndedError
from slackwater_lab.programs import Product
from slackwater_lab.watching import Visibility
from slackwater_lab.workloads.workload import repository_pipeline

pytestmark = [pytest.mark.system, pytest.mark.slow]

TABLES = ("inventory.orders", "inventory.order_lines")
UNUSED = (
    "ALTER TABLE inventory.orders ADD COLUMN note text DEFAULT 'x'",
    "ALTER TABLE inventory.orders RENAME COLUMN note TO remark",
    "ALTER TABLE inventory.orders ALTER COLUMN remark DROP DEFAULT, ALTER COLUMN remark TYPE int USING 1",
    "ALTER TABLE inventory.orders DROP COLUMN remark",
)
SECONDS = 900.0


class Orders:
    """Writes orders one by one, and changes their tables."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._next = 0

    def execute(self, statement: str) -> None:
        """Changes a table."""
        self._connection.execute(statement.encode())

    def insert(self, customer: str = "customer") -> int:
        """One order with a line, in a transaction; an LSN before its commit."""
        self._next += 1
        row = self._connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        with self._connection.transaction():
            line = "INSERT INTO inventory.order_lines VALUES (%s, %s, 'pen', 1, 2.50)"
            self._connection.execute(line, (self._next, self._next))
            columns = f"id, {customer}, status, line_count, total, created_at"
            order = f"INSERT INTO inventory.orders ({columns}) VALUES (%s, 'ada', 'new', 1, 2.50, now())"  # noqa: S608
            self._connection.execute(order.encode(), (self._next,))
        assert row is not None
        return parse_position(str(row[0]))


@pytest.fixture
def stack(dev_stack: Callable[..., DevStack]) -> DevStack:
    return dev_stack(prefix="inv", partitions=2)


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    return shutil.copytree(repository_pipeline("orders"), tmp_path / "orders")


@pytest.fixture
def orders(stack: DevStack, pipeline: Path) -> Iterator[Orders]:
    """The tables of the pipeline, with one order, and a connector that reads them."""
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA inventory")
        connection.execute((pipeline / "schema.sql").read_text().encode())
        found = Orders(connection)
        found.insert()
        stack.start_connector(TABLES)
        stack.wait_until_streaming()
        yield found


def wait_until_visible(product: Product, visible: Visibility, lsn: int) -> bool:
    return product.wait_until(lambda: visible.newest_lsn > lsn, SECONDS)


def test_a_pipeline_goes_on_until_a_column_that_it_uses_is_gone(
    stack: DevStack, pipeline: Path, orders: Orders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = ["schema", "check", str(pipeline), "--postgres-url", stack.postgres.dsn()]
    with Product(stack, tmp_path / "product") as product:
        product.start_sidecar()
        product.start_pipeline(pipeline, "--master", "local[2]", local=product.folder)
        visible = product.watch(pipeline)
        for statement in UNUSED:
            orders.execute(statement)
            lsn = orders.insert()
            assert wait_until_visible(product, visible, lsn), statement
        assert main.run(check) == 0
        orders.execute("ALTER TABLE inventory.orders RENAME COLUMN customer TO client")
        lsn = orders.insert("client")
        with pytest.raises(ProgramEndedError) as stopped:
            wait_until_visible(product, visible, lsn)
        assert visible.newest_lsn <= lsn, "something of the transaction is visible"
    assert stopped.value.program == "pipeline"
    said = product.programs["pipeline"].last_words()
    assert "column customer of inventory.orders contradicts its declaration" in said
    assert "got no such field" in said
    assert "in the transaction with commit LSN" in said
    capsys.readouterr()
    assert main.run(check) == 1
    assert "affected: orders_with_lines" in capsys.readouterr().out


def test_a_run_that_knows_the_database_ends_at_a_rewrite_without_events(
    stack: DevStack, pipeline: Path, orders: Orders, tmp_path: Path
) -> None:
    with Product(stack, tmp_path / "product") as product:
        product.start_sidecar()
        flags = ("--master", "local[2]", "--postgres-url", stack.postgres.dsn())
        product.start_pipeline(pipeline, *flags, local=product.folder)
        visible = product.watch(pipeline)
        lsn = orders.insert()
        assert wait_until_visible(product, visible, lsn)
        statement = "ALTER TABLE inventory.orders ALTER COLUMN customer TYPE text USING upper(customer)"
        orders.execute(statement)
        with pytest.raises(ProgramEndedError) as stopped:
            product.wait_until(lambda: False, SECONDS)
    assert stopped.value.program == "pipeline"
    said = " ".join(product.programs["pipeline"].last_words().split())
    assert "table inventory.orders: column customer: ALTER COLUMN … TYPE rewrote its values" in said
    assert "UPDATE inventory.orders SET" in said
