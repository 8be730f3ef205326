"""A pipeline whose views share a topic, from the database to its readers, killed and started again meanwhile.

Each view is judged by the certifier; then the commands read, follow, compare and reset the output.
"""

import json
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slackwater.cli import main
from slackwater.dev import DevStack
from slackwater.protocol import parse_position
from slackwater_certify import Connections, certify, load_specification
from slackwater_lab.programs import Product
from slackwater_lab.topics import read_to_end
from slackwater_lab.workloads.workload import repository_pipeline

pytestmark = pytest.mark.system

SEED, COMMITS, SECONDS = 5, 60, 900.0
KEYS = {
    "customers": '"customer_id"',
    "orders": '"order_id", "customer_id"',
    "lines": '"line_id", "customer_id"',
}


def change(connection: psycopg.Connection, rng: random.Random) -> None:
    """A transaction in which customers, orders and lines are made, moved and deleted."""
    order, customer, line = rng.randint(1, 9), rng.randint(1, 4), rng.randint(1, 20)
    statements = [
        (
            "INSERT INTO shop.customers VALUES (%s, 'a', 'x') ON CONFLICT (id) DO UPDATE SET name = 'b'",
            (customer,),
        ),
        (
            "INSERT INTO shop.orders VALUES (%s, %s, 'new', now()) ON CONFLICT (id) DO UPDATE "
            "SET customer_id = excluded.customer_id, status = shop.orders.status || '+'",
            (order, customer),
        ),
        (
            "INSERT INTO shop.lines VALUES (%s, %s, 1, 2, 1.50) ON CONFLICT (id) DO UPDATE "
            "SET order_id = excluded.order_id",
            (line, order),
        ),
        ("DELETE FROM shop.lines WHERE id = %s", (rng.randint(1, 20),)),
    ]
    with connection.transaction():
        for statement, parameters in rng.sample(statements, rng.randint(1, 3)):
            connection.execute(statement.encode(), parameters)


def specification(pipeline: Path, view: str) -> Path:
    """The file by which a view is judged, made of the one for orders."""
    text = (pipeline / "certify.toml").read_text()
    text = text.replace('slackwater-view = "orders"', f'slackwater-view = "{view}"')
    text = text.replace("views/orders.sql", f"views/{view}.sql")
    file = pipeline / f"certify_{view}.toml"
    file.write_text(re.sub(r"key = \[.*\]", f"key = [{KEYS[view]}]", text))
    return file


@pytest.mark.slow
def test_each_view_of_a_topic_is_right_though_runs_are_killed(
    dev_stack: Callable[..., DevStack], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.stdout.write(f"seed {SEED}\n")
    rng, pipeline = (
        random.Random(SEED),
        shutil.copytree(repository_pipeline("shop_topic"), tmp_path / "shop_topic"),
    )
    stack = dev_stack(prefix="shop", partitions=3, connector_overrides={})
    try:
        with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute("CREATE SCHEMA shop")
            connection.execute((pipeline / "schema.sql").read_text().encode())
            for _ in range(5):
                change(connection, rng)
            stack.start_connector(("shop.customers", "shop.orders", "shop.lines"))
            stack.wait_until_streaming()
            with Product(stack, tmp_path / "product") as product:
                product.start_sidecar()
                run = product.start_pipeline(pipeline, "--master", "local[2]", local=product.folder)
                visible = product.watch(pipeline)
                for number in range(COMMITS):
                    change(connection, rng)
                    if number == COMMITS // 2:
                        assert product.wait_until(lambda: visible.newest_lsn > 0, SECONDS)
                        run.kill()
                        run.start()
                row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                last = parse_position(str(row[0])) if row else 0
                connection.execute("INSERT INTO shop.customers VALUES (99, 'last', 'x')")
                assert product.wait_until(lambda: visible.newest_lsn > last, SECONDS), run.last_words()
                check_commands(stack.kafka.bootstrap, pipeline, capsys)
        for view in KEYS:
            connections = Connections(bootstrap=stack.kafka.bootstrap, dsn=stack.postgres.dsn())
            certificate = certify(load_specification(specification(pipeline, view)), connections)
            assert certificate.examples == {}, view
            assert certificate.is_clean
            assert certificate.outputs > 5
        check_order(stack.kafka.bootstrap)
    finally:
        stack.stop()


def check_commands(bootstrap: str, pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*arguments: str) -> str:
        capsys.readouterr()
        done = main.run([*arguments, "--bootstrap", bootstrap])
        told = capsys.readouterr()
        assert done == 0, told.err
        return told.out

    found = json.loads(asked("read", str(pipeline), "--json"))["views"]
    assert sorted(found) == ["shop_topic/customers", "shop_topic/lines", "shop_topic/orders"]
    assert "last" in [each["name"] for each in found["shop_topic/customers"]]
    one = json.loads(
        asked("read", str(pipeline), "--views", "customers", "--key", "customer_id=99", "--json")
    )
    assert [each["customer_id"] for each in one["views"]["shop_topic/customers"]] == [99]
    first = asked("tail", "customers", "--from-beginning", "--commits", "1", "--json")
    assert {each["view"] for each in json.loads(first.splitlines()[-1])["documents"]} == {"customers"}
    assert "readers of the topics" in asked("revise", "switch", "shop_topic", "--to", "1")
    assert "shop_topic" in asked("commits", "--pipeline", "shop_topic", "--last", "1")


def check_order(bootstrap: str) -> None:
    """Every partition is in commit order, and in each commit in the order of pipeline.toml."""
    places = {view: number for number, view in enumerate(KEYS)}
    newest: dict[int, tuple[int, int]] = {}
    customers: dict[int, set[int]] = {}
    for message in read_to_end(bootstrap, "shop_topic"):
        headers: dict[str, Any] = dict(message.headers() or ())
        place = int(headers["slackwater-commit-lsn"]), places[headers["slackwater-view"].decode()]
        partition = message.partition() or 0
        assert newest.get(partition, (0, 0)) <= place
        newest[partition] = place
        customers.setdefault(json.loads(message.key() or b"")["customer_id"], set()).add(partition)
    assert len(newest) > 1
    assert all(len(partitions) == 1 for partitions in customers.values())
