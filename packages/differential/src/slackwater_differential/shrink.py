"""Makes a failing case small while it still fails in the same way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from slackwater_differential.case import Batch, Case
from slackwater_differential.check import Outcome, check
from slackwater_differential.engine import MakeEngine
from slackwater_differential.history import Intent, Table, Transaction
from slackwater_differential.query import View, smaller_queries

T = TypeVar("T")

_MOST_RUNS = 1_000


def shrink(failed: Outcome, make_engine: MakeEngine, most_runs: int = _MOST_RUNS) -> Outcome:
    """The smallest failing case that was found; at worst the one that was given."""
    return _Shrinker(failed, make_engine, most_runs).shrink()


class _Shrinker:
    def __init__(self, failed: Outcome, make_engine: MakeEngine, most_runs: int) -> None:
        self._best = failed
        self._make_engine = make_engine
        self._runs_left = most_runs
        self._kind = _kind(failed)

    def shrink(self) -> Outcome:
        self._cut_off()
        before = None
        while before is not self._best and self._runs_left > 0:
            before = self._best
            self._fewer(_transactions, _with_transactions)
            self._simplify(_with_simpler_run)
            self._fewer(_intents, _with_intents)
            self._simplify(_with_less_query)
            self._fewer(_columns, _with_columns)
            self._simplify(_with_less_schema)
        return self._best

    def _cut_off(self) -> None:
        """What comes after the first wrong state does not matter; other views mostly neither."""
        case, lsn, view = self._best.case, self._best.lsn, self._best.view
        if lsn:
            self._try(replace(case, transactions=tuple(t for t in case.transactions if t.commit_lsn <= lsn)))
        if view >= 0 and len(case.views) > 1:
            self._try(replace(self._best.case, views=(case.views[view],)))

    def _fewer(
        self, parts_of: Callable[[Case], tuple[T, ...]], with_parts: Callable[[Case, tuple[T, ...]], Case]
    ) -> None:
        """Leaves out as many parts as possible: halves, quarters, …, single ones."""
        parts = parts_of(self._best.case)
        size = (len(parts) + 1) // 2
        while size:
            first = 0
            while first < len(parts) and self._runs_left > 0:
                fewer = (*parts[:first], *parts[first + size :])
                if self._try(with_parts(self._best.case, fewer)):
                    parts = fewer
                else:
                    first += size
            size //= 2

    def _simplify(self, candidates_of: Callable[[Case], Iterator[Case]]) -> None:
        """Takes candidates that still fail until there are no more."""
        while any(self._try(candidate) for candidate in candidates_of(self._best.case)):
            pass

    def _try(self, candidate: Case) -> bool:
        if self._runs_left <= 0:
            return False
        self._runs_left -= 1
        outcome = check(candidate, self._make_engine)
        if _kind(outcome) != self._kind:
            return False
        self._best = outcome
        return True


def _kind(outcome: Outcome) -> tuple[str, str]:
    """Failures of one kind may be taken for the same one."""
    crash = outcome.problem.split(":")[0] if outcome.verdict == "crashed" else ""
    return outcome.verdict, crash


def _transactions(case: Case) -> tuple[Transaction, ...]:
    return case.transactions


def _with_transactions(case: Case, transactions: tuple[Transaction, ...]) -> Case:
    return replace(case, transactions=transactions)


def _intents(case: Case) -> tuple[tuple[int, Intent], ...]:
    return tuple((t.commit_lsn, intent) for t in case.transactions for intent in t.intents)


def _with_intents(case: Case, intents: tuple[tuple[int, Intent], ...]) -> Case:
    transactions = (
        replace(t, intents=tuple(intent for lsn, intent in intents if lsn == t.commit_lsn))
        for t in case.transactions
    )
    return replace(case, transactions=tuple(t for t in transactions if t.intents))


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


def _with_simpler_run(case: Case) -> Iterator[Case]:
    """One batch is simpler than one for each transaction, and that is simpler than anything else."""
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


def _with_less_query(case: Case) -> Iterator[Case]:
    if len(case.views) > 1:
        for number in reversed(range(len(case.views))):
            yield replace(case, views=(*case.views[:number], *case.views[number + 1 :]))
    for number, view in enumerate(case.views):
        for query in smaller_queries(view.query):
            yield replace(case, views=_replaced(case.views, number, View(view.name, query)))


def _with_less_schema(case: Case) -> Iterator[Case]:
    for number, table in enumerate(case.tables):
        if len(case.tables) > 1:
            yield replace(case, tables=(*case.tables[:number], *case.tables[number + 1 :]))
        for name in table.primary_key[1:]:
            key = tuple(other for other in table.primary_key if other != name)
            yield _with_table(case, number, replace(table, primary_key=key))


def _with_table(case: Case, number: int, table: Table) -> Case:
    """With another primary key, rows that it cannot tell apart are changes of one row."""

    def narrowed(transaction: Transaction) -> Transaction:
        kept = tuple(i for i in transaction.intents if i.table != table.name or hasattr(i, "row"))
        return replace(transaction, intents=kept)

    tables = _replaced(case.tables, number, table)
    return replace(case, tables=tables, transactions=tuple(map(narrowed, case.transactions)))


def _replaced(parts: Sequence[T], number: int, part: T) -> tuple[T, ...]:
    return (*parts[:number], part, *parts[number + 1 :])
