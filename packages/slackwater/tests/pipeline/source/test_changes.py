import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import Message

from slackwater.cdc import BadInputError
from slackwater.cdc.batch import BatchTask, OffsetSpan, TransactionTable
from slackwater.cdc.changes import BatchChanges
from slackwater.protocol import SNAPSHOT_XID, CommittedTransaction, SourceTopics

Value = Callable[..., bytes]
Record = Callable[..., Message]

SPAN = OffsetSpan("inv.inventory.orders", 0, 0, 100, 0)


def changes(
    *, xids: dict[int, int] | None = None, snapshot: int | None = None, repeated: frozenset[int] = frozenset()
) -> BatchChanges:
    transactions = [CommittedTransaction(xid, lsn, 0) for xid, lsn in (xids or {}).items()]
    if snapshot is not None:
        transactions.append(CommittedTransaction(SNAPSHOT_XID, snapshot, 0))
    task = BatchTask((SPAN,), TransactionTable(transactions), repeated)
    return BatchChanges(task, "inv", ("inventory.orders",))


def found(batch: BatchChanges, *records: Message) -> list[tuple[int | None, int]]:
    return [(message.offset(), lsn) for message, _, lsn in batch.find(SPAN, list(records))]


def test_a_row_gets_the_commit_lsn_of_its_transaction(row_value: Value, record: Record) -> None:
    batch = changes(xids={7: 1000, 8: 2000})
    records = record(row_value(7, 900), offset=1), record(row_value(8, 950), offset=2)
    assert found(batch, *records) == [(1, 1000), (2, 2000)]


def test_rows_of_transactions_outside_the_batch_are_dropped(row_value: Value, record: Record) -> None:
    assert found(changes(xids={7: 1000}), record(row_value(6, 900)), record(row_value(8, 900))) == []


GROUP_SPAN = replace(SPAN, after_lsn=1000, up_to_lsn=2000, is_of_group=True)


@pytest.mark.parametrize("xids", [{7: 1000}, {}])
def test_a_truncate_behind_the_marker_of_its_group_is_refused(
    xids: dict[int, int], row_value: Value, record: Record
) -> None:
    """Seen to fail: it was left out, and the rows of its table stayed."""
    truncate = record(row_value(7, 900, op="t"), offset=2, key=None)

    with pytest.raises(BadInputError, match=r"TRUNCATE of inventory\.orders.*scope 'aggregate'"):
        list(changes(xids=xids).find(GROUP_SPAN, [truncate]))


@pytest.mark.parametrize(
    ("span", "xids", "op"),
    [
        (GROUP_SPAN, {7: 2001}, "t"),
        (GROUP_SPAN, {7: 1000}, "c"),
        (replace(GROUP_SPAN, after_lsn=0), {}, "t"),
        (replace(GROUP_SPAN, is_of_group=False), {7: 1000}, "t"),
    ],
)
def test_a_truncate_that_is_read_later_contained_in_a_snapshot_or_repeated_is_left_out(
    span: OffsetSpan, xids: dict[int, int], op: str, row_value: Value, record: Record
) -> None:
    left_out = record(row_value(7, 900, op=op), offset=2, key=None)

    assert list(changes(xids=xids).find(span, [left_out])) == []


def test_a_truncate_above_the_marker_of_its_group_is_a_change(row_value: Value, record: Record) -> None:
    truncate = record(row_value(7, 900, op="t"), offset=2, key=None)

    assert [lsn for _, _, lsn in changes(xids={7: 1001}).find(GROUP_SPAN, [truncate])] == [1001]


def test_tombstones_carry_nothing(record: Record) -> None:
    assert found(changes(), record(None)) == []


def test_snapshot_rows_get_the_lsn_of_their_snapshot(row_value: Value, record: Record) -> None:
    good = record(row_value(None, 500, op="r", snapshot="first"), offset=3)
    assert found(changes(snapshot=500), good) == [(3, 500)]


def test_rows_of_an_interrupted_snapshot_are_void(row_value: Value, record: Record) -> None:
    void = record(row_value(None, 400, op="r", snapshot="true"))
    assert found(changes(snapshot=500), void) == []
    assert found(changes(xids={1: 400}), void) == []


def test_doubles_of_a_repeated_transaction_count_once(row_value: Value, record: Record) -> None:
    batch = changes(xids={7: 1000}, repeated=frozenset({1000}))
    first = record(row_value(7, 900, order=1), offset=1)
    renumbered = record(row_value(7, 900, order=5), offset=2)
    same_lsn_other_key = record(row_value(7, 900), offset=3, key=b'{"id":2}')
    half_of_a_key_update = record(row_value(7, 900, op="d"), offset=4)
    assert found(batch, first, renumbered, same_lsn_other_key, half_of_a_key_update) == [
        (1, 1000),
        (3, 1000),
        (4, 1000),
    ]


def test_two_changes_of_a_key_in_a_repeated_transaction_both_count(row_value: Value, record: Record) -> None:
    batch = changes(xids={7: 1000, 8: 2000}, repeated=frozenset({1000, 2000}))
    rows = [
        record(row_value(7, 900, op="u"), offset=1),
        record(row_value(7, 901, op="u"), offset=2),
        record(row_value(8, 901, op="u"), offset=3),
    ]
    assert found(batch, *rows) == [(1, 1000), (2, 1000), (3, 2000)]


def test_a_span_takes_commits_above_its_lower_and_up_to_its_upper_lsn(
    row_value: Value, record: Record
) -> None:
    batch = changes(xids={6: 1000, 7: 1500, 8: 2000, 9: 2001})
    span = replace(SPAN, after_lsn=1000, up_to_lsn=2000)
    rows = [record(row_value(xid, 900), offset=xid) for xid in (6, 7, 8, 9)]
    assert [message.offset() for message, _, _ in batch.find(span, rows)] == [7, 8]


def test_doubles_are_found_over_several_portions(row_value: Value, record: Record) -> None:
    batch = changes(xids={7: 1000}, repeated=frozenset({1000}))
    assert found(batch, record(row_value(7, 900), offset=1)) == [(1, 1000)]
    assert found(batch, record(row_value(7, 900), offset=2)) == []


def test_equal_rows_of_other_transactions_are_not_compared(row_value: Value, record: Record) -> None:
    batch = changes(xids={7: 1000}, repeated=frozenset({2000}))
    row = row_value(7, 900)
    assert found(batch, record(row, offset=1), record(row, offset=2)) == [(1, 1000), (2, 1000)]


def test_doubles_of_a_table_without_key_are_bad_input(row_value: Value, record: Record) -> None:
    batch = changes(xids={7: 1000}, repeated=frozenset({1000}))
    with pytest.raises(BadInputError, match="has no key, are in Kafka twice, and not all"):
        found(batch, record(row_value(7, 900), key=None))


def test_logical_messages_are_ignored(row_value: Value, record: Record) -> None:
    batch = changes(xids={7: 1000})
    in_transaction = record(row_value(7, 900, op="m", table="."))
    outside = record(row_value(None, 900, op="m", table="."))
    assert found(batch, in_transaction, outside) == []


def test_rows_of_a_table_whose_topic_has_the_same_name_are_left_out(row_value: Value, record: Record) -> None:
    span = OffsetSpan("inv.s.a_b", 0, 0, 10, 0)
    batch = BatchChanges(
        BatchTask((span,), TransactionTable([CommittedTransaction(7, 1000, 0)])), "inv", ("s.a_b",)
    )
    other = record(row_value(7, 900, table="s.a b"), topic="inv.s.a_b")
    mine = record(row_value(7, 900, table="s.a_b"), topic="inv.s.a_b")
    assert [c.table for _, c, _ in batch.find(span, [other, mine])] == ["s.a_b"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"op": "x"}, "operation 'x', expected one of c, r, u, d, t"),
        ({"table": "other.table"}, "a change of table 'other.table'"),
    ],
)
def test_rows_that_cannot_be_used_are_bad_input(
    row_value: Value, record: Record, fields: dict[str, str], problem: str
) -> None:
    with pytest.raises(BadInputError, match=problem):
        found(changes(xids={7: 1000}), record(row_value(7, 900, **fields)))


def placed(task: BatchTask, *records: Message) -> list[tuple[int | None, int]]:
    """Offsets and LSNs of what counts, with the first reading that a task with such rows needs."""
    span, tables = task.spans[0], ("inventory.orders",)
    batch = BatchChanges(task, "inv", tables).look_ahead(lambda: [(span, list(records))])
    return [(message.offset(), lsn) for message, _, lsn in batch.find(span, list(records))]


def test_a_row_of_an_incremental_snapshot_stands_before_the_next_change_of_its_partition(
    row_value: Value, record: Record
) -> None:
    table = TransactionTable([CommittedTransaction(7, 1000, 0), CommittedTransaction(8, 2000, 0)])
    task = BatchTask((SPAN,), table, has_incremental_rows=True, end_lsn=3000)
    row = row_value(None, 0, op="r", snapshot="incremental")
    records = [record(row, offset=n) for n in (1, 2, 4, 6)]
    records.insert(2, record(row_value(7, 900), offset=3, key=b'{"id":9}'))
    records.insert(4, record(row_value(8, 900), offset=5, key=b'{"id":9}'))
    assert placed(task, *records) == [(1, 1000), (2, 1000), (3, 1000), (4, 2000), (5, 2000), (6, 3000)]


def test_a_late_row_stands_before_the_next_change_of_its_key(row_value: Value, record: Record) -> None:
    table = TransactionTable([CommittedTransaction(7, 1000, 0), CommittedTransaction(8, 2000, 0)])
    task = BatchTask((SPAN,), table, late_snapshots=frozenset({500}), end_lsn=3000)
    late = row_value(None, 500, op="r", snapshot="true")
    records = [
        record(late, offset=1, key=b'{"id":1}'),
        record(late, offset=2, key=b'{"id":2}'),
        record(row_value(7, 900), offset=3, key=b'{"id":3}'),
        record(row_value(8, 1900), offset=4, key=b'{"id":1}'),
    ]
    assert placed(task, *records) == [(1, 2000), (2, 3000), (3, 1000), (4, 2000)]


def test_a_late_row_stands_before_a_truncate(row_value: Value, record: Record) -> None:
    table = TransactionTable([CommittedTransaction(7, 1000, 0)])
    task = BatchTask((SPAN,), table, late_snapshots=frozenset({500}), end_lsn=3000)
    late = record(row_value(None, 500, op="r", snapshot="true"), offset=1)
    truncate = record(row_value(7, 900, op="t"), offset=2, key=None)
    assert placed(task, late, truncate) == [(1, 1000), (2, 1000)]


def test_repetitions_are_no_changes_behind_a_row(row_value: Value, record: Record) -> None:
    table = TransactionTable([CommittedTransaction(7, 1000, 0), CommittedTransaction(8, 2000, 0)])
    repeated = frozenset({1000, 2000})
    task = BatchTask((SPAN,), table, repeated, has_incremental_rows=True, end_lsn=3000)
    old, new = row_value(7, 900), row_value(8, 1900)
    row = row_value(None, 0, op="r", snapshot="incremental")
    records = [record(old, offset=1), record(row, offset=2), record(old, offset=3), record(new, offset=4)]
    assert placed(task, *records) == [(1, 1000), (2, 2000), (4, 2000)]


def test_a_row_that_the_next_batch_reads_again_is_left_to_it(row_value: Value, record: Record) -> None:
    span = replace(SPAN, next_offset=2, up_to_lsn=1000)
    task = BatchTask(
        (span,), TransactionTable([CommittedTransaction(7, 1000, 0)]), has_incremental_rows=True, end_lsn=3000
    )
    row = row_value(None, 0, op="r", snapshot="incremental")
    assert placed(task, record(row, offset=1), record(row, offset=2)) == [(1, 1000)]


def test_late_rows_of_a_table_without_key_are_bad_input(row_value: Value, record: Record) -> None:
    task = BatchTask((SPAN,), TransactionTable(()), late_snapshots=frozenset({500}))
    with pytest.raises(BadInputError, match="has no key"):
        placed(task, record(row_value(None, 500, op="r", snapshot="true"), key=None))


def test_rows_of_an_ad_hoc_snapshot_that_no_cut_tells_of_are_bad_input(
    row_value: Value, record: Record
) -> None:
    with pytest.raises(BadInputError, match="that no cut describes"):
        found(changes(), record(row_value(None, 900, op="r", snapshot="incremental")))


def test_a_row_without_transaction_is_bad_input_with_what_to_set(row_value: Value, record: Record) -> None:
    with pytest.raises(BadInputError, match=r"provide\.transaction\.metadata=true"):
        found(changes(), record(row_value(None, 900, op="c")))


def test_bad_input_names_its_place_and_shows_the_value(record: Record) -> None:
    with pytest.raises(BadInputError) as caught:
        found(changes(), record(b"not json " * 100, offset=42))
    error = caught.value
    assert (error.topic, error.partition, error.offset) == ("inv.inventory.orders", 0, 42)
    assert "topic inv.inventory.orders, partition 0, offset 42" in str(error)
    assert "b'not json " in str(error)
    assert len(error.value) == 200
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes


def test_equal_changes_of_two_tables_in_one_topic_are_not_the_same(row_value: Value, record: Record) -> None:
    topics = SourceTopics("inv", {"s.a": "all", "s.b": "all"})
    table = TransactionTable([CommittedTransaction(7, 1000, 0)])
    span = replace(SPAN, topic="all")
    task = BatchTask((span,), table, frozenset({1000}))
    batch = BatchChanges(task, "inv", ("s.a", "s.b"), topics=topics)
    rows = [
        record(row_value(7, 900, table=t), offset=n, topic="all") for n, t in enumerate(("s.a", "s.b", "s.a"))
    ]
    assert [message.offset() for message, _, _ in batch.find(span, rows)] == [0, 1]


def test_a_row_of_a_snapshot_stands_at_most_at_the_end_of_its_span(row_value: Value, record: Record) -> None:
    span = replace(SPAN, up_to_lsn=1000)
    task = BatchTask((span,), TransactionTable([]), has_incremental_rows=True, end_lsn=3000)
    assert placed(task, record(row_value(None, 0, op="r", snapshot="incremental"))) == [(0, 1000)]


def test_an_exact_snapshots_row_counts_as_a_change_behind_a_row_without_a_commit(
    row_value: Value, record: Record
) -> None:
    table = TransactionTable([CommittedTransaction(SNAPSHOT_XID, 500, 0)])
    task = BatchTask((SPAN,), table, has_incremental_rows=True, end_lsn=3000)
    row = record(row_value(None, 0, op="r", snapshot="incremental"), offset=1)
    exact = record(row_value(None, 500, op="r", snapshot="true"), offset=2)
    assert placed(task, row, exact) == [(1, 500), (2, 500)]


def test_only_the_first_change_behind_a_stretch_of_late_rows_counts(row_value: Value, record: Record) -> None:
    table = TransactionTable([CommittedTransaction(xid, 1000 * xid, 0) for xid in (1, 2, 3)])
    task = BatchTask((SPAN,), table, late_snapshots=frozenset({500}), end_lsn=9000)
    late = row_value(None, 500, op="r", snapshot="true")
    records = [
        record(late, offset=1),
        record(row_value(1, 900), offset=2),
        record(row_value(2, 900), offset=3),
        record(late, offset=4),
        record(row_value(3, 900), offset=5),
        record(late, offset=6),
    ]
    assert placed(task, *records) == [(1, 1000), (2, 1000), (3, 2000), (4, 3000), (5, 3000), (6, 9000)]


def test_rows_without_a_key_are_compared_within_repeated_transactions_only(
    row_value: Value, record: Record
) -> None:
    table = TransactionTable([CommittedTransaction(7, 1000, 0), CommittedTransaction(8, 2000, 0)])
    task = BatchTask((SPAN,), table, frozenset({1000}), has_whole_topics=True)
    rows = [
        record(row_value(xid, 900, after={"n": 1}), offset=n, key=None) for n, xid in enumerate((7, 7, 8, 8))
    ]
    tables = ("inventory.orders",)
    batch = BatchChanges(task, "inv", tables).look_ahead(lambda: [(SPAN, rows)])
    assert [message.offset() for message, _, _ in batch.find(SPAN, rows)] == [0, 2, 3]


def test_a_row_that_came_is_not_the_same_as_one_that_went(row_value: Value, record: Record) -> None:
    table = TransactionTable([CommittedTransaction(7, 1000, 0)])
    task = BatchTask((SPAN,), table, frozenset({1000}), has_whole_topics=True)
    images = ({"after": {"n": 1}}, {"before": {"n": 1}})
    rows = [record(row_value(7, 900, op="u", **image), offset=n, key=None) for n, image in enumerate(images)]
    batch = BatchChanges(task, "inv", ("inventory.orders",)).look_ahead(lambda: [(SPAN, rows)])
    with pytest.raises(BadInputError, match="it cannot be determined which of them are the same row"):
        list(batch.find(SPAN, rows))
