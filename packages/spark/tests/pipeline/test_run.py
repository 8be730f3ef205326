"""Whole runs over real Kafka and Redis in processes of their own; the test plays connector and sidecar."""

import json
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Inventory = Any  # these three are of conftest.py
Output = Any
StartPipeline = Callable[..., Any]


def final_state(records: Iterable[tuple[int, int, bytes, bytes | None]]) -> dict[int, Any]:
    """The newest document of each key."""
    state: dict[int, Any] = {}
    for _, _, key, value in records:
        order_id = json.loads(key)["id"]
        state.pop(order_id, None)
        if value is not None:
            state[order_id] = json.loads(value)
    return state


def is_torn(document: dict[str, Any]) -> bool:
    total = sum((line["quantity"] * Decimal(line["price"]) for line in document["lines"]), Decimal(0))
    return document["line_count"] != len(document["lines"]) or Decimal(document["total"]) != total


def assert_view(inventory: Inventory, output: Output) -> None:
    """Final state as in the database, no document torn, none written twice for one commit."""
    records = output.records(f"out-{inventory.source}")
    assert as_numbers(final_state(records)) == as_numbers(inventory.view())
    assert [record for record in records if record[3] is not None and is_torn(json.loads(record[3]))] == []
    assert len({(lsn, key) for lsn, _, key, _ in records}) == len(records)
    assert len({partition for _, partition, _, _ in records}) > 1


def as_numbers(state: dict[int, Any]) -> dict[int, Any]:
    """Decimals compare by value, whatever their spelling in JSON."""
    return {
        order_id: {
            **{name: value for name, value in document.items() if name != "created_at"},
            "total": Decimal(document["total"]),
            "lines": [{**line, "price": Decimal(line["price"])} for line in document["lines"]],
        }
        for order_id, document in state.items()
    }


@pytest.mark.parametrize("emit", ["latest", "transactions"])
def test_the_output_is_the_view_of_the_database(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, emit: str
) -> None:
    inventory.run(120)
    run = start_pipeline(emit=emit)
    assert run.await_end() == 0, run.last
    assert_view(inventory, output)
    assert sum(batch["events"] for batch in run.batches) == inventory.events
