"""Everything in a topic is either understood, or refused by this package's own error, which names it.

``make fuzz`` tries more of it: ``FUZZ`` says how many damaged records per decoder.
"""

import base64
import json
import os
import random
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.cdc import Frontier, UndecodableRecordError, decode_change
from slackwater.cdc.avro import AvroToJson
from slackwater.cdc.envelope import decode_notification, decode_transaction
from slackwater.cdc.partition import parse_rows
from slackwater.protocol import SlackwaterError, decode_cut, encode_cut
from slackwater_lab.debezium.records import change_value, end_value

RECORDINGS = Path(__file__).parent / "recordings"
EXAMPLES = int(os.environ.get("FUZZ") or 240)
MEBIBYTE = 1 << 20

fuzzed = settings(max_examples=EXAMPLES, deadline=None)
seeds = st.integers(0, 2**64)
Record = tuple[str, bytes]


@cache
def recorded() -> list[Record]:
    """Topic and value of the records of all recordings, tombstones left out."""
    found = []
    for path in sorted(RECORDINGS.glob("*.tsv")):
        for line in path.read_text().splitlines():
            topic, _, _, value, *_ = line.split("\t")
            if value != "null" and "heartbeat" not in topic:
                found.append((topic, value.encode()))
    return found


@cache
def recorded_kinds() -> dict[str, list[bytes]]:
    kinds: dict[str, list[bytes]] = {"change": [], "transaction": [], "notification": []}
    for topic, value in recorded():
        is_change = not topic.endswith((".transaction", ".notif", ".notifications"))
        kind = "change" if is_change else "transaction" if topic.endswith(".transaction") else "notification"
        kinds[kind].append(value)
    return kinds


def refusal(decode: Callable[[bytes], object], value: bytes) -> str | None:
    """What this package says of a value that it refuses; any other error fails the test."""
    try:
        decode(value)
    except SlackwaterError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("kind", "decode"),
    [
        ("change", decode_change),
        ("change", lambda value: parse_rows([(0, value)])),
        ("transaction", decode_transaction),
        ("notification", decode_notification),
    ],
    ids=["change", "columns", "transaction", "notification"],
)
@fuzzed
@given(seed=seeds)
def test_a_damaged_record_is_understood_or_refused(
    kind: str, decode: Callable[[bytes], object], seed: int
) -> None:
    rng = random.Random(seed)
    value = damaged(rng.choice(recorded_kinds()[kind]), rng)
    assert refusal(decode, value) != ""


@pytest.mark.parametrize("has_columns", [False, True])
@settings(fuzzed, max_examples=EXAMPLES // 6)
@given(seed=seeds)
def test_a_frontier_takes_damaged_records(has_columns: bool, seed: int) -> None:
    """Cuts that it makes nevertheless can be written down; what holds them back is named."""
    rng = random.Random(seed)
    frontier = Frontier("s")
    partition = frontier.add_partition("s.inv.a", 0, 0)
    kinds = recorded_kinds()
    for _ in range(3):
        for kind, values in kinds.items():
            first = rng.randrange(len(values))
            chosen = [damaged(v, rng) if rng.random() < 0.5 else v for v in values[first : first + 5]]
            if kind == "transaction":
                frontier.read_transactions((first + n, v, 0) for n, v in enumerate(chosen))
            elif kind == "notification":
                frontier.read_notifications((first + n, v) for n, v in enumerate(chosen))
            elif has_columns:
                partition.read_parsed(parse_rows(list(enumerate(chosen, partition.position))), "r")
            else:
                partition.read(enumerate(chosen, partition.position), "r")
        frontier.advance()
        frontier.end_offsets({})
        frontier.rest({})
        for cut in frontier.cuts():
            assert decode_cut(encode_cut(cut)) == cut
        assert all(str(obstacle) for obstacle in frontier.obstacles)
        assert all(open_.hint for open_ in frontier.open_transactions())


@cache
def avro() -> tuple[list[bytes], dict[str, Any]]:
    lines = (RECORDINGS / "avro" / "avro.jsonl").read_text().splitlines()
    values = [base64.b64decode(v) for line in lines if (v := json.loads(line)["value"])]
    return values, json.loads((RECORDINGS / "avro" / "schemas.json").read_text())


@fuzzed
@given(seed=seeds)
def test_damaged_avro_is_understood_or_refused(seed: int) -> None:
    """The bytes of a value, the id of its schema, or the schema itself."""
    rng = random.Random(seed)
    values, schemas = avro()

    def schema_of(number: int) -> str:
        if str(number) not in schemas:
            raise ValueError("no such schema")
        text = json.dumps(schemas[str(number)])
        return damaged(text.encode(), rng).decode(errors="replace") if rng.random() < 0.5 else text

    value = rng.choice(values)
    at = rng.randrange(len(value))
    value = rng.choice((value, value[:at], value[:at] + rng.randbytes(rng.randint(1, 12)) + value[at + 1 :]))
    assert refusal(AvroToJson(schema_of), value) != ""


# --- what was found


NESTED = b'{"a":' * 50_000


@pytest.mark.parametrize("decode", [decode_change, decode_transaction, decode_notification])
def test_json_that_is_nested_too_deeply_is_refused(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(UndecodableRecordError, match="recursion"):
        decode(NESTED)


@pytest.mark.parametrize("number", [0, -1, 2**28 + 1, 2**31, 2**63, 10**30])
def test_numbers_of_rows_that_nobody_can_have_are_refused(number: int) -> None:
    """Each would take a byte of memory per row."""
    tracemalloc.start()
    frontier = Frontier("s")
    partition = frontier.add_partition("s.inv.a", 0, 0)
    value = change_value("inv.a", "c", position=(7, 701), orders=(number, 1), after={"id": 1})
    partition.read([(0, value)])
    partition.read_parsed(parse_rows([(1, value)]))
    ends = [end_value(7, 750, {"inv.a": number})] if number else []
    frontier.read_transactions((n, v, 0) for n, v in enumerate(ends))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(frontier.obstacles) == 2 + len(ends)
    assert "data_collection_order" in frontier.obstacles[0].detail
    assert all(str(number) in o.detail or "Expected `int`" in o.detail for o in frontier.obstacles)
    assert peak < 10 * MEBIBYTE


def _end(**changed: object) -> bytes:
    return json.dumps(json.loads(end_value(7, 750, {"inv.a": 2})) | changed).encode()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (_end(data_collections=None), "counts 2 changes, but names no table"),
        (_end(data_collections=[]), "counts 2 changes, but names no table"),
        (_end(data_collections=[{"data_collection": "inv.a", "event_count": 1}] * 2), "names 'inv.a' twice"),
        (_end(data_collections=[{"data_collection": "inv.a", "event_count": -1}]), "[0].event_count"),
        (_end(event_count=-1), "event_count"),
        (_end(event_count="2"), "event_count"),
        (_end(event_count=2.5), "event_count"),
        (_end(ts_ms=10**15), "ts_ms"),
        (_end(ts_ms=None), "ts_ms"),
        (_end(id="7"), "expected '<xid>:<lsn>'"),
        (_end(id="0:750"), "expected '<xid>:<lsn>'"),
        (_end(id="7:0"), "it has no commit LSN"),
        (_end(id="7:-750"), "expected '<xid>:<lsn>'"),
        (_end(id="7:7_50"), "expected '<xid>:<lsn>'"),
        (_end(id=" 7:750"), "expected '<xid>:<lsn>'"),
        (_end(id="7:²"), "expected '<xid>:<lsn>'"),
        (_end(id=f"7:{2**63}"), "expected '<xid>:<lsn>'"),
        (_end(id="7:" + "9" * 5000), "expected '<xid>:<lsn>'"),
    ],
)
def test_an_end_that_may_mean_something_else_is_refused(value: bytes, problem: str) -> None:
    """Read as it is, it would let a transaction pass without its rows."""
    with pytest.raises(UndecodableRecordError) as caught:
        decode_transaction(value)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", [b"{}", b'{"aggregate_type":"Initial Snapshot"}', b'{"payload":{}}'])
def test_a_record_without_a_type_is_no_notification(value: bytes) -> None:
    """If it were ignored, announced rows of a snapshot might be lost."""
    with pytest.raises(UndecodableRecordError, match="it has no 'type'"):
        decode_notification(value)


def _change(**source: object) -> bytes:
    fields = json.loads(change_value("inv.a", "c", position=(7, 701), orders=(1, 1), after={"id": 1}))
    return json.dumps(fields | {"source": fields["source"] | source}).encode()


@pytest.mark.parametrize(
    "source",
    [{"txId": -1}, {"txId": 2**63}, {"lsn": -1}, {"lsn": 2**63}, {"ts_ms": 10**15}],
    ids=str,
)
def test_a_change_with_impossible_numbers_is_refused(source: dict[str, object]) -> None:
    value = _change(**source)
    with pytest.raises(UndecodableRecordError):
        decode_change(value)

    frontier = Frontier("s")
    partition = frontier.add_partition("s.inv.a", 0, 0)
    partition.read([(0, value)])
    partition.read_parsed(parse_rows([(1, value)]))
    assert [obstacle.offset for obstacle in frontier.obstacles] == [0, 1]


def test_a_change_whose_transaction_has_no_number_is_refused() -> None:
    value = change_value("inv.a", "c", position=(0, 701), orders=(1, 1), after={"id": 1})
    with pytest.raises(UndecodableRecordError, match="got '0:701', expected '<xid>:<lsn>'"):
        decode_change(value)

    frontier = Frontier("s")
    partition = frontier.add_partition("s.inv.a", 0, 0)
    partition.read([(0, value)])
    partition.read_parsed(parse_rows([(1, value)]))
    assert [obstacle.offset for obstacle in frontier.obstacles] == [0, 1]


@pytest.mark.parametrize(
    "items",
    [
        '"null"',
        '{"type":"record","name":"e","fields":[]}',
        '{"type":"fixed","name":"f","size":0}',
        '{"type":"record","name":"e","fields":[{"name":"x","type":"null"}]}',
    ],
)
def test_avro_arrays_of_nothing_are_refused(items: str) -> None:
    """A few bytes may say that there are a billion of them."""
    schema = f'{{"type":"array","items":{items}}}'
    many = b"\0\0\0\0\1" + b"\xfe\xff\xff\xff\x0f" + b"\0"
    with pytest.raises(UndecodableRecordError, match="take no bytes"):
        AvroToJson(lambda _: schema)(many)


def test_avro_that_contains_itself_without_end_is_refused() -> None:
    schema = '{"type":"record","name":"r","fields":[{"name":"r","type":"r"}]}'
    with pytest.raises(UndecodableRecordError):
        AvroToJson(lambda _: schema)(b"\0\0\0\0\1" + b"\0" * 100)
    optional = '{"type":"record","name":"r","fields":[{"name":"r","type":["null","r"]}]}'
    with pytest.raises(UndecodableRecordError):
        AvroToJson(lambda _: optional)(b"\0\0\0\0\1" + b"\2" * 100_000 + b"\0")


_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63) - 1,
    10**400,
    1.5,
    1e300,
    "",
    "x",
    "7",
    "²",
    "-5:7",
    "7:",
    "7:9" + "9" * 5000,
    "1" * 5000,
    "\ud800",
    [],
    [None],
    {},
    {"": None},
)
_DEEP = 50_000


def damaged(value: bytes, rng: random.Random) -> bytes:
    """A record with one to three things wrong: a field of its JSON, or its bytes."""
    for _ in range(rng.randint(1, 3)):
        value = rng.choice((_change_field, _change_field, _change_field, _change_bytes))(value, rng)
    return value


def _change_field(value: bytes, rng: random.Random) -> bytes:
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return _change_bytes(value, rng)
    places = list(_places(document))
    if not places:
        return value
    owner, name = rng.choice(places)
    what = rng.randrange(10)
    if what == 0:
        del owner[name]
    elif what == 1 and isinstance(owner, dict):
        owner[rng.choice(("payload", "source", "transaction", "op", "id", "type"))] = owner[name]
    elif what == 2:
        owner[name] = [owner[name], owner[name]]
    elif what == 3:
        owner[name] = {"payload": owner[name]}
    else:
        owner[name] = rng.choice(_ODD)
    return json.dumps(document).encode()


def _change_bytes(value: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(value))
    what = rng.randrange(6)
    if what == 0:
        return value[:at]
    if what == 1:
        return value[:at] + bytes([rng.randrange(256)]) + value[at + 1 :]
    if what == 2:
        return value[:at] + b"\xff\xfe" + value[at:]
    if what == 3:
        return value[:at] + value[rng.randint(0, len(value)) :]
    if what == 4:
        return _nested(value, rng)
    return bytes(rng.randrange(256) for _ in range(rng.randint(0, 40)))


def _nested(value: bytes, rng: random.Random) -> bytes:
    """The record around, or inside, something that is nested deeper than any stack."""
    left, right = rng.choice(((b"[", b"]"), (b'{"payload":', b"}"), (b'{"after":', b"}")))
    deep = left * _DEEP + b"1" + right * _DEEP
    marks = [at for at in range(len(value)) if value[at : at + 1] == b":"]
    if not marks or rng.random() < 0.3:
        return deep
    at = rng.choice(marks) + 1
    return value[:at] + deep + b"," + value[at:] if rng.random() < 0.1 else _replaced(value, at, deep)


def _replaced(value: bytes, at: int, by: bytes) -> bytes:
    """The number or word behind a colon replaced."""
    end = at
    while end < len(value) and value[end : end + 1] not in b",}]":
        end += 1
    return value[:at] + by + value[end:]


def _places(document: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        owner = waiting.pop()
        inside = (
            list(owner.items())
            if isinstance(owner, dict)
            else list(enumerate(owner))
            if isinstance(owner, list)
            else []
        )
        for name, part in inside:
            found.append((owner, name))
            waiting.append(part)
    return found
