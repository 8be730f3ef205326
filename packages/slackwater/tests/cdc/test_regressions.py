"""LSNs that go back, snapshots after commits, and what a new timeline begins with."""

import pytest

from slackwater.protocol import Cut
from slackwater_lab.debezium.fed_source import SECOND, FedSource, end, row, snapshot_row
from slackwater_lab.debezium.records import notification_value, snapshot_notifications


def test_commits_below_a_snapshot_after_commits_do_not_pass() -> None:
    source = FedSource().at_a_cut()
    source.row("a/0", snapshot_row(800, mark="first", ts_ms=60 * SECOND))
    assert source.cuts() == []

    source.tell(end(7, a=1))
    source.row("a/1", row(7, 1))
    assert source.cuts() == []


def test_no_decision_to_skip_passes_lsns_that_went_back() -> None:
    source = FedSource().at_a_cut()
    source.tell(end(7, a=1))
    source.row("a/0", row(7, 1))
    assert source.lsns() == [756]
    source.tell(end(6, a=1), end(8, a=1))
    source.row("a/0", row(8, 1))
    source.frontier.skip_to(10_000)

    assert source.frontier.regression is not None
    assert source.cuts() == []


def test_a_new_snapshot_after_commits_needs_a_new_timeline() -> None:
    source = FedSource().at_a_cut()
    source.row("a/0", snapshot_row(800, mark="first", ts_ms=60 * SECOND))

    regression = source.frontier.regression
    assert regression is not None
    assert regression.has_snapshot


def test_an_end_that_was_never_read_among_those_that_were_is_a_regression() -> None:
    source = FedSource().at_a_cut()
    source.tell(end(7, a=1))
    source.row("a/0", row(7, 1))
    assert source.lsns() == [756]

    source.tell(end(9, lsn=608, ts_ms=9, a=1), end(10, a=1))
    source.row("a/0", row(9, 1), row(10, 1))

    regression = source.frontier.regression
    assert regression is not None
    assert (regression.xid, regression.commit_lsn, regression.newest_lsn) == (9, 608, 756)
    assert regression.transaction_offset == 3
    assert source.lsns() == [], "no cut passes it"


def test_what_is_read_together_with_a_regression_is_of_the_new_timeline_however_high_its_lsn() -> None:
    """Seen to fail while the barrier came with the next advance: the END of 10 was queued before it."""
    source = FedSource().at_a_cut()
    source.tell(end(7, a=1))
    source.row("a/0", row(7, 1))
    assert source.lsns() == [756]

    source.tell(end(9, lsn=608), end(10, a=1))
    source.row("a/0", row(10, 1))

    assert source.frontier.regression is not None
    assert source.lsns() == []


def test_an_end_that_comes_again_is_none() -> None:
    source = FedSource().at_a_cut()
    source.tell(end(7), end(5, a=2), end(7))

    assert source.frontier.regression is None


@pytest.mark.parametrize(("ts_ms", "is_regression"), [(9 * SECOND, False), (60 * SECOND, True)])
def test_below_what_this_process_has_read_the_commit_time_decides(ts_ms: int, is_regression: bool) -> None:
    (cut,) = _cuts_of(7)
    source = FedSource(start=cut, done=cut.transactions)

    source.tell(end(3, ts_ms=ts_ms, a=1))

    assert (source.frontier.regression is not None) is is_regression


@pytest.mark.parametrize(("before", "begins_at"), [((), 1), ((3,), 1), ((3, 4), 1), ((3, 8), 3), ((8, 3), 2)])
def test_a_new_timeline_may_have_begun_with_the_first_end_that_was_not_known(
    before: tuple[int, ...], begins_at: int
) -> None:
    """After one above all others it starts over: until then the connector repeated old ones."""
    (cut,) = _cuts_of(7)
    source = FedSource(start=cut, done=cut.transactions)

    source.tell(*(end(xid) for xid in before), end(5, ts_ms=60 * SECOND))

    regression = source.frontier.regression
    assert regression is not None
    assert (regression.xid, regression.transaction_offset) == (5, begins_at)


def test_lsns_went_back_where_they_did_first() -> None:
    source = FedSource().at_a_cut()
    source.tell(end(9), end(8), end(7))
    source.row("a/0", snapshot_row(24, ts_ms=60 * SECOND))

    regression = source.frontier.regression
    assert regression is not None
    assert (regression.xid, regression.transaction_offset, regression.newest_lsn) == (8, 3, 956)


@pytest.mark.parametrize(("ts_ms", "is_regression"), [(70 * SECOND, False), (70 * SECOND + 1, True)])
def test_an_end_is_compared_with_the_latest_commit_though_a_later_end_was_committed_earlier(
    ts_ms: int, *, is_regression: bool
) -> None:
    (cut,) = _cuts_of(7)
    source = FedSource(start=cut, done=cut.transactions)
    source.tell(end(8, ts_ms=60 * SECOND), end(9, ts_ms=55 * SECOND))

    source.tell(end(3, ts_ms=ts_ms))
    assert (source.frontier.regression is not None) is is_regression


def test_a_snapshot_below_the_frontier_that_was_taken_later_is_a_regression() -> None:
    source = FedSource().at_a_cut()
    source.row("a/0", snapshot_row(24, mark="first", ts_ms=60 * SECOND))

    regression = source.frontier.regression
    assert regression is not None
    assert regression.has_snapshot
    assert regression.transaction_offset == 2


def test_a_commit_read_before_a_snapshot_below_the_frontier_does_not_hide_that_it_was_taken_later() -> None:
    """Seen to fail while the snapshot's time was compared with the newest END that was read."""
    source = FedSource().at_a_cut()
    source.tell(end(7, ts_ms=60 * SECOND, a=1))
    source.row("a/0", snapshot_row(24, mark="first", ts_ms=50 * SECOND))
    source.row("a/0", row(7, 1))

    regression = source.frontier.regression
    assert regression is not None
    assert regression.has_snapshot
    assert source.cuts() == []


@pytest.mark.parametrize("taken_ms", [60 * SECOND, 70 * SECOND])
def test_a_snapshot_taken_before_the_newest_commit_on_the_frontier_is_a_repeat(taken_ms: int) -> None:
    source = FedSource().at_a_cut()
    source.tell(end(7, ts_ms=60 * SECOND, a=1))
    source.row("a/0", row(7, 1))
    assert source.lsns() == [756]

    source.row("a/0", snapshot_row(24, mark="first", ts_ms=taken_ms))

    assert source.frontier.regression is None


def test_a_row_of_an_interrupted_snapshot_that_is_read_after_the_next_one_is_a_repeat() -> None:
    """It is read between the moment the next attempt passes and the cut that shows it."""
    source = FedSource()
    source.row("a/0", snapshot_row(24, mark="last", ts_ms=60 * SECOND))
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=60 * SECOND))
    source.frontier.skip_notifications_to(3)
    for _ in range(4):
        source.frontier.advance()
        source.frontier.end_offsets(source.readable())
    assert source.frontier.lsn == 24

    source.row("b/0", snapshot_row(16, table="b", mark="first", ts_ms=50 * SECOND))

    assert source.frontier.regression is None


def test_it_is_one_also_while_the_cut_of_the_next_one_waits_for_a_commit() -> None:
    source = FedSource()
    source.notify(notification_value("STARTED", ts_ms=50 * SECOND))
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=60 * SECOND))
    source.row("a/0", snapshot_row(480, ts_ms=60 * SECOND))
    source.tell(end(5, a=1, ts_ms=62 * SECOND))
    assert source.cuts() == []
    assert source.frontier.lsn == 480

    source.row("b/0", snapshot_row(400, table="b", ts_ms=50 * SECOND))
    assert source.frontier.regression is None
    source.row("a/0", row(5))
    assert [cut.late_snapshots for cut in source.cuts()] == [(480,)]


@pytest.mark.parametrize(("taken_ms", "is_behind"), [(10 * SECOND, False), (60 * SECOND, True)])
def test_a_snapshot_read_before_any_cut_is_behind_a_regression_if_it_was_taken_later(
    taken_ms: int, is_behind: bool
) -> None:
    """Seen to fail for the second one while only rows read after the regression counted."""
    source = FedSource()
    source.row("a/0", snapshot_row(24, mark="first", ts_ms=taken_ms))
    source.tell(end(7, a=1, ts_ms=SECOND), end(6, a=1, ts_ms=SECOND + 1))

    regression = source.frontier.regression
    assert regression is not None
    assert regression.has_snapshot is is_behind


@pytest.mark.parametrize(
    ("committed_ms", "passes", "begins_at"),
    [(40 * SECOND, True, 3), (41 * SECOND, False, 3), (49 * SECOND, False, 2), (50 * SECOND, False, 2)],
)
def test_the_commit_time_says_of_which_timeline_an_end_is_that_was_read_before_the_snapshot(
    committed_ms: int, passes: bool, begins_at: int
) -> None:
    """What was committed shortly before the snapshot may be of either: it is shown on neither."""
    source = FedSource().at_a_cut()
    source.tell(end(7, ts_ms=committed_ms, a=1))
    source.row("b/0", snapshot_row(24, table="b", mark="first", ts_ms=50 * SECOND))
    source.row("a/0", row(7, 1))

    assert source.lsns() == ([756] if passes else [])
    regression = source.frontier.regression
    assert regression is not None
    assert regression.transaction_offset == begins_at


def test_the_new_timeline_begins_with_the_first_end_that_was_committed_after_the_snapshot() -> None:
    source = FedSource().at_a_cut()
    source.tell(*(end(x, ts_ms=x * 10 * SECOND, a=1) for x in (7, 8, 9)))
    source.row("a/0", row(7, 1), row(8, 1), row(9, 1))
    source.row("b/0", snapshot_row(24, table="b", mark="first", ts_ms=80 * SECOND))

    assert source.lsns() == [756]
    regression = source.frontier.regression
    assert regression is not None
    assert regression.transaction_offset == 3


@pytest.mark.parametrize("lsn", [24, 800])
def test_a_whole_snapshot_after_commits_is_not_shown_on_the_old_timeline(lsn: int) -> None:
    """Seen to fail for the second one while only transactions were held back."""
    source = FedSource().at_a_cut()
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=60 * SECOND))
    source.row("a/0", snapshot_row(lsn, mark="last", ts_ms=60 * SECOND))

    assert source.cuts() == []
    source.frontier.rest(source.readable())
    assert source.cuts() == []
    assert source.frontier.lsn == 556


def test_rows_of_an_incremental_snapshot_behind_a_regression_are_not_shown_between_commits() -> None:
    """Seen to fail while the regression held back commits only."""
    source = FedSource().at_a_cut()
    source.row("a/0", snapshot_row(24, mark="last", ts_ms=60 * SECOND))
    source.row("b/0", snapshot_row(0, mark="incremental"))

    assert source.cuts() == []
    assert not source.frontier.has_moved


def test_a_snapshot_that_shows_a_regression_after_a_restart_begins_where_reading_does() -> None:
    """Seen to fail with offset 0: the new timeline began with all transactions of the old one."""
    (cut,) = _cuts_of(7)
    source = FedSource(start=cut)

    source.row("a/0", snapshot_row(24, mark="first", ts_ms=60 * SECOND))

    assert source.frontier.regression is not None
    assert source.frontier.regression.transaction_offset == cut.transaction_offset > 0

    source = FedSource(start=cut)
    source.frontier.skip_transactions_to(9)
    source.row("a/0", snapshot_row(24, mark="first", ts_ms=60 * SECOND))

    assert source.frontier.regression is not None
    assert source.frontier.regression.transaction_offset == 9


@pytest.mark.parametrize(("started_ms", "is_late"), [(19 * SECOND - 1, False), (19 * SECOND, True)])
def test_snapshots_of_the_timeline_before_are_no_attempts_at_the_new_one(
    started_ms: int, is_late: bool
) -> None:
    """Seen to fail with every announcement counted: it waited for table b, and its rows were late."""
    source = FedSource()
    source.frontier.skip_announcements_to(20 * SECOND)
    old = snapshot_notifications({"inv.a": 5, "inv.b": 3}, ts_ms=started_ms)
    new = snapshot_notifications({"inv.a": 1, "inv.b": 0}, ts_ms=60 * SECOND)
    source.notify(*old, *new)
    source.row("a/0", snapshot_row(24, mark="last", ts_ms=60 * SECOND))

    assert source.lsns() == ([] if is_late else [24])


def test_tables_that_only_the_timeline_before_had_are_not_waited_for() -> None:
    source = FedSource()
    source.frontier.skip_announcements_to(20 * SECOND)
    old = snapshot_notifications({"inv.b": 3}, ts_ms=SECOND)
    new = snapshot_notifications({"inv.a": 1}, ts_ms=60 * SECOND)
    source.notify(*old, *new)
    source.row("a/0", snapshot_row(24, mark="last", ts_ms=60 * SECOND))

    assert source.lsns() == [24]


def test_the_rest_of_an_announcement_of_the_timeline_before_begins_no_attempt() -> None:
    """The snapshot of the old timeline blocked the stream while its last commit was made."""
    source = FedSource()
    source.frontier.skip_announcements_to(20 * SECOND)
    started, *_ = snapshot_notifications({"inv.b": 3}, ts_ms=SECOND)
    _, *late_rest = snapshot_notifications({"inv.b": 3}, ts_ms=30 * SECOND)
    new = snapshot_notifications({"inv.a": 1}, ts_ms=60 * SECOND)
    source.notify(started, *late_rest, *new)
    source.row("a/0", snapshot_row(24, mark="last", ts_ms=60 * SECOND))

    assert source.lsns() == [24]


def test_an_interrupted_attempt_at_the_new_timeline_still_makes_the_next_one_late() -> None:
    source = FedSource()
    source.frontier.skip_announcements_to(20 * SECOND)
    old = snapshot_notifications({"inv.a": 1}, ts_ms=SECOND)
    first, *_ = snapshot_notifications({"inv.a": 1}, ts_ms=60 * SECOND)
    second = snapshot_notifications({"inv.a": 1}, ts_ms=70 * SECOND)
    source.notify(*old, first, *second)
    source.row("a/0", snapshot_row(24, mark="last", ts_ms=70 * SECOND))

    assert source.cuts() == []


def test_a_new_timeline_begins_where_it_was_decided_and_goes_on_from_there() -> None:
    source = FedSource()
    source.frontier.skip_transactions_to(40)
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", snapshot_row(24, mark="last"))
    (cut,) = source.cuts()

    assert (cut.lsn, cut.previous_lsn, cut.transaction_offset) == (24, 0, 40)


def _cuts_of(xid: int) -> list[Cut]:
    source = FedSource()
    source.tell(end(xid, a=1))
    source.row("a/0", row(xid, 1))
    return source.cuts()
