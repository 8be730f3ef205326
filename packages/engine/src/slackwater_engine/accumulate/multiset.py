"""Ordered multisets in an index; min, max and count(DISTINCT) of a group are kept by them.

An entry is a value of the multiset; its name ends with the value's sort key, so that the smallest and the
largest value are found where a prefix begins and ends. A sort key that is too long for a name stands there
with its first bytes and a digest; among values of the same first bytes, the whole sort key decides, which
their entries have.

Reading one end costs the same whatever the number of values; but for those that share so many first bytes,
of which all are read.
"""

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from slackwater_engine.index.contract import Contents
from slackwater_engine.payloads import Outcome
from slackwater_engine.state.entry import MULTISET_TAG, digest

SORT_KEY_BYTES: Final = 248
"""The most of a sort key in an entry's name; with group, tag, number and digest below LMDB's 511."""

_NUMBER_BYTES: Final = 2


class Value(msgspec.Struct, array_like=True, gc=False):
    """The value of an entry.

    Attributes:
        count: How often the value is there.
        text: The value as DuckDB writes it.
        sort_key: Whole, if the entry's name has only its beginning.
    """

    count: int
    text: str
    sort_key: bytes = b""


Refusal = Callable[[str, int], Exception]
"""The error for a value, as text, that is there less than zero times; takes the count, too."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Value).decode


def multiset_prefix(group: bytes, number: int) -> bytes:
    """Returns the beginning of the names of a multiset's entries.

    Args:
        group: The group's part of a name.
        number: That of the accumulator that keeps the values.
    """
    return group + MULTISET_TAG + number.to_bytes(_NUMBER_BYTES, "big")


def sort_key_part(sort_key: bytes) -> bytes:
    """A sort key as the end of a name; different for different keys, and in their order up to long ones."""
    if len(sort_key) <= SORT_KEY_BYTES:
        return sort_key
    return sort_key[:SORT_KEY_BYTES] + digest(sort_key)


def sort_key_of(text: str) -> bytes:
    """A sort key that DuckDB's ``hex`` has written.

    DuckDB has short sort keys as integers of 64 bits, whose first digit, of the byte 01 that all values but
    NULL start with, ``hex`` leaves out.
    """
    return bytes.fromhex(text if len(text) % 2 == 0 else "0" + text)


def _packed(value: Value, sort_key: bytes) -> bytes:
    if len(sort_key) <= SORT_KEY_BYTES:
        return _encode((value.count, value.text))
    return _encode((value.count, value.text, sort_key))


class OrderedMultiset:
    """A multiset during a batch: what it is before, and after each step of additions.

    Reads the index, but changes nothing in it: entries of the values that the batch adds to, and then those
    at the ends that are asked for.
    """

    def __init__(self, contents: Contents, prefix: bytes, touched: Mapping[bytes, str]) -> None:
        """The multiset before the batch.

        Args:
            contents: The bucket's entries.
            prefix: See :func:`multiset_prefix`.
            touched: By sort key, the texts of all values that the batch will add to.
        """
        self._contents = contents
        self._prefix = prefix
        self._sort_keys = sorted(touched)
        self._ranks = {sort_key: rank for rank, sort_key in enumerate(self._sort_keys)}
        self._names = [prefix + sort_key_part(sort_key) for sort_key in self._sort_keys]
        stored = contents.get_many(self._names) if self._names else {}
        self._stored = [stored.get(name) for name in self._names]
        self._values = [
            Value(0, touched[sort_key]) if data is None else _decode(data)
            for sort_key, data in zip(self._sort_keys, self._stored, strict=True)
        ]
        self._counts_before = [value.count for value in self._values]
        self._ends: dict[bool, _End] = {}
        self.gained = 0
        """The number of different values that there are more than before the batch."""

    def add(self, additions: Mapping[bytes, int], refusal: Refusal) -> None:
        """Makes a step.

        Args:
            additions: By sort key, how often the value is there more, or less, than before the step.
            refusal: Makes the error below.

        Raises:
            Exception: As `refusal` makes it: a value would be there less than zero times.
        """
        for sort_key, more in additions.items():
            rank = self._ranks[sort_key]
            value = self._values[rank]
            before, value.count = value.count, value.count + more
            if value.count < 0:
                raise refusal(value.text, value.count)
            if not before and value.count:
                self.gained += 1
                for end in self._ends.values():
                    end.arrived(rank)
            elif before and not value.count:
                self.gained -= 1

    def smallest(self) -> str | None:
        """Text of the smallest value; None if there is none."""
        return self._end(is_largest=False)

    def largest(self) -> str | None:
        """Text of the largest value; None if there is none."""
        return self._end(is_largest=True)

    def conclude(self, outcome: Outcome) -> None:
        """Adds the changes of the entries since before the batch to the outcome."""
        for rank, (name, value) in enumerate(zip(self._names, self._values, strict=True)):
            if value.count == self._counts_before[rank]:
                continue
            data = _packed(value, self._sort_keys[rank]) if value.count else None
            outcome.change(name, self._stored[rank], data)

    def _end(self, *, is_largest: bool) -> str | None:
        end = self._ends.get(is_largest)
        if end is None:
            others = _outermost(self._contents, self._prefix, set(self._names), is_largest=is_largest)
            end = self._ends[is_largest] = _End(self._sort_keys, self._values, others, is_largest=is_largest)
        return end.text()


class _End:
    """One end of a multiset at any time of a batch: of the values it touches, and of all others."""

    def __init__(
        self,
        sort_keys: list[bytes],
        values: list[Value],
        others: tuple[bytes, str] | None,
        *,
        is_largest: bool,
    ) -> None:
        self._sort_keys = sort_keys
        self._values = values
        self._others = others
        self._is_largest = is_largest
        self._sign = -1 if is_largest else 1
        self._outermost_first = [self._sign * rank for rank, value in enumerate(values) if value.count]
        heapify(self._outermost_first)

    def arrived(self, rank: int) -> None:
        heappush(self._outermost_first, self._sign * rank)

    def text(self) -> str | None:
        ranks = self._outermost_first
        while ranks and not self._values[abs(ranks[0])].count:
            heappop(ranks)
        others = self._others
        if not ranks:
            return None if others is None else others[1]
        rank = abs(ranks[0])
        if others is not None and (others[0] > self._sort_keys[rank]) == self._is_largest:
            return others[1]
        return self._values[rank].text


def _outermost(
    contents: Contents, prefix: bytes, without: set[bytes], *, is_largest: bool
) -> tuple[bytes, str] | None:
    """Sort key and text of the value at an end of the multiset, some of its entries left out."""
    found: tuple[bytes, str] | None = None
    width = len(prefix)
    stem = prefix
    for name, data in contents.scan(prefix, descending=is_largest):
        if not name.startswith(stem):
            break
        if name in without:
            continue
        value = _decode(data)
        sort_key = value.sort_key or name[width:]
        if found is None or (sort_key > found[0]) == is_largest:
            found = (sort_key, value.text)
        if not value.sort_key:
            break
        stem = name[: width + SORT_KEY_BYTES]
    return found
