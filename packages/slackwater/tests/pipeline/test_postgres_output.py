"""A pipeline that publishes to a real PostgreSQL, killed around its commits."""

import signal
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import sql

from slackwater.dev import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Inventory = Any  # of conftest.py
StartPipeline = Callable[..., Any]


OVERLAPPING = sql.SQL(
    "SELECT * FROM (SELECT valid_to_lsn, lead(valid_from_lsn) OVER (PARTITION BY id ORDER BY valid_from_lsn)"
    " AS next FROM {}) v WHERE valid_to_lsn > next OR (valid_to_lsn IS NULL AND next IS NOT NULL)"
)
"""Versions that are not over when the next one begins."""


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("collected", marks=pytest.mark.slow),
        pytest.param("produced", marks=pytest.mark.slow),
        pytest.param("progress", marks=pytest.mark.slow),
        pytest.param("committed", marks=pytest.mark.slow),
    ],
)
def test_a_driver_killed_around_the_commit_leaves_the_view_in_its_table(
    inventory: Inventory, start_pipeline: StartPipeline, postgres_server: PostgresServer, step: str
) -> None:
    name = inventory.source.replace("-", "_")
    table = f"public.orders_{name}"
    settings: dict[str, Any] = {"max_events_per_batch": 60, "postgres_url": postgres_server.dsn()}
    inventory.run(30)
    order: dict[str, Any] = {"settings": settings, "table": table, "emit": "transactions"}
    killed = start_pipeline(crash=(step, 1), **order)
    assert killed.await_end() == -signal.SIGKILL
    inventory.run(30)
    run = start_pipeline(**order)
    assert run.await_end() == 0, run.last
    assert run.batches[0]["batch"] == (2 if step == "committed" else 1)
    rows_of = sql.SQL("SELECT id, line_count, total, lines FROM {}")
    with psycopg.connect(postgres_server.dsn()) as database:
        rows = rows_of.format(sql.Identifier(*table.split(".")))
        found = {row[0]: row[1:] for row in database.execute(rows)}
        query = "SELECT commit_lsn FROM slackwater.ledger WHERE pipeline = %s"
        ledger = database.execute(query, (f"p-{inventory.source}",)).fetchone()
        history = sql.Identifier("public", f"orders_{name}_history")
        versions = rows_of.format(history) + sql.SQL(" WHERE valid_to_lsn IS NULL")
        current = {row[0]: row[1:] for row in database.execute(versions)}
        overlapping = database.execute(OVERLAPPING.format(history)).fetchall()
    expected = inventory.view()
    assert set(found) == set(expected)
    for order_id, (line_count, total, lines) in found.items():
        document = expected[order_id]
        assert (line_count, total) == (document["line_count"], Decimal(document["total"]))
        assert len(lines) == line_count
        assert sum(line["quantity"] * Decimal(line["price"]) for line in lines) == total
    assert ledger == (inventory.lsn,)
    assert current == found
    assert overlapping == []
