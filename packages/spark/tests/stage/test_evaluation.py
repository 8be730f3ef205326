"""Groups are cut into calls of bounded size, and the cut is never seen in the documents."""

import json
from collections.abc import Mapping
from typing import NoReturn

import pytest

from slackwater_spark.stage.evaluation import EvaluationBatches
from slackwater_spark.stage.group import GroupHistory, GroupRules
from slackwater_spark.stage.packing import packing_spec
from slackwater_spark.stage.testing import LocalStage
from slackwater_sql.ddl import parse_catalog
from slackwater_sql.errors import EvaluationError
from slackwater_sql.evaluation import Evaluator, InputVersions, Points
from slackwater_sql.plan import ViewPlan
from slackwater_sql.row_codec import RowCodec
from slackwater_sql.view import compile_view


class Counting:
    """Counts calls and the largest of them."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.sizes: list[int] = []

    def evaluate(self, versions: Mapping[str, InputVersions], points: Points) -> list[bytes | None]:
        self.sizes.append(sum(len(v.groups) for v in versions.values()) * len(points))
        return self.evaluator.evaluate(versions, points)


def refuse(*_: object) -> NoReturn:
    raise AssertionError


@pytest.mark.parametrize("every_commit", [False, True])
@pytest.mark.parametrize("max_rows", [1, 7, 30, 10_000])
def test_documents_do_not_depend_on_the_size_of_calls(
    plan: ViewPlan, evaluator: Evaluator, every_commit: bool, max_rows: int
) -> None:
    spec = packing_spec(plan, 1)
    codecs = [RowCodec(i.table, i.columns) for i in spec.inputs]
    rules = GroupRules(merge=refuse, check_delete=refuse, every_commit=every_commit)

    def history(key: int) -> GroupHistory:
        order = codecs[0].encode((key, "a", None))
        lines = [(100 * n, b"\x02%d" % n, codecs[1].encode((n, key, "x"))) for n in range(1, key + 2)]
        return rules.history({b"\x01": order}, lines)

    def documents(rows_per_call: int) -> tuple[list[tuple[int, list[bytes | None]]], list[int]]:
        counting = Counting(evaluator)
        batches = EvaluationBatches(counting, spec, codecs, every_commit=every_commit, max_rows=rows_per_call)
        return list(batches.evaluate(range(6), history, str)), counting.sizes

    all_at_once, calls = documents(1_000_000)
    assert len(calls) == 1
    assert documents(max_rows)[0] == all_at_once


@pytest.mark.parametrize("every_commit", [False, True])
def test_an_error_of_the_view_names_the_key(every_commit: bool) -> None:
    table = "CREATE TABLE s.a (id bigint PRIMARY KEY, n text NOT NULL);"
    view = "SELECT TRANSACTIONALLY a.id, CAST(a.n AS int) AS n FROM s.a a GROUP BY a.id"
    plan = compile_view(view, parse_catalog({"t.sql": table}), path="v.sql")
    rows = [json.dumps({"id": key, "n": "x" if key == 17 else "1"}).encode() for key in range(30)]
    with Evaluator(plan) as evaluator:
        stage = LocalStage(plan, evaluator, buckets=1, every_commit=every_commit)
        with pytest.raises(EvaluationError) as raised:
            stage.run([("s.a", "c", 10, None, row) for row in rows])
    assert raised.value.key == '{"id":17}'
