import pickle
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slackwater.cdc.batch import BatchContent, BatchTask, OffsetSpan, TransactionTable
from slackwater.protocol import SNAPSHOT_XID, CommittedTransaction


@given(st.dictionaries(st.integers(1, 2**32 - 1), st.integers(1, 2**63 - 1), max_size=50))
def test_a_table_is_the_same_after_the_journey_to_the_task(xids: dict[int, int]) -> None:
    table = TransactionTable(CommittedTransaction(xid, lsn, 0) for xid, lsn in xids.items())
    arrived = pickle.loads(pickle.dumps(table))  # noqa: S301 - our own bytes
    assert arrived.by_xid() == xids
    assert arrived.snapshot_lsns == frozenset()


def test_snapshots_are_found_by_lsn_not_by_xid() -> None:
    table = TransactionTable([CommittedTransaction(SNAPSHOT_XID, 70, 0), CommittedTransaction(9, 80, 0)])
    assert table.by_xid() == {9: 80}
    assert table.snapshot_lsns == frozenset({70})


def test_a_task_of_a_large_batch_is_small() -> None:
    """Spark warns above 1000 KiB."""
    table = TransactionTable(CommittedTransaction(700 + i, 10**9 + 137 * i, 0) for i in range(100_000))
    spans = tuple(OffsetSpan("topic", p, 0, 100_000, p) for p in range(100))
    assert len(pickle.dumps(BatchTask(spans, table))) < 50_000


def test_a_task_looks_ahead_where_rows_of_snapshots_may_be_newer_than_their_place() -> None:
    plain = BatchTask((), TransactionTable([]))
    late = BatchTask((), TransactionTable([]), late_snapshots=frozenset({8}))
    incremental = BatchTask((), TransactionTable([]), has_incremental_rows=True)
    assert [task.needs_look_ahead for task in (plain, late, incremental)] == [False, True, True]


def test_a_batch_without_repeats_and_rows_of_snapshots_may_be_divided() -> None:
    plain = BatchContent((), frozenset(), 0)
    assert plain.may_split
    assert not replace(plain, repeated=frozenset({20})).may_split
    assert not replace(plain, late_snapshots=frozenset({8})).may_split
    assert not replace(plain, has_incremental_rows=True).may_split
