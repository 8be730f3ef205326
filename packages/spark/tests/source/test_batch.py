import pickle
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from slackwater_protocol import SNAPSHOT_XID, CommittedTransaction, PublishedCut
from slackwater_spark.source.batch import BatchContent, BatchTask, TransactionTable
from slackwater_spark.source.offset import SourceOffset
from slackwater_spark.source.plan import OffsetSpan

Published = Callable[..., PublishedCut]


def offset(lsn: int, events: int = 0) -> SourceOffset:
    return SourceOffset(source="inv", timeline=1, lsn=lsn, event_count=events, log=0)


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


def test_a_batch_holds_each_transaction_of_its_range_once_in_commit_order(published: Published) -> None:
    cuts = [
        published(20, 5, transactions={1: 8, 2: 12, 3: 20}),
        published(30, 12, transactions={3: 20, 4: 25, 5: 30}),
    ]
    content = BatchContent.of(cuts, offset(10), offset(30))
    assert [(t.xid, t.commit_lsn) for t in content.transactions] == [(2, 12), (3, 20), (4, 25), (5, 30)]


def test_the_transaction_at_which_a_batch_begins_belongs_to_the_one_before(published: Published) -> None:
    content = BatchContent.of([published(20, 5, transactions={1: 10, 2: 20})], offset(10), offset(20))
    assert [t.xid for t in content.transactions] == [2]


def test_transactions_are_in_commit_order_and_none_is_above_the_end(published: Published) -> None:
    cuts = [published(40, 20, transactions={5: 30, 6: 40}), published(20, 5, transactions={2: 12, 3: 20})]
    content = BatchContent.of(cuts, offset(5), offset(30))
    assert [t.commit_lsn for t in content.transactions] == [12, 20, 30]


def test_a_task_looks_ahead_where_rows_of_snapshots_may_be_newer_than_their_place() -> None:
    plain = BatchTask((), TransactionTable([]))
    late = BatchTask((), TransactionTable([]), late_snapshots=frozenset({8}))
    incremental = BatchTask((), TransactionTable([]), has_incremental_rows=True)
    assert [task.needs_look_ahead for task in (plain, late, incremental)] == [False, True, True]


def test_a_cut_that_is_partly_in_an_earlier_batch_says_what_rows_of_snapshots_it_has(
    published: Published,
) -> None:
    cuts = [published(20, 5, late_snapshots=(8,), has_incremental_rows=True), published(30, 20)]
    content = BatchContent.of(cuts, offset(10), offset(30))
    assert content.late_snapshots == {8}
    assert content.has_incremental_rows
    assert not content.may_split


def test_a_batch_without_repeats_and_rows_of_snapshots_may_be_divided(published: Published) -> None:
    assert BatchContent.of([published(20, 5)], offset(5), offset(20)).may_split
    assert not BatchContent.of([published(20, 5, repeated=frozenset({20}))], offset(5), offset(20)).may_split
    assert not BatchContent.of([published(20, 5, late_snapshots=(8,))], offset(5), offset(20)).may_split


def test_a_batch_is_as_new_as_its_newest_cut(published: Published) -> None:
    cuts = [published(20, 5, commit_ts_ms=7), published(30, 20, commit_ts_ms=9)]
    assert BatchContent.of(cuts, offset(5), offset(30)).commit_ts_ms == 9


def test_only_repeated_transactions_of_the_batch_are_compared(published: Published) -> None:
    cuts = [published(20, 10, repeated=frozenset({7, 20})), published(30, 20, repeated=frozenset({15}))]
    assert BatchContent.of(cuts, offset(10), offset(30)).repeated == frozenset({20})


def test_the_header_says_what_the_batch_holds(published: Published) -> None:
    cuts = [published(20, 10, transactions={3: 20}), published(30, 20, transactions={}, commit_ts_ms=99)]
    header = BatchContent.of(cuts, offset(10, 100), offset(30, 150)).header(offset(10, 100), offset(30, 150))
    assert (header.from_lsn, header.to_lsn, header.event_count) == (10, 30, 50)
    assert [t[:2] for t in header.transactions] == [(3, 20)]


def test_skipped_transactions_are_named_once_though_two_sidecars_name_them(published: Published) -> None:
    cuts = [
        published(20, 5, transactions={1: 8, 3: 20}, skipped=(3,)),
        published(30, 10, transactions={3: 20, 4: 25, 5: 30}, skipped=(3, 4)),
    ]
    first = BatchContent.of(cuts[:1], offset(5), offset(20)).header(offset(5), offset(20))
    second = BatchContent.of(cuts[1:], offset(20), offset(30)).header(offset(20), offset(30))
    both = BatchContent.of(cuts, offset(5), offset(30)).header(offset(5), offset(30))
    assert (first.skipped, second.skipped, both.skipped) == ((3,), (4,), (3, 4))
