"""``slackwater schema``."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import click

from slackwater.cdc.captured import CapturedFinding, faults_of_table, key_faults
from slackwater.cdc.catalogue import CatalogueReader, find_publication, read_tables, shared_topic_findings
from slackwater.cli.given_pipelines import pipeline_folder
from slackwater.cli.main import settings_group
from slackwater.command.boundary import options
from slackwater.command.invocation import POSTGRES_URL, Database, connected
from slackwater.command.output import Output, aligned
from slackwater.protocol import InputError, SourceTopics
from slackwater.protocol.keys import table_name
from slackwater.settings.model import Settings
from slackwater.sql.catalog import Catalog, Column, Table
from slackwater.sql.errors import MissingTablesError
from slackwater.sql.plan import EnginePlan, InputPlan
from slackwater.sql.postgres import (
    GENERATED,
    MISSING_PARTITION_ROOT,
    find_tables,
    parse_catalog,
    published_by_partition,
    pull_schema,
)

ABSENT = "absent"
_PARTITIONS = "PARTITIONS"
_OUTPUT_FILE = click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file.  [default: standard output]",
)


NAMED_TABLES = options(
    click.option("--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="A table; repeatable."),
    click.option(
        "--schema", "schemas", multiple=True, metavar="NAME", help="All tables of a schema; repeatable."
    ),
)
"""The options that say which tables of a database are meant."""


@settings_group()
def schema() -> None:
    """Generate the table declarations of a pipeline, or compare them with the database.

    The folder of a pipeline declares its tables in schema.sql, as CREATE TABLE statements. Types are declared
    rather than inferred: a record that contradicts the declaration is an input error.

    \b
    Examples:
      slackwater schema pull --postgres-url URL --table inventory.orders --output pipelines/orders/schema.sql
      slackwater schema check pipelines/orders --postgres-url URL
      slackwater schema outputs pipelines/order_totals --output pipelines/order_sizes/schema.sql
    """


@schema.command()
@POSTGRES_URL
@NAMED_TABLES
@click.option("--all", "is_all", is_flag=True, help="All tables of the database.")
@_OUTPUT_FILE
def pull(
    settings: Settings, tables: tuple[str, ...], schemas: tuple[str, ...], is_all: bool, output: Path | None
) -> None:
    """Generate CREATE TABLE statements from the catalogue of a database.

    Only reads the catalogue. The result contains everything that a pipeline needs: columns with their types,
    primary keys and replica identities. A pipeline may declare more tables than it reads.

    \b
    Examples:
      slackwater schema pull --postgres-url postgresql://app@localhost/inventory \\
          --table inventory.orders --table inventory.order_lines --output pipelines/orders/schema.sql
      slackwater schema pull --schema inventory --output pipelines/orders/schema.sql
      slackwater schema pull --all

    If the URL contains a password, set it in SLACKWATER_POSTGRES_URL or in slackwater.toml (url under
    [postgres]) rather than with a flag.
    """
    if not (tables or schemas or is_all):
        raise click.UsageError("specify the tables with --table SCHEMA.TABLE, --schema NAME or --all")
    with _database(settings) as connection:
        found = find_tables(connection, None if is_all else schemas) if is_all or schemas else ()
        named = (table_name(name) if "." in name else name for name in tables)
        wanted = tuple(dict.fromkeys((*named, *found)))
        empty = [name for name in schemas if not any(table.startswith(f"{name}.") for table in found)]
        if empty or not wanted:
            where = f"in schema {empty[0]}" if empty else "in the database"
            raise InputError(f"there is no table {where}", "--all selects the tables of all schemas")
        text = pull_schema(connection, wanted)
        captured = read_tables(connection, wanted, "", settings.connect.database_user)
    for table in captured.values():
        for fault in faults_of_table(table):
            click.echo(f"warning: table {table.name}: {fault.text}. {fault.hint}", err=True)
    _write(text, len(wanted), output)


@schema.command()
@click.argument("pipeline", metavar="DIR")
@_OUTPUT_FILE
def outputs(settings: Settings, pipeline: str, output: Path | None) -> None:
    """Generate CREATE TABLE statements for the outputs of the pipeline in DIR, for pipelines that read them.

    For its readers, an output with format = "debezium" is a table. Readers put the result into their
    schema.sql. It contains the view's columns, with the types that its events have, and the key.

    \b
    Example:
      slackwater schema outputs pipelines/order_totals --output pipelines/order_sizes/schema.sql
    """
    # Spark's libraries take a second to import; the help text does not need them
    from slackwater.pipeline import load_pipeline
    from slackwater.pipeline.sinks import output_tables

    folder = pipeline_folder(pipeline)
    tables = output_tables(load_pipeline(folder))
    if not tables:
        raise InputError(
            f"{folder}: no output can be read as a table", 'set format = "debezium" in its [output]'
        )
    _write("\n".join(tables), len(tables), output)


def _write(text: str, tables: int, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(f"{output}: {tables} tables")


@schema.command()
@click.argument("pipeline", metavar="DIR")
@POSTGRES_URL
def check(settings: Settings, pipeline: str) -> int:
    """Compare the tables that the pipeline in DIR declares with those of the database.

    Only reads the catalogue. Shows the differences and the views that they affect. Columns that no view uses
    may be added, dropped and changed. A running pipeline detects records that contradict its declarations,
    but not types with the same form in JSON, such as timestamp(3) and timestamp(6). Therefore run this check
    before and after every migration.

    The exit code is 0 if no view is affected, and 1 otherwise.

    \b
    Example:
      slackwater schema check pipelines/orders --postgres-url postgresql://app@localhost/inventory
    """
    # Spark's libraries take a second to import; the help text does not need them
    from slackwater.pipeline.folder import load_pipeline, read_sql

    settings, output, folder = settings, Output(), pipeline_folder(pipeline)
    definition = load_pipeline(folder)
    with _database(settings) as connection:
        database = pulled_catalog(connection, definition.tables)
        apart = published_by_partition(connection, definition.tables)
        publication = find_publication(connection, definition.source)
        captured = read_tables(connection, definition.tables, publication, settings.connect.database_user)
        topics = SourceTopics(definition.source, definition.topics)
        shared = shared_topic_findings(connection, topics, definition.tables, publication)
    sql = read_sql(folder)
    plan = sql.plan_separately(definition.published, definition.scope)
    keys = {table.full_name: table.primary_key for table in sql.catalog.tables}
    there = [table for table in captured.values() if table.oid]
    faults = [fault for table in there for fault in faults_of_table(table, keys[table.name])]
    faults += shared
    keyed = [table.name for table in there if not list(key_faults(table, keys[table.name]))]
    found = [*differences(plan, sql.catalog, database, apart, keyed), *uncaptured(plan, faults, apart)]
    output.lines(difference_lines(definition.name, definition.revision, found))
    return 1 if affected(found) else 0


def _database(settings: Settings) -> AbstractContextManager[Database]:
    """Connects with the source database."""
    return connected(settings, "whose tables to read", "reading the catalogue")


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """Describes something that is declared otherwise than it is."""

    table: str
    what: str
    """A column, or what else of the table."""
    declared: str
    found: str
    views: tuple[str, ...]
    """Views that are touched; none if no view uses it."""
    explanation: str = ""
    """Why it is so, and what to do."""


def pulled_catalog(connection: CatalogueReader, tables: Sequence[str]) -> Catalog:
    """Returns the tables that the database has, as it has them."""
    try:
        return parse_catalog({"the database": pull_schema(connection, tables, keeps_generated=True)})
    except MissingTablesError as error:
        found = [table for table in tables if table not in error.tables]
        return pulled_catalog(connection, found) if found else Catalog(())


def differences(
    plan: EnginePlan,
    declared: Catalog,
    database: Catalog,
    apart: Collection[str] = (),
    keyed: Collection[str] = (),
) -> list[SchemaDifference]:
    """Returns what differs by table, in the order of its columns.

    The views of the plan have nothing in common. Of the tables that it reads, the database has those that are
    there, the changes of some are published `apart`, under the names of their partitions, and the declared
    primary key of those that are `keyed` identifies rows, whether or not it is one there.
    """
    from slackwater.pipeline.definition import table_names  # Spark's libraries take a second to import

    found: list[SchemaDifference] = []
    there = {table.full_name: table for table in database.tables}
    for name in table_names(plan):
        (own,) = (each for each in declared.tables if each.full_name == name)
        uses = _Uses(plan, name)
        if name in there:
            found += [*_columns(own, there[name], uses), *_keys(own, there[name], uses, is_key=name in keyed)]
        else:
            found.append(SchemaDifference(name, "TABLE", "declared", ABSENT, uses.of_table()))
        if name in apart:
            found.append(SchemaDifference(name, _PARTITIONS, "one table", "published apart", uses.of_table()))
    return found


def uncaptured(
    plan: EnginePlan, faults: Iterable[CapturedFinding], apart: Collection[str] = ()
) -> Iterator[SchemaDifference]:
    """Yields a difference for each reason why topics cannot have all rows of a table.

    As for :func:`differences`, nothing is said twice of tables whose partitions are published apart.
    """
    for fault in faults:
        uses = _Uses(plan, fault.table)
        views = uses.of_column(fault.column) if fault.column else uses.of_table()
        if fault.table not in apart:
            what = fault.column or "ROWS"
            text = f"{fault.text}. {fault.hint}"
            yield SchemaDifference(fault.table, what, "in the topic", "not in the topic", views, text)


def affected(found: Sequence[SchemaDifference]) -> tuple[str, ...]:
    """Returns the views that are touched, each once."""
    return tuple(dict.fromkeys(view for each in found for view in each.views))


def difference_lines(pipeline: str, revision: int, found: Sequence[SchemaDifference]) -> Iterator[str]:
    """Writes the differences as a table, and what to do."""
    if not found:
        yield f"{pipeline}: the declared tables match the database"
        return
    rows = [("table", "", "declared", "in the database", "affects")]
    rows += [
        (each.table, each.what, each.declared, each.found, ", ".join(each.views) or "no view")
        for each in found
    ]
    yield from aligned(rows)
    for each in found:
        if each.what == _PARTITIONS:
            yield f"{pipeline}: {each.table} is partitioned: {MISSING_PARTITION_ROOT}."
        elif each.explanation:
            yield f"{pipeline}: {each.table}: {each.explanation}."
    views = affected(found)
    if not views:
        yield f"{pipeline}: no view uses what differs, so the pipeline continues unchanged"
        return
    yield (
        f"{pipeline}: affected: {', '.join(views)}. Such a view stops at the first row that "
        "contradicts its declaration."
    )
    yield (
        "What to do: adapt the views, regenerate schema.sql (`slackwater schema pull`), and set "
        f"`revision = {revision + 1}` in pipeline.toml: the new revision starts at the beginning of the "
        "topics, so they must not contain old rows that contradict the new schema (otherwise take a new "
        "snapshot into new topics)."
    )


class _Uses:
    """Knows which views use what of a table."""

    def __init__(self, plan: EnginePlan, table: str) -> None:
        from slackwater.pipeline.definition import table_inputs

        read = ((view.name, each) for view in plan.views for each in table_inputs(plan, view.stages))
        self._inputs = [(view, each) for view, each in read if each.table.full_name == table]

    def of_column(self, name: str) -> tuple[str, ...]:
        return self._where(lambda each: name in each.column_names)

    def of_table(self) -> tuple[str, ...]:
        return self._where(lambda _: True)

    def of_old_rows(self) -> tuple[str, ...]:
        return self._where(lambda each: each.table.replica_identity_full)

    def _where(self, holds: Callable[[InputPlan], bool]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(view for view, each in self._inputs if holds(each)))


def _columns(declared: Table, found: Table, uses: _Uses) -> Iterator[SchemaDifference]:
    for column in declared.columns:
        now = found.column(column.name)
        if now is None:
            views = uses.of_column(column.name)
            yield SchemaDifference(declared.full_name, column.name, _shown(column), ABSENT, views)
        elif str(now.type) != str(column.type) or now.nullable != column.nullable:
            harmless = str(now.type) == str(column.type) and column.nullable
            views = () if harmless else uses.of_column(column.name)
            yield SchemaDifference(declared.full_name, column.name, _shown(column), _shown(now), views)
    for column in found.columns:
        if declared.column(column.name) is None and not _is_generated(column):
            yield SchemaDifference(declared.full_name, column.name, ABSENT, _shown(column), ())


def _keys(declared: Table, found: Table, uses: _Uses, *, is_key: bool) -> Iterator[SchemaDifference]:
    if declared.primary_key != found.primary_key:
        was, now = (", ".join(each.primary_key) or ABSENT for each in (declared, found))
        views = () if is_key else uses.of_table()
        yield SchemaDifference(declared.full_name, "PRIMARY KEY", was, now, views)
    if declared.replica_identity_full != found.replica_identity_full:
        was, now = ("FULL" if t.replica_identity_full else "DEFAULT" for t in (declared, found))
        views = () if found.replica_identity_full else uses.of_old_rows()
        yield SchemaDifference(declared.full_name, "REPLICA IDENTITY", was, now, views)


def _is_generated(column: Column) -> bool:
    """Returns whether the database computes it, so that connectors do not send it and nobody declares it."""
    return str(column.type).endswith(GENERATED)


def _shown(column: Column) -> str:
    not_sent = ", which connectors do not send" if _is_generated(column) else ""
    return f"{column.type}{'' if column.nullable else ' NOT NULL'}{not_sent}"
