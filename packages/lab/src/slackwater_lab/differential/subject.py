"""The comparison of an engine with DuckDB as a subject of the seed harness.

It makes cases, runs them, makes those that fail smaller and writes a report, which is enough to understand a
failure and to run it again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from slackwater_lab.differential.case import Batch, Case, Choices, Feature
from slackwater_lab.differential.check import Checked, batches_of, check
from slackwater_lab.differential.engines import FAULTS, JudgedEngine, MakeEngine
from slackwater_lab.differential.history import (
    DrawnCommit,
    DrawnTable,
    DrawnTransaction,
    PlannedChange,
    Put,
    play,
    schema_ddl,
)
from slackwater_lab.differential.history_generator import make_tables, make_transactions
from slackwater_lab.differential.query import smaller_views
from slackwater_lab.differential.query_generator import make_views
from slackwater_lab.seeds import LeaveOut, PlantedFault, Simplify, Step

T = TypeVar("T")
_BUCKETS = (1, 2, 3, 5, 8)
_SHOWN_ROWS = 12
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Differential:
    """Compares an engine, that of the product by default, with DuckDB; see `Subject`."""

    make_engine: MakeEngine = JudgedEngine
    features: ClassVar[tuple[str, ...]] = tuple(Feature)
    faults: ClassVar[Mapping[str, PlantedFault]] = FAULTS

    def generate(self, seed: int, only: Sequence[str] = ()) -> Case:
        """Makes the case of a seed."""
        choices = Choices(seed, only)
        tables = make_tables(choices)
        views = make_views(choices, tables)
        transactions = make_transactions(choices, tables)
        every_commit = choices.is_allowed(Feature.EVERY_COMMIT) and (
            choices.chance(0.6) or not choices.is_allowed(Feature.LATEST)
        )
        choices.may(Feature.EVERY_COMMIT if every_commit else Feature.LATEST, 1)
        return Case(
            seed=seed,
            tables=tables,
            views=views,
            transactions=transactions,
            batches=_batches(choices, len(transactions)),
            buckets=choices.one(_BUCKETS),
            every_commit=every_commit,
            features=frozenset(choices.used),
            only=tuple(only),
        )

    def check(self, case: Case) -> Checked:
        """Runs a case and compares every state."""
        return check(case, self.make_engine)

    def shrinking_steps(self) -> Sequence[Step[Case, Checked]]:
        """Leaves out transactions, batches, changes, parts of queries, columns, tables."""
        return (
            Simplify(_without_what_does_not_matter),
            LeaveOut(lambda case: case.transactions, lambda case, kept: replace(case, transactions=kept)),
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
        case = result.case
        lines = [
            f"seed {case.seed}: {result.verdict}: {_shortened(result.problem, 1500)}",
            "",
            schema_ddl(case.tables),
            "",
            *(f"-- {view.name}.sql\n{view.sql()}\n" for view in case.views),
            f"-- emit={'transactions' if case.every_commit else 'latest'}, {case.buckets} buckets",
            *_history(case),
            "",
            *_rows(result),
            f"repeat: {case.command()}",
            "",
        ]
        return "\n".join(lines)


def _without_what_does_not_matter(result: Checked) -> Iterator[Case]:
    """Yields cases without what comes after the first wrong state, and without the other views."""
    case = result.case
    until = tuple(t for t in case.transactions if t.commit_lsn <= result.lsn)
    if result.lsn and len(until) < len(case.transactions):
        yield replace(case, transactions=until)
    if result.view >= 0 and len(case.views) > 1:
        yield replace(case, views=(case.views[result.view],))


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
    def narrowed(table: DrawnTable) -> DrawnTable:
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
        for smaller in smaller_views(view):
            yield replace(case, views=_replaced(case.views, number, smaller))


def _with_less_schema(result: Checked) -> Iterator[Case]:
    case = result.case
    for number, table in enumerate(case.tables):
        if len(case.tables) > 1:
            yield replace(case, tables=(*case.tables[:number], *case.tables[number + 1 :]))
        for name in table.primary_key[1:]:
            key = tuple(other for other in table.primary_key if other != name)
            yield _with_table(case, number, replace(table, primary_key=key))


def _with_table(case: Case, number: int, table: DrawnTable) -> Case:
    """With another primary key, rows that it cannot tell apart are changes of one row."""

    def narrowed(transaction: DrawnTransaction) -> DrawnTransaction:
        kept = tuple(c for c in transaction.changes if c.table != table.name or isinstance(c, Put))
        return replace(transaction, changes=kept)

    tables = _replaced(case.tables, number, table)
    return replace(case, tables=tables, transactions=tuple(map(narrowed, case.transactions)))


def _replaced(parts: Sequence[T], number: int, part: T) -> tuple[T, ...]:
    return (*parts[:number], part, *parts[number + 1 :])


def _batches(choices: Choices, transactions: int) -> tuple[Batch, ...]:
    may_lose = choices.may(Feature.LOST_INDEX, 0.3)
    may_repeat = choices.may(Feature.REPEATED_BATCH, 0.3)
    most = choices.one((1, 3, 8, transactions))
    batches = []
    while transactions > 0:
        size = min(transactions, choices.number(1, most))
        transactions -= size
        tasks = choices.one((1, 1, 2, 3))
        loses, repeats = may_lose and choices.chance(0.3), may_repeat and choices.chance(0.3)
        batches.append(Batch(size, tasks, loses, repeats))
    return tuple(batches)


def _history(case: Case) -> Iterator[str]:
    for number, (batch, commits) in enumerate(batches_of(case, play(case.tables, case.transactions)), 1):
        yield f"-- batch {number}{_circumstances(batch)}"
        for commit in commits:
            yield from _transaction(commit)


def _circumstances(batch: Batch) -> str:
    words = [f"{batch.tasks} tasks"] * (batch.tasks > 1)
    words += ["after indexes were lost"] * batch.loses_index + ["run twice"] * batch.is_repeated
    return ": " + ", ".join(words) if words else ""


def _transaction(commit: DrawnCommit) -> Iterator[str]:
    yield f"BEGIN; COMMIT at LSN {commit.lsn} of"
    for table, op, _, before, after, lsn in (change.event() for change in commit.changes):
        old, new = (_shortened("-" if image is None else image.decode()) for image in (before, after))
        yield f"  {op} {table} at {lsn}: {old} -> {new}"


def _rows(checked: Checked) -> Iterator[str]:
    if checked.view < 0:
        yield f"at LSN {checked.lsn}"
        return
    yield f"{checked.case.views[checked.view].name} at LSN {checked.lsn}"
    expected, got = Counter(checked.expected), Counter(checked.got)
    for title, rows in (
        ("missing (expected, not got)", expected - got),
        ("too many (got, not expected)", got - expected),
        ("right", expected & got),
    ):
        if rows:
            yield f"  {title}:"
            elements = sorted(rows.elements())
            yield from (f"    {_shortened(row)}" for row in elements[:_SHOWN_ROWS])
            if len(elements) > _SHOWN_ROWS:
                yield f"    and {len(elements) - _SHOWN_ROWS} more"


def _shortened(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    return text if len(text) <= most else text[:most] + "…"
