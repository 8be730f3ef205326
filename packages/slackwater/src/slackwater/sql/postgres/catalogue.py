"""Declared tables from a live PostgreSQL: what `slackwater schema pull` writes."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from slackwater.cdc.catalogue import CatalogueReader
from slackwater.sql.errors import MissingTablesError
from slackwater.sql.limits import scratch_database
from slackwater.sql.postgres.ddl import parse_catalog
from slackwater.sql.postgres.types import GENERATED

_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_$]*\Z")
# Reserved in PostgreSQL but not in DuckDB, whose keywords are otherwise PostgreSQL's.
_RESERVED_BY_POSTGRES = frozenset(
    {
        "current_catalog", "current_date", "current_role", "current_schema", "current_time",
        "current_timestamp", "current_user", "grant", "localtime", "localtimestamp", "session_user",
        "system_user", "user",
    }
)  # fmt: skip

_HEADER = """\
-- Tables from PostgreSQL's catalogue, written by `slackwater schema pull`.
-- Debezium must write schemaless JSON with decimal.handling.mode=string and time.precision.mode=adaptive.
"""

# An index that contains the primary key identifies old rows as the primary key does.
_TABLES = """
SELECT n.nspname, c.relname, c.relreplident = 'f', ARRAY(
    SELECT a.attname::text FROM pg_catalog.pg_index i
    CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, position)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
    WHERE i.indrelid = c.oid AND i.indisprimary ORDER BY k.position
), (
    SELECT r.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class r ON r.oid = i.indexrelid
    WHERE i.indrelid = c.oid AND i.indisreplident AND c.relreplident = 'i' AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_index p
        WHERE p.indrelid = c.oid AND p.indisprimary
            AND (p.indkey::int2[])[0:p.indnkeyatts - 1] <@ (i.indkey::int2[])[0:i.indnkeyatts - 1])
)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname || '.' || c.relname = ANY(%s)
"""

# A domain counts as its base type, because that is what Debezium writes, except over an array, of which it
# omits large values in another way. The DEFAULT of a column follows its
# type, because a connector may write it instead of NULL or of a value that it does not know. For a default
# that is a function, it writes the value that means "none".
_COLUMNS = """
WITH RECURSIVE base AS (
    SELECT a.attrelid, a.attnum, a.attname, a.attnotnull, a.attgenerated <> '' AS is_generated,
        a.atttypid AS declared, a.atttypid AS type, a.atttypmod AS modifier
    FROM pg_catalog.pg_attribute a WHERE a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
    SELECT b.attrelid, b.attnum, b.attname, b.attnotnull, b.is_generated, b.declared, t.typbasetype,
        t.typtypmod
    FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype = 'd'
)
SELECT n.nspname, c.relname, b.attname, b.attnotnull,
    CASE WHEN x.is_domain THEN pg_catalog.format_type(b.declared, NULL) ELSE x.base END
    || CASE WHEN b.is_generated OR d.adbin IS NULL
                 OR (b.attnotnull AND pg_catalog.pg_get_expr(d.adbin, d.adrelid) ~ '^[^'']*[a-z0-9_"][(]')
            THEN ''
            ELSE ' DEFAULT ' || pg_catalog.pg_get_expr(d.adbin, d.adrelid) END,
    CASE WHEN x.is_domain THEN pg_catalog.format_type(b.declared, NULL) || ' AS ' || x.base END,
    CASE WHEN 'e' IN (t.typtype, e.typtype)
         THEN quote_ident(tn.nspname) || '.' || quote_ident(coalesce(e.typname, t.typname)) END,
    ARRAY(SELECT l.enumlabel::text FROM pg_catalog.pg_enum l
          WHERE l.enumtypid IN (t.oid, e.oid) ORDER BY l.enumsortorder),
    CASE WHEN b.is_generated THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END
FROM base b
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = b.attrelid AND d.adnum = b.attnum
JOIN pg_catalog.pg_class c ON c.oid = b.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype <> 'd'
JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
CROSS JOIN LATERAL (SELECT t.typcategory = 'A' AND b.declared <> b.type AS is_domain,
    CASE WHEN t.typtype = 'e' OR e.typtype = 'e'
         THEN quote_ident(tn.nspname) || '.' || quote_ident(coalesce(e.typname, t.typname))
              || CASE WHEN e.typtype = 'e' THEN '[]' ELSE '' END
         ELSE pg_catalog.format_type(b.type, b.modifier) END AS base) x
WHERE n.nspname || '.' || c.relname = ANY(%s)
ORDER BY b.attnum
"""

# A partitioned table is among a publication's tables only if its changes are published under its own name.
_PUBLISHED_APART = """
SELECT n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'p' AND n.nspname || '.' || c.relname = ANY(%s) AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_publication_tables t
    WHERE t.schemaname = n.nspname AND t.tablename = c.relname
)
ORDER BY 1, 2
"""

# Partitions are tables of the database, but their rows belong to the partitioned table.
_FIND = """
SELECT n.nspname || '.' || c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
    AND n.nspname NOT LIKE 'pg\\_%%' AND n.nspname <> 'information_schema'
    AND (%s OR n.nspname = ANY(%s))
ORDER BY 1
"""


MISSING_PARTITION_ROOT = (
    "its changes are published under the names of its partitions, so views would find it empty; publish "
    "them under its own name (publish_via_partition_root = true in the publication, or the connector's "
    "publish.via.partition.root if the connector creates the publication)"
)


@dataclass(slots=True)
class _PulledTable:
    schema: str
    name: str
    is_full: bool
    columns: list[tuple[str, str, bool, str | None]]
    """Name, type, whether NOT NULL, and the expression if it is generated."""
    primary_key: list[str]
    identity_index: str | None = None
    """The index, if it does not contain the primary key, whose columns identify old rows."""


def pull_schema(connection: CatalogueReader, tables: Sequence[str], *, keeps_generated: bool = False) -> str:
    """Returns DDL of these tables that `parse_catalog` reads back and PostgreSQL accepts, without indexes.

    Deterministic: tables and enums are in name order, columns in table order. Reads only; blocks.

    Args:
        connection: An open connection.
        tables: Names as `schema.table`.
        keeps_generated: Declare generated columns as such, instead of omitting them.

    Raises:
        MissingTablesError: Some table does not exist.
        SqlTextError: The name of a schema contains a dot.
    """
    wanted = sorted({name if "." in name else f"public.{name}" for name in tables})
    columns = connection.execute(_COLUMNS, [wanted]).fetchall()
    pulled = _pulled_tables(connection, wanted, columns)
    enums = {
        name: ", ".join("'" + label.replace("'", "''") + "'" for label in labels)
        for *_, name, labels, computed in columns
        if name is not None and computed is None
    }
    partitioned = () if keeps_generated else published_by_partition(connection, wanted)
    notes = [f"-- Table {name} is partitioned: {MISSING_PARTITION_ROOT}.\n" for name in partitioned]
    created = [_table_statement(pulled[name], keeps_generated=keeps_generated) for name in wanted]
    domains = sorted({each[5] for each in columns if each[5] is not None})
    statements = [
        *(f"CREATE TYPE {name} AS ENUM ({enums[name]});\n" for name in sorted(enums)),
        *(f"CREATE DOMAIN {each};\n" for each in domains),
        *created,
    ]
    return "\n".join([_HEADER, *notes, *_lost_columns("\n".join(statements)), *statements])


def _lost_columns(statements: str) -> Iterator[str]:
    """Yields a note for each column that views cannot use, with the reason."""
    for table in parse_catalog({"the database": statements}).tables:
        for column in table.columns:
            if not column.type.is_supported and not column.type.name.endswith(GENERATED):
                name = f"{table.full_name}.{column.name} {column.type}"
                yield f"-- Views cannot use {name}: {column.type.reason}.\n"


def find_tables(connection: CatalogueReader, schemas: Sequence[str] | None = None) -> tuple[str, ...]:
    """Returns the tables of a database as `schema.table`, in order; a partitioned table counts as one.

    Reads only; blocks. Temporary and unlogged tables are omitted: their changes are not in the log. Without
    schemas, those of all schemas except the database's own.
    """
    rows = connection.execute(_FIND, [schemas is None, list(schemas or ())]).fetchall()
    return tuple(name for (name,) in rows)


def table_statement(
    schema: str, name: str, columns: Iterable[tuple[str, str]], primary_key: Iterable[str]
) -> str:
    """Returns DDL, as :func:`pull_schema` writes it, of a table that exists in no database.

    Its columns may be NULL, and its changes contain the whole old row.
    """
    table = _PulledTable(schema, name, True, [], list(primary_key))
    table.columns += [(column, type_name, False, None) for column, type_name in columns]
    return _table_statement(table, keeps_generated=False)


def published_by_partition(connection: CatalogueReader, tables: Sequence[str]) -> tuple[str, ...]:
    """Returns the partitioned tables that no publication publishes under their own names.

    Reads only; blocks.
    """
    rows = connection.execute(_PUBLISHED_APART, [list(tables)]).fetchall()
    return tuple(f"{schema}.{name}" for schema, name in rows)


def _pulled_tables(
    connection: CatalogueReader, wanted: list[str], columns: Iterable[Sequence[Any]]
) -> dict[str, _PulledTable]:
    pulled = {
        f"{schema}.{name}": _PulledTable(schema, name, is_full, [], key, index)
        for schema, name, is_full, key, index in connection.execute(_TABLES, [wanted]).fetchall()
    }
    missing = tuple(name for name in wanted if name not in pulled)
    if missing:
        raise MissingTablesError(missing)
    for schema, table, name, is_not_null, type_name, *_, computed in columns:
        pulled[f"{schema}.{table}"].columns.append((name, type_name, is_not_null, computed))
    return pulled


def _table_statement(table: _PulledTable, *, keeps_generated: bool) -> str:
    name = f"{_quoted(table.schema)}.{_quoted(table.name)}"
    lines = [
        f"    {_quoted(column)} {type_name}{' NOT NULL' if is_not_null else ''}"
        f"{'' if computed is None else f' GENERATED ALWAYS AS ({computed}) STORED'}"
        for column, type_name, is_not_null, computed in table.columns
        if computed is None or keeps_generated
    ]
    if table.primary_key:
        lines.append(f"    PRIMARY KEY ({', '.join(_quoted(column) for column in table.primary_key)})")
    left_out = "".join(
        f"-- Left out: {_quoted(column)} {type_name}. Connectors do not send generated columns; "
        f"compute it in the view: {' '.join(computed.split())}\n"
        for column, type_name, _, computed in table.columns
        if computed is not None and not keeps_generated
    )
    statement = f"{left_out}CREATE TABLE {name} (\n" + ",\n".join(lines) + "\n);\n"
    if table.identity_index is not None:
        statement += f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {_quoted(table.identity_index)};\n"
    return statement + (f"ALTER TABLE {name} REPLICA IDENTITY FULL;\n" if table.is_full else "")


def _quoted(name: str) -> str:
    """Returns the name as PostgreSQL and DuckDB must read it to mean exactly this."""
    is_plain = _PLAIN_NAME.match(name) and name not in _RESERVED_BY_POSTGRES | _reserved_by_duckdb()
    return name if is_plain else '"' + name.replace('"', '""') + '"'


@cache
def _reserved_by_duckdb() -> frozenset[str]:
    query = (
        "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
    )
    with scratch_database() as connection:
        return frozenset(word for (word,) in connection.execute(query).fetchall())
