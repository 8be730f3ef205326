"""Documents of views without stages and state; for tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from slackwater_sql.plan import InputPlan
from slackwater_sql.row_codec import RowCodec
from slackwater_sql.stage_evaluation import RowsEvaluator, RowVersions
from slackwater_sql.stages import EnginePlan

Rows = Mapping[str, Sequence[bytes]]
"""Row images as Debezium's JSON, by alias of the input."""


def live_documents(plan: EnginePlan, rows: Rows) -> list[bytes]:
    """The documents of one stage key, all of whose rows are given.

    Args:
        plan: Of one view whose only stage publishes one document per key.
        rows: All rows; an input without any may be missing.

    Raises:
        EvaluationError: The SQL fails on the rows.
        RowContradictsSchemaError: A row is not what its table's declaration says.
    """
    (stage,) = plan.stages
    assert stage.rows is not None  # noqa: S101 - the caller's promise
    evaluator = RowsEvaluator(stage.rows, stage.key, name=plan.views[0].name)
    versions = [_live(each, rows.get(each.alias, ())) for each in stage.rows.inputs]
    try:
        return [document for _, _, document in evaluator.latest(versions, [b"\x91\x01"], [0])]
    finally:
        evaluator.close()


def _live(plan: InputPlan, images: Sequence[bytes]) -> RowVersions:
    codec = RowCodec(plan.table, plan.column_names)
    columns: list[Sequence[Any]] = codec.unpack_columns([codec.encode(codec.decode(i)) for i in images])
    return RowVersions([0] * len(images), columns)
