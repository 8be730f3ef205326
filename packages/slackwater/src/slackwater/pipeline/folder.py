"""Reads a pipeline from its folder.

::

    pipeline.toml      name, source, owner, scope, emit, buckets, revision, [topics] by table, and for one
                       view [output] topic, partitions; for several [outputs.<view>], also publish;
                       in PostgreSQL kind = "postgres", table, history; in a lake kind = "delta" or
                       "iceberg", table; format = "debezium" makes a topic a table of a source, "avro" and
                       "json-schema" name schemas in a registry; key_format
    schema.sql         CREATE TABLE of the tables the views read (or several files schema/*.sql)
    views/<view>.sql   SELECT TRANSACTIONALLY ...; may read other views by name
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slackwater.engine.owners import check_aggregate
from slackwater.engine.settings import Scope
from slackwater.outputs import Emit, Format, KeyFormat, SinkKind
from slackwater.pipeline.definition import (
    HISTORY_SUFFIX,
    SOURCE_TOPIC,
    PipelineDefinition,
    PipelineSql,
    ViewOutput,
    fault_of_names,
    fault_of_outputs,
    own_places,
    shared_places,
    table_names,
    with_changes,
)
from slackwater.pipeline.settings import revision_name
from slackwater.pipeline.toml_table import TomlTable, name_and_revision, read_definition, read_file
from slackwater.protocol import ConfigError, TableNameError
from slackwater.protocol.keys import table_name
from slackwater.sql.catalog import Catalog
from slackwater.sql.plan import EnginePlan
from slackwater.sql.postgres import parse_catalog

_KEYS = ("name", "source", "owner", "scope", "emit", "buckets", "revision", "output", "outputs", "topics")
_KEYS_OF = {
    SinkKind.KAFKA: ("kind", "topic", "partitions", "format", "key_format", "cloudevents"),
    SinkKind.POSTGRES: ("kind", "table", "history"),
    SinkKind.DELTA: ("kind", "table"),
    SinkKind.ICEBERG: ("kind", "table"),
}
_DEFAULT_SCHEMA = {SinkKind.POSTGRES: "public", SinkKind.DELTA: "views", SinkKind.ICEBERG: "views"}
_RESERVED_SCHEMA = "slackwater"
_OUTPUT_KEYS = tuple(dict.fromkeys(key for keys in _KEYS_OF.values() for key in keys))
_TABLE_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62})\.([A-Za-z_][A-Za-z0-9_]{0,62})")
_SOURCE_SCHEMA = "public"
_LONGEST_NAME = 63
_MAX_BUCKETS = 65_536
_MAX_PARTITIONS = 10_000


def load_pipeline(folder: Path) -> PipelineDefinition:
    """Reads the pipeline in a folder.

    Raises:
        ConfigError: Something cannot be used; the error names the file and the key.
        SqlError: A schema or view file is not supported; the error contains the position.
    """
    toml = read_definition(folder)
    toml.only(_KEYS)
    name, revision = name_and_revision(toml)
    source = toml.topic_name("source")
    scope = Scope(toml.choice("scope", [str(scope) for scope in Scope], str(Scope.STRICT)))
    emit = Emit(toml.choice("emit", [str(emit) for emit in Emit], str(Emit.LATEST)))
    buckets = toml.integer("buckets", None, maximum=_MAX_BUCKETS)
    sql = read_sql(folder)
    outputs = read_outputs(toml, sql.view_names, revision)
    _check_history(toml, emit, outputs)
    plan = sql.plan([output.view for output in outputs], scope=scope)
    _check_scope(toml, scope, plan)
    topics = _topics(toml.table("topics"), plan)
    fault = fault_of_outputs(source, emit, scope, outputs, plan)
    fault = fault or fault_of_names(source, outputs, plan, topics)
    if fault is not None:
        raise toml.error(fault.key, fault.problem, fault.hint)
    plan = with_changes(plan, outputs)
    return PipelineDefinition(
        name=revision_name(name, revision),
        source=source,
        owner=toml.text("owner") if "owner" in toml.values else "",
        scope=scope,
        emit=emit,
        buckets=buckets,
        revision=revision,
        outputs=outputs,
        topics=topics,
        plan=plan,
        sql=sql,
    )


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


def read_outputs(toml: TomlTable, views: Sequence[str], revision: int) -> tuple[ViewOutput, ...]:
    """Reads the outputs, in the order of the published views.

    Raises:
        ConfigError: An output cannot be used; the error names the key and the reason.
    """
    pipeline = toml.text("name", "pipeline")
    single = toml.table("output")
    several = toml.table("outputs")
    if single.values and several.values:
        raise toml.error("output", "cannot be combined with [outputs.<view>]", "remove one of the two")
    if len(views) > 1 and single.values:
        names = ", ".join(views)
        hint = f"there are several views ({names}): write [outputs.{views[0]}]"
        raise toml.error("output", "does not name its view", hint)
    if several.values or len(views) > 1:
        outputs = _outputs(several, views, pipeline, revision)
    else:
        single.only(_output_keys(single))
        outputs = (_output(single, views[0], pipeline, revision),)
    _refuse_shared_places(toml, outputs)
    return outputs


def _outputs(
    several: TomlTable, views: Sequence[str], pipeline: str, revision: int
) -> tuple[ViewOutput, ...]:
    several.only(views)
    published = []
    for view in views:
        table = several.table(view)
        table.only((*_output_keys(table), "publish"))
        if table.boolean("publish", default=True):
            published.append(_output(table, view, pipeline, revision))
        elif len(table.values) > 1:
            key = next(key for key in _OUTPUT_KEYS if key in table.values)
            hint = "a view that is not published has no output"
            raise table.error(key, "cannot be combined with publish = false", hint)
    if not published:
        raise several.error(views[0], "no view is published", "a pipeline must publish at least one")
    return tuple(published)


def _kind(table: TomlTable) -> SinkKind:
    return SinkKind(table.choice("kind", [str(kind) for kind in SinkKind], SinkKind.KAFKA))


def _output_keys(table: TomlTable) -> tuple[str, ...]:
    return _KEYS_OF[_kind(table)]


def _output(table: TomlTable, view: str, pipeline: str, revision: int) -> ViewOutput:
    if _kind(table) is not SinkKind.KAFKA:
        return _output_table(table, view, revision)
    form = Format(table.choice("format", [str(each) for each in Format], Format.JSON))
    name = revision_name(view, revision)
    if form is Format.DEBEZIUM:
        name = f"{revision_name(pipeline, revision).replace('.', '_')}.{_SOURCE_SCHEMA}.{view}"
    topic = table.topic_name("topic", name)
    if form is Format.DEBEZIUM and not SOURCE_TOPIC.fullmatch(topic):
        hint = "schema and table may contain letters, digits and '_', at most 63 each"
        raise table.error("topic", f"{topic!r}: expected prefix.schema.table, as Debezium names topics", hint)
    return ViewOutput(
        view,
        topic,
        table.integer("partitions", None, maximum=_MAX_PARTITIONS),
        format=form,
        key_format=KeyFormat(table.choice("key_format", [str(each) for each in KeyFormat], KeyFormat.JSON)),
        cloudevents=table.boolean("cloudevents", default=False),
    )


def _output_table(table: TomlTable, view: str, revision: int) -> ViewOutput:
    kind = _kind(table)
    default = f"{_DEFAULT_SCHEMA[kind]}.{revision_name(view, revision).replace('.', '_')}"
    name, history = table.text("table", default), table.boolean("history", default=False)
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
    return ViewOutput(view, name, kind=kind, history=history)


def _refuse_shared_places(toml: TomlTable, outputs: Sequence[ViewOutput]) -> None:
    taken: dict[tuple[SinkKind, str], str] = {}
    for output in outputs:
        for place in own_places(output):
            writer = taken.setdefault((output.kind, place), output.view)
            if writer != output.view:
                what = "topic" if output.kind is SinkKind.KAFKA else "table"
                views = f"{writer} and {output.view}"
                raise toml.error("outputs", f"{views} both write {what} {place!r}", "give each view its own")
    for output in outputs:
        for place in shared_places(output):
            if (output.kind, place) in taken:
                what = f"{taken[output.kind, place]} writes topic {place!r}, which describes the transactions"
                raise toml.error("outputs", f"{what} of {output.view}", "use another name")


def _check_history(toml: TomlTable, emit: Emit, outputs: Sequence[ViewOutput]) -> None:
    for output in outputs:
        if output.history and emit is not Emit.TRANSACTIONS:
            hint = 'set emit = "transactions", which publishes the state after each transaction'
            raise toml.error("emit", f"history of view {output.view!r} needs every transaction", hint)


def _topics(table: TomlTable, plan: EnginePlan) -> dict[str, str]:
    named = {_full_name(table, written): value for written, value in table.values.items()}
    if len(named) < len(table.values):
        raise table.error(next(reversed(named)), "a table is named twice")
    table = replace(table, values=named)
    table.only(table_names(plan))
    return {name: table.topic_name(name) for name in table.values}


def _full_name(table: TomlTable, written: str) -> str:
    try:
        return table_name(written)
    except TableNameError as error:
        raise table.error(written, error.problem, error.hint) from None


def _check_scope(toml: TomlTable, scope: Scope, plan: EnginePlan) -> None:
    if scope is Scope.AGGREGATE:
        try:
            check_aggregate(plan)
        except ConfigError as error:
            raise toml.error("scope", str(error), "`slackwater explain` shows the stages") from error
