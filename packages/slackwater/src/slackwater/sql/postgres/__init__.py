"""PostgreSQL's types, DDL and catalogue. No code outside this package knows the dialect.

Support for another database is another such package: a parser of declared tables, whose :class:`ColumnType`
values say how its connector writes them, and a function that writes such declarations from a live database.
"""

from slackwater.sql.postgres.catalogue import (
    MISSING_PARTITION_ROOT,
    find_tables,
    published_by_partition,
    pull_schema,
    table_statement,
)
from slackwater.sql.postgres.ddl import join_ddl, parse_catalog
from slackwater.sql.postgres.types import GENERATED

__all__ = [
    "GENERATED",
    "MISSING_PARTITION_ROOT",
    "find_tables",
    "join_ddl",
    "parse_catalog",
    "published_by_partition",
    "pull_schema",
    "table_statement",
]
