"""Keys that change, overlap within a transaction, or take a large value with them: the rows decide."""

import json
import random
from typing import Any

import pytest

from slackwater_certify.errors import CertifyConfigError, CertifyError
from slackwater_certify.history import History, Replay
from slackwater_certify.view import read_tables

TABLES = read_tables(
    "CREATE TABLE s.t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text, b bytea, tags int[]);",
    "schema.sql",
)
PLACEHOLDER = "__debezium_unavailable_value"
OMITTED = {
    "v": PLACEHOLDER,
    "b": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    "tags": list(PLACEHOLDER.encode()),
}
Row = dict[str, Any]


def row(key: int, value: str) -> Row:
    return {"id": key, "v": value, "b": value, "tags": [len(value)]}


class Records:
    """Writes the records of transactions, whose order between partitions is random."""

    def __init__(self) -> None:
        self._history = History(TABLES)
        self._lsn, self._xid = 0, 0
        self._records: list[Row] = []

    def add(self, op: str, before: Row | None, after: Row | None, *, is_next: bool = True) -> None:
        self._lsn += is_next
        source = {"schema": "s", "table": "t", "lsn": self._lsn}
        self._records.append({"op": op, "before": before, "after": after, "source": source})

    def change_key(self, old: Row, new: Row) -> None:
        self.add("d", old, None)
        self.add("c", None, new, is_next=False)

    def commit(self) -> None:
        self._xid += 1
        self._lsn += 1
        transaction = {"id": f"{self._xid}:{self._lsn}"}
        random.Random(self._xid).shuffle(self._records)
        for record in self._records:
            self._history.add_row(json.dumps({**record, "transaction": transaction}).encode())
        self._records = []
        counts = [{"data_collection": "s.t", "event_count": 1}]
        end = {"status": "END", **transaction, "ts_ms": self._xid, "data_collections": counts}
        self._history.add_transaction_record(json.dumps(end).encode())

    def rows(self) -> list[Row]:
        """The rows after the last transaction."""
        replay = Replay(TABLES, {"s.t": lambda _: ()})
        replay.add_document(())
        for transaction in self._history.transactions():
            replay.commit(transaction)
        replay.finish()
        intervals = replay.intervals["s.t"]
        rows = zip(*intervals.columns, strict=True)
        last = [
            values for values, end in zip(rows, intervals.ends, strict=True) if end == len(replay.lsns[0])
        ]
        return sorted(map(_named, last), key=_id)


def _named(values: tuple[object, ...]) -> Row:
    return dict(zip(("id", "v", "b", "tags"), values, strict=True))


def _id(each: Row) -> int:
    found: int = each["id"]
    return found


@pytest.fixture
def records() -> Records:
    made = Records()
    for number, value in ((1, "a"), (2, "b"), (3, "c")):
        made.add("c", None, row(number, value))
    made.commit()
    return made


def test_every_key_goes_up_by_one(records: Records) -> None:
    for number, value in ((1, "a"), (2, "b"), (3, "c")):
        records.change_key(row(number, value), row(number + 1, value))
    records.commit()

    assert records.rows() == [row(2, "a"), row(3, "b"), row(4, "c")]


@pytest.mark.parametrize("is_old_changed", [False, True])
def test_an_update_and_a_delete_are_about_the_row_that_they_name(
    records: Records, is_old_changed: bool
) -> None:
    records.add("c", None, row(2, "new"))
    changed, removed = ("b", "new") if is_old_changed else ("new", "b")
    records.add("u", row(2, changed), row(2, "changed"))
    records.add("d", row(2, removed), None)
    records.commit()

    assert records.rows() == [row(1, "a"), row(2, "changed"), row(3, "c")]


def test_a_change_of_one_of_several_rows_that_does_not_say_which_is_refused(records: Records) -> None:
    records.add("c", None, row(2, "new"))
    records.add("d", {"id": 2, "v": None}, None)
    records.commit()

    with pytest.raises(CertifyError, match="one of several rows"):
        records.rows()


def test_a_large_value_moves_with_its_row(records: Records) -> None:
    for old, new in ((1, 10), (2, 1), (10, 2)):
        records.change_key({"id": old, "v": None}, {"id": new, **OMITTED})
    records.commit()
    records.add("u", None, {**row(2, "d"), "v": PLACEHOLDER})
    records.commit()

    assert records.rows() == [row(1, "b"), {**row(2, "d"), "v": "a"}, row(3, "c")]


def test_an_update_of_the_key_may_be_one_record(records: Records) -> None:
    records.add("u", row(1, "a"), row(7, "a"))
    records.commit()

    assert records.rows() == [row(2, "b"), row(3, "c"), row(7, "a")]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ('s."Orders"', "s.Orders"),
        ('IF NOT EXISTS "s"."ORDERS"', "s.ORDERS"),
        ('"S".orders', "S.orders"),
    ],
)
def test_tables_whose_names_differ_only_in_case_are_named(other: str, name: str) -> None:
    ddl = f"CREATE TABLE S.Orders (id int PRIMARY KEY); CREATE TABLE {other} (id int PRIMARY KEY);"
    with pytest.raises(CertifyConfigError) as caught:
        read_tables(ddl, "schema.sql")
    assert caught.value.problem == f"schema.sql: s.orders and {name} differ only in upper and lower case"
    assert "a schema of only this view's tables" in caught.value.hint


@pytest.mark.parametrize("columns", ['"A b" int, "a B" int', 'v int, "V" int'])
def test_columns_whose_names_differ_only_in_case_are_named_with_their_table(columns: str) -> None:
    with pytest.raises(CertifyConfigError) as caught:
        read_tables(f"CREATE TABLE s.t (id int PRIMARY KEY, {columns});", "schema.sql")
    assert caught.value.problem == (
        "schema.sql: table s.t has columns whose names differ only in upper and lower case"
    )


def test_a_table_that_is_made_twice_has_no_columns_that_differ_only_in_case() -> None:
    with pytest.raises(CertifyConfigError, match="DuckDB refuses the tables"):
        read_tables("CREATE TABLE s.t (id int); CREATE TABLE s.t (id int);", "schema.sql")
