"""Cuts go to the log first; a log that is another one is not written to."""

from dataclasses import replace

import pytest

from slackwater.cuts import CutLogReplacedError, FrontierState
from slackwater.protocol import PublishedCut
from slackwater_lab.fakes.sources import (
    OTHER,
    SOURCE,
    STATUS,
    FailingStore,
    WatchedLog,
    ahead,
    cut,
    held,
    logged,
)
from slackwater_sidecar import Publisher


def test_cuts_reach_the_log_and_the_store_with_their_log_offset(
    publisher: Publisher, log: WatchedLog, store: FailingStore
) -> None:
    publisher.publish([cut(1), cut(2)], STATUS)

    assert [c.cut.lsn for c in log.tail(-1)] == [1, 2]
    assert store.newest(SOURCE, 1) == PublishedCut(cut(2), 1)


def test_a_cut_that_the_log_has_not_acknowledged_is_in_no_store(
    publisher: Publisher, log: WatchedLog, store: FailingStore
) -> None:
    log.is_away = True
    publisher.publish([cut(1)], STATUS)

    assert held(store) == []
    assert publisher.log_error is not None

    log.is_away = False
    publisher.publish([cut(2)], STATUS)

    assert held(store) == [1, 2]
    assert publisher.log_error is None


def test_a_sidecar_that_goes_on_from_another_cut_forgets_what_it_had_not_written(
    publisher: Publisher, log: WatchedLog
) -> None:
    log.is_away = True
    publisher.publish([replace(cut(1), has_incremental_rows=True)], STATUS)
    log.is_away = False
    publisher.state.resume_from(None)
    publisher.publish([cut(1)], STATUS)

    assert log.newest() == PublishedCut(cut(1), 0)


def test_an_error_of_the_log_stays_until_everything_is_written(
    publisher: Publisher, log: WatchedLog, store: FailingStore
) -> None:
    log.is_away = True
    publisher.publish([cut(1)], STATUS)
    publisher.publish_ahead(ahead(4))
    assert publisher.log_error is not None

    log.is_away = False
    publisher.publish_ahead(ahead(5))
    assert publisher.log_error is not None, "the cut is not written"
    publisher.publish([], STATUS)
    assert publisher.log_error is None


def test_a_log_that_was_made_anew_is_not_written_to(
    publisher: Publisher, log: WatchedLog, store: FailingStore
) -> None:
    publisher.publish([cut(1)], STATUS)
    log.recreate()
    with pytest.raises(CutLogReplacedError, match="its id was"):
        publisher.report(STATUS, [])
    assert log.end() == 0

    failed = replace(STATUS, state=FrontierState.FAILED)
    publisher.report(failed, [])
    assert (store.status(SOURCE), store.position(SOURCE)) == (failed, None)


@pytest.mark.parametrize("count", [1, 2])
def test_a_cut_that_went_into_a_log_made_anew_is_the_last_one(
    publisher: Publisher, log: WatchedLog, store: FailingStore, count: int
) -> None:
    """There was no time to notice before."""
    publisher.publish([cut(lsn + 1) for lsn in range(count)], STATUS)
    log.recreate()
    with pytest.raises(CutLogReplacedError, match=f"to offset 0, the one before it to {count - 1}"):
        publisher.publish([cut(3)], STATUS)
    publisher.report(replace(STATUS, state=FrontierState.FAILED), [])
    assert logged(log) == [3]
    assert store.position(SOURCE) is None


def test_a_log_that_cannot_be_named_for_a_moment_is_no_other_one(
    publisher: Publisher, log: WatchedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(log, "identity", lambda: None)
        publisher.report(STATUS, [])
    publisher.publish([cut(1)], STATUS)
    assert logged(log) == [1]
    log.recreate()
    with pytest.raises(CutLogReplacedError):
        publisher.report(STATUS, [])


def test_a_log_that_is_away_is_not_asked_for_its_id(
    publisher: Publisher, log: WatchedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question may take the time-out, and nothing is read meanwhile."""
    log.is_away = True
    publisher.publish([cut(1)], STATUS)
    with monkeypatch.context() as patched:
        patched.setattr(log, "identity", lambda: pytest.fail("asked"))
        publisher.report(STATUS, [])
        assert publisher.log_error is not None
    log.is_away = False
    publisher.report(STATUS, [])
    assert logged(log) == [1]


def test_before_there_is_a_log_the_store_is_left_alone(
    log: WatchedLog, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_cut(PublishedCut(cut(50), 0), OTHER)
    monkeypatch.setattr(log, "identity", lambda: None)
    publisher = Publisher(SOURCE, log, store, restored_cuts=100)
    publisher.report(STATUS, [])
    publisher.publish([cut(1)], STATUS)

    assert logged(log) == [1], "what the store says of another log is not believed"
    assert held(store) == [50]
