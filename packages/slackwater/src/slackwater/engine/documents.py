"""The documents of a batch, as the stages pass them to a sink.

The stages emit rows ``(stage, bucket, sequence, payload)``. The stages -1, -2, ... are the documents of views
0, 1, ...: such a payload is ``zstd(msgpack([(commit LSN, key, document or nil), ...]))``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter

import msgspec
import zstandard

from slackwater.engine.payloads import Document, PackedPayload, unpack_change
from slackwater.protocol import BatchHeader, StateError

_DECODER = msgspec.msgpack.Decoder(list[Document])


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Everything that one batch changes in the views of a pipeline."""

    batch_id: int
    """The number of the batch. The batches of a pipeline are numbered from 0 without gaps."""
    header: BatchHeader
    payloads: Mapping[int, tuple[bytes, ...]]
    """The packed documents by the number of the view, with one payload per bucket or part of a bucket."""
    state: str
    """The name of the manifest of the state, which becomes valid when the documents become visible."""

    @property
    def size_bytes(self) -> int:
        """The size of the documents, packed but not compressed.

        Raises:
            StateError: A payload is not what a stage writes.
        """
        try:
            return sum(
                max(0, zstandard.frame_content_size(payload))
                for payloads in self.payloads.values()
                for payload in payloads
            )
        except zstandard.ZstdError as error:
            raise malformed_batch(self.batch_id, f"unreadable payload: {error}") from error

    def chunks(self, view: int) -> Iterator[list[Document]]:
        """Yields a view's documents payload by payload, in no particular order.

        Raises:
            StateError: A payload is not what a stage writes.
        """
        return decode_documents(self.batch_id, self.payloads.get(view, ()))

    def settled(self, view: int, *, every_commit: bool) -> Iterator[list[Document]]:
        """Yields a view's documents as :func:`without_moved` leaves them, payload by payload."""
        return without_moved(partial(self.chunks, view), every_commit=every_commit)


def without_moved(
    chunks: Callable[[], Iterable[list[Document]]], *, every_commit: bool
) -> Iterator[list[Document]]:
    """Yields the documents of a view without the deletes of keys that moved from one bucket to another.

    For such a key, one bucket sends a delete and the other sends a document; the document counts.

    Args:
        chunks: Returns all documents of a batch; called several times.
        every_commit: Whether the documents are those of each commit, and not of the batch as a whole.
    """
    gone = {_state(d, every_commit) for chunk in chunks() for d in chunk if d[2] is None}
    moved: set[tuple[int, bytes]] = set()
    if gone:
        there = (_state(d, every_commit) for chunk in chunks() for d in chunk if d[2] is not None)
        moved = gone.intersection(there)
    if not moved:
        return iter(chunks())
    return (
        [d for d in chunk if d[2] is not None or _state(d, every_commit) not in moved] for chunk in chunks()
    )


def moved_before(chunks: Callable[[], Iterable[list[Document]]]) -> dict[tuple[int, bytes], bytes]:
    """Returns the earlier documents of keys that moved between buckets, by commit LSN and key.

    For such a key, one bucket sends a change to nothing, and the other one a change from nothing.

    Args:
        chunks: Returns all documents of a batch, as changes; called twice.

    Raises:
        msgspec.MsgspecError: A document is not a change.
    """
    gone = {}
    for lsn, key, change in chain.from_iterable(chunks()):
        before, after = unpack_change(change or b"")
        if before is not None and after is None:
            gone[lsn, key] = before
    if not gone:
        return gone
    changes = chain.from_iterable(chunks())
    come = {
        (lsn, key)
        for lsn, key, change in changes
        if (lsn, key) in gone and unpack_change(change or b"")[1] is not None
    }
    return {state: gone[state] for state in come}


def settled(documents: list[Document], *, every_commit: bool) -> list[Document]:
    """Returns the documents of a view in commit order, as :func:`without_moved` leaves them."""
    return in_commit_order(without_moved(lambda: [documents], every_commit=every_commit))


def in_commit_order(chunks: Iterable[list[Document]]) -> list[Document]:
    """Returns all documents, ascending by commit LSN."""
    return sorted(chain.from_iterable(chunks), key=itemgetter(0))


def _state(document: Document, every_commit: bool) -> tuple[int, bytes]:
    """Returns the moment and the key, for which there can be only one document."""
    return document[0] if every_commit else 0, document[1]


def malformed_batch(batch_id: int, reason: str) -> StateError:
    """Returns the error for a batch that cannot be written as it was passed."""
    return StateError(
        f"batch {batch_id} cannot be written: {reason}; source, stage and sink must have the same version"
    )


def documents_by_view(batch_id: int, rows: Iterable[PackedPayload]) -> dict[int, tuple[bytes, ...]]:
    """Returns the packed documents in what the stages have sent, by the number of the view.

    Raises:
        StateError: Some of the payloads contain events for a stage.
    """
    documents: dict[int, list[bytes]] = {}
    for stage, _, _, payload in rows:
        if stage >= 0:
            raise malformed_batch(batch_id, f"the sink received events for stage {stage}")
        documents.setdefault(-stage - 1, []).append(payload)
    return {view: tuple(packed) for view, packed in documents.items()}


def decode_documents(batch_id: int, payloads: Iterable[bytes]) -> Iterator[list[Document]]:
    """Yields the documents, payload by payload.

    Raises:
        StateError: A payload was not written by a stage.
    """
    decompress = zstandard.ZstdDecompressor().decompress
    for payload in payloads:
        try:
            yield _DECODER.decode(decompress(payload))
        except (msgspec.MsgspecError, zstandard.ZstdError) as error:
            raise malformed_batch(batch_id, f"unreadable payload: {error}") from error
