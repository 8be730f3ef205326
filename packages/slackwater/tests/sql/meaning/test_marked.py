"""Types that DuckDB has no equal of; `tests/system/test_from_postgres.py` compares with PostgreSQL itself."""

from typing import Any

import pytest

from slackwater.pipeline.definition import pipeline_definition
from slackwater.pipeline.testing.view_test import ViewTest
from slackwater.sql.errors import EvaluationError, SqlTextError
from slackwater.sql.meaning import Dialect
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
ALTER TYPE mood ADD VALUE 'ok' AFTER 'sad';
CREATE TABLE t (id int PRIMARY KEY, g int NOT NULL, c char(4), ci public.citext, m mood, x text,
    de text COLLATE "de-x-icu", r int4range, h hstore, j jsonb, n inet);
"""
ROWS: tuple[dict[str, Any], ...] = (
    {"id": 1, "g": 1, "c": "ab  ", "ci": "Ab", "m": "happy", "x": "ab"},
    {"id": 2, "g": 1, "c": "b   ", "ci": "AB", "m": "ok", "x": "AB"},
    {"id": 3, "g": 1, "c": None, "ci": None, "m": "sad", "x": "b "},
)


def evaluated(select: str, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    views = {"v": select.replace("SELECT", "SELECT TRANSACTIONALLY", 1)}
    catalog = parse_catalog({"schema.sql": TABLES})
    definition = pipeline_definition(
        name="p", source="s", catalog=catalog, views=views, dialect=Dialect.POSTGRES
    )
    documents = ViewTest(definition).insert("t", *(rows or ROWS)).commit().documents("v")
    return sorted(tuple(each.values()) for each in documents)


@pytest.mark.parametrize(
    ("select", "wanted"),
    [
        ("SELECT id FROM t WHERE c = 'ab'", [(1,)]),
        ("SELECT id FROM t WHERE c = x", [(1,)]),
        ("SELECT id, length(c) AS v FROM t WHERE c || '!' = 'b!'", [(2, 1)]),
        ("SELECT id, c AS v FROM t WHERE c IN ('b ', 'x')", [(2, "b   ")]),
        ("SELECT id FROM t WHERE ci = 'aB'", [(1,), (2,)]),
        ("SELECT id FROM t WHERE ci = x", [(2,)]),
        ("SELECT a.id, b.id AS other FROM t a JOIN t b ON a.ci = b.ci WHERE a.id < b.id", [(1, 2)]),
        ("SELECT id FROM t WHERE m > 'sad' AND m <= 'ok'", [(2,)]),
        ("SELECT max(m) AS v FROM t", [("happy",)]),
        (
            "SELECT id, row_number() OVER (PARTITION BY g ORDER BY m DESC) AS v FROM t",
            [(1, 1), (2, 2), (3, 3)],
        ),
        ("SELECT id FROM t WHERE de COLLATE \"C\" < 'a'", []),
    ],
)
def test_values_mean_what_they_mean_in_postgresql(select: str, wanted: list[tuple[Any, ...]]) -> None:
    assert evaluated(select) == wanted


@pytest.mark.parametrize(
    ("select", "hint"),
    [
        ("SELECT min(c) AS v FROM t", "x::text"),
        ("SELECT id FROM t WHERE c LIKE 'a'", "x::text"),
        ("SELECT ci, count(*) AS n FROM t GROUP BY ci", "lower"),
        ("SELECT DISTINCT ci FROM t", "lower"),
        ("SELECT id FROM t WHERE m = 'angry'", "sad, ok, happy"),
        ("SELECT id FROM t WHERE m < x", "x::text"),
        ("SELECT id, coalesce(c, 'x') AS v FROM t", "x::text"),
        ("SELECT id FROM t WHERE de < 'a'", 'COLLATE "C"'),
        ("SELECT id FROM t WHERE upper(de::text) < 'a'", 'COLLATE "C"'),
        ("SELECT id, row_number() OVER (PARTITION BY g ORDER BY de) AS v FROM t", 'COLLATE "C"'),
        ("SELECT id FROM t WHERE r = '[1,5]'", "same type"),
        ("SELECT id FROM t WHERE r < r", "same type"),
        ("SELECT id, h -> 'a' AS v FROM t", "text"),
        ("SELECT id, n::text AS v FROM t", "not the one"),
        ("SELECT id FROM t WHERE j = j", "numbers"),
        ("SELECT j, count(*) AS n FROM t GROUP BY j", "numbers"),
        ("SELECT c AS v FROM t UNION ALL SELECT x FROM t", "text"),
        ("SELECT a.id FROM t a JOIN t b USING (ci)", "lower"),
        ("SELECT id FROM t WHERE c IN (SELECT x FROM t)", "text"),
    ],
)
def test_what_would_mean_something_else_is_refused_with_what_to_write(select: str, hint: str) -> None:
    with pytest.raises(SqlTextError) as raised:
        evaluated(select)
    assert hint in raised.value.hint


def test_a_label_that_is_not_declared_has_no_order() -> None:
    with pytest.raises(EvaluationError, match="do not declare"):
        evaluated("SELECT id FROM t WHERE m < 'ok'", {"id": 1, "g": 1, "m": "new"})
