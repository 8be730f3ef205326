"""The state of a bucket for inspection: reads its log, and counts its entries by kind.

Kinds and keys are described with the names of the plan. Only a few entries are in memory at a time.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import msgspec

from slackwater.engine.index import Contents
from slackwater.engine.lmdb_index import LmdbIndex
from slackwater.engine.state.entry import (
    ACCUMULATORS_TAG,
    DOCUMENT_TAG,
    MULTISET_TAG,
    OWNER_TAG,
    Change,
    Entry,
    group_width,
    input_tag,
    is_digest,
    tag_of,
)
from slackwater.sql.plan import InputPlan, StagePlan
from slackwater.sql.row_codec import RowCodec

ROWS: Final = "input "
"""The beginning of the names of kinds of rows; the number of the input follows."""
DOCUMENTS: Final = "documents"
GROUPS: Final = "groups"
VALUES: Final = "values"
OWNERS: Final = "partitions"
_KINDS: Final = {DOCUMENT_TAG: DOCUMENTS, ACCUMULATORS_TAG: GROUPS, MULTISET_TAG: VALUES, OWNER_TAG: OWNERS}
T = TypeVar("T")


@dataclass(slots=True)
class Amount:
    """A number of entries and their size."""

    entries: int = 0
    size: int = 0
    """In bytes."""

    def add(self, other: "Amount") -> None:
        """Adds the other amount."""
        self.entries += other.entries
        self.size += other.size


@dataclass(slots=True, order=True)
class KeyAmount:
    """The size of a stage key, for a ranking."""

    size: int
    """In bytes."""
    entries: int
    key: bytes
    """The key as names of entries contain it: packed, or the digest of a long key."""


@dataclass(slots=True)
class BucketContents:
    """The counted contents of a bucket."""

    keys: int = 0
    """The number of stage keys and of groups of aggregates."""
    kinds: dict[str, Amount] = field(default_factory=dict)
    """The entries by kind: ``input <number>`` for rows, `DOCUMENTS` for the digests of published documents,
    `GROUPS` for counts and sums, `VALUES` for entries of ordered multisets, `OWNERS`."""
    largest: list[KeyAmount] = field(default_factory=list)
    """The largest keys, largest first."""

    def add(self, other: "BucketContents", top: int) -> None:
        """Adds the contents of another bucket."""
        self.keys += other.keys
        for kind, amount in other.kinds.items():
            self.kinds.setdefault(kind, Amount()).add(amount)
        self.largest = heapq.nlargest(top, [*self.largest, *other.largest])


def _kind_of(tag: bytes) -> str:
    """Returns the kind of entries with this tag."""
    return _KINDS.get(tag) or f"{ROWS}{tag[0] - 1}"


def count_contents(entries: Iterable[Entry], top: int) -> BucketContents:
    """Counts the entries of a bucket, given in ascending order, and keeps its `top` largest keys."""
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
        kind = _kind_of(tag_of(name, len(group)))
        contents.kinds.setdefault(kind, Amount()).add(amount)
    end_of_group()
    contents.largest = sorted(largest, reverse=True)
    return contents


def read_contents(changes: Iterator[list[Change]], read: Callable[[Contents], T]) -> T:
    """Returns the result of `read` for the contents that result from these changes.

    The contents are in an index on the local disk, which is removed afterwards.
    """
    with TemporaryDirectory(prefix="slackwater-state-") as folder:
        index = LmdbIndex(Path(folder) / "index")
        try:
            index.load(changes, b"read")
            return index.update(read)
        finally:
            index.close()


def key_names(stage: StagePlan) -> tuple[str, ...]:
    """Returns the names of the columns of a stage's key."""
    return tuple(column.name for column in stage.key)


def show_key(stage: StagePlan | None, group: bytes) -> str:
    """Returns a key of an entry's name as readable JSON; without a stage, it has no names."""
    if is_digest(group):
        return f"(a long key with digest {group[1:].hex()})"
    values = msgspec.msgpack.decode(group)
    if stage is None or len(values) != len(stage.key):
        return msgspec.json.encode(values).decode()
    return msgspec.json.encode(dict(zip(key_names(stage), values, strict=True))).decode()


def name_kinds(kinds: Iterable[str], stage: StagePlan | None) -> list[str]:
    """Returns readable names of kinds of entries; for rows, the alias of the input and its table or stage."""
    names = {
        DOCUMENTS: "digests of documents",
        GROUPS: "groups of aggregates",
        VALUES: "values of min, max and distinct",
        OWNERS: "partitions of keys",
    }
    if stage is not None and stage.rows is not None:
        for number, plan in enumerate(stage.rows.inputs):
            names[_kind_of(input_tag(number))] = f"rows of {_input_name(plan)}"
    return [names.get(kind, f"rows of {kind}") for kind in kinds]


def find_entries(contents: Contents, group: bytes, limit: int) -> list[Entry]:
    """Returns the entries of a key; for each kind, at most `limit` entries, those with the smallest names.

    Args:
        contents: The contents of the key's bucket.
        group: The key as names of entries contain it.
        limit: The maximum number of entries.
    """
    found: dict[bytes, list[Entry]] = {}
    for entry in contents.scan(group):
        of_kind = found.setdefault(tag_of(entry[0], len(group)), [])
        if len(of_kind) < limit:
            of_kind.append(entry)
    return [entry for of_kind in found.values() for entry in of_kind]


def decode_entries(
    stage: StagePlan, group: bytes, entries: Iterable[Entry]
) -> dict[str, tuple[Mapping[str, Any], ...]]:
    """Decodes entries of one key. The result is by the alias of the input for rows, and otherwise by kind."""
    readers = dict(_readers(stage))
    result: dict[str, tuple[Mapping[str, Any], ...]] = {}
    for name, value in entries:
        tag = tag_of(name, len(group))
        if (reader := readers.get(tag)) is not None:
            kind, codec = reader
            names = [column.name for column in codec.columns]
            decoded: Mapping[str, Any] = dict(zip(names, codec.unpack(value), strict=True))
        else:
            kind, decoded = _kind_of(tag), _decode_value(_kind_of(tag), value)
        result[kind] = (*result.get(kind, ()), decoded)
    return result


def _readers(stage: StagePlan) -> Iterator[tuple[bytes, tuple[str, RowCodec]]]:
    if stage.rows is None:
        return
    for number, plan in enumerate(stage.rows.inputs):
        yield input_tag(number), (_input_name(plan), RowCodec(plan.table, plan.column_names))


def _input_name(plan: InputPlan) -> str:
    name = plan.table.full_name if plan.table.schema else plan.table.name
    return name if plan.alias in {name, plan.table.name} else f"{plan.alias} ({name})"


def _decode_value(kind: str, value: bytes) -> Mapping[str, Any]:
    if kind == DOCUMENTS:
        return {"digest": value.hex()}
    if kind == OWNERS:
        return {"partition": int.from_bytes(value, "big")}
    stored = msgspec.msgpack.decode(value)
    return {"numbers": stored[0]} if kind == GROUPS else {"value": stored}
