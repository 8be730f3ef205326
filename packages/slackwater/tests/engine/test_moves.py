"""Rows with values stored out of line (TOAST) whose primary key changes: the values move with the rows."""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.engine.evaluate.touched_keys import OldRowsNeededError
from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.protocol import InputError
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.row_codec import UNAVAILABLE

TABLES = "CREATE TABLE s.t (id int, part int, doc text, tags text[], n int, PRIMARY KEY (id, part));"
VIEWS = (
    ("rows.sql", "SELECT TRANSACTIONALLY id, part, doc, tags, n FROM s.t"),
    (
        "groups.sql",
        "SELECT TRANSACTIONALLY part, string_agg(doc, ',' ORDER BY doc) AS docs FROM s.t GROUP BY part",
    ),
    ("numbers.sql", "SELECT TRANSACTIONALLY part, sum(n) AS n FROM s.t GROUP BY part"),
)
JOINS = (
    (
        "pairs.sql",
        "SELECT TRANSACTIONALLY a.id, a.part, a.doc, b.tags FROM s.t a JOIN s.t b USING (id, part)",
    ),
    ("notes.sql", "SELECT TRANSACTIONALLY id, part, doc, note FROM s.t LEFT JOIN s.notes USING (id, part)"),
)
NOTES = "CREATE TABLE s.notes (id int, part int, note text, PRIMARY KEY (id, part));"
Key = tuple[int, int]
Row = dict[str, Any]


@lru_cache(maxsize=2)
def engine_of(every_commit: bool) -> LocalEngine:
    plan = compile_pipeline(VIEWS, parse_catalog({"t": TABLES}))
    return LocalEngine(plan, buckets=3, every_commit=every_commit)


@pytest.fixture
def engine() -> LocalEngine:
    engine_of(False).reset()
    return engine_of(False)


def change(
    op: str, commit_lsn: int, lsn: int, key: Key, row: Row | None = None, left_out: tuple[str, ...] = ()
) -> ChangeEvent:
    placeholders = {"doc": UNAVAILABLE, "tags": [UNAVAILABLE]}
    identity = dict(zip(("id", "part"), key, strict=True))
    after = None if row is None else {**identity, **row, **{name: placeholders[name] for name in left_out}}
    before = {**identity, "doc": None, "tags": None, "n": None} if op == "d" else None
    images = [None if image is None else json.dumps(image).encode() for image in (before, after)]
    return "s.t", op, commit_lsn, images[0], images[1], lsn


def move(commit_lsn: int, lsn: int, old: Key, new: Key, row: Row) -> list[ChangeEvent]:
    """A change of the primary key that leaves large values alone, as the connector writes it."""
    left_out = tuple(name for name in ("doc", "tags") if row[name] is not None)
    return [change("d", commit_lsn, lsn, old), change("c", commit_lsn, lsn, new, row, left_out)]


def row(doc: str | None, n: int = 1) -> Row:
    return {"doc": doc, "tags": [doc], "n": n}


def documents(engine: LocalEngine, *changes: ChangeEvent) -> list[Any]:
    found = engine.run(changes, 2, first_lsn=1)[0]
    return sorted([document and json.loads(document)["doc"] for _, _, document in found], key=str)


def test_the_value_moves_with_the_row(engine: LocalEngine) -> None:
    engine.run([change("c", 100, 90, (3, 1), row("large"))])

    assert documents(engine, *move(200, 190, (3, 1), (30, 1), row("large"))) == [None, "large"]


def test_the_value_moves_over_several_keys_in_one_commit_and_one_batch(engine: LocalEngine) -> None:
    changes = [
        change("c", 100, 90, (3, 1), row("old")),
        change("u", 200, 190, (3, 1), row("large")),
        *move(300, 290, (3, 1), (30, 2), row("large")),
        *move(300, 291, (30, 2), (32, 1), row("large", 2)),
        *move(300, 292, (32, 1), (31, 3), row("large", 2)),
        change("u", 400, 390, (31, 3), row("large", 3), ("doc",)),
        *move(500, 490, (31, 3), (3, 1), row("large")),
    ]

    assert documents(engine, *changes) == ["large"]


def test_rows_exchange_their_keys(engine: LocalEngine) -> None:
    engine.run([change("c", 100, 90 + n, (n, 1), row(text)) for n, text in ((1, "one"), (2, "two"))])
    moves = [
        *move(200, 190, (1, 1), (9, 1), row("one")),
        *move(200, 191, (2, 1), (1, 1), row("two")),
        *move(200, 192, (9, 1), (2, 1), row("one")),
    ]
    found = engine.run(moves, 2, first_lsn=1)[0]

    assert {json.loads(key)["id"]: json.loads(document or b"")["doc"] for _, key, document in found} == {
        1: "two",
        2: "one",
    }


def test_a_row_that_is_already_under_the_new_key_gives_no_values(engine: LocalEngine) -> None:
    """As after a snapshot on a slot that was created beforehand: it has rows of later commits."""
    engine.run([change("c", 100, 90 + n, (n, 1), row(text)) for n, text in ((3, "large"), (4, "later"))])

    assert documents(engine, *move(200, 190, (3, 1), (4, 1), row("large"))) == [None, "large"]


def test_a_stale_or_lost_index_does_not_matter(engine: LocalEngine) -> None:
    engine.run([change("c", 100, 90, (3, 1), row("large"))])
    before = engine.state
    moves = move(200, 190, (3, 1), (30, 1), row("large"))
    first = documents(engine, *moves)
    engine.return_to(before)  # the indexes are ahead

    assert documents(engine, *moves) == first
    engine.return_to(before)
    for stage, bucket in list(engine.indexes):
        engine.lose_index(stage, bucket)
    assert documents(engine, *moves) == first


def test_a_move_out_of_a_row_that_nobody_knows_is_refused(engine: LocalEngine) -> None:
    with pytest.raises(InputError, match=r"(?s)s\.t.*doc, tags.*no such row.*REPLICA IDENTITY FULL"):
        engine.run(move(200, 190, (3, 1), (30, 1), row("large")))


def test_an_update_of_a_row_that_nobody_knows_is_refused_before_it_moves(engine: LocalEngine) -> None:
    changes = [
        change("u", 200, 190, (3, 1), row("large"), ("doc",)),
        *move(200, 191, (3, 1), (30, 1), row("large")),
    ]
    with pytest.raises(InputError, match=r'"id":3.*an update omits an unchanged value \(TOAST\)'):
        engine.run(changes)


def test_an_insert_without_values_that_no_delete_goes_with_is_refused(engine: LocalEngine) -> None:
    engine.run([change("c", 100, 90, (3, 1), row("large"))])
    with pytest.raises(InputError, match=r"(?s)s\.t.*doc.*no delete of the old key.*REPLICA IDENTITY FULL"):
        engine.run([change("c", 200, 190, (30, 1), row("large"), ("doc",))])


@pytest.mark.parametrize("other", [(100, 90), (200, 189), (200, 191)])
def test_a_delete_of_another_update_does_not_go_with_an_insert(
    engine: LocalEngine, other: tuple[int, int]
) -> None:
    engine.run([change("c", 50, 40, (3, 1), row("large"))])
    changes = [
        *move(*other, (3, 1), (4, 1), row("large")),
        change("c", 200, 190, (30, 1), row("x"), ("doc",)),
    ]
    with pytest.raises(InputError, match="no delete of the old key"):
        engine.run(changes)


def test_each_input_of_a_stage_has_its_own_rows() -> None:
    """Two inputs may be of one table, with other columns; and a TRUNCATE is of one table."""
    engine = LocalEngine(compile_pipeline(JOINS, parse_catalog({"t": TABLES + NOTES})), buckets=3)
    engine.run([change("c", 100, 90, (3, 1), row("large"))])
    truncate = ("s.notes", "t", 200, None, None, 180)

    found = engine.run([truncate, *move(200, 190, (3, 1), (30, 1), row("large"))], 2, first_lsn=1)

    shown = [[json.loads(document) for _, _, document in found[n] if document is not None] for n in (0, 1)]
    moved = {"id": 30, "part": 1, "doc": "large"}
    assert shown == [[{**moved, "tags": ["large"]}], [{**moved, "note": None}]]


def test_a_table_that_is_truncated_has_nothing_to_move(engine: LocalEngine) -> None:
    engine.run([change("c", 100, 90, (3, 1), row("large"))])
    with pytest.raises(InputError, match="no such row"):
        engine.run([("s.t", "t", 200, None, None, 180), *move(200, 190, (3, 1), (30, 1), row("large"))])


def test_a_key_without_its_value_is_refused() -> None:
    tables = "CREATE TABLE s.t (id text PRIMARY KEY, n int);"
    plan = compile_pipeline(
        (("v.sql", "SELECT TRANSACTIONALLY id, n FROM s.t"),), parse_catalog({"t": tables})
    )
    after = json.dumps({"id": UNAVAILABLE, "n": 1}).encode()

    with pytest.raises(InputError, match=r"s\.t contains no value of id.*REPLICA IDENTITY FULL"):
        LocalEngine(plan).run([("s.t", "u", 100, None, after, 90)])


def test_a_part_of_a_batch_cannot_complete_rows(engine: LocalEngine) -> None:
    engine.run([change("c", 100, 90, (3, 1), row("large"))])
    packed = engine.payloads(move(200, 190, (3, 1), (30, 1), row("large")))
    rows = [(*name, *each) for name, payloads in packed.items() for each in payloads]

    with pytest.raises(OldRowsNeededError):
        engine.process_stages(rows, stages={stage for stage, *_ in rows})


class Database:
    """A table without deferrable constraints."""

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}

    def records(
        self, commit_lsn: int, lsn: int, kind: str, old: Key, new: Key, value: Row
    ) -> Iterator[ChangeEvent]:
        if kind == "put" and new not in self.rows:
            self.rows[new] = value
            yield change("c", commit_lsn, lsn, new, value)
        elif kind == "put":
            known = self.rows[new]
            self.rows[new] = {**known, "n": value["n"]}
            yield change("u", commit_lsn, lsn, new, self.rows[new], ("doc",) if known["doc"] else ())
        elif kind == "delete" and old in self.rows:
            del self.rows[old]
            yield change("d", commit_lsn, lsn, old)
        elif kind == "move" and old in self.rows and new not in self.rows:
            moved = self.rows.pop(old)
            self.rows[new] = {**moved, "n": value["n"]}
            yield from move(commit_lsn, lsn, old, new, self.rows[new])


keys = st.tuples(st.integers(1, 4), st.integers(1, 2))
steps = st.tuples(
    st.sampled_from(["put", "delete", "move", "move", "move"]),
    keys,
    keys,
    st.builds(row, st.sampled_from([None, "a", "b", "c"]), st.integers(1, 3)),
)


@settings(deadline=None)  # the first call plans the views
@given(
    st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=8),
    st.booleans(),
    st.integers(1, 3),
)
def test_every_value_stays_with_its_row(
    history: list[list[tuple[str, Key, Key, Row]]], every_commit: bool, batch: int
) -> None:
    engine, database = engine_of(every_commit), Database()
    engine.reset()
    shown: dict[bytes, Any] = {}
    for start in range(0, len(history), batch):
        events = [
            event
            for number, commit in enumerate(history[start : start + batch], start + 1)
            for lsn, step in enumerate(commit, 1000 * number - 100)
            for event in database.records(1000 * number, lsn, *step)
        ]
        for _, key, document in engine.run(events, 2, first_lsn=1)[0]:
            shown[key] = document and json.loads(document)
        found = {(d["id"], d["part"]): d for d in shown.values() if d is not None}
        assert found == {
            key: {**dict(zip(("id", "part"), key, strict=True)), **value}
            for key, value in database.rows.items()
        }
