"""Keeps the state of a running pipeline: what a batch leads to is written first, and adopted when it is true.

A batch becomes true with the progress record of its output, which names the manifest. Whatever else lies in
the store was left by attempts that were lost, and is removed when later batches are true. Files of batches
that this run has not adopted are left alone: a run that has taken over may have written them.
"""

import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from slackwater_engine.errors import EngineStateError
from slackwater_engine.state.log import LogUpdate, LogWrite, place_writes
from slackwater_engine.state.manifest import (
    MANIFESTS,
    NO_STATE,
    SEGMENTS,
    Manifest,
    State,
    WrittenManifest,
    batch_of,
    decode_manifest,
    history,
    manifest_path,
    next_state,
    read_states,
    segment_name,
    segment_path,
)
from slackwater_engine.state.store import StateStore

KEPT_STATES: Final = 10
"""The number of the newest states that stay readable."""

_SWEEP_INTERVAL: Final = 16
"""In batches: between two looks for files that no kept state needs."""

PUBLISHED: Final = "published"
"""A file that says that some batch has become true; it names the manifest of the first one."""


class StateKeeper:
    """Writes the state of batches, and remembers the newest ones; for one run and one thread.

    Args:
        store: Of the checkpoint.
        fingerprint: Of the pipeline's stages; state of other ones is refused.
    """

    def __init__(self, store: StateStore, fingerprint: str) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._kept: deque[State] = deque([NO_STATE], maxlen=KEPT_STATES)
        self._prepared: tuple[State, WrittenManifest] | None = None
        self.newest_manifest: WrittenManifest | None = None
        """That of the state; None: it was not written by this keeper."""

    @property
    def state(self) -> State:
        """The state after the newest batch that is true."""
        return self._kept[-1]

    def open(self, name: str) -> State:
        """Begins with the state that the output's progress names; empty: the output has no batch.

        Raises:
            EngineStateError: The state is missing, damaged or of other stages; or a batch was true before, of
                which the output knows nothing.
            EngineUnavailableError: The store does not answer.
        """
        if not name and self._has_published():
            raise EngineStateError(
                "the checkpoint contains the state of published batches, but the output's progress records "
                "are gone; restore the output, or start over with a new checkpoint"
            )
        states = read_states(self._store, name, self._fingerprint)
        if len(states) < KEPT_STATES and states[0].before:
            with suppress(EngineStateError):  # it was swept
                states = read_states(self._store, states[0].before, self._fingerprint) + states
        self._kept = deque(states, maxlen=KEPT_STATES)
        self._prepared = None
        self.newest_manifest = None
        return self.state

    def prepare(
        self, position: Mapping[str, Any], writes: Iterable[LogWrite], updates: Iterable[LogUpdate] = ()
    ) -> str:
        """Writes the state that the next batch leads to; returns the name of its manifest.

        May be repeated, with another batch, while none is adopted.

        Args:
            position: Where the source stands after the batch.
            writes: What the batch does to logs, for blobs that have no place yet.
            updates: Likewise, for blobs in segments that tasks have written.

        Raises:
            EngineUnavailableError: The store does not take it.
        """
        updates = list(updates)
        if writes := list(writes):
            name = segment_name(self.state.batch_id + 1, uuid.uuid4().hex)
            data, placed = place_writes(name, writes)
            if data:
                self._store.write(segment_path(name), data)
            updates += placed
        updates.sort(key=lambda update: (update.stage, update.bucket))
        state, manifest = next_state(self.state, self._fingerprint, position, updates)
        self._store.write(manifest_path(manifest.name), manifest.data)
        self._prepared = state, manifest
        return manifest.name

    def adopt(self, name: str) -> None:
        """Notes that the prepared state is true, and removes what no kept state needs, now and then.

        Raises:
            EngineStateError: Another state was prepared last.
            EngineUnavailableError: The store does not answer.
        """
        if self._prepared is None or self._prepared[0].name != name:
            msg = f"manifest {name} of the state is not the one that was prepared last"
            raise EngineStateError(msg)
        (state, self.newest_manifest), self._prepared = self._prepared, None
        self._kept.append(state)
        if state.batch_id == 0:
            self._store.write(PUBLISHED, name.encode())
        if state.batch_id % _SWEEP_INTERVAL == 0:
            self.sweep()

    def prepared_position(self) -> Mapping[str, Any] | None:
        """Returns where the batch after the state ends, if an earlier run has prepared it.

        For outputs that are told a batch again exactly as it was: all runs into one end it at the same place.

        Raises:
            EngineStateError: A manifest is damaged.
            EngineUnavailableError: The store does not answer.
        """
        found = [name for name in history(self._store) if batch_of(name) == self.state.batch_id + 1]
        manifests = [self._manifest(name) for name in found]
        follow = [each for each in manifests if self._follows(each)]
        return follow[-1].position if follow else None

    def sweep(self) -> list[str]:
        """Removes files that no kept state needs, of batches up to the newest true one; returns their paths.

        Raises:
            EngineUnavailableError: The store does not answer.
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

    def _manifest(self, name: str) -> Manifest:
        data = self._store.read(manifest_path(name)) or b""
        return decode_manifest(name, data, self._fingerprint)

    def _follows(self, manifest: Manifest) -> bool:
        return manifest.before == self.state.name
