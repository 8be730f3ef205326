"""Reads a pipeline from its folder.

::

    pipeline.toml      name, source, owner, scope, emit, buckets, revision, [topics] by table, and for one
                       view [output] topic, partitions; for several [outputs.<view>], also publish;
                       in PostgreSQL kind = "postgres", table, history; in a lake kind = "delta" or
                       "iceberg", table; in a search cluster kind = "opensearch", index;
                       format = "debezium" makes a topic a table of a source, "avro" and "json-schema" name
                       schemas in a registry; key_format, subject_strategy; partition_by, by which several
                       views may share a topic; commit_format = "avro"; on_error = "quarantine" withholds
                       keys that cannot be evaluated;
                       [revision_of] other pipelines that it is a revision of, each with its views
    schema.sql         CREATE TABLE of the tables the views read (or several files schema/*.sql)
    views/<view>.sql   SELECT TRANSACTIONALLY ...; may read other views by name
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from slackwater.engine.settings import Scope
from slackwater.kafka.registry import SubjectStrategy
from slackwater.outputs.contract import HISTORY_SUFFIX, Emit, ErrorPolicy, Format, KeyFormat, SinkKind
from slackwater.pipeline.definition import (
    PipelineDefinition,
    PipelineSql,
    ViewOutput,
    checked,
    partition_columns,
    table_names,
)
from slackwater.pipeline.settings import revision_name
from slackwater.pipeline.toml_table import PipelineLabels, TomlTable, TopicName, read_definition, read_file
from slackwater.protocol import CommitFormat, ConfigError
from slackwater.protocol.keys import table_name
from slackwater.settings.errors import did_you_mean
from slackwater.sql.catalog import Catalog
from slackwater.sql.meaning import Dialect
from slackwater.sql.plan import EnginePlan
from slackwater.sql.postgres import parse_catalog

_DEFAULT_SCHEMA = {SinkKind.POSTGRES: "public", SinkKind.DELTA: "views", SinkKind.ICEBERG: "views"}
_RESERVED_SCHEMA = "slackwater"
_TABLE_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62})\.([A-Za-z_][A-Za-z0-9_]{0,62})")
_SOURCE_SCHEMA = "public"
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class _PipelineFile(PipelineLabels):
    owner: str = ""
    scope: Scope = Scope.STRICT
    emit: Emit = Emit.LATEST
    dialect: Dialect = Dialect.DUCKDB
    buckets: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    output: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    topics: Mapping[str, TopicName] = field(default_factory=dict)
    revision_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    kind: SinkKind = SinkKind.KAFKA
    publish: bool = True
    on_error: ErrorPolicy = ErrorPolicy.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicOutput(_Output):
    topic: TopicName | None = None
    partitions: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    format: Format = Format.JSON
    key_format: KeyFormat = KeyFormat.JSON
    commit_format: CommitFormat = CommitFormat.JSON
    cloudevents: bool = False
    partition_by: str = ""
    subject_strategy: SubjectStrategy = SubjectStrategy.TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableOutput(_Output):
    table: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PostgresOutput(_TableOutput):
    history: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexOutput(_Output):
    index: str | None = None


_TABLE_OUTPUTS = {
    SinkKind.POSTGRES: _PostgresOutput,
    SinkKind.DELTA: _TableOutput,
    SinkKind.ICEBERG: _TableOutput,
}


def load_pipeline(folder: Path) -> PipelineDefinition:
    """Reads the pipeline in a folder.

    Raises:
        ConfigError: Something cannot be used; the error names the file and the key.
        SqlError: A schema or view file is not supported; the error contains the position.
    """
    toml = read_definition(folder)
    file = toml.read(_PipelineFile)
    sql = read_sql(folder)
    outputs = read_outputs(toml, file.name, sql.view_names, file.revision)
    sql = replace(sql, partition_by=partition_columns(outputs), dialect=file.dialect)
    plan = sql.plan([output.view for output in outputs], scope=file.scope)
    definition = PipelineDefinition(
        name=revision_name(file.name, file.revision),
        source=file.source,
        owner=file.owner,
        scope=file.scope,
        emit=file.emit,
        buckets=file.buckets,
        revision=file.revision,
        revision_of=_revision_of(toml.table("revision_of"), file, [output.view for output in outputs]),
        outputs=outputs,
        topics=_topics(toml.table("topics"), plan),
        plan=plan,
        sql=sql,
    )
    return checked(definition, toml.error)


def _revision_of(
    table: TomlTable, file: _PipelineFile, published: Sequence[str]
) -> Mapping[str, tuple[str, ...]]:
    """Returns the other pipelines that this is a revision of, after checking that readers can be switched."""
    for name, views in file.revision_of.items():
        if name == file.name or file.revision == 1:
            raise table.error(name, "a pipeline has one revision of each number", "raise `revision`")
        if not views or (missing := sorted(set(views) - set(published))):
            what = f"view {missing[0]!r} is not published" if views else "no view is named"
            raise table.error(name, what, "name the views that readers of that pipeline have")
    return file.revision_of


def read_sql(folder: Path) -> PipelineSql:
    """Reads the SQL files of a pipeline folder.

    Raises:
        ConfigError: A kind of file is missing.
        SqlTextError: A schema file is not supported; the error contains the position.
    """
    return PipelineSql(_catalog(folder), _views(folder))


def _catalog(folder: Path) -> Catalog:
    paths = [path for path in (folder / "schema.sql",) if path.exists()]
    paths += sorted((folder / "schema").glob("*.sql"))
    if not paths:
        hint = "`slackwater schema pull` writes it"
        raise ConfigError(f"{folder / 'schema.sql'}: no such file", hint)
    return parse_catalog({str(path): read_file(folder, path) for path in paths})


def _views(folder: Path) -> tuple[tuple[str, str], ...]:
    paths = sorted((folder / "views").glob("*.sql"))
    if not paths:
        raise ConfigError(f"{folder / 'views'}: there are no views", "expected files views/<name>.sql")
    return tuple((str(path), read_file(folder, path)) for path in paths)


def read_outputs(
    toml: TomlTable, pipeline: str, views: Sequence[str], revision: int
) -> tuple[ViewOutput, ...]:
    """Reads the outputs, in the order of the published views."""
    single, several = toml.table("output"), toml.table("outputs")
    if single.values and several.values:
        raise toml.error("output", "cannot be combined with [outputs.<view>]", "remove one of the two")
    if len(views) > 1 and single.values:
        names = ", ".join(views)
        hint = f"there are several views ({names}): write [outputs.{views[0]}]"
        raise toml.error("output", "does not name its view", hint)
    _refuse_others(several, "view", views)
    tables = {view: several.table(view) for view in views}
    if single.values:
        tables = {views[0]: single}
    places = [*several.values, *views]
    found = (_output(table, view, pipeline, revision) for view, table in tables.items())
    outputs = tuple(replace(each, place=places.index(each.view)) for each in found if each is not None)
    if not outputs:
        raise several.error(views[0], "no view is published", "a pipeline must publish at least one")
    return outputs


def _refuse_others(table: TomlTable, what: str, known: Collection[str]) -> None:
    for key in table.values:
        if key not in known:
            hint = did_you_mean(key, known) or f"known: {', '.join(known)}"
            raise table.error(key, f"there is no {what} {key!r}", hint)


def _output(table: TomlTable, view: str, pipeline: str, revision: int) -> ViewOutput | None:
    """Reads an output; None if the view is not published."""
    general = table.read(_Output, ignores_others=True)
    if not general.publish:
        if others := table.values.keys() - {"publish"}:
            hint = "a view that is not published has no output"
            raise table.error(min(others), "cannot be combined with publish = false", hint)
        return None
    if general.kind is SinkKind.OPENSEARCH:
        index = table.read(_IndexOutput).index or revision_name(view, revision).replace(".", "_").lower()
        return ViewOutput(view, index, kind=general.kind, on_error=general.on_error)
    if general.kind is not SinkKind.KAFKA:
        return _output_table(table, table.read(_TABLE_OUTPUTS[general.kind]), view, revision)
    output = table.read(_TopicOutput)
    name = revision_name(view, revision)
    if output.format is Format.DEBEZIUM:
        name = f"{revision_name(pipeline, revision).replace('.', '_')}.{_SOURCE_SCHEMA}.{view}"
    return ViewOutput(
        view,
        output.topic or name,
        output.partitions,
        format=output.format,
        key_format=output.key_format,
        commit_format=output.commit_format,
        cloudevents=output.cloudevents,
        partition_by=output.partition_by,
        subject_strategy=output.subject_strategy,
        on_error=output.on_error,
    )


def _output_table(table: TomlTable, output: _TableOutput, view: str, revision: int) -> ViewOutput:
    default = f"{_DEFAULT_SCHEMA[output.kind]}.{revision_name(view, revision).replace('.', '_')}"
    name = default if output.table is None else output.table
    history = isinstance(output, _PostgresOutput) and output.history
    found = _TABLE_NAME.fullmatch(name)
    if found is None:
        raise table.error(
            "table", f"{name!r}: expected schema.name, of letters, digits and '_', at most 63 each"
        )
    if found[1] == _RESERVED_SCHEMA:
        raise table.error("table", f"{name!r}: schema {_RESERVED_SCHEMA!r} is reserved for the ledgers")
    if history and len(found[2]) > _LONGEST_NAME - len(HISTORY_SUFFIX):
        raise table.error(
            "table", f"{name!r} is too long for the table of its versions, {name}{HISTORY_SUFFIX}"
        )
    return ViewOutput(view, name, kind=output.kind, history=history, on_error=output.on_error)


def _topics(table: TomlTable, plan: EnginePlan) -> dict[str, str]:
    named = {_full_name(table, written): value for written, value in table.values.items()}
    if len(named) < len(table.values):
        raise table.error(next(reversed(named)), "a table is named twice")
    _refuse_others(replace(table, values=named), "table", table_names(plan))
    return named


def _full_name(table: TomlTable, written: str) -> str:
    try:
        return table_name(written)
    except ConfigError as error:
        raise table.error(written, error.problem, error.hint) from None
