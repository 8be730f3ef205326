"""Which transactions are traced, and what their traces are made of."""

from hypothesis import given
from hypothesis import strategies as st

from slackwater.protocol.tracing import (
    PIPELINE_STEPS,
    SIDECAR_STEPS,
    TracedTransaction,
    TransactionSpan,
    pipeline_spans,
    sidecar_spans,
)

TRANSACTION = TracedTransaction("inv", 1, 7, 0x600)
MOMENTS = st.integers(0, 2**40)


def test_the_trace_of_a_transaction_follows_from_its_commit_alone() -> None:
    assert TRANSACTION.trace_id == TracedTransaction("inv", 1, 8, 0x600).trace_id
    others = [("crm", 1, 7, 0x600), ("inv", 2, 7, 0x600), ("inv", 1, 7, 0x601)]
    assert TRANSACTION.trace_id not in {TracedTransaction(*each).trace_id for each in others}


def test_a_smaller_share_is_a_part_of_a_larger_one_and_shares_are_about_as_large_as_asked_for() -> None:
    all_ = [TracedTransaction("inv", 1, 0, lsn) for lsn in range(10_000)]
    small, large = ({t for t in all_ if t.is_sampled(ratio)} for ratio in (0.1, 0.5))
    assert small < large
    assert (800 < len(small) < 1_200, 4_600 < len(large) < 5_400) == (True, True)
    assert not any(t.is_sampled(0) for t in all_)
    assert all(t.is_sampled(1) for t in all_)


@given(st.lists(MOMENTS, min_size=10, max_size=10))
def test_steps_follow_each_other_without_gaps_whatever_clocks_say(moments: list[int]) -> None:
    commit, *ends = moments[:4]
    root, *before = sidecar_spans(TRANSACTION, commit, ends)
    cut = before[-1].end_ms
    whole, *after = pipeline_spans(TRANSACTION, "orders", cut, moments[5:])
    assert [step.name for step in (*before, *after)] == [*SIDECAR_STEPS, *PIPELINE_STEPS]
    assert (root.begin_ms, root.end_ms, whole.begin_ms) == (commit, cut, cut)
    at = commit
    for step in (*before, *after):
        assert step.begin_ms == at <= step.end_ms
        at = step.end_ms
    assert whole.end_ms == at


def test_spans_are_one_tree_though_different_processes_send_them() -> None:
    sidecar = list(sidecar_spans(TRANSACTION, 0, (1, 2, 3)))
    pipelines = [list(pipeline_spans(TRANSACTION, name, 3, range(4, 9))) for name in ("orders", "revenue")]
    root = sidecar[0]
    assert root.parent_id is None
    assert {span.parent_id for span in sidecar[1:]} == {root.span_id}
    for whole, *steps in pipelines:
        assert whole.parent_id == root.span_id
        assert {span.parent_id for span in steps} == {whole.span_id}
    spans: list[TransactionSpan] = sum(pipelines, sidecar)
    assert len({span.span_id for span in spans}) == len(spans)
