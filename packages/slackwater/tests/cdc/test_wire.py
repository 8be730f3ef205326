"""Avro from a real connector and its real converter, against the same history written as JSON."""

import base64
import json
import math
import pickle
import struct
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.cdc import Frontier, UndecodableRecordError, decode_change
from slackwater.cdc.avro import AvroToJson, ToJson
from slackwater.protocol import Cut, SlackwaterError

RECORDINGS = Path(__file__).parent / "recordings" / "avro"
PREFIXES = {"avro": "av", "json": "js", "json_with_schemas": "jw"}
FORMATS = sorted(PREFIXES)
Record = dict[str, Any]


def recorded_schema(schema_id: int) -> str:
    return json.dumps(schemas()[str(schema_id)])


@cache
def schemas() -> dict[str, Any]:
    return dict(json.loads((RECORDINGS / "schemas.json").read_text()))


def records(name: str) -> list[Record]:
    """The records of one connector with key and value as bytes, converted to JSON where they are Avro."""
    lines = (RECORDINGS / f"{name}.jsonl").read_text().splitlines()
    return [_decoded(json.loads(line), name) for line in lines]


def _decoded(record: Record, name: str) -> Record:
    convert = AvroToJson(recorded_schema)
    for part in ("key", "value"):
        text = record[part]
        is_avro = name == "avro" and text is not None
        record[part] = convert(base64.b64decode(text)) if is_avro else text and text.encode()
    record["topic"] = record["topic"].replace(PREFIXES[name], "x", 1)
    return record


def rows(name: str) -> list[Record]:
    return [r for r in records(name) if r["topic"].startswith("x.inv.")]


def streamed(value: bytes) -> Any:
    """A change without what differs from connector to connector: its name, times of processing."""
    document = json.loads(value)
    document = document.get("payload", document)
    document.pop("schema", None)
    left_out = {"ts_ms", "ts_us", "ts_ns"}
    source = {k: v for k, v in document["source"].items() if k not in {"name", "sequence"}}
    if document["op"] == "r":
        source = {k: v for k, v in source.items() if k not in left_out | {"lsn", "txId"}}
    return {k: v for k, v in document.items() if k not in left_out} | {"source": source}


@pytest.mark.parametrize("name", ["avro", "json_with_schemas"])
def test_a_change_states_the_schema_of_its_rows(name: str) -> None:
    value = next(row["value"] for row in rows(name) if row["topic"] == "x.inv.kinds")
    events = json.loads(decode_change(value).schema or b"{}")["fields"]
    columns = {c["field"]: c for each in events if each["field"] == "after" for c in each["fields"]}
    assert len(columns) == 22
    assert columns["stamp"]["name"] == "io.debezium.time.MicroTimestamp"
    assert columns["price"]["name"] == "org.apache.kafka.connect.data.Decimal"
    assert columns["words"]["items"]["type"] == columns["note"]["type"] == "string"
    assert columns["raw"]["type"] == "bytes"


def test_a_change_without_schema_states_none() -> None:
    assert {decode_change(row["value"]).schema for row in rows("json") if row["value"]} == {None}


def unwrapped(key: bytes | None) -> Any:
    document = json.loads(key or b"null")
    return document["payload"] if isinstance(document, dict) and "payload" in document else document


@pytest.mark.parametrize("name", ["avro", "json_with_schemas"])
def test_every_row_is_the_same_in_every_format(name: str) -> None:
    ours, plain = rows(name), rows("json")

    assert len(ours) == len(plain) == 21
    for record, expected in zip(ours, plain, strict=True):
        assert (record["topic"], record["offset"]) == (expected["topic"], expected["offset"])
        assert unwrapped(record["key"]) == unwrapped(expected["key"])
        if expected["value"] is None:
            assert record["value"] is None
        else:
            assert streamed(record["value"]) == streamed(expected["value"])


def test_transaction_records_of_avro_are_the_bytes_that_the_json_converter_writes() -> None:
    ours = [r["value"] for r in records("avro") if r["topic"] == "x.transaction"]
    plain = [r["value"] for r in records("json") if r["topic"] == "x.transaction"]

    assert len(ours) == 8
    assert [a == b for a, b in zip(ours, plain, strict=True)].count(False) == 1  # names a Java object


def test_columns_of_all_types_come_out_as_the_json_converter_writes_them() -> None:
    first = next(r for r in rows("avro") if r["topic"] == "x.inv.kinds")
    change = decode_change(first["value"])

    assert change.after is not None
    row = json.loads(bytes(change.after))
    assert row["price"] == "fQ=="
    assert row["amount"] == {"scale": 6, "value": "At/cHDU="}
    assert (row["r"], row["d"]) == (1.1, 0.1)
    assert row["raw"] == base64.b64encode(b"\xde\xad\xbe\xef").decode()
    assert row["day"] == 20778
    assert row["tags"] == {"k": "v", "n": None}
    assert row["words"] == ["x", None, "y"]
    assert row["mood"] == "rough"


@pytest.mark.parametrize("name", FORMATS)
def test_the_frontier_publishes_the_same_commits_from_every_format(name: str) -> None:
    cuts, frontier = follow(name)

    plain, _ = follow("json")
    assert [t.commit_lsn for c in cuts for t in c.transactions][1:] == [
        t.commit_lsn for c in plain for t in c.transactions
    ][1:]
    assert cuts[-1].event_count == plain[-1].event_count == 18
    assert (frontier.open_transactions(), list(frontier.obstacles)) == ([], [])


def follow(name: str) -> tuple[list[Cut], Frontier]:
    """Everything the connector wrote, topic by topic, notifications and transactions last."""
    frontier, cuts = Frontier("x"), []
    topics = sorted({r["topic"] for r in rows(name)})
    partitions = {topic: frontier.add_partition(topic, 0, 0) for topic in topics}
    for record in sorted(records(name), key=lambda r: not r["topic"].startswith("x.inv.")):
        topic, offset, value = record["topic"], record["offset"], record["value"]
        if topic in partitions:
            keyless, now = topic == "x.inv.nokey", record["timestamp_ms"]
            partitions[topic].read([(offset, value)], record["run"], timestamp_ms=now, is_keyless=keyless)
        elif topic == "x.transaction":
            frontier.read_transactions([(offset, value, record["timestamp_ms"])])
        elif topic == "x.notifications":
            frontier.read_notifications([(offset, value)])
        frontier.advance()
        cuts += frontier.cuts()
    ends = {(r["topic"], 0): r["offset"] + 1 for r in records(name)}
    for _ in range(3):
        if frontier.end_offsets_wanted:
            frontier.end_offsets(ends)
        frontier.advance()
        cuts += frontier.cuts()
    return cuts, frontier


def encoded(schema: Any, value: Any, schema_id: int = 1) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + stream.getvalue()


def reader_of(schema: Any) -> ToJson:
    return AvroToJson(lambda schema_id: json.dumps(schema))


def through(schema: Any, value: Any) -> Any:
    data = reader_of(schema)(encoded(schema, value))
    assert data is not None
    return json.loads(data)


@pytest.mark.parametrize("data", [None, b"", b'{"op":"c"}', b"null", b"\xff"])
def test_what_is_no_avro_passes_untouched_and_nobody_is_asked(data: bytes | None) -> None:
    def nobody(schema_id: int) -> str:
        raise AssertionError(schema_id)

    assert AvroToJson(nobody)(data) is data


def test_a_schema_is_asked_for_once() -> None:
    asked: list[int] = []

    def schema_of(schema_id: int) -> str:
        asked.append(schema_id)
        return '"long"'

    convert = AvroToJson(schema_of)
    assert [convert(encoded("long", n, 77)) for n in (1, 2)] == [b"1", b"2"]
    assert asked == [77]


@given(st.floats(width=32))
def test_numbers_of_32_bits_keep_their_bits_and_are_written_short(value: float) -> None:
    written = through("float", value)

    if math.isnan(value):
        assert written == "NaN"
    elif math.isinf(value):
        assert written == ("Infinity" if value > 0 else "-Infinity")
    else:
        assert struct.pack(">f", written) == struct.pack(">f", value)
        assert len(repr(written)) <= len(repr(value))


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ("double", math.nan, "NaN"),
        ("string", "é\x01", "é\x01"),
        (["null", "double"], None, None),
        ({"type": "array", "items": ["null", "float"]}, [1.5, None], [1.5, None]),
        ({"type": "map", "values": "double"}, {"a": -math.inf}, {"a": "-Infinity"}),
        ({"type": "map", "values": "bytes"}, {"a": b"\x01"}, {"a": "AQ=="}),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "fixed", "name": "f", "size": 2}, b"\x00\x01", "AAE="),
        (["string", "long"], 5, 5),
        ({"type": "int", "logicalType": "date"}, 20778, 20778),
        ({"type": "long", "logicalType": "timestamp-micros"}, 3, 3),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
            b"\x7d",
            "fQ==",
        ),
    ],
)
def test_values_of_every_type(schema: Any, value: Any, expected: Any) -> None:
    if isinstance(schema, dict) and "logicalType" in schema:
        data = encoded(schema["type"], value)
        assert json.loads(reader_of(schema)(data) or b"") == expected
    else:
        assert through(schema, value) == expected


@pytest.mark.parametrize(
    ("key", "expected"), [("string", {"k": 1.5}), ("long", [[7, 1.5]]), (["null", "string"], {"k": 1.5})]
)
def test_connect_maps_with_other_keys_are_arrays_of_entries(key: Any, expected: Any) -> None:
    entry = {
        "type": "record",
        "name": "MapEntry",
        "namespace": "io.confluent.connect.avro",
        "fields": [{"name": "key", "type": key}, {"name": "value", "type": "double"}],
    }
    value = [{"key": 7 if key == "long" else "k", "value": 1.5}]

    assert through({"type": "array", "items": entry}, value) == expected


def test_a_map_entry_under_a_name_of_its_own_is_told_by_its_mark() -> None:
    entry = {
        "type": "record",
        "name": "inventory.Sizes",
        "connect.internal.type": "MapEntry",
        "fields": [{"name": "key", "type": "long"}, {"name": "value", "type": "double"}],
    }

    assert through({"type": "array", "items": entry}, [{"key": 7, "value": 1.5}]) == [[7, 1.5]]


def test_a_schema_that_contains_itself_is_read() -> None:
    node = {
        "type": "record",
        "name": "n.Node",
        "fields": [{"name": "x", "type": "double"}, {"name": "next", "type": ["null", "n.Node"]}],
    }
    value = {"x": 1.0, "next": {"x": math.inf, "next": None}}

    assert through(node, value) == {"x": 1.0, "next": {"x": "Infinity", "next": None}}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\0\0\0", "it has 3 bytes"),
        (b"\0\0\0\0", "it has 4 bytes"),
        (b"\0\0\0\0\x09", "EOFError|IndexError|StopIteration"),
        (b"\0\0\0\0\x09\x06ab", "EOFError|IndexError"),
        (b"\0\0\0\0\x09\x04\xff\xff", "UnicodeDecodeError"),
        (b"\0\0\0\0\x09\x02aXY", "2 bytes follow its end"),
    ],
)
def test_bytes_that_do_not_fit_their_schema_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(UndecodableRecordError, match=problem) as caught:
        reader_of("string")(data)

    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert isinstance(copy, UndecodableRecordError)
    assert isinstance(copy, SlackwaterError)
    assert (str(copy), copy.value) == (str(caught.value), data)


@pytest.mark.parametrize(
    "schema", ["not json", '{"type": "record"}', '"nothing"', "3", '["float", "string"]']
)
def test_schemas_that_cannot_be_used_are_refused(schema: str) -> None:
    with pytest.raises(UndecodableRecordError, match="schema 1"):
        AvroToJson(lambda schema_id: schema)(b"\0\0\0\0\x01\x00")


def test_a_schema_that_was_refused_is_asked_for_again() -> None:
    answers = iter(["not json", '"long"'])
    convert = AvroToJson(lambda schema_id: next(answers))

    with pytest.raises(UndecodableRecordError):
        convert(encoded("long", 1))
    assert convert(encoded("long", 1)) == b"1"


def test_avro_without_a_registry_is_refused_with_what_to_set() -> None:
    with pytest.raises(UndecodableRecordError, match="schema_registry"):
        decode_change(b"\0\0\0\0\x01\x02")
