from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from slackwater_protocol import PublishedCut
from slackwater_spark.source.admission import choose_cut, connected
from slackwater_spark.source.offset import SourceOffset

Published = Callable[..., PublishedCut]


def lsns(cuts: Sequence[PublishedCut]) -> list[int]:
    return [c.cut.lsn for c in cuts]


def start(lsn: int = 0, events: int = 0) -> SourceOffset:
    return SourceOffset(source="inv", timeline=1, lsn=lsn, event_count=events, log=0)


def test_cuts_connect_in_order_of_their_lsns(published: Published) -> None:
    cuts = [published(30, 20), published(10, 5), published(20, 10)]
    assert lsns(connected(5, cuts)) == [10, 20, 30]


def test_a_hole_ends_the_chain(published: Published) -> None:
    cuts = [published(10, 5), published(20, 11), published(30, 20)]
    assert lsns(connected(5, cuts)) == [10]
    assert lsns(connected(4, cuts)) == []


def test_cuts_of_two_sidecars_may_overlap(published: Published) -> None:
    cuts = [published(10, 0), published(14, 5), published(12, 10), published(13, 12), published(20, 13)]
    assert lsns(connected(10, cuts)) == [12, 13, 14, 20]


def test_a_cut_that_connects_to_nothing_does_not_hide_one_that_does(published: Published) -> None:
    assert lsns(connected(90, [published(100, 95), published(105, 90)])) == [105]


def test_the_first_cut_of_a_source_follows_nothing_wherever_it_stands(published: Published) -> None:
    """A log that was made anew under a sidecar begins with a cut that follows another."""
    assert lsns(connected(0, [published(10, 0, log=5)])) == [10]
    assert lsns(connected(0, [published(10, 7, log=0)])) == []
    assert lsns(connected(0, [published(10, 7, log=1)])) == []
    assert lsns(connected(1, [published(10, 7, log=0)])) == []


def test_a_truncated_beginning_connects_only_when_allowed(published: Published) -> None:
    cuts = [published(10, 7, log=4), published(20, 11, log=5)]
    assert lsns(connected(0, cuts, may_start_anywhere=True)) == [10]


def test_a_batch_ends_before_late_rows_with_the_lsn_of_a_snapshot_in_it(published: Published) -> None:
    cuts = [
        published(10, 0, transactions={0: 8, 5: 10}),
        published(20, 10),
        published(30, 20, late_snapshots=(8,)),
        published(40, 30),
    ]

    def chosen(after: int) -> int | None:
        found = choose_cut(
            start(after), [c for c in cuts if c.cut.lsn > after], max_events=None, target_lsn=None
        )
        return None if found is None else found.cut.lsn

    assert (chosen(0), chosen(10), chosen(20)) == (20, 40, 40)


def test_the_newest_cut_within_the_limit_is_chosen(published: Published) -> None:
    cuts = [published(10, 0, events=100), published(20, 10, events=200), published(30, 20, events=301)]
    chosen = choose_cut(start(), cuts, max_events=300, target_lsn=None)
    assert chosen is not None
    assert chosen.cut.lsn == 20


def test_a_batch_may_be_exactly_as_large_as_its_limit(published: Published) -> None:
    cuts = [published(10, 0, events=10), published(20, 10, events=20), published(30, 20, events=21)]
    start = SourceOffset.before_everything("inv", 1)
    chosen = choose_cut(start, cuts, max_events=20, target_lsn=None)
    assert chosen is cuts[1]


def test_one_cut_is_always_admitted(published: Published) -> None:
    chosen = choose_cut(start(5, 50), [published(10, 5, events=999)], max_events=1, target_lsn=None)
    assert chosen is not None
    assert chosen.cut.lsn == 10


def test_nothing_beyond_the_target_is_chosen(published: Published) -> None:
    cuts = [published(10, 0), published(20, 10)]
    chosen = choose_cut(start(), cuts, max_events=None, target_lsn=15)
    assert chosen is not None
    assert chosen.cut.lsn == 10
    assert choose_cut(start(), cuts, max_events=None, target_lsn=5) is None


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 120))
def test_batches_cover_everything_once_and_keep_the_limit(sizes: list[int], limit: int) -> None:
    cuts, lsn, events = [], 0, 0
    for log, size in enumerate(sizes):
        cuts.append(make(lsn + 10, lsn, log, events + size))
        lsn, events = lsn + 10, events + size
    position, visited = start(), []
    while (
        chosen := choose_cut(position, connected(position.lsn, cuts), max_events=limit, target_lsn=None)
    ) is not None:
        batch = [c for c in cuts if position.lsn < c.cut.lsn <= chosen.cut.lsn]
        assert len(batch) == 1 or chosen.cut.event_count - position.event_count <= limit
        visited += batch
        position = position.advanced_to(chosen, [])
    assert visited == cuts


def make(lsn: int, previous: int, log: int, events: int) -> PublishedCut:
    from slackwater_protocol import Cut

    cut = Cut(
        source="inv",
        timeline=1,
        lsn=lsn,
        previous_lsn=previous,
        commit_ts_ms=0,
        event_count=events,
        transactions=(),
        end_offsets={},
        transaction_offset=0,
    )
    return PublishedCut(cut, log)
