"""Replays transactions, to find which rows a document had from which of its versions on.

Version 0 of a document is the state before the first transaction; every transaction that changes one of its
rows makes a new one. A row therefore belongs to an interval of its document's versions, and all rows of all
states fit into one table per source table: as many rows as there were changes.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slackwater_certify.canonical import Canonical
from slackwater_certify.errors import malformed, wrong_key
from slackwater_certify.history import UNAVAILABLE, CommittedTransaction, RowChange, Values
from slackwater_certify.specification import Specification
from slackwater_certify.view import Table, View

DocumentKey = tuple[object, ...]
_Place = tuple[str, Values]
"""A row: its table and its primary key."""
NO_DOCUMENT = -1

RowKey = Callable[[Values], DocumentKey | None]
"""The document a row belongs to; None: to no document."""


@dataclass(slots=True)
class RowIntervals:
    """Holds every row a table ever had, with the versions of its document that had it."""

    columns: list[list[object]]
    documents: "array[int]" = field(default_factory=lambda: array("q"))
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    ends: "array[int]" = field(default_factory=lambda: array("q"))
    """The first version without the row."""

    def add(self, document: int, start: int, values: Values) -> int:
        """Adds a row that is there from a version on; returns its position."""
        self.documents.append(document)
        self.starts.append(start)
        self.ends.append(-1)
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)
        return len(self.ends) - 1


@dataclass(frozen=True, slots=True)
class _Row:
    position: int
    document: int
    values: Values


class Replay:
    """Applies transactions in commit order."""

    def __init__(self, tables: Mapping[str, Table], row_keys: Mapping[str, RowKey]) -> None:
        self.intervals = {name: RowIntervals([[] for _ in table.columns]) for name, table in tables.items()}
        self.document_ids: dict[DocumentKey, int] = {}
        self.lsns: list[array[int]] = []
        """By document: the commit LSN of each version."""
        self.times: list[array[int]] = []
        """By document: the commit time of each version, milliseconds since the epoch."""
        self._row_keys = row_keys
        self._rows: dict[str, dict[Values, _Row]] = {name: {} for name in tables}

    def add_document(self, key: DocumentKey) -> int:
        """Gives a document a number, even if it has no rows."""
        self.document_ids[key] = len(self.lsns)
        self.lsns.append(array("q", [0]))
        self.times.append(array("q", [0]))
        return self.document_ids[key]

    def start(self, rows: Iterable[RowChange]) -> None:
        """Sets the state before the first transaction."""
        for row in rows:
            if row.after is not None:
                self._put(row.table, row.key, row.after)

    def commit(self, transaction: CommittedTransaction) -> None:
        """Applies a transaction."""
        pending = self._net_changes(transaction.changes)
        touched: set[int] = set()
        for (table, key), after in pending.items():
            before = self._rows[table].get(key)
            if before is not None:
                touched.add(before.document)
            if after is not None:
                touched.add(self._document(table, after))
        touched.discard(NO_DOCUMENT)
        for document in touched:
            self.lsns[document].append(transaction.commit_lsn)
            self.times[document].append(transaction.commit_ts_ms)
        for (table, key), after in pending.items():
            self._close(table, key)
            if after is not None:
                self._put(table, key, after)

    def finish(self) -> None:
        """Ends the intervals of rows that are still there behind their document's last version."""
        for rows in self.intervals.values():
            for position, end in enumerate(rows.ends):
                if end < 0:
                    rows.ends[position] = len(self.lsns[rows.documents[position]])

    def _net_changes(self, changes: Sequence[RowChange]) -> dict[_Place, Values | None]:
        """Nets what a transaction does to each row; rows that it leaves as they were are absent."""
        pending: dict[_Place, list[Values]] = {}
        removed: dict[tuple[str, int], Values] = {}
        for change in changes:
            if change.op == "t":
                pending.update(((change.table, key), []) for key in self._rows[change.table])
                pending.update([(place, []) for place in pending if place[0] == change.table])
                continue
            place = (change.table, change.key)
            rows = pending.setdefault(place, [row for row in (self._values(place),) if row is not None])
            old = None if change.op in "cr" else _taken(rows, change)
            if change.op == "d" and old is not None:
                removed[change.table, change.lsn] = old
            if change.after is not None:
                moved = removed.get((change.table, change.lsn)) if change.op == "c" else old
                rows.append(change.after if moved is None else _completed(change.after, moved))
        net = {place: rows[-1] if rows else None for place, rows in pending.items()}
        return {place: after for place, after in net.items() if after != self._values(place)}

    def _values(self, place: tuple[str, Values]) -> Values | None:
        row = self._rows[place[0]].get(place[1])
        return None if row is None else row.values

    def _document(self, table: str, values: Values) -> int:
        key = self._row_keys[table](values)
        if key is None:
            return NO_DOCUMENT
        document = self.document_ids.get(key)
        return self.add_document(key) if document is None else document

    def _put(self, table: str, key: Values, values: Values) -> None:
        document = self._document(table, values)
        position = -1
        if document != NO_DOCUMENT:
            position = self.intervals[table].add(document, len(self.lsns[document]) - 1, values)
        self._rows[table][key] = _Row(position, document, values)

    def _close(self, table: str, key: Values) -> None:
        row = self._rows[table].pop(key, None)
        if row is not None and row.position >= 0:
            self.intervals[table].ends[row.position] = len(self.lsns[row.document]) - 1


def _taken(rows: list[Values], change: RowChange) -> Values | None:
    """Removes the row that a change is about from those of its key, and returns it.

    A deferrable primary key allows several rows of a key within a transaction. Its table then has REPLICA
    IDENTITY FULL, or PostgreSQL would refuse the change, so the old row tells which of them it is.

    Raises:
        CertifyError: none of several rows is the old one.
    """
    if change.before in rows:
        rows.reverse()
        rows.remove(change.before)
        rows.reverse()
        return change.before
    if len(rows) > 1:
        raise malformed(change.table, f"op {change.op} of one of several rows with a key", str(change.key))
    return rows.pop() if rows else None


def _completed(after: Values, before: Values) -> Values:
    """Takes values that a change omits from the row as it was, also if that had another key."""
    return tuple([old if new in UNAVAILABLE else new for new, old in zip(after, before, strict=True)])


def row_keys(specification: Specification, view: View) -> dict[str, RowKey]:
    """Says for each table how its rows find their document.

    Raises:
        CertifyConfigError: ``[view.rows]`` lacks a table of the view or names a column that is not there.
    """
    named = specification.view.rows
    if not named:
        return dict.fromkeys(view.tables, _whole)
    file, found = str(specification.file), {}
    for name, table in view.tables.items():
        if name not in named:
            raise wrong_key(file, f'view.rows."{name}"', "missing, but the view reads this table")
        try:
            positions = table.positions(named[name])
        except KeyError as error:
            raise wrong_key(file, f'view.rows."{name}"', f"no column {error} in it") from error
        found[name] = _row_key(positions, [column.shape.read for column in view.reader.key])
    return found


def _whole(_values: Values) -> DocumentKey:
    return ()


def _row_key(positions: Sequence[int], reads: Sequence[Callable[[object], Canonical]]) -> RowKey:
    pairs = list(zip(positions, reads, strict=True))

    def key(values: Values) -> DocumentKey | None:
        found = tuple([read(values[position]) for position, read in pairs])
        return None if None in found else found

    return key
