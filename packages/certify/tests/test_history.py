"""Debezium's records, real and made up, put together to committed transactions."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from slackwater_certify.errors import CertifyConfigError, CertifyError
from slackwater_certify.history import CommittedTransaction, History
from slackwater_certify.view import read_tables

RECORDINGS = Path(__file__).parents[2] / "slackwater" / "tests" / "cdc" / "recordings"
TABLES = read_tables(
    """
    CREATE TABLE inv.a (id int PRIMARY KEY, v text, n numeric(10, 2), ts timestamptz, d date, b bytea);
    CREATE TABLE inv.b (id int PRIMARY KEY, v text);
    CREATE TABLE inv.e (id int PRIMARY KEY);
    CREATE TABLE inv.nokey (v text);
    """,
    "schema.sql",
)


def recorded(name: str, *, shuffled: int | None = None) -> History:
    """The history of a recording, both runs; shuffled as partitions are, each key in its order."""
    files = [f for f in (RECORDINGS / f"{name}{part}.tsv" for part in ("", ".run1", ".run2")) if f.exists()]
    assert files
    lines = [line.split("\t") for file in files for line in file.read_text().splitlines()]
    if shuffled is not None:
        rng = random.Random(shuffled)
        moments = {key: rng.random() for key in {(line[0], line[2]) for line in lines}}
        lines.sort(key=lambda line: moments[line[0], line[2]])
    history = History(TABLES)
    for topic, _, _, value, *_ in lines:
        if value == "null":
            continue
        if topic.endswith(".transaction"):
            history.add_transaction_record(value.encode())
        elif ".inv." in topic:
            history.add_row(value.encode())
    return history


def brief(transaction: CommittedTransaction) -> tuple[int, list[tuple[str, str, object]]]:
    return transaction.xid, [(c.table, c.op, c.key[0]) for c in transaction.changes]


@pytest.mark.parametrize("name", ["restart_renumbers_3_4_1", "restart_mid_transaction"])
@pytest.mark.parametrize("shuffled", [None, 1, 2, 3])
def test_rows_repeated_after_a_restart_count_once(name: str, shuffled: int | None) -> None:
    history = recorded(name, shuffled=shuffled)
    transaction = next(history.transactions())
    assert len(transaction.changes) == 5
    assert len({(c.lsn, c.table, c.key) for c in transaction.changes}) == 5
    assert history.unfinished() == []


@pytest.mark.parametrize("op", ["c", "u", "d", "t"])
def test_a_change_without_its_transaction_is_refused_by_name(op: str) -> None:
    row = None if op == "t" else {"id": 1}
    event = {"op": op, "before": row, "after": row, "source": {"schema": "inv", "table": "e", "lsn": 7}}
    with pytest.raises(CertifyConfigError, match=r"inv\.e/0/3 has no transaction.*metadata=true"):
        History(TABLES).add_row(json.dumps(event).encode(), "inv.e/0/3")


def test_an_end_sent_twice_makes_one_transaction() -> None:
    (transaction,) = recorded("end_sent_twice").transactions()
    assert brief(transaction) == (813, [("inv.a", "c", 1202)])
    assert transaction.commit_lsn == 22719328
    assert transaction.commit_ts_ms == 1795207900529


def test_the_largest_count_of_a_repeated_end_is_kept() -> None:
    history = recorded("slot_behind_offset")
    transactions = {t.xid: t for t in history.transactions()}
    assert all(t.announced >= 1 for t in transactions.values())
    assert max(len(t.changes) for t in transactions.values()) == 5


def test_rows_that_the_connector_lost_leave_a_count_that_is_not_reached() -> None:
    transactions = list(recorded("restart_inside_copy").transactions())
    assert any(len(t.changes) != t.announced for t in transactions)


@pytest.mark.parametrize("shuffled", [None, 1, 2, 3])
def test_transactions_come_in_the_order_of_their_end_records(shuffled: int | None) -> None:
    history = recorded("commit_order_differs_from_lsn_order", shuffled=shuffled)
    xids = [t.xid for t in history.transactions()]
    assert xids.index(775) < xids.index(774)
    lsns = [t.commit_lsn for t in history.transactions()]
    assert lsns == sorted(set(lsns))


def test_a_key_update_is_a_delete_and_an_insert() -> None:
    changes = [c for t in recorded("insert_update_delete_key_update").transactions() for c in t.changes]
    by_lsn: dict[int, list[tuple[str, object]]] = {}
    for change in changes:
        by_lsn.setdefault(change.lsn, []).append((change.op, change.key))
    assert any({op for op, _ in both} == {"d", "c"} and len(both) == 2 for both in by_lsn.values())


def test_rows_of_one_copy_share_an_lsn_and_all_count() -> None:
    transactions = list(recorded("insert_update_delete_key_update").transactions())
    assert any(len({c.lsn for c in t.changes}) < len(t.changes) for t in transactions)
    assert all(len(t.changes) == t.announced for t in transactions)


def test_the_snapshot_is_the_state_before_the_first_transaction() -> None:
    history = recorded("initial_snapshot")
    assert len(history.snapshot()) == history.events > 0
    assert {change.op for change in history.snapshot()} == {"r"}


def test_rows_of_an_interrupted_snapshot_are_void() -> None:
    history = recorded("snapshot_crash")
    rows = history.snapshot()
    assert len({change.lsn for change in rows}) == 1
    assert history.void_snapshot_rows > 0
    assert len({(change.table, change.key) for change in rows}) == len(rows)


@pytest.mark.parametrize("second_lsn", [80, 100, 120])
def test_the_snapshot_that_was_taken_last_counts_whatever_its_lsn(second_lsn: int) -> None:
    history = History(TABLES)
    for lsn, ts_ms, text in ((100, 1_000, "old"), (second_lsn, 2_000, "new")):
        event = json.loads(change(7, lsn, "r")) | {"transaction": None, "after": {"id": 1, "v": text}}
        event["source"]["ts_ms"] = ts_ms
        history.add_row(json.dumps(event).encode())
    assert [row.after for row in history.snapshot()] == [(1, "new")]


def test_a_truncate_has_no_key() -> None:
    changes = [c for t in recorded("truncates_messages_zero_counts").transactions() for c in t.changes]
    assert {(c.table, c.key, c.after) for c in changes if c.op == "t"} == {
        ("inv.b", (), None), ("inv.nokey", (), None),
    }  # fmt: skip


def change(xid: int, lsn: int, op: str = "c", row_id: int = 1) -> bytes:
    event: dict[str, Any] = {
        "op": op,
        "before": None,
        "after": {"id": row_id, "v": "x"},
        "source": {"schema": "inv", "table": "b", "lsn": lsn},
        "transaction": {"id": f"{xid}:{lsn}", "total_order": 1},
    }
    return json.dumps(event).encode()


def test_a_transaction_without_end_is_not_committed() -> None:
    history = History(TABLES)
    history.add_row(change(7, 10))
    assert list(history.transactions()) == []
    assert history.unfinished() == [7]


def test_records_with_schemas_are_read_by_their_payload() -> None:
    history = History(TABLES)
    history.add_row(b'{"schema":{},"payload":' + change(7, 10) + b"}")
    history.add_transaction_record(b'{"schema":{},"payload":{"status":"END","id":"7:20","ts_ms":5}}')
    assert [brief(t) for t in history.transactions()] == [(7, [("inv.b", "c", 1)])]


def test_a_record_that_is_no_change_event_is_named() -> None:
    with pytest.raises(CertifyError, match="inv/0/7"):
        History(TABLES).add_row(b'{"op":1}', "inv/0/7")


@pytest.mark.parametrize(
    "value",
    [
        b'{"a":' * 50_000,
        change(7, 10).replace(b'"c"', b'"\xff"'),
        change(7, 10).replace(b'"7:10"', b'"7:-10"'),
        change(7, 10).replace(b'"7:10"', b'"\xc2\xb2:10"'),
        change(7, 10).replace(b'"7:10"', b'"7:%d"' % 10**4000),
        change(7, 10).replace(b'"id": 1', b'"id": [1]'),
    ],
    ids=["nested", "no text", "negative", "no digit", "long", "list as key"],
)
def test_a_damaged_change_event_is_named(value: bytes) -> None:
    with pytest.raises(CertifyError, match="inv/0/7"):
        History(TABLES).add_row(value, "inv/0/7")


@pytest.mark.parametrize("value", [b'{"a":' * 50_000, b'{"status":"\xff"}', b'{"status":"END","id":"7:x"}'])
def test_a_damaged_transaction_record_is_named(value: bytes) -> None:
    with pytest.raises(CertifyError, match="t/0/7"):
        History(TABLES).add_transaction_record(value, "t/0/7")


def test_nothing_is_shown_of_a_transaction_that_was_skipped_before_its_end_came() -> None:
    """The first cut decides, whatever another sidecar wrote; records that are no cuts do not matter."""
    listed = {"lsn": 40, "previous": 10, "xids": [7, 1], "lsns": [10, 10], "skipped": [7, 9]}
    whole = {"end": {"inv.a": [2]}, **listed}
    history = History(TABLES)
    for cut in (whole, {**listed, "end": {}}, {"kind": "markers", "lsn": 9}, {"kind": "skip", "to_lsn": 9}):
        history.add_cut(json.dumps(cut).encode())
    history.add_cut(b"damaged")
    history.add_cut(b'{"lsn": 50, "xids": [1, 2], "lsns": [50]}')
    for offset, xid in enumerate((7, 9, 7, 8)):
        history.add_row(change(xid, 10 + offset), f"inv.a/0/{offset}")
    history.add_row(change(7, 30), "inv.a/1/0")
    for xid, lsn in ((7, 20), (9, 25), (8, 30)):
        record = {"status": "END", "id": f"{xid}:{lsn}", "ts_ms": 5}
        history.add_transaction_record(json.dumps(record).encode())
    found = [(each.xid, [c.lsn for c in each.changes]) for each in history.transactions()]
    assert found == [(7, [10]), (8, [13])]
    assert {xid: skip.lsn for xid, skip in history.skips.items()} == {7: 20, 9: 40}
    assert history.unfinished() == []
    assert history.ignored["unreadable records of the cut log"] == 2
    assert history.ignored["rows of transactions that an operator had skipped"] == 3
