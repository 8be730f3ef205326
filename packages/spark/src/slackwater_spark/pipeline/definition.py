"""The description of a pipeline: all that decides its results."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slackwater_engine.evaluate.evaluators import Evaluators
from slackwater_engine.settings import Scope
from slackwater_spark.sink import Emit, Format, KeyFormat, SinkKind
from slackwater_sql.catalog import Catalog
from slackwater_sql.compiler import compile_pipeline
from slackwater_sql.plan import DocumentsOutput, EnginePlan, InputPlan, PublishedView, StagePlan

_TABLE_OF_THE_DATABASE = 0
"""The origin of an input that is no other stage's result."""


@dataclass(frozen=True, slots=True)
class ViewOutput:
    """The place where a view is published."""

    view: str
    name: str
    """Of the topic; of an output that is a table ``schema.name``."""
    partitions: int | None = None
    """Of a topic; None: as it is, or four."""
    kind: SinkKind = SinkKind.KAFKA
    """The kind of the sink."""
    history: bool = False
    """Whether a table of PostgreSQL has every version in another table beside it."""
    format: Format = Format.JSON
    """The form of documents in Kafka."""
    key_format: KeyFormat = KeyFormat.JSON
    """The form of keys in Kafka."""

    cloudevents: bool = False
    """Whether records in Kafka have the attributes of CloudEvents in their headers."""

    @property
    def is_source(self) -> bool:
        """Whether the output is to its readers a table of a connector, ``<prefix>.<schema>.<table>``."""
        return self.format is Format.DEBEZIUM

    @property
    def prefix(self) -> str:
        """The ``topic.prefix`` of such an output."""
        return self.name.rsplit(".", 2)[0]


@dataclass(frozen=True)
class PipelineSql:
    """The SQL that a pipeline's plan is made of."""

    catalog: Catalog
    """The declared tables."""
    views: tuple[tuple[str, str], ...]
    """Path and text of each view, by name."""

    @property
    def view_names(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(Path(path).stem for path, _ in self.views)

    def plan(
        self, published: Collection[str], catalog: Catalog | None = None, scope: Scope = Scope.STRICT
    ) -> EnginePlan:
        """Plans the published views, perhaps over other tables.

        Raises:
            SqlTextError: a view is not supported; with its place.
        """
        accumulates = scope is Scope.STRICT
        return compile_pipeline(
            self.views, catalog or self.catalog, published=published, accumulates=accumulates
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDefinition:
    """The views that a pipeline computes, and where it reads and writes: all that decides its results."""

    name: str
    """Also the base of its progress topic and its transactional id. Ends in ``.v<revision>`` from 2 on."""
    source: str
    """The connector's ``topic.prefix``."""
    scope: Scope = Scope.STRICT
    """Strict: all of the views is of one commit; aggregate: each document by itself."""
    emit: Emit
    buckets: int | None = None
    """Slices of each stage's keys, fixed for the life of a checkpoint; None: the first run chooses."""
    revision: int = 1
    """Counts the meanings that the views have had; each has its checkpoint and its outputs."""
    outputs: tuple[ViewOutput, ...]
    """In the order of the plan's views."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Table to topic, for tables whose rows a transform of the connector sends elsewhere."""
    plan: EnginePlan
    sql: PipelineSql | None = None
    """The SQL that the plan was made of; None if it was made otherwise."""
    evaluators: Evaluators | None = None
    """Evaluates the rows of stages; None: DuckDB does."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Full names of the tables the views read, each once."""
        return table_names(self.plan)


def pipeline_definition(
    *,
    name: str,
    source: str,
    catalog: Catalog,
    views: Mapping[str, str],
    emit: Emit = Emit.LATEST,
    buckets: int | None = None,
    outputs: Sequence[ViewOutput] | None = None,
) -> PipelineDefinition:
    """Describes a pipeline without a folder.

    Args:
        name: The pipeline's name.
        source: The connector's ``topic.prefix``.
        catalog: The declared tables.
        views: Name and SQL of each view.
        emit: Which states are published.
        buckets: Slices of each stage's keys, fixed for the life of a checkpoint; None: the first run chooses.
        outputs: Where views are published, in their order; None: each in the topic of its name.

    Raises:
        SqlTextError: a view is not supported; with its place.
    """
    sql = PipelineSql(catalog, tuple((f"{view}.sql", text) for view, text in views.items()))
    outputs = tuple(map(ViewOutput, views, views)) if outputs is None else tuple(outputs)
    plan = sql.plan([output.view for output in outputs])
    return PipelineDefinition(
        name=name, source=source, emit=emit, buckets=buckets, outputs=outputs, plan=plan, sql=sql
    )


def table_names(plan: EnginePlan) -> tuple[str, ...]:
    """Returns the full names of the tables the plan reads, each once, in order."""
    return tuple(sorted({each.table.full_name for each in _table_inputs(plan.stages)}))


def view_inputs(plan: EnginePlan, view: PublishedView) -> Iterator[InputPlan]:
    """Yields the inputs of a view that are tables of the database, a table as often as it is one."""
    return _table_inputs(plan.stage(number) for number in view.stages)


def keys_move(plan: EnginePlan, view: int) -> bool:
    """Tells whether a document of a view may go from one key of its last stage to another.

    Not if there is one document for each stage key, or for each group.
    """
    outputs = ((stage, stage.output) for stage in plan.stages)
    (last,) = (stage for stage, o in outputs if isinstance(o, DocumentsOutput) and o.view == view)
    return last.accumulate is None and last.rows is not None and last.rows.latest_statement is None


def _table_inputs(stages: Iterable[StagePlan]) -> Iterator[InputPlan]:
    """Yields the inputs that are tables of the database, a table as often as it is one."""
    for stage in stages:
        if stage.rows is not None:
            for each in stage.rows.inputs:
                if each.origin == _TABLE_OF_THE_DATABASE:
                    yield each
