"""Conditions of the evidence for transactions that were written again, each shown by leaving it out."""

from uuid import UUID

import pytest

from slackwater.cdc import completeness
from slackwater.cdc.partition import parse_rows
from slackwater.protocol import Evidence
from slackwater_lab.debezium.fed_source import FedSource, end, row, xids
from slackwater_lab.debezium.records import begin_value, change_value, end_value


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


def test_rows_without_keys_of_two_runs_may_be_of_two_numberings(source: FedSource) -> None:
    """The BEGIN of the second run is read later."""
    source.tell(begin_value(7, 701), end(7, a=3))
    source.row("a/0", row(7, 1), row(7, 3), keyless=True)
    source.row("a/1", row(7, 2), run="r2", keyless=True)

    assert source.cuts() == []


def test_a_row_without_a_key_that_comes_again_may_be_another_one(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=2))
    source.row("a/0", row(7, 1), row(7, 1), run="", keyless=True)
    source.row("a/1", row(7, 2), run="", keyless=True)

    assert source.cuts() == []


def test_a_number_that_comes_again_in_another_partition_is_of_another_row(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=2))
    source.row("a/0", row(7, 1), run="")
    source.row("a/1", row(7, 1), row(7, 2), run="")

    assert source.cuts() == []


def test_a_number_above_the_counts_of_end_shows_a_second_numbering(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=2))
    source.row("a/0", row(7, 3), run="")
    source.row("a/1", row(7, 1), run="")
    assert source.cuts() == []

    source.row("a/1", row(7, 2), run="")
    assert source.cuts() == []


def test_a_row_behind_end_of_a_table_that_it_does_not_count_shows_a_second_numbering(
    source: FedSource,
) -> None:
    source.tell(begin_value(7, 701), end(7, a=1))
    source.row("b/0", row(7, table="b"), run="")
    assert source.cuts() == []

    source.row("a/0", row(7), run="")
    assert source.cuts() == []


def test_tables_of_the_same_name_are_numbered_apart(source: FedSource) -> None:
    other = change_value("other.a", "c", position=(7, 702), orders=(1, 2), after={"id": 1})
    source.tell(end_value(7, 756, {"inv.a": 1, "other.a": 1}))
    source.row("a/0", row(7), other)

    assert xids(source.cuts()) == [[7]]


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("is_parsed", [False, True])
def test_a_truncation_has_no_key(source: FedSource, *, is_parsed: bool, behind: bool) -> None:
    part, values = source.parts["a/0"], [row(7, op="t")]
    if behind:
        values = [row(7, 1), row(7, 2, op="t")]
    if is_parsed:
        part.read_parsed(parse_rows(enumerate(values)))
    else:
        part.read(enumerate(values))

    assert part.has_keyless_rows


def test_rows_without_keys_that_stand_behind_a_later_commit_pass_together_with_it(source: FedSource) -> None:
    source.tell(end(7, a=2), end(8, a=2))
    source.row("a/0", row(7, 1), row(8, 1), row(7, 2), keyless=True)
    assert source.cuts() == []

    source.row("a/1", row(8, 2), keyless=True)
    assert xids(source.cuts()) == [[7, 8]]


def test_a_truncation_that_first_stands_behind_a_later_commit_passes_together_with_it(
    source: FedSource,
) -> None:
    source.row("a/0", row(7, 1), row(8, 1), run="r1")
    source.tell(end(7, a=2), end(8, a=2))
    source.row("a/0", row(7, 1), row(7, 2, op="t"), run="r2")
    assert source.cuts() == []

    source.row("a/0", row(8, 1), run="r2")
    source.row("a/1", row(8, 2), run="r2")
    (cut,) = source.cuts()

    assert [t.xid for t in cut.transactions] == [7, 8]
    assert cut.end_offsets["s.inv.a"][0] == source.parts["a/0"].position


def test_repeats_behind_a_later_commit_do_not_hold_back_a_cut(source: FedSource) -> None:
    source.row("a/0", row(7, 1), row(7, 2), row(8, 1), run="r1")
    source.tell(end(7, a=2), end(8, a=2))
    source.row("a/0", row(7, 1), row(7, 2), run="r2", ms=9)

    assert xids(source.cuts()) == [[7]]
    assert not source.parts["a/0"].has_keyless_rows


# --- what is named as repeated


def test_a_transaction_whose_end_comes_again_is_named(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=2), end(7, a=2))
    source.row("a/0", row(7, 1), row(7, 2))

    assert [cut.repeated for cut in source.cuts()] == [{756}]


@pytest.mark.parametrize("end_comes_first", [False, True])
def test_a_transaction_of_which_two_runs_have_written_rows_is_complete_and_named(
    source: FedSource, *, end_comes_first: bool
) -> None:
    source.row("a/0", row(7, 1))
    if end_comes_first:
        source.tell(end(7, a=2))
    source.row("a/1", row(7, 2), run="r2")
    if not end_comes_first:
        source.tell(end(7, a=2))

    (cut,) = source.cuts()
    assert (xids([cut]), cut.repeated) == ([[7]], frozenset({756}))


def test_a_transaction_of_which_two_runs_have_written_rows_is_named_whatever_the_evidence() -> None:
    source = FedSource({"inv.b": Evidence.OVERTAKEN})
    source.tell(end(5, b=2), end(6, b=2))
    source.row("b/0", row(5, 1, table="b"))
    source.row("b/0", row(6, 1, table="b"), run="r2")
    source.row("b/1", row(5, 2, table="b"), row(6, 2, table="b"), run="r2")

    (cut,) = source.cuts()
    assert (xids([cut]), cut.repeated) == ([[5]], frozenset({556}))


# --- runs that continue the numbers


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


@pytest.mark.parametrize("begin_comes_first", [False, True])
def test_a_run_that_goes_on_with_the_numbers_behind_end_completes_a_transaction_that_began_once(
    source: FedSource, *, begin_comes_first: bool
) -> None:
    """Run 1 loses row 2, which has no key; run 3 writes it and END, but no BEGIN."""
    told = begin_value(7, 701), end(7, a=2)
    if begin_comes_first:
        source.tell(*told, ms=2)
    source.row("a/0", row(7, 1), run=R1, ms=2, keyless=True)
    if not begin_comes_first:
        source.tell(*told, ms=2)
    source.row("a/1", row(7, 2), run=R3, ms=13, keyless=True)
    assert source.cuts() == [], "run 3 may have begun to count again"

    source.tell(end(7, a=2), ms=14)
    assert xids(source.cuts()) == [[7]]


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


def test_what_is_readable_is_asked_for_again_when_end_comes_again(source: FedSource) -> None:
    begun_again(source)
    source.tell(end(7, a=2), ms=11)
    source.frontier.end_offsets(source.readable())
    source.tell(begin_value(7, 701), ms=12)
    source.row("a/1", row(7, 1), row(7, 2), run=R3, ms=13)
    source.tell(end(7, a=2), ms=14)
    source.ends = {("s.inv.a", 0): 2}
    assert source.cuts() == [], "a row of run 2 is still to be read"

    source.row("a/0", row(7, 1), run=R2, ms=11)
    assert xids(source.cuts()) == [[7]]


def test_what_a_run_wrote_before_does_not_make_it_older(source: FedSource) -> None:
    begun_again(source)
    source.row("a/1", row(7, 1), row(7, 2), run=R2, ms=11)
    source.row("b/0", row(6, table="b"), run=R2, ms=9)
    source.tell(end(6, b=1), end(7, a=2), ms=14)

    assert xids(source.cuts()) == [[6, 7]]


def test_what_was_read_is_never_taken_for_unread(source: FedSource) -> None:
    source.parts["a/0"].skip_to(4)
    source.parts["a/0"].skip_to(2)

    assert source.parts["a/0"].position == 4


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


def test_a_transaction_does_not_overtake_itself(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=3), begin_value(7, 701), ms=2)
    for spot, later in (("a/0", "r3"), ("a/1", "r4")):
        source.row(spot, row(7, 1 + int(spot[-1])), run="r2", keyless=True, ms=20)
        source.row(spot, row(8, 1 + int(spot[-1])), run=later, keyless=True, ms=20)
    source.tell(end(8, a=2), ms=30)

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
