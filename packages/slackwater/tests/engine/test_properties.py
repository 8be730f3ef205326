"""Random histories over orders and lines, cut into random batches, with indexes lost at random.

The oracle is plain DuckDB on the rows as they are after each commit.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slackwater.engine.index import BucketIndex
from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.payloads import Document
from slackwater.sql.plan import EnginePlan

VIEW = """
SELECT o.id, o.customer, o.total, count(l.id) AS line_count,
    list({'id': l.id, 'product': l.product} ORDER BY l.id) FILTER (l.id IS NOT NULL) AS lines
FROM inventory.orders o LEFT JOIN inventory.order_lines l ON l.order_id = o.id
GROUP BY o.id, o.customer, o.total
"""

MakeIndex = Callable[[], BucketIndex]
Table = Literal["orders", "order_lines"]
Row = dict[str, Any]
State = dict[Table, dict[int, Row]]


def as_json(row: Row | None) -> bytes | None:
    return None if row is None else json.dumps(row).encode()


@dataclass
class Database:
    """Two tables and what Debezium writes when they change."""

    rows: State = field(default_factory=lambda: {"orders": {}, "order_lines": {}})
    lsn: int = 0
    """Of the commit."""
    written: int = 0
    """LSN of the newest change."""

    def begin(self) -> None:
        self.written = self.lsn
        self.lsn += 100

    def next(self) -> int:
        self.written += 1
        return self.written

    def put(self, table: Table, row: Row) -> ChangeEvent:
        before = self.rows[table].get(row["id"])
        self.rows[table][row["id"]] = row
        old = before if table == "order_lines" else None  # replica identity full only there
        op = "c" if before is None else "u"
        return f"inventory.{table}", op, self.lsn, as_json(old), as_json(row), self.next()

    def delete(self, table: Table, row_id: int) -> ChangeEvent | None:
        before = self.rows[table].pop(row_id, None)
        if before is None:
            return None
        old = before if table == "order_lines" else dict.fromkeys(before) | {"id": row_id}
        return f"inventory.{table}", "d", self.lsn, as_json(old), None, self.next()

    def truncate(self, table: Table) -> ChangeEvent:
        self.rows[table].clear()
        return f"inventory.{table}", "t", self.lsn, None, None, self.next()

    def view(self) -> dict[int, Any]:
        """The view by key, from plain DuckDB on the present rows."""
        connection = _oracle()
        for table, stored in self.rows.items():
            connection.execute(f"DELETE FROM inventory.{table}")  # noqa: S608 - a literal
            for row in stored.values():
                names, marks = ", ".join(row), ", ".join("?" for _ in row)
                values = list(row.values())
                connection.execute(f"INSERT INTO inventory.{table} ({names}) VALUES ({marks})", values)  # noqa: S608
        result = connection.execute(VIEW)
        columns = [column[0] for column in result.description or ()]
        rows = [dict(zip(columns, values, strict=True)) for values in result.fetchall()]
        return {
            row["id"]: row | {"total": None if row["total"] is None else str(row["total"])} for row in rows
        }


@lru_cache(maxsize=1)
def _oracle() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("CREATE SCHEMA inventory")
    connection.execute("CREATE TABLE inventory.orders (id bigint, customer text, total numeric(12,2))")
    connection.execute("CREATE TABLE inventory.order_lines (id bigint, order_id bigint, product text)")
    return connection


class Published:
    """What a reader of the documents knows, and what must not be among them."""

    def __init__(self) -> None:
        self.documents: dict[int, Any] = {}
        self.repeated: list[Document] = []

    def take(self, documents: Sequence[Document]) -> None:
        for document in sorted(documents, key=lambda d: d[0]):
            self._take(document)

    def _take(self, document: Document) -> None:
        _, key, value = document
        (name, key_value), *_ = json.loads(key).items()
        assert name == "id"
        new = None if value is None else json.loads(value)
        if self.documents.get(key_value) == new:
            self.repeated.append(document)
        if new is None:
            self.documents.pop(key_value, None)
        else:
            self.documents[key_value] = new


small_ids = st.integers(0, 4)
orders = st.fixed_dictionaries(
    {"id": small_ids, "customer": st.sampled_from("ab"), "total": st.sampled_from(["1.00", "2.50", None])}
)
lines = st.fixed_dictionaries(
    {"id": st.integers(0, 7), "order_id": st.none() | small_ids, "product": st.sampled_from("xy")}
)
writes = (
    st.tuples(st.just("orders"), orders)
    | st.tuples(st.just("order_lines"), lines)
    | st.tuples(st.just("orders"), small_ids)
    | st.tuples(st.just("order_lines"), st.integers(0, 7))
    | st.tuples(st.sampled_from(["orders", "order_lines"]), st.none())
)
"""A row to write, the id of one to delete, or None: TRUNCATE."""
commits = st.lists(st.lists(writes, min_size=1, max_size=5), min_size=1, max_size=12)


@dataclass
class History:
    """Commits as change events, with the view after each."""

    commits: list[list[ChangeEvent]]
    views: dict[int, dict[int, Any]]


def history(written: Sequence[Sequence[tuple[Table, Row | int | None]]]) -> History:
    database, result = Database(), History([], {0: {}})
    for writes_of_commit in written:
        database.begin()
        changes = [written_to(database, table, row) for table, row in writes_of_commit]
        result.commits.append([change for change in changes if change is not None])
        result.views[database.lsn] = database.view()
    return result


def written_to(database: Database, table: Table, row: Row | int | None) -> ChangeEvent | None:
    if row is None:
        return database.truncate(table)
    return database.delete(table, row) if isinstance(row, int) else database.put(table, row)


def batches(commits: Sequence[list[ChangeEvent]], sizes: Sequence[int]) -> list[list[ChangeEvent]]:
    """Whole commits, this many per batch; the rest as the last batch."""
    result, start = [], 0
    for size in (*sizes, len(commits)):
        batch = [change for commit in commits[start : start + size] for change in commit]
        start += size
        if batch:
            result.append(batch)
    return result


@dataclass
class Run:
    """How a history is processed."""

    sizes: list[int]
    tasks: int
    buckets: int
    losses: list[int]
    """Before each batch, the bucket whose index is lost."""


runs = st.builds(
    Run,
    sizes=st.lists(st.integers(1, 4), max_size=6),
    tasks=st.integers(1, 3),
    buckets=st.integers(1, 4),
    losses=st.lists(st.integers(0, 3), max_size=6),
)


def processed(
    engine: LocalEngine, run: Run, commits: Sequence[list[ChangeEvent]], see: Callable[[list[Document]], None]
) -> None:
    for number, batch in enumerate(batches(commits, run.sizes)):
        if number < len(run.losses):
            engine.lose_index(1, run.losses[number] % run.buckets)
        see(engine.run(batch, run.tasks)[0])


several_calls_per_index = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@several_calls_per_index
@given(written=commits, run=runs)
def test_latest_documents_are_the_view_of_the_final_rows(
    plan: EnginePlan, make_index: MakeIndex, written: list[Any], run: Run
) -> None:
    past = history(written)
    published = Published()
    engine = LocalEngine(plan, make_index, buckets=run.buckets)
    processed(engine, run, past.commits, published.take)
    assert published.documents == past.views[max(past.views)]
    assert published.repeated == []


@several_calls_per_index
@given(written=commits, run=runs)
def test_with_every_commit_the_documents_are_the_view_after_each_commit(
    plan: EnginePlan, make_index: MakeIndex, written: list[Any], run: Run
) -> None:
    past = history(written)
    emitted: list[Document] = []
    engine = LocalEngine(plan, make_index, buckets=run.buckets, every_commit=True)
    processed(engine, run, past.commits, emitted.extend)
    published = Published()
    for lsn, view in past.views.items():
        published.take([document for document in emitted if document[0] == lsn])
        assert published.documents == view
    assert published.repeated == []


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(written=commits, one=runs, other=runs)
def test_documents_of_every_commit_depend_on_neither_batching_nor_buckets(
    plan: EnginePlan, written: list[Any], one: Run, other: Run
) -> None:
    past = history(written)
    emitted: list[list[Document]] = []
    for run in (one, other):
        documents: list[Document] = []
        engine = LocalEngine(plan, buckets=run.buckets, every_commit=True)
        processed(engine, run, past.commits, documents.extend)
        emitted.append(sorted(documents, key=lambda document: document[:2]))
    assert emitted[0] == emitted[1]


def test_the_oracle_sees_a_torn_document(plan: EnginePlan) -> None:
    """The comparison of these tests fails if a commit is cut in two."""
    past = history([[("orders", {"id": 1, "customer": "a", "total": None}), ("order_lines", _line(7, 1))]])
    published = Published()
    published.take(LocalEngine(plan).run(past.commits[0][:1])[0])
    assert published.documents != past.views[100]


def _line(line_id: int, order_id: int) -> Row:
    return {"id": line_id, "order_id": order_id, "product": "x"}


@pytest.mark.parametrize("every_commit", [False, True])
def test_a_line_that_moves_changes_both_orders_in_one_commit(plan: EnginePlan, every_commit: bool) -> None:
    database = Database()
    engine = LocalEngine(plan, every_commit=every_commit)
    database.begin()
    engine.run(
        [database.put("orders", {"id": i, "customer": "a", "total": None}) for i in (1, 2)]
        + [database.put("order_lines", _line(7, 1))]
    )[0]
    database.begin()
    documents = engine.run([database.put("order_lines", _line(7, 2))])[0]
    assert {(lsn, key) for lsn, key, _ in documents} == {(200, b'{"id":1}'), (200, b'{"id":2}')}
