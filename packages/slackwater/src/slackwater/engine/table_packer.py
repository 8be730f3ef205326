"""Packs the changes of a table: creates their events for each input that reads the table.

A change consists of a row's old identity and its new contents. Regular records, which are the usual case, are
decoded many at a time, directly into this form, at a third of the cost. Irregular records (snapshots, values
that a record omits or writes in another form, rows that contradict the declaration of their table) are
decoded one by one into the same form, so only one place creates events. A TRUNCATE has no row, and is sent to
all buckets.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final, Literal, Protocol
from zlib import crc32

import msgspec

from slackwater.cdc.changes import SpanTransactions
from slackwater.cdc.postgres import OWN_VERSION
from slackwater.engine.payloads import Events, PackedRow
from slackwater.protocol import InputError
from slackwater.sql.catalog import FLOAT_KINDS, Column, Table
from slackwater.sql.plan import InputPlan
from slackwater.sql.row_codec import RowCodec, WireRow, placeholders_of, row_struct

FULL_HINT: Final = "ALTER TABLE {table} REPLICA IDENTITY FULL"
"""The statement that makes old rows complete; a part of hints."""
_NULL: Final = b"null"

_UNKNOWN: Final = re.compile(
    r"0?(\.0*)?|False|None|\[\]|\{\}|(1970-01-01T)?00:00:00(\.0+)?Z|0{8}-0{4}-0{4}-0{4}-0{12}"
    r"|P0Y0M0DT0H0M0S"
)
"""What a connector writes for a value that the database has not told, as Python shows it. In a column with a
DEFAULT, it writes that."""

RowChange = tuple[int, int, WireRow | None, WireRow | None]
"""``(commit LSN, lead, old identity, new row)``. Without a row, it is a delete; without an identity, the old
row is not needed. The lead is that of an :data:`Event`."""
Projection = Callable[[WireRow], WireRow]


class _Source(Protocol):
    txId: int
    lsn: int


class Envelope(Protocol):
    """A regular change record, as :meth:`TablePacker.decode` returns it."""

    op: str
    source: _Source
    before: Any
    after: Any


class _Transaction(msgspec.Struct, frozen=True, gc=False):
    """The transaction block, which only has to be present."""


class TablePacker:
    """Packs changes of one table for all inputs that read it. Use it from one thread."""

    def __init__(
        self,
        inputs: Sequence[tuple[int, InputPlan, Events]],
        buckets: int,
        *,
        keeps_old: bool = False,
        takes_only_own: bool = False,
    ) -> None:
        """Creates a packer for inputs, each with its number and the collection that receives its events."""
        columns = tuple({column.name: column for _, each, _ in inputs for column in each.columns}.values())
        table = self._table = replace(inputs[0][1].table, columns=columns)
        self._name = table.full_name
        names = tuple(column.name for column in columns)
        keys = tuple(dict.fromkeys(name for _, each, _ in inputs for name in (*each.key, *table.primary_key)))
        self._keys = frozenset(keys)
        self._row_codec, self._identity_codec = RowCodec(table, names), RowCodec(table, keys)
        self._primary_codec = RowCodec(table, table.primary_key)
        self._primary_of = _values(keys, table.primary_key)
        telling = [c for c in columns if c.name not in table.primary_key and not c.has_default]
        self._telling = (*(c.name for c in telling), *table.left_out)
        self._never_in_index = tuple(c.name for c in telling if c.nullable)
        self._has_default_key = any(c.has_default for c in columns if c.name in table.primary_key)
        self._moving_key = next((each.key for _, each, _ in inputs if each.needs_replica_identity_full), None)
        self._keeps_old = keeps_old and table.replica_identity_full
        self.has_moves = False
        """Whether rows that lack values have come from other primary keys."""
        self._placeholders = _placeholders(columns)
        self._inputs = [_InputPacker(*each, buckets, names, keys) for each in inputs]
        self._pending: list[RowChange] = []
        """Changes that are not packed yet; packing several together costs less."""
        self._decode: Callable[[bytes], Any] | None = None
        if not self._keeps_old and not any((c.type.element or c.type).kind in FLOAT_KINDS for c in columns):
            # Floats have several forms in JSON.
            source = _source(table, takes_only_own=takes_only_own)
            envelope = _envelope(source, columns, self._identity_codec.columns)
            self._decode = msgspec.json.Decoder(envelope).decode

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of all inputs, in the order of the values in :meth:`add_rows`."""
        return tuple(column.name for column in self._table.columns)

    def add_rows(self, commit_lsn: int, rows: Iterable[WireRow]) -> None:
        """Packs rows that exist from a commit on; all of them are complete and new."""
        self._pending += [(commit_lsn, 1, None, row) for row in rows]
        self.flush()

    def decode(self, values: Iterable[bytes | None]) -> list[Envelope | None]:
        """Returns the records; None for tombstones.

        Raises:
            ValueError: Some record is not regular.
        """
        decode = self._decode
        if decode is None:
            msg = f"no record of {self._name} is packed as a regular one"
            raise ValueError(msg)
        return [None if value is None else decode(value) for value in values]

    def add_regular(self, envelopes: Sequence[Envelope | None], window: SpanTransactions) -> int:
        """Packs records up to the first one that is not regular.

        Returns:
            The number of records that were packed, or that are ignored.
        """
        done = self._take(envelopes, window, self._pending.append)
        self.flush()
        return done

    def add(
        self,
        op: str,
        commit_lsn: int,
        before: bytes | None,
        after: bytes | None,
        lsn: int | None = None,
        schema: bytes | None = None,
    ) -> None:
        """Adds one change of any kind; :meth:`flush` creates its events.

        Rows are JSON, None or ``null``. The `lsn` is that of the change; None if it precedes all else in its
        transaction. The Connect schema is that which the record states, as JSON.

        Raises:
            InputError: The change lacks what a stage needs.
            RowContradictsSchemaError: A row does not match the declaration of its table.
        """
        if op == "u" and self._changes_key(before, after, schema):
            self.add("d", commit_lsn, before, None, lsn, schema)
            self.add("c", commit_lsn, None, after, lsn, schema)
            return
        lead = 2 * (commit_lsn - lsn) + (op != "c") if lsn is not None and op != "r" else 2 * commit_lsn + 1
        if op == "t":
            self.flush()
            for each in self._inputs:
                each.truncate(commit_lsn, lead)
            return
        row, is_complete = (None, True) if op == "d" else self._new_row(op, before, after, schema)
        change = commit_lsn, lead, self._old_identity(op, before, schema), row
        if not is_complete:
            self.flush()
            self.has_moves |= op == "c"
            for each in self._inputs:
                each.add_incomplete(change, is_moved=op == "c")
        elif self._keeps_old and op in {"u", "d"} and before is not None and before != _NULL:
            self.flush()
            old = self._row_codec.of_schema(schema).decode(before)
            for each in self._inputs:
                each.add_replaced(change, old)
        else:
            self._pending.append(change)

    def is_key(self, key: bytes | None) -> bool:
        """Returns whether records with such a key are regular: it consists of the primary key's columns.

        With another one (``message.key.columns``) or none, an update of the primary key may be one record.
        """
        if key is None:
            return False
        try:
            found = msgspec.json.decode(key)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return True
        return not isinstance(found, dict) or found.keys() == set(self._table.primary_key)

    def _changes_key(self, before: bytes | None, after: bytes | None, schema: bytes | None) -> bool:
        if before is None or before == _NULL or after is None or after == _NULL:
            return False
        codec = self._primary_codec.of_schema(schema)
        return codec.decode(before) != codec.decode(after)

    def flush(self) -> None:
        """Creates the events of the changes that were added."""
        if self._pending:
            for each in self._inputs:
                each.add(self._pending)
            self._pending.clear()

    def _new_row(
        self, op: str, before: bytes | None, after: bytes | None, schema: bytes | None
    ) -> tuple[WireRow, bool]:
        """Returns the new row, and whether it has all values."""
        if op not in {"c", "r", "u"}:
            raise InputError(
                f"operation {op!r} on {self._name}: expected c, r, u, d or t; check that only "
                "Debezium's PostgreSQL connector writes to this topic"
            )
        if after is None or after == _NULL:
            raise _missing_image(self._table, op, "after")
        codec = self._row_codec.of_schema(schema)
        row = codec.decode(after, is_snapshot=op == "r")
        if op == "r" or not any(map(row.__contains__, self._placeholders)):
            return row, True
        if self._table.replica_identity_full and before is not None and before != _NULL:
            row = codec.merge(row, codec.decode(before))
        omitted = codec.unavailable(row)
        for column in omitted:
            if column in self._keys:
                raise InputError(
                    f"operation {op!r} on {self._name} contains no value of {column}, which identifies the "
                    f"row, since it is stored out of line (TOAST); run {FULL_HINT.format(table=self._name)} "
                    "and take a new snapshot"
                )
        return row, not omitted

    def _old_identity(self, op: str, before: bytes | None, schema: bytes | None) -> WireRow | None:
        is_there = before is not None and before != _NULL
        if op == "u" and not is_there and self._table.replica_identity_full and self._moving_key is None:
            raise InputError(
                f"operation 'u' on {self._name} contains no old row, but the table is declared with REPLICA "
                "IDENTITY FULL: the database does not have it, or did not when the row was written; run "
                f"{FULL_HINT.format(table=self._name)} and take a new snapshot, or declare the table as it "
                "is (`slackwater schema pull`)"
            )
        if op != "d" and (op != "u" or self._moving_key is None):
            return None
        if before is not None and is_there:
            if op == "d" and not self._table.replica_identity_full:
                self._check_identity(before)
            return self._identity_codec.of_schema(schema).decode(before)
        if op == "d":
            raise _missing_image(self._table, op, "before")
        raise _missing_old_row(self._table, ", ".join(self._moving_key or ()))

    def _may_be_unknown(self, key: Iterable[Any]) -> bool:
        """Returns whether a part of a primary key may be what a connector writes for an unknown value."""
        return self._has_default_key or any(map(_is_unknown, key))

    def _check_identity(self, before: bytes) -> None:
        """Refuses a delete that may tell other columns instead of a part of the primary key.

        Raises:
            InputError: It tells some that the index of a replica identity can have.
        """
        row = msgspec.json.decode(before)
        key = [row.get(column) for column in self._table.primary_key]
        if not self._may_be_unknown(key) or any(row.get(each) is not None for each in self._never_in_index):
            return
        for column in self._telling:
            if not _is_unknown(row.get(column)):
                raise InputError(
                    f"operation 'd' on {self._name} tells no primary key, or not all of it, but column "
                    f"{column}: its REPLICA IDENTITY is another index than the primary key; run ALTER TABLE "
                    f"{self._name} REPLICA IDENTITY DEFAULT and take a new snapshot; if it has REPLICA "
                    "IDENTITY FULL, or the column a DEFAULT, declare that (`slackwater schema pull`)"
                )

    def _take(
        self,
        envelopes: Sequence[Envelope | None],
        window: SpanTransactions,
        take: Callable[[RowChange], None],
    ) -> int:
        commit_lsn_of, repeated = window.commit_lsn_of, window.repeated
        after_lsn, up_to_lsn = window.after_lsn, window.up_to_lsn
        is_moving, is_full = self._moving_key is not None, self._table.replica_identity_full
        astuple, placeholders = msgspec.structs.astuple, self._placeholders
        for number, envelope in enumerate(envelopes):
            if envelope is None:
                continue
            source, op = envelope.source, envelope.op
            lsn = commit_lsn_of(source.txId)
            if lsn is None or not after_lsn < lsn <= up_to_lsn:
                continue
            before, after = envelope.before, envelope.after
            needs_old = op == "d" or (is_moving and op == "u")
            lacks_old = before is None and (needs_old or (is_full and op == "u"))
            if lacks_old or (after is None and op != "d") or lsn in repeated:
                return number
            old = astuple(before) if needs_old else None
            if op == "d" and old is not None and not is_full and self._may_be_unknown(self._primary_of(old)):
                return number
            row: WireRow | None = None if op == "d" else astuple(after)
            if row is not None:
                for placeholder in placeholders:
                    if placeholder in row:
                        return number
            lead = 2 * (lsn - source.lsn) + (op != "c")
            take((lsn, lead, old, row))
        return len(envelopes)


class _InputPacker:
    """Creates the events of one input."""

    def __init__(
        self,
        number: int,
        plan: InputPlan,
        events: Events,
        buckets: int,
        names: tuple[str, ...],
        keys: tuple[str, ...],
    ) -> None:
        key, primary_key = plan.key, plan.table.primary_key
        self._table = plan.table
        self._number = number
        self._moves = plan.needs_replica_identity_full
        self._events = events
        self._buckets = buckets
        self._codec = RowCodec(plan.table, plan.column_names)
        self._key, self._old_key = _values(names, key), _values(keys, key)
        self._primary_key, self._old_primary_key = _values(names, primary_key), _values(keys, primary_key)
        self._row = None if plan.column_names == names else _values(names, plan.column_names)
        self._same_keys = key == primary_key
        is_never_null = not any(c.nullable for c in plan.columns if c.name in key)
        self._keeps_all = plan.keeps_null_keys or is_never_null
        self._encode = msgspec.msgpack.Encoder().encode

    def add(self, changes: Iterable[RowChange]) -> None:
        """Adds the events of these changes, whose rows have all values."""
        number, moves, same_keys, keeps_all = self._number, self._moves, self._same_keys, self._keeps_all
        encode, row_of, events, buckets = self._encode, self._row, self._events, self._buckets
        key_of, primary_key_of, old_key_of = self._key, self._primary_key, self._old_key
        for lsn, lead, old, row in changes:
            if row is None:
                old = old or ()
                self._add(lsn, lead, old_key_of(old), encode(self._old_primary_key(old)), None)
                continue
            values = key_of(row)
            key = encode(values)
            primary_key = key if same_keys else encode(primary_key_of(row))
            if moves and old is not None and (old_values := old_key_of(old)) != values:
                self._add(lsn, lead, old_values, primary_key, None)
                lead = _of_arrival(lsn, lead)
            if keeps_all or None not in values:
                packed = encode(row if row_of is None else row_of(row))
                event = (lsn, number, key, primary_key, packed, lead)
                bucket = crc32(key) % buckets
                try:
                    events[bucket].append(event)
                except KeyError:
                    events[bucket] = [event]

    def add_incomplete(self, change: RowChange, *, is_moved: bool) -> None:
        """Adds the events of a change whose row lacks values (TOAST), which the stage has to find.

        A moved row had these values under another primary key.

        Raises:
            InputError: The row comes from another key, so the stage that receives it has never seen it.
        """
        lsn, lead, old, row = change
        own = row if row is None or self._row is None else self._row(row)
        if row is None or own is None or not self._codec.has_unavailable(own):
            self.add([change])
            return
        values = self._key(row)
        if self._moves and old is not None and self._old_key(old) != values:
            what = "a value stored out of line (TOAST)"
            raise _missing_old_row(self._table, what)
        if self._keeps_all or None not in values:
            primary_key, packed = self._encode(self._primary_key(row)), self._encode(own)
            self._add(lsn, lead, values, primary_key, (packed, None) if is_moved else (packed,))

    def add_replaced(self, change: RowChange, old: WireRow) -> None:
        """Adds the events of a change with the whole old row, which may not be the only one of its key."""
        lsn, lead, _, row = change
        own_old = self._encode(old if self._row is None else self._row(old))
        old_key, old_primary_key = self._key(old), self._encode(self._primary_key(old))
        if row is not None and self._key(row) == old_key:
            own = self._encode(row if self._row is None else self._row(row))
            self._add(lsn, lead, old_key, old_primary_key, (own, own_old))
            return
        self._add(lsn, lead, old_key, old_primary_key, (None, own_old))
        if row is not None:
            self.add([(lsn, _of_arrival(lsn, lead), None, row)])

    def truncate(self, lsn: int, lead: int) -> None:
        """Informs all buckets that the table is empty."""
        for bucket in range(self._buckets):
            self._events.setdefault(bucket, []).append((lsn, self._number, b"", b"", None, lead))

    def _add(self, lsn: int, lead: int, key_values: WireRow, primary_key: bytes, row: PackedRow) -> None:
        if self._keeps_all or None not in key_values:
            key = self._encode(key_values)
            event = (lsn, self._number, key, primary_key, row, lead)
            self._events.setdefault(crc32(key) % self._buckets, []).append(event)


def _is_unknown(value: Any) -> bool:
    return _UNKNOWN.fullmatch(str(value)) is not None


def _of_arrival(lsn: int, lead: int) -> int:
    """Returns the lead of a row that an update brings under another key."""
    return lead & ~1 if lead < 2 * lsn else lead


def _missing_image(table: Table, op: str, field: str) -> InputError:
    return InputError(f"operation {op!r} on {table.full_name}: expected an object in {field!r}, got null")


def _missing_old_row(table: Table, column: str) -> InputError:
    return InputError(
        f"operation 'u' on {table.full_name} contains no old value of {column}, which is needed to find "
        f"the old row; run {FULL_HINT.format(table=table.full_name)} and take a new snapshot"
    )


def _placeholders(columns: Iterable[Column]) -> tuple[Any, ...]:
    """Returns the placeholders for values that an update omits (TOAST)."""
    found: list[Any] = []
    for column in columns:
        found += [each for each in placeholders_of(column.type) if each not in found]
    return tuple(found)


def _values(names: tuple[str, ...], wanted: tuple[str, ...]) -> Projection:
    """Returns a function that selects these columns of a row as a tuple, without a Python frame."""
    positions = [names.index(name) for name in wanted]
    first = positions[0] if positions else 0
    if positions == list(range(first, first + len(positions))):
        return itemgetter(slice(first, first + len(positions)))
    return itemgetter(*positions)


def _source(table: Table, *, takes_only_own: bool) -> type[msgspec.Struct]:
    """Returns the type of the ``source`` block of a table's regular records."""
    own: list[tuple[str, Any]] = [("version", Literal[OWN_VERSION])] if takes_only_own else []
    place = [("schema", Literal[table.schema]), ("table", Literal[table.name])]
    return msgspec.defstruct("Source", [*own, *place, ("txId", int), ("lsn", int)], gc=False)


def _envelope(
    source: type[msgspec.Struct], columns: Sequence[Column], identity: Sequence[Column]
) -> type[msgspec.Struct]:
    """Returns the type of a table's regular records: an insert, update or delete in a transaction."""
    return msgspec.defstruct(
        "Envelope",
        [
            ("op", Literal["c", "u", "d"]),
            ("source", source),
            ("transaction", _Transaction),
            ("before", row_struct(identity, is_regular=True) | None, None),
            ("after", row_struct(columns, is_regular=True) | None, None),
        ],
        gc=False,
    )
