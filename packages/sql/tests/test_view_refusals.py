# ruff: noqa: E501 - SQL on one line keeps its columns countable
"""What a view may not be, each with the place in the SQL."""

import pickle

import pytest

from slackwater_sql.catalog import Catalog
from slackwater_sql.errors import ViewError
from slackwater_sql.view import compile_view

GROUPED = "SELECT TRANSACTIONALLY o.id FROM orders o GROUP BY o.id"

REFUSED = {
    # SQL: (line, column, offending text, part of the message)
    "SELECT o.id FROM orders o GROUP BY o.id": (1, 1, "SELECT", "starts with SELECT TRANSACTIONALLY"),
    "WITH x AS (SELECT 1) SELECT TRANSACTIONALLY 1": (1, 1, "WITH", "starts with SELECT TRANSACTIONALLY"),
    "SELECT TRANSACTIONALLY o.id FROM orders o": (1, 34, "orders o", "no GROUP BY"),
    "SELECT TRANSACTIONALLY o.id\nFROM orders o JOIN order_lines l\n  ON l.product = o.customer GROUP BY o.id": (
        3, 6, "l.product = o.customer", "l is not joined by equality with o.id"),
    "SELECT TRANSACTIONALLY o.id FROM orders o JOIN order_lines l ON l.order_id > o.id GROUP BY o.id": (
        1, 65, "l.order_id > o.id", "l is not joined"),
    "SELECT TRANSACTIONALLY o.id FROM orders o JOIN order_lines l ON l.order_id = o.id OR true GROUP BY o.id": (
        1, 65, "l.order_id = o.id OR true", "l is not joined"),
    "SELECT TRANSACTIONALLY o.id FROM orders o RIGHT JOIN order_lines l ON l.order_id = o.id GROUP BY o.id": (
        1, 43, "RIGHT JOIN order_lines l ON l.order_id = o.id", "RIGHT JOIN is not supported"),
    "SELECT TRANSACTIONALLY o.id FROM orders o FULL JOIN order_lines l ON l.order_id = o.id GROUP BY o.id": (
        1, 43, "FULL JOIN order_lines l ON l.order_id = o.id", "JOIN is not supported"),
    "SELECT TRANSACTIONALLY o.id FROM orders o CROSS JOIN order_lines l GROUP BY o.id": (
        1, 43, "CROSS JOIN order_lines l", "CROSS JOIN is not supported"),
    "SELECT TRANSACTIONALLY o.id FROM orders o, order_lines l GROUP BY o.id": (
        1, 29, "FROM orders o, order_lines l", "CROSS JOIN is not supported"),
    "SELECT TRANSACTIONALLY o.id FROM orders o JOIN notes n USING (id) GROUP BY o.id": (
        1, 43, "JOIN notes n USING (id)", "USING (id) is not supported"),
    "SELECT TRANSACTIONALLY o.id FROM orders o NATURAL JOIN notes n GROUP BY o.id": (
        1, 43, "NATURAL JOIN notes n", "NATURAL JOIN is not supported"),
    "SELECT TRANSACTIONALLY o.id FROM (SELECT 1 AS id) o GROUP BY o.id": (
        1, 34, "(SELECT 1 AS id)", "subquery in from is not supported"),
    "SELECT TRANSACTIONALLY o.id, (SELECT 1) AS x FROM orders o GROUP BY o.id": (
        1, 30, "(SELECT 1)", "a subquery is not supported"),
    "SELECT TRANSACTIONALLY o.id FROM orders o WHERE o.id IN (SELECT 1) GROUP BY o.id": (
        1, 57, "(SELECT 1)", "a subquery is not supported"),
    f"{GROUPED} UNION {GROUPED.replace('TRANSACTIONALLY', '')}": (1, 1, "", "UNION is not supported"),
    "SELECT TRANSACTIONALLY o.id, row_number() OVER () AS n FROM orders o GROUP BY o.id": (
        1, 30, "row_number() OVER ()", "a window function is not supported"),
    f"{GROUPED} LIMIT 3": (1, 63, "", "LIMIT is not supported"),
    f"{GROUPED} ORDER BY o.id": (1, 66, "", "ORDER BY of the whole view is not supported"),
    "SELECT TRANSACTIONALLY DISTINCT o.id FROM orders o GROUP BY o.id": (1, 1, "", "DISTINCT is not supported"),
    "SELECT TRANSACTIONALLY o.id, random() AS r FROM orders o GROUP BY o.id": (
        1, 30, "random()", "random depends on more than the rows"),
    "SELECT TRANSACTIONALLY o.id, now() AS r FROM orders o GROUP BY o.id": (
        1, 30, "now()", "now depends on more than the rows"),
    "SELECT TRANSACTIONALLY o.id, current_timestamp AS r FROM orders o GROUP BY o.id": (
        1, 30, "current_timestamp", "current_timestamp depends on more than the rows"),
    "SELECT TRANSACTIONALLY o.id, CURRENT_DATE AS r FROM orders o GROUP BY o.id": (
        1, 30, "CURRENT_DATE", "current_date depends on more than the rows"),
    "SELECT TRANSACTIONALLY o.id, uuid() AS r FROM orders o GROUP BY o.id": (
        1, 30, "uuid()", "uuid depends on more than the rows"),
    "SELECT TRANSACTIONALLY o.id, nextval('s') AS r FROM orders o GROUP BY o.id": (
        1, 30, "nextval('s')", "nextval depends on more than the rows"),
    "SELECT TRANSACTIONALLY o.id, age(TIMESTAMP '2020-01-01') AS r FROM orders o GROUP BY o.id": (
        1, 30, "age(TIMESTAMP '2020-01-01')", "age depends on more than the rows"),
    "SELECT TRANSACTIONALLY o.id, ago(INTERVAL '1 day') AS r FROM orders o GROUP BY o.id": (
        1, 30, "ago(INTERVAL '1 day')", "ago depends on more than the rows"),
    "SELECT TRANSACTIONALLY o.id, unnest([1, 2]) AS r FROM orders o GROUP BY o.id": (
        1, 30, "unnest([1, 2])", "makes several rows of one"),
    "SELECT TRANSACTIONALLY * FROM orders o GROUP BY o.id": (1, 24, "*", "* is not supported"),
    "SELECT TRANSACTIONALLY o.* FROM orders o GROUP BY o.id": (1, 24, "o.*", "* is not supported"),
    "SELECT TRANSACTIONALLY o.id FROM order o GROUP BY o.id": (1, 34, "order", "syntax error"),
    "SELECT TRANSACTIONALLY o.id FROM ordes o GROUP BY o.id": (1, 34, "ordes o", "Did you mean inventory.orders"),
    "SELECT TRANSACTIONALLY o.id FROM elsewhere.orders o GROUP BY o.id": (
        1, 34, "elsewhere.orders o", "not declared"),
    "SELECT TRANSACTIONALLY o.id, o.custmer FROM orders o GROUP BY o.id": (
        1, 30, "o.custmer", "Did you mean o.customer"),
    "SELECT TRANSACTIONALLY x.id FROM orders o GROUP BY o.id": (1, 24, "x.id", "no table in FROM is called x"),
    "SELECT TRANSACTIONALLY id FROM orders o JOIN order_lines l ON l.order_id = o.id GROUP BY o.id": (
        1, 24, "id", "Write o.id or l.id"),
    "SELECT TRANSACTIONALLY o.id, o.shape FROM orders o GROUP BY o.id": (1, 30, "o.shape", "geometry(point,4326)"),
    "SELECT TRANSACTIONALLY o.id, list(l) AS ls FROM orders o JOIN order_lines l ON l.order_id = o.id GROUP BY o.id": (
        1, 35, "l", "a whole row is not supported"),
    "SELECT TRANSACTIONALLY o.id, l.product FROM orders o JOIN order_lines l ON l.order_id = o.id GROUP BY o.id": (
        1, 30, "l.product", "several values for one key"),
    "SELECT TRANSACTIONALLY o.id, l.product FROM orders o JOIN order_lines l ON l.order_id = o.id "
    "GROUP BY o.id, l.product": (1, 109, "l.product", "several rows for one key (o.id)"),
    "SELECT TRANSACTIONALLY l.order_id FROM orders o LEFT JOIN order_lines l ON l.order_id = o.id "
    "GROUP BY l.order_id": (1, 103, "l.order_id", "is NULL where the LEFT JOIN finds no row"),
    "SELECT TRANSACTIONALLY o.id FROM orders o GROUP BY ALL": (1, 24, "o.id", "GROUP BY ALL"),
    "SELECT TRANSACTIONALLY o.id FROM orders o GROUP BY ROLLUP (o.id)": (1, 60, "o.id", "ROLLUP"),
    "SELECT TRANSACTIONALLY o.id FROM orders o GROUP BY 1": (1, 52, "1", "something else than a column"),
    "SELECT TRANSACTIONALLY o.customer FROM orders o GROUP BY o.id": (
        1, 58, "o.id", "the key o.id is not among the selected columns"),
    "SELECT TRANSACTIONALLY o.id, o.status AS x, o.customer AS X FROM orders o GROUP BY o.id": (
        1, 45, "o.customer", "two columns called X"),
    "SELECT TRANSACTIONALLY o.id, count(*) FROM orders o GROUP BY o.id": (1, 30, "count(*)", "Name it with AS"),
    "SELECT TRANSACTIONALLY o.id FROM orders o JOIN orders o ON o.id = o.id GROUP BY o.id": (
        1, 48, "orders o", "two tables are called o"),
    "SELECT TRANSACTIONALLY n.id FROM lonely n GROUP BY n.id": (1, 34, "lonely n", "no primary key"),
    "SELECT TRANSACTIONALLY o.status FROM orders o GROUP BY o.status": (1, 38, "orders o", "REPLICA IDENTITY FULL"),
    "SELECT TRANSACTIONALLY o.id FROM orders o JOIN shipments s ON s.order_id = o.id GROUP BY o.id": (
        1, 48, "shipments s", "ALTER TABLE inventory.shipments REPLICA IDENTITY FULL"),
    "SELECT TRANSACTIONALLY l.price, count(*) AS n FROM order_lines l GROUP BY l.price": (
        1, 75, "l.price", "cannot be the key"),
    "SELECT TRANSACTIONALLY o.id, nofunction(o.status) AS x FROM orders o GROUP BY o.id": (
        1, 30, "nofunction", "nofunction does not exist"),
    "SELECT TRANSACTIONALLY o.id,\n  o.status + 1 AS x FROM orders o WHERE sum(o.id) > 1 GROUP BY o.id": (
        2, 41, "sum", "WHERE clause cannot contain aggregates"),
    "SELECT TRANSACTIONALLY o.id, list(DISTINCT l.product) AS p FROM orders o "
    "JOIN order_lines l ON l.order_id = o.id GROUP BY o.id": (1, 30, "list(DISTINCT l.product)", "ORDER BY"),
    "SELECT TRANSACTIONALLY o.id, $1 AS x FROM orders o GROUP BY o.id": (1, 30, "$1", "a parameter is not supported"),
    "INSERT INTO orders VALUES (1)": (1, 1, "INSERT", "starts with SELECT TRANSACTIONALLY"),
    f"{GROUPED}; SELECT 1": (1, 1, "", "more than one statement"),
    "SELECT TRANSACTIONALLY 'é' AS é, o.nothing FROM orders o GROUP BY o.id": (1, 34, "o.nothing", "no column nothing"),
    "": (1, 1, "", "starts with SELECT TRANSACTIONALLY"),
}  # fmt: skip


@pytest.mark.parametrize("sql", REFUSED)
def test_refusal_names_the_place_and_what_is_wrong(sql: str, catalog: Catalog) -> None:
    line, column, text, message = REFUSED[sql]

    with pytest.raises(ViewError) as raised:
        compile_view(sql, catalog, path="views/v.sql")

    place = raised.value.place
    assert message in str(raised.value)
    assert (place.path, place.line, place.column, place.text) == ("views/v.sql", line, column, text)
    assert str(raised.value).startswith(f"views/v.sql:{line}:{column}")
    assert raised.value.hint


def test_errors_survive_the_way_between_processes(catalog: Catalog) -> None:
    with pytest.raises(ViewError) as raised:
        compile_view("SELECT 1", catalog, path="v.sql")

    copy = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 - our own bytes

    assert str(copy) == str(raised.value)
    assert copy.place == raised.value.place
