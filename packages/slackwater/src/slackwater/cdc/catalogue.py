"""Examines the catalogue of a PostgreSQL database for :mod:`slackwater.cdc.captured`.

The queries work from PostgreSQL 13 on: what older servers lack is read through ``to_jsonb``, which omits
columns that do not exist.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from slackwater.cdc.captured import (
    CapturedFinding,
    DeclaredTable,
    SeenTable,
    absent_columns,
    changes_between,
    faults_of_added,
    faults_of_table,
    omitted_by,
    shared_topics,
)
from slackwater.cdc.connector import publication_name
from slackwater.protocol import Finding, SourceTopics, Verdict

_TABLES = """
WITH connector AS (
    SELECT coalesce(bool_or(rolsuper OR rolbypassrls), false) AS sees_all, count(*) > 0 AS exists,
        max(oid::text)::oid AS role
    FROM pg_catalog.pg_roles WHERE rolname = %s
), given AS (
    SELECT DISTINCT ON (name) name, value FROM (
        SELECT split_part(option, '=', 1), split_part(option, '=', 2),
            2 * (s.setrole <> 0)::int + (s.setdatabase <> 0)::int
        FROM pg_catalog.pg_db_role_setting s CROSS JOIN connector CROSS JOIN unnest(s.setconfig) AS option
        WHERE s.setrole IN (0, coalesce(connector.role, 0)) AND s.setdatabase IN (
            0, (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()))
        UNION ALL
        SELECT name, reset_val, -1 FROM pg_catalog.pg_settings
        WHERE source NOT IN ('global', 'database', 'user', 'database user', 'client')
    ) AS settings (name, value, rank)
    WHERE name IN ('bytea_output', 'extra_float_digits') ORDER BY name, rank DESC
)
SELECT jsonb_build_object(
    'name', n.nspname || '.' || c.relname,
    'quoted', quote_ident(n.nspname) || '.' || quote_ident(c.relname),
    'oid', c.oid::bigint, 'kind', c.relkind, 'persistence', c.relpersistence, 'identity', c.relreplident,
    'file', c.relfilenode::bigint, 'changed', c.xmin::text, 'owner', c.relowner::bigint,
    'named', (SELECT y.xmin::text FROM pg_catalog.pg_type y WHERE y.oid = c.reltype),
    'children', coalesce((
        SELECT jsonb_agg(i.inhrelid::regclass::text ORDER BY 1) FROM pg_catalog.pg_inherits i
        WHERE i.inhparent = c.oid AND c.relkind <> 'p'), '[]'),
    'has_publication', p.oid IS NOT NULL,
    'is_published', t.tablename IS NOT NULL,
    'via_root', coalesce(p.pubviaroot, true),
    'filter', coalesce(to_jsonb(t) ->> 'rowfilter', ''),
    'lacks', to_jsonb(array_remove(ARRAY[
        CASE WHEN NOT p.pubinsert THEN 'insert' END, CASE WHEN NOT p.pubupdate THEN 'update' END,
        CASE WHEN NOT p.pubdelete THEN 'delete' END, CASE WHEN NOT p.pubtruncate THEN 'truncate' END], NULL)),
    'options', coalesce(p.xmin::text, ''),
    'member', coalesce((
        SELECT r.oid::bigint FROM pg_catalog.pg_publication_rel r
        WHERE r.prpubid = p.oid AND r.prrelid = c.oid), 0),
    'hides_rows', c.relrowsecurity AND connector.exists AND NOT connector.sees_all AND (
        c.relforcerowsecurity OR NOT pg_catalog.pg_has_role(
            CASE WHEN connector.exists THEN %s ELSE current_user END, c.relowner, 'USAGE')),
    'settings', (SELECT coalesce(jsonb_object_agg(name, value), '{}') FROM given),
    'key', coalesce((
        SELECT to_jsonb(i.indkey::int2[]::int[]) FROM pg_catalog.pg_index i
        WHERE i.indrelid = c.oid AND i.indisprimary), '[]'),
    'unique', coalesce((SELECT jsonb_agg(names ORDER BY indexrelid) FROM (
        SELECT i.indexrelid, jsonb_agg(a.attname ORDER BY k.position) AS names
        FROM pg_catalog.pg_index i
        CROSS JOIN LATERAL unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) WITH ORDINALITY
            AS k(number, position)
        LEFT JOIN pg_catalog.pg_attribute a
            ON a.attrelid = i.indrelid AND a.attnum = k.number AND a.attnotnull
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
        GROUP BY i.indexrelid HAVING bool_and(a.attname IS NOT NULL)) AS indexes), '[]'),
    'columns', coalesce((
        SELECT jsonb_agg(jsonb_build_object(
            'name', a.attname, 'number', a.attnum, 'type', pg_catalog.format_type(a.atttypid, a.atttypmod),
            'type_oid', a.atttypid::bigint, 'changed', a.xmin::text,
            'output', (
                SELECT coalesce(e.typoutput, y.typoutput)::text FROM pg_catalog.pg_type y
                LEFT JOIN pg_catalog.pg_type b ON b.oid = y.typbasetype
                LEFT JOIN pg_catalog.pg_type e ON y.typoutput = 'pg_catalog.array_out'::regproc
                    AND e.oid = coalesce(nullif(y.typelem, 0), b.typelem)
                WHERE y.oid = a.atttypid),
            'is_sent', a.attgenerated <> '' OR to_jsonb(t) -> 'attnames' IS NULL
                OR to_jsonb(t) -> 'attnames' ? a.attname,
            'labels', coalesce((
                SELECT jsonb_object_agg(e.oid::text, jsonb_build_array(e.enumlabel, e.xmin::text))
                FROM pg_catalog.pg_enum e JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
                WHERE e.enumtypid IN (y.oid, y.typbasetype)
                    OR (y.typcategory = 'A' AND e.enumtypid = y.typelem)), '{}')) ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '[]'),
    'partitions', coalesce((
        -- A partition belongs to its table since the youngest of the links between them.
        WITH RECURSIVE tree AS (
            SELECT c.oid AS relation, '1'::xid AS attached, 0::bigint AS command
          UNION ALL
            SELECT i.inhrelid,
                CASE WHEN age(i.xmin) <= age(tree.attached) THEN i.xmin ELSE tree.attached END,
                CASE WHEN age(i.xmin) <= age(tree.attached) THEN i.cmin::text::bigint ELSE tree.command END
            FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.relation
        )
        SELECT jsonb_agg(jsonb_build_object(
            'name', quote_ident(m.nspname) || '.' || quote_ident(r.relname), 'oid', r.oid::bigint,
            'file', r.relfilenode::bigint, 'kind', r.relkind, 'persistence', r.relpersistence,
            'identity', r.relreplident, 'changed', r.xmin::text, 'is_uncounted', r.reltuples <= 0,
            'attached', tree.attached::text, 'attached_command', tree.command) ORDER BY r.oid)
        FROM tree
        JOIN pg_catalog.pg_class r ON r.oid = tree.relation
        JOIN pg_catalog.pg_namespace m ON m.oid = r.relnamespace
        WHERE c.relkind = 'p' AND r.relkind <> 'p'), '[]')
), n.nspname || '.' || c.relname
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN connector
LEFT JOIN pg_catalog.pg_publication p ON p.pubname = %s
LEFT JOIN pg_catalog.pg_publication_tables t
    ON t.pubname = p.pubname AND t.schemaname = n.nspname AND t.tablename = c.relname
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname || '.' || c.relname = ANY(%s)
"""

_MAY_READ = """
SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE quote_ident(n.nspname) || '.' || quote_ident(c.relname) = %s
"""

_TOLD = """
SELECT c.oid::bigint, array_agg(a.attname::text ORDER BY a.attnum)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND CASE c.relreplident
    WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
JOIN pg_catalog.pg_attribute a
    ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE c.oid = ANY(%s::bigint[]::oid[])
GROUP BY c.oid
"""

_NAMES = """
SELECT c.oid::bigint, quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%s::bigint[]::oid[])
"""


_CANDIDATES = """
SELECT n.nspname || '.' || c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
    AND n.nspname NOT LIKE 'pg\\_%%' AND n.nspname <> 'information_schema'
    AND (NOT %s OR EXISTS (SELECT FROM pg_catalog.pg_publication_tables t
        WHERE t.pubname = %s AND t.schemaname = n.nspname AND t.tablename = c.relname))
ORDER BY 1
"""

_PUBLICATION = """
SELECT pubname FROM pg_catalog.pg_publication WHERE pubname = %s
    OR (SELECT count(*) = 1 FROM pg_catalog.pg_publication)
"""


class Cursor(Protocol):
    """The result of a query; psycopg's cursor is one."""

    def fetchall(self) -> Sequence[Sequence[Any]]:
        """Returns all rows."""


class CatalogueReader(Protocol):
    """A connection to PostgreSQL that reads its catalogue; psycopg's connection is one."""

    def execute(self, query: str, params: Sequence[Any], /) -> Cursor:
        """Runs a query with %s parameters. Blocks; the driver's errors are passed on."""


def examine_tables(
    connection: CatalogueReader,
    used: Mapping[str, Collection[str]],
    before: Mapping[str, SeenTable],
    *,
    topics: SourceTopics,
    publication: str,
    user: str = "",
    declared: Mapping[str, DeclaredTable] = {},
) -> tuple[dict[str, SeenTable], list[CapturedFinding]]:
    """Returns the state to compare the next examination with, and what makes views differ from a SELECT.

    A table with a finding is compared with the same earlier state again, until the finding is gone. Blocks;
    the driver's errors are passed on. The tables are given as ``schema.table``, with the columns of each that
    are used, and what is declared of them; for publication and user see :func:`read_tables`.
    """
    now = read_tables(connection, tuple(used), publication, user)
    oids = [oid for table in before.values() for oid in (table.oid, *(p.oid for p in table.partitions))]
    present = _present_names(connection, oids)
    compared: dict[str, SeenTable] = {}
    findings = shared_topic_findings(connection, topics, used, publication)
    for name, table in now.items():
        known, own = before.get(name, table), declared.get(name, DeclaredTable())
        suspected = [
            *changes_between(known, table, present, own.added),
            *faults_of_added(table, own.added),
            *absent_columns(known, table, used[name]),
            *faults_of_table(table, own.key),
        ]
        concerning = [each for each in suspected if not each.column or each.column in used[name]]
        found = list(_confirmed(connection, concerning))
        compared[name] = known if found else table
        findings += found
    return compared, findings


def source_findings(
    connection: CatalogueReader, source: str, properties: Mapping[str, str]
) -> Iterator[Finding]:
    """Yields the reasons why the topics of captured tables cannot have all their rows. Blocks.

    They affect only readers of these tables, so none is a fault of the whole source. If the connector's
    properties are unknown (empty), the publication's tables are examined.
    """
    publication = properties.get("publication.name") or find_publication(connection, source)
    rows = connection.execute(_CANDIDATES, [not properties, publication]).fetchall()
    names = [str(name) for (name,) in rows]
    wanted = dict.fromkeys(names, ())
    left_out = {each.table for each in omitted_by(properties, wanted)}
    captured = [name for name in names if name not in left_out]
    tables = read_tables(connection, captured, publication, properties.get("database.user", ""))
    found = [fault for table in tables.values() for fault in faults_of_table(table)]
    # Transforms may route tables to other topics.
    is_routed = "transforms" in properties
    for fault in (*found, *(() if is_routed else shared_topics(SourceTopics(source), captured))):
        yield Finding(fault.subject, Verdict.PROBLEM, fault.text, fault.hint)


def shared_topic_findings(
    connection: CatalogueReader, topics: SourceTopics, used: Collection[str], publication: str
) -> list[CapturedFinding]:
    """Returns which of these tables share their topics with other tables of a publication.

    Blocks as :func:`examine_tables`.
    """
    published = [name for (name,) in connection.execute(_CANDIDATES, [True, publication]).fetchall()]
    return [each for each in shared_topics(topics, {*used, *published}) if each.table in used]


def find_publication(connection: CatalogueReader, source: str) -> str:
    """Returns the name of the publication that a source's connector reads, as far as the database shows.

    It is the one that `slackwater connector` creates, or the only one. If there are several others, it is
    unknown and the text is empty.
    """
    rows = connection.execute(_PUBLICATION, [publication_name(source)]).fetchall()
    return str(rows[0][0]) if rows else ""


def read_tables(
    connection: CatalogueReader, tables: Sequence[str], publication: str, user: str
) -> dict[str, SeenTable]:
    """Reads what the catalogue says about tables, by their names. Blocks; the driver's errors are passed on.

    Publication and user are the connector's; the user matters for row-level security and the settings of its
    sessions, and may differ from that of the connection.
    """
    rows = connection.execute(_TABLES, [user, user, publication, list(tables)]).fetchall()
    found = {str(row[1]): msgspec.convert(row[0], SeenTable, strict=False) for row in rows}
    parts = {
        name: [(table.oid, table.quoted), *((each.oid, each.name) for each in table.partitions)]
        for name, table in found.items()
    }
    oids = [oid for of_table in parts.values() for oid, _ in of_table]
    told = {oid: tuple(names) for oid, names in connection.execute(_TOLD, [oids]).fetchall()}
    for name, of_table in parts.items():
        own = {part: told[oid] for oid, part in of_table if oid in told}
        found[name] = msgspec.structs.replace(found[name], told=own)
    return {name: found.get(name) or SeenTable(name=name) for name in tables}


def _confirmed(connection: CatalogueReader, found: Iterable[CapturedFinding]) -> Iterator[CapturedFinding]:
    """Yields the findings that the rows of the tables do not disprove. Blocks as :func:`read_tables` does."""
    for each in found:
        proof = each.proof
        # A table that may not be read cannot be disproved.
        if proof is None or connection.execute(_MAY_READ, [proof.relation]).fetchall() != [(True,)]:
            yield each
            continue
        relation = proof.relation.replace("%", "%%")
        query = f"SELECT EXISTS (SELECT FROM {relation} WHERE {proof.condition})"  # noqa: S608 - quoted
        if connection.execute(query, proof.parameters).fetchall()[0][0]:
            yield each


def _present_names(connection: CatalogueReader, oids: Iterable[int]) -> dict[int, str]:
    """Returns the names, quoted for SQL, of the tables with these oids that still exist."""
    rows = connection.execute(_NAMES, [list(oids)]).fetchall()
    return {int(oid): str(name) for oid, name in rows}
