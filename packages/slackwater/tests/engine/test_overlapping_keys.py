"""Several rows of one key within a transaction, as a deferrable primary key allows, in every order."""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.protocol import InputError
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE s.t (id int PRIMARY KEY DEFERRABLE, g int, v int NOT NULL);
ALTER TABLE s.t REPLICA IDENTITY FULL;
"""
VIEWS = (
    ("rows.sql", "SELECT TRANSACTIONALLY id, g, v FROM s.t"),
    ("groups.sql", "SELECT TRANSACTIONALLY g, sum(v) AS total, list(v) AS vs FROM s.t GROUP BY g"),
    ("total.sql", "SELECT TRANSACTIONALLY count(*) AS n, sum(v) AS total, max(v) AS largest FROM s.t"),
    ("pairs.sql", "SELECT TRANSACTIONALLY a.id, b.v FROM s.t a JOIN s.t b ON a.id = b.g"),
)
Row = tuple[int, int | None, int]
Step = tuple[str, int, Row]


@lru_cache(maxsize=4)
def engine_of(every_commit: bool, views: tuple[tuple[str, str], ...] = VIEWS) -> LocalEngine:
    plan = compile_pipeline(views, parse_catalog({"t": TABLES}))
    return LocalEngine(plan, buckets=2, every_commit=every_commit)


class Database:
    """A table with a deferred unique constraint; each row has a place, as in PostgreSQL."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._lsn = 0

    def commit(self, steps: list[Step]) -> list[ChangeEvent]:
        """Returns the records of a transaction; none if its rows have equal keys at the end."""
        before, events = list(self.rows), []
        commit_lsn = self._lsn + 1000
        for step in steps:
            self._lsn += 1
            events += list(self._records(*step, commit_lsn))
        self._lsn = commit_lsn
        if len({row[0] for row in self.rows}) < len(self.rows):
            self.rows = before
            return []
        return events

    def _records(self, kind: str, place: int, new: Row, commit_lsn: int) -> Iterator[ChangeEvent]:
        if kind == "insert" or not self.rows:
            self.rows.append(new)
            yield "s.t", "c", commit_lsn, None, _image(new), self._lsn
            return
        old = self.rows.pop(place % len(self.rows))
        if kind == "delete":
            yield "s.t", "d", commit_lsn, _image(old), None, self._lsn
            return
        self.rows.append(new)
        if new[0] == old[0]:
            yield "s.t", "u", commit_lsn, _image(old), _image(new), self._lsn
        else:
            yield "s.t", "d", commit_lsn, _image(old), None, self._lsn
            yield "s.t", "c", commit_lsn, None, _image(new), self._lsn


def _image(row: Row) -> bytes:
    return json.dumps(dict(zip(("id", "g", "v"), row, strict=True))).encode()


def expected(rows: list[Row]) -> list[list[dict[str, Any]]]:
    groups: dict[int | None, list[int]] = {}
    for _, g, v in rows:
        groups.setdefault(g, []).append(v)
    values = [v for _, _, v in rows]
    return [
        [{"id": i, "g": g, "v": v} for i, g, v in rows],
        [{"g": g, "total": sum(vs), "vs": sorted(vs)} for g, vs in groups.items()],
        [{"n": len(rows), "total": sum(values) if rows else None, "largest": max(values, default=None)}],
        [{"id": a, "v": v} for a, _, _ in rows for _, g, v in rows if a == g],
    ]


def _sorted(documents: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(each) for each in documents)


rows = st.tuples(st.integers(1, 3), st.none() | st.integers(1, 3), st.integers(1, 3))
steps = st.tuples(st.sampled_from(["insert", "update", "update", "delete"]), st.integers(0, 5), rows)
histories = st.lists(st.lists(steps, min_size=1, max_size=5), min_size=1, max_size=8)


@pytest.mark.full
@settings(deadline=None)  # the first call plans the views
@given(histories, st.booleans(), st.integers(1, 3), st.booleans())
def test_a_commits_net_change_follows_the_rows(
    history: list[list[Step]], every_commit: bool, batch: int, is_backwards: bool
) -> None:
    engine, database = engine_of(every_commit), Database()
    engine.reset()
    shown: list[dict[bytes, Any]] = [{} for _ in VIEWS]
    for start in range(0, len(history), batch):
        commits = [database.commit(steps) for steps in history[start : start + batch]]
        events = [event for commit in commits for event in commit]
        documents = engine.run(events[::-1] if is_backwards else events, 2, first_lsn=1)
        for view, of_view in documents.items():
            for _, key, document in of_view:
                shown[view][key] = document and json.loads(document)
        found = [[document for document in of_view.values() if document is not None] for of_view in shown]
        for number, (got, wanted) in enumerate(zip(found, expected(database.rows), strict=True)):
            got = [{**each, "vs": sorted(each["vs"])} for each in got] if number == 1 else got
            assert _sorted(got) == _sorted(wanted)


def change(op: str, lsn: int, before: Row | None, after: Row | None) -> ChangeEvent:
    images = [None if row is None else _image(row) for row in (before, after)]
    return "s.t", op, 1000, images[0], images[1], lsn


def test_an_old_row_that_no_row_of_the_key_is_like_is_refused() -> None:
    engine = engine_of(False)
    engine.reset()
    engine.run([("s.t", "c", 500, None, _image((1, 1, 1)), 400)])

    with pytest.raises(InputError, match="deferrable primary key"):
        engine.run([change("c", 600, None, (1, 1, 2)), change("d", 601, (1, 1, 9), None)])


def left(
    *events: ChangeEvent, every_commit: bool = False, views: tuple[tuple[str, str], ...] = VIEWS
) -> dict[bytes, bytes | None]:
    """The documents of the first view after a batch on the row (1, 1, 1)."""
    engine = engine_of(every_commit, views)
    engine.reset()
    engine.run([("s.t", "c", 500, None, _image((1, 1, 1)), 400)], first_lsn=1)
    return {key: document for _, key, document in engine.run(events, 2, first_lsn=1)[0]}


FIRST, SECOND, THIRD = (1, 1, 1), (1, 1, 2), (1, 1, 3)
INSERTED = change("c", 600, None, SECOND)
CHANGES_OF_SEVERAL: dict[str, tuple[list[ChangeEvent], list[int | None]]] = {
    # the changes behind the insert of a second row, and the document that is left, if it changes
    "the first row is deleted": ([change("d", 601, FIRST, None)], [2]),
    "the second row is deleted": ([change("d", 601, SECOND, None)], []),
    "both are deleted": ([change("d", 601, FIRST, None), change("d", 602, SECOND, None)], [None]),
    "the first row is updated, the second one deleted": (
        [change("u", 601, FIRST, THIRD), change("d", 602, SECOND, None)],
        [3],
    ),
    "the first row is updated and deleted": (
        [change("u", 601, FIRST, THIRD), change("d", 602, THIRD, None)],
        [2],
    ),
    "the second row is updated, the first one deleted": (
        [change("u", 601, SECOND, THIRD), change("d", 602, FIRST, None)],
        [3],
    ),
}


@pytest.mark.parametrize("views", [VIEWS, VIEWS[:1]], ids=["all", "alone"])
@pytest.mark.parametrize("every_commit", [False, True])
@pytest.mark.parametrize("case", CHANGES_OF_SEVERAL)
def test_of_two_rows_the_one_is_changed_that_the_old_row_tells(
    case: str, every_commit: bool, views: tuple[tuple[str, str], ...]
) -> None:
    """Also if no other view of the pipeline asks for the old rows."""
    events, expected = CHANGES_OF_SEVERAL[case]
    found = left(INSERTED, *events, every_commit=every_commit, views=views).values()
    assert [document and json.loads(document)["v"] for document in found] == expected


def test_an_insert_that_is_repeated_is_no_other_row_of_a_later_transaction() -> None:
    """A connector that starts again writes it again; a delete in the same batch leaves no row behind."""
    again = ("s.t", "c", 500, None, _image((1, 1, 1)), 400)
    deleted = ("s.t", "d", 2000, _image((1, 1, 1)), None, 1900)
    assert list(left(again, deleted).values()) == [None]


def test_a_truncate_leaves_no_other_row_of_its_transaction() -> None:
    events = [
        change("c", 600, None, (1, 1, 2)),
        change("t", 601, None, None),
        change("c", 602, None, (1, 1, 3)),
        change("d", 603, (1, 1, 3), None),
    ]
    assert list(left(*events).values()) == [None]
