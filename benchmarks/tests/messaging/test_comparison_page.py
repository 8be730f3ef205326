import json
from pathlib import Path

import pytest

from slackwater_bench.messaging.crashes import (
    RECEIVED,
    RECEIVING,
    SENDING,
    Cell,
    around_first_commit,
    broken_promises,
)
from slackwater_bench.messaging.page import BEGIN, END, with_comparison
from slackwater_bench.page import DOCS, render_comparison
from slackwater_bench.registry import SCENARIOS
from slackwater_lab.errors import RunFailedError
from slackwater_lab.messaging.sending.ways import WAYS
from slackwater_lab.results import Result, append

PAGE = f"# Messages\n\n{BEGIN}\nold\n{END}\n\nThe rest.\n"


def test_every_way_has_its_facts_and_its_points() -> None:
    assert SENDING.keys() == WAYS.keys()
    assert RECEIVING.keys() == RECEIVED.keys()
    ways = [*WAYS, *RECEIVED]
    for scenario in (SCENARIOS["messaging"], SCENARIOS["messaging-crashes"]):
        assert [point["way"] for point in scenario.points] == ways
        assert [point["way"] for point in scenario.quick_points] == ways


def test_the_page_in_the_repository_is_what_the_results_make() -> None:
    page = (DOCS / "messaging.md").read_text()
    assert render_comparison(page) == page, "it is stale: run `python -m slackwater_bench page`"


def test_a_comparison_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    costs = {"latency_ms": {"p50": 4.84, "p99": 26.4}, "messages_per_second": 2536.0}
    append(result("messaging", "saved", costs), tmp_path)
    text = render_comparison(PAGE, tmp_path)
    assert text.startswith(f"# Messages\n\n{BEGIN}\n\n### ")
    assert text.endswith(f"{END}\n\nThe rest.\n")
    assert "old" not in text
    assert "| just after its data | 4.8 ms | 26.4 ms | 2,536/s |" in text
    assert render_comparison(text, tmp_path) == text


def test_a_page_without_a_place_for_it_is_named() -> None:
    with pytest.raises(RunFailedError, match="has no place for the comparison"):
        with_comparison("# Messages\n", [])


def test_a_broken_promise_is_named_and_a_cost_that_is_stated_is_none() -> None:
    cells = {"killed after saved": Cell(messages=8, lost=0, repeated=1)}
    assert broken_promises("saved", cells) == ["killed after saved: 1 of 8 messages repeated"]
    assert broken_promises("polling", cells) == []
    assert broken_promises("table", cells) == broken_promises("saved", cells)
    early = {"killed after kafka_committed": Cell(messages=8, lost=0, repeated=0, early=2)}
    assert broken_promises("prepared", early) == []
    assert broken_promises("captured", early) != []
    ghosts = {"killed after kafka_committed": Cell(messages=8, lost=0, repeated=0, ghosts=2)}
    assert broken_promises("prepared", ghosts) != []
    assert broken_promises("chained-kafka-first", ghosts) == []


def test_faults_strike_on_both_sides_of_the_first_commit() -> None:
    assert around_first_commit(list(WAYS["saved"].deaths)) == ("saved", "database_committed")
    assert around_first_commit(list(WAYS["prepared"].deaths)) == ("prepared", "kafka_committed")


def result(scenario: str, way: str, details: dict[str, object]) -> Result:
    made = Result(
        scenario=scenario,
        version=1,
        parameters={"way": way},
        value=1.0,
        unit="",
        at="2026-11-21T14:00:00+00:00",
        commit="0123456789ab",
        is_dirty=False,
        machine={"cores": 2, "memory_gib": 24, "system": "Linux", "python": "3.11.7"},
        versions={},
        details=details,
    )
    json.dumps(made.details)
    return made
