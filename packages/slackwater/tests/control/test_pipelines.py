"""What is known of pipelines, and who holds a name."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.control import (
    HELD_FOR,
    PipelineState,
    holder_of,
    known_pipelines,
    superseded,
)
from slackwater.control.topology import VANISHED_AFTER
from slackwater.protocol import (
    PipelineEntry,
    PipelineRecord,
    PipelineRegistration,
    PipelineReport,
    RegisteredView,
    RunEnd,
)
from slackwater_lab.fakes.topics import REGISTRATION

NOW_MS = 1_000_000
VANISHED_MS = int(VANISHED_AFTER.total_seconds() * 1000)
HELD_MS = int(HELD_FOR.total_seconds() * 1000)
LEFT = RunEnd(ended_ms=NOW_MS, failure="")
FAILED = RunEnd(ended_ms=NOW_MS, failure="why")


def view(output: str, kind: str = "kafka") -> RegisteredView:
    return RegisteredView(
        name="v", output=output, kind=kind, format="json", output_source="", tables=(), stages=(1,)
    )


ORDERS = replace(REGISTRATION, owner="", views=(view("out"),))
REPORT = PipelineReport(pipeline="orders", run="r", batch_id=1, timeline=1, commit_lsn=7)


def entries(*records: PipelineRecord, written_ms: int = NOW_MS) -> list[PipelineEntry]:
    return [PipelineEntry(record, offset, written_ms) for offset, record in enumerate(records)]


def state(found: Sequence[PipelineEntry], now_ms: int = NOW_MS) -> PipelineState:
    [known] = known_pipelines(found, now_ms)
    return known.state(now_ms)


def test_a_pipeline_runs_from_its_registration_on() -> None:
    assert state(entries(ORDERS)) is PipelineState.RUNNING


@pytest.mark.parametrize(
    ("end", "expected"),
    [(None, PipelineState.RUNNING), (LEFT, PipelineState.LEFT), (FAILED, PipelineState.FAILED)],
)
def test_the_newest_report_says_how_a_run_ended(end: RunEnd | None, expected: PipelineState) -> None:
    assert state(entries(ORDERS, REPORT, replace(REPORT, end=end))) is expected


def test_a_run_that_is_silent_for_too_long_has_vanished() -> None:
    found = entries(ORDERS, REPORT)
    assert state(found, NOW_MS + VANISHED_MS) is PipelineState.RUNNING
    assert state(found, NOW_MS + VANISHED_MS + 1) is PipelineState.VANISHED


def test_a_report_is_a_sign_of_life() -> None:
    found = [PipelineEntry(ORDERS, 0, 0), PipelineEntry(REPORT, 1, NOW_MS)]
    assert state(found) is PipelineState.RUNNING


def test_a_run_that_has_ended_never_vanishes() -> None:
    assert state(entries(ORDERS, replace(REPORT, end=LEFT)), 10 * NOW_MS) is PipelineState.LEFT


def shown(*records: PipelineRecord) -> tuple[str, PipelineState]:
    [known] = known_pipelines(entries(*records), NOW_MS)
    return known.registration.run, known.state(NOW_MS)


SECOND = replace(ORDERS, run="second")
OF_SECOND = replace(REPORT, run="second")


def test_of_two_runs_that_may_go_on_the_later_one_is_shown() -> None:
    """It has their checkpoint, and overtakes the other, which does not know it yet."""
    assert shown(ORDERS, SECOND, OF_SECOND, REPORT) == ("second", PipelineState.RUNNING)


def test_a_run_that_could_not_begin_does_not_hide_the_one_that_goes_on() -> None:
    failed = replace(OF_SECOND, end=FAILED)
    assert shown(ORDERS, REPORT, SECOND, failed) == ("r", PipelineState.RUNNING)
    left = replace(REPORT, end=LEFT)
    assert shown(ORDERS, SECOND, failed, left) == ("r", PipelineState.LEFT)


def test_a_run_that_ends_when_the_next_one_has_begun_does_not_end_that() -> None:
    assert shown(ORDERS, SECOND, replace(REPORT, end=LEFT)) == ("second", PipelineState.RUNNING)


def test_a_report_without_a_registration_is_of_no_pipeline() -> None:
    assert known_pipelines(entries(REPORT), NOW_MS) == []


# --- who holds a name

OTHER = replace(ORDERS, query_id="mine", run="mine")


@pytest.mark.parametrize(
    "found",
    [
        [],
        entries(replace(ORDERS, pipeline="others")),
        entries(replace(ORDERS, query_id="mine"), REPORT),
        entries(ORDERS, replace(REPORT, end=LEFT)),
        entries(ORDERS, replace(REPORT, end=FAILED)),
    ],
    ids=["nobody", "another name", "its own checkpoint", "left", "failed"],
)
def test_nobody_holds_the_name(found: list[PipelineEntry]) -> None:
    assert holder_of(OTHER, found, NOW_MS) is None


def test_another_checkpoint_holds_the_name_while_it_runs_and_a_minute_longer() -> None:
    found = entries(ORDERS, REPORT)
    holder = holder_of(OTHER, found, NOW_MS + HELD_MS)
    assert holder is not None
    assert holder.registration == ORDERS
    assert holder_of(OTHER, found, NOW_MS + HELD_MS + 1) is None


@pytest.mark.parametrize(
    "other",
    [
        replace(OTHER, source="crm"),
        replace(OTHER, views=(view("elsewhere"),)),
        replace(OTHER, views=(view("out", "postgres"),)),
        replace(OTHER, views=(view("out"), view("more"))),
    ],
    ids=["source", "output", "kind", "one more"],
)
def test_another_pipeline_holds_its_name_for_good(other: PipelineRegistration) -> None:
    found = entries(ORDERS, replace(REPORT, end=LEFT))
    assert holder_of(other, found, 10 * NOW_MS) is not None
    assert holder_of(replace(other, query_id="q"), found, NOW_MS) is None, "its checkpoint says what is wrong"


def test_who_takes_a_name_takes_the_place_of_earlier_runs_that_have_ended() -> None:
    found = entries(
        ORDERS,
        replace(ORDERS, pipeline="others"),
        SECOND,
        replace(REPORT, end=FAILED),
        OTHER,
        REPORT,
    )[:5]
    mine = replace(OTHER, query_id="q")
    assert [run.registration.run for run in superseded(mine, found, NOW_MS, 4)] == ["r"]
    later_ms = NOW_MS + HELD_MS + 1
    assert [run.registration.run for run in superseded(mine, found, later_ms, 4)] == ["r", "second"]


# --- properties

ids = st.sampled_from(["a", "b", "c"])
ends = st.sampled_from([None, LEFT, FAILED])
records: st.SearchStrategy[PipelineRecord] = st.one_of(
    st.builds(lambda n, q, r: replace(ORDERS, pipeline=n, query_id=q, run=r), ids, ids, ids),
    st.builds(lambda n, r, e: replace(REPORT, pipeline=n, run=r, end=e), ids, ids, ends),
)
times = st.integers(NOW_MS - 2 * HELD_MS, NOW_MS)
histories = st.lists(st.tuples(records, times), max_size=12).map(
    lambda found: [PipelineEntry(record, offset, at) for offset, (record, at) in enumerate(found)]
)


def compacted(history: Sequence[PipelineEntry]) -> list[PipelineEntry]:
    newest: dict[Any, PipelineEntry] = {}
    for entry in history:
        newest[type(entry.record), entry.record.pipeline, entry.record.run] = entry
    return list(newest.values())


@given(history=histories, seed=st.randoms(use_true_random=False))
def test_neither_order_nor_compaction_changes_what_is_known(history: list[PipelineEntry], seed: Any) -> None:
    shuffled = list(history)
    seed.shuffle(shuffled)
    expected = known_pipelines(history, NOW_MS)
    assert known_pipelines(shuffled, NOW_MS) == expected
    assert known_pipelines(compacted(history), NOW_MS) == expected


@given(history=histories)
def test_no_registration_is_lost_and_each_name_is_shown_once(history: list[PipelineEntry]) -> None:
    names = {e.record.pipeline for e in history if isinstance(e.record, PipelineRegistration)}
    assert [known.registration.pipeline for known in known_pipelines(history, NOW_MS)] == sorted(names)


def starts(order: Sequence[tuple[int, str]]) -> Iterator[bool]:
    """Runs of one name that begin in one moment, each with a checkpoint of its own; yields who continues.

    Each looks, registers, looks again, and withdraws if it found somebody; `order` says whose turn it is.
    """
    log, offsets = list[PipelineEntry](), count()
    runs = {number: replace(ORDERS, query_id=str(number), run=str(number)) for number, _ in order}
    goes_on = dict.fromkeys(runs, True)
    own: dict[int, int] = {}
    for number, step in order:
        run = runs[number]
        if step == "withdraw":
            log = [entry for entry in log if goes_on[number] or entry.record != run]
        elif step == "look":
            found = holder_of(run, log, NOW_MS, before=own.get(number))
            goes_on[number] = goes_on[number] and found is None
        elif goes_on[number]:
            own[number] = next(offsets)
            log.append(PipelineEntry(run, own[number], NOW_MS))
    return iter(goes_on.values())


@st.composite
def interleavings(draw: st.DrawFn) -> list[tuple[int, str]]:
    left = {n: ["look", "register", "look", "withdraw"] for n in range(draw(st.integers(1, 4)))}
    order = []
    while left:
        number = draw(st.sampled_from(sorted(left)))
        order.append((number, left[number].pop(0)))
        if not left[number]:
            del left[number]
    return order


@given(order=interleavings())
def test_of_runs_that_begin_in_one_moment_exactly_one_goes_on(order: list[tuple[int, str]]) -> None:
    assert sum(starts(order)) == 1


def test_of_two_runs_that_see_each_other_the_one_that_registered_first_goes_on() -> None:
    order = [(n, step) for step in ("look", "register", "look") for n in (0, 1)]
    assert list(starts(order)) == [True, False]


def test_without_the_second_look_two_runs_would_go_on() -> None:
    order = [(0, "look"), (1, "look"), (0, "register"), (1, "register")]
    assert sum(starts(order)) == 2
