"""Counts a bucket's entries by their kind and finds its largest keys, with memory for a few entries only."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from slackwater_engine.state.entry import (
    ACCUMULATORS_TAG,
    DOCUMENT_TAG,
    MULTISET_TAG,
    OWNER_TAG,
    Entry,
    group_width,
)

DOCUMENTS: Final = "documents"
GROUPS: Final = "groups"
VALUES: Final = "values"
OWNERS: Final = "partitions"

_KINDS: Final = {DOCUMENT_TAG: DOCUMENTS, ACCUMULATORS_TAG: GROUPS, MULTISET_TAG: VALUES, OWNER_TAG: OWNERS}


@dataclass(slots=True)
class Amount:
    """A number of entries and their size."""

    entries: int = 0
    size: int = 0
    """Bytes."""

    def add(self, other: "Amount") -> None:
        """Counts the other one in."""
        self.entries += other.entries
        self.size += other.size


@dataclass(slots=True, order=True)
class KeyAmount:
    """The size of a stage key, for a ranking."""

    size: int
    """Bytes."""
    entries: int
    key: bytes
    """The key as in entries' names: packed, or the digest of a long one."""


@dataclass(slots=True)
class BucketContents:
    """The contents of a bucket, counted."""

    keys: int = 0
    """Stage keys and groups of aggregates."""
    kinds: dict[str, Amount] = field(default_factory=dict)
    """The entries by kind: ``input <number>`` for rows, `DOCUMENTS` for the digests of published documents,
    `GROUPS` for counts and sums, `VALUES` for entries of ordered multisets, `OWNERS`."""
    largest: list[KeyAmount] = field(default_factory=list)
    """The largest keys, largest first."""

    def add(self, other: "BucketContents", top: int) -> None:
        """Counts another bucket in."""
        self.keys += other.keys
        for kind, amount in other.kinds.items():
            self.kinds.setdefault(kind, Amount()).add(amount)
        self.largest = heapq.nlargest(top, [*self.largest, *other.largest])


def kind_of(tag: bytes) -> str:
    """Names the kind of entries with this tag."""
    return _KINDS.get(tag) or f"input {tag[0] - 1}"


def count_contents(entries: Iterable[Entry], top: int) -> BucketContents:
    """Counts the entries of a bucket, ascending, and keeps its `top` largest keys."""
    contents = BucketContents()
    group, of_group = b"", Amount()
    largest: list[KeyAmount] = []

    def end_of_group() -> None:
        if not group:
            return
        contents.keys += 1
        heapq.heappush(largest, KeyAmount(of_group.size, of_group.entries, group))
        if len(largest) > top:
            heapq.heappop(largest)

    for name, value in entries:
        if not group or not name.startswith(group):
            end_of_group()
            group, of_group = name[: group_width(name)], Amount()
        amount = Amount(1, len(name) + len(value))
        of_group.add(amount)
        kind = kind_of(name[len(group) : len(group) + 1])
        contents.kinds.setdefault(kind, Amount()).add(amount)
    end_of_group()
    contents.largest = sorted(largest, reverse=True)
    return contents
