"""The plainest engine: keeps the rows it is told of and asks DuckDB again at every commit.

It proves that the harness works, and, with a fault planted, that the harness notices.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from slackwater_differential.case import Batch, Case
from slackwater_differential.engine import ChangedDocument, Event
from slackwater_differential.history import Column, Commit, Row, Table
from slackwater_differential.reference import Reference, Rows
from slackwater_differential.sql_types import Value

Distort = Callable[[Event], Event | None]
"""Changes an event before it is taken in, or hides it."""


class NaiveEngine:
    """See the module."""

    def __init__(self, case: Case, distort: Distort = lambda event: event) -> None:
        self._case = case
        self._distort = distort
        self._tables = {f"public.{table.name}": table for table in case.tables}
        self._rows: dict[str, dict[Row, Row]] = {table.name: {} for table in case.tables}
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
            state = tuple((name, tuple(self._rows[name].values())) for name in sorted(touched))
            self._reference.apply(Commit(lsn, (), state))
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
        elif op == "d":
            rows.pop(self._key(table, json.loads(before or b"{}")), None)
        else:
            image = json.loads(after or b"{}")
            key = self._key(table, image)
            rows[key] = self._row(table, image, rows.get(key))
        yield table.name

    def _key(self, table: Table, image: dict[str, Any]) -> Row:
        by_name = {column.name: column for column in table.columns}
        return tuple(self._value(table, by_name[name], image[name], None) for name in table.primary_key)

    def _row(self, table: Table, image: dict[str, Any], old: Row | None) -> Row:
        row: list[Value | None] = [None] * (1 + max(column.position for column in table.columns))
        for column in table.columns:
            row[column.position] = self._value(table, column, image[column.name], old)
        return tuple(row)

    def _value(self, table: Table, column: Column, wire: Any, old: Row | None) -> Value | None:
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
                for copy in range(after[text], after[text] + count):
                    yield ChangedDocument(view, lsn, f"{copy} {text}".encode(), None)
            for text, count in sorted((after - before).items()):
                for copy in range(before[text], before[text] + count):
                    yield ChangedDocument(view, lsn, f"{copy} {text}".encode(), text.encode())
        self._published = now


def _known_values(case: Case, table: Table, column: Column) -> dict[str, Value]:
    rows = (
        row
        for transaction in case.transactions
        for intent in transaction.intents
        if intent.table == table.name and (row := getattr(intent, "row", None)) is not None
    )
    values = (row[column.position] for row in rows)
    return {json.dumps(json.loads(value.wire)): value for value in values if value is not None}
