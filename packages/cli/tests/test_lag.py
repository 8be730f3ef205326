"""Delay per source transaction."""

from slackwater.demo.history import SourceTransaction
from slackwater.demo.lag import summary, transaction_lags
from slackwater.demo.observers import SeenCommit
from slackwater_protocol import CommitRecord, OffsetRange


def seen(lsn: int, seen_ms: int, commit_ts_ms: int = 0) -> SeenCommit:
    record = CommitRecord(
        pipeline="p",
        source="inv",
        timeline=1,
        commit_lsn=lsn,
        previous_lsn=0,
        xid=None,
        commit_ts_ms=commit_ts_ms,
        offsets={"out": {0: OffsetRange(2, 0, 1), 1: OffsetRange(1, 0, 0)}},
    )
    return SeenCommit(record, seen_ms)


def test_every_transaction_of_a_batch_counts_from_its_own_commit() -> None:
    transactions = [SourceTransaction(lsn, ts, ()) for lsn, ts in ((10, 100), (20, 150), (30, 190))]
    assert list(transaction_lags(transactions, [seen(20, 200), seen(30, 260)], since_ms=0)) == [100, 50, 70]


def test_transactions_before_the_start_of_writing_do_not_count() -> None:
    transactions = [SourceTransaction(10, 100, ()), SourceTransaction(20, 150, ())]
    assert list(transaction_lags(transactions, [seen(20, 200)], since_ms=150)) == [50]


def test_a_transaction_that_never_became_visible_has_no_lag() -> None:
    assert list(transaction_lags([SourceTransaction(30, 1, ())], [seen(20, 200)], since_ms=0)) == []


def test_percentiles_are_values_that_occurred() -> None:
    result = summary(range(100, 0, -1))
    assert result is not None
    assert (result.p50_ms, result.p99_ms, result.max_ms) == (50, 99, 100)


def test_nothing_measured_has_no_summary() -> None:
    assert summary([]) is None


def test_a_commit_record_knows_its_documents_and_its_lag() -> None:
    commit = seen(20, 200, commit_ts_ms=150)
    assert (commit.documents, commit.lag_ms) == (3, 50)
