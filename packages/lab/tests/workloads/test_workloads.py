# ruff: noqa: S608 - the SQL is from files of this repository
"""Every workload: the same for the same seed, and its invariants hold after every transaction."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from itertools import chain, combinations, islice
from typing import Any

import duckdb
import pytest

from slackwater.pipeline import load_pipeline
from slackwater.sql.catalog import Table
from slackwater_certify import load_specification
from slackwater_lab.workloads import WORKLOADS
from slackwater_lab.workloads.huge import HugeWorkload
from slackwater_lab.workloads.workload import (
    BusinessTransaction,
    Delete,
    Insert,
    Operation,
    Plus,
    Read,
    Undone,
    Update,
    Workload,
)

NAMES = sorted(WORKLOADS)
SIZE = 40
LARGEST = 1_000
Rows = dict[int, dict[str, Any]]


def make(name: str, seed: int) -> Workload:
    return HugeWorkload(seed, SIZE, LARGEST) if name == "huge" else WORKLOADS[name](seed, SIZE)


class Model:
    """A database's tables as dictionaries."""

    def __init__(self, workload: Workload) -> None:
        self.tables: dict[str, Rows] = {name: {} for name in workload.tables}

    def execute(self, transaction: BusinessTransaction) -> None:
        for operation in () if transaction.is_rolled_back else transaction.operations:
            self.apply(operation)

    def apply(self, operation: Operation) -> None:
        match operation:
            case Insert(table, row):
                assert row["id"] not in self.tables[table]
                self.tables[table][row["id"]] = dict(row)  # type: ignore[index]
            case Update(table, row_id, changes):
                row = self.tables[table][row_id]
                for name, value in changes.items():
                    row[name] = row[name] + value.amount if isinstance(value, Plus) else value
            case Delete(table, row_id):
                del self.tables[table][row_id]
            case Read(table, row_id):
                assert row_id in self.tables[table]
            case Undone(operations):
                assert operations


class Checker:
    """Evaluates a pipeline's view and invariants with DuckDB alone, as the certifier does."""

    def __init__(self, workload: Workload) -> None:
        self.certify = tomllib.loads((workload.pipeline / "certify.toml").read_text())
        view = (workload.pipeline / self.certify["view"]["sql"]).read_text()
        grouped = re.sub(r"GROUP BY .*", "GROUP BY ALL", view)  # DuckDB knows no dependence on a primary key
        self.view = grouped.replace("TRANSACTIONALLY", "")
        self.tables = workload.tables
        self.connection = duckdb.connect()
        for table in self.tables.values():
            self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {table.schema}")
            columns = ", ".join(f"{each.name} {each.type.name}" for each in table.columns)
            self.connection.execute(f"CREATE TABLE {table.full_name} ({columns})")
        self.connection.execute(f"CREATE VIEW output AS {self.view}")

    def broken(self, model: Model) -> list[str]:
        """Names of the invariants that do not hold."""
        for name in self.certify["view"]["rows"]:
            self._load(self.tables[name], model.tables[name])
        return [each["name"] for each in self.certify["invariant"] if not self._holds(each)]

    def outputs(self) -> int:
        (count,) = self.connection.execute("SELECT count(*) FROM output").fetchone() or (0,)
        return int(count)

    def _holds(self, invariant: dict[str, str]) -> bool:
        if invariant.get("scope") == "state":
            sql = invariant["holds"]
        else:
            sql = f"SELECT coalesce(bool_and({invariant['holds']}), true) FROM output"
            if "error" in invariant:
                self.connection.execute(f"SELECT {invariant['error']} FROM output")
        return bool((self.connection.execute(sql).fetchone() or (False,))[0])

    def _load(self, table: Table, rows: Rows) -> None:
        self.connection.execute(f"DELETE FROM {table.full_name}")
        if rows:
            names = [column.name for column in table.columns]
            values = ", ".join(
                "(" + ", ".join(_literal(row.get(name)) for name in names) + ")" for row in rows.values()
            )
            self.connection.execute(f"INSERT INTO {table.full_name} VALUES {values}")


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def stream(workload: Workload, number: int) -> Iterable[BusinessTransaction]:
    return chain(workload.first(), islice(workload.transactions(0, 1), number))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_transactions(name: str) -> None:
    first, second = (list(stream(make(name, 3), 60)) for _ in range(2))
    assert first == second
    assert first != list(stream(make(name, 4), 60))


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_invariants_hold_after_every_transaction(name: str) -> None:
    workload = make(name, 7)
    model, checker = Model(workload), Checker(workload)
    for transaction in workload.first():
        model.execute(transaction)
    assert checker.broken(model) == []
    for transaction in islice(workload.transactions(0, 1), 100):
        model.execute(transaction)
        assert checker.broken(model) == []
    assert checker.outputs() > 0


@pytest.mark.parametrize("name", NAMES)
def test_an_invariant_breaks_when_one_change_is_left_out(name: str) -> None:
    """The negative control: a reader that misses one change of a transaction sees a broken invariant."""
    workload = make(name, 7)
    model, checker = Model(workload), Checker(workload)
    for transaction in workload.first():
        model.execute(transaction)
    watched = set(checker.certify["view"]["rows"])
    for transaction in islice(workload.transactions(0, 1), 300):
        *others, last = transaction.operations or [Read("", 0)]
        is_seen = getattr(last, "table", "") in watched and len(others) > 0
        if is_seen and not transaction.is_rolled_back and not isinstance(last, Read):
            model.execute(BusinessTransaction(tuple(others)))
            if checker.broken(model):
                return
            model.apply(last)
        else:
            model.execute(transaction)
    pytest.fail("no invariant noticed a missing change")


@pytest.mark.parametrize("name", NAMES)
def test_writers_share_rows_by_relative_changes_only(name: str) -> None:
    """Streams of several writers, taken alternately, keep the invariants, and own what they set."""
    workload = make(name, 5)
    model, checker, owner = Model(workload), Checker(workload), dict[tuple[str, int], int]()
    for transaction in workload.first():
        model.execute(transaction)
    streams = [workload.transactions(writer, 3) for writer in range(3)]
    for number in range(150):
        transaction = next(streams[number % 3])
        for operation in transaction.operations:
            if isinstance(operation, Insert | Update | Delete) and is_absolute(operation):
                row_id = operation.row["id"] if isinstance(operation, Insert) else operation.id
                assert owner.setdefault((operation.table, row_id), number % 3) == number % 3  # type: ignore[arg-type]
        model.execute(transaction)
    assert checker.broken(model) == []


def is_absolute(operation: Operation) -> bool:
    if isinstance(operation, Update):
        return not all(isinstance(value, Plus) for value in operation.changes.values())
    return not isinstance(operation, Read | Undone)


@pytest.mark.parametrize("name", NAMES)
def test_no_two_writers_take_shared_rows_in_opposite_order(name: str) -> None:
    """Tables come in one order everywhere, and within a transaction the rows of a table by their ids."""
    workload = make(name, 5)
    streams = [list(islice(workload.transactions(writer, 3), 300)) for writer in range(3)]
    touched = Counter(row for each in streams for row in {row for t in each for row in relative(t)})
    after: set[tuple[str, str]] = set()
    for transaction in chain(*streams):
        shared = [row for row in relative(transaction) if touched[row] > 1]
        tables = list(dict.fromkeys(table for table, _ in shared))
        after |= {(early, late) for early, late in combinations(tables, 2)}
        assert shared == sorted(shared, key=lambda row: (tables.index(row[0]), row[1]))
    assert not any((late, early) in after for early, late in after)


def relative(transaction: BusinessTransaction) -> list[tuple[str, int]]:
    """Rows that are changed relative to what they are."""
    updates = (each for each in transaction.operations if isinstance(each, Update))
    return [(each.table, each.id) for each in updates if not is_absolute(each)]


@pytest.mark.parametrize("seed", range(1, 8))
def test_mixed_transactions_undo_parts_of_themselves_and_some_are_huge(seed: int) -> None:
    """For every seed and soon: a demonstration of some seconds has to show both."""
    streams = [list(islice(make("mixed", seed).transactions(writer, 3), 300)) for writer in range(3)]
    undone = [sum(isinstance(o, Undone) for t in each for o in t.operations) for each in streams]
    assert min(undone[:2]) > 5
    assert undone[2] == 0
    assert max(len(transaction.operations) for transaction in streams[2]) > 1_000
    assert max(len(transaction.operations) for each in streams[:2] for transaction in each) < 100


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_rows_does_not_grow_without_bound(name: str) -> None:
    workload = make(name, 5)
    model = Model(workload)
    sizes = []
    for number, transaction in enumerate(stream(workload, 6_000)):
        model.execute(transaction)
        if number % 2_000 == 1_999:
            sizes.append(sum(map(len, model.tables.values())))
    assert sizes[-1] < 3 * max(sizes[0], 1_000)


@pytest.mark.parametrize("name", NAMES)
def test_the_pipeline_compiles_and_reads_the_workloads_tables(name: str) -> None:
    workload = WORKLOADS[name](1, SIZE)
    definition = load_pipeline(workload.pipeline)
    certify = tomllib.loads((workload.pipeline / "certify.toml").read_text())
    assert definition.source == certify["source"]["name"] == "inv"
    assert definition.outputs[0].name == certify["output"]["name"]
    assert set(definition.tables) == set(certify["view"]["rows"]) <= set(workload.tables)
    assert list(definition.plan.views[0].key) == certify["view"]["key"]
    assert workload.name == name
    assert load_specification(workload.pipeline / "certify.toml")
