import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater_protocol import PublishedCut
from slackwater_spark.source.errors import OffsetFormatError
from slackwater_spark.source.offset import SourceOffset

Published = Callable[..., PublishedCut]

LSN = st.integers(0, 2**63 - 1)
OFFSETS = st.builds(
    SourceOffset,
    source=st.just("inv"),
    timeline=st.just(2),
    lsn=LSN,
    event_count=LSN,
    log=LSN,
    log_id=st.sampled_from(["", "an id"]),
    end=st.dictionaries(st.text(min_size=1), st.lists(LSN, max_size=5).map(tuple), max_size=3),
)


def read(data: object) -> SourceOffset:
    return SourceOffset.from_json(data, source="inv", timeline=2)  # type: ignore[arg-type]


@given(OFFSETS)
def test_an_offset_survives_the_checkpoint(offset: SourceOffset) -> None:
    assert read(json.loads(json.dumps(offset.to_json()))) == offset


def test_the_form_in_the_checkpoint_stays_as_it_is() -> None:
    """Written by the first version; must stay readable."""
    text = (
        '{"version": 1, "source": "inv", "timeline": 2, "lsn": 5, "event_count": 9, "log": 3,'
        ' "end": {"inv.a": [1, 0]}}'
    )
    expected = SourceOffset(source="inv", timeline=2, lsn=5, event_count=9, log=3, end={"inv.a": (1, 0)})
    assert read(json.loads(text)) == expected
    assert expected.to_json() == json.loads(text)


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"version": None}, {"lsn": ...}, {"end": None}, {"source": "other"}, {"timeline": 0}],
)
def test_an_offset_that_does_not_fit_is_refused_and_shown(change: dict[str, object]) -> None:
    good = SourceOffset(source="inv", timeline=2, lsn=5, event_count=9, log=3).to_json()
    bad = {k: v for k, v in (good | change).items() if v is not ...}
    with pytest.raises(OffsetFormatError, match='"event_count": 9'):
        read(bad)


def test_an_offset_holds_only_the_topics_that_are_read(published: Published) -> None:
    cut = published(10, 0, log=4, events=3, end_offsets={"inv.a": (5, 6), "inv.b": (1,)})
    start = SourceOffset.before_everything("inv", 1)
    assert start.advanced_to(cut, ["inv.a", "inv.c"]) == SourceOffset(
        source="inv", timeline=1, lsn=10, event_count=3, log=5, end={"inv.a": (5, 6)}
    )


def test_the_place_in_the_cut_log_never_goes_back(published: Published) -> None:
    start = SourceOffset(source="inv", timeline=1, lsn=5, event_count=5, log=9)
    assert start.advanced_to(published(10, 5, log=4), []).log == 9
