"""Other evidence than counts, markers ahead of the frontier, operators' decisions."""

from slackwater.cdc import Frontier
from slackwater.protocol import Evidence, Marker, SourceTopics
from slackwater_lab.debezium.fed_source import FedSource, end, row, snapshot_row, xids
from slackwater_lab.debezium.records import begin_value, incremental_value

A, B = "s.inv.a", "s.inv.b"


# --- evidence: overtaken


def test_overtaken_passes_a_transaction_whose_rows_were_dropped_on_the_way() -> None:
    source = FedSource({"inv.a": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=3))
    source.row("a/0", row(5, 1))
    assert source.lsns() == []

    source.tell(begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(6, 1))
    assert source.lsns() == [], "partition 1 may still hold rows of transaction 5"

    source.row("a/1", row(6, 2))
    assert source.lsns() == [556]


def test_overtaken_waits_for_a_partition_that_was_found_after_the_overtaking_rows() -> None:
    source = FedSource({"inv.a": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=3), begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(5, 1), row(6, 1))
    source.row("a/1", row(6, 2))
    source.frontier.advance()
    source.parts["a/2"] = source.frontier.add_partition(A, 2, 0)

    assert source.lsns() == []


def test_overtaken_refuses_records_without_a_key() -> None:
    source = FedSource({"inv.a": Evidence.OVERTAKEN})
    source.row("a/0", row(5, 1), keyless=True)

    (obstacle,) = source.frontier.obstacles
    assert obstacle.is_misconfiguration
    assert "choose evidence 'counts'" in str(obstacle)


def test_a_transaction_is_complete_when_each_of_its_tables_is_by_its_own_evidence() -> None:
    source = FedSource({"inv.b": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=1, b=9), begin_value(6, 601), end(6, b=2))
    source.row("b/0", row(6, 1, table="b"))
    source.row("b/1", row(6, 2, table="b"))
    assert source.lsns() == [], "the row of table a is counted and missing"

    source.row("a/0", row(5, 1))
    assert source.lsns() == [556]


def test_rows_that_come_again_are_named_whatever_the_evidence() -> None:
    source = FedSource({"inv.a": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=2), begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(5, 1), row(5, 1), row(6, 1))
    source.row("a/1", row(5, 2), row(6, 2))

    (cut,) = source.cuts()
    assert cut.repeated == {556}


def test_rows_of_tables_with_other_evidence_do_not_make_a_transaction_a_repeated_one() -> None:
    source = FedSource({"inv.b": Evidence.OVERTAKEN})
    source.tell(begin_value(5, 501), end(5, a=1, b=1), begin_value(6, 601), end(6, b=2))
    source.row("b/0", row(5, 1, table="b"), row(6, 1, table="b"))
    source.row("b/1", row(6, 2, table="b"))
    source.row("a/0", row(5, 1))

    (cut,) = source.cuts()
    assert (cut.lsn, cut.repeated) == (556, frozenset())


# --- evidence: offsets


def test_offsets_wait_for_the_high_watermarks_of_after_end() -> None:
    source = FedSource({"inv.a": Evidence.OFFSETS})
    source.ends = {(A, 0): 2}
    source.tell(begin_value(5, 501), end(5, a=7))
    source.row("a/0", row(5, 1))
    assert source.lsns() == [], "something is written that cannot be read yet"

    source.parts["a/0"].skip_to(2)
    assert source.lsns() == [556], "it was a mark of the producer's transaction"


def test_an_answer_about_offsets_settles_no_transaction_that_ends_later() -> None:
    source = FedSource(evidence={"inv.a": Evidence.OFFSETS}).at_a_cut()
    source.tell(begin_value(6, 601), end(6, a=1))
    source.frontier.advance()
    source.frontier.end_offsets(source.readable())
    source.tell(begin_value(7, 701), end(7, a=1))
    source.frontier.advance()

    assert source.frontier.lsn == 656


# --- routed topics


def test_rows_are_waited_for_in_the_topic_they_are_routed_to() -> None:
    topics = SourceTopics("s", {"inv.a": "all", "inv.b": "all"})
    evidence = {"inv.a": Evidence.OVERTAKEN, "inv.b": Evidence.OVERTAKEN}
    frontier = Frontier("s", evidence=evidence, topics=topics, complete_tables=frozenset(evidence))
    parts = [frontier.add_partition("all", number, 0) for number in (0, 1)]
    frontier.read_transactions([(0, end(5, a=4), 0), (1, end(6, b=2), 0)])
    assert frontier.missing_tables() == []

    for order, part in enumerate(parts, 1):
        part.read([(0, row(6, order, table="b"))])
    for _ in range(3):
        frontier.advance()
        frontier.end_offsets({("all", 0): 1, ("all", 1): 1, ("s.transaction", 0): 2})
    assert frontier.lsn == 556


# --- markers ahead of the frontier


def stalled_source() -> FedSource:
    """Partition 1 of table a holds transaction 6 back; the others have seen transactions 6 to 8."""
    source = FedSource().at_a_cut()
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
    source = FedSource().at_a_cut()
    source.tell(begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(6, 1), row(7, 1), row(8, 1))
    source.tell(end(8, a=1))

    assert source.frontier.markers_ahead() is None


def test_partitions_without_keys_never_run_ahead() -> None:
    source = FedSource().at_a_cut()
    for xid in (6, 7, 8):
        source.tell(begin_value(xid, xid * 100), end(xid, a=2 if xid == 6 else 1))
        source.row("a/0", row(xid, 1), keyless=True)

    assert source.frontier.markers_ahead() is None


def test_a_marker_does_not_pass_a_row_of_an_incremental_snapshot() -> None:
    source = FedSource().at_a_cut()
    source.tell(begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(6, 1))
    source.row("a/0", snapshot_row(0, mark="incremental"))
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
    source = FedSource().at_a_cut()
    source.tell(begin_value(6, 601), end(6, a=3), begin_value(7, 701), end(7, a=1))
    source.row("a/0", row(6, 1), row(7, 1))
    assert source.cuts() == []

    source.frontier.skip_to(656)
    (cut,) = source.cuts()

    assert cut.skipped == (6,)
    assert xids([cut]) == [[6, 7]]


def test_nothing_above_the_decision_is_skipped() -> None:
    source = FedSource().at_a_cut()
    source.frontier.skip_to(600)
    source.tell(begin_value(6, 601), end(6, a=3))
    source.row("a/0", row(6, 1))

    assert source.cuts() == []


def test_a_transaction_is_not_skipped_while_its_rows_are_still_to_be_read() -> None:
    source = FedSource().at_a_cut()
    source.frontier.skip_to(656)
    source.ends = {(A, 1): 2}
    source.tell(begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(6, 1))
    assert source.cuts() == []

    source.row("a/1", row(6, 2))
    (cut,) = source.cuts()
    assert cut.skipped == ()


def test_a_transaction_without_end_is_given_up_with_the_one_behind_it() -> None:
    source = FedSource().at_a_cut()
    source.row("a/0", row(6, 1), row(7, 1))
    source.tell(end(7, a=1))
    assert source.cuts() == []

    source.frontier.skip_to(756)
    (cut,) = source.cuts()

    assert cut.skipped == (6,)
    assert xids([cut]) == [[7]]
    assert cut.end_offsets[A][0] == 3


def test_nothing_is_given_up_for_a_row_without_a_key_that_came_again_behind_it() -> None:
    source = FedSource().at_a_cut()
    source.tell(begin_value(6, 601), end(6, a=1))
    source.row("a/0", row(6, op="t"), keyless=True)
    source.tell(begin_value(7, 701))
    source.row("a/1", row(7))
    source.row("a/1", row(6, op="t"), keyless=True, run="r2")
    source.frontier.skip_to(656)
    assert source.cuts() == [], "END of 7 is on its way, and its row precedes 6"

    source.tell(end(7, a=1))
    (cut,) = source.cuts()
    assert (cut.lsn, cut.skipped) == (756, ())


def test_no_cut_ends_between_a_transaction_that_is_given_up_and_the_one_behind_it() -> None:
    source = FedSource()
    source.tell(end(5, a=1))
    source.row("a/0", row(5, 1), row(6, 1))
    source.row("b/0", b"garbage", row(7, 1, table="b"))
    source.row("a/0", row(7, 1))
    source.tell(end(7, a=1, b=1))
    source.frontier.skip_to(756)

    (cut,) = source.cuts()

    assert (cut.lsn, cut.skipped, cut.end_offsets[A][0]) == (556, (), 1), "7 cannot pass, so 6 is not behind"


def test_rows_between_commits_do_not_end_a_cut_behind_a_transaction_that_is_given_up() -> None:
    source = FedSource().at_a_cut()
    source.row("a/0", row(6, 1), row(7, 1))
    source.row("a/1", incremental_value("inv.a", {"id": 3}))
    source.row("b/0", b"garbage", row(7, 1, table="b"))
    source.tell(end(7, a=1, b=1))
    source.frontier.skip_to(756)

    assert source.cuts() == []


def test_several_unreadable_transaction_records_are_passed_and_no_longer_named() -> None:
    source = FedSource().at_a_cut()
    source.tell(b"garbage", b"{}", b"[]", end(7, a=1), b"garbage")
    source.row("a/0", row(7, 1))
    source.frontier.skip_to(755)
    assert source.cuts() == []

    source.frontier.skip_to(756)

    assert source.lsns() == [756]
    assert [obstacle.offset for obstacle in source.frontier.obstacles] == [6], "what follows it stops"


def test_an_unreadable_transaction_record_is_passed_with_the_commit_behind_it() -> None:
    source = FedSource().at_a_cut()
    source.tell(b"{", end(7, a=1))
    source.row("a/0", row(7, 1))
    assert source.cuts() == []

    source.frontier.skip_to(756)
    assert source.lsns() == [756]


def test_no_cut_ends_behind_a_transaction_that_is_in_a_snapshot_before_the_snapshot() -> None:
    source = FedSource()
    source.tell(end(5, a=1), end(6, a=1, b=1))
    source.row("a/0", row(5, 1))
    source.row("a/1", snapshot_row(700), row(6, 1))
    source.row("b/0", row(6, 1, table="b"))

    (cut,) = source.cuts()

    assert (cut.lsn, cut.end_offsets[B][0]) == (556, 0)


# --- what an operator sees


def test_an_open_transaction_says_where_its_rows_are_and_where_reading_is() -> None:
    source = FedSource().at_a_cut()
    source.tell(begin_value(6, 601), end(6, a=2))
    source.row("a/0", row(6, 1))

    (open_,) = source.frontier.open_transactions()
    assert open_.places == {f"{A}/0": (1, 2), f"{A}/1": (-1, 1)}
