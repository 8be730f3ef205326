"""Conditions of the evidence for transactions that were told again, each where leaving it out shows."""

from uuid import UUID

import pytest

from slackwater_cdc import completeness
from slackwater_cdc.testing import begin_value
from slackwater_cdc.testing.fed_source import FedSource, end, row, xids
from slackwater_protocol import Evidence


@pytest.fixture
def source() -> FedSource:
    return FedSource()


def run_id(started_ms: int, version: int = 7) -> str:
    """As connectors name their runs: a UUID, of version 7 with the time in front."""
    return str(UUID(int=started_ms << 80 | version << 76 | 2 << 62))


R1, R2, R3, R4 = (run_id(ms) for ms in (1, 9, 12, 18))
NO_TIME = run_id(12, version=4)


def begun_again(source: FedSource, *, ms: int = 10) -> None:
    """Run 1 writes row 1 and dies; the next one begins again."""
    source.tell(begin_value(7, 701), ms=1)
    source.row("a/0", row(7, 1), run=R1, ms=1)
    source.tell(begin_value(7, 701), ms=ms)


# --- several numberings


def test_rows_of_a_table_that_end_does_not_count_show_a_second_numbering(source: FedSource) -> None:
    source.tell(begin_value(7, 701))
    source.row("a/0", row(7), run="")
    source.row("b/0", row(7, table="b"), run="")
    source.tell(end(7, a=1))

    assert source.cuts() == []


@pytest.mark.parametrize("rows_come_first", [False, True])
def test_rows_without_keys_of_a_transaction_that_began_twice_may_be_of_two_numberings(
    source: FedSource, *, rows_come_first: bool
) -> None:
    """Run 1 loses row 2 of three; run 2 begins again with it as number 1, and row 3 as number 2 is read."""
    source.tell(begin_value(7, 701), end(7, a=3))
    if rows_come_first:
        source.row("a/0", row(7, 1), row(7, 3), run="", keyless=True)
    source.tell(begin_value(7, 701))
    if not rows_come_first:
        source.row("a/0", row(7, 1), row(7, 3), run="", keyless=True)
    source.row("a/1", row(7, 2), run="", keyless=True)

    assert source.cuts() == []


def test_a_transaction_that_began_twice_is_named_for_whoever_reads_its_rows(source: FedSource) -> None:
    source.tell(begin_value(7, 701), begin_value(7, 701), end(7, a=1), ms=1)
    source.row("a/0", row(7), ms=1)

    assert [cut.repeated for cut in source.cuts()] == [{756}]


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


def test_runs_that_wrote_more_than_end_counts_have_not_written_that_numbering(source: FedSource) -> None:
    begun_again(source)
    source.row("a/0", row(7, 1), row(7, 3), run=R2, ms=11)
    source.row("a/1", row(7, 2), run=R3, ms=13)
    source.tell(end(7, a=2), ms=14)

    assert source.cuts() == []


@pytest.mark.parametrize(
    ("begun_ms", "run"), [(0, R1), (10, R1), (10, "run 1"), (10, R4), (10, "run 4"), (10, NO_TIME)]
)
def test_a_run_that_may_be_of_another_numbering_completes_none(
    source: FedSource, begun_ms: int, run: str
) -> None:
    """Run 2 loses row 1; run 4 begins after the last END, with other numbers."""
    begun_again(source, ms=begun_ms)
    source.row("a/1", row(7, 2), run=R2, ms=11)
    source.tell(end(7, a=2), ms=14)
    source.row("a/0", row(7, 1), run=run, ms=1 if run in (R1, "run 1") else 20)

    assert source.cuts() == []


# --- end offsets


def test_what_was_written_after_it_was_asked_for_is_not_waited_for(source: FedSource) -> None:
    begun_again(source)
    source.row("a/1", row(7, 1), row(7, 2), run=R2, ms=11)
    source.tell(end(7, a=2), ms=14)
    source.ends = {("s.inv.a", 0): 2}
    assert source.cuts() == []
    source.frontier.end_offsets({**source.readable(), ("s.inv.a", 0): 9})

    source.row("a/0", row(8), run=R2, ms=15)
    assert xids(source.cuts()) == [[7]]


def test_so_many_answers_are_kept_that_partitions_were_not_read_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "_MAX_ASKS", 2)
    source = FedSource({"inv.b": Evidence.OFFSETS}).at_a_cut()
    source.ends = {("s.inv.b", 0): 9}
    wanted = []
    for xid in (6, 7, 8, 9):
        source.tell(end(xid, b=1))
        source.frontier.advance()
        wanted.append(source.frontier.end_offsets_wanted)
        if wanted[-1]:
            source.frontier.end_offsets(source.readable())
    assert wanted == [True, True, False, False]

    source.parts["b/0"].skip_to(9)
    assert xids(source.cuts()) == [[6, 7, 8, 9]]


# --- overtaken


def test_an_end_after_a_second_begin_may_name_too_few_tables_to_be_overtaken_in(source: FedSource) -> None:
    source.tell(begin_value(7, 701), begin_value(7, 701), end(7, a=1), end(8, a=2, b=2))
    source.row("a/0", row(7), row(8), run="")
    source.row("a/1", row(8, 2), run="")
    assert source.cuts() == [], "a row of table b may come yet"

    source.row("b/0", row(8, table="b"), run="")
    source.row("b/1", row(8, 2, table="b"), run="")
    assert xids(source.cuts()) == [[7, 8]]


def test_nothing_is_asked_for_a_transaction_that_is_not_overtaken_in_every_partition(
    source: FedSource,
) -> None:
    source.at_a_cut()
    source.tell(begin_value(7, 701), end(7, a=2), begin_value(7, 701), end(8, a=2))
    source.row("a/0", row(7), row(8), run="")
    source.frontier.advance()
    assert not source.frontier.end_offsets_wanted

    source.row("a/1", row(8, 2), run="")
    source.frontier.advance()
    assert source.frontier.end_offsets_wanted


def test_without_keys_one_run_overtakes_in_every_partition(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=3), begin_value(7, 701), ms=2)
    source.row("a/0", row(7), keyless=True, ms=1)
    source.tell(end(8, a=2), ms=30)
    source.row("a/0", row(8), run="r2", keyless=True, ms=20)
    source.row("a/1", row(8, 2), run="r3", keyless=True, ms=20)

    assert source.cuts() == []


def test_a_partition_found_after_the_overtaking_rows_were_read_may_hold_rows(source: FedSource) -> None:
    source.at_a_cut()
    source.tell(begin_value(7, 701), end(7, a=2), begin_value(7, 701), end(8, a=2))
    source.row("a/0", row(7), row(8), run="")
    source.row("a/1", row(8, 2), run="")
    source.frontier.advance()
    source.parts["a/2"] = source.frontier.add_partition("s.inv.a", 2, 0)

    assert source.cuts() == []


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
