from collections.abc import Callable

import pytest

from slackwater_protocol import ProgressRecord
from slackwater_spark.sink import DocumentBatch, PipelineNameTakenError, ProgressMismatchError, check_owner
from slackwater_spark.sink.progress import is_covered

MakeBatch = Callable[..., DocumentBatch]


def progress(batch_id: int = 3, commit_lsn: int = 40, timeline: int = 1) -> ProgressRecord:
    return ProgressRecord(
        pipeline="orders",
        query_id="q1",
        batch_id=batch_id,
        source="inv",
        timeline=timeline,
        commit_lsn=commit_lsn,
    )


def covered(
    batch: DocumentBatch, record: ProgressRecord | None, without_output: frozenset[int] = frozenset()
) -> bool:
    return is_covered("orders", batch.batch_id, batch.header, record, without_output)


def test_the_newest_batch_repeated_is_covered(make_batch: MakeBatch) -> None:
    assert covered(make_batch(3), progress())


def test_the_batch_that_continues_the_progress_is_not_covered(make_batch: MakeBatch) -> None:
    assert not covered(make_batch(4), progress())


def test_an_empty_batch_continues_the_progress(make_batch: MakeBatch) -> None:
    assert not covered(make_batch(4, from_lsn=40, to_lsn=40), progress())


def test_the_first_batch_of_a_new_pipeline_is_not_covered(make_batch: MakeBatch) -> None:
    assert not covered(make_batch(0), None)


def test_a_first_batch_may_start_anywhere(make_batch: MakeBatch) -> None:
    assert not covered(make_batch(0, from_lsn=1_000), None)


def test_a_new_timeline_continues_at_any_lsn(make_batch: MakeBatch) -> None:
    assert not covered(make_batch(4, from_lsn=5, timeline=2), progress())


def test_the_newest_batch_of_another_timeline_is_not_the_newest_one_repeated(make_batch: MakeBatch) -> None:
    with pytest.raises(ProgressMismatchError):
        covered(make_batch(3, timeline=2), progress(timeline=1))


def test_the_next_number_does_not_make_up_for_a_gap_of_lsns(make_batch: MakeBatch) -> None:
    with pytest.raises(ProgressMismatchError, match="never written"):
        covered(make_batch(4, from_lsn=41, to_lsn=50), progress())


def test_an_older_batch_is_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(ProgressMismatchError, match="checkpoint is older"):
        covered(make_batch(2), progress())


def test_the_newest_number_with_another_cut_is_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(ProgressMismatchError, match="checkpoint is older"):
        covered(make_batch(3, from_lsn=30, to_lsn=45), progress())


def test_a_batch_that_overlaps_the_progress_is_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(ProgressMismatchError, match="checkpoint is older"):
        covered(make_batch(4, from_lsn=35, to_lsn=50), progress())


def test_an_older_timeline_is_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(ProgressMismatchError, match="checkpoint is older"):
        covered(make_batch(4, timeline=1), progress(timeline=2))


def test_a_batch_that_leaves_transactions_out_is_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(ProgressMismatchError, match="never written"):
        covered(make_batch(5), progress())


def test_batches_that_stay_at_one_lsn_are_told_apart_by_their_numbers(make_batch: MakeBatch) -> None:
    """As in scope ``aggregate`` while a group stands still."""
    still: dict[str, int] = {"from_lsn": 40, "to_lsn": 40}
    assert covered(make_batch(3, **still), progress())
    assert not covered(make_batch(4, **still), progress())
    with pytest.raises(ProgressMismatchError, match="never written"):
        covered(make_batch(5, **still), progress())
    with pytest.raises(ProgressMismatchError, match="checkpoint is older"):
        covered(make_batch(2, **still), progress())


def test_a_later_batch_without_any_progress_is_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(ProgressMismatchError, match="lost its records"):
        covered(make_batch(1), None)


def test_the_first_batch_with_input_may_follow_batches_without_any(make_batch: MakeBatch) -> None:
    """A pipeline that was started before its source had a cut."""
    assert not covered(make_batch(1, from_lsn=0), None, frozenset({0}))
    assert not covered(make_batch(2, from_lsn=0), None, frozenset({0, 1}))
    with pytest.raises(ProgressMismatchError, match="lost its records"):
        covered(make_batch(2, from_lsn=0), None, frozenset({0}))


def test_progress_of_the_same_checkpoint_is_its_own() -> None:
    check_owner("orders", progress(), "q1")
    check_owner("orders", None, "q1")
    check_owner("orders", None, None)


@pytest.mark.parametrize("query_id", ["q2", None])
def test_progress_of_another_checkpoint_takes_the_name(query_id: str | None) -> None:
    with pytest.raises(PipelineNameTakenError) as caught:
        check_owner("orders", progress(), query_id)
    assert "another pipeline name" in str(caught.value)


def test_batches_without_output_may_lie_between_the_progress_and_the_next_one(make_batch: MakeBatch) -> None:
    assert not covered(make_batch(5, from_lsn=40), progress(), frozenset({4}))
    assert not covered(make_batch(6, from_lsn=40), progress(), frozenset({4, 5}))


def test_a_batch_with_output_between_others_without_is_missed(make_batch: MakeBatch) -> None:
    with pytest.raises(ProgressMismatchError, match="batches in between"):
        covered(make_batch(7, from_lsn=40), progress(), frozenset({4, 6}))
