"""A pipeline that publishes to tables of a lake, killed around its commits."""

import signal
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from slackwater.outputs.lake.delta import DeltaLake
from slackwater.outputs.lake.iceberg import IcebergLake
from slackwater.outputs.lake.table import Lake
from slackwater.protocol import LakeSettings
from slackwater.protocol.keys import lake_ledger

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Inventory = Any  # of conftest.py
StartPipeline = Callable[..., Any]
SLOW = pytest.mark.slow


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "step"),
    [
        pytest.param("delta", "collected", marks=SLOW),
        pytest.param("delta", "begun", marks=SLOW),
        pytest.param("delta", "produced", marks=SLOW),
        ("delta", "progress"),
        pytest.param("delta", "committed", marks=SLOW),
        pytest.param("iceberg", "collected", marks=SLOW),
        pytest.param("iceberg", "begun", marks=SLOW),
        pytest.param("iceberg", "produced", marks=SLOW),
        pytest.param("iceberg", "progress", marks=pytest.mark.slow),
        pytest.param("iceberg", "committed", marks=SLOW),
    ],
)
def test_a_driver_killed_around_the_commit_leaves_the_view_in_its_table(
    inventory: Inventory, start_pipeline: StartPipeline, tmp_path: Path, kind: str, step: str
) -> None:
    place = lake_settings(kind, tmp_path)
    settings: dict[str, Any] = {"max_events_per_batch": 60, kind: place}
    inventory.run(30)
    killed = start_pipeline(crash=(step, 1), settings=settings, table="s.orders")
    assert killed.await_end() == -signal.SIGKILL
    inventory.run(30)
    run = start_pipeline(settings=settings, table="s.orders")
    assert run.await_end() == 0, run.last
    assert run.batches[0]["batch"] == (2 if step == "committed" else 1)
    lake: Lake = DeltaLake(LakeSettings(**place)) if kind == "delta" else IcebergLake(LakeSettings(**place))
    newest = max(rows(lake, lake_ledger(f"p-{inventory.source}")), key=lambda row: row["batch_id"])
    found = rows(lake, "s.orders", dict(newest["snapshots"])["s.orders"])
    expected = inventory.view()
    assert {row["id"] for row in found} == set(expected)
    for row in found:
        document = expected[row["id"]]
        assert (row["line_count"], row["total"]) == (document["line_count"], Decimal(document["total"]))
        assert len(row["lines"]) == row["line_count"]
        assert sum(line["quantity"] * line["price"] for line in row["lines"]) == row["total"]
    assert newest["commit_lsn"] == inventory.lsn


def lake_settings(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "delta":
        return {"place": str(folder / "lake")}
    catalogue, warehouse = f"sqlite:///{folder / 'catalogue.db'}", f"file://{folder / 'lake'}"
    return {"place": "test", "options": {"type": "sql", "uri": catalogue, "warehouse": warehouse}}


def rows(lake: Lake, name: str, snapshot: int | None = None) -> list[dict[str, Any]]:
    table = lake.table(name)
    head = table.load()
    assert head is not None
    found: list[dict[str, Any]] = table.read(head.id if snapshot is None else snapshot).to_pylist()
    return found
