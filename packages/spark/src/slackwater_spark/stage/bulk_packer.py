"""Packs the regular changes of a table many at a time: the usual case, at a third of the cost.

A record is decoded once, straight into the columns that some input needs; nothing is called per change but
what makes its bytes. Whatever is not regular (snapshots, TRUNCATE, values that a record leaves out, rows that
contradict their table) is left to :class:`~slackwater_spark.stage.event_packer.EventPacker`, which says what
an event is: both give the same payloads.
"""

from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Literal, Protocol
from zlib import crc32

import msgspec

from slackwater_spark.stage.packing import PackingInput
from slackwater_spark.stage.wire import Events
from slackwater_sql.catalog import Column
from slackwater_sql.column_type import FLOAT_KINDS, TypeKind
from slackwater_sql.row_codec import UNAVAILABLE, UNAVAILABLE_NUMBERS, WireRow, row_struct

_UNAVAILABLE_BASE64: Final = b64encode(UNAVAILABLE.encode()).decode()

Change = tuple[int, int, WireRow | None, WireRow | None]
"""``(commit LSN, lead, old identity, new row)``; no row: a delete; no identity: the old row is not needed."""
Projection = Callable[[WireRow], WireRow]


class _Source(Protocol):
    txId: int
    lsn: int


class Envelope(Protocol):
    """A regular change record, as :meth:`TablePacker.decode` gives it."""

    op: str
    source: _Source
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Window:
    """Which transactions a stretch of a partition contributes.

    Attributes:
        table: The only table of the partition's topic.
        commit_lsn_of: Commit LSN by transaction id; None if it is not in the batch.
        repeated: Commit LSNs of transactions whose rows have to be compared.
        after_lsn: Only commits above it count.
        up_to_lsn: Only commits up to it count.
    """

    table: str
    commit_lsn_of: Callable[[int], int | None]
    repeated: Collection[int]
    after_lsn: int
    up_to_lsn: int


class _Transaction(msgspec.Struct, frozen=True, gc=False):
    """Of the transaction block only that it is there."""


class TablePacker:
    """Packs changes of one table for all inputs that read it; not for several threads."""

    def __init__(self, inputs: Sequence[tuple[PackingInput, Events]], buckets: int) -> None:
        """A packer.

        Args:
            inputs: That read the table, each with where its events go.
            buckets: Of every stage.
        """
        table = inputs[0][0].table
        columns = _united(each.table.columns for each, _ in inputs)
        keys = tuple(dict.fromkeys(name for each, _ in inputs for name in (*each.key, *table.primary_key)))
        by_name = {column.name: column for column in columns}
        envelope = _envelope(table.schema, table.name, columns, [by_name[name] for name in keys])
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(envelope).decode
        self._is_moving = any(each.moves for each, _ in inputs)
        self._placeholders = _placeholders(columns)
        names = tuple(by_name)
        self._inputs = [_BulkInput(each, events, buckets, names, keys) for each, events in inputs]

    @staticmethod
    def can_pack(inputs: Iterable[PackingInput]) -> bool:
        """Whether the table may have regular changes at all: floats have several forms in JSON."""
        columns = [column for each in inputs for column in each.table.columns]
        return not any((c.type.element or c.type).kind in FLOAT_KINDS for c in columns)

    def decode(self, values: Iterable[bytes | None]) -> list[Envelope | None]:
        """The records; None for tombstones.

        Raises:
            ValueError: some record is not regular.
        """
        decode = self._decode
        return [None if value is None else decode(value) for value in values]

    def add(self, envelopes: Sequence[Envelope | None], window: Window) -> int:
        """Packs records up to the first one that is not regular.

        Returns:
            How many were packed, or do not count.
        """
        changes: list[Change] = []
        done = self._take(envelopes, window, changes.append)
        if changes:
            for each in self._inputs:
                each.add(changes)
        return done

    def _take(
        self, envelopes: Sequence[Envelope | None], window: Window, take: Callable[[Change], None]
    ) -> int:
        commit_lsn_of, repeated = window.commit_lsn_of, window.repeated
        after_lsn, up_to_lsn = window.after_lsn, window.up_to_lsn
        astuple, is_moving, placeholders = msgspec.structs.astuple, self._is_moving, self._placeholders
        for number, envelope in enumerate(envelopes):
            if envelope is None:
                continue
            source, op = envelope.source, envelope.op
            lsn = commit_lsn_of(source.txId)
            if lsn is None or not after_lsn < lsn <= up_to_lsn:
                continue
            before, after = envelope.before, envelope.after
            needs_old = op == "d" or (is_moving and op == "u")
            if (needs_old and before is None) or (after is None and op != "d") or lsn in repeated:
                return number
            row: WireRow | None = None if op == "d" else astuple(after)
            if op == "u" and row is not None:
                for placeholder in placeholders:
                    if placeholder in row:
                        return number
            take((lsn, lsn - source.lsn, astuple(before) if needs_old else None, row))
        return len(envelopes)


class _BulkInput:
    """Packs changes for one input."""

    def __init__(
        self,
        packing_input: PackingInput,
        events: Events,
        buckets: int,
        names: tuple[str, ...],
        keys: tuple[str, ...],
    ) -> None:
        table, key, primary_key = packing_input.table, packing_input.key, packing_input.table.primary_key
        self._number = packing_input.number
        self._moves = packing_input.moves
        self._events = events
        self._buckets = buckets
        self._key, self._old_key = _values(names, key), _values(keys, key)
        self._primary_key, self._old_primary_key = _values(names, primary_key), _values(keys, primary_key)
        self._row = None if packing_input.columns == names else _values(names, packing_input.columns)
        self._same_keys = key == primary_key
        is_never_null = not any(c.nullable for c in table.columns if c.name in key)
        self._keeps_all = packing_input.keeps_null_keys or is_never_null
        self._encode = msgspec.msgpack.Encoder().encode

    def add(self, changes: Iterable[Change]) -> None:
        """Adds the events of these changes."""
        number, moves, same_keys, keeps_all = self._number, self._moves, self._same_keys, self._keeps_all
        encode, row_of, events, buckets = self._encode, self._row, self._events, self._buckets
        key_of, primary_key_of, old_key_of = self._key, self._primary_key, self._old_key
        for lsn, lead, old, row in changes:
            if row is None:
                self._delete(lsn, lead, old or ())
                continue
            values = key_of(row)
            key = encode(values)
            primary_key = key if same_keys else encode(primary_key_of(row))
            if moves and old is not None and (old_values := old_key_of(old)) != values:
                self._leave(lsn, lead, old_values, primary_key)
            if keeps_all or None not in values:
                packed = encode(row if row_of is None else row_of(row))
                event = (lsn, number, key, primary_key, packed, lead)
                bucket = crc32(key) % buckets
                try:
                    events[bucket].append(event)
                except KeyError:
                    events[bucket] = [event]

    def _delete(self, lsn: int, lead: int, old: WireRow) -> None:
        self._leave(lsn, lead, self._old_key(old), self._encode(self._old_primary_key(old)))

    def _leave(self, lsn: int, lead: int, key_values: WireRow, primary_key: bytes) -> None:
        """A row is no longer under a key."""
        if self._keeps_all or None not in key_values:
            key = self._encode(key_values)
            event = (lsn, self._number, key, primary_key, None, lead)
            self._events.setdefault(crc32(key) % self._buckets, []).append(event)


def _placeholders(columns: Iterable[Column]) -> tuple[Any, ...]:
    """What stands where an update leaves a value out (TOAST)."""
    kinds = {column.type.kind for column in columns if column.type.is_toastable}
    found: list[Any] = [UNAVAILABLE] if kinds else []
    if TypeKind.BYTEA in kinds:
        found.append(_UNAVAILABLE_BASE64)
    if TypeKind.ARRAY in kinds:
        found += [[UNAVAILABLE], list(UNAVAILABLE_NUMBERS)]
    return tuple(found)


def _values(names: tuple[str, ...], wanted: tuple[str, ...]) -> Projection:
    """Takes these columns out of a row; always a tuple, and without a Python frame."""
    positions = [names.index(name) for name in wanted]
    first = positions[0] if positions else 0
    if positions == list(range(first, first + len(positions))):
        return itemgetter(slice(first, first + len(positions)))
    return itemgetter(*positions)


def _united(columns: Iterable[tuple[Column, ...]]) -> tuple[Column, ...]:
    by_name = {column.name: column for each in columns for column in each}
    return tuple(by_name.values())


def _envelope(
    schema: str, table: str, columns: Sequence[Column], identity: Sequence[Column]
) -> type[msgspec.Struct]:
    """What a regular record of a table looks like: of an insert, update or delete in a transaction."""
    source = msgspec.defstruct(
        "Source",
        [("schema", Literal[schema]), ("table", Literal[table]), ("txId", int), ("lsn", int)],
        gc=False,
    )
    return msgspec.defstruct(
        "Envelope",
        [
            ("op", Literal["c", "u", "d"]),
            ("source", source),
            ("transaction", _Transaction),
            ("before", row_struct(identity) | None, None),
            ("after", row_struct(columns) | None, None),
        ],
        gc=False,
    )
