from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.protocol import CommitRecord, CommittedTransaction, Cut
from slackwater_bench.scenarios.latency import HOPS, hops_ms
from slackwater_bench.usage import LoggedBatch
from slackwater_lab.watching import SeenCommit, SeenCut

SECONDS = {
    "plan": 0.001,
    "read": 0.002,
    "evaluate": 0.004,
    "schedule": 0.008,
    "state": 0.016,
    "produce": 0.032,
    "commit": 0.064,
}
"""127 ms; no part, and no sum of parts, is as long as another."""


def cut(at_ms: int, *transactions: tuple[int, int]) -> SeenCut:
    """A cut of transactions, each a commit LSN and the time of its commit."""
    table = tuple(CommittedTransaction(7, lsn, ms) for lsn, ms in transactions)
    lsn, newest_ms = transactions[-1]
    made = Cut(
        source="inv",
        timeline=1,
        lsn=lsn,
        previous_lsn=0,
        commit_ts_ms=newest_ms,
        event_count=1,
        transactions=table,
        end_offsets={},
        transaction_offset=0,
    )
    return SeenCut(made, at_ms)


def commit(lsn: int, newest_ms: int, wall_ms: float) -> SeenCommit:
    """A commit record."""
    record = CommitRecord(
        pipeline="p",
        source="inv",
        timeline=1,
        commit_lsn=lsn,
        previous_lsn=0,
        xid=None,
        commit_ts_ms=newest_ms,
        offsets={},
    )
    return SeenCommit(record, 0.0, wall_ms)


def batch(lsn: int, lag_ms: float) -> LoggedBatch:
    return LoggedBatch(lsn, 1, lag_ms, SECONDS)


def medians(found: dict[str, dict[str, float]]) -> dict[str, float]:
    return {hop: values["p50"] for hop, values in found.items()}


def test_each_hop_is_what_a_transaction_took_for_it() -> None:
    """Committed at 10,000 ms, and 128, 256 and 512 ms later at the next stations; nothing is equal."""
    found = hops_ms(
        [cut(10_384, (5, 10_000))],
        {5: 10_128},
        [batch(5, lag_ms=384 + 512 + 127)],
        [commit(5, 10_000, wall_ms=10_000 + 384 + 512 + 127 + 1024)],
        since=10.0,
    )
    assert list(medians(found).items()) == [
        ("end", 128.0),
        ("cut", 256.0),
        ("wait", 512.0),
        ("plan", 1.0),
        ("read", 2.0),
        ("evaluate", 4.0),
        ("schedule", 8.0),
        ("state", 16.0),
        ("produce", 32.0),
        ("commit", 64.0),
        ("visible", 1024.0),
    ]
    assert tuple(found) == HOPS
    assert found["end"] == {"count": 1, "p50": 128.0, "p90": 128.0, "p99": 128.0, "max": 128.0}


def test_a_transaction_goes_with_its_own_cut_and_the_first_batch_that_covers_it() -> None:
    """Two in one cut and one in the next; the first batch takes only one of them."""
    found = hops_ms(
        [cut(10_100, (5, 10_000), (6, 10_050)), cut(10_300, (9, 10_200))],
        {5: 10_010, 6: 10_070, 9: 10_240},
        [batch(5, lag_ms=100 + 30 + 127), batch(9, lag_ms=100 + 500 + 127)],
        [commit(5, 10_000, 10_257), commit(9, 10_200, 10_927)],
        since=0.0,
    )
    assert found["end"] == {"count": 3, "p50": 20.0, "p90": 40.0, "p99": 40.0, "max": 40.0}
    assert found["cut"] == {"count": 3, "p50": 60.0, "p90": 90.0, "p99": 90.0, "max": 90.0}
    assert found["wait"] == {"count": 3, "p50": 500.0, "p90": 700.0, "p99": 700.0, "max": 700.0}
    assert found["evaluate"]["max"] == 4.0
    assert found["visible"]["max"] == 0.0


def test_a_batch_that_finds_the_cut_while_it_plans_is_charged_from_the_cut_on() -> None:
    """It began 3 ms before the cut, and planned and read for 1 and 2 ms: both were over, or just so."""
    found = hops_ms(
        [cut(10_020, (5, 10_000))],
        {5: 10_010},
        [batch(5, lag_ms=20 - 2 + 127)],
        [commit(5, 10_000, 10_145)],
        since=0.0,
    )
    assert medians(found) == {
        "end": 10.0,
        "cut": 10.0,
        "wait": 0.0,
        "plan": 0.0,
        "read": 1.0,
        "evaluate": 4.0,
        "schedule": 8.0,
        "state": 16.0,
        "produce": 32.0,
        "commit": 64.0,
        "visible": 0.0,
    }


def test_a_part_that_is_not_shown_counts_as_nothing() -> None:
    found = hops_ms(
        [cut(10_020, (5, 10_000))],
        {5: 10_010},
        [LoggedBatch(5, 1, 100, {"evaluate": 0.05})],
        [commit(5, 10_000, 10_101)],
        since=0.0,
    )
    assert {hop: took for hop, took in medians(found).items() if took} == {
        "end": 10.0,
        "cut": 10.0,
        "wait": 30.0,
        "evaluate": 50.0,
        "visible": 1.0,
    }


CUTS = [cut(10_020, (5, 10_000))]
ENDS = {5: 10_010}
BATCHES = [batch(5, 200)]
SEEN = [commit(5, 10_000, 10_201)]


@pytest.mark.parametrize(
    "changes",
    [
        {"cuts": []},
        {"ends_ms": {4: 10_010}},
        {"batches": [batch(6, 200)]},
        {"seen": [commit(4, 10_000, 10_201)]},
        {"since": 10.001},
    ],
)
def test_a_transaction_whose_way_is_not_known_or_that_is_of_the_warm_up_is_left_out(
    changes: dict[str, Any],
) -> None:
    known: dict[str, Any] = {
        "cuts": CUTS,
        "ends_ms": ENDS,
        "batches": BATCHES,
        "seen": SEEN,
        "since": 10.0,
    }
    assert hops_ms(**known)["end"]["count"] == 1
    assert hops_ms(**{**known, **changes}) == {}


@given(*4 * [st.integers(0, 500)])
def test_the_hops_of_a_transaction_add_up_to_its_latency(
    end_ms: int, cut_ms: int, lag_ms: int, unseen_ms: int
) -> None:
    """Whatever the order in which the clocks of several programs tell it."""
    latency_ms = max(lag_ms, end_ms, cut_ms) + unseen_ms
    found = hops_ms(
        [cut(10_000 + cut_ms, (5, 10_000))],
        {5: 10_000 + end_ms},
        [batch(5, lag_ms)],
        [commit(5, 10_000, 10_000 + latency_ms)],
        since=0.0,
    )
    assert min(medians(found).values()) >= 0
    assert sum(medians(found).values()) == pytest.approx(latency_ms)
