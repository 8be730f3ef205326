"""Completes rows that an update has brought under another primary key without the values that it left alone.

PostgreSQL does not log a value that is stored out of line (TOAST) unless it changes. If an update changes the
primary key, the connector writes a delete of the old key and an insert of the new one, both with the LSN of
the update, and the insert omits such values. They are those of the row that the delete removes, which is
in another bucket, or comes from earlier events of the batch. The module is pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slackwater.engine.payloads import Event, PackedRow
from slackwater.engine.state.entry import input_tag, part
from slackwater.engine.table_packer import FULL_HINT
from slackwater.protocol import InputError
from slackwater.sql.plan import StagePlan
from slackwater.sql.row_codec import RowCodec
from slackwater.sql.stage_evaluation import key_text

Decoded = Mapping[int, Sequence[tuple[int, list[Event]]]]
"""The events of a batch by bucket, with the sequences of their payloads."""

FindStored = Callable[[int, Iterable[bytes]], Mapping[bytes, bytes]]
"""Returns those of a bucket's entries before the batch that have these names."""

_Row = tuple[int, bytes, bytes]
"""Input, stage key and primary key of a row."""

_Update = tuple[int, int, int]
"""Commit LSN, input, and distance of the change from its commit."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an event is."""

    bucket: int
    events: list[Event]
    number: int

    @property
    def event(self) -> Event:
        return self.events[self.number]


class MovedRows:
    """Completes the moved rows of batches of a stage."""

    def __init__(self, stage: StagePlan) -> None:
        self._inputs = () if stage.rows is None else stage.rows.inputs
        self._codecs = tuple(RowCodec(each.table, each.column_names) for each in self._inputs)
        self._key_names = tuple(column.name for column in stage.key)

    def complete(self, decoded: Decoded, find_stored: FindStored) -> None:
        """Replaces the moved rows among the events of all buckets by complete ones, in place.

        Raises:
            InputError: The row under the old key is not known.
        """
        moves = {_update(each.event) for each in _places(decoded) if _is_moved(each.event[4])}
        if not moves:
            return
        rows = {
            _row(event): each.bucket
            for each in _places(decoded)
            if _is_moved((event := each.event)[4])
            or (event[4] is None and event[2] and _update(event) in moves)
        }
        found = [each for each in _places(decoded) if not each.event[2] or _row(each.event) in rows]
        found.sort(key=_log_order)
        self._replay(found, self._stored(rows, find_stored))

    def _replay(self, places: Iterable[_Place], rows: dict[_Row, bytes | None]) -> None:
        removed: dict[_Update, bytes | None] = {}
        for place in places:
            event = place.event
            lsn, number, key, primary_key, packed, lead = event
            if not key:
                rows.update((row, None) for row in list(rows) if row[0] == number)
                continue
            row = _row(event)
            if packed is None:
                removed[_update(event)], rows[row] = rows[row], None
            elif isinstance(packed, bytes):
                rows[row] = packed
            elif not _is_moved(packed):
                old = rows[row]
                rows[row] = packed[0] if old is None else self._merged(number, packed[0], old)
            else:
                old = self._removed(event, removed)
                rows[row] = complete = self._merged(number, packed[0], old)
                place.events[place.number] = (lsn, number, key, primary_key, complete, lead)

    def _stored(self, rows: Mapping[_Row, int], find_stored: FindStored) -> dict[_Row, bytes | None]:
        by_bucket: dict[int, dict[bytes, _Row]] = {}
        for row, bucket in rows.items():
            number, key, primary_key = row
            by_bucket.setdefault(bucket, {})[part(key) + input_tag(number) + part(primary_key)] = row
        found: dict[_Row, bytes | None] = {}
        for bucket, names in by_bucket.items():
            stored = find_stored(bucket, names)
            found |= {row: stored.get(name) for name, row in names.items()}
        return found

    def _merged(self, number: int, row: bytes | None, old: bytes) -> bytes:
        codec = self._codecs[number]
        return codec.encode(codec.merge(codec.unpack(row or b""), codec.unpack(old)))

    def _removed(self, event: Event, removed: Mapping[_Update, bytes | None]) -> bytes:
        """Returns the row that an update has brought under another key, as it was before.

        Raises:
            InputError: It is not known.
        """
        row = removed.get(_update(event))
        if row is not None:
            return row
        lsn, number, key, _, packed, _ = event
        table, codec = self._inputs[number].table.full_name, self._codecs[number]
        omitted = codec.unavailable(codec.unpack((packed or (b"",))[0] or b""))  # type: ignore[arg-type]
        problem = (
            "the state has no such row"
            if _update(event) in removed
            else "the batch has no delete of the old key"
        )
        raise InputError(
            f"{table}, key {key_text(self._key_names, key)}, commit LSN {lsn}: an update changes the primary "
            f"key and omits the unchanged value of {', '.join(omitted)} (TOAST), but {problem}. Run "
            f"{FULL_HINT.format(table=table)}, take a new snapshot and start with a new checkpoint"
        )


def _places(decoded: Decoded) -> Iterator[_Place]:
    for bucket, payloads in decoded.items():
        for _, events in payloads:
            for number in range(len(events)):
                yield _Place(bucket, events, number)


def _is_moved(row: PackedRow) -> bool:
    """Returns whether a row lacks values that it had under another primary key."""
    return isinstance(row, tuple) and len(row) > 1 and row[1] is None


def _row(event: Event) -> _Row:
    return event[1], event[2], event[3]


def _update(event: Event) -> _Update:
    return event[0], event[1], event[5] >> 1


def _log_order(place: _Place) -> tuple[int, int, bool]:
    """Sorts events in the order of the log, and the delete of an update before its insert."""
    event = place.event
    return event[0], -(event[5] >> 1), event[4] is not None
