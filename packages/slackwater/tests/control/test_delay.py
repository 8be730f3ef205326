"""The delay of views, and its cause.

How the promises were seen to fail. Components add up: ``_waits`` returns nothing. Blame:
``_fault_of_pipeline`` does not look at how long a run has been silent.
"""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.control import ComponentKind, DelayCause, Delays, SourceSigns, make_topology, measure_delays
from slackwater.protocol import (
    Cut,
    FrontierState,
    FrontierStatus,
    PipelineEntry,
    PipelineRecord,
    PipelineReport,
    RegisteredView,
    RunEnd,
    StageWork,
)
from slackwater_lab.fakes.topics import REGISTRATION, make_cut

NOW_MS = 1_000_000
VIEW = RegisteredView(
    name="orders",
    output="shop.public.orders",
    kind="kafka",
    format="debezium",
    output_source="shop",
    tables=(),
    stages=(),
)
FIRST = replace(REGISTRATION, pipeline="orders", run="1", views=(VIEW,))
SECOND = replace(
    REGISTRATION,
    pipeline="revenue",
    source="shop",
    run="2",
    tables={"public.orders": "shop.public.orders"},
    views=(replace(VIEW, name="revenue", output="revenue", format="json", output_source=""),),
)


def cut(source: str, commit_ts_ms: int, lsn: int = 0x600) -> Cut:
    return make_cut(source, lsn, commit_ts_ms)


def shows(pipeline: str, commit_ts_ms: int, lsn: int = 0x500, **others: object) -> PipelineReport:
    run = {"orders": "1", "revenue": "2"}[pipeline]
    report = PipelineReport(
        pipeline=pipeline,
        run=run,
        batch_id=3,
        timeline=1,
        commit_lsn=lsn,
        commit_ts_ms=commit_ts_ms,
        visible_ms=commit_ts_ms,
        parts_us={"plan": 1_000_000, "evaluate": 3_000_000},
    )
    return replace(report, **others)  # type: ignore[arg-type]


def delays(*records: PipelineRecord, inv: int, shop: int | None = None, heard_ms: int = NOW_MS) -> Delays:
    entries = [PipelineEntry(record, offset, heard_ms) for offset, record in enumerate(records)]
    cuts = {"inv": cut("inv", inv)} | ({} if shop is None else {"shop": cut("shop", shop)})
    return measure_delays(make_topology(entries, cuts, NOW_MS))


def blamed(found: Delays) -> DelayCause:
    (cause,) = found.causes
    return cause


def test_the_components_of_a_chain_add_up_to_its_delay() -> None:
    found = delays(
        FIRST, SECOND, shows("orders", 990_000), shows("revenue", 985_000), inv=990_500, shop=989_000
    )
    (late, early) = found.views
    assert [(component.kind, component.name, component.delay_ms) for component in late.components] == [
        (ComponentKind.PIPELINE, "orders", 500),
        (ComponentKind.SIDECAR, "shop", 1_000),
        (ComponentKind.PIPELINE, "revenue", 4_000),
    ]
    assert (late.pipeline, late.view, late.source, late.delay_ms) == ("revenue", "revenue", "inv", 5_500)
    assert (early.pipeline, early.delay_ms) == ("orders", 500)
    (arrival,) = found.arrivals
    assert (arrival.source, arrival.age_ms, arrival.connector_ms, arrival.sidecar_ms) == (
        "inv",
        NOW_MS - 990_500,
        None,
        None,
    )


times = st.integers(min_value=0, max_value=2 * NOW_MS)


@given(times, times, times, times, st.integers(min_value=NOW_MS - 20_000, max_value=NOW_MS + 20_000))
def test_no_component_is_negative_whatever_clocks_say_and_components_add_up(
    inv: int, orders: int, shop: int, revenue: int, heard_ms: int
) -> None:
    found = delays(
        FIRST,
        SECOND,
        shows("orders", orders),
        shows("revenue", revenue),
        inv=inv,
        shop=shop,
        heard_ms=heard_ms,
    )
    for view in found.views:
        known = [component.delay_ms for component in view.components]
        assert all(each is not None and each >= 0 for each in known)
        assert view.delay_ms == sum(each or 0 for each in known)
    assert [view.delay_ms or 0 for view in found.views] == sorted(
        (v.delay_ms or 0 for v in found.views), reverse=True
    )
    assert all(each.age_ms >= 0 for each in found.arrivals)


def test_a_run_that_is_behind_and_silent_is_blamed_for_all_behind_it() -> None:
    records: list[PipelineRecord] = [FIRST, SECOND, shows("orders", 985_000)]
    records.append(shows("revenue", 985_000, 0x600))
    heard = (NOW_MS - 8_000, NOW_MS) * 2
    entries = [PipelineEntry(*each) for each in zip(records, range(4), heard, strict=True)]
    cuts = {"inv": cut("inv", 990_000), "shop": cut("shop", 985_000)}
    cause = blamed(measure_delays(make_topology(entries, cuts, NOW_MS)))
    assert (cause.kind, cause.name, cause.delay_ms) == (ComponentKind.PIPELINE, "orders", 5_000)
    assert cause.views == ("revenue/revenue", "orders/orders") or set(cause.views) == {
        "orders/orders",
        "revenue/revenue",
    }
    assert "last reported 8 s ago" in cause.evidence
    assert REGISTRATION.host in cause.evidence


@pytest.mark.parametrize(("silent_ms", "is_blamed"), [(7_000, False), (7_001, True)])
def test_a_run_that_is_a_little_behind_may_be_silent_for_a_moment(silent_ms: int, is_blamed: bool) -> None:
    found = delays(FIRST, shows("orders", 989_000), inv=990_000, heard_ms=NOW_MS - silent_ms)
    assert bool(found.causes) == is_blamed


@pytest.mark.parametrize(("behind_ms", "is_blamed"), [(0, False), (2_000, False), (2_001, True)])
def test_a_run_is_blamed_when_it_is_late(behind_ms: int, is_blamed: bool) -> None:
    found = delays(FIRST, shows("orders", 990_000 - behind_ms), inv=990_000)
    assert bool(found.causes) == is_blamed
    if is_blamed:
        cause = blamed(found)
        assert "3.00 s of them: evaluating the stages" in cause.evidence
        assert "slackwater explain" in cause.advice


def test_a_run_that_shows_the_newest_cut_may_report_every_three_seconds() -> None:
    assert delays(FIRST, shows("orders", 990_000, 0x600), inv=990_000, heard_ms=NOW_MS - 6_000).causes == ()


def test_a_run_that_is_silent_is_blamed_though_it_shows_the_newest_cut() -> None:
    blamed(delays(FIRST, shows("orders", 990_000, 0x600), inv=990_000, heard_ms=NOW_MS - 9_000))


@pytest.mark.parametrize(
    ("written_ms", "previous_lsn", "is_blamed"),
    [(NOW_MS - 1_000, 0x500, False), (NOW_MS - 2_001, 0x500, True), (NOW_MS - 1_000, 0x501, True)],
)
def test_a_run_is_not_blamed_for_a_commit_that_came_a_moment_ago_after_idle_minutes(
    written_ms: int, previous_lsn: int, is_blamed: bool
) -> None:
    entries = [PipelineEntry(FIRST, 0, NOW_MS), PipelineEntry(shows("orders", 100_000), 1, NOW_MS)]
    cuts = {"inv": replace(cut("inv", NOW_MS - 1_100), previous_lsn=previous_lsn)}
    topology = make_topology(entries, cuts, NOW_MS, written_ms={"inv": written_ms})
    assert bool(measure_delays(topology).causes) == is_blamed


def test_nobody_is_blamed_for_being_late_behind_a_sidecar_that_is_away() -> None:
    entries = [PipelineEntry(FIRST, 0, NOW_MS), PipelineEntry(shows("orders", 900_000), 1, NOW_MS)]
    topology = make_topology(entries, {"inv": cut("inv", 990_000)}, NOW_MS)
    assert [each.kind for each in measure_delays(topology).causes] == [ComponentKind.PIPELINE]

    said = FrontierStatus(state=FrontierState.RUNNING, wall_ms=NOW_MS - 9_000, sidecar="a")
    found = blamed(measure_delays(topology, [SourceSigns(source="inv", status=said)]))

    assert (found.kind, found.views) == (ComponentKind.SIDECAR, ("orders/orders",))


def test_a_run_that_has_shown_nothing_is_named_and_nothing_is_known() -> None:
    found = delays(replace(FIRST, started_ms=NOW_MS - 10_001), inv=990_000)
    assert found.views[0].delay_ms is None
    assert "has shown nothing since it started 10.0 s ago" in blamed(found).evidence
    assert delays(replace(FIRST, started_ms=NOW_MS - 10_000), inv=990_000).causes == ()


@pytest.mark.parametrize(
    ("end", "heard_ms", "words"),
    [
        (RunEnd(ended_ms=NOW_MS, failure="no disk\nmore"), NOW_MS, "ended: no disk"),
        (RunEnd(ended_ms=NOW_MS, failure=""), NOW_MS, "was stopped"),
        (None, NOW_MS - 31_000, "last reported 31 s ago"),
    ],
)
def test_a_run_that_is_no_more_is_blamed(end: RunEnd | None, heard_ms: int, words: str) -> None:
    report = shows("orders", 985_000, end=end)
    cause = blamed(delays(FIRST, report, inv=990_000, heard_ms=heard_ms))
    assert words in cause.evidence
    assert "more" not in cause.evidence


def test_a_run_that_was_stopped_when_it_was_up_to_date_is_not() -> None:
    ended = shows("orders", 990_000, 0x600, end=RunEnd(ended_ms=NOW_MS, failure=""))
    assert delays(FIRST, ended, inv=990_000).causes == ()


@pytest.mark.parametrize(("late_ms", "is_blamed"), [(2_000, False), (2_001, True)])
def test_a_sidecar_between_two_pipelines_is_blamed_when_it_is_late(late_ms: int, is_blamed: bool) -> None:
    shop = 990_000 - late_ms
    records = FIRST, SECOND, shows("orders", 990_000, 0x600), shows("revenue", shop, 0x600)
    found = delays(*records, inv=990_000, shop=shop)
    assert bool(found.causes) == is_blamed
    if is_blamed:
        cause = blamed(found)
        assert (cause.kind, cause.name, cause.views) == (ComponentKind.SIDECAR, "shop", ("revenue/revenue",))


def test_a_sidecar_that_has_found_no_cut_of_what_was_published_is_blamed() -> None:
    records = FIRST, SECOND, shows("orders", 990_000, 0x600), shows("revenue", 985_000)
    found = delays(*records, inv=990_000)
    assert ("shop", ComponentKind.SIDECAR) in [(each.name, each.kind) for each in found.causes]


def test_what_stands_still_is_named_before_what_is_late() -> None:
    others = replace(FIRST, pipeline="other", run="3")
    records = FIRST, others, shows("orders", 980_000)
    found = delays(*records, inv=990_000)
    assert [each.name for each in found.causes] == ["other", "orders"]


def test_pipelines_that_read_each_other_are_no_endless_way() -> None:
    back = replace(SECOND, views=(replace(VIEW, name="back", output="inv.public.back", output_source="inv"),))
    found = delays(FIRST, back, shows("orders", 1), shows("revenue", 1), inv=2, shop=2)
    assert {view.pipeline for view in found.views} == {"orders", "revenue"}


def test_programs_get_the_same() -> None:
    found = delays(FIRST, shows("orders", 985_000), inv=990_000)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Delays) == found


def arrived(commit_ms: int, ended_ms: int, written_ms: int) -> Delays:
    """The newest cut of a database, with nothing behind it but a pipeline that shows it."""
    records: list[PipelineRecord] = [FIRST, shows("orders", commit_ms)]
    entries = [PipelineEntry(record, offset, NOW_MS) for offset, record in enumerate(records)]
    cuts = {"inv": replace(cut("inv", commit_ms, 0x500), ended_ms=ended_ms)}
    return measure_delays(make_topology(entries, cuts, NOW_MS, written_ms={"inv": written_ms}))


def test_what_lies_before_the_newest_cut_is_measured() -> None:
    found = arrived(NOW_MS - 900, NOW_MS - 600, NOW_MS - 500)
    (arrival,) = found.arrivals
    assert (arrival.age_ms, arrival.connector_ms, arrival.sidecar_ms) == (900, 300, 100)
    assert found.causes == ()


@pytest.mark.parametrize(
    ("ended", "written", "kind", "said"),
    [
        (2_000, 2_100, None, ""),
        (2_001, 2_100, ComponentKind.CONNECTOR, "wrote the newest commit to Kafka 2.0 s after the commit"),
        (
            100,
            2_101,
            ComponentKind.SIDECAR,
            "published the newest cut 2.0 s after its last transaction was in Kafka",
        ),
    ],
)
def test_who_brings_the_newest_commit_late_is_blamed_for_all_that_is_made_of_it(
    ended: int, written: int, kind: ComponentKind | None, said: str
) -> None:
    began = NOW_MS - 5_000
    found = arrived(began, began + ended, began + written)
    if kind is None:
        assert found.causes == ()
        return
    cause = blamed(found)
    assert (cause.kind, cause.name, cause.views) == (kind, "inv", ("orders/orders",))
    assert said in cause.evidence


def test_a_commit_that_came_late_is_nobodys_fault_for_ever() -> None:
    assert arrived(NOW_MS - 20_000, NOW_MS - 15_000, NOW_MS - 10_000).causes != ()
    assert arrived(NOW_MS - 20_001, NOW_MS - 15_001, NOW_MS - 10_001).causes == ()


def test_clocks_that_disagree_make_no_time_less_than_nothing() -> None:
    (arrival,) = arrived(NOW_MS - 500, NOW_MS - 900, NOW_MS - 1_000).arrivals
    assert (arrival.connector_ms, arrival.sidecar_ms) == (0, 0)


WORK = StageWork(stage=1, total_us=600_000, tasks=3, slowest_us=200_000, slowest_task=2)


@pytest.mark.parametrize(
    ("work", "said", "helps"),
    [
        ((), "3.00 s of them: evaluating the stages", "`slackwater explain` shows the stages"),
        ((WORK,), "stage 1, by id, whose task 2 of 3 took 0.20 s", "more cores evaluate more buckets"),
        (
            (replace(WORK, slowest_us=400_001),),
            "task 2 of 3 took 0.40 s and the others 0.10 s on average",
            "a few keys have most of the changes",
        ),
        ((WORK, replace(WORK, stage=2, slowest_us=200_001)), "most of it stage 2", "more cores"),
        ((replace(WORK, tasks=1),), "most of it stage 1, by id", "a larger batch is spread over more tasks"),
    ],
)
def test_the_stage_and_the_task_that_a_slow_batch_waits_for_are_named(
    work: tuple[StageWork, ...], said: str, helps: str
) -> None:
    cause = blamed(delays(FIRST, shows("orders", 985_000, stage_work=work), inv=990_000))
    assert said in cause.evidence
    assert helps in cause.advice
