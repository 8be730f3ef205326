"""Creates the sink of a pipeline, for the kind of its outputs."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar, Unpack, assert_never

from slackwater.outputs.contract import OutputTable, SinkKind
from slackwater.outputs.kafka.debezium import row_type
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputForm, OutputTopic, output_form
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.outputs.sink import Sink, SinkOptions
from slackwater.pipeline.definition import PipelineDefinition, ViewOutput, keys_move
from slackwater.pipeline.settings import RunSettings
from slackwater.protocol import ConfigError
from slackwater.sql.plan import OutputColumn, PublishedView
from slackwater.sql.postgres import table_statement

if TYPE_CHECKING:
    from slackwater.outputs.lake.table import Lake

Place = TypeVar("Place")

_PLACES: Final = {
    SinkKind.POSTGRES: (
        "to PostgreSQL, but no database is configured",
        "set postgres.output_url (SLACKWATER_POSTGRES_OUTPUT_URL); `slackwater config` shows it",
    ),
    SinkKind.DELTA: (
        "Delta tables, but no location is configured for them",
        "set delta.location (SLACKWATER_DELTA_LOCATION); `slackwater config` shows it",
    ),
    SinkKind.ICEBERG: (
        "Iceberg tables, but no catalogue is configured for them",
        "set iceberg.catalog (SLACKWATER_ICEBERG_CATALOG); `slackwater config` shows it",
    ),
    SinkKind.OPENSEARCH: (
        "search indexes, but no cluster is configured for them",
        "set opensearch.url (SLACKWATER_OPENSEARCH_URL); `slackwater config` shows it",
    ),
}
"""The problem and the hint if nothing says where outputs of a kind are."""


def make_sink(definition: PipelineDefinition, settings: RunSettings, **options: Unpack[SinkOptions]) -> Sink:
    """Creates the sink for a pipeline's outputs; nothing is opened yet.

    Raises:
        ConfigError: The outputs are of several kinds, or their servers are not specified.
    """
    kind, servers = sink_kind(definition), settings.servers
    if kind is SinkKind.KAFKA:
        kafka = _kafka_sink_settings(definition, settings)
        return KafkaSink(kafka, **options)
    # Runs without such an output start faster without its library.
    if kind is SinkKind.POSTGRES:
        from slackwater.outputs.postgres.sink import PostgresSink
        from slackwater.outputs.postgres.tables import PostgresSinkSettings, check_names

        postgres = PostgresSinkSettings(
            pipeline=definition.name,
            outputs=_tables_of(definition, check_names),
            emit=definition.emit,
            scope=definition.scope,
            postgres=_placed(servers.postgres, definition, kind),
            accept_changed_output=settings.accept_changed_output,
        )
        return PostgresSink(postgres, **options)
    if kind is SinkKind.OPENSEARCH:
        from slackwater.outputs.search.mapping import check_names as check_fields
        from slackwater.outputs.search.sink import SearchSink, SearchSinkSettings

        cluster = _placed(servers.search, definition, kind)
        search = SearchSinkSettings(
            pipeline=definition.name,
            outputs=_tables_of(definition, check_fields, "index"),
            emit=definition.emit,
            scope=definition.scope,
            search=cluster,
            request_timeout=cluster.timeout,
            accept_changed_output=settings.accept_changed_output,
        )
        return SearchSink(search, **options)
    from slackwater.outputs.lake import columns
    from slackwater.outputs.lake.sink import LakeSink, LakeSinkSettings

    place = servers.delta if kind is SinkKind.DELTA else servers.iceberg
    lake = LakeSinkSettings(
        pipeline=definition.name,
        outputs=_tables_of(definition, columns.check_names),
        emit=definition.emit,
        scope=definition.scope,
        lake=_placed(place, definition, kind),
        accept_changed_output=settings.accept_changed_output,
    )
    tables: Lake
    if kind is SinkKind.DELTA:
        from slackwater.outputs.lake.delta import DeltaLake

        tables = DeltaLake(lake.lake)
    elif kind is SinkKind.ICEBERG:
        from slackwater.outputs.lake.iceberg import IcebergLake

        tables = IcebergLake(lake.lake)
    else:
        assert_never(kind)
    return LakeSink(lake, tables, **options)


def _placed(place: Place | None, definition: PipelineDefinition, kind: SinkKind) -> Place:
    """Returns where the outputs are; raises ConfigError if nothing says so."""
    if place is None:
        problem, hint = _PLACES[kind]
        raise ConfigError(f"pipeline {definition.name!r} publishes {problem}", hint)
    return place


def sink_kind(definition: PipelineDefinition) -> SinkKind:
    """Returns the kind of a pipeline's outputs. There is only one, as a batch becomes visible in all at once.

    Raises:
        ConfigError: There are several.
    """
    kinds = sorted({output.kind for output in definition.outputs})
    if len(kinds) > 1:
        problem = f"pipeline {definition.name!r} has outputs of different kinds: {' and '.join(kinds)}"
        hint = "a batch has to become visible in all outputs at once: split the pipeline into two"
        raise ConfigError(problem, hint)
    return kinds[0]


def _kafka_sink_settings(definition: PipelineDefinition, settings: RunSettings) -> KafkaSinkSettings:
    """Returns the settings of a pipeline's Kafka sink."""
    forms = output_forms(definition)
    return KafkaSinkSettings(
        pipeline=definition.name,
        outputs=tuple(
            OutputTopic(
                output.name,
                settings.output_partitions or output.partitions,
                keys_move=keys_move(definition.plan, number),
                view=output.view,
                schema=f"{output.view}:{definition.revision}",
                cloudevents=output.cloudevents,
                commit_format=output.commit_format,
                form=forms.get(number),
                subject_strategy=output.subject_strategy,
                partition_by=output.partition_by,
                place=output.place,
                table=_change_table(output, definition.plan.views[number]) if output.is_source else None,
            )
            for number, output in enumerate(definition.outputs)
        ),
        prefix=next((output.prefix for output in definition.outputs if output.is_source), ""),
        emit=definition.emit,
        scope=definition.scope,
        kafka=settings.servers.kafka,
        registry=settings.servers.registry,
        replication_factor=settings.replication_factor,
        keep=settings.keep,
        accept_changed_output=settings.accept_changed_output,
    )


def output_forms(definition: PipelineDefinition) -> dict[int, OutputForm]:
    """Returns the forms of records in Kafka by the number of the view; others are plain JSON."""
    views = enumerate(zip(definition.plan.views, definition.outputs, strict=True))
    forms = {number: output_form(view, output.format, output.key_format) for number, (view, output) in views}
    return {number: form for number, form in forms.items() if form is not None}


def _change_table(output: ViewOutput, view: PublishedView) -> OutputTable:
    """Returns the table that an output appears to be to its readers."""
    name = ".".join(output.name.rsplit(".", 2)[1:])
    return OutputTable(name=name, columns=view.outputs, key=view.key, view=view.name)


def output_tables(definition: PipelineDefinition) -> tuple[str, ...]:
    """Returns CREATE TABLE statements of the outputs that are tables to their readers."""
    found = []
    for output, view in zip(definition.outputs, definition.plan.views, strict=True):
        if output.is_source:
            _, schema, name = output.name.rsplit(".", 2)
            columns = [(column.name, row_type(column.type)) for column in view.outputs]
            found.append(table_statement(schema, name, columns, view.key))
    return tuple(found)


_Check = Callable[[str, Iterable[OutputColumn]], None]
"""Refuses columns of the view of a name that a kind of tables cannot have."""


def _tables_of(definition: PipelineDefinition, check: _Check, what: str = "table") -> tuple[OutputTable, ...]:
    """Returns the tables of a pipeline's views; raises like :func:`check_table`."""
    found = []
    for number, (view, output) in enumerate(zip(definition.plan.views, definition.outputs, strict=True)):
        check_table(view, check)
        table = OutputTable(name=output.name, columns=view.outputs, key=view.key, view=view.name, what=what)
        moves = keys_move(definition.plan, number)
        found.append(replace(table, keys_move=moves, history=output.history))
    return tuple(found)


def check_table(view: PublishedView, check: _Check) -> None:
    """Refuses views that cannot be tables.

    Raises:
        ConfigError: A column of the view's key is not selected, or `check` refuses a name.
    """
    for name in view.key:
        if name not in {column.name for column in view.outputs}:
            raise ConfigError(
                f"view {view.name!r}: its key has column {name!r}, which it does not select",
                "a table needs the whole key: select this column, too; if it may be NULL, as on both sides "
                "of a FULL JOIN, GROUP BY coalesce(…) of it, which then is the key",
            )
    check(view.name, view.outputs)
