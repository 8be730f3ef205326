"""Rows that meet no others: the fast way gives what the general one does."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.engine.evaluate.every_commit import CommitEvaluation, LoneRowEvaluation, has_lone_rows
from slackwater.engine.evaluate.touched_keys import OldRowsNeededError
from slackwater.engine.local import MemoryTransaction
from slackwater.engine.packer import EventPacker, packing_spec
from slackwater.engine.payloads import Event, Outcome, decode_events
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.stage_evaluation import RowsEvaluator

TABLES = """
CREATE TABLE s.moves (id bigint PRIMARY KEY, src bigint, dst bigint, amount numeric(10,2), note text);
CREATE TABLE s.notes (id bigint PRIMARY KEY, body text);
ALTER TABLE s.moves REPLICA IDENTITY FULL;
ALTER TABLE s.notes REPLICA IDENTITY FULL;
"""
BALANCES = """
SELECT TRANSACTIONALLY account, sum(delta) AS balance, max(note) AS last
FROM (SELECT src AS account, -amount AS delta, note FROM moves
      UNION ALL SELECT dst, amount, note FROM moves) AS m GROUP BY account
"""
EVERYTHING = (
    "SELECT TRANSACTIONALLY id, note FROM moves WHERE amount > 1 UNION ALL SELECT id, body FROM notes"
)
JOINED = "SELECT TRANSACTIONALLY m.id, n.body FROM moves m JOIN notes n ON n.id = m.src"

Row = dict[str, Any]
MOVE = {"src": 1, "dst": 2, "amount": "2.50"}


def compiled(view: str) -> EnginePlan:
    return compile_pipeline([("view.sql", view)], parse_catalog({"tables.sql": TABLES}))


PLANS = [compiled(BALANCES), compiled(EVERYTHING)]

small = st.integers(1, 3)
rows = st.none() | st.fixed_dictionaries(
    {
        "src": st.none() | small,
        "dst": st.none() | small,
        "amount": st.sampled_from(["1.00", "2.50"]),
        "note": st.none() | st.sampled_from(["a", "b"]),
    }
)
commits = st.lists(st.lists(st.tuples(small, rows), min_size=1, max_size=4), min_size=1, max_size=4)


def image(row: Row | None) -> bytes | None:
    return None if row is None else json.dumps(row).encode()


def events_of(plan: EnginePlan, present: dict[int, Row], batch: Any, first: int) -> list[Event]:
    packer = EventPacker(packing_spec(plan, 1))
    for number, commit in enumerate(batch):
        for row_id, values in commit:
            old = present.pop(row_id, None)
            if values is not None:
                present[row_id] = {"id": row_id, **values}
            elif old is None:
                continue
            op = "d" if values is None else "u" if old else "c"
            packer.table("s.moves").add(
                op, (first + number + 1) * 100, image(old), image(present.get(row_id))
            )
    events = [e for stage, _, payload in packer.payloads() if stage == 1 for e in decode_events(0, payload)]
    return sorted(events, key=lambda event: event[0])


def done(outcome: Outcome) -> object:
    documents = {view: sorted(found, key=str) for view, found in outcome.documents.items()}
    return documents, sorted(outcome.partials), sorted(outcome.changes), sum(outcome.growths)


@pytest.mark.full
@pytest.mark.parametrize("every_commit", [True, False])
@pytest.mark.parametrize("plan", PLANS, ids=["partials", "documents"])
@settings(max_examples=25, deadline=None)
@given(batches=st.lists(commits, min_size=1, max_size=3))
def test_regular_events_do_what_they_do_in_general(
    plan: EnginePlan, every_commit: bool, batches: Any
) -> None:
    stage = plan.stages[0]
    assert stage.rows is not None
    evaluator = RowsEvaluator(stage.rows, stage.key, name="view")
    general = CommitEvaluation(stage, stage.rows, evaluator)
    # Partials of one group and commit that come in two calls are two; documents are the same.
    max_rows = 3 if plan is PLANS[1] else 1000
    fast = LoneRowEvaluation(stage, stage.rows, evaluator, max_rows=max_rows)
    contents = MemoryTransaction({}, None)
    present: dict[int, Row] = {}
    for number, batch in enumerate(batches):
        events = events_of(plan, present, batch, number * 10)
        if not events:
            continue
        lsn = None if every_commit else events[-1][0]
        expected, got = Outcome(1), Outcome(1)
        general(events, contents, expected, lsn)
        fast(events, contents, got, lsn)
        assert done(got) == done(expected)
        contents.apply(expected.changes)
    evaluator.close()


@pytest.mark.parametrize("lsn", [None, 200])
def test_a_delete_behind_another_row_of_its_key_is_not_taken_for_that_row(lsn: int | None) -> None:
    plan, (first, second) = PLANS[1], ({"id": 1, **MOVE, "note": note} for note in "ab")
    stage, packer, contents = plan.stages[0], EventPacker(packing_spec(plan, 1)), MemoryTransaction({}, None)
    assert stage.rows is not None
    packer.table("s.moves").add("c", 100, None, image(first), 50)
    packer.table("s.moves").add("c", 200, None, image(second), 150)
    packer.table("s.moves").add("d", 200, image(first), None, 160)
    events = [e for number, _, payload in packer.payloads() if number == 1 for e in decode_events(0, payload)]
    evaluator, outcome = RowsEvaluator(stage.rows, stage.key, name="view"), Outcome(1)
    fast = LoneRowEvaluation(stage, stage.rows, evaluator)
    fast(events[:1], contents, outcome, None)
    contents.apply(outcome.changes)

    with pytest.raises(OldRowsNeededError):
        fast(events[1:], contents, Outcome(1), lsn)
    evaluator.close()


def test_rows_that_a_join_brings_together_are_not_alone() -> None:
    stages = [stage.rows for stage in compiled(JOINED).stages if stage.rows is not None]
    assert not any(has_lone_rows(rows) for rows in stages)
    assert all(has_lone_rows(plan.stages[0].rows) for plan in PLANS if plan.stages[0].rows is not None)
