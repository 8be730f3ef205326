from dataclasses import replace

import pytest

from slackwater.cuts import CutLogReplacedError, RecordsGoneError
from slackwater.protocol import (
    AheadMarkers,
    CommittedTransaction,
    Cut,
    KafkaSettings,
    LogRecord,
    Marker,
    Servers,
    SkipDecision,
    SourceTopics,
    TimelineDecision,
)
from slackwater_lab.debezium.records import (
    begin_value,
    change_value,
    end_value,
    snapshot_notifications,
    snapshot_value,
)
from slackwater_lab.fakes.memory import InMemoryCutLog
from slackwater_lab.fakes.sources import cut as cut_of_one
from slackwater_sidecar import SidecarSettings
from slackwater_sidecar.resume import Resumption, resume

TOPICS = SourceTopics("inv")


def cut(lsn: int, timeline: int = 1) -> Cut:
    return replace(cut_of_one(lsn), timeline=timeline, transaction_offset=3 * lsn)


def begins(timeline: int, transaction_offset: int) -> TimelineDecision:
    return TimelineDecision(
        source="inv", timeline=timeline, transaction_offset=transaction_offset, wall_ms=1, decided_by="ann"
    )


def skip(to_lsn: int) -> SkipDecision:
    return SkipDecision(source="inv", timeline=1, to_lsn=to_lsn, wall_ms=1, decided_by="ann")


def ahead(lsn: int) -> AheadMarkers:
    return AheadMarkers(
        source="inv",
        timeline=1,
        previous_lsn=lsn - 1,
        lsn=lsn,
        transactions=(),
        markers={("inv.s.a", 0): Marker(lsn, lsn)},
    )


def resumed(*records: LogRecord, timeline: int = 1) -> Resumption:
    """From a log whose first cut is the first of the source."""
    log = InMemoryCutLog("inv")
    first = next((r for r in records if isinstance(r, Cut)), None)
    log.append_records(
        [replace(r, previous_lsn=0) if isinstance(r, Cut) and r is first else r for r in records]
    )
    return resume(log, timeline)


def frontier_lsn(resumption: Resumption) -> int:
    return resumption.frontier(SidecarSettings(source="inv", servers=Servers(KafkaSettings("h:1")))).lsn


def test_an_empty_log_is_a_beginning() -> None:
    found = resumed()
    start = found.starts(TOPICS)

    assert (found.timeline, found.newest, found.log_offset) == (1, None, -1)
    assert (start("inv.s.a", 0), start("inv.transaction", 0)) == (None, None)


def test_reading_goes_on_at_the_end_offsets_of_the_newest_cut() -> None:
    found = resumed(cut(4), cut(5))
    start = found.starts(TOPICS)

    assert frontier_lsn(found) == 5
    assert (start("inv.s.a", 1), start("inv.transaction", 0)) == (10, 15)
    assert start("inv.s.a", 2) is None
    assert start("inv.s.new", 0) is None
    assert start("inv.notifications", 0) is None


def test_behind_a_cut_that_is_all_snapshot_the_transaction_topic_must_still_have_its_beginning() -> None:
    """Read from wherever it begins, transactions that it has lost would be passed over without a word."""
    snapshot = replace(cut(5), transactions=(CommittedTransaction(0, 5, 5),), transaction_offset=0)

    assert resumed(snapshot).starts(TOPICS)("inv.transaction", 0) == 0


def test_the_highest_cut_counts_when_two_sidecars_append_in_turn() -> None:
    """Else rows of commits up to it would pass for replays, since its transactions are known."""
    found = resumed(cut(5), replace(cut(9), previous_lsn=5), cut(6), cut(7))

    assert (frontier_lsn(found), found.starts(TOPICS)("inv.s.a", 1)) == (9, 18)
    assert [t.commit_lsn for t in found.done] == [5, 9]


def test_a_cut_of_an_earlier_timeline_behind_those_of_the_newest_one_counts_for_nothing() -> None:
    found = resumed(cut(5), begins(2, transaction_offset=33), cut(2, timeline=2), cut(6))

    assert (found.timeline, frontier_lsn(found)) == (2, 2)


def test_a_log_that_begins_in_the_middle_is_refused() -> None:
    """A sidecar wrote to it for a moment after somebody had deleted it and made it again."""
    log = InMemoryCutLog("inv")
    log.append_records([skip(9), cut(7), cut(8)])
    with pytest.raises(CutLogReplacedError, match="its first cut continues from 0/6"):
        resume(log, 1)


def test_a_log_whose_beginning_was_deleted_is_gone_on_with() -> None:
    log = InMemoryCutLog("inv")
    log.append([cut(lsn) for lsn in range(1, 9)])
    log.delete_before(5)
    assert frontier_lsn(resume(log, 1)) == 8


def test_a_log_that_has_lost_all_its_cuts_is_no_beginning() -> None:
    """It would give other timelines and other numbers of events to what pipelines have read."""
    log = InMemoryCutLog("inv")
    log.append([cut(1), cut(2)])
    log.delete_before(2)
    with pytest.raises(RecordsGoneError, match="it starts at 2"):
        resume(log, 1)


def test_a_transaction_topic_of_another_name_goes_on_where_the_cut_says() -> None:
    start = resumed(cut(5)).starts(SourceTopics("inv", transaction_name="elsewhere"))

    assert start("elsewhere", 0) == 15
    assert start("inv.transaction", 0) is None


def test_what_lies_behind_the_newest_cut_does_not_hide_it() -> None:
    found = resumed(cut(4), skip(9), ahead(7), ahead(8))

    assert (frontier_lsn(found), found.log_offset) == (4, 0)


def test_the_transactions_of_many_cuts_are_remembered_in_order() -> None:
    log = InMemoryCutLog("inv")
    for n in range(1, 2351):
        log.append_records([cut(n), *([ahead(n + 1)] if n % 3 == 0 else [])])

    assert [t.commit_lsn for t in resume(log, 1).done] == list(range(1, 2351))


def test_transactions_of_another_timeline_are_not_taken_for_repeats() -> None:
    found = resumed(cut(8), cut(1, timeline=2), cut(2, timeline=2))

    assert [t.commit_lsn for t in found.done] == [1, 2]


def counting(cut: Cut, partitions: int) -> Cut:
    return replace(cut, end_offsets={"inv.s.a": (0,) * partitions})


@pytest.mark.parametrize(
    ("log", "is_whole"),
    [
        pytest.param([counting(cut(4), 3), counting(cut(5), 3)], True, id="as many as ever"),
        pytest.param([counting(cut(4), 2), counting(cut(5), 3)], False, id="known from an earlier cut"),
        pytest.param(
            [counting(cut(3), 2), *(counting(cut(n), 3) for n in range(4, 1_100))], False, id="from far back"
        ),
        pytest.param([counting(cut(5), 2)], False, id="not in the newest cut yet"),
        pytest.param(
            [counting(cut(3), 2), counting(cut(4), 3), counting(cut(1, timeline=2), 3)],
            False,
            id="known from an earlier timeline",
        ),
    ],
)
def test_that_a_topic_has_grown_is_remembered(log: list[Cut], is_whole: bool) -> None:
    """The second run numbers the lost row again and writes it elsewhere: the first one's may be the same.

    Seen to fail while only the newest cut was asked for the number of partitions.
    """
    frontier = resumed(*log).frontier(SidecarSettings(source="inv", servers=Servers(KafkaSettings("h:1"))))
    first, _, added = (frontier.add_partition("inv.s.a", number, 0) for number in range(3))
    frontier.read_transactions(
        [(9_000, begin_value(9, 8_000), 0), (9_001, end_value(9, 9_000, {"s.a": 2}), 0)]
    )
    for order, partition, run in ((1, first, "r1"), (2, added, "r2")):
        value = change_value(
            "s.a", "c", position=(9, 8_000 + order), orders=(order, order), after={"id": order}
        )
        partition.read([(0, value)], run)
    frontier.advance()

    assert [c.lsn for c in frontier.cuts()] == ([9_000] if is_whole else [])


def test_a_timeline_that_begins_knows_from_the_one_before_how_many_partitions_there_were() -> None:
    before = [counting(cut(6), 2), counting(cut(7), 3)]

    assert resumed(*before, timeline=2).partition_counts == {"inv.s.a": 2}
    assert resumed(*before, begins(2, transaction_offset=33)).partition_counts == {"inv.s.a": 2}


def test_a_truncated_log_is_read_as_far_as_it_goes() -> None:
    log = InMemoryCutLog("inv")
    log.append([cut(n) for n in range(1, 6)])
    log.delete_before(3)

    assert [t.commit_lsn for t in resume(log, 1).done] == [4, 5]


def test_a_raised_timeline_begins_at_the_newest_cut() -> None:
    found = resumed(cut(7), timeline=2)
    start = found.starts(TOPICS)

    assert (found.timeline, found.newest, frontier_lsn(found)) == (2, None, 0)
    assert (start("inv.s.a", 0), start("inv.transaction", 0)) == (7, 21)
    assert found.done == ()


def test_the_log_knows_of_a_newer_timeline_than_the_settings() -> None:
    found = resumed(cut(7), cut(1, timeline=3))

    assert (found.timeline, frontier_lsn(found)) == (3, 1)


def test_a_decided_timeline_begins_where_the_decision_says() -> None:
    found = resumed(cut(7), begins(2, transaction_offset=33))
    start = found.starts(TOPICS)

    assert (found.timeline, found.newest, frontier_lsn(found)) == (2, None, 0)
    assert (start("inv.s.a", 1), start("inv.transaction", 0)) == (14, 33)
    assert found.done == ()


def test_a_decided_timeline_reads_from_the_newest_cut_before_it() -> None:
    found = resumed(cut(6), cut(7), begins(2, transaction_offset=33))

    assert found.starts(TOPICS)("inv.s.a", 0) == 7


def test_in_a_truncated_log_no_cut_behind_the_decision_is_taken_for_one_before_it() -> None:
    log = InMemoryCutLog("inv")
    log.append_records([cut(6), cut(7), begins(2, transaction_offset=33), cut(9)])
    log.delete_before(2)
    found = resume(log, 1)

    assert (found.timeline, found.read_from) == (2, None)


@pytest.mark.parametrize(("started_ms", "is_of_the_new_one"), [(60_000, False), (62_000, True)])
def test_what_was_announced_before_the_old_timelines_last_commit_announces_nothing_on_the_new_one(
    started_ms: int, is_of_the_new_one: bool
) -> None:
    """Seen to fail while every announcement counted."""
    log = InMemoryCutLog("inv")
    log.append([replace(cut(7), previous_lsn=0, commit_ts_ms=61_001)])
    log.append_records([begins(2, 40)])
    frontier = resume(log, 1).frontier(SidecarSettings(source="inv", servers=Servers(KafkaSettings("h:1"))))
    old, new = (snapshot_notifications({"s.a": 1}, ts_ms=ms) for ms in (started_ms, 99_000))
    frontier.read_notifications(enumerate([*old, *new]))
    partition = frontier.add_partition("inv.s.a", 0, 0)
    row = snapshot_value("s.a", 8, {"id": 1}, snapshot="last", ts_ms=99_000)
    partition.read([(0, row)])
    for _ in range(3):
        frontier.advance()
        frontier.end_offsets({("inv.s.a", 0): 1})

    assert [c.lsn for c in frontier.cuts()] == ([] if is_of_the_new_one else [8])


def test_the_newest_of_several_decided_timelines_is_followed() -> None:
    found = resumed(cut(7), begins(3, transaction_offset=44), begins(2, transaction_offset=33))

    assert (found.timeline, found.starts(TOPICS)("inv.transaction", 0)) == (3, 44)


def test_a_decided_timeline_begins_behind_the_newest_cut_whatever_a_slow_sidecar_has_named() -> None:
    """Seen to fail: transactions of the old timeline came again on the new one."""
    found = resumed(cut(7), begins(2, transaction_offset=4))

    assert found.starts(TOPICS)("inv.transaction", 0) == 21


def test_a_cut_of_a_decided_timeline_never_leads_back_before_the_decision() -> None:
    found = resumed(cut(7), begins(2, transaction_offset=33))
    frontier = found.frontier(SidecarSettings(source="inv", servers=Servers(KafkaSettings("h:1"))))
    rows = frontier.add_partition("inv.s.a", 0, 7)
    frontier.read_notifications(enumerate(snapshot_notifications({"s.a": 1})))
    rows.read([(7, snapshot_value("s.a", 5, {"id": 1}))])
    frontier.read_transactions([(33, end_value(9, 90, {"s.a": 1}), 0)])
    for _ in range(3):
        frontier.advance()
        frontier.end_offsets({("inv.s.a", 0): 8})
    frontier.advance()

    (snapshot,) = frontier.cuts()
    assert (snapshot.lsn, snapshot.transaction_offset) == (5, 33)


def test_cuts_written_behind_the_decision_by_a_sidecar_that_had_not_heard_of_it_count_for_nothing() -> None:
    found = resumed(cut(7), begins(2, transaction_offset=33), cut(8), cut(9))

    assert found.timeline == 2
    assert found.starts(TOPICS)("inv.s.a", 0) == 7
    assert found.log_offset == 3


def test_a_decided_timeline_goes_on_at_its_own_newest_cut() -> None:
    found = resumed(cut(7), begins(2, transaction_offset=33), cut(1, timeline=2), cut(2, timeline=2))

    assert (found.timeline, frontier_lsn(found)) == (2, 2)
    assert found.starts(TOPICS)("inv.transaction", 0) == 6


def test_a_late_cut_of_the_earlier_timeline_does_not_begin_the_new_one_again() -> None:
    found = resumed(cut(7), begins(2, transaction_offset=33), cut(1, timeline=2), cut(8))

    assert (found.timeline, frontier_lsn(found)) == (2, 1)


@pytest.mark.parametrize("begun", [[1], [1, 5, 2]])
def test_many_late_cuts_of_the_earlier_timeline_do_not_hide_the_highest_of_the_new_one(
    begun: list[int],
) -> None:
    """Also of the new one's own cuts lower ones may come last: another sidecar appended them."""
    late = [cut(lsn) for lsn in range(8, 1_100)]
    found = resumed(cut(7), begins(2, transaction_offset=33), *(cut(n, timeline=2) for n in begun), *late)

    assert (found.timeline, frontier_lsn(found)) == (2, max(begun))


def test_of_two_decisions_for_one_timeline_the_first_counts() -> None:
    found = resumed(cut(7), begins(2, transaction_offset=33), begins(2, transaction_offset=44))

    assert found.starts(TOPICS)("inv.transaction", 0) == 33


def test_a_timeline_can_be_decided_before_the_first_cut() -> None:
    found = resumed(begins(2, transaction_offset=33))
    start = found.starts(TOPICS)

    assert (found.timeline, start("inv.s.a", 0), start("inv.transaction", 0)) == (2, None, 33)
