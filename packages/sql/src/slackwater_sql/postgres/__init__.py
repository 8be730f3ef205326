"""PostgreSQL's room: its types, its DDL and its catalogue. Nothing outside of it knows the dialect.

Another database is another such room: a reader of declared tables, whose :class:`ColumnType` values say how
its connector writes them, and a writer of such declarations from a live database.
"""

from slackwater_sql.postgres.catalogue import (
    PARTITIONS_APART,
    CatalogueConnection,
    find_tables,
    published_apart,
    pull_schema,
    table_statement,
)
from slackwater_sql.postgres.ddl import parse_catalog
from slackwater_sql.postgres.types import GENERATED

__all__ = [
    "GENERATED",
    "PARTITIONS_APART",
    "CatalogueConnection",
    "find_tables",
    "parse_catalog",
    "published_apart",
    "pull_schema",
    "table_statement",
]
