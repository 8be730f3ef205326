"""Inspects the state of a checkpoint by the files in its store, whether or not the pipeline is running.

Functions raise StateError if a file is damaged or missing, and UnavailableError if the store does not answer.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import msgspec

from slackwater.engine.index import Contents
from slackwater.engine.lmdb_index import LmdbIndex
from slackwater.engine.payloads import bucket_of
from slackwater.engine.state.entry import (
    ACCUMULATORS_TAG,
    DOCUMENT_TAG,
    MOMENT_TAG,
    MULTISET_TAG,
    OWNER_TAG,
    RANKS_TAG,
    WITHHELD_TAG,
    Change,
    Entry,
    group_width,
    input_tag,
    is_digest,
    part,
    tag_of,
)
from slackwater.engine.state.log import Blob, BucketLog, LogHead, changes_bytes
from slackwater.engine.state.manifest import (
    KEPT_STATES,
    PUBLISHED,
    Manifest,
    SegmentReader,
    State,
    batch_of,
    decode_manifest,
    history,
    manifest_path,
    read_state,
)
from slackwater.engine.state.store import StateStore
from slackwater.protocol import ConfigError, StateError
from slackwater.sql.plan import EnginePlan, InputPlan, StagePlan, fingerprint
from slackwater.sql.row_codec import RowCodec

ROWS: Final = "input "
"""The beginning of the names of kinds of rows; the number of the input follows."""
DOCUMENTS: Final = "documents"
GROUPS: Final = "groups"
VALUES: Final = "values"
OWNERS: Final = "partitions"
WITHHELD: Final = "withheld"
MOMENTS: Final = "moments"
_KINDS: Final = {
    DOCUMENT_TAG: DOCUMENTS,
    ACCUMULATORS_TAG: GROUPS,
    MULTISET_TAG: VALUES,
    RANKS_TAG: VALUES,
    WITHHELD_TAG: WITHHELD,
    MOMENT_TAG: MOMENTS,
    OWNER_TAG: OWNERS,
}
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
    `GROUPS` for counts and sums, `VALUES` for entries of ordered multisets and their ranges,
    `WITHHELD`, `MOMENTS` for rows that end by themselves, `OWNERS`."""
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
    """Returns the entries of a key; for each kind, at most `limit` entries, those with the smallest names."""
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


@dataclass(frozen=True, slots=True)
class BucketState:
    """The state of one bucket of a stage."""

    bucket: int
    head: LogHead
    contents: BucketContents | None
    """None if they were not read."""

    @property
    def compressed_bytes(self) -> int:
        """The size of the bucket's log in the store."""
        return sum(blob.length for blob in self.head.blobs)


@dataclass(frozen=True, slots=True)
class StageState:
    """The state of one stage, with totals over its buckets."""

    stage: int
    buckets: tuple[BucketState, ...]
    """The buckets that have state, ascending."""
    contents: BucketContents | None
    """The contents of all buckets; None if they were not read."""

    @property
    def live_bytes(self) -> int:
        """The size of the contents before compression."""
        return sum(each.head.live_bytes for each in self.buckets)

    @property
    def log_bytes(self) -> int:
        """The size of the logs before compression."""
        return sum(each.head.log_bytes for each in self.buckets)

    @property
    def compressed_bytes(self) -> int:
        """The size of the logs in the store."""
        return sum(each.compressed_bytes for each in self.buckets)

    @property
    def blobs(self) -> int:
        """The number of blobs in all logs."""
        return sum(len(each.head.blobs) for each in self.buckets)

    def largest_buckets(self, top: int) -> list[BucketState]:
        """Returns the buckets with the largest contents, largest first."""
        return sorted(self.buckets, key=lambda each: -each.head.live_bytes)[:top]


@dataclass(frozen=True, slots=True)
class FoundState:
    """A state of a store."""

    state: State
    fingerprint: str
    """The fingerprint of the stages, which includes how they keep their state."""
    is_true: bool
    """Whether its batch is certainly visible. For the newest batch, only the output shows this."""

    def is_of(self, plan: EnginePlan) -> bool:
        """Returns whether this is the state of the stages of a plan, which describes the entries."""
        return self.fingerprint.partition(" ")[0] == fingerprint(plan.stages)


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows and other entries that a stage keeps under a key."""

    stage: int
    bucket: int
    rows: Mapping[str, tuple[Mapping[str, Any], ...]]
    """Rows by the alias of their input, and other entries by their kind."""


def manifest_history(store: StateStore) -> list[tuple[str, Manifest]]:
    """Returns the manifests in a store by name, by batch, with those of lost attempts."""
    found = [(name, _manifest(store, name)) for name in history(store)]
    return [(name, manifest) for name, manifest in found if manifest is not None]


def find_state(store: StateStore, at: Mapping[str, Any] | None = None) -> FoundState:
    """Reads the newest state that is certainly committed; if there is none, the newest prepared one.

    A batch is certainly committed if the next batch has written its manifest, which follows that of the
    batch. For the newest batch, only the output shows whether it is committed. With a position in the source,
    the state there is read. StateError says, too, that there is no state.
    """
    for name, manifest, is_true in kept_manifests(store):
        if at is None or manifest.position == at:
            return FoundState(read_state(store, name, manifest.fingerprint), manifest.fingerprint, is_true)
    raise StateError("the manifest of the state was removed in the meantime; try again")


def kept_manifests(store: StateStore) -> Iterator[tuple[str, Manifest, bool]]:
    """Yields the manifests of the states that :func:`find_state` may read, newest first, with their names.

    Each with whether it is certainly committed. The run keeps one more than these: it counts from its newest
    batch, which may be newer than the first one here.
    """
    names = history(store)
    if not names:
        raise StateError("the checkpoint has no state yet: no batch has ended")
    true = _newest_true(store, names)
    name = names[-1] if true is None else true
    for _ in range(KEPT_STATES - 1):
        manifest = _manifest(store, name) if name else None
        if manifest is None:
            return
        yield name, manifest, true is not None
        name = manifest.before


def stage_states(store: StateStore, state: State, *, top: int | None = None) -> list[StageState]:
    """Returns the totals of a state, by stage.

    With `top`, also this many of the largest keys of each stage: all contents are then read, one bucket at a
    time, through an index in a temporary folder. A running pipeline keeps the files of a state for a few more
    batches.
    """
    source = SegmentReader(store)
    result = []
    for stage in sorted({stage for stage, _ in state.heads}):
        buckets = []
        total = None if top is None else BucketContents()
        for bucket in sorted(bucket for number, bucket in state.heads if number == stage):
            log = BucketLog(stage, bucket, state.head(stage, bucket), source)
            contents = None
            if total is not None and top is not None:
                contents = read_contents(log.changes(), partial(_count, top=top))
                total.add(contents, top)
            buckets.append(BucketState(bucket, log.head, contents))
        result.append(StageState(stage, tuple(buckets), total))
    return result


def find_damage(store: StateStore, state: State) -> Iterator[str]:
    """Reads all blobs of a state, and yields a sentence for each one that cannot be used."""
    source = SegmentReader(store)
    for (stage, bucket), head in sorted(state.heads.items()):
        log = BucketLog(stage, bucket, head, source)
        for blob in head.blobs:
            if damage := _damage(log, blob):
                yield damage


def kept_rows(
    store: StateStore,
    found: FoundState,
    plan: EnginePlan,
    key: Mapping[str, Any],
    *,
    buckets: int,
    limit: int = 20,
) -> list[KeptRows]:
    """Returns what the stages whose key has these columns keep under a key.

    The values of the key are by name, as in JSON. At most `limit` rows of each input are returned.

    Raises:
        ConfigError: No stage has such a key, or the state belongs to other stages.
    """
    if not found.is_of(plan):
        raise ConfigError(
            "the state belongs to other views than the pipeline has now, so its rows cannot be "
            "interpreted; use the pipeline as it was when the state was written"
        )
    wanted = [stage for stage in plan.stages if set(key_names(stage)) == set(key)]
    if not wanted:
        known = "; ".join(f"stage {s.number}: {', '.join(key_names(s)) or 'none'}" for s in plan.stages)
        shown = msgspec.json.encode(key).decode()
        raise ConfigError(f"key {shown}: no stage has these key columns; the key columns are {known}")
    source = SegmentReader(store)
    result = []
    for stage in wanted:
        packed = _pack_key(stage, key)
        bucket, group = bucket_of(packed, buckets), part(packed)
        log = BucketLog(stage.number, bucket, found.state.head(stage.number, bucket), source)
        if log.head.blobs:
            entries = read_contents(log.changes(), partial(find_entries, group=group, limit=limit))
            result.append(KeptRows(stage.number, bucket, decode_entries(stage, group, entries)))
    return result


def _newest_true(store: StateStore, names: list[str]) -> str | None:
    """Returns the newest manifest that another one follows, or that was recorded as the first committed."""
    by_batch: dict[int, list[str]] = {}
    for name in names:
        by_batch.setdefault(batch_of(name), []).append(name)
    for batch in sorted(by_batch, reverse=True):
        of_batch = by_batch[batch]
        later = [_manifest(store, name) for name in by_batch.get(batch + 1, ())]
        named = {manifest.before for manifest in later if manifest is not None}
        if true := named.intersection(of_batch):
            return max(true)
    noted = (store.read(PUBLISHED) or b"").decode()
    return noted if noted in names else None


def _manifest(store: StateStore, name: str) -> Manifest | None:
    """Reads a manifest; None if a running pipeline has removed it in the meantime."""
    data = store.read(manifest_path(name))
    return None if data is None else decode_manifest(name, data)


def _count(contents: Contents, top: int) -> BucketContents:
    return count_contents(contents.entries(), top)


def _damage(log: BucketLog, blob: Blob) -> str | None:
    try:
        size = changes_bytes(log.blob(blob))
    except StateError as error:
        return str(error)
    if size != blob.size:
        place = f"stage {log.stage}, bucket {log.bucket}: segment {blob.segment} at {blob.offset}"
        return f"{place} has {size} bytes, expected {blob.size}"
    return None


def _pack_key(stage: StagePlan, key: Mapping[str, Any]) -> bytes:
    values = []
    for column in stage.key:
        try:
            values.append(msgspec.convert(key[column.name], column.type.wire | None))
        except msgspec.ValidationError as error:
            problem = f"{column.name} is {column.type}: {error}"
            raise ConfigError(f"key {msgspec.json.encode(key).decode()}: {problem}") from error
    return msgspec.msgpack.encode(values)
