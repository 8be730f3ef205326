"""Which keys of a stage a batch really touches: those of which some row differs after it, or in between."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import msgspec

from slackwater_engine.errors import FULL_HINT, EngineInputError
from slackwater_engine.evaluate.row_changes import TRUNCATED, RowEvent, RowRules, Transitions
from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.pack.specification import PackingInput, stage_inputs
from slackwater_engine.payloads import EMPTY_KEY, TOUCH_INPUT, Event
from slackwater_engine.state.entry import MAX_PART_BYTES, group_width, input_tag, is_digest, part
from slackwater_sql.plan import RowsPart, StagePlan
from slackwater_sql.row_codec import RowCodec
from slackwater_sql.stage_evaluation import key_text

_stage_key = itemgetter(2)
"""Empty in a TRUNCATE."""

OWN_LSN: Final = -1
"""Instead of the LSN of a batch: for each key that of its newest event."""


@dataclass(frozen=True, slots=True)
class TouchedKey:
    """A stage key with its rows that change.

    Attributes:
        key: Packed.
        group: With which the key's entries start.
        stored: Rows before the batch by entry's name; at least those that change, perhaps of other keys, too.
        changed: What happens to them; empty for a key that is only told that it exists.
        lsn: Of its newest event.
        touch_lsn: If it is told so: from which commit on.
    """

    key: bytes
    group: bytes
    stored: dict[bytes, bytes]
    changed: dict[bytes, Transitions]
    lsn: int
    touch_lsn: int | None


class TouchedKeys:
    """Finds the touched keys of a stage; for one thread."""

    def __init__(self, stage: StagePlan, rows: RowsPart) -> None:
        """Of this stage; `rows` is its rows part."""
        self._inputs: Final = stage_inputs(stage)
        self.codecs: Final = tuple(RowCodec(each.table, each.columns) for each in self._inputs)
        """Of the inputs."""
        self._tags = [input_tag(number) for number in range(len(self._inputs))]
        self._key_names = tuple(column.name for column in stage.key)
        self._key = b""
        """The key whose events are read."""
        self._rules = RowRules(
            merge=self._merged,
            check_delete=lambda lsn, number: self.check_delete(self._key, number, lsn),
            of_stages=frozenset(n for n, origin in enumerate(rows.origins) if origin),
        )

    def of(
        self, events: Sequence[Event], contents: IndexTransaction, lsn: int | None = None
    ) -> Iterator[TouchedKey]:
        """The keys that the events touch, ascending.

        Args:
            events: By commit LSN.
            contents: Of the bucket.
            lsn: Only the state after all events is wanted, and this is its LSN, or `OWN_LSN`.

        Raises:
            EngineInputError: an event needs a row that the contents do not have.
        """
        by_key, touch_lsn = self._by_key(events, _StoredKeys(contents, self._inputs, self.codecs))
        stored = contents.get_many(name for of_key in by_key.values() for _, _, name, _ in of_key)
        is_truncated = not all(map(_stage_key, events))
        for key in sorted(by_key):
            group, of_key = part(key), by_key[key]
            if is_truncated:
                of_key = self._expanded(contents, group, of_key, stored)
            self._key = key
            touched_from = touch_lsn if key == EMPTY_KEY else None
            newest = of_key[-1][0] if of_key else touched_from or 0
            changed = self._rules.changes(stored, of_key, newest if lsn == OWN_LSN else lsn)
            if changed or touched_from is not None:
                yield TouchedKey(key, group, stored, changed, newest, touched_from)

    def check_delete(self, key: bytes, number: int, lsn: int) -> None:
        """Takes note of a delete of a row that is not there.

        Raises:
            EngineInputError: it must be, since rows of this table move between keys.
        """
        if self._inputs[number].moves:
            raise self._unknown_row(number, key, lsn, "a row is deleted from, or leaves, this key")

    def _by_key(
        self, events: Sequence[Event], stored: "_StoredKeys"
    ) -> tuple[dict[bytes, list[RowEvent]], int | None]:
        tags = self._tags
        by_key: dict[bytes, list[RowEvent]] = {}
        groups: dict[bytes, bytes] = {}
        touch_lsn = None
        for lsn, number, key, primary_key, row, _ in events:
            if number == TOUCH_INPUT:
                touch_lsn = lsn if touch_lsn is None else touch_lsn
                by_key.setdefault(EMPTY_KEY, [])
                groups[EMPTY_KEY] = EMPTY_KEY
                continue
            if not key:
                for truncated in {*stored.of(number), *by_key}:
                    groups[truncated] = part(truncated)
                    by_key.setdefault(truncated, []).append((lsn, number, part(truncated) + tags[number], ()))
                continue
            of_key = by_key.get(key)
            if of_key is None:
                of_key = by_key[key] = []
                groups[key] = part(key)
            row_part = primary_key if len(primary_key) <= MAX_PART_BYTES else part(primary_key)
            of_key.append((lsn, number, groups[key] + tags[number] + row_part, row))
        return by_key, touch_lsn

    def _expanded(
        self, contents: IndexTransaction, group: bytes, events: list[RowEvent], stored: dict[bytes, bytes]
    ) -> list[RowEvent]:
        """TRUNCATE as an event of each row that may be there."""
        width = len(group) + 1
        expanded: list[RowEvent] = []
        for event in events:
            lsn, number, name, _ = event
            if len(name) > width:
                expanded.append(event)
                continue
            there = dict(contents.group(name))
            stored.update(there)
            names = {*there, *(e[2] for e in expanded if e[1] == number)}
            expanded += [(lsn, number, each, TRUNCATED) for each in sorted(names)]
        return expanded

    def _merged(self, lsn: int, number: int, row: tuple[bytes], last: bytes | None) -> bytes:
        if last is None:
            problem = "an update leaves out an unchanged value (TOAST)"
            raise self._unknown_row(number, self._key, lsn, problem)
        codec = self.codecs[number]
        return codec.encode(codec.merge(codec.unpack(row[0]), codec.unpack(last)))

    def _unknown_row(self, number: int, key: bytes, lsn: int, problem: str) -> EngineInputError:
        table = self._inputs[number].table.full_name
        return EngineInputError(
            f"{table}, key {key_text(self._key_names, key)}, commit LSN {lsn}: {problem}, but the state has "
            f"no such row. Either old rows are not complete ({FULL_HINT.format(table=table)}), or the topic "
            "does not start with a snapshot of the table; take one and start with a new checkpoint"
        )


class _StoredKeys:
    """For TRUNCATE: the stage keys under which a bucket has rows. Reads the bucket once, when first asked."""

    def __init__(
        self, contents: IndexTransaction, inputs: Sequence[PackingInput], codecs: Sequence[RowCodec]
    ) -> None:
        self._contents = contents
        self._codecs = codecs
        self._positions = [i.positions(i.key) for i in inputs]
        self._keys: list[set[bytes]] | None = None

    def of(self, number: int) -> Collection[bytes]:
        """The keys of an input's rows."""
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
        """Of a long key the entry's name has only a digest; the row has its columns."""
        values = self._codecs[number].unpack(row)
        return msgspec.msgpack.encode(tuple(values[position] for position in self._positions[number]))
