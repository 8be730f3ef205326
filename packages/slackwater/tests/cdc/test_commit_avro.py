"""JSON Schema and codec agree on a commit record, and the record in Avro says where its records are."""

import json
import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.cdc.commit_avro import decode_commit_avro, encode_commit_avro
from slackwater.protocol import (
    CommitPosition,
    CommitRecord,
    MalformedRecordError,
    OffsetRange,
    SchemaLanguage,
    commit_schema,
    decode_commit_record,
    encode_commit_record,
)

VECTORS = Path(__file__).parents[3] / "slackwater" / "tests" / "protocol" / "vectors"
SCHEMA = json.loads(commit_schema(SchemaLanguage.JSON))
KEYWORDS = {
    "$schema",
    "title",
    "description",
    "type",
    "required",
    "dependentRequired",
    "properties",
    "additionalProperties",
    "propertyNames",
    "pattern",
    "items",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
}
TYPES: dict[str, type] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "null": type(None),
}

names = st.text(min_size=1, max_size=10)
longs = st.integers(0, 2**63 - 1)
ranges = st.builds(OffsetRange, st.integers(0, 2**40), longs, longs)
topics = st.dictionaries(names, st.dictionaries(st.integers(0, 5000), ranges, max_size=3), max_size=3)
older = st.builds(
    CommitRecord,
    pipeline=names,
    source=names,
    timeline=st.integers(0, 2**32),
    commit_lsn=longs,
    previous_lsn=longs,
    xid=st.none() | st.integers(0, 2**32 - 1),
    commit_ts_ms=st.integers(0, 2**43),
    offsets=topics,
    skipped=st.lists(longs, max_size=3).map(tuple),
)
described = st.builds(
    lambda record, ns, schemas: replace(
        record, commit_ts_ns=record.commit_ts_ms * 10**6 + ns, schemas=schemas
    ),
    older.filter(lambda record: record.commit_ts_ms < 2**62 // 10**6),
    st.integers(0, 999_999),
    st.dictionaries(names, st.lists(names, max_size=2).map(tuple), max_size=2),
)
COMMIT = CommitRecord(
    pipeline="p",
    source="s",
    timeline=1,
    commit_lsn=20,
    previous_lsn=10,
    xid=7,
    commit_ts_ms=5,
    offsets={"out": {0: OffsetRange(1, 2, 3)}},
    commit_ts_ns=5_000_001,
    schemas={"out": ("v:1",)},
)


def fits(schema: dict[str, Any], value: Any) -> bool:
    """A validator of the keywords that the schema uses, written from the specification's text."""
    assert schema.keys() <= KEYWORDS, "a keyword that this validator does not know"
    allowed = schema.get("type", list(TYPES))
    allowed = [allowed] if isinstance(allowed, str) else allowed
    if not any(type(value) is TYPES[each] for each in allowed):
        return False
    if isinstance(value, dict):
        return fits_object(schema, value)
    if isinstance(value, list):
        least, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
        return least <= len(value) <= most and all(fits(schema.get("items", {}), v) for v in value)
    if isinstance(value, int):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return not isinstance(value, str) or re.search(schema.get("pattern", ""), value) is not None


def fits_object(schema: dict[str, Any], value: dict[str, Any]) -> bool:
    required = set(schema.get("required", ()))
    for name, others in schema.get("dependentRequired", {}).items():
        required.update(others if name in value else ())
    known, more = schema.get("properties", {}), schema.get("additionalProperties", {})
    return (
        required <= value.keys()
        and all(fits(schema.get("propertyNames", {}), name) for name in value)
        and all(fits(known.get(name, more), each) for name, each in value.items())
    )


def read_plainly(data: bytes) -> Any:
    """As a reader that has nothing but the printed schema."""
    schema = fastavro.parse_schema(json.loads(commit_schema(SchemaLanguage.AVRO)))
    return fastavro.schemaless_reader(BytesIO(data), schema, None)


@settings(max_examples=80, deadline=None)
@given(record=older | described)
def test_json_schema_and_codec_agree_on_any_record(record: CommitRecord) -> None:
    data = encode_commit_record(record)
    assert fits(SCHEMA, json.loads(data))
    assert record == decode_commit_record(data)


@settings(max_examples=80, deadline=None)
@given(record=older.filter(lambda record: record.commit_ts_ms < 2**62 // 10**6) | described)
def test_avro_says_where_the_records_of_any_commit_are(record: CommitRecord) -> None:
    data = encode_commit_avro(record)
    found = read_plainly(data)
    assert {
        each["topic_name"]: {o["partition"]: (o["min_offset"], o["max_offset"]) for o in each["offsets"]}
        for each in found["topics"]
    } == {
        topic: {p: (held.first_offset, held.last_offset) for p, held in ranges.items()}
        for topic, ranges in record.offsets.items()
    }
    assert found["record_count"] == record.record_count
    assert found["commit_epoch_ns"] // 10**6 == record.commit_ts_ms
    position = CommitPosition(record.timeline, record.commit_lsn)
    assert decode_commit_avro(data) == (record.pipeline, position)


def test_the_fields_in_avro_are_those_that_other_readers_know() -> None:
    assert read_plainly(encode_commit_avro(COMMIT)) == {
        "commit_id": "00000001-0000000000000014",
        "producer_name": "p",
        "commit_epoch_ns": 5_000_001,
        "record_count": 1,
        "topics": [
            {
                "topic_name": "out",
                "schema_names": ["v:1"],
                "offsets": [{"min_offset": 2, "max_offset": 3, "partition": 0}],
            }
        ],
    }
    assert read_plainly(encode_commit_avro(COMMIT, 7))["record_count"] == 7


def test_the_json_schema_names_the_fields_that_the_codec_writes() -> None:
    assert SCHEMA["properties"].keys() == json.loads(encode_commit_record(COMMIT)).keys()


@pytest.mark.parametrize("vector", sorted(VECTORS.glob("commit_record*.json")), ids=lambda path: path.name)
def test_records_of_every_version_fit_the_json_schema(vector: Path) -> None:
    assert fits(SCHEMA, json.loads(vector.read_bytes()))


@pytest.mark.parametrize(
    "change",
    [
        {"id": "1-14"},
        {"xid": "7"},
        {"commit_lsn": -1},
        {"commit_ts": 2**60},
        {"record_counts": {"out": "1"}},
        {"offsets": {"out": {"0": [1, 2]}}},
        {"offsets": {"out": {"first": [1, 2, 3]}}},
        {"schemas": {"out": "v:1"}},
        {"skipped": [None]},
        {"v": 3},
    ],
    ids=str,
)
def test_what_the_codec_refuses_the_json_schema_refuses(change: dict[str, Any]) -> None:
    wrong = json.loads(encode_commit_record(COMMIT)) | change
    assert not fits(SCHEMA, wrong)
    with pytest.raises(Exception, match="commit record"):
        decode_commit_record(json.dumps(wrong).encode())


@pytest.mark.parametrize("name", SCHEMA["required"])
def test_a_record_that_lacks_a_required_field_is_refused_by_both(name: str) -> None:
    wrong = json.loads(encode_commit_record(COMMIT))
    del wrong[name]
    assert not fits(SCHEMA, wrong)
    with pytest.raises(MalformedRecordError):
        decode_commit_record(json.dumps(wrong).encode())


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d[:-1],
        lambda d: d + b"x",
        lambda _: b"",
        lambda d: d.replace(b"00000001-", b"00000001+"),
        lambda d: d.replace(b"00000001-", b"0000000x-"),
    ],
)
def test_damaged_avro_is_refused(damage: Any) -> None:
    with pytest.raises(MalformedRecordError):
        decode_commit_avro(damage(encode_commit_avro(COMMIT)))


def test_a_number_that_avro_cannot_hold_is_refused() -> None:
    with pytest.raises(MalformedRecordError, match="for Avro"):
        encode_commit_avro(replace(COMMIT, commit_ts_ns=2**63))
