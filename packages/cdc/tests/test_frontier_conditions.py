"""Conditions of the frontier, each where leaving it out shows."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from slackwater_cdc import Frontier, Partition, frontier
from slackwater_cdc.context import DoneTransactions
from slackwater_cdc.testing import (
    begin_value,
    change_value,
    end_value,
    notification_value,
    snapshot_notifications,
    snapshot_value,
)
from slackwater_protocol import CommittedTransaction, Cut, Evidence

SECOND = 1000


class Source:
    """A frontier over tables a and b, two partitions each, and what was given to it."""

    def __init__(
        self,
        evidence: Mapping[str, Evidence] | None = None,
        *,
        start: Cut | None = None,
        tables: frozenset[str] | None = None,
    ) -> None:
        self.frontier = Frontier("s", evidence=evidence, start=start, tables=tables)
        self.parts: dict[str, Partition] = {}
        for table in "ab":
            for number in (0, 1):
                first = start.end_offsets[f"s.inv.{table}"][number] if start else 0
                self.parts[f"{table}/{number}"] = self.frontier.add_partition(f"s.inv.{table}", number, first)
        self.told = start.transaction_offset if start else 0
        self.notified = 0
        self.ends: dict[tuple[str, int], int] = {}
        """What is readable beyond what was read."""

    def row(self, spot: str, *values: bytes, run: str = "r1", ms: int = 0, keyless: bool = False) -> None:
        part = self.parts[spot]
        part.read(enumerate(values, part.position), run, timestamp_ms=ms, is_keyless=keyless)

    def tell(self, *values: bytes, ms: int = 0) -> None:
        self.frontier.read_transactions((o, v, ms) for o, v in enumerate(values, self.told))
        self.told += len(values)

    def notify(self, *values: bytes) -> None:
        self.frontier.read_notifications(enumerate(values, self.notified))
        self.notified += len(values)

    def readable(self) -> dict[tuple[str, int], int]:
        read = {p.key: p.position for p in self.parts.values()}
        return {**read, ("s.transaction", 0): self.told, **self.ends}

    def cuts(self) -> list[Cut]:
        self.frontier.advance()
        for _ in range(5):
            if self.frontier.end_offsets_wanted:
                self.frontier.end_offsets(self.readable())
            self.frontier.advance()
        return self.frontier.cuts()

    def at_rest(self) -> list[Cut]:
        found = []
        for _ in range(3):
            self.frontier.rest(self.readable())
            found += self.cuts()
        return found


def xids(cuts: list[Cut]) -> list[list[int]]:
    """The transactions of each cut."""
    return [[t.xid for t in cut.transactions] for cut in cuts]


def row(xid: int, order: int = 1, *, table: str = "a", total: int | None = None, op: str = "c") -> bytes:
    after = None if op == "t" else {"id": order}
    orders = order, total or order
    return change_value(f"inv.{table}", op, position=(xid, xid * 100 + order), orders=orders, after=after)


def end(xid: int, *, ts_ms: int = 0, lsn: int = 0, **counts: int) -> bytes:
    return end_value(xid, lsn or xid * 100 + 56, {f"inv.{t}": n for t, n in counts.items()}, ts_ms=ts_ms)


def snapshot_row(lsn: int, key: int = 1, *, ts_ms: int = 0, table: str = "a", mark: str = "true") -> bytes:
    return snapshot_value(f"inv.{table}", lsn, {"id": key}, snapshot=mark, ts_ms=ts_ms)


def blocking_row(key: int, *, read_at: int, lsn: int = 601) -> bytes:
    """A row of an ad hoc snapshot, read while the stream stood at an LSN."""
    fields = json.loads(snapshot_row(lsn, key))
    fields["source"]["sequence"] = f'["556","{lsn}"]'
    fields["ts_ms"] = read_at
    return json.dumps(fields).encode()


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def at_a_cut(source: Source) -> Source:
    """A source that has published transaction 5."""
    source.tell(begin_value(5, 501), end(5, a=2))
    source.row("a/0", row(5, 1))
    source.row("a/1", row(5, 2))
    assert xids(source.cuts()) == [[5]]
    return source


# --- initial snapshots


def test_a_commit_whose_rows_stand_behind_a_newer_snapshot_is_contained_in_it(source: Source) -> None:
    source.notify(notification_value("STARTED"))
    source.row("a/0", snapshot_row(900), row(7))
    source.tell(begin_value(7, 701), end(7, a=1))
    assert source.cuts() == []

    source.notify(*snapshot_notifications({"inv.a": 1})[1:])
    (cut,) = source.cuts()

    assert [t.commit_lsn for t in cut.transactions] == [900]
    assert source.frontier.open_transactions() == []


def test_a_commit_below_a_snapshot_whose_end_is_read_later_is_contained_in_it(source: Source) -> None:
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


def test_rows_of_an_interrupted_snapshot_met_behind_a_newer_ones_make_that_late(source: Source) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
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
    source: Source, after_ms: int, is_shown: bool
) -> None:
    source.notify(*snapshot_notifications({"inv.a": 2}))
    source.row("a/0", snapshot_row(400, ts_ms=SECOND))
    source.row("a/0", snapshot_row(480, 1, ts_ms=3 * SECOND), snapshot_row(480, 2, ts_ms=3 * SECOND))
    source.tell(end(5, ts_ms=3 * SECOND + after_ms))

    assert [cut.late_snapshots for cut in source.cuts()] == ([(480,)] if is_shown else [])


def test_a_repeated_snapshot_with_nothing_behind_it_is_exact_at_rest(source: Source) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", snapshot_row(400, ts_ms=2 * SECOND), snapshot_row(480, ts_ms=4 * SECOND))
    assert source.cuts() == []

    (cut,) = source.at_rest()
    assert (cut.lsn, cut.late_snapshots) == (480, ())


def test_a_repeated_snapshot_with_commits_behind_it_is_late_even_at_rest(source: Source) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", snapshot_row(400, ts_ms=2 * SECOND), snapshot_row(480, ts_ms=4 * SECOND), row(5))
    source.tell(end(5, a=1, ts_ms=3 * SECOND))
    assert source.cuts() == []

    (cut,) = source.at_rest()
    assert (cut.lsn, cut.late_snapshots, xids([cut])) == (556, (480,), [[5]])


def test_rows_of_tables_that_are_not_followed_are_no_part_of_a_snapshot() -> None:
    source = Source(tables=frozenset({"inv.a"}))
    source.notify(*snapshot_notifications({"inv.a": 1, "inv.b": 7}))
    source.row("a/0", snapshot_row(480))
    source.row("b/0", snapshot_row(480, table="b"))

    (cut,) = source.cuts()
    assert cut.event_count == 1


def test_every_table_of_a_snapshot_is_waited_for(source: Source) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1, "inv.b": 1}))
    source.row("a/0", snapshot_row(480))
    assert source.cuts() == []

    source.row("b/0", snapshot_row(480, table="b"))
    assert [cut.event_count for cut in source.cuts()] == [2]


def test_a_snapshot_whose_end_was_not_announced_is_waited_for(source: Source) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1})[:-1])
    source.row("a/0", snapshot_row(480))
    assert source.cuts() == []

    source.notify(notification_value("COMPLETED"))
    assert [cut.lsn for cut in source.cuts()] == [480]


def test_an_end_that_may_stand_below_a_snapshot_is_read_before_it_passes(source: Source) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("b/0", row(4, table="b"))
    source.row("a/0", snapshot_row(480))
    source.ends = {("s.transaction", 0): 1}
    assert source.cuts() == []

    source.tell(end(4, b=1))
    assert [cut.lsn for cut in source.cuts()] == [480]
    assert source.frontier.lsn == 480


def test_rows_of_an_earlier_run_may_stand_where_none_of_a_snapshot_were_read(source: Source) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", snapshot_row(480, ts_ms=4 * SECOND))
    source.ends = {("s.inv.b", 1): 1}
    assert source.cuts() == []

    source.row("b/1", snapshot_row(400, table="b", ts_ms=2 * SECOND))
    assert source.cuts() == [], "it repeats an interrupted one"


def test_without_notifications_rest_ends_a_snapshot_only_behind_its_last_row(source: Source) -> None:
    source.row("a/0", snapshot_row(480))
    assert source.at_rest() == []

    source.row("a/0", snapshot_row(480, 2, mark="last"))
    assert [cut.event_count for cut in source.at_rest()] == [2]


def test_without_record_times_a_snapshot_without_notifications_is_never_long_over(source: Source) -> None:
    source.row("a/0", snapshot_row(480))
    source.tell(end(5), ms=60 * SECOND)

    assert source.cuts() == []


def test_two_written_copies_of_a_snapshots_row_are_told_once(source: Source) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", snapshot_row(480), snapshot_row(480))
    assert [cut.repeated for cut in source.cuts()] == [{480}]
    source.row("a/0", snapshot_row(480), row(5))
    source.tell(end(5, a=1))
    assert [cut.repeated for cut in source.cuts()] == [{480}]

    source.row("a/0", row(6))
    source.tell(end(6, a=1))
    assert [cut.repeated for cut in source.cuts()] == [frozenset()]


# --- late rows


@pytest.mark.parametrize(("after_ms", "is_shown"), [(SECOND, False), (SECOND + 1, True)])
def test_late_rows_wait_for_a_commit_newer_by_what_clocks_may_differ(
    at_a_cut: Source, after_ms: int, is_shown: bool
) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), row(6))
    at_a_cut.tell(end(6, a=1, ts_ms=9 * SECOND + after_ms))

    assert xids(at_a_cut.cuts()) == ([[6]] if is_shown else [])


def test_late_rows_are_as_new_as_the_newest_of_them(at_a_cut: Source) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), blocking_row(2, read_at=20 * SECOND), row(6))
    at_a_cut.tell(end(6, a=1, ts_ms=15 * SECOND))

    assert at_a_cut.cuts() == []


def test_late_rows_behind_others_that_have_their_commit_wait_for_one_of_their_own(at_a_cut: Source) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND))
    at_a_cut.row("b/0", row(7, table="b"))
    at_a_cut.tell(end(7, a=1, b=1, ts_ms=15 * SECOND))
    assert at_a_cut.cuts() == []
    at_a_cut.row("a/0", blocking_row(2, read_at=30 * SECOND), row(7))

    assert at_a_cut.cuts() == [], "the second row may hold what was committed after transaction 7"


def test_late_rows_of_two_snapshots_are_named_apart(at_a_cut: Source) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), blocking_row(2, read_at=9 * SECOND, lsn=609))
    at_a_cut.row("a/0", row(7))
    at_a_cut.tell(end(7, a=1, ts_ms=60 * SECOND))

    assert [cut.late_snapshots for cut in at_a_cut.cuts()] == [(601, 609)]


def test_late_rows_are_named_by_one_cut_only(at_a_cut: Source) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), row(7))
    at_a_cut.tell(end(7, a=1, ts_ms=60 * SECOND))
    at_a_cut.cuts()
    at_a_cut.row("a/0", row(8))
    at_a_cut.tell(end(8, a=1, ts_ms=60 * SECOND))

    assert [cut.late_snapshots for cut in at_a_cut.cuts()] == [()]


def test_what_has_to_stay_whole_is_not_split_however_many_transactions_it_holds(
    at_a_cut: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontier, "MAX_TRANSACTIONS_PER_CUT", 2)
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), *(row(xid) for xid in range(6, 13)))
    at_a_cut.tell(*(end(xid, a=1, ts_ms=60 * SECOND if xid == 9 else 0) for xid in range(6, 10)))
    assert xids(at_a_cut.cuts()) == [[6, 7, 8, 9]]

    at_a_cut.tell(*(end(xid, a=1, ts_ms=60 * SECOND) for xid in range(10, 13)))
    assert xids(at_a_cut.cuts()) == [[10, 11], [12]]


# --- evidence


def test_an_end_after_a_second_begin_may_name_too_few_tables_with_other_evidence() -> None:
    source = Source({"inv.b": Evidence.OVERTAKEN})
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
    source = Source({"inv.b": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=1))
    source.row("a/0", row(5))

    assert xids(source.cuts()) == [[5]]


def test_a_table_with_other_evidence_that_has_no_topic_is_not_waited_for_after_a_second_begin() -> None:
    source = Source({"inv.zzz": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), begin_value(5, 501), end(5))

    assert [cut.lsn for cut in source.cuts()] == [556]


def test_offsets_are_waited_for_in_every_partition_of_a_table() -> None:
    source = Source({"inv.a": Evidence.OFFSETS})
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


# --- what is told once


def test_what_was_skipped_and_repeated_is_told_by_one_cut_only(at_a_cut: Source) -> None:
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


def test_a_decision_to_skip_is_not_taken_back_by_a_lower_one(at_a_cut: Source) -> None:
    at_a_cut.frontier.skip_to(656)
    at_a_cut.frontier.skip_to(600)
    at_a_cut.tell(begin_value(6, 601), end(6, a=3))

    assert [cut.skipped for cut in at_a_cut.cuts()] == [(6,)]


def test_rows_of_an_incremental_snapshot_are_counted_by_one_cut(at_a_cut: Source) -> None:
    at_a_cut.row("a/0", snapshot_row(0, mark="incremental"))
    (first,) = at_a_cut.cuts()
    at_a_cut.tell(end(6, a=1))
    at_a_cut.row("a/0", row(6))
    (second,) = at_a_cut.cuts()

    assert (first.event_count, second.event_count) == (3, 4)


def test_a_transaction_of_which_end_counts_nothing_is_listed_if_rows_of_it_were_read(source: Source) -> None:
    source.tell(begin_value(7, 701), begin_value(7, 701), end(7))
    source.row("a/0", row(7))
    source.tell(end(8))

    (cut,) = source.cuts()
    assert cut.transactions == (CommittedTransaction(7, 756, 0),)


# --- going on from a cut


def test_a_frontier_that_goes_on_needs_no_end_offsets_for_its_first_transaction(source: Source) -> None:
    source.tell(begin_value(5, 501), end(5, a=1))
    source.row("a/0", row(5))
    (cut,) = source.cuts()
    going_on = Source(start=cut)
    going_on.tell(end(6, a=1))
    going_on.row("a/0", row(6))

    going_on.frontier.advance()
    assert (going_on.frontier.lsn, going_on.frontier.end_offsets_wanted) == (656, False)


def test_the_first_transaction_waits_until_notifications_were_read(source: Source) -> None:
    source.ends = {("s.notifications", 0): 3}
    source.tell(end(7, a=1))
    source.row("a/0", row(7))
    assert source.cuts() == []

    source.frontier.skip_notifications_to(3)
    source.frontier.skip_notifications_to(1)
    assert xids(source.cuts()) == [[7]]


# --- markers ahead of the frontier


def test_markers_wait_for_the_cuts_that_can_be_made(at_a_cut: Source) -> None:
    for xid in (6, 7, 8, 9):
        at_a_cut.tell(end(xid, a=2 if xid == 7 else 1))
        at_a_cut.row("a/0", row(xid))
    at_a_cut.frontier.advance()
    assert at_a_cut.frontier.markers_ahead() is None

    assert xids(at_a_cut.cuts()) == [[6]]
    assert at_a_cut.frontier.markers_ahead() is not None


def test_no_markers_run_ahead_before_the_first_cut(source: Source) -> None:
    for xid in (6, 7, 8):
        source.tell(end(xid, a=2 if xid == 6 else 1))
        source.row("a/0", row(xid))
    assert source.cuts() == []

    assert source.frontier.markers_ahead() is None


def test_no_markers_run_past_a_transaction_record_that_cannot_be_read(at_a_cut: Source) -> None:
    at_a_cut.tell(b"{", end(6, a=1), end(7, a=1), end(8, a=1))
    at_a_cut.row("a/0", row(6), row(7), row(8))
    assert at_a_cut.cuts() == []

    assert at_a_cut.frontier.markers_ahead() is None


def test_repeats_of_published_transactions_are_named_beside_the_markers(at_a_cut: Source) -> None:
    at_a_cut.row("a/0", row(5))
    for xid in (6, 7, 8):
        at_a_cut.tell(end(xid, a=2 if xid == 6 else 1))
        at_a_cut.row("a/0", row(xid))

    ahead = at_a_cut.frontier.markers_ahead()
    assert ahead is not None
    assert ahead.repeated == {556}


def test_a_partition_that_saw_one_transaction_above_the_cut_is_not_ahead(at_a_cut: Source) -> None:
    at_a_cut.tell(end(6, a=2))
    at_a_cut.row("a/0", row(6))

    assert at_a_cut.frontier.markers_ahead() is None


def test_no_markers_run_past_a_snapshot_that_waits(at_a_cut: Source) -> None:
    for xid in (6, 7, 8):
        at_a_cut.tell(end(xid, a=2 if xid == 6 else 1))
        at_a_cut.row("a/0", row(xid))
    at_a_cut.row("b/0", snapshot_row(900, table="b"))

    assert at_a_cut.frontier.markers_ahead() is None


def test_no_markers_run_ahead_of_late_rows_that_the_next_cut_shows(at_a_cut: Source) -> None:
    at_a_cut.row("b/0", blocking_row(1, read_at=0))
    at_a_cut.frontier.rest(at_a_cut.readable())
    for xid in (6, 7, 8):
        at_a_cut.tell(end(xid, a=2 if xid == 6 else 1))
        at_a_cut.row("a/0", row(xid))
    assert at_a_cut.frontier.markers_ahead() is None

    assert [cut.late_snapshots for cut in at_a_cut.frontier.cuts()] == [(601,)]
    assert at_a_cut.frontier.markers_ahead() is not None


# --- rest


def test_a_source_is_not_at_rest_before_everything_written_was_read(at_a_cut: Source) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=0))
    for key in (("s.inv.b", 0), ("s.transaction", 0), ("s.notifications", 0)):
        at_a_cut.frontier.rest({**at_a_cut.readable(), key: 9})
    assert at_a_cut.cuts() == []

    at_a_cut.frontier.rest(at_a_cut.readable())
    assert [cut.late_snapshots for cut in at_a_cut.cuts()] == [(601,)]


def test_a_snapshot_is_not_exact_because_the_source_once_was_at_rest(source: Source) -> None:
    source.notify(*snapshot_notifications({"inv.a": 2}))
    source.row("a/0", snapshot_row(400), snapshot_row(480, 1, ts_ms=SECOND))
    assert source.at_rest() == []

    source.row("a/0", snapshot_row(480, 2, ts_ms=SECOND))
    assert source.cuts() == []


def test_an_unfinished_transaction_that_is_given_up_with_another_is_named(at_a_cut: Source) -> None:
    at_a_cut.row("a/0", row(6), row(7))
    at_a_cut.tell(end(7, a=2))
    at_a_cut.frontier.skip_to(756)

    assert [cut.skipped for cut in at_a_cut.cuts()] == [(6, 7)]


# --- what stays whole


def test_no_cut_ends_before_the_commit_that_late_rows_wait_for(at_a_cut: Source) -> None:
    at_a_cut.row("a/0", blocking_row(1, read_at=9 * SECOND), row(6), row(7))
    at_a_cut.tell(end(6, a=1), end(7, a=2, ts_ms=60 * SECOND))
    assert at_a_cut.cuts() == []

    at_a_cut.row("a/1", row(7, 2))
    assert xids(at_a_cut.cuts()) == [[6, 7]]


def test_no_cut_ends_between_a_repeated_snapshot_and_the_commit_that_is_newer(source: Source) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", snapshot_row(400, ts_ms=2 * SECOND), snapshot_row(480, ts_ms=4 * SECOND))
    source.row("a/0", row(5), row(6))
    source.tell(end(5, a=1, ts_ms=3 * SECOND), end(6, a=2, ts_ms=60 * SECOND))
    assert source.cuts() == []

    source.row("a/1", row(6, 2))
    assert xids(source.cuts()) == [[5, 6]]


def test_a_transaction_without_end_before_a_snapshot_is_contained_in_it(source: Source) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", row(4), snapshot_row(480))
    (cut,) = source.cuts()

    assert (cut.lsn, cut.end_offsets["s.inv.a"]) == (480, (2, 0))
    assert source.frontier.open_transactions() == []


def test_commits_behind_a_void_snapshot_are_contained_in_the_newer_one(source: Source) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}))
    source.row("a/0", snapshot_row(400, ts_ms=SECOND), row(4), snapshot_row(480, ts_ms=3 * SECOND), row(5))
    source.tell(end(4, a=1), end(5, a=1, ts_ms=60 * SECOND))
    (cut,) = source.cuts()

    assert (xids([cut]), cut.late_snapshots) == ([[5]], (480,))


# --- the rest


def test_each_cut_says_whether_it_shows_further_rows_of_an_incremental_snapshot(at_a_cut: Source) -> None:
    incremental = snapshot_row(0, mark="incremental")
    at_a_cut.row("a/0", incremental, row(7), incremental)
    told = []
    for commit in (end(6), end(66, lsn=664), end(7, a=1)):
        at_a_cut.tell(commit)
        told += [cut.has_incremental_rows for cut in at_a_cut.cuts()]

    assert told == [True, False, True]


def test_a_frontier_goes_on_in_the_timeline_of_its_cut(source: Source) -> None:
    source.tell(end(5))
    (cut,) = source.cuts()
    going_on = Source(start=replace(cut, timeline=3))
    going_on.tell(end(6))

    assert [cut.timeline for cut in going_on.cuts()] == [3]


def test_a_begin_of_a_published_transaction_opens_nothing(at_a_cut: Source) -> None:
    at_a_cut.tell(begin_value(5, 501))

    assert at_a_cut.frontier.open_transactions() == []


def test_so_many_unreadable_records_are_listed_and_no_more(source: Source) -> None:
    source.row("a/0", *[b"garbage"] * 101)

    assert len(source.frontier.obstacles) == 100


def test_rows_of_tables_that_are_not_followed_open_no_transaction() -> None:
    source = Source(tables=frozenset({"inv.a"}))
    source.row("b/0", row(9, table="b"))

    assert source.frontier.open_transactions() == []


def test_end_offsets_stand_in_the_order_of_partitions_however_they_were_found() -> None:
    found = Frontier("s")
    for number, start in ((1, 5), (0, 3)):
        found.add_partition("s.inv.a", number, start)
    found.read_transactions([(0, end(5), 0)])
    found.advance()
    found.end_offsets({})
    found.advance()

    assert [cut.end_offsets for cut in found.cuts()] == [{"s.inv.a": (3, 5)}]


def test_rows_that_are_given_up_are_named_as_repeated_for_whoever_reads_them(at_a_cut: Source) -> None:
    at_a_cut.row("a/0", row(6), row(7))
    at_a_cut.tell(end(7, a=1))
    at_a_cut.frontier.skip_to(756)

    assert [cut.repeated for cut in at_a_cut.cuts()] == [{756}]


def test_a_table_is_not_missing_whose_rows_were_read_in_another_topic(at_a_cut: Source) -> None:
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
