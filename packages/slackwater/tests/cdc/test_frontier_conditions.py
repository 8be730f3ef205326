"""Conditions of the frontier, each where leaving it out shows."""

from dataclasses import replace
from functools import partial

import pytest

from slackwater.cdc import Frontier, commits
from slackwater.cdc.commits import DoneTransactions
from slackwater.protocol import CommittedTransaction, Evidence
from slackwater_lab.debezium.fed_source import SECOND, FedSource, blocking_row, end, row, snapshot_row, xids
from slackwater_lab.debezium.records import begin_value, snapshot_notifications


@pytest.fixture
def source() -> FedSource:
    return FedSource()


@pytest.fixture
def at_a_cut(source: FedSource) -> FedSource:
    """A source that has published transaction 5."""
    return source.at_a_cut()


# --- evidence


def test_an_end_after_a_second_begin_may_name_too_few_tables_with_other_evidence() -> None:
    source = FedSource({"inv.b": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), begin_value(5, 501), end(5))
    source.row("b/0", row(5, table="b"))
    assert source.cuts() == [], "a row of table b may come yet"

    source.tell(begin_value(6, 601), end(6, b=2))
    source.row("b/0", row(6, 1, table="b"))
    source.row("b/1", row(6, 2, table="b"))
    source.tell(begin_value(7, 701), end(7, b=2, a=1))
    source.row("a/0", row(7))
    source.row("a/1", row(7, 2))
    assert xids(source.cuts())[0][0] == 5


def test_an_end_after_a_single_begin_names_all_its_tables() -> None:
    source = FedSource({"inv.b": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=1))
    source.row("a/0", row(5))

    assert xids(source.cuts()) == [[5]]


def test_what_is_read_behind_lsns_that_went_back_overtakes_nothing() -> None:
    source = FedSource({"inv.b": Evidence.OVERTAKEN}).at_a_cut()
    source.tell(end(6, b=2))
    source.row("b/0", row(6, table="b"))
    source.tell(end(9, lsn=608, a=1), end(10, b=2))
    source.row("b/0", row(10, table="b"))
    source.row("b/1", row(10, 2, table="b"))

    assert source.frontier.regression is not None
    assert source.cuts() == []


def test_a_table_of_which_end_counts_no_changes_is_not_waited_for() -> None:
    source = FedSource({"inv.b": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=1, b=0))
    source.row("a/0", row(5))

    assert xids(source.cuts()) == [[5]]


def test_a_table_with_other_evidence_that_has_no_topic_is_not_waited_for_after_a_second_begin() -> None:
    source = FedSource({"inv.zzz": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), begin_value(5, 501), end(5))

    assert [cut.lsn for cut in source.cuts()] == [556]


def test_offsets_are_waited_for_in_every_partition_of_a_table() -> None:
    source = FedSource({"inv.a": Evidence.OFFSETS})
    source.row("a/0", row(5))
    source.row("a/1", row(5, 2))
    source.tell(begin_value(5, 501), end(5, a=2))
    assert xids(source.cuts()) == [[5]]

    source.ends = {("s.inv.a", 1): 4}
    source.tell(begin_value(6, 601), end(6, a=7))
    source.row("a/0", row(6))
    assert source.cuts() == []

    source.parts["a/1"].skip_to(4)
    assert xids(source.cuts()) == [[6]]


def test_a_transaction_told_again_is_complete_by_what_its_last_end_counts(source: FedSource) -> None:
    """Run 1 loses row 3 of three; run 2 begins again with row 2 as number 1, and counts 2 in END."""
    source.tell(begin_value(7, 701), end(7, a=3), ms=1)
    source.row("a/0", row(7, 1), ms=1)
    source.row("a/1", row(7, 2), ms=1)
    source.tell(begin_value(7, 701), ms=5)
    source.row("a/1", row(7, 1), run="r2", ms=6)
    source.row("a/0", row(7, 2), run="r2", ms=6)
    assert source.cuts() == []

    source.tell(end(7, a=2), ms=7)
    assert xids(source.cuts()) == [[7]]


# --- what is reported once


def test_what_was_skipped_and_repeated_is_told_by_one_cut_only(at_a_cut: FedSource) -> None:
    at_a_cut.tell(begin_value(6, 601), end(6, a=3))
    at_a_cut.row("a/0", row(6), row(6))
    at_a_cut.frontier.skip_to(656)
    (skipping,) = at_a_cut.cuts()
    assert skipping.skipped == (6,)
    assert skipping.repeated == {656}

    at_a_cut.tell(end(7, a=1))
    at_a_cut.row("a/0", row(7))
    (cut,) = at_a_cut.cuts()
    assert (cut.skipped, cut.repeated, xids([cut])) == ((), frozenset(), [[7]])
    assert (cut.previous_lsn, cut.lsn) == (656, 756)


def test_a_decision_to_skip_is_not_taken_back_by_a_lower_one(at_a_cut: FedSource) -> None:
    at_a_cut.frontier.skip_to(656)
    at_a_cut.frontier.skip_to(600)
    at_a_cut.tell(begin_value(6, 601), end(6, a=3))

    assert [cut.skipped for cut in at_a_cut.cuts()] == [(6,)]


def test_no_decision_to_skip_passes_a_commit_that_may_be_of_a_new_timeline(at_a_cut: FedSource) -> None:
    at_a_cut.tell(end(7, a=1, ts_ms=60 * SECOND))
    at_a_cut.row("a/0", row(7))
    at_a_cut.row("b/0", snapshot_row(24, table="b", ts_ms=50 * SECOND))
    at_a_cut.frontier.skip_to(10_000)

    assert at_a_cut.frontier.regression is not None
    assert at_a_cut.cuts() == []


def test_a_transaction_of_which_end_counts_nothing_is_listed_if_rows_of_it_were_read(
    source: FedSource,
) -> None:
    source.tell(begin_value(7, 701), begin_value(7, 701), end(7))
    source.row("a/0", row(7))
    source.tell(end(8))

    (cut,) = source.cuts()
    assert cut.transactions == (CommittedTransaction(7, 756, 0),)


def test_an_unfinished_transaction_that_is_given_up_with_another_is_named(at_a_cut: FedSource) -> None:
    at_a_cut.row("a/0", row(6), row(7))
    at_a_cut.tell(end(7, a=2))
    at_a_cut.frontier.skip_to(756)

    assert [cut.skipped for cut in at_a_cut.cuts()] == [(6, 7)]


# --- continuing from a cut


def test_a_frontier_that_goes_on_needs_no_end_offsets_for_its_first_transaction(source: FedSource) -> None:
    source.tell(begin_value(5, 501), end(5, a=1))
    source.row("a/0", row(5))
    (cut,) = source.cuts()
    going_on = FedSource(start=cut)
    going_on.tell(end(6, a=1))
    going_on.row("a/0", row(6))

    going_on.frontier.advance()
    assert (going_on.frontier.lsn, going_on.frontier.end_offsets_wanted) == (656, False)


def test_the_first_transaction_waits_until_notifications_were_read(source: FedSource) -> None:
    told = snapshot_notifications({"inv.a": 0, "inv.b": 0})
    source.ends = {("s.notifications", 0): len(told) + 1}
    source.tell(end(7, a=1))
    source.row("a/0", row(7))
    source.notify(*told)
    assert source.cuts() == []

    source.frontier.skip_notifications_to(len(told) + 1)
    source.frontier.skip_notifications_to(1)
    assert xids(source.cuts()) == [[7]]


def test_a_notification_topic_that_says_nothing_is_waited_for_by_name() -> None:
    source = FedSource(complete_tables=frozenset())
    source.ends = {("s.notifications", 0): 3}
    source.tell(end(7, a=1))
    source.row("a/0", row(7))
    source.frontier.skip_notifications_to(3)

    assert source.cuts() == source.at_rest() == []
    assert "contains no readable notification of a snapshot" in source.frontier.missing_snapshot


def test_rows_behind_the_end_of_an_earlier_commit_are_repeats_of_it(at_a_cut: FedSource) -> None:
    """The commit is older than those that are remembered."""
    at_a_cut.tell(end(7, a=1))
    at_a_cut.row("a/0", row(7))
    (cut,) = at_a_cut.cuts()
    going_on = FedSource(start=cut)

    going_on.tell(end(6, a=1), end(8, a=1))
    going_on.row("a/0", row(6), row(8), run="r2")

    (cut,) = going_on.cuts()
    assert (xids([cut]), cut.repeated) == ([[8]], frozenset({656}))
    assert going_on.frontier.open_transactions() == []


# --- markers ahead of the frontier


def test_markers_wait_for_the_cuts_that_can_be_made(at_a_cut: FedSource) -> None:
    for xid in (6, 7, 8, 9):
        at_a_cut.tell(end(xid, a=2 if xid == 7 else 1))
        at_a_cut.row("a/0", row(xid))
    at_a_cut.frontier.advance()
    assert at_a_cut.frontier.markers_ahead() is None

    assert xids(at_a_cut.cuts()) == [[6]]
    assert at_a_cut.frontier.markers_ahead() is not None


def test_no_markers_run_ahead_before_the_first_cut(source: FedSource) -> None:
    for xid in (6, 7, 8):
        source.tell(end(xid, a=2 if xid == 6 else 1))
        source.row("a/0", row(xid))
    assert source.cuts() == []

    assert source.frontier.markers_ahead() is None


def test_no_markers_run_past_a_transaction_record_that_cannot_be_read(at_a_cut: FedSource) -> None:
    at_a_cut.tell(b"{", end(6, a=1), end(7, a=1), end(8, a=1))
    at_a_cut.row("a/0", row(6), row(7), row(8))
    assert at_a_cut.cuts() == []

    assert at_a_cut.frontier.markers_ahead() is None


def test_repeats_of_published_transactions_are_named_beside_the_markers(at_a_cut: FedSource) -> None:
    at_a_cut.row("a/0", row(5))
    for xid in (6, 7, 8):
        at_a_cut.tell(end(xid, a=2 if xid == 6 else 1))
        at_a_cut.row("a/0", row(xid))

    ahead = at_a_cut.frontier.markers_ahead()
    assert ahead is not None
    assert ahead.repeated == {556}


def test_a_partition_that_saw_one_transaction_above_the_cut_is_not_ahead(at_a_cut: FedSource) -> None:
    at_a_cut.tell(end(6, a=2))
    at_a_cut.row("a/0", row(6))

    assert at_a_cut.frontier.markers_ahead() is None


def test_no_markers_run_past_a_snapshot_that_waits(at_a_cut: FedSource) -> None:
    for xid in (6, 7, 8):
        at_a_cut.tell(end(xid, a=2 if xid == 6 else 1))
        at_a_cut.row("a/0", row(xid))
    at_a_cut.row("b/0", snapshot_row(900, table="b"))

    assert at_a_cut.frontier.markers_ahead() is None


def test_no_markers_run_ahead_of_late_rows_that_the_next_cut_shows(at_a_cut: FedSource) -> None:
    at_a_cut.row("b/0", blocking_row(1, read_at=0))
    at_a_cut.frontier.rest(at_a_cut.readable())
    for xid in (6, 7, 8):
        at_a_cut.tell(end(xid, a=2 if xid == 6 else 1))
        at_a_cut.row("a/0", row(xid))
    assert at_a_cut.frontier.markers_ahead() is None

    assert [cut.late_snapshots for cut in at_a_cut.frontier.cuts()] == [(601,)]
    assert at_a_cut.frontier.markers_ahead() is not None


def test_an_end_of_a_waiting_transaction_at_another_lsn_is_of_another_transaction(source: FedSource) -> None:
    """A database that took over continues from an earlier LSN, with numbers of transactions used before."""
    source.tell(end(7, a=2))
    source.row("a/0", row(7))
    assert source.cuts() == []

    source.tell(end(7, lsn=716, a=1))

    regression = source.frontier.regression
    assert regression is not None
    assert (regression.xid, regression.commit_lsn, regression.transaction_offset) == (7, 716, 1)


# --- the rest


def test_a_frontier_goes_on_in_the_timeline_of_its_cut(source: FedSource) -> None:
    source.tell(end(5))
    (cut,) = source.cuts()
    going_on = FedSource(start=replace(cut, timeline=3))
    going_on.tell(end(6))

    assert [cut.timeline for cut in going_on.cuts()] == [3]


def test_a_begin_of_a_published_transaction_opens_nothing(at_a_cut: FedSource) -> None:
    at_a_cut.tell(begin_value(5, 501))

    assert at_a_cut.frontier.open_transactions() == []


def test_a_record_without_an_operation_is_no_sign_of_a_missing_setting(source: FedSource) -> None:
    source.row("a/0", b"{}")

    (obstacle,) = source.frontier.obstacles
    assert "it has no 'op'" in obstacle.detail
    assert not obstacle.is_misconfiguration


def test_so_many_unreadable_records_are_listed_and_no_more(source: FedSource) -> None:
    source.row("a/0", *[b"garbage"] * 101)

    assert len(source.frontier.obstacles) == 100


def test_rows_of_tables_that_are_not_followed_open_no_transaction() -> None:
    source = FedSource(tables=frozenset({"inv.a"}))
    source.row("b/0", row(9, table="b"))

    assert source.frontier.open_transactions() == []


def test_end_offsets_stand_in_the_order_of_partitions_however_they_were_found() -> None:
    found = Frontier("s", complete_tables=frozenset({"inv.a"}))
    for number, start in ((1, 5), (0, 3)):
        found.add_partition("s.inv.a", number, start)
    found.read_transactions([(0, end(5), 0)])
    found.advance()
    found.end_offsets({})
    found.advance()

    assert [cut.end_offsets for cut in found.cuts()] == [{"s.inv.a": (3, 5)}]


def test_rows_that_are_given_up_are_named_as_repeated_for_whoever_reads_them(at_a_cut: FedSource) -> None:
    at_a_cut.row("a/0", row(6), row(7))
    at_a_cut.tell(end(7, a=1))
    at_a_cut.frontier.skip_to(756)

    assert [cut.repeated for cut in at_a_cut.cuts()] == [{756}]


def test_a_table_is_not_missing_whose_rows_were_read_in_another_topic(at_a_cut: FedSource) -> None:
    at_a_cut.row("a/0", row(6, table="c"))
    at_a_cut.tell(end(6, c=1))

    assert at_a_cut.frontier.missing_tables() == []
    assert xids(at_a_cut.cuts()) == [[6]]


def test_published_transactions_are_remembered_for_at_least_a_window() -> None:
    done = DoneTransactions(window=2)
    for xid in range(1, 6):
        done.add(xid, 10 * xid)

    assert [done.get(xid) for xid in range(1, 6)] == [None, None, 30, 40, 50]
    assert done.known_from_lsn == 20


@pytest.mark.parametrize(
    ("lsn", "is_regression"), [(556, False), (656, False), (664, True), (756, False), (848, True)]
)
def test_an_end_that_may_have_been_forgotten_is_no_sign_of_lsns_that_went_back(
    monkeypatch: pytest.MonkeyPatch, lsn: int, *, is_regression: bool
) -> None:
    """Of five transactions the newest three are remembered."""
    monkeypatch.setattr(commits, "DoneTransactions", partial(DoneTransactions, window=2))
    source = FedSource()
    source.tell(*(end(xid) for xid in range(5, 10)))
    assert [cut.lsn for cut in source.cuts()] == [956]

    source.tell(end(lsn // 100, lsn=lsn))
    assert (source.frontier.regression is not None) is is_regression
