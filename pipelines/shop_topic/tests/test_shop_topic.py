"""The views by themselves: changes in, documents out, no Spark and no Kafka; DuckDB says what is right."""

import json
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.pipeline import PipelineDefinition, load_pipeline
from slackwater_certify import load_specification

FOLDER = Path(__file__).parents[1]
CUSTOMERS, ORDERS, LINES = "shop.customers", "shop.orders", "shop.lines"
KEYS = {
    "customers": ["customer_id"],
    "orders": ["order_id", "customer_id"],
    "lines": ["line_id", "customer_id"],
}
AT = "2026-01-02T03:04:05.000000Z"
STEPS = 25

Row = dict[str, Any]


@pytest.fixture(scope="module")
def definition() -> PipelineDefinition:
    return load_pipeline(FOLDER)


class Shop:
    """Random business: customers, orders that move from one to another, and lines that move, too."""

    def __init__(self, seed: int) -> None:
        self.rows: dict[str, dict[int, Row]] = {CUSTOMERS: {}, ORDERS: {}, LINES: {}}
        self._random, self.lsn = random.Random(seed), 0

    def transaction(self) -> list[ChangeEvent]:
        self.lsn += 10
        return [self._change() for _ in range(self._random.randint(1, 4))]

    def _change(self) -> ChangeEvent:
        pick = self._random.choice
        table, number = pick((CUSTOMERS, ORDERS, LINES)), pick(range(1, 5))
        rows: dict[str, Row] = {
            CUSTOMERS: {"id": number, "name": pick("ab"), "country": pick("xy")},
            ORDERS: {"id": number, "customer_id": pick((1, 2)), "status": pick("no"), "placed_at": AT},
            LINES: {
                "id": number,
                "order_id": pick((1, 2)),
                "product_id": 1,
                "quantity": pick((1, 2)),
                "price": "1.25",
            },
        }
        new: Row | None = rows[table]
        old = self.rows[table].pop(number, None)
        if old is not None and self._random.random() < 0.2:
            new = None
        if new is not None:
            self.rows[table][number] = new
        op = "c" if old is None else "u" if new is not None else "d"
        return table, op, self.lsn, packed(old), packed(new)


def packed(row: Row | None) -> bytes | None:
    return None if row is None else json.dumps(row).encode()


class Reference:
    """Answers of plain DuckDB."""

    def __init__(self) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'; CREATE SCHEMA shop;")
        self._connection.execute((FOLDER / "schema.sql").read_text().partition("-- A line")[0])

    def answers(self, state: dict[str, dict[int, Row]]) -> dict[str, dict[str, Any]]:
        for table, rows in state.items():
            self._connection.execute(f"DELETE FROM {table}")  # noqa: S608 - names of this module
            for row in rows.values():
                marks = ",".join("?" * len(row))
                insert = f"INSERT INTO {table} ({','.join(row)}) VALUES ({marks})"  # noqa: S608 - as above
                self._connection.execute(insert, list(row.values()))
        return {view: self._documents(view) for view in KEYS}

    def _documents(self, view: str) -> dict[str, Any]:
        text = (FOLDER / "views" / f"{view}.sql").read_text().replace("TRANSACTIONALLY", "")
        text = text.replace("GROUP BY o.id", "GROUP BY ALL")
        found = self._connection.execute(f"SELECT to_json(v) FROM ({text}) v").fetchall()  # noqa: S608 - as above
        documents = [json.loads(each) for (each,) in found]
        return {json.dumps([d[name] for name in KEYS[view]]): comparable(d) for d in documents}


def comparable(document: Row) -> Row:
    return {name: float(value) if name in ("price", "total") else value for name, value in document.items()}


@pytest.mark.parametrize("every_commit", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_the_documents_under_every_key_are_what_the_select_answers(
    definition: PipelineDefinition, seed: int, every_commit: bool
) -> None:
    """Also when an order moves to another customer: nothing remains under its former key."""
    shop, reference, engine = Shop(seed), Reference(), LocalEngine(definition.plan, every_commit=every_commit)
    names, moved = [view.name for view in definition.plan.views], 0
    shown: dict[str, dict[str, Any]] = {name: {} for name in names}
    for _ in range(STEPS):
        for number, documents in engine.run(shop.transaction()).items():
            for _, key, document in documents:
                columns = json.loads(key)
                assert list(columns) == KEYS[names[number]]
                place = json.dumps(list(columns.values()))
                if document is None:
                    moved += names[number] == "orders"
                    shown[names[number]].pop(place, None)
                else:
                    shown[names[number]][place] = comparable(json.loads(document))
        assert shown == reference.answers(shop.rows)
    assert moved, "no order moved"


def test_all_views_are_in_one_topic_and_parents_come_first(definition: PipelineDefinition) -> None:
    assert {output.name for output in definition.outputs} == {"shop_topic"}
    ordered = sorted(definition.outputs, key=lambda output: output.place)
    assert [output.view for output in ordered] == ["customers", "orders", "lines"]


def test_the_certifier_takes_the_output_it_is_said_to_judge(definition: PipelineDefinition) -> None:
    specification = load_specification(FOLDER)
    assert specification.output.name == definition.outputs[0].name
    assert specification.output.only == {"slackwater-view": "orders"}
