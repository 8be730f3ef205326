"""Transactions are traced from their commit to the cut that this sidecar has written."""

from datetime import UTC, datetime

import pytest

from slackwater.protocol import SNAPSHOT_XID, CommitPosition, CommittedTransaction, Cut, PublishedCut
from slackwater.protocol.tracing import TransactionSpan
from slackwater_sidecar import SourceMonitor
from slackwater_sidecar.publisher import _shortened


class Clock:
    ms = 0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.ms / 1000, UTC)

    def monotonic(self) -> float:
        return self.ms / 1000


def cut(lsn: int, previous: int, *transactions: tuple[int, int]) -> Cut:
    """Of transactions: LSN and time of the END; committed ten milliseconds before it."""
    return Cut(
        source="inv",
        timeline=1,
        lsn=lsn,
        previous_lsn=previous,
        commit_ts_ms=0,
        event_count=0,
        transactions=tuple(
            CommittedTransaction(t if end else SNAPSHOT_XID, t, end - 10) for t, end in transactions
        ),
        end_offsets={},
        transaction_offset=0,
        ends_ms=tuple(end for _, end in transactions),
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


def steps(sent: list[TransactionSpan], lsn: int) -> list[tuple[str, int, int]]:
    return [(s.name, s.begin_ms, s.end_ms) for s in sent if s.transaction.commit_lsn == lsn and s.parent]


def test_each_transaction_of_a_cut_has_the_times_of_its_own_end_and_poll(clock: Clock) -> None:
    sent: list[TransactionSpan] = []
    traced = SourceMonitor("inv", clock, sent.append)
    for clock.ms, newest in ((100, 5), (200, 7)):
        traced.record_read(newest)
    found = cut(7, 0, (3, 90), (7, 150))
    traced.record_written([PublishedCut(found, 0, written_ms=250)])
    assert steps(sent, 3) == [("connector", 80, 90), ("kafka", 90, 100), ("cut", 100, 250)]
    assert steps(sent, 7) == [("connector", 140, 150), ("kafka", 150, 200), ("cut", 200, 250)]


def test_what_another_sidecar_has_written_is_not_traced_here(clock: Clock) -> None:
    sent: list[TransactionSpan] = []
    traced = SourceMonitor("inv", clock, sent.append)
    traced.record_read(9)
    shortened = _shortened(cut(9, 0, (7, 50), (9, 60)), CommitPosition(1, 7))
    traced.record_written([PublishedCut(shortened, 1, written_ms=70)])
    assert steps(sent, 7) == []
    assert steps(sent, 9)[0] == ("connector", 50, 60)


def test_snapshots_and_what_is_not_sampled_are_not_traced(clock: Clock) -> None:
    sent: list[TransactionSpan] = []
    for ratio in (0.0, 1.0):
        traced = SourceMonitor("inv", clock, sent.append, ratio)
        traced.record_read(9)
        of_one = cut(9, 0, (5, 0), (9, 60)) if ratio else cut(9, 0, *((lsn, 60) for lsn in range(1, 9)))
        traced.record_written([PublishedCut(of_one, 0, written_ms=70)])
    assert {span.transaction.commit_lsn for span in sent} == {9}
