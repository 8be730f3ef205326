"""A pipeline that publishes to a real PostgreSQL, killed around its commits, and judged by the certifier."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from slackwater_certify import Connections, certify, load_specification
from slackwater_certify.specification import OutputKind
from slackwater_devstack import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Inventory = Any  # of conftest.py
StartPipeline = Callable[..., Any]
ORDERS_PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("collected", marks=pytest.mark.slow),
        pytest.param("produced", marks=pytest.mark.slow),
        pytest.param("progress", marks=pytest.mark.slow),
        "committed",
    ],
)
def test_a_driver_killed_around_the_commit_leaves_a_table_that_is_certified(
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
    rows = sql.SQL("SELECT id FROM {}").format(sql.Identifier(*table.split(".")))
    with psycopg.connect(postgres_server.dsn()) as database:
        ids = {row[0] for row in database.execute(rows)}
        query = "SELECT commit_lsn FROM slackwater.ledger WHERE pipeline = %s"
        ledger = database.execute(query, (f"p-{inventory.source}",)).fetchone()
    assert ids == set(inventory.view())
    assert ledger == (inventory.lsn,)
    found = load_specification(ORDERS_PIPELINE)
    specification = replace(
        found,
        output=replace(found.output, kind=OutputKind.POSTGRES, name=table, commits=None, lsn_header=None),
        source=replace(found.source, name=inventory.source),
    )
    connections = Connections(bootstrap=inventory.bootstrap, output_dsn=postgres_server.dsn())
    certificate = certify(specification, connections)
    assert certificate.is_clean, certificate.to_json()
