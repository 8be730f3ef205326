"""The engines that are judged: they take batches of change events and give changed documents."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Protocol

from slackwater.engine.local import LocalEngine
from slackwater.engine.state.manifest import State
from slackwater.sql.errors import SqlTextError
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater_lab.differential.case import Batch, Case
from slackwater_lab.differential.history import DrawnColumn, DrawnCommit, DrawnTable, Row, rows_of, schema_ddl
from slackwater_lab.differential.reference import Reference, Rows
from slackwater_lab.differential.sql_types import Value

Event = tuple[str, str, int, bytes | None, bytes | None, int | None]
"""Table, operation, commit LSN, old row, new row, own LSN."""


@dataclass(frozen=True, slots=True)
class ChangedDocument:
    """A document that an engine published.

    Attributes:
        view: Number of the view.
        lsn: Commit LSN.
        key: Its key as JSON.
        document: The document as JSON; None: it vanished.
    """

    view: int
    lsn: int
    key: bytes
    document: bytes | None


class RefusedViewError(Exception):
    """The engine does not take a view.

    Attributes:
        reason: Why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Engine(Protocol):
    """Runs the views of a case. One thread."""

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        """Processes whole transactions.

        Args:
            events: In commit order.
            batch: How they are to be processed.
            first_lsn: Of the batch's first commit, which may have no events.

        Returns:
            The documents that changed, in the order in which they are published.
        """

    def close(self) -> None:
        """Frees what it holds; called once, at last."""


MakeEngine = Callable[[Case], Engine]
"""Makes an engine for a case, with its views compiled and empty state.

Raises:
    RefusedViewError: It does not take the case's views.
"""


Distort = Callable[[Event], Event | None]
"""Changes an event before it is taken in, or hides it."""


class NaiveEngine:
    """See the module."""

    def __init__(self, case: Case, distort: Distort = lambda event: event) -> None:
        self._case = case
        self._distort = distort
        self._tables = {f"public.{table.name}": table for table in case.tables}
        self._rows: dict[str, dict[Row, list[Row]]] = {table.name: {} for table in case.tables}
        self._removed: Row | None = None
        self._reference = Reference(case.tables, case.views)
        self._values = {
            (table.name, column.position): _known_values(case, table, column)
            for table in case.tables
            for column in table.columns
        }
        self._published: tuple[Rows, ...] = tuple(Counter[str]() for _ in case.views)

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        """See `Engine`."""
        documents: list[ChangedDocument] = []
        commits = [(lsn, list(part)) for lsn, part in groupby(events, key=lambda event: event[2])]
        if not commits or commits[0][0] != first_lsn:
            commits.insert(0, (first_lsn, []))
        for number, (lsn, part) in enumerate(commits):
            touched = {name for event in part for name in self._take(event)}
            state = tuple(
                (name, tuple(rows[-1] for rows in self._rows[name].values() if rows))
                for name in sorted(touched)
            )
            self._reference.apply(DrawnCommit(lsn, (), state))
            if self._case.every_commit or number == len(commits) - 1:
                documents += self._changes(lsn)
        return documents

    def close(self) -> None:
        """See `Engine`."""
        self._reference.__exit__()

    def _take(self, event: Event) -> Iterator[str]:
        distorted = self._distort(event)
        if distorted is None:
            return
        full_name, op, _, before, after, _ = distorted
        table = self._tables[full_name]
        rows = self._rows[table.name]
        if op == "t":
            rows.clear()
            yield table.name
            return
        image, old_image = json.loads(after or b"null"), json.loads(before or b"null")
        of_key = rows.setdefault(self._key(table, image or old_image or {}), [])
        if op in {"d", "u"}:
            self._removed = self._take_old(table, of_key, old_image)
        if op != "d":
            of_key.append(self._row(table, image, self._removed if op in {"c", "u"} else None))
        yield table.name

    def _take_old(self, table: DrawnTable, rows: list[Row], image: dict[str, Any] | None) -> Row | None:
        """Removes the row that a change is about from those of its key."""
        old = self._row(table, image, None) if table.is_full and image is not None else None
        return rows.pop(rows.index(old) if old in rows else -1) if rows else None

    def _key(self, table: DrawnTable, image: dict[str, Any]) -> Row:
        by_name = {column.name: column for column in table.columns}
        return tuple(self._value(table, by_name[name], image[name], None) for name in table.primary_key)

    def _row(self, table: DrawnTable, image: dict[str, Any], old: Row | None) -> Row:
        row: list[Value | None] = [None] * (1 + max(column.position for column in table.columns))
        for column in table.columns:
            row[column.position] = self._value(table, column, image[column.name], old)
        return tuple(row)

    def _value(self, table: DrawnTable, column: DrawnColumn, wire: Any, old: Row | None) -> Value | None:
        if wire is None:
            return None
        if old is not None and wire == json.loads(column.type.unavailable):
            return old[column.position]
        return self._values[table.name, column.position][json.dumps(wire)]

    def _changes(self, lsn: int) -> Iterator[ChangedDocument]:
        """Documents keyed by themselves and a number."""
        now = self._reference.rows()
        for view, (before, after) in enumerate(zip(self._published, now, strict=True)):
            for text, count in sorted((before - after).items()):
                for number in range(after[text], after[text] + count):
                    yield ChangedDocument(view, lsn, f"{number} {text}".encode(), None)
            for text, count in sorted((after - before).items()):
                for number in range(before[text], before[text] + count):
                    yield ChangedDocument(view, lsn, f"{number} {text}".encode(), text.encode())
        self._published = now


def _known_values(case: Case, table: DrawnTable, column: DrawnColumn) -> dict[str, Value]:
    rows = (
        row
        for transaction in case.transactions
        for change in transaction.changes
        if change.table == table.name
        for row in rows_of(change)
    )
    values = (row[column.position] for row in rows)
    return {json.dumps(json.loads(value.wire)): value for value in values if value is not None}


def make_plan(ddl: str, views: tuple[tuple[str, str], ...]) -> EnginePlan:
    """Compiles the views of a case.

    Raises:
        RefusedViewError: A view is outside of what is supported.
    """
    try:
        return compile_pipeline(views, parse_catalog({"schema.sql": ddl}))
    except SqlTextError as error:
        raise RefusedViewError(str(error)) from error


@lru_cache(maxsize=2)
def compiled(ddl: str, views: tuple[tuple[str, str], ...], buckets: int, every_commit: bool) -> LocalEngine:
    """The engine of a pipeline, with any rows; kept, since shrinking runs many histories of one pipeline.

    Raises:
        RefusedViewError: A view is outside of what is supported.
    """
    return LocalEngine(make_plan(ddl, views), buckets=buckets, every_commit=every_commit)


class JudgedEngine:
    """The engine: everything but Spark, Kafka and the disk."""

    def __init__(self, case: Case) -> None:
        views = tuple((f"{view.name}.sql", view.sql()) for view in case.views)
        self._engine = compiled(schema_ddl(case.tables), views, case.buckets, case.every_commit)
        self._engine.reset()

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        """See `Engine`."""
        if batch.loses_index:
            for number, (stage, bucket) in enumerate(list(self._engine.indexes)):
                if number % 2 == batch.size % 2:
                    self._engine.lose_index(stage, bucket)
        before = self._engine.state if batch.is_repeated else None
        documents = self._engine.run(events, batch.tasks, first_lsn=first_lsn)
        if before is not None:
            self._repeat(before, documents, events, batch, first_lsn)
        return [
            ChangedDocument(view, lsn, key, document)
            for view, of_view in documents.items()
            for lsn, key, document in of_view
        ]

    def _repeat(
        self, before: State, first: object, events: Sequence[Event], batch: Batch, first_lsn: int
    ) -> None:
        """The state is the one before the batch, the indexes are already ahead."""
        self._engine.return_to(before)
        second = self._engine.run(events, batch.tasks, first_lsn=first_lsn)
        if second != first:
            raise AssertionError(f"repeated, the batch gave something else: first {first}, then {second}")

    def close(self) -> None:
        """See `Engine`."""


ENGINES: Mapping[str, MakeEngine] = {"local": JudgedEngine, "naive": NaiveEngine}
