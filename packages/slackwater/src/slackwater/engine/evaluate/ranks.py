"""Counts of ranges of an ordered multiset, with which its n-th value is found in logarithmic time.

The distinct sort keys, each cut off at the length that fits into a name, are the *places* of a multiset. A
hash gives each place a height, so that of the places with at least some height one in 16 is higher. A place
of height h begins a range at each level from 1 to h: the range ends before the next place of this level, and
its entry contains the number of values in it. Which ranges exist therefore depends on the values alone, not
on the order in which they came. Values before the first place of a level belong to none of its ranges.

A change reads and writes a few entries per level, and there are about as many levels as the number of places
has hexadecimal digits.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final

import msgspec

from slackwater.engine.evaluate.multiset import (
    NUMBER_BYTES,
    SORT_KEY_BYTES,
    OrderedMultiset,
    Value,
    decode_value,
)
from slackwater.engine.index import Contents
from slackwater.engine.payloads import Outcome
from slackwater.engine.state.entry import MULTISET_TAG, RANKS_TAG, digest

Node = tuple[bytes, int]
"""A place, and how many values its range has; at level 0, how many values it has itself."""

_HASHED_DIGITS: Final = 16
_place: Final = itemgetter(0)
_encode = msgspec.msgpack.Encoder().encode
_decode_count = msgspec.msgpack.Decoder(int).decode


def height(place: bytes) -> int:
    """Returns the highest level at which a range begins at this place; 0 if there is none."""
    number = int.from_bytes(digest(place)[: _HASHED_DIGITS // 2], "big")
    return _HASHED_DIGITS - (number.bit_length() + 3) // 4


def ranks_prefix(prefix: bytes) -> bytes:
    """Returns the beginning of the names of the ranges of a multiset, given that of its values."""
    before_tag = len(prefix) - NUMBER_BYTES - len(MULTISET_TAG)
    return prefix[:before_tag] + RANKS_TAG + prefix[-NUMBER_BYTES:]


class Ranks:
    """The ranges of a multiset as they are in the index, which it reads only."""

    def __init__(self, contents: Contents, prefix: bytes) -> None:
        self._contents = contents
        self._values = prefix
        self._ranges = ranks_prefix(prefix)

    def before(self, place: bytes) -> int:
        """Returns the number of values at earlier places."""
        total, level, start, is_rising = 0, 0, place, True
        while level >= 0:
            found = False
            for node, count in self.nodes(level, start, descending=True):
                if node != start:
                    total, start = total + count, node
                    if found := is_rising and height(node) > level:
                        break
            is_rising = found
            level += 1 if is_rising else -1
        return total

    def at(self, index: int) -> Value:
        """Returns the value with `index` values before it, counting repeated values as often as they occur.

        Raises:
            IndexError: There are fewer values.
        """
        place, left = self._found(index)
        if len(place) < SORT_KEY_BYTES:
            return decode_value(self._contents.get(self._values + place) or b"")
        for value in self.together(place):
            if left < value.count:
                return value
            left -= value.count
        raise IndexError(index)

    def together(self, place: bytes) -> list[Value]:
        """Returns the values at a place that has the maximum length, in their order."""
        values = [decode_value(data) for _, data in self._contents.group(self._values + place)]
        return sorted(values, key=lambda value: value.sort_key or place)

    def count(self, level: int, place: bytes) -> int:
        """Returns the number of values in the range that begins at a place; 0 if none begins there."""
        if not level:
            node, count = next(self.nodes(0, place), (b"", 0))
            return count if node == place else 0
        data = self._contents.get(self._prefix(level) + place)
        return 0 if data is None else _decode_count(data)

    def conclude(self, gained: Mapping[bytes, int], outcome: Outcome) -> None:
        """Adds the changes of the ranges to the outcome, given how many values each place has gained."""
        level = 0
        gone = {place for place, more in gained.items() if more < 0 and not self.count(0, place) + more}
        while gained:
            level += 1
            gained = _Level(self, level, gained, gone).gained
            for place, more in gained.items():
                count = self.count(level, place)
                old, new = (_encode(each) if each else None for each in (count, count + more))
                outcome.change(self._prefix(level) + place, old, new)

    def _found(self, index: int) -> tuple[bytes, int]:
        """Returns the place of the value, and how many of the place's values precede it."""
        level, start, is_inside = 0, b"", False
        while True:
            for node, count in self.nodes(level, start):
                if not is_inside and height(node) > level:
                    level, start = level + 1, node
                    break
                if index < count:
                    if not level:
                        return node, index
                    level, start, is_inside = level - 1, node, True
                    break
                index -= count
            else:
                raise IndexError(index)

    def nodes(self, level: int, start: bytes, *, descending: bool = False) -> Iterator[Node]:
        """Yields the nodes of a level from a place on."""
        prefix = self._prefix(level)
        entries = self._contents.scan(prefix, start=prefix + start, descending=descending)
        width, end = len(prefix), len(prefix) + SORT_KEY_BYTES
        if level:
            return ((name[width:], _decode_count(data)) for name, data in entries)
        counts = ((name[width:end], decode_value(data).count) for name, data in entries)
        return _added_up(counts)

    def _prefix(self, level: int) -> bytes:
        return self._ranges + bytes((level,)) if level else self._values


class RankedMultiset(OrderedMultiset):
    """A multiset with ranges, whose n-th value is found at any time during a batch."""

    def __init__(self, contents: Contents, prefix: bytes, touched: Mapping[bytes, str]) -> None:
        """Creates the multiset as it was before the batch; see :class:`OrderedMultiset`."""
        super().__init__(contents, prefix, touched)
        self._counts_before = [value.count for value in self._values]
        self._ranges = Ranks(contents, prefix)
        self._touched_before = list(accumulate(self._counts_before, initial=0))
        self._unchanged: dict[int, int] = {}
        self._found: dict[int, str] = {}

    def nth(self, index: int) -> str:
        """Returns the text of the value that has `index` values before it.

        Raises:
            IndexError: There are fewer values.
        """
        touched = list(accumulate((value.count for value in self._values), initial=0))

        def place(rank: int) -> int:
            return self._unchanged_before(rank) + touched[rank]

        rank = bisect_right(range(len(self._values)), index, key=place)
        if rank and index < place(rank - 1) + self._values[rank - 1].count:
            return self._values[rank - 1].text
        before = index - touched[rank] + self._touched_before[rank]
        if before not in self._found:
            self._found[before] = self._ranges.at(before).text
        return self._found[before]

    def conclude(self, outcome: Outcome) -> None:
        """Adds the changes that the batch has made to the entries and the ranges to the outcome."""
        super().conclude(outcome)
        gained: Counter[bytes] = Counter()
        for sort_key, value, before in zip(self._sort_keys, self._values, self._counts_before, strict=True):
            gained[sort_key[:SORT_KEY_BYTES]] += value.count - before
        self._ranges.conclude({place: more for place, more in gained.items() if more}, outcome)

    def _unchanged_before(self, rank: int) -> int:
        """Returns how many values that the batch does not change are before one that it changes."""
        found = self._unchanged.get(rank)
        if found is not None:
            return found
        sort_key = self._sort_keys[rank]
        place = sort_key[:SORT_KEY_BYTES]
        before = self._ranges.before(place) - self._touched_before[rank]
        if len(place) == SORT_KEY_BYTES:
            values = self._ranges.together(place)
            before += sum(value.count for value in values if (value.sort_key or place) < sort_key)
        self._unchanged[rank] = before
        return before


class _Level:
    """What a batch changes at one level.

    Attributes:
        gained: How many values the range of each place has gained; where one begins or no longer begins, all
            of them.
    """

    def __init__(self, ranks: Ranks, level: int, below: Mapping[bytes, int], gone: set[bytes]) -> None:
        self.gained: dict[bytes, int] = {}
        self._ranks = ranks
        self._level = level
        self._below = below
        self._changed = sorted(below)
        self._gone = gone
        end: bytes | None = b""
        for place in self._changed:
            is_boundary = height(place) >= level
            if is_boundary and place in gone:
                self.gained[place] = -ranks.count(level, place)
            if end is None or place < end:
                continue
            own = place if is_boundary and place not in gone else None
            for start in dict.fromkeys((self._start(place), own)):
                if start is not None:
                    count, end = self._range(start)
                    self.gained[start] = count - ranks.count(level, start)
        self.gained = {place: more for place, more in self.gained.items() if more}

    def _start(self, place: bytes) -> bytes | None:
        """Returns where the range began that contains a place; None if it was before all ranges."""
        nodes = self._ranks.nodes(self._level, place, descending=True)
        return next((node for node, _ in nodes if node not in self._gone), None)

    def _range(self, start: bytes) -> tuple[int, bytes | None]:
        """Returns the number of values in a range after the batch, and the beginning of the next one."""
        total, first = 0, bisect_left(self._changed, start)
        new = ((self._changed[number], 0) for number in range(first, len(self._changed)))
        for place, count in _added_up(merge(self._ranks.nodes(self._level - 1, start), new, key=_place)):
            if place != start and place not in self._gone and height(place) >= self._level:
                return total, place
            total += count + self._below.get(place, 0)
        return total, None


def _added_up(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yields each place once."""
    for place, of_place in groupby(nodes, _place):
        yield place, sum(count for _, count in of_place)
