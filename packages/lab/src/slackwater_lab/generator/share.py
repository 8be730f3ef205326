"""A generator's simulated database: the order in which it commits, and the records of some of its topics.

As in PostgreSQL, rows get their log positions when they are written, and transactions appear in the order of
their commits, each with its rows together. A transaction that is held open therefore has rows below the
commits of transactions that appear before it. No I/O.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, NamedTuple

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

Row = list[Any]
Image = Callable[[Row], str]
Coerce = Callable[[Any], Any]

_CONTROL = re.compile(r"\\u00[0-9a-f]{2}")


def json_text(text: str) -> str:
    """A JSON string as Jackson writes it: hexadecimal digits of control characters in upper case."""
    encoded = encode_basestring(text)
    if "\\u00" in encoded:
        encoded = _CONTROL.sub(lambda match: "\\u" + match.group()[2:].upper(), encoded)
    return encoded


@dataclass(frozen=True, slots=True)
class _TableImages:
    """The functions that keep and render the rows of a table."""

    index: Mapping[str, int]
    """Position of each column in a row."""
    coerce: Mapping[str, Coerce]
    """Brings a value to the type of its column; columns that take values as they are are missing."""
    full: Image
    """All columns."""
    key: Image
    """What is logged of an old row without ``REPLICA IDENTITY FULL``: other columns are null, or Debezium's
    substitute where the column cannot be."""

    def row(self, values: Mapping[str, Value]) -> Row:
        """A new row; columns that are not named are NULL."""
        row = [values.get(name) for name in self.index]
        for name, coerce in self.coerce.items():
            position = self.index[name]
            if row[position] is not None:
                row[position] = coerce(row[position])
        return row


def _table_images(table: Table) -> _TableImages:
    """Compiles a table.

    Raises:
        RunFailedError: its key is not ``id bigint``, or a column's type has no rendering here.
    """
    if table.primary_key != ("id",) or _column(table, "id").type.kind is not TypeKind.BIGINT:
        raise _unsupported(table, "expected the primary key to be id bigint")
    coerce = {c.name: _rounding(c.type.scale or 0) for c in table.columns if c.type.kind is TypeKind.NUMERIC}
    key_parts = [_key_part(table, column) for column in table.columns]
    return _TableImages(
        index={column.name: number for number, column in enumerate(table.columns)},
        coerce=coerce,
        full=_compiled([_part(table, number) for number in range(len(table.columns))]),
        key=_compiled(key_parts),
    )


def _column(table: Table, name: str) -> Column:
    column = table.column(name)
    if column is None:
        raise _unsupported(table, f"it has no column {name}")
    return column


def _unsupported(table: Table, reason: str) -> RunFailedError:
    return RunFailedError(f"table {table.full_name}", f"{reason}; write it otherwise in the schema.sql")


def _rounding(scale: int) -> Coerce:
    unit = Decimal(1).scaleb(-scale)
    return lambda value: value if value.same_quantum(unit) else value.quantize(unit)


def _compiled(parts: list[str]) -> Image:
    """A function with one f-string; names and types come from a schema file of ours, not from input."""
    code = "def image(r): return f'''{{" + ",".join(parts) + "}}'''"
    names: dict[str, Any] = {"text": json_text}
    exec(code, names)  # noqa: S102 - see above
    image: Image = names["image"]
    return image


def _part(table: Table, number: int) -> str:
    """A piece of an f-string."""
    column, at = table.columns[number], f"r[{number}]"
    match column.type.kind:
        case TypeKind.SMALLINT | TypeKind.INTEGER | TypeKind.BIGINT:
            value, plain = at, f"{{{at}}}"
        case TypeKind.BOOLEAN:
            value = f"('true' if {at} else 'false')"
            plain = f"{{{value}}}"
        case TypeKind.TEXT:
            value, plain = f"text({at})", f"{{text({at})}}"
        case TypeKind.NUMERIC | TypeKind.TIMESTAMPTZ:
            value, plain = f"""'"' + str({at}) + '"'""", f'"{{{at}!s}}"'
        case _:
            raise _unsupported(table, f"column {column.name} has the type {column.type}")
    return f'"{column.name}":' + (f"{{'null' if {at} is None else {value}}}" if column.nullable else plain)


def _key_part(table: Table, column: Column) -> str:
    if column.name in table.primary_key:
        return _part(table, table.columns.index(column))
    if column.nullable:
        return f'"{column.name}":null'
    match column.type.kind:
        case TypeKind.BOOLEAN:
            substitute = "false"
        case TypeKind.TEXT:
            substitute = '""'
        case TypeKind.NUMERIC:
            substitute = '"' + str(Decimal(0).scaleb(-(column.type.scale or 0))) + '"'
        case TypeKind.TIMESTAMPTZ:
            substitute = '"1970-01-01T00:00:00Z"'
        case _:
            substitute = "0"
    return f'"{column.name}":{substitute}'


Put = Callable[[str, str | None, str, Headers], None]
"""Takes ``(topic, value, key, headers)`` of one record; value None: a tombstone."""


def key_changes(changes: Iterable[Change]) -> int:
    """Counts the changes of keys. Each causes two change events, all others one."""
    return sum([1 for each in changes if type(each) is Update and "id" in each.changes])


class TableRows:
    """All rows of a table, and its topic."""

    def __init__(self, connector: ConnectorIdentity, table: Table, put: Put) -> None:
        self.topic = f"{connector.prefix}.{table.schema}.{table.name}"
        self.rows: dict[int, Row] = {}
        images = _table_images(table)
        self._connector = connector
        self._put = put
        self._new_row = images.row
        self._index, self._coerce = images.index, images.coerce
        self._image = images.full
        self._is_full = table.replica_identity_full
        self._old_image = images.full if self._is_full else images.key
        self._render = row_renderer(connector, table.schema, table.name)
        self._headers = connector.headers()

    def json(self, row_id: int) -> str:
        """A row as it is, as Debezium writes it."""
        return self._image(self.rows[row_id])

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
            row = self._new_row(change.row)  # type: ignore[union-attr]
            row_id = row[self._index["id"]]
            self.rows[row_id] = row
            value = self._render("c", NULL, self._image(row), at, lsn, total, order)
            self._put(self.topic, value, f'{{"id":{row_id}}}', self._headers)
        else:
            row_id = change.id  # type: ignore[union-attr]
            self._delete(self.rows.pop(row_id), row_id, self._headers, at, (lsn, total, order))

    def _update(self, change: Update, at: Stamp, lsn: int, total: int, order: int) -> None:
        row_id, index, coerce = change.id, self._index, self._coerce
        old = self.rows[row_id]
        row = old.copy()
        for name, value in change.changes.items():
            position = index[name]
            new = row[position] + value.amount if type(value) is Plus else value
            rounded = coerce.get(name)
            row[position] = new if rounded is None or new is None else rounded(new)
        if "id" in change.changes:
            self._change_key(row_id, old, row, at, (lsn, total, order))
            return
        self.rows[row_id] = row
        before = self._image(old) if self._is_full else NULL
        value = self._render("u", before, self._image(row), at, lsn, total, order)
        self._put(self.topic, value, f'{{"id":{row_id}}}', self._headers)

    def _delete(
        self, row: Row, row_id: int, headers: Headers, at: Stamp, place: tuple[int, int, int]
    ) -> None:
        key = f'{{"id":{row_id}}}'
        self._put(self.topic, self._render("d", self._old_image(row), NULL, at, *place), key, headers)
        self._put(self.topic, None, key, headers)

    def _change_key(self, old_id: int, old: Row, row: Row, at: Stamp, place: tuple[int, int, int]) -> None:
        """A delete and its tombstone under the old key, an insert under the new one."""
        new_id = row[self._index["id"]]
        del self.rows[old_id]
        self.rows[new_id] = row
        lsn, total, order = place
        self._delete(old, old_id, self._connector.new_key_headers({"id": new_id}), at, place)
        value = self._render("c", NULL, self._image(row), at, lsn, total + 1, order + 1)
        self._put(self.topic, value, f'{{"id":{new_id}}}', self._connector.old_key_headers({"id": old_id}))


FIRST_LSN = 22_270_008
FIRST_XID = 1_000
_FIRST_COMMIT_US = 1_795_206_861_409_015
ROW_BYTES = 128
"""Log position from one row to the next."""
_COMMIT_BYTES = 48
_COMMIT_INTERVAL_US = 997
TRANSACTIONS = "transaction"
"""Name of the topic of BEGIN and END in a share, beside full names of tables."""
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

    def rest(self) -> Iterator[Committed]:
        """Commits what is still open."""
        while self._open:
            each = self._open.popleft()
            yield self._commit(each.xid, each.changes, each.begin_lsn)

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
    """Renders some topics of a workload."""

    def __init__(
        self, workload: Workload, connector: ConnectorIdentity, topics: Collection[str], put: Put
    ) -> None:
        tables = workload.tables
        self.tables: Mapping[str, TableRows] = {
            name: TableRows(connector, table, put) for name, table in tables.items() if name in topics
        }
        self.log = SimulatedLog()
        self._has_transactions = TRANSACTIONS in topics
        self._connector = connector
        self._put = put
        self._topic = f"{connector.prefix}.transaction"
        self._own = {name: rows.apply for name, rows in self.tables.items()}.get
        self._first: Iterator[Committed] = self.log.commits(workload.first())
        self._committed = self.log.commits(workload.transactions(0, 1))
        self.events = 0
        """Change events so far, of all topics."""

    def begin(self) -> tuple[int, int]:
        """Renders the first transactions, once.

        Returns:
            Change events and transactions, of all topics.
        """
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
        xid, changes, events, lsn, _, previous, commit_us = committed
        self.events += events
        at = stamp(self._connector, xid, commit_us, previous, commit_us * 1000 + 2_500_000)
        if self._has_transactions:
            self._begin(committed)
        counts: dict[str, int] = {}
        own, has_key_changes = self._own, events != len(changes)
        total = 1
        for change in changes:
            name = change.table
            counts[name] = order = counts.get(name, 0) + 1
            apply = own(name)
            if apply is not None:
                apply(change, at, lsn, total, order)
            if has_key_changes and key_changes((change,)):
                counts[name] += 1
                total += 1
            total += 1
            lsn += ROW_BYTES
        if self._has_transactions:
            self._end(committed, counts)

    def _begin(self, committed: Committed) -> None:
        key, value = begin_record(committed.xid, committed.begin_lsn, committed.commit_us // 1000)
        self._put(self._topic, value, key, _NO_HEADERS)

    def _end(self, committed: Committed, counts: Mapping[str, int]) -> None:
        lsn = committed.commit_lsn
        key, value = end_record(committed.xid, lsn, committed.commit_us // 1000, counts.items())
        self._put(self._topic, value, key, _NO_HEADERS)
