"""A pipeline is a folder.

::

    pipeline.toml      name, source, scope, emit, buckets, revision, [topics] by table, and for one view
                       [output] topic, partitions; for several [outputs.<view>] topic, partitions, publish
    schema.sql         CREATE TABLE of the tables the views read (or several files schema/*.sql)
    views/<view>.sql   SELECT TRANSACTIONALLY ...; may read other views by name
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slackwater_engine.errors import EngineConfigError
from slackwater_engine.evaluate.evaluators import Evaluators, check_aggregate
from slackwater_engine.scope import Scope
from slackwater_spark.pipeline.outputs import ViewOutput, read_outputs, revised, topic_name
from slackwater_spark.pipeline.sources import PipelineSources, read_sources
from slackwater_spark.pipeline.tables import table_names
from slackwater_spark.pipeline.toml import TomlTable, read_toml
from slackwater_spark.sink import Emit
from slackwater_sql.catalog import Catalog
from slackwater_sql.plan import EnginePlan

DEFAULT_BUCKETS = 64
DEFINITION_FILE = "pipeline.toml"

_KEYS = ("name", "source", "scope", "emit", "buckets", "revision", "output", "outputs", "topics")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDefinition:
    """What a pipeline computes and where it writes: all that decides its results."""

    name: str
    """Also the base of its progress topic and its transactional id. Ends in ``.v<revision>`` from 2 on."""
    source: str
    """The connector's ``topic.prefix``."""
    scope: Scope = Scope.STRICT
    """Whether all of the views is of one commit, or each document by itself."""
    emit: Emit
    buckets: int
    """Slices of each stage's keys; fixed for the life of a checkpoint."""
    revision: int = 1
    """Counts the meanings that the views have had; each has its checkpoint and its outputs."""
    outputs: tuple[ViewOutput, ...]
    """In the order of the plan's views."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Table to topic, for tables whose rows a transform of the connector sends elsewhere."""
    plan: EnginePlan
    sources: PipelineSources | None = None
    """What the plan was made of; None if it was made otherwise."""
    evaluators: Evaluators | None = None
    """What evaluates the rows of stages; None: DuckDB."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Full names of the tables the views read, each once."""
        return table_names(self.plan)

    def checkpoint(self, folder: Path) -> Path:
        """Where this revision keeps its state, if the first one does in `folder`."""
        return folder.with_name(revised(folder.name, self.revision))


def load_pipeline(folder: Path) -> PipelineDefinition:
    """The pipeline in a folder.

    Raises:
        DefinitionError: file and key of what cannot be used.
        SqlError: a schema or view file is not supported; with its place.
    """
    toml = read_toml(folder / DEFINITION_FILE)
    toml.only(_KEYS)
    name, source = topic_name(toml, "name"), topic_name(toml, "source")
    scope = Scope(toml.choice("scope", [str(scope) for scope in Scope], str(Scope.STRICT)))
    emit = Emit(toml.choice("emit", [str(emit) for emit in Emit], str(Emit.LATEST)))
    buckets = toml.integer("buckets", DEFAULT_BUCKETS, minimum=1) or DEFAULT_BUCKETS
    revision = toml.integer("revision", 1, minimum=1) or 1
    sources = read_sources(folder)
    outputs = read_outputs(toml, sources.names, revision)
    plan = sources.plan([output.view for output in outputs], scope=scope)
    _check_scope(toml, scope, plan)
    return PipelineDefinition(
        name=revised(name, revision),
        source=source,
        scope=scope,
        emit=emit,
        buckets=buckets,
        revision=revision,
        outputs=outputs,
        topics=_topics(toml.table("topics"), plan),
        plan=plan,
        sources=sources,
    )


def pipeline_definition(
    *,
    name: str,
    source: str,
    catalog: Catalog,
    views: Mapping[str, str],
    emit: Emit = Emit.LATEST,
    buckets: int = DEFAULT_BUCKETS,
    outputs: Sequence[ViewOutput] | None = None,
) -> PipelineDefinition:
    """A pipeline without a folder.

    Args:
        name: Of the pipeline.
        source: The connector's ``topic.prefix``.
        catalog: The declared tables.
        views: Name and SQL of each view.
        emit: Which states are published.
        buckets: Slices of each stage's keys; fixed for the life of a checkpoint.
        outputs: Where views are published, in their order; None: each in the topic of its name.

    Raises:
        SqlTextError: a view is not supported; with its place.
    """
    sources = PipelineSources(catalog, tuple((f"{view}.sql", sql) for view, sql in views.items()))
    outputs = tuple(map(ViewOutput, views, views)) if outputs is None else tuple(outputs)
    plan = sources.plan([output.view for output in outputs])
    return PipelineDefinition(
        name=name, source=source, emit=emit, buckets=buckets, outputs=outputs, plan=plan, sources=sources
    )


def _topics(table: TomlTable, plan: EnginePlan) -> dict[str, str]:
    table.only(table_names(plan))
    return {name: topic_name(table, name) for name in table.values}


def _check_scope(toml: TomlTable, scope: Scope, plan: EnginePlan) -> None:
    if scope is Scope.AGGREGATE:
        try:
            check_aggregate(plan)
        except EngineConfigError as error:
            raise toml.error("scope", str(error), "`slackwater explain` shows the stages") from error
