"""Evaluating the statements of stages over many keys in one DuckDB call each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import duckdb
import msgspec
import pyarrow as pa

from slackwater_sql.errors import EvaluationError
from slackwater_sql.failing_rows import failing_rows
from slackwater_sql.limits import DEFAULT_LIMITS, StatementLimits
from slackwater_sql.plan import InputPlan, KeyColumn
from slackwater_sql.prepared import PreparedQuery
from slackwater_sql.stages import PartialsOutput, RowsPart
from slackwater_sql.statement import (
    FROM_LSN,
    GROUP,
    LSN,
    POINT,
    POINTS_TABLE,
    STEPS_TABLE,
    TO_LSN,
    WEIGHT,
    rows_table,
)

OPEN_LSN: Final = 2**63 - 1
"""`to_lsn` of a row version that is still live."""

ResultRows = Sequence[tuple[Any, ...]]
"""What a statement gives; for the columns see :mod:`slackwater_sql.stages`."""

KeyName = Callable[[int], str]
"""The key of this number as a person reads it; asked for errors only."""

POINTS_SCHEMA: Final = pa.schema([(POINT, pa.int32()), (GROUP, pa.int32()), (LSN, pa.int64())])
STEPS_SCHEMA: Final = pa.schema([(POINT, pa.int32()), (LSN, pa.int64()), (WEIGHT, pa.int32())])


class PointColumns(Protocol):
    """Where results are wanted, column by column."""

    @property
    def groups(self) -> Sequence[int]:
        """For each point the number of its key."""
        ...

    @property
    def lsns(self) -> Sequence[int]:
        """For each point its commit LSN."""
        ...


class StepColumns(Protocol):
    """What the points add and take away, column by column: see ``STEPS_TABLE``."""

    @property
    def points(self) -> Sequence[int]:
        """Numbers of points."""
        ...

    @property
    def lsns(self) -> Sequence[int]:
        """Commit LSNs."""
        ...

    @property
    def weights(self) -> Sequence[int]:
        """1 or -1."""
        ...


@dataclass(frozen=True, slots=True)
class RowVersions:
    """Rows of one input, column by column.

    Attributes:
        groups: For each row the number of its key.
        columns: The wire values of `InputPlan.columns`, one sequence per column.
        from_lsn: For each row the commit LSN from which it is live; None if all rows simply are live.
        to_lsn: For each row the commit LSN from which it no longer is (`OPEN_LSN`: still live).
    """

    groups: Sequence[int]
    columns: Sequence[Sequence[Any]]
    from_lsn: Sequence[int] | None = None
    to_lsn: Sequence[int] | None = None


class StatementEvaluator:
    """Runs one statement over tables that are handed to it. Keeps a DuckDB connection; for one thread."""

    def __init__(
        self,
        statement: str,
        tables: Mapping[str, pa.Schema],
        *,
        name: str,
        inputs: Mapping[str, str],
        limits: StatementLimits = DEFAULT_LIMITS,
    ) -> None:
        """An evaluator; DuckDB plans the statement when it is first used.

        Args:
            statement: DuckDB SQL over `tables`.
            tables: The tables' columns, by name.
            name: Of what is computed, for errors.
            inputs: What errors call the tables that hold rows.
            limits: Of one call.
        """
        self._statement = statement
        self._schemas = dict(tables)
        self._name = name
        self._inputs = dict(inputs)
        self._limits = limits
        self._query: PreparedQuery | None = None

    def close(self) -> None:
        """Give the connection's memory back; may be called twice."""
        if self._query is not None:
            self._query.close()
            self._query = None

    def rows(
        self, tables: Mapping[str, pa.Table], key_name: KeyName, lsns: Sequence[int] | None = None
    ) -> ResultRows:
        """The statement's rows over these tables.

        Args:
            tables: All tables; keys are numbered by their column `GROUP`, or else by `POINT`.
            key_name: Of the key with a number.
            lsns: For each key the commit LSN of its newest change, if the tables do not say.

        Raises:
            EvaluationError: The SQL failed on some row, or met a limit; names the key, row and commit.
        """
        try:
            return self._run(tables)
        except (duckdb.Error, MemoryError) as error:
            raise self._named(tables, key_name, error, lsns) from error

    def _run(self, tables: Mapping[str, pa.Table]) -> ResultRows:
        if self._query is None:
            empty = {name: schema.empty_table() for name, schema in self._schemas.items()}
            self._query = PreparedQuery(self._statement, empty, limits=self._limits, name=self._name)
        return self._query.rows(tables)

    def _named(
        self, tables: Mapping[str, pa.Table], key_name: KeyName, error: Exception, lsns: Sequence[int] | None
    ) -> EvaluationError:
        """The error with what it belongs to."""
        limit = self._limits.problem(error)
        if isinstance(error, duckdb.InterruptException):
            return EvaluationError(self._name, "", limit or "", is_limit=True)
        inputs = {} if limit else self._inputs
        found = failing_rows(tables, inputs, error, self._failure, self._limits.cpu_seconds)
        problem = self._limits.problem(found.error)
        lsn = found.commit_lsn
        if lsns is not None and found.group is not None:
            lsn = lsns[found.group]
        return EvaluationError(
            self._name,
            "" if found.group is None else key_name(found.group),
            problem or str(found.error).splitlines()[0].rstrip("."),
            rows=tuple(found.rows),
            commit_lsn=lsn,
            is_limit=problem is not None,
        )

    def _failure(self, tables: Mapping[str, pa.Table]) -> Exception | None:
        """What fails over these tables."""
        try:
            self._run(tables)
        except (duckdb.Error, MemoryError) as error:
            return error
        return None


class RowsEvaluator:
    """Evaluates the rows part of a stage; for one thread.

    Statements are pure: what they give depends on the rows, not on their order.
    """

    def __init__(
        self,
        part: RowsPart,
        key: Sequence[KeyColumn],
        *,
        name: str,
        limits: StatementLimits = DEFAULT_LIMITS,
    ) -> None:
        """An evaluator.

        Args:
            part: The part.
            key: The stage's key.
            name: Of what is computed, for errors.
            limits: Of one call.
        """
        self._key_names = [column.name for column in key]
        self._inputs = part.inputs
        self._has_steps = isinstance(part.output, PartialsOutput)
        lifted = {rows_table(n): rows_schema(plan, is_lifted=True) for n, plan in enumerate(part.inputs)}
        lifted[POINTS_TABLE] = POINTS_SCHEMA
        if self._has_steps:
            lifted[STEPS_TABLE] = STEPS_SCHEMA
        named = {rows_table(number): _called(plan) for number, plan in enumerate(part.inputs)}
        self._lifted = StatementEvaluator(part.statement, lifted, name=name, inputs=named, limits=limits)
        self._latest: StatementEvaluator | None = None
        if part.latest_statement is not None:
            live = {rows_table(n): rows_schema(plan, is_lifted=False) for n, plan in enumerate(part.inputs)}
            self._latest = StatementEvaluator(
                part.latest_statement, live, name=name, inputs=named, limits=limits
            )

    def close(self) -> None:
        """Give the connections' memory back; may be called twice."""
        self._lifted.close()
        if self._latest is not None:
            self._latest.close()

    def at_points(
        self,
        versions: Sequence[RowVersions],
        points: PointColumns,
        steps: StepColumns | None,
        keys: Sequence[bytes],
    ) -> ResultRows:
        """The result of the part's statement at points.

        Args:
            versions: For each input the rows that are live at some point.
            points: Where it is wanted.
            steps: For partials: what the points add and take away.
            keys: The keys by number: msgpack arrays of wire values.

        Raises:
            EvaluationError: The SQL failed on some row; names the key.
            ValueError: Values do not fit the inputs' columns.
        """
        tables = self._tables(versions, is_lifted=True)
        tables[POINTS_TABLE] = _table(
            POINTS_SCHEMA, [range(len(points.lsns)), points.groups, points.lsns], POINTS_TABLE
        )
        if steps is not None and self._has_steps:
            tables[STEPS_TABLE] = _table(STEPS_SCHEMA, [steps.points, steps.lsns, steps.weights], STEPS_TABLE)
        return self._lifted.rows(tables, self._namer(keys))

    def latest(self, rows: Sequence[RowVersions], keys: Sequence[bytes], lsns: Sequence[int]) -> ResultRows:
        """The result of `latest_statement`, over rows that all are live.

        Args:
            rows: Of each input.
            keys: The keys by number: msgpack arrays of wire values.
            lsns: For each key the commit LSN of its newest change, for errors.

        Raises:
            EvaluationError: The SQL failed on some row; names the key.
            ValueError: Values do not fit the inputs' columns, or there is no such statement.
        """
        if self._latest is None:
            msg = "this part has no statement for live rows"
            raise ValueError(msg)
        return self._latest.rows(self._tables(rows, is_lifted=False), self._namer(keys), lsns)

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
    """A packed key as a person reads it: a JSON object."""
    return msgspec.json.encode(dict(zip(names, msgspec.msgpack.decode(key), strict=True))).decode()


def rows_schema(plan: InputPlan, *, is_lifted: bool) -> pa.Schema:
    """Columns of an input's table: the key's number, the wire values, and the LSNs at which a row is live."""
    fields = [(GROUP, pa.int32()), *((column.name, column.type.arrow) for column in plan.columns)]
    return pa.schema([*fields, (FROM_LSN, pa.int64()), (TO_LSN, pa.int64())] if is_lifted else fields)


def _table(schema: pa.Schema, columns: Sequence[Sequence[Any]], what: str) -> pa.Table:
    if len(columns) != len(schema):
        msg = f"{what}: expected columns {schema.names}, got {len(columns)}"
        raise ValueError(msg)
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            arrays.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            msg = f"{what}.{field.name}: values do not fit the transport type {field.type}: {error}"
            raise ValueError(msg) from error
    return pa.Table.from_arrays(arrays, schema=schema)
