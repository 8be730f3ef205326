"""A pipeline that publishes to tables of a lake, killed around its commits."""

import signal
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Inventory = Any  # of conftest.py
StartPipeline = Callable[..., Any]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("collected", marks=pytest.mark.slow),
        pytest.param("begun", marks=pytest.mark.slow),
        pytest.param("produced", marks=pytest.mark.slow),
        "progress",
        pytest.param("committed", marks=pytest.mark.slow),
    ],
)
def test_a_driver_killed_around_the_commit_leaves_the_view_in_its_table(
    inventory: Inventory, start_pipeline: StartPipeline, tmp_path: Path, step: str
) -> None:
    lake = tmp_path / "lake"
    settings: dict[str, Any] = {"max_events_per_batch": 60, "delta": str(lake)}
    inventory.run(30)
    killed = start_pipeline(crash=(step, 1), settings=settings, table="s.orders")
    assert killed.await_end() == -signal.SIGKILL
    inventory.run(30)
    run = start_pipeline(settings=settings, table="s.orders")
    assert run.await_end() == 0, run.last
    assert run.batches[0]["batch"] == (2 if step == "committed" else 1)
    (folder,) = (lake / "slackwater").iterdir()
    newest = max(DeltaTable(str(folder)).to_pyarrow_table().to_pylist(), key=lambda row: row["batch_id"])
    version = dict(newest["snapshots"])["s.orders"]
    found = DeltaTable(str(lake / "s" / "orders"), version=version).to_pyarrow_table().to_pylist()
    expected = inventory.view()
    assert {row["id"] for row in found} == set(expected)
    for row in found:
        document = expected[row["id"]]
        assert (row["line_count"], row["total"]) == (document["line_count"], Decimal(document["total"]))
        assert len(row["lines"]) == row["line_count"]
        assert sum(line["quantity"] * line["price"] for line in row["lines"]) == row["total"]
    assert newest["commit_lsn"] == inventory.lsn
