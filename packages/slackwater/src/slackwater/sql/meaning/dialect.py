"""The databases whose SQL views may be written in."""

from enum import StrEnum


class Dialect(StrEnum):
    """The database whose meaning expressions have."""

    DUCKDB = "duckdb"
    POSTGRES = "postgres"
