# ruff: noqa: E501, S608 - SQL on one line keeps its columns countable; it is only read
"""What a view may not be, each with the place in the SQL."""

import pickle

import pytest

from slackwater.sql.catalog import Catalog
from slackwater.sql.errors import SqlTextError
from slackwater.sql.frontend import ViewText, read_view
from slackwater.sql.frontend.expressions import function_facts
from slackwater.sql.postgres import parse_catalog

S = "SELECT TRANSACTIONALLY"
GROUPED = f"{S} o.id FROM orders o GROUP BY o.id"

REFUSED = {
    # SQL: (line, column, offending text, part of the message)
    "SELECT o.id FROM orders o GROUP BY o.id": (1, 1, "SELECT", "must start with SELECT TRANSACTIONALLY"),
    "FROM orders SELECT TRANSACTIONALLY id": (1, 1, "FROM", "must start with SELECT TRANSACTIONALLY"),
    "INSERT INTO orders VALUES (1)": (1, 1, "INSERT", "must start with SELECT TRANSACTIONALLY"),
    "": (1, 1, "", "must start with SELECT TRANSACTIONALLY"),
    "WITH x AS (SELECT id FROM orders) SELECT id FROM x": (1, 35, "SELECT", "the SELECT after WITH must be SELECT TRANSACTIONALLY"),
    f"WITH RECURSIVE r AS (SELECT id FROM orders UNION ALL SELECT id FROM r) {S} id FROM r": (1, 29, "", "a column with the path from the root"),
    f"{GROUPED}; SELECT 1": (1, 1, "", "more than one statement"),
    f"{S} o.id FROM order o": (1, 34, "order", "syntax error"),
    f"{S} o.id FROM orders o ASOF JOIN order_lines l ON l.order_id = o.id": (1, 43, "ASOF JOIN order_lines l ON l.order_id = o.id", "needs one inequality"),
    f"{S} o.id FROM orders o ASOF JOIN order_lines l ON l.order_id = o.id AND l.id > o.id AND l.id > 3": (1, 108, "l.id > 3", "another condition"),
    f"{S} o.id FROM orders o ASOF JOIN order_lines l USING (id)": (1, 43, "ASOF JOIN order_lines l USING (id)", "needs one inequality"),
    f"{S} o.id FROM orders o ASOF FULL JOIN order_lines l ON l.order_id >= o.id": (1, 43, "ASOF FULL JOIN order_lines l ON l.order_id >= o.id", "ASOF FULL JOIN is not supported"),
    f"{S} o.id FROM orders o JOIN order_lines FOR SYSTEM_TIME AS OF o.ts l ON l.order_id = o.id": (1, 60, "FOR", "ASOF JOIN"),
    f"{S} id FROM hop(orders, id, INTERVAL '0 days', INTERVAL '1 day')": (1, 48, "INTERVAL '0 days'", "not positive"),
    f"{S} id FROM tumble(orders, id, to_days(id))": (1, 51, "to_days(id)", "not constant"),
    f"{S} id FROM tumble(orders, id)": (1, 32, "tumble(orders, id)", "Write TUMBLE(table, column, size)"),
    f"{S} id FROM tumble(orders, nix, INTERVAL '1 day')": (1, 47, "nix", "there is no column nix"),
    f"{S} r FROM read_csv('/etc/passwd') r": (1, 31, "read_csv('/etc/passwd') r", "read_csv is not supported in FROM"),
    f"{S} o.id FROM orders o, unnest(o.nix) u": (1, 51, "o.nix", "there is no column nix in"),
    f"{S} u FROM unnest(o.status) u, orders o": (1, 38, "o.status", "columns of tables that FROM names before"),
    f"{S} u FROM orders o RIGHT JOIN unnest([o.id]) u ON true": (1, 40, "RIGHT JOIN unnest([o.id]) u ON true", "LEFT JOIN … ON true"),
    f"{S} u FROM orders o LEFT JOIN (order_lines l JOIN unnest([o.id]) u ON true) ON true": (1, 40, "LEFT JOIN (order_lines l JOIN unnest([o.id]) u ON true) ON …", "cannot use columns of its left side"),
    f"{S} unnest(o.id) AS u FROM orders o": (1, 24, "unnest(o.id)", "is not a list"),
    f"{S} o.id, list(s.product) AS l FROM orders o JOIN (SELECT order_id, product FROM order_lines ORDER BY product) s ON s.order_id = o.id GROUP BY o.id": (1, 30, "list(s.product)", "the order of a subquery's rows is not kept"),
    f"{S} unnest([[o.id]], recursive := true) AS u FROM orders o": (1, 24, "unnest([[o.id]], recursive := true)", "unnest is not supported with 2 arguments"),
    f"{S} o.id FROM orders o, (VALUES (1), (2, 3)) v": (1, 58, "2", "the same length"),
    f"{S} o.status, (SELECT sum(o.status)) AS s FROM orders o GROUP BY o.status": (1, 42, "sum(o.status)", "columns of the query around this one"),
    f"{S} o.id, s.e FROM orders o, LATERAL (SELECT o.id AS e UNION SELECT 1) s": (1, 65, "", "Write LATERAL (VALUES"),
    f"{S} o.id, s.t FROM orders o, LATERAL (SELECT now() AS t) s": (1, 65, "now()", "depends on more than the rows"),
    f"{S} o.id, s.n FROM orders o LEFT JOIN LATERAL (SELECT count(*) AS n FROM order_lines l WHERE l.order_id = o.id) s ON s.n > 0": (1, 66, "(SELECT count(*) AS n FROM order_lines l WHERE l.order_id =…", "Write it in WHERE"),
    f"{S} o.id, s.n FROM orders o, LATERAL (SELECT count(*) AS n FROM order_lines l WHERE l.order_id > o.id) s": (1, 104, "l.order_id > o.id", "only by equality"),
    f"{S} o.id FROM orders o JOIN order_lines l USING (product)": (1, 43, "JOIN order_lines l USING (product)", "column product does not exist on both sides"),
    f"{S} o.id FROM orders o POSITIONAL JOIN order_lines l": (1, 43, "POSITIONAL JOIN order_lines l", "POSITIONAL JOIN is not supported"),
    f"{S} o.id, l.x FROM orders o, LATERAL (SELECT l.id + o.id AS x FROM order_lines l WHERE l.order_id = o.id) l": (1, 72, "o.id", "Only conditions of the subquery's WHERE can"),
    f"{S} o.id FROM orders o FULL JOIN (SELECT l.id FROM order_lines l WHERE l.order_id = o.id) l ON true": (1, 104, "o.id", "cannot use o.id of another table"),
    f"{S} o.id FROM orders o USING SAMPLE 10%": (1, 1, "", "USING SAMPLE is not supported"),
    f"{S} o.id, sum(GROUPING(o.id)) AS g FROM orders o GROUP BY o.id": (1, 34, "GROUPING(o.id)", "GROUPING is not supported here"),
    f"{S} o.id, GROUPING(o.status) AS g FROM orders o GROUP BY ROLLUP (o.id)": (1, 39, "o.status", "GROUPING is of expressions in GROUP BY only"),
    f"{S} o.id, o.status FROM orders o GROUP BY ROLLUP (o.id)": (1, 30, "o.status", "o.status can have several values in one group"),
    f"{S} o.id FROM orders o WHERE EXISTS (SELECT 1 FROM notes n WHERE n.order_id = o.id GROUP BY ROLLUP (n.note))": (1, 85, "n.order_id", "or grouping sets cannot be correlated"),
    f"{S} count(*) AS n FROM orders o GROUP BY o.status COLLATE nocase": (1, 61, "o.status COLLATE nocase", "lower(s) for NOCASE"),
    f"{S} max(o.status COLLATE de) AS m FROM orders o": (1, 28, "o.status COLLATE de", "icu_sort_key(s, 'de') for a language"),
    f"{S} o.id FROM orders o JOIN notes n ON o.status COLLATE nocase = n.note": (1, 59, "o.status COLLATE nocase", "COLLATE is not supported"),
    f"{S} list(o.id ORDER BY o.status COLLATE nocase) AS l FROM orders o": (1, 43, "o.status COLLATE nocase", "COLLATE is not supported"),
    f"{S} o.id, rank() OVER (PARTITION BY o.id ORDER BY o.status COLLATE nocase) AS r FROM orders o": (1, 70, "o.status COLLATE nocase", "COLLATE is not supported"),
    f"{S} o.id FROM orders o WHERE o.id IN (SELECT n.order_id FROM notes n WHERE n.note COLLATE nocase = 'a')": (1, 95, "n.note COLLATE nocase", "COLLATE is not supported"),
    f"{GROUPED} LIMIT 3%": (1, 63, "", "LIMIT of a percentage is not supported"),
    f"{GROUPED} LIMIT ?": (1, 63, "?", "LIMIT is supported with an integer from 0 only"),
    f"{GROUPED} LIMIT (SELECT 3)": (1, 63, "(SELECT 3)", "LIMIT is supported with an integer from 0 only"),
    f"{GROUPED} LIMIT o.id": (1, 63, "o.id", "LIMIT is supported with an integer from 0 only"),
    f"{GROUPED} LIMIT 1 + 1": (1, 63, "1 + 1", "LIMIT is supported with an integer"),
    f"{GROUPED} LIMIT -1": (1, 63, "-1", "LIMIT is supported with an integer"),
    f"{GROUPED} LIMIT 2.5": (1, 63, "2.5", "LIMIT is supported with an integer"),
    f"{GROUPED} LIMIT 3 OFFSET 'a'": (1, 72, "'a'", "OFFSET is supported with an integer"),
    f"{GROUPED} ORDER BY o.id OFFSET 3": (1, 78, "3", "OFFSET without LIMIT is not supported"),
    f"{GROUPED} ORDER BY 2 LIMIT 3": (1, 66, "2", "no column 2 in the select list"),
    f"{S} o.status FROM orders o GROUP BY o.status ORDER BY o.id LIMIT 3": (1, 74, "o.id", "several values in one group"),
    f"{S} o.id FROM orders o ORDER BY o.status COLLATE nocase LIMIT 3": (1, 52, "o.status COLLATE nocase", "COLLATE is not supported"),
    f"{S} o.id FROM orders o ORDER BY o.idd LIMIT 3": (1, 52, "o.idd", "Did you mean o.id"),
    f"{S} DISTINCT o.status FROM orders o ORDER BY o.id LIMIT 3": (1, 65, "o.id", "ORDER BY of SELECT DISTINCT"),
    f"({S} o.id FROM orders o LIMIT 3) LIMIT 2": (1, 59, "", "Write the inner query in FROM"),
    f"{S} q.id FROM (SELECT id FROM orders ORDER BY id) q LIMIT 3": (1, 24, "q.id", "the order of a subquery's rows is not kept"),
    f"{S} DISTINCT ON (q.status) q.id FROM (SELECT id, status FROM orders ORDER BY id) q": (1, 47, "q.id", "DISTINCT ON has no ORDER BY, and the order"),
    f"{S} list(q.id) AS l FROM (SELECT id FROM orders ORDER BY id LIMIT 3) q": (1, 24, "list(q.id)", "Write list(… ORDER BY …)"),
    f"WITH q AS (SELECT id FROM orders ORDER BY id) {S} q.id, row_number() OVER () AS n FROM q": (1, 76, "row_number() OVER ()", "Write OVER (… ORDER BY …)"),
    f"{S} id FROM orders UNION ALL SELECT id FROM order_lines ORDER BY idd LIMIT 3": (1, 85, "idd", "Did you mean the result.id"),
    f"{S} o.id FROM orders o WHERE row_number() OVER (PARTITION BY o.customer) = 1": (1, 49, "row_number() OVER (PARTITION BY o.customer)", "use QUALIFY"),
    f"{S} o.id, sum(sum(o.id) OVER (PARTITION BY o.id)) OVER (PARTITION BY o.id) AS s FROM orders o": (1, 34, "sum(o.id) OVER (PARTITION BY o.id)", "a window function cannot contain window functions"),
    f"{S} o.id, sum(o.id) OVER (PARTITION BY o.id ROWS 1 PRECEDING EXCLUDE TIES) AS s FROM orders o": (1, 30, "sum(o.id) OVER (PARTITION BY o.id ROWS 1 PRECEDING EXCLUDE …", "EXCLUDE TIES"),
    f"{S} o.id, sum(sum(o.total)) AS s FROM orders o GROUP BY o.id": (1, 34, "sum(o.total)", "an aggregate function cannot contain aggregates"),
    f"{S} o.id,\n  o.status + 1 AS x FROM orders o WHERE sum(o.id) > 1 GROUP BY o.id": (2, 41, "sum(o.id)", "WHERE clause cannot contain aggregates"),
    f"{S} o.id FROM orders o WHERE o.id IN (SELECT n.order_id, n.note FROM notes n)": (1, 49, "o.id IN (SELECT n.order_id, n.note FROM notes n)", "IN compares 1 with 2 columns"),
    f"{S} o.id, (SELECT l.product, l.price FROM order_lines l) AS p FROM orders o": (1, 30, "(SELECT l.product, l.price FROM order_lines l)", "several columns"),
    f"{S} o.id, (SELECT sum(l.id) FROM order_lines l WHERE l.id = o.id HAVING count(*) > 1) AS p FROM orders o": (1, 30, "(SELECT sum(l.id) FROM order_lines l WHERE l.id = o.id HAVI…", "HAVING, windows and DISTINCT"),
    f"{S} o.id FROM orders o WHERE EXISTS (SELECT sum(l.price) FROM order_lines l WHERE l.id = o.id)": (1, 49, "EXISTS (SELECT sum(l.price) FROM order_lines l WHERE l.id =…", "an aggregate without GROUP BY returns a row"),
    f"{S} o.id, (SELECT max(o.total) FROM notes n) AS p FROM orders o": (1, 42, "o.total", "is a column of the outer query"),
    f"{S} o.customer, (SELECT max(o.total) FROM notes n) AS p FROM orders o GROUP BY o.customer": (1, 48, "o.total", "is a column of the outer query"),
    f"{S} o.id FROM orders o LEFT JOIN notes n ON n.order_id = o.id AND EXISTS (SELECT 1 FROM order_lines)": (1, 86, "EXISTS (SELECT 1 FROM order_lines)", "a subquery in ON is not supported"),
    f"{S} o.id FROM orders o LEFT JOIN (notes n JOIN order_lines l ON EXISTS (SELECT 1 FROM order_lines)) ON l.order_id = o.id": (1, 84, "EXISTS (SELECT 1 FROM order_lines)", "a subquery in ON of a join within an outer join"),
    f"{S} o.id FROM orders o WHERE (o.id, o.id) > ANY (SELECT n.order_id, n.order_id FROM notes n)": (1, 49, "(o.id, o.id) > ANY (SELECT n.order_id, n.order_id FROM note…", "rows are compared only by = ANY"),
    f"{S} id FROM orders UNION ALL SELECT id, product FROM order_lines": (1, 56, "", "2 columns, but the first one has 1"),
    f"{S} id FROM orders UNION BY NAME SELECT id FROM order_lines": (1, 24, "", "UNION BY NAME is not supported"),
    f"{S} * REPLACE (1 AS id) FROM orders": (1, 24, "* REPLACE (1 AS id)", "only *, t.* and * EXCLUDE"),
    f"{S} * FROM orders": (1, 24, "*", "geometry(point,4326)"),
    f"{S} * EXCLUDE (status) FROM orders": (1, 24, "* EXCLUDE (status)", "geometry(point,4326)"),
    f"{S} x.* FROM orders o": (1, 24, "x.*", "no table in FROM is called x"),
    f"{S} count(o.*) AS n FROM orders o": (1, 30, "o.*", "* is not supported here"),
    f"{S} * FROM order_lines l JOIN notes n ON n.order_id = l.order_id": (1, 24, "*", "two columns called order_id"),
    f"{S} o.id, random() AS r FROM orders o": (1, 30, "random()", "random depends on more than the rows"),
    f"{S} o.id, now() AS r FROM orders o": (1, 30, "now()", "now depends on more than the rows"),
    f"{S} o.id, current_timestamp AS r FROM orders o": (1, 30, "current_timestamp", "current_timestamp depends on more than the rows"),
    f"{S} o.id, age(TIMESTAMP '2020-01-01') AS r FROM orders o": (1, 30, "age(TIMESTAMP '2020-01-01')", "age depends on more than the rows"),
    f"{S} o.id FROM orders o WHERE EXISTS (SELECT 1 FROM notes WHERE order_id = o.id AND random() > 1)": (1, 103, "random()", "random depends on more than the rows"),
    f"{S} o.id FROM orders o WHERE unnest([o.id]) = 1": (1, 49, "unnest([o.id])", "turns one row into several"),
    f"{S} sum(unnest([o.id])) AS r FROM orders o": (1, 28, "unnest([o.id])", "an aggregate function cannot contain unnest"),
    f"{S} o.id, json_group_array(o.status) AS j FROM orders o GROUP BY o.id": (1, 30, "json_group_array(o.status)", "json_group_array depends on the order of the rows"),
    f"{S} o.id, list(DISTINCT o.status) AS j FROM orders o GROUP BY o.id": (1, 30, "list(DISTINCT o.status)", "list(DISTINCT o.status ORDER BY …)"),
    f"{S} o.id, o.status.list() AS j FROM orders o GROUP BY o.id": (1, 30, "o.status.list()", "calling list as a method of its argument"),
    f"{S} o.customer, o.id + count(*) AS j FROM orders o GROUP BY o.customer": (1, 36, "o.id", "several values in one group"),
    f"{S} o.customer, count(*) AS j FROM orders o": (1, 24, "o.customer", "several values in one group"),
    f"{S} o.id, l.product FROM orders o JOIN order_lines l ON l.order_id = o.id GROUP BY o.id": (1, 30, "l.product", "several values in one group"),
    f"{S} o.customer AS c FROM orders o GROUP BY 3": (1, 63, "3", "no column 3 in the select list"),
    f"{S} o.id, $1 AS x FROM orders o": (1, 30, "$1", "a parameter is not supported"),
    f"{S} o.id FROM orders o WHERE #1 > 1": (1, 49, "#1", "a position is not supported"),
    f"{S} o.id, nofunction(o.status) AS x FROM orders o": (1, 30, "nofunction(o.status)", "there is no function nofunction"),
    f"{S} o.id, o.customer + 1 AS x FROM orders o": (1, 41, "+", "You might need to add explicit type casts"),
    f"{S} x, o.id FROM (SELECT o.id, o.customer + 1 AS x\nFROM orders o) o": (1, 62, "+", "explicit type casts"),
    f"WITH w AS (SELECT id, customer AS c FROM orders) {S} w.id FROM w JOIN w v ON v.id = w.id WHERE w.c + 1 > 2": (1, 119, "+", "explicit type casts"),
    f"{S} id FROM ordes": (1, 32, "ordes", "Did you mean inventory.orders"),
    f"{S} id FROM elsewhere.orders": (1, 32, "elsewhere.orders", "not declared"),
    f"{S} o.custmer FROM orders o": (1, 24, "o.custmer", "Did you mean o.customer"),
    f"{S} x.id FROM orders o": (1, 24, "x.id", "no table in FROM is called x"),
    f"{S} id FROM orders o JOIN order_lines l ON l.order_id = o.id": (1, 24, "id", "Write o.id or l.id"),
    f"{S} o.id FROM orders o WHERE EXISTS (SELECT 1 FROM notes n WHERE n.order_id = o.idd)": (1, 98, "o.idd", "Did you mean o.id"),
    f"{S} o.shape FROM orders o": (1, 24, "o.shape", "geometry(point,4326)"),
    f"{S} o.status.x AS y FROM orders o": (1, 24, "o.status.x", "column status has no fields"),
    f"{S} o.id, list(l) AS ls FROM orders o JOIN order_lines l ON l.order_id = o.id GROUP BY o.id": (1, 35, "l", "a whole row is not supported"),
    f"{S} o.id, o.status AS x, o.customer AS X FROM orders o": (1, 45, "o.customer", "two columns called X"),
    f"{S} count(*), count(o.id) FROM orders o": (1, 34, "count(o.id)", "two columns called count: count(*) and count(o.id)"),
    f"{S} o.id + 1, o.id + 2 FROM orders o": (1, 34, "o.id + 2", "two columns called ?column?: o.id + 1 and o.id + 2"),
    f"{S} * FROM (SELECT count(*), count(id) FROM orders)": (1, 24, "*", "a column of * has no name"),
    f"{S} o.id, [o.id, 1:2] AS x FROM orders o": (1, 38, ":", "syntax error"),
    f"{S} o.id, row(o.id, 1) AS x FROM orders o": (1, 30, "row(o.id, 1)", "cannot be written exactly as JSON"),
    f"{S} o.id FROM orders o JOIN orders o ON o.id = o.id": (1, 48, "orders o", "two tables in FROM are called o"),
    f"{S} n.id FROM lonely n": (1, 34, "lonely n", "no primary key"),
    f"{S} 'é' AS é, o.nothing FROM orders o": (1, 34, "o.nothing", "no column nothing"),
}  # fmt: skip


@pytest.mark.parametrize("sql", REFUSED)
def test_refusal_names_the_place_and_what_is_wrong(sql: str, catalog: Catalog) -> None:
    line, column, text, message = REFUSED[sql]

    with pytest.raises(SqlTextError) as raised:
        read_view(ViewText("views/v.sql", sql), catalog)

    place = raised.value.place
    assert message in str(raised.value)
    assert (place.path, place.line, place.column, place.text) == ("views/v.sql", line, column, text)
    assert raised.value.hint


def test_errors_survive_the_way_between_processes(catalog: Catalog) -> None:
    with pytest.raises(SqlTextError) as raised:
        read_view(ViewText("v.sql", "SELECT 1"), catalog)

    copy = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 - our own bytes

    assert str(copy) == str(raised.value)


def test_views_that_read_each_other_in_a_circle_are_refused(catalog: Catalog) -> None:
    views = {
        "v": ViewText("v.sql", f"{S} id FROM w"),
        "w": ViewText("w.sql", f"{S} id FROM orders UNION SELECT id FROM v"),
    }

    with pytest.raises(SqlTextError, match="view v reads itself through w") as raised:
        read_view(views["v"], catalog, views)

    assert str(raised.value.place) == "w.sql:1:60"


def test_a_name_of_a_table_and_a_view_is_ambiguous(catalog: Catalog) -> None:
    views = {"orders": ViewText("orders.sql", f"{S} id FROM inventory.orders")}

    with pytest.raises(SqlTextError, match=r"Write inventory\.orders, or rename the view"):
        read_view(ViewText("v.sql", f"{S} id FROM orders"), catalog, views)


TWINS = parse_catalog(
    {
        "tables.sql": 'CREATE TABLE s.orders (id int PRIMARY KEY); CREATE TABLE s."Orders" (id int PRIMARY KEY, n int);'
    }
)


@pytest.mark.parametrize(("name", "columns"), [("s.orders", "id"), ('s."Orders"', "id, n"), ("orders", "id")])
def test_of_tables_that_differ_by_case_the_one_of_exactly_this_name_is_read(name: str, columns: str) -> None:
    view = read_view(ViewText("v.sql", f"{S} {columns} FROM {name}"), TWINS, {})

    assert [output for output, _ in view.outputs] == columns.split(", ")


def test_tables_that_differ_by_case_are_not_read_together() -> None:
    text = f'{S} o.id FROM s.orders o JOIN s."Orders" p ON p.id = o.id'

    with pytest.raises(SqlTextError, match=r"tables s\.orders and s\.Orders differ only in") as raised:
        read_view(ViewText("v.sql", text), TWINS, {})
    assert "read them in different pipelines" in str(raised.value)


def test_a_view_may_read_the_table_of_its_own_name(catalog: Catalog) -> None:
    views = {"orders": ViewText("orders.sql", f"{S} id FROM orders")}

    view = read_view(views["orders"], catalog, views)

    assert view.outputs == (("id", "c1"),)


def test_a_mistake_in_another_view_is_shown_in_its_own_text(catalog: Catalog) -> None:
    views = {"w": ViewText("views/w.sql", f"{S}\n  o.idd FROM orders o")}

    with pytest.raises(SqlTextError, match=r"views/w\.sql:2:3 at `o\.idd`"):
        read_view(ViewText("views/v.sql", f"{S} idd FROM w"), catalog, views)


def test_functions_of_times_with_a_zone_depend_on_their_arguments_alone() -> None:
    facts = function_facts()
    pure = [("-", 2), ("+", 2), ("date_trunc", 2), ("date_part", 2), ("strftime", 2), ("timezone", 2)]
    impure = [("now", 0), ("current_localtime", 0), ("current_localtimestamp", 0), ("age", 1), ("random", 0)]
    assert [call for call in [*pure, *impure] if facts.is_impure(*call)] == impure
    assert facts.is_impure("getvariable", 1)


def test_all_mistakes_of_a_view_are_reported_at_once_in_the_order_of_the_text(catalog: Catalog) -> None:
    text = f"""{S} o.idd, o.id::intt AS a, uper(o.status) AS b, now() AS c
        FROM orders o WHERE o.totl > 1 AND o.id = 1 AND random() > 0"""

    with pytest.raises(SqlTextError) as raised:
        read_view(ViewText("v.sql", text), catalog, {})

    error = raised.value
    found = [each.place.text for each in (error, *error.others)]
    assert found == ["o.idd", "uper(o.status)", "now()", "o.totl", "random()"]
    assert len(str(error).splitlines()) == len(found)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own


def test_all_mistakes_that_duckdb_finds_in_columns_are_reported(catalog: Catalog) -> None:
    text = f"{S} o.id, o.id::intt AS a, substr(o.status) AS b, o.status || o.id AS c, o.total + o.status AS d FROM orders o"

    with pytest.raises(SqlTextError) as raised:
        read_view(ViewText("v.sql", text), catalog, {})

    error = raised.value
    assert [each.place.text for each in (error, *error.others)] == ["intt", "substr", "+"]
    assert "aborted" not in str(error)


def test_both_sides_of_a_join_and_all_branches_are_read(catalog: Catalog) -> None:
    text = f"{S} o.id FROM ordrs o JOIN (orderlines l JOIN notes n ON true) ON true UNION ALL SELECT x FROM orders"

    with pytest.raises(SqlTextError) as raised:
        read_view(ViewText("v.sql", text), catalog, {})

    error = raised.value
    assert [each.place.text for each in (error, *error.others)] == ["ordrs o", "orderlines l", "x"]
    assert "Did you mean inventory.orders" in str(error)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("to_char(o.id, '9')", "Write strftime"),
        ("uppr(o.status)", "Did you mean upper"),
        ("zzzzqq(1)", "DuckDB's SQL"),
    ],
)
def test_an_unknown_function_is_named_with_what_to_write(catalog: Catalog, call: str, hint: str) -> None:
    with pytest.raises(SqlTextError, match="there is no function") as raised:
        read_view(ViewText("v.sql", f"{S} {call} AS x FROM orders o"), catalog, {})
    assert hint in str(raised.value)
    assert raised.value.place.text == call


@pytest.mark.parametrize(
    ("condition", "place", "message"),
    [
        ("e.at_ > now() - INTERVAL 1 MONTH", "INTERVAL 1 MONTH", "in days"),
        ("e.at_ > now() - e.id * INTERVAL 1 DAY", "e.id * INTERVAL 1 DAY", "Add it to the column"),
        ("e.at_ > now() - 5", "5", "only an interval"),
        ("e.at_ > date_trunc('day', now())", "date_trunc('day', now())", "only intervals can be added"),
        ("e.at_ > now() OR e.id = 1", "e.at_ > now() OR e.id = 1", "Compare a time in WHERE"),
        ("now() > now()", "now() > now()", "compared with itself"),
        ("e.at_ = now()", "e.at_ = now()", "is not compared"),
    ],
)
def test_conditions_on_the_time_are_comparisons(condition: str, place: str, message: str) -> None:
    with pytest.raises(SqlTextError, match=message) as raised:
        read_view(
            ViewText("v.sql", f"{S} e.id FROM events e WHERE {condition}"),
            parse_catalog({"t.sql": "CREATE TABLE events (id bigint PRIMARY KEY, at_ timestamptz)"}),
            {},
        )
    assert raised.value.place.text == place
