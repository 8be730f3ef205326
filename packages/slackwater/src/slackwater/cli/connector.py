"""A connector for a database: what the database needs, and what Kafka Connect is given."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace
from psycopg import sql

from slackwater.cdc.captured import faults_of_table, shared_topics
from slackwater.cdc.catalogue import read_tables
from slackwater.cdc.connector import (
    publication_name,
    reading_properties,
    table_list,
    topic_properties,
)
from slackwater.cli.databases import Database
from slackwater.protocol import Finding, InputError, SourceTopics, Verdict
from slackwater.protocol.keys import quoted_table

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
