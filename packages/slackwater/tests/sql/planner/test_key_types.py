# ruff: noqa: S608 - it is only read
"""Columns of the record key: JSON null and NULL are two groups, but one value in a key."""

import pytest

from slackwater.sql.catalog import Catalog
from slackwater.sql.errors import SqlTextError
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

S = "SELECT TRANSACTIONALLY"
TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, j jsonb, k jsonb NOT NULL, v text)"


@pytest.fixture
def catalog() -> Catalog:
    return parse_catalog({"t.sql": TABLE})


@pytest.mark.parametrize(
    "sql",
    [
        f"{S} j, count(*) AS n FROM t GROUP BY j",
        f"{S} count(*) AS n FROM t GROUP BY j",
        f"{S} DISTINCT j FROM t",
        f"{S} j FROM t UNION SELECT k FROM t",
        f"{S} [k] AS l, count(*) AS n FROM t GROUP BY [k]",
        f"{S} {{'a': k}} AS l, count(*) AS n FROM t GROUP BY ALL",
        f"{S} k -> 'a' AS l, count(*) AS n FROM t GROUP BY ALL",
    ],
)
def test_json_that_may_be_null_is_refused_in_the_record_key(sql: str, catalog: Catalog) -> None:
    with pytest.raises(SqlTextError, match="record key, where JSON null and NULL would be the same"):
        compile_pipeline([("v.sql", sql)], catalog)


@pytest.mark.parametrize(
    "sql",
    [
        f"{S} k, count(*) AS n FROM t GROUP BY k",
        f"{S} CAST(j AS VARCHAR) AS j, count(*) AS n FROM t GROUP BY ALL",
        f"{S} id, j FROM t",
        f"{S} id, any_value(j) AS j FROM t GROUP BY id",
        f"{S} a.id FROM t a JOIN t b ON a.j = b.j AND a.id = b.id",
    ],
)
def test_json_may_be_anywhere_else(sql: str, catalog: Catalog) -> None:
    compile_pipeline([("v.sql", sql)], catalog)


def test_a_value_whose_text_does_not_say_what_it_is_stays_in_its_stage(catalog: Catalog) -> None:
    rows = "(SELECT id, v::VARIANT AS x, count(*) OVER (PARTITION BY v) AS n FROM t)"
    sql = f"{S} a.id, CAST(a.x AS VARCHAR) AS x FROM {rows} a JOIN t b ON a.n = b.id"
    with pytest.raises(SqlTextError, match="VARIANT cannot be passed on to further joins"):
        compile_pipeline([("v.sql", sql)], catalog)
