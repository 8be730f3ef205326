# ruff: noqa: E501, S608 - views read best on few lines; the SQL is ours
"""A view's tree means what its text means in DuckDB, on many small databases."""

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import duckdb
import pytest

from slackwater.sql.frontend import ViewText, read_view
from slackwater.sql.logical import LogicalView, Relation, children
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.rendering import render_over_tables

TABLES = """
CREATE TABLE a (id bigint PRIMARY KEY, name text, x integer, g integer NOT NULL);
CREATE TABLE b (id bigint PRIMARY KEY, a_id bigint, y integer, t text, d numeric(6,2));
CREATE TABLE c (k1 bigint, k2 text, v integer, a_id bigint NOT NULL, PRIMARY KEY (k1, k2));
"""
CATALOG = parse_catalog({"tables.sql": TABLES})
DATABASES = 5

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
    "order by alone": "SELECT TRANSACTIONALLY id, y FROM b ORDER BY y DESC",
    "order by an aggregate alone": "SELECT TRANSACTIONALLY 1 AS one FROM b ORDER BY count(*)",
    "top": "SELECT TRANSACTIONALLY id, y FROM b ORDER BY y DESC, id LIMIT 3",
    "top with offset": "SELECT TRANSACTIONALLY id FROM b ORDER BY y NULLS FIRST, t DESC NULLS FIRST, id DESC LIMIT 3 OFFSET 2",
    "top of none": "SELECT TRANSACTIONALLY id FROM b ORDER BY id LIMIT 0",
    "top of all": "SELECT TRANSACTIONALLY id FROM b ORDER BY id LIMIT ALL",
    "top by position, alias and expression": "SELECT TRANSACTIONALLY y % 2 AS x, id AS y, d FROM b ORDER BY 1, x, -b.y, y LIMIT 4",
    "top by an alias that hides a column": "SELECT TRANSACTIONALLY id, -y AS y FROM b ORDER BY y, id LIMIT 3",
    "top by all": "SELECT TRANSACTIONALLY y, t, id FROM b ORDER BY ALL DESC LIMIT 3",
    "top by a star": "SELECT TRANSACTIONALLY * FROM b ORDER BY * LIMIT 3",
    "top of a join": "SELECT TRANSACTIONALLY a.id, b.id AS b_id FROM a LEFT JOIN b ON b.a_id = a.id ORDER BY a.x + b.y DESC, a.id, b.id LIMIT 5",
    "top of groups": "SELECT TRANSACTIONALLY a_id, sum(y) AS s FROM b GROUP BY a_id HAVING count(*) > 0 ORDER BY count(*) DESC, sum(d), a_id LIMIT 2",
    "top of a window": "SELECT TRANSACTIONALLY id FROM b ORDER BY max(y) OVER (PARTITION BY a_id) DESC, id LIMIT 3",
    "top of all rows as one": "SELECT TRANSACTIONALLY sum(y) AS s FROM b LIMIT 3",
    "top of qualified": "SELECT TRANSACTIONALLY id FROM b QUALIFY rank() OVER (PARTITION BY a_id ORDER BY y) = 1 ORDER BY id DESC LIMIT 2",
    "top of distinct": "SELECT TRANSACTIONALLY DISTINCT y, t FROM b ORDER BY t DESC, 1 LIMIT 3",
    "top of distinct rows that are distinct": "SELECT TRANSACTIONALLY DISTINCT y, id AS i FROM b ORDER BY y, i LIMIT 3",
    "top of a union": "SELECT TRANSACTIONALLY id, y AS v FROM b UNION SELECT id, x FROM a ORDER BY v DESC, id LIMIT 3",
    "top of a union by an expression": "SELECT TRANSACTIONALLY id, y AS v FROM b UNION SELECT id, x FROM a ORDER BY id + v, id, v LIMIT 3",
    "tops that are united": "(SELECT TRANSACTIONALLY id FROM b ORDER BY y, id LIMIT 2) UNION ALL (SELECT id FROM a ORDER BY x DESC, id LIMIT 2)",
    "top of an intersection": "SELECT TRANSACTIONALLY y AS v FROM b INTERSECT SELECT x FROM a ORDER BY 1 LIMIT 2",
    "top in FROM": "SELECT TRANSACTIONALLY q.id, a.name FROM (SELECT * FROM b ORDER BY d DESC, id LIMIT 4) q LEFT JOIN a ON a.id = q.a_id",
    "top in WITH": "WITH q AS (SELECT id, y FROM b ORDER BY y, id LIMIT 4) SELECT TRANSACTIONALLY sum(q.y) AS s, count(*) AS n FROM q JOIN q r USING (id)",
    "top in IN": "SELECT TRANSACTIONALLY id FROM a WHERE x IN (SELECT DISTINCT y FROM b ORDER BY y DESC LIMIT 2)",
    "top in EXISTS": "SELECT TRANSACTIONALLY id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id AND b.y > a.x ORDER BY y LIMIT 1)",
    "top beyond the first in EXISTS": "SELECT TRANSACTIONALLY id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id LIMIT 1 OFFSET 1)",
    "one value of the top": "SELECT TRANSACTIONALLY id, (SELECT t FROM b ORDER BY y DESC, b.id LIMIT 1) AS t FROM a",
    "one value of the top for each row": "SELECT TRANSACTIONALLY id, (SELECT t FROM b WHERE b.a_id = a.id ORDER BY y DESC, b.id LIMIT 1) AS t FROM a",
    "one value of the top for each row, by an expression": "SELECT TRANSACTIONALLY id, (SELECT t FROM b WHERE b.y % 2 = a.x ORDER BY b.id LIMIT 1 OFFSET 1) AS t FROM a",
    "one aggregate as the top": "SELECT TRANSACTIONALLY id, (SELECT count(*) FROM b WHERE b.a_id = a.id LIMIT 1) AS n FROM a",
    "distinct on": "SELECT TRANSACTIONALLY DISTINCT ON (a_id) a_id, id, t FROM b ORDER BY a_id, y DESC, id",
    "distinct on an expression": "SELECT TRANSACTIONALLY DISTINCT ON (y % 2, t) y % 2 AS k, id FROM b ORDER BY id DESC",
    "distinct on a position, and top": "SELECT TRANSACTIONALLY DISTINCT ON (1) a_id AS k, id FROM b ORDER BY k DESC NULLS LAST, id LIMIT 2",
    "distinct on of groups": "SELECT TRANSACTIONALLY DISTINCT ON (a_id) a_id, y, count(*) AS n FROM b GROUP BY a_id, y ORDER BY a_id, count(*) DESC, y",
    "qualify over all rows": "SELECT TRANSACTIONALLY id FROM b QUALIFY row_number() OVER (ORDER BY y DESC, id) BETWEEN 2 AND 4",
    "qualify ranks over all rows": "SELECT TRANSACTIONALLY id, dense_rank() OVER (ORDER BY y DESC NULLS FIRST) AS r FROM b QUALIFY 3 > r AND id > 1",
    "rank of a subquery": "SELECT TRANSACTIONALLY id, r FROM (SELECT id, rank() OVER (PARTITION BY a_id ORDER BY y) AS r FROM b) q WHERE q.r = 2",
    "rank in a join": "SELECT TRANSACTIONALLY a.id, q.id AS b_id FROM a JOIN (SELECT *, row_number() OVER (PARTITION BY a_id ORDER BY y, id) AS r FROM b) q ON q.a_id = a.id WHERE q.r <= 2 AND a.x > 0",
    "rank in an outer join": "SELECT TRANSACTIONALLY a.id, q.id AS b_id FROM a LEFT JOIN (SELECT *, row_number() OVER (PARTITION BY a_id ORDER BY y, id) AS r FROM b) q ON q.a_id = a.id AND q.r = 1",
    "rank beside an outer join": "SELECT TRANSACTIONALLY a.id, q.id AS b_id, q.r FROM a LEFT JOIN (SELECT *, row_number() OVER (PARTITION BY a_id ORDER BY y, id) AS r FROM b) q ON q.a_id = a.id WHERE q.r <= 1",
    "ranks in both directions": "SELECT TRANSACTIONALLY id, row_number() OVER (PARTITION BY a_id ORDER BY y, id) AS r, row_number() OVER (PARTITION BY a_id ORDER BY y DESC, id) AS s FROM b QUALIFY r <= 2 AND s <= 2",
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
    "group by a name that is a column and an alias": "SELECT TRANSACTIONALLY count(*) AS n, x % 2 AS x FROM a GROUP BY x",
    "having a name that is a column and an alias": "SELECT TRANSACTIONALLY a_id AS k, sum(y) AS s FROM b GROUP BY a_id HAVING s > 1 AND k > 0",
    "functions in any case": "SELECT TRANSACTIONALLY UPPER(T) AS u, COUNT(*) AS n FROM b GROUP BY upper(t)",
    "unnamed subqueries": "SELECT TRANSACTIONALLY id, y FROM (SELECT id FROM a), (SELECT a_id, y FROM b) WHERE a_id = id",
    "unused with": "WITH u AS (SELECT y FROM b) SELECT TRANSACTIONALLY id FROM a",
    "with of a table's name": "WITH a AS (SELECT * FROM a WHERE x > 0) SELECT TRANSACTIONALLY a.id FROM a JOIN b ON b.a_id = a.id",
    "nested with": "WITH p AS (SELECT id FROM a), q AS (WITH r AS (SELECT id FROM p WHERE id > 0) SELECT id + 1 AS id FROM r) SELECT TRANSACTIONALLY p.id, q.id AS q FROM p LEFT JOIN q USING (id)",
    "with of unions": "WITH p AS (SELECT id, x FROM a UNION ALL SELECT id, y FROM b) SELECT TRANSACTIONALLY x, count(*) AS n, sum(id) AS s FROM p GROUP BY x",
    "union of groups": "SELECT TRANSACTIONALLY x AS k, count(*) AS n FROM a GROUP BY x UNION ALL SELECT y, sum(id) FROM b GROUP BY y",
    "join of unions": "SELECT TRANSACTIONALLY u.v, b.id FROM (SELECT x AS v FROM a UNION SELECT a_id FROM c) u JOIN b ON b.y = u.v",
    "left join of unions": "SELECT TRANSACTIONALLY u.v, u.k, b.id FROM b LEFT JOIN (SELECT x AS v, 1 AS k FROM a UNION ALL SELECT a_id, 2 FROM c) u ON b.y = u.v AND u.k < b.id",
    "full join of unions": "SELECT TRANSACTIONALLY u.v, w.v AS w FROM (SELECT x AS v FROM a UNION SELECT a_id FROM c) u FULL JOIN (SELECT y AS v FROM b UNION ALL SELECT v FROM c) w ON u.v = w.v",
    "full join of a total": "SELECT TRANSACTIONALLY s.n, w.y, w.m FROM (SELECT count(*) AS n FROM a) s FULL JOIN (SELECT y, count(*) AS m FROM b GROUP BY y) w ON s.n = w.m",
    "full join of three": "SELECT TRANSACTIONALLY a.id, b.id AS b, c.k1, c.k2 FROM a FULL JOIN b ON a.id = b.a_id FULL JOIN c ON c.a_id = b.id",
    "full join using of three": "SELECT TRANSACTIONALLY id, p.name, q.y, r.v FROM a p FULL JOIN b q USING (id) FULL JOIN (SELECT k1 AS id, max(v) AS v FROM c GROUP BY k1) r USING (id)",
    "left join of a group of nullable keys": "SELECT TRANSACTIONALLY a.id, s.y, s.n FROM a LEFT JOIN (SELECT y, count(*) AS n FROM b GROUP BY y) s ON s.n = a.x",
    "groups of a left join of groups": "SELECT TRANSACTIONALLY s.y, s.n, count(*) AS m FROM a LEFT JOIN (SELECT y, count(*) AS n FROM b GROUP BY y) s ON s.n = a.x GROUP BY s.y, s.n",
    "total beside rows": "SELECT TRANSACTIONALLY a.id, s.n FROM a, (SELECT count(*) AS n FROM b) s WHERE a.x < s.n",
    "distinct of a left join": "SELECT TRANSACTIONALLY DISTINCT a.id, b.id AS b FROM a LEFT JOIN b ON b.a_id = a.id",
    "distinct of one side": "SELECT TRANSACTIONALLY DISTINCT a.id, a.name FROM a JOIN b ON b.a_id = a.id",
    "distinct structs": "SELECT TRANSACTIONALLY DISTINCT {'y': y, 't': [t]} AS s FROM b",
    "distinct in a subquery": "SELECT TRANSACTIONALLY count(*) AS n, count(y) AS m FROM (SELECT DISTINCT y, t FROM b)",
    "group of everything": "SELECT TRANSACTIONALLY id, a_id, y, count(*) AS n FROM b GROUP BY id, a_id, y",
    "group by a constant": "SELECT TRANSACTIONALLY 'all' AS k, count(*) AS n FROM b GROUP BY k",
    "group by struct": "SELECT TRANSACTIONALLY {'y': y} AS k, count(*) AS n FROM b GROUP BY k",
    "aggregates of the same": "SELECT TRANSACTIONALLY a_id, sum(y) AS s, sum(y) + 1 AS t, avg(y) * 2 AS a, sum(y) / count(y) AS q FROM b GROUP BY a_id",
    "bool aggregates": "SELECT TRANSACTIONALLY a_id, bool_and(y > 1) AS p, bool_or(y > 1) AS q, count_if(y > 1) AS n, max({'y': y, 'id': id}) AS m, median(y) AS h, quantile_cont(y, 0.5 ORDER BY y) AS c FROM b GROUP BY a_id",
    "within group": "SELECT TRANSACTIONALLY a_id, percentile_cont(0.5) WITHIN GROUP (ORDER BY y) AS m FROM b GROUP BY a_id",
    "filter with subquery": "SELECT TRANSACTIONALLY a_id, count(*) FILTER (WHERE y > (SELECT avg(x) FROM a)) AS n FROM b GROUP BY a_id",
    "case of a subquery": "SELECT TRANSACTIONALLY id, CASE (SELECT name FROM a WHERE a.id = b.a_id) WHEN 'p' THEN 1 WHEN 'q' THEN 2 ELSE 3 END AS k FROM b",
    "subquery in group by": "SELECT TRANSACTIONALLY (SELECT name FROM a WHERE a.id = b.a_id) AS name, count(*) AS n FROM b GROUP BY name",
    "scalar of an expression": "SELECT TRANSACTIONALLY a.id, (SELECT CASE WHEN count(*) > 1 THEN 'many' ELSE 'few' END FROM b WHERE b.a_id = a.id) AS k, coalesce((SELECT sum(y) FROM b WHERE a.id = b.a_id), 0) AS s FROM a",
    "scalar tied by two columns": "SELECT TRANSACTIONALLY a.id, (SELECT count(y) FROM b WHERE b.a_id = a.id AND b.y = a.x) AS n FROM a",
    "scalar tied by expressions": "SELECT TRANSACTIONALLY a.id, (SELECT count(y) FROM b WHERE b.a_id + 1 = a.id * 2) AS n FROM a",
    "latest per group": "SELECT TRANSACTIONALLY b.id FROM b WHERE b.id = (SELECT max(p.id) FROM b p WHERE p.a_id = b.a_id)",
    "latest by join": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a JOIN b ON b.a_id = a.id AND b.id = a.x WHERE NOT EXISTS (SELECT 1 FROM b p WHERE p.a_id = b.a_id AND p.id > b.id)",
    "exists of a join": "SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (SELECT 1 FROM b JOIN c ON c.k1 = b.id WHERE b.a_id = a.id AND c.v > a.x)",
    "exists in exists": "SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id AND NOT EXISTS (SELECT 1 FROM c WHERE c.k1 = b.id))",
    "exists of distinct": "SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (SELECT DISTINCT y FROM b WHERE b.a_id = a.id)",
    "exists of union": "SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (SELECT y FROM b WHERE y > 2 UNION SELECT v FROM c)",
    "exists of no comparison": "SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.y > a.x)",
    "not exists with or": "SELECT TRANSACTIONALLY a.id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id OR b.y = a.x)",
    "two exists": "SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id) AND NOT EXISTS (SELECT 1 FROM c WHERE c.a_id = a.id)",
    "not not exists": "SELECT TRANSACTIONALLY a.id FROM a WHERE NOT (NOT EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id))",
    "= any": "SELECT TRANSACTIONALLY a.id FROM a WHERE a.x = ANY (SELECT y FROM b WHERE y > 0)",
    "in as value": "SELECT TRANSACTIONALLY a.id, a.g IN (SELECT a_id FROM c) AS i, a.g NOT IN (SELECT a_id FROM c WHERE c.k1 = a.id) AS j FROM a",
    "having exists": "SELECT TRANSACTIONALLY b.a_id, count(*) AS n FROM b GROUP BY b.a_id HAVING EXISTS (SELECT 1 FROM a WHERE a.id = b.a_id  AND a.x < 3)",
    "join on expressions": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a JOIN b ON a.x + 1 = b.y * 2 AND upper(a.name) = upper(b.t)",
    "join on or": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a LEFT JOIN b ON a.x = b.y OR a.id = b.a_id",
    "join on a null-safe comparison": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a JOIN b ON a.x IS NOT DISTINCT FROM b.y",
    "join on true": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a LEFT JOIN b ON TRUE",
    "join on nothing of the other side": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a LEFT JOIN b ON a.x = a.g",
    "inner conditions on each side": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a JOIN b ON a.x > 0 AND b.y > 0 AND a.id = b.a_id",
    "inner join with a condition below a left join": "SELECT TRANSACTIONALLY a.id, b.id AS b, c.v FROM a LEFT JOIN b ON b.a_id = a.id JOIN c ON c.a_id = a.g AND a.x > 0 AND b.y IS NULL",
    "equality of three": "SELECT TRANSACTIONALLY a.id, b.id AS b, c.k1 FROM a, b, c WHERE a.x + b.y = c.v AND a.id = b.a_id",
    "right join of a join": "SELECT TRANSACTIONALLY a.id, b.id AS b, c.k1, c.k2 FROM a JOIN b ON b.a_id = a.id RIGHT JOIN c ON c.a_id = a.id AND c.v > b.y",
    "semi join of a join": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a JOIN b ON b.a_id = a.id SEMI JOIN c ON c.k1 = b.id WHERE a.x > 0",
    "window over a join": "SELECT TRANSACTIONALLY a.id, b.id AS b, sum(b.y) OVER (PARTITION BY a.id) AS s, count(*) OVER (PARTITION BY a.x) AS n FROM a LEFT JOIN b ON b.a_id = a.id",
    "window of a subquery's value": "SELECT TRANSACTIONALLY id, max((SELECT x FROM a WHERE a.id = b.a_id)) OVER (PARTITION BY t) AS m FROM b",
    "groups of windows": "SELECT TRANSACTIONALLY n, count(*) AS m FROM (SELECT row_number() OVER (PARTITION BY a_id ORDER BY id) AS n FROM b) GROUP BY n",
    "window with filter and distinct": "SELECT TRANSACTIONALLY id, count(DISTINCT y) OVER (PARTITION BY a_id) AS d, sum(y) FILTER (WHERE t = 'p') OVER (PARTITION BY a_id ORDER BY id) AS f FROM b",
    "groups frame": "SELECT TRANSACTIONALLY id, sum(y) OVER (PARTITION BY a_id ORDER BY y GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE TIES) AS s, sum(y) OVER (PARTITION BY a_id ORDER BY y GROUPS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS t FROM b",
    "window inherits": "SELECT TRANSACTIONALLY id, sum(y) OVER (w ORDER BY y) AS s, lag(y) OVER v AS l FROM b WINDOW w AS (PARTITION BY a_id), v AS (PARTITION BY t ORDER BY id DESC)",
    "ignoring nulls": "SELECT TRANSACTIONALLY id, lag(y IGNORE NULLS) OVER (PARTITION BY a_id ORDER BY id) AS l, last_value(y IGNORE NULLS) OVER (PARTITION BY a_id ORDER BY id) AS m FROM b",
    "qualify of groups": "SELECT TRANSACTIONALLY a_id, y, count(*) AS n FROM b GROUP BY a_id, y QUALIFY rank() OVER (PARTITION BY a_id ORDER BY count(*) DESC) = 1",
    "qualify with exists": "SELECT TRANSACTIONALLY id FROM b QUALIFY rank() OVER (PARTITION BY a_id ORDER BY y) = 1 AND EXISTS (SELECT 1 FROM c WHERE c.a_id = b.a_id)",
    "lists of lists": "SELECT TRANSACTIONALLY g, list({'id': s.id, 'ys': s.ys} ORDER BY s.id) AS l FROM (SELECT a.id, a.g, list(b.y ORDER BY b.id) AS ys FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY a.id, a.g) s GROUP BY g",
    "strings that look like SQL": "SELECT TRANSACTIONALLY id, '\"c1\" -- (' AS s, $$it's )$$ AS d, E'\\'(' || name AS e, \"x\" /* ( */ AS \"a (b\" FROM a",
    "lambda parameters like ids": "SELECT TRANSACTIONALLY id, list_transform([x, g], lambda c1: c1 + x) AS l, list_filter([1, 2, 3], lambda c2, i: c2 > g AND i > 0) AS m FROM a",
    "names like ids": "SELECT TRANSACTIONALLY c1, c9.c2 + c1 AS c3 FROM (SELECT x AS c1, id AS c2 FROM a) AS c9",
    "postfix operators": "SELECT TRANSACTIONALLY (x)::text::varchar AS t, (id + 1)::double AS d, ((x)) IS NULL AS n, x ISNULL AS i, (x > 1) IS TRUE AS b, [x, g][1] AS l, name[1:1] AS s, 'p' IN (name, 'q') AS c, id FROM a",
    "operators by name": "SELECT TRANSACTIONALLY id, name SIMILAR TO 'p.*' AS a, name ~ '^p' AS b, name ILIKE 'P%' AS c, name GLOB 'p*' AS d, position('q' IN name) AS e, substring(name FROM 1 FOR 1) AS f, trim(BOTH 'p' FROM name) AS g, x ** 2 AS h, x // 2 AS i, lower(name) AS j FROM a",
    "maps and structs": "SELECT TRANSACTIONALLY id, MAP {'k': x}['k'] AS a, struct_pack(a := x, b := g).b AS b, {x: 1, 'y': {'z': name}}.y.z AS c FROM a",
    "method calls": "SELECT TRANSACTIONALLY id, [x, g].list_sum() AS s, [x, g].list_filter(lambda z: z > 0) AS l FROM a",
    "aggregates in lambdas": "SELECT TRANSACTIONALLY a_id, list_transform([1, 2], lambda z: z + sum(y)) AS l FROM b GROUP BY a_id",
    "alias of an aggregate": "SELECT TRANSACTIONALLY a_id, count(*) AS n, n + 1 AS m, m * n AS o FROM b GROUP BY a_id HAVING m > 2",
    "column aliases": "SELECT TRANSACTIONALLY p.k, p.name, q.u FROM a AS p(k) JOIN (SELECT id, y FROM b) AS q(v, u) ON q.v = p.k",
    "negated subqueries as values": "SELECT TRANSACTIONALLY id, NOT EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id) AS e, g NOT IN (SELECT a_id FROM c) AS i, NOT (g IN (SELECT a_id FROM c)) AND x > 0 AS j, g <> ALL (SELECT a_id FROM c) AS k FROM a WHERE x = 1 OR g NOT IN (SELECT a_id FROM c)",
    "negated groups": "SELECT TRANSACTIONALLY name LIKE 'p%' AS l, NOT (name LIKE 'p%') AS n, count(*) AS c FROM a GROUP BY name LIKE 'p%'",
    "having an alias of an ungrouped column": "SELECT TRANSACTIONALLY a_id, sum(y) AS y FROM b GROUP BY a_id HAVING y > 1",
    "having a grouped column of an alias's name": "SELECT TRANSACTIONALLY a_id, y AS w, sum(y) AS y FROM b GROUP BY a_id, y HAVING y > 1",
    "in under or": "SELECT TRANSACTIONALLY id FROM a WHERE g = 0 OR x IN (SELECT y FROM b) AND name IN (SELECT t FROM b WHERE b.a_id = a.id)",
    "in under or of having": "SELECT TRANSACTIONALLY x, count(*) AS n FROM a GROUP BY x HAVING count(*) > 2 OR x IN (SELECT y FROM b)",
    "where an alias hides nothing": "SELECT TRANSACTIONALLY id AS k, x AS id FROM a WHERE k > 1 AND id < 5",
    "distinct of windows": "SELECT TRANSACTIONALLY DISTINCT a_id, sum(y) OVER (PARTITION BY a_id) AS s FROM b",
    "alias in a window": "SELECT TRANSACTIONALLY a_id, y, count(*) AS n, sum(n) OVER (PARTITION BY a_id) AS m FROM b GROUP BY a_id, y",
    "condition on a full join's side": "SELECT TRANSACTIONALLY a.id, b.id AS b, c.k1, c.k2 FROM a FULL JOIN b ON a.id = b.a_id JOIN c ON c.a_id = b.y AND (a.x > 0 OR a.x IS NULL)",
    "equality below a full join": "SELECT TRANSACTIONALLY p.id, q.id AS q, b.id AS b FROM (a p CROSS JOIN a q) FULL JOIN b ON b.a_id = p.id WHERE p.x = q.g",
    "equality below a left join": "SELECT TRANSACTIONALLY p.id, q.id AS q, b.id AS b FROM a p CROSS JOIN a q LEFT JOIN b ON b.a_id = p.id WHERE p.x = q.g",
    "equality below an anti join": "SELECT TRANSACTIONALLY p.id, q.id AS q FROM a p CROSS JOIN a q ANTI JOIN b ON b.a_id = p.id WHERE p.x = q.g",
    "first of each": "WITH ranked AS (SELECT *, row_number() OVER (PARTITION BY a_id ORDER BY y DESC, id) AS rn FROM b) SELECT TRANSACTIONALLY a.id, r.y, r.t FROM a LEFT JOIN ranked r ON r.a_id = a.id AND r.rn = 1",
    "distinct texts": "SELECT TRANSACTIONALLY a_id, string_agg(DISTINCT t, ',' ORDER BY t) AS ts, count(DISTINCT (y, t)) AS n, list(DISTINCT y ORDER BY y DESC) AS ys FROM b GROUP BY a_id",
    "sums of cases": "SELECT TRANSACTIONALLY a_id, coalesce(sum(CASE WHEN t = 'p' THEN y END), 0) AS p, sum(y) FILTER (t = 'q') AS q, count(*) FILTER (WHERE y IS NULL) AS n FROM b GROUP BY a_id",
    "value of a with": "WITH s AS (SELECT a_id, sum(y) AS y FROM b GROUP BY a_id) SELECT TRANSACTIONALLY a.id, (SELECT y FROM s WHERE s.a_id = a.id) AS y, (SELECT sum(y) FROM s) AS total FROM a",
    "exists of a with": "WITH s AS (SELECT a_id, y FROM b WHERE y > 0) SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (SELECT 1 FROM s WHERE s.a_id = a.id) AND a.x IN (SELECT y FROM s)",
    "with in a subquery": "SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (WITH s AS (SELECT a_id FROM b) SELECT 1 FROM s WHERE s.a_id = a.id)",
    "keywords in lower case": "select transactionally id from a where x is not null union all select id from b where y is null",
    "parentheses around the selects": "(SELECT TRANSACTIONALLY id FROM a) UNION (SELECT id FROM b);",
    "using in groups": "SELECT TRANSACTIONALLY id, count(*) AS n, max(y) AS y FROM a JOIN b USING (id) GROUP BY id",
    "using of two columns": "SELECT TRANSACTIONALLY p.a_id, y, p.id AS p, q.id AS q FROM b p JOIN b q USING (a_id, y)",
    "grouped by two tables": "SELECT TRANSACTIONALLY a.id, b.id AS b, max(c.v) AS v FROM a JOIN b ON b.a_id = a.id JOIN c ON c.a_id = a.id GROUP BY a.id, b.id",
    "sets of sets": "SELECT TRANSACTIONALLY x FROM a UNION ALL (SELECT y FROM b EXCEPT SELECT v FROM c) INTERSECT SELECT id FROM a",
    "three unions": "SELECT TRANSACTIONALLY x FROM a UNION SELECT y FROM b UNION ALL SELECT v FROM c",
    "struct comparison": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a JOIN b ON (a.x, a.name) = (b.y, b.t)",
    "bare boolean": "SELECT TRANSACTIONALLY s.id FROM (SELECT id, x > 1 AS p FROM a) s WHERE p AND NOT s.id = 1",
    "join on a boolean": "SELECT TRANSACTIONALLY s.id, b.id AS b FROM (SELECT id, x > 1 AS p FROM a) s LEFT JOIN b ON p AND b.a_id = s.id",
    "group by a subquery's column": "SELECT TRANSACTIONALLY s.k, sum(s.n) AS n FROM (SELECT x % 2 AS k, 1 AS n FROM a UNION ALL SELECT y % 2, 2 FROM b) AS s GROUP BY s.k HAVING sum(s.n) > 1",
    "exists of a condition on no rows": "SELECT TRANSACTIONALLY id FROM a WHERE EXISTS (SELECT 1 FROM b HAVING true) AND NOT EXISTS (SELECT count(*) FROM b HAVING count(*) > 3)",
    "exists of distinct and more": "SELECT TRANSACTIONALLY id FROM a WHERE EXISTS (SELECT DISTINCT y FROM b WHERE b.y > a.x)",
    "count of a union": "SELECT TRANSACTIONALLY count(*) AS n FROM (SELECT id FROM a UNION ALL SELECT id FROM b)",
    "materialized with": "WITH s AS MATERIALIZED (SELECT id, x FROM a), t AS NOT MATERIALIZED (SELECT x FROM s) SELECT TRANSACTIONALLY id FROM s WHERE x IN (SELECT x FROM t)",
    "null columns": "SELECT TRANSACTIONALLY id, NULL AS n, NULL::int AS i FROM a UNION ALL SELECT id, t, y FROM b",
    "aggregates over windows' orders": "SELECT TRANSACTIONALLY id, arg_min(id, y) OVER (PARTITION BY a_id ORDER BY id) AS m, min(y) OVER (PARTITION BY t ORDER BY d DESC NULLS LAST, id ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING) AS n FROM b",
    "in of two columns": "SELECT TRANSACTIONALLY id FROM b WHERE (a_id, y) IN (SELECT id, x FROM a) OR id = 1 AND (a_id, t) IN (SELECT id, name FROM a WHERE g > 0)",
    "conditions of two columns": "SELECT TRANSACTIONALLY id FROM b WHERE (a_id, y) IN (SELECT id, x FROM a)",
    "not in of two columns": "SELECT TRANSACTIONALLY id FROM a WHERE (id, g) NOT IN (SELECT a_id, k1 FROM c)",
    "star without": "SELECT TRANSACTIONALLY a.* EXCLUDE (name, x), b.* EXCLUDE (b.id, d) FROM a JOIN b ON b.a_id = a.id",
    "star of using without": "SELECT TRANSACTIONALLY * EXCLUDE (y, name) FROM a JOIN (SELECT id, y, t FROM b) b USING (id)",
    "scalars of constant keys": "SELECT TRANSACTIONALLY b.id, (SELECT name FROM a WHERE a.id = 3) AS n, (SELECT x FROM a WHERE id = b.y AND x > 0) AS m FROM b",
    "scalars of one row at run time": "SELECT TRANSACTIONALLY a.id, CASE WHEN 1 >= (SELECT count(*) FROM b WHERE b.a_id = a.id AND b.y = a.x) THEN (SELECT t FROM b WHERE b.a_id = a.id AND b.y = a.x) END AS t FROM a WHERE 2 > (SELECT count(*) FROM b WHERE b.a_id = a.id)",
    "in and not in as values": "SELECT TRANSACTIONALLY a.id, a.x IN (SELECT y FROM b) AS i, a.x NOT IN (SELECT y FROM b) AS j, a.x NOT IN (SELECT y FROM b WHERE b.a_id = a.id) AS k FROM a",
    "not in of what may be null": "SELECT TRANSACTIONALLY a.id FROM a WHERE a.x NOT IN (SELECT y FROM b)",
    "not in in or": "SELECT TRANSACTIONALLY a.id FROM a WHERE a.x NOT IN (SELECT y FROM b WHERE y > 1) OR a.x NOT IN (SELECT y FROM b WHERE a_id = a.id)",
    "not in of a union": "SELECT TRANSACTIONALLY a.id FROM a WHERE (a.x NOT IN (SELECT y FROM b WHERE y > 0 UNION SELECT v FROM c)) IS NULL",
    "in of rows as values": "SELECT TRANSACTIONALLY a.id, (a.x, a.name) IN (SELECT y, t FROM b) AS i, (a.x, a.id) NOT IN (SELECT y, a_id FROM b WHERE t = 'p') AS j FROM a",
    "in in having": "SELECT TRANSACTIONALLY x, count(*) AS n, max(g) IN (SELECT y FROM b) AS i FROM a GROUP BY x HAVING x NOT IN (SELECT y FROM b WHERE y > 2)",
    "any and all": "SELECT TRANSACTIONALLY a.id, x > ANY (SELECT y FROM b) AS i, x <= ALL (SELECT y FROM b WHERE a_id = a.id) AS j, x <> ANY (SELECT y FROM b WHERE y > 2) AS k, x = ALL (SELECT y FROM b WHERE a_id = a.id) AS l, x <> ALL (SELECT y FROM b WHERE a_id = a.id) AS m, x < SOME (SELECT y FROM b) AS n FROM a",
    "any and all of lists": "SELECT TRANSACTIONALLY id, x = ANY ([1, NULL, g]) AS i, x <> ALL ([1, 2]) AS j, x > ALL ([g, 0]) AS k, x = ANY ([]::int[]) AS l, g IN (SELECT unnest([1, x])) AS m FROM a WHERE x >= ANY ([1, g]) OR x IS NULL",
    "aggregates correlated by more than equality": "SELECT TRANSACTIONALLY a.id, (SELECT count(*) FROM b WHERE b.a_id = a.id AND b.y <= a.x) AS n, (SELECT sum(y) + a.x FROM b WHERE b.y < a.x) AS s, (SELECT count(*) + a.g FROM b WHERE b.y > a.x) AS t FROM a",
    "exists in or, by more than equality": "SELECT TRANSACTIONALLY a.id, CASE WHEN EXISTS (SELECT 1 FROM b WHERE b.y > a.x) THEN 1 ELSE 0 END AS e FROM a WHERE a.x = 1 OR EXISTS (SELECT 1 FROM b WHERE b.y > a.x AND b.a_id = a.g)",
    "correlated with a query further out": "SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id AND EXISTS (SELECT 1 FROM c WHERE c.k1 = b.id AND c.a_id = a.g))",
    "division": "SELECT TRANSACTIONALLY a.id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id AND NOT EXISTS (SELECT 1 FROM c WHERE c.a_id = a.g AND c.v = b.y))",
    "outer columns in an aggregate": "SELECT TRANSACTIONALLY a.id, (SELECT max(b.y + a.x) FROM b WHERE b.a_id = a.id) AS m FROM a",
    "windows in a subquery": "SELECT TRANSACTIONALLY a.id, (SELECT y FROM b WHERE b.a_id = a.id QUALIFY row_number() OVER (ORDER BY y DESC NULLS LAST, id) = 1) AS m FROM a",
    "subqueries of groups by more than equality": "SELECT TRANSACTIONALLY g, count(*) AS n FROM a GROUP BY g HAVING (SELECT count(*) FROM b WHERE b.y > a.g) > 1",
    "group by exists": "SELECT TRANSACTIONALLY EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id) AS e, count(*) AS n FROM a GROUP BY EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id)",
    "aggregates of exists and in": "SELECT TRANSACTIONALLY g, sum(CASE WHEN EXISTS (SELECT 1 FROM b WHERE b.a_id = a.id) THEN 1 ELSE 0 END) AS e, count(*) FILTER (WHERE x IN (SELECT y FROM b)) AS i FROM a GROUP BY g",
    "subqueries of a nullable side": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a LEFT JOIN b ON b.a_id = a.id WHERE (SELECT count(*) FROM c WHERE c.v < b.y) > 0 OR b.id IS NULL",
    "average of earlier rows": "SELECT TRANSACTIONALLY a.id FROM a WHERE a.x > (SELECT avg(y) FROM b WHERE b.a_id < a.id) AND a.g < (SELECT count(*) FROM c WHERE c.v <> a.x)",
    "windows over all rows": "SELECT TRANSACTIONALLY id, sum(x) OVER () AS s, row_number() OVER (ORDER BY x, id) AS n, count(*) OVER (ORDER BY x, id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS m FROM a",
    "except all": "SELECT TRANSACTIONALLY x, id % 2 AS k FROM a EXCEPT ALL SELECT y, a_id % 2 FROM b EXCEPT ALL SELECT v, 1 FROM c",
    "intersect all": "SELECT TRANSACTIONALLY x AS v FROM a INTERSECT ALL SELECT y FROM b",
    "ordered sets": "SELECT TRANSACTIONALLY a_id, mode() WITHIN GROUP (ORDER BY y DESC) AS m, percentile_cont(0.5) WITHIN GROUP (ORDER BY y) AS c, percentile_disc(0.25) WITHIN GROUP (ORDER BY y DESC) AS d, count(DISTINCT t) AS n, count(DISTINCT y) AS o FROM b GROUP BY a_id",
    "filters and distinct in windows": "SELECT TRANSACTIONALLY id, sum(y) FILTER (WHERE t = 'p') OVER w AS s, count(DISTINCT y) OVER w AS n, max(y) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW) AS m FROM b WINDOW w AS (PARTITION BY a_id ORDER BY id)",
    "subqueries in on": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a JOIN b ON b.a_id = a.id AND EXISTS (SELECT 1 FROM c WHERE c.v = b.y AND c.a_id = a.g) AND b.y = (SELECT max(y) FROM b s WHERE s.a_id = a.id) LEFT JOIN c ON c.k1 = b.id",
    "outer columns in on": "SELECT TRANSACTIONALLY a.id FROM a WHERE EXISTS (SELECT 1 FROM b JOIN c ON c.k1 = b.id AND c.a_id = a.g AND c.v > a.x)",
    "rollup": "SELECT TRANSACTIONALLY a_id, t, sum(y) AS s, count(*) AS n FROM b GROUP BY ROLLUP (a_id, t)",
    "cube and grouping": "SELECT TRANSACTIONALLY a_id, t, list(y ORDER BY id) AS l, grouping(a_id, t) AS g, grouping(t) AS h FROM b GROUP BY CUBE (a_id, t)",
    "sets beside a column, twice": "SELECT TRANSACTIONALLY a_id, t, d, sum(y) AS s FROM b GROUP BY a_id, GROUPING SETS ((t), (t, d), (), (t))",
    "rollup of an alias": "SELECT TRANSACTIONALLY a_id % 2 AS k, max(y) AS m FROM b GROUP BY ROLLUP (k) HAVING count(*) > 1 OR grouping(k) = 1",
    "sets without columns": "SELECT TRANSACTIONALLY count(*) AS n, sum(y) AS s FROM b GROUP BY GROUPING SETS ((), ())",
    "group by nothing": "SELECT TRANSACTIONALLY 1 AS n FROM b GROUP BY ()",
    "rollup of what is not counted": "SELECT TRANSACTIONALLY a_id FROM b GROUP BY ROLLUP (a_id)",
    "windows over grouping": "SELECT TRANSACTIONALLY grouping(a_id) + grouping(t) AS h, a_id, t, sum(y) AS s, rank() OVER (PARTITION BY grouping(a_id) + grouping(t), CASE WHEN grouping(t) = 0 THEN a_id END ORDER BY sum(y) DESC) AS r FROM b GROUP BY ROLLUP (a_id, t)",
    "rollup of a key and what depends on it": "SELECT TRANSACTIONALLY a.id, a.name, count(b.id) AS n FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY ROLLUP (a.id, a.name)",
    "grouping of a plain group": "SELECT TRANSACTIONALLY g, grouping(g) AS z, count(*) AS n FROM a GROUP BY g",
    "join with a rollup": "SELECT TRANSACTIONALLY s.g, s.n, a.id FROM a JOIN (SELECT g, count(*) AS n FROM a GROUP BY ROLLUP (g)) s ON s.g = a.x OR s.g IS NULL",
    "distinct of a cube": "SELECT TRANSACTIONALLY DISTINCT sum(y) AS s FROM b GROUP BY CUBE (a_id, t)",
    "rollup and cube by position": "SELECT TRANSACTIONALLY coalesce(t, 'all') AS t, coalesce(y, -1) AS y, count(DISTINCT a_id) AS d FROM b WHERE y > 0 GROUP BY ROLLUP (1), CUBE (2)",
    "subqueries and a cube": "SELECT TRANSACTIONALLY x, count(*) AS n FROM a WHERE g IN (SELECT max(y) FROM b GROUP BY ROLLUP (t)) GROUP BY CUBE (x) HAVING count(*) > (SELECT min(v) FROM c)",
    "table star": "SELECT TRANSACTIONALLY b.*, a.name FROM a JOIN b ON b.a_id = a.id",
    "unnest in from": "SELECT TRANSACTIONALLY a.id, u.e FROM a, unnest([a.x, a.g, NULL]) AS u(e) WHERE u.e > 0 OR u.e IS NULL",
    "unnest without names": "SELECT TRANSACTIONALLY a.id, unnest FROM a, unnest([x])",
    "unnest with ordinality": "SELECT TRANSACTIONALLY a.id, u.e, u.n FROM a CROSS JOIN unnest(range(a.x)) WITH ORDINALITY AS u(e, n)",
    "left join of elements": "SELECT TRANSACTIONALLY a.id, u.e, u.n FROM a LEFT JOIN unnest(range(a.x)) WITH ORDINALITY AS u(e, n) ON true",
    "left join of some elements": "SELECT TRANSACTIONALLY a.id, e FROM a LEFT JOIN LATERAL unnest([a.x, a.g]) AS u(e) ON e > a.x AND e < 3",
    "unnest in select": "SELECT TRANSACTIONALLY id, unnest([x, g]) AS e, unnest(range(x)) AS i, unnest([x, g]) + 1 AS f FROM a WHERE g > 0",
    "unnest in group by": "SELECT TRANSACTIONALLY unnest([x, g]) AS e, count(*) AS n, list(id ORDER BY id) AS l FROM a GROUP BY e",
    "unnest of groups": "SELECT TRANSACTIONALLY g, unnest(list(id ORDER BY id)) AS i FROM a GROUP BY g",
    "distinct elements": "SELECT TRANSACTIONALLY DISTINCT unnest([x, g]) AS e FROM a",
    "unnest behind windows": "SELECT TRANSACTIONALLY id, unnest([x, g]) AS e, row_number() OVER (PARTITION BY g ORDER BY id) AS n FROM a QUALIFY n < 3",
    "in elements of a table": "SELECT TRANSACTIONALLY id FROM b WHERE y IN (SELECT unnest([x, g]) FROM a WHERE a.id = b.a_id)",
    "join of elements": "SELECT TRANSACTIONALLY s.id, b.id AS b FROM (SELECT id, unnest([x, g]) AS e FROM a) s LEFT JOIN b ON b.y = s.e",
    "series": "SELECT TRANSACTIONALLY a.id, i, k FROM a, generate_series(1, a.x) s(i), range(s.i) r(k)",
    "constant series beside rows": "SELECT TRANSACTIONALLY a.id, i FROM generate_series(1, 3) s(i), a",
    "constant series that rows are joined to": "SELECT TRANSACTIONALLY i, b.id FROM generate_series(0, 3) s(i) LEFT JOIN b ON b.y = i",
    "constant series of times": "SELECT TRANSACTIONALLY t FROM generate_series(TIMESTAMP '2024-01-01', TIMESTAMP '2024-01-02', INTERVAL 7 HOUR) s(t)",
    "series between values": "WITH r AS (SELECT min(id) AS lo, max(id) AS hi FROM b) SELECT TRANSACTIONALLY i, count(b.y) AS n FROM r, generate_series(r.lo, r.hi) s(i) LEFT JOIN b ON b.id = i GROUP BY i",
    "values": "SELECT TRANSACTIONALLY * FROM (VALUES (1, 'p'), (2.5, NULL), (1, 'p')) v(x, y)",
    "values in with": "WITH v(k, w) AS (VALUES ('p', 'Pp'), ('q', 'Qq')) SELECT TRANSACTIONALLY a.id, v.w FROM a LEFT JOIN v ON v.k = a.name",
    "full join of values": "SELECT TRANSACTIONALLY v.x, v.y, b.id FROM (VALUES (1, 'p'), (2, 'q'), (2, 'q'), (NULL, 'r')) v(x, y) FULL JOIN b ON b.t = v.y",
    "values in unions": "SELECT TRANSACTIONALLY x FROM a UNION ALL SELECT 0 UNION ALL SELECT * FROM (VALUES (1), (1)) v",
    "in values": "SELECT TRANSACTIONALLY id, x IN (VALUES (1), (NULL)) AS f FROM a WHERE g NOT IN (VALUES (1))",
    "no from": "SELECT TRANSACTIONALLY 1 AS one, 'x' AS x",
    "constants joined": "WITH c AS (SELECT 1 AS k, 'p' AS t UNION ALL SELECT 2, 'q') SELECT TRANSACTIONALLY c.t, sum(b.y) AS s FROM c LEFT JOIN b ON b.t = c.t GROUP BY c.t",
    "constants beside rows": "WITH c AS (SELECT 1 AS k, 'p' AS t UNION ALL SELECT 2, 'q') SELECT TRANSACTIONALLY c.k, b.id FROM b, c",
    "values of a row": "SELECT TRANSACTIONALLY id, v.k, v.w FROM a, LATERAL (VALUES ('x', a.x), ('g', a.g)) v(k, w)",
    "select of a row": "SELECT TRANSACTIONALLY id, s.p, s.q + 1 AS q FROM a, LATERAL (SELECT a.x + 1 AS p, a.g * 2 AS q WHERE a.x > 0) s",
    "left join of a select of a row": "SELECT TRANSACTIONALLY id, s.p FROM a LEFT JOIN LATERAL (SELECT a.x + 1 AS p WHERE a.g > 0) s ON s.p > 1",
    "left join of a column of a row": "SELECT TRANSACTIONALLY id, s.p, s.g FROM a LEFT JOIN LATERAL (SELECT a.x AS p, a.g WHERE a.g > 0) s ON s.p > 1",
    "aggregate of a row": "SELECT TRANSACTIONALLY id, s.n, s.t FROM a, LATERAL (SELECT count(*) AS n, sum(e) AS t FROM unnest([a.x, a.g]) u(e) WHERE e > 1) s",
    "groups of a row": "SELECT TRANSACTIONALLY id, s.e, s.n FROM a LEFT JOIN LATERAL (SELECT e, count(*) AS n FROM unnest([a.x, a.g]) u(e) GROUP BY e) s ON s.n > 1",
    "values from a row": "SELECT TRANSACTIONALLY id, (SELECT sum(e) FROM range(a.x) u(e)) AS s, (SELECT list(e ORDER BY e DESC) FROM unnest([x, g]) u(e) WHERE e > a.g) AS l FROM a",
    "conditions from a row": "SELECT TRANSACTIONALLY id, x IN (SELECT e FROM range(g) u(e)) AS f FROM a WHERE NOT EXISTS (SELECT 1 FROM range(a.x) u(e) WHERE e > a.g) OR x NOT IN (SELECT unnest([g, NULL]))",
    "rows within rows": "SELECT TRANSACTIONALLY id, (SELECT count(*) FROM range(a.x) u(e) WHERE EXISTS (SELECT 1 FROM range(a.g) v(f) WHERE f = e)) AS n FROM a",
    "json members": "SELECT TRANSACTIONALLY a.id, e.key, e.value FROM a, json_each('{\"p\":' || g || ',\"q\":[1]}') e",
    "json tree": "SELECT TRANSACTIONALLY a.id, e.key, e.fullkey FROM a LEFT JOIN json_tree('[' || x || ',{\"k\":2}]') e ON e.type = 'OBJECT'",
    "lateral groups": "SELECT TRANSACTIONALLY a.id, s.n, s.t FROM a LEFT JOIN LATERAL (SELECT count(*) AS n, sum(y) + 1 AS t FROM b WHERE b.a_id = a.id AND b.y > 0) s ON true WHERE s.n < 3",
    "lateral rows": "SELECT TRANSACTIONALLY a.id, s.id AS b, s.z FROM a LEFT JOIN LATERAL (SELECT b.id, b.y + 1 AS z FROM b WHERE b.a_id = a.id AND b.y >= a.x) s ON s.z > 1",
    "lateral behind a comma": "SELECT TRANSACTIONALLY a.id, s.t, e FROM a, LATERAL (SELECT DISTINCT b.t FROM b WHERE b.a_id = a.id) s, unnest([a.x]) u(e) WHERE e > 0",
    "asof": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a ASOF JOIN b ON a.g = b.y AND a.id >= b.id",
    "asof left": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a ASOF LEFT JOIN b ON b.y = a.g AND b.id * 2 > a.id + 1",
    "asof without equality": "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a ASOF LEFT JOIN b ON a.id <= b.id",
    "asof below": "SELECT TRANSACTIONALLY b.id AS b, count(*) AS n, max(c.v) AS v FROM a ASOF JOIN b ON a.g = b.y AND a.id < b.id LEFT JOIN c ON c.k1 = b.id GROUP BY b.id",
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
        """SELECT p.id, (SELECT last(q.id ORDER BY q.y, q.id) FROM b q WHERE q.a_id IS NOT DISTINCT FROM p.a_id AND (p.y IS NULL OR q.y <= p.y)) AS n,
            (SELECT list(q.id ORDER BY q.y, q.id) FROM b q WHERE q.a_id IS NOT DISTINCT FROM p.a_id AND (p.y IS NULL OR q.y <= p.y)) AS l FROM b p"""),
    "frames of rows over ties": (
        "SELECT TRANSACTIONALLY id, sum(id) OVER (PARTITION BY a_id ORDER BY y ROWS 1 PRECEDING) AS s FROM b",
        "SELECT id, sum(id) OVER (PARTITION BY a_id ORDER BY y, id ROWS 1 PRECEDING) AS s FROM b"),
    "first values of ties": (
        "SELECT TRANSACTIONALLY id, first_value(id) OVER (PARTITION BY a_id ORDER BY y DESC) AS f, nth_value(id, 2) OVER (PARTITION BY a_id ORDER BY y NULLS FIRST) AS n, first(t ORDER BY d) OVER (PARTITION BY a_id) AS t FROM b",
        """SELECT p.id, (SELECT q.id FROM b q WHERE q.a_id IS NOT DISTINCT FROM p.a_id ORDER BY q.y DESC, q.id LIMIT 1) AS f,
            (SELECT q.id FROM b q WHERE q.a_id IS NOT DISTINCT FROM p.a_id AND (q.y IS NULL OR q.y <= p.y) ORDER BY q.y NULLS FIRST, q.id LIMIT 1 OFFSET 1) AS n,
            (SELECT q.t FROM b q WHERE q.a_id IS NOT DISTINCT FROM p.a_id ORDER BY q.d, q.id LIMIT 1) AS t FROM b p"""),
    "lists of groups in the order of the groups": (
        "SELECT TRANSACTIONALLY n, list(a_id) AS l FROM (SELECT a_id, count(*) AS n FROM b GROUP BY a_id) GROUP BY n",
        "SELECT n, list(a_id ORDER BY a_id) AS l FROM (SELECT a_id, count(*) AS n FROM b GROUP BY a_id) GROUP BY n"),
    "columns of a table grouped by an alias": (
        "SELECT TRANSACTIONALLY (SELECT max(y) FROM (SELECT sum(y) AS y FROM b GROUP BY a_id)) AS m, a.id AS k, a.name FROM a GROUP BY k",
        "SELECT (SELECT max(y) FROM (SELECT sum(y) AS y FROM b GROUP BY a_id)) AS m, a.id AS k, a.name FROM a GROUP BY k, a.name"),
    "columns of a table grouped by a position": (
        "SELECT TRANSACTIONALLY a.id AS k, a.name FROM a GROUP BY 1",
        "SELECT a.id AS k, a.name FROM a GROUP BY 1, 2"),
    "columns of two grouped tables": (
        "SELECT TRANSACTIONALLY a.name, b.t, count(c.v) AS n FROM a JOIN b ON b.a_id = a.id LEFT JOIN c ON c.a_id = a.id GROUP BY (b.id), a.id",
        "SELECT any_value(a.name) AS name, any_value(b.t) AS t, count(c.v) AS n FROM a JOIN b ON b.a_id = a.id LEFT JOIN c ON c.a_id = a.id GROUP BY b.id, a.id"),
    "columns of a grouped table in a window": (
        "SELECT TRANSACTIONALLY a.id, rank() OVER (PARTITION BY a.g ORDER BY count(b.id)) AS r FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY a.id",
        "SELECT a.id, rank() OVER (PARTITION BY a.g ORDER BY count(b.id)) AS r FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY a.id, a.g"),
    "columns without names": (
        "SELECT TRANSACTIONALLY g, count(*), (max(x)), (x)::text || 'e', (g)::bigint::text AS t, 5::int, CASE WHEN g = 1 THEN 2 END, CASE WHEN g = 2 THEN 3 ELSE g END AS c, coalesce(x, 1), (SELECT min(y) FROM b), EXISTS (SELECT 1 FROM b WHERE a_id = g), extract(year FROM DATE '2020-01-01'), row_number() OVER (PARTITION BY g ORDER BY x), [1] FROM a GROUP BY g, x",
        """SELECT g, count(*) AS count, max(x) AS max, x::text || 'e' AS "?column?", g::text AS t, 5 AS int4, CASE WHEN g = 1 THEN 2 END AS case, CASE WHEN g = 2 THEN 3 ELSE g END AS c, coalesce(x, 1) AS coalesce, (SELECT min(y) FROM b) AS min,
            EXISTS (SELECT 1 FROM b WHERE a_id = g) AS exists, 2020::bigint AS extract, row_number() OVER (PARTITION BY g ORDER BY x) AS row_number, [1] AS array FROM a GROUP BY g, x"""),
    "columns without names below": (
        "WITH s AS (SELECT g, sum(x), x::int FROM a GROUP BY g, x) SELECT TRANSACTIONALLY sum, upper, count(*) FROM (SELECT * FROM s) s JOIN (SELECT upper(t), count(*), count(y) FROM b GROUP BY upper) t ON true GROUP BY sum, upper",
        "SELECT s.s AS sum, t.u AS upper, count(*) AS count FROM (SELECT sum(x) AS s FROM a GROUP BY g, x) s JOIN (SELECT upper(t) AS u FROM b GROUP BY upper(t)) t ON true GROUP BY s.s, t.u"),
    "columns of a nullable side whose key is grouped": (
        "SELECT TRANSACTIONALLY b.id, b.t, count(*) AS n FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY b.id",
        "SELECT b.id, b.t, count(*) AS n FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY b.id, b.t"),
    "tumble": (
        "SELECT TRANSACTIONALLY id, window_start, window_end FROM tumble((SELECT id, g, x, TIMESTAMP '2024-02-28 23:58:30' + to_minutes(x) AS ts FROM a), ts, INTERVAL '2' minute) AS w",
        "SELECT id, time_bucket(INTERVAL 2 MINUTE, ts) AS window_start, time_bucket(INTERVAL 2 MINUTE, ts) + INTERVAL 2 MINUTE AS window_end FROM (SELECT id, g, x, TIMESTAMP '2024-02-28 23:58:30' + to_minutes(x) AS ts FROM a)"),
    "tumble with an offset": (
        "SELECT TRANSACTIONALLY w.window_start, count(*) AS n FROM TUMBLE((SELECT id, g, x, TIMESTAMP '2024-02-28 23:58:30' + to_minutes(x) AS ts FROM a), ts, INTERVAL '7 days', INTERVAL '6 hours') AS w GROUP BY w.window_start",
        "SELECT time_bucket(INTERVAL 7 DAY, ts, TIMESTAMP '1970-01-01 06:00:00') AS window_start, count(*) AS n FROM (SELECT id, g, x, TIMESTAMP '2024-02-28 23:58:30' + to_minutes(x) AS ts FROM a) GROUP BY 1"),
    "tumble of a table": (
        "WITH s AS (SELECT id, g, x, TIMESTAMP '2024-02-28 23:58:30' + to_minutes(x) AS ts FROM a) SELECT TRANSACTIONALLY x.id, y.id AS y FROM TABLE(TUMBLE(TABLE s, DESCRIPTOR(ts), INTERVAL '2' MINUTES)) AS x JOIN tumble(s, s.ts, INTERVAL '2' MINUTES) y ON x.g = y.g AND x.window_start = y.window_start",
        "WITH s AS (SELECT id, g, x, TIMESTAMP '2024-02-28 23:58:30' + to_minutes(x) AS ts FROM a) SELECT x.id, y.id AS y FROM s x JOIN s y ON x.g = y.g AND time_bucket(INTERVAL 2 MINUTE, x.ts) = time_bucket(INTERVAL 2 MINUTE, y.ts)"),
    "hop": (
        "WITH s AS (SELECT id, g, x, TIMESTAMP '2024-02-28 23:58:30' + to_minutes(x) AS ts FROM a) SELECT TRANSACTIONALLY * FROM HOP(s, ts, INTERVAL '2' MINUTE, INTERVAL '5' MINUTE)",
        "SELECT s.*, window_start, window_start + INTERVAL 5 MINUTE AS window_end FROM (SELECT id, g, x, TIMESTAMP '2024-02-28 23:58:30' + to_minutes(x) AS ts FROM a) s, generate_series(TIMESTAMP '2024-02-28 23:00:00', TIMESTAMP '2024-02-29 00:10:00', INTERVAL 2 MINUTE) g(window_start) WHERE window_start <= ts AND ts < window_start + INTERVAL 5 MINUTE"),
    "functions of PostgreSQL": (
        "SELECT TRANSACTIONALLY id, e, f, string_to_table AS h, p ->> 'k' AS p FROM a, string_to_table('a,' || name, ',') AS e, regexp_split_to_table(name, 'q') AS t(f), string_to_table('x', ','), jsonb_array_elements('[{\"k\":1}]'::JSON) AS p",
        "SELECT id, e, f, 'x' AS h, '1' AS p FROM a, unnest(['a', name]) AS t(e), unnest(string_split(name, 'q')) AS u(f) WHERE name IS NOT NULL"),
    "closest rows of equal time": (
        "SELECT TRANSACTIONALLY a.id, b.id AS b FROM a ASOF LEFT JOIN b ON b.a_id = a.x AND a.g >= b.y",
        "SELECT a.id, (SELECT min(b.id) FROM b WHERE b.a_id = a.x AND b.y = (SELECT max(y) FROM b c WHERE c.a_id = a.x AND c.y <= a.g)) AS b FROM a"),
}  # fmt: skip


def test_that_views_over_views_are_views() -> None:
    texts = {
        "totals": ViewText(
            "totals.sql",
            "SELECT TRANSACTIONALLY a.id, a.name, sum(b.y) AS total FROM a JOIN b ON b.a_id = a.id GROUP BY a.id",
        ),
        "big": ViewText("big.sql", "SELECT TRANSACTIONALLY * FROM totals WHERE total > 1"),
    }
    view = read_view(
        ViewText(
            "v.sql",
            "SELECT TRANSACTIONALLY t.name, count(*) AS n, max(b.total) AS m FROM totals t LEFT JOIN big b ON b.id = t.id GROUP BY t.name",
        ),
        CATALOG,
        texts,
    )

    expected = """WITH totals AS (SELECT a.id, a.name, sum(b.y) AS total FROM a JOIN b ON b.a_id = a.id GROUP BY a.id, a.name),
        big AS (SELECT * FROM totals WHERE total > 1)
        SELECT t.name, count(*) AS n, max(b.total) AS m FROM totals t LEFT JOIN big b ON b.id = t.id GROUP BY t.name"""
    for database in _databases():
        assert _rows(database, _query(view)) == _rows(database, expected)


@pytest.mark.parametrize("name", SAME)
def test_tree_means_what_the_text_means(name: str) -> None:
    view = _view(SAME[name])
    plain_text = ViewText("v.sql", SAME[name]).query

    _assert_same(view, plain_text)


@pytest.mark.parametrize("name", TRANSLATED)
def test_tree_means_what_the_text_means_here(name: str) -> None:
    view = _view(TRANSLATED[name][0])

    assert [column for column, _ in view.outputs] == _databases()[0].sql(TRANSLATED[name][1]).columns
    _assert_same(view, TRANSLATED[name][1])


def _assert_same(view: LogicalView, expected: str) -> None:
    repeated = " UNION ALL ".join(f"SELECT * FROM ({_repeated(node)})" for node in _nodes(view.relation))
    for number, database in enumerate(_databases()):
        assert _rows(database, _query(view)) == _rows(database, expected), (number, _query(view))
        if number % 4 != 1:  # there are rows
            assert database.execute(repeated).fetchall() == [], (number, repeated)


def _repeated(relation: Relation) -> str:
    """Counts the rows that have one identity, where these are several."""
    columns = ", ".join(f'"{column}"' for column in relation.identity)
    groups = f"GROUP BY {columns}" if columns else ""
    return f"SELECT count(*) FROM (\n{render_over_tables(relation)}\n) {groups} HAVING count(*) > 1"


def _query(view: LogicalView) -> str:
    """The view's rows under its columns' names."""
    outputs = ", ".join(f'"{column}" AS "{name}"' for name, column in view.outputs)
    return f"SELECT {outputs} FROM (\n{render_over_tables(view.relation)}\n)"


def _view(sql: str) -> LogicalView:
    return read_view(ViewText("views/v.sql", sql), CATALOG)


def _nodes(relation: Relation) -> Iterator[Relation]:
    yield relation
    for child in children(relation):
        yield from _nodes(child)


def _rows(database: duckdb.DuckDBPyConnection, sql: str) -> Counter[str]:
    return Counter(repr(row) for row in database.execute(sql).fetchall())


@cache
def _databases() -> tuple[duckdb.DuckDBPyConnection, ...]:
    return tuple(_database(random.Random(seed), (4, 0, 9, 13)[seed % 4]) for seed in range(DATABASES))


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
