"""Collects the committed transactions of a source from its topics afterwards, and replays them.

By then the topics are complete, so nothing has to be waited for: a row belongs to the transaction whose xid
it contains, and a transaction is committed if there is an END for it. Records may repeat, and partitions may
be interleaved in any way; within a partition, records are in order. An xid identifies one transaction:
histories in which xids have wrapped around are out of scope.

The replay determines which versions of a document contain which rows. Version 0 is the state before the first
transaction, and every transaction that changes one of the document's rows creates a new version. A row
therefore belongs to an interval of versions of its document, and one table per source table holds all rows of
all states: it has as many rows as there were changes.
"""

import base64
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from slackwater_certify.canonical import DocumentKey
from slackwater_certify.errors import malformed, without_transactions
from slackwater_certify.view import RowKey, Table, Values

_PLACEHOLDER = "__debezium_unavailable_value"
UNAVAILABLE = (
    _PLACEHOLDER,
    [_PLACEHOLDER],
    base64.b64encode(_PLACEHOLDER.encode()).decode(),
    list(_PLACEHOLDER.encode()),
)
"""Placeholders for a large value that the transaction did not change, by the type of the column."""
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors that decoding JSON or Avro raises for a malformed value."""
_SHOWN = 200
_DIGITS = 20

_Place = tuple[str, Values]
"""A row: its table and its primary key."""
NO_DOCUMENT = -1


class RowChange(msgspec.Struct, frozen=True, gc=False):
    """One change event."""

    table: str
    op: str
    """``c``, ``u`` or ``d``; ``r`` in a snapshot; ``t`` truncates the table."""
    key: Values
    """The values of the primary key; empty for ``t``."""
    after: Values | None
    """The new row; None: it was deleted."""
    lsn: int
    before: Values | None = None
    """The part of the old row that the record contains: all of it with REPLICA IDENTITY FULL."""


class CommittedTransaction(msgspec.Struct, frozen=True, gc=False):
    """A transaction with its changes to the declared tables, in the order in which they were made."""

    xid: int
    commit_lsn: int
    commit_ts_ms: int
    changes: tuple[RowChange, ...]
    announced: int
    """The number of change events of the declared tables according to its END."""


class Skip(msgspec.Struct, frozen=True, gc=False):
    """An operator's decision to let a transaction pass although part of it is missing."""

    timeline: int
    lsn: int
    """The LSN of the transaction, or of the cut that passes it if it had no END by then."""
    has_end: bool
    """Whether its END existed. Without it, the position of its rows is unknown, and none is shown."""
    ends: dict[str, list[int]]
    """By topic and partition: the end of the rows that existed; later rows are not shown."""


class _End(msgspec.Struct, gc=False):
    lsn: int
    ts_ms: int
    counts: dict[str, int]


class _Source(msgspec.Struct, gc=False):
    """The origin of a change."""

    schema: str | None = None
    table: str | None = None
    lsn: int | None = None
    ts_ms: int = 0
    snapshot: str | bool | None = None


class _Block(msgspec.Struct, gc=False):
    """The transaction to which a change belongs."""

    id: str


class _ChangeEvent(msgspec.Struct, gc=False):
    """A value of a data topic."""

    op: str | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    source: _Source | None = None
    transaction: _Block | None = None
    payload: "_ChangeEvent | None" = None
    """The event itself, if records contain their schemas."""


class _CollectionCount(msgspec.Struct, gc=False):
    """The number of changes of a table in a transaction."""

    data_collection: str
    event_count: int


class _TransactionRecord(msgspec.Struct, gc=False):
    """A value of the transaction topic."""

    status: str | None = None
    id: str | None = None
    ts_ms: int | None = None
    data_collections: list[_CollectionCount] | None = None
    payload: "_TransactionRecord | None" = None
    """The record itself, if records contain their schemas."""


class _Cut(msgspec.Struct, gc=False):
    """A record of the cut log. Xids and LSNs are stored as differences from the previous ones."""

    kind: str = ""
    """Empty for a cut."""
    timeline: int = 1
    previous: int = 0
    lsn: int = 0
    xids: list[int] = []
    lsns: list[int] = []
    end: dict[str, list[int]] = {}
    skipped: list[int] = []


_Record = TypeVar("_Record", _ChangeEvent, _TransactionRecord)
_CHANGES = msgspec.json.Decoder(_ChangeEvent, float_hook=str)
_TRANSACTIONS = msgspec.json.Decoder(_TransactionRecord)
_CUTS = msgspec.json.Decoder(_Cut)


class History:
    """Collects the records of the cut log, if there is one, then those of the other topics in any order."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._columns = {name: tuple(column for column, _ in table.columns) for name, table in tables.items()}
        self._keys = {name: table.primary_key for name, table in tables.items()}
        self._rows: dict[int, list[RowChange]] = {}
        self._ends: dict[int, _End] = {}
        self._snapshots: dict[int, dict[tuple[str, Values], RowChange]] = {}
        self._taken_ms: dict[int, int] = {}
        """By LSN: when the snapshot was taken."""
        self.skips: dict[int, Skip] = {}
        """What operators have skipped, by xid."""
        self.events = 0
        """The number of change events of the declared tables, including repeats and snapshots."""
        self.ignored: Counter[str] = Counter()
        """The number of events that change no committed state, by kind."""

    def add_cut(self, value: bytes) -> None:
        """Adds a record of the cut log. The first cut that passes a transaction decides what was skipped."""
        try:
            cut = _CUTS.decode(value)
            lsns = list(accumulate(cut.lsns, initial=cut.previous))[1:]
            listed = dict(zip(accumulate(cut.xids), lsns, strict=True))
        except UNREADABLE:  # or not as many xids as LSNs
            self.ignored["unreadable records of the cut log"] += 1
            return
        if cut.kind:
            return
        for xid in cut.skipped:
            skip = Skip(cut.timeline, listed.get(xid, cut.lsn), xid in listed, cut.end)
            self.skips.setdefault(xid, skip)

    def add_row(self, value: bytes, place: str = "") -> None:
        """Adds a record of a data topic that is not a tombstone.

        Its place is ``topic/partition/offset``.

        Raises:
            CertifyError: it is not a change event, or a change without its transaction.
        """
        event = _decode(_CHANGES, value, place)
        source = event.source
        if source is None or event.op is None:
            raise malformed(place, "neither op nor source", value[:200].decode(errors="replace"))
        table = f"{source.schema}.{source.table}"
        if table not in self._columns:
            return
        self.events += 1
        change = self._change(event, table, source.lsn or 0, place)
        if event.transaction is not None:
            xid = _split_id(event.transaction.id, place)[0]
            if xid in self.skips and _is_behind(place, self.skips[xid]):
                self.ignored["rows of transactions that an operator had skipped"] += 1
            else:
                self._rows.setdefault(xid, []).extend(self._of_one_key(change))
        elif event.op == "r" and source.lsn is not None:
            self._snapshots.setdefault(source.lsn, {})[table, change.key] = change
            self._taken_ms[source.lsn] = max(source.ts_ms, self._taken_ms.get(source.lsn, 0))
        elif event.op == "r":
            self.ignored["rows of an incremental snapshot"] += 1
        else:
            raise without_transactions(f"the change at {place} has no transaction")

    def add_transaction_record(self, value: bytes, place: str = "") -> None:
        """Adds a record of the transaction topic; of several ENDs, the first LSN and the largest counts hold.

        Raises:
            CertifyError: it is not such a record.
        """
        record = _decode(_TRANSACTIONS, value, place)
        if record.status != "END" or record.id is None:
            return
        xid, lsn = _split_id(record.id, place)
        counts = {each.data_collection: each.event_count for each in record.data_collections or []}
        end = self._ends.setdefault(xid, _End(lsn, record.ts_ms or 0, counts))
        for table, count in counts.items():
            end.counts[table] = max(count, end.counts.get(table, 0))

    def snapshot(self) -> tuple[RowChange, ...]:
        """Returns the rows before the first transaction: those of the last snapshot that was taken by then.

        An interrupted snapshot is repeated, usually at a higher LSN, and its rows are void.
        """
        first = min((end.lsn for end in self._ends.values()), default=None)
        lsns = [lsn for lsn in self._snapshots if first is None or lsn <= first]
        newest = max(lsns, key=lambda lsn: (self._taken_ms[lsn], lsn), default=None)
        return () if newest is None else tuple(self._snapshots[newest].values())

    @property
    def void_snapshot_rows(self) -> int:
        """Returns the number of rows in void snapshots."""
        return sum(len(rows) for rows in self._snapshots.values()) - len(self.snapshot())

    def transactions(self, *, is_last_use: bool = False) -> Iterator[CommittedTransaction]:
        """Yields every committed transaction with changes, in commit order; the last use frees memory."""
        for lsn, xid in sorted((end.lsn, xid) for xid, end in self._ends.items() if xid in self._rows):
            end = self._ends[xid]
            rows = self._rows.pop(xid) if is_last_use else self._rows[xid]
            changes = sorted(_without_repeats(rows), key=_log_order)
            announced = sum(count for table, count in end.counts.items() if table in self._columns)
            yield CommittedTransaction(xid, lsn, end.ts_ms, tuple(changes), announced)

    @property
    def has_ends(self) -> bool:
        """Returns whether there is any END, which every committed transaction has."""
        return bool(self._ends)

    def unfinished(self) -> list[int]:
        """Returns the transactions that have changes but no END, and so are not committed."""
        return sorted(self._rows.keys() - self._ends.keys())

    def _change(self, event: _ChangeEvent, table: str, lsn: int, place: str) -> RowChange:
        op = event.op or ""
        if op == "t":
            return RowChange(table, op, (), None, lsn)
        row = event.after if event.after is not None else event.before
        if op not in "crud" or row is None:
            raise malformed(place, f"op {op} without a row", str(event)[:200])
        get = row.get
        key = tuple([get(column) for column in self._keys[table]])
        try:
            hash(key)
        except TypeError:
            raise malformed(place, "a value of its key is a list or an object", str(row)[:200]) from None
        before, after = self._values(table, event.before), self._values(table, event.after)
        return RowChange(table, op, key, after, lsn, before)

    def _of_one_key(self, change: RowChange) -> Iterator[RowChange]:
        """Splits an update of the primary key, which is one record if records have a different key."""
        old_key = change.key
        if change.op == "u" and change.before is not None:
            columns = self._columns[change.table]
            old_key = tuple([change.before[columns.index(name)] for name in self._keys[change.table]])
        if old_key == change.key:
            yield change
        else:
            yield RowChange(change.table, "d", old_key, None, change.lsn, change.before)
            yield RowChange(change.table, "c", change.key, change.after, change.lsn)

    def _values(self, table: str, row: dict[str, Any] | None) -> Values | None:
        return None if row is None else tuple([row.get(column) for column in self._columns[table]])


def _is_behind(place: str, skip: Skip) -> bool:
    """Returns whether a record, or the END of its transaction, arrived after the transaction was skipped."""
    if not skip.has_end:
        return True
    topic, partition, offset = place.rsplit("/", 2)
    ends = dict(enumerate(skip.ends.get(topic, [])))
    return int(offset) >= ends.get(int(partition), 0)


def _without_repeats(changes: list[RowChange]) -> list[RowChange]:
    """Drops repeats: after a restart, the connector writes rows again with the same LSNs."""
    first = {(change.lsn, change.table, change.op, change.key): change for change in reversed(changes)}
    if len(first) == len(changes):
        return changes
    return [change for change in changes if first[change.lsn, change.table, change.op, change.key] is change]


def _log_order(change: RowChange) -> tuple[int, bool]:
    """Orders changes as the database made them; a changed key is a delete and an insert with one LSN."""
    return change.lsn, change.op != "d"


def _split_id(transaction_id: str, place: str) -> tuple[int, int]:
    """Returns the parts of ``xid:lsn``."""
    xid, _, lsn = transaction_id.partition(":")
    if not all(part.isascii() and part.isdigit() and len(part) <= _DIGITS for part in (xid, lsn)):
        raise malformed(place, "id is not xid:lsn", transaction_id[:_SHOWN])
    return int(xid), int(lsn)


def _decode(decoder: "msgspec.json.Decoder[_Record]", value: bytes, place: str) -> _Record:
    try:
        record = decoder.decode(value)
    except UNREADABLE as error:
        raise malformed(place, str(error), value[:_SHOWN].decode(errors="replace")) from error
    return record if record.payload is None else record.payload


@dataclass(slots=True)
class RowIntervals:
    """All rows that a table ever had, with the versions of their documents that contained them."""

    columns: list[list[object]]
    documents: "array[int]" = field(default_factory=lambda: array("q"))
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    ends: "array[int]" = field(default_factory=lambda: array("q"))
    """The first version without each row."""

    def add(self, document: int, start: int, values: Values) -> int:
        """Adds a row that exists from a version onwards; returns its position."""
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
        """By document: the commit time of each version, in milliseconds since the epoch."""
        self._row_keys = row_keys
        self._rows: dict[str, dict[Values, _Row]] = {name: {} for name in tables}

    def add_document(self, key: DocumentKey) -> int:
        """Numbers a document, even if it has no rows."""
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
        """Ends the intervals of remaining rows after the last version of their document."""
        for rows in self.intervals.values():
            for position, end in enumerate(rows.ends):
                if end < 0:
                    rows.ends[position] = len(self.lsns[rows.documents[position]])

    def _net_changes(self, changes: Sequence[RowChange]) -> dict[_Place, Values | None]:
        """Returns the net effect of a transaction on each row that it changes."""
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
    """Removes the row that a change affects from the rows with its key, and returns it.

    A deferrable primary key allows several rows with one key within a transaction. The table then has REPLICA
    IDENTITY FULL, because PostgreSQL would otherwise refuse the change, so the old row identifies the row.

    Raises:
        CertifyError: there are several rows, and none is the old one.
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
    """Takes the values that a change omits from the old row, even if its key was different."""
    return tuple([old if new in UNAVAILABLE else new for new, old in zip(after, before, strict=True)])
