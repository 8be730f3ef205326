import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater_bench.__main__ import main
from slackwater_bench.page import DOCS, render
from slackwater_bench.registry import SCENARIOS
from slackwater_bench.scenario import missing_points, scenario_results, summaries
from slackwater_lab.errors import RunFailedError
from slackwater_lab.results import Result, append

SCENARIO = SCENARIOS["transaction-size"]


def result(rows: int, value: float, **changes: object) -> Result:
    made = Result(
        scenario=SCENARIO.name,
        version=SCENARIO.version,
        parameters={"rows": rows, "events": 500_000},
        value=value,
        unit=SCENARIO.unit,
        at="2026-11-21T14:00:00+00:00",
        commit="0123456789ab",
        is_dirty=False,
        machine={"cores": 2, "memory_gib": 24, "system": "Linux", "python": "3.11.7"},
        versions={"pyspark": "4.3.0"},
        details={"seconds": 10.0, "peak_mib": {"sidecar": value / 100}},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.full
def test_the_page_in_the_repository_is_what_the_results_make() -> None:
    page = (DOCS / "performance.md").read_text()
    assert page == render(), "it is stale: run `python -m slackwater_bench page`"


def test_a_page_of_results_has_tables(tmp_path: Path) -> None:
    for value in (50_000.0, 40_000.0, 45_000.0):
        append(result(1, value), tmp_path)
    append(result(100, 90_000.0, is_dirty=True), tmp_path)
    page = render(tmp_path)
    assert "| 1 | 500,000 | **45,000** | 22 % | 10 |" in page
    assert "0123456+" in page
    assert "Not run: rows=10,000 events=500,000; rows=1,000,000 events=1,000,000." in page
    assert render(tmp_path) == page


def test_only_the_newest_runs_of_a_point_count(tmp_path: Path) -> None:
    for value in range(1, 9):
        append(result(1, float(value)), tmp_path)
    (point,) = summaries(SCENARIO, scenario_results(SCENARIO, tmp_path))
    assert point.values == (4.0, 5.0, 6.0, 7.0, 8.0)
    assert point.median == 6.0
    assert point.column("peak_mib.sidecar") == pytest.approx(0.06)
    assert point.column("peak_mib.nobody") is None


def test_results_of_another_version_are_left_out(tmp_path: Path) -> None:
    append(result(1, 1.0, version=SCENARIO.version + 1), tmp_path)
    append(result(1, 2.0), tmp_path)
    assert [each.value for each in scenario_results(SCENARIO, tmp_path)] == [2.0]


def test_points_without_a_run_are_known() -> None:
    found = summaries(SCENARIO, [result(1, 1.0), result(100, 1.0)])
    assert [point["rows"] for point in missing_points(SCENARIO, found)] == [10_000, 1_000_000]


def test_a_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    append(result(1, 1.0), tmp_path)
    path = tmp_path / f"{SCENARIO.name}.jsonl"
    path.write_text(path.read_text() + json.dumps({"scenario": "x"}) + "\n")
    with pytest.raises(RunFailedError, match="line 2"):
        scenario_results(SCENARIO, tmp_path)


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    append(result(1, 1.0), results)
    done = CliRunner().invoke(main, ["page", "--results", str(results), "--docs", str(docs)])
    assert done.exit_code == 0, done.output
    assert (docs / "performance.md").read_text() == render(results)
