"""A connector with other settings than usual, and everything else that may be in its topics.

Three tables share one topic of another name, of which a pipeline reads two; the transaction topic has another
name, too; every record comes with its schema; there are no tombstones; tables are truncated inside of
transactions, keys change, messages are logged. Judged by the certifier against the database.
"""

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from slackwater.dev import DevStack
from slackwater.protocol import parse_position
from slackwater_certify import Certificate, Connections, Mode, certify, load_specification
from slackwater_lab.programs import Product
from slackwater_lab.watching import Visibility
from slackwater_lab.workloads.workload import repository_pipeline

pytestmark = pytest.mark.system

SEED = 11
EVERYTHING = "shop.everything"
TABLES = ("inventory.orders", "inventory.order_lines", "inventory.notes")
JSON = "org.apache.kafka.connect.json.JsonConverter"
CONNECTOR = {
    "skipped.operations": "none",
    "tombstones.on.delete": "false",
    "key.converter": JSON,
    "key.converter.schemas.enable": "true",
    "value.converter": JSON,
    "value.converter.schemas.enable": "true",
    "transforms": "route",
    "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.route.regex": r"inv\.inventory\..*",
    "transforms.route.replacement": EVERYTHING,
    "topic.transaction": "commits",
    "topic.creation.single.include": r"inv\.commits,inv\.notifications,__debezium-heartbeat\..*",
}
ROUTED = "\n[topics]\n" + "".join(f'"{table}" = "{EVERYTHING}"\n' for table in TABLES[:2])
SIDECAR = ("--topics", ",".join(f"{t}={EVERYTHING}" for t in TABLES), "--transaction-topic", "inv.commits")
SECONDS = 900.0


class Shop:
    """Writes transactions of all kinds. Deterministic for a seed."""

    def __init__(self, connection: psycopg.Connection, seed: int) -> None:
        self._connection = connection
        self._rng = random.Random(seed)
        self._next = 0
        self.truncated = 0

    def commit(self, statements: int) -> None:
        with self._connection.transaction():
            for _ in range(statements):
                self._rng.choice(self._kinds)(self)

    def order(self) -> None:
        self._next += 1
        self._execute("INSERT INTO inventory.orders VALUES (%s, 'a', 'new', 0, 0, now())", self._next)
        for _ in range(self._rng.randint(0, 3)):
            self.line()

    def line(self) -> None:
        self._next += 1
        order = self._rng.randint(1, self._next)
        self._execute("INSERT INTO inventory.order_lines VALUES (%s, %s, 'x', 1, 2.50)", self._next, order)
        self._execute("INSERT INTO inventory.notes VALUES (%s, 'nobody reads this')", self._next)

    def change(self) -> None:
        column, row = self._rng.choice(("status", "customer")), self._rng.randint(1, self._next + 1)
        self._execute(f"UPDATE inventory.orders SET {column} = {column} || '+' WHERE id = %s", row)  # noqa: S608

    def change_key(self) -> None:
        self._next += 1
        row = self._rng.randint(1, self._next)
        self._execute("UPDATE inventory.orders SET id = %s WHERE id = %s", self._next, row)

    def delete(self) -> None:
        self._execute("DELETE FROM inventory.order_lines WHERE id %% 5 = %s", self._rng.randint(0, 4))

    def truncate(self) -> None:
        self.truncated += 1
        tables = self._rng.choice(("order_lines", "orders", "orders, inventory.order_lines"))
        self._execute(f"TRUNCATE inventory.{tables}")

    def say(self) -> None:
        self._execute("SELECT pg_logical_emit_message(%s, 'shop', 'hello')", self._rng.random() < 0.5)

    _kinds = (order, order, order, line, line, change, change_key, delete, truncate, say)

    def _execute(self, statement: str, *parameters: object) -> None:
        self._connection.execute(statement.encode(), parameters)


def routed_pipeline(folder: Path) -> Path:
    """The pipeline of orders, told where its tables are, and without invariants of a shop that truncates."""
    pipeline = shutil.copytree(repository_pipeline("orders"), folder / "orders")
    definition = pipeline / "pipeline.toml"
    text = definition.read_text().replace('emit = "latest"', 'emit = "transactions"')
    definition.write_text(text + ROUTED)
    certificate = pipeline / "certify.toml"
    text = certificate.read_text().partition("[[invariant]]")[0]
    topics = ", ".join(f'"{table}" = "{EVERYTHING}"' for table in TABLES[:2])
    source = f'name = "inv"\ntransactions = "inv.commits"\ntopics = {{ {topics} }}'
    certificate.write_text(text.replace('name = "inv"', source))
    return pipeline


@pytest.mark.slow
def test_documents_are_right_whatever_the_connector_writes(
    dev_stack: Callable[..., DevStack], tmp_path: Path
) -> None:
    sys.stdout.write(f"seed {SEED}\n")
    stack = dev_stack(prefix="inv", partitions=3, connector_overrides=CONNECTOR)
    try:
        pipeline = routed_pipeline(tmp_path)
        with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute("CREATE SCHEMA inventory")
            connection.execute((pipeline / "schema.sql").read_text().encode())
            connection.execute("CREATE TABLE inventory.notes (id bigint PRIMARY KEY, note text)")
            shop = Shop(connection, SEED)
            for _ in range(5):
                shop.order()
            stack.start_connector(TABLES)
            stack.wait_until_streaming()
            with Product(stack, tmp_path / "product") as product:
                product.start_sidecar(*SIDECAR)
                product.start_pipeline(pipeline, "--master", "local[2]", local=product.folder)
                visible = product.watch(pipeline)
                for number in range(120):
                    shop.commit(1 + number % 7)
                wait_until_visible(product, visible, connection, shop)
        certificate = judge(pipeline, stack)
    finally:
        stack.stop()

    assert shop.truncated > 20
    assert certificate.examples == {}
    assert certificate.is_clean
    assert certificate.final_differences == 0
    assert certificate.transactions > 80


def wait_until_visible(
    product: Product, visible: Visibility, connection: psycopg.Connection, shop: Shop
) -> None:
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    last = parse_position(str(row[0])) if row else 0
    shop.order()
    assert product.wait_until(lambda: visible.newest_lsn > last, SECONDS), "\n".join(
        program.last_words() for program in product.programs.values()
    )


def judge(pipeline: Path, stack: DevStack) -> Certificate:
    connections = Connections(bootstrap=stack.kafka.bootstrap, dsn=stack.postgres.dsn())
    return certify(load_specification(pipeline / "certify.toml"), connections, mode=Mode.BOTH)
