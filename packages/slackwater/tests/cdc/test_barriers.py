"""The last commit of each second is a barrier, and a cut ends there."""

from dataclasses import replace

import pytest

from slackwater.cdc.cuts import Barriers
from slackwater.protocol import Cut
from slackwater_lab.debezium.fed_source import SECOND, FedSource, end, row


def chosen(times: list[int], interval_ms: int = SECOND, start: Cut | None = None) -> list[int]:
    """Returns the places of barriers among commits, given their times; the first one is at 1."""
    barriers, found = Barriers(interval_ms, start), []
    for lsn, ms in enumerate(times, 1):
        if barriers.is_before(ms):
            barriers.mark()
            found.append(barriers.newest_lsn)
        barriers.pass_commit(lsn, ms)
    return found


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], []),
        ([10_000], []),
        ([10_000, 10_999], []),
        ([10_000, 10_999, 11_000], [2]),
        ([10_000, 15_000, 15_001, 16_000], [1, 3]),
        pytest.param([10_999, 11_001, 10_998, 11_002], [1], id="times cross at the border"),
        pytest.param([90_000, 10_000, 10_500, 11_000], [1, 3], id="the clock was ahead and is set back"),
    ],
)
def test_the_last_commit_of_each_interval_is_a_barrier(times: list[int], expected: list[int]) -> None:
    assert chosen(times) == expected


def test_another_interval_has_other_barriers() -> None:
    times = [10_000, 10_100, 10_250, 10_300, 11_000]

    assert chosen(times, 200) == [2, 4]
    assert chosen(times, 0) == []


@pytest.fixture
def source() -> FedSource:
    return FedSource(barrier_interval_ms=SECOND)


def commit(source: FedSource, xid: int, ms: int) -> None:
    source.tell(end(xid, ts_ms=ms, a=1))
    source.row("a/0", row(xid))


def cuts(source: FedSource) -> list[tuple[int, int, int]]:
    return [(cut.previous_lsn, cut.lsn, cut.barrier_lsn) for cut in source.cuts()]


def test_a_cut_ends_at_each_barrier_however_much_is_passed_at_once(source: FedSource) -> None:
    for xid, ms in ((1, 10_000), (2, 10_500), (3, 11_000), (4, 12_000), (5, 12_100)):
        commit(source, xid, ms)

    assert cuts(source) == [(0, 256, 256), (256, 356, 356), (356, 556, 356)]


def test_without_an_interval_there_is_one_cut() -> None:
    source = FedSource()
    for xid, ms in ((1, 10_000), (2, 11_000)):
        commit(source, xid, ms)

    assert cuts(source) == [(0, 256, 0)]


def test_a_barrier_at_which_a_cut_has_ended_already_is_named_by_the_next_one(source: FedSource) -> None:
    commit(source, 1, 10_000)
    assert cuts(source) == [(0, 156, 0)]

    commit(source, 2, 11_000)
    assert cuts(source) == [(156, 256, 156)]


def test_a_barrier_may_be_a_commit_without_a_change(source: FedSource) -> None:
    commit(source, 1, 10_000)
    source.tell(end(2, ts_ms=10_900))
    commit(source, 3, 11_000)

    assert cuts(source) == [(0, 256, 256), (256, 356, 256)]


def test_a_transaction_that_is_skipped_is_named_behind_the_barrier_before_it(source: FedSource) -> None:
    commit(source, 1, 10_000)
    source.tell(end(2, ts_ms=11_000, a=2))
    source.row("a/0", row(2))
    source.frontier.skip_to(256)

    found = source.cuts()

    assert [(cut.lsn, cut.skipped) for cut in found] == [(156, ()), (256, (2,))]


def test_a_transaction_that_is_given_up_is_behind_the_barrier_before_it(source: FedSource) -> None:
    commit(source, 1, 10_000)
    source.row("a/0", row(2))
    source.frontier.skip_to(356)
    commit(source, 3, 11_000)

    found = source.cuts()

    assert [(cut.lsn, cut.skipped, cut.end_offsets["s.inv.a"][0]) for cut in found] == [
        (156, (), 1),
        (356, (2,), 3),
    ]
    assert found[-1].barrier_lsn == 156


def test_who_goes_on_from_a_cut_knows_its_barrier_and_chooses_the_next(source: FedSource) -> None:
    commit(source, 1, 10_000)
    commit(source, 2, 11_000)
    start = source.cuts()[-1]
    resumed = FedSource(barrier_interval_ms=SECOND, start=start)
    commit(resumed, 3, 11_500)
    commit(resumed, 4, 12_000)

    assert cuts(resumed) == [(256, 356, 356), (356, 456, 356)]
    assert chosen([11_500], start=start) == []
    assert chosen([12_500], start=replace(start, lsn=7)) == [7]
