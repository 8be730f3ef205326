"""Reads the declared tables: columns, types and primary keys, as DuckDB understands the statements."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
from duckdb.sqltypes import DuckDBPyType

from slackwater_certify.errors import CertifyConfigError

_COMMENTS_AND_TEXTS = re.compile(r"--[^\n]*|/\*.*?\*/|('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")", re.DOTALL)
_STATEMENTS = re.compile(r"(?:[^;'\"]|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")+")
_CREATE_TABLE = re.compile(
    r"\s*CREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(?:(\"[^\"]+\"|\w+)\s*\.)?", re.IGNORECASE
)
_FOREIGN = (
    (
        re.compile(r"\bGENERATED\s+(?:ALWAYS|BY\s+DEFAULT)\s+AS\s+IDENTITY(?:\s*\([^)]*\))?", re.IGNORECASE),
        "",
    ),
    (re.compile(r"\bbigserial\b", re.IGNORECASE), "bigint"),
    (re.compile(r"\bserial\b", re.IGNORECASE), "int"),
    (re.compile(r"\bjsonb\b", re.IGNORECASE), "json"),
)
"""Words that PostgreSQL takes in CREATE TABLE and DuckDB does not, without meaning for the values."""


@dataclass(frozen=True, slots=True)
class Table:
    """Describes a table of the source."""

    name: str
    """``schema.table``."""
    columns: tuple[tuple[str, DuckDBPyType], ...]
    primary_key: tuple[str, ...]

    def positions(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Returns the positions of columns.

        Raises:
            KeyError: there is no such column.
        """
        places = {name: position for position, (name, _) in enumerate(self.columns)}
        return tuple(places[name] for name in names)


def read_tables(ddl: str, file: str) -> dict[str, Table]:
    """Reads the tables of CREATE TABLE statements, by ``schema.table``; other statements are ignored.

    Raises:
        CertifyConfigError: DuckDB refuses a statement.
    """
    with connect() as connection:
        try:
            for schema, statement in _create_statements(ddl):
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                connection.execute(statement)
            columns = connection.execute(
                "SELECT schema_name || '.' || table_name, column_name FROM duckdb_columns() "
                "WHERE NOT internal ORDER BY table_oid, column_index"
            ).fetchall()
            keys = dict(
                connection.execute(
                    "SELECT schema_name || '.' || table_name, constraint_column_names "
                    "FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY'"
                ).fetchall()
            )
            names = list(dict.fromkeys(name for name, _ in columns))
            types = {name: _types(connection, name) for name in names}
        except duckdb.Error as error:
            raise CertifyConfigError(f"{file}: DuckDB refuses the tables: {error}") from error
    if not names:
        raise CertifyConfigError(f"{file}: no CREATE TABLE statement in it")
    return {name: Table(name, types[name], tuple(keys.get(name, ()))) for name in names}


def connect() -> duckdb.DuckDBPyConnection:
    """Opens a database in memory, in UTC, for SQL that somebody else wrote.

    It reads and writes no file but its own temporary ones, attaches nothing, loads no extension, sees none of
    this program's variables, and cannot be told otherwise.
    """
    connection = duckdb.connect(
        config={
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


def quoted(name: str) -> str:
    """Quotes a name, or ``schema.table``, as SQL identifiers."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def _types(connection: duckdb.DuckDBPyConnection, name: str) -> tuple[tuple[str, DuckDBPyType], ...]:
    relation = connection.sql(f"SELECT * FROM {quoted(name)}")  # noqa: S608 - quoted names, and the user's own SQL
    return tuple(zip(relation.columns, relation.types, strict=True))


def _create_statements(ddl: str) -> Iterator[tuple[str, str]]:
    bare = _COMMENTS_AND_TEXTS.sub(lambda match: match.group(1) or " ", ddl)
    for statement in _STATEMENTS.findall(bare):
        found = _CREATE_TABLE.match(statement)
        if found:
            for pattern, replacement in _FOREIGN:
                statement = pattern.sub(replacement, statement)
            yield found.group(1) or "main", statement
