"""Declared tables, given in any of the forms a user has them in."""

import re
from pathlib import Path

from slackwater_spark.api.errors import UndeclaredTableError
from slackwater_sql.catalog import Catalog, Table
from slackwater_sql.postgres import parse_catalog

Schema = str | Path | Catalog
"""CREATE TABLE text, the path of a file with such text or of a folder of ``*.sql`` files, or a catalog."""

_DDL = re.compile(r"\bcreate\s+(table|type|domain)\b", re.IGNORECASE)


def declared_tables(schema: Schema) -> Catalog:
    """The tables that a schema declares.

    Args:
        schema: Text that holds CREATE TABLE is read as such; any other text is a path.

    Raises:
        SqlTextError: the text cannot be read; with its place.
        FileNotFoundError: there is no such file, or the folder has no ``*.sql`` file.
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


def declared_table(catalog: Catalog | None, name: str) -> Table:
    """The table of this full name.

    Raises:
        UndeclaredTableError: nobody declared it.
    """
    if catalog is None:
        raise UndeclaredTableError(name, "is not declared", ())
    for table in catalog.tables:
        if table.full_name == name:
            return table
    raise UndeclaredTableError(name, "is not declared", tuple(t.full_name for t in catalog.tables))
