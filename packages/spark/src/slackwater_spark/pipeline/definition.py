"""A pipeline is a folder.

::

    pipeline.toml      name, source, scope, emit, buckets, [output] topic, partitions, [topics] by table
    schema.sql         CREATE TABLE of the tables the view reads (or several files schema/*.sql)
    views/<view>.sql   SELECT TRANSACTIONALLY ...
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slackwater_spark.pipeline.errors import DefinitionError
from slackwater_spark.pipeline.toml import TomlTable, read_toml
from slackwater_spark.scope import Scope
from slackwater_spark.sink import Emit
from slackwater_sql.catalog import Catalog
from slackwater_sql.ddl import parse_catalog
from slackwater_sql.plan import ViewPlan
from slackwater_sql.view import compile_view

DEFAULT_BUCKETS = 64
DEFINITION_FILE = "pipeline.toml"

_KEYS = ("name", "source", "scope", "emit", "buckets", "output", "topics")
_OUTPUT_KEYS = ("topic", "partitions")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDefinition:
    """What a pipeline computes and where it writes: all that decides its results."""

    name: str
    """Also the base of its progress topic and its transactional id."""
    source: str
    """The connector's ``topic.prefix``."""
    scope: Scope = Scope.STRICT
    """Whether all of the view is of one commit, or each document by itself."""
    emit: Emit
    buckets: int
    """Slices of the stage's keys; fixed for the life of a checkpoint."""
    topic: str
    """Output topic."""
    partitions: int | None
    """Of the output topic; None: as it is, or four."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Table to topic, for tables whose rows a transform of the connector sends elsewhere."""
    view: ViewPlan

    @property
    def tables(self) -> tuple[str, ...]:
        """Full names of the tables the view reads, each once."""
        return tuple(sorted({item.table.full_name for item in self.view.inputs}))


def load_pipeline(folder: Path) -> PipelineDefinition:
    """The pipeline in a folder.

    Raises:
        DefinitionError: file and key of what cannot be used.
        SqlError: a schema or view file is not supported; with its place.
    """
    toml = read_toml(folder / DEFINITION_FILE)
    toml.only(_KEYS)
    output = toml.table("output")
    output.only(_OUTPUT_KEYS)
    name = _topic_name(toml, "name")
    buckets = toml.integer("buckets", DEFAULT_BUCKETS, minimum=1)
    view = _view(folder, _catalog(folder))
    return PipelineDefinition(
        name=name,
        source=_topic_name(toml, "source"),
        scope=Scope(toml.choice("scope", [str(scope) for scope in Scope], str(Scope.STRICT))),
        emit=Emit(toml.choice("emit", [str(emit) for emit in Emit], str(Emit.LATEST))),
        buckets=buckets or DEFAULT_BUCKETS,
        topic=_topic_name(output, "topic", view.name),
        partitions=output.integer("partitions", None, minimum=1),
        topics=_topics(toml.table("topics"), view),
        view=view,
    )


def _topics(table: TomlTable, view: ViewPlan) -> dict[str, str]:
    table.only(sorted({item.table.full_name for item in view.inputs}))
    return {name: _topic_name(table, name) for name in table.values}


def _topic_name(table: TomlTable, key: str, default: str | None = None) -> str:
    name = table.text(key, default)
    if not _TOPIC_NAME.fullmatch(name):
        raise table.error(key, f"{name!r} names Kafka topics: expected letters, digits, '.', '_' and '-'")
    return name


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


def _view(folder: Path, catalog: Catalog) -> ViewPlan:
    paths = sorted((folder / "views").glob("*.sql"))
    if not paths:
        raise DefinitionError(str(folder / "views"), "", "no view", "expected one file views/<name>.sql")
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise DefinitionError(
            str(folder / "views"),
            "",
            f"{len(paths)} views ({names})",
            "one per pipeline: make several folders",
        )
    return compile_view(paths[0].read_text(encoding="utf-8"), catalog, path=str(paths[0]))
