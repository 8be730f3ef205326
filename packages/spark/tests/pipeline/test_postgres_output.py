"""A pipeline that publishes to a real PostgreSQL, killed around its commits."""

import signal
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import sql

from slackwater_devstack import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Inventory = Any  # of conftest.py
StartPipeline = Callable[..., Any]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("collected", marks=pytest.mark.slow),
        pytest.param("produced", marks=pytest.mark.slow),
        pytest.param("progress", marks=pytest.mark.slow),
        "committed",
    ],
)
def test_a_driver_killed_around_the_commit_leaves_the_view_in_its_table(
    inventory: Inventory, start_pipeline: StartPipeline, postgres_server: PostgresServer, step: str
) -> None:
    name = inventory.source.replace("-", "_")
    table = f"public.orders_{name}"
    settings: dict[str, Any] = {"max_events_per_batch": 60, "postgres_url": postgres_server.dsn()}
    inventory.run(30)
    killed = start_pipeline(crash=(step, 1), settings=settings, table=table)
    assert killed.await_end() == -signal.SIGKILL
    inventory.run(30)
    run = start_pipeline(settings=settings, table=table)
    assert run.await_end() == 0, run.last
    assert run.batches[0]["batch"] == (2 if step == "committed" else 1)
    rows = sql.SQL("SELECT id, line_count, total, lines FROM {}").format(sql.Identifier(*table.split(".")))
    with psycopg.connect(postgres_server.dsn()) as database:
        found = {row[0]: row[1:] for row in database.execute(rows)}
        query = "SELECT commit_lsn FROM slackwater.ledger WHERE pipeline = %s"
        ledger = database.execute(query, (f"p-{inventory.source}",)).fetchone()
    expected = inventory.view()
    assert set(found) == set(expected)
    for order_id, (line_count, total, lines) in found.items():
        document = expected[order_id]
        assert (line_count, total) == (document["line_count"], Decimal(document["total"]))
        assert len(lines) == line_count
        assert sum(line["quantity"] * Decimal(line["price"]) for line in lines) == total
    assert ledger == (inventory.lsn,)
