"""What travels between source, stage and sink inside a query: events and documents, packed by bucket."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import zstandard

from slackwater_spark.stage.errors import UnreadablePayloadError

HEADER_BUCKET: Final = -1
"""The bucket of the row that carries the batch header."""

ROW_SCHEMA: Final = "bucket INT, sequence BIGINT, payload BINARY"
"""Of packed rows: from the source to the stage, and from the stage to the sink."""

PackedRow = bytes | tuple[bytes] | None
"""A row as its codec packs it; in a tuple when values are left out of it; None when it is deleted."""

Event = tuple[int, int, bytes, bytes, PackedRow, int]
"""``(commit LSN, input, stage key, primary key, row, lead)``; keys are msgpack arrays of wire values.

Both keys empty: TRUNCATE, all rows of the input vanish. `lead` is how far the change lies before its commit
in the database's log: the only order of changes of different rows that survives a restart of the connector.
"""

Document = tuple[int, bytes, bytes | None]
"""``(commit LSN, key as JSON, document as JSON)``; None when the key has left the view."""

COMPRESSION_LEVEL: Final = 1
MAX_PAYLOAD_BYTES: Final = 4 << 20
"""Payloads of documents are cut at about this size before compression."""

_ARRAY_32: Final = b"\xdd"
_EVENTS = msgspec.msgpack.Decoder(list[Event])
_ENCODER = msgspec.msgpack.Encoder()


def bucket_of(key: bytes, buckets: int) -> int:
    """The bucket of a packed stage key: the same in every process and version."""
    return zlib.crc32(key) % buckets


def array_header(length: int) -> bytes:
    """What precedes the items of a msgpack array."""
    return _ARRAY_32 + length.to_bytes(4, "big")


def decode_events(bucket: int, payload: bytes) -> list[Event]:
    """The events of one payload.

    Raises:
        UnreadablePayloadError: no packer wrote this.
    """
    try:
        return _EVENTS.decode(zstandard.ZstdDecompressor().decompress(payload))
    except (msgspec.DecodeError, zstandard.ZstdError) as error:
        raise UnreadablePayloadError(bucket, str(error)) from error


def document_payloads(documents: Iterable[Document]) -> Iterator[bytes]:
    """The documents in their order, packed, in payloads of bounded size; nothing if there are none."""
    compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress
    buffer, count = bytearray(), 0
    for document in documents:
        _ENCODER.encode_into(document, buffer, -1)
        count += 1
        if len(buffer) >= MAX_PAYLOAD_BYTES:
            yield compress(array_header(count) + buffer)
            buffer, count = bytearray(), 0
    if count:
        yield compress(array_header(count) + buffer)
