"""Scope `aggregate` is for one stage whose documents come from the rows of their key."""

import pickle

import pytest

from slackwater.engine.local import LocalEngine
from slackwater.engine.settings import Scope
from slackwater.protocol import ConfigError
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE s.a (id bigint PRIMARY KEY, b bigint);
CREATE TABLE s.b (id bigint PRIMARY KEY, c bigint);
ALTER TABLE s.a REPLICA IDENTITY FULL;
ALTER TABLE s.b REPLICA IDENTITY FULL;
"""


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        (
            "SELECT TRANSACTIONALLY b.c, list(a.id) AS ids FROM s.a a JOIN s.b b ON b.id = a.b GROUP BY b.c",
            "2 stages",
        ),
        ("SELECT TRANSACTIONALLY list(a.id ORDER BY a.id) AS ids FROM s.a a", "without a key"),
        ("SELECT TRANSACTIONALLY a.id, a.b + 1 AS b FROM s.a a", ""),
    ],
)
def test_what_cannot_be_consistent_per_partition_is_refused(sql: str, problem: str) -> None:
    plan = compile_pipeline([("v.sql", sql)], parse_catalog({"t.sql": TABLES}))
    if not problem:
        LocalEngine(plan, scope=Scope.AGGREGATE)
        return
    with pytest.raises(ConfigError, match=problem) as caught:
        LocalEngine(plan, scope=Scope.AGGREGATE)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own bytes
