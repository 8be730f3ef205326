"""Statements of stages over rows."""

import json
import pickle
import resource
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations

import msgspec
import pytest

from slackwater.sql.catalog import Catalog
from slackwater.sql.errors import EvaluationError
from slackwater.sql.limits import StatementLimits
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.stage_evaluation import OPEN_LSN, ResultPoints, RowsEvaluator, RowVersions

SQL = """SELECT TRANSACTIONALLY o.id, o.customer, o.line_count, o.total,
  list({'id': l.id, 'product': l.product, 'quantity': l.quantity, 'price': l.price} ORDER BY l.id)
    FILTER (l.id IS NOT NULL) AS lines
FROM orders o LEFT JOIN order_lines l ON l.order_id = o.id
GROUP BY o.id"""
CODES = "SELECT TRANSACTIONALLY o.id, o.status::INTEGER AS code FROM orders o"


LiveDocuments = Callable[[EnginePlan, Mapping[str, Sequence[bytes]]], list[bytes]]


def line(line_id: int, product: str | None, quantity: int, price: str | None) -> bytes:
    row = {"id": line_id, "order_id": 1, "product": product, "quantity": quantity, "price": price}
    return json.dumps(row).encode()


def test_a_document_has_the_columns_in_select_order_without_spaces(
    catalog: Catalog, live_documents: LiveDocuments
) -> None:
    order = b'{"id":1,"customer":"Ada","line_count":2,"total":"12.50"}'
    lines = [line(8, "nut", 1, None), line(7, None, 2, "1.00")]

    documents = live_documents(compile_pipeline([("v.sql", SQL)], catalog), {"o": [order], "l": lines})

    assert documents == [
        b'{"id":1,"customer":"Ada","line_count":2,"total":"12.50","lines":'
        b'[{"id":7,"product":null,"quantity":2,"price":"1.00"},'
        b'{"id":8,"product":"nut","quantity":1,"price":null}]}'
    ]


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("list(l.product)", ["c", "a", "b"]),
        ("array_agg(l.product) FILTER (l.quantity > 1)", ["a", "b"]),
        ("string_agg(upper(concat(l.product, ')')), ',')", "C),A),B)"),
        ("first(l.product)", "c"),
        ("arg_max(l.product, l.price)", "a"),
        ("list(l.product ORDER BY l.product)", ["a", "b", "c"]),
        ("list(DISTINCT l.quantity ORDER BY l.quantity)", [1, 2]),
    ],
)
def test_the_order_of_rows_never_reaches_a_document(
    aggregate: str, expected: object, catalog: Catalog, live_documents: LiveDocuments
) -> None:
    sql = f"SELECT TRANSACTIONALLY l.order_id, {aggregate} AS out FROM order_lines l GROUP BY l.order_id"  # noqa: S608
    plan = compile_pipeline([("v.sql", sql)], catalog, accumulates=False)
    rows = [line(1, "c", 1, "1.00"), line(2, "a", 2, "2.00"), line(3, "b", 2, "2.00")]

    for order in permutations(rows):
        (document,) = live_documents(plan, {"l": order})
        assert json.loads(document)["out"] == expected


def codes(catalog: Catalog) -> RowsEvaluator:
    (stage,) = compile_pipeline([("views/codes.sql", CODES)], catalog).stages
    assert stage.rows is not None
    return RowsEvaluator(stage.rows, stage.key, name="codes")


def keys(*values: int) -> list[bytes]:
    return [msgspec.msgpack.encode((value,)) for value in values]


def test_points_see_the_versions_of_their_lsn(catalog: Catalog) -> None:
    rows = RowVersions([1, 1], [[5, 5], ["1", "2"]], [10, 20], [20, 30])
    points = ResultPoints([1, 1, 1, 1, 1, 0], [9, 10, 19, 20, 30, 20])

    found = codes(catalog).at_points([rows], points, keys(4, 5))

    assert sorted((point, json.loads(document)["code"]) for point, _, document in found) == [
        (1, 1),
        (2, 1),
        (3, 2),
    ]


def test_an_evaluator_keeps_nothing_between_calls(catalog: Catalog) -> None:
    evaluator = codes(catalog)
    evaluator.latest([RowVersions([0], [[1], ["7"]])], keys(1), [1].__getitem__)

    assert list(evaluator.latest([RowVersions([], [[], []])], keys(1), [1].__getitem__)) == []


def test_a_runtime_error_names_view_and_key(catalog: Catalog) -> None:
    rows = RowVersions(range(5), [range(5), ["1", "2", "3", "no number", "5"]])

    with pytest.raises(EvaluationError) as raised:
        codes(catalog).latest([rows], keys(*range(5)), ([1] * 5).__getitem__)

    error = raised.value
    assert (error.view, error.key) == ("codes", '{"id":3}')
    assert "no number" in error.problem
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes


def test_a_runtime_error_names_the_row_and_the_commit_of_its_key(catalog: Catalog) -> None:
    rows = RowVersions(range(3), [range(3), ["1", "no number", "3"]])

    with pytest.raises(EvaluationError) as raised:
        codes(catalog).latest([rows], keys(*range(3)), [0x10, 0x20, 0x30].__getitem__)

    assert raised.value.commit_lsn == 0x20
    assert raised.value.rows == ('inventory.orders o {"id":1,"status":"no number"}',)
    assert "commit LSN 0/20" in str(raised.value)
    assert "TRY_CAST" in str(raised.value)


def test_the_row_of_many_is_found_whatever_it_is_joined_with(catalog: Catalog) -> None:
    sql = """SELECT TRANSACTIONALLY o.id, sum(l.product::DOUBLE) AS x
        FROM orders o JOIN order_lines l ON l.order_id = o.id GROUP BY o.id"""
    (stage,) = compile_pipeline([("v.sql", sql)], catalog).stages
    assert stage.rows is not None
    evaluator = RowsEvaluator(stage.rows, stage.key, name="v")
    columns = {"id": range(5), "order_id": [1] * 5, "product": ["1", "2", "bad", "4", "5"]}
    lines = [columns[column.name] for column in stage.rows.inputs[1].columns]
    versions = [
        RowVersions([0, 1], [[0, 1]], [1, 2], [OPEN_LSN] * 2),
        RowVersions([1] * 5, lines, [3, 4, 5, 6, 7], [OPEN_LSN] * 5),
    ]

    with pytest.raises(EvaluationError) as raised:
        evaluator.at_points(versions, ResultPoints([0, 1], [9, 9]), keys(0, 1))

    error = raised.value
    assert (error.key, error.commit_lsn) == ('{"id":1}', 5)
    assert error.rows[0] == 'inventory.orders o {"id":1}'
    assert '"product":"bad"' in error.rows[1]


def test_the_search_for_a_row_ends_with_its_time(catalog: Catalog) -> None:
    (stage,) = compile_pipeline([("v.sql", CODES)], catalog).stages
    assert stage.rows is not None
    evaluator = RowsEvaluator(stage.rows, stage.key, name="v", limits=StatementLimits(cpu_seconds=0))
    rows = RowVersions(range(3), [range(3), ["1", "no number", "3"]])

    with pytest.raises(EvaluationError) as raised:
        evaluator.latest([rows], keys(*range(3)), ([1] * 3).__getitem__)

    assert (raised.value.key, raised.value.rows) == ("", ())


LONG = "SELECT TRANSACTIONALLY o.id, len(range(o.id)) AS n FROM orders o"


def lengths(catalog: Catalog, limits: StatementLimits, sql: str = LONG) -> RowsEvaluator:
    (stage,) = compile_pipeline([("lengths.sql", sql)], catalog).stages
    assert stage.rows is not None
    return RowsEvaluator(stage.rows, stage.key, name="lengths", limits=limits)


def test_a_value_that_takes_too_much_memory_names_view_key_and_setting(catalog: Catalog) -> None:
    evaluator = lengths(catalog, StatementLimits(memory_mib=32))
    soft = resource.getrlimit(resource.RLIMIT_DATA)
    small, large = RowVersions([0, 1], [[5, 6]]), RowVersions([0, 1], [[5, 50_000_000]])

    with pytest.raises(EvaluationError, match=r"32 MiB of run\.statement_memory") as raised:
        evaluator.latest([large], keys(5, 50_000_000), [1, 1].__getitem__)

    error = raised.value
    assert (error.view, error.key, error.is_limit) == ("lengths", '{"id":50000000}', True)
    assert "raise the limit" in str(error)
    assert "TRY_CAST" not in str(error)
    assert resource.getrlimit(resource.RLIMIT_DATA) == soft
    assert len(evaluator.latest([small], keys(5, 6), [1, 1].__getitem__)) == 2


def test_rows_that_make_too_many_python_objects_meet_the_same_limit(catalog: Catalog) -> None:
    sql = "SELECT TRANSACTIONALLY o.id, repeat('x', 3000) AS n FROM orders o"
    evaluator = lengths(catalog, StatementLimits(memory_mib=32), sql)
    ids = range(100_000)

    with pytest.raises(EvaluationError, match=r"32 MiB of run\.statement_memory"):
        evaluator.latest([RowVersions(ids, [ids])], keys(*ids), ([1] * len(ids)).__getitem__)


def test_a_statement_that_computes_for_too_long_is_interrupted(catalog: Catalog) -> None:
    sum_of = "list_sum(list_transform(range(20000), lambda x: x + o.id))"
    sql = f"SELECT TRANSACTIONALLY o.id, {sum_of} AS n FROM orders o"  # noqa: S608 - it is only read
    evaluator = lengths(catalog, StatementLimits(cpu_seconds=0.1), sql)
    ids = range(200_000)

    with pytest.raises(
        EvaluationError, match=r"more than 0\.1 s of CPU time \(run\.statement_seconds\)"
    ) as raised:
        evaluator.latest([RowVersions(ids, [ids])], keys(*ids), ([1] * len(ids)).__getitem__)

    assert raised.value.is_limit


def test_a_runtime_error_at_an_lsn_names_the_key(catalog: Catalog) -> None:
    rows = RowVersions([0, 1, 1], [[1, 2, 2], ["1", "2", "x"]], [1, 1, 5], [OPEN_LSN, 5, OPEN_LSN])
    evaluator = codes(catalog)

    assert len(evaluator.at_points([rows], ResultPoints([0, 1], [4, 4]), keys(1, 2))) == 2
    with pytest.raises(EvaluationError, match=r'for key \{"id":2\}'):
        evaluator.at_points([rows], ResultPoints([0, 1], [5, 5]), keys(1, 2))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (RowVersions([0], [[1]]), "expected columns"),
        (RowVersions([0], [["x"], ["1"]]), "o.id: values do not fit"),
        (RowVersions([0], [[2**63], ["1"]]), "o.id: values do not fit"),
    ],
)
def test_rows_that_are_not_what_the_plan_says_are_refused(
    rows: RowVersions, message: str, catalog: Catalog
) -> None:
    with pytest.raises(ValueError, match=message):
        codes(catalog).latest([rows], keys(1), [1].__getitem__)
