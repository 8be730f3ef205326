import json

import pytest

from slackwater.outputs.contract import UnfitValueError, postgres_type
from slackwater.outputs.postgres.merge import RowReader
from slackwater.outputs.postgres.tables import check_names, stored_columns
from slackwater.pipeline import pipeline_definition
from slackwater.pipeline.sinks import check_table
from slackwater.protocol import ConfigError
from slackwater.sql.plan import OutputColumn, PublishedView
from slackwater.sql.postgres import parse_catalog


@pytest.mark.parametrize(
    ("duckdb", "postgres"),
    [
        ("INTEGER", "integer"),
        ("UINTEGER", "bigint"),
        ("UBIGINT", "numeric(20,0)"),
        ("HUGEINT", "numeric(39,0)"),
        ("DECIMAL(18,2)", "numeric(18,2)"),
        ("DECIMAL(38, 18)", "numeric(38,18)"),
        ("TIMESTAMP WITH TIME ZONE", "timestamp with time zone"),
        ("TIMESTAMP_S", "timestamp without time zone"),
        ("BLOB", "bytea"),
        ("INTEGER[]", "jsonb"),
        ("DECIMAL(18,2)[3]", "jsonb"),
        ("STRUCT(a INTEGER)", "jsonb"),
        ("MAP(VARCHAR, INTEGER)", "jsonb"),
        ("JSON", "jsonb"),
        ("ENUM('a', 'b')", "text"),
        ("VARCHAR", "text"),
    ],
)
def test_a_column_has_the_type_that_holds_all_its_values(duckdb: str, postgres: str) -> None:
    assert postgres_type(duckdb) == postgres


def fields(column_type: str, value: object) -> list[str]:
    return RowReader([OutputColumn("a b", column_type)]).fields(json.dumps({"a b": value, "x": 1}).encode())


@pytest.mark.parametrize(
    ("column_type", "value", "field"),
    [
        ("text", "a\tb\\c\nd\re", "a\\tb\\\\c\\nd\\re"),
        ("text", "\\N", "\\\\N"),
        ("text", None, "\\N"),
        ("bigint", None, "\\N"),
        ("jsonb", None, "\\N"),
        ("bigint", 9223372036854775807, "9223372036854775807"),
        ("numeric(39,0)", 2**127, str(2**127)),
        ("numeric(38,18)", "1.000000000000000001", "1.000000000000000001"),
        ("boolean", True, "true"),
        ("double precision", 0.1, "0.1"),
        ("double precision", "NaN", "NaN"),
        ("real", "-Infinity", "-Infinity"),
        ("bytea", "AP8=", "\\\\x00ff"),
        ("jsonb", ["a\n", {"b": None}], '["a\\\\n", {"b": null}]'),
    ],
)
def test_a_value_is_written_as_copy_reads_it(column_type: str, value: object, field: str) -> None:
    assert fields(column_type, value) == [field]


@pytest.mark.parametrize(
    ("column_type", "value", "says"),
    [
        ("text", "a\x00b", "column 'a b': the text contains a NUL"),
        ("bytea", "?", "base64"),
        ("text", 1, "Expected"),
    ],
)
def test_a_value_that_no_column_holds_is_named(column_type: str, value: object, says: str) -> None:
    with pytest.raises(UnfitValueError, match=says):
        fields(column_type, value)


def view(sql: str) -> PublishedView:
    catalog = parse_catalog({"s.sql": "CREATE TABLE s.t (id bigint PRIMARY KEY, n int, p numeric(10,2));"})
    definition = pipeline_definition(name="p", source="inv", catalog=catalog, views={"v": sql})
    return definition.plan.views[0]


def test_a_view_s_columns_are_those_of_its_select_list() -> None:
    found = stored_columns(view("SELECT TRANSACTIONALLY t.id, t.p AS price FROM s.t t").outputs)
    assert found == (OutputColumn("id", "bigint"), OutputColumn("price", "numeric(10,2)"))


def test_a_key_that_is_not_selected_is_refused() -> None:
    with pytest.raises(ConfigError, match="id', which it does not select"):
        check_table(view("SELECT TRANSACTIONALLY t.n FROM s.t t"), check_names)


def test_a_name_that_postgresql_would_cut_is_refused() -> None:
    sql = "SELECT TRANSACTIONALLY t.id, t.n AS {} FROM s.t t"
    check_table(view(sql.format("n" * 63)), check_names)
    with pytest.raises(ConfigError, match="more than 63 bytes"):
        check_table(view(sql.format("n" * 64)), check_names)
