"""Avro and JSON Schema of documents, read by libraries that know nothing of how they are written."""

import json
import math
from base64 import b64decode
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import duckdb
import fastavro
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.outputs.avro import AvroEncoder, days, timestamp
from slackwater.outputs.contract import UnfitValueError
from slackwater.outputs.kafka.settings import json_schema
from slackwater.sql.duckdb_sql import Field, document_expression
from slackwater.sql.plan import OutputColumn

EVERY_TYPE = {
    "BOOLEAN": ("true", True),
    "TINYINT": ("-128", -128),
    "UTINYINT": ("255", 255),
    "SMALLINT": ("-32768", -32768),
    "USMALLINT": ("65535", 65535),
    "INTEGER": ("-2147483648", -(2**31)),
    "UINTEGER": ("4294967295", 2**32 - 1),
    "BIGINT": ("-9223372036854775808", -(2**63)),
    "UBIGINT": ("18446744073709551615", Decimal(2**64 - 1)),
    "HUGEINT": ("-99999999999999999999999999999999999999", Decimal(1 - 10**38)),
    "UHUGEINT": ("99999999999999999999999999999999999999", Decimal(10**38 - 1)),
    "DECIMAL(10,2)": ("-0.50", Decimal("-0.50")),
    "DECIMAL(38,0)": ("-" + "9" * 38, Decimal(1 - 10**38)),
    "DECIMAL(38,38)": ("0.5", Decimal("0.5")),
    "FLOAT": ("0.1", pytest.approx(0.1)),
    "DOUBLE": ("1e300", 1e300),
    "VARCHAR": ("'grün \"x\"'", 'grün "x"'),
    "ENUM('a', 'b c')": ("'b c'", "b c"),
    "UUID": ("'0b0e6aa0-7f2c-4f3a-9d0e-1f2a3b4c5d6e'", UUID("0b0e6aa0-7f2c-4f3a-9d0e-1f2a3b4c5d6e")),
    "DATE": ("'1969-12-31'", date(1969, 12, 31)),
    "TIME": ("'10:11:12.5'", time(10, 11, 12, 500_000)),
    "TIMESTAMP": ("'2026-11-20 10:11:12.123456'", datetime(2026, 11, 20, 10, 11, 12, 123456)),  # noqa: DTZ001
    "TIMESTAMP_S": ("'1900-01-01 00:00:01'", datetime(1900, 1, 1, 0, 0, 1)),  # noqa: DTZ001
    "TIMESTAMP_MS": ("'1900-01-01 00:00:01.5'", datetime(1900, 1, 1, 0, 0, 1, 500_000)),  # noqa: DTZ001
    "TIMESTAMP WITH TIME ZONE": ("'2026-11-20 10:11:12+02'", datetime(2026, 11, 20, 8, 11, 12, tzinfo=UTC)),
    "TIME WITH TIME ZONE": ("'10:11:12+02'", "10:11:12+02"),
    "INTERVAL": ("'1 day'", "1 day"),
    "BIT": ("'0101'", "0101"),
    "BLOB": ("'\\x00\\xFF'", b"\x00\xff"),
    "JSON": ("'{\"a\": [1.50, null]}'", '{"a": [1.50, null]}'),
    "INTEGER[]": ("[1, NULL, 3]", [1, None, 3]),
    "INTEGER[2]": ("[1, 2]", [1, 2]),
    "VARCHAR[][]": ("[['a'], [], NULL]", [["a"], [], None]),
    "DECIMAL(6,3)[]": ("[1.5]", [Decimal("1.500")]),
    'STRUCT("unit price" DECIMAL(4,1), seen TIMESTAMP[])': (
        "{'unit price': 1.5, 'seen': ['2026-11-20 10:11:12']}",
        {"unit_price": Decimal("1.5"), "seen": [datetime(2026, 11, 20, 10, 11, 12)]},  # noqa: DTZ001
    ),
    "STRUCT(a STRUCT(b INTEGER), l STRUCT(b INTEGER)[])": (
        "{'a': {'b': 1}, 'l': [{'b': 2}, NULL]}",
        {"a": {"b": 1}, "l": [{"b": 2}, None]},
    ),
    "MAP(VARCHAR, INTEGER)": ("MAP {'x': 1, 'y': NULL}", {"x": 1, "y": None}),
    "MAP(INTEGER, VARCHAR)": ("MAP {7: 'a'}", {"7": "a"}),
}
"""A value of each type in SQL, and as it is read from Avro."""


def documents(values: Mapping[str, str]) -> tuple[list[OutputColumn], bytes, bytes]:
    """Columns of these types, a document with the values, and one with NULLs."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        select = ", ".join(f"CAST({sql} AS {kind}) AS c{n}" for n, (kind, sql) in enumerate(values.items()))
        relation = connection.sql(f"SELECT {select}")
        types = zip(relation.columns, relation.types, strict=True)
        fields = tuple(Field(name, name, kind) for name, kind in types)
        columns = [OutputColumn(field.name, str(field.type)) for field in fields]
        nulls = ", ".join(f"CAST(NULL AS {kind}) AS c{n}" for n, kind in enumerate(values))
        expression = document_expression(fields)
        rows = [connection.sql(f"SELECT {each}").project(expression).fetchall() for each in (select, nulls)]
    return columns, rows[0][0][0], rows[1][0][0]


def read(encoder: AvroEncoder, document: bytes) -> Any:
    """What another library reads of a document."""
    data = BytesIO(encoder(document))
    value = fastavro.schemaless_reader(data, fastavro.parse_schema(json.loads(encoder.schema)), None)
    assert data.tell() == len(data.getvalue())
    return value


@pytest.mark.parametrize("kind", EVERY_TYPE)
def test_a_value_of_each_type_is_read_from_avro_as_it_is(kind: str) -> None:
    sql, expected = EVERY_TYPE[kind]
    columns, full, empty = documents({kind: sql})
    encoder = AvroEncoder("slackwater.v", columns)

    assert read(encoder, full) == {"c0": expected}
    assert read(encoder, empty) == {"c0": None}


def test_all_types_together_have_one_schema_of_each_form() -> None:
    columns, full, empty = documents({kind: sql for kind, (sql, _) in EVERY_TYPE.items()})
    encoder = AvroEncoder("slackwater.v", columns)
    schema = json.loads(json_schema("v", columns))

    assert list(read(encoder, full).values()) == [value for _, value in EVERY_TYPE.values()]
    jsonschema.Draft7Validator.check_schema(schema)
    for document in (full, empty):
        jsonschema.validate(json.loads(document), schema)


@pytest.mark.parametrize("kind", [kind for kind in EVERY_TYPE if kind != "JSON"])
def test_the_json_schema_refuses_a_value_of_another_type(kind: str) -> None:
    columns, _, _ = documents({kind: EVERY_TYPE[kind][0]})
    wrong: object = (
        "text" if kind.endswith(")") and kind.startswith(("MAP", "STRUCT")) else {"of another": "kind"}
    )

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"c0": wrong}, json.loads(json_schema("v", columns)))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"c0": None, "c1": None}, json.loads(json_schema("v", columns)))


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
def test_what_json_has_no_number_for_is_a_number_in_avro(kind: str) -> None:
    for text, check in (("nan", math.isnan), ("infinity", math.isinf)):
        columns, full, _ = documents({kind: f"'{text}'"})
        assert check(read(AvroEncoder("slackwater.v", columns), full)["c0"])
        jsonschema.validate(json.loads(full), json.loads(json_schema("v", columns)))


@pytest.mark.parametrize(
    "text",
    ["infinity", "-infinity", "0044-03-15 (BC)", "0001-01-01", "0001-12-31 (BC)", "10000-02-29", "9999-12-31",
     "5881580-07-10", "5877642-06-25 (BC)", "1600-02-29", "2000-03-01"],
)  # fmt: skip
def test_dates_of_all_years_are_the_days_that_duckdb_counts(text: str) -> None:
    with duckdb.connect() as connection:
        sql = f"SELECT CAST('{text}' AS DATE) AS d, epoch_us(CAST('{text}' AS DATE)::TIMESTAMP)"
        if text.endswith("infinity") or text.startswith("58"):
            expected = {"infinity": 2**31 - 1, "-infinity": 1 - 2**31}.get(text, days(text))
        else:
            expected = connection.execute(sql).fetchall()[0][1] // 86_400_000_000
    columns, full, _ = documents({"DATE": f"'{text}'"})

    assert days(json.loads(full)["c0"]) == expected
    assert AvroEncoder("slackwater.v", columns)(full)


@pytest.mark.parametrize(
    "text", ["0044-03-15 (BC) 10:00:01.5", "10000-02-29 23:59:59.999999", "0001-01-01 00:00:00"]
)
def test_timestamps_of_all_years_are_the_microseconds_that_duckdb_counts(text: str) -> None:
    for kind in ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"):
        _, full, _ = documents({kind: f"'{text}'"})
        with duckdb.connect() as connection:
            (expected,) = connection.execute(f"SELECT epoch_us(CAST('{text}' AS TIMESTAMP))").fetchall()[0]
        assert timestamp(json.loads(full)["c0"]) == expected


@given(st.datetimes(min_value=datetime(1, 1, 1)))  # noqa: DTZ001
def test_any_timestamp_is_its_microseconds(at: datetime) -> None:
    expected = (at - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001
    text = f"{at.year:04}-{at:%m-%dT%H:%M:%S.%f}"

    assert timestamp(text) == timestamp(text + "Z") == expected
    assert timestamp(f"+{text}"[1:]) == expected


ORDERS = [
    OutputColumn("id", "BIGINT"),
    OutputColumn("total", "DECIMAL(18,4)"),
    OutputColumn("sum", "HUGEINT"),
    OutputColumn("ratio", "DOUBLE"),
    OutputColumn("name", "VARCHAR"),
    OutputColumn("raw", "BLOB"),
    OutputColumn("lines", "STRUCT(product VARCHAR, quantity INTEGER, flags BOOLEAN[])[]"),
    OutputColumn("by name", "MAP(VARCHAR, BIGINT)"),
]
ENCODER = AvroEncoder("slackwater.orders", ORDERS)
SCHEMA = json.loads(json_schema("orders", ORDERS))
LONG = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LINE = st.fixed_dictionaries(
    {
        "product": st.none() | TEXT,
        "quantity": st.none() | st.integers(-(2**31), 2**31 - 1),
        "flags": st.none() | st.lists(st.none() | st.booleans()),
    }
)
ROW = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "total": st.none()
        | st.integers(1 - 10**18, 10**18 - 1).map(lambda n: f"{Decimal(n).scaleb(-4):.4f}"),
        "sum": st.none() | st.integers(1 - 10**38, 10**38 - 1),
        "ratio": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "name": st.none() | TEXT,
        "raw": st.none() | st.just("AP8="),
        "lines": st.none() | st.lists(st.none() | LINE, max_size=4),
        "by name": st.none() | st.dictionaries(TEXT, st.none() | LONG, max_size=3),
    }
)


@settings(max_examples=300, deadline=None)
@given(ROW)
def test_any_document_is_read_from_avro_as_it_is(row: dict[str, Any]) -> None:
    document = json.dumps(row).encode()

    found = read(ENCODER, document)

    assert found["total"] == (None if row["total"] is None else Decimal(row["total"]))
    assert found["raw"] == (None if row["raw"] is None else b64decode(row["raw"]))
    renamed = {"by name": found.pop("by_name")}
    unchanged = {name: value for name, value in row.items() if name not in ("total", "raw")}
    assert {name: (found | renamed)[name] for name in unchanged} == unchanged
    jsonschema.validate(row, SCHEMA)


def test_more_digits_than_the_schema_says_are_refused() -> None:
    encoder = AvroEncoder("slackwater.v", [OutputColumn("n", "HUGEINT")])

    with pytest.raises(UnfitValueError, match="more digits than the 38"):
        encoder(b'{"n":%d}' % 10**38)


def test_a_name_that_avro_does_not_have_is_kept_beside_the_one_it_gets() -> None:
    encoder = AvroEncoder(
        "slackwater.v", [OutputColumn("unit price", "INTEGER"), OutputColumn("1st", "INTEGER")]
    )

    assert [(field["name"], field["slackwater.name"]) for field in json.loads(encoder.schema)["fields"]] == [
        ("unit_price", "unit price"),
        ("_1st", "1st"),
    ]
    assert read(encoder, b'{"unit price":1,"1st":2}') == {"unit_price": 1, "_1st": 2}


def test_two_names_that_become_one_are_refused() -> None:
    with pytest.raises(UnfitValueError, match="'unit price' and 'unit_price' are both named 'unit_price'"):
        AvroEncoder(
            "slackwater.v", [OutputColumn("unit price", "INTEGER"), OutputColumn("unit_price", "INTEGER")]
        )


def test_a_column_without_a_type_is_always_null() -> None:
    encoder = AvroEncoder("slackwater.v", [OutputColumn("n", '"NULL"')])

    assert read(encoder, b'{"n":null}') == {"n": None}


def test_a_document_that_is_not_as_the_columns_are_is_refused() -> None:
    with pytest.raises(UnfitValueError, match="Expected `int"):
        AvroEncoder("slackwater.v", [OutputColumn("n", "INTEGER")])(b'{"n":"x"}')
