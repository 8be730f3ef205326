"""The payloads that source, stages and sink exchange in a batch, and the outcome from which they are packed.

Payloads contain events or documents. They are exchanged as rows ``(stage, bucket, sequence, payload)``. The
stages -1, -2, ... are the documents of views 0, 1, ...: such a payload is ``zstd(msgpack([(commit LSN, key,
document or nil), ...]))``. What reads payloads raises StateError if one is not what its writer writes.
"""

import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Final

import msgspec
import zstandard

from slackwater.engine.state.entry import Change
from slackwater.protocol import BatchHeader, StateError

TOUCH_INPUT: Final = -2
"""The input of an event without a row, which states that the group of no columns exists from its LSN on."""

CLOCK_INPUT: Final = -3
"""The input of an event that moves the clock of rows that expire: its primary key is the commit time in
seconds since the epoch, as 8 bytes."""

TOUCH_SEQUENCE: Final = -1
"""The sequence of payloads with such events; no span of the source has it."""

EMPTY_KEY: Final = b"\x90"
"""The packed key of a stage or of a group without columns."""

PackedRow = bytes | tuple[bytes | None, ...] | None
"""A row as its codec packs it; None if it is deleted. In a tuple:

- ``(row,)``: the row lacks values, which an update left as they were;
- ``(row, None)``: so does a row that has come from another primary key in the same update;
- ``(row or None, old row)``: what has become of exactly this old row, as packers with old rows write it.
"""

Event = tuple[int, int, bytes, bytes, PackedRow, int]
"""``(commit LSN, input, stage key, primary key, row, lead)``; the keys are msgpack arrays of wire values.

If both keys are empty, it is a TRUNCATE, which removes all rows of the input. An event from another stage has
lead 0. Partials of aggregates are events, too: their input is -1 or the number of an accumulator, and they
have the group's key, no primary key, and the addition as a msgpack array. `lead` is the distance of the
change from its commit in the database's log, doubled; plus one unless the change brings another row under its
key. It is the only order of changes of different rows that a restart of the connector preserves.
"""

Events = dict[int, list[Event]]
"""Events by bucket."""

Document = tuple[int, bytes, bytes | None]
"""``(commit LSN, key as JSON, document as JSON)``; the document is None if the key has left the view.

In an output whose documents include the earlier ones, the last element is a change: see :func:`pack_change`.
"""

COMPRESSION_LEVEL: Final = 1
MAX_PAYLOAD_BYTES: Final = 4 << 20
"""The approximate maximum size, before compression, of payloads of documents, and of events between
stages."""

_OWN_SEQUENCES: Final = 1 << 62
_ARRAY_32: Final = b"\xdd"
_EVENTS = msgspec.msgpack.Decoder(list[Event])
_DOCUMENTS = msgspec.msgpack.Decoder(list[Document])
_ENCODER = msgspec.msgpack.Encoder()
PackedPayload = tuple[int, int, int, bytes]
"""``(stage, bucket, sequence, payload)``: from the source to the stages, between stages, and to the sink.

A negative stage identifies the view whose documents the payload contains.
"""

Partial = tuple[int, int, bytes, bytes]
"""``(commit LSN, number, packed key of the group, packed rest)``: what a change adds to a group."""


class _Zstd(threading.local):
    """The compression contexts of a thread. Creating one takes ten times as long as using it once."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd = _Zstd()


def bucket_of(key: bytes, buckets: int) -> int:
    """Returns the bucket of a packed stage key, which is the same in every process and version."""
    return zlib.crc32(key) % buckets


def documents_stage(view: int) -> int:
    """Returns the stage number of packed rows that contain documents of this view."""
    return -1 - view


def sequence_from(stage: int, bucket: int) -> int:
    """Returns the sequence of payloads from a bucket of a stage to later stages; no other sender has it."""
    return _OWN_SEQUENCES | stage << 32 | bucket


def pack_change(before: bytes | None, after: bytes | None) -> bytes:
    """Returns the change of a key's document as one value; None if the key is not in the view."""
    return _ENCODER.encode((before, after))


unpack_change: Final = msgspec.msgpack.Decoder(tuple[bytes | None, bytes | None]).decode
"""The inverse of :func:`pack_change`; raises ``msgspec.MsgspecError`` for any other value."""


def array_header(length: int) -> bytes:
    """Returns the header of a msgpack array, which precedes its items."""
    return _ARRAY_32 + length.to_bytes(4, "big")


def decode_events(bucket: int, payload: bytes) -> list[Event]:
    """Returns the events of one payload."""
    try:
        return _EVENTS.decode(_zstd.decompress(payload))
    except (msgspec.DecodeError, zstandard.ZstdError) as error:
        raise StateError(
            f"bucket {bucket}: the payload has an unknown form: {error}; check that driver and executors run "
            "the same version"
        ) from error


def with_documents(payload: bytes, change: Callable[[Document], Document]) -> bytes:
    """Returns a payload of documents with each of them changed.

    Raises:
        msgspec.MsgspecError, zstandard.ZstdError: The payload does not contain documents.
    """
    documents = _DOCUMENTS.decode(_zstd.decompress(payload))
    return _zstd.compress(_ENCODER.encode([change(document) for document in documents]))


def pack_items(items: Iterable[Document] | Iterable[Event]) -> Iterator[bytes]:
    """Yields documents or events in their order, packed into payloads of limited size."""
    compress = _zstd.compress
    buffer, count = bytearray(), 0
    for item in items:
        _ENCODER.encode_into(item, buffer, -1)
        count += 1
        if len(buffer) >= MAX_PAYLOAD_BYTES:
            yield compress(array_header(count) + buffer)
            buffer, count = bytearray(), 0
    if count:
        yield compress(array_header(count) + buffer)


class Outcome:
    """Collects changes of entries, events for later stages, partials for the own accumulators, and documents.

    Attributes:
        changes: The changes of entries; each name occurs at most once.
        growths: By how many bytes each change increases the size of the live entries.
        documents: The documents by view, in the order in which they were added.
        partials: The partials for the accumulate part of the same bucket.
        withheld: How many more keys are withheld, by the number of the view that shows them.
    """

    def __init__(self, buckets: int) -> None:
        self.changes: list[Change] = []
        self.growths: list[int] = []
        self.documents: dict[int, list[Document]] = {}
        self.partials: list[Partial] = []
        self.withheld: Counter[int] = Counter()
        self._buckets = buckets
        self._events: dict[tuple[int, int], list[Event]] = {}

    def change(self, name: bytes, old: bytes | None, new: bytes | None) -> None:
        """Changes an entry, unless its value stays the same."""
        if old != new:
            self.changes.append((name, new))
            before = 0 if old is None else len(name) + len(old)
            self.growths.append((0 if new is None else len(name) + len(new)) - before)

    @contextmanager
    def changed_once(self) -> Iterator[None]:
        """Within the block, ignores partials, and changes of entries that were already changed.

        Stages whose rows are kept together each find the same changes of these rows.
        """
        known, start = {name for name, _ in self.changes}, len(self.changes)
        self.partials = []
        yield
        if not known:
            return
        found = zip(self.changes[start:], self.growths[start:], strict=True)
        kept = [(change, growth) for change, growth in found if change[0] not in known]
        self.changes[start:] = [change for change, _ in kept]
        self.growths[start:] = [growth for _, growth in kept]

    def event(self, stage: int, lsn: int, number: int, key: bytes, identity: bytes, row: PackedRow) -> None:
        """Adds an event for a later stage."""
        bucket = bucket_of(key, self._buckets)
        event = (lsn, number, key, identity, row, 0)
        of_bucket = self._events.get((stage, bucket))
        if of_bucket is None:
            self._events[stage, bucket] = [event]
        else:
            of_bucket.append(event)

    def attempt(self) -> "Outcome":
        """Returns an outcome for what may have to be computed in another way."""
        return Outcome(self._buckets)

    def add(self, attempt: "Outcome") -> None:
        """Adds what is in an attempt that has succeeded."""
        self.changes += attempt.changes
        self.growths += attempt.growths
        self.partials += attempt.partials
        for target, events in attempt._events.items():  # noqa: SLF001 - of the same class
            self._events.setdefault(target, []).extend(events)
        for number, documents in attempt.documents.items():
            self.view(number).extend(documents)

    def view(self, number: int) -> list[Document]:
        """Returns the list to which the documents of a view are added."""
        return self.documents.setdefault(number, [])

    def payloads(self, stage: int, bucket: int) -> Iterator[PackedPayload]:
        """Yields all that leaves a bucket of a stage, packed. It is a pure function of what was added."""
        sequence = sequence_from(stage, bucket)
        for target in sorted(self._events):
            for payload in pack_items(self._events[target]):
                yield (*target, sequence, payload)
        for view in sorted(self.documents):
            for part, payload in enumerate(pack_items(self.documents[view])):
                yield documents_stage(view), bucket, part, payload


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
        """The size of the documents, packed but not compressed."""
        try:
            return sum(
                max(0, zstandard.frame_content_size(payload))
                for payloads in self.payloads.values()
                for payload in payloads
            )
        except zstandard.ZstdError as error:
            raise malformed_batch(self.batch_id, f"unreadable payload: {error}") from error

    def chunks(self, view: int) -> Iterator[list[Document]]:
        """Yields a view's documents payload by payload, in no particular order."""
        return decode_documents(self.batch_id, self.payloads.get(view, ()))

    def settled(self, view: int, *, every_commit: bool) -> Iterator[list[Document]]:
        """Yields a view's documents as :func:`without_moved` leaves them, payload by payload."""
        return without_moved(partial(self.chunks, view), every_commit=every_commit)


def without_moved(
    chunks: Callable[[], Iterable[list[Document]]], *, every_commit: bool
) -> Iterator[list[Document]]:
    """Yields the documents of a view without the deletes of keys that moved from one bucket to another.

    For such a key, one bucket sends a delete and the other sends a document; the document counts. `chunks`
    returns all documents of a batch, and is called several times. They are those of each commit, or of the
    batch as a whole.
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

    For such a key, one bucket sends a change to nothing, and the other one a change from nothing. `chunks`
    returns all documents of a batch, as changes, and is called twice.

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
    """Yields the documents, payload by payload."""
    for payload in payloads:
        try:
            yield _DOCUMENTS.decode(_zstd.decompress(payload))
        except (msgspec.MsgspecError, zstandard.ZstdError) as error:
            raise malformed_batch(batch_id, f"unreadable payload: {error}") from error
