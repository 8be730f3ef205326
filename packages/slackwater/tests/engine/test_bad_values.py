"""A value that a view cannot be evaluated for, and the row's correction."""

import pytest

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.sql.errors import EvaluationError
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

TABLES = "CREATE TABLE s.items (id bigint PRIMARY KEY, kind text NOT NULL, size text NOT NULL);"
VIEWS = {
    "rows": "SELECT TRANSACTIONALLY i.id, i.size::INTEGER AS size FROM s.items i",
    "sums": "SELECT TRANSACTIONALLY i.kind, sum(i.size::INTEGER) AS size FROM s.items i GROUP BY i.kind",
    "lists": "SELECT TRANSACTIONALLY i.kind, list(i.size::INTEGER) AS size FROM s.items i GROUP BY i.kind",
}


def plan(view: str) -> EnginePlan:
    return compile_pipeline([(f"{view}.sql", VIEWS[view])], parse_catalog({"t.sql": TABLES}))


def change(lsn: int, size: str, before: str | None = None) -> ChangeEvent:
    after = f'{{"id":1,"kind":"a","size":"{size}"}}'.encode()
    old = None if before is None else f'{{"id":1,"kind":"a","size":"{before}"}}'.encode()
    return "s.items", "c" if before is None else "u", lsn, old, after


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("every_commit", [False, True])
def test_a_bad_value_names_view_row_and_commit(view: str, every_commit: bool) -> None:
    engine = LocalEngine(plan(view), every_commit=every_commit)
    engine.run([change(0x10, "1")])

    with pytest.raises(EvaluationError, match="bad") as raised:
        engine.run([change(0x20, "bad", "1")])

    error = raised.value
    assert (error.view, error.commit_lsn) == (view, 0x20)
    assert error.rows[0].startswith("stage 1 {" if view == "lists" else "s.items i {")
    assert '"bad"' in error.rows[0]


@pytest.mark.parametrize("view", VIEWS)
def test_a_batch_that_holds_the_correction_shows_the_newest_state_only(view: str) -> None:
    engine = LocalEngine(plan(view))
    engine.run([change(0x10, "1")])

    (documents,) = engine.run([change(0x20, "bad", "1"), change(0x30, "3", "bad")]).values()

    assert [(lsn, b"3" in (document or b"")) for lsn, _, document in documents] == [(0x30, True)]


@pytest.mark.parametrize("view", VIEWS)
def test_with_every_commit_a_correction_does_not_hide_the_bad_one(view: str) -> None:
    engine = LocalEngine(plan(view), every_commit=True)
    engine.run([change(0x10, "1")])

    with pytest.raises(EvaluationError) as raised:
        engine.run([change(0x20, "bad", "1"), change(0x30, "3", "bad")])

    assert raised.value.commit_lsn == 0x20


MANY = "more than one row returned by a subquery used as an expression"
BY_KIND = """SELECT TRANSACTIONALLY o.id, o.kind, (SELECT i.size FROM s.items i WHERE i.kind = o.kind) AS size
    FROM s.orders o"""
EARLIER = BY_KIND.replace("i.kind = o.kind", "i.kind = o.kind AND i.id < o.id")


def item(lsn: int, number: int, kind: str) -> ChangeEvent:
    return "s.items", "c", lsn, None, f'{{"id":{number},"kind":"{kind}","size":"1"}}'.encode()


@pytest.mark.parametrize("view", [BY_KIND, EARLIER], ids=["equality", "residual"])
@pytest.mark.parametrize("every_commit", [False, True])
def test_a_second_row_of_a_scalar_subquery_is_an_error_of_its_key(view: str, every_commit: bool) -> None:
    tables = TABLES + "CREATE TABLE s.orders (id bigint PRIMARY KEY, kind text NOT NULL);"
    engine = LocalEngine(
        compile_pipeline([("v.sql", view)], parse_catalog({"t.sql": tables})), every_commit=every_commit
    )
    order = ("s.orders", "c", 0x10, None, b'{"id":7,"kind":"a"}')
    # No order reads the items of b, so their number does not matter.
    (documents,) = engine.run([order, item(0x10, 1, "a"), item(0x18, 2, "b"), item(0x19, 3, "b")]).values()
    assert b'"size":"1"' in (documents[-1][2] or b"")

    with pytest.raises(EvaluationError, match=MANY) as raised:
        engine.run([item(0x20, 4, "a")])

    assert (raised.value.view, raised.value.commit_lsn) == ("v", 0x20)
    assert raised.value.key
    assert any('"a"' in row for row in raised.value.rows)
