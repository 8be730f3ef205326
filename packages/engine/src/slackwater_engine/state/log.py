"""The log of a bucket: its changes in blobs, oldest first, and the head that says where they lie.

The log is the truth; an index is rebuilt from it. A blob is ``zstd(msgpack([(name, value or nil), ...]))``
with a checksum, a stretch of an immutable segment; so nobody ever holds more than a few of them in memory.

A log is kept short without a pause: a small bucket's log is written anew. Of a large one each batch takes the
oldest blobs, adds what of them is still live to its own changes and drops them: as much as it adds itself and
a bit more, so the work of a batch stays in proportion to its changes.

What is live is decided by the index: a change of the oldest blobs is live if the index has its value. Should
a later blob have the same value for it, it is added once more than needed, which changes nothing. A removal
in the oldest blob has nothing older to remove.
"""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import zstandard

from slackwater_engine.errors import EngineStateError
from slackwater_engine.index.contract import Contents
from slackwater_engine.state.entry import Change

MAX_BLOB_BYTES: Final = 1 << 20
"""Before compression."""

COMPACTION_SLACK_BYTES: Final = 64 << 10
"""A log this much longer than twice its live contents is still not worth rewriting."""

SMALL_BYTES: Final = 1 << 20
"""Live contents up to which a log is written anew as a whole."""

MIN_STEP_BYTES: Final = 1 << 20
"""The least of old blobs that a batch may read, so that a few changes make headway, too."""

MAX_STEP_BLOBS: Final = 64
"""The most old blobs that a batch reads again, each of which may cost a request to the store."""

_BLOB_COST_BYTES: Final = 256
"""The cost of a blob beside its contents when it is decided whether a log is too long."""

_TOKEN_BYTES: Final = 8
_COMPRESSION_LEVEL: Final = 1
_CHANGES = msgspec.msgpack.Decoder(list[Change])
_ENCODER = msgspec.msgpack.Encoder()


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of a segment that holds changes of one bucket."""

    segment: str
    """The segment's name in the store."""
    offset: int
    length: int
    """Bytes in the segment, compressed."""
    size: int
    """Bytes before compression."""
    token: bytes
    """Random: names what the blobs up to this one amount to. An index that has it is that far."""


class LogHead(msgspec.Struct, frozen=True, array_like=True):
    """The head of a bucket's log: known without reading the blobs."""

    blobs: tuple[Blob, ...] = ()
    """Oldest first."""
    log_bytes: int = 0
    """Size of the log before compression."""
    live_bytes: int = 0
    """Size of what is left when later changes replace earlier ones."""

    @property
    def token(self) -> bytes | None:
        """The token of an index that is up to date; None if the bucket has no contents."""
        return self.blobs[-1].token if self.blobs else None


EMPTY_LOG: Final = LogHead()


@dataclass(frozen=True, slots=True)
class PackedBlob:
    """A blob that has no place yet."""

    data: bytes
    size: int
    """Bytes before compression."""
    token: bytes


@dataclass(frozen=True, slots=True)
class LogWrite:
    """The blobs by which a batch changes the log of a bucket; they have no place yet."""

    stage: int
    bucket: int
    dropped: int
    """The number of the oldest blobs that vanish."""
    blobs: tuple[PackedBlob, ...]
    live_bytes: int
    """Of the bucket, after the batch."""

    @property
    def length(self) -> int:
        """The size of the blobs in a segment."""
        return sum(len(blob.data) for blob in self.blobs)


class LogUpdate(msgspec.Struct, frozen=True, array_like=True):
    """What a batch does to the log of a bucket: its blobs lie in a segment."""

    stage: int
    bucket: int
    dropped: int
    blobs: tuple[Blob, ...]
    live_bytes: int

    def after(self, head: LogHead) -> LogHead:
        """Returns the head after the batch, given the one before."""
        gone, kept = head.blobs[: self.dropped], head.blobs[self.dropped :]
        size = head.log_bytes - sum(blob.size for blob in gone) + sum(blob.size for blob in self.blobs)
        return LogHead((*kept, *self.blobs), size, self.live_bytes)


def place_writes(name: str, writes: Iterable[LogWrite]) -> tuple[bytes, list[LogUpdate]]:
    """Lays the blobs of several buckets side by side.

    Args:
        name: Of the segment that they are going to.
        writes: The changes of logs.

    Returns:
        The segment, and the updates that speak of it.
    """
    parts: list[bytes] = []
    updates = []
    offset = 0
    for write in writes:
        blobs = []
        for packed in write.blobs:
            blobs.append(Blob(name, offset, len(packed.data), packed.size, packed.token))
            parts.append(packed.data)
            offset += len(packed.data)
        updates.append(LogUpdate(write.stage, write.bucket, write.dropped, tuple(blobs), write.live_bytes))
    return b"".join(parts), updates


class BlobSource(Protocol):
    """Reads blobs."""

    def read(self, blob: Blob) -> bytes:
        """Returns the bytes of a blob, perhaps damaged ones.

        Raises:
            EngineStateError: The segment is missing or too short.
            EngineUnavailableError: The store does not answer.
        """
        ...


class BucketLog:
    """The log of one bucket, as a head says where it lies.

    Args:
        stage: The number of the stage, for errors.
        bucket: The bucket's number, likewise.
        head: Of the log.
        source: Reads its blobs.
    """

    def __init__(self, stage: int, bucket: int, head: LogHead, source: BlobSource) -> None:
        self.stage = stage
        self.bucket = bucket
        self.head = head
        self._source = source

    def changes(self, first: int = 0) -> Iterator[list[Change]]:
        """Yields the changes of all blobs from a place on, oldest first.

        Raises:
            EngineStateError: A blob is damaged or missing.
            EngineUnavailableError: The store does not answer.
        """
        for blob in self.head.blobs[first:]:
            yield self.blob(blob)

    def blob(self, blob: Blob) -> list[Change]:
        """Returns the changes of one blob; raises like :meth:`changes`."""
        try:
            return _CHANGES.decode(zstandard.ZstdDecompressor().decompress(self._source.read(blob)))
        except (msgspec.DecodeError, zstandard.ZstdError) as error:
            raise self._unreadable(f"segment {blob.segment} at {blob.offset}: {error}") from error

    def place_of(self, token: bytes) -> int | None:
        """Returns the number of blobs that lead to a token; None if no blob of the log has it."""
        for place in range(len(self.head.blobs), 0, -1):
            if self.head.blobs[place - 1].token == token:
                return place
        return None

    def _unreadable(self, reason: str) -> EngineStateError:
        return EngineStateError(
            f"stage {self.stage}, bucket {self.bucket}: the state in the checkpoint cannot be read: "
            f"{reason}. Restore the checkpoint or start with a new one"
        )


def pack_changes(changes: list[Change]) -> Iterator[PackedBlob]:
    """Yields the changes in blobs of bounded size."""
    compress = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL, write_checksum=True).compress
    start = size = 0
    for end, (name, value) in enumerate(changes, 1):
        size += len(name) + len(value or b"")
        if size >= MAX_BLOB_BYTES or end == len(changes):
            data = compress(_ENCODER.encode(changes[start:end]))
            yield PackedBlob(data, size, secrets.token_bytes(_TOKEN_BYTES))
            start, size = end, 0


def changes_bytes(changes: Iterable[Change]) -> int:
    """Returns the size of changes before compression."""
    columns = tuple(zip(*changes, strict=True))
    return sum(map(len, columns[0])) + sum(map(len, filter(None, columns[1]))) if columns else 0


def log_write(log: BucketLog, changes: list[Change], grown_bytes: int, contents: Contents) -> LogWrite:
    """Decides on the blobs that the log gets and drops for the changes of a batch; only reads.

    Args:
        log: The log before the batch.
        changes: The batch's.
        grown_bytes: By how much the live contents grow with them.
        contents: The entries after the batch.

    Raises:
        EngineStateError: A blob is damaged or missing.
        EngineUnavailableError: The store does not answer.
    """
    head = log.head
    live_bytes = head.live_bytes + grown_bytes
    size = head.log_bytes + changes_bytes(changes)
    blobs = len(head.blobs)
    dropped, added, kept_bytes = 0, changes, live_bytes
    if _is_worth_compacting(size, blobs, live_bytes):
        if live_bytes <= SMALL_BYTES:
            added = list(contents.entries())
            dropped, kept_bytes = blobs, changes_bytes(added)
        else:
            dropped, added = _without_oldest(log, changes, size, live_bytes, contents)
    return LogWrite(log.stage, log.bucket, dropped, tuple(pack_changes(added)), kept_bytes)


def _without_oldest(
    log: BucketLog, changes: list[Change], size: int, live_bytes: int, contents: Contents
) -> tuple[int, list[Change]]:
    """Returns how many blobs are dropped, and all that is added."""
    budget = MIN_STEP_BYTES + 2 * changes_bytes(changes)
    added = list(changes)
    blobs = log.head.blobs
    dropped = 0
    while budget > 0 and dropped < min(len(blobs), MAX_STEP_BLOBS):
        if not _is_worth_compacting(size, len(blobs) - dropped, live_bytes):
            break
        oldest = blobs[dropped]
        live = _live(log.blob(oldest), contents)
        added += live
        budget -= oldest.size
        size += changes_bytes(live) - oldest.size
        dropped += 1
    return dropped, added


def _is_worth_compacting(log_bytes: int, blobs: int, live_bytes: int) -> bool:
    """Less than half of the log is live."""
    return log_bytes + _BLOB_COST_BYTES * blobs > 2 * live_bytes + COMPACTION_SLACK_BYTES


def _live(old: list[Change], contents: Contents) -> list[Change]:
    last = {name: value for name, value in old if value is not None}
    now = contents.get_many(last)
    return [(name, value) for name, value in last.items() if now.get(name) == value]
