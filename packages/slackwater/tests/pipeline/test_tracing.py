"""A batch's sampled transactions are traced from their own cut to the batch's visibility."""

from dataclasses import replace
from datetime import UTC, datetime

from slackwater.pipeline import BatchProgress, batch_spans
from slackwater.pipeline.source.planner import PlannedCut
from slackwater.protocol import SNAPSHOT_XID

SECONDS = {
    "plan": 0.1, "read": 0.1, "evaluate": 0.1, "schedule": 0.1, "state": 0.1, "produce": 0.1, "commit": 0.1
}  # fmt: skip
BATCH = BatchProgress(
    pipeline="orders",
    source="inv",
    timeline=1,
    batch_id=0,
    commit_lsn=77,
    committed_at=datetime.fromtimestamp(1, UTC),
    visible_at=datetime.fromtimestamp(3, UTC),
    events=5,
    transactions=2,
    documents=3,
    deletes=1,
    was_covered=False,
    seconds=SECONDS,
    commits=((9, 60, 900), (10, 77, 1_000)),
    cuts=(PlannedCut(70, 950, 1_960), PlannedCut(77, 1_200, 1_990)),
)


def test_steps_are_counted_back_from_visibility_and_begin_at_the_own_cut() -> None:
    spans = [(s.transaction.xid, s.name, s.begin_ms, s.end_ms) for s in batch_spans(BATCH, 1.0)]
    steps = [
        ("planning", 2_300, 2_400),
        ("stages", 2_400, 2_700),
        ("state", 2_700, 2_800),
        ("sink", 2_800, 3_000),
    ]
    assert spans == [
        (9, "pipeline orders", 1_960, 3_000),
        (9, "waiting", 1_960, 2_300),
        *((9, *step) for step in steps),
        (10, "pipeline orders", 1_990, 3_000),
        (10, "waiting", 1_990, 2_300),
        *((10, *step) for step in steps),
    ]


def test_what_came_with_no_cut_that_is_known_is_not_traced() -> None:
    assert list(batch_spans(replace(BATCH, cuts=()), 1.0)) == []
    assert list(batch_spans(replace(BATCH, cuts=(PlannedCut(77, 1, 0),)), 1.0)) == []


def test_snapshots_and_what_is_not_sampled_are_not_traced() -> None:
    assert list(batch_spans(BATCH, 0.0)) == []
    assert list(batch_spans(replace(BATCH, commits=((SNAPSHOT_XID, 60, 0),)), 1.0)) == []
