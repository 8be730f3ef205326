"""Other evidence than counts, markers ahead of the frontier, operators' decisions, LSNs that go back."""

import json
from collections.abc import Mapping, Sequence

import pytest

from slackwater_cdc import Frontier, Partition
from slackwater_cdc.testing import (
    begin_value,
    change_value,
    end_value,
    snapshot_notifications,
    snapshot_value,
)
from slackwater_protocol import CommittedTransaction, Cut, Evidence, Marker, SourceTopics

A, B = "s.inv.a", "s.inv.b"
SECOND = 1000


class Source:
    """A frontier with two tables of two partitions each, and what was given to it."""

    def __init__(
        self,
        evidence: Mapping[str, Evidence] | None = None,
        *,
        start: Cut | None = None,
        done: Sequence[CommittedTransaction] = (),
        topics: SourceTopics | None = None,
        names: Sequence[str] = (A, B),
    ) -> None:
        self.frontier = Frontier("s", evidence=evidence, start=start, done=done, topics=topics)
        self.parts: dict[str, Partition] = {}
        for name in names:
            for number in (0, 1):
                first = start.end_offsets[name][number] if start else 0
                self.parts[f"{name}/{number}"] = self.frontier.add_partition(name, number, first)
        self.transaction_offset = start.transaction_offset if start else 0
        self.ends: dict[tuple[str, int], int] = {}

    def row(self, spot: str, *values: bytes | None, is_keyless: bool = False) -> None:
        part = self.parts[f"s.inv.{spot}"]
        part.read(enumerate(values, part.position), "r1", is_keyless=is_keyless)

    def tell(self, *values: bytes) -> None:
        self.frontier.read_transactions((o, v, 0) for o, v in enumerate(values, self.transaction_offset))
        self.transaction_offset += len(values)

    def answer(self) -> None:
        """Says how far the topics go, as of now, if that is wanted."""
        if self.frontier.end_offsets_wanted:
            read = {p.key: p.position for p in self.parts.values()}
            self.frontier.end_offsets({**read, ("s.transaction", 0): self.transaction_offset, **self.ends})

    def cuts(self) -> list[Cut]:
        for _ in range(4):
            self.frontier.advance()
            self.answer()
        self.frontier.advance()
        return self.frontier.cuts()

    def lsns(self) -> list[int]:
        return [t.commit_lsn for cut in self.cuts() for t in cut.transactions]


def row(xid: int, order: int, *, table: str = "a") -> bytes:
    position = xid, xid * 100 + order
    return change_value(f"inv.{table}", "c", position=position, orders=(order, order), after={"id": order})


def end(xid: int, *, ts_ms: int | None = None, lsn: int | None = None, **counts: int) -> bytes:
    tables = {f"inv.{t}": n for t, n in counts.items()}
    return end_value(xid, lsn or xid * 100 + 56, tables, ts_ms=xid if ts_ms is None else ts_ms)


def incremental_row(key: int) -> bytes:
    return snapshot_value("inv.a", 0, {"id": key}, snapshot="incremental")


def source_at_a_cut(**options: object) -> Source:
    """A source that has published transaction 5."""
    source = Source(**options)  # type: ignore[arg-type]
    source.tell(begin_value(5, 501), end(5, a=2))
    source.row("a/0", row(5, 1))
    source.row("a/1", row(5, 2))
    assert source.lsns() == [556]
    return source


# --- evidence: overtaken


def test_overtaken_passes_a_transaction_whose_rows_were_dropped_on_the_way() -> None:
    source = Source({"inv.a": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=3))
    source.row("a/0", row(5, 1))
    assert source.lsns() == []

    source.tell(begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(6, 1))
    assert source.lsns() == [], "partition 1 may still hold rows of transaction 5"

    source.row("a/1", row(6, 2))
    assert source.lsns() == [556]


def test_overtaken_waits_for_a_partition_that_was_found_after_the_overtaking_rows() -> None:
    source = Source({"inv.a": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=3), begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(5, 1), row(6, 1))
    source.row("a/1", row(6, 2))
    source.frontier.advance()
    source.parts["s.inv.a/2"] = source.frontier.add_partition(A, 2, 0)

    assert source.lsns() == []


def test_overtaken_refuses_records_without_a_key() -> None:
    source = Source({"inv.a": Evidence.OVERTAKEN})
    source.row("a/0", row(5, 1), is_keyless=True)

    (obstacle,) = source.frontier.obstacles
    assert obstacle.is_misconfiguration
    assert "choose evidence 'counts'" in str(obstacle)


def test_a_transaction_is_complete_when_each_of_its_tables_is_by_its_own_evidence() -> None:
    source = Source({"inv.b": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=1, b=9), begin_value(6, 601), end(6, b=2))
    source.row("b/0", row(6, 1, table="b"))
    source.row("b/1", row(6, 2, table="b"))
    assert source.lsns() == [], "the row of table a is counted and missing"

    source.row("a/0", row(5, 1))
    assert source.lsns() == [556]


def test_rows_that_come_again_are_named_whatever_the_evidence() -> None:
    source = Source({"inv.a": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=2), begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(5, 1), row(5, 1), row(6, 1))
    source.row("a/1", row(5, 2), row(6, 2))

    (cut,) = source.cuts()
    assert cut.repeated == {556}


def test_rows_of_tables_with_other_evidence_do_not_make_a_transaction_a_repeated_one() -> None:
    source = Source({"inv.b": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=1, b=1), begin_value(6, 601), end(6, b=2))
    source.row("b/0", row(5, 1, table="b"), row(6, 1, table="b"))
    source.row("b/1", row(6, 2, table="b"))
    source.row("a/0", row(5, 1))

    (cut,) = source.cuts()
    assert (cut.lsn, cut.repeated) == (556, frozenset())


# --- evidence: offsets


def test_offsets_wait_for_the_high_watermarks_of_after_end() -> None:
    source = Source({"inv.a": Evidence.OFFSETS})
    source.ends = {(A, 0): 2}
    source.tell(begin_value(5, 501), end(5, a=7))
    source.row("a/0", row(5, 1))
    assert source.lsns() == [], "something is written that cannot be read yet"

    source.parts["s.inv.a/0"].skip_to(2)
    assert source.lsns() == [556], "it was a mark of the producer's transaction"


def test_an_answer_about_offsets_settles_no_transaction_that_ends_later() -> None:
    source = source_at_a_cut(evidence={"inv.a": Evidence.OFFSETS})
    source.tell(begin_value(6, 601), end(6, a=1))
    source.frontier.advance()
    source.answer()
    source.tell(begin_value(7, 701), end(7, a=1))
    source.frontier.advance()

    assert source.frontier.lsn == 656


# --- routed topics


def test_rows_are_waited_for_in_the_topic_they_are_routed_to() -> None:
    topics = SourceTopics("s", {"inv.a": "all", "inv.b": "all"})
    source = Source({"inv.a": Evidence.OVERTAKEN, "inv.b": Evidence.OVERTAKEN}, topics=topics, names=("all",))
    source.tell(begin_value(5, 501), end(5, a=4), begin_value(6, 601), end(6, b=2))
    assert source.frontier.missing_tables() == []

    source.parts["all/0"].read([(0, row(6, 1, table="b"))])
    source.parts["all/1"].read([(0, row(6, 2, table="b"))])
    assert source.lsns() == [556]


# --- markers ahead of the frontier


def stalled_source() -> Source:
    """Partition 1 of table a holds transaction 6 back; the others have seen transactions 6 to 8."""
    source = source_at_a_cut()
    for xid in (6, 7, 8):
        source.tell(begin_value(xid, xid * 100), end(xid, a=2 if xid == 6 else 1))
        source.row("a/0", row(xid, 1))
    return source


def test_markers_of_a_partition_run_ahead_of_its_stalled_sibling() -> None:
    source = stalled_source()
    assert source.cuts() == []

    ahead = source.frontier.markers_ahead()

    assert ahead is not None
    assert ahead.markers == {(A, 0): Marker(756, 3)}, "transaction 8 may have more rows there"
    assert [t.xid for t in ahead.transactions] == [6, 7]
    assert (ahead.previous_lsn, ahead.lsn) == (556, 756)


def test_markers_ahead_are_told_once_and_name_each_transaction_once() -> None:
    source = stalled_source()
    source.frontier.markers_ahead()
    assert source.frontier.markers_ahead() is None

    source.tell(begin_value(9, 901), end(9, a=1))
    source.row("a/0", row(9, 1))
    ahead = source.frontier.markers_ahead()

    assert ahead is not None
    assert [t.xid for t in ahead.transactions] == [8]
    assert (ahead.previous_lsn, ahead.lsn) == (756, 856)


def test_no_marker_passes_a_transaction_whose_end_was_not_read() -> None:
    source = source_at_a_cut()
    source.tell(begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(6, 1), row(7, 1), row(8, 1))
    source.tell(end(8, a=1))

    assert source.frontier.markers_ahead() is None


def test_partitions_without_keys_never_run_ahead() -> None:
    source = source_at_a_cut()
    for xid in (6, 7, 8):
        source.tell(begin_value(xid, xid * 100), end(xid, a=2 if xid == 6 else 1))
        source.row("a/0", row(xid, 1), is_keyless=True)

    assert source.frontier.markers_ahead() is None


def test_a_marker_does_not_pass_a_row_of_an_incremental_snapshot() -> None:
    source = source_at_a_cut()
    source.tell(begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(6, 1))
    source.row("a/0", incremental_row(1))
    for xid in (7, 8):
        source.tell(begin_value(xid, xid * 100), end(xid, a=1, b=1))
        source.row("a/0", row(xid, 1))
        source.row("b/0", row(xid, 1, table="b"))

    ahead = source.frontier.markers_ahead()
    assert ahead is not None
    assert ahead.markers == {(B, 0): Marker(756, 1)}


def test_transactions_without_changes_are_named_beside_the_markers() -> None:
    """Their END may have counted too few, and their rows come later."""
    source = stalled_source()
    source.tell(begin_value(9, 901), end(9), begin_value(10, 1001), end(10, a=1))
    source.row("a/0", row(10, 1))

    ahead = source.frontier.markers_ahead()
    assert ahead is not None
    assert [t.xid for t in ahead.transactions] == [6, 7, 8, 9]


def test_a_repeated_row_is_named_beside_the_markers() -> None:
    source = stalled_source()
    source.row("a/0", row(8, 1))
    source.tell(begin_value(9, 901), end(9, a=1))
    source.row("a/0", row(9, 1))

    ahead = source.frontier.markers_ahead()
    assert ahead is not None
    assert ahead.repeated == {856}


# --- skip


def test_an_incomplete_transaction_passes_when_an_operator_says_so_and_is_named() -> None:
    source = source_at_a_cut()
    source.tell(begin_value(6, 601), end(6, a=3), begin_value(7, 701), end(7, a=1))
    source.row("a/0", row(6, 1), row(7, 1))
    assert source.cuts() == []

    source.frontier.skip_to(656)
    (cut,) = source.cuts()

    assert cut.skipped == (6,)
    assert [t.xid for t in cut.transactions] == [6, 7]


def test_nothing_above_the_decision_is_skipped() -> None:
    source = source_at_a_cut()
    source.frontier.skip_to(600)
    source.tell(begin_value(6, 601), end(6, a=3))
    source.row("a/0", row(6, 1))

    assert source.cuts() == []


def test_a_transaction_is_not_skipped_while_its_rows_are_still_to_be_read() -> None:
    source = source_at_a_cut()
    source.frontier.skip_to(656)
    source.ends = {(A, 1): 2}
    source.tell(begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(6, 1))
    assert source.cuts() == []

    source.row("a/1", row(6, 2))
    (cut,) = source.cuts()
    assert cut.skipped == ()


def test_a_transaction_without_end_is_given_up_with_the_one_behind_it() -> None:
    source = source_at_a_cut()
    source.row("a/0", row(6, 1), row(7, 1))
    source.tell(end(7, a=1))
    assert source.cuts() == []

    source.frontier.skip_to(756)
    (cut,) = source.cuts()

    assert cut.skipped == (6,)
    assert [t.xid for t in cut.transactions] == [7]
    assert cut.end_offsets[A][0] == 3


def test_several_unreadable_transaction_records_are_passed_and_no_longer_named() -> None:
    source = source_at_a_cut()
    source.tell(b"garbage", b"{}", b"[]", end(7, a=1), b"garbage")
    source.row("a/0", row(7, 1))
    source.frontier.skip_to(755)
    assert source.cuts() == []

    source.frontier.skip_to(756)

    assert source.lsns() == [756]
    assert [obstacle.offset for obstacle in source.frontier.obstacles] == [6], "what stands behind it stops"


def test_commits_below_a_snapshot_after_commits_do_not_pass() -> None:
    source = source_at_a_cut()
    source.row("a/0", snapshot_value("inv.a", 800, {"id": 1}, snapshot="first", ts_ms=60 * SECOND))
    assert source.cuts() == []

    source.tell(end(7, a=1))
    source.row("a/1", row(7, 1))
    assert source.cuts() == []


def test_no_decision_to_skip_passes_lsns_that_went_back() -> None:
    source = source_at_a_cut()
    source.tell(end(7, a=1))
    source.row("a/0", row(7, 1))
    assert source.lsns() == [756]
    source.tell(end(6, a=1), end(8, a=1))
    source.row("a/0", row(8, 1))
    source.frontier.skip_to(10_000)

    assert source.frontier.regression is not None
    assert source.cuts() == []


def test_an_unreadable_transaction_record_is_passed_with_the_commit_behind_it() -> None:
    source = source_at_a_cut()
    source.tell(b"{", end(7, a=1))
    source.row("a/0", row(7, 1))
    assert source.cuts() == []

    source.frontier.skip_to(756)
    assert source.lsns() == [756]


# --- LSNs that go back


def test_an_end_that_was_never_read_among_those_that_were_is_a_regression() -> None:
    source = source_at_a_cut()
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
    source = source_at_a_cut()
    source.tell(end(7, a=1))
    source.row("a/0", row(7, 1))
    assert source.lsns() == [756]

    source.tell(end(9, lsn=608), end(10, a=1))
    source.row("a/0", row(10, 1))

    assert source.frontier.regression is not None
    assert source.lsns() == []


def test_an_end_that_comes_again_is_none() -> None:
    source = source_at_a_cut()
    source.tell(end(7), end(5, a=2), end(7))

    assert source.frontier.regression is None


@pytest.mark.parametrize(("ts_ms", "is_regression"), [(9 * SECOND, False), (60 * SECOND, True)])
def test_below_what_this_process_has_read_the_commit_time_decides(ts_ms: int, is_regression: bool) -> None:
    (cut,) = _cuts_of(7)
    source = Source(start=cut, done=cut.transactions)

    source.tell(end(3, ts_ms=ts_ms, a=1))

    assert (source.frontier.regression is not None) is is_regression


def test_a_snapshot_below_the_frontier_that_was_taken_later_is_a_regression() -> None:
    source = source_at_a_cut()
    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="first", ts_ms=60 * SECOND))

    regression = source.frontier.regression
    assert regression is not None
    assert regression.has_snapshot
    assert regression.transaction_offset == 2


def test_a_commit_read_before_a_snapshot_below_the_frontier_does_not_hide_that_it_was_taken_later() -> None:
    """Seen to fail while the snapshot's time was compared with the newest END that was read."""
    source = source_at_a_cut()
    source.tell(end(7, ts_ms=60 * SECOND, a=1))
    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="first", ts_ms=50 * SECOND))
    source.row("a/0", row(7, 1))

    regression = source.frontier.regression
    assert regression is not None
    assert regression.has_snapshot
    assert source.cuts() == []


@pytest.mark.parametrize("taken_ms", [60 * SECOND, 70 * SECOND])
def test_a_snapshot_taken_before_the_newest_commit_on_the_frontier_is_a_repeat(taken_ms: int) -> None:
    source = source_at_a_cut()
    source.tell(end(7, ts_ms=60 * SECOND, a=1))
    source.row("a/0", row(7, 1))
    assert source.lsns() == [756]

    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="first", ts_ms=taken_ms))

    assert source.frontier.regression is None


def test_a_row_of_an_interrupted_snapshot_that_is_read_after_the_next_one_is_a_repeat() -> None:
    """It is read between the moment the next attempt passes and the cut that shows it."""
    source = Source()
    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="last", ts_ms=60 * SECOND))
    source.frontier.read_notifications(enumerate(snapshot_notifications({"inv.a": 1}, ts_ms=60 * SECOND)))
    source.frontier.skip_notifications_to(3)
    for _ in range(4):
        source.frontier.advance()
        source.answer()
    assert source.frontier.lsn == 24

    source.row("b/0", snapshot_value("inv.b", 16, {"id": 1}, snapshot="first", ts_ms=50 * SECOND))

    assert source.frontier.regression is None


@pytest.mark.parametrize(("taken_ms", "is_behind"), [(10 * SECOND, False), (60 * SECOND, True)])
def test_a_snapshot_read_before_any_cut_is_behind_a_regression_if_it_was_taken_later(
    taken_ms: int, is_behind: bool
) -> None:
    """Seen to fail for the second one while only rows read after the regression counted."""
    source = Source()
    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="first", ts_ms=taken_ms))
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
    source = source_at_a_cut()
    source.tell(end(7, ts_ms=committed_ms, a=1))
    source.row("b/0", snapshot_value("inv.b", 24, {"id": 1}, snapshot="first", ts_ms=50 * SECOND))
    source.row("a/0", row(7, 1))

    assert source.lsns() == ([756] if passes else [])
    regression = source.frontier.regression
    assert regression is not None
    assert regression.transaction_offset == begins_at


def test_the_new_timeline_begins_with_the_first_end_that_was_committed_after_the_snapshot() -> None:
    source = source_at_a_cut()
    source.tell(*(end(x, ts_ms=x * 10 * SECOND, a=1) for x in (7, 8, 9)))
    source.row("a/0", row(7, 1), row(8, 1), row(9, 1))
    source.row("b/0", snapshot_value("inv.b", 24, {"id": 1}, snapshot="first", ts_ms=80 * SECOND))

    assert source.lsns() == [756]
    regression = source.frontier.regression
    assert regression is not None
    assert regression.transaction_offset == 3


@pytest.mark.parametrize("lsn", [24, 800])
def test_a_whole_snapshot_after_commits_is_not_shown_on_the_old_timeline(lsn: int) -> None:
    """Seen to fail for the second one while only transactions were held back."""
    source = source_at_a_cut()
    source.frontier.read_notifications(enumerate(snapshot_notifications({"inv.a": 1}, ts_ms=60 * SECOND)))
    source.row("a/0", snapshot_value("inv.a", lsn, {"id": 1}, snapshot="last", ts_ms=60 * SECOND))

    assert source.cuts() == []
    source.frontier.rest(source.ends)
    assert source.cuts() == []
    assert source.frontier.lsn == 556


def test_rows_of_an_incremental_snapshot_behind_a_regression_are_not_shown_between_commits() -> None:
    """Seen to fail while the regression held back commits only."""
    source = source_at_a_cut()
    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="last", ts_ms=60 * SECOND))
    source.row("b/0", incremental_row(1))

    assert source.cuts() == []
    assert not source.frontier.has_moved


def test_a_snapshot_that_shows_a_regression_after_a_restart_begins_where_reading_does() -> None:
    """Seen to fail with offset 0: the new timeline began with all transactions of the old one."""
    (cut,) = _cuts_of(7)
    source = Source(start=cut)

    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="first", ts_ms=60 * SECOND))

    assert source.frontier.regression is not None
    assert source.frontier.regression.transaction_offset == cut.transaction_offset > 0

    source = Source(start=cut)
    source.frontier.skip_transactions_to(9)
    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="first", ts_ms=60 * SECOND))

    assert source.frontier.regression is not None
    assert source.frontier.regression.transaction_offset == 9


@pytest.mark.parametrize(("started_ms", "is_late"), [(19 * SECOND - 1, False), (19 * SECOND, True)])
def test_snapshots_of_the_timeline_before_are_no_attempts_at_the_new_one(
    started_ms: int, is_late: bool
) -> None:
    """Seen to fail with every announcement counted: it waited for table b, and its rows were late."""
    source = Source()
    source.frontier.skip_announcements_to(20 * SECOND)
    old = snapshot_notifications({"inv.a": 5, "inv.b": 3}, ts_ms=started_ms)
    new = snapshot_notifications({"inv.a": 1, "inv.b": 0}, ts_ms=60 * SECOND)
    source.frontier.read_notifications(enumerate([*old, *new]))
    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="last", ts_ms=60 * SECOND))

    assert source.lsns() == ([] if is_late else [24])


def test_tables_that_only_the_timeline_before_had_are_not_waited_for() -> None:
    source = Source()
    source.frontier.skip_announcements_to(20 * SECOND)
    old = snapshot_notifications({"inv.b": 3}, ts_ms=SECOND)
    new = snapshot_notifications({"inv.a": 1}, ts_ms=60 * SECOND)
    source.frontier.read_notifications(enumerate([*old, *new]))
    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="last", ts_ms=60 * SECOND))

    assert source.lsns() == [24]


def test_the_rest_of_an_announcement_of_the_timeline_before_begins_no_attempt() -> None:
    """The snapshot of the old timeline blocked the stream while its last commit was made."""
    source = Source()
    source.frontier.skip_announcements_to(20 * SECOND)
    started, *_ = snapshot_notifications({"inv.b": 3}, ts_ms=SECOND)
    _, *late_rest = snapshot_notifications({"inv.b": 3}, ts_ms=30 * SECOND)
    new = snapshot_notifications({"inv.a": 1}, ts_ms=60 * SECOND)
    source.frontier.read_notifications(enumerate([started, *late_rest, *new]))
    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="last", ts_ms=60 * SECOND))

    assert source.lsns() == [24]


def test_an_interrupted_attempt_at_the_new_timeline_still_makes_the_next_one_late() -> None:
    source = Source()
    source.frontier.skip_announcements_to(20 * SECOND)
    old = snapshot_notifications({"inv.a": 1}, ts_ms=SECOND)
    first, *_ = snapshot_notifications({"inv.a": 1}, ts_ms=60 * SECOND)
    second = snapshot_notifications({"inv.a": 1}, ts_ms=70 * SECOND)
    source.frontier.read_notifications(enumerate([*old, first, *second]))
    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="last", ts_ms=70 * SECOND))

    assert source.cuts() == []


def test_a_new_timeline_begins_where_it_was_decided_and_goes_on_from_there() -> None:
    source = Source()
    source.frontier.skip_transactions_to(40)
    source.frontier.read_notifications(enumerate(snapshot_notifications({"inv.a": 1})))
    source.row("a/0", snapshot_value("inv.a", 24, {"id": 1}, snapshot="last"))
    (cut,) = source.cuts()

    assert (cut.lsn, cut.previous_lsn, cut.transaction_offset) == (24, 0, 40)


def _cuts_of(xid: int) -> list[Cut]:
    source = Source()
    source.tell(end(xid, a=1))
    source.row("a/0", row(xid, 1))
    return source.cuts()


# --- rows of incremental snapshots


def test_rows_of_an_incremental_snapshot_become_visible_without_a_commit() -> None:
    source = source_at_a_cut()
    assert not source.frontier.has_moved

    source.row("a/0", incremental_row(1))
    (cut,) = source.cuts()

    assert (cut.previous_lsn, cut.lsn, cut.transactions) == (556, 557, ())
    assert cut.end_offsets[A] == (2, 1)
    assert not source.frontier.has_moved


def test_they_ride_with_the_next_commit_when_there_is_one() -> None:
    source = source_at_a_cut()
    source.row("a/0", incremental_row(1), row(6, 1))
    source.tell(end(6, a=1))

    (cut,) = source.cuts()
    assert (cut.lsn, cut.end_offsets[A]) == (656, (3, 1))
    assert not source.frontier.has_moved


def test_between_two_commits_there_are_only_so_many_lsns() -> None:
    source = source_at_a_cut()
    lsns = []
    for key in range(12):
        source.row("a/0", incremental_row(key))
        lsns += [cut.lsn for cut in source.cuts()]

    assert lsns == [557, 558, 559]


def test_the_cut_that_shows_them_says_so_though_an_earlier_one_came_after_they_were_read() -> None:
    source = source_at_a_cut()
    source.row("a/0", row(7, 1), incremental_row(1))
    source.tell(end(6))
    (before,) = source.cuts()
    source.tell(end(7, a=1))
    (shown,) = source.cuts()

    assert (before.lsn, before.end_offsets[A][0], before.has_incremental_rows) == (656, 1, False)
    assert (shown.lsn, shown.end_offsets[A][0], shown.has_incremental_rows) == (756, 3, True)
    assert not source.frontier.has_moved


# --- late rows: ad hoc snapshots that block the stream, initial ones that were repeated


def blocking_row(key: int, *, read_at: int) -> bytes:
    """A row of an ad hoc snapshot, read while the stream stood at LSN 601."""
    fields = json.loads(snapshot_value("inv.a", 601, {"id": key}))
    fields["source"]["sequence"] = '["556","601"]'
    fields["ts_ms"] = read_at
    return json.dumps(fields).encode()


def test_no_cut_ends_between_late_rows_and_a_commit_that_is_newer_than_they_are() -> None:
    source = source_at_a_cut()
    source.row("a/0", blocking_row(1, read_at=9 * SECOND), row(6, 1), row(7, 1))
    source.tell(end(6, a=1, ts_ms=8 * SECOND))
    assert source.cuts() == []

    source.tell(end(7, a=1, ts_ms=60 * SECOND))
    (cut,) = source.cuts()

    assert [t.xid for t in cut.transactions] == [6, 7]
    assert cut.late_snapshots == (601,)
    assert cut.end_offsets[A] == (4, 1)


def test_commits_before_late_rows_pass_at_once() -> None:
    source = source_at_a_cut()
    source.row("a/0", row(6, 1), blocking_row(1, read_at=9 * SECOND))
    source.tell(end(6, a=1, ts_ms=8 * SECOND))

    (cut,) = source.cuts()

    assert (cut.lsn, cut.end_offsets[A], cut.late_snapshots) == (656, (2, 1), ())


def test_a_transaction_around_late_rows_passes_as_a_whole() -> None:
    source = source_at_a_cut()
    source.row("a/0", row(6, 1), blocking_row(1, read_at=9 * SECOND), row(6, 2))
    source.tell(end(6, a=2, ts_ms=8 * SECOND))
    assert source.cuts() == []

    source.row("a/0", row(7, 1))
    source.tell(end(7, a=1, ts_ms=60 * SECOND))
    (cut,) = source.cuts()
    assert cut.end_offsets[A] == (5, 1)


def test_late_rows_are_named_while_they_wait_and_shown_when_the_source_is_at_rest() -> None:
    source = source_at_a_cut()
    source.row("a/0", blocking_row(1, read_at=9 * SECOND))
    assert source.cuts() == []
    (waiting,) = source.frontier.open_transactions()
    assert "wait for a commit" in waiting.hint

    source.frontier.rest(source.ends)
    (cut,) = source.cuts()
    assert (cut.lsn, cut.late_snapshots, cut.end_offsets[A]) == (557, (601,), (2, 1))
    assert source.frontier.open_transactions() == []


def test_a_repeated_initial_snapshot_is_shown_with_a_commit_that_is_newer() -> None:
    source = Source()
    source.frontier.read_notifications(enumerate(snapshot_notifications({"inv.a": 1})))
    source.row("a/0", snapshot_value("inv.a", 400, {"id": 1}, ts_ms=2 * SECOND))
    source.row("a/0", snapshot_value("inv.a", 480, {"id": 1}, snapshot="last", ts_ms=4 * SECOND))
    source.row("a/0", row(5, 1), row(6, 1))
    source.tell(end(5, a=1, ts_ms=4 * SECOND))
    assert source.cuts() == []

    source.tell(end(6, a=1, ts_ms=60 * SECOND))
    (cut,) = source.cuts()
    assert (cut.lsn, cut.late_snapshots) == (656, (480,))
    assert [t.xid for t in cut.transactions] == [5, 6]


def test_rest_is_over_with_the_next_record() -> None:
    source = source_at_a_cut()
    source.frontier.rest(source.ends)
    source.row("a/0", blocking_row(1, read_at=9 * SECOND))

    assert source.cuts() == []


def test_a_new_snapshot_after_commits_needs_a_new_timeline() -> None:
    source = source_at_a_cut()
    source.row("a/0", snapshot_value("inv.a", 800, {"id": 1}, snapshot="first", ts_ms=60 * SECOND))

    regression = source.frontier.regression
    assert regression is not None
    assert regression.has_snapshot


# --- what an operator sees


def test_an_open_transaction_says_where_its_rows_are_and_where_reading_is() -> None:
    source = source_at_a_cut()
    source.tell(begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(6, 1))

    (open_,) = source.frontier.open_transactions()
    assert open_.places == {f"{A}/0": (1, 2), f"{A}/1": (-1, 1)}
