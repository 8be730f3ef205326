"""Types of lake tables for DuckDB's, and documents as rows. Needs no server."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from slackwater.outputs.contract import OutputRefusedError, OutputTable, UnfitValueError
from slackwater.outputs.lake.columns import ChangeReader, RowReader, check_names, table_schema, type_texts
from slackwater.pipeline.sinks import check_table
from slackwater.protocol import ConfigError
from slackwater.sql.duckdb_sql import Field, document_expression
from slackwater.sql.plan import OutputColumn, PublishedView

VALUES = [
    ("BOOLEAN", "true", True, "boolean"),
    ("TINYINT", "(-128)::TINYINT", -128, "int"),
    ("USMALLINT", "65535::USMALLINT", 65535, "int"),
    ("INTEGER", "(-2147483648)::INTEGER", -(2**31), "int"),
    ("UINTEGER", "4294967295::UINTEGER", 2**32 - 1, "long"),
    ("BIGINT", "9223372036854775807", 2**63 - 1, "long"),
    ("UBIGINT", "18446744073709551615::UBIGINT", Decimal(2**64 - 1), "decimal(20,0)"),
    ("HUGEINT", "(-99999999999999999999999999999999999999)::HUGEINT", Decimal(1 - 10**38), "decimal(38,0)"),
    ("DECIMAL(12,2)", "(-1234567890.10)::DECIMAL(12,2)", Decimal("-1234567890.10"), "decimal(12,2)"),
    ("FLOAT", "0.5::FLOAT", 0.5, "float"),
    ("DOUBLE", "0.1::DOUBLE", 0.1, "double"),
    ("DOUBLE", "'-Infinity'::DOUBLE", float("-inf"), "double"),
    ("VARCHAR", "'é\u0000\"'", 'é\u0000"', "string"),
    (
        "UUID",
        "'00000000-0000-0000-0000-00000000000a'::UUID",
        "00000000-0000-0000-0000-00000000000a",
        "string",
    ),
    ("DATE", "DATE '0001-01-01'", date(1, 1, 1), "date"),
    ("TIME", "TIME '10:11:12.5'", "10:11:12.5", "string"),
    (
        "TIMESTAMP",
        "TIMESTAMP '2026-11-20 10:11:12.123456'",
        datetime(2026, 11, 20, 10, 11, 12, 123456),  # noqa: DTZ001 - it has no time zone
        "timestamp",
    ),
    (
        "TIMESTAMP WITH TIME ZONE",
        "TIMESTAMPTZ '2026-11-20 10:11:12.5+02'",
        datetime(2026, 11, 20, 8, 11, 12, 500000, tzinfo=UTC),
        "timestamp with time zone",
    ),
    ("BLOB", "'\\x00\\xFF'::BLOB", b"\x00\xff", "binary"),
    ("JSON", "'{\"a\": 1.10}'::JSON", '{"a": 1.10}', "string"),
    ("INTEGER[]", "[1, NULL]", [1, None], "list<int>"),
    (
        "STRUCT(p VARCHAR, d DECIMAL(4,2))[]",
        "[{'p': 'x', 'd': 1.5::DECIMAL(4,2)}, NULL]",
        [{"p": "x", "d": Decimal("1.50")}, None],
        "list<struct<p: string, d: decimal(4,2)>>",
    ),
    (
        "STRUCT(d DATE, t TIMESTAMP, z TIMESTAMP WITH TIME ZONE, h HUGEINT)",
        "{'d': DATE '2026-01-02', 't': TIMESTAMP '2026-01-02 03:04:05.5', "
        "'z': TIMESTAMPTZ '2026-01-02 03:04:05.5Z', 'h': 7::HUGEINT}",
        {
            "d": date(2026, 1, 2),
            "t": datetime(2026, 1, 2, 3, 4, 5, 500000),  # noqa: DTZ001 - it has no time zone
            "z": datetime(2026, 1, 2, 3, 4, 5, 500000, tzinfo=UTC),
            "h": Decimal(7),
        },
        "struct<d: date, t: timestamp, z: timestamp with time zone, h: decimal(38,0)>",
    ),
    (
        "STRUCT(b BLOB, f DOUBLE)",
        "{'b': 'a'::BLOB, 'f': 'NaN'::DOUBLE}",
        None,
        "struct<b: binary, f: double>",
    ),
    ("MAP(VARCHAR, BIGINT)", "MAP {'a': 1::BIGINT}", [("a", 1)], "map<string, long>"),
    ("MAP(INTEGER, VARCHAR)", "MAP {7: 'x'}", [(7, "x")], "map<int, string>"),
]


def document(kind: str, expression: str) -> bytes:
    """As views write it."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        sql = document_expression((Field("v", "v", duckdb.sqltype(kind)),))
        found = database.execute(f"SELECT {sql} FROM (SELECT CAST({expression} AS {kind}) AS v)").fetchone()  # noqa: S608
    assert found is not None
    return bytes(found[0])


@pytest.mark.parametrize(("kind", "expression", "value", "column_type"), VALUES)
def test_every_value_of_a_document_is_that_of_its_column(
    kind: str, expression: str, value: Any, column_type: str
) -> None:
    column = OutputColumn("v", kind)
    assert type_texts(table_schema([column])) == {"v": column_type}
    rows = RowReader([column]).table([document(kind, expression), b'{"v":null}'])
    found = rows["v"].to_pylist()
    assert found[1] is None
    if value is None:
        assert found[0]["b"] == b"a"
        assert found[0]["f"] != found[0]["f"]
    else:
        assert found[0] == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("HUGEINT", b"100000000000000000000000000000000000000"),
        ("DATE", b'"infinity"'),
        ("BLOB", b'"?"'),
        ("BIGINT", b'"x"'),
        ("TINYINT", b"3000000000"),
    ],
)
def test_a_value_that_no_column_holds_is_refused(kind: str, text: bytes) -> None:
    with pytest.raises(UnfitValueError):
        RowReader([OutputColumn("v", kind)]).table([b'{"v":' + text + b"}"])


ORDERS = OutputTable(
    name="s.orders",
    columns=(OutputColumn("id", "BIGINT"), OutputColumn("day", "DATE")),
    key=("id",),
    view="orders",
)


def test_the_newest_document_of_a_key_counts() -> None:
    reader = ChangeReader("p", ORDERS, several=True)
    one = b'{"id":1}'
    shown = [(1, one, b'{"id":1,"day":"2026-01-01"}'), (2, one, None), (3, one, b'{"id":1,"day":null}')]
    changes = reader.read([*shown, (3, b'{"id":2}', None)])
    assert (changes.documents, changes.deletes) == (4, 2)
    assert changes.rows.to_pylist() == [
        {"id": 1, "day": None, "slackwater_deleted": False},
        {"id": 2, "day": None, "slackwater_deleted": True},
    ]
    assert changes.remaining.to_pylist() == [{"id": 1, "day": None}]


def test_a_document_that_does_not_fit_is_named() -> None:
    reader = ChangeReader("p", ORDERS, several=False)
    shown = [
        (n, b'{"id":%d}' % n, b'{"id":%d,"day":"%s"}' % (n, b"2026-01-01" if n != 7 else b"never"))
        for n in range(9)
    ]
    with pytest.raises(
        OutputRefusedError, match=r"view 'orders' in table s\.orders, key \{\"id\":7\}.*column 'day'"
    ):
        reader.read(shown)


def view(*names: str, key: tuple[str, ...] = ("id",)) -> PublishedView:
    columns = tuple(OutputColumn(name, "BIGINT") for name in names)
    return PublishedView("v", "", key, columns, "", ())


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("day",), "has column 'id', which it does not select"),
        (("id", "a b"), "cannot have a column 'a b'"),
        (("id", "a", "A"), "cannot have a column 'A'"),
        (("id", "slackwater_deleted"), "cannot have a column 'slackwater_deleted'"),
    ],
)
def test_views_that_cannot_be_tables_are_refused(names: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_table(view(*names), check_names)
