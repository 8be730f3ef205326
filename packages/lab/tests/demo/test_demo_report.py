"""The verdict of a run, and how it is shown."""

import json
from typing import Any

import pytest

from slackwater_certify import Certificate, Delays, Mode
from slackwater_lab.database.writers import WriterCounts
from slackwater_lab.demo.consumer import Consumed, ConsumerReport
from slackwater_lab.demo.verdict import DemoReport

COUNTS = (
    "torn", "wrong_lsn", "order_violations", "lost", "repeated", "uncovered", "inconsistent_states",
    "final_differences", "history_differences", "invariant_violations",
)  # fmt: skip


def certificate(**changes: Any) -> Certificate:
    values: dict[str, Any] = dict.fromkeys(COUNTS, 0) | {
        "output": "topic orders",
        "mode": Mode.BOTH,
        "clock": "arrival at a reader",
        "outputs": 5_100,
        "deletes": 100,
        "documents": 700,
        "commits": 40,
        "snapshots": 0,
        "transactions": 900,
        "events": 20_000,
        "largest_error": 0.0,
        "longest_wrong_seconds": 0.0,
        "delay_ms": Delays(900, 300, 500, 800, 900),
        "timeline": (),
        "examples": {},
    }
    return Certificate(**(values | changes))


def consumed(*, changes: Consumed | None = None, output: Consumed | None = None) -> ConsumerReport:
    return ConsumerReport(
        changes or Consumed(transactions=900, records=20_000),
        output or Consumed(transactions=38, records=5_100),
    )


def report(**changes: Any) -> DemoReport:
    values: dict[str, Any] = {
        "seed": 1,
        "seconds": 10.0,
        "writes": WriterCounts(committed=900, rolled_back=30, retried=2, changes=9_000),
        "orders": 700,
        "naive_published": 4_000,
        "naive_torn": 1_000,
        "consumed": consumed(),
        "commit_records": 38,
        "certificate": certificate(),
    }
    return DemoReport(**(values | changes))


def table(result: DemoReport) -> dict[str, str]:
    return dict(result.rows())


def test_a_run_without_findings_has_passed() -> None:
    assert report().has_passed
    assert table(report())["result"] == "passed"
    assert table(report())["published"] == "5,000 documents, 100 deletes, 40 commits"
    assert table(report())["commit to visible"] == "p50 300 ms, p99 800 ms, max 900 ms (900 transactions)"


@pytest.mark.parametrize("name", COUNTS)
def test_a_single_finding_of_any_kind_fails_the_run_and_shows_in_the_table(name: str) -> None:
    failed = report(certificate=certificate(**{name: 1, "examples": {"a kind": ["somewhere"]}}))
    assert not failed.has_passed
    assert failed.certificate.examples == {"a kind": ["somewhere"]}
    assert table(failed)["result"] == "FAILED: a kind"
    parts = [table(failed)[part] for part in ("(a) torn documents", "(b) final state", "G1 prefix states")]
    assert sum(part.startswith("1 ") for part in parts) == 1


@pytest.mark.parametrize(
    "nothing",
    [
        {"orders": 0},
        {"certificate": certificate(outputs=100)},
        {"certificate": certificate(commits=0)},
        {"certificate": certificate(transactions=0)},
        {"certificate": certificate(delay_ms=None)},
        {"certificate": certificate(events=0), "consumed": consumed(changes=Consumed())},
    ],
)
def test_a_run_that_measured_nothing_fails(nothing: dict[str, Any]) -> None:
    assert not report(**nothing).has_passed
    assert "nothing was measured" in table(report(**nothing))["result"]


def test_torn_documents_of_the_reader_without_slackwater_do_not_fail_the_run() -> None:
    assert table(report())["(c) without Slackwater"] == "1,000 of 4,000 documents torn (25.0 %)"


def test_a_consumer_that_was_given_everything_is_in_the_verdict() -> None:
    view = table(report())["(d) a consumer's view"]
    assert view == "900 transactions, 38 commits read whole by another process, 0 broken or missing"


@pytest.mark.parametrize(
    "wrong",
    [
        {"changes": Consumed(transactions=900, records=20_000, broken=2)},
        {"changes": Consumed(transactions=900, records=20_000, disordered=2)},
        {"changes": Consumed(transactions=898, records=20_000)},
        {"changes": Consumed(transactions=900, records=20_002)},
        {"output": Consumed(transactions=40, records=5_100)},
        {"output": Consumed(transactions=38, records=5_098)},
        {"output": Consumed(transactions=38, records=5_100, broken=2)},
        {"output": Consumed(transactions=38, records=5_100, disordered=2)},
    ],
)
def test_a_consumer_that_was_given_anything_else_fails_the_run(wrong: dict[str, Consumed]) -> None:
    failed = report(consumed=consumed(**wrong))
    assert not failed.has_passed
    assert failed.consumed_wrong == 2
    assert table(failed)["(d) a consumer's view"].endswith("2 broken or missing")
    assert table(failed)["result"] == "FAILED: 2 differences in a consumer's view"


def test_the_numbers_can_be_written_as_json() -> None:
    failed = report(certificate=certificate(torn=1, examples={"torn": ["order 7"]}))
    numbers = json.loads(json.dumps(failed.as_json()))
    assert numbers["passed"] is False
    assert numbers["certificate"]["torn"] == 1
    assert numbers["certificate"]["examples"] == {"torn": ["order 7"]}
    assert numbers["certificate"]["delay_ms"]["p99"] == 800
