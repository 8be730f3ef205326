"""Random histories of three tables through all stages of a pipeline, in random batches, with lost indexes.

The oracle is plain DuckDB on the rows as they are after each commit.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.engine.evaluate.touched_keys import TouchedKeys
from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.payloads import Document
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.stage_evaluation import ResultPoints

TABLES = """
CREATE TABLE s.customers (id bigint PRIMARY KEY, name text, region text);
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint, note text);
CREATE TABLE s.lines (id bigint PRIMARY KEY, order_id bigint, quantity bigint);
ALTER TABLE s.customers REPLICA IDENTITY FULL;
ALTER TABLE s.orders REPLICA IDENTITY FULL;
ALTER TABLE s.lines REPLICA IDENTITY FULL;
"""

VIEWS = {
    "order_with_lines": """SELECT TRANSACTIONALLY o.id, o.note, count(l.id) AS n,
        list(l.quantity ORDER BY l.id) FILTER (l.id IS NOT NULL) AS quantities
        FROM s.orders o LEFT JOIN s.lines l ON l.order_id = o.id GROUP BY o.id, o.note""",
    "order_with_customer": """SELECT TRANSACTIONALLY o.id, c.name, o.note
        FROM s.orders o JOIN s.customers c ON c.id = o.customer_id""",
    "lines_of_customer": """SELECT TRANSACTIONALLY c.id, c.name,
        list({'line': l.id, 'order': o.id} ORDER BY l.id) AS lines
        FROM s.customers c JOIN s.orders o ON o.customer_id = c.id JOIN s.lines l ON l.order_id = o.id
        GROUP BY c.id, c.name""",
    "customers_that_order": """SELECT TRANSACTIONALLY c.id, c.name FROM s.customers c
        WHERE EXISTS (SELECT 1 FROM s.orders o WHERE o.customer_id = c.id)""",
    "customers_that_do_not": """SELECT TRANSACTIONALLY c.id, c.name FROM s.customers c
        WHERE NOT EXISTS (SELECT 1 FROM s.orders o WHERE o.customer_id = c.id)""",
    "regions": """SELECT TRANSACTIONALLY c.region, count(*) AS n, sum(l.quantity) AS quantity,
        max(o.note) AS note FROM s.customers c JOIN s.orders o ON o.customer_id = c.id
        LEFT JOIN s.lines l ON l.order_id = o.id GROUP BY c.region""",
    "total": """SELECT TRANSACTIONALLY count(*) AS n, sum(l.quantity) AS quantity, min(l.quantity) AS least
        FROM s.lines l""",
    "notes": "SELECT TRANSACTIONALLY list(DISTINCT o.note ORDER BY o.note) AS notes FROM s.orders o",
    "ranked": """SELECT TRANSACTIONALLY o.id, o.customer_id,
        row_number() OVER (PARTITION BY o.customer_id ORDER BY o.note, o.id) AS place FROM s.orders o""",
    "top": "SELECT TRANSACTIONALLY o.id, o.note FROM s.orders o ORDER BY o.note DESC, o.id LIMIT 2",
    "after_the_top": """SELECT TRANSACTIONALLY l.id, l.order_id FROM s.lines l
        ORDER BY l.quantity NULLS FIRST, l.id DESC LIMIT 2 OFFSET 1""",
    "top_regions": """SELECT TRANSACTIONALLY c.region, count(*) AS n FROM s.customers c
        JOIN s.orders o ON o.customer_id = c.id GROUP BY c.region ORDER BY count(*) DESC, c.region LIMIT 1""",
    "top_of_order": """SELECT TRANSACTIONALLY l.id, l.order_id, l.quantity FROM s.lines l
        QUALIFY row_number() OVER (PARTITION BY l.order_id ORDER BY l.quantity DESC, l.id) <= 2""",
    "ranks_of_order": """SELECT TRANSACTIONALLY * FROM (SELECT l.id, l.order_id,
        rank() OVER (PARTITION BY l.order_id ORDER BY l.quantity DESC) AS place FROM s.lines l)
        WHERE place <= 2""",
    "ranks_of_all": """SELECT TRANSACTIONALLY l.id, dense_rank() OVER (ORDER BY l.quantity DESC) AS place
        FROM s.lines l QUALIFY place BETWEEN 2 AND 3""",
    "one_of_customer": """SELECT TRANSACTIONALLY DISTINCT ON (o.customer_id) o.customer_id, o.id, l.quantity
        FROM s.orders o JOIN s.lines l ON l.order_id = o.id ORDER BY o.customer_id, l.quantity, l.id DESC""",
    "note_of_customer": """SELECT TRANSACTIONALLY c.id, (SELECT o.note FROM s.orders o
        WHERE o.customer_id = c.id ORDER BY o.id DESC LIMIT 1) AS note FROM s.customers c""",
    "any_of_both": """SELECT TRANSACTIONALLY o.id, c.id AS customer, o.note, c.name
        FROM s.orders o FULL JOIN s.customers c ON c.id = o.customer_id""",
    "pieces": "SELECT TRANSACTIONALLY l.id, p.n FROM s.lines l, generate_series(1, l.quantity) AS p(n)",
    "texts": """SELECT TRANSACTIONALLY c.id, u.t, u.n FROM s.customers c
        LEFT JOIN unnest([c.name, c.region, 'a']) WITH ORDINALITY AS u(t, n) ON u.t <> 'a' AND u.n < c.id""",
    "texts_counted": """SELECT TRANSACTIONALLY unnest([name, region]) AS t, count(*) AS n, max(id) AS newest
        FROM s.customers GROUP BY t""",
    "in_words": """WITH words(note, word) AS (VALUES ('m', 'many'), ('n', 'none'), ('o', 'one'))
        SELECT TRANSACTIONALLY w.word, o.id FROM words w LEFT JOIN s.orders o ON o.note = w.note""",
    "constants": """SELECT TRANSACTIONALLY id FROM s.orders UNION ALL SELECT 0
        UNION ALL SELECT * FROM (VALUES (7), (8), (8))""",
    "gaps_filled": """SELECT TRANSACTIONALLY g.quantity, coalesce(l.n, 0) AS n
        FROM generate_series(0, 4) AS g(quantity) LEFT JOIN (
        SELECT quantity, count(*) AS n FROM s.lines GROUP BY quantity) l ON l.quantity = g.quantity""",
    "gaps_filled_between": """WITH r AS (SELECT min(id) AS first, max(id) AS last FROM s.lines)
        SELECT TRANSACTIONALLY g.id, count(l.quantity) AS n FROM r, generate_series(r.first, r.last) AS g(id)
        LEFT JOIN s.lines l ON l.id = g.id GROUP BY g.id""",
    "each_order": """SELECT TRANSACTIONALLY o.id, l.n, l.least, d.twice FROM s.orders o, LATERAL (
        SELECT count(*) AS n, min(quantity) AS least FROM s.lines l WHERE l.order_id = o.id) l,
        LATERAL (SELECT l.n * 2 AS twice) d""",
    "each_row": """SELECT TRANSACTIONALLY o.id, s.least,
        (SELECT sum(n) FROM range(o.customer_id) AS g(n)) AS total
        FROM s.orders o LEFT JOIN LATERAL (SELECT min(n) AS least FROM range(o.customer_id) AS g(n)) s
        ON s.least < o.id""",
    "closest": """SELECT TRANSACTIONALLY o.id, o.note, l.id AS line, l.order_id FROM s.orders o
        ASOF LEFT JOIN s.lines l ON l.quantity = o.customer_id AND o.id >= l.id""",
    "closest_groups": """SELECT TRANSACTIONALLY l.id AS line, count(*) AS n FROM s.orders o
        ASOF JOIN s.lines l ON l.quantity = o.customer_id AND l.id > o.id GROUP BY l.id""",
}

MOVING = {"order_with_customer", "any_of_both", "closest"}
"""Views whose rows are published by buckets between which they may move: the new one does not know what the
old one had published."""

Table = Literal["customers", "orders", "lines"]
Row = dict[str, Any]
Write = tuple[Table, Row | int | None]
"""A row to write, the id of one to delete, or None: TRUNCATE."""

few = st.integers(1, 4)
rows = (
    st.tuples(
        st.just("customers"),
        st.fixed_dictionaries(
            {"id": few, "name": st.sampled_from("ab"), "region": st.sampled_from(["x", "y", None])}
        ),
    )
    | st.tuples(
        st.just("orders"),
        st.fixed_dictionaries(
            {"id": few, "customer_id": st.none() | few, "note": st.sampled_from(["m", "n", None])}
        ),
    )
    | st.tuples(
        st.just("lines"),
        st.fixed_dictionaries(
            {"id": st.integers(1, 6), "order_id": st.none() | few, "quantity": st.none() | st.integers(1, 3)}
        ),
    )
)
tables = st.sampled_from(["customers", "orders", "lines"])
writes = rows | rows | rows | st.tuples(tables, few) | st.tuples(tables, st.none())
commits = st.lists(st.lists(writes, min_size=1, max_size=4), min_size=1, max_size=10)


@dataclass
class Database:
    """Three tables and what Debezium writes when they change."""

    rows: dict[Table, dict[int, Row]] = field(
        default_factory=lambda: {"customers": {}, "orders": {}, "lines": {}}
    )
    lsn: int = 0

    def commit(self, of_commit: Sequence[Write]) -> list[ChangeEvent]:
        self.lsn += 100
        changes = [self._write(*write, self.lsn - 99 + number) for number, write in enumerate(of_commit)]
        return [change for change in changes if change is not None]

    def _write(self, table: Table, row: Row | int | None, lsn: int) -> ChangeEvent | None:
        name, stored = f"s.{table}", self.rows[table]
        if row is None:
            stored.clear()
            return name, "t", self.lsn, None, None, lsn
        if isinstance(row, int):
            old = stored.pop(row, None)
            return None if old is None else (name, "d", self.lsn, _json(old), None, lsn)
        old, stored[row["id"]] = stored.get(row["id"]), row
        return name, "c" if old is None else "u", self.lsn, _json(old), _json(row), lsn

    def view(self, sql: str) -> list[str]:
        """The view's rows from plain DuckDB on the present rows, as JSON."""
        connection = _oracle()
        for table, stored in self.rows.items():
            connection.execute(f"DELETE FROM s.{table}")  # noqa: S608 - a literal
            for row in stored.values():
                names, marks = ", ".join(row), ", ".join("?" for _ in row)
                connection.execute(f"INSERT INTO s.{table} ({names}) VALUES ({marks})", list(row.values()))  # noqa: S608
        plain = sql.replace("TRANSACTIONALLY", "")
        found = connection.execute(f"SELECT CAST(to_json(v) AS VARCHAR) FROM ({plain}) v").fetchall()  # noqa: S608
        return sorted(row for (row,) in found)


@dataclass
class Run:
    """How a history is processed."""

    sizes: list[int]
    """Commits per batch."""
    tasks: int
    buckets: int
    losses: list[int]
    """Before each batch, which of all buckets loses its index."""

    def batches(self, history: Sequence[list[ChangeEvent]]) -> Iterator[range]:
        start = 0
        for size in (*self.sizes, len(history)):
            if start < len(history):
                yield range(start, min(start + size, len(history)))
            start += size


runs = st.builds(
    Run,
    sizes=st.lists(st.integers(1, 4), max_size=5),
    tasks=st.integers(1, 3),
    buckets=st.integers(1, 4),
    losses=st.lists(st.integers(0, 30), max_size=5),
)


@lru_cache(maxsize=1)
def _oracle() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("CREATE SCHEMA s")
    for statement in TABLES.split(";"):
        if "CREATE TABLE" in statement:
            connection.execute(statement.replace("PRIMARY KEY", ""))
    return connection


@lru_cache(maxsize=32)
def plan_of(view: str) -> EnginePlan:
    return compile_pipeline([(f"{view}.sql", VIEWS[view])], parse_catalog({"t.sql": TABLES}))


@lru_cache(maxsize=64)
def _engine_parts(view: str, buckets: int, every_commit: bool) -> LocalEngine:
    """Kept, since planning its statements costs DuckDB more than a history."""
    return LocalEngine(plan_of(view), buckets=buckets, every_commit=every_commit)


def engine_of(view: str, buckets: int, *, every_commit: bool) -> LocalEngine:
    engine = _engine_parts(view, buckets, every_commit)
    engine.reset()
    return engine


class Published:
    """What a reader of a view knows."""

    def __init__(self, view: str) -> None:
        self.documents: dict[bytes, bytes] = {}
        self._may_repeat = view in MOVING

    def take(self, documents: Sequence[Document]) -> None:
        for _, key, document in documents:
            assert self._may_repeat or self.documents.get(key) != document, "a document is repeated"
            if document is None:
                del self.documents[key]
            else:
                self.documents[key] = document

    def rows(self) -> list[str]:
        return sorted(document.decode() for document in self.documents.values())


def play(view: str, written: Sequence[Sequence[Write]], run: Run, *, every_commit: bool) -> None:
    """Processes a history and compares the view with the oracle's as often as it can be seen."""
    database, published = Database(), Published(view)
    history, expected = [], []
    for of_commit in written:
        history.append(database.commit(of_commit))
        expected.append(database.view(VIEWS[view]))
    engine = engine_of(view, run.buckets, every_commit=every_commit)
    names = sorted(engine.indexes)
    for number, batch in enumerate(run.batches(history)):
        if number < len(run.losses):
            engine.lose_index(*names[run.losses[number] % len(names)])
        changes = [change for commit in batch for change in history[commit]]
        (documents,) = engine.run(changes, run.tasks, first_lsn=100 * (batch[0] + 1)).values()
        for commit in batch if every_commit else ():
            published.take([document for document in documents if document[0] == 100 * (commit + 1)])
            assert published.rows() == expected[commit], f"after commit {commit}"
        if not every_commit:
            published.take(documents)
        assert published.rows() == expected[batch[-1]]


@pytest.mark.full
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("every_commit", [False, True])
def test_documents_are_the_view_of_the_rows(view: str, every_commit: bool) -> None:
    @settings(max_examples=12, deadline=None)
    @given(written=commits, run=runs)
    def check(written: list[list[Write]], run: Run) -> None:
        play(view, written, run, every_commit=every_commit)

    check()


MOVE: list[list[Write]] = [
    [("customers", {"id": n, "name": "a", "region": "x"}) for n in (1, 2, 3)],
    [
        ("orders", {"id": 1, "customer_id": 1, "note": "m"}),
        ("lines", {"id": 1, "order_id": 1, "quantity": 1}),
    ],
]
MOVE += [[("orders", {"id": 1, "customer_id": n, "note": "m"})] for n in (2, 3, 1, 3, 2, 1)]
IN_TWO_BATCHES = Run([4], tasks=1, buckets=4, losses=[])


@pytest.mark.parametrize("every_commit", [False, True])
@pytest.mark.parametrize("view", ["order_with_customer", "lines_of_customer", "regions"])
def test_a_row_that_moves_between_buckets_is_there_afterwards(view: str, every_commit: bool) -> None:
    play(view, MOVE, IN_TWO_BATCHES, every_commit=every_commit)


@pytest.mark.parametrize("buckets", [1, 2, 3, 5])
def test_a_row_that_moves_between_buckets_of_one_stage_stays_under_its_key_of_the_next(buckets: int) -> None:
    """The lines of two orders of one customer change places: what the customer has is sent by two buckets."""
    customer: Write = ("customers", {"id": 1, "name": "a", "region": "x"})
    orders: list[Write] = [("orders", {"id": n, "customer_id": 1, "note": "m"}) for n in (1, 2, 3, 4)]
    written: list[list[Write]] = [[customer, *orders]]
    written += [[("lines", {"id": 1, "order_id": n, "quantity": 1})] for n in (1, 2, 3, 4, 2, 1, 4, 3, 1)]
    for every_commit in (False, True):
        run = Run([1] * len(written), tasks=1, buckets=buckets, losses=[])
        play("lines_of_customer", written, run, every_commit=every_commit)


def test_without_the_rule_for_moves_between_buckets_the_row_would_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shows that the test above can fail: the sending bucket's delete comes last."""
    find = TouchedKeys.find

    def without_rule(self: TouchedKeys, *args: Any) -> Any:
        monkeypatch.setattr(self, "of_stages", frozenset())
        return find(self, *args)

    monkeypatch.setattr(TouchedKeys, "find", without_rule)
    with pytest.raises(AssertionError):
        play("regions", MOVE, IN_TWO_BATCHES, every_commit=True)


def test_the_oracle_sees_a_result_that_is_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison fails if the state before a batch is not evaluated."""
    monkeypatch.setattr(ResultPoints, "news", _all_points)
    with pytest.raises(AssertionError):
        play("lines_of_customer", MOVE, IN_TWO_BATCHES, every_commit=True)


def _all_points(self: ResultPoints) -> Iterator[tuple[int, int, int]]:
    return ((number, -1, lsn) for number, lsn in enumerate(self.lsns) if lsn)


def _json(row: Row | None) -> bytes | None:
    return None if row is None else json.dumps(row).encode()
