"""Values that Debezium writes as others are repaired or refused; a real connector wrote those here."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from slackwater.sql.catalog import Table
from slackwater.sql.errors import RowContradictsSchemaError
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.row_codec import RowCodec, row_struct
from slackwater.sql.value_forms import forms_of, in_unknown_form

LATER = 20_778
"""2026-11-21."""


def table(column_type: str) -> Table:
    ddl = f"CREATE TABLE t (id bigint PRIMARY KEY, v {column_type} NOT NULL);"
    return parse_catalog({"t.sql": f"{ddl} ALTER TABLE t REPLICA IDENTITY FULL;"}).tables[0]


def decoded(column_type: str, value: Any, *, is_snapshot: bool) -> Any:
    codec = RowCodec(table(column_type), ["v"])
    (found,) = codec.decode(json.dumps({"v": value}).encode(), is_snapshot=is_snapshot)
    return found


def is_regular(declared: Table, value: Any) -> bool:
    """Whether the fast path takes it, which has no checks."""
    decoder = msgspec.json.Decoder(row_struct(declared.columns[1:], is_regular=True))
    try:
        decoder.decode(json.dumps({"v": value}).encode())
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    ("column_type", "value", "meant"),
    [
        ("date", -622_191_234, 2_146_033_979),
        ("date", -625_821_272, -2_147_472_691),
        ("date[]", [-622_191_234, None, LATER], [2_146_033_979, None, LATER]),
    ],
)
def test_infinite_dates_of_a_snapshot_are_infinite(column_type: str, value: Any, meant: Any) -> None:
    assert decoded(column_type, value, is_snapshot=True) == meant


@pytest.mark.parametrize(
    ("column_type", "value", "is_snapshot"),
    [
        ("date", -703_383, True),  # 0044-03-15 BC, written as 0044-03-15
        ("date", -141_418, True),  # 1582-10-14, written as 1582-10-24
        ("date[]", [LATER, -703_383], False),
        ("timestamp[]", [-12_218_515_200_000_000 - 1], False),
        ("timestamp(3)[]", [-12_219_375_477_000], False),
        ("timestamptz[]", ["0044-03-15T00:00:00.000000Z"], False),
        ("timestamptz[]", ["1582-10-24T00:00:00.000000Z"], False),
        ("timestamp", -9_223_372_036_853_775_810 + 3, False),  # 294276-12-31, overflowed
        ("timestamp(3)", 9_224_318_015_999_000, False),
        ("timestamp", 9_223_372_036_854_775_001, False),
        ("timestamp", -211_000_000_000_000_001, False),
        ("timestamp(3)", -211_000_000_000_001, False),
        ("timestamp(3)[]", [LATER, -12_218_515_200_000 - 1_000], False),
        ("timestamptz", "+294247-01-01T00:00:00Z", False),
        ("timestamptz[]", ["+294247-01-01T00:00:00Z"], False),
        ("timestamptz[]", ["-0043-03-15T00:00:00.000000Z"], False),
        ("timestamp[]", [9_223_372_036_854_775_001], False),
        ("integer[]", [None, None], False),
        ("date[]", [None, None], False),
        ("citext[]", [None], False),
        ("text[]", ["[Ljava.lang.String;@42ff1e9e", "[Ljava.lang.String;@66ae10a3"], False),
        ("text[]", ["x", None, "[Ljava.lang.String;@42ff1e9e"], False),
        ("varchar(9)[]", ["[[Ljava.lang.String;@42ff1e9e"], False),
        ("inet[]", ["[Ljava.lang.Object;@7b37f384"], False),
        ("jsonb[]", ["[Ljava.lang.String;@712c41dc"], False),
    ],
)
def test_what_may_be_another_value_is_refused(column_type: str, value: Any, is_snapshot: bool) -> None:
    with pytest.raises(RowContradictsSchemaError) as caught:
        decoded(column_type, value, is_snapshot=is_snapshot)
    assert caught.value.column == "v"
    assert "leave" in caught.value.hint
    assert is_snapshot or not is_regular(table(column_type), value), "the fast path refuses it, too"


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        ("date", -703_383),
        ("date", 2_146_033_979),
        ("timestamp", -12_220_239_477_000_000),
        ("timestamp", -211_000_000_000_000_000),
        ("timestamp", 9_223_372_036_854_775_000),
        ("timestamp(3)", -211_000_000_000_000),
        ("timestamp(3)[]", [-12_218_428_800_000]),
        ("timestamp[]", [-12_218_428_800_000_000]),
        ("timestamptz", "+294246-12-31T23:59:59Z"),
        ("timestamptz", "-infinity"),
        ("timestamptz[]", ["1582-10-25T00:00:00Z"]),
        ("date[]", [-141_417]),
        ("timestamp", 2**63 - 1),
        ("timestamp", -(2**63)),
        ("timestamp(3)", 9_223_372_036_825_200_000),
        ("timestamp[]", [2**63 - 1, -(2**63)]),
        ("timestamptz[]", ["-infinity", "infinity", "+10000-01-01T00:00:00Z", None]),
        ("text[]", [None]),
        ("text[]", ["[1]", "[Ljava"]),
        ("integer[]", []),
        ("integer[]", [1, None]),
    ],
)
def test_streamed_values_that_no_other_value_is_written_as_are_taken(column_type: str, value: Any) -> None:
    assert decoded(column_type, value, is_snapshot=False) == value


def test_the_first_day_of_the_calendar_is_that_day_in_snapshots() -> None:
    assert decoded("date", -141_417, is_snapshot=True) == -141_417


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        ("timestamp", 1_795_255_872_123_456),
        ("timestamp(3)", 1_795_255_872_123),
        ("timestamptz", "2026-11-21T08:09:10.123456Z"),
        ("timestamp[]", [1_795_255_872_123_456]),
        ("timestamp(3)[]", [1_795_255_872_123]),
        ("timestamptz[]", ["2026-11-21T08:09:10.123456Z"]),
        ("date", LATER),
        ("date[]", [LATER]),
        ("text[]", ["a"]),
        ("integer[]", [1]),
    ],
)
def test_ordinary_values_need_no_check(column_type: str, value: Any) -> None:
    assert is_regular(table(column_type), value)


def test_a_uuid_array_that_an_update_omits_is_recognised() -> None:
    codec = RowCodec(table("uuid[]"), ["v"])
    row = codec.decode(b'{"v":["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]}')
    assert codec.merge(row, (["x"],)) == (["x"],)


def in_any_form(column_type: str) -> Table:
    declared = table(column_type)
    columns = tuple(replace(each, type=in_unknown_form(each.type)) for each in declared.columns)
    return replace(declared, columns=columns)


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        ("timestamp", 1_795_255_872_123),  # time.precision.mode=connect: milliseconds
        ("timestamp(3)", 1_795_255_872_123_000),  # microseconds
        ("timestamp[]", [1_795_255_872_123]),
        ("numeric(10)", "1234"),  # decimal.handling.mode=precise: three bytes in base64
        ("numeric", "12345678"),
        ("numeric[]", ["1234"]),
        ("timestamp", 1),
        ("timestamp(3)", 10**14),
        ("timestamp(3)", -(10**14)),
        ("timestamp[]", [1_795_255_872_123_456, 1_795_255_872_123]),
        ("time", 36_672_123),  # connect: milliseconds
        ("time", 1),
        ("time", 86_400_000),
        ("bytea", "deadbeef"),  # binary.handling.mode=hex
    ],
)
def test_a_value_that_another_form_may_contain_is_refused_if_nobody_knows_the_form(
    column_type: str, value: Any
) -> None:
    raw = json.dumps({"v": value}).encode()
    RowCodec(table(column_type), ["v"]).decode(raw)
    declared = in_any_form(column_type)
    with pytest.raises(RowContradictsSchemaError, match=r"Set connect\.url"):
        RowCodec(declared, ["v"]).decode(raw)
    assert not is_regular(declared, value)


def test_a_value_in_an_unknown_form_is_checked_as_in_a_known_one() -> None:
    with pytest.raises(RowContradictsSchemaError, match="years BC"):
        RowCodec(in_any_form("date"), ["v"]).decode(b'{"v":-703383}', is_snapshot=True)
    with pytest.raises(RowContradictsSchemaError, match="up to the year"):
        RowCodec(in_any_form("timestamp"), ["v"]).decode(b'{"v":-211000000000000001}')


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        ("timestamp", 1_795_255_872_123_456),
        ("timestamp", -1_795_255_872_123_456),
        ("timestamp", 0),
        ("timestamp", 10**14),
        ("timestamp", 2**63 - 1),
        ("timestamp(3)", 1_795_255_872_123),
        ("timestamp(3)", 10**14 - 1),
        ("timestamp(3)", 9_223_372_036_825_200_000),
        ("timestamp[]", [1_795_255_872_123_456, None]),
        ("time", 36_672_123_456),
        ("time", 0),
        ("time", 86_400_001),
        ("time", 86_400_000_000),
        ("time(3)", 86_400_000),
        ("time(3)", 36_672_123),
        ("bytea", "3q2+7w=="),
        ("bytea", ""),
        ("date", LATER),
        ("text", "deadbeef"),
        ("numeric(10,2)", "1234.00"),
        ("numeric(10)", "-1234"),
        ("numeric(10)", "-123"),
        ("numeric(10)", "0"),
        ("numeric[]", ["12345", None]),
    ],
)
def test_ordinary_values_prove_their_form(column_type: str, value: Any) -> None:
    codec = RowCodec(in_any_form(column_type), ["v"])
    assert codec.decode(json.dumps({"v": value}).encode()) == (value,)


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        ("timestamp", 1_795_255_872_123_456),
        ("timestamp(3)", 1_795_255_872_123),
        ("timestamp[]", [1_795_255_872_123_456]),
        ("time", 36_672_123_456),
        ("time(3)", 36_672_123),
        ("bytea", "3q2+7w=="),
    ],
)
def test_ordinary_values_need_no_check_in_an_unknown_form(column_type: str, value: Any) -> None:
    assert is_regular(in_any_form(column_type), value)


def schema_of(column: dict[str, Any]) -> bytes:
    """The Connect schema of a change event with one column."""
    row = {"type": "struct", "field": "after", "fields": [{"field": "v", "optional": False, **column}]}
    return json.dumps({"type": "struct", "fields": [row | {"field": "before"}, row]}).encode()


INT64, STRING = {"type": "int64"}, {"type": "string"}


def test_forms_are_those_of_the_row_and_not_those_of_its_source() -> None:
    row = {"type": "struct", "field": "after", "fields": [STRING | {"field": "lsn"}]}
    source = {"type": "struct", "field": "source", "fields": [INT64 | {"field": "lsn"}]}
    schema = json.dumps({"type": "struct", "fields": [row, source]}).encode()
    assert forms_of(schema) == {"lsn": "string"}


@pytest.mark.parametrize(
    ("column_type", "column", "value"),
    [
        ("timestamp", INT64 | {"name": "io.debezium.time.MicroTimestamp"}, 1_000),
        ("timestamp(3)", INT64 | {"name": "io.debezium.time.Timestamp"}, 10**15),
        ("time", INT64 | {"name": "io.debezium.time.MicroTime"}, 1_000),
        ("bytea", {"type": "bytes"}, "abcd"),
        ("numeric", STRING, "1234"),
        ("numeric[]", {"type": "array", "items": STRING}, ["1234"]),
    ],
)
def test_the_schema_of_a_record_proves_the_form(column_type: str, column: Any, value: Any) -> None:
    raw = json.dumps({"v": value}).encode()
    codec = RowCodec(in_any_form(column_type), ["v"])
    with pytest.raises(RowContradictsSchemaError):
        codec.decode(raw)
    assert codec.of_schema(schema_of(column)).decode(raw) == (value,)
    assert codec.of_schema(None) is codec


@pytest.mark.parametrize(
    ("column_type", "column"),
    [
        ("timestamp", INT64 | {"name": "org.apache.kafka.connect.data.Timestamp"}),
        ("timestamp", INT64 | {"name": "io.debezium.time.NanoTimestamp"}),
        ("timestamp(3)", INT64 | {"name": "io.debezium.time.MicroTimestamp"}),
        ("timestamp[]", {"type": "array", "items": INT64 | {"name": "io.debezium.time.Timestamp"}}),
        ("time(3)", INT64 | {"name": "io.debezium.time.MicroTime"}),
        ("date", STRING | {"name": "io.debezium.time.IsoDate"}),
        ("timestamptz", STRING | {"name": "io.debezium.time.IsoTimestamp"}),
        ("bytea", STRING),
        ("numeric(9,2)", {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}),
        ("numeric(3,2)", {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}),
        ("numeric", {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}),
        ("numeric", {"type": "double"}),
    ],
)
def test_a_schema_with_a_form_that_is_not_read_is_refused(column_type: str, column: Any) -> None:
    for declared in (table(column_type), in_any_form(column_type)):
        with pytest.raises(RowContradictsSchemaError, match="as the record's schema says") as caught:
            RowCodec(declared, ["v"]).of_schema(schema_of(column))
        assert "slackwater connector check" in caught.value.hint


@pytest.mark.parametrize("schema", [schema_of(INT64), schema_of({"type": "int64", "name": ""}), b"{}", b"1"])
def test_a_schema_without_names_proves_nothing(schema: bytes) -> None:
    codec = RowCodec(in_any_form("timestamp"), ["v"]).of_schema(schema)
    with pytest.raises(RowContradictsSchemaError, match=r"Set connect\.url"):
        codec.decode(b'{"v": 1000}')
