import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater_bench import __main__ as command
from slackwater_bench.__main__ import main
from slackwater_bench.catch_up import on_cores
from slackwater_bench.registry import SCENARIOS, scenario_named
from slackwater_bench.scenario import Direction, Measured, Scenario, points_of
from slackwater_bench.scenarios.latency import HOPS
from slackwater_bench.traffic import LINES, ORDERS, SteadyOrders
from slackwater_bench.usage import LoggedBatch, batch_parts, batch_sizes, cpu_between, logged_batches
from slackwater_lab.errors import RunFailedError


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_says_what_it_measures_and_has_points_of_both_sizes(name: str) -> None:
    scenario = SCENARIOS[name]
    assert scenario.measures.endswith(".")
    assert scenario.why.endswith(".")
    assert scenario.points
    assert scenario.quick_points
    for point in scenario.points:
        json.dumps(point)


@pytest.mark.parametrize("name", ["latency", "live"])
def test_the_page_shows_hops_that_there_are(name: str) -> None:
    shown = [column.split(".")[1] for column in SCENARIOS[name].columns if column.startswith("hops_ms.")]
    assert shown == [hop for hop in HOPS if hop in shown]
    assert len(shown) > 1


def test_an_unknown_scenario_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(RunFailedError, match=r"no scenario 'speed'.*throughput"):
        scenario_named("speed")
    done = CliRunner().invoke(main, ["speed"])
    assert done.exit_code == 1
    assert "no scenario 'speed'" in done.output


def test_the_list_names_every_scenario_with_unit_and_direction() -> None:
    output = CliRunner().invoke(main, ["list"]).output
    for scenario in SCENARIOS.values():
        assert (
            f"{scenario.name} (version {scenario.version}; {scenario.unit}, {scenario.direction})" in output
        )


def test_points_beyond_a_limit_are_left_out() -> None:
    points = points_of(SCENARIOS["state-size"], is_quick=False, limits={"keys": 100_000})
    assert [point["keys"] for point in points] == [10_000, 100_000]
    other = SCENARIOS["partitions"]
    assert points_of(other, is_quick=False, limits={"keys": 1}) == other.points


COUNTED = Scenario(
    name="counted",
    version=3,
    unit="things",
    direction=Direction.HIGHER,
    measures="Things.",
    why="To test.",
    points=({"size": 1}, {"size": 2}),
    quick_points=({"size": 1},),
    run=lambda parameters, _: Measured(float(parameters["size"]), {"seen": True}),
)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(command, "SCENARIOS", {"counted": COUNTED})
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    return tmp_path / "counted.jsonl"


def test_a_run_is_kept_with_its_commit_machine_and_versions(counted: Path) -> None:
    done = CliRunner().invoke(main, ["--runs", "2"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in counted.read_text().splitlines()]
    assert [line["value"] for line in lines] == [1.0, 2.0, 1.0, 2.0]
    first = lines[0]
    assert (first["scenario"], first["version"], first["parameters"]) == ("counted", 3, {"size": 1})
    assert first["details"] == {"seen": True}
    assert {"commit", "is_dirty", "at", "machine", "versions", "unit"} <= first.keys()
    assert first["versions"]["pyspark"]


def test_a_quick_run_is_shown_and_not_kept(counted: Path) -> None:
    done = CliRunner().invoke(main, ["--quick"])
    assert '"value": 1.0' in done.output
    assert not counted.exists()


def test_points_can_be_chosen_by_a_parameter(counted: Path) -> None:
    CliRunner().invoke(main, ["--only", "size=2"])
    assert [json.loads(line)["value"] for line in counted.read_text().splitlines()] == [2.0]


def test_batches_are_read_from_the_log_of_the_command() -> None:
    log = (
        "orders: batch 0 at 1/A: 1,234 events, 1 documents, visible 1,012 ms after its newest commit "
        "(plan 0.002 s, evaluate 1.000 s)\nnoise (evaluate 9 s)\n"
        "orders: batch 1 at 1/B: 9 events, 1 documents, visible -3 ms after its newest commit\n"
    )
    assert logged_batches(log) == [
        LoggedBatch((1 << 32) + 10, 1234, 1012, {"plan": 0.002, "evaluate": 1.0}),
        LoggedBatch((1 << 32) + 11, 9, -3, {}),
    ]
    assert list(batch_parts(log).items()) == [("evaluate", 0.5), ("plan", 0.001)]
    assert batch_parts("nothing") == {}
    assert batch_sizes(log) == [1234, 9]


def test_what_does_not_belong_to_a_run_is_told() -> None:
    before = {"kafka": 1.0, "benchmark": 2.0, "machine": 10.0}
    after = {"kafka": 3.0, "benchmark": 2.5, "pipeline": 4.0, "machine": 20.0}
    used = {"kafka": 2.0, "benchmark": 0.5, "pipeline": 4.0, "others": 3.5}
    assert cpu_between(before, after) == used


def test_cores_are_given_back() -> None:
    import os

    before = os.sched_getaffinity(0)
    with on_cores(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


def test_steady_orders_change_every_row_once_in_a_round() -> None:
    orders = SteadyOrders(orders=50, lines=2)
    rounds = [
        [change for number in range(50 * r, 50 * r + 50) for change in orders.changes_of(number)]
        for r in (0, 1)
    ]
    for op, changes in zip("cu", rounds, strict=True):
        assert {change.op for change in changes} == {op}
        assert Counter(change.table for change in changes) == {ORDERS: 50, LINES: 100}
        assert len({(change.table, change.id) for change in changes}) == 150
    after = {(change.table, change.id): change.after for change in rounds[0]}
    assert all(change.before == after[change.table, change.id] for change in rounds[1])


def test_steady_orders_keep_the_invariant_of_the_documents() -> None:
    for number in (0, 7, 23):
        order, *lines = (json.loads(change.after) for change in SteadyOrders(10).changes_of(number))
        assert order["line_count"] == len(lines)
        assert all(line["order_id"] == order["id"] for line in lines)
        assert float(order["total"]) == pytest.approx(
            sum(line["quantity"] * float(line["price"]) for line in lines)
        )


def test_the_same_changes_are_cut_into_transactions_of_any_size() -> None:
    orders = SteadyOrders(orders=9)
    by_one = [change for part in islice(orders.transactions(1, 9), 24) for change in part]
    by_eight = [change for part in islice(orders.transactions(8, 9), 3) for change in part]
    assert by_one == by_eight
