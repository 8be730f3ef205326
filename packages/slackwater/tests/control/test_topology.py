"""The picture of a cluster."""

import json
from dataclasses import replace

import msgspec
import pytest

from slackwater.control import (
    PipelineNode,
    PipelineState,
    Progress,
    Topology,
    make_topology,
    topology_schema,
)
from slackwater.protocol import (
    Cut,
    PipelineEntry,
    PipelineRecord,
    PipelineReport,
    RunEnd,
)
from slackwater_lab.fakes.topics import REGISTRATION as ORDERS
from slackwater_lab.fakes.topics import make_cut

NOW_MS = 1_000_000
REVENUE = replace(
    ORDERS,
    pipeline="revenue",
    base_name="revenue",
    owner="",
    source="shop",
    tables={"public.orders": "shop.public.orders"},
    stages=(replace(ORDERS.stages[0], tables=("public.orders",)),),
    views=(
        replace(
            ORDERS.views[0],
            name="revenue",
            output='with "quotes"',
            format="json",
            output_source="",
            tables=("public.orders",),
            stages=(1,),
        ),
    ),
)
REPORT = PipelineReport(
    pipeline="orders",
    run="r",
    batch_id=3,
    timeline=1,
    commit_lsn=0x500,
    commit_ts_ms=990_000,
    visible_ms=990_400,
    parts_us={"plan": 1200},
    events=3,
    documents=2,
    run_events=30,
    run_documents=20,
)


def cut(lsn: int, timeline: int = 1, commit_ts_ms: int = 995_000) -> Cut:
    return make_cut("inv", lsn, commit_ts_ms, timeline)


def picture(*records: PipelineRecord, cuts: dict[str, Cut] | None = None, now_ms: int = NOW_MS) -> Topology:
    entries = [PipelineEntry(record, offset, NOW_MS) for offset, record in enumerate(records)]
    return make_topology(entries, cuts or {}, now_ms)


def pipeline(*records: PipelineRecord, newest: Cut | None = None) -> PipelineNode:
    [found] = picture(*records, cuts={} if newest is None else {"inv": newest}).pipelines
    return found


CHAIN = picture(REVENUE, ORDERS, REPORT, cuts={"inv": cut(0x600)})


def test_nothing_told_is_an_empty_picture() -> None:
    assert picture() == Topology(made_ms=NOW_MS, sources=(), pipelines=(), links=())


def test_a_source_that_nobody_reads_is_shown_when_it_is_asked_for() -> None:
    [source] = make_topology([], {}, NOW_MS, ["inv"]).sources
    assert (source.name, source.cut, source.read_by) == ("inv", None, ())


def test_sources_have_their_cuts_tables_readers_and_writers_and_come_in_the_order_of_the_data() -> None:
    inv, shop = CHAIN.sources
    assert (inv.name, inv.read_by, inv.written_by, list(inv.tables)) == (
        "inv",
        ("orders",),
        (),
        ["inventory.lines", "inventory.orders"],
    )
    assert inv.cut is not None
    assert (inv.cut.commit_lsn, inv.cut.commit_ts_ms) == ("0/600", 995_000)
    assert (shop.name, shop.read_by, shop.written_by) == ("shop", ("revenue",), ("orders",))
    assert shop.tables == {"public.orders": "shop.public.orders"}


def test_sources_that_are_made_of_each_other_are_shown_once_each() -> None:
    back = replace(REVENUE.views[0], output="inv.public.back", output_source="inv")
    found = picture(ORDERS, replace(REVENUE, views=(back,)))
    assert sorted(source.name for source in found.sources) == ["inv", "shop"]
    assert {(link.pipeline, link.read_by) for link in found.links} == {("orders", "revenue")}


def test_a_view_that_is_a_table_to_another_pipeline_links_them() -> None:
    [link] = CHAIN.links
    assert (link.pipeline, link.view, link.read_by) == ("orders", "orders", "revenue")
    assert (link.source, link.table, link.topic) == ("shop", "public.orders", "shop.public.orders")


def test_a_table_that_is_routed_elsewhere_links_by_its_topic() -> None:
    routed = replace(REVENUE, tables={"renamed.orders": "shop.public.orders"})
    assert [link.table for link in picture(ORDERS, routed).links] == ["renamed.orders"]
    elsewhere = replace(REVENUE, tables={"public.orders": "elsewhere"})
    assert picture(ORDERS, elsewhere).links == ()


def test_the_part_of_a_source_has_whatever_is_made_of_it_and_nothing_else() -> None:
    other = replace(ORDERS, pipeline="people", source="crm", tables={}, stages=(), views=())
    everything = picture(ORDERS, REVENUE, other)
    part = everything.of_source("inv")
    assert [node.name for node in part.pipelines] == ["orders", "revenue"]
    assert [node.name for node in part.sources] == ["inv", "shop"]
    assert len(part.links) == 1
    below = everything.of_source("shop")
    assert ([node.name for node in below.pipelines], below.links) == (["revenue"], ())
    assert everything.of_source("nobody").pipelines == ()


def test_a_pipeline_that_has_only_begun_has_shown_nothing() -> None:
    for found in (pipeline(ORDERS), pipeline(ORDERS, replace(REPORT, batch_id=-1), newest=cut(0x600))):
        assert (found.progress, found.behind_ms, found.batch) == (Progress.NOTHING_YET, None, None)


@pytest.mark.parametrize(
    ("newest", "progress", "behind_ms"),
    [
        (cut(0x500), Progress.UP_TO_DATE, 0),
        (cut(0x4FF), Progress.UP_TO_DATE, 0),
        (cut(0x501), Progress.BEHIND, 5_000),
        (cut(0x501, commit_ts_ms=989_000), Progress.BEHIND, 0),
        (cut(1, timeline=2), Progress.TIMELINE_OVER, None),
        (None, Progress.UNKNOWN, None),
    ],
)
def test_a_pipeline_is_compared_with_the_newest_cut(
    newest: Cut | None, progress: Progress, behind_ms: int | None
) -> None:
    found = pipeline(ORDERS, REPORT, newest=newest)
    assert (found.progress, found.behind_ms) == (progress, behind_ms)
    assert found.batch is not None
    assert (found.batch.batch_id, found.batch.commit_lsn, found.batch.parts_us) == (
        3,
        "0/500",
        {"plan": 1200},
    )
    assert (found.run_events, found.run_documents) == (30, 20)


def test_how_far_behind_is_unknown_when_an_earlier_run_made_the_batch_visible() -> None:
    earlier = replace(REPORT, commit_ts_ms=None, visible_ms=None)
    assert pipeline(ORDERS, earlier, newest=cut(0x501)).behind_ms is None
    assert pipeline(ORDERS, earlier, newest=cut(0x500)).behind_ms == 0


def test_a_pipeline_says_how_it_ended() -> None:
    found = pipeline(ORDERS, replace(REPORT, end=RunEnd(ended_ms=995_000, failure="QueryFailedError: why")))
    assert (found.state, found.failure, found.ended_ms) == (
        PipelineState.FAILED,
        "QueryFailedError: why",
        995_000,
    )


def test_a_pipeline_that_has_vanished_stays_in_the_picture() -> None:
    [found] = picture(ORDERS, REPORT, now_ms=NOW_MS + 10**9).pipelines
    assert found.state is PipelineState.VANISHED


# --- for programs


def test_the_json_is_read_back_as_the_same_picture_and_has_a_schema() -> None:
    assert msgspec.json.decode(msgspec.json.encode(CHAIN), type=Topology) == CHAIN
    schema = topology_schema()
    described = schema["$defs"]["PipelineNode"]["properties"]
    shown = json.loads(msgspec.json.encode(CHAIN))["pipelines"][0]
    assert shown.keys() == described.keys()
    assert set(schema["$defs"]["PipelineState"]["enum"]) == set(PipelineState)
