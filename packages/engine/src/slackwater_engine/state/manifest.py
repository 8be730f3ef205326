"""Manifests: what the state of a pipeline is after a batch, and where it lies.

A manifest says what its batch does to the logs of buckets, and names the manifest before it; every so often
one has all heads, so that a state is read from a short chain. Manifests are immutable and named by their
content: who has a name has exactly one state, or an error.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
import zstandard

from slackwater_engine.errors import EngineStateError
from slackwater_engine.state.log import EMPTY_LOG, LogHead, LogUpdate
from slackwater_engine.state.store import StateStore, missing_file

MANIFESTS: Final = "manifests"
SEGMENTS: Final = "segments"
"""Folders of a checkpoint."""

MAX_CHAIN: Final = 64
"""The most manifests that are read for a state; each that has all heads takes as long as all that follow."""

_VERSION: Final = 1
_NUMBER_DIGITS: Final = 20
_DIGEST_DIGITS: Final = 32
_COMPRESSION_LEVEL: Final = 1

Heads = Mapping[tuple[int, int], LogHead]
"""The heads of logs by stage and bucket; buckets without contents are absent."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The form of a manifest in the store."""

    version: int
    batch_id: int
    fingerprint: str
    """Of the stages; state of other ones is refused."""
    position: dict[str, Any]
    """Where the source stands after the batch."""
    before: str = ""
    """The name of the manifest before; empty in that of the first batch."""
    updates: tuple[LogUpdate, ...] = ()
    """What the batch does to logs, unless the manifest is whole."""
    is_whole: bool = False
    """Whether the state can be read from this manifest alone."""
    heads: tuple[tuple[int, int, LogHead], ...] = ()
    """In a whole manifest: stage, bucket and head of each log."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a pipeline after a batch."""

    name: str
    """Of its manifest; empty: nothing has been processed yet."""
    batch_id: int
    position: Mapping[str, Any] | None
    """Where the source stands; None: at its beginning."""
    heads: Heads
    chain: tuple[str, ...] = ()
    """The names of the manifests that say so, oldest first."""
    before: str = ""
    """The name of the state before; empty: this is the first one, or there is none yet."""

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
        """Returns the names of all segments in which the state lies."""
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
    """Returns the state that a batch leads to, and the manifest that says so.

    Args:
        before: The state before the batch.
        fingerprint: Of the stages.
        position: Where the source stands after the batch.
        updates: What the batch does to logs, at most one for each.
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
        ...


def read_state(
    store: FileSource, name: str, fingerprint: str, known: Mapping[str, State] | None = None
) -> State:
    """Reads the state that a manifest names.

    Args:
        store: Of the checkpoint.
        name: Of the manifest; empty: nothing has been processed yet.
        fingerprint: Of the stages.
        known: States by name that need not be read again.

    Raises:
        EngineStateError: A manifest is missing or damaged, or of other stages or another version.
        EngineUnavailableError: The store does not answer.
    """
    return read_states(store, name, fingerprint, known)[-1]


def read_states(
    store: FileSource, name: str, fingerprint: str, known: Mapping[str, State] | None = None
) -> list[State]:
    """Reads a state like :func:`read_state`, and those that it follows from, oldest first."""
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
    """Returns the state that a manifest says; `before` is the one it follows, unless it is whole."""
    if manifest.is_whole:
        heads = {(stage, bucket): head for stage, bucket, head in manifest.heads}
        return State(name, manifest.batch_id, manifest.position, heads, (name,), manifest.before)
    heads = _heads_after(before.heads, manifest.updates)
    return State(name, manifest.batch_id, manifest.position, heads, (*before.chain, name), manifest.before)


def decode_manifest(name: str, data: bytes, fingerprint: str | None = None) -> Manifest:
    """Reads a manifest.

    Args:
        name: Its name, which tells what it must hold.
        data: What the store has under it.
        fingerprint: Of the stages; None: any.

    Raises:
        EngineStateError: It is damaged, of another version or of other stages.
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
        EngineUnavailableError: The store does not answer.
    """
    return sorted(name for name in store.list(MANIFESTS) if _is_name(name))


def batch_of(name: str) -> int:
    """Returns the number of the batch that a manifest or a segment is of, by its name.

    Raises:
        EngineStateError: This is no such name.
    """
    number = name.partition("-")[0]
    if not number.isdecimal():
        raise _unreadable(name, "its name contains no batch number")
    return int(number)


def segment_name(batch_id: int, suffix: str) -> str:
    """Returns the name of a segment."""
    return f"{batch_id:0{_NUMBER_DIGITS}d}-{suffix}"


def manifest_path(name: str) -> str:
    """Returns where a manifest lies in its store."""
    return f"{MANIFESTS}/{name}"


def segment_path(name: str) -> str:
    """Returns where a segment lies in its store."""
    return f"{SEGMENTS}/{name}"


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


def _unreadable(name: str, reason: str) -> EngineStateError:
    return EngineStateError(
        f"manifest {name} of the state cannot be used: {reason}. Restore the checkpoint or start with a new "
        "one"
    )
