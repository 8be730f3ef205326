"""The suites: a sample in the unit lane, the small ones in the full lane, all of them in ``make suites``."""

import pytest

from slackwater_lab.differential.check import Verdict
from slackwater_lab.differential.engines import FAULTS
from slackwater_lab.suites.run import judge
from slackwater_lab.suites.suite import queries


@pytest.mark.parametrize(
    ("suite", "name"), [("tpch", "q06"), ("tpch", "q14"), ("tpcds", "q48"), ("nexmark", "q04")]
)
def test_a_query_is_right_at_every_commit(suite: str, name: str) -> None:
    (query,) = queries(suite, [name])

    judged, checked = judge(query, commits=8)

    assert (judged.verdict, judged.problem) == (Verdict.RIGHT, "")
    assert judged.filled > 0
    assert judged.cpu_ms > 0
    assert checked.counts["states"] == 8


def test_a_planted_fault_is_noticed() -> None:
    (query,) = queries("tpch", ["q06"])

    with FAULTS["weights-wrong"].plant():
        judged, _ = judge(query)

    assert judged.verdict is Verdict.WRONG


@pytest.mark.full
@pytest.mark.parametrize("suite", ["tpch", "nexmark"])
def test_no_query_of_a_small_suite_is_planned_and_wrong(suite: str) -> None:
    found = [judge(query)[0] for query in queries(suite)]

    assert [each for each in found if each.verdict not in {Verdict.RIGHT, Verdict.REFUSED}] == []


@pytest.mark.parametrize(("suite", "count"), [("tpch", 22), ("tpcds", 99), ("nexmark", 30)])
def test_every_table_that_a_query_reads_has_values_in_all_columns(suite: str, count: int) -> None:
    found = list(queries(suite))

    assert len(found) == count
    assert all(column.type.values for query in found for table in query.tables for column in table.columns)
