"""Values on their way between stages."""

import duckdb
import pytest

from slackwater.sql.catalog import carried
from slackwater.sql.limits import open_connection

VALUES = [
    "true",
    "(-9223372036854775808)::BIGINT",
    "170141183460469231731687303715884105727::HUGEINT",
    "1.50::DECIMAL(10,2)",
    "'nan'::DOUBLE",
    "1e300::DOUBLE",
    "0.1::FLOAT",
    "DATE '-infinity'",
    "TIME '10:11:12.000001'",
    "TIMESTAMP '2020-01-01 00:00:00.123456'",
    "TIMESTAMPTZ '2020-01-01 00:00:00.1+00'",
    "INTERVAL '1 month 2 days 3.5 seconds'",
    "'\\xAA\\x00b'::BLOB",
    "UUID '3f333df6-90a4-4fda-8dd3-9485d27cee36'",
    "'{\"a\":  1.10}'::JSON",
    "['null', 'NULL', NULL, '', ' lead', 'a=b', 'x''y', '\"q\"', 'back\\slash', '(', ';,', '\\n' || chr(10)]",
    "[{'a': 'x, \"y\" ''z'' [q] {w}', 'b': 1.50::DECIMAL(9,2)}, {'a': '', 'b': NULL}, NULL]",
    "{'list': [[1, 2], [], NULL], 'time': TIMESTAMP '2020-01-01 00:00:00.123456', 'none': NULL::INT[]}",
    '[\'{"a":  1.10, "b": "x,y"}\'::JSON, NULL, \'null\'::JSON]',
    "{'JSON': '{\"a\": 1.10}'::JSON, 'b': ['1.50'::JSON]}",
    "MAP {'a,b': 1, 'c''d': NULL}",
]


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    return open_connection()


@pytest.mark.parametrize("value", VALUES)
def test_a_value_comes_back_as_it_was(value: str, connection: duckdb.DuckDBPyConnection) -> None:
    of_type = str(connection.sql(f"SELECT {value} AS v").types[0])
    way = carried(of_type)
    wire = f"json_extract_string(json_array({way.wire_expression('v')}), '$[0]')"
    if way.kind.value != "carried":
        wire = f"CAST({wire} AS {of_type})"

    there = f"SELECT v, {wire} AS w FROM (SELECT {value} AS v)"  # noqa: S608 - our own
    back = f"SELECT v, {way.duckdb_expression('w')} AS b FROM ({there})"  # noqa: S608 - our own
    equal = "b IS NOT DISTINCT FROM v AND CAST(b AS VARCHAR) = CAST(v AS VARCHAR)"
    (row,) = connection.execute(f"SELECT {equal}, typeof(b) FROM ({back})").fetchall()  # noqa: S608 - our own

    assert row == (True, of_type)
