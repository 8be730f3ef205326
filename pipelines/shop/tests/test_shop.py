"""The views by themselves: changes in, documents out, no Spark and no Kafka; DuckDB says what is right."""

import json
import random
from copy import deepcopy
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.payloads import Document
from slackwater.pipeline import PipelineDefinition, load_pipeline
from slackwater_certify import load_specification
from slackwater_certify.view import load_view

FOLDER = Path(__file__).parents[1]
CUSTOMERS, PRODUCTS, ORDERS, LINES = "shop.customers", "shop.products", "shop.orders", "shop.lines"
VIEWS = ("order_details", "customer_totals", "product_sales")
AT = "2026-01-02T03:04:%02d.000000Z"

Row = dict[str, Any]
State = dict[str, dict[int, Row]]


@pytest.fixture(scope="module")
def definition() -> PipelineDefinition:
    return load_pipeline(FOLDER)


@pytest.fixture(scope="module")
def engine(definition: PipelineDefinition) -> LocalEngine:
    return LocalEngine(definition.plan, every_commit=True)


class Shop:
    """Random business, transaction by transaction."""

    def __init__(self, seed: int) -> None:
        self.state: State = {CUSTOMERS: {}, PRODUCTS: {}, ORDERS: {}, LINES: {}}
        self._random = random.Random(seed)
        self._lsn = self._id = 0
        self._changes: list[ChangeEvent] = []

    def transaction(self) -> list[ChangeEvent]:
        self._lsn += 10
        for _ in range(self._random.randint(1, 4)):
            self._random.choice((self._customer, self._product, self._order, self._line, self._line))()
            if self._random.random() < 0.15:
                self._delete(self._random.choice((CUSTOMERS, PRODUCTS, ORDERS, LINES)))
        changes, self._changes = self._changes, []
        return changes

    def _customer(self) -> None:
        self._put(CUSTOMERS, {"name": self._word(), "country": self._word()})

    def _product(self) -> None:
        self._put(PRODUCTS, {"name": self._word(), "category": self._word()})

    def _order(self) -> None:
        status = self._random.choice(("new", "paid", "cancelled"))
        placed_at = AT % self._random.randint(0, 59)
        self._put(ORDERS, {"customer_id": self._any(), "status": status, "placed_at": placed_at})

    def _line(self) -> None:
        amounts = {"quantity": self._random.randint(1, 3), "price": f"{self._random.randint(1, 9)}.25"}
        self._put(LINES, {"order_id": self._any(), "product_id": self._any(), **amounts})

    def _put(self, table: str, values: Row) -> None:
        rows = self.state[table]
        self._id += 1
        old = self._random.choice(list(rows.values())) if rows and self._random.random() < 0.5 else None
        row = {"id": self._any() if old is None else old["id"], **values}
        old = rows.get(row["id"])
        rows[row["id"]] = row
        self._changes.append((table, "c" if old is None else "u", self._lsn, packed(old), packed(row)))

    def _delete(self, table: str) -> None:
        rows = self.state[table]
        if rows:
            old = rows.pop(self._random.choice(list(rows)))
            self._changes.append((table, "d", self._lsn, packed(old), None))

    def _any(self) -> int:
        return self._random.randint(1, 4)

    def _word(self) -> str:
        return self._random.choice(("ada", "bob", "cyd"))


def packed(row: Row | None) -> bytes | None:
    return None if row is None else json.dumps(row).encode()


class Reference:
    """Answers of plain DuckDB; a view that others read is a view there, too."""

    def __init__(self) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'; CREATE SCHEMA shop;")
        self._connection.execute((FOLDER / "schema.sql").read_text().partition("-- A line")[0])
        for name in VIEWS:
            text = (FOLDER / "views" / f"{name}.sql").read_text().replace("TRANSACTIONALLY", "")
            text = text.replace("GROUP BY o.id", "GROUP BY ALL")
            self._connection.execute(f"CREATE VIEW {name} AS {text}")

    def answers(self, state: State) -> dict[str, dict[int, Any]]:
        """What each view's SELECT gives on these rows."""
        for table, rows in state.items():
            self._connection.execute(f"DELETE FROM {table}")  # noqa: S608 - names of this module
            for row in rows.values():
                marks = ",".join("?" * len(row))
                insert = f"INSERT INTO {table} ({','.join(row)}) VALUES ({marks})"  # noqa: S608 - as above
                self._connection.execute(insert, list(row.values()))
        return {name: self._documents(name) for name in VIEWS}

    def _documents(self, view: str) -> dict[int, Any]:
        found = self._connection.execute(f"SELECT to_json(v) FROM {view} v").fetchall()  # noqa: S608 - as above
        documents = [json.loads(text) for (text,) in found]
        return {document["id"]: comparable(document) for document in documents}


def comparable(value: Any, name: str = "") -> Any:
    """Numbers by value: documents hold decimals as texts. Times by their text up to seconds."""
    if isinstance(value, dict):
        return {key: comparable(child, key) for key, child in value.items()}
    if isinstance(value, list):
        return [comparable(child) for child in value]
    if name.endswith("_at"):
        return value and str(value).replace(" ", "T")[:19]
    try:
        return Decimal(str(value))
    except ArithmeticError:
        return value


@pytest.mark.parametrize("seed", range(2))
def test_after_every_transaction_every_view_is_what_its_select_answers(
    definition: PipelineDefinition, engine: LocalEngine, seed: int
) -> None:
    engine.reset()
    shop, reference = Shop(seed), Reference()
    names = [view.name for view in definition.plan.views]
    shown: dict[str, dict[int, Any]] = {name: {} for name in names}
    most = dict.fromkeys(names, 0)
    for _ in range(5):
        commits = [(shop.transaction(), deepcopy(shop.state)) for _ in range(6)]
        found = engine.run([change for changes, _ in commits for change in changes])
        for changes, state in commits:
            for number, documents in found.items():
                show(shown[names[number]], [d for d in documents if d[0] == changes[0][2]])
            assert shown == reference.answers(state)
            most = {name: max(most[name], len(shown[name])) for name in names}
    assert all(most.values()), "the test has seen nothing"


def show(view: dict[int, Any], documents: list[Document]) -> None:
    """Applies what is published at one commit."""
    for _, key, document in documents:
        row_id = json.loads(key)["id"]
        view.pop(row_id, None)
        if document is not None:
            view[row_id] = comparable(json.loads(document))


def test_a_view_that_reads_another_one_shows_both_at_the_same_commit(
    definition: PipelineDefinition, engine: LocalEngine
) -> None:
    engine.reset()
    order = {"id": 7, "customer_id": 1, "status": "new", "placed_at": AT % 1}
    line = {"id": 9, "order_id": 7, "product_id": 3, "quantity": 2, "price": "1.50"}
    ada = {"id": 1, "name": "ada", "country": "uk"}
    changes: list[ChangeEvent] = [
        (CUSTOMERS, "c", 10, None, packed(ada)),
        (ORDERS, "c", 10, None, packed(order)),
        (LINES, "c", 10, None, packed(line)),
        (LINES, "u", 20, packed(line), packed({**line, "quantity": 3})),
    ]
    names = [view.name for view in definition.plan.views]
    found = {names[number]: documents for number, documents in engine.run(changes).items()}
    totals = [(lsn, json.loads(d or b"null")["total"]) for lsn, _, d in found["order_details"]]
    spent = [(lsn, json.loads(d or b"null")["spent"]) for lsn, _, d in found["customer_totals"]]
    assert totals == spent == [(10, "3.00"), (20, "4.50")]


def test_a_cancelled_order_is_no_part_of_its_customers_total(
    definition: PipelineDefinition, engine: LocalEngine
) -> None:
    engine.reset()
    order = {"id": 7, "customer_id": 1, "status": "cancelled", "placed_at": AT % 1}
    ada = {"id": 1, "name": "ada", "country": "uk"}
    changes: list[ChangeEvent] = [
        (CUSTOMERS, "c", 10, None, packed(ada)),
        (ORDERS, "c", 10, None, packed(order)),
    ]
    names = [view.name for view in definition.plan.views]
    found = {names[number]: documents for number, documents in engine.run(changes).items() if documents}
    assert set(found) == {"order_details"}


def test_the_certifier_takes_the_output_it_is_said_to_judge(definition: PipelineDefinition) -> None:
    specification = load_specification(FOLDER)
    assert set(load_view(specification).tables) == {ORDERS, LINES}
    assert specification.output.name in {output.name for output in definition.outputs}
    assert specification.source.name == definition.source
