"""Ordered multisets in an index, with which min, max and count(DISTINCT) of a group are maintained.

Each entry is one value of the multiset. Its name ends with the value's sort key, so the smallest and the
largest value are at the beginning and at the end of the entries with a prefix. If a sort key is too long for
a name, the name contains its first bytes and a digest. Among values with the same first bytes, the complete
sort key decides; it is stored in their entries.

Reading one end has the same cost whatever the number of values, except for values that share this many first
bytes: all of these are read.
"""

from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from slackwater.engine.index import Contents
from slackwater.engine.payloads import Outcome
from slackwater.engine.state.entry import MULTISET_TAG, digest

SORT_KEY_BYTES: Final = 248
"""The maximum length of a sort key in an entry's name. With group, tag, number and digest, the name stays
below LMDB's limit of 511 bytes."""

NUMBER_BYTES: Final = 2
"""The length of a multiset's number in a name."""


class Value(msgspec.Struct, array_like=True, gc=False):
    """The value of an entry.

    Attributes:
        count: How many times the multiset contains the value.
        text: The value as DuckDB writes it.
        sort_key: The complete sort key, if the entry's name contains only its beginning.
    """

    count: int
    text: str
    sort_key: bytes = b""


Refusal = Callable[[str, int], Exception]
"""Creates the error for a value whose count becomes negative, from its text and the count."""

NO_TEXTS: Final[Mapping[bytes, str]] = {}
_encode = msgspec.msgpack.Encoder().encode
decode_value: Final = msgspec.msgpack.Decoder(Value).decode
"""Reads the value of an entry."""


def multiset_prefix(group: bytes, number: int) -> bytes:
    """Returns the beginning of the names of a multiset's entries."""
    return group + MULTISET_TAG + number.to_bytes(NUMBER_BYTES, "big")


def sort_key_part(sort_key: bytes) -> bytes:
    """Returns the end of a name for a sort key.

    Different keys have different ends, which are in the order of the keys, except among long ones.
    """
    if len(sort_key) <= SORT_KEY_BYTES:
        return sort_key
    return sort_key[:SORT_KEY_BYTES] + digest(sort_key)


def sort_key_of(text: str) -> bytes:
    """Converts a sort key that DuckDB's ``hex`` has written.

    DuckDB stores short sort keys as integers of 64 bits. All values except NULL start with the byte 01, and
    ``hex`` omits the first digit of this byte.
    """
    return bytes.fromhex(text if len(text) % 2 == 0 else "0" + text)


def _packed(value: Value, sort_key: bytes) -> bytes:
    if len(sort_key) <= SORT_KEY_BYTES:
        return _encode((value.count, value.text))
    return _encode((value.count, value.text, sort_key))


class OrderedMultiset:
    """A multiset during a batch: its content before the batch, and after each step of additions.

    It reads the index, but does not change it. It reads the entries of the values that the batch adds to, and
    those at the ends that are requested.
    """

    def __init__(self, contents: Contents, prefix: bytes, touched: Mapping[bytes, str]) -> None:
        """Creates the multiset as it was before the batch.

        `touched` contains the texts of all values that the batch will add to, by sort key.
        """
        self._contents = contents
        self._prefix = prefix
        self._sort_keys = sorted(touched)
        self._ranks = {sort_key: rank for rank, sort_key in enumerate(self._sort_keys)}
        self._names = [prefix + sort_key_part(sort_key) for sort_key in self._sort_keys]
        stored = contents.get_many(self._names) if self._names else {}
        self._stored = [stored.get(name) for name in self._names]
        self._values = [
            Value(0, touched[sort_key]) if data is None else decode_value(data)
            for sort_key, data in zip(self._sort_keys, self._stored, strict=True)
        ]
        self._ends: dict[bool, _End] = {}
        self.gained = 0
        """By how much the number of different values has grown since before the batch."""

    def add(
        self, additions: Mapping[bytes, int], refusal: Refusal, texts: Mapping[bytes, str] = NO_TEXTS
    ) -> None:
        """Applies a step: changes of counts by sort key, negative if the count falls, and new texts.

        Raises:
            Exception: The count of a value would be negative; the error is the one that `refusal` returns.
        """
        for sort_key, more in additions.items():
            rank = self._ranks[sort_key]
            value = self._values[rank]
            before, value.count = value.count, value.count + more
            value.text = texts.get(sort_key, value.text)
            if value.count < 0:
                raise refusal(value.text, value.count)
            if not before and value.count:
                self.gained += 1
                for end in self._ends.values():
                    end.arrived(rank)
            elif before and not value.count:
                self.gained -= 1

    def conclude(self, outcome: Outcome) -> None:
        """Adds the changes that the batch has made to the entries to the outcome."""
        for rank, (name, value) in enumerate(zip(self._names, self._values, strict=True)):
            data = _packed(value, self._sort_keys[rank]) if value.count else None
            outcome.change(name, self._stored[rank], data)

    def end(self, *, is_largest: bool) -> str | None:
        """Returns the text of the smallest or the largest value; None if there is none."""
        end = self._ends.get(is_largest)
        if end is None:
            others = _outermost(self._contents, self._prefix, set(self._names), is_largest=is_largest)
            end = self._ends[is_largest] = _End(self._sort_keys, self._values, others, is_largest=is_largest)
        return end.text()


class _End:
    """One end of a multiset at any time during a batch.

    It covers the values that the batch changes and all others.
    """

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
    """Returns sort key and text of the value at one end of the multiset, ignoring some of its entries."""
    return next(in_order(contents, prefix, without, descending=is_largest), None)


def in_order(
    contents: Contents, prefix: bytes, without: set[bytes], *, descending: bool = False
) -> Iterator[tuple[bytes, str]]:
    """Yields sort keys and texts in order, ignoring some entries, and reads no further than it is asked."""
    width = len(prefix)
    alike: list[tuple[bytes, str]] = []
    stem = prefix
    for name, data in contents.scan(prefix, descending=descending):
        if alike and not name.startswith(stem):
            yield from sorted(alike, reverse=descending)
            alike = []
        if name in without:
            continue
        value = decode_value(data)
        if value.sort_key or alike:
            stem = name[: width + SORT_KEY_BYTES]
            alike.append((value.sort_key or name[width:], value.text))
        else:
            yield name[width:], value.text
    yield from sorted(alike, reverse=descending)
