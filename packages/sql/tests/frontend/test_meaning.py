# ruff: noqa: E501, S608 - views read best on few lines; the SQL is ours
"""A view's tree means what its text means in DuckDB, on many small databases."""

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import duckdb
import pytest

from slackwater_sql.ddl import parse_catalog
from slackwater_sql.frontend import ViewText, read_view
from slackwater_sql.frontend.plain import plain, plain_view
from slackwater_sql.logical import LogicalView, Relation, children

TABLES = """
CREATE TABLE a (id bigint PRIMARY KEY, name text, x integer, g integer NOT NULL);
CREATE TABLE b (id bigint PRIMARY KEY, a_id bigint, y integer, t text, d numeric(6,2));
CREATE TABLE c (k1 bigint, k2 text, v integer, a_id bigint NOT NULL, PRIMARY KEY (k1, k2));
"""
CATALOG = parse_catalog({"tables.sql": TABLES})
DATABASES = 12

SAME = {
    "columns": "SELECT TRANSACTIONALLY id, name, x + 1 AS next FROM a",
    "where": "SELECT TRANSACTIONALLY a.id, a.name FROM a WHERE a.x > 1 AND (a.g = 1 OR a.name LIKE 'p%')",
    "inner join": "SELECT TRANSACTIONALLY a.id, b.id AS b_id, b.y FROM a JOIN b ON b.a_id = a.id",
    "left join with residual": "SELECT TRANSACTIONALLY a.id, b.id AS b_id FROM a LEFT JOIN b ON b.a_id = a.id AND b.y > a.x AND b.y > 1",
    "left join, condition on the left side": "SELECT TRANSACTIONALLY a.id, b.id AS b_id FROM a LEFT JOIN b ON b.a_id = a.id AND a.x > 1",
    "right join": "SELECT TRANSACTIONALLY a.id, b.id AS b_id FROM a RIGHT JOIN b ON b.a_id = a.id AND b.y > 1",
    "full join": "SELECT TRANSACTIONALLY a.id, b.id AS b_id FROM a FULL JOIN b ON b.a_id = a.id AND b.y > 0",
    "full join of nullable groups": """SELECT TRANSACTIONALLY l.x, l.n, r.y, r.m FROM (SELECT x, count(*) AS n FROM a GROUP BY x) l
        FULL JOIN (SELECT y, count(*) AS m FROM b GROUP BY y) r ON l.x = r.y""",
    "full join using": "SELECT TRANSACTIONALLY id, a.name, b.t FROM a FULL JOIN b USING (id)",
    "left join using": "SELECT TRANSACTIONALLY id, a.name, b.t, b.id AS other FROM a LEFT JOIN b USING (id)",
    "right join using": "SELECT TRANSACTIONALLY id, a.name, b.t, a.id AS other FROM a RIGHT JOIN b USING (id)",
    "natural join": "SELECT TRANSACTIONALLY a.id AS i, b.id AS j, a_id, t, v FROM a, (b NATURAL JOIN c) WHERE a.id = b.id",
    "star of using": "SELECT TRANSACTIONALLY * FROM a JOIN (SELECT id, y FROM b) b USING (id)",
    "star of full using": "SELECT TRANSACTIONALLY * FROM a FULL JOIN (SELECT id, y FROM b) b USING (id)",
    "star of right using": "SELECT TRANSACTIONALLY * FROM a RIGHT JOIN (SELECT id, y FROM b) b USING (id)",
    "semi join": "SELECT TRANSACTIONALLY a.id FROM a SEMI JOIN b ON b.a_id = a.id AND b.y > a.x",
    "anti join": "SELECT TRANSACTIONALLY a.id FROM a ANTI JOIN b ON b.a_id = a.id AND b.y > 1",
    "anti join using": "SELECT TRANSACTIONALLY * FROM a ANTI JOIN b USING (id)",
    "comma join": "SELECT TRANSACTIONALLY a.id, b.id AS b_id, c.v FROM a, b, c WHERE c.a_id = a.id AND b.a_id = a.id AND b.y < c.v",
    "comma join that has to be reordered": "SELECT TRANSACTIONALLY a.id, b.id AS b_id, c.v FROM a, b, c WHERE a.id = c.a_id AND c.k1 = b.id",
    "cross join": "SELECT TRANSACTIONALLY a.id, b.id AS b_id FROM a CROSS JOIN b WHERE a.x = b.y",
    "where on the right side of a left join": "SELECT TRANSACTIONALLY a.id, b.id AS b_id, c.v FROM a LEFT JOIN b ON b.a_id = a.id, c WHERE b.id = c.k1",
    "join behind an outer join": "SELECT TRANSACTIONALLY a.id, b.id AS b_id, c.v FROM a LEFT JOIN b ON b.a_id = a.id JOIN c ON c.k1 = b.id AND c.v > 0",
    "chain": "SELECT TRANSACTIONALLY a.id, b.id AS b_id, c.k2 FROM a JOIN b ON b.a_id = a.id LEFT JOIN c ON c.a_id = b.y AND c.v = b.id",
    "self join": "SELECT TRANSACTIONALLY p.id, q.id AS other FROM b p JOIN b AS q ON q.a_id = p.a_id AND q.id > p.id",
    "self join by equality of one side": "SELECT TRANSACTIONALLY p.id, q.id AS other FROM b p JOIN b AS q ON q.a_id = q.y AND p.id = q.y",
    "join in parentheses": "SELECT TRANSACTIONALLY a.id, b.id AS b_id FROM a LEFT JOIN (b JOIN c ON c.k1 = b.id) ON b.a_id = a.id",
    "group": "SELECT TRANSACTIONALLY a_id, count(*) AS n, sum(y) AS s, min(t) AS t, avg(d) AS d FROM b GROUP BY a_id",
    "group by expression": "SELECT TRANSACTIONALLY (y + 1) % 2 AS k, count(*) AS n, (y + 1) % 2 + 1 AS l FROM b GROUP BY (y + 1) % 2",
    "group by alias": "SELECT TRANSACTIONALLY y % 2 AS k, count(*) AS n FROM b GROUP BY k",
    "group by position": "SELECT TRANSACTIONALLY a_id, y % 2 AS k, count(*) AS n FROM b GROUP BY 1, 2",
    "group by all": "SELECT TRANSACTIONALLY a_id, y % 2 AS k, count(*) AS n FROM b GROUP BY ALL",
    "group by is null": "SELECT TRANSACTIONALLY (y IS NULL) AS k, y IS NULL OR count(*) > 1 AS n FROM b GROUP BY (y IS NULL)",
    "having": "SELECT TRANSACTIONALLY a_id, count(*) AS n FROM b GROUP BY a_id HAVING n > 1 AND max(y) > 0 OR a_id IS NULL",
    "global": "SELECT TRANSACTIONALLY count(*) AS n, sum(y) AS s, sum(y) FILTER (WHERE t = 'p') AS p FROM b",
    "global having": "SELECT TRANSACTIONALLY count(*) AS n FROM b HAVING count(*) > 2",
    "distinct aggregate": "SELECT TRANSACTIONALLY a_id, count(DISTINCT y) AS n, list(DISTINCT t ORDER BY t) AS ts FROM b GROUP BY a_id",
    "ordered list": "SELECT TRANSACTIONALLY a_id, list({'y': y, 't': t} ORDER BY id DESC) FILTER (WHERE y > 0) AS l FROM b GROUP BY a_id",
    "nested structs": "SELECT TRANSACTIONALLY a.id, {'n': any_value(a.name), 'bs': coalesce(list({'id': b.id, 'ds': [b.d, b.y]} ORDER BY b.id) FILTER (WHERE b.id IS NOT NULL), [])} AS doc FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY a.id, a.name",
    "lambda": "SELECT TRANSACTIONALLY a_id, list_transform(list(y ORDER BY id), lambda y: y + a_id) AS l, [z + 1 for z in list(y ORDER BY id) if z > 0] AS m FROM b GROUP BY a_id",
    "groups over groups": "SELECT TRANSACTIONALLY n, count(*) AS m FROM (SELECT a_id, count(*) AS n FROM b GROUP BY a_id) GROUP BY n",
    "join of groups": "SELECT TRANSACTIONALLY a.id, s.n, s.total FROM a LEFT JOIN (SELECT a_id, count(*) AS n, sum(y) AS total FROM b GROUP BY a_id) s ON s.a_id = a.id",
    "struct field": "SELECT TRANSACTIONALLY s.doc.x + 1 AS x, doc.y AS y FROM (SELECT id, {'x': x, 'y': name} AS doc FROM a) s",
    "alias reuse": "SELECT TRANSACTIONALLY id, x + 1 AS p, p * 2 AS q, q - 1 AS r FROM a WHERE q > 2",
    "alias of a column's name": "SELECT TRANSACTIONALLY id, x + 1 AS g, g * 2 AS h FROM a WHERE g > 0",
    "case": "SELECT TRANSACTIONALLY id, CASE x WHEN 1 THEN 'one' WHEN 2 THEN name ELSE 'many' END AS w, CASE WHEN x IS NULL THEN 0 ELSE x END AS v FROM a",
    "casts": "SELECT TRANSACTIONALLY id, (x)::text || 'e' AS t, CAST(x AS double) / 2 AS h, TRY_CAST(name AS int) AS i, x::decimal(10,2) AS d FROM a",
    "between, in, like": "SELECT TRANSACTIONALLY id FROM a WHERE x BETWEEN 0 AND 2 AND g IN (0, 1, x) AND (name NOT LIKE 'q%' OR name IS NULL)",
    "comments": "SELECT TRANSACTIONALLY id, x -- the x, with ' and (\n + /* one) */ 1 AS n FROM a -- end",
    "distinct": "SELECT TRANSACTIONALLY DISTINCT y, t FROM b",
    "distinct of keys": "SELECT TRANSACTIONALLY DISTINCT id, name FROM a",
    "distinct expression": "SELECT TRANSACTIONALLY DISTINCT y % 2 AS m, a_id FROM b",
    "distinct of groups": "SELECT TRANSACTIONALLY DISTINCT count(*) AS n FROM b GROUP BY a_id",
    "union all": "SELECT TRANSACTIONALLY id, x AS v FROM a UNION ALL SELECT id, y FROM b UNION ALL SELECT k1, v FROM c",
    "union": "SELECT TRANSACTIONALLY x AS v FROM a UNION SELECT y FROM b",
    "union of types": "SELECT TRANSACTIONALLY x AS v, name AS w FROM a UNION SELECT d, CAST(y AS text) FROM b",
    "except": "SELECT TRANSACTIONALLY x AS v FROM a EXCEPT SELECT y FROM b",
    "intersect": "SELECT TRANSACTIONALLY x AS v, id AS w FROM a INTERSECT SELECT y, id FROM b",
    "with": "WITH s AS (SELECT a_id, sum(y) AS total FROM b GROUP BY a_id) SELECT TRANSACTIONALLY a.id, s.total FROM a LEFT JOIN s ON s.a_id = a.id",
    "with used twice": "WITH s(k, v) AS (SELECT a_id, y FROM b WHERE y IS NOT NULL), u AS (SELECT k, max(v) AS v FROM s GROUP BY k) SELECT TRANSACTIONALLY s.k, s.v FROM s JOIN u ON u.k = s.k AND u.v = s.v",
    "with inside": "SELECT TRANSACTIONALLY z.id FROM (WITH s AS (SELECT id FROM a WHERE x > 0) SELECT id FROM s UNION ALL SELECT id FROM s) z",
    "exists": "SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id AND b.y > a.x)",
    "not exists": "SELECT TRANSACTIONALLY a.id FROM a WHERE NOT EXISTS (SELECT * FROM b WHERE b.a_id = a.id AND y > 0)",
    "exists without correlation": "SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (FROM b WHERE y > 1) AND x > 0",
    "exists as value": "SELECT TRANSACTIONALLY a.id, EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id) AS e, EXISTS (SELECT 1 FROM c) AS f FROM a WHERE x = 1 OR NOT EXISTS (SELECT 1 FROM c WHERE c.a_id = a.id)",
    "in": "SELECT TRANSACTIONALLY a.id FROM a WHERE a.x IN (SELECT y FROM b)",
    "in correlated": "SELECT TRANSACTIONALLY a.id FROM a WHERE a.x IN (SELECT y FROM b WHERE b.a_id = a.id)",
    "in groups": "SELECT TRANSACTIONALLY a.id FROM a WHERE a.id IN (SELECT a_id FROM b GROUP BY a_id HAVING count(*) > 1)",
    "in union": "SELECT TRANSACTIONALLY a.id FROM a WHERE a.id IN (SELECT a_id FROM b UNION ALL SELECT a_id FROM c)",
    "not in": "SELECT TRANSACTIONALLY a.id FROM a WHERE a.g NOT IN (SELECT a_id FROM c)",
    "in of a group": "SELECT TRANSACTIONALLY g, count(*) AS n FROM a GROUP BY g HAVING g IN (SELECT a_id FROM c)",
    "exists of groups": "SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (SELECT y FROM b WHERE b.a_id = a.id GROUP BY y HAVING count(*) > 1)",
    "scalar aggregate": "SELECT TRANSACTIONALLY a.id, (SELECT max(y) FROM b) AS m FROM a WHERE x < (SELECT avg(y) FROM b)",
    "scalar aggregate correlated": "SELECT TRANSACTIONALLY a.id, (SELECT sum(y) FROM b WHERE b.a_id = a.id) AS s FROM a",
    "scalar count": "SELECT TRANSACTIONALLY a.id, (SELECT count(*) FROM b WHERE b.a_id = a.id) AS n, (SELECT count(y) * 10 + coalesce(max(y), -1) FROM b WHERE b.a_id = a.id AND t = 'p') AS m FROM a",
    "scalar by key": "SELECT TRANSACTIONALLY b.id, (SELECT name FROM a WHERE a.id = b.a_id) AS name FROM b",
    "scalar in aggregate": "SELECT TRANSACTIONALLY b.t, sum((SELECT x FROM a WHERE a.id = b.a_id)) AS s FROM b GROUP BY b.t",
    "scalar over groups": "SELECT TRANSACTIONALLY b.a_id, count(*) + (SELECT count(*) FROM c WHERE c.a_id = b.a_id) AS n FROM b GROUP BY b.a_id HAVING count(*) > (SELECT min(v) FROM c)",
    "scalar of scalar": "SELECT TRANSACTIONALLY a.id, (SELECT sum((SELECT max(v) FROM c WHERE c.k1 = b.id)) FROM b WHERE b.a_id = a.id) AS s FROM a",
    "row number": "SELECT TRANSACTIONALLY id, row_number() OVER (PARTITION BY a_id ORDER BY y DESC, id) AS n FROM b",
    "qualify": "SELECT TRANSACTIONALLY id, y FROM b QUALIFY row_number() OVER (PARTITION BY a_id ORDER BY id) = 1",
    "qualify by alias": "SELECT TRANSACTIONALLY id, rank() OVER w AS r FROM b WINDOW w AS (PARTITION BY a_id ORDER BY y) QUALIFY r < 3",
    "ranks": "SELECT TRANSACTIONALLY id, rank() OVER w AS r, dense_rank() OVER w AS d, percent_rank() OVER w AS p, cume_dist() OVER w AS c FROM b WINDOW w AS (PARTITION BY a_id ORDER BY y NULLS FIRST)",
    "sums over ranges": "SELECT TRANSACTIONALLY id, sum(y) OVER (PARTITION BY a_id ORDER BY y) AS s, sum(y) OVER (PARTITION BY a_id) AS a, count(*) OVER (PARTITION BY t, a_id ORDER BY y RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS r FROM b",
    "rows": "SELECT TRANSACTIONALLY id, sum(y) OVER (PARTITION BY a_id ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS s, lag(y, 1, -1) OVER (PARTITION BY a_id ORDER BY id) AS l, first_value(y) OVER (PARTITION BY a_id ORDER BY id) AS f, last_value(y) OVER (PARTITION BY a_id ORDER BY id) AS g FROM b",
    "windows over groups": "SELECT TRANSACTIONALLY a_id, y, count(*) AS n, sum(count(*)) OVER (PARTITION BY a_id) AS m FROM b GROUP BY a_id, y",
    "window in expression": "SELECT TRANSACTIONALLY id, y - avg(y) OVER (PARTITION BY a_id) AS diff FROM b",
    "nth value": "SELECT TRANSACTIONALLY id, nth_value(id, 2) OVER (PARTITION BY a_id ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS n, list(id) OVER (PARTITION BY a_id ORDER BY id) AS l FROM b",
    "quoted and cased names": 'SELECT TRANSACTIONALLY "A".ID, A."Name" AS "the name" FROM A WHERE a."X" > 0',
    "schema names": "SELECT TRANSACTIONALLY public.a.id, a.name FROM public.a",
    "dates": "SELECT TRANSACTIONALLY id, extract(year FROM DATE '2020-01-31' + INTERVAL (g) MONTH) AS y, date_trunc('month', TIMESTAMP '2020-01-31 10:00:00' + INTERVAL '1 day') AS m FROM a",
    "json": "SELECT TRANSACTIONALLY id, ('{\"a\": ' || g || '}')::json->>'a' AS v, ('{\"a\": 1}'::json)->'a' AS w FROM a",
    "not and precedence": "SELECT TRANSACTIONALLY id, NOT (x > 1) AS p, -x AS m, -(x + g) * 2 AS q, x IS NOT DISTINCT FROM g AS d, x IS NULL AS n FROM a WHERE NOT x = 2 OR x IS NULL",
    "duplicate names below": "SELECT TRANSACTIONALLY s.id, s.id_1 FROM (SELECT a.id, b.id FROM a JOIN b ON b.a_id = a.id) s",
    "same column twice": "SELECT TRANSACTIONALLY id AS p, id AS q, x + 1 AS r, x + 1 AS s FROM a",
    "same columns twice in a union": "SELECT TRANSACTIONALLY id AS p, id AS q FROM a UNION SELECT id, a_id FROM b",
}  # fmt: skip

# Views that say what DuckDB alone does not know, beside the same in plain SQL.
TRANSLATED = {
    "columns of a table whose key is grouped": (
        "SELECT TRANSACTIONALLY a.id, a.name, a.x + count(b.id) AS n FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY a.id HAVING a.x > 0",
        "SELECT a.id, a.name, a.x + count(b.id) AS n FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY a.id, a.name, a.x HAVING a.x > 0"),
    "columns of a grouped table in a subquery": (
        "SELECT TRANSACTIONALLY a.id, (SELECT count(*) FROM c WHERE c.v = a.x) AS n FROM a JOIN b ON b.a_id = a.id GROUP BY a.id",
        "SELECT a.id, (SELECT count(*) FROM c WHERE c.v = a.x) AS n FROM a JOIN b ON b.a_id = a.id GROUP BY a.id, a.x"),
    "lists in the order of the keys": (
        "SELECT TRANSACTIONALLY b.a_id, list(b.y) AS ys, first(c.v) AS v, string_agg(b.t, ',') AS ts FROM b JOIN c ON c.a_id = b.a_id GROUP BY b.a_id",
        "SELECT b.a_id, list(b.y ORDER BY b.id, c.k1, c.k2) AS ys, first(c.v ORDER BY b.id, c.k1, c.k2) AS v, string_agg(b.t, ',' ORDER BY b.id, c.k1, c.k2) AS ts FROM b JOIN c ON c.a_id = b.a_id GROUP BY b.a_id"),
    "ties of an ordered list": (
        "SELECT TRANSACTIONALLY a_id, list(id ORDER BY y DESC) AS l, arg_min(id, y) AS m FROM b GROUP BY a_id",
        "SELECT a_id, list(id ORDER BY y DESC, id) AS l, arg_min(id, y ORDER BY id) AS m FROM b GROUP BY a_id"),
    "any value": (
        "SELECT TRANSACTIONALLY a_id, any_value(t) AS t, any_value(y ORDER BY d) AS y FROM b GROUP BY a_id",
        "SELECT a_id, min(t) AS t, any_value(y ORDER BY d, id) AS y FROM b GROUP BY a_id"),
    "numbering of ties": (
        "SELECT TRANSACTIONALLY id, row_number() OVER (PARTITION BY a_id ORDER BY y) AS n, lead(id) OVER (PARTITION BY a_id ORDER BY t) AS l, ntile(2) OVER (PARTITION BY a_id) AS h FROM b",
        "SELECT id, row_number() OVER (PARTITION BY a_id ORDER BY y, id) AS n, lead(id) OVER (PARTITION BY a_id ORDER BY t, id) AS l, ntile(2) OVER (PARTITION BY a_id ORDER BY id) AS h FROM b"),
    "values of peers": (
        "SELECT TRANSACTIONALLY id, last_value(id) OVER (PARTITION BY a_id ORDER BY y) AS n, list(id) OVER (PARTITION BY a_id ORDER BY y) AS l FROM b",
        """SELECT p.id, (SELECT last(q.id ORDER BY q.y, q.id) FROM b q WHERE q.a_id IS NOT DISTINCT FROM p.a_id AND (p.y IS NULL OR q.y <= p.y)),
            (SELECT list(q.id ORDER BY q.y, q.id) FROM b q WHERE q.a_id IS NOT DISTINCT FROM p.a_id AND (p.y IS NULL OR q.y <= p.y)) FROM b p"""),
    "frames of rows over ties": (
        "SELECT TRANSACTIONALLY id, sum(id) OVER (PARTITION BY a_id ORDER BY y ROWS 1 PRECEDING) AS s FROM b",
        "SELECT id, sum(id) OVER (PARTITION BY a_id ORDER BY y, id ROWS 1 PRECEDING) AS s FROM b"),
}  # fmt: skip


def test_that_views_over_views_are_views() -> None:
    texts = {
        "totals": ViewText(
            "SELECT TRANSACTIONALLY a.id, a.name, sum(b.y) AS total FROM a JOIN b ON b.a_id = a.id GROUP BY a.id",
            "totals.sql",
        ),
        "big": ViewText("SELECT TRANSACTIONALLY * FROM totals WHERE total > 1", "big.sql"),
    }
    view = read_view(
        "SELECT TRANSACTIONALLY t.name, count(*) AS n, max(b.total) AS m FROM totals t LEFT JOIN big b ON b.id = t.id GROUP BY t.name",
        CATALOG,
        path="v.sql",
        views=texts,
    )

    expected = """WITH totals AS (SELECT a.id, a.name, sum(b.y) AS total FROM a JOIN b ON b.a_id = a.id GROUP BY a.id, a.name),
        big AS (SELECT * FROM totals WHERE total > 1)
        SELECT t.name, count(*) AS n, max(b.total) AS m FROM totals t LEFT JOIN big b ON b.id = t.id GROUP BY t.name"""
    for database in _databases():
        assert _rows(database, plain_view(view)) == _rows(database, expected)


@pytest.mark.parametrize("name", SAME)
def test_tree_means_what_the_text_means(name: str) -> None:
    view = _view(SAME[name])
    plain_text = ViewText(SAME[name], "v.sql").query

    _assert_same(view, plain_text)


@pytest.mark.parametrize("name", TRANSLATED)
def test_tree_means_what_the_text_means_here(name: str) -> None:
    view = _view(TRANSLATED[name][0])

    _assert_same(view, TRANSLATED[name][1])


def _assert_same(view: LogicalView, expected: str) -> None:
    for number, database in enumerate(_databases()):
        assert _rows(database, plain_view(view)) == _rows(database, expected), (number, plain_view(view))
        for relation in _nodes(view.relation):
            _assert_identity(database, relation)


def _assert_identity(database: duckdb.DuckDBPyConnection, relation: Relation) -> None:
    columns = ", ".join(f'"{column}"' for column in relation.identity)
    repeated = f"SELECT count(*) FROM (\n{plain(relation)}\n) {'GROUP BY ' + columns if columns else ''} HAVING count(*) > 1"
    assert database.execute(repeated).fetchall() == [], (columns, plain(relation))


def _view(sql: str) -> LogicalView:
    return read_view(sql, CATALOG, path="views/v.sql")


def _nodes(relation: Relation) -> Iterator[Relation]:
    yield relation
    for child in children(relation):
        yield from _nodes(child)


def _rows(database: duckdb.DuckDBPyConnection, sql: str) -> Counter[str]:
    return Counter(repr(row) for row in database.execute(sql).fetchall())


@cache
def _databases() -> tuple[duckdb.DuckDBPyConnection, ...]:
    return tuple(_database(random.Random(seed), seed % 4 * 4) for seed in range(DATABASES))


def _database(chance: random.Random, size: int) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config={"threads": 1})
    connection.execute("CREATE SCHEMA public; SET search_path = 'public'")
    for table in CATALOG.tables:
        columns = ", ".join(f'"{each.name}" {each.type.duckdb}' for each in table.columns)
        connection.execute(f"CREATE TABLE {table.full_name} ({columns})")
        for row in _random_rows(chance, table.name, size):
            connection.execute(f"INSERT INTO {table.full_name} VALUES ({', '.join('?' * len(row))})", row)
    return connection


def _random_rows(chance: random.Random, table: str, size: int) -> list[tuple[Any, ...]]:
    small = [None, 0, 1, 1, 2, 3]
    text = [None, "p", "q", "pq", "1"]
    pick = chance.choice
    rows: list[tuple[Any, ...]]
    if table == "a":
        rows = [(number, pick(text), pick(small), pick([0, 1, 2])) for number in range(size)]
    elif table == "b":
        rows = [
            (number, pick(small), pick(small), pick(text), pick([None, "1.50", "1.50", "-2.25"]))
            for number in range(size)
        ]
    else:
        rows = [
            (k, t, pick(small), pick([0, 1, 2]))
            for k in range(size // 2)
            for t in ("p", "q")
            if chance.random() < 0.7
        ]
    chance.shuffle(rows)
    return rows
