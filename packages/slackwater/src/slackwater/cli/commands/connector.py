"""``slackwater connector``."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
import orjson
from psycopg.conninfo import conninfo_to_dict

from slackwater.cdc.connector import property_findings, unknown_properties
from slackwater.cli.connector import (
    HIDDEN,
    ConnectorPlan,
    all_statements,
    captured_findings,
    database_findings,
    missing_statements,
    read_facts,
    refuse_shared_topics,
)
from slackwater.cli.databases import POSTGRES_URL, Database, connected
from slackwater.cli.signs import ANSWERS_WITHIN
from slackwater.command.connect_rest import ConnectRest
from slackwater.command.conversion import kafka_settings
from slackwater.command.invocation import required, setting, start_command
from slackwater.command.output import Output, show_findings
from slackwater.control import DelayCause, SourceSigns, faults_of_connector
from slackwater.protocol import ConnectorReport, Finding, InputError, Verdict
from slackwater.protocol.keys import TABLE_NAME_HINT, table_name
from slackwater.settings.model import Settings
from slackwater.sql.postgres import find_tables
from slackwater_sidecar.watch import connector_now

Command = TypeVar("Command", bound=Callable[..., Any])

_PORT = "5432"
_OPTIONS = (
    setting("source", "--source", metavar="NAME", help="Both topic.prefix and name of the connector."),
    POSTGRES_URL,
    click.option(
        "--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Captured table; repeatable."
    ),
    click.option(
        "--schema", "schemas", multiple=True, metavar="NAME", help="All tables of a schema; repeatable."
    ),
    setting(
        "connect.database_user",
        "--user",
        metavar="NAME",
        help="User of the connector.  [default: slackwater]",
    ),
    click.option(
        "--partitions",
        type=click.IntRange(min=1),
        default=4,
        show_default=True,
        help="Number of partitions of each table's topic.",
    ),
)
_CONNECT_URL = setting(
    "connect.url", "--connect-url", metavar="URL", help="http://host:port of Kafka Connect."
)


def _planned(command: Command) -> Command:
    """Gives a command the options that say which connector is meant."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group()
def connector() -> None:
    """Print, check or apply the configuration that a source needs in database and Kafka Connect.

    It consists of a user with the rights to replicate and to read, a publication that publishes partitioned
    tables under their own names, and the configuration of a Debezium connector with transaction metadata,
    heartbeats and notifications, and with value formats that match the declared types of tables.

    \b
    Examples:
      slackwater connector print --source inv --schema inventory --postgres-url postgresql://admin@db/inventory
      slackwater connector check --source inv --schema inventory --connect-url http://connect:8083
      slackwater connector apply --source inv --schema inventory --connect-url http://connect:8083

    Set the password of the connector's user with connect.database_password (see `slackwater config`). For
    details see docs/connector.md.
    """


@connector.command("print")
@_planned
@click.pass_context
def print_(ctx: click.Context, tables: tuple[str, ...], schemas: tuple[str, ...], partitions: int) -> None:
    """Print the statements for the database and the configuration for Kafka Connect.

    Only reads the catalogue, for the tables of --schema. Passwords are not printed.

    \b
    Example:
      slackwater connector print --source inv --table inventory.orders --postgres-url postgresql://admin@db/inventory
    """
    settings = start_command(ctx)
    with _database(settings) as connection:
        plan = _plan(connection, settings, tables, schemas, partitions)
        click.echo("-- In the database, as its owner or a superuser; wal_level has to be logical:\n")
        for statement in all_statements(plan):
            click.echo(f"{statement.as_string(connection)};")
    click.echo(f"\n-- For Kafka Connect: PUT /connectors/{plan.source}/config\n")
    click.echo(orjson.dumps(plan.properties(HIDDEN), option=orjson.OPT_INDENT_2))


@connector.command()
@_planned
@_CONNECT_URL
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers that Kafka Connect uses.")
@click.pass_context
def check(ctx: click.Context, tables: tuple[str, ...], schemas: tuple[str, ...], partitions: int) -> None:
    """List what is missing in the database and in the connector.

    With --connect-url, the running connector is checked as well, otherwise what [connect.properties] states
    of it, and with --bootstrap whether Kafka answers. Changes nothing. The exit code is 1 if there is a
    problem.

    \b
    Example:
      slackwater connector check --source inv --schema inventory --connect-url http://connect:8083
    """
    settings, output = start_command(ctx), Output()
    with _database(settings) as connection:
        plan = _plan(connection, settings, tables, schemas, partitions)
        findings = [
            *database_findings(plan, read_facts(connection, plan)),
            *captured_findings(connection, plan),
        ]
    if settings.connect.url is not None:
        findings += _connect_findings(settings.connect.url, plan, settings)
    elif settings.connect.properties:
        findings += property_findings(settings.connect.properties)
    else:
        findings.append(unknown_properties(plan.source))
    ctx.exit(show_findings(findings, output, "the source can be read"))


@connector.command()
@_planned
@_CONNECT_URL
@click.pass_context
def apply(ctx: click.Context, tables: tuple[str, ...], schemas: tuple[str, ...], partitions: int) -> None:
    """Create what is missing in the database, and configure the connector in Kafka Connect.

    Existing objects are kept: nothing is dropped, and no right is revoked. Prints each change. Without
    --connect-url, only the database is changed. The user of --postgres-url has to own the tables and may have
    to be a superuser.

    \b
    Example:
      slackwater connector apply --source inv --schema inventory --connect-url http://connect:8083
    """
    settings, output = start_command(ctx), Output()
    password = settings.connect.database_password
    with _database(settings) as connection:
        plan = _plan(connection, settings, tables, schemas, partitions)
        facts = read_facts(connection, plan)
        if not facts.has_user:
            required(
                password, "connect.database_password", "--connect-database-password", "of the user to make"
            )
        shown = list(missing_statements(plan, facts, None))
        for statement, masked in zip(missing_statements(plan, facts, password), shown, strict=True):
            output.line(f"{masked.as_string(connection)};")
            connection.execute(statement)
        connection.commit()
        left = [
            *database_findings(plan, read_facts(connection, plan)),
            *captured_findings(connection, plan),
        ]
    if settings.connect.url is not None:
        ConnectRest(settings.connect.url).configure(plan.source, plan.properties(password or ""))
        output.line(f"PUT {settings.connect.url}/connectors/{plan.source}/config")
    ctx.exit(show_findings(left, output, f"next: slackwater sidecar --source {plan.source}"))


def _connect_findings(url: str, plan: ConnectorPlan, settings: Settings) -> Iterator[Finding]:
    """Yields why the connector does not work, and what is wrong with its configuration."""
    report, faults = _state(url, settings, plan.source)
    for fault in faults:
        yield Finding(f"state of {plan.source}", Verdict.PROBLEM, fault.evidence, fault.advice)
    if report.kafka_error or report.connect_error:
        return
    properties = ConnectRest(url, ANSWERS_WITHIN).properties(plan.source)
    if properties is None and report.state != "ABSENT":
        text = f"Kafka Connect has no connector {plan.source}"
        yield Finding("connector", Verdict.PROBLEM, text, "`slackwater connector apply` creates it")
        if report.slot is not None and report.slot.exists:
            text = (
                "it exists before the connector: Debezium reads a first snapshot on such a slot table by "
                "table, so that the first cuts may contain effects of later commits"
            )
            hint = (
                f"if the source is new, SELECT pg_drop_replication_slot('{report.slot.name}'): the connector "
                "makes its own. If the connector was deleted and will continue at its stored offsets, keep it"
            )
            yield Finding(f"replication slot {report.slot.name}", Verdict.WARNING, text, hint)
    if properties is None:
        properties = plan.properties(settings.connect.database_password or "")
    else:
        yield from property_findings(properties)
    for name, error in ConnectRest(url).errors(properties):
        yield Finding(name, Verdict.PROBLEM, error)


def _state(url: str, settings: Settings, source: str) -> tuple[ConnectorReport, list[DelayCause]]:
    """Returns what a sidecar that watches the connector would see now, and who is to blame for it."""
    database_url, signs = settings.postgres.url, SourceSigns(source=source)

    def faults(report: ConnectorReport) -> list[DelayCause]:
        return list(faults_of_connector(signs, report, report.read_ms))

    kafka = None if settings.kafka.bootstrap is None else kafka_settings(settings, "which are asked")
    report = connector_now(source, kafka, url, database_url, lambda seen: bool(faults(seen)))
    return report, faults(report)


def _database(settings: Settings) -> Any:
    return connected(settings, "whose tables the connector reads", "reading the catalogue")


def _plan(
    connection: Database,
    settings: Settings,
    tables: tuple[str, ...],
    schemas: tuple[str, ...],
    partitions: int,
) -> ConnectorPlan:
    """Makes the plan of what was given.

    Raises:
        InputError: no table, or one that the database has not, or that has no topic of its own.
    """
    source = required(settings.source, "source", "--source", "the source to create")
    if not (tables or schemas):
        raise click.UsageError("specify the tables with --table SCHEMA.TABLE or --schema NAME")
    named = tuple(map(table_name, tables))
    wanted = [*named, *find_tables(connection, schemas)]
    missing = set(named).difference(find_tables(connection))
    if missing or not wanted:
        what = f"table {min(missing)}" if missing else f"table in schema {', '.join(schemas)}"
        raise InputError(f"the database has no {what}", TABLE_NAME_HINT)
    address = conninfo_to_dict(connection.info.dsn)
    host, _, port = (settings.connect.database_host or "").partition(":")
    plan = ConnectorPlan(
        source=source,
        host=host or str(address.get("host") or connection.info.host),
        port=int(port or str(address.get("port") or _PORT)),
        database=connection.info.dbname,
        user=settings.connect.database_user,
        tables=tuple(dict.fromkeys(wanted)),
        partitions=partitions,
        replication_factor=settings.kafka.replication_factor,
    )
    refuse_shared_topics(plan)
    return plan
