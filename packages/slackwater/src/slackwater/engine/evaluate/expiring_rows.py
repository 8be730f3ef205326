"""Removes rows of a stage when their time has come, at a clock that the transactions of the source move.

Rows of an input with a `moment` exist until then: the clock of a commit is the newest commit time of it and
all commits before it, in whole seconds. A row is removed with the first commit whose clock has reached its
moment, whatever batch that commit is in, so replays remove it at the same commit. What happens is an event
like the delete of the row, and the stage evaluates both in the same way.

A bucket keeps an entry for each moment at which rows may end, sorted by time, so a batch reads only those
that have come. An entry of a row that was changed or deleted stays until its time, and then changes nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgspec

from slackwater.engine.index import Contents
from slackwater.engine.payloads import CLOCK_INPUT, EMPTY_KEY, Event, Outcome
from slackwater.engine.state.entry import MOMENT_TAG, digest, input_tag, part
from slackwater.sql.plan import RowsPart

_MICROSECONDS: Final = 1_000_000
_BIAS: Final = 1 << 63
_CLOCK: Final = EMPTY_KEY + MOMENT_TAG
"""The name of the entry with the clock after the last batch; those of moments are longer."""
_NO_CLOCK: Final = -_BIAS
_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(list[Any]).decode
_decode_clock = msgspec.msgpack.Decoder(int).decode
_commit_lsn = itemgetter(0)

Row = tuple[int, bytes, bytes]
"""An input, and the packed stage key and primary key of one of its rows."""

_decode_moment = msgspec.msgpack.Decoder(Row).decode


class ExpiringRows:
    """Turns events of inputs with moments into events of rows that exist. Stateless after construction."""

    def __init__(self, rows: RowsPart, *, every_commit: bool) -> None:
        """Prepares a stage; with `every_commit`, rows are removed at each commit, otherwise after a batch."""
        self._moments = {n: each.moment_position for n, each in enumerate(rows.inputs) if each.moment}
        self._every_commit = every_commit

    def __call__(self, events: Sequence[Event], contents: Contents, outcome: Outcome) -> list[Event]:
        """Returns the events without clocks, with what the clock does to rows.

        The events are sorted by commit LSN; so are the returned ones. Changes of entries of moments are added
        to the outcome.
        """
        others = [event for event in events if event[1] not in self._moments and event[1] != CLOCK_INPUT]
        own = [event for event in events if event[1] in self._moments or event[1] == CLOCK_INPUT]
        if not own:
            return others
        batch = _Batch(self._moments, contents)
        steps = groupby(own, _commit_lsn) if self._every_commit else [(own[-1][0], own)]
        for lsn, step in steps:
            others += batch.advance(lsn, step)
        batch.conclude(outcome)
        others.sort(key=_commit_lsn)
        return others


class _Batch:
    def __init__(self, moments: dict[int, int], contents: Contents) -> None:
        self._moments = moments
        self._contents = contents
        self._stored_clock = contents.get(_CLOCK)
        self._clock = _NO_CLOCK if self._stored_clock is None else _decode_clock(self._stored_clock)
        self._rows: dict[Row, int | None] = {}
        """The moments of rows that the batch has changed; None for rows that do not exist."""
        self._added: dict[bytes, bytes] = {}
        self._due: list[bytes] = []
        """The names of added entries, as a heap."""
        self._ended: dict[bytes, bytes] = {}
        self._stored = contents.scan(_CLOCK)
        self._next: tuple[bytes, bytes] | None = None
        self._advance_stored()

    def advance(self, lsn: int, events: Iterable[Event]) -> Iterator[Event]:
        """Yields what the events of a commit, or of a batch, do to rows."""
        rows: dict[Row, Event] = {}
        for event in events:
            _, number, key, primary_key, row, _ = event
            if number == CLOCK_INPUT:
                self._clock = max(self._clock, int.from_bytes(primary_key, "big") * _MICROSECONDS)
                continue
            known = rows.get((number, key, primary_key))
            if row is None and known is not None and known[4] is not None and known[0] == event[0]:
                continue  # the row moves between buckets in a commit, in any order; it then exists
            rows[number, key, primary_key] = event
        for row_, event in rows.items():
            yield self._changed(row_, event)
        for row_ in self._reached():
            if (moment := self._moment_of(row_)) is not None and moment <= self._clock:
                self._rows[row_] = None
                number, key, primary_key = row_
                yield (lsn, number, key, primary_key, None, 0)

    def conclude(self, outcome: Outcome) -> None:
        """Adds the changes of entries to the outcome."""
        stored = self._contents.get_many(self._added)
        for name, value in self._added.items():
            outcome.change(name, stored.get(name), value)
        for name, value in self._ended.items():
            outcome.change(name, value, None)
        if self._clock != _NO_CLOCK:
            outcome.change(_CLOCK, self._stored_clock, _encode(self._clock))

    def _changed(self, row: Row, event: Event) -> Event:
        packed = event[4]
        moment = None
        if isinstance(packed, bytes):
            moment = _decode_row(packed)[self._moments[row[0]]]
        if moment is None or moment <= self._clock:
            self._rows[row] = None
            return (*event[:4], None, event[5])
        self._rows[row] = moment
        name = _CLOCK + (moment + _BIAS).to_bytes(8, "big") + digest(_encode(row))
        if name not in self._added:
            self._added[name] = _encode(row)
            heappush(self._due, name)
        return event

    def _moment_of(self, row: Row) -> int | None:
        if row in self._rows:
            return self._rows[row]
        number, key, primary_key = row
        stored = self._contents.get(part(key) + input_tag(number) + part(primary_key))
        return None if stored is None else int(_decode_row(stored)[self._moments[number]])

    def _reached(self) -> Iterator[Row]:
        """Yields the rows of all entries whose time has come, and removes the entries."""
        while self._next is not None and _moment(self._next[0]) <= self._clock:
            name, value = self._next
            self._ended[name] = value
            self._advance_stored()
            yield _decode_moment(value)
        while self._due and _moment(self._due[0]) <= self._clock:
            yield _decode_moment(self._added.pop(heappop(self._due)))

    def _advance_stored(self) -> None:
        self._next = next((each for each in self._stored if len(each[0]) > len(_CLOCK)), None)


def _moment(name: bytes) -> int:
    return int.from_bytes(name[len(_CLOCK) : len(_CLOCK) + 8], "big") - _BIAS
