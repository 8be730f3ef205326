"""The tables that a plan reads, and whether the keys of its views move."""

from collections.abc import Collection, Iterable, Iterator

from slackwater_protocol import SourceTopics
from slackwater_sql.plan import DocumentsOutput, EnginePlan, InputPlan, PublishedView, StagePlan

TABLE_OF_THE_DATABASE = 0
"""The origin of an input that is no other stage's result."""


def table_inputs(stages: Iterable[StagePlan]) -> Iterator[InputPlan]:
    """Yields the inputs that are tables of the database, a table as often as it is one."""
    for stage in stages:
        if stage.rows is not None:
            for each in stage.rows.inputs:
                if each.origin == TABLE_OF_THE_DATABASE:
                    yield each


def view_inputs(plan: EnginePlan, view: PublishedView) -> Iterator[InputPlan]:
    """Yields those that a view is made of."""
    return table_inputs(plan.stage(number) for number in view.stages)


def table_names(plan: EnginePlan) -> tuple[str, ...]:
    """Returns the full names of the tables the plan reads, each once, in order."""
    return tuple(sorted({each.table.full_name for each in table_inputs(plan.stages)}))


def tables_without_topic(
    tables: Iterable[str], topics: SourceTopics, known: Collection[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Finds the tables whose topics do not exist, each with the topics that its partitions may have.

    The connector makes a topic with the first row, so a new table has none. But the changes of a partitioned
    table may go to topics of its partitions, whose names begin with its own as a rule.

    Args:
        tables: Full names.
        topics: The topics of the source.
        known: The topics that exist.
    """
    named = {table: topics.data(table) for table in tables}
    for table, topic in named.items():
        if topic not in known:
            others = set(known).difference(named.values())
            yield table, tuple(sorted(other for other in others if other.startswith(topic)))


def keys_move(plan: EnginePlan, view: int) -> bool:
    """Tells whether a document of a view may go from one key of its last stage to another.

    Not if there is one document for each stage key, or for each group.
    """
    (last,) = (stage for stage in plan.stages if stage.output == DocumentsOutput(view))
    return last.accumulate is None and last.rows is not None and last.rows.latest_statement is None
