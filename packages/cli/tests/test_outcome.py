"""The verdict of a run, and how it is shown."""

import json
from collections import Counter
from typing import Any

import pytest

from slackwater.demo.findings import Findings, Kind
from slackwater.demo.lag import LagSummary
from slackwater.demo.outcome import Outcome


def outcome(**changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "seed": 1,
        "seconds": 10.0,
        "writes": Counter({"committed": 900, "rolled back": 30, "retries": 2}),
        "source_transactions": 900,
        "events": 20_000,
        "commits": 40,
        "documents": 5_000,
        "tombstones": 100,
        "orders": 700,
        "lag": LagSummary(900, 300, 800, 900),
        "naive_published": 4_000,
        "naive_torn": 1_000,
    }
    return Outcome(**(values | changes))


def table(result: Outcome) -> dict[str, str]:
    return dict(result.rows())


def test_a_run_without_findings_has_passed() -> None:
    assert outcome().has_passed
    assert table(outcome())["result"] == "passed"


@pytest.mark.parametrize("kind", list(Kind))
def test_a_single_finding_of_any_kind_fails_the_run_and_shows_in_the_table(kind: Kind) -> None:
    findings = Findings()
    findings.add(kind, "somewhere")
    failed = outcome(findings=findings)
    assert not failed.has_passed
    assert kind in table(failed)["result"]
    parts = [table(failed)[part] for part in ("(a) torn documents", "(b) final state", "G1 prefix states")]
    assert sum(part.startswith("1 ") for part in parts) == 1


@pytest.mark.parametrize(
    "nothing", [{"documents": 0}, {"commits": 0}, {"source_transactions": 0}, {"orders": 0}, {"lag": None}]
)
def test_a_run_that_measured_nothing_fails(nothing: dict[str, Any]) -> None:
    assert not outcome(**nothing).has_passed
    assert "nothing was measured" in table(outcome(**nothing))["result"]


def test_torn_documents_of_the_reader_without_slackwater_do_not_fail_the_run() -> None:
    assert table(outcome())["(c) without Slackwater"] == "1,000 of 4,000 documents torn (25.0 %)"


def test_the_numbers_can_be_written_as_json() -> None:
    findings = Findings()
    findings.add(Kind.TORN, "order 7")
    numbers = json.loads(json.dumps(outcome(findings=findings).as_json()))
    assert numbers["passed"] is False
    assert numbers["findings"] == {"torn document": 1}
    assert numbers["examples"] == {"torn document": ["order 7"]}
    assert numbers["lag"]["p99_ms"] == 800
