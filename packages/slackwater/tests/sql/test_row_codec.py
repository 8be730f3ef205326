import json
import pickle
from base64 import b64encode
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.sql.errors import RowContradictsSchemaError
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.row_codec import UNAVAILABLE, RowCodec

TABLE = parse_catalog(
    {
        "t.sql": """CREATE TABLE s.t (
                    id bigint PRIMARY KEY, n integer NOT NULL, price numeric(10,2), name text,
                    at timestamptz, ratio real, tags text[], "odd name" smallint, blob bytea)"""
    }
).tables[0]
NAMES = [column.name for column in TABLE.columns]
CODEC = RowCodec(TABLE, NAMES)
ROW: dict[str, Any] = {
    "id": 1, "n": 2, "price": "1.50", "name": "x", "at": "2024-01-01T00:00:00Z", "ratio": 0.5,
    "tags": ["a", None],
    "odd name": 3, "blob": "AP8Q",
}  # fmt: skip


def _raw(**changes: Any) -> bytes:
    return json.dumps({**ROW, **changes, "not needed": {"x": [1]}}).encode()


def test_row_is_decoded_in_column_order() -> None:
    assert CODEC.decode(_raw()) == tuple(ROW.values())


def test_only_needed_columns_are_looked_at() -> None:
    codec = RowCodec(TABLE, ["name", "id"])

    assert codec.decode(b'{"n":"wrong","name":null,"id":5}') == (None, 5)


integers = st.integers(-(2**63), 2**63 - 1)
rows = st.fixed_dictionaries(
    {
        "id": integers,
        "n": st.integers(-(2**31), 2**31 - 1),
        "price": st.none() | st.decimals(-99999999, 99999999, places=2).map(str),
        "name": st.none() | st.text(),
        "at": st.none(),
        "ratio": st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
        "tags": st.none() | st.lists(st.none() | st.text()),
        "odd name": st.none() | st.integers(-(2**15), 2**15 - 1),
        "blob": st.none(),
    }
)


@given(st.lists(rows))
def test_packed_rows_come_back_as_they_were(given_rows: list[dict[str, Any]]) -> None:
    decoded = [CODEC.decode(json.dumps(row).encode()) for row in given_rows]
    packed = [CODEC.encode(row) for row in decoded]

    assert decoded == [tuple(row[name] for name in NAMES) for row in given_rows]
    assert [CODEC.unpack(row) for row in packed] == decoded
    columns = [list(values) for values in CODEC.unpack_columns(packed)]
    assert columns == [list(values) for values in zip(*decoded, strict=True)] or not packed


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("id", None, "NOT NULL"),
        ("id", "1", "an integer of 64 bits"),
        ("id", 1.0, "an integer of 64 bits"),
        ("id", True, "an integer of 64 bits"),
        ("id", 2**63, "an integer of 64 bits"),
        ("id", 10**30, "an integer of 64 bits"),
        ("n", 2**31, "an integer of 32 bits"),
        ("odd name", 40000, "an integer of 16 bits or null"),
        ("price", 1.5, "decimal.handling.mode=string"),
        ("price", "fQ==", "decimal.handling.mode=string"),
        ("price", "1.505", "at most 8 digits before and 2 after the point"),
        ("price", "123456789.00", "at most 8 digits before"),
        ("price", "NAN", "a decimal number"),
        ("price", "1.50\n", "a decimal number"),
        ("name", 5, "a string or null"),
        ("at", "yesterday", "ISO 8601"),
        ("at", 1704067200000, "ISO 8601"),
        ("ratio", "much", '"NaN"'),
        ("tags", "a", "an array"),
        ("tags", ["a", 5], "each element null or a string"),
    ],
)
def test_contradiction_names_column_expected_and_got(column: str, value: Any, expected: str) -> None:
    with pytest.raises(RowContradictsSchemaError) as raised:
        CODEC.decode(_raw(**{column: value}))

    error = raised.value
    assert (error.table, error.column) == ("s.t", column)
    assert expected in error.expected
    assert json.loads(error.got) == value
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes


def test_missing_column_is_named() -> None:
    with pytest.raises(RowContradictsSchemaError, match=r"column n of s\.t .* got no such field"):
        CODEC.decode(b'{"id":1}')


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"id":1}x', b'{"id":"\xff"}'])
def test_what_is_no_json_object_is_a_contradiction_of_the_row(raw: bytes) -> None:
    with pytest.raises(RowContradictsSchemaError) as raised:
        CODEC.decode(raw)

    assert raised.value.table == "s.t"


def test_not_a_number_and_infinity_are_floats() -> None:
    row = CODEC.decode(_raw(ratio="-Infinity"))

    assert row[NAMES.index("ratio")] == float("-inf")


@pytest.mark.parametrize(
    ("column", "placeholder"),
    [("name", UNAVAILABLE), ("tags", [UNAVAILABLE]), ("blob", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==")],
)
def test_value_left_out_by_toast_is_taken_from_the_previous_row(column: str, placeholder: Any) -> None:
    previous = CODEC.decode(_raw(n=1))
    row = CODEC.decode(_raw(**{column: placeholder}))

    assert CODEC.has_unavailable(row)
    assert not CODEC.has_unavailable(previous)
    assert CODEC.merge(row, previous) == CODEC.decode(_raw())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("name", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
        ("blob", UNAVAILABLE),
        ("tags", [UNAVAILABLE, "x"]),
    ],
)
def test_placeholder_of_another_type_is_a_value(column: str, value: Any) -> None:
    row = CODEC.decode(_raw(**{column: value}))

    assert CODEC.unavailable(row) == ()
    assert CODEC.merge(row, CODEC.decode(_raw())) == row


def test_columns_whose_values_are_omitted_have_names() -> None:
    row = CODEC.decode(_raw(name=UNAVAILABLE, tags=[UNAVAILABLE]))

    assert CODEC.unavailable(row) == ("name", "tags")


def test_column_that_is_not_declared_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="no column nothing"):
        RowCodec(TABLE, ["nothing"])


def test_a_record_from_before_a_column_was_added_has_its_default_or_null() -> None:
    added = "ALTER TABLE s.t ADD COLUMN note text, ADD COLUMN state varchar(9) NOT NULL DEFAULT 'new'"
    (table,) = parse_catalog({"t.sql": f"CREATE TABLE s.t (id bigint PRIMARY KEY); {added}"}).tables
    codec = RowCodec(table, ["state", "id", "note"])
    assert codec.decode(b'{"id": 1}') == ("new", 1, None)
    assert codec.decode(b'{"id": 1, "note": "n", "state": "old"}') == ("old", 1, "n")
    for wrong in (b'{"note": "n"}', b'{"id": 1, "state": null}'):
        with pytest.raises(RowContradictsSchemaError):
            codec.decode(wrong)


def _in_view(column_type: str, value: object) -> str:
    """Returns the text of what a view sees of a connector's value."""
    (table,) = parse_catalog({"t.sql": f"CREATE TABLE t (id int PRIMARY KEY, v {column_type})"}).tables
    of, codec = table.columns[1].type, RowCodec(table, ["v"])
    row = codec.decode(json.dumps({"v": value}).encode())
    assert codec.unpack(codec.encode(row)) == row
    with duckdb.connect() as connection:
        connection.register("given", pa.table({"v": pa.array(row, of.arrow)}))
        found = connection.execute(f"SELECT CAST({of.duckdb_expression('v')} AS VARCHAR) FROM given")  # noqa: S608
        ((text,),) = found.fetchall()
    return str(text)


@given(st.text("01", min_size=1, max_size=128))
def test_a_bit_string_has_the_length_that_its_column_declares(bits: str) -> None:
    number = int(bits, 2)
    written = b64encode(number.to_bytes((number.bit_length() + 7) // 8, "little")).decode()
    assert _in_view(f"bit({len(bits)})", bool(number) if len(bits) == 1 else written) == bits


def test_a_bit_string_that_is_too_long_contradicts_its_declaration() -> None:
    with pytest.raises(RowContradictsSchemaError, match=r"bit\(3\)"):
        _in_view("bit(3)", "CA==")


@given(*[st.integers(-1000, 1000)] * 5, st.integers(-59_999_999, 59_999_999))
def test_an_interval_keeps_its_months_days_and_microseconds(
    years: int, months: int, days: int, hours: int, minutes: int, microseconds: int
) -> None:
    sign, (seconds, fraction) = "-" if microseconds < 0 else "", divmod(abs(microseconds), 1_000_000)
    written = f"P{years}Y{months}M{days}DT{hours}H{minutes}M{sign}{seconds}.{fraction:06d}S"
    of_day = (hours * 60 + minutes) * 60_000_000 + microseconds
    parts = f"to_months({years * 12 + months}) + to_days({days}) + to_microseconds({of_day})"
    with duckdb.connect() as connection:
        ((expected,),) = connection.execute(f"SELECT CAST({parts} AS VARCHAR)").fetchall()
    assert _in_view("interval", written) == expected


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        ("interval", 2_802_600_000_000),  # interval.handling.mode=numeric
        ("interval", "1 day"),
        ("tstzrange", '["2026-01-01 01:00:00+01",)'),
        ("hstore", {"a": "1"}),  # hstore.handling.mode=map
        ("numeric(40,2)", "1234567890123456789012345678901234567.00"),
    ],
)
def test_a_value_in_another_form_is_refused(column_type: str, value: object) -> None:
    with pytest.raises(RowContradictsSchemaError):
        _in_view(column_type, value)


def test_a_placeholder_stands_for_a_value_of_each_type_that_may_be_large() -> None:
    ddl = "CREATE TABLE t (id int PRIMARY KEY, h hstore, b bytea[], r numrange, l ltree, z tstzrange)"
    codec = RowCodec(parse_catalog({"t.sql": ddl}).tables[0], ["h", "b", "r", "l", "z"])
    row = {"h": f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}', "b": [b64encode(UNAVAILABLE.encode()).decode()]}
    row |= dict.fromkeys("rlz", UNAVAILABLE)
    for of_hstore in (row["h"], UNAVAILABLE):  # of a domain over it
        raw = json.dumps(row | {"h": of_hstore}).encode()
        assert codec.unavailable(codec.decode(raw)) == ("h", "b", "r", "l", "z")
