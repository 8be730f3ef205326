"""Tables without a complete snapshot: cuts name their topics, and a source without any has no cut."""

import json

import pytest

from slackwater.cdc.initial_snapshot import ALL_TABLES
from slackwater.protocol import Cut
from slackwater_lab.debezium.fed_source import SECOND, FedSource, blocking_row, end, row, snapshot_row
from slackwater_lab.debezium.records import (
    begin_value,
    incremental_value,
    notification_value,
    snapshot_notifications,
)

A, B = "s.inv.a", "s.inv.b"
NONE: frozenset[str] = frozenset()


@pytest.fixture
def source() -> FedSource:
    return FedSource(complete_tables=NONE)


def announced(kind: str, ts_ms: int = SECOND) -> bytes:
    return notification_value(kind, ts_ms=ts_ms)


def incremental_scan(table: str, status: str, ts_ms: int) -> bytes:
    fields = json.loads(notification_value("TABLE_SCAN_COMPLETED", ts_ms=ts_ms, scanned_collection=table))
    fields["additional_data"]["status"] = status
    return json.dumps(fields | {"aggregate_type": "Incremental Snapshot"}).encode()


def commit(source: FedSource, xid: int, *, table: str = "a", ms: int = 2 * SECOND) -> None:
    source.row(f"{table}/0", row(xid, table=table))
    source.tell(end(xid, ts_ms=ms, **{table: 1}), ms=ms)


def named(cuts: list[Cut]) -> list[tuple[int, tuple[str, ...]]]:
    return [(cut.lsn, cut.without_snapshot) for cut in cuts]


def with_snapshot_of_a(source: FedSource) -> FedSource:
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=SECOND))
    source.row("a/0", snapshot_row(400, ts_ms=SECOND))
    assert named(source.cuts()) == [(400, (B,))], "topic b is there, and nothing says what its table holds"
    return source


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        (["SKIPPED"], "skipped its first snapshot"),
        (["STARTED", "ABORTED", "SKIPPED"], "failed in its first snapshot, and skipped it"),
        (["STARTED", "SKIPPED"], "failed in its first snapshot, and skipped it"),
        (["STARTED", "ABORTED"], "has not announced that it is complete"),
        (["STARTED"], "has not announced that it is complete"),
    ],
)
def test_a_source_without_a_complete_snapshot_has_no_cut_and_says_so(
    source: FedSource, kinds: list[str], reason: str
) -> None:
    source.notify(*map(announced, kinds))
    commit(source, 7)

    assert source.cuts() == source.at_rest() == []
    assert reason in source.frontier.missing_snapshot


def test_a_skipped_transaction_does_not_pass_before_the_first_snapshot(source: FedSource) -> None:
    """A decision about a transaction says nothing about the rows that the tables had before."""
    source.notify(announced("STARTED"))
    source.tell(end(7, ts_ms=2 * SECOND, a=1), ms=2 * SECOND)
    source.frontier.skip_to(756)

    assert source.cuts() == source.at_rest() == []
    assert "has not announced that it is complete" in source.frontier.missing_snapshot

    source.notify(*snapshot_notifications({"inv.a": 1, "inv.b": 0}, ts_ms=SECOND)[1:])
    source.row("a/0", snapshot_row(400, ts_ms=SECOND))
    assert [(cut.lsn, cut.skipped) for cut in source.cuts()] == [(400, ()), (756, (7,))]


def test_an_operator_may_name_tables_that_were_empty() -> None:
    source = FedSource(complete_tables=frozenset({"inv.a"}))
    source.notify(announced("SKIPPED"))
    commit(source, 7)

    assert named(source.cuts()) == [(756, (B,))]


def test_all_later_tables_are_accepted_only_of_a_connector_that_began_with_a_snapshot() -> None:
    source = FedSource(complete_tables=frozenset({ALL_TABLES}))
    source.notify(*snapshot_notifications({"inv.a": 0}, ts_ms=SECOND))
    commit(source, 7, table="b")
    assert named(source.cuts()) == [(756, ())]

    skipped = FedSource(complete_tables=frozenset({ALL_TABLES}))
    skipped.notify(announced("SKIPPED"))
    commit(skipped, 7, table="b")
    assert skipped.cuts() == []

    skipped.notify(*snapshot_notifications({"inv.a": 0}, ts_ms=3 * SECOND))
    assert named(skipped.cuts()) == [(756, (B,))], "a later snapshot, of another table"


def test_a_snapshot_that_is_taken_after_a_skipped_one_contains_what_was_committed_before(
    source: FedSource,
) -> None:
    source.notify(announced("SKIPPED"))
    commit(source, 3)
    assert source.cuts() == []

    source.notify(*snapshot_notifications({"inv.a": 1, "inv.b": 0}, ts_ms=9 * SECOND))
    source.row("a/0", snapshot_row(400, ts_ms=9 * SECOND))
    commit(source, 7, ms=60 * SECOND)

    assert named(source.cuts()) == [(756, ())]


def test_what_an_interrupted_stream_left_unfinished_does_not_hold_back_the_rows_of_the_snapshot(
    source: FedSource,
) -> None:
    source.notify(announced("SKIPPED"))
    commit(source, 3)
    source.row("a/0", row(4))
    source.notify(*snapshot_notifications({"inv.a": 1, "inv.b": 0}, ts_ms=9 * SECOND))
    source.row("a/0", snapshot_row(500, ts_ms=9 * SECOND))
    commit(source, 7, ms=60 * SECOND)

    (cut,) = source.cuts()
    assert (cut.lsn, cut.end_offsets[A][0]) == (756, 4), "the stream never continues with transaction 4"


def test_a_source_may_begin_with_incremental_snapshots(source: FedSource) -> None:
    source.notify(announced("SKIPPED"), incremental_scan("inv.a", "EMPTY", 3 * SECOND))
    commit(source, 7)

    assert named(source.cuts()) == [(756, (B,))]


def test_tables_of_which_a_snapshot_found_no_row_are_complete(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 0, "inv.b": 0}, ts_ms=SECOND))
    commit(source, 7)

    assert named(source.cuts()) == [(756, ())]


def test_a_snapshot_of_which_no_row_can_be_read_does_not_count(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 2, "inv.b": 0}, ts_ms=SECOND))
    commit(source, 7, ms=60 * SECOND)

    assert named(source.cuts()) == [(756, (A,))]
    assert source.frontier.without_snapshot == {A: "0 of the 2 rows of the snapshot of inv.a can be read"}


def test_a_table_that_is_added_without_a_snapshot_is_named_and_holds_nothing_else_up(
    source: FedSource,
) -> None:
    with_snapshot_of_a(source)
    commit(source, 6, table="b")
    commit(source, 7)

    assert named(source.cuts()) == [(756, (B,))]
    assert source.frontier.without_snapshot == {B: "no completed snapshot contains inv.b"}


def test_a_later_snapshot_of_a_table_counts_when_all_its_rows_are_in_a_cut(source: FedSource) -> None:
    with_snapshot_of_a(source)
    commit(source, 5, table="b")
    source.notify(*snapshot_notifications({"inv.b": 2}, ts_ms=9 * SECOND))
    source.row("b/1", blocking_row(1, read_at=9 * SECOND).replace(b'"a"', b'"b"'))
    commit(source, 6, ms=60 * SECOND)
    assert named(source.cuts())[-1] == (656, (B,)), "one of its two rows is missing"

    source.row("b/0", blocking_row(2, read_at=9 * SECOND).replace(b'"a"', b'"b"'))
    commit(source, 7, ms=61 * SECOND)
    assert named(source.cuts())[-1] == (756, ())


def test_a_table_that_is_shown_stays_shown_while_a_later_snapshot_of_it_is_read(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1, "inv.b": 0}, ts_ms=SECOND))
    source.row("a/0", snapshot_row(400, ts_ms=SECOND))
    assert named(source.cuts()) == [(400, ())]

    source.notify(*snapshot_notifications({"inv.b": 2}, ts_ms=9 * SECOND))
    commit(source, 7, table="b", ms=60 * SECOND)
    assert named(source.cuts()) == [(756, ())]


def test_a_table_that_was_empty_at_first_is_shown_while_a_later_snapshot_of_it_is_read(
    source: FedSource,
) -> None:
    source.notify(*snapshot_notifications({"inv.a": 0, "inv.b": 0}, ts_ms=SECOND))
    source.row("b/1", row(9, table="b"), incremental_value("inv.b", {"id": 1}))
    commit(source, 7)

    assert named(source.cuts())[-1] == (756, ()), "the stream has all rows since the first snapshot"


def test_a_snapshot_of_no_table_begins_a_source_and_every_table_is_named(source: FedSource) -> None:
    source.notify(*snapshot_notifications({}, ts_ms=SECOND))
    commit(source, 7)

    assert named(source.cuts()) == [(756, (A, B))]


def test_without_notifications_a_source_has_no_cut_and_says_which_settings_are_missing(
    source: FedSource,
) -> None:
    commit(source, 7)

    assert source.cuts() == source.at_rest() == []
    assert "notification.enabled.channels=sink" in source.frontier.missing_snapshot
    assert "notification.sink.topic.name=s.notifications" in source.frontier.missing_snapshot


def test_without_notifications_a_snapshot_counts_for_the_tables_whose_rows_it_has_up_to_the_last(
    source: FedSource,
) -> None:
    rows = snapshot_row(400, ts_ms=SECOND), snapshot_row(400, 2, ts_ms=SECOND, mark="last")
    source.row("a/0", *rows, ms=SECOND)
    commit(source, 6, table="b")
    commit(source, 7, ms=60 * SECOND)

    assert [cut[1] for cut in named(source.cuts())] == [(B,), (B,)]
    reason = source.frontier.without_snapshot[B]
    assert "no completed snapshot contains inv.b" in reason
    assert "notification.enabled.channels=sink" in reason


def test_without_notifications_a_snapshot_whose_last_row_is_missing_is_not_shown(source: FedSource) -> None:
    for spot in ("a/0", "a/1", "b/0", "b/1"):
        source.row(spot, snapshot_row(400, ts_ms=SECOND, table=spot[0]), row(5, table=spot[0]), ms=SECOND)
    source.tell(end(5, a=2, b=2), end(6), ms=90 * SECOND)

    assert source.cuts() == source.at_rest() == []
    assert "the row that ends it was not read" in source.frontier.open_transactions()[0].hint


def test_without_notifications_commits_below_the_first_snapshot_are_contained_in_it(
    source: FedSource,
) -> None:
    commit(source, 3)
    assert source.cuts() == []

    source.row("a/0", snapshot_row(400, ts_ms=SECOND, mark="last"), ms=2 * SECOND)
    commit(source, 7, ms=60 * SECOND)
    assert [t.commit_lsn for cut in source.cuts() for t in cut.transactions] == [400, 756]


def test_all_later_tables_are_accepted_without_notifications_behind_a_snapshot_with_its_last_row() -> None:
    source = FedSource(complete_tables=frozenset({ALL_TABLES}))
    commit(source, 5, table="b")
    assert source.cuts() == []

    source.row("a/0", snapshot_row(600, ts_ms=SECOND, mark="last"), ms=SECOND)
    commit(source, 7, ms=60 * SECOND)
    cuts = source.cuts()
    assert [cut[1] for cut in named(cuts)] == [(), ()]

    later = FedSource(start=cuts[-1], complete_tables=frozenset({ALL_TABLES}))
    later.parts["c/0"] = later.frontier.add_partition("s.inv.c", 0, 0)
    commit(later, 8, table="c", ms=61 * SECOND)
    assert named(later.cuts()) == [(856, ())]


def test_later_tables_are_not_accepted_without_notifications_while_no_snapshot_has_been_read() -> None:
    source = FedSource(complete_tables=frozenset({ALL_TABLES, "inv.a"}))
    commit(source, 7, table="b")

    assert named(source.cuts()) == [(756, (B,))]


def test_a_source_that_a_service_writes_needs_no_snapshot(source: FedSource) -> None:
    source.tell(begin_value(7, 756))
    commit(source, 7)

    assert named(source.cuts()) == [(756, ())]


def test_begin_and_end_of_two_transactions_do_not_tell_that_a_service_writes_them(source: FedSource) -> None:
    source.tell(begin_value(6, 756), begin_value(7, 656))
    commit(source, 7)

    assert source.cuts() == []


def test_an_incremental_snapshot_counts_when_its_rows_are_read_and_in_a_cut(source: FedSource) -> None:
    with_snapshot_of_a(source)
    commit(source, 5, table="b")
    source.row("b/1", row(9, table="b"), incremental_value("inv.b", {"id": 1}))
    source.notify(incremental_scan("inv.b", "SUCCEEDED", 3 * SECOND))
    commit(source, 7, ms=4 * SECOND)
    assert named(source.cuts())[-1] == (756, (B,)), "rows may be on their way"

    commit(source, 8, ms=40 * SECOND)
    assert named(source.cuts())[-1] == (856, (B,)), "the row of 9 precedes a row of the snapshot"

    source.tell(end(9, b=1, ts_ms=41 * SECOND), ms=41 * SECOND)
    assert named(source.cuts())[-1] == (956, ())


def test_rows_of_a_later_snapshot_have_half_a_minute_to_become_readable(source: FedSource) -> None:
    with_snapshot_of_a(source)
    source.row("b/1", incremental_value("inv.b", {"id": 1}))
    source.notify(incremental_scan("inv.b", "SUCCEEDED", 3 * SECOND))
    for xid, ms, topics in ((7, 33 * SECOND - 1, (B,)), (8, 33 * SECOND, ())):
        commit(source, xid, ms=ms)
        assert named(source.cuts())[-1][1] == topics


@pytest.mark.parametrize(("status", "is_named"), [("EMPTY", False), ("UNKNOWN_SCHEMA", True)])
def test_an_incremental_snapshot_says_what_became_of_a_table(
    source: FedSource, status: str, *, is_named: bool
) -> None:
    with_snapshot_of_a(source)
    source.notify(incremental_scan("inv.b", status, 3 * SECOND))
    commit(source, 7, ms=4 * SECOND)

    assert named(source.cuts()) == [(756, (B,) if is_named else ())]


def test_a_frontier_that_goes_on_from_a_cut_names_what_that_named() -> None:
    source = FedSource(complete_tables=NONE)
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=SECOND))
    source.row("a/0", snapshot_row(400, ts_ms=SECOND))
    (start,) = source.cuts()

    resumed = FedSource(start=start, complete_tables=NONE)
    resumed.notify(announced("SKIPPED", 5 * SECOND))
    commit(resumed, 7)

    assert named(resumed.cuts()) == [(756, (B,))], "only the cut tells of the snapshot"


def test_a_frontier_that_goes_on_reads_the_notifications_before_it_judges_a_topic() -> None:
    source = FedSource(complete_tables=NONE)
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=SECOND))
    source.row("a/0", snapshot_row(400, ts_ms=SECOND))
    (start,) = source.cuts()

    resumed = FedSource(start=start, complete_tables=NONE)
    resumed.ends = {("s.notifications", 0): 1}
    commit(resumed, 7)
    assert resumed.cuts() == []

    resumed.notify(announced("SKIPPED", 5 * SECOND))
    assert named(resumed.cuts()) == [(756, (B,))]
