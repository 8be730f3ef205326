"""Keys that cannot be evaluated are withheld, and everything else continues.

The oracle is plain DuckDB over the rows as they are after each commit, stage key by stage key.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.payloads import Document
from slackwater.sql import stage_evaluation
from slackwater.sql.errors import EvaluationError
from slackwater.sql.plan import EnginePlan, with_withheld_keys
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

TABLES: Final = """
CREATE TABLE s.items (id bigint PRIMARY KEY, kind text NOT NULL, size text NOT NULL);
CREATE TABLE s.kinds (kind text PRIMARY KEY, parts text NOT NULL);
ALTER TABLE s.items REPLICA IDENTITY FULL;
ALTER TABLE s.kinds REPLICA IDENTITY FULL;
"""
VIEWS: Final = {
    "rows": ("id", "SELECT i.id, i.kind, i.size::INTEGER AS size FROM s.items i"),
    "filtered": ("id", "SELECT i.id, i.kind FROM s.items i WHERE i.size::INTEGER > 1"),
    "groups": (
        "kind",
        "SELECT i.kind, list(i.size::INTEGER ORDER BY i.id) AS sizes FROM s.items i GROUP BY i.kind",
    ),
    "sums": (
        "kind",
        "SELECT i.kind, 12 // (count(*) - 2) AS share, max(i.size)::INTEGER AS top FROM s.items i "
        "GROUP BY i.kind",
    ),
    "added": (
        "kind",
        "SELECT i.kind, count(*) AS n, sum(i.size::INTEGER) AS total, min(i.size::INTEGER) AS least, "
        "count(DISTINCT i.size::INTEGER % 2) AS parities FROM s.items i GROUP BY i.kind HAVING count(*) <> 3",
    ),
    "own": (
        "id",
        "SELECT i.id, sum(i.size::INTEGER) AS total, max(i.size) AS s FROM s.items i GROUP BY i.id",
    ),
    "whole": ("", "SELECT count(*) AS n, sum(i.size::INTEGER) AS total FROM s.items i"),
    "joined": (
        "kind",
        "SELECT i.id, k.kind, i.size::INTEGER // k.parts::INTEGER AS part "
        "FROM s.kinds k JOIN s.items i ON i.kind = k.kind",
    ),
    "left": (
        "kind",
        "SELECT k.kind, i.id, i.size::INTEGER AS size, k.parts::INTEGER AS parts "
        "FROM s.kinds k LEFT JOIN s.items i ON i.kind = k.kind",
    ),
    "total": ("", "SELECT count(*) AS n, list(i.size::INTEGER ORDER BY i.id) AS sizes FROM s.items i"),
}
KINDS: Final = ("a", "b", "c")
Row = dict[str, Any]


@cache
def plan(view: str) -> EnginePlan:
    sql = VIEWS[view][1].replace("SELECT", "SELECT TRANSACTIONALLY", 1)
    compiled = compile_pipeline([(f"{view}.sql", sql)], parse_catalog({"t.sql": TABLES}))
    return with_withheld_keys(compiled, {view})


@dataclass
class Database:
    """Two tables, the changes that a connector writes, and what a view should be at each commit."""

    view: str
    rows: dict[str, dict[Any, Row]] = field(default_factory=lambda: {"items": {}, "kinds": {}})
    lsn: int = 0

    def put(self, table: str, key: Any, row: Row | None) -> ChangeEvent | None:
        rows = self.rows[table]
        before = rows.pop(key, None)
        if row is not None:
            rows[key] = row
        if row is None and before is None:
            return None
        op = "d" if row is None else "c" if before is None else "u"
        old = None if before is None else json.dumps(before).encode()
        return f"s.{table}", op, self.lsn, old, None if row is None else json.dumps(row).encode()

    def expected(self) -> tuple[list[Row], set[Any]]:
        """Returns the documents of the keys that DuckDB can evaluate, and the keys that it cannot."""
        key = VIEWS[self.view][0]
        documents: list[Row] = []
        withheld = set()
        keys = (
            {row[key] for table in self.rows.values() for row in table.values() if key in row}
            if key
            else {()}
        )
        for value in keys:
            self._fill(partial(_is_of_key, key, value))
            try:
                result = _oracle().execute(VIEWS[self.view][1])
                names = [column[0] for column in result.description or ()]
                documents += [dict(zip(names, values, strict=True)) for values in result.fetchall()]
            except (duckdb.DataError, duckdb.InvalidInputException):
                withheld.add(value)
        return sorted(documents, key=repr), withheld

    def _fill(self, is_of_key: Callable[[Row], bool]) -> None:
        connection = _oracle()
        for table, rows in self.rows.items():
            connection.execute(f"DELETE FROM s.{table}")  # noqa: S608 - a literal
            for row in filter(is_of_key, rows.values()):
                marks = ", ".join("?" for _ in row)
                connection.execute(f"INSERT INTO s.{table} VALUES ({marks})", list(row.values()))  # noqa: S608


def _is_of_key(key: str, value: Any, row: Row) -> bool:
    return not key or row.get(key) == value


@cache
def _oracle() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("CREATE SCHEMA s")
    connection.execute("CREATE TABLE s.items (id bigint, kind text, size text)")
    connection.execute("CREATE TABLE s.kinds (kind text, parts text)")
    return connection


class Reader:
    """What a reader of the documents and of the withheld keys knows."""

    def __init__(self) -> None:
        self.documents: dict[bytes, Row] = {}
        self.withheld: dict[bytes, Row] = {}

    def take(self, found: dict[int, list[Document]], until: int) -> None:
        """Reads what was not read yet, up to a commit."""
        for view, known in ((0, self.documents), (1, self.withheld)):
            for lsn, key, value in sorted(found[view], key=lambda document: document[0]):
                if lsn > until:
                    continue
                new = None if value is None else json.loads(value)
                assert known.get(key) != new, f"{key!r} at {lsn} repeats {value!r}"
                if new is None:
                    del known[key]
                else:
                    known[key] = new
            found[view] = [document for document in found[view] if document[0] > until]

    @property
    def withheld_keys(self) -> set[Any]:
        keys = [each["key"] for each in self.withheld.values() if not each["key"].startswith("stage")]
        return {next(iter(json.loads(key).values()), ()) for key in keys}


_ITEMS = st.tuples(
    st.just("items"),
    st.integers(1, 4),
    st.none() | st.tuples(st.sampled_from(KINDS), st.sampled_from(["1", "2", "3", "bad", "bad", ""])),
)
_KIND_ROWS = st.tuples(
    st.just("kinds"), st.sampled_from(KINDS), st.none() | st.sampled_from(["1", "2", "0", "bad"])
)
_BATCHES = st.lists(
    st.lists(st.lists(_ITEMS | _KIND_ROWS, min_size=1, max_size=3), min_size=1, max_size=3), max_size=6
)


def row_of(table: str, key: Any, values: Any) -> Row | None:
    if values is None:
        return None
    if table == "kinds":
        return {"kind": key, "parts": values}
    return {"id": key, "kind": values[0], "size": values[1]}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("every_commit", [False, True])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batches=_BATCHES,
    losses=st.lists(st.sampled_from(["nothing", "indexes", "batch"]), min_size=6, max_size=6),
)
def test_good_keys_are_right_and_bad_ones_withheld_at_every_commit(
    view: str, every_commit: bool, batches: Sequence[Sequence[Sequence[Any]]], losses: Sequence[str]
) -> None:
    database, reader = Database(view), Reader()
    engine = LocalEngine(plan(view), every_commit=every_commit)
    for batch, loss in zip(batches, losses, strict=False):
        changes: list[ChangeEvent] = []
        expected = []
        for commit in batch:
            database.lsn += 0x10
            found = (database.put(table, key, row_of(table, key, values)) for table, key, values in commit)
            changes += [each for each in found if each is not None]
            expected.append((database.lsn, database.expected()))
        before = engine.state
        documents = engine.run(changes, first_lsn=database.lsn - 0x10 * (len(batch) - 1))
        if loss != "nothing":
            for stage, bucket in list(engine.indexes):
                engine.lose_index(stage, bucket)
        if loss == "batch":
            engine.return_to(before)
            assert engine.run(changes, first_lsn=database.lsn - 0x10 * (len(batch) - 1)) == documents
        for lsn, (rows, withheld) in expected if every_commit else expected[-1:]:
            reader.take(documents, lsn)
            assert sorted(reader.documents.values(), key=repr) == rows
            assert reader.withheld_keys == withheld
        assert engine.state.withheld.get(1, 0) == len(reader.withheld)


def item(lsn: int, key: int, size: str, before: str | None = None, kind: str = "a") -> ChangeEvent:
    rows = [json.dumps({"id": key, "kind": kind, "size": each}).encode() for each in (size, before or "")]
    return "s.items", "c" if before is None else "u", lsn, None if before is None else rows[1], rows[0]


@pytest.mark.parametrize("every_commit", [False, True])
def test_a_withheld_key_is_named_with_its_reason_and_rows_and_comes_back(every_commit: bool) -> None:
    engine = LocalEngine(plan("rows"), every_commit=every_commit)
    engine.run([item(0x10, 1, "1"), item(0x10, 2, "2")])

    bad = engine.run([item(0x20, 1, "bad", "1")])
    mended = engine.run([item(0x30, 1, "3", "bad")])

    assert bad[0] == [(0x20, b'{"id":1}', None)]
    ((lsn, key, value),) = bad[1]
    assert (lsn, json.loads(key)) == (0x20, {"key": '{"id":1}'})
    document = json.loads(value or b"")
    assert "Could not convert string 'bad' to INT32" in document.pop("reason")
    assert document == {
        "key": '{"id":1}',
        "view": "rows",
        "commit_lsn": 0x20,
        "rows": ['s.items i {"id":1,"kind":"a","size":"bad"}'],
    }
    assert mended[0] == [(0x30, b'{"id":1}', b'{"id":1,"kind":"a","size":3}')]
    assert mended[1] == [(0x30, key, None)]


def test_at_each_commit_that_leaves_a_key_withheld_its_reason_is_published() -> None:
    engine = LocalEngine(plan("rows"), every_commit=True)

    documents = engine.run([item(0x10, 1, "x"), item(0x20, 1, "y", "x"), item(0x30, 1, "3", "y")])

    reasons = [
        (lsn, None if value is None else json.loads(value)["reason"][:40]) for lsn, _, value in documents[1]
    ]
    assert reasons == [
        (0x10, "Conversion Error: Could not convert stri"),
        (0x20, "Conversion Error: Could not convert stri"),
        (0x30, None),
    ]
    assert [lsn for lsn, _, _ in documents[0]] == [0x30]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("count(*) AS n FROM s.items i GROUP BY i.size::INTEGER", "the groups of its rows are not known"),
        (
            "k.parts, sum(i.size::INTEGER) AS n FROM s.items i JOIN s.kinds k USING (kind) GROUP BY k.parts",
            "others depend on the rows of stage 1",
        ),
    ],
)
@pytest.mark.parametrize("every_commit", [False, True])
def test_an_error_whose_keys_are_not_known_ends_the_run(sql: str, why: str, every_commit: bool) -> None:
    sizes = with_withheld_keys(
        compile_pipeline([("sizes.sql", f"SELECT TRANSACTIONALLY {sql}")], parse_catalog({"t.sql": TABLES})),
        {"sizes"},
    )
    engine = LocalEngine(sizes, every_commit=every_commit)

    kind = json.dumps({"kind": "a", "parts": "1"}).encode()
    with pytest.raises(EvaluationError, match=f"the key is not withheld, because {why}"):
        engine.run([item(0x10, 1, "bad"), ("s.kinds", "c", 0x10, None, kind)])


@pytest.mark.parametrize("every_commit", [False, True])
def test_a_group_is_withheld_as_long_as_one_of_its_rows_cannot_be_evaluated(every_commit: bool) -> None:
    engine = LocalEngine(plan("added"), every_commit=every_commit)
    engine.run([item(0x10, 1, "1"), item(0x10, 2, "2", kind="b")])

    bad = engine.run([item(0x20, 3, "bad"), item(0x20, 4, "bad")])
    half = engine.run([item(0x30, 3, "5", "bad")])
    mended = engine.run([item(0x40, 4, "7", "bad"), item(0x40, 3, "6", "5")])

    assert bad[0] == [(0x20, b'{"kind":"a"}', None)]
    reasons = {json.loads(key)["key"]: json.loads(value or b"null") for _, key, value in bad[1]}
    assert sorted(reasons) == ['stage 1 {"id":3}', 'stage 1 {"id":4}', '{"i.kind":"a"}']
    assert reasons['{"i.kind":"a"}']["reason"] == "2 of its rows cannot be evaluated"
    assert "'bad'" in reasons['stage 1 {"id":3}']["reason"]
    assert not half[0]
    assert [(json.loads(key)["key"], value is None) for _, key, value in sorted(half[1])] == [
        ('stage 1 {"id":3}', True),
        ('{"i.kind":"a"}', False),
    ]
    assert [json.loads(value or b"null") for _, _, value in mended[0]] == []
    assert not engine.state.withheld


@pytest.mark.parametrize("every_commit", [False, True])
def test_too_many_bad_keys_end_the_run(monkeypatch: pytest.MonkeyPatch, every_commit: bool) -> None:
    monkeypatch.setattr(stage_evaluation, "MAX_FAILURES", 3)
    engine = LocalEngine(plan("groups"), buckets=1, every_commit=every_commit)
    few = engine.run([item(0x10, each, "bad", kind=f"k{each}") for each in range(3)])

    with pytest.raises(EvaluationError, match="too many to withhold"):
        engine.run([item(0x20, each, "bad", kind=f"k{each}") for each in range(10, 14)])

    assert len(few[1]) == 3


def test_a_limit_ends_the_run_whatever_a_view_withholds() -> None:
    sql = "SELECT TRANSACTIONALLY i.id, len(repeat(i.size, 2000000000)) AS size FROM s.items i"
    large = with_withheld_keys(
        compile_pipeline([("large.sql", sql)], parse_catalog({"t.sql": TABLES})), {"large"}
    )

    with pytest.raises(EvaluationError) as raised:
        LocalEngine(large).run([item(0x10, 1, "x" * 2)])

    assert raised.value.is_limit
