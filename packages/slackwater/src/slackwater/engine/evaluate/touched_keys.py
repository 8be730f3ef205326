"""Finds the keys that a batch changes in a stage: those with a row that differs after or within the batch."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import msgspec

from slackwater.engine.index import Contents
from slackwater.engine.payloads import EMPTY_KEY, TOUCH_INPUT, Event, PackedRow
from slackwater.engine.state.entry import MAX_PART_BYTES, group_width, input_tag, is_digest, part
from slackwater.engine.table_packer import FULL_HINT
from slackwater.protocol import InputError
from slackwater.sql.plan import InputPlan, RowsPart, StagePlan
from slackwater.sql.row_codec import RowCodec
from slackwater.sql.stage_evaluation import key_text

OWN_LSN: Final = -1
"""Is passed instead of the LSN of a batch if each key has the LSN of its newest event."""

_TRUNCATED: Final[tuple[()]] = ()
"""The new contents of all rows of a key, which are removed if they exist."""

_RowEvent = tuple[int, int, bytes, PackedRow, bool]
"""``(commit LSN, input, name of the entry, new contents, whether it is another row than before)``."""

Transitions = list[tuple[int, bytes | None]]
"""A row's new contents by commit LSN, ascending, each different from the previous one; None if the row does
not exist."""

_stage_key = itemgetter(2)
"""The stage key of an event; empty for a TRUNCATE."""


class OldRowsNeededError(Exception):
    """The batch has to be processed in one task, and packed with old rows.

    A deferrable primary key allows several rows of one key within a transaction. Only the old row then shows
    which of them an event is about.
    """


@dataclass(frozen=True, slots=True)
class TouchedKey:
    """A stage key with its rows that change.

    Attributes:
        group: The beginning of the names of the key's entries.
        stored: Rows before the batch, by the name of the entry. It contains at least the rows that change,
            and may contain rows of other keys.
        changed: The transitions of each row that changes; empty for a key that is only created.
        touch_lsn: The commit from which on the key exists, with or without rows; None if no event announces
            it.
    """

    key: bytes
    group: bytes
    stored: dict[bytes, bytes]
    changed: dict[bytes, Transitions]
    touch_lsn: int | None


class TouchedKeys:
    """Finds the touched keys of a stage. Use it from one thread.

    Attributes:
        may_overlap: For each input, whether rows of one key may overlap within a transaction. PostgreSQL logs
            changes of a table with a deferrable primary key only with whole old rows.
    """

    def __init__(self, stage: StagePlan, rows: RowsPart) -> None:
        self._inputs: Final = rows.inputs
        self.codecs: Final = tuple(RowCodec(each.table, each.column_names) for each in self._inputs)
        self.tags: Final = [input_tag(number) for number in range(len(self._inputs))]
        """The tags of the inputs."""
        self._key_names = tuple(column.name for column in stage.key)
        self.may_overlap: Final = tuple(
            each.table.replica_identity_full and not rows.origins[number]
            for number, each in enumerate(self._inputs)
        )
        self.of_stages: Final = frozenset(n for n, origin in enumerate(rows.origins) if origin)
        """Inputs whose rows come from earlier stages. If a row moves there between keys in a commit, one
        bucket deletes it and another one writes it, in any order; the row then exists."""

    def find(
        self, events: Sequence[Event], contents: Contents, lsn: int | None = None
    ) -> Iterator[TouchedKey]:
        """Yields the keys that the events touch, ascending.

        The events are sorted by commit LSN. With an `lsn`, or `OWN_LSN`, only the state after all events is
        wanted, and has this LSN.

        Raises:
            InputError: An event needs a row that the contents do not have.
            OldRowsNeededError: An event is about one of several rows of a key.
        """
        by_key, touch_lsn = self._by_key(events, _StoredKeys(contents, self._inputs, self.codecs))
        stored = contents.get_many(event[2] for of_key in by_key.values() for event in of_key)
        is_truncated = not all(map(_stage_key, events))
        for key in sorted(by_key):
            group, of_key = part(key), by_key[key]
            if is_truncated:
                of_key = self._expanded(contents, group, of_key, stored)
            touched_from = touch_lsn if key == EMPTY_KEY else None
            newest = of_key[-1][0] if of_key else touched_from or 0
            changed = self._transitions(key, of_key, stored, newest if lsn == OWN_LSN else lsn)
            if changed or touched_from is not None:
                yield TouchedKey(key, group, stored, changed, touched_from)

    def check_delete(self, key: bytes, number: int, lsn: int) -> None:
        """Accepts the delete of a row that does not exist, unless rows of its table move between keys.

        Raises:
            InputError: They do, so the row must exist.
        """
        if self._inputs[number].needs_replica_identity_full:
            raise self._unknown_row(key, number, lsn, "a row is deleted from, or leaves, this key")

    def _by_key(
        self, events: Sequence[Event], stored: "_StoredKeys"
    ) -> tuple[dict[bytes, list[_RowEvent]], int | None]:
        tags = self.tags
        by_key: dict[bytes, list[_RowEvent]] = {}
        groups: dict[bytes, bytes] = {}
        touch_lsn = None
        for lsn, number, key, primary_key, row, lead in events:
            if number == TOUCH_INPUT:
                touch_lsn = lsn if touch_lsn is None else touch_lsn
                by_key.setdefault(EMPTY_KEY, [])
                groups[EMPTY_KEY] = EMPTY_KEY
                continue
            if not key:
                for truncated in {*stored.keys(number), *by_key}:
                    groups[truncated] = part(truncated)
                    by_key.setdefault(truncated, []).append(
                        (lsn, number, part(truncated) + tags[number], _TRUNCATED, False)
                    )
                continue
            of_key = by_key.get(key)
            if of_key is None:
                of_key = by_key[key] = []
                groups[key] = part(key)
            row_part = primary_key if len(primary_key) <= MAX_PART_BYTES else part(primary_key)
            of_key.append((lsn, number, groups[key] + tags[number] + row_part, row, not lead & 1))
        return by_key, touch_lsn

    def _expanded(
        self, contents: Contents, group: bytes, events: list[_RowEvent], stored: dict[bytes, bytes]
    ) -> list[_RowEvent]:
        """Replaces each TRUNCATE by one event for each row that may exist."""
        width = len(group) + 1
        expanded: list[_RowEvent] = []
        for event in events:
            lsn, number, name, *_ = event
            if len(name) > width:
                expanded.append(event)
                continue
            there = dict(contents.group(name))
            stored.update(there)
            names = {*there, *(e[2] for e in expanded if e[1] == number)}
            expanded += [(lsn, number, each, _TRUNCATED, False) for each in sorted(names)]
        return expanded

    def _transitions(
        self, key: bytes, events: Iterable[_RowEvent], stored: dict[bytes, bytes], lsn: int | None
    ) -> dict[bytes, Transitions]:
        """Returns the rows of a key that differ, after some commit, from their contents before it."""
        rows: dict[bytes, Transitions] = {}
        others = _OtherRows()
        for event in events:
            commit_lsn, number, name, packed, _ = event
            at = commit_lsn if lsn is None else lsn
            known = rows.get(name)
            last = known[-1][1] if known else stored.get(name)
            is_known_at = known is not None and known[-1][0] == at
            if packed is None and last is not None and is_known_at and number in self.of_stages:
                continue
            row = self._row_after(key, event, last)
            if self.may_overlap[number]:
                row = others.newest_after(event, last, row)
            if known is None:
                rows[name] = [(at, row)]
            elif is_known_at:
                known[-1] = (at, row)
            else:
                known.append((at, row))
        return {
            name: kept for name, known in rows.items() if (kept := _without_repeats(stored.get(name), known))
        }

    def _row_after(self, key: bytes, event: _RowEvent, last: bytes | None) -> bytes | None:
        """Returns what an event makes of the row that it is about."""
        lsn, number, _, packed, _ = event
        if isinstance(packed, bytes):
            return packed
        if packed == _TRUNCATED:
            return None
        if packed is not None and len(packed) == 1:
            return self._completed(key, number, lsn, packed[0] or b"", last)
        if packed is not None and packed[1] is None:
            raise OldRowsNeededError
        row = None if packed is None else packed[0]
        if row is None and last is None:
            self.check_delete(key, number, lsn)
        return row

    def _completed(self, key: bytes, number: int, lsn: int, row: bytes, last: bytes | None) -> bytes:
        """Returns a row that lacks values, completed with the values of its last version."""
        if last is None:
            problem = "an update omits an unchanged value (TOAST)"
            raise self._unknown_row(key, number, lsn, problem)
        codec = self.codecs[number]
        return codec.encode(codec.merge(codec.unpack(row), codec.unpack(last)))

    def _unknown_row(self, key: bytes, number: int, lsn: int, problem: str) -> InputError:
        table = self._inputs[number].table.full_name
        return InputError(
            f"{table}, key {key_text(self._key_names, key)}, commit LSN {lsn}: {problem}, but the state has "
            f"no such row. Either old rows are incomplete ({FULL_HINT.format(table=table)}), or the topic "
            "does not start with a snapshot of the table; take one and start with a new checkpoint"
        )


class _OtherRows:
    """The other rows of a key within a transaction; a deferrable primary key allows them until commit."""

    def __init__(self) -> None:
        self._commit_lsn = -1
        self._rows: dict[bytes, list[bytes]] = {}

    def newest_after(self, event: _RowEvent, last: bytes | None, row: bytes | None) -> bytes | None:
        """Returns the newest row of a name after an event; events come in the order of the log.

        `last` is the newest row before it, and `row` what it makes of the row that it is about.

        Raises:
            OldRowsNeededError: The event is about one of several rows, and does not say which.
            InputError: It is about a row that does not exist.
        """
        commit_lsn, _, name, packed, is_other = event
        if commit_lsn != self._commit_lsn:
            self._commit_lsn, self._rows = commit_lsn, {}
        others = self._rows.get(name)
        if is_other and last is not None:
            self._rows.setdefault(name, []).append(last)
        elif others and packed == _TRUNCATED:
            others.clear()
        elif others:
            return _newest_of(others, packed, last, row)
        return row


def _newest_of(others: list[bytes], packed: PackedRow, last: bytes | None, row: bytes | None) -> bytes | None:
    """Replaces one of several rows of a key, and returns the newest one."""
    if not isinstance(packed, tuple) or len(packed) == 1:
        raise OldRowsNeededError
    old = packed[1]
    if old == last:
        return others.pop() if row is None else row
    if old is None or old not in others:
        raise InputError(
            "a transaction changes one of several rows of a deferrable primary key, but none of them is the "
            "old row of the change; take a new snapshot and start with a new checkpoint"
        )
    others.remove(old)
    others += [] if row is None else [row]
    return last


class _StoredKeys:
    """The stage keys under which a bucket has rows, for TRUNCATE. Reads the bucket once, if requested."""

    def __init__(self, contents: Contents, inputs: Sequence[InputPlan], codecs: Sequence[RowCodec]) -> None:
        self._contents = contents
        self._codecs = codecs
        self._positions = [each.key_positions for each in inputs]
        self._keys: list[set[bytes]] | None = None

    def keys(self, number: int) -> Collection[bytes]:
        """Returns the keys of an input's rows."""
        if self._keys is None:
            self._keys = self._read()
        return self._keys[number]

    def _read(self) -> list[set[bytes]]:
        found: list[set[bytes]] = [set() for _ in self._positions]
        for name, value in self._contents.entries():
            width = group_width(name)
            number = name[width] - 1
            if 0 <= number < len(found):
                group = name[:width]
                found[number].add(self._key(number, value) if is_digest(group) else group)
        return found

    def _key(self, number: int, row: bytes) -> bytes:
        """Packs the key of a row.

        For a long key, the entry's name contains only the digest, so the key is taken from the columns of the
        row.
        """
        values = self._codecs[number].unpack(row)
        return msgspec.msgpack.encode(tuple(values[position] for position in self._positions[number]))


def _without_repeats(stored: bytes | None, transitions: Transitions) -> Transitions:
    """Keeps the transitions that change the row; `stored` is the row before them."""
    if len(transitions) == 1:
        return transitions if transitions[0][1] != stored else []
    kept: Transitions = []
    last = stored
    for lsn, row in transitions:
        if row != last:
            kept.append((lsn, row))
            last = row
    return kept
