"""The rules of the frontier, one by one."""

import json
from collections.abc import Mapping

import pytest

from slackwater.cdc import MAX_TRANSACTIONS_PER_CUT, Frontier
from slackwater.protocol import SNAPSHOT_XID, CommittedTransaction
from slackwater_lab.debezium.fed_source import FedSource, end, row
from slackwater_lab.debezium.records import (
    begin_value,
    end_value,
    notification_value,
    snapshot_notifications,
    snapshot_value,
    transaction_values,
)

A, B = "s.inv.a", "s.inv.b"


@pytest.fixture
def source() -> FedSource:
    return FedSource()


def test_a_transaction_is_published_when_its_last_row_has_been_read(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=2))
    source.row("a/0", row(7, 1))
    assert source.cuts() == []

    source.row("a/1", row(7, 2))
    (cut,) = source.cuts()

    assert cut.transactions == (CommittedTransaction(7, 756, 0),)
    assert cut.end_offsets == {A: (1, 1), B: (0, 0)}
    assert (cut.lsn, cut.previous_lsn, cut.event_count, cut.transaction_offset) == (756, 0, 2, 2)


def test_rows_before_begin_and_end_count_as_well(source: FedSource) -> None:
    source.row("a/0", row(7, 1), row(7, 2))
    source.tell(begin_value(7, 701), end(7, a=2))

    assert source.lsns() == [756]


def test_a_row_read_twice_does_not_stand_for_a_missing_one(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=2))
    source.row("a/0", row(7, 1), row(7, 1))
    assert source.lsns() == []

    source.row("a/1", row(7, 2))
    (cut,) = source.cuts()

    assert cut.repeated == {756}


def test_tombstones_take_an_offset_and_carry_nothing(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=1))
    source.row("a/0", row(7, 1), None)

    (cut,) = source.cuts()

    assert cut.end_offsets[A] == (2, 0)


def test_a_later_transaction_waits_for_an_earlier_one(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=1), begin_value(8, 801), end(8, b=1))
    source.row("b/0", row(8, 1, table="b"))
    assert source.cuts() == []

    source.row("a/0", row(7, 1))

    assert source.lsns() == [756, 856]


def test_end_offsets_stop_at_rows_of_later_transactions(source: FedSource) -> None:
    source.row("a/0", row(7, 1), row(8, 1), row(9, 1))
    source.tell(begin_value(7, 701), end(7, a=1), begin_value(8, 801), end(8, a=1))

    (cut,) = source.cuts()

    assert [t.xid for t in cut.transactions] == [7, 8]
    assert cut.end_offsets[A] == (2, 0)


def test_a_transaction_without_events_moves_the_frontier_but_is_in_no_table(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7))

    (cut,) = source.cuts()

    assert (cut.lsn, cut.transactions) == (756, ())


def test_tables_that_are_not_followed_are_not_waited_for() -> None:
    source = FedSource(tables=frozenset({"inv.a"}))
    source.tell(begin_value(7, 701), end(7, a=1, other=5))
    source.row("a/0", row(7, 1))

    (cut,) = source.cuts()

    assert cut.event_count == 1


def test_a_followed_table_without_topic_is_waited_for_and_named(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, new=1))

    assert source.cuts() == []
    assert source.frontier.missing_tables() == ["inv.new"]
    assert "inv.new" in source.frontier.open_transactions()[0].hint

    source.parts["new"] = source.frontier.add_partition("s.inv.new", 0, 0)
    source.row("new", row(7, 1, table="new"))

    assert source.lsns() == [756]


def test_logical_messages_are_counted_by_nobody(source: FedSource) -> None:
    message = (
        "io.debezium.connector.postgresql.LogicalDecodingMessageMonitor$LogicalDecodingMessageId@6f568b2d"
    )
    source.tell(begin_value(7, 701), end_value(7, 756, {message: 1, "inv.a": 1}))
    source.row("a/0", row(7, 1))

    assert source.lsns() == [756]


def test_the_first_end_wins_over_a_later_one_that_counts_less(source: FedSource) -> None:
    source.ends[A, 0] = 2
    source.tell(begin_value(7, 701), end(7, a=2), begin_value(7, 701), end(7))
    source.row("a/0", row(7, 1))
    assert source.lsns() == []

    source.row("a/0", row(7, 2))

    assert source.lsns() == [756]


def test_a_repeat_of_a_published_transaction_is_named_by_the_next_cut(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=1))
    source.row("a/0", row(7, 1))
    source.cuts()

    source.row("a/0", row(7, 1), run="r2")
    source.tell(begin_value(7, 701), end(7, a=1), begin_value(8, 801), end(8, a=1))
    source.row("a/0", row(8, 1), run="r2")
    (cut,) = source.cuts()

    assert [t.xid for t in cut.transactions] == [8]
    assert cut.repeated == {756}
    assert source.frontier.open_transactions() == []


def renumbered(source: FedSource) -> None:
    """Run 1 writes rows 1 to 3 of four; run 2 begins again with row 3 as number 1 and counts 2 in END."""
    source.tell(begin_value(7, 701), ms=1)
    source.row("a/0", row(7, 1, lsn=701), row(7, 2, lsn=702), ms=2)
    source.row("a/1", row(7, 3, lsn=703), ms=2)
    source.tell(begin_value(7, 701), end(7, a=2), ms=5)


def test_rows_of_an_earlier_numbering_do_not_complete_a_transaction(source: FedSource) -> None:
    renumbered(source)

    assert source.lsns() == []

    source.row("a/0", row(7, 1, lsn=703), run="r2", ms=5)
    assert source.lsns() == []

    source.row("a/1", row(7, 2, lsn=704), run="r2", ms=5)
    (cut,) = source.cuts()
    assert cut.repeated == {756}


def test_a_run_that_wrote_more_rows_than_end_counts_has_not_written_the_last_numbering(
    source: FedSource,
) -> None:
    source.tell(begin_value(7, 701), ms=1)
    source.row("a/0", row(7, 1), row(7, 2), row(7, 3), ms=6)

    source.tell(begin_value(7, 701), end(7, a=2), ms=5)

    assert source.lsns() == []


def test_a_renumbered_transaction_waits_until_everything_older_than_end_is_read(source: FedSource) -> None:
    source.tell(begin_value(7, 701), ms=1)
    source.tell(begin_value(7, 701), end(7, a=2), ms=5)
    source.row("a/1", row(7, 1, lsn=702), row(7, 2, lsn=703), run="r2", ms=6)
    source.ends = {(A, 0): 1, (A, 1): 2}
    assert source.cuts() == []

    source.row("a/0", row(7, 1, lsn=701), ms=2)

    assert source.lsns() == [756]


def test_end_that_counts_nothing_still_publishes_rows_of_the_run_before(source: FedSource) -> None:
    source.tell(begin_value(7, 701))
    source.row("a/0", row(7, 1))
    source.tell(begin_value(7, 701), end(7))

    (cut,) = source.cuts()

    assert [t.xid for t in cut.transactions] == [7]


def test_without_run_headers_a_renumbered_transaction_waits_for_traffic_in_all_partitions(
    source: FedSource,
) -> None:
    source.tell(begin_value(7, 701), begin_value(7, 701), end(7, a=1))
    source.row("a/0", row(7, 1), run="")
    assert source.lsns() == []

    source.row("a/0", row(8, 1), run="")
    source.row("a/1", row(8, 2), run="")
    source.row("b/0", row(8, 1, table="b"), run="")
    source.row("b/1", row(8, 2, table="b"), run="")
    source.tell(begin_value(8, 801), end(8, a=2, b=2))

    assert source.lsns() == [756, 856]


@pytest.mark.parametrize("repeated_begin_is_read", [False, True])
def test_without_run_headers_rows_of_two_numberings_do_not_fill_each_others_gaps(
    source: FedSource, *, repeated_begin_is_read: bool
) -> None:
    """Run 1 writes rows 1 and 3 of three and loses row 2; run 2 begins again with row 2 as number 1."""
    source.tell(begin_value(7, 701), end(7, a=3), ms=1)
    source.row("a/0", row(7, 1, lsn=701), row(7, 3, lsn=703), run="", ms=1)
    if repeated_begin_is_read:
        source.tell(begin_value(7, 701), ms=5)

    source.row("a/0", row(7, 2, lsn=703), run="", ms=6)

    assert source.lsns() == [], "row 2 was not read"


def test_without_run_headers_rows_of_an_earlier_numbering_do_not_complete_a_transaction(
    source: FedSource,
) -> None:
    """Run 1 writes rows 1 and 2 of four; run 2 begins again with row 3 as number 1 and counts 2 in END."""
    source.tell(begin_value(7, 701), ms=1)
    source.row("a/0", row(7, 1, lsn=701), run="", ms=2)
    source.row("a/1", row(7, 2, lsn=702), run="", ms=2)
    source.tell(begin_value(7, 701), end(7, a=2), ms=5)

    source.row("a/0", row(7, 1, lsn=703), run="", ms=6)

    assert source.lsns() == [], "row 4 was not read"


@pytest.mark.parametrize("ms", [0, 1])
def test_starts_of_numberings_do_not_tell_which_run_is_the_last(source: FedSource, ms: int) -> None:
    """The connector does not repeat BEGIN when it has stored that the transaction is open.

    Run 1 writes BEGIN and row 1 of three; run 2, without BEGIN, rows 1 and 2; run 3 begins again with row 2
    as number 1.
    """
    source.tell(begin_value(7, 701), ms=1 * ms)
    source.row("a/0", row(7, 1, lsn=701), run="r1", ms=2 * ms)
    source.row("a/0", row(7, 1, lsn=701), row(7, 2, lsn=702), run="r2", ms=3 * ms)
    source.tell(begin_value(7, 701), end(7, a=2), ms=5 * ms)

    assert source.lsns() == [], "row 3 was not read"


def test_rows_of_a_run_with_header_are_not_those_of_a_later_run_without(source: FedSource) -> None:
    """Run 1 writes rows 1 and 2 of three; run 2, without headers, begins again with row 2 as number 1."""
    source.tell(begin_value(7, 701), ms=1)
    source.row("a/0", row(7, 1, lsn=701), row(7, 2, lsn=702), ms=2)
    source.tell(begin_value(7, 701), end(7, a=2), ms=5)

    source.row("a/0", row(7, 1, lsn=702), run="", ms=6)

    assert source.lsns() == [], "row 3 was not read"


def test_bad_input_stops_cuts_in_front_of_it(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=1), begin_value(8, 801), end(8, a=1))
    source.row("a/0", row(7, 1), b"garbage", row(8, 1))

    (cut,) = source.cuts()

    assert [t.xid for t in cut.transactions] == [7]
    assert cut.end_offsets[A] == (1, 0)
    (obstacle,) = source.frontier.obstacles
    assert (obstacle.topic, obstacle.partition, obstacle.offset) == (A, 0, 1)
    assert not obstacle.is_misconfiguration


def test_a_change_without_transaction_is_a_misconfiguration(source: FedSource) -> None:
    document = {**json.loads(row(7, 1)), "transaction": None}
    source.row("a/0", json.dumps(document).encode())

    (obstacle,) = source.frontier.obstacles

    assert obstacle.is_misconfiguration
    assert "provide.transaction.metadata=true" in str(obstacle)


def test_an_unreadable_transaction_record_stops_the_frontier(source: FedSource) -> None:
    source.tell(begin_value(7, 701), b"garbage", end(7, a=1))
    source.row("a/0", row(7, 1))

    assert source.cuts() == []
    assert source.frontier.obstacles[0].topic == "s.transaction"


def snapshot_rows(source: FedSource, lsn: int, counts: Mapping[str, int], *, last: bool = False) -> None:
    for spot, count in counts.items():
        table = f"inv.{spot[0]}"
        for number in range(count):
            marker = "last" if last and number == count - 1 else "true"
            source.row(spot, snapshot_value(table, lsn, {"id": number}, snapshot=marker, ts_ms=3))


def test_a_snapshot_is_published_when_the_counts_of_its_notifications_are_read(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 3, "inv.b": 0}))
    snapshot_rows(source, 500, {"a/0": 2})
    assert source.cuts() == []

    snapshot_rows(source, 500, {"a/1": 1})
    (cut,) = source.cuts()

    assert cut.transactions == (CommittedTransaction(SNAPSHOT_XID, 500, 3),)
    assert (cut.lsn, cut.event_count, cut.end_offsets) == (500, 3, {A: (2, 1), B: (0, 0)})


def test_a_snapshot_has_a_cut_of_its_own(source: FedSource) -> None:
    """An ad hoc one of an idle database has the same LSN, and its rows are late: no batch must hold both."""
    source.notify(*snapshot_notifications({"inv.a": 1, "inv.b": 0}))
    snapshot_rows(source, 500, {"a/0": 1})
    source.tell(begin_value(7, 701), end(7, b=1))
    source.row("b/0", row(7, 1, table="b"))

    assert [(cut.previous_lsn, cut.lsn) for cut in source.cuts()] == [(0, 500), (500, 756)]


def test_streamed_transactions_do_not_pass_an_incomplete_snapshot(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 2}))
    snapshot_rows(source, 500, {"a/0": 1})
    source.tell(begin_value(7, 701), end(7, b=1))
    source.row("b/0", row(7, 1, table="b"))
    assert source.cuts() == []

    source.row("a/0", snapshot_value("inv.a", 500, {"id": 1}, ts_ms=3))

    assert source.lsns() == [500, 756]


def test_the_first_transaction_waits_until_every_partition_has_shown_that_no_snapshot_comes(
    source: FedSource,
) -> None:
    source.tell(begin_value(7, 701), end(7, b=1))
    source.row("b/0", row(7, 1, table="b"))
    source.frontier.advance()
    assert source.frontier.end_offsets_wanted
    source.frontier.end_offsets({(A, 0): 0, (A, 1): 2, (B, 0): 1})
    assert source.lsns() == []

    source.row("a/1", row(8, 1))

    assert source.lsns() == [756]


def test_an_interrupted_snapshot_is_void(source: FedSource) -> None:
    source.notify(notification_value("STARTED"))
    snapshot_rows(source, 500, {"a/0": 2, "b/0": 1})
    source.notify(*snapshot_notifications({"inv.a": 2}))
    snapshot_rows(source, 600, {"a/0": 2})
    source.cuts()

    (cut,) = source.at_rest()

    assert [(t.xid, t.commit_lsn) for t in cut.transactions] == [(SNAPSHOT_XID, 600)]
    assert cut.event_count == 2


def test_a_snapshot_of_empty_tables_blocks_nothing(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 0, "inv.b": 0}))
    source.tell(begin_value(7, 701), end(7, a=1))
    source.row("a/0", row(7, 1))

    assert source.lsns() == [756]


def test_a_row_of_a_snapshot_that_was_written_twice_does_not_stand_for_a_missing_one(
    source: FedSource,
) -> None:
    source.notify(*snapshot_notifications({"inv.a": 2}))
    doubled = snapshot_value("inv.a", 500, {"id": 1})
    source.row("a/0", doubled, doubled)
    assert source.lsns() == []

    source.row("a/1", snapshot_value("inv.a", 500, {"id": 2}))
    (cut,) = source.cuts()
    assert cut.event_count == 2
    assert cut.repeated == {500}


def test_a_row_of_a_snapshot_that_comes_again_behind_its_cut_is_named(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    doubled = snapshot_value("inv.a", 500, {"id": 1})
    source.row("a/0", doubled)
    assert source.lsns() == [500]

    source.row("a/0", doubled, row(7, 1))
    source.tell(end(7, a=1))
    (cut,) = source.cuts()
    assert cut.repeated == {500}


def unannounced_snapshot(source: FedSource, *, written_at: int) -> None:
    source.row("a/0", snapshot_value("inv.a", 500, {"id": 1}), ms=written_at)
    source.row("b/0", snapshot_value("inv.b", 500, {"id": 2}, snapshot="last"), ms=written_at)


def test_without_notifications_a_snapshot_ends_when_a_row_can_no_longer_be_on_its_way(
    source: FedSource,
) -> None:
    unannounced_snapshot(source, written_at=1_000)
    source.tell(end(7, a=1), ms=30_000)
    source.row("a/0", row(7, 1), ms=30_000)
    assert source.lsns() == [], "rows of partition 1 may become readable yet"

    source.tell(end(8, a=1), ms=31_000)
    source.ends = {(A, 1): 1}
    assert source.lsns() == [], "something is written that was not read"

    source.row("a/1", snapshot_value("inv.a", 500, {"id": 3}), ms=1_000)
    assert source.lsns() == [500, 756]


def test_without_notifications_a_snapshot_ends_when_the_source_is_at_rest(source: FedSource) -> None:
    unannounced_snapshot(source, written_at=1_000)
    assert source.lsns() == []

    (cut,) = source.at_rest()
    assert [t.commit_lsn for t in cut.transactions] == [500]


def test_a_topic_of_notifications_must_say_that_the_snapshot_is_over(source: FedSource) -> None:
    unannounced_snapshot(source, written_at=1_000)
    source.ends = {("s.notifications", 0): 0}
    assert source.at_rest() == []

    source.notify(*snapshot_notifications({"inv.a": 1, "inv.b": 1}))
    assert source.lsns() == [500]


def test_a_row_that_comes_again_in_an_added_partition_is_looked_for_exactly(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7, a=2))
    source.row("a/0", row(7, 1))
    assert source.lsns() == []
    source.parts["a/2"] = source.frontier.add_partition(A, 2, 0)

    source.row("a/2", row(7, 2), run="r2")

    assert source.lsns() == [], "it may be the first row under another number"


def test_that_a_topic_has_grown_is_known_however_late_it_is_declared() -> None:
    """Seen to fail while only the topics that were declared before the frontier moved were remembered."""
    frontier = Frontier("s", partition_counts={A: 1})
    frontier.advance()

    first, added = (frontier.add_partition(A, number, 0) for number in (0, 1))

    assert first.has_new_siblings
    assert added.has_new_siblings


def test_more_than_ten_thousand_transactions_become_several_cuts(source: FedSource) -> None:
    count = MAX_TRANSACTIONS_PER_CUT + 5
    for xid in range(1, count + 1):
        begin, rows, commit = transaction_values(xid, xid * 100, [("inv.a", {"id": xid})])
        source.row("a/0", rows[0][1])
        source.tell(begin, commit)

    first, second = source.cuts()

    assert (len(first.transactions), len(second.transactions)) == (MAX_TRANSACTIONS_PER_CUT, 5)
    assert first.end_offsets[A] == (MAX_TRANSACTIONS_PER_CUT, 0)
    assert second.previous_lsn == first.lsn


def resumed() -> FedSource:
    begun = FedSource()
    begun.tell(begin_value(7, 701), end(7, a=1))
    begun.row("a/0", row(7, 1), row(8, 1))
    (cut,) = begun.cuts()
    return FedSource(start=cut, done=cut.transactions)


def test_a_resumed_frontier_goes_on_where_the_cut_ended() -> None:
    source = resumed()
    source.row("a/0", row(8, 1))
    source.tell(begin_value(8, 801), end(8, a=1))

    (cut,) = source.cuts()

    assert (cut.previous_lsn, cut.lsn, cut.event_count) == (756, 856, 2)


def test_a_resumed_frontier_recognises_repeats_of_what_the_cut_holds() -> None:
    source = resumed()
    source.row("a/1", row(7, 1), row(8, 1), run="r2")
    source.tell(begin_value(8, 801), end(8, a=1))

    assert source.lsns() == [856]


def test_a_resumed_frontier_recognises_older_repeats_by_their_end() -> None:
    source = resumed()
    source.row("a/1", row(5, 1), row(8, 1), run="r2")
    source.tell(begin_value(8, 801), end(8, a=1))
    assert source.lsns() == []

    source.tell(begin_value(5, 501), end(5, a=1))
    assert source.lsns() == [856]


def test_commits_that_go_back_are_counted_for_whoever_watches(source: FedSource) -> None:
    source.tell(begin_value(7, 701), end(7))
    source.cuts()

    source.tell(*(end(x) for x in (3, 4, 5)))
    assert source.frontier.stale_end_count == 3

    source.tell(end(8))
    assert source.frontier.stale_end_count == 0
