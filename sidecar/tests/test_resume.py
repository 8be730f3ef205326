import pytest

from slackwater_markers import InMemoryCutLog
from slackwater_protocol import CommittedTransaction, Cut
from slackwater_sidecar import SidecarSettings, TimelineError
from slackwater_sidecar.resume import recent_transactions, resumed_frontier, starts_of


def cut(lsn: int, timeline: int = 1) -> Cut:
    return Cut(
        source="inv",
        timeline=timeline,
        lsn=lsn,
        previous_lsn=lsn - 1,
        commit_ts_ms=5,
        event_count=lsn,
        transactions=(CommittedTransaction(700 + lsn, lsn, 5),),
        end_offsets={"inv.s.a": (lsn, 2 * lsn)},
        transaction_offset=3 * lsn,
    )


def settings(timeline: int = 1) -> SidecarSettings:
    return SidecarSettings(source="inv", bootstrap="h:1", timeline=timeline)


def test_reading_goes_on_at_the_end_offsets_of_the_newest_cut() -> None:
    start = starts_of("inv", cut(5))

    assert (start("inv.s.a", 1), start("inv.transaction", 0)) == (10, 15)
    assert start("inv.s.a", 2) is None
    assert start("inv.s.new", 0) is None
    assert start("inv.notifications", 0) is None


def test_the_transactions_of_many_cuts_are_remembered_in_order() -> None:
    log = InMemoryCutLog("inv")
    log.append([cut(n) for n in range(1, 351)])
    newest = log.newest()
    assert newest is not None

    assert [t.commit_lsn for t in recent_transactions(log, newest)] == list(range(1, 351))


def test_a_frontier_goes_on_from_the_newest_cut() -> None:
    log = InMemoryCutLog("inv")
    log.append([cut(1), cut(2)])

    assert resumed_frontier(settings(), log, log.newest()).lsn == 2


def test_a_raised_timeline_begins_anew() -> None:
    log = InMemoryCutLog("inv")
    log.append([cut(1)])

    assert resumed_frontier(settings(timeline=2), log, log.newest()).lsn == 0


def test_a_timeline_that_is_over_is_refused() -> None:
    log = InMemoryCutLog("inv")
    log.append([cut(1, timeline=3)])

    with pytest.raises(TimelineError, match="set timeline to 3 or more"):
        resumed_frontier(settings(timeline=2), log, log.newest())
