"""Conditions of the evidence for transactions that were told again, each where leaving it out shows."""

from uuid import UUID

import pytest

from slackwater_cdc.testing import begin_value
from slackwater_cdc.testing.fed_source import FedSource, end, row, xids


@pytest.fixture
def source() -> FedSource:
    return FedSource()


def run_id(started_ms: int) -> str:
    """As connectors name their runs: a UUID of version 7."""
    return str(UUID(int=started_ms << 80 | 7 << 76 | 2 << 62))


R1, R2, R3, R4 = (run_id(ms) for ms in (1, 9, 12, 18))


def begun_again(source: FedSource, *, ms: int = 10) -> None:
    """Run 1 writes row 1 and dies; the next one begins again."""
    source.tell(begin_value(7, 701), ms=1)
    source.row("a/0", row(7, 1), run=R1, ms=1)
    source.tell(begin_value(7, 701), ms=ms)


# --- runs that go on with the numbers


def test_runs_that_go_on_with_the_numbers_complete_a_transaction_together(source: FedSource) -> None:
    begun_again(source)
    source.row("a/0", row(7, 1), run=R2, ms=11)
    source.tell(end(7, a=2), ms=14)
    assert source.cuts() == []

    source.row("a/1", row(7, 2), run=R3, ms=13)
    assert xids(source.cuts()) == [[7]]


def test_runs_that_go_on_with_the_numbers_complete_every_table(source: FedSource) -> None:
    begun_again(source)
    source.row("a/0", row(7, 1), run=R2, ms=11)
    source.row("a/1", row(7, 2), run=R3, ms=13)
    source.tell(end(7, a=2, b=1), ms=14)
    assert source.cuts() == []

    source.row("b/0", row(7, table="b"), run=R3, ms=13)
    assert xids(source.cuts()) == [[7]]


@pytest.mark.parametrize(("begun_ms", "run"), [(0, R1), (10, R1), (10, "run 1"), (10, R4), (10, "run 4")])
def test_a_run_that_may_be_of_another_numbering_completes_none(
    source: FedSource, begun_ms: int, run: str
) -> None:
    """Run 2 loses row 1; run 4 begins after the last END, with other numbers."""
    begun_again(source, ms=begun_ms)
    source.row("a/1", row(7, 2), run=R2, ms=11)
    source.tell(end(7, a=2), ms=14)
    source.row("a/0", row(7, 1), run=run, ms=1 if run in (R1, "run 1") else 20)

    assert source.cuts() == []


# --- overtaken


def test_a_table_whose_topic_is_not_known_is_not_overtaken(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=1, new=1), begin_value(7, 701), end(8, a=2))
    source.row("a/0", row(7), row(8))
    source.row("a/1", row(8, 2))

    assert source.cuts() == []
    assert source.frontier.missing_tables() == ["inv.new"]


@pytest.mark.parametrize(
    ("run", "end_ms", "last_end_ms", "passes"),
    [("r2", 2, 2, True), ("r2", 2, 20, True), ("", 2, 2, False), ("r2", 0, 0, False), ("r2", 2, 21, False)],
)
def test_without_keys_one_known_run_overtakes_that_is_not_older_than_the_last_end(
    source: FedSource, run: str, end_ms: int, last_end_ms: int, passes: bool
) -> None:
    source.tell(begin_value(7, 701), end(7, a=3), ms=end_ms)
    source.row("a/0", row(7), keyless=True, ms=1)
    source.tell(begin_value(7, 701), end(7, a=3), ms=last_end_ms)
    source.tell(end(8, a=2), ms=30)
    source.row("a/0", row(8), run=run, keyless=True, ms=20)
    source.row("a/1", row(8, 2), run=run, keyless=True, ms=20)

    assert xids(source.cuts()) == ([[7, 8]] if passes else [])
