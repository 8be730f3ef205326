"""``slackwater connector``."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
import msgspec
import orjson
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from slackwater.cdc.captured import SeenTable, faults_of_table, shared_topics
from slackwater.cdc.catalogue import read_tables
from slackwater.cdc.connector import (
    property_findings,
    publication_name,
    reading_properties,
    table_list,
    topic_properties,
    unknown_properties,
)
from slackwater.cli.commands.schema import NAMED_TABLES
from slackwater.cli.main import settings_group
from slackwater.command.boundary import options
from slackwater.command.connect_rest import ConnectRest
from slackwater.command.invocation import (
    ANSWERS_WITHIN,
    POSTGRES_URL,
    Database,
    connected,
    kafka_settings,
    required,
    setting,
)
from slackwater.command.output import Output, show_findings
from slackwater.control import DelayCause, SourceSigns, faults_of_connector
from slackwater.protocol import ConnectorReport, Finding, InputError, SourceTopics, Verdict
from slackwater.protocol.keys import TABLE_NAME_HINT, table_name
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

    tables: tuple[SeenTable, ...]
    unreadable: tuple[str, ...]
    """Tables that the user may not read."""
    closed_schemas: tuple[str, ...]
    """Schemas that the user may not use."""
    wal_level: str = _LOGICAL
    may_replicate: bool | None = None
    """Whether the user may; None: there is no such role."""
    publishes_all: bool = False
    """Whether the publication has all tables, also later ones."""

    @classmethod
    def nothing(cls, plan: ConnectorPlan) -> "DatabaseFacts":
        """Returns the facts of a database that has only the tables."""
        return cls(tuple(SeenTable(name=name) for name in plan.tables), plan.tables, _schemas(plan.tables))


Need = tuple[Finding, list[sql.Composed]]
"""Something that a connector needs of its database, and the statements that give what is lacking of it."""

_SERVER = """
SELECT current_setting('wal_level'),
    (SELECT rolreplication OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = %s),
    coalesce((SELECT puballtables FROM pg_catalog.pg_publication WHERE pubname = %s), false)
"""
_RIGHTS = """
SELECT n.nspname || '.' || c.relname,
    has_schema_privilege(r.oid, n.oid, 'USAGE'), has_table_privilege(r.oid, c.oid, 'SELECT')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN pg_catalog.pg_roles r WHERE r.rolname = %s AND n.nspname || '.' || c.relname = ANY(%s)
"""


def read_facts(connection: Database, plan: ConnectorPlan) -> DatabaseFacts:
    """Reads the catalogue. Blocks; psycopg's errors are passed on."""
    (server,) = connection.execute(_SERVER, [plan.user, plan.publication]).fetchall()
    rights = connection.execute(_RIGHTS, [plan.user, list(plan.tables)]).fetchall()
    enters, reads = ({name for name, *has in rights if has[place]} for place in (0, 1))
    return DatabaseFacts(
        tuple(read_tables(connection, plan.tables, plan.publication, plan.user).values()),
        tuple(name for name in plan.tables if name not in reads),
        _schemas(name for name in plan.tables if name not in enters),
        *server,
    )


def _schemas(tables: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(table.partition(".")[0] for table in tables))


def needs(plan: ConnectorPlan, facts: DatabaseFacts, password: str = HIDDEN) -> Iterator[Need]:
    """Yields what the connector needs, and how a database gets what it lacks.

    The password is for a user that has to be made.
    """
    user, role = sql.Identifier(plan.user), f"user {plan.user}"
    if facts.wal_level == _LOGICAL:
        yield Finding("wal_level", Verdict.OK, _LOGICAL), []
    else:
        text = f"{facts.wal_level}: logical decoding is not possible"
        hint = "set wal_level = logical in postgresql.conf (rds.logical_replication = 1 in RDS) and restart"
        yield Finding("wal_level", Verdict.PROBLEM, text, hint), []
    if facts.may_replicate is None:
        made = sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}").format(user, sql.Literal(password))
        yield _lacking(role, "the role does not exist", made)
    elif not facts.may_replicate:
        changed = sql.SQL("ALTER ROLE {} REPLICATION").format(user)
        yield _lacking(role, "it does not have the REPLICATION attribute", changed)
    else:
        yield Finding(role, Verdict.OK, "it has the REPLICATION attribute"), []
    grants = [
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), user)
        for schema in facts.closed_schemas
    ]
    if facts.unreadable:
        grants.append(sql.SQL("GRANT SELECT ON {} TO {}").format(_list(facts.unreadable), user))
    if grants:
        closed = ", ".join([*(f"schema {name}" for name in facts.closed_schemas), *facts.unreadable])
        yield _lacking("privileges", f"{plan.user} cannot read {closed}, so the snapshot would fail", *grants)
    else:
        count = "the table" if len(plan.tables) == 1 else f"all {len(plan.tables)} tables"
        yield Finding("privileges", Verdict.OK, f"{plan.user} can read {count}"), []
    yield from _publication_needs(plan, facts)
    nameless = [each.name for each in facts.tables if each.identity not in "fi" and not each.key]
    if nameless:
        text = f"{', '.join(nameless)}: no primary key, so PostgreSQL refuses updates and deletes"
        hint = "give them a primary key, or ALTER TABLE … REPLICA IDENTITY FULL"
        yield Finding("replica identity", Verdict.PROBLEM, text, hint), []


def _publication_needs(plan: ConnectorPlan, facts: DatabaseFacts) -> Iterator[Need]:
    name, subject = sql.Identifier(plan.publication), f"publication {plan.publication}"
    found = facts.tables[0]
    if not found.has_publication:
        made = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)")
        yield _lacking(subject, "it does not exist", made.format(name, _list(plan.tables)))
        return
    changed = sql.SQL(
        "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate', "
        "publish_via_partition_root = true)"
    ).format(name)
    if not found.via_root:
        text = (
            "publish_via_partition_root is off, so changes of partitioned tables are published "
            "under the partitions' names"
        )
        yield _lacking(subject, text, changed)
    if found.lacks:
        text = f"it does not publish {', '.join(found.lacks)}"
        yield _lacking(subject, text, *([changed] if found.via_root else []))
    has_all = facts.publishes_all
    missing = [each.name for each in facts.tables if not (has_all or each.is_published or each.member)]
    if missing:
        added = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, _list(missing))
        yield _lacking(subject, f"it does not contain {', '.join(missing)}", added)
    if found.via_root and not (found.lacks or missing):
        yield Finding(subject, Verdict.OK, "it contains the tables and publishes via the partition root"), []


def _lacking(subject: str, text: str, *statements: sql.Composed) -> Need:
    hint = "`slackwater connector apply` fixes this, `slackwater connector print` shows how"
    return Finding(subject, Verdict.PROBLEM, text, hint), list(statements)


def _findings(connection: Database, plan: ConnectorPlan) -> Iterator[Finding]:
    """Yields what the database has and lacks, and why topics cannot have all rows of their tables.

    Blocks; psycopg's errors are passed on.
    """
    facts = read_facts(connection, plan)
    yield from (finding for finding, _ in needs(plan, facts))
    for table in facts.tables:
        # What the publication lacks as a whole is a finding about the publication.
        for fault in faults_of_table(msgspec.structs.replace(table, is_published=True, lacks=())):
            yield Finding(f"table {table.name}", Verdict.PROBLEM, fault.text, fault.hint)


def _statements(plan: ConnectorPlan, facts: DatabaseFacts, password: str = HIDDEN) -> list[sql.Composed]:
    """Returns what gives a database what it lacks."""
    return [statement for _, statements in needs(plan, facts, password) for statement in statements]


def _list(tables: Sequence[str]) -> sql.Composed:
    names = (sql.Identifier(*table.split(".", 1)) for table in tables)
    return sql.SQL(", ").join(list(names))


_PORT = "5432"
_planned = options(
    setting("source", "Both topic.prefix and name of the connector."),
    POSTGRES_URL,
    NAMED_TABLES,
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
"""The options that say which connector is meant."""
_CONNECT_URL = setting("connect.url", "http://host:port of Kafka Connect.")


@settings_group()
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
def print_(settings: Settings, tables: tuple[str, ...], schemas: tuple[str, ...], partitions: int) -> None:
    """Print the statements for the database and the configuration for Kafka Connect.

    Only reads the catalogue, for the tables of --schema. Passwords are not printed.

    \b
    Example:
      slackwater connector print --source inv --table inventory.orders --postgres-url postgresql://admin@db/inventory
    """
    with _opened(settings, tables, schemas, partitions) as (connection, plan):
        click.echo("-- In the database, as its owner or a superuser; wal_level has to be logical:\n")
        for statement in _statements(plan, DatabaseFacts.nothing(plan)):
            click.echo(f"{statement.as_string(connection)};")
    click.echo(f"\n-- For Kafka Connect: PUT /connectors/{plan.source}/config\n")
    click.echo(orjson.dumps(plan.properties(HIDDEN), option=orjson.OPT_INDENT_2))


@connector.command()
@_planned
@_CONNECT_URL
@setting("kafka.bootstrap", "The brokers that Kafka Connect uses.")
def check(settings: Settings, tables: tuple[str, ...], schemas: tuple[str, ...], partitions: int) -> int:
    """List what is missing in the database and in the connector.

    With --connect-url, the running connector is checked as well, otherwise what [connect.properties] states
    of it, and with --bootstrap whether Kafka answers. Changes nothing. The exit code is 1 if there is a
    problem.

    \b
    Example:
      slackwater connector check --source inv --schema inventory --connect-url http://connect:8083
    """
    output = Output()
    with _opened(settings, tables, schemas, partitions) as (connection, plan):
        findings = [*_findings(connection, plan)]
    if settings.connect.url is not None:
        findings += _connect_findings(settings.connect.url, plan, settings)
    elif settings.connect.properties:
        findings += property_findings(settings.connect.properties)
    else:
        findings.append(unknown_properties(plan.source))
    return show_findings(findings, output, "the source can be read")


@connector.command()
@_planned
@_CONNECT_URL
def apply(settings: Settings, tables: tuple[str, ...], schemas: tuple[str, ...], partitions: int) -> int:
    """Create what is missing in the database, and configure the connector in Kafka Connect.

    Existing objects are kept: nothing is dropped, and no right is revoked. Prints each change. Without
    --connect-url, only the database is changed. The user of --postgres-url has to own the tables and may have
    to be a superuser.

    \b
    Example:
      slackwater connector apply --source inv --schema inventory --connect-url http://connect:8083
    """
    output = Output()
    password = settings.connect.database_password
    with _opened(settings, tables, schemas, partitions) as (connection, plan):
        facts = read_facts(connection, plan)
        if facts.may_replicate is None:
            required(password, "connect.database_password", "of the user to make")
        made, shown = _statements(plan, facts, password or ""), _statements(plan, facts)
        for statement, masked in zip(made, shown, strict=True):
            output.line(f"{masked.as_string(connection)};")
            connection.execute(statement)
        connection.commit()
        left = [*_findings(connection, plan)]
    if settings.connect.url is not None:
        ConnectRest(settings.connect.url).configure(plan.source, plan.properties(password or ""))
        output.line(f"PUT {settings.connect.url}/connectors/{plan.source}/config")
    return show_findings(left, output, f"next: slackwater sidecar --source {plan.source}")


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


@contextmanager
def _opened(settings: Settings, *given: Any) -> Iterator[tuple[Database, ConnectorPlan]]:
    """Connects with the database, and makes the plan of what was given."""
    with connected(settings, "whose tables the connector reads", "reading the catalogue") as connection:
        yield connection, _plan(connection, settings, *given)


def _plan(
    connection: Database, settings: Settings, tables: Sequence[str], schemas: Sequence[str], partitions: int
) -> ConnectorPlan:
    """Makes the plan of what was given."""
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
    for fault in shared_topics(SourceTopics(plan.source), plan.tables):
        raise InputError(f"table {fault.table}: {fault.text}", fault.hint)
    return plan
