"""Commit records in Avro, under the record name ``commit`` and without a registry's header. Pure.

They contain less than those in JSON, which Slackwater's own readers use: neither the source and the previous
commit nor what was skipped.
"""

import json
from functools import lru_cache
from io import BytesIO
from typing import Any

import fastavro

from slackwater.protocol import (
    CommitPosition,
    CommitRecord,
    MalformedRecordError,
    SchemaLanguage,
    commit_schema,
    parse_commit_id,
)

_NS_PER_MS = 1_000_000
_UNREADABLE = (EOFError, IndexError, MemoryError, OverflowError, TypeError, ValueError)


def encode_commit_avro(record: CommitRecord, record_count: int | None = None) -> bytes:
    """Encodes a commit record; if its ranges do not count their records, the count is given.

    Raises:
        MalformedRecordError: A number does not fit in 64 signed bits.
    """
    ns = record.commit_ts_ms * _NS_PER_MS if record.commit_ts_ns is None else record.commit_ts_ns
    fields = {
        "commit_id": record.commit_id,
        "producer_name": record.pipeline,
        "commit_epoch_ns": ns,
        "record_count": record.record_count if record_count is None else record_count,
        "topics": [
            {
                "topic_name": topic,
                "schema_names": record.schemas.get(topic, ()),
                "offsets": [
                    {"min_offset": each.first_offset, "max_offset": each.last_offset, "partition": number}
                    for number, each in ranges.items()
                ],
            }
            for topic, ranges in record.offsets.items()
        ],
    }
    stream = BytesIO()
    try:
        fastavro.schemaless_writer(stream, _schema(), fields)
    except _UNREADABLE as error:
        raise MalformedRecordError("commit record for Avro", f"{type(error).__name__}: {error}") from error
    return stream.getvalue()


def decode_commit_avro(data: bytes) -> tuple[str, CommitPosition]:
    """Returns who wrote a record, and the position of its commit.

    Raises:
        MalformedRecordError: The bytes are not such a record, or something follows it.
    """
    stream = BytesIO(data)
    try:
        fields: Any = fastavro.schemaless_reader(stream, _schema(), None)
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes follow its end")
        return fields["producer_name"], parse_commit_id(fields["commit_id"])
    except _UNREADABLE as error:
        raise MalformedRecordError("commit record in Avro", f"{type(error).__name__}: {error}") from error


@lru_cache(maxsize=1)
def _schema() -> Any:
    return fastavro.parse_schema(json.loads(commit_schema(SchemaLanguage.AVRO)))
