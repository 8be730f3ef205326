"""The sink that passes batches to a function, each at least once.

The progress is a file of the checkpoint, which is written after the function has returned. If the process
ends before that, the function receives the batch again. Nothing fences an earlier run, so this sink holds an
exclusive lock on its checkpoint.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from itertools import chain
from typing import Final

from slackwater.engine.documents import DocumentBatch
from slackwater.engine.payloads import Document
from slackwater.engine.settings import Scope
from slackwater.engine.state.store import StateStore
from slackwater.outputs.batch import BatchCommits, check_owner, is_covered, progress_after
from slackwater.outputs.contract import Emit, WriteReport
from slackwater.protocol import (
    BatchHeader,
    CommitPosition,
    MalformedRecordError,
    ProgressRecord,
    StateError,
    SystemClock,
    decode_progress_record,
    encode_progress_record,
)

PROGRESS_FILE: Final = "progress.json"
"""The progress record of the newest batch whose function has returned."""


class SettledBatch:
    """A batch as a function receives it: a key occurs once in a view, or once in each commit that changes it.

    Args:
        batch: The batch.
        emit: Which states are published.
        keys_move: For each view, whether a document's key may move from one bucket to another.

    Raises:
        StateError: It has documents of another view.
    """

    def __init__(self, batch: DocumentBatch, emit: Emit, keys_move: Sequence[bool]) -> None:
        self.batch_id: int = batch.batch_id
        self.header: BatchHeader = batch.header
        self._commits = BatchCommits(batch, emit, Scope.STRICT)
        self._commits.check_views(len(keys_move))
        self._keys_move = keys_move

    def documents(self, view: int) -> Iterator[Document]:
        """Returns a view's documents with the LSNs at which they are shown; those of a key in commit order.

        Raises:
            StateError: A document belongs to no commit of the batch, or cannot be read.
        """
        return self._commits.shown(view, keys_move=self._keys_move[view])


class FunctionFailedError(Exception):
    """Wraps an error that a function has raised, so that no other code handles it as its own error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class FunctionSink:
    """A :class:`~slackwater.outputs.contract.Sink` that calls a function.

    Args:
        function: Called with each batch.
        pipeline: The pipeline's name.
        emit: Which states are published.
        keys_move: For each view, whether a document's key may move from one bucket to another.
        store: The store of the checkpoint, which contains the progress.
        place: The name of the checkpoint, for messages.
        hold: Locks the checkpoint for the time of its block, or refuses.
    """

    def __init__(
        self,
        function: Callable[[SettledBatch], None],
        *,
        pipeline: str,
        emit: Emit,
        keys_move: Sequence[bool],
        store: StateStore,
        place: str,
        hold: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._function = function
        self._pipeline = pipeline
        self._emit = emit
        self._keys_move = keys_move
        self._store = store
        self._place = place
        self._hold = hold
        self._clock = SystemClock()
        self._held = ExitStack()
        self._progress: ProgressRecord | None = None

    @property
    def place(self) -> str:
        """See :meth:`Sink.place`."""
        return self._place

    def check(self, query_id: str | None) -> None:
        """See :meth:`Sink.check`.

        Raises:
            StateError: The progress belongs to another checkpoint, or cannot be read.
            UnavailableError: The store does not answer.
        """
        check_owner(self._pipeline, self._read(), query_id, self._kept_in)

    def open(self) -> ProgressRecord | None:
        """Locks the checkpoint, and returns the newest batch whose function has returned.

        Raises:
            UnavailableError: Another run holds the checkpoint.
            StateError: The progress cannot be read.
            UnavailableError: The store does not answer.
        """
        self._held.enter_context(self._hold())
        self._progress = self._read()
        return self._progress

    def write(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        """Calls the function, then records that it has returned.

        Raises:
            FunctionFailedError: The function has raised an error; it will receive the batch again.
            StateError: The progress belongs to another checkpoint, or the batch does not continue it.
            UnavailableError: The progress could not be written.
            StateError: The batch was not written by a stage; the function was not called.
        """
        check_owner(self._pipeline, self._progress, query_id, self._kept_in)
        settled = SettledBatch(batch, self._emit, self._keys_move)
        was_covered = is_covered(self._pipeline, batch, self._progress)
        started = self._clock.monotonic()
        documents = deletes = 0
        if not was_covered:
            for _, _, document in chain.from_iterable(map(settled.documents, range(len(self._keys_move)))):
                documents += 1
                deletes += document is None
            self._call(settled)
        returned = self._clock.monotonic()
        if not was_covered:
            self._note(query_id, batch)
        return WriteReport(
            batch_id=batch.batch_id,
            header=batch.header,
            documents=documents,
            deletes=deletes,
            was_covered=was_covered,
            produce_seconds=returned - started,
            commit_seconds=self._clock.monotonic() - returned,
            visible_at=self._clock.now(),
        )

    def hold(self, commits: Mapping[CommitPosition, datetime]) -> Mapping[CommitPosition, str]:
        """See :meth:`Sink.hold`. Nothing is kept for readers."""
        return dict.fromkeys(commits, "its documents are passed to a function, and are not kept for readers")

    def close(self) -> None:
        """Releases the checkpoint. Idempotent, never raises."""
        self._held.close()

    @property
    def _kept_in(self) -> str:
        return f"{PROGRESS_FILE} in {self._place}"

    def _call(self, batch: SettledBatch) -> None:
        try:
            self._function(batch)
        except Exception as error:
            raise FunctionFailedError(error) from error

    def _note(self, query_id: str, batch: DocumentBatch) -> None:
        progress = progress_after(self._pipeline, query_id, batch)
        self._store.write(PROGRESS_FILE, encode_progress_record(progress))
        self._progress = progress

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
