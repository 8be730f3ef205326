"""``slackwater connector``."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
import orjson
from msgspec.structs import replace
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from slackwater.cdc.captured import faults_of_table, shared_topics
from slackwater.cdc.catalogue import read_tables
from slackwater.cdc.connector import (
    property_findings,
    publication_name,
    reading_properties,
    table_list,
    topic_properties,
    unknown_properties,
)
from slackwater.cli.databases import POSTGRES_URL, Database, connected
from slackwater.command.connect_rest import ConnectRest
from slackwater.command.invocation import ANSWERS_WITHIN, kafka_settings, required, setting, start_command
from slackwater.command.output import Output, show_findings
from slackwater.control import DelayCause, SourceSigns, faults_of_connector
from slackwater.protocol import ConnectorReport, Finding, InputError, SourceTopics, Verdict
from slackwater.protocol.keys import TABLE_NAME_HINT, quoted_table, table_name
from slackwater.settings.model import Settings
from slackwater.sql.postgres import find_tables
from slackwater_sidecar.watch import connector_now

HIDDEN = "********"
_LOGICAL = "logical"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorPlan:
    """A connector that is to be."""

    source: str
    """Its ``topic.prefix``, and its name in Kafka Connect."""
    host: str
    """Where Kafka Connect finds the database."""
    port: int
    database: str
    user: str
    """The database's user for the connector."""
    tables: tuple[str, ...]
    """Full names of the tables that are captured."""
    partitions: int = 4
    """Of each table's topic."""
    replication_factor: int = -1
    """Of all topics; -1: the broker's default."""

    @property
    def publication(self) -> str:
        """The publication's name."""
        return publication_name(self.source)

    def properties(self, password: str) -> dict[str, str]:
        """Returns the connector's configuration, as Kafka Connect takes it."""
        return {
            **reading_properties(self.source),
            "database.hostname": self.host,
            "database.port": str(self.port),
            "database.dbname": self.database,
            "database.user": self.user,
            "database.password": password,
            "table.include.list": table_list(self.tables),
            **topic_properties(self.source, self.partitions, self.replication_factor),
        }


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """What a database has of a plan."""

    wal_level: str
    has_user: bool
    may_replicate: bool
    unreadable: tuple[str, ...]
    """Tables that the user may not read."""
    closed_schemas: tuple[str, ...]
    """Schemas that the user may not use."""
    publication: bool | None
    """Whether it publishes via the roots of partitioned tables; None: there is none."""
    published: tuple[str, ...] | None
    """Its tables; None: all tables."""
    lacks_operations: tuple[str, ...]
    """Kinds of changes that it does not publish."""
    nameless: tuple[str, ...]
    """Tables without a primary key whose replica identity is not FULL."""


_ROLE = "SELECT rolreplication OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = %s"
_UNREADABLE = """
SELECT name FROM unnest(%s::text[]) AS name
WHERE NOT has_table_privilege(%s, to_regclass(name), 'SELECT')
"""
_CLOSED = """
SELECT DISTINCT n.nspname FROM unnest(%s::text[]) AS name
JOIN pg_catalog.pg_class c ON c.oid = to_regclass(name)
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE NOT has_schema_privilege(%s, n.oid, 'USAGE')
ORDER BY 1
"""
_PUBLICATION = """
SELECT pubviaroot, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate
FROM pg_catalog.pg_publication WHERE pubname = %s
"""
_PUBLISHED = """
SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = %s ORDER BY 1
"""
_NAMELESS = """
SELECT name FROM unnest(%s::text[]) AS name JOIN pg_catalog.pg_class c ON c.oid = to_regclass(name)
WHERE c.relreplident NOT IN ('f', 'i')
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
"""
_OPERATIONS = ("insert", "update", "delete", "truncate")


def read_facts(connection: Database, plan: ConnectorPlan) -> DatabaseFacts:
    """Reads the catalogue. Blocks; psycopg's errors are passed on."""

    def column(query: str, *parameters: object) -> tuple[str, ...]:
        return tuple(name for (name,) in connection.execute(query, parameters).fetchall())

    role = connection.execute(_ROLE, [plan.user]).fetchone()
    tables = [quoted_table(table) for table in plan.tables]
    by_regclass = dict(zip(tables, plan.tables, strict=True))
    unreadable: tuple[str, ...] = plan.tables
    closed: tuple[str, ...] = tuple(dict.fromkeys(table.partition(".")[0] for table in plan.tables))
    if role is not None:
        unreadable = tuple(by_regclass[name] for name in column(_UNREADABLE, tables, plan.user))
        closed = column(_CLOSED, tables, plan.user)
    publication = connection.execute(_PUBLICATION, [plan.publication]).fetchone()
    has_all = publication is not None and publication[1]
    return DatabaseFacts(
        wal_level=column("SELECT current_setting('wal_level')")[0],
        has_user=role is not None,
        may_replicate=role is not None and bool(role[0]),
        unreadable=unreadable,
        closed_schemas=closed,
        publication=None if publication is None else bool(publication[0]),
        published=None if has_all else column(_PUBLISHED, plan.publication),
        lacks_operations=tuple(
            name
            for name, has in zip(_OPERATIONS, (publication or (None,) * 6)[2:], strict=True)
            if has is False
        ),
        nameless=tuple(by_regclass[name] for name in column(_NAMELESS, tables)),
    )


def captured_findings(connection: Database, plan: ConnectorPlan) -> Iterator[Finding]:
    """Yields why the topics of a planned connector cannot have all rows of its tables.

    Blocks; psycopg's errors are passed on.
    """
    tables = read_tables(connection, plan.tables, plan.publication, plan.user)
    for table in tables.values():
        # What the publication lacks as a whole is a finding about the publication.
        for fault in faults_of_table(replace(table, is_published=True, lacks=())):
            yield Finding(f"table {table.name}", Verdict.PROBLEM, fault.text, fault.hint)


def refuse_shared_topics(plan: ConnectorPlan) -> None:
    """Refuses a plan whose tables would not have topics of their own.

    Raises:
        InputError: Names the first one.
    """
    for fault in shared_topics(SourceTopics(plan.source), plan.tables):
        raise InputError(f"table {fault.table}: {fault.text}", fault.hint)


def database_findings(plan: ConnectorPlan, facts: DatabaseFacts) -> Iterator[Finding]:
    """Yields what the database has, and what it lacks."""
    apply = "`slackwater connector apply` fixes this, `slackwater connector print` shows how"
    if facts.wal_level == _LOGICAL:
        yield Finding("wal_level", Verdict.OK, _LOGICAL)
    else:
        hint = "set wal_level = logical in postgresql.conf (rds.logical_replication = 1 in RDS) and restart"
        yield Finding(
            "wal_level", Verdict.PROBLEM, f"{facts.wal_level}: logical decoding is not possible", hint
        )
    if not facts.has_user:
        yield Finding(f"user {plan.user}", Verdict.PROBLEM, "the role does not exist", apply)
    elif not facts.may_replicate:
        yield Finding(
            f"user {plan.user}", Verdict.PROBLEM, "it does not have the REPLICATION attribute", apply
        )
    else:
        yield Finding(f"user {plan.user}", Verdict.OK, "it has the REPLICATION attribute")
    if facts.unreadable or facts.closed_schemas:
        parts = [*(f"schema {name}" for name in facts.closed_schemas), *facts.unreadable]
        text = f"{plan.user} cannot read {', '.join(parts)}, so the snapshot would fail"
        yield Finding("privileges", Verdict.PROBLEM, text, apply)
    else:
        count = "the table" if len(plan.tables) == 1 else f"all {len(plan.tables)} tables"
        yield Finding("privileges", Verdict.OK, f"{plan.user} can read {count}")
    yield from _publication_findings(plan, facts, apply)
    if facts.nameless:
        text = f"{', '.join(facts.nameless)}: no primary key, so PostgreSQL refuses updates and deletes"
        hint = "give them a primary key, or ALTER TABLE … REPLICA IDENTITY FULL"
        yield Finding("replica identity", Verdict.PROBLEM, text, hint)


def _publication_findings(plan: ConnectorPlan, facts: DatabaseFacts, apply: str) -> Iterator[Finding]:
    subject = f"publication {plan.publication}"
    if facts.publication is None:
        yield Finding(subject, Verdict.PROBLEM, "it does not exist", apply)
        return
    problems = []
    if not facts.publication:
        problems.append(
            "publish_via_partition_root is off, so changes of partitioned tables are published "
            "under the partitions' names"
        )
    if facts.lacks_operations:
        problems.append(f"it does not publish {', '.join(facts.lacks_operations)}")
    missing = _missing(plan.tables, facts.published)
    if missing:
        problems.append(f"it does not contain {', '.join(missing)}")
    for problem in problems:
        yield Finding(subject, Verdict.PROBLEM, problem, apply)
    if not problems:
        yield Finding(subject, Verdict.OK, "it contains the tables and publishes via the partition root")


def all_statements(plan: ConnectorPlan) -> Iterator[sql.Composed]:
    """Yields what a database needs that has nothing of the plan yet."""
    schemas = tuple(dict.fromkeys(table.partition(".")[0] for table in plan.tables))
    nothing = DatabaseFacts(_LOGICAL, False, False, plan.tables, schemas, None, (), (), ())
    return missing_statements(plan, nothing, None)


def missing_statements(
    plan: ConnectorPlan, facts: DatabaseFacts, password: str | None
) -> Iterator[sql.Composed]:
    """Yields the statements that give a database what it lacks.

    Args:
        plan: The connector.
        facts: Of the database.
        password: Of the user, if it has to be made; None: a placeholder.
    """
    user, publication = sql.Identifier(plan.user), sql.Identifier(plan.publication)
    if not facts.has_user:
        yield sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}").format(
            user, sql.Literal(HIDDEN if password is None else password)
        )
    elif not facts.may_replicate:
        yield sql.SQL("ALTER ROLE {} REPLICATION").format(user)
    for schema in facts.closed_schemas:
        yield sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), user)
    if facts.unreadable:
        yield sql.SQL("GRANT SELECT ON {} TO {}").format(_list(facts.unreadable), user)
    if facts.publication is None:
        yield sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)").format(
            publication, _list(plan.tables)
        )
        return
    if not facts.publication or facts.lacks_operations:
        yield sql.SQL(
            "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate', "
            "publish_via_partition_root = true)"
        ).format(publication)
    missing = _missing(plan.tables, facts.published)
    if missing:
        yield sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(publication, _list(missing))


def _missing(tables: Iterable[str], published: Collection[str] | None) -> tuple[str, ...]:
    return () if published is None else tuple(table for table in tables if table not in published)


def _list(tables: Sequence[str]) -> sql.Composed:
    names = (sql.Identifier(*table.split(".", 1)) for table in tables)
    return sql.SQL(", ").join(list(names))


Command = TypeVar("Command", bound=Callable[..., Any])

_PORT = "5432"
_OPTIONS = (
    setting("source", "Both topic.prefix and name of the connector."),
    POSTGRES_URL,
    click.option(
        "--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Captured table; repeatable."
    ),
    click.option(
        "--schema", "schemas", multiple=True, metavar="NAME", help="All tables of a schema; repeatable."
    ),
    setting(
        "connect.database_user", "User of the connector.  [default: slackwater]", "--user", metavar="NAME"
    ),
    click.option(
        "--partitions",
        type=click.IntRange(min=1),
        default=4,
        show_default=True,
        help="Number of partitions of each table's topic.",
    ),
)
_CONNECT_URL = setting("connect.url", "http://host:port of Kafka Connect.")


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
@setting("kafka.bootstrap", "The brokers that Kafka Connect uses.")
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
                password, "connect.database_password", "of the user to make", "--connect-database-password"
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
    source = required(settings.source, "source", "the source to create")
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
