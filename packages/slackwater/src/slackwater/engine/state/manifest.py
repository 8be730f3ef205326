"""Manifests: what the state of a pipeline is after a batch, and where its parts are stored.

A manifest contains what its batch changed in the logs of buckets, and the name of the previous manifest. Some
manifests contain the heads of all logs, so that a state can be read from a short chain. Manifests are
immutable, and their names are derived from their content: a name leads to exactly one state, or to an error.

A batch is committed with the progress record of its output, which names the manifest. All other files in the
store belong to attempts that were lost, and are removed when later batches have been committed.

What accesses the store raises UnavailableError if it does not answer.
"""

import hashlib
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import zstandard

from slackwater.engine.state.log import EMPTY_LOG, Blob, LogHead, LogUpdate, LogWrite, place_writes
from slackwater.engine.state.store import StateStore, missing_file
from slackwater.protocol import StateError

MANIFESTS: Final = "manifests"
SEGMENTS: Final = "segments"
"""The folders of a checkpoint."""

MAX_CHAIN: Final = 64
"""The maximum number of manifests that are read for a state. A manifest with all heads takes as long to read
as all others that follow it."""

_VERSION: Final = 1
_NUMBER_DIGITS: Final = 20
_DIGEST_DIGITS: Final = 32
_COMPRESSION_LEVEL: Final = 1

Heads = Mapping[tuple[int, int], LogHead]
"""The heads of logs by stage and bucket, without buckets that have no contents."""
_KEPT_SEGMENTS: Final = 64
_SMALL_BYTES: Final = 256 << 10
"""If a blob ends before this offset, everything before it in the segment is read, too, because it contains
blobs of many buckets."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A manifest as it is stored."""

    version: int
    batch_id: int
    fingerprint: str
    """The fingerprint of the stages; a state of other stages is refused."""
    position: dict[str, Any]
    """The position in the source after the batch."""
    before: str = ""
    """The name of the previous manifest; empty for the first batch."""
    updates: tuple[LogUpdate, ...] = ()
    """The changes of logs by the batch, unless the manifest is whole."""
    is_whole: bool = False
    """Whether the state can be read from this manifest alone."""
    heads: tuple[tuple[int, int, LogHead], ...] = ()
    """If the manifest is whole: stage, bucket and head of each log."""
    withheld: dict[int, int] = {}
    """The number of withheld keys by the number of the view that shows them, without zeros."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a pipeline after a batch."""

    name: str
    """The name of its manifest; empty if nothing has been processed yet."""
    batch_id: int
    position: Mapping[str, Any] | None
    """The position in the source; None for its beginning."""
    heads: Heads
    chain: tuple[str, ...] = ()
    """The names of the manifests that define the state, oldest first."""
    before: str = ""
    """The name of the previous state; empty if this is the first one, or if there is none yet."""
    withheld: Mapping[int, int] = field(default_factory=dict)
    """The number of withheld keys by the number of the view that shows them, without zeros."""

    def head(self, stage: int, bucket: int) -> LogHead:
        """Returns the head of a bucket's log."""
        return self.heads.get((stage, bucket), EMPTY_LOG)

    def stage_bytes(self) -> dict[int, int]:
        """Returns the size of what each stage keeps, before compression."""
        sizes: dict[int, int] = {}
        for (stage, _), head in self.heads.items():
            sizes[stage] = sizes.get(stage, 0) + head.live_bytes
        return sizes

    def segments(self) -> set[str]:
        """Returns the names of all segments that contain parts of the state."""
        return {blob.segment for head in self.heads.values() for blob in head.blobs}


NO_STATE: Final = State("", -1, None, {})


@dataclass(frozen=True, slots=True)
class WrittenManifest:
    """A manifest with its name."""

    name: str
    data: bytes = field(repr=False)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Manifest)


def next_state(
    before: State,
    fingerprint: str,
    position: Mapping[str, Any],
    updates: Iterable[LogUpdate],
    withheld: Mapping[int, int] | None = None,
) -> tuple[State, WrittenManifest]:
    """Returns the state that a batch leads to, and its manifest. There is at most one update for each log.

    This many more keys are withheld in it, by the number of the view that shows them.
    """
    updates = tuple(updates)
    counts = Counter(before.withheld)
    counts.update(withheld or {})
    counts = +counts
    heads = _heads_after(before.heads, updates)
    is_whole = not before.chain or len(before.chain) >= MAX_CHAIN
    manifest = Manifest(
        version=_VERSION,
        batch_id=before.batch_id + 1,
        fingerprint=fingerprint,
        position=dict(position),
        before=before.name,
        updates=() if is_whole else updates,
        is_whole=is_whole,
        heads=tuple((*place, head) for place, head in sorted(heads.items())) if is_whole else (),
        withheld=dict(sorted(counts.items())),
    )
    data = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(_ENCODER.encode(manifest))
    written = WrittenManifest(_name(manifest.batch_id, data), data)
    chain = (written.name,) if is_whole else (*before.chain, written.name)
    state = State(written.name, manifest.batch_id, position, heads, chain, before.name, manifest.withheld)
    return state, written


def read_state(
    store: StateStore,
    name: str,
    fingerprint: str,
    known: Mapping[str, State] | None = None,
    told: Iterable[WrittenManifest] = (),
) -> State:
    """Reads the state that a manifest names.

    The name is empty if nothing has been processed yet. Known states, and manifests that the caller has been
    told, do not have to be read.

    Raises:
        StateError: A manifest is missing or damaged, or belongs to other stages or another version.
    """
    return read_states(store, name, fingerprint, known, told)[-1]


def read_states(
    store: StateStore,
    name: str,
    fingerprint: str,
    known: Mapping[str, State] | None = None,
    told: Iterable[WrittenManifest] = (),
) -> list[State]:
    """Reads a state like :func:`read_state`, and the states before it in its chain, oldest first."""
    known, contents = known or {}, {each.name: each.data for each in told}
    later: list[tuple[str, Manifest]] = []
    states = [NO_STATE]
    while name:
        if (found := known.get(name)) is not None:
            states = [found]
            break
        manifest = decode_manifest(name, contents.get(name) or _read(store, name), fingerprint)
        later.append((name, manifest))
        name = "" if manifest.is_whole else manifest.before
    for each, manifest in reversed(later):
        states.append(state_after(states[-1], each, manifest))
    return states if states[-1] is NO_STATE else [state for state in states if state is not NO_STATE]


def state_after(before: State, name: str, manifest: Manifest) -> State:
    """Returns the state of a manifest; `before` is the previous state, unless the manifest is whole."""
    if manifest.is_whole:
        heads = {(stage, bucket): head for stage, bucket, head in manifest.heads}
        chain: tuple[str, ...] = (name,)
    else:
        heads, chain = _heads_after(before.heads, manifest.updates), (*before.chain, name)
    position, withheld = manifest.position, manifest.withheld
    return State(name, manifest.batch_id, position, heads, chain, manifest.before, withheld)


def decode_manifest(name: str, data: bytes, fingerprint: str | None = None) -> Manifest:
    """Decodes the manifest of this name; without a fingerprint, one of any stages.

    Raises:
        StateError: It is damaged, or belongs to another version or to other stages.
    """
    try:
        if name != _name(batch_of(name), data):
            raise _unreadable(name, "its content does not match its name")
        manifest = _DECODER.decode(zstandard.ZstdDecompressor().decompress(data))
    except (msgspec.DecodeError, zstandard.ZstdError) as error:
        raise _unreadable(name, str(error)) from error
    if manifest.version != _VERSION:
        raise _unreadable(name, f"it has version {manifest.version}, expected {_VERSION}")
    if fingerprint is not None and manifest.fingerprint != fingerprint:
        raise _unreadable(
            name, "it belongs to other stages; a changed view or another version needs a new checkpoint"
        )
    return manifest


def history(store: StateStore) -> list[str]:
    """Returns the names of all manifests in a store, in the order of their batches."""
    return sorted(name for name in store.list(MANIFESTS) if _is_name(name))


def batch_of(name: str) -> int:
    """Returns the number of the batch that a manifest or a segment belongs to, given its name.

    Raises:
        StateError: The name has another form.
    """
    number = name.partition("-")[0]
    if not number.isdecimal():
        raise _unreadable(name, "its name contains no batch number")
    return int(number)


def segment_name(batch_id: int, suffix: str) -> str:
    """Returns the name of a segment."""
    return f"{batch_id:0{_NUMBER_DIGITS}d}-{suffix}"


def manifest_path(name: str) -> str:
    """Returns the path of a manifest in its store."""
    return f"{MANIFESTS}/{name}"


def segment_path(name: str) -> str:
    """Returns the path of a segment in its store."""
    return f"{SEGMENTS}/{name}"


class SegmentReader:
    """Implements :class:`~slackwater.engine.state.log.BlobSource`. Use it from one thread."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._beginnings: OrderedDict[str, bytes] = OrderedDict()

    def read(self, blob: Blob) -> bytes:
        """Returns the bytes of a blob, which may be damaged."""
        end = blob.offset + blob.length
        path = segment_path(blob.segment)
        if end > _SMALL_BYTES:
            return self._store.read_part(path, blob.offset, blob.length)
        beginning = self._beginnings.get(blob.segment)
        if beginning is None:
            beginning = self._store.read_part(path, 0, _SMALL_BYTES)
            self._beginnings[blob.segment] = beginning
            if len(self._beginnings) > _KEPT_SEGMENTS:
                self._beginnings.popitem(last=False)
        return beginning[blob.offset : end]


def _heads_after(heads: Heads, updates: Iterable[LogUpdate]) -> dict[tuple[int, int], LogHead]:
    after = dict(heads)
    for update in updates:
        place = update.stage, update.bucket
        head = update.after(after.get(place, EMPTY_LOG))
        if head.blobs:
            after[place] = head
        else:
            after.pop(place, None)
    return after


def _name(batch_id: int, data: bytes) -> str:
    return f"{batch_id:0{_NUMBER_DIGITS}d}-{hashlib.sha256(data).hexdigest()[:_DIGEST_DIGITS]}"


def _is_name(name: str) -> bool:
    number, _, digest = name.partition("-")
    return number.isdecimal() and len(digest) == _DIGEST_DIGITS


def _read(store: StateStore, name: str) -> bytes:
    data = store.read(manifest_path(name))
    if data is None:
        raise missing_file("of this pipeline", manifest_path(name))
    return data


def _unreadable(name: str, reason: str) -> StateError:
    return StateError(
        f"manifest {name} of the state cannot be used: {reason}. Restore the checkpoint or start with a new "
        "one"
    )


KEPT_STATES: Final = 10
"""The number of the newest states that stay readable."""

_SWEEP_INTERVAL: Final = 16
"""The number of batches between two searches for files that no kept state needs."""

PUBLISHED: Final = "published"
"""A file that exists if some batch has been committed; it contains the name of the first one's manifest."""


class StateKeeper:
    """Writes the state of batches, and knows the newest states. Use it for one run, from one thread.

    A state of stages with another fingerprint is refused.
    """

    def __init__(self, store: StateStore, fingerprint: str) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._kept: deque[State] = deque([NO_STATE], maxlen=KEPT_STATES)
        self._prepared: tuple[State, WrittenManifest] | None = None
        self.newest_manifest: WrittenManifest | None = None
        """The manifest of the state; None if it was not written by this keeper."""

    @property
    def state(self) -> State:
        """The state after the newest committed batch."""
        return self._kept[-1]

    def open(self, name: str) -> State:
        """Begins with the state that the output's progress record names; empty if the output has no batch.

        Raises:
            StateError: The state is missing, damaged or belongs to other stages; or a batch was
                committed before that the output does not contain.
        """
        if not name and self._has_published():
            raise StateError(
                "the checkpoint contains the state of published batches, but the output's progress records "
                "are gone; restore the output, or start over with a new checkpoint"
            )
        states = read_states(self._store, name, self._fingerprint)
        if len(states) < KEPT_STATES and states[0].before:
            with suppress(StateError):  # it was swept
                states = read_states(self._store, states[0].before, self._fingerprint) + states
        self._kept = deque(states, maxlen=KEPT_STATES)
        self._prepared = None
        self.newest_manifest = None
        return self.state

    def prepare(
        self,
        position: Mapping[str, Any],
        writes: Iterable[LogWrite],
        updates: Iterable[LogUpdate] = (),
        withheld: Mapping[int, int] | None = None,
    ) -> str:
        """Writes the state that the next batch leads to; returns the name of its manifest.

        It may be called again, with another batch, as long as none has been adopted. Blobs of `updates` are
        in segments that tasks have written, those of `writes` are not in one yet. This many more keys are
        `withheld`, by the number of the view that shows them.
        """
        updates = list(updates)
        if writes := list(writes):
            name = segment_name(self.state.batch_id + 1, uuid.uuid4().hex)
            data, placed = place_writes(name, writes)
            if data:
                self._store.write(segment_path(name), data)
            updates += placed
        updates.sort(key=lambda update: (update.stage, update.bucket))
        state, manifest = next_state(self.state, self._fingerprint, position, updates, withheld)
        self._store.write(manifest_path(manifest.name), manifest.data)
        self._prepared = state, manifest
        return manifest.name

    def adopt(self, name: str) -> None:
        """Makes the prepared state the current one, and from time to time removes files that are not needed.

        Raises:
            StateError: Another state was prepared last.
        """
        if self._prepared is None or self._prepared[0].name != name:
            msg = f"manifest {name} of the state is not the one that was prepared last"
            raise StateError(msg)
        (state, self.newest_manifest), self._prepared = self._prepared, None
        self._kept.append(state)
        if state.batch_id == 0:
            self._store.write(PUBLISHED, name.encode())
        if state.batch_id % _SWEEP_INTERVAL == 0:
            self.sweep()

    def prepared_position(self) -> Mapping[str, Any] | None:
        """Returns where the batch after the state ends, if an earlier run has prepared it.

        It is for outputs to which a repeated batch must be passed exactly as it was: all runs into such an
        output end the batch at the same position.

        Raises:
            StateError: A manifest is damaged.
        """
        found = [name for name in history(self._store) if batch_of(name) == self.state.batch_id + 1]
        manifests = (
            decode_manifest(name, self._store.read(manifest_path(name)) or b"", self._fingerprint)
            for name in found
        )
        follow = [each for each in manifests if each.before == self.state.name]
        return follow[-1].position if follow else None

    def sweep(self) -> list[str]:
        """Removes files that no kept state needs, up to the newest committed batch; returns their paths.

        Files of later batches are left alone, because a run that has taken over may have written them.
        """
        manifests = {name for state in self._kept for name in state.chain}
        segments = {name for state in self._kept for name in state.segments()}
        newest = self.state.batch_id
        removed = [
            *(manifest_path(name) for name in self._unneeded(MANIFESTS, manifests, newest)),
            *(segment_path(name) for name in self._unneeded(SEGMENTS, segments, newest)),
        ]
        self._store.delete(removed)
        return removed

    def _unneeded(self, folder: str, needed: set[str], newest: int) -> list[str]:
        found = (name for name in self._store.list(folder) if name.partition("-")[0].isdecimal())
        return sorted(name for name in found if name not in needed and batch_of(name) <= newest)

    def _has_published(self) -> bool:
        if self._store.read(PUBLISHED) is not None:
            return True
        return any(batch_of(name) > 0 for name in history(self._store))
