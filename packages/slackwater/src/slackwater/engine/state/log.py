"""The log of a bucket: its changes in blobs, oldest first, and the head, which contains their places.

A blob is its token, followed by ``zstd(msgpack([(name, value or nil), ...]))`` with a checksum, and is a part
of an immutable segment. The head contains the token, too, so a blob is used only where it belongs.

A log is kept short without pauses. That of a small bucket is rewritten completely. In a large one, each batch
drops some of the oldest blobs, after adding what is still live in them to its own changes. A change is live
if the index has its value; to add one once more than necessary does no harm. A removal in the oldest blob can
be dropped, because there is no older value to remove.

What reads blobs raises StateError if one is damaged or missing, and UnavailableError if the store does not
answer.
"""

import secrets
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import msgspec
import zstandard
from msgspec.structs import replace

from slackwater.engine.index import Contents
from slackwater.engine.state.entry import Change
from slackwater.protocol import StateError

MAX_BLOB_BYTES: Final = 1 << 20
"""The maximum size of a blob before compression."""

COMPACTION_SLACK_BYTES: Final = 64 << 10
"""A log that exceeds twice its live contents by less than this is not worth rewriting."""

SMALL_BYTES: Final = 1 << 20
"""The size of live contents up to which a log is rewritten completely."""

MIN_STEP_BYTES: Final = 1 << 20
"""The minimum size of old blobs that a batch may read, so that batches with few changes also make
progress."""

MAX_STEP_BLOBS: Final = 64
"""The maximum number of old blobs that a batch reads, because each may cost a request to the store."""

_BLOB_COST_BYTES: Final = 256
"""The cost of a blob, in addition to its contents, in the decision whether a log is too long."""

_TOKEN_BYTES: Final = 16
_COMPRESSION_LEVEL: Final = 1
_CHANGES = msgspec.msgpack.Decoder(list[Change])
_ENCODER = msgspec.msgpack.Encoder()


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """The part of a segment that contains changes of one bucket."""

    segment: str
    """The segment's name in the store."""
    offset: int
    length: int
    """The size in the segment, after compression, in bytes."""
    size: int
    """The size before compression, in bytes."""
    token: bytes
    """A random token that identifies the blob, and the result of the blobs up to this one. An index with
    this token contains them. A shorter token was written by an earlier version, and is not in the blob."""


class LogHead(msgspec.Struct, frozen=True, array_like=True):
    """The head of a bucket's log, which is known without reading the blobs."""

    blobs: tuple[Blob, ...] = ()
    """Oldest first."""
    log_bytes: int = 0
    """The size of the log before compression."""
    live_bytes: int = 0
    """The size of the contents after later changes have replaced earlier ones."""

    @property
    def token(self) -> bytes | None:
        """The token of an index that is up to date; None if the bucket has no contents."""
        return self.blobs[-1].token if self.blobs else None


EMPTY_LOG: Final = LogHead()


class LogUpdate(msgspec.Struct, frozen=True, array_like=True):
    """The change of a bucket's log by a batch, with blobs that are in a segment."""

    stage: int
    bucket: int
    dropped: int
    """The number of the oldest blobs that are dropped."""
    blobs: tuple[Blob, ...]
    live_bytes: int
    """The size of the bucket's live contents after the batch."""

    def after(self, head: LogHead) -> LogHead:
        """Returns the head after the batch, given the head before it."""
        gone, kept = head.blobs[: self.dropped], head.blobs[self.dropped :]
        size = head.log_bytes - sum(blob.size for blob in gone) + sum(blob.size for blob in self.blobs)
        return LogHead((*kept, *self.blobs), size, self.live_bytes)


class LogWrite(LogUpdate, frozen=True, array_like=True):
    """The change of a bucket's log before its blobs are in a segment: their places are those in `data`."""

    data: bytes = b""


def place_writes(name: str, writes: Iterable[LogWrite]) -> tuple[bytes, list[LogUpdate]]:
    """Returns a segment with the blobs of several buckets side by side, and the updates that refer to it."""
    data, updates = bytearray(), []
    for write in writes:
        blobs = (replace(each, segment=name, offset=len(data) + each.offset) for each in write.blobs)
        updates.append(LogUpdate(write.stage, write.bucket, write.dropped, tuple(blobs), write.live_bytes))
        data += write.data
    return bytes(data), updates


class BlobSource(Protocol):
    """Reads blobs."""

    def read(self, blob: Blob) -> bytes:
        """Returns the bytes of a blob, which may be damaged.

        Raises:
            StateError: The segment is missing or too short.
            UnavailableError: The store does not answer.
        """


class BucketLog:
    """The log of one bucket, whose head contains the places of its blobs."""

    def __init__(self, stage: int, bucket: int, head: LogHead, source: BlobSource) -> None:
        self.stage = stage
        self.bucket = bucket
        self.head = head
        self._source = source

    def changes(self) -> Iterator[list[Change]]:
        """Yields the changes of all blobs, oldest first."""
        for blob in self.head.blobs:
            yield self.blob(blob)

    def blob(self, blob: Blob) -> list[Change]:
        """Returns the changes of one blob."""
        data = self._source.read(blob)
        if len(blob.token) >= _TOKEN_BYTES:
            data, token = data[_TOKEN_BYTES:], data[:_TOKEN_BYTES]
            if token != blob.token:
                raise self._unreadable(
                    f"segment {blob.segment} at {blob.offset} is not the blob written there"
                )
        try:
            return _CHANGES.decode(zstandard.ZstdDecompressor().decompress(data))
        except (msgspec.DecodeError, zstandard.ZstdError) as error:
            raise self._unreadable(f"segment {blob.segment} at {blob.offset}: {error}") from error

    def place_of(self, token: bytes) -> int | None:
        """Returns the number of blobs up to the one with a token; None if no blob of the log has it."""
        for place in range(len(self.head.blobs), 0, -1):
            if self.head.blobs[place - 1].token == token:
                return place
        return None

    def _unreadable(self, reason: str) -> StateError:
        return StateError(
            f"stage {self.stage}, bucket {self.bucket}: the state in the checkpoint cannot be read: "
            f"{reason}. Restore the checkpoint or start with a new one"
        )


def pack_changes(changes: list[Change]) -> tuple[tuple[Blob, ...], bytes]:
    """Returns the changes in blobs of limited size: their places, and the bytes that contain them."""
    compress = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL, write_checksum=True).compress
    data, blobs = bytearray(), []
    start = size = 0
    for end, (name, value) in enumerate(changes, 1):
        size += len(name) + len(value or b"")
        if size >= MAX_BLOB_BYTES or end == len(changes):
            token = secrets.token_bytes(_TOKEN_BYTES)
            packed = token + compress(_ENCODER.encode(changes[start:end]))
            blobs.append(Blob("", len(data), len(packed), size, token))
            data += packed
            start, size = end, 0
    return tuple(blobs), bytes(data)


def changes_bytes(changes: Iterable[Change]) -> int:
    """Returns the size of changes before compression."""
    columns = tuple(zip(*changes, strict=True))
    return sum(map(len, columns[0])) + sum(map(len, filter(None, columns[1]))) if columns else 0


def log_write(log: BucketLog, changes: list[Change], grown_bytes: int, contents: Contents) -> LogWrite:
    """Determines which blobs a batch adds to the log and drops from it. It only reads.

    The contents are those after the batch, whose changes increase the live size by `grown_bytes`.
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
    packed, data = pack_changes(added)
    return LogWrite(log.stage, log.bucket, dropped, packed, kept_bytes, data)


def _without_oldest(
    log: BucketLog, changes: list[Change], size: int, live_bytes: int, contents: Contents
) -> tuple[int, list[Change]]:
    """Returns the number of dropped blobs, and all changes to be added."""
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
    """Returns whether less than half of the log is live."""
    return log_bytes + _BLOB_COST_BYTES * blobs > 2 * live_bytes + COMPACTION_SLACK_BYTES


def _live(old: list[Change], contents: Contents) -> list[Change]:
    last = {name: value for name, value in old if value is not None}
    now = contents.get_many(last)
    return [(name, value) for name, value in last.items() if now.get(name) == value]
