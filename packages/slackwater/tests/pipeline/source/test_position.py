import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.engine.settings import Scope
from slackwater.pipeline.source.position import (
    GroupWindow,
    Position,
    TopicPosition,
    size_between,
    spans_between,
    windows_between,
)
from slackwater.protocol import PublishedCut, StateError

Published = Callable[..., PublishedCut]

NUMBER = st.integers(0, 2**63 - 1)
OFFSETS = st.lists(NUMBER, max_size=3).map(tuple)
STRICT = Position(source="inv", timeline=2, scope=Scope.STRICT)
AGGREGATE = Position(source="inv", timeline=2, scope=Scope.AGGREGATE)


def read(data: object, scope: Scope = Scope.STRICT) -> Position:
    return Position.from_json(data, source="inv", timeline=2, scope=scope)  # type: ignore[arg-type]


@st.composite
def positions(draw: st.DrawFn) -> Position:
    groups = draw(st.integers(0, 3))
    topic = st.builds(TopicPosition, OFFSETS, NUMBER, OFFSETS)
    return Position(
        source="inv",
        timeline=2,
        scope=draw(st.sampled_from(Scope)),
        lsns=tuple(draw(st.lists(NUMBER, min_size=groups, max_size=groups))),
        commit_ts_ms=draw(NUMBER),
        log=draw(NUMBER),
        log_id=draw(st.sampled_from(["", "an id"])),
        floor=draw(NUMBER),
        cut=draw(st.none() | NUMBER),
        topics=draw(
            st.dictionaries(
                st.text(min_size=1),
                st.lists(topic, min_size=groups, max_size=groups).map(tuple),
                max_size=3,
            )
        ),
    )


@given(positions())
def test_a_position_survives_the_checkpoint(position: Position) -> None:
    assert read(json.loads(json.dumps(position.to_json())), position.scope) == position


def test_the_form_in_the_checkpoint_stays_as_it_is() -> None:
    """Must stay readable. Where to read on says it all, but where no marker told exactly where that is."""
    text = (
        '{"version": 3, "scope": "aggregate", "source": "inv", "timeline": 2, "lsns": [30, 10],'
        ' "commit_ts_ms": 5, "event_count": 40, "log": 2, "log_id": "x", "floor": 1, "cut": 20,'
        ' "topics": {"inv.s.a": [{"start": [20], "lsn": 25, "read_to": [21]}, [5]], "inv.s.b": [[7], [8]]}}'
    )
    expected = replace(
        AGGREGATE,
        lsns=(30, 10),
        commit_ts_ms=5,
        event_count=40,
        log=2,
        log_id="x",
        floor=1,
        cut=20,
        topics={
            "inv.s.a": (TopicPosition((20,), 25, (21,)), TopicPosition((5,), 10, (5,))),
            "inv.s.b": (TopicPosition((7,), 30, (7,)), TopicPosition((8,), 10, (8,))),
        },
    )
    assert read(json.loads(text), Scope.AGGREGATE) == expected
    assert expected.to_json() == json.loads(text)
    assert (expected.lsn, expected.known_from_lsn) == (10, 10)


@pytest.mark.parametrize(
    "known",
    [TopicPosition((20,), 30, (21,)), TopicPosition((20,), 25, (20,)), TopicPosition((20,), 30, (20,))],
)
def test_what_does_not_follow_from_the_offsets_is_written_beside_them(known: TopicPosition) -> None:
    position = replace(STRICT, lsns=(30,), topics={"inv.s.a": (known,)})
    assert read(position.to_json()) == position


def test_the_first_version_of_scope_strict_is_read() -> None:
    text = (
        '{"version": 1, "source": "inv", "timeline": 2, "lsn": 5, "event_count": 9, "log": 70,'
        ' "log_id": "x", "end": {"inv.a": [1, 0]}}'
    )
    topics = {"inv.a": (TopicPosition((1, 0), 5, (1, 0)),)}
    assert read(json.loads(text)) == replace(
        STRICT, lsns=(5,), event_count=9, log=70, log_id="x", floor=6, cut=5, topics=topics
    )
    beginning = {"version": 1, "source": "inv", "timeline": 2, "lsn": 0, "event_count": 0, "log": 0}
    assert read(beginning | {"end": {}}) == STRICT


def test_the_first_version_of_scope_aggregate_is_read() -> None:
    text = (
        '{"version": 2, "scope": "aggregate", "source": "inv", "timeline": 2, "lsns": [30, 10],'
        ' "commit_ts_ms": 5, "log": 2, "floor": 1, "positions": {"inv.s.a": [[20, 30, 20], [5, 9, 7]]}}'
    )
    topics = {"inv.s.a": (TopicPosition((20,), 30, (20,)), TopicPosition((5,), 9, (7,)))}
    assert read(json.loads(text), Scope.AGGREGATE) == replace(
        AGGREGATE, lsns=(30, 10), commit_ts_ms=5, event_count=None, log=2, floor=1, topics=topics
    )


@pytest.mark.parametrize(
    "change",
    [
        {"version": 4},
        {"version": None},
        {"version": []},
        {"version": 1},
        {"version": 2},
        {"lsns": ...},
        {"topics": None},
        {"topics": {"inv.a": []}},
        {"source": "other"},
        {"timeline": 0},
        {"scope": "some"},
    ],
)
def test_an_offset_that_does_not_fit_is_refused_and_shown(change: dict[str, object]) -> None:
    good = replace(STRICT, lsns=(5,), commit_ts_ms=9).to_json()
    bad = {k: v for k, v in (good | change).items() if v is not ...}
    with pytest.raises(StateError, match='"commit_ts_ms": 9'):
        read(bad)


def test_what_is_no_offset_is_refused() -> None:
    with pytest.raises(StateError, match="expected version 3"):
        read(["x"])


def test_offsets_of_the_two_scopes_are_not_taken_for_each_other() -> None:
    old = {"version": 1, "source": "inv", "timeline": 2, "lsn": 5, "event_count": 9, "log": 7, "end": {}}
    for strict in (STRICT.to_json(), old):
        with pytest.raises(
            StateError, match="belongs to scope 'strict', but the query has scope 'aggregate'"
        ):
            read(strict, Scope.AGGREGATE)
    with pytest.raises(StateError, match="belongs to scope 'aggregate', but the query has scope 'strict'"):
        read(AGGREGATE.to_json())


def test_a_position_holds_only_the_topics_that_are_read(published: Published) -> None:
    cut = published(10, 0, log=4, end_offsets={"inv.a": (5, 6), "inv.b": (1,)})
    found = Position.at_cut(cut, ["inv.a", "inv.c"], Scope.STRICT, "x")
    topics = {"inv.a": (TopicPosition((5, 6), 10, (5, 6)),)}
    assert found.topics == topics
    assert (found.lsns, found.log, found.log_id, found.floor, found.cut) == ((10,), 5, "x", 0, 10)


def test_groups_are_partitions_of_one_number_or_all_partitions(published: Published) -> None:
    cut = published(10, 0, log=100, end_offsets={"inv.a": (5, 6), "inv.b": (1, 2)})
    strict, groups = (Position.at_cut(cut, ["inv.a", "inv.b"], scope) for scope in Scope)
    assert (strict.lsns, groups.lsns) == ((10,), (10, 10))
    assert groups.topics["inv.b"] == (TopicPosition((1,), 10, (1,)), TopicPosition((2,), 10, (2,)))
    assert (strict.floor, groups.floor) == (36, 36)
    for position in (strict, groups):
        assert [position.start_in("inv.a", n) for n in (0, 1, 2)] == [5, 6, 0]
        assert position.start_in("inv.c", 0) == 0


def test_what_no_cut_has_passed_is_not_said_to_be_reached() -> None:
    assert replace(AGGREGATE, lsns=(40, 50), cut=30).lsn == 30
    assert replace(AGGREGATE, lsns=(40, 50), cut=60).lsn == 40
    assert replace(AGGREGATE, lsns=(40, 50)).lsn == 40, "an earlier version did not note the cut"


# --- between two positions


def test_a_topic_or_partition_that_the_start_does_not_know_begins_at_zero() -> None:
    start = replace(STRICT, lsns=(1,), topics={"a": (TopicPosition((5,), 1, (5,)),)})
    ends = {"b": (0, 2), "a": (7, 3), "c": (4,)}
    end = replace(STRICT, lsns=(2,), topics={t: (TopicPosition(e, 2, e),) for t, e in ends.items()})

    assert spans_between(start, end) == [("a", 0, 5, 7), ("a", 1, 0, 3), ("b", 1, 0, 2), ("c", 0, 0, 4)]
    assert size_between(start, end) == 11
    assert windows_between(start, end) == [GroupWindow(0, 1, 2, 0)]
    assert windows_between(STRICT, end) == [GroupWindow(0, 0, 2, 0)]


def test_groups_that_rest_are_read_nowhere() -> None:
    before = (TopicPosition((5,), 8, (9,)), TopicPosition((6,), 10, (6,)))
    after = (TopicPosition((7,), 20, (8,)), TopicPosition((6,), 10, (6,)))
    start = replace(AGGREGATE, lsns=(10, 10), topics={"a": before})
    end = replace(AGGREGATE, lsns=(20, 10), topics={"a": after})

    assert spans_between(start, end) == [("a", 0, 5, 8)]
    assert size_between(start, end) == 3
    assert windows_between(start, end) == [GroupWindow(0, 10, 20, 8)]


def test_a_topic_that_is_not_read_needs_no_earlier_commits() -> None:
    start = replace(AGGREGATE, lsns=(10,), topics={"a": (TopicPosition((5,), 8, (9,)),)})
    end = replace(AGGREGATE, lsns=(20,), topics={"a": (TopicPosition((5,), 20, (5,)),)})

    assert windows_between(start, end) == [GroupWindow(0, 10, 20, 10)]
