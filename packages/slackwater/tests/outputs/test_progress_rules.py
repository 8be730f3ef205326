from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.batch import check_owner, is_covered
from slackwater.outputs.kafka.guard import (
    TopicChange,
    compare_commits,
    compare_topic,
    compare_written,
    first_unknown_offsets,
    offset_gaps,
    state_after,
)
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.sink import Failure, Sink, Written
from slackwater.protocol import (
    CommitPosition,
    KafkaSettings,
    OffsetRange,
    ProgressRecord,
    StateError,
    TopicState,
)

MakeBatch = Callable[..., DocumentBatch]


def progress(batch_id: int = 3, commit_lsn: int = 40, timeline: int = 1) -> ProgressRecord:
    return ProgressRecord(
        pipeline="orders",
        query_id="q1",
        batch_id=batch_id,
        source="inv",
        timeline=timeline,
        commit_lsn=commit_lsn,
        state=f"state {batch_id}",
    )


def covered(batch: DocumentBatch, record: ProgressRecord | None) -> bool:
    return is_covered("orders", batch, record)


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


@pytest.mark.parametrize(
    "batch",
    [
        {"batch_id": 3, "state": "another attempt"},
        {"batch_id": 3, "from_lsn": 30, "to_lsn": 45, "state": "a batch that ends elsewhere"},
        {"batch_id": 3, "timeline": 2, "state": "a batch of another timeline"},
        {"batch_id": 2},
        {"batch_id": 5, "from_lsn": 40},
        {"batch_id": 5},
        {"batch_id": 4, "from_lsn": 41, "to_lsn": 50},
        {"batch_id": 4, "from_lsn": 35, "to_lsn": 50},
        {"batch_id": 4, "timeline": 2},
    ],
)
def test_any_other_batch_than_the_next_one_is_refused(make_batch: MakeBatch, batch: dict[str, Any]) -> None:
    """Whatever else has its number: only the state says whether it is the batch that is visible."""
    with pytest.raises(StateError, match="does not follow it") as caught:
        covered(make_batch(**batch), progress())
    assert f"continues with batch {batch['batch_id']}" in str(caught.value)
    assert "the output contains batch 3 at 0/28 of timeline 1" in str(caught.value)


def test_batches_that_stay_at_one_lsn_are_told_apart_by_their_numbers(make_batch: MakeBatch) -> None:
    """As in scope ``aggregate`` while a group stands still."""
    still: dict[str, int] = {"from_lsn": 40, "to_lsn": 40}
    assert covered(make_batch(3, **still), progress())
    assert not covered(make_batch(4, **still), progress())
    for number in (2, 5):
        with pytest.raises(StateError, match="does not follow it"):
            covered(make_batch(number, **still), progress())


def test_a_later_batch_without_any_progress_is_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(StateError, match="progress records are gone"):
        covered(make_batch(1), None)


TOPIC = "topic orders.slackwater.progress"


def test_progress_of_the_same_checkpoint_is_its_own() -> None:
    check_owner("orders", progress(), "q1", TOPIC)
    check_owner("orders", None, "q1", TOPIC)
    check_owner("orders", None, None, TOPIC)


@pytest.mark.parametrize("query_id", ["q2", None])
def test_progress_of_another_checkpoint_takes_the_name(query_id: str | None) -> None:
    with pytest.raises(StateError) as caught:
        check_owner("orders", progress(), query_id, TOPIC)
    assert "another pipeline name" in str(caught.value)
    assert f"{TOPIC} was written by query q1" in str(caught.value)


LEFT = TopicState("a", (0, 5), (10, 5))


def found(topic_id: str = "a", start: tuple[int, ...] = (0, 5), end: tuple[int, ...] = (11, 5)) -> TopicState:
    return TopicState(topic_id, start, end)


def reason(change: TopicChange | None) -> str:
    assert change is not None
    return f"expected {change.expected}, found {change.found}"


def test_a_topic_that_is_as_it_was_left_is_not_changed() -> None:
    assert compare_topic(LEFT, found()) is None
    assert compare_topic(LEFT, found(end=(10, 5))) is None


@pytest.mark.parametrize(("left", "now"), [("", "a"), ("a", "")])
def test_a_broker_without_topic_ids_tells_no_topics_apart(left: str, now: str) -> None:
    assert compare_topic(TopicState(left, (0,), (1,)), found(now, (0,), (2,))) is None


def test_another_topic_of_the_same_name_is_a_change() -> None:
    assert "(id b): it was deleted and recreated" in reason(compare_topic(LEFT, found("b")))


@pytest.mark.parametrize("end", [(11,), (11, 5, 0)])
def test_another_number_of_partitions_is_a_change(end: tuple[int, ...]) -> None:
    change = reason(compare_topic(LEFT, found(start=(0,) * len(end), end=end)))
    assert "2 partition(s)" in change
    assert "another partition" in change


def test_a_topic_that_ends_before_the_newest_document_has_lost_it() -> None:
    change = reason(compare_topic(LEFT, found(end=(9, 5))))
    assert "up to offset 9 in partition 0" in change
    assert "ends at offset 9" in change


def test_a_topic_that_begins_later_has_lost_its_oldest_documents() -> None:
    change = reason(compare_topic(LEFT, found(start=(1, 5))))
    assert "all records since offset 0 in partition 0" in change
    assert "starts at offset 1" in change


def test_records_of_others_may_be_behind_the_newest_document_only() -> None:
    assert first_unknown_offsets(LEFT, found(end=(12, 5))) == {0: 10}
    assert first_unknown_offsets(LEFT, found(end=(10, 5))) == {}
    assert first_unknown_offsets(LEFT, found(start=(0, 7), end=(10, 8))) == {1: 7}


def test_a_topic_of_which_nothing_is_known_may_hold_records_of_others_everywhere() -> None:
    assert first_unknown_offsets(None, found(start=(3, 5), end=(11, 5))) == {0: 3}


def commit(pipeline: str = "orders", commit_lsn: int = 40, timeline: int = 1) -> tuple[str, CommitPosition]:
    return pipeline, CommitPosition(timeline, commit_lsn)


def test_the_newest_commit_record_is_the_one_of_the_newest_batch() -> None:
    assert compare_commits(progress(), commit()) is None


@pytest.mark.parametrize(
    ("newest", "told"),
    [
        (None, "no commit record at all"),
        (commit(pipeline="other"), "pipeline 'other' wrote"),
        (commit(commit_lsn=30), "0/1E of timeline 1"),
        (commit(commit_lsn=50), "0/32 of timeline 1"),
        (commit(timeline=2), "of timeline 2"),
    ],
)
def test_any_other_newest_commit_record_is_a_change(
    newest: tuple[str, CommitPosition] | None, told: str
) -> None:
    assert told in reason(compare_commits(progress(), newest))


def test_what_was_written_behind_the_newest_document_is_no_change() -> None:
    assert compare_written(LEFT, "a", 2, {0: OffsetRange(2, 11, 12)}) is None
    assert compare_written(LEFT, "a", 2, {0: OffsetRange(1, 10, 10)}) is None


def test_a_topic_that_is_another_one_while_a_batch_is_written_is_a_change() -> None:
    assert "(id b)" in reason(compare_written(LEFT, "b", 2, {}))


def test_partitions_that_are_added_while_a_batch_is_written_are_a_change() -> None:
    assert "found 3:" in reason(compare_written(LEFT, "a", 3, {0: OffsetRange(1, 11, 11)}))
    assert "found 4:" in reason(compare_written(LEFT, "a", 2, {3: OffsetRange(1, 0, 0)})), (
        "the broker that was asked did not know yet"
    )


def test_offsets_that_went_back_are_a_change() -> None:
    change = reason(compare_written(LEFT, "", 2, {0: OffsetRange(1, 9, 9)}))
    assert "were written at offset 9" in change


def test_a_batch_moves_the_ends_of_the_partitions_that_it_wrote_to() -> None:
    assert state_after(LEFT, {1: OffsetRange(2, 7, 9)}) == TopicState("a", (0, 5), (10, 10))


def test_between_two_batches_there_is_one_marker_and_nothing_else() -> None:
    written = {0: OffsetRange(1, 11, 11), 1: OffsetRange(1, 5, 5)}
    assert offset_gaps(LEFT, written) == {}
    assert offset_gaps(LEFT, {0: OffsetRange(1, 12, 12), 1: OffsetRange(1, 6, 6)}) == {0: 10}


SETTINGS = KafkaSinkSettings(
    pipeline="orders", outputs=(OutputTopic("out"),), kafka=KafkaSettings("b:1"), patience=timedelta()
)


class OpenTransactions(Sink):
    """A sink whose server keeps what was begun until it is committed or discarded."""

    _failures: ClassVar = ()

    def __init__(self, visible: ProgressRecord | None = None, fault: Exception | None = None) -> None:
        super().__init__(SETTINGS, "memory", "memory")
        self.visible, self._fault, self.happened = visible, fault, list[str]()

    def _read(self) -> ProgressRecord | None:
        return self.visible

    def _take_over(self) -> ProgressRecord | None:
        return self.visible

    def _begin(self, batch: DocumentBatch) -> ProgressRecord | None:
        self.happened.append("begin")
        return self.visible

    def _put(self, batch: DocumentBatch, progress: ProgressRecord) -> Written:
        self.happened.append("put")
        if self._fault is not None:
            raise self._fault
        self.visible = progress
        return Written()

    def _commit(self) -> None:
        self.happened.append("commit")

    def _discard(self) -> None:
        self.happened.append("discard")

    def _judged(self, what: str, error: Exception) -> Failure:
        raise error

    def hold(self, commits: object) -> dict[CommitPosition, str]:
        return {}

    def close(self) -> None:
        pass


def test_a_batch_that_is_complete_is_committed_and_not_discarded(make_batch: MakeBatch) -> None:
    sink = OpenTransactions()
    assert not sink.write("q1", make_batch(0)).was_covered
    assert sink.happened == ["begin", "put", "commit"]


def test_a_batch_that_is_visible_already_ends_without_effect(make_batch: MakeBatch) -> None:
    sink = OpenTransactions(progress())
    assert sink.write("q1", make_batch(3)).was_covered
    assert sink.happened == ["begin", "discard"]


def test_a_batch_that_fails_ends_without_effect(make_batch: MakeBatch) -> None:
    sink = OpenTransactions(fault=StateError("another key"))
    with pytest.raises(StateError, match="another key"):
        sink.write("q1", make_batch(0))
    assert sink.happened == ["begin", "put", "discard"]


def test_a_batch_of_another_checkpoint_ends_without_effect(make_batch: MakeBatch) -> None:
    sink = OpenTransactions(progress())
    with pytest.raises(StateError):
        sink.write("q2", make_batch(4))
    assert sink.happened == ["begin", "discard"]
