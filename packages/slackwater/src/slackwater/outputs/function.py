"""The sink that passes batches to a function, each at least once.

The progress is a file of the checkpoint, which is written after the function has returned. If the process
ends before that, the function receives the batch again. Nothing fences an earlier run, so this sink holds an
exclusive lock on its checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from itertools import chain
from typing import Final

from slackwater.engine.payloads import DocumentBatch
from slackwater.engine.settings import Scope
from slackwater.engine.state.store import StateStore
from slackwater.outputs.batch import BatchCommits
from slackwater.outputs.contract import SinkSettings
from slackwater.outputs.sink import Sink, Written
from slackwater.protocol import (
    CommitPosition,
    MalformedRecordError,
    ProgressRecord,
    StateError,
    decode_progress_record,
    encode_progress_record,
    nothing_visible,
)

PROGRESS_FILE: Final = "progress.json"
"""The progress record of the newest batch whose function has returned."""


class FunctionFailedError(Exception):
    """Wraps an error that a function has raised, so that no other code handles it as its own error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class FunctionSink(Sink):
    """A :class:`~slackwater.outputs.sink.Sink` that calls a function.

    Args:
        function: Called with each batch, in which a key occurs once in a view, or once in each commit that
            changes it. An error that it raises is raised as :class:`FunctionFailedError`, and it receives the
            batch again.
        keys_move: For each view, whether a document's key may move from one bucket to another.
        store: The store of the checkpoint, which contains the progress.
        place: The name of the checkpoint, for messages.
        hold: Locks the checkpoint for the time of its block, or refuses.
    """

    def __init__(
        self,
        function: Callable[[BatchCommits], None],
        settings: SinkSettings,
        *,
        keys_move: Sequence[bool],
        store: StateStore,
        place: str,
        hold: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(settings, place, f"{PROGRESS_FILE} in {place}")
        self._function = function
        self._keys_move = keys_move
        self._store = store
        self._hold = hold
        self._run = ""  # no record of it fences anything
        self._held = ExitStack()
        self._progress: ProgressRecord | None = None
        self._put_progress = nothing_visible(settings.pipeline)
        """The progress to be recorded, because the function has returned."""

    def hold(self, commits: Mapping[CommitPosition, datetime]) -> Mapping[CommitPosition, str]:
        """See :meth:`Sink.hold`. Nothing is kept for readers."""
        return dict.fromkeys(commits, "its documents are passed to a function, and are not kept for readers")

    def close(self) -> None:
        """See :meth:`Sink.close`. Releases the checkpoint."""
        self._held.close()

    def _read(self) -> ProgressRecord | None:
        data = self._store.read(PROGRESS_FILE)
        if data is None:
            return None
        try:
            return decode_progress_record(data)
        except MalformedRecordError as error:
            raise StateError(
                f"{self._kept_in} cannot be read: {error}", "restore the checkpoint, or start with a new one"
            ) from error

    def _take_over(self) -> ProgressRecord | None:
        """Locks the checkpoint, and returns the newest batch whose function has returned."""
        self._held.enter_context(self._hold())
        self._progress = self._read()
        return self._progress

    def _begin(self, batch: DocumentBatch) -> ProgressRecord | None:
        return self._progress

    def _put(self, batch: DocumentBatch, progress: ProgressRecord) -> Written:
        """Calls the function, once all documents of the batch have been read."""
        commits = BatchCommits(batch, self._settings.emit, Scope.STRICT, self._keys_move)
        written = Written()
        for _, _, document in chain.from_iterable(map(commits.shown, range(len(self._keys_move)))):
            written.documents += 1
            written.deletes += document is None
        try:
            self._function(commits)
        except Exception as error:
            raise FunctionFailedError(error) from error
        self._put_progress = progress
        return written

    def _commit(self) -> None:
        self._store.write(PROGRESS_FILE, encode_progress_record(self._put_progress))
        self._progress = self._put_progress

    def _discard(self) -> None:
        """Leaves it to the function what it does with a batch that it receives again."""
