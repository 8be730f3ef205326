# ruff: noqa: S608 - the SQL is made of constants of this module
"""Values that DuckDB takes for equal are one value over all commits, and different ones stay different.

For each type: values that are equal in several forms, and different ones that look alike, come and go commit
by commit. Each view over them equals what DuckDB gives for the whole tables, or is refused by the planner.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import duckdb
import pytest

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.sql.errors import SqlTextError
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

CATALOG = parse_catalog(
    {
        "schema.sql": "CREATE TABLE t (id bigint PRIMARY KEY, g bigint, v text);"
        "CREATE TABLE u (id bigint PRIMARY KEY, g bigint, v text);"
    }
)
TABLES = "CREATE TABLE t (id BIGINT, g BIGINT, v VARCHAR); CREATE TABLE u (id BIGINT, g BIGINT, v VARCHAR)"

Change = tuple[str, str, int, int]
"""Table, operation, id of the row and number of its value."""

SHAPES = {
    "group": "SELECT x AS k, count(*) AS n FROM {t} q GROUP BY x",
    "group of two": "SELECT g, x AS k, list(id ORDER BY id) AS ids FROM {t} q GROUP BY g, x",
    "group not shown": "SELECT count(*) AS n, sum(id) AS s FROM {t} q GROUP BY x",
    "distinct": "SELECT DISTINCT x AS k FROM {t} q",
    "union": "SELECT x AS k FROM {t} q UNION SELECT x AS k FROM {u} q",
    "union all": "SELECT x AS k, count(*) AS n FROM {t} q GROUP BY x UNION ALL SELECT x, 0 FROM {u} r",
    "intersect": "SELECT x AS k FROM {t} q INTERSECT SELECT x AS k FROM {u} q",
    "except": "SELECT x AS k FROM {t} q EXCEPT SELECT x AS k FROM {u} q",
    "join": "SELECT a.id, b.id AS other FROM {t} a JOIN {u} b ON a.x = b.x",
    "full join": "SELECT a.id, b.id AS other FROM {t} a FULL JOIN {u} b ON a.x = b.x",
    "in": "SELECT id FROM {t} q WHERE x IN (SELECT x FROM {u} r)",
    "not exists": "SELECT id FROM {t} q WHERE NOT EXISTS (SELECT 1 FROM {u} r WHERE r.x = q.x)",
    "partition": "SELECT id, count(*) OVER (PARTITION BY x) AS n FROM {t} q",
    "count distinct": "SELECT count(DISTINCT x) AS n FROM {t} q",
    "count distinct of groups": "SELECT g, count(DISTINCT x) AS n FROM {t} q GROUP BY g",
    "ends": "SELECT a.id FROM {t} a, (SELECT min(x) AS m, max(x) AS n FROM {t} c) b "
    "WHERE a.x = b.m OR a.x = b.n",
    "equal ends": "SELECT g, min(x) = max(x) AS one, count(*) AS n FROM {t} a GROUP BY g",
    "groups of groups": "SELECT n, count(*) AS m "
    "FROM (SELECT count(*) AS n FROM {t} q GROUP BY x) GROUP BY n",
    "passed on": "SELECT b.g, list(CAST(b.x AS VARCHAR) ORDER BY b.id) AS xs FROM (SELECT id, g, x, "
    "count(*) OVER (PARTITION BY g) AS n FROM {t} q) b JOIN {u} u ON u.id = b.id GROUP BY b.g",
}

VALUES = {
    "double": ["0::DOUBLE", "-(0::DOUBLE)", "'nan'::DOUBLE", "-('nan'::DOUBLE)", "NULL"],
    "lists of doubles": ["[0::DOUBLE]", "[-(0::DOUBLE)]", "['nan'::DOUBLE]", "[-('nan'::DOUBLE)]"],
    "json": ["'null'::JSON", "NULL", "'1'::JSON", "'1.0'::JSON", "'{\"a\":1}'::JSON", "'{\"a\": 1}'::JSON"],
    "lists of json": ["['null'::JSON]", "[NULL::JSON]", "['1'::JSON]", "NULL"],
    "variant": ["1::VARIANT", "1.0::VARIANT", "'1'::VARIANT", "2::VARIANT"],
    "union": ["union_value(a := 1)::UNION(a INT, b VARCHAR)", "'1'::UNION(a INT, b VARCHAR)"],
    "interval": ["INTERVAL 30 DAYS", "INTERVAL 1 MONTH", "INTERVAL 720 HOURS", "INTERVAL 1 DAY"],
    "structs": ["{'a': 1, 'b': 'x'}", "{'a': NULL::INT, 'b': 'x'}", "{'a': 1, 'b': 'NULL'}", "NULL"],
}
MORE_VALUES = {
    "real": ["0::FLOAT", "-(0::FLOAT)", "'nan'::FLOAT", "-('nan'::FLOAT)", "0.1::FLOAT"],
    "structs of doubles": ["{'a': 0::DOUBLE}", "{'a': -(0::DOUBLE)}", "{'a': NULL::DOUBLE}", "NULL"],
    "structs of json": ["{'a': 'null'::JSON}", "{'a': NULL::JSON}", "NULL"],
    "decimal": ["1.0::DECIMAL(9,2)", "1::DECIMAL(9,2)", "1.1::DECIMAL(9,2)"],
    "hugeint": ["1::HUGEINT", "170141183460469231731687303715884105727::HUGEINT", "-(1::HUGEINT)"],
    "bignum": ["1::BIGNUM", "123456789012345678901234567890123456789012345::BIGNUM"],
    "timetz": ["'12:00:00+00'::TIMETZ", "'13:00:00+01'::TIMETZ", "'12:00:00+01'::TIMETZ"],
    "time": ["'24:00'::TIME", "'00:00'::TIME"],
    "timestamp": ["'0044-03-15 (BC) 00:00'::TIMESTAMP", "'0044-03-15'::TIMESTAMP", "'infinity'::TIMESTAMP"],
    "timestamptz": ["'2020-01-01 00:00+00'::TIMESTAMPTZ", "'2020-01-01 01:00+01'::TIMESTAMPTZ"],
    "nanoseconds": ["'2020-01-01 00:00:00.000000001'::TIMESTAMP_NS", "'2020-01-01'::TIMESTAMP_NS"],
    "date": ["'0044-03-15 (BC)'::DATE", "'0044-03-15'::DATE", "'infinity'::DATE"],
    "bit": ["'01'::BIT", "'1'::BIT", "'001'::BIT"],
    "blob": ["'a'::BLOB", "''::BLOB", r"'\x00'::BLOB", r"'\x5Cx00'::BLOB"],
    "text": ["'a'", "'A'", "'a '", "''", "'NULL'", "NULL", "'é'", "chr(101) || chr(769)"],
    "enum": ["'a'::ENUM('a', 'b')", "'b'::ENUM('a', 'b')", "NULL"],
    "lists": ["[1, NULL]", "[NULL::INT]", "[]::INT[]", "NULL", "[1]"],
    "lists of texts": ["['a', 'b']", "['a, b']", "['NULL']", "[NULL::VARCHAR]", "['''a''']", "['']"],
    "lists of lists": ["[[1], NULL]", "[[1], [NULL]]", "[[1], []]"],
    "lists of intervals": ["[INTERVAL 30 DAYS]", "[INTERVAL 1 MONTH]"],
    "arrays": ["[1, 2]::INT[2]", "[1, NULL]::INT[2]"],
    "tuples": ["row(1, 'a')", "row(1, NULL)"],
    "maps": ["MAP {'a': 1, 'b': 2}", "MAP {'b': 2, 'a': 1}", "MAP {'a': NULL::INT}", "NULL"],
    "maps of json": ["MAP {'a': 'null'::JSON}", "MAP {'a': NULL::JSON}"],
    "lists of variants": ["[1::VARIANT]", "[1.0::VARIANT]"],
    "geometry": ["'POINT(0 0)'::GEOMETRY", "'POINT(-0 0)'::GEOMETRY", "'POINT(1 0)'::GEOMETRY"],
}


def rows_of(table: str, values: Sequence[str]) -> str:
    """Returns a subquery that has the value of each row as x."""
    cases = " ".join(f"WHEN '{n}' THEN {value}" for n, value in enumerate(values) if value != "NULL")
    return f"(SELECT id, g, CASE v {cases} END AS x FROM {table})"


def accepted(values: Sequence[str]) -> dict[str, str]:
    """Returns the shapes that are not refused when they are planned, as DuckDB's SQL."""
    sqls = {}
    for name, shape in SHAPES.items():
        sql = shape.format(t=rows_of("t", values), u=rows_of("u", values))
        try:
            compile_pipeline([(f"{name}.sql", transactional(sql))], CATALOG)
        except SqlTextError:
            continue
        sqls[name] = sql
    return sqls


def transactional(sql: str) -> str:
    return sql.replace("SELECT", "SELECT TRANSACTIONALLY", 1)


def batches(count: int) -> list[list[Change]]:
    """Rows come and go in other orders, so that one of several equal values comes first and goes first."""
    come = [[("t", "c", n, n), ("u", "c", n, count - 1 - n)] for n in range(count)]
    again = [[("t", "c", 100 + n, n) for n in range(count)]]
    go = [[("t", "d", n, n), ("u", "d", n, count - 1 - n)] for n in range(count)]
    return [*come, *again, *go, [("t", "d", 100 + n, n) for n in range(count)]]


def without_value(rows: Iterable[Mapping[str, object]]) -> Counter[str]:
    """Counts rows, without the value itself: of equal ones, DuckDB shows any."""
    shown = ({name: value for name, value in row.items() if name != "k"} for row in rows)
    return Counter(json.dumps(row, sort_keys=True) for row in shown)


def events(
    batch: Sequence[Change], first_lsn: int, reference: duckdb.DuckDBPyConnection
) -> list[ChangeEvent]:
    """Applies changes, each of which is a commit, to the reference, and returns them as a connector's."""
    result: list[ChangeEvent] = []
    for lsn, (table, op, row_id, value) in enumerate(batch, first_lsn):
        row = {"id": row_id, "g": row_id % 2, "v": str(value)}
        image = json.dumps(row).encode()
        if op == "c":
            reference.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", list(row.values()))
        else:
            reference.execute(f"DELETE FROM {table} WHERE id = ?", [row_id])
        key = json.dumps({"id": row_id, "g": None, "v": None}).encode()
        before, after = (None, image) if op == "c" else (key, None)
        result.append((f"public.{table}", op, lsn, before, after, lsn))
    return result


def check(values: Sequence[str], *, every_commit: bool) -> None:
    sqls = accepted(values)
    views = [(f"{name}.sql", transactional(sql)) for name, sql in sqls.items()]
    engine = LocalEngine(compile_pipeline(views, CATALOG), buckets=1, every_commit=every_commit)
    documents: list[dict[bytes, bytes]] = [{} for _ in views]
    lsn = 1
    with duckdb.connect(config={"threads": 1}) as reference:
        reference.execute(TABLES)
        for batch in batches(len(values)):
            for view, changed in engine.run(events(batch, lsn, reference)).items():
                documents[view].update((key, document or b"") for _, key, document in changed)
            lsn += len(batch)
            for view, (name, sql) in enumerate(sqls.items()):
                found = reference.sql(sql)
                rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
                got = without_value(json.loads(each) for each in documents[view].values() if each)
                assert got == without_value(rows), f"{name} after {batch} of {values}"


@pytest.mark.full
@pytest.mark.parametrize("kind", VALUES)
def test_equal_values_are_one_and_others_are_not(kind: str) -> None:
    check(VALUES[kind], every_commit=True)


@pytest.mark.slow
@pytest.mark.parametrize("every_commit", [False, True])
@pytest.mark.parametrize("kind", [*VALUES, *MORE_VALUES])
def test_equal_values_of_all_types_are_one_and_others_are_not(kind: str, every_commit: bool) -> None:
    check((VALUES | MORE_VALUES)[kind], every_commit=every_commit)


@pytest.mark.parametrize("kind", ["double", "json", "structs"])
def test_most_shapes_are_accepted(kind: str) -> None:
    """The tests above would pass if everything was refused."""
    assert len(accepted(VALUES[kind])) >= len(SHAPES) - 7
