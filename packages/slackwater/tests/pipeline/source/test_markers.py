import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from slackwater.engine.settings import Scope
from slackwater.pipeline.source.markers import (
    GroupMarker,
    KnownMarkers,
    MarkerHistory,
    advance,
    move_position,
)
from slackwater.pipeline.source.position import Position, TopicPosition, size_between

OFFSETS = st.lists(st.integers(0, 2), min_size=1, max_size=20)


@given(OFFSETS, st.randoms(use_true_random=False), st.integers(0, 62), st.integers(0, 62))
def test_every_question_is_answered_as_if_all_markers_were_kept(
    steps: list[int], chance: random.Random, lsn: int, dropped: int
) -> None:
    markers = [GroupMarker(3 * (n + 1), (7, offset)) for n, offset in enumerate(accumulate(steps))]
    late = chance.sample(markers, chance.randint(0, len(markers) // 3))
    history = MarkerHistory()
    for marker in [m for m in markers if m not in late] + late:
        history.add(marker.lsn, marker.offsets)
        history.add(marker.lsn, marker.offsets)
    history.drop_to(dropped)
    known = [m for m in markers if m.lsn > dropped]
    below = [m.offsets for m in known if m.lsn <= lsn]
    above = [m.offsets for m in known if m.lsn >= lsn]
    found_below, found_above = history.at_or_below(lsn), history.at_or_above(lsn)
    assert history.newest_lsn() == max((m.lsn for m in known), default=0)
    assert (found_above and found_above.offsets) == (min(above) if above else None)
    assert found_below is None or found_below.offsets == max(below)
    assert found_below is not None or not below or dropped > 0


def test_of_markers_at_one_offset_the_first_and_the_last_are_kept() -> None:
    history = MarkerHistory()
    for lsn in range(1, 100):
        history.add(lsn, (7, 1))
    history.add(100, (8, 1))
    assert history.lsns(0, 100) == [1, 99, 100]


# --- the position of a group in a topic


def history(*markers: tuple[int, tuple[int, ...]]) -> MarkerHistory:
    made = MarkerHistory()
    for lsn, offsets in markers:
        made.add(lsn, offsets)
    return made


START = TopicPosition((5, 5), 10, (9, 9))


def test_at_a_marker_nothing_is_read_again() -> None:
    ends = (7, 8, 1)
    found = move_position(START, history((20, ends), (30, (9, 9, 9))), 20)
    assert found == TopicPosition(ends, 20, ends)
    assert found.start is ends, "nothing is done per partition"
    assert found.read_to is ends


def test_between_markers_a_batch_reads_to_the_one_above_and_the_next_one_goes_on_at_the_one_below() -> None:
    found = move_position(START, history((20, (7, 8)), (30, (9, 8))), 25)
    assert found == TopicPosition((7, 8), 20, (9, 8))
    assert move_position(START, history((30, (9, 8))), 25) == TopicPosition((5, 5), 10, (9, 8))


def test_between_equal_markers_everything_is_told() -> None:
    found = move_position(START, history((20, (7, 8)), (30, (7, 8))), 25)
    assert found == TopicPosition((7, 8), 25, (7, 8))


def test_a_partition_never_goes_back() -> None:
    """Of two sidecars one may have seen more of what only repeats."""
    assert move_position(START, history((20, (4, 8))), 20) == TopicPosition((5, 8), 20, (5, 8))
    assert move_position(START, history((20, (4,))), 20) == TopicPosition((5, 5), 20, (5, 5))
    assert move_position(START, history((8, (6, 6)), (20, (7, 7))), 15) == TopicPosition((5, 5), 10, (7, 7))


# --- how far groups go


def strict(lsn: int, *offsets: int) -> Position:
    topics = {"a": (TopicPosition(offsets, lsn, offsets),)}
    return Position(source="inv", timeline=1, scope=Scope.STRICT, lsns=(lsn,), topics=topics)


def known(
    ends: Mapping[int, tuple[int, ...]], covered_lsn: int = 10**6, **fields: int | set[int] | tuple[int, ...]
) -> KnownMarkers:
    return KnownMarkers({"a": [history(*ends.items())]}, covered_lsn, **fields)  # type: ignore[arg-type]


def lsn_after(start: Position, found: KnownMarkers, max_events: int | None = None) -> int | None:
    end = advance(start, found, max_events)
    return None if end is None else end.lsns[0]


CUTS = {10: (100,), 20: (200,), 30: (301,)}


def test_the_newest_cut_within_the_limit_is_chosen() -> None:
    assert lsn_after(strict(0, 0), known(CUTS), 300) == 20
    assert lsn_after(strict(0, 0), known(CUTS)) == 30


def test_a_batch_may_be_exactly_as_large_as_its_limit() -> None:
    assert lsn_after(strict(0, 0), known(CUTS), 200) == 20
    assert lsn_after(strict(0, 0), known(CUTS), 301) == 30


def test_one_cut_is_always_admitted() -> None:
    assert lsn_after(strict(5, 50), known(CUTS), 1) == 10


def test_nothing_beyond_what_is_covered_is_chosen() -> None:
    assert lsn_after(strict(0, 0), known(CUTS, 25)) == 25
    assert lsn_after(strict(0, 0), known(CUTS, 20)) == 20
    assert lsn_after(strict(20, 200), known(CUTS, 20)) is None
    assert lsn_after(strict(30, 301), known(CUTS)) is None


def test_a_group_stops_where_it_has_to_and_goes_on_from_there() -> None:
    found = known(CUTS, stops={10, 20})
    assert [lsn_after(strict(lsn, 100), found) for lsn in (0, 10, 20)] == [10, 20, 30]


def test_a_group_stops_at_the_newest_barrier_that_it_can_reach_and_goes_on_from_there() -> None:
    found = known(CUTS, barriers=(10, 20))
    assert [lsn_after(strict(lsn, 100), found) for lsn in (0, 10, 20)] == [20, 20, 30]
    assert lsn_after(strict(0, 0), known(CUTS, 15, barriers=(10, 20))) == 10, "the newer one is not covered"
    assert lsn_after(strict(0, 0), known(CUTS, barriers=(20, 40))) == 20


def test_a_place_where_a_group_has_to_stop_comes_before_a_barrier() -> None:
    assert lsn_after(strict(0, 0), known(CUTS, stops={10}, barriers=(20,))) == 10


def test_a_barrier_is_taken_if_it_makes_use_of_half_of_what_may_be_read() -> None:
    cuts = {10: (100,), 20: (150,), 30: (200,), 40: (400,)}
    assert lsn_after(strict(0, 0), known(cuts, barriers=(10, 40)), 200) == 10
    assert lsn_after(strict(0, 0), known(cuts, barriers=(10, 40)), 201) == 30
    assert lsn_after(strict(0, 0), known(cuts, barriers=(10, 20, 40)), 201) == 20
    assert lsn_after(strict(0, 0), known(cuts, barriers=(40,)), 201) == 30


def test_a_barrier_at_which_a_group_may_not_stop_is_passed() -> None:
    apart = {"a": [history((10, (1,)), (30, (3,)))]}
    start = replace(strict(0), topics={"a": (TopicPosition((0,), 0, (0,)),)})
    found = KnownMarkers(apart, 30, exact_up_to_lsn=30, barriers=(20,))
    assert lsn_after(start, found) == 30
    assert lsn_after(start, replace(found, exact_up_to_lsn=0)) == 20
    assert lsn_after(start, replace(found, barriers=(10, 20))) == 10


def test_where_it_matters_what_is_read_again_a_group_stops_only_at_exact_places() -> None:
    apart = {"a": [history((10, (1,)), (20, (2,)))], "b": [history((12, (1,)), (30, (2,)))]}
    topics = {topic: (TopicPosition((0,), 0, (0,)),) for topic in "ab"}
    start = replace(strict(0), scope=Scope.AGGREGATE, topics=topics)
    assert lsn_after(start, KnownMarkers(apart, 20)) == 20
    assert lsn_after(start, KnownMarkers(apart, 20, exact_up_to_lsn=20)) == 20
    assert lsn_after(start, KnownMarkers(apart, 20, exact_up_to_lsn=21)) is None
    apart["b"][0].add(10, (1,))
    assert lsn_after(start, KnownMarkers(apart, 20, exact_up_to_lsn=21)) == 10


def test_new_partitions_of_a_topic_begin_at_zero() -> None:
    end = advance(strict(10, 100), known({20: (100, 7)}), None)
    assert end is not None
    assert size_between(strict(10, 100), end) == 7
    assert end.topics["a"] == (TopicPosition((100, 7), 20, (100, 7)),)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 120))
def test_batches_cover_everything_once_and_keep_the_limit(sizes: list[int], limit: int) -> None:
    ends = {10 * (n + 1): (end,) for n, end in enumerate(accumulate(sizes))}
    position, visited = strict(0, 0), 0
    while (end := advance(position, known(ends), limit)) is not None:
        size = size_between(position, end)
        count = (end.lsns[0] - position.lsns[0]) // 10
        assert count == 1 or size <= limit
        is_all = visited + count == len(sizes)
        assert is_all or size + sizes[visited + count] > limit, "the next cut would fit in"
        position, visited = end, visited + count
    assert visited == len(sizes)


STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=12)


@given(STEPS, STEPS, st.integers(1, 60), st.integers(0, 40))
def test_a_limited_group_goes_to_the_place_that_all_candidates_together_tell(
    a: list[tuple[int, int]], b: list[tuple[int, int]], limit: int, exact_up_to: int
) -> None:
    """As if size and gain of every candidate were compared."""
    histories = {}
    for topic, steps in zip("ab", (a, b), strict=True):
        places = zip(
            accumulate(1 + step for _, step in steps), accumulate(size for size, _ in steps), strict=True
        )
        histories[topic] = [history(*((lsn, (offset,)) for lsn, offset in places))]
    topics = {topic: (TopicPosition((0,), 0, (0,)),) for topic in "ab"}
    start = replace(strict(0), scope=Scope.AGGREGATE, topics=topics)
    found = KnownMarkers(histories, 10**6, exact_up_to_lsn=exact_up_to)
    available = min(each[0].newest_lsn() for each in histories.values())
    lsns = sorted({available}.union(*(each[0].lsns(0, available) for each in histories.values())))

    def reached(lsn: int) -> tuple[int, int]:
        ends = [move_position(TopicPosition((0,), 0, (0,)), each[0], lsn) for each in histories.values()]
        return sum(sum(end.start) for end in ends), sum(sum(end.read_to) for end in ends)

    gains_and_sizes = {lsn: reached(lsn) for lsn in lsns}
    candidates = [lsn for lsn, (gain, size) in gains_and_sizes.items() if lsn >= exact_up_to or gain == size]
    if not candidates:
        assert advance(start, found, limit) is None
        return
    worth = [lsn for lsn in candidates if 2 * gains_and_sizes[lsn][0] >= gains_and_sizes[lsn][1]]
    expected = candidates[-1]
    if gains_and_sizes[expected][1] > limit and worth:
        expected = max((lsn for lsn in worth if gains_and_sizes[lsn][1] <= limit), default=worth[0])
    assert lsn_after(start, found, limit) == expected
