"""Declared tables, in any of the forms that users provide."""

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from slackwater.protocol import ConfigError
from slackwater.protocol.keys import table_name
from slackwater.sql.catalog import Catalog, Table
from slackwater.sql.postgres import parse_catalog

Schema = str | Path | Catalog
"""CREATE TABLE text, the path of a file with such text or of a folder of ``*.sql`` files, or a catalog."""

_DDL = re.compile(r"\bcreate\s+(table|type|domain)\b", re.IGNORECASE)


def declared_tables(schema: Schema) -> Catalog:
    """Reads the tables that a schema declares.

    Args:
        schema: Text that contains CREATE TABLE is parsed; any other text is a path.

    Raises:
        SqlTextError: The text cannot be parsed; the error contains the position.
        FileNotFoundError: The file does not exist, or the folder has no ``*.sql`` file.
    """
    if isinstance(schema, Catalog):
        return schema
    if isinstance(schema, str) and _DDL.search(schema):
        return parse_catalog({"schema": schema})
    path = Path(schema)
    files = sorted(path.glob("*.sql")) if path.is_dir() else [path]
    if not files:
        msg = f"no *.sql file in {path}"
        raise FileNotFoundError(msg)
    return parse_catalog({str(file): file.read_text(encoding="utf-8") for file in files})


def find_table(catalog: Catalog | None, name: str, read: Collection[str]) -> Table:
    """Returns the declaration of a table.

    Args:
        catalog: The declared tables; None if there are none.
        name: The full name of the table, or with quotes, as SQL writes it.
        read: The full names of the tables that are read.

    Raises:
        ConfigError: The table is not declared, or not read.
    """
    tables = {table.full_name: table for table in catalog.tables} if catalog is not None else {}
    with suppress(ConfigError):
        name = table_name(name)
    if name not in tables:
        raise undeclared_table(name, "is not declared", tuple(tables))
    if name not in read:
        raise undeclared_table(name, "is not among the tables that are read", tuple(read))
    return tables[name]


def undeclared_table(table: str, problem: str, known: Collection[str]) -> ConfigError:
    """Returns the error for a table or a column that is not declared or not read; it lists those that are."""
    listed = f"; known tables: {', '.join(known)}" if known else ""
    return ConfigError(
        f"table {table!r} {problem}{listed}",
        "declare tables with schema=, as CREATE TABLE statements, as the path of a file with them "
        "(`slackwater schema pull` writes one), or as a Catalog",
    )
