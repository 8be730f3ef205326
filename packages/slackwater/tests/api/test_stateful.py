"""A Python function per key, without Spark: the engine in one process."""

import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from slackwater.api.python_evaluator import KeyFunction, PickledFunction, Rows, ValueFault, encoder
from slackwater.api.stateful_views import FunctionStage, KeyColumns, StatefulOptions
from slackwater.engine.local import LocalEngine
from slackwater.protocol import ConfigError, InputError, SlackwaterError, StateError
from slackwater.sql.plan import EnginePlan
from slackwater.sql.postgres import parse_catalog

SCHEMA = """
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer text NOT NULL, at timestamptz, noise text);
CREATE TABLE s.lines (id bigint PRIMARY KEY, order_id bigint, price numeric(10,2) NOT NULL);
ALTER TABLE s.lines REPLICA IDENTITY FULL;
"""
ORDERS, LINES = "s.orders", "s.lines"
KEY = {ORDERS: "id", LINES: "order_id"}
TOTALS = StructType(
    [
        StructField("customer", StringType(), nullable=False),
        StructField("total", DecimalType(12, 2)),
        StructField("lines", ArrayType(LongType())),
        StructField("at", TimestampType()),
    ]
)
AT = "2026-01-02T03:04:05.678900Z"


def totals(order_id: int, rows: Rows) -> dict[str, Any] | None:
    """The order with the sum of its lines."""
    if not rows[ORDERS]:
        return None
    [order] = rows[ORDERS]
    return {
        "customer": order["customer"],
        "total": sum((line["price"] for line in rows[LINES]), Decimal(0)),
        "lines": [line["id"] for line in rows[LINES]],
        "at": order["at"],
    }


def planned(
    stage: FunctionStage, function: KeyFunction, schema: str = SCHEMA
) -> tuple[EnginePlan, PickledFunction]:
    """The stage over all tables of a schema."""
    catalog = parse_catalog({"schema.sql": schema})
    return stage.plan(function, catalog, [table.full_name for table in catalog.tables])


def engine(
    function: KeyFunction = totals,
    *,
    key: KeyColumns | None = None,
    document: StructType = TOTALS,
    every_commit: bool = False,
    options: StatefulOptions | None = None,
) -> LocalEngine:
    stage = FunctionStage(name="totals", key=key or KEY, document=document, options=options or {})
    plan, pickled = planned(stage, function)
    return LocalEngine(plan, every_commit=every_commit, evaluators=pickled)


def order(lsn: int, order_id: int, customer: str | None = "ada", *, op: str = "c", noise: str = "") -> Any:
    row = {"id": order_id, "customer": customer, "at": AT, "noise": noise}
    old = json.dumps(row).encode()
    return (ORDERS, op, lsn, old, None) if op == "d" else (ORDERS, op, lsn, None, old)


def line(lsn: int, line_id: int, order_id: int | None, price: str, was: int | None = None) -> Any:
    row = {"id": line_id, "order_id": order_id, "price": price}
    before = None if was is None else json.dumps({**row, "order_id": was}).encode()
    return (LINES, "c" if was is None else "u", lsn, before, json.dumps(row).encode())


def documents(found: Mapping[int, Sequence[Any]]) -> list[tuple[int, Any, Any]]:
    return [(lsn, json.loads(k), None if d is None else json.loads(d)) for lsn, k, d in found.get(0, [])]


def test_the_function_sees_all_rows_of_its_key_with_python_s_values() -> None:
    made = engine(
        lambda key, rows: {"seen": repr((key, dict(rows)))},
        document=StructType([StructField("seen", StringType())]),
    )
    [(_, _, document)] = documents(made.run([line(10, 8, 1, "2.50"), line(10, 7, 1, "1.00"), order(10, 1)]))
    at = datetime(2026, 1, 2, 3, 4, 5, 678_900, UTC)
    rows = {
        ORDERS: [{"id": 1, "customer": "ada", "at": at, "noise": ""}],
        LINES: [
            {"id": 7, "order_id": 1, "price": Decimal("1.00")},
            {"id": 8, "order_id": 1, "price": Decimal("2.50")},
        ],
    }
    assert document == {"seen": repr((1, rows))}, "lines by primary key"


def test_documents_come_go_and_stay_silent_when_nothing_of_them_changes() -> None:
    made = engine()
    first = made.run([order(10, 1), line(10, 7, 1, "1.50"), line(20, 8, 1, "2")])
    document = {"customer": "ada", "total": "3.50", "lines": [7, 8], "at": AT}
    assert documents(first) == [(20, {"id": 1}, document)]
    assert documents(made.run([order(30, 1, op="u", noise="x")])) == [], "the document is the same"
    moved = documents(made.run([order(40, 2, "bob"), line(40, 8, 2, "2", was=1)]))
    assert {key["id"]: d["total"] for _, key, d in moved} == {1: "1.50", 2: "2.00"}
    assert documents(made.run([order(50, 1, op="d")])) == [(50, {"id": 1}, None)]


def test_every_commit_that_changes_a_document_gives_one() -> None:
    made = engine(every_commit=True)
    found = documents(
        made.run([order(10, 1), line(20, 7, 1, "1"), line(30, 8, 1, "1"), order(40, 1, op="d")])
    )
    assert [(lsn, d and d["lines"]) for lsn, _, d in found] == [(10, []), (20, [7]), (30, [7, 8]), (40, None)]


@pytest.mark.parametrize("seed", range(20))
def test_documents_are_the_function_of_the_rows_at_each_commit_in_any_batching(seed: int) -> None:
    """Fails when versions of rows are given to the wrong commits, or a lost index is not rebuilt."""
    chance = random.Random(seed)
    orders: dict[int, str] = {}
    lines: dict[int, tuple[int, str]] = {}
    made, latest = engine(every_commit=True), engine()
    known: dict[int, Any] = {}
    batch: list[Any] = []
    expected: list[tuple[int, int, Any]] = []
    shown: dict[int, Any] = {}
    for lsn in range(10, 400, 10):
        before = dict(known)
        count = chance.randint(1, 3)
        batch += [_random_change(chance, lsn, orders, lines) for _ in range(count)]
        for key in {*orders, *before, *(of for of, _ in lines.values())}:
            now = _expected(key, orders, lines)
            if now != known.get(key):
                expected.append((lsn, key, now))
                known[key] = now
        if chance.random() < 0.4 or lsn == 390:
            found = [(lsn, key["id"], d) for lsn, key, d in documents(made.run(batch))]
            assert sorted(found, key=str) == sorted(expected, key=str)
            for _, latest_key, document in documents(latest.run(batch)):
                shown[latest_key["id"]] = document
            assert {k: d for k, d in shown.items() if d} == {k: d for k, d in known.items() if d}
            batch, expected = [], []
            for bucket in range(3):
                made.lose_index(1, bucket)


def _random_change(
    chance: random.Random, lsn: int, orders: dict[int, str], lines: dict[int, tuple[int, str]]
) -> Any:
    number = chance.randint(1, 4)
    if chance.random() < 0.4:
        if number in orders and chance.random() < 0.4:
            return order(lsn, number, orders.pop(number), op="d")
        op = "u" if number in orders else "c"
        orders[number] = f"c{chance.randint(1, 3)}"
        return order(lsn, number, orders[number], op=op)
    line_id, price = chance.randint(1, 6), f"{chance.randint(0, 9)}.10"
    was = lines[line_id][0] if line_id in lines else None
    lines[line_id] = (number, price)
    return line(lsn, line_id, number, price, was=was)


def _expected(key: int, orders: dict[int, str], lines: dict[int, tuple[int, str]]) -> Any:
    if key not in orders:
        return None
    mine = {line_id: price for line_id, (of, price) in lines.items() if of == key}
    total = sum(map(Decimal, mine.values()), Decimal("0.00"))
    return {"customer": orders[key], "total": str(total), "lines": sorted(mine), "at": AT}


def test_an_error_in_the_function_names_key_commit_and_line() -> None:
    def divide(key: int, rows: Rows) -> dict[str, Any]:
        return {"customer": str(1 // len(rows[ORDERS])), "total": None, "lines": None, "at": None}

    with pytest.raises(InputError) as caught:
        engine(divide, every_commit=True).run([order(10, 1), line(10, 7, 1, "1"), order(20, 1, op="d")])
    told = str(caught.value)
    assert "'totals' failed for key {\"id\":1} at commit LSN 20: ZeroDivisionError" in told
    assert "test_stateful.py, line" in told
    assert "in divide: return" in told
    with pytest.raises(InputError, match="at commit LSN 20"):
        engine(divide).run([order(10, 1), line(10, 7, 1, "1"), order(20, 1, op="d")])


def test_a_document_of_another_type_names_field_key_and_commit() -> None:
    def wrong(key: int, rows: Rows) -> dict[str, Any]:
        return {"customer": "ada", "total": Decimal("1.234"), "lines": [1], "at": None}

    with pytest.raises(InputError, match=r"'total'.*key \{\"id\":1\} at commit LSN 10.*2 after the point"):
        engine(wrong).run([order(10, 1)])


def test_a_value_that_python_cannot_hold_names_its_column_and_may_be_read_as_text() -> None:
    infinite = (ORDERS, "c", 10, None, b'{"id":1,"customer":"x","at":"infinity","noise":""}')
    with pytest.raises(InputError, match=r"column at .* of s\.orders contains infinity.*as_text"):
        engine().run([infinite])

    document = StructType([StructField("at", StringType())])
    made = engine(
        lambda key, rows: {"at": rows[ORDERS][0]["at"]},
        document=document,
        options={"as_text": {ORDERS: ["at"]}},
    )
    assert documents(made.run([infinite])) == [(10, {"id": 1}, {"at": "infinity"})]


@pytest.mark.parametrize(
    ("wire", "shown"), [(86_399_999_999, "datetime.time(23, 59, 59, 999999)"), (86_400_000_000, None)]
)
def test_times_of_day_are_python_s(wire: int, shown: str | None) -> None:
    schema = "CREATE TABLE s.t (id bigint PRIMARY KEY, at time);"
    document = StructType([StructField("at", StringType())])
    stage = FunctionStage(name="times", key="id", document=document)
    plan, pickled = planned(stage, lambda key, rows: {"at": repr(rows["s.t"][0]["at"])}, schema)
    made = LocalEngine(plan, evaluators=pickled)
    row = ("s.t", "c", 10, None, json.dumps({"id": 1, "at": wire}).encode())
    if shown is None:
        with pytest.raises(InputError, match="contains 24:00:00, which Python's time cannot represent"):
            made.run([row])
        return
    assert documents(made.run([row])) == [(10, {"id": 1}, {"at": shown})]


def test_changes_of_columns_that_are_not_kept_do_not_call_the_function() -> None:
    def fail_on_noise(key: int, rows: Rows) -> dict[str, Any]:
        assert "noise" not in rows[ORDERS][0]
        return {"customer": "x", "total": None, "lines": None, "at": None}

    made = engine(fail_on_noise, options={"columns": {ORDERS: ["customer", "at"]}})
    assert len(documents(made.run([order(10, 1)]))) == 1


def test_rows_without_a_key_belong_to_nobody() -> None:
    assert documents(engine().run([line(10, 7, None, "1")])) == []


def test_state_of_another_version_is_refused() -> None:
    made = engine()
    made.run([order(10, 1)])
    other = engine(options={"version": "2"})
    other.store = made.store
    with pytest.raises(StateError, match="other stages"):
        other.return_to(made.state)


@pytest.mark.parametrize(
    ("key", "schema", "options", "told"),
    [
        ("id", "CREATE TABLE s.t (id bigint);", {}, "has no primary key"),
        ("n", "CREATE TABLE s.t (id bigint PRIMARY KEY, n int);", {}, "REPLICA IDENTITY FULL"),
        ("m", "CREATE TABLE s.t (id bigint PRIMARY KEY);", {}, "the columns are id"),
        ("at", "CREATE TABLE s.t (at date PRIMARY KEY);", {}, "a key must be smallint"),
        ([], SCHEMA, {}, "at least one table"),
        ({"s.orders": "id", "s.lines": ["id", "order_id"]}, SCHEMA, {}, "the same number of columns"),
        ({"s.orders": "customer", "s.lines": "order_id"}, SCHEMA, {}, "REPLICA IDENTITY FULL"),
        ({"s.orders": "id"}, SCHEMA, {"columns": {"s.orders": ["x"]}}, "supported: id, customer"),
        ({"s.orders": "id"}, SCHEMA, {"as_text": {"s.orders": ["x"]}}, "the kept columns are id"),
        ({"s.orders": "id"}, SCHEMA, {"key_names": ["a", "b"]}, "a different name for each"),
        ({"s.other": "id"}, SCHEMA, {}, "known tables: s.orders, s.lines"),
        (
            {"s.orders": "id"},
            SCHEMA,
            {"colums": {}},
            "colums is not an option; the options are as_text, buckets",
        ),
        ({"s.orders": "id"}, SCHEMA, {"emit": "all"}, "emit is 'all'; expected 'latest'"),
        ({"s.orders": "id"}, SCHEMA, {"buckets": 0}, "buckets is 0; expected a positive number"),
    ],
)
def test_arguments_that_make_no_stage_are_refused(
    key: KeyColumns, schema: str, options: StatefulOptions, told: str
) -> None:
    with pytest.raises(SlackwaterError, match=told):
        planned(FunctionStage(name="totals", key=key, document=TOTALS, options=options), totals, schema)


def test_keys_of_unlike_types_are_refused() -> None:
    schema = "CREATE TABLE s.a (id bigint PRIMARY KEY); CREATE TABLE s.b (id text PRIMARY KEY);"
    with pytest.raises(ConfigError, match=r"has id of type bigint and s\.b\.id of text"):
        planned(FunctionStage(name="totals", key="id", document=TOTALS), totals, schema)


@pytest.mark.parametrize(
    ("data_type", "value", "json_text"),
    [
        (LongType(), 2**63 - 1, "9223372036854775807"),
        (DecimalType(4, 2), Decimal("-0"), '"0.00"'),
        (DecimalType(38, 0), 10**38 - 1, f'"{10**38 - 1}"'),
        (DoubleType(), float("nan"), '"NaN"'),
        (BinaryType(), b"\xde\xad", '"3q0="'),
        (BooleanType(), True, "true"),
        (ArrayType(StringType()), ("a", None), '["a",null]'),
        (MapType(StringType(), LongType()), {"b": 1, "a": None}, '{"a":null,"b":1}'),
    ],
)
def test_values_are_written_as_views_write_theirs(data_type: Any, value: object, json_text: str) -> None:
    encode = encoder(StructType([StructField("x", data_type)]))
    assert msgspec.json.encode(encode({"x": value})).decode() == f'{{"x":{json_text}}}'


@pytest.mark.parametrize(
    ("data_type", "value", "told"),
    [
        (LongType(), True, "an integer of 64 bits, got True"),
        (LongType(), 2**63, "an integer of 64 bits"),
        (LongType(), 1.0, "an integer"),
        (DecimalType(4, 2), 1.5, "a Decimal"),
        (DecimalType(4, 2), Decimal(100), "at most 2 digits before"),
        (DecimalType(4, 2), Decimal("NaN"), "a Decimal"),
        (StringType(), 1, "text"),
        (DateType(), datetime(2026, 1, 1, tzinfo=UTC), "a date"),
        (TimestampType(), datetime(2026, 1, 1), "with time zone"),  # noqa: DTZ001 - that is the point
        (ArrayType(LongType(), containsNull=False), [None], "NOT NULL"),
        (StructType([StructField("y", LongType())]), {"z": 1}, "missing fields: y; unknown fields: z"),
    ],
)
def test_values_of_other_types_are_refused(data_type: Any, value: object, told: str) -> None:
    with pytest.raises(ValueFault, match=told) as caught:
        encoder(StructType([StructField("x", data_type)]))({"x": value})
    assert caught.value.path[0] == "x"


def test_types_that_documents_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot contain values of type map<bigint,string>"):
        encoder(MapType(LongType(), StringType()))
