from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.protocol import CommitPosition, CommitRecord, OffsetRange
from slackwater.protocol.commit_lookup import (
    Found,
    PlacedCommit,
    beginnings,
    find_commit,
    find_document,
    first_reached,
    has_reached_lsn,
)


class CommitTopic:
    """Commit records at offsets with gaps; counts what is read."""

    def __init__(self, records: Mapping[int, CommitRecord], low: int = 0) -> None:
        self.records = records
        self.low = low
        self.end = max(records, default=low) + 2
        self.reads = 0

    def record_from(self, start: int, end: int) -> PlacedCommit | None:
        assert self.low <= start < end <= self.end
        self.reads += 1
        found = min((o for o in self.records if start <= o < end), default=None)
        return None if found is None else PlacedCommit(found, self.records[found])

    def commit(self, lsn: int, timeline: int = 1) -> tuple[Found, int | None]:
        answer = find_commit(self.low, self.end, self.record_from, CommitPosition(timeline, lsn))
        return answer.found, None if answer.commit is None else answer.commit.record.commit_lsn

    def document(self, offset: int, partition: int = 0, topic: str = "out") -> tuple[Found, int | None]:
        answer = find_document(self.low, self.end, self.record_from, topic, partition, offset)
        return answer.found, None if answer.commit is None else answer.commit.record.commit_lsn


def commit(
    previous: int,
    lsn: int,
    ranges: Mapping[int, tuple[int, int]] | None = None,
    timeline: int = 1,
) -> CommitRecord:
    held = {p: OffsetRange(last - first + 1, first, last) for p, (first, last) in (ranges or {}).items()}
    return CommitRecord(
        pipeline="p",
        source="s",
        timeline=timeline,
        commit_lsn=lsn,
        previous_lsn=previous,
        xid=None,
        commit_ts_ms=0,
        offsets={"out": held} if held else {},
    )


RECORDS = {
    10: commit(100, 110, {0: (0, 4), 1: (0, 0)}),
    11: commit(110, 120),
    13: commit(120, 130, {0: (6, 6)}),
    14: commit(130, 140, {1: (2, 3)}),
    20: commit(5, 15, {0: (8, 9)}, timeline=2),
}
ALL, SWEPT = CommitTopic({o - 10: r for o, r in RECORDS.items()}), CommitTopic(RECORDS, low=10)


@pytest.mark.parametrize(
    ("lsn", "timeline", "expected"),
    [
        (110, 1, (Found.HELD, 110)),
        (101, 1, (Found.HELD, 110)),
        (111, 1, (Found.HELD, 120)),
        (140, 1, (Found.HELD, 140)),
        (15, 2, (Found.HELD, 15)),
        (6, 2, (Found.HELD, 15)),
        (100, 1, (Found.BEFORE_FIRST, 110)),
        (16, 2, (Found.NOT_YET, None)),
        (1, 3, (Found.NOT_YET, None)),
        (141, 1, (Found.NO_COMMIT, 15)),
        (5, 2, (Found.NO_COMMIT, 15)),
    ],
)
def test_a_record_stands_for_the_commits_behind_the_previous_one_up_to_its_own(
    lsn: int, timeline: int, expected: tuple[Found, int | None]
) -> None:
    assert ALL.commit(lsn, timeline) == expected


@pytest.mark.parametrize(
    ("partition", "offset", "expected"),
    [
        (0, 0, (Found.HELD, 110)),
        (0, 4, (Found.HELD, 110)),
        (0, 5, (Found.NO_DOCUMENT, 130)),
        (0, 6, (Found.HELD, 130)),
        (0, 7, (Found.NO_DOCUMENT, 15)),
        (0, 8, (Found.HELD, 15)),
        (0, 10, (Found.NOT_YET, None)),
        (1, 0, (Found.HELD, 110)),
        (1, 1, (Found.NO_DOCUMENT, 140)),
        (1, 3, (Found.HELD, 140)),
        (1, 4, (Found.NOT_YET, None)),
        (2, 0, (Found.NOT_YET, None)),
    ],
)
def test_the_commit_of_a_document_is_the_one_whose_range_holds_its_offset(
    partition: int, offset: int, expected: tuple[Found, int | None]
) -> None:
    assert ALL.document(offset, partition) == expected


def test_another_topic_is_not_mistaken_for_the_one_that_is_asked_for() -> None:
    assert ALL.document(0, topic="other") == (Found.NOT_YET, None)


def test_what_is_older_than_a_topic_whose_beginning_is_gone_is_swept() -> None:
    assert SWEPT.commit(100) == (Found.SWEPT, 110)
    later = CommitTopic({o: r for o, r in RECORDS.items() if o > 11}, low=12)
    assert later.document(4) == (Found.SWEPT, 130)
    assert later.commit(110) == (Found.SWEPT, 130)


def test_documents_before_the_first_commit_of_a_whole_topic_are_not_the_pipelines() -> None:
    topic = CommitTopic({0: commit(0, 5, {0: (7, 8)})})
    assert topic.document(6) == (Found.BEFORE_FIRST, 5)
    assert topic.document(7) == (Found.HELD, 5)


def test_an_empty_commit_topic_holds_nothing_yet() -> None:
    assert CommitTopic({}).commit(1) == (Found.NOT_YET, None)
    assert CommitTopic({}).document(1) == (Found.NOT_YET, None)


def test_few_records_are_read_of_many() -> None:
    topic = CommitTopic({2 * n: commit(n, n + 1, {0: (2 * n, 2 * n)}) for n in range(20_000)})
    assert topic.commit(12_345) == (Found.HELD, 12_345)
    assert topic.document(2 * 777) == (Found.HELD, 778)
    assert topic.reads < 60


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2)), max_size=30),
    st.integers(0, 5),
    st.integers(-1, 120),
)
def test_bisection_finds_what_reading_everything_finds(
    steps: list[tuple[int, int, int]], low: int, wanted: int
) -> None:
    records, at, lsn, out = {}, low, 0, 0
    for gap, count, marker in steps:
        ranges = {0: (out, out + count - 1)} if count else {}
        records[at] = commit(lsn, lsn + gap, ranges)
        at, lsn, out = at + gap, lsn + gap, out + count + marker
    topic = CommitTopic(records, low)
    holders = [
        r.commit_lsn
        for r in records.values()
        for held in r.offsets.get("out", {}).values()
        if held.first_offset <= wanted <= held.last_offset
    ]
    found, holder = topic.document(wanted)
    assert (found is Found.HELD, [holder] if found is Found.HELD else []) == (bool(holders), holders)
    expected = next((r.commit_lsn for r in records.values() if r.commit_lsn >= wanted), None)
    placed = first_reached(
        topic.low, topic.end, topic.record_from, has_reached_lsn(CommitPosition(1, wanted))
    )
    assert (placed.record.commit_lsn if placed else None) == expected


def test_a_commit_begins_at_the_first_offset_of_each_partition() -> None:
    assert beginnings(RECORDS[10]) == {"out": {0: 0, 1: 0}}
    assert beginnings(RECORDS[14]) == {"out": {1: 2}}
    assert PlacedCommit(10, RECORDS[10]).position == CommitPosition(1, 110)
