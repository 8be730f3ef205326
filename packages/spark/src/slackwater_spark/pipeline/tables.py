"""Which columns of which tables a plan keeps."""

from collections.abc import Iterable, Iterator

from slackwater_sql.plan import InputPlan
from slackwater_sql.stages import EnginePlan, PublishedView, StagePlan

TABLE_OF_THE_DATABASE = 0
"""The origin of an input that is no other stage's result."""


def table_inputs(stages: Iterable[StagePlan]) -> Iterator[InputPlan]:
    """The inputs that are tables of the database, a table as often as it is one."""
    for stage in stages:
        if stage.rows is not None:
            for each, origin in zip(stage.rows.inputs, stage.rows.origins, strict=True):
                if origin == TABLE_OF_THE_DATABASE:
                    yield each


def view_inputs(plan: EnginePlan, view: PublishedView) -> Iterator[InputPlan]:
    """Those that a view is made of."""
    return table_inputs(plan.stage(number) for number in view.stages)


def table_names(plan: EnginePlan) -> tuple[str, ...]:
    """Full names of the tables the plan reads, each once, in order."""
    return tuple(sorted({each.table.full_name for each in table_inputs(plan.stages)}))
