"""Reads the declared tables, and prepares the view's SQL for DuckDB.

Two changes are made to the view. The word TRANSACTIONALLY is removed. And where the view groups by the
primary key of a table, as PostgreSQL allows, the other columns of the table are added to GROUP BY, because
DuckDB does not know that they depend on the key. This cannot change the result.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
from duckdb.sqltypes import DuckDBPyType

from slackwater_certify.canonical import Canonical, Column, DocumentKey, DocumentReader, shape_of
from slackwater_certify.errors import CertifyConfigError, keyless_identity, wrong_key
from slackwater_certify.specification import Specification

_MARKER = re.compile(r"\bTRANSACTIONALLY\b", re.IGNORECASE)
_COMMENTS_AND_TEXTS = re.compile(r"--[^\n]*|/\*.*?\*/|('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")", re.DOTALL)
_STATEMENTS = re.compile(r"(?:[^;'\"]|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")+")
_CREATE_TABLE = re.compile(
    r"\s*CREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(?:(\"[^\"]+\"|\w+)\s*\.)?", re.IGNORECASE
)
_SAME_COLUMN = re.compile("Catalog Error: Column with name .* already exists!", re.DOTALL)
"""DuckDB's error for two columns that it considers equal; PostgreSQL refuses equal names itself."""
_NAMES = "SELECT schema_name || '.' || table_name FROM duckdb_tables() WHERE NOT internal ORDER BY table_oid"
_KEYS = """
SELECT schema_name || '.' || table_name, constraint_column_names FROM duckdb_constraints()
WHERE constraint_type = 'PRIMARY KEY'
"""
_TABLE = re.compile(r"\"(?:[^\"]|\"\")*\"|\w+")
_IDENTITY = re.compile(
    rf"\s*ALTER\s+TABLE\s+(?:IF\s+EXISTS\s+)?(?:ONLY\s+)?(?:({_TABLE.pattern})\s*\.\s*)?({_TABLE.pattern})\s+"
    rf"REPLICA\s+IDENTITY\s+(?:USING\s+INDEX\s+({_TABLE.pattern})|\w+)",
    re.IGNORECASE,
)
_FOREIGN = (
    (
        re.compile(r"\bGENERATED\s+(?:ALWAYS|BY\s+DEFAULT)\s+AS\s+IDENTITY(?:\s*\([^)]*\))?", re.IGNORECASE),
        "",
    ),
    (
        re.compile(r"\b(?:NOT\s+)?DEFERRABLE\b(?:\s+INITIALLY\s+(?:DEFERRED|IMMEDIATE)\b)?", re.IGNORECASE),
        "",
    ),
    (re.compile(r"\bbigserial\b", re.IGNORECASE), "bigint"),
    (re.compile(r"\bserial\b", re.IGNORECASE), "int"),
    (re.compile(r"\bjsonb\b", re.IGNORECASE), "json"),
)
"""Words in CREATE TABLE that PostgreSQL accepts and DuckDB does not, and that do not affect values."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the source."""

    name: str
    """``schema.table``."""
    columns: tuple[tuple[str, DuckDBPyType], ...]
    primary_key: tuple[str, ...]
    identity_index: str = ""
    """The index that identifies old rows instead of the primary key; empty if there is none."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The schema and the name of the table."""
        return tuple(self.name.split(".", 1))


def read_tables(ddl: str, file: str) -> dict[str, Table]:
    """Returns the tables of CREATE TABLE statements by ``schema.table``; other statements are ignored.

    Raises:
        CertifyConfigError: DuckDB refuses a statement, or cannot distinguish two tables, or two columns of a
            table, whose names differ only in upper and lower case.
    """
    written: dict[str, str] = {}
    with connect() as connection:
        try:
            for schema, table, statement in _create_statements(ddl):
                name = f"{_meant(schema)}.{_meant(table)}"
                other = written.setdefault(name.lower(), name)
                if other != name:
                    problem = f"{file}: {other} and {name} differ only in upper and lower case"
                    hint = "DuckDB cannot distinguish them: certify with a schema of only this view's tables"
                    raise CertifyConfigError(problem, hint)
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                connection.execute(statement)
            keys = dict(connection.execute(_KEYS).fetchall())
            types = {name: _types(connection, name) for (name,) in connection.execute(_NAMES).fetchall()}
        except duckdb.Error as error:
            if isinstance(error, duckdb.CatalogException) and _SAME_COLUMN.match(str(error)):
                problem = f"{file}: table {name} has columns whose names differ only in upper and lower case"
                raise CertifyConfigError(problem, "DuckDB cannot distinguish them: rename one") from error
            raise CertifyConfigError(f"{file}: DuckDB refuses the tables: {error}") from error
    if not types:
        raise CertifyConfigError(f"{file}: it contains no CREATE TABLE statement")
    indexes = _identity_indexes(ddl)
    return {
        name: Table(name, columns, tuple(keys.get(name, ())), indexes.get(name.lower(), ""))
        for name, columns in types.items()
    }


def connect(sql: str = "") -> duckdb.DuckDBPyConnection:
    """Opens a database in memory, in UTC, for SQL that is not trusted.

    It reads and writes only its own temporary files, attaches no database, loads no extension, has no access
    to this program's variables, and cannot be reconfigured.

    Optimizations that may evaluate ``sql``, in DuckDB's notation, incorrectly are disabled.
    """
    connection = duckdb.connect(
        config={
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    connection.execute("SET TimeZone = 'UTC'")
    # Otherwise, DuckDB 2.0.0 may confuse the columns of a join that two branches of a UNION share, and count
    # NULLs in count(x) FILTER (WHERE y IS NULL) over a FULL JOIN.
    wrong = "common_subplan,filter_pushdown" if "FULL JOIN" in sql else "common_subplan"
    connection.execute(f"SET disabled_optimizers = '{wrong}'")
    connection.execute("SET lock_configuration = true")
    return connection


def quoted(*parts: str) -> str:
    """Returns a name, or the parts of one, in SQL's quotes."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def _types(connection: duckdb.DuckDBPyConnection, name: str) -> tuple[tuple[str, DuckDBPyType], ...]:
    relation = connection.sql(f"SELECT * FROM {quoted(*name.split('.', 1))}")  # noqa: S608 - quoted names, and the user's own SQL
    return tuple(zip(relation.columns, relation.types, strict=True))


def _meant(name: str) -> str:
    """Returns the name to which PostgreSQL resolves a written one."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def _create_statements(ddl: str) -> Iterator[tuple[str, str, str]]:
    """Yields schema and table as written, and the statement in a form that DuckDB accepts."""
    for statement in _STATEMENTS.findall(_bare(ddl)):
        found = _CREATE_TABLE.match(statement)
        if found:
            for pattern, replacement in _FOREIGN:
                statement = pattern.sub(replacement, statement)
            table = _TABLE.match(statement, found.end())
            yield found.group(1) or "main", "" if table is None else table[0], statement


def _identity_indexes(ddl: str) -> dict[str, str]:
    """Returns by table the index of REPLICA IDENTITY USING INDEX; empty if it is the primary key's."""
    found = {}
    for statement in _STATEMENTS.findall(_bare(ddl)):
        if match := _IDENTITY.match(statement):
            schema, table, index = (_meant(part or "") for part in match.groups())
            found[f"{schema or 'main'}.{table}".lower()] = "" if index == f"{table}_pkey" else index
    return found


def _bare(ddl: str) -> str:
    return _COMMENTS_AND_TEXTS.sub(lambda match: match.group(1) or " ", ddl)


Values = tuple[object, ...]
"""A row in the order of the table's columns, with the values that Debezium wrote."""
RowKey = Callable[[Values], DocumentKey | None]
"""Returns the key of the document that a row belongs to; None: it belongs to none."""


@dataclass(frozen=True, slots=True)
class View:
    """A view and what it reads."""

    sql: str
    tables: Mapping[str, Table]
    """The declared tables that it reads."""
    reader: DocumentReader
    """The reader of its documents."""
    withholds: bool = False
    """Whether a document that it cannot be evaluated for is withheld."""


def load_view(specification: Specification) -> View:
    """Reads the files that a specification names, and lets DuckDB check them.

    Raises:
        CertifyConfigError: the tables or the view cannot be used, or a column that the specification names
            does not exist.
    """
    schema, file = specification.source.schema, str(specification.view.sql)
    declared = read_tables(schema.read_text(encoding="utf-8"), str(schema))
    text = _MARKER.sub("", specification.view.sql.read_text(encoding="utf-8")).strip().rstrip(";")
    with connect() as connection:
        for table in declared.values():
            _create_empty(connection, table)
        try:
            tree = _parse(connection, text, file)
            read = map(_table_name, _base_tables(tree))
            tables = {name: declared[name] for name in read if name in declared}
            _complete_groups(tree, declared)
            sql = _answer(connection, "SELECT json_deserialize_sql(?::JSON)", json.dumps(tree))
            relation = connection.sql(sql)
        except duckdb.Error as error:
            raise CertifyConfigError(f"{file}: DuckDB refuses the view: {error}") from error
        columns = list(zip(relation.columns, relation.types, strict=True))
    unordered = specification.view.unordered
    reader = _reader(
        specification, [Column(n, t, shape_of(t, is_unordered=n in unordered)) for n, t in columns]
    )
    _check_keys(tables, str(schema))
    return View(sql, tables, reader, specification.view.quarantine)


def _create_empty(connection: duckdb.DuckDBPyConnection, table: Table) -> None:
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(table.parts[0])}")
    columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in table.columns)
    connection.execute(f"CREATE TABLE {quoted(*table.parts)} ({columns})")


def _parse(connection: duckdb.DuckDBPyConnection, text: str, file: str) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(_answer(connection, "SELECT json_serialize_sql(?)", text))
    if tree.get("error"):
        raise CertifyConfigError(f"{file}: expected one SELECT: {tree.get('error_message')}")
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(child)


def _answer(connection: duckdb.DuckDBPyConnection, query: str, text: str) -> str:
    ((found,),) = connection.execute(query, [text]).fetchall()
    return str(found)


def _base_tables(tree: Any) -> list[dict[str, Any]]:
    return [node for node in _nodes(tree) if node.get("type") == "BASE_TABLE"]


def _table_name(node: Mapping[str, Any]) -> str:
    return f"{node['schema_name'] or 'main'}.{node['table_name']}"


def _complete_groups(tree: Any, tables: Mapping[str, Table]) -> None:
    for select in _nodes(tree):
        groups = select.get("group_expressions")
        if not groups or len(select["group_sets"]) != 1:
            continue
        sources = _base_tables(select["from_table"])
        for node in sources:
            table = tables.get(_table_name(node))
            if table is not None:
                _complete(groups, node["alias"] or node["table_name"], table, len(sources) == 1)
        select["group_sets"] = [list(range(len(groups)))]


def _complete(groups: list[dict[str, Any]], alias: str, table: Table, is_only: bool) -> None:
    named = {tuple(each.get("column_names", ())): each for each in groups}
    prefix: tuple[str, ...] = (alias,)
    if is_only and not any(names[:1] == prefix for names in named):
        prefix = ()
    if not table.primary_key or not all((*prefix, column) in named for column in table.primary_key):
        return
    model = named[(*prefix, table.primary_key[0])]
    for column, _ in table.columns:
        if (*prefix, column) not in named:
            groups.append({**model, "column_names": [*prefix, column]})


def _reader(specification: Specification, columns: Sequence[Column]) -> DocumentReader:
    names = [column.name for column in columns]
    view = specification.view
    for key, wanted in (("view.key", view.key), ("view.unordered", sorted(view.unordered))):
        for name in wanted:
            if name not in names:
                problem = f"the view has no column {name}; it has {', '.join(names)}"
                raise wrong_key(str(specification.file), key, problem)
    return DocumentReader(columns, view.key)


def _check_keys(tables: Mapping[str, Table], file: str) -> None:
    for table in tables.values():
        if not table.primary_key:
            problem = f"table {table.name} has no primary key, so its rows cannot be distinguished"
            raise CertifyConfigError(f"{file}: {problem}")
        if table.identity_index:
            raise keyless_identity(f"{table.name} in {file}")


def row_keys(specification: Specification, view: View) -> dict[str, RowKey]:
    """Returns for each table the function that finds the document of a row.

    Raises:
        CertifyConfigError: ``[view.rows]`` lacks a table of the view, or names a column that does not exist.
    """
    named = specification.view.rows
    if not named:
        return dict.fromkeys(view.tables, _whole)
    file, found = str(specification.file), {}
    for name, table in view.tables.items():
        if name not in named:
            raise wrong_key(file, f'view.rows."{name}"', "missing, but the view reads this table")
        places = {column: position for position, (column, _) in enumerate(table.columns)}
        for column in named[name]:
            if column not in places:
                raise wrong_key(file, f'view.rows."{name}"', f"no column {column!r} in it")
        positions = [places[column] for column in named[name]]
        found[name] = _row_key(positions, [column.shape.read for column in view.reader.key])
    return found


def _whole(_values: Values) -> DocumentKey:
    return ()


def _row_key(positions: Sequence[int], reads: Sequence[Callable[[object], Canonical]]) -> RowKey:
    pairs = list(zip(positions, reads, strict=True))

    def key(values: Values) -> DocumentKey | None:
        found = tuple([None if (v := values[position]) is None else read(v) for position, read in pairs])
        return None if None in found else found

    return key
