"""Evaluates the rows of stages for many keys with one call of DuckDB."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from slackwater.sql.limits import DEFAULT_LIMITS, StatementLimits
from slackwater.sql.plan import (
    FROM_LSN,
    GROUP,
    LSN,
    POINT,
    POINTS_TABLE,
    STEPS_TABLE,
    TO_LSN,
    WEIGHT,
    Accumulator,
    AccumulatorKind,
    InputPlan,
    KeyColumn,
    PartialsOutput,
    RowsPart,
    rows_table,
)
from slackwater.sql.statement_evaluator import KeyName, ResultRows, StatementEvaluator

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
    return pa.schema(fields)


class PointColumns(Protocol):
    """The points at which results are computed, column by column."""

    @property
    def groups(self) -> Sequence[int]:
        """The number of its key, for each point."""

    @property
    def lsns(self) -> Sequence[int]:
        """The commit LSN, for each point."""


class StepColumns(Protocol):
    """The rows of ``STEPS_TABLE``, column by column: what points add and remove."""

    @property
    def points(self) -> Sequence[int]:
        """Numbers of points."""

    @property
    def lsns(self) -> Sequence[int]:
        """Commit LSNs."""

    @property
    def weights(self) -> Sequence[int]:
        """1 or -1."""


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
        """Creates an evaluator.

        Args:
            part: The part.
            key: The stage's key.
            name: What is computed, for errors.
            limits: The limits of each call.
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
        """Releases the connections' memory. Idempotent."""
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
        """Returns the result of the part's statement at points.

        Args:
            versions: For each input the rows that are live at some point.
            points: The points at which the result is computed.
            steps: For partials: what the points add and remove.
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
        """Returns the result of `latest_statement`, over rows that are all live.

        Args:
            rows: The rows of each input.
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
    for field, values in zip(schema, columns, strict=True):
        try:
            arrays.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            msg = f"{what}.{field.name}: values do not fit the transport type {field.type}: {error}"
            raise ValueError(msg) from error
    return pa.Table.from_arrays(arrays, schema=schema)
