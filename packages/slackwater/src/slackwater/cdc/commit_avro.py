"""Commit records in Avro: the fields of their JSON under the record name ``commit``.

Commit topics contain JSON. This is for services that pass commit records on as Avro.
"""

import json
from functools import lru_cache
from io import BytesIO
from typing import Any

import fastavro

from slackwater.protocol import (
    CommitRecord,
    MalformedRecordError,
    SchemaLanguage,
    commit_schema,
    decode_commit_record,
    encode_commit_record,
)

_RANGE = ("count", "first_offset", "last_offset")
_UNREADABLE = (EOFError, IndexError, KeyError, MemoryError, OverflowError, TypeError, ValueError)
_ABSENT = ("id", "commit_ts_ns", "record_count")
"""Null in Avro, because older versions lack the field."""


def encode_commit_avro(record: CommitRecord) -> bytes:
    """Encodes a commit record as schemaless Avro, without any registry's header.

    Raises:
        MalformedRecordError: A number does not fit in 64 signed bits.
    """
    fields = json.loads(encode_commit_record(record))
    fields["offsets"] = {
        topic: {
            partition: dict(zip(_RANGE, numbers, strict=True)) for partition, numbers in partitions.items()
        }
        for topic, partitions in fields["offsets"].items()
    }
    stream = BytesIO()
    try:
        fastavro.schemaless_writer(stream, _schema(), fields)
    except _UNREADABLE as error:
        raise MalformedRecordError("commit record for Avro", f"{type(error).__name__}: {error}") from error
    return stream.getvalue()


def decode_commit_avro(data: bytes) -> CommitRecord:
    """Decodes what :func:`encode_commit_avro` wrote.

    Raises:
        MalformedRecordError: The bytes are not such a record, or something follows it.
            InputError: A newer version wrote it.
    """
    stream = BytesIO(data)
    try:
        fields: Any = fastavro.schemaless_reader(stream, _schema(), None)
    except _UNREADABLE as error:
        raise MalformedRecordError("commit record in Avro", f"{type(error).__name__}: {error}") from error
    if stream.tell() != len(data):
        reason = f"{len(data) - stream.tell()} bytes follow its end"
        raise MalformedRecordError("commit record in Avro", reason)
    fields["offsets"] = {
        topic: {partition: [each[name] for name in _RANGE] for partition, each in partitions.items()}
        for topic, partitions in fields["offsets"].items()
    }
    for name in _ABSENT:
        if fields[name] is None:
            del fields[name]
    return decode_commit_record(json.dumps(fields).encode())


@lru_cache(maxsize=1)
def _schema() -> Any:
    return fastavro.parse_schema(json.loads(commit_schema(SchemaLanguage.AVRO)))
