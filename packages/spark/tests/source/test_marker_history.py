import random
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from slackwater_protocol import Marker
from slackwater_spark.source.marker_history import MarkerHistory

OFFSETS = st.lists(st.integers(0, 2), min_size=1, max_size=20)


@given(OFFSETS, st.randoms(use_true_random=False), st.integers(0, 62), st.integers(0, 62))
def test_every_question_is_answered_as_if_all_markers_were_kept(
    steps: list[int], chance: random.Random, lsn: int, dropped: int
) -> None:
    markers = [Marker(3 * (n + 1), offset) for n, offset in enumerate(accumulate(steps))]
    late = chance.sample(markers, chance.randint(0, len(markers) // 3))
    history = MarkerHistory()
    for marker in [m for m in markers if m not in late] + late:
        history.add(marker.safe_commit_lsn, marker.safe_offset)
        history.add(marker.safe_commit_lsn, marker.safe_offset)
    history.drop_to(dropped)
    known = [m for m in markers if m.safe_commit_lsn > dropped]
    below = [m.safe_offset for m in known if m.safe_commit_lsn <= lsn]
    above = [m.safe_offset for m in known if m.safe_commit_lsn >= lsn]
    found_below, found_above = history.at_or_below(lsn), history.at_or_above(lsn)
    assert history.newest_lsn() == max((m.safe_commit_lsn for m in known), default=0)
    assert (found_above and found_above.safe_offset) == (min(above) if above else None)
    assert found_below is None or found_below.safe_offset == max(below)
    assert found_below is not None or not below or dropped > 0


def test_of_markers_at_one_offset_the_first_and_the_last_are_kept() -> None:
    history = MarkerHistory()
    for lsn in range(1, 100):
        history.add(lsn, 7)
    history.add(100, 8)
    assert history.lsns(0, 100) == [1, 99, 100]
