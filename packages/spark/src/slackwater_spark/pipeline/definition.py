"""A pipeline is a folder.

::

    pipeline.toml      name, source, scope, emit, buckets, revision, [topics] by table, and for one view
                       [output] topic, partitions; for several [outputs.<view>] topic, partitions, publish
    schema.sql         CREATE TABLE of the tables the views read (or several files schema/*.sql)
    views/<view>.sql   SELECT TRANSACTIONALLY ...; may read other views by name
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slackwater_spark.pipeline.errors import DefinitionError
from slackwater_spark.pipeline.outputs import ViewOutput, read_outputs, revised, topic_name
from slackwater_spark.pipeline.tables import table_names
from slackwater_spark.pipeline.toml import TomlTable, read_toml
from slackwater_spark.scope import Scope
from slackwater_spark.sink import Emit
from slackwater_sql.catalog import Catalog
from slackwater_sql.ddl import parse_catalog
from slackwater_sql.plan import ViewPlan
from slackwater_sql.stages import DocumentsOutput, EnginePlan, PublishedView, Reads, RowsPart, StagePlan
from slackwater_sql.view import compile_view

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
    view: ViewPlan | None = None

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
    views = _view_files(folder)
    revision = toml.integer("revision", 1, minimum=1) or 1
    outputs = read_outputs(toml, [path.stem for path in views], revision)
    name = topic_name(toml, "name")
    source = topic_name(toml, "source")
    scope = Scope(toml.choice("scope", [str(scope) for scope in Scope], str(Scope.STRICT)))
    emit = Emit(toml.choice("emit", [str(emit) for emit in Emit], str(Emit.LATEST)))
    buckets = toml.integer("buckets", DEFAULT_BUCKETS, minimum=1) or DEFAULT_BUCKETS
    view = _view(folder, _catalog(folder))
    plan = _plan(view)
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
        view=view,
    )


def _topics(table: TomlTable, plan: EnginePlan) -> dict[str, str]:
    table.only(table_names(plan))
    return {name: topic_name(table, name) for name in table.values}


def _catalog(folder: Path) -> Catalog:
    paths = [path for path in (folder / "schema.sql",) if path.is_file()]
    paths += sorted((folder / "schema").glob("*.sql"))
    if not paths:
        raise DefinitionError(
            str(folder / "schema.sql"),
            "",
            "no such file",
            "`slackwater schema pull` writes it",
        )
    return parse_catalog({str(path): path.read_text(encoding="utf-8") for path in paths})


def _view_files(folder: Path) -> list[Path]:
    paths = sorted((folder / "views").glob("*.sql"))
    if not paths:
        raise DefinitionError(str(folder / "views"), "", "no view", "expected files views/<name>.sql")
    return paths


def _view(folder: Path, catalog: Catalog) -> ViewPlan:
    paths = _view_files(folder)
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise DefinitionError(
            str(folder / "views"),
            "",
            f"{len(paths)} views ({names})",
            "one per pipeline: make several folders",
        )
    return compile_view(paths[0].read_text(encoding="utf-8"), catalog, path=str(paths[0]))


def _plan(view: ViewPlan) -> EnginePlan:
    """The one stage that a view of the old kind is."""
    inputs = len(view.inputs)
    rows = RowsPart(
        view.inputs,
        (0,) * inputs,
        (Reads.GROUP,) * inputs,
        view.lifted_statement,
        view.latest_statement,
        DocumentsOutput(0),
    )
    key = tuple(column.name for column in view.key)
    published = PublishedView(view.name, view.sql, key, view.outputs, view.fingerprint, (1,))
    return EnginePlan((StagePlan(1, view.key, rows, None, "all tables are joined by one key"),), (published,))
