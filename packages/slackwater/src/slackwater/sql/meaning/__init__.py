"""What SQL means: a view written for PostgreSQL becomes DuckDB's SQL with the same meaning."""

from slackwater.sql.meaning.dialect import Dialect
from slackwater.sql.meaning.translation import in_duckdb

__all__ = ["Dialect", "in_duckdb"]
