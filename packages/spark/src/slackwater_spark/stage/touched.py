"""Which keys of a stage a batch really touches: those of which some row differs after it, or in between."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from slackwater_spark.stage.entry import MAX_PART_BYTES, input_tag, part
from slackwater_spark.stage.errors import UnknownRowError
from slackwater_spark.stage.index import IndexTransaction
from slackwater_spark.stage.packing import PackingInput, stage_inputs
from slackwater_spark.stage.row_changes import TRUNCATED, RowEvent, RowRules, Transitions
from slackwater_spark.stage.truncate import StoredKeys
from slackwater_spark.stage.wire import EMPTY_KEY, TOUCH_INPUT, Event
from slackwater_sql.row_codec import RowCodec
from slackwater_sql.stage_evaluation import key_text
from slackwater_sql.stages import RowsPart, StagePlan

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
            UnknownRowError: an event needs a row that the contents do not have.
        """
        by_key, touch_lsn = self._by_key(events, StoredKeys(contents, self._inputs, self.codecs))
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
            UnknownRowError: it must be, since rows of this table move between keys.
        """
        if self._inputs[number].moves:
            raise self._unknown_row(number, key, lsn, "a row is deleted from, or leaves, this key")

    def _by_key(
        self, events: Sequence[Event], stored: StoredKeys
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

    def _unknown_row(self, number: int, key: bytes, lsn: int, problem: str) -> UnknownRowError:
        packing_input: PackingInput = self._inputs[number]
        return UnknownRowError(packing_input.table.full_name, key_text(self._key_names, key), lsn, problem)
