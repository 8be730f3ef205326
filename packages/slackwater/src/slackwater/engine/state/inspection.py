"""Inspects the state of a checkpoint by the files in its store, whether or not the pipeline is running."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from slackwater.engine.payloads import bucket_of
from slackwater.engine.state.contents import (
    BucketContents,
    count_contents,
    decode_entries,
    find_entries,
    key_names,
    read_contents,
)
from slackwater.engine.state.entry import part
from slackwater.engine.state.keeper import PUBLISHED
from slackwater.engine.state.log import Blob, BucketLog, LogHead, changes_bytes
from slackwater.engine.state.manifest import (
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
from slackwater.sql.plan import EnginePlan, StagePlan, fingerprint

_DEFAULT_LIMIT: Final = 20


@dataclass(frozen=True, slots=True)
class BucketState:
    """The state of one bucket of a stage."""

    stage: int
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
class ManifestFacts:
    """A manifest in the store."""

    name: str
    batch_id: int
    before: str
    """The name of the previous manifest; empty for the first one."""
    position: Mapping[str, Any]


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


def manifest_history(store: StateStore) -> list[ManifestFacts]:
    """Returns the manifests in a store, in the order of their batches; some may belong to lost attempts.

    Raises:
        StateError: A manifest is damaged.
        UnavailableError: The store does not answer.
    """
    found = [(name, _manifest(store, name)) for name in history(store)]
    return [
        ManifestFacts(name, manifest.batch_id, manifest.before, manifest.position)
        for name, manifest in found
        if manifest is not None
    ]


def find_state(store: StateStore) -> FoundState:
    """Reads the newest state that is certainly committed; if there is none, the newest prepared one.

    A batch is certainly committed if the next batch has written its manifest, which follows that of the
    batch. For the newest batch, only the output shows whether it is committed.

    Raises:
        StateError: There is no state, or it is damaged.
        UnavailableError: The store does not answer.
    """
    names = history(store)
    if not names:
        raise StateError("the checkpoint has no state yet: no batch has ended")
    true = _newest_true(store, names)
    name = names[-1] if true is None else true
    manifest = _manifest(store, name)
    if manifest is None:
        raise StateError(f"manifest {name} of the state was removed in the meantime; try again")
    return FoundState(read_state(store, name, manifest.fingerprint), manifest.fingerprint, true is not None)


def stage_states(store: StateStore, state: State, *, top: int | None = None) -> list[StageState]:
    """Returns the totals of a state, by stage.

    Args:
        store: The store that contains the state. A running pipeline keeps the files of a state for a few more
            batches.
        state: The state.
        top: How many of the largest keys of each stage to return. All contents are then read, one bucket at a
            time, through an index in a temporary folder. None: only manifests are used.

    Raises:
        StateError: A blob is damaged or missing.
        UnavailableError: The store does not answer.
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
                contents = _count(log, top)
                total.add(contents, top)
            buckets.append(BucketState(stage, bucket, log.head, contents))
        result.append(StageState(stage, tuple(buckets), total))
    return result


def find_damage(store: StateStore, state: State) -> Iterator[str]:
    """Reads all blobs of a state, and yields a sentence for each one that cannot be used.

    Raises:
        UnavailableError: The store does not answer.
    """
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
    limit: int = _DEFAULT_LIMIT,
) -> list[KeptRows]:
    """Returns what the stages whose key has these columns keep under a key.

    Args:
        store: The store of the checkpoint.
        found: The state in it.
        plan: The pipeline's plan.
        key: The values by name, as in JSON.
        buckets: The pipeline's number of buckets.
        limit: The maximum number of rows to return for each input.

    Raises:
        ConfigError: No stage has such a key, or the state belongs to other stages.
        StateError: A blob is damaged or missing.
        UnavailableError: The store does not answer.
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


def _count(log: BucketLog, top: int) -> BucketContents:
    return read_contents(log.changes(), lambda contents: count_contents(contents.entries(), top))


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
