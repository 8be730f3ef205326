"""Makes the view's own SQL ready for DuckDB.

Two things are changed. The word TRANSACTIONALLY goes. And where the view groups by a table's primary key, as
PostgreSQL allows, the table's other columns are added to GROUP BY, since DuckDB does not know that they
depend on the key; that cannot change the result.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from slackwater_certify.canonical import Column, DocumentReader, shape_of
from slackwater_certify.errors import CertifyConfigError, wrong_key
from slackwater_certify.specification import Specification
from slackwater_certify.tables import Table, connect, quoted, read_tables

_MARKER = re.compile(r"\bTRANSACTIONALLY\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class View:
    """Holds a view with what it reads."""

    sql: str
    tables: Mapping[str, Table]
    """Declared tables that it reads."""
    reader: DocumentReader
    """Reads its documents."""


def load_view(specification: Specification) -> View:
    """Reads the files a specification names, and has DuckDB check them.

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
            tables = {name: declared[name] for name in _tables_read(tree) if name in declared}
            _complete_groups(tree, declared)
            sql = connection.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)]).fetchall()[
                0
            ][0]
            relation = connection.sql(sql)
        except duckdb.Error as error:
            raise CertifyConfigError(f"{file}: DuckDB refuses the view: {error}") from error
        columns = list(zip(relation.columns, relation.types, strict=True))
    unordered = specification.view.unordered
    reader = _reader(
        specification, [Column(n, t, shape_of(t, is_unordered=n in unordered)) for n, t in columns]
    )
    _check_keys(tables, str(schema))
    return View(sql, tables, reader)


def _create_empty(connection: duckdb.DuckDBPyConnection, table: Table) -> None:
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(table.name.rpartition('.')[0])}")
    columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in table.columns)
    connection.execute(f"CREATE TABLE {quoted(table.name)} ({columns})")


def _parse(connection: duckdb.DuckDBPyConnection, text: str, file: str) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(
        connection.execute("SELECT json_serialize_sql(?)", [text]).fetchall()[0][0]
    )
    if tree.get("error"):
        raise CertifyConfigError(f"{file}: expected one SELECT: {tree.get('error_message')}")
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(child)


def _tables_read(tree: Any) -> list[str]:
    return [_table_name(node) for node in _nodes(tree) if node.get("type") == "BASE_TABLE"]


def _table_name(node: Mapping[str, Any]) -> str:
    return f"{node['schema_name'] or 'main'}.{node['table_name']}"


def _complete_groups(tree: Any, tables: Mapping[str, Table]) -> None:
    for select in _nodes(tree):
        groups = select.get("group_expressions")
        if not groups or len(select["group_sets"]) != 1:
            continue
        sources = [node for node in _nodes(select["from_table"]) if node.get("type") == "BASE_TABLE"]
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
            problem = f"table {table.name} has no primary key, so its changes cannot be told apart"
            raise CertifyConfigError(f"{file}: {problem}")
