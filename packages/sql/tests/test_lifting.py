# ruff: noqa: E501, S608 - views read best on few lines; the SQL is ours
"""Lifted evaluation at any LSN equals plain DuckDB on the state at that LSN."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater_sql.catalog import Table
from slackwater_sql.ddl import parse_catalog
from slackwater_sql.evaluation import OPEN_LSN, Evaluator, InputVersions, Points
from slackwater_sql.plan import ViewPlan
from slackwater_sql.view import compile_view

TABLES = """
CREATE TABLE a (id bigint PRIMARY KEY, name text, x integer);
CREATE TABLE b (id bigint PRIMARY KEY, a_id bigint, y integer, t text);
CREATE TABLE c (id bigint PRIMARY KEY, a_id bigint, z numeric(6,2));
CREATE TABLE d (k1 bigint, k2 text, v integer, PRIMARY KEY (k1, k2));
CREATE TABLE e (id bigint PRIMARY KEY, k1 bigint, k2 text, w integer);
ALTER TABLE b REPLICA IDENTITY FULL;
ALTER TABLE c REPLICA IDENTITY FULL;
ALTER TABLE e REPLICA IDENTITY FULL;
"""
CATALOG = parse_catalog({"tables.sql": TABLES})

# View and the same in plain SQL, where the view relies on what plain DuckDB does not do.
VIEWS = {
    "left_nested": (
        """SELECT TRANSACTIONALLY a.id, a.name, list({'id': b.id, 'y': b.y} ORDER BY b.id)
             FILTER (b.id IS NOT NULL) AS bs FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY a.id""",
        """SELECT a.id, any_value(a.name), list({'id': b.id, 'y': b.y} ORDER BY b.id)
             FILTER (b.id IS NOT NULL) AS bs FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY a.id""",
    ),
    "inner_having": (
        """SELECT TRANSACTIONALLY a.id AS k, sum(b.y) AS total, count(*) AS n FROM a JOIN b ON a.id = b.a_id
             WHERE b.y > 0 GROUP BY a.id HAVING count(*) > 1 OR a.x = 1""",
        """SELECT a.id AS k, sum(b.y) AS total, count(*) AS n FROM a JOIN b ON a.id = b.a_id
             WHERE b.y > 0 GROUP BY a.id HAVING count(*) > 1 OR any_value(a.x) = 1""",
    ),
    "three_tables": (
        """SELECT TRANSACTIONALLY a.id, count(b.id) AS nb, sum(c.z) AS z, list(DISTINCT b.y ORDER BY b.y) AS ys
             FROM a LEFT JOIN b ON b.a_id = a.id AND b.y > a.x LEFT JOIN c ON c.a_id = b.a_id GROUP BY a.id""",
        """SELECT a.id, count(b.id) AS nb, sum(c.z) AS z, list(DISTINCT b.y ORDER BY b.y) AS ys
             FROM a LEFT JOIN b ON b.a_id = a.id AND b.y > a.x LEFT JOIN c ON c.a_id = b.a_id GROUP BY a.id""",
    ),
    "null_keys_of_the_preserved_side": (
        """SELECT TRANSACTIONALLY b.a_id, count(*) AS n, max(a.name) AS name, list(b.t ORDER BY b.id) AS ts
             FROM b LEFT JOIN a ON a.id = b.a_id GROUP BY b.a_id""",
        """SELECT b.a_id, count(*) AS n, max(a.name) AS name, list(b.t ORDER BY b.id) AS ts
             FROM b LEFT JOIN a ON a.id = b.a_id GROUP BY b.a_id""",
    ),
    "null_keys_on_both_sides": (
        """SELECT TRANSACTIONALLY b.a_id, count(*) AS n, sum(c.z) AS z FROM b LEFT JOIN c ON c.a_id = b.a_id
             GROUP BY b.a_id""",
        """SELECT b.a_id, count(*) AS n, sum(c.z) AS z FROM b LEFT JOIN c ON c.a_id = b.a_id GROUP BY b.a_id""",
    ),
    "list_without_order": (
        """SELECT TRANSACTIONALLY b.a_id, list(b.y) AS ys, first(c.z) AS z, string_agg(b.t, ',') AS ts
             FROM b JOIN c ON c.a_id = b.a_id GROUP BY b.a_id""",
        """SELECT b.a_id, list(b.y ORDER BY b.id, c.id) AS ys, first(c.z ORDER BY b.id, c.id) AS z,
             string_agg(b.t, ',' ORDER BY b.id, c.id) AS ts
             FROM b JOIN c ON c.a_id = b.a_id GROUP BY b.a_id""",
    ),
    "self_join": (
        """SELECT TRANSACTIONALLY p.a_id AS k, count(*) AS pairs, sum(q.y) AS y
             FROM b p JOIN b AS q ON q.a_id = p.a_id AND q.id > p.id GROUP BY p.a_id""",
        """SELECT p.a_id AS k, count(*) AS pairs, sum(q.y) AS y
             FROM b p JOIN b AS q ON q.a_id = p.a_id AND q.id > p.id GROUP BY p.a_id""",
    ),
    "composite_key": (
        """SELECT TRANSACTIONALLY d.k1, d.k2, d.v, list(e.w ORDER BY e.id) AS ws
             FROM d LEFT JOIN e ON e.k1 = d.k1 AND d.k2 = e.k2 GROUP BY d.k1, d.k2""",
        """SELECT d.k1, d.k2, any_value(d.v), list(e.w ORDER BY e.id) AS ws
             FROM d LEFT JOIN e ON e.k1 = d.k1 AND d.k2 = e.k2 GROUP BY d.k1, d.k2""",
    ),
    "one_table": (
        """SELECT TRANSACTIONALLY b.t AS k, count(*) AS n, sum(y) AS s FROM b WHERE y IS NOT NULL GROUP BY b.t""",
        """SELECT b.t AS k, count(*) AS n, sum(y) AS s FROM b WHERE y IS NOT NULL GROUP BY b.t""",
    ),
    "case_and_lambda": (
        """SELECT TRANSACTIONALLY a.id, CASE WHEN count(b.id) = 0 THEN 'none' ELSE a.name END AS label,
             list_transform(list(b.y ORDER BY b.id), lambda y: y + a.x) AS ys, a.x + 1 AS next, next * 2 AS twice
             FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY a.id""",
        """SELECT a.id, CASE WHEN count(b.id) = 0 THEN 'none' ELSE any_value(a.name) END AS label,
             list_transform(list(b.y ORDER BY b.id), lambda y: y + any_value(a.x)) AS ys,
             any_value(a.x) + 1 AS next, next * 2 AS twice
             FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY a.id""",
    ),
}

Row = tuple[Any, ...]
small = st.integers(0, 2)
maybe = st.none() | small
parent = st.sampled_from([0, 0, 1, None])
text = st.none() | st.sampled_from(["p", "q", ""])
decimal = st.none() | st.sampled_from(["0.00", "1.50", "-2.25"])
ROWS: dict[str, st.SearchStrategy[Row]] = {
    "a": st.tuples(small, text, maybe),
    "b": st.tuples(st.integers(0, 4), parent, maybe, text),
    "c": st.tuples(small, parent, decimal),
    "d": st.tuples(st.integers(0, 1), st.sampled_from(["p", "q"]), maybe),
    "e": st.tuples(small, parent, st.sampled_from(["p", "q", None]), maybe),
}


@dataclass(frozen=True)
class Version:
    row: Row
    from_lsn: int
    to_lsn: int


History = Mapping[str, list[Version]]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """For each table, changes at LSNs 1, 2, …: each writes or deletes one primary key."""
    return {name: _versions(name, draw(st.lists(_change(name), min_size=2, max_size=8))) for name in ROWS}


def _change(name: str) -> st.SearchStrategy[tuple[Row, bool]]:
    return st.tuples(ROWS[name], st.sampled_from([False, False, False, True]))


def _primary_key(table: str, row: Row) -> Row:
    return row[:2] if table == "d" else row[:1]


def _versions(table: str, changes: list[tuple[Row, bool]]) -> list[Version]:
    live: dict[Row, tuple[Row, int]] = {}
    versions = []
    for lsn, (row, is_delete) in enumerate(changes, start=1):
        old = live.pop(_primary_key(table, row), None)
        if old is not None:
            versions.append(Version(old[0], old[1], lsn))
        if not is_delete:
            live[_primary_key(table, row)] = (row, lsn)
    return versions + [Version(row, lsn, OPEN_LSN) for row, lsn in live.values()]


LAST_LSN = 9


@cache
def _plan(view: str) -> ViewPlan:
    return compile_view(VIEWS[view][0], CATALOG, path=f"{view}.sql")


@cache
def _evaluator(view: str) -> Evaluator:
    return Evaluator(_plan(view))


@lru_cache(maxsize=1)
def _plain_connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config={"threads": 1})
    for table in CATALOG.tables:
        columns = ", ".join(f"{column.name} {column.type.duckdb}" for column in table.columns)
        connection.execute(f"CREATE TABLE {table.name} ({columns})")
    return connection


def _plain(view: str, state: Mapping[str, list[Row]]) -> dict[Row, list[Any]]:
    """The view by plain DuckDB: key → values."""
    plan = _plan(view)
    connection = _plain_connection()
    for table, rows in state.items():
        connection.execute(f"DELETE FROM {table}")
        if rows:
            values = ", ".join("(" + ", ".join("?" for _ in row) + ")" for row in rows)
            connection.execute(
                f"INSERT INTO {table} VALUES {values}", [value for row in rows for value in row]
            )
    rows = connection.execute(VIEWS[view][1]).fetchall()
    names = [output.name for output in plan.outputs]
    positions = [names.index(key.name) for key in plan.key]
    return {tuple(row[p] for p in positions): json.loads(json.dumps(row, default=str)) for row in rows}


def _given(view: str, versions: Mapping[str, list[Version]]) -> tuple[list[Row], dict[str, InputVersions]]:
    """The keys in the history and the rows of each input by key, as a stage hands them over."""
    plan = _plan(view)
    per_input: dict[str, list[tuple[Row, Version]]] = {}
    for each in plan.inputs:
        names = [column.name for column in each.table.columns]
        picked = [names.index(name) for name in each.key]
        per_input[each.alias] = [(tuple(v.row[p] for p in picked), v) for v in versions[each.table.name]]
    keys = sorted({key for rows in per_input.values() for key, _ in rows}, key=repr)
    return keys, {
        each.alias: _input_versions(each.table, each.column_names, per_input[each.alias], keys)
        for each in plan.inputs
    }


def _input_versions(
    table: Table, wanted: Sequence[str], rows: Sequence[tuple[Row, Version]], keys: Sequence[Row]
) -> InputVersions:
    names = [column.name for column in table.columns]
    columns = [[version.row[names.index(name)] for _, version in rows] for name in wanted]
    return InputVersions(
        [keys.index(key) for key, _ in rows],
        columns,
        [version.from_lsn for _, version in rows],
        [version.to_lsn for _, version in rows],
    )


def _values(document: bytes | None) -> list[Any] | None:
    return None if document is None else list(json.loads(document).values())


def _state(history: History, lsn: int) -> dict[str, list[Row]]:
    return {
        table: [version.row for version in versions if version.from_lsn <= lsn < version.to_lsn]
        for table, versions in history.items()
    }


@pytest.mark.parametrize("view", VIEWS)
@settings(max_examples=15, deadline=None)
@given(history=histories())
def test_view_at_each_lsn_is_the_plain_query_on_the_state_at_that_lsn(view: str, history: History) -> None:
    keys, versions = _given(view, history)
    wanted = [(group, lsn) for group in range(len(keys)) for lsn in range(LAST_LSN + 1)]
    points = Points(keys, [group for group, _ in wanted], [lsn for _, lsn in wanted])

    documents = _evaluator(view).evaluate(versions, points)

    for lsn in range(LAST_LSN + 1):
        expected = _plain(view, _state(history, lsn))
        got = {
            keys[group]: _values(document)
            for (group, at), document in zip(wanted, documents, strict=True)
            if at == lsn and document is not None
        }
        assert got == expected


@pytest.mark.parametrize("view", VIEWS)
@settings(max_examples=15, deadline=None)
@given(history=histories(), seed=st.randoms(use_true_random=False))
def test_live_rows_give_the_plain_query_in_whatever_order_they_come(
    view: str, history: History, seed: Any
) -> None:
    live = {table: [v for v in versions if v.to_lsn == OPEN_LSN] for table, versions in history.items()}
    for versions in live.values():
        seed.shuffle(versions)
    keys, given_rows = _given(view, live)

    documents = _evaluator(view).evaluate(given_rows, Points(keys))

    got = {key: _values(doc) for key, doc in zip(keys, documents, strict=True) if doc is not None}
    assert got == _plain(view, _state(history, LAST_LSN))


def test_key_without_rows_has_no_document() -> None:
    documents = _evaluator("left_nested").evaluate({}, Points([(1,)]))

    assert documents == [None]
