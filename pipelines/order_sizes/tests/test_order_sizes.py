"""Both pipelines by themselves, one behind the other: rows in, documents out, no Spark and no Kafka."""

import json
from pathlib import Path
from typing import Any

import pytest

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.payloads import Document, unpack_change
from slackwater.outputs.kafka.debezium import row_encoder
from slackwater.pipeline import PipelineDefinition, load_pipeline
from slackwater_certify import load_specification
from slackwater_certify.view import load_view

FOLDER = Path(__file__).parents[1]
ORDERS, LINES, TOTALS = "inventory.orders", "inventory.order_lines", "public.order_totals"

Row = dict[str, Any]


@pytest.fixture(scope="module")
def first() -> PipelineDefinition:
    return load_pipeline(FOLDER.parent / "order_totals")


@pytest.fixture(scope="module")
def second() -> PipelineDefinition:
    return load_pipeline(FOLDER)


def order(order_id: int) -> bytes:
    numbers = {"line_count": 0, "total": "0.00", "created_at": "2026-01-02T03:04:05.678900Z"}
    return json.dumps({"id": order_id, "customer": "ada", "status": "new", **numbers}).encode()


def line(line_id: int, order_id: int) -> bytes:
    of_line = {"product": "pen", "quantity": 2, "price": "1.25"}
    return json.dumps({"id": line_id, "order_id": order_id, **of_line}).encode()


def handed_on(definition: PipelineDefinition, changes: list[Document]) -> list[ChangeEvent]:
    """What a pipeline that reads the output gets."""
    encode = row_encoder(definition.plan.views[0].outputs)
    events: list[ChangeEvent] = []
    for lsn, _, change in changes:
        before, after = (image and encode(image) for image in unpack_change(change or b""))
        events.append((TOTALS, "c" if before is None else "d" if after is None else "u", lsn, before, after))
    return events


def test_orders_that_get_and_lose_lines_go_from_size_to_size(
    first: PipelineDefinition, second: PipelineDefinition
) -> None:
    changes: list[ChangeEvent] = [
        *((ORDERS, "c", 10, None, order(order_id)) for order_id in (1, 2)),
        (LINES, "c", 20, None, line(7, 1)),
        (LINES, "u", 30, line(7, 1), line(7, 2)),
        (LINES, "c", 30, None, line(8, 2)),
        (LINES, "d", 40, line(7, 2), None),
        (ORDERS, "d", 50, order(1), None),
    ]
    totals = LocalEngine(first.plan, every_commit=True).run(changes)[0]
    sizes = LocalEngine(second.plan, every_commit=True).run(handed_on(first, totals))[0]
    shown: dict[int, Row] = {}
    states: dict[int, dict[int, tuple[int, str]]] = {}
    for lsn, key, change in sizes:
        _, after = unpack_change(change or b"")
        size = json.loads(key)["size"]
        shown.pop(size, None)
        if after is not None:
            shown[size] = json.loads(after)
            assert shown[size]["lines"] == size * shown[size]["orders"]
        states[lsn] = {size: (row["orders"], row["total"]) for size, row in sorted(shown.items())}
    assert states == {
        10: {0: (2, "0.00")},
        20: {0: (1, "0.00"), 1: (1, "2.50")},
        30: {0: (1, "0.00"), 2: (1, "5.00")},
        40: {0: (1, "0.00"), 1: (1, "2.50")},
        50: {1: (1, "2.50")},
    }


def test_the_second_reads_what_the_first_one_writes(
    first: PipelineDefinition, second: PipelineDefinition
) -> None:
    (output,) = first.outputs
    assert (second.source, second.tables) == (output.prefix, (TOTALS,))
    assert output.name == f"{output.prefix}.{TOTALS}"


@pytest.mark.parametrize("name", ["order_totals", "order_sizes"])
def test_the_certifier_judges_both_by_the_database(name: str) -> None:
    specification = load_specification(FOLDER.parent / name)
    assert set(load_view(specification).tables) == {ORDERS, LINES}
    assert specification.source.name == "inv"
    (output,) = load_pipeline(FOLDER.parent / name).outputs
    assert specification.output.name == output.name
