"""What all pipelines of a source show together, from the picture and the newest barriers."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.control import SourceSnapshot, find_snapshots, make_topology
from slackwater.protocol import CommitPosition, PipelineEntry, PipelineReport, format_position
from slackwater_lab.fakes.topics import REGISTRATION, make_cut

BARRIERS = [CommitPosition(1, lsn) for lsn in (100, 200, 300)]


def snapshot_of(
    shown: Mapping[str, int | None],
    barriers: list[CommitPosition] = BARRIERS,
    *,
    processed: Mapping[str, int] | None = None,
    timeline: int = 1,
    scope: str = "strict",
) -> SourceSnapshot:
    """Of pipelines that show these commits; None: nothing yet."""
    entries: list[PipelineEntry] = []
    for number, (name, lsn) in enumerate(shown.items()):
        run = replace(REGISTRATION, pipeline=name, run=name, views=(), scope=scope, timeline=timeline)
        report = PipelineReport(
            pipeline=name,
            run=name,
            batch_id=-1 if lsn is None else 3,
            timeline=timeline,
            commit_lsn=lsn or 0,
            processed_lsn=(processed or {}).get(name),
        )
        entries += [PipelineEntry(run, 2 * number, 1_000), PipelineEntry(report, 2 * number + 1, 1_000)]
    topology = make_topology(entries, {"inv": make_cut("inv", 400, 900)}, 1_000)
    (found,) = find_snapshots(topology, {"inv": barriers})
    return found


def text(lsn: int | None) -> str | None:
    return None if lsn is None else format_position(lsn)


@pytest.mark.parametrize(
    ("shown", "snapshot", "waited_for"),
    [
        ({"a": 300, "b": 300}, 300, []),
        ({"a": 300, "b": 299}, 200, ["b"]),
        ({"a": 350, "b": 200}, 200, ["b"]),
        ({"a": 99, "b": 300}, None, ["a"]),
        ({"a": None, "b": 300}, None, ["a"]),
        ({"a": None, "b": None}, None, []),
        ({"a": 150}, 100, []),
        ({}, None, []),
    ],
)
def test_the_snapshot_is_the_newest_barrier_that_all_show_and_who_is_behind_is_waited_for(
    shown: Mapping[str, int | None], snapshot: int | None, waited_for: list[str]
) -> None:
    found = snapshot_of(shown)
    assert (found.source, found.timeline, found.newest_barrier) == ("inv", 1, text(300))
    assert found.snapshot == text(snapshot)
    assert [each.pipeline for each in found.pipelines if each.is_waited_for] == waited_for


def test_what_is_computed_counts_before_it_is_shown() -> None:
    found = snapshot_of({"a": 100, "b": 200}, processed={"a": 310})
    assert [(each.processed, each.committed) for each in found.pipelines] == [
        (text(300), text(100)),
        (text(200), text(200)),
    ]
    assert found.snapshot == text(100)


def test_a_pipeline_of_an_earlier_timeline_shows_no_barrier_of_this_one() -> None:
    found = snapshot_of({"a": 300}, [CommitPosition(2, 10)], timeline=1)
    assert (found.timeline, found.snapshot, found.pipelines[0].committed) == (2, None, None)


def test_pipelines_that_show_each_key_at_a_commit_of_its_own_are_in_no_snapshot() -> None:
    found = snapshot_of({"a": 300}, scope="aggregate")
    assert (found.snapshot, found.pipelines) == (None, ())


def test_pipelines_of_a_chain_are_in_the_snapshot_of_its_database() -> None:
    view = replace(REGISTRATION.views[0], output_source="totals")
    first = replace(REGISTRATION, pipeline="a", run="a", views=(view,))
    entries = [PipelineEntry(first, 0, 1_000)]
    for name, timeline in (("b", 1), ("c", 2)):  # commits of another timeline have another order
        run = replace(REGISTRATION, pipeline=name, run=name, source="totals", views=(), timeline=timeline)
        entries.append(PipelineEntry(run, len(entries), 1_000))
    for name, lsn in (("a", 300), ("b", 200), ("c", 300)):
        report = PipelineReport(pipeline=name, run=name, batch_id=3, timeline=1, commit_lsn=lsn)
        entries.append(PipelineEntry(report, len(entries), 1_000))
    topology = make_topology(entries, {"inv": make_cut("inv", 400, 900)}, 1_000)
    barriers = {"inv": BARRIERS, "totals": BARRIERS}
    (found,) = find_snapshots(topology, barriers)
    assert (found.source, found.snapshot) == ("inv", text(200))
    assert [each.pipeline for each in found.pipelines] == ["a", "b"]
    (part,) = find_snapshots(topology.of_source("totals"), barriers)
    assert part.source == "totals", "what begins there, if only that is asked for"


def test_sources_without_a_barrier_are_left_out() -> None:
    topology = make_topology([], {"inv": make_cut("inv", 400, 900)}, 1_000)
    assert find_snapshots(topology, {}) == ()
    assert find_snapshots(topology, {"inv": []}) == ()


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=8, unique=True).map(sorted),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 60), min_size=1),
)
def test_no_pipeline_is_behind_the_snapshot_and_a_newer_barrier_is_missing_in_one(
    lsns: list[int], shown: dict[str, int]
) -> None:
    found = snapshot_of(dict(shown), [CommitPosition(1, lsn) for lsn in lsns])
    complete = [lsn for lsn in lsns if all(lsn <= each for each in shown.values())]
    assert found.snapshot == text(max(complete, default=None))
