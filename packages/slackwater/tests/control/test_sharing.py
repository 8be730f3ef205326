"""What pipelines compute twice, from what they have registered."""

from dataclasses import replace
from typing import Any

from slackwater.control import Sharing, find_equal_stages, make_topology
from slackwater.control.sharing import StageCopy
from slackwater.protocol import PipelineEntry, PipelineRecord, PipelineReport
from slackwater_lab.fakes.topics import REGISTRATION

LINES, ORDERS = (
    replace(stage, identity=identity)
    for stage, identity in zip(REGISTRATION.stages, ("aa", "bb"), strict=True)
)


def pipeline(
    name: str, *stages: Any, sizes: dict[str, int] | None = None, of: str = "", **others: Any
) -> list[PipelineRecord]:
    """A pipeline with these stages, and what they keep; perhaps a revision of another one."""
    run = replace(
        REGISTRATION, pipeline=name, base_name=of or name, run=name, stages=stages, views=(), **others
    )
    report = PipelineReport(
        pipeline=name, run=name, batch_id=1, timeline=1, commit_lsn=7, state_bytes=sizes or {}
    )
    return [run, report]


def sharing(*pipelines: list[PipelineRecord]) -> Sharing:
    records = [record for each in pipelines for record in each]
    entries = [PipelineEntry(record, offset, 1_000) for offset, record in enumerate(records)]
    return find_equal_stages(make_topology(entries, {}, 2_000))


def copies(found: Sharing) -> list[list[tuple[str, int]]]:
    return [[(copy.pipeline, copy.stage) for copy in each.copies] for each in found.equal]


def test_equal_stages_of_pipelines_of_one_source_are_found_with_what_one_would_save() -> None:
    found = sharing(
        pipeline("a", LINES, ORDERS, sizes={"1": 100, "2": 50}),
        pipeline("b", ORDERS, sizes={"2": 60}),
        pipeline("c", LINES, sizes={"1": 10}),
        pipeline("d", LINES, sizes={"1": 90}),
    )
    assert copies(found) == [[("a", 1), ("c", 1), ("d", 1)], [("a", 2), ("b", 2)]]
    assert [each.saved_bytes for each in found.equal] == [100, 50]
    assert (found.equal[0].source, found.equal[0].key, found.equal[0].tables) == (
        "inv",
        ("id",),
        ("inventory.lines",),
    )
    assert found.unknown == ()


def test_pipelines_that_cannot_be_one_have_nothing_in_common() -> None:
    for other in ({"source": "crm"}, {"timeline": 2}, {"scope": "aggregate"}):
        assert sharing(pipeline("a", LINES), pipeline("b", LINES, **other)).equal == ()


def test_pipelines_that_publish_other_states_are_compared() -> None:
    (found,) = sharing(pipeline("a", LINES), pipeline("b", LINES, emit="latest")).equal
    assert [copy.emit for copy in found.copies] == ["transactions", "latest"]


def test_what_is_not_known_of_all_is_not_added_up() -> None:
    (found,) = sharing(pipeline("a", LINES, sizes={"1": 100}), pipeline("b", LINES)).equal
    assert found.saved_bytes is None
    assert found.copies[1] == StageCopy(pipeline="b", stage=1, emit="transactions", state_bytes=None)


def test_stages_of_older_versions_are_equal_to_nothing_and_their_pipelines_are_named() -> None:
    unknown = replace(LINES, identity="")
    found = sharing(pipeline("a", unknown), pipeline("b", LINES, unknown), pipeline("c", LINES))
    assert copies(found) == [[("b", 1), ("c", 1)]]
    assert found.unknown == ("a", "b")


def test_an_earlier_revision_is_there_to_be_left() -> None:
    first = pipeline("a", LINES)
    second = pipeline("a.v2", LINES, revision=2, of="a")
    assert sharing(first, second).equal == ()
    assert copies(sharing(first, second, pipeline("b", LINES))) == [[("a.v2", 1), ("b", 1)]]
