"""A statement that is planned once and run often over different rows, and the search for what it fails on."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.sql.errors import EvaluationError
from slackwater.sql.limits import DEFAULT_LIMITS, StatementLimits, bounded
from slackwater.sql.plan import FROM_LSN, GROUP, LSN, POINT, POINTS_TABLE
from slackwater.sql.session import open_connection

ResultRows = Sequence[tuple[Any, ...]]
"""The rows of a statement; for their columns see :mod:`slackwater.sql.plan`."""

KeyName = Callable[[int], str]
"""Returns the key of this number in readable form; called for errors only."""

Tables = Mapping[str, pa.Table]

_SHOWN_CHARACTERS: Final = 300


class StatementEvaluator:
    """Runs one statement over tables that are passed to it. Keeps a DuckDB connection; for one thread.

    DuckDB takes 2 ms to plan a view, which is more than it takes to evaluate hundreds of rows. Registering a
    table again makes DuckDB plan again. So each table is registered once, as a slot that returns its current
    rows on every scan.
    """

    def __init__(
        self,
        statement: str,
        tables: Mapping[str, pa.Schema],
        *,
        name: str,
        inputs: Mapping[str, str],
        limits: StatementLimits = DEFAULT_LIMITS,
    ) -> None:
        """Creates an evaluator; DuckDB plans the statement when it is first used.

        Args:
            statement: DuckDB SQL over `tables`.
            tables: The tables' columns, by name.
            name: What is computed, for errors.
            inputs: The names of the tables with rows, in errors.
            limits: What one call, or planning, may use.
        """
        self._statement = statement
        self._slots = {table: _Slot(schema.empty_table()) for table, schema in tables.items()}
        self._name = name
        self._inputs = dict(inputs)
        self._limits = limits
        self._connection: duckdb.DuckDBPyConnection | None = None

    def close(self) -> None:
        """Releases the connection's memory. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def rows(self, tables: Tables, key_name: KeyName, lsns: Sequence[int] | None = None) -> ResultRows:
        """Returns the statement's rows over these tables.

        Args:
            tables: All tables; keys are numbered by their column `GROUP`, or else by `POINT`.
            key_name: Returns the key with a number.
            lsns: For each key the commit LSN of its newest change, if the tables do not contain it.

        Raises:
            EvaluationError: The SQL failed on some row, or exceeded a limit; names the key, row and commit.
        """
        try:
            return self._run(tables)
        except (duckdb.Error, MemoryError) as error:
            raise self._explained(tables, key_name, error, lsns) from error

    def _run(self, tables: Tables) -> ResultRows:
        connection = self._connection or self._planned()
        for name, slot in self._slots.items():
            slot.table = tables[name]
        try:
            with bounded(connection, self._limits, self._name):
                return connection.execute("EXECUTE query").fetchall()
        finally:
            for slot in self._slots.values():
                slot.table = slot.table.slice(0, 0)

    def _planned(self) -> duckdb.DuckDBPyConnection:
        connection = open_connection(self._limits)
        if "FULL JOIN" in self._statement:
            # Else DuckDB 2.0.0 may let count(x) FILTER (WHERE y IS NULL) count NULLs.
            connection.execute("SET disabled_optimizers = 'filter_pushdown'")
        for name, slot in self._slots.items():
            connection.register(name, slot)
        with bounded(connection, self._limits, self._name):
            connection.execute(f"PREPARE query AS {self._statement}")
        self._connection = connection
        return connection

    def _explained(
        self, tables: Tables, key_name: KeyName, error: Exception, lsns: Sequence[int] | None
    ) -> EvaluationError:
        """Returns the error with the key, the rows and the commit that it belongs to."""
        limit = self._limits.problem(error)
        if isinstance(error, duckdb.InterruptException):
            return EvaluationError(self._name, "", limit or "", is_limit=True)
        found = self._smallest_failure(tables, {} if limit else self._inputs, error)
        problem = self._limits.problem(found.error)
        lsn = found.commit_lsn
        if lsns is not None and found.key is not None:
            lsn = lsns[found.key]
        return EvaluationError(
            self._name,
            "" if found.key is None else key_name(found.key),
            problem or str(found.error).splitlines()[0].rstrip("."),
            rows=tuple(found.rows),
            commit_lsn=lsn,
            is_limit=problem is not None,
        )

    def _smallest_failure(self, tables: Tables, inputs: Mapping[str, str], error: Exception) -> "_Failure":
        """Evaluates ever smaller parts: halves the keys, and then the rows of the failing key.

        The search ends with what it has found after as much CPU time as the statement itself may use.
        """
        until = time.process_time() + self._limits.cpu_seconds
        column = GROUP if any(GROUP in table.column_names for table in tables.values()) else POINT
        found = _Failure(error)
        low, high = 0, 1 + max(_largest(table, column) for table in tables.values())
        while high - low > 1 and time.process_time() < until:
            middle = (low + high) // 2
            failure = self._failure(_with_numbers(tables, column, low, middle))
            found.error = failure or found.error
            low, high = (low, middle) if failure is not None else (middle, high)
        tables = _with_numbers(tables, column, low, high)
        failure = self._failure(tables) if high - low == 1 else None
        if failure is None:
            return found
        found.error, found.key = failure, low
        for name in inputs:
            table = tables[name]
            while table.num_rows > 1 and time.process_time() < until:
                half = table.num_rows // 2
                parts = (table.slice(0, half), table.slice(half))
                smaller = next((each for each in parts if self._fails({**tables, name: each})), None)
                if smaller is None:
                    break
                table = smaller
            tables = {**tables, name: table}
        found.commit_lsn = _commit_lsn([tables[name] for name in inputs], tables.get(POINTS_TABLE))
        found.rows = [_row_text(inputs[name], tables[name]) for name in inputs if tables[name].num_rows == 1]
        return found

    def _fails(self, tables: Tables) -> bool:
        return self._failure(tables) is not None

    def _failure(self, tables: Tables) -> Exception | None:
        """Returns the error with which the statement fails over these tables; None if it does not."""
        try:
            self._run(tables)
        except (duckdb.Error, MemoryError) as error:
            return error
        return None


class _Slot:
    """A table whose rows can be replaced; DuckDB requests a stream at each scan."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


@dataclass(slots=True)
class _Failure:
    """The smallest part of the tables that was found to fail.

    Attributes:
        error: The error with which it fails.
        key: The number of its key; None if the failure does not belong to one.
        commit_lsn: Commit LSN of the newest of its rows; 0 if the tables do not contain it.
        rows: Its rows in readable form, at most one for each input.
    """

    error: Exception
    key: int | None = None
    commit_lsn: int = 0
    rows: list[str] = field(default_factory=list)


def _commit_lsn(rows: list[pa.Table], points: pa.Table | None) -> int:
    """Returns the LSN from which the newest row is live; for accumulated values, of the newest point."""
    if points is None:
        return 0
    if all(FROM_LSN in table.column_names for table in rows):
        newest = max(_largest(table, FROM_LSN) for table in rows)
        return newest or int(pc.min(points[LSN]).as_py() or 0)
    numbers = pa.concat_arrays([chunk for table in rows for chunk in table[POINT].chunks])
    return _largest(points.filter(pc.is_in(points[POINT], value_set=numbers)), LSN)


def _row_text(name: str, table: pa.Table) -> str:
    (row,) = table.to_pylist()
    values: dict[str, Any] = {key: value for key, value in row.items() if not key.startswith("__slackwater_")}
    text = msgspec.json.encode(values).decode()
    return f"{name} {text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + '…'}"


def _with_numbers(tables: Tables, column: str, low: int, high: int) -> Tables:
    """Returns the rows whose number in the column is in `[low, high)`; other tables are complete."""
    return {
        name: table.filter(pc.and_(pc.greater_equal(table[column], low), pc.less(table[column], high)))
        if column in table.column_names
        else table
        for name, table in tables.items()
    }


def _largest(table: pa.Table, column: str) -> int:
    if column not in table.column_names or not table.num_rows:
        return 0
    return int(pc.max(table[column]).as_py())
