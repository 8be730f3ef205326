"""Keys are cut into calls of bounded size, and the cut is never seen in the results."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from slackwater.engine.evaluate import points as calls
from slackwater.engine.local import LocalEngine
from slackwater.sql.errors import EvaluationError
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.stage_evaluation import RowsEvaluator, RowVersions

TABLE = "CREATE TABLE s.a (id bigint PRIMARY KEY, k bigint NOT NULL, n text NOT NULL);"
FULL = TABLE + "ALTER TABLE s.a REPLICA IDENTITY FULL;"
VIEWS = {
    "rows": "SELECT TRANSACTIONALLY a.id, row_number() OVER (PARTITION BY a.k ORDER BY a.id) AS r FROM s.a a",
    "documents": "SELECT TRANSACTIONALLY a.k, list(a.n ORDER BY a.id) AS ns FROM s.a a GROUP BY a.k",
    "partials": """SELECT TRANSACTIONALLY a.k, count(*) AS c, max(b.n) AS m
        FROM s.a a JOIN s.a b ON b.k = a.k GROUP BY a.k""",
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("max_rows", [1, 7, 40])
def test_documents_do_not_depend_on_the_size_of_calls(
    view: str, max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = compile_pipeline([("v.sql", VIEWS[view])], parse_catalog({"t.sql": FULL}))
    changes = [
        ("s.a", "c", lsn, None, json.dumps({"id": 10 * lsn + k, "k": k, "n": f"{lsn}"}).encode())
        for lsn in range(1, 12)
        for k in range(3)
    ]
    sizes: list[int] = []
    at_points = RowsEvaluator.at_points

    def counted(self: RowsEvaluator, versions: Sequence[RowVersions], points: Any, *rest: Any) -> Any:
        sizes.append(sum(len(each.groups) for each in versions) * len(points))
        return at_points(self, versions, points, *rest)

    monkeypatch.setattr(RowsEvaluator, "at_points", counted)
    expected = LocalEngine(plan, buckets=1, every_commit=True).run(changes)
    at_once = len(sizes)
    monkeypatch.setattr(calls.PointCalls.__init__, "__kwdefaults__", {"max_rows": max_rows})
    assert LocalEngine(plan, buckets=1, every_commit=True).run(changes) == expected
    assert len(sizes) - at_once > at_once


@pytest.mark.parametrize("every_commit", [False, True])
def test_an_error_of_the_view_names_the_key(every_commit: bool) -> None:
    view = "SELECT TRANSACTIONALLY a.id, CAST(a.n AS int) AS n FROM s.a a"
    plan = compile_pipeline([("v.sql", view)], parse_catalog({"t.sql": TABLE}))
    rows = [json.dumps({"id": key, "k": 1, "n": "x" if key == 17 else "1"}).encode() for key in range(30)]
    engine = LocalEngine(plan, buckets=1, every_commit=every_commit)
    with pytest.raises(EvaluationError) as raised:
        engine.run([("s.a", "c", 10, None, row) for row in rows])
    assert (raised.value.view, raised.value.key) == ("v", '{"id":17}')
