"""Avro in Confluent's wire format, turned into the JSON that Connect's JsonConverter would have written.

A value is a zero byte, the id of a schema in a registry (4 bytes, big endian), then Avro without a header.
So everything behind this sees one format, whatever converter a connector uses.
"""

import struct
from collections.abc import Callable
from io import BytesIO
from typing import Final

import msgspec

from slackwater_cdc.avro_schema import ReadableSchema, readable_schema
from slackwater_cdc.errors import WireFormatError

MAGIC: Final = 0
HEADER_BYTES: Final = 5

SchemaOf = Callable[[int], str]
"""The schema with an id, as JSON text. May block; raises errors of its own when it does not know."""

ToJson = Callable[[bytes | None], bytes | None]
"""Key or value of a record as JSON; None and everything that is no Avro passes untouched."""

_UNREADABLE = (
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    UnicodeDecodeError,
    ValueError,
    struct.error,
)
_encode = msgspec.json.Encoder().encode


class AvroToJson:
    """A :data:`ToJson` for Confluent's wire format. Keeps every schema it has met; for one thread.

    Gives what JsonConverter writes with ``schemas.enable=false``: bytes and Connect's Decimal as base64 (the
    scale is in the schema only), dates and times as the integers that Debezium means, unions without their
    branch, maps as objects.

    Args:
        schema_of: Where schemas come from.
    """

    def __init__(self, schema_of: SchemaOf) -> None:
        self._schema_of = schema_of
        self._schemas: dict[int, ReadableSchema] = {}

    def __call__(self, data: bytes | None) -> bytes | None:
        """See :data:`ToJson`.

        Raises:
            WireFormatError: the bytes do not fit their schema, or the schema cannot be used.
        """
        if not data or data[0] != MAGIC:
            return data
        if len(data) < HEADER_BYTES:
            raise WireFormatError(None, f"it has {len(data)} bytes, expected at least {HEADER_BYTES}", data)
        schema_id = int.from_bytes(data[1:HEADER_BYTES], "big")
        schema = self._schemas.get(schema_id) or self._learn(schema_id, data)
        stream = BytesIO(data)
        stream.seek(HEADER_BYTES)
        try:
            value = schema.read(stream, schema.parsed, None)
            result = _encode(value if schema.fix is None else schema.fix(value))
        except _UNREADABLE as error:
            raise WireFormatError(schema_id, f"{type(error).__name__}: {error}", data) from None
        if stream.tell() != len(data):
            reason = f"{len(data) - stream.tell()} bytes are left over behind it"
            raise WireFormatError(schema_id, reason, data)
        return result

    def _learn(self, schema_id: int, data: bytes) -> ReadableSchema:
        try:
            schema = readable_schema(self._schema_of(schema_id))
        except ValueError as error:
            raise WireFormatError(schema_id, str(error), data) from error
        self._schemas[schema_id] = schema
        return schema
