"""A statement that DuckDB plans once and runs often, over other rows each time."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from slackwater_sql.limits import StatementLimits, bounded
from slackwater_sql.session import open_connection


class PreparedQuery:
    """A query over tables that are handed to it. Keeps one DuckDB connection; for one thread.

    Planning a view takes DuckDB 2 ms, which is more than it takes to evaluate hundreds of rows. A table that
    is registered anew makes DuckDB plan again; so each table is registered once, as a slot that says on every
    scan which rows it has now.
    """

    def __init__(
        self, statement: str, tables: Mapping[str, pa.Table], *, limits: StatementLimits, name: str
    ) -> None:
        """A query.

        Args:
            statement: SQL that reads `tables`.
            tables: Tables by name, of the columns and types that all calls have; their rows do not matter.
            limits: Of one call, and of planning it.
            name: Of what is computed.

        Raises:
            duckdb.Error, MemoryError: The query cannot be planned within the limits.
        """
        self._limits = limits
        self._name = name
        self._connection = open_connection(limits)
        if "FULL JOIN" in statement:
            # Else DuckDB 2.0.0 may let count(x) FILTER (WHERE y IS NULL) count NULLs.
            self._connection.execute("SET disabled_optimizers = 'filter_pushdown'")
        self._slots = {name: _Slot(table) for name, table in tables.items()}
        for name, slot in self._slots.items():
            self._connection.register(name, slot)
        with bounded(self._connection, limits, name):
            self._connection.execute(f"PREPARE query AS {statement}")

    def close(self) -> None:
        """Give the connection's memory back; may be called twice."""
        self._connection.close()

    def rows(self, tables: Mapping[str, pa.Table]) -> Sequence[tuple[Any, ...]]:
        """The query's rows over these tables.

        Raises:
            duckdb.Error, MemoryError: The query failed on some row, or met a limit; it can be run again.
        """
        for name, slot in self._slots.items():
            slot.table = tables[name]
        try:
            with bounded(self._connection, self._limits, self._name):
                return self._connection.execute("EXECUTE query").fetchall()
        finally:
            for slot in self._slots.values():
                slot.table = slot.table.slice(0, 0)


class _Slot:
    """A table whose rows can be exchanged; DuckDB asks for a stream at each scan."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)
