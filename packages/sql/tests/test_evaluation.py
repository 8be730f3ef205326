import json
import pickle
from itertools import permutations

import pytest

from slackwater_sql.catalog import Catalog
from slackwater_sql.errors import EvaluationError
from slackwater_sql.evaluation import OPEN_LSN, Evaluator, InputVersions, Points
from slackwater_sql.plan import ViewPlan
from slackwater_sql.view import compile_view

SQL = """SELECT TRANSACTIONALLY o.id, o.customer, o.line_count, o.total,
  list({'id': l.id, 'product': l.product, 'quantity': l.quantity, 'price': l.price} ORDER BY l.id)
    FILTER (l.id IS NOT NULL) AS lines
FROM orders o LEFT JOIN order_lines l ON l.order_id = o.id
GROUP BY o.id"""


@pytest.fixture
def plan(catalog: Catalog) -> ViewPlan:
    return compile_view(SQL, catalog, path="views/orders_with_lines.sql")


def test_document_has_the_columns_in_select_order_without_spaces(plan: ViewPlan) -> None:
    orders = InputVersions([0], [[1], ["Ada"], [2], ["12.50"]])
    lines = InputVersions([0, 0], [[8, 7], [1, 1], ["nut", None], [1, 2], [None, "1.00"]])

    with Evaluator(plan) as evaluator:
        documents = evaluator.evaluate({"o": orders, "l": lines}, Points([(1,)]))

    assert documents == [
        b'{"id":1,"customer":"Ada","line_count":2,"total":"12.50","lines":'
        b'[{"id":7,"product":null,"quantity":2,"price":"1.00"},'
        b'{"id":8,"product":"nut","quantity":1,"price":null}]}'
    ]


def test_points_see_the_versions_of_their_lsn(plan: ViewPlan) -> None:
    orders = InputVersions([1, 1], [[5, 5], ["old", "new"], [0, 0], ["1.00", "1.00"]], [10, 20], [20, 30])
    points = Points([(4,), (5,)], [1, 1, 1, 1, 1, 0], [9, 10, 19, 20, 30, 20])

    with Evaluator(plan) as evaluator:
        documents = evaluator.evaluate({"o": orders}, points)

    customers = [None if document is None else json.loads(document)["customer"] for document in documents]
    assert customers == [None, "old", "old", "new", None, None]


def test_an_evaluator_keeps_nothing_between_calls(plan: ViewPlan) -> None:
    orders = InputVersions([0], [[1], ["Ada"], [2], ["12.50"]])
    with Evaluator(plan) as evaluator:
        evaluator.evaluate({"o": orders}, Points([(1,)]))

        assert evaluator.evaluate({}, Points([(1,), (2,)])) == [None, None]
        assert evaluator.evaluate({}, Points([])) == []


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
def test_order_of_rows_never_reaches_a_document(aggregate: str, expected: object, catalog: Catalog) -> None:
    sql = f"SELECT TRANSACTIONALLY l.order_id, {aggregate} AS out FROM order_lines l GROUP BY l.order_id"  # noqa: S608
    plan = compile_view(sql, catalog, path="v.sql")
    rows = [(1, 7, "c", 1, "1.00"), (2, 7, "a", 2, "2.00"), (3, 7, "b", 2, "2.00")]

    with Evaluator(plan) as evaluator:
        for order in permutations(rows):
            wanted = [plan.inputs[0].table.columns.index(column) for column in plan.inputs[0].columns]
            columns = [[row[position] for row in order] for position in wanted]
            (document,) = evaluator.evaluate({"l": InputVersions([0, 0, 0], columns)}, Points([(7,)]))
            assert document is not None
            assert json.loads(document)["out"] == expected


def test_runtime_error_names_view_and_key(catalog: Catalog) -> None:
    sql = "SELECT TRANSACTIONALLY o.id, o.status::INTEGER AS code FROM orders o GROUP BY o.id"
    plan = compile_view(sql, catalog, path="views/codes.sql")
    orders = InputVersions(range(5), [range(5), ["1", "2", "3", "no number", "5"]])

    with Evaluator(plan) as evaluator, pytest.raises(EvaluationError) as raised:
        evaluator.evaluate({"o": orders}, Points([f"key-{number}" for number in range(5)]))

    error = raised.value
    assert (error.view, error.key) == ("codes", "key-3")
    assert "no number" in error.problem
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes


def test_runtime_error_at_an_lsn_names_the_key(catalog: Catalog) -> None:
    sql = "SELECT TRANSACTIONALLY o.id, o.status::INTEGER AS code FROM orders o GROUP BY o.id"
    plan = compile_view(sql, catalog, path="views/codes.sql")
    orders = InputVersions([0, 1, 1], [[1, 2, 2], ["1", "2", "x"]], [1, 1, 5], [OPEN_LSN, 5, OPEN_LSN])

    with Evaluator(plan) as evaluator:
        assert evaluator.evaluate({"o": orders}, Points(["a", "b"], [0, 1], [4, 4])) == [
            b'{"id":1,"code":1}',
            b'{"id":2,"code":2}',
        ]
        with pytest.raises(EvaluationError, match="for key b"):
            evaluator.evaluate({"o": orders}, Points(["a", "b"], [0, 1], [5, 5]))


@pytest.mark.parametrize(
    ("versions", "points", "message"),
    [
        (InputVersions([0], [[1]]), Points(["a"]), "expected columns"),
        (InputVersions([0], [["x"], ["1"]]), Points(["a"]), "o.id: values do not fit"),
        (InputVersions([0], [[2**63], ["1"]]), Points(["a"]), "o.id: values do not fit"),
        (InputVersions([0], [[1], ["1"]]), Points(["a"], [0], [1]), "need from_lsn and to_lsn"),
        (InputVersions([0], [[1], ["1"]], [5], [5]), Points(["a"], [0], [1]), "0 <= from_lsn < to_lsn"),
        (InputVersions([0], [[1], ["1"]], [-1], [5]), Points(["a"], [0], [1]), "0 <= from_lsn < to_lsn"),
        (InputVersions([0], [[1], ["1"]], [2**63], [2**63 + 1]), Points(["a"], [0], [1]), "from_lsn: values"),
        (InputVersions([0], [[1], ["1"]], [1], [5]), Points(["a"], [0], [-1]), "point is negative"),
    ],
)
def test_rows_that_are_not_what_the_plan_says_are_refused(
    versions: InputVersions, points: Points, message: str, catalog: Catalog
) -> None:
    sql = "SELECT TRANSACTIONALLY o.id, o.status FROM orders o GROUP BY o.id"
    plan = compile_view(sql, catalog, path="v.sql")

    with Evaluator(plan) as evaluator, pytest.raises(ValueError, match=message):
        evaluator.evaluate({"o": versions}, points)
