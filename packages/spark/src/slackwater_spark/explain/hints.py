"""What could make a pipeline cheaper."""

from collections.abc import Iterator
from dataclasses import replace

from slackwater_spark.pipeline import PipelineDefinition, PipelineSources, table_names
from slackwater_sql.catalog import Catalog, Table
from slackwater_sql.plan import EnginePlan, PartialsOutput


def hints(definition: PipelineDefinition) -> Iterator[str]:
    """Sentences, each with its reason; none if there is nothing to say."""
    if definition.sources is not None:
        published = [output.view for output in definition.outputs]
        yield from _replica_identities(definition.plan, definition.sources, published)
    yield from _global_groups(definition.plan)


def _replica_identities(plan: EnginePlan, sources: PipelineSources, published: list[str]) -> Iterator[str]:
    """Tables whose old rows would make stages unnecessary, found by planning with them."""
    read = table_names(plan)
    for table in sources.catalog.tables:
        if table.full_name not in read or table.replica_identity_full:
            continue
        other = sources.plan(published, _with_old_rows(sources.catalog, table))
        saved = len(plan.stages) - len(other.stages)
        if saved > 0:
            yield (
                f"ALTER TABLE {table.full_name} REPLICA IDENTITY FULL would save {saved} "
                f"stage{'' if saved == 1 else 's'}: without old rows, a stage has to remember which key "
                "a row leaves"
            )


def _with_old_rows(catalog: Catalog, table: Table) -> Catalog:
    return Catalog(
        tuple(replace(each, replica_identity_full=True) if each is table else each for each in catalog.tables)
    )


def _global_groups(plan: EnginePlan) -> Iterator[str]:
    fed = {stage.output.stage for stage in plan.stages if isinstance(stage.output, PartialsOutput)}
    for stage in plan.stages:
        if not stage.key:
            parallel = (
                "; what changes add to it is summed up in parallel before" if stage.number in fed else ""
            )
            yield f"stage {stage.number} has one group, so it runs in one task{parallel}"
