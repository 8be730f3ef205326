"""A generator's simulated database: the order in which it commits, and the records of its topics.

As in PostgreSQL, rows get their log positions when they are written, and transactions appear in the order of
their commits, each with its rows together. A transaction that is held open therefore has rows below the
commits of transactions that appear before it. No I/O.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec

from slackwater.sql.catalog import Column, Table, TypeKind
from slackwater_lab.errors import RunFailedError
from slackwater_lab.generator.debezium_records import (
    NULL,
    ConnectorIdentity,
    Headers,
    Stamp,
    begin_record,
    end_record,
    row_renderer,
    stamp,
)
from slackwater_lab.workloads.workload import (
    NO_CHANGES,
    BusinessTransaction,
    Change,
    Insert,
    Plus,
    Update,
    Value,
    Workload,
)

Row = dict[str, Any]
"""Values by the columns of the table, in their order."""
Put = Callable[[str, str | None, str, Headers], None]
"""Takes ``(topic, value, key, headers)`` of one record; value None: a tombstone."""
_encode = msgspec.json.Encoder().encode
_SUBSTITUTES: Final[Mapping[TypeKind, Any]] = {
    TypeKind.SMALLINT: 0,
    TypeKind.INTEGER: 0,
    TypeKind.BIGINT: 0,
    TypeKind.BOOLEAN: False,
    TypeKind.TEXT: "",
    TypeKind.NUMERIC: Decimal(0),
    TypeKind.TIMESTAMPTZ: "1970-01-01T00:00:00Z",
}
"""What Debezium writes for an old value that is not logged, where the column cannot be NULL; all types."""


def key_changes(changes: Iterable[Change]) -> int:
    """Counts the changes of keys. Each causes two change events, all others one."""
    return sum([1 for each in changes if type(each) is Update and "id" in each.changes])


class TableRows:
    """All rows of a table, and its topic.

    Raises:
        RunFailedError: its key is not ``id bigint``, or a column's type has no rendering here.
    """

    def __init__(self, connector: ConnectorIdentity, table: Table, put: Put) -> None:
        key = table.column("id")
        if table.primary_key != ("id",) or key is None or key.type.kind is not TypeKind.BIGINT:
            raise _unsupported(table, "expected the primary key to be id bigint")
        self.topic = f"{connector.prefix}.{table.schema}.{table.name}"
        self.rows: dict[int, Row] = {}
        self._connector = connector
        self._put = put
        self._nothing: Row = dict.fromkeys(column.name for column in table.columns)
        self._units = {
            c.name: Decimal(1).scaleb(-(c.type.scale or 0))
            for c in table.columns
            if c.type.kind is TypeKind.NUMERIC
        }
        self._is_full = table.replica_identity_full
        self._not_logged = {column.name: _substitute(table, column) for column in table.columns}
        self._render = row_renderer(connector, table.schema, table.name)
        self._headers = connector.headers()

    def json(self, row_id: int) -> str:
        """A row as it is, as Debezium writes it."""
        return _encode(self.rows[row_id]).decode()

    def apply(self, change: Change, at: Stamp, lsn: int, total: int, order: int) -> None:
        """Applies a change and puts what the connector writes for it.

        Args:
            change: Of this table.
            at: The transaction.
            lsn: The LSN of the change.
            total: ``total_order`` of its (first) event.
            order: ``data_collection_order`` of its (first) event.
        """
        kind = type(change)
        if kind is Update:
            self._update(change, at, lsn, total, order)  # type: ignore[arg-type]
        elif kind is Insert:
            row = self._changed(self._nothing, change.row)  # type: ignore[union-attr]
            row_id = row["id"]
            self.rows[row_id] = row
            value = self._render("c", NULL, _encode(row).decode(), at, lsn, total, order)
            self._put(self.topic, value, f'{{"id":{row_id}}}', self._headers)
        else:
            row_id = change.id  # type: ignore[union-attr]
            self._delete(self.rows.pop(row_id), row_id, self._headers, at, (lsn, total, order))

    def _changed(self, old: Row, changes: Mapping[str, Value | Plus]) -> Row:
        """Another row; decimals get the scale of their columns."""
        row, units = old.copy(), self._units
        for name, value in changes.items():
            new: Any = row[name] + value.amount if type(value) is Plus else value
            row[name] = new.quantize(units[name]) if name in units and new is not None else new
        return row

    def _update(self, change: Update, at: Stamp, lsn: int, total: int, order: int) -> None:
        row_id = change.id
        old = self.rows[row_id]
        row = self._changed(old, change.changes)
        if "id" in change.changes:
            self._change_key(row_id, old, row, at, (lsn, total, order))
            return
        self.rows[row_id] = row
        before = _encode(old).decode() if self._is_full else NULL
        value = self._render("u", before, _encode(row).decode(), at, lsn, total, order)
        self._put(self.topic, value, f'{{"id":{row_id}}}', self._headers)

    def _delete(
        self, row: Row, row_id: int, headers: Headers, at: Stamp, place: tuple[int, int, int]
    ) -> None:
        key = f'{{"id":{row_id}}}'
        old = _encode(row if self._is_full else {**self._not_logged, "id": row_id}).decode()
        self._put(self.topic, self._render("d", old, NULL, at, *place), key, headers)
        self._put(self.topic, None, key, headers)

    def _change_key(self, old_id: int, old: Row, row: Row, at: Stamp, place: tuple[int, int, int]) -> None:
        """A delete and its tombstone under the old key, an insert under the new one."""
        new_id = row["id"]
        del self.rows[old_id]
        self.rows[new_id] = row
        lsn, total, order = place
        self._delete(old, old_id, self._connector.new_key_headers({"id": new_id}), at, place)
        value = self._render("c", NULL, _encode(row).decode(), at, lsn, total + 1, order + 1)
        self._put(self.topic, value, f'{{"id":{new_id}}}', self._connector.old_key_headers({"id": old_id}))


def _substitute(table: Table, column: Column) -> Any:
    """What stands for an old value that is not logged."""
    kind = column.type.kind
    if kind not in _SUBSTITUTES:
        raise _unsupported(table, f"column {column.name} has the type {column.type}")
    value = None if column.nullable else _SUBSTITUTES[kind]
    return value.scaleb(-(column.type.scale or 0)) if isinstance(value, Decimal) else value


def _unsupported(table: Table, reason: str) -> RunFailedError:
    return RunFailedError(f"table {table.full_name}", f"{reason}; write it otherwise in the schema.sql")


FIRST_LSN = 22_270_008
FIRST_XID = 1_000
_FIRST_COMMIT_US = 1_795_206_861_409_015
ROW_BYTES = 128
"""Log position from one row to the next."""
_COMMIT_BYTES = 48
_COMMIT_INTERVAL_US = 997
TRANSACTIONS = "transaction"
"""Name of the topic of BEGIN and END, beside full names of tables."""
_NO_HEADERS: Headers = []


class Committed(NamedTuple):
    """A transaction at its place in the log."""

    xid: int
    changes: tuple[Change, ...]
    events: int
    begin_lsn: int
    """Of BEGIN and of the first row; later rows follow at intervals of ``ROW_BYTES``."""
    commit_lsn: int
    previous_commit_lsn: int | None
    commit_us: int


@dataclass(slots=True)
class _Open:
    xid: int
    changes: tuple[Change, ...]
    begin_lsn: int
    remaining: int


class SimulatedLog:
    """Log positions of a stream. Restartable nowhere: feed all transactions to one object, in order."""

    def __init__(self) -> None:
        self._xid, self._lsn, self._commit_us = FIRST_XID, FIRST_LSN, _FIRST_COMMIT_US
        self._previous_commit: int | None = None
        self._open: deque[_Open] = deque()

    @property
    def last_commit_lsn(self) -> int:
        """The commit LSN of the newest transaction that was handed out; 0 before the first."""
        return self._previous_commit or 0

    def commits(self, transactions: Iterable[BusinessTransaction]) -> Iterator[Committed]:
        """Yields what appears in the log. Transactions that change nothing or roll back do not."""
        for transaction in transactions:
            if self._open:
                self._count_down()
            changes = tuple([each for each in transaction.operations if not isinstance(each, NO_CHANGES)])
            if changes:
                self._xid += 1
                begin = self._lsn
                self._lsn += ROW_BYTES * len(changes)
                if transaction.is_rolled_back:
                    pass
                elif transaction.held_open_for:
                    self._open.append(_Open(self._xid, changes, begin, transaction.held_open_for))
                else:
                    yield self._commit(self._xid, changes, begin)
            if self._open:
                yield from self._released()

    def _count_down(self) -> None:
        for each in self._open:
            each.remaining -= 1

    def _released(self) -> Iterator[Committed]:
        ready = [each for each in self._open if each.remaining <= 0]
        for each in ready:
            self._open.remove(each)
            yield self._commit(each.xid, each.changes, each.begin_lsn)

    def _commit(self, xid: int, changes: tuple[Change, ...], begin_lsn: int) -> Committed:
        previous = self._previous_commit
        self._lsn += _COMMIT_BYTES
        self._commit_us += _COMMIT_INTERVAL_US
        self._previous_commit = self._lsn
        events = len(changes) + key_changes(changes)
        return Committed(xid, changes, events, begin_lsn, self._lsn, previous, self._commit_us)


class Share:
    """Renders the topics of a workload."""

    def __init__(self, workload: Workload, connector: ConnectorIdentity, put: Put) -> None:
        self.tables: Mapping[str, TableRows] = {
            name: TableRows(connector, table, put) for name, table in workload.tables.items()
        }
        self.log = SimulatedLog()
        self._connector = connector
        self._put = put
        self._topic = f"{connector.prefix}.{TRANSACTIONS}"
        self._first: Iterator[Committed] = self.log.commits(workload.first())
        self._committed = self.log.commits(workload.transactions(0, 1))
        self.events = 0
        """Change events so far."""

    def begin(self) -> tuple[int, int]:
        """Renders the first transactions, once; returns their change events and their number."""
        return self._take(self._first, None)

    def advance(self, events: int) -> tuple[int, int]:
        """Renders whole transactions with at least ``events`` change events; returns as :meth:`begin`."""
        return self._take(self._committed, events)

    def _take(self, commits: Iterator[Committed], events: int | None) -> tuple[int, int]:
        before, transactions = self.events, 0
        for committed in commits:
            self._render(committed)
            transactions += 1
            if events is not None and self.events - before >= events:
                break
        return self.events - before, transactions

    def _render(self, committed: Committed) -> None:
        xid, changes, events, lsn, commit_lsn, previous, commit_us = committed
        self.events += events
        at = stamp(self._connector, xid, commit_us, previous, commit_us * 1000 + 2_500_000)
        key, value = begin_record(xid, lsn, commit_us // 1000)
        self._put(self._topic, value, key, _NO_HEADERS)
        counts: dict[str, int] = {}
        has_key_changes, total = events != len(changes), 1
        for change in changes:
            name = change.table
            counts[name] = order = counts.get(name, 0) + 1
            self.tables[name].apply(change, at, lsn, total, order)
            if has_key_changes and key_changes((change,)):
                counts[name] += 1
                total += 1
            total += 1
            lsn += ROW_BYTES
        key, value = end_record(xid, commit_lsn, commit_us // 1000, counts.items())
        self._put(self._topic, value, key, _NO_HEADERS)
