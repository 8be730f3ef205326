"""Rows of snapshots that wait for commits, or are shown between them."""

from slackwater_lab.debezium.fed_source import SECOND, FedSource, blocking_row, end, row, snapshot_row, xids
from slackwater_lab.debezium.records import snapshot_notifications

A = "s.inv.a"


# --- rows of incremental snapshots


def test_rows_of_an_incremental_snapshot_become_visible_without_a_commit() -> None:
    source = FedSource().at_a_cut()
    assert not source.frontier.has_moved

    source.row("a/0", snapshot_row(0, mark="incremental"))
    (cut,) = source.cuts()

    assert (cut.previous_lsn, cut.lsn, cut.transactions) == (556, 557, ())
    assert cut.end_offsets[A] == (2, 1)
    assert not source.frontier.has_moved


def test_they_ride_with_the_next_commit_when_there_is_one() -> None:
    source = FedSource().at_a_cut()
    source.row("a/0", snapshot_row(0, mark="incremental"), row(6, 1))
    source.tell(end(6, a=1))

    (cut,) = source.cuts()
    assert (cut.lsn, cut.end_offsets[A]) == (656, (3, 1))
    assert not source.frontier.has_moved


def test_between_two_commits_there_are_only_so_many_lsns() -> None:
    source = FedSource().at_a_cut()
    lsns = []
    for key in range(12):
        source.row("a/0", snapshot_row(0, key, mark="incremental"))
        lsns += [cut.lsn for cut in source.cuts()]

    assert lsns == [557, 558, 559]


def test_the_cut_that_shows_them_says_so_though_an_earlier_one_came_after_they_were_read() -> None:
    source = FedSource().at_a_cut()
    source.row("a/0", row(7, 1), snapshot_row(0, mark="incremental"))
    source.tell(end(6))
    (before,) = source.cuts()
    source.tell(end(7, a=1))
    (shown,) = source.cuts()

    assert (before.lsn, before.end_offsets[A][0], before.has_incremental_rows) == (656, 1, False)
    assert (shown.lsn, shown.end_offsets[A][0], shown.has_incremental_rows) == (756, 3, True)
    assert not source.frontier.has_moved


# --- late rows: ad hoc snapshots that block the stream, initial ones that were repeated


def test_no_cut_ends_between_late_rows_and_a_commit_that_is_newer_than_they_are() -> None:
    source = FedSource().at_a_cut()
    source.row("a/0", blocking_row(1, read_at=9 * SECOND), row(6, 1), row(7, 1))
    source.tell(end(6, a=1, ts_ms=8 * SECOND))
    assert source.cuts() == []

    source.tell(end(7, a=1, ts_ms=60 * SECOND))
    (cut,) = source.cuts()

    assert xids([cut]) == [[6, 7]]
    assert cut.late_snapshots == (601,)
    assert cut.end_offsets[A] == (4, 1)


def test_commits_before_late_rows_pass_at_once() -> None:
    source = FedSource().at_a_cut()
    source.row("a/0", row(6, 1), blocking_row(1, read_at=9 * SECOND))
    source.tell(end(6, a=1, ts_ms=8 * SECOND))

    (cut,) = source.cuts()

    assert (cut.lsn, cut.end_offsets[A], cut.late_snapshots) == (656, (2, 1), ())


def test_a_transaction_around_late_rows_passes_as_a_whole() -> None:
    source = FedSource().at_a_cut()
    source.row("a/0", row(6, 1), blocking_row(1, read_at=9 * SECOND), row(6, 2))
    source.tell(end(6, a=2, ts_ms=8 * SECOND))
    assert source.cuts() == []

    source.row("a/0", row(7, 1))
    source.tell(end(7, a=1, ts_ms=60 * SECOND))
    (cut,) = source.cuts()
    assert cut.end_offsets[A] == (5, 1)


def test_late_rows_are_named_while_they_wait_and_shown_when_the_source_is_at_rest() -> None:
    source = FedSource().at_a_cut()
    source.row("a/0", blocking_row(1, read_at=9 * SECOND))
    assert source.cuts() == []
    (waiting,) = source.frontier.open_transactions()
    assert "wait for a commit" in waiting.hint

    source.frontier.rest(source.readable())
    (cut,) = source.cuts()
    assert (cut.lsn, cut.late_snapshots, cut.end_offsets[A]) == (557, (601,), (2, 1))
    assert source.frontier.open_transactions() == []


def test_a_repeated_initial_snapshot_is_shown_with_a_commit_that_is_newer() -> None:
    source = FedSource()
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=4 * SECOND))
    source.row("a/0", snapshot_row(400, ts_ms=2 * SECOND))
    source.row("a/0", snapshot_row(480, mark="last", ts_ms=4 * SECOND))
    source.row("a/0", row(5, 1), row(6, 1))
    source.tell(end(5, a=1, ts_ms=4 * SECOND))
    assert source.cuts() == []

    source.tell(end(6, a=1, ts_ms=60 * SECOND))
    (cut,) = source.cuts()
    assert (cut.lsn, cut.late_snapshots) == (656, (480,))
    assert xids([cut]) == [[5, 6]]


def test_rest_is_over_with_the_next_record() -> None:
    source = FedSource().at_a_cut()
    source.frontier.rest(source.readable())
    source.row("a/0", blocking_row(1, read_at=9 * SECOND))

    assert source.cuts() == []
