import json
from itertools import islice
from pathlib import Path
from typing import Any

from slackwater_bench.debezium_records import Place, SourceTable, begin_record, end_record, row_renderer
from slackwater_bench.workloads.orders import LINES, ORDERS, OrdersWorkload

RECORDING = Path(__file__).parents[2] / "packages/cdc/tests/recordings/insert_update_delete_key_update.tsv"


def recorded(topic: str, status: str | None = None) -> Any:
    for line in RECORDING.read_text().splitlines():
        fields = line.split("\t")
        value = json.loads(fields[3])
        if fields[0] == topic and (status is None or value["status"] == status):
            return value
    raise AssertionError(topic)


def shape(value: Any) -> Any:
    """Names in their order, and the types of what is not null."""
    if isinstance(value, dict):
        return [(name, shape(child)) for name, child in value.items() if name not in ("before", "after")]
    return type(value).__name__


def test_a_row_has_the_fields_of_a_recorded_one_in_the_same_order() -> None:
    render = row_renderer(SourceTable("dbs", "postgres", "inv", "a"))
    rendered = json.loads(render("u", "null", '{"id":10}', Place(736, 22270232, 2, 1, 1795206861409)))
    original = recorded("dbs.inv.b")
    assert shape(rendered) == shape(original)
    assert rendered["source"]["sequence"].startswith('["')


def test_begin_and_end_have_the_fields_of_recorded_ones() -> None:
    begin = json.loads(begin_record(736, 22270104, 1795206861409)[1])
    assert begin == recorded("dbs.transaction", "BEGIN")
    end = json.loads(end_record(736, 22270488, 1795206861409, {"inv.b": 1, "inv.a": 2})[1])
    assert end == recorded("dbs.transaction", "END")


def test_every_transaction_keeps_the_invariant() -> None:
    orders: dict[int, Any] = {}
    lines: dict[int, Any] = {}
    for changes in islice(OrdersWorkload(orders=20, seed=7).transactions(), 400):
        for change in changes:
            rows = orders if change.table == ORDERS else lines
            assert change.table in (ORDERS, LINES)
            after = json.loads(change.after)
            if after is None:
                del rows[change.id]
            else:
                rows[change.id] = after
        for order in orders.values():
            own = [line for line in lines.values() if line["order_id"] == order["id"]]
            cents = sum(line["quantity"] * round(float(line["price"]) * 100) for line in own)
            assert order["line_count"] == len(own)
            assert round(float(order["total"]) * 100) == cents


def test_a_workload_repeats_itself_for_a_seed() -> None:
    first, second = (list(islice(OrdersWorkload(orders=5, seed=3).transactions(), 50)) for _ in range(2))
    assert first == second
    assert first != list(islice(OrdersWorkload(orders=5, seed=4).transactions(), 50))
