"""The state of a bucket in Spark's state store: an append-only log of changes, and what names its end.

The log is the truth; an index is rebuilt from it. A blob is ``zstd(msgpack([(name, value or nil), ...]))``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import zstandard

from slackwater_spark.stage.entry import Change, Entry
from slackwater_spark.stage.errors import StateMismatchError, UnreadableStateError

LOG_VERSION: Final = 1
LOG_SCHEMA: Final = "changes BINARY"
META_SCHEMA: Final = "version INT, view STRING, token BINARY, log_bytes BIGINT, live_bytes BIGINT"

MAX_BLOB_BYTES: Final = 1 << 20
"""Before compression, of the blobs that a compaction writes."""

COMPACTION_SLACK_BYTES: Final = 64 << 10
"""A log this much longer than twice its live contents is still not worth rewriting."""

_COMPRESSION_LEVEL: Final = 1
_CHANGES = msgspec.msgpack.Decoder(list[Change])
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class LogMeta:
    """What is known of a bucket's log without reading it."""

    view: str
    """Fingerprint of the view that wrote it."""
    token: bytes
    """Random; another one after each batch that changes the bucket. An index that has it is up to date."""
    log_bytes: int
    """Size of the log before compression."""
    live_bytes: int
    """Size of what is left when later changes replace earlier ones."""

    @property
    def is_worth_compacting(self) -> bool:
        """Less than half of the log is live."""
        return self.log_bytes > 2 * self.live_bytes + COMPACTION_SLACK_BYTES


class ValueCell(Protocol):
    """Spark's ``ValueState``, as far as it is used."""

    def get(self) -> tuple[Any, ...] | None:
        """The value, or None."""
        ...

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Replaces the value."""
        ...


class ValueList(Protocol):
    """Spark's ``ListState``, as far as it is used."""

    def get(self) -> Iterator[tuple[Any, ...]]:
        """All values in order."""
        ...

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        """Replaces all values."""
        ...

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """Adds one value."""
        ...


class StateLog:
    """The log of the bucket that Spark has made current.

    Every call is a round trip to the JVM of about 0.3 ms; a batch costs one read and two writes.
    """

    def __init__(self, meta: ValueCell, blobs: ValueList) -> None:
        self._meta = meta
        self._blobs = blobs

    def meta(self, bucket: int, view: str) -> LogMeta | None:
        """What is known of the log; None if the bucket has no state yet.

        Raises:
            StateMismatchError: the log is of another view or of a newer version.
        """
        value = self._meta.get()
        if value is None:
            return None
        version, written_by, token, log_bytes, live_bytes = value
        if version != LOG_VERSION:
            raise StateMismatchError(bucket, "format version", str(LOG_VERSION), str(version))
        if written_by != view:
            raise StateMismatchError(bucket, "view", view, written_by)
        return LogMeta(written_by, bytes(token), log_bytes, live_bytes)

    def changes(self, bucket: int) -> Iterator[list[Change]]:
        """All changes, oldest first, blob by blob.

        Raises:
            UnreadableStateError: a blob is damaged.
        """
        for (blob,) in self._blobs.get():
            yield decode_changes(bucket, bytes(blob))

    def append(self, changes: list[Change], meta: LogMeta) -> None:
        """Adds the changes of a batch."""
        self._blobs.appendValue((encode_changes(changes),))
        self._update(meta)

    def replace(self, entries: Iterable[Entry], meta: LogMeta) -> None:
        """Replaces the log by one that has just these entries."""
        self._blobs.put([(blob,) for blob in _blobs(entries)])
        self._update(meta)

    def _update(self, meta: LogMeta) -> None:
        self._meta.update((LOG_VERSION, meta.view, meta.token, meta.log_bytes, meta.live_bytes))


def encode_changes(changes: list[Change]) -> bytes:
    """A blob of the log."""
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).compress(_ENCODER.encode(changes))


def decode_changes(bucket: int, blob: bytes) -> list[Change]:
    """Inverse of :func:`encode_changes`.

    Raises:
        UnreadableStateError: the blob is damaged.
    """
    try:
        return _CHANGES.decode(zstandard.ZstdDecompressor().decompress(blob))
    except (msgspec.DecodeError, zstandard.ZstdError) as error:
        raise UnreadableStateError(bucket, str(error)) from error


def changes_bytes(changes: Iterable[Change]) -> int:
    """Size of changes before compression."""
    return sum(len(name) + len(value or b"") for name, value in changes)


def _blobs(entries: Iterable[Entry]) -> Iterator[bytes]:
    changes: list[Change] = []
    size = 0
    for name, value in entries:
        changes.append((name, value))
        size += len(name) + len(value)
        if size >= MAX_BLOB_BYTES:
            yield encode_changes(changes)
            changes, size = [], 0
    if changes:
        yield encode_changes(changes)
