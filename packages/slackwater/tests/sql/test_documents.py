"""Each type's way from Debezium's JSON through DuckDB into a document, exactly."""

import re
from collections.abc import Callable, Mapping, Sequence

import pytest

from slackwater.sql.errors import SqlTextError
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

Document = Callable[[str, str, str], str]
UUID = "123e4567-e89b-12d3-a456-426614174000"

# PostgreSQL type, Debezium's JSON value (as real Debezium 3.7 writes it), the value in a document
EXACT = [
    ("smallint", "-32768", "-32768"),
    ("integer", "2147483647", "2147483647"),
    ("bigint", "-9223372036854775808", "-9223372036854775808"),
    ("bigint", "9007199254740993", "9007199254740993"),
    ("oid", "4294967295", "4294967295"),
    ("boolean", "true", "true"),
    ("real", "0.1", "0.1"),
    ("real", "3.4028235E38", "3.4028235e38"),
    ("real", '"NaN"', '"NaN"'),
    ("double precision", "0.1", "0.1"),
    ("double precision", "1.0E22", "1e22"),
    ("double precision", "5", "5.0"),
    ("double precision", '"-Infinity"', '"-Infinity"'),
    ("double precision", '"Infinity"', '"Infinity"'),
    ("numeric(12,2)", '"1234567890.10"', '"1234567890.10"'),
    ("numeric(5)", '"-12345"', '"-12345"'),
    ("numeric(38,0)", '"99999999999999999999999999999999999999"', '"99999999999999999999999999999999999999"'),
    ("numeric", '"1.10"', '"1.100000000000000000"'),
    ("text", '"é\\"\\\\\\n\\u0001"', '"é\\"\\\\\\n\\u0001"'),
    ("varchar(3)", '""', '""'),
    ("character(5)", '"ab   "', '"ab   "'),
    ("date", "19782", '"2024-02-29"'),
    ("timestamp", "1709210096789012", '"2024-02-29T12:34:56.789012"'),
    ("timestamp(3)", "1709210096789", '"2024-02-29T12:34:56.789000"'),
    ("timestamp(0)", "1709210096000", '"2024-02-29T12:34:56.000000"'),
    ("timestamptz", '"2024-02-29T10:34:56.789012Z"', '"2024-02-29T10:34:56.789012Z"'),
    ("timestamptz", '"2024-02-29T10:34:56Z"', '"2024-02-29T10:34:56.000000Z"'),
    ("timestamptz", '"+12024-01-01T00:00:00.000000Z"', '"12024-01-01T00:00:00.000000Z"'),
    ("time", "45296789012", '"12:34:56.789012"'),
    ("time(3)", "45296789", '"12:34:56.789"'),
    ("time", "86400000000", '"24:00:00"'),
    ("date", "2146033979", '"infinity"'),
    ("date", "-2147472691", '"-infinity"'),
    ("timestamp", "9223372036854775807", '"infinity"'),
    ("timestamp", "-9223372036854775808", '"-infinity"'),
    ("timestamp(3)", "9223372036825200000", '"infinity"'),
    ("timestamp(3)", "-9223372036832400000", '"-infinity"'),
    ("timestamptz", '"infinity"', '"infinity"'),
    ("timestamp[]", "[9223372036854775807]", '["infinity"]'),
    ("double precision[]", '["NaN",0.5]', '["NaN",0.5]'),
    ("uuid", f'"{UUID}"', f'"{UUID}"'),
    (
        "jsonb",
        '"{\\"a\\": 1.10, \\"b\\": 12345678901234567890.5}"',
        '{"a": 1.10, "b": 12345678901234567890.5}',
    ),
    ("json", '"null"', "null"),
    ("bytea", '"AP8Q"', '"AP8Q"'),
    ("inet", '"10.0.0.1/24"', '"10.0.0.1/24"'),
    ("integer[]", "[1,null,3]", "[1,null,3]"),
    ("text[]", '["a",null]', '["a",null]'),
    ("numeric(6,2)[]", '["1.50",null]', '["1.50",null]'),
    ("uuid[]", f'["{UUID}"]', f'["{UUID}"]'),
    ("date[]", "[19723,null]", '["2024-01-01",null]'),
    ("timestamp(3)[]", "[1704103200500]", '["2024-01-01T10:00:00.500000"]'),
    ("timestamptz[]", '["2024-01-01T08:00:00.500000Z"]', '["2024-01-01T08:00:00.500000Z"]'),
    ("jsonb[]", '["{\\"a\\": 1.10}"]', '[{"a": 1.10}]'),
    ("double precision[]", "[0.1,null]", "[0.1,null]"),
]


FULL = "ALTER TABLE t REPLICA IDENTITY FULL;"
NOT_NULL = ("numeric(6,2)[]",)
"""Types of which the connector writes NULL for some values."""


@pytest.fixture
def document(live_documents: Callable[[EnginePlan, Mapping[str, Sequence[bytes]]], list[bytes]]) -> Document:
    """Returns what a document contains for an expression over one column of one row."""

    def made(column_type: str, wire: str, selected: str) -> str:
        null = "NOT NULL" if column_type in NOT_NULL else ""
        ddl = f"CREATE TABLE t (id bigint PRIMARY KEY, v {column_type} {null});{FULL}"
        grouped = "GROUP BY t.id" if "list(" in selected else ""
        sql = f"SELECT TRANSACTIONALLY t.id, {selected} AS out FROM t {grouped}"  # noqa: S608 - our own
        plan = compile_pipeline([("v.sql", sql)], parse_catalog({"t.sql": ddl}))
        (found,) = live_documents(plan, {"t": [f'{{"id":7,"v":{wire}}}'.encode()]})
        return re.sub(r'\A\{"id":7,"(out|plain)":', "", found.decode()).removesuffix("}")

    return made


@pytest.mark.parametrize(("column_type", "wire", "written"), EXACT)
def test_value_is_written_exactly_plain_and_nested(
    column_type: str, wire: str, written: str, document: Document
) -> None:
    selected = "t.v AS plain, list({'v': t.v, 'w': [t.v, NULL]})"
    nested = f'[{{"v":{written},"w":[{written},null]}}]'

    assert document(column_type, wire, selected) == f'{written},"out":{nested}'


@pytest.mark.parametrize("column_type", sorted({case[0] for case in EXACT} - {*NOT_NULL}))
def test_null_is_null(column_type: str, document: Document) -> None:
    assert document(column_type, "null", "t.v AS plain, list(t.v)") == 'null,"out":[null]'


def test_computed_values_have_a_form_too(document: Document) -> None:
    assert document("bigint", "9223372036854775807", "t.v::HUGEINT + 1") == "9223372036854775808"
    assert document("bigint", "3", "t.v / 2") == "1.5"
    assert document("bigint", "3", "NULL") == "null"
    assert document("bigint", "3", "to_days(t.v::INTEGER)") == '"3 days"'
    assert document("bigint", "3", "map {'a': t.v}") == '{"a":3}'
    assert document("numeric(4,2)", '"1.50"', "t.v::DECIMAL(38,2)") == '"1.50"'
    assert document("text", '"a"', "CASE WHEN t.v = 'b' THEN {'x': 1.5} END") == "null"
    assert document("json", '"[1.10]"', "CASE WHEN t.id = 0 THEN {'x': t.v} END") == "null"
    assert document("json", '"[1.10]"', "{'x \"y': t.v, 'z''': 1}") == '{"x \\"y":[1.10],"z\'":1}'


@pytest.mark.parametrize(
    ("sql", "written"),
    [("t.v / 0", '"Infinity"'), ("-t.v / 0", '"-Infinity"'), ("t.v / 0 - t.v / 0", '"NaN"')],
)
def test_a_number_that_json_does_not_have_is_a_string(sql: str, written: str, document: Document) -> None:
    assert document("bigint", "3", sql) == written
    assert document("bigint", "3", f"{{'x': [{sql}]}}") == f'{{"x":[{written}]}}'


def test_value_without_exact_form_is_refused_at_planning(document: Document) -> None:
    with pytest.raises(
        SqlTextError, match=r"MAP\(VARCHAR, DECIMAL\(2,1\)\) cannot be written exactly as JSON"
    ):
        document("bigint", "3", "map {'a': 1.5}")
