"""Conditions of snapshots and of what waits for them, each where leaving it out shows."""

import json

import pytest

from slackwater.cdc import frontier, initial_snapshot
from slackwater.protocol import SNAPSHOT_XID
from slackwater_lab.debezium.fed_source import SECOND, FedSource, blocking_row, end, row, snapshot_row, xids
from slackwater_lab.debezium.records import begin_value, notification_value, snapshot_notifications


@pytest.fixture
def source() -> FedSource:
    return FedSource()


@pytest.fixture
def at_a_cut(source: FedSource) -> FedSource:
    """A source that has published transaction 5."""
    return source.at_a_cut()


# --- initial snapshots


def test_a_commit_whose_rows_stand_behind_a_newer_snapshot_is_contained_in_it(source: FedSource) -> None:
    source.notify(notification_value("STARTED"))
    source.row("a/0", snapshot_row(900), row(7))
    source.tell(begin_value(7, 701), end(7, a=1))
    assert source.cuts() == []

    source.notify(*snapshot_notifications({"inv.a": 1})[1:])
    (cut,) = source.cuts()

    assert [t.commit_lsn for t in cut.transactions] == [900]
    assert source.frontier.open_transactions() == []


def test_a_commit_below_a_snapshot_whose_end_is_read_later_is_contained_in_it(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", snapshot_row(900))
    assert [cut.lsn for cut in source.cuts()] == [900]

    source.tell(begin_value(7, 701), end(7, a=1))
    source.row("a/0", row(7))
    assert source.cuts() == []
    assert source.frontier.open_transactions() == []
    assert source.frontier.regression is None

    source.tell(end(9, a=1))
    source.row("a/0", row(9))
    (cut,) = source.cuts()
    assert (xids([cut]), cut.previous_lsn, cut.lsn) == ([[9]], 900, 956)


def test_rows_of_an_interrupted_snapshot_met_behind_a_newer_ones_make_that_late(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=4 * SECOND))
    source.row("a/0", snapshot_row(480, ts_ms=4 * SECOND), ms=4 * SECOND)
    source.row("b/0", snapshot_row(400, 1, table="b", ts_ms=2 * SECOND), ms=5 * SECOND)
    source.row("a/0", row(5))
    source.tell(end(5, a=1, ts_ms=4 * SECOND))
    assert source.cuts() == []

    source.tell(end(6, ts_ms=5 * SECOND + 1))
    (cut,) = source.cuts()
    assert (cut.late_snapshots, cut.event_count, xids([cut])) == ((480,), 2, [[5]])


@pytest.mark.parametrize(("after_ms", "is_shown"), [(SECOND, False), (SECOND + 1, True)])
def test_a_repeated_snapshot_waits_for_a_commit_newer_by_what_clocks_may_differ(
    source: FedSource, after_ms: int, is_shown: bool
) -> None:
    source.notify(*snapshot_notifications({"inv.a": 2}, ts_ms=3 * SECOND))
    source.row("a/0", snapshot_row(400, ts_ms=SECOND))
    source.row("a/0", snapshot_row(480, 1, ts_ms=3 * SECOND), snapshot_row(480, 2, ts_ms=3 * SECOND))
    source.tell(end(5, ts_ms=3 * SECOND + after_ms))

    assert [cut.late_snapshots for cut in source.cuts()] == ([(480,)] if is_shown else [])


def test_a_repeated_snapshot_with_nothing_behind_it_is_exact_at_rest(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=4 * SECOND))
    source.row("a/0", snapshot_row(400, ts_ms=2 * SECOND), snapshot_row(480, ts_ms=4 * SECOND))
    assert source.cuts() == []

    (cut,) = source.at_rest()
    assert (cut.lsn, cut.late_snapshots) == (480, ())


def test_a_repeated_snapshot_with_commits_behind_it_is_late_even_at_rest(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=4 * SECOND))
    source.row("a/0", snapshot_row(400, ts_ms=2 * SECOND), snapshot_row(480, ts_ms=4 * SECOND), row(5))
    source.tell(end(5, a=1, ts_ms=3 * SECOND))
    assert source.cuts() == []

    (cut,) = source.at_rest()
    assert (cut.lsn, cut.late_snapshots, xids([cut])) == (556, (480,), [[5]])


def test_rows_of_tables_that_are_not_followed_are_no_part_of_a_snapshot() -> None:
    source = FedSource(tables=frozenset({"inv.a"}))
    source.notify(*snapshot_notifications({"inv.a": 1, "inv.b": 7}))
    source.row("a/0", snapshot_row(480))
    source.row("b/0", snapshot_row(480, table="b"))

    (cut,) = source.cuts()
    assert cut.event_count == 1


def test_older_connectors_mark_the_rows_of_a_snapshot_with_a_boolean(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", snapshot_row(480).replace(b'"snapshot":"true"', b'"snapshot":true'))

    assert [cut.lsn for cut in source.cuts()] == [480]
    assert source.frontier.obstacles == []


def test_rows_that_do_not_say_where_the_stream_stood_are_of_a_snapshot_at_start_up(source: FedSource) -> None:
    fields = json.loads(snapshot_row(480))
    fields["source"].pop("sequence", None)
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", json.dumps(fields).encode())

    assert [(cut.lsn, cut.late_snapshots) for cut in source.cuts()] == [(480, ())]


def test_every_table_of_a_snapshot_is_waited_for(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1, "inv.b": 1}))
    source.row("a/0", snapshot_row(480))
    assert source.cuts() == []

    source.row("b/0", snapshot_row(480, table="b"))
    assert [cut.event_count for cut in source.cuts()] == [2]


def test_a_snapshot_whose_end_was_not_announced_is_waited_for(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1})[:-1])
    source.row("a/0", snapshot_row(480))
    assert source.cuts() == []

    source.notify(notification_value("COMPLETED"))
    assert [cut.lsn for cut in source.cuts()] == [480]


def test_a_snapshot_whose_announcement_lost_its_beginning_is_told_by_the_rest(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 2})[1:])
    source.row("a/0", snapshot_row(480))
    assert source.cuts() == []

    source.row("a/0", snapshot_row(480, 2))
    assert [cut.lsn for cut in source.cuts()] == [480]


def test_an_announced_attempt_is_one_whatever_runs_its_rows_name(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 2}))
    source.row("a/0", snapshot_row(480))
    source.row("a/1", snapshot_row(480, 2), run="")

    assert [(cut.lsn, cut.late_snapshots) for cut in source.cuts()] == [(480, ())]


def test_a_snapshot_waits_until_all_notifications_were_read(source: FedSource) -> None:
    """They may tell of another attempt."""
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", snapshot_row(480))
    source.ends = {("s.notifications", 0): 5}
    assert source.cuts() == []

    source.frontier.skip_notifications_to(5)
    assert [cut.lsn for cut in source.cuts()] == [480]


def test_tables_that_only_an_earlier_attempt_has_announced_are_waited_for(source: FedSource) -> None:
    """The later one may be a snapshot of some tables, in which nothing was written since the first."""
    source.notify(*snapshot_notifications({"inv.a": 1, "inv.b": 1}, ts_ms=SECOND))
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=9 * SECOND))
    source.row("a/0", snapshot_row(480, ts_ms=9 * SECOND))
    assert source.at_rest() == []

    source.row("b/0", snapshot_row(480, table="b", ts_ms=SECOND))
    assert [cut.lsn for cut in source.at_rest()] == [480]


def test_an_end_that_may_stand_below_a_snapshot_is_read_before_it_passes(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("b/0", row(4, table="b"))
    source.row("a/0", snapshot_row(480))
    source.ends = {("s.transaction", 0): 1}
    assert source.cuts() == []

    source.tell(end(4, b=1))
    assert [cut.lsn for cut in source.cuts()] == [480]
    assert source.frontier.lsn == 480


def test_rows_of_an_earlier_run_may_stand_where_none_of_a_snapshot_were_read(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=4 * SECOND))
    source.row("a/0", snapshot_row(480, ts_ms=4 * SECOND))
    source.ends = {("s.inv.b", 1): 1}
    assert source.cuts() == []

    source.row("b/1", snapshot_row(400, table="b", ts_ms=2 * SECOND))
    assert source.cuts() == [], "it repeats an interrupted one"


def test_rows_that_no_notification_announced_are_of_an_interrupted_run_at_the_same_lsn_too(
    source: FedSource,
) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=4 * SECOND))
    source.row("a/0", snapshot_row(480, ts_ms=2 * SECOND))
    source.row("a/0", snapshot_row(480, ts_ms=4 * SECOND))
    assert source.cuts() == [], "a key that is gone may be among the first rows"

    source.tell(end(5, ts_ms=9 * SECOND))
    assert [cut.lsn for cut in source.cuts()] == [556]


def test_without_notifications_rest_ends_a_snapshot_only_behind_its_last_row(source: FedSource) -> None:
    source.row("a/0", snapshot_row(480))
    assert source.at_rest() == []

    source.row("a/0", snapshot_row(480, 2, mark="last"))
    assert [cut.event_count for cut in source.at_rest()] == [2]


def test_without_notifications_the_last_row_of_an_earlier_attempt_ends_no_later_one(
    source: FedSource,
) -> None:
    source.row("a/0", snapshot_row(400, ts_ms=SECOND, mark="last"))
    source.row("a/0", snapshot_row(480, ts_ms=3 * SECOND), run="r2")
    assert source.at_rest() == []

    source.row("a/0", snapshot_row(480, 2, ts_ms=3 * SECOND, mark="last"), run="r2")
    assert [cut.lsn for cut in source.at_rest()] == [480]


def test_without_record_times_a_snapshot_without_notifications_is_never_long_over(source: FedSource) -> None:
    source.row("a/0", snapshot_row(480, mark="last"))
    source.tell(end(5), ms=60 * SECOND)

    assert source.cuts() == []


def test_a_snapshot_without_notifications_is_over_long_after_its_newest_row(source: FedSource) -> None:
    source.row("a/0", snapshot_row(480), ms=SECOND)
    source.row("a/1", snapshot_row(480, 2, mark="last"), ms=20 * SECOND)
    source.tell(end(5), ms=32 * SECOND)
    assert source.cuts() == []

    source.tell(end(6), ms=50 * SECOND)
    assert [(cut.lsn, cut.event_count) for cut in source.cuts()] == [(480, 2), (656, 2)]


@pytest.mark.parametrize("end_of_rows", ["streamed rows", "a much later record", "rest behind the last row"])
def test_where_there_is_a_topic_of_notifications_nothing_else_ends_a_snapshot(
    source: FedSource, end_of_rows: str
) -> None:
    source.ends = {("s.notifications", 0): 0}
    source.row("a/0", snapshot_row(480, mark="last"), ms=SECOND)
    match end_of_rows:
        case "streamed rows":
            for spot in source.parts:
                source.row(spot, row(5, table=spot[0]))
        case "a much later record":
            source.tell(end(5), ms=60 * SECOND)
        case _:
            assert source.at_rest() == []
    assert source.cuts() == []

    source.ends.clear()
    source.notify(*snapshot_notifications({"inv.a": 1}))
    assert 480 in [cut.lsn for cut in source.cuts()]


def test_two_written_copies_of_a_snapshots_row_are_told_once(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", snapshot_row(480), snapshot_row(480))
    assert [cut.repeated for cut in source.cuts()] == [{480}]
    source.row("a/0", snapshot_row(480), row(5))
    source.tell(end(5, a=1))
    assert [cut.repeated for cut in source.cuts()] == [{480}]

    source.row("a/0", row(6))
    source.tell(end(6, a=1))
    assert [cut.repeated for cut in source.cuts()] == [frozenset()]


def test_a_transaction_without_end_before_a_snapshot_is_contained_in_it(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", row(4), snapshot_row(480))
    (cut,) = source.cuts()

    assert (cut.lsn, cut.end_offsets["s.inv.a"]) == (480, (2, 0))
    assert source.frontier.open_transactions() == []


def test_commits_behind_a_void_snapshot_are_contained_in_the_newer_one(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=3 * SECOND))
    source.row("a/0", snapshot_row(400, ts_ms=SECOND), row(4), snapshot_row(480, ts_ms=3 * SECOND), row(5))
    source.tell(end(4, a=1), end(5, a=1, ts_ms=60 * SECOND))
    (cut,) = source.cuts()

    assert (xids([cut]), cut.late_snapshots) == ([[5]], (480,))


@pytest.mark.parametrize("spot", ["a/0", "a/1"])
def test_a_commit_behind_a_void_snapshot_is_shown_neither_without_the_newer_one_nor_waited_for(
    source: FedSource, spot: str
) -> None:
    """At rest it was seen to fail: the cut had to hold a commit that was contained in the snapshot."""
    source.notify(notification_value("STARTED", ts_ms=SECOND))
    source.row("b/0", snapshot_row(400, table="b", ts_ms=SECOND))
    source.notify(*snapshot_notifications({"inv.a": 2}, ts_ms=3 * SECOND))
    source.row("a/0", snapshot_row(480, ts_ms=3 * SECOND))
    source.row(spot, row(4))
    source.tell(end(4, a=1))
    assert source.cuts() == []

    source.row("a/0", snapshot_row(480, 2, ts_ms=3 * SECOND))
    (cut,) = source.at_rest()
    assert (cut.lsn, xids([cut]), cut.end_offsets["s.inv.a"]) == (
        480,
        [[]],
        (3, 0) if spot == "a/0" else (2, 1),
    )
    assert source.frontier.open_transactions() == []


@pytest.mark.parametrize("reads_end_first", [False, True])
def test_a_commit_at_the_lsn_of_a_snapshot_is_contained_in_it(
    source: FedSource, *, reads_end_first: bool
) -> None:
    """Seen to fail where END was read first: the next cut contained the commit again."""
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("b/0", row(5, table="b"))
    source.row("a/0", snapshot_row(556))
    if reads_end_first:
        source.tell(end(5, b=1))
    assert xids(source.cuts()) == [[SNAPSHOT_XID]]

    if not reads_end_first:
        source.tell(end(5, b=1))
    assert source.frontier.open_transactions() == []
    source.tell(end(6, a=1))
    source.row("a/0", row(6))
    assert xids(source.cuts()) == [[6]]


@pytest.mark.parametrize("attempts", [1, 2])
def test_commits_made_before_a_snapshot_after_commits_pass_however_often_that_was_begun(
    at_a_cut: FedSource, attempts: int
) -> None:
    at_a_cut.tell(end(7, a=1, ts_ms=40 * SECOND))
    for second in range(51, 51 + attempts):
        at_a_cut.notify(notification_value("STARTED", ts_ms=second * SECOND))
    at_a_cut.row("b/0", snapshot_row(800, table="b", ts_ms=60 * SECOND))
    at_a_cut.row("a/0", row(7))

    assert xids(at_a_cut.cuts()) == [[7]]
    assert at_a_cut.frontier.regression is not None


def test_no_cut_ends_between_a_repeated_snapshot_and_the_commit_that_is_newer(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=4 * SECOND))
    source.row("a/0", snapshot_row(400, ts_ms=2 * SECOND), snapshot_row(480, ts_ms=4 * SECOND))
    source.row("a/0", row(5), row(6))
    source.tell(end(5, a=1, ts_ms=3 * SECOND), end(6, a=2, ts_ms=60 * SECOND))
    assert source.cuts() == []

    source.row("a/1", row(6, 2))
    assert xids(source.cuts()) == [[5, 6]]


def test_no_cut_ends_behind_a_snapshot_between_commits_that_have_to_stay_together(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("b/0", *(row(xid, order, table="b") for xid, order in ((5, 1), (7, 1), (5, 2))), keyless=True)
    source.row("a/0", snapshot_row(600))
    source.tell(end(5, b=2), end(7, b=2))
    assert source.cuts() == []
    assert source.frontier.lsn == 600

    source.row("b/1", row(7, 2, table="b"), keyless=True)
    assert xids(source.cuts()) == [[5, SNAPSHOT_XID, 7]]


def test_a_commit_that_a_snapshot_contains_is_not_waited_for_by_those_that_had_to_stay_with_it(
    source: FedSource,
) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("b/0", *(row(xid, order, table="b") for xid, order in ((3, 1), (4, 1), (3, 2))), keyless=True)
    source.row("a/0", snapshot_row(480), row(4, total=2))
    source.tell(end(3, b=2), end(4, a=1, b=1))

    (cut,) = source.cuts()
    assert (xids([cut]), cut.end_offsets["s.inv.b"]) == ([[3, SNAPSHOT_XID]], (3, 0))


def test_a_row_is_looked_for_among_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial_snapshot, "_RECENT_ROWS", 2)
    rows = initial_snapshot.RecentRows()

    assert [rows.has(value) for value in (b"1", b"2", b"3", b"3", b"1")] == [False, False, False, True, False]


# --- snapshots at which LSNs went back


def test_commits_that_are_out_of_order_in_time_do_not_make_an_old_snapshot_a_new_one(
    at_a_cut: FedSource,
) -> None:
    for xid, ts_ms in ((7, 60 * SECOND), (8, 40 * SECOND)):
        at_a_cut.tell(end(xid, ts_ms=ts_ms))
        assert len(at_a_cut.cuts()) == 1
    at_a_cut.row("a/0", snapshot_row(24, ts_ms=55 * SECOND))

    assert at_a_cut.frontier.regression is None


def test_a_snapshot_at_the_lsn_of_a_commit_that_was_shown_is_an_old_one(at_a_cut: FedSource) -> None:
    at_a_cut.row("a/0", snapshot_row(556))

    assert at_a_cut.frontier.regression is None
    assert at_a_cut.frontier.open_transactions() == []


def test_nothing_waits_for_an_interrupted_snapshot_below_the_one_that_has_passed(source: FedSource) -> None:
    """Its row is read before the cut is made."""
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=9 * SECOND))
    source.row("a/0", snapshot_row(480, ts_ms=9 * SECOND))
    for _ in range(3):
        source.frontier.advance()
        source.frontier.end_offsets(source.readable())
    assert source.frontier.lsn == 480

    source.row("b/0", snapshot_row(400, table="b", ts_ms=2 * SECOND))
    assert source.frontier.open_transactions() == []


def test_an_interrupted_snapshot_read_behind_a_newer_one_does_not_hide_that(source: FedSource) -> None:
    source.row("a/0", snapshot_row(24, ts_ms=60 * SECOND))
    source.row("b/0", snapshot_row(16, table="b", ts_ms=2 * SECOND))
    source.tell(end(7, ts_ms=SECOND), end(6, ts_ms=SECOND + 1))

    regression = source.frontier.regression
    assert regression is not None
    assert regression.has_snapshot


def test_a_new_timeline_begins_with_the_first_attempt_at_its_snapshot(at_a_cut: FedSource) -> None:
    at_a_cut.tell(end(7, ts_ms=60 * SECOND))
    at_a_cut.row("a/0", snapshot_row(24, ts_ms=50 * SECOND), snapshot_row(32, ts_ms=90 * SECOND))

    assert at_a_cut.cuts() == [], "transaction 7 is of the new timeline"
    regression = at_a_cut.frontier.regression
    assert regression is not None
    assert regression.transaction_offset == 2


# --- late rows


@pytest.mark.parametrize(("after_ms", "is_shown"), [(SECOND, False), (SECOND + 1, True)])
def test_late_rows_wait_for_a_commit_newer_by_what_clocks_may_differ(
    at_a_cut: FedSource, after_ms: int, is_shown: bool
) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), row(6))
    at_a_cut.tell(end(6, a=1, ts_ms=9 * SECOND + after_ms))

    assert xids(at_a_cut.cuts()) == ([[6]] if is_shown else [])


def test_late_rows_are_as_new_as_the_newest_of_them(at_a_cut: FedSource) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), blocking_row(2, read_at=20 * SECOND), row(6))
    at_a_cut.tell(end(6, a=1, ts_ms=15 * SECOND))

    assert at_a_cut.cuts() == []


def test_late_rows_behind_others_that_have_their_commit_wait_for_one_of_their_own(
    at_a_cut: FedSource,
) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND))
    at_a_cut.row("b/0", row(7, table="b"))
    at_a_cut.tell(end(7, a=1, b=1, ts_ms=15 * SECOND))
    assert at_a_cut.cuts() == []
    at_a_cut.row("a/0", blocking_row(2, read_at=30 * SECOND), row(7))

    assert at_a_cut.cuts() == [], "the second row may hold what was committed after transaction 7"


def test_late_rows_wait_for_the_first_commit_that_is_newer_not_for_all_later_ones(
    at_a_cut: FedSource,
) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), row(7))
    at_a_cut.tell(end(7, a=2, ts_ms=15 * SECOND))
    assert at_a_cut.cuts() == []

    at_a_cut.tell(end(8, a=1, ts_ms=60 * SECOND))
    at_a_cut.row("a/1", row(7, 2))
    (cut,) = at_a_cut.cuts()
    assert (xids([cut]), cut.late_snapshots) == ([[7]], (601,))


def test_late_rows_are_known_as_such_when_they_are_wrapped_with_their_schema(at_a_cut: FedSource) -> None:
    wrapped = b'{"schema":{},"payload":' + blocking_row(1, read_at=9 * SECOND) + b"}"
    at_a_cut.row("a/0", wrapped, row(7))
    at_a_cut.tell(end(7, a=1, ts_ms=60 * SECOND))

    assert [cut.late_snapshots for cut in at_a_cut.cuts()] == [(601,)]


def test_late_rows_of_two_snapshots_are_named_apart(at_a_cut: FedSource) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), blocking_row(2, read_at=9 * SECOND, lsn=609))
    at_a_cut.row("a/0", row(7))
    at_a_cut.tell(end(7, a=1, ts_ms=60 * SECOND))

    assert [cut.late_snapshots for cut in at_a_cut.cuts()] == [(601, 609)]


def test_late_rows_are_named_by_one_cut_only(at_a_cut: FedSource) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), row(7))
    at_a_cut.tell(end(7, a=1, ts_ms=60 * SECOND))
    at_a_cut.cuts()
    at_a_cut.row("a/0", row(8))
    at_a_cut.tell(end(8, a=1, ts_ms=60 * SECOND))

    assert [cut.late_snapshots for cut in at_a_cut.cuts()] == [()]


def test_what_has_to_stay_whole_is_not_split_however_many_transactions_it_holds(
    at_a_cut: FedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontier, "MAX_TRANSACTIONS_PER_CUT", 2)
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), *(row(xid) for xid in range(6, 13)))
    at_a_cut.tell(*(end(xid, a=1, ts_ms=60 * SECOND if xid == 9 else 0) for xid in range(6, 10)))
    assert xids(at_a_cut.cuts()) == [[6, 7, 8, 9]]

    at_a_cut.tell(*(end(xid, a=1, ts_ms=60 * SECOND) for xid in range(10, 13)))
    assert xids(at_a_cut.cuts()) == [[10, 11], [12]]


def test_no_cut_ends_before_the_commit_that_late_rows_wait_for(at_a_cut: FedSource) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), row(6), row(7))
    at_a_cut.tell(end(6, a=1), end(7, a=2, ts_ms=60 * SECOND))
    assert at_a_cut.cuts() == []

    at_a_cut.row("a/1", row(7, 2))
    assert xids(at_a_cut.cuts()) == [[6, 7]]


# --- rows of incremental snapshots


def test_rows_of_an_incremental_snapshot_are_counted_by_one_cut(at_a_cut: FedSource) -> None:
    at_a_cut.row("a/0", snapshot_row(0, mark="incremental"))
    (first,) = at_a_cut.cuts()
    at_a_cut.tell(end(6, a=1))
    at_a_cut.row("a/0", row(6))
    (second,) = at_a_cut.cuts()

    assert (first.event_count, second.event_count) == (3, 4)


def test_each_cut_says_whether_it_shows_further_rows_of_an_incremental_snapshot(at_a_cut: FedSource) -> None:
    incremental = snapshot_row(0, mark="incremental")
    at_a_cut.row("a/0", incremental, row(7), incremental)
    told = []
    for commit in (end(6), end(66, lsn=664), end(7, a=1)):
        at_a_cut.tell(commit)
        told += [cut.has_incremental_rows for cut in at_a_cut.cuts()]

    assert told == [True, False, True]


# --- rest


def test_a_source_is_not_at_rest_before_everything_written_was_read(at_a_cut: FedSource) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=0))
    for key in (("s.inv.b", 0), ("s.transaction", 0), ("s.notifications", 0)):
        at_a_cut.frontier.rest({**at_a_cut.readable(), key: 9})
    assert at_a_cut.cuts() == []

    at_a_cut.frontier.rest(at_a_cut.readable())
    assert [cut.late_snapshots for cut in at_a_cut.cuts()] == [(601,)]


def test_a_snapshot_is_not_exact_because_the_source_once_was_at_rest(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 2}))
    source.row("a/0", snapshot_row(400), snapshot_row(480, 1, ts_ms=SECOND))
    assert source.at_rest() == []

    source.row("a/0", snapshot_row(480, 2, ts_ms=SECOND))
    assert source.cuts() == []
