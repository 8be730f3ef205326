"""The engine's comparison with DuckDB as a subject of the seed harness."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from slackwater_testing.differential.case import Batch, Case, Feature
from slackwater_testing.differential.check import Checked, check
from slackwater_testing.differential.engines import ENGINES, MakeEngine
from slackwater_testing.differential.faults import FAULTS
from slackwater_testing.differential.generator import generate
from slackwater_testing.differential.history import PlannedChange, Put, Table, Transaction
from slackwater_testing.differential.query import View, smaller_queries
from slackwater_testing.differential.report import report
from slackwater_testing.seeds import LeaveOut, PlantedFault, Simplify, Step

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Differential:
    """Compares an engine with DuckDB; see `Subject`.

    Attributes:
        engine: The name of the engine, or what makes it.
    """

    engine: str | MakeEngine = "local"
    features: ClassVar[tuple[str, ...]] = tuple(Feature)
    faults: ClassVar[Mapping[str, PlantedFault]] = FAULTS

    def generate(self, seed: int, only: Sequence[str]) -> Case:
        """Makes the case of a seed."""
        return generate(seed, only)

    def check(self, case: Case) -> Checked:
        """Runs a case and compares every state."""
        return check(case, ENGINES[self.engine] if isinstance(self.engine, str) else self.engine)

    def shrinking_steps(self) -> Sequence[Step[Case, Checked]]:
        """Leaves out transactions, batches, changes, parts of queries, columns, tables."""
        return (
            Simplify(_without_what_does_not_matter),
            LeaveOut(_transactions, _with_transactions),
            Simplify(_with_simpler_run),
            LeaveOut(_changes, _with_changes),
            Simplify(_with_less_query),
            LeaveOut(_columns, _with_columns),
            Simplify(_with_less_schema),
        )

    def variants(self, case: Case) -> Iterable[Case]:
        """A case has no others: it decides everything."""
        return (case,)

    def report(self, result: Checked) -> str:
        """Shows schema, views, transactions, both results."""
        return report(result)


def _without_what_does_not_matter(result: Checked) -> Iterator[Case]:
    """Yields cases without what comes after the first wrong state, and without the other views."""
    case = result.case
    until = tuple(t for t in case.transactions if t.commit_lsn <= result.lsn)
    if result.lsn and len(until) < len(case.transactions):
        yield replace(case, transactions=until)
    if result.view >= 0 and len(case.views) > 1:
        yield replace(case, views=(case.views[result.view],))


def _transactions(case: Case) -> tuple[Transaction, ...]:
    return case.transactions


def _with_transactions(case: Case, transactions: tuple[Transaction, ...]) -> Case:
    return replace(case, transactions=transactions)


def _changes(case: Case) -> tuple[tuple[int, PlannedChange], ...]:
    return tuple((t.commit_lsn, change) for t in case.transactions for change in t.changes)


def _with_changes(case: Case, changes: tuple[tuple[int, PlannedChange], ...]) -> Case:
    transactions = (
        replace(t, changes=tuple(change for lsn, change in changes if lsn == t.commit_lsn))
        for t in case.transactions
    )
    return replace(case, transactions=tuple(t for t in transactions if t.changes))


def _columns(case: Case) -> tuple[tuple[str, str], ...]:
    """Those that can be left out."""
    return tuple(
        (table.name, column.name)
        for table in case.tables
        for column in table.columns
        if column.name not in table.primary_key
    )


def _with_columns(case: Case, columns: tuple[tuple[str, str], ...]) -> Case:
    def narrowed(table: Table) -> Table:
        kept = (c for c in table.columns if c.name in table.primary_key or (table.name, c.name) in columns)
        return replace(table, columns=tuple(kept))

    return replace(case, tables=tuple(map(narrowed, case.tables)))


def _with_simpler_run(result: Checked) -> Iterator[Case]:
    """One batch is simpler than one for each transaction, and that is simpler than anything else."""
    case = result.case
    count = len(case.transactions)
    one, each = (Batch(count),), (Batch(1),) * count
    if case.batches != one:
        yield replace(case, batches=one)
    if case.batches not in (one, each):
        yield replace(case, batches=each)
        for number, batch in enumerate(case.batches):
            if batch != Batch(batch.size):
                yield replace(case, batches=_replaced(case.batches, number, Batch(batch.size)))
    if case.buckets > 1:
        yield replace(case, buckets=1)
    if any(transaction.is_snapshot for transaction in case.transactions):
        yield replace(case, transactions=tuple(replace(t, is_snapshot=False) for t in case.transactions))


def _with_less_query(result: Checked) -> Iterator[Case]:
    case = result.case
    if len(case.views) > 1:
        for number in reversed(range(len(case.views))):
            yield replace(case, views=(*case.views[:number], *case.views[number + 1 :]))
    for number, view in enumerate(case.views):
        for query in smaller_queries(view.query):
            yield replace(case, views=_replaced(case.views, number, View(view.name, query)))


def _with_less_schema(result: Checked) -> Iterator[Case]:
    case = result.case
    for number, table in enumerate(case.tables):
        if len(case.tables) > 1:
            yield replace(case, tables=(*case.tables[:number], *case.tables[number + 1 :]))
        for name in table.primary_key[1:]:
            key = tuple(other for other in table.primary_key if other != name)
            yield _with_table(case, number, replace(table, primary_key=key))


def _with_table(case: Case, number: int, table: Table) -> Case:
    """With another primary key, rows that it cannot tell apart are changes of one row."""

    def narrowed(transaction: Transaction) -> Transaction:
        kept = tuple(c for c in transaction.changes if c.table != table.name or isinstance(c, Put))
        return replace(transaction, changes=kept)

    tables = _replaced(case.tables, number, table)
    return replace(case, tables=tables, transactions=tuple(map(narrowed, case.transactions)))


def _replaced(parts: Sequence[T], number: int, part: T) -> tuple[T, ...]:
    return (*parts[:number], part, *parts[number + 1 :])
