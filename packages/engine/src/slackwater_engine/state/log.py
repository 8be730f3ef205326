"""The state of a bucket in Spark's state store: a log of changes in numbered blobs, and its head.

The log is the truth; an index is rebuilt from it. A blob is ``zstd(msgpack([(name, value or nil), ...]))``;
each is an entry of its own in the state store, so nobody ever holds more than a few of them in memory.

A log is kept short without a pause: a small bucket's log is written anew. Of a large one each batch takes the
oldest blobs, adds what of them is still live to its own changes and drops them: as much as it adds itself and
a bit more, so the work of a batch stays in proportion to its changes.

What is live is decided by the index: a change of the oldest blobs is live if the index has its value. Should
a later blob have the same value for it, it is added once more than needed, which changes nothing. A removal
in the oldest blob has nothing older to remove.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import msgspec
import zstandard

from slackwater_engine.errors import EngineStateError
from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.state.entry import Change

LOG_VERSION: Final = 2
LOG_KEY_SCHEMA: Final = "number BINARY"
"""Big-endian, so that the state store's order is that of the numbers."""

LOG_SCHEMA: Final = "changes BINARY"
META_SCHEMA: Final = (
    "version INT, view STRING, token BINARY, log_bytes BIGINT, live_bytes BIGINT, first BIGINT, next BIGINT"
)

MAX_BLOB_BYTES: Final = 1 << 20
"""Before compression."""

COMPACTION_SLACK_BYTES: Final = 64 << 10
"""A log this much longer than twice its live contents is still not worth rewriting."""

_BLOB_COST_BYTES: Final = 256
"""The cost of a blob beside its contents when it is decided whether a log is too long."""

_NUMBER_BYTES: Final = 8
_COMPRESSION_LEVEL: Final = 1
_CHANGES = msgspec.msgpack.Decoder(list[Change])
_ENCODER = msgspec.msgpack.Encoder()
SMALL_BYTES: Final = 1 << 20
"""Live contents up to which a log is written anew as a whole."""

MIN_STEP_BYTES: Final = 1 << 20
"""The least of old blobs that a batch may read, so that a few changes make headway, too."""

MAX_STEP_BLOBS: Final = 64
"""The most old blobs that a batch drops, each of which costs two round trips."""


@dataclass(frozen=True, slots=True)
class LogMeta:
    """The head of a bucket's log: known without reading the blobs."""

    view: str
    """Fingerprint of the view that wrote it."""
    token: bytes
    """Random; another one after each batch that changes the bucket. An index that has it is up to date."""
    log_bytes: int
    """Size of the log before compression."""
    live_bytes: int
    """Size of what is left when later changes replace earlier ones."""
    blobs: range = range(0)
    """Numbers of the blobs, oldest first."""

    @property
    def is_worth_compacting(self) -> bool:
        """Less than half of the log is live."""
        cost = self.log_bytes + _BLOB_COST_BYTES * len(self.blobs)
        return cost > 2 * self.live_bytes + COMPACTION_SLACK_BYTES


@dataclass(frozen=True, slots=True)
class LogWrite:
    """The changes that a batch makes to a log."""

    changes: list[Change]
    """The changes to be added, in order."""
    meta: LogMeta
    """After the batch, but for the numbers of the blobs, which are those before it."""
    dropped: int = 0
    """The number of the oldest blobs that vanish."""


class ValueCell(Protocol):
    """Spark's ``ValueState``, as far as it is used."""

    def get(self) -> tuple[Any, ...] | None:
        """The value, or None."""
        ...

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Replaces the value."""
        ...


class ValueMap(Protocol):
    """Spark's ``MapState``, as far as it is used."""

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The value of a key, or None."""
        ...

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Sets the value of a key."""
        ...

    def removeKey(self, key: tuple[Any, ...]) -> None:
        """Removes a key."""
        ...

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """All keys with their values, ascending."""
        ...

    def clear(self) -> None:
        """Removes all keys."""
        ...


class StateLog:
    """The log of the bucket that Spark has made current.

    Every call is a round trip to the JVM of about 0.3 ms; a batch costs one read and two writes.
    """

    def __init__(self, meta: ValueCell, blobs: ValueMap) -> None:
        self._meta = meta
        self._blobs = blobs

    def meta(self, bucket: int, view: str) -> LogMeta | None:
        """Returns the head of the log; None if the bucket has no state yet.

        Raises:
            EngineStateError: The log is of another view or of another version.
        """
        value = self._meta.get()
        if value is None:
            return None
        version, written_by, token, log_bytes, live_bytes, first, end = value
        if version != LOG_VERSION:
            raise _mismatch(bucket, "format version", str(LOG_VERSION), str(version))
        if written_by != view:
            raise _mismatch(bucket, "view", view, written_by)
        return LogMeta(written_by, bytes(token), log_bytes, live_bytes, range(first, end))

    def changes(self, bucket: int, meta: LogMeta) -> Iterator[list[Change]]:
        """Yields all changes, oldest first, blob by blob.

        Raises:
            EngineStateError: A blob is damaged or missing.
        """
        numbers = iter(meta.blobs)
        for (key,), (blob,) in self._blobs.iterator():
            found, expected = int.from_bytes(key, "big"), next(numbers, None)
            if found != expected:
                raise unreadable_state(bucket, _unexpected(expected, found))
            yield decode_changes(bucket, bytes(blob))
        if (missing := next(numbers, None)) is not None:
            raise unreadable_state(bucket, _unexpected(missing, None))

    def blob(self, bucket: int, number: int) -> list[Change]:
        """Returns the changes of one blob.

        Raises:
            EngineStateError: It is damaged or missing.
        """
        value = self._blobs.getValue(_key(number))
        if value is None:
            raise unreadable_state(bucket, _unexpected(number, None))
        return decode_changes(bucket, bytes(value[0]))

    def write(self, write: LogWrite) -> LogMeta:
        """Adds the changes of a batch and lets blobs vanish; returns the new head of the log."""
        blobs = write.meta.blobs
        if write.dropped == len(blobs) and write.dropped > 1:
            self._blobs.clear()
        else:
            for number in blobs[: write.dropped]:
                self._blobs.removeKey(_key(number))
        number = blobs.stop
        for blob in encoded_blobs(write.changes):
            self._blobs.updateValue(_key(number), (blob,))
            number += 1
        meta = replace(write.meta, blobs=range(blobs.start + write.dropped, number))
        sizes = (meta.log_bytes, meta.live_bytes, meta.blobs.start, meta.blobs.stop)
        self._meta.update((LOG_VERSION, meta.view, meta.token, *sizes))
        return meta


def encode_changes(changes: list[Change]) -> bytes:
    """Packs changes as a blob of the log."""
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(_ENCODER.encode(changes))


def decode_changes(bucket: int, blob: bytes) -> list[Change]:
    """Inverse of :func:`encode_changes`.

    Raises:
        EngineStateError: The blob is damaged.
    """
    try:
        return _CHANGES.decode(zstandard.ZstdDecompressor().decompress(blob))
    except (msgspec.DecodeError, zstandard.ZstdError) as error:
        raise unreadable_state(bucket, str(error)) from error


def changes_bytes(changes: Iterable[Change]) -> int:
    """Returns the size of changes before compression."""
    columns = tuple(zip(*changes, strict=True))
    return sum(map(len, columns[0])) + sum(map(len, filter(None, columns[1]))) if columns else 0


def encoded_blobs(changes: list[Change]) -> Iterator[bytes]:
    """Yields the changes in blobs of bounded size."""
    if changes_bytes(changes) < MAX_BLOB_BYTES:
        if changes:
            yield encode_changes(changes)
        return
    start = size = 0
    for end, (name, value) in enumerate(changes, 1):
        size += len(name) + len(value or b"")
        if size >= MAX_BLOB_BYTES:
            yield encode_changes(changes[start:end])
            start, size = end, 0
    if start < len(changes):
        yield encode_changes(changes[start:])


def unreadable_state(bucket: int, reason: str) -> EngineStateError:
    """Makes the error for a log that cannot be read."""
    return EngineStateError(
        f"bucket {bucket}: the state log in the checkpoint cannot be read: {reason}; restore the checkpoint "
        "or start with a new one"
    )


def _mismatch(bucket: int, what: str, expected: str, found: str) -> EngineStateError:
    return EngineStateError(
        f"bucket {bucket}: the state's {what} is {found}, expected {expected}; a changed view or another "
        "version needs a new checkpoint"
    )


def _key(number: int) -> tuple[bytes]:
    return (number.to_bytes(_NUMBER_BYTES, "big"),)


def _unexpected(expected: int | None, found: int | None) -> str:
    names = ["no blob" if number is None else f"blob {number}" for number in (expected, found)]
    return f"expected {names[0]}, found {names[1]}"


def log_write(
    bucket: int, changes: list[Change], meta: LogMeta, log: StateLog, contents: IndexTransaction
) -> LogWrite:
    """Decides on the blobs that the log gets and drops for the changes of a batch; only reads.

    Args:
        bucket: The bucket, for errors.
        changes: The batch's.
        meta: The log's after the batch, if nothing is dropped.
        log: The log before the batch.
        contents: The entries after the batch.

    Raises:
        EngineStateError: A blob is damaged or missing.
    """
    if not meta.is_worth_compacting:
        return LogWrite(changes, meta)
    if meta.live_bytes <= SMALL_BYTES:
        live: list[Change] = list(contents.entries())
        size = changes_bytes(live)
        return LogWrite(live, replace(meta, log_bytes=size, live_bytes=size), len(meta.blobs))
    return _without_oldest(bucket, changes, meta, log, contents)


def _without_oldest(
    bucket: int, changes: list[Change], meta: LogMeta, log: StateLog, contents: IndexTransaction
) -> LogWrite:
    budget = MIN_STEP_BYTES + 2 * changes_bytes(changes)
    added = list(changes)
    left, blobs = meta, meta.blobs
    while budget > 0 and left.is_worth_compacting and len(blobs) - len(left.blobs) < MAX_STEP_BLOBS:
        if not left.blobs:
            break
        old = log.blob(bucket, left.blobs.start)
        live = _live(old, contents)
        added += live
        size = changes_bytes(old)
        budget -= size
        left = replace(left, log_bytes=left.log_bytes - size + changes_bytes(live), blobs=left.blobs[1:])
    return LogWrite(added, replace(left, blobs=blobs), len(blobs) - len(left.blobs))


def _live(old: list[Change], contents: IndexTransaction) -> list[Change]:
    last = {name: value for name, value in old if value is not None}
    now = contents.get_many(last)
    return [(name, value) for name, value in last.items() if now.get(name) == value]
