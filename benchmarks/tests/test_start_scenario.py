"""What a start is made of, from what the command prints while it runs."""

from pathlib import Path

import pytest

from slackwater.pipeline import load_pipeline
from slackwater_bench.bed import ORDERS_PIPELINE, output_of
from slackwater_bench.scenarios.start import LOADING, Started, StepWatch, start_measured, with_own_names

OUTPUT = (
    "warning: something else\n"
    "orders-1: asking Kafka at 127.0.0.1:9 for its progress, until 10:00:00 UTC if it does not answer\n"
    "orders-1: starting Spark\n"
    "orders-1: batch 0 at 0/1: 9 events, 1 documents, visible 12 ms after its newest commit\n"
)


@pytest.fixture
def watch() -> StepWatch:
    return StepWatch("orders-1")


def test_a_step_lasts_until_the_next_one_is_said(watch: StepWatch) -> None:
    first, second, *_ = (OUTPUT.index(line) for line in OUTPUT.splitlines()[2:])
    watch.look("", 11.0)
    watch.look(OUTPUT[:first], 12.0)
    watch.look(OUTPUT[:second], 14.5)
    watch.look(OUTPUT, 18.0)

    assert watch.phases(10.0, 20.0) == {
        LOADING: 2.0,
        "asking Kafka for its progress": 2.5,
        "starting Spark": 5.5,
    }


def test_a_line_counts_once_it_is_complete(watch: StepWatch) -> None:
    watch.look("orders-1: starting", 1.0)
    watch.look("orders-1: starting Spark\n", 2.0)

    assert watch.steps == [("starting Spark", 2.0)]


def test_lines_of_others_are_no_steps(watch: StepWatch) -> None:
    watch.look("orders-12: starting Spark\nerror: the pipeline ended\n", 1.0)

    assert watch.steps == []
    assert watch.phases(0.0, 3.0) == {LOADING: 3.0}


def test_a_step_that_is_said_twice_counts_both_times(watch: StepWatch) -> None:
    watch.look("orders-1: starting\n", 1.0)
    watch.look("orders-1: starting\norders-1: waiting\n", 3.0)
    watch.look("orders-1: starting\norders-1: waiting\norders-1: starting\n", 4.0)

    assert watch.phases(0.0, 8.0) == {LOADING: 1.0, "starting": 6.0, "waiting": 1.0}


def test_every_start_has_a_name_and_an_output_of_its_own(tmp_path: Path) -> None:
    copies = [with_own_names(ORDERS_PIPELINE, tmp_path, number) for number in (0, 1)]

    loaded = [load_pipeline(copy) for copy in copies]
    assert [each.name for each in loaded] == ["orders-0", "orders-1"]
    assert [each.outputs[0].name for each in loaded] == ["orders_with_lines_0", "orders_with_lines_1"]
    assert list(map(output_of, copies)) == ["orders_with_lines_0", "orders_with_lines_1"]
    assert loaded[0].plan == load_pipeline(ORDERS_PIPELINE).plan


def test_the_median_start_counts() -> None:
    first = [
        Started(9.0, {LOADING: 1.0, "rest": 8.0}, {"kafka": 2.0}),
        Started(5.0, {LOADING: 2.0, "rest": 3.0}, {"kafka": 4.0}),
        Started(6.0, {LOADING: 6.0}, {"kafka": 3.0}),
    ]
    measured = start_measured(first, [Started(4.0, {}, {})])

    assert measured.value == 6.0
    assert measured.details["all_seconds"] == [9.0, 5.0, 6.0]
    assert measured.details["again_seconds"] == 4.0
    assert measured.details["phase_seconds"] == {LOADING: 2.0, "rest": 3.0}
    assert measured.details["cpu_seconds"] == {"kafka": 3.0}
