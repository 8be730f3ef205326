"""Writes and removes the state of a running pipeline: prepares each state, and adopts it when committed.

A batch is committed with the progress record of its output, which names the manifest. All other files in the
store belong to attempts that were lost, and are removed when later batches have been committed. Files of
batches that this run has not adopted are left alone, because a run that has taken over may have written them.
"""

import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from slackwater.engine.state.log import LogUpdate, LogWrite, place_writes
from slackwater.engine.state.manifest import (
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
from slackwater.engine.state.store import StateStore
from slackwater.protocol import StateError

KEPT_STATES: Final = 10
"""The number of the newest states that stay readable."""

_SWEEP_INTERVAL: Final = 16
"""The number of batches between two searches for files that no kept state needs."""

PUBLISHED: Final = "published"
"""A file that exists if some batch has been committed; it contains the name of the first one's manifest."""


class StateKeeper:
    """Writes the state of batches, and knows the newest states. Use it for one run, from one thread.

    Args:
        store: The store of the checkpoint.
        fingerprint: The fingerprint of the pipeline's stages; a state of other stages is refused.
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
            UnavailableError: The store does not answer.
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
        self, position: Mapping[str, Any], writes: Iterable[LogWrite], updates: Iterable[LogUpdate] = ()
    ) -> str:
        """Writes the state that the next batch leads to; returns the name of its manifest.

        It may be called again, with another batch, as long as none has been adopted.

        Args:
            position: The position in the source after the batch.
            writes: The changes of logs whose blobs are not in a segment yet.
            updates: The changes of logs whose blobs are in segments that tasks have written.

        Raises:
            UnavailableError: The store does not accept it.
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
        """Makes the prepared state the current one, and from time to time removes files that are not needed.

        Raises:
            StateError: Another state was prepared last.
            UnavailableError: The store does not answer.
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
            UnavailableError: The store does not answer.
        """
        found = [name for name in history(self._store) if batch_of(name) == self.state.batch_id + 1]
        manifests = [self._manifest(name) for name in found]
        follow = [each for each in manifests if self._follows(each)]
        return follow[-1].position if follow else None

    def sweep(self) -> list[str]:
        """Removes files that no kept state needs, up to the newest committed batch; returns their paths.

        Raises:
            UnavailableError: The store does not answer.
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
