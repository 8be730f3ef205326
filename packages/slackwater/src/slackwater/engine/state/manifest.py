"""Manifests: what the state of a pipeline is after a batch, and where its parts are stored.

A manifest contains what its batch changed in the logs of buckets, and the name of the previous manifest. Some
manifests contain the heads of all logs, so that a state can be read from a short chain. Manifests are
immutable, and their names are derived from their content: a name leads to exactly one state, or to an error.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
import zstandard

from slackwater.engine.state.log import EMPTY_LOG, Blob, LogHead, LogUpdate
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
    before: State, fingerprint: str, position: Mapping[str, Any], updates: Iterable[LogUpdate]
) -> tuple[State, WrittenManifest]:
    """Returns the state that a batch leads to, and its manifest.

    Args:
        before: The state before the batch.
        fingerprint: The fingerprint of the stages.
        position: The position in the source after the batch.
        updates: The changes of logs by the batch, at most one for each log.
    """
    updates = tuple(updates)
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
    )
    data = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(_ENCODER.encode(manifest))
    written = WrittenManifest(_name(manifest.batch_id, data), data)
    chain = (written.name,) if is_whole else (*before.chain, written.name)
    return State(written.name, manifest.batch_id, position, heads, chain, before.name), written


class FileSource(Protocol):
    """Reads files as a store does."""

    def read(self, name: str) -> bytes | None:
        """See :meth:`StateStore.read`."""


def read_state(
    store: FileSource, name: str, fingerprint: str, known: Mapping[str, State] | None = None
) -> State:
    """Reads the state that a manifest names.

    Args:
        store: The store of the checkpoint.
        name: The name of the manifest; empty if nothing has been processed yet.
        fingerprint: The fingerprint of the stages.
        known: States by name that do not have to be read again.

    Raises:
        StateError: A manifest is missing or damaged, or belongs to other stages or another version.
        UnavailableError: The store does not answer.
    """
    return read_states(store, name, fingerprint, known)[-1]


def read_states(
    store: FileSource, name: str, fingerprint: str, known: Mapping[str, State] | None = None
) -> list[State]:
    """Reads a state like :func:`read_state`, and the states before it in its chain, oldest first."""
    known = known or {}
    later: list[tuple[str, Manifest]] = []
    states = [NO_STATE]
    while name:
        if (found := known.get(name)) is not None:
            states = [found]
            break
        manifest = decode_manifest(name, _read(store, name), fingerprint)
        later.append((name, manifest))
        name = "" if manifest.is_whole else manifest.before
    for each, manifest in reversed(later):
        states.append(state_after(states[-1], each, manifest))
    return states if states[-1] is NO_STATE else [state for state in states if state is not NO_STATE]


def state_after(before: State, name: str, manifest: Manifest) -> State:
    """Returns the state of a manifest; `before` is the previous state, unless the manifest is whole."""
    if manifest.is_whole:
        heads = {(stage, bucket): head for stage, bucket, head in manifest.heads}
        return State(name, manifest.batch_id, manifest.position, heads, (name,), manifest.before)
    heads = _heads_after(before.heads, manifest.updates)
    return State(name, manifest.batch_id, manifest.position, heads, (*before.chain, name), manifest.before)


def decode_manifest(name: str, data: bytes, fingerprint: str | None = None) -> Manifest:
    """Decodes a manifest.

    Args:
        name: Its name, with which the content must agree.
        data: The content of the file with this name.
        fingerprint: The fingerprint of the stages; None for any.

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
    """Returns the names of all manifests in a store, in the order of their batches.

    Raises:
        UnavailableError: The store does not answer.
    """
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
    """Implements :class:`~slackwater.engine.state.log.BlobSource`. Use it from one thread.

    Args:
        store: The store of the checkpoint.
    """

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


def _read(store: FileSource, name: str) -> bytes:
    data = store.read(manifest_path(name))
    if data is None:
        raise missing_file("of this pipeline", manifest_path(name))
    return data


def _unreadable(name: str, reason: str) -> StateError:
    return StateError(
        f"manifest {name} of the state cannot be used: {reason}. Restore the checkpoint or start with a new "
        "one"
    )
