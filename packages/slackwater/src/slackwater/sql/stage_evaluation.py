"""Evaluates the rows of stages for many keys with one call of DuckDB.

A statement is planned once and run often over different rows. If it fails, the key and the row that make it
fail are searched for.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.sql.errors import EvaluationError
from slackwater.sql.limits import DEFAULT_LIMITS, StatementLimits, bounded, open_connection
from slackwater.sql.plan import (
    FROM_LSN,
    GROUP,
    LSN,
    POINT,
    POINTS_TABLE,
    STEPS_TABLE,
    TO_LSN,
    UNKNOWN_ROWS,
    WEIGHT,
    Accumulator,
    AccumulatorKind,
    InputPlan,
    KeyColumn,
    PartialsOutput,
    RowsPart,
    rows_table,
)

ResultRows = Sequence[tuple[Any, ...]]
"""The rows of a statement; for their columns see :mod:`slackwater.sql.plan`."""

KeyName = Callable[[int], str]
"""Returns the key of this number in readable form; called for errors only."""

Tables = Mapping[str, pa.Table]

Failures = dict[int, EvaluationError]
"""What values do not fit, and why: by point or, for statements without points, by the number of the key."""

MAX_FAILURES: Final = 1000
"""The largest number of points or keys of one call that may fail; each is searched for by halving."""

_VALUE_ERRORS: Final = (duckdb.DataError, duckdb.InvalidInputException)
"""Errors of a value. All other errors, such as exceeded limits, end the evaluation."""

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
        """Creates an evaluator of DuckDB SQL over tables, which is planned when it is first used.

        Errors contain the name of what is computed and, for each table with rows, the name of the input. The
        limits are those of one call, or of planning.
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

    def rows(
        self,
        tables: Tables,
        key_name: KeyName,
        lsn_of: Callable[[int], int] | None = None,
        failures: Failures | None = None,
    ) -> ResultRows:
        """Returns the statement's rows over these tables.

        Keys are numbered by the column `GROUP`, or else by `POINT`. Errors contain the name of the key, and
        the commit LSN of its newest change if the tables do not contain it. With `failures`, the points (or
        keys) whose values do not fit have no rows, and are added to it.

        Raises:
            EvaluationError: The SQL failed on some row, or exceeded a limit; names the key, row and commit.
                With `failures`: a limit was exceeded, or more than `MAX_FAILURES` points or keys failed.
        """
        try:
            return self._run(tables)
        except (duckdb.Error, MemoryError) as error:
            if failures is None or not isinstance(error, _VALUE_ERRORS):
                raise self._explained(tables, key_name, error, lsn_of) from error
            return self._other_rows(tables, key_name, lsn_of, failures)

    def _other_rows(
        self, tables: Tables, key_name: KeyName, lsn_of: Callable[[int], int] | None, failures: Failures
    ) -> ResultRows:
        """Returns the rows of the points or keys that can be evaluated, found by halving."""
        column = POINT if POINTS_TABLE in tables else GROUP
        rows: list[tuple[Any, ...]] = []
        failing = [(0, 1 + max(_largest(table, column) for table in tables.values()))]
        while failing:
            low, high = failing.pop()
            middle = (low + high) // 2
            for start, end in ((low, middle), (middle, high)) if high - low > 1 else ((low, high),):
                part = _part(tables, column, start, end)
                try:
                    rows += self._run(part)
                except (duckdb.Error, MemoryError) as error:
                    if not isinstance(error, _VALUE_ERRORS):
                        raise self._explained(part, key_name, error, lsn_of) from error
                    if end - start > 1:
                        failing.append((start, end))
                        continue
                    failures[start] = found = self._explained(part, key_name, error, lsn_of)
                    if len(failures) > MAX_FAILURES:
                        raise _too_many(found) from error
        return rows

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
        self, tables: Tables, key_name: KeyName, error: Exception, lsn_of: Callable[[int], int] | None
    ) -> EvaluationError:
        """Returns the error with the key, the rows and the commit that it belongs to."""
        limit = self._limits.problem(error)
        if isinstance(error, duckdb.InterruptException):
            return EvaluationError(self._name, "", limit or "", is_limit=True)
        found = self._smallest_failure(tables, {} if limit else self._inputs, error)
        problem = self._limits.problem(found.error)
        lsn = found.commit_lsn if lsn_of is None or found.key is None else lsn_of(found.key)
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
        high = 1 + max(_largest(table, column) for table in tables.values())
        low = min(high - 1, *(_smallest(table, column) for table in tables.values()))
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
                smaller = next((each for each in parts if self._failure({**tables, name: each})), None)
                if smaller is None:
                    break
                table = smaller
            tables = {**tables, name: table}
        found.commit_lsn = _commit_lsn([tables[name] for name in inputs], tables.get(POINTS_TABLE))
        found.rows = [
            text
            for name in inputs
            if tables[name].num_rows <= 2
            for text in _row_texts(inputs[name], tables[name])
        ]
        return found

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
        key: The number of its key; None if the failure does not belong to one.
        commit_lsn: Commit LSN of the newest of its rows; 0 if the tables do not contain it.
        rows: Its rows in readable form, at most two for each input.
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


def _row_texts(name: str, table: pa.Table) -> Iterator[str]:
    for row in table.to_pylist():
        values: dict[str, Any] = {
            key: each for key, each in row.items() if not key.startswith("__slackwater_")
        }
        text = msgspec.json.encode(values).decode()
        yield f"{name} {text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + '…'}"


def _with_numbers(tables: Tables, column: str, low: int, high: int) -> Tables:
    """Returns the rows whose number in the column is in `[low, high)`; other tables are complete."""
    return {
        name: table.filter(pc.and_(pc.greater_equal(table[column], low), pc.less(table[column], high)))
        if column in table.column_names
        else table
        for name, table in tables.items()
    }


def _part(tables: Tables, column: str, low: int, high: int) -> Tables:
    """Returns the rows of the points or keys in `[low, high)`; for one point, exactly its live rows."""
    if column == GROUP:
        return _with_numbers(tables, GROUP, low, high)
    found = dict(_with_numbers(tables, POINT, low, high))
    points = found[POINTS_TABLE]
    groups, lsns = pc.min_max(points[GROUP]).as_py(), pc.min_max(points[LSN]).as_py()
    is_one = groups["min"] == groups["max"]
    for name, table in found.items():
        if FROM_LSN in table.column_names and points.num_rows:
            of_groups = _with_numbers({name: table}, GROUP, groups["min"], groups["max"] + 1)[name]
            live = pc.and_(
                pc.less_equal(of_groups[FROM_LSN], lsns["max"]), pc.greater(of_groups[TO_LSN], lsns["min"])
            )
            found[name] = of_groups.filter(live) if is_one else of_groups
    return found


def _too_many(error: EvaluationError) -> EvaluationError:
    problem = f"{error.problem}, and {MAX_FAILURES:,} others fail, too, which are too many to withhold"
    return EvaluationError(error.view, error.key, problem, error.rows, error.commit_lsn)


def _smallest(table: pa.Table, column: str) -> int:
    if column not in table.column_names or not table.num_rows:
        return 2**31
    return int(pc.min(table[column]).as_py())


def _largest(table: pa.Table, column: str) -> int:
    if column not in table.column_names or not table.num_rows:
        return 0
    return int(pc.max(table[column]).as_py())


OPEN_LSN: Final = 2**63 - 1
"""`to_lsn` of a row version that is still live."""

POINTS_SCHEMA: Final = pa.schema([(POINT, pa.int32()), (GROUP, pa.int32()), (LSN, pa.int64())])
STEPS_SCHEMA: Final = pa.schema([(POINT, pa.int32()), (LSN, pa.int64()), (WEIGHT, pa.int32())])


def accumulators_schema(key: Sequence[KeyColumn], accumulators: Sequence[Accumulator]) -> pa.Schema:
    """Returns the columns of ``ACCUMULATORS_TABLE``, as :class:`AccumulatorKind` describes them."""
    fields = [(POINT, pa.int32()), (GROUP, pa.int32())]
    fields += [(f"k{number}", column.type.arrow) for number, column in enumerate(key)]
    fields.append(("n", pa.int64()))
    for number, accumulator in enumerate(accumulators):
        match accumulator.kind:
            case AccumulatorKind.COUNT | AccumulatorKind.DISTINCT:
                fields.append((f"a{number}", pa.int64()))
            case AccumulatorKind.SUM:
                fields += [(f"a{number}_n", pa.int64()), (f"a{number}", pa.string())]
            case AccumulatorKind.MIN | AccumulatorKind.MAX:
                fields.append((f"a{number}", pa.string()))
            case AccumulatorKind.QUANTILE:
                fields += [(f"a{number}_lo", pa.string()), (f"a{number}_hi", pa.string())]
            case AccumulatorKind.TOP:
                fields.append((f"a{number}", pa.int64()))
                fields += [(f"a{number}_{j}", of.arrow) for j, of in enumerate(accumulator.columns)]
    return pa.schema(fields)


@dataclass(slots=True)
class ResultPoints:
    """The points at which results are wanted. Points of one key are adjacent, ascending by LSN.

    The first point of a key is the result before the batch, and only serves to compare later points with it.

    Attributes:
        groups: For each point, the number of its key.
        lsns: For each point, its commit LSN.
        fresh: The numbers of keys that had no result before, so that already their first point is a change.
        failures: The points that cannot be evaluated, as the evaluation adds them; None if it ends with the
            first one.
    """

    groups: list[int] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)
    fresh: set[int] = field(default_factory=set)
    failures: Failures | None = None

    def __len__(self) -> int:
        return len(self.lsns)

    def news(self) -> Iterator[tuple[int, int, int]]:
        """Yields ``(point, previous point or -1, commit LSN)`` for each point that is to be emitted."""
        last = None
        for number, (group, lsn) in enumerate(zip(self.groups, self.lsns, strict=True)):
            if group == last:
                yield number, number - 1, lsn
            elif group in self.fresh:
                yield number, -1, lsn
            last = group

    def steps(self) -> tuple[list[int], list[int], list[int]]:
        """Returns the columns of ``STEPS_TABLE``.

        Each point adds its result at its own LSN, and subtracts that of the previous point.
        """
        steps = [
            (point, lsn, weight)
            for number, before, lsn in self.news()
            for point, weight in ((number, 1), (before, -1))
            if point >= 0
        ]
        return (
            [point for point, _, _ in steps],
            [lsn for _, lsn, _ in steps],
            [weight for *_, weight in steps],
        )

    def tables(self, *, has_steps: bool) -> dict[str, pa.Table]:
        """Returns the rows of ``POINTS_TABLE``, and those of ``STEPS_TABLE`` if the results are partials."""
        columns = [range(len(self.lsns)), self.groups, self.lsns]
        tables = {POINTS_TABLE: _table(POINTS_SCHEMA, columns, POINTS_TABLE)}
        if has_steps:
            tables[STEPS_TABLE] = _table(STEPS_SCHEMA, self.steps(), STEPS_TABLE)
        return tables


@dataclass(frozen=True, slots=True)
class RowVersions:
    """Rows of one input, column by column.

    Attributes:
        groups: The number of its key, for each row.
        columns: The wire values of `InputPlan.columns`, one sequence per column.
        from_lsn: The commit LSN from which it is live, for each row; None if all rows are live at all points.
        to_lsn: The commit LSN from which it is no longer live, for each row (`OPEN_LSN`: still live).
    """

    groups: Sequence[int]
    columns: Sequence[Sequence[Any]]
    from_lsn: Sequence[int] | None = None
    to_lsn: Sequence[int] | None = None


class RowsEvaluator:
    """Evaluates the rows part of a stage. An instance must be used by one thread only.

    Statements are pure: their result depends on the rows, not on the order of the rows.
    """

    def __init__(
        self,
        part: RowsPart,
        key: Sequence[KeyColumn],
        *,
        name: str,
        limits: StatementLimits = DEFAULT_LIMITS,
    ) -> None:
        self._key_names = [column.name for column in key]
        self._inputs = part.inputs
        self._has_steps = isinstance(part.output, PartialsOutput)
        lifted = {rows_table(n): rows_schema(plan, is_lifted=True) for n, plan in enumerate(part.inputs)}
        lifted[POINTS_TABLE] = POINTS_SCHEMA
        if self._has_steps:
            lifted[STEPS_TABLE] = STEPS_SCHEMA
        named = {rows_table(number): _called(plan) for number, plan in enumerate(part.inputs)}
        self._lifted = StatementEvaluator(part.statement, lifted, name=name, inputs=named, limits=limits)
        self._of_groups: StatementEvaluator | None = None
        if isinstance(part.output, PartialsOutput):
            statement = part.output.of_groups
            self._of_groups = StatementEvaluator(statement, lifted, name=name, inputs=named, limits=limits)
        self._latest: StatementEvaluator | None = None
        if part.latest_statement is not None:
            live = {rows_table(n): rows_schema(plan, is_lifted=False) for n, plan in enumerate(part.inputs)}
            self._latest = StatementEvaluator(
                part.latest_statement, live, name=name, inputs=named, limits=limits
            )

    def close(self) -> None:
        """Releases the connections' memory. Idempotent."""
        for each in (self._lifted, self._of_groups, self._latest):
            if each is not None:
                each.close()

    def at_points(
        self, versions: Sequence[RowVersions], points: ResultPoints, keys: Sequence[bytes]
    ) -> ResultRows:
        """Returns the result of the part's statement at points.

        The versions are, for each input, the rows that are live at some point. Keys are msgpack arrays of
        wire values.

        Raises:
            EvaluationError: The SQL failed on some row; names the key.
            ValueError: Values do not fit the inputs' columns.
        """
        tables = self._tables(versions, is_lifted=True)
        tables |= points.tables(has_steps=self._has_steps)
        rows = list(self._lifted.rows(tables, self._namer(keys), failures=points.failures))
        if self._of_groups is not None:
            for point in points.failures or ():
                part = _part(tables, POINT, point, point + 1)
                try:
                    found = self._of_groups.rows(part, self._namer(keys))
                except EvaluationError as error:
                    raise error.not_withheld("the groups of its rows are not known") from error
                rows += [(lsn, UNKNOWN_ROWS, row) for lsn, _, row in found]
        return rows

    def latest(
        self,
        rows: Sequence[RowVersions],
        keys: Sequence[bytes],
        lsn_of: Callable[[int], int],
        failures: Failures | None = None,
    ) -> ResultRows:
        """Returns the result of `latest_statement`, over rows that are all live.

        Keys are msgpack arrays of wire values. The commit LSNs of their newest changes are used for errors
        only.

        Raises:
            EvaluationError: The SQL failed on some row; names the key.
            ValueError: Values do not fit the inputs' columns, or there is no such statement.
        """
        if self._latest is None:
            msg = "this part has no statement for live rows"
            raise ValueError(msg)
        return self._latest.rows(self._tables(rows, is_lifted=False), self._namer(keys), lsn_of, failures)

    def _namer(self, keys: Sequence[bytes]) -> KeyName:
        names = self._key_names
        return lambda number: key_text(names, keys[number])

    def _tables(self, versions: Sequence[RowVersions], *, is_lifted: bool) -> dict[str, pa.Table]:
        tables = {}
        for number, (plan, rows) in enumerate(zip(self._inputs, versions, strict=True)):
            values: list[Sequence[Any]] = [rows.groups, *rows.columns]
            if is_lifted:
                values += [rows.from_lsn or [], rows.to_lsn or []]
            schema = rows_schema(plan, is_lifted=is_lifted)
            tables[rows_table(number)] = _table(schema, values, plan.alias)
        return tables


def _called(plan: InputPlan) -> str:
    name = plan.table.full_name.lstrip(".")  # rows of a stage have no schema
    return name if plan.alias in {name, plan.table.name} else f"{name} {plan.alias}"


def key_text(names: Sequence[str], key: bytes) -> str:
    """Returns a packed key in readable form: a JSON object."""
    return msgspec.json.encode(dict(zip(names, msgspec.msgpack.decode(key), strict=True))).decode()


def rows_schema(plan: InputPlan, *, is_lifted: bool) -> pa.Schema:
    """Returns the columns of an input's table: key number, wire values, and the LSNs of a live row."""
    fields = [(GROUP, pa.int32()), *((column.name, column.type.arrow) for column in plan.columns)]
    return pa.schema([*fields, (FROM_LSN, pa.int64()), (TO_LSN, pa.int64())] if is_lifted else fields)


def _table(schema: pa.Schema, columns: Sequence[Sequence[Any]], what: str) -> pa.Table:
    if len(columns) != len(schema):
        msg = f"{what}: expected columns {schema.names}, got {len(columns)}"
        raise ValueError(msg)
    arrays = []
    for column, values in zip(schema, columns, strict=True):
        try:
            arrays.append(pa.array(values, column.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            msg = f"{what}.{column.name}: values do not fit the transport type {column.type}: {error}"
            raise ValueError(msg) from error
    return pa.Table.from_arrays(arrays, schema=schema)
