"""Evaluating a view over many keys, at one or many LSNs each, in one DuckDB call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from slackwater_sql.errors import EvaluationError
from slackwater_sql.plan import InputPlan, ViewPlan
from slackwater_sql.prepared import PreparedQuery
from slackwater_sql.statement import FROM_LSN, GROUP, LSN, POINT, POINTS_TABLE, TO_LSN, rows_table

OPEN_LSN: Final = 2**63 - 1
"""`to_lsn` of a row version that is still live."""

Documents = list[bytes | None]
"""For each point the view's row there as UTF-8 JSON, or None if the view has no row for that key there."""


@dataclass(frozen=True, slots=True)
class InputVersions:
    """Rows of one input, column by column.

    Attributes:
        groups: For each row the number of its key in `Points.keys`.
        columns: The wire values of `InputPlan.columns`, one sequence per column, as
            `RowCodec.unpack_columns` gives them.
        from_lsn: For each row the commit LSN from which it is live; None if all rows simply are live.
        to_lsn: For each row the commit LSN from which it no longer is (`OPEN_LSN`: still live).
    """

    groups: Sequence[int]
    columns: Sequence[Sequence[Any]]
    from_lsn: Sequence[int] | None = None
    to_lsn: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Points:
    """Where the view is wanted.

    Attributes:
        keys: The keys concerned; used to name a key in errors.
        groups: For each point the number of its key; None if each key is wanted once, as its rows are.
        lsns: For each point the commit LSN; None if each key is wanted once, as its rows are.
    """

    keys: Sequence[Any]
    groups: Sequence[int] | None = None
    lsns: Sequence[int] | None = None

    @property
    def are_lifted(self) -> bool:
        """The rows are versions with intervals of LSNs, not just live rows."""
        return self.lsns is not None

    def __len__(self) -> int:
        return len(self.keys if self.lsns is None else self.lsns)


class Evaluator:
    """Evaluates one view. Keeps DuckDB connections; not safe for use by several threads at once."""

    def __init__(self, plan: ViewPlan, *, memory_limit: str = "1GB") -> None:
        """An evaluator of this view.

        Args:
            plan: The compiled view.
            memory_limit: DuckDB's limit for one call.
        """
        self._plan = plan
        self._memory_limit = memory_limit
        self._latest: PreparedQuery | None = None
        self._lifted: PreparedQuery | None = None

    def __enter__(self) -> "Evaluator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections' memory back; may be called twice."""
        for query in (self._latest, self._lifted):
            if query is not None:
                query.close()

    def evaluate(self, versions: Mapping[str, InputVersions], points: Points) -> Documents:
        """The view at each point.

        The result depends on the given rows alone, not on their order. Rows whose key is NULL in an input
        that does not keep them may be left out.

        Args:
            versions: For each input (by alias) its rows: with `points.lsns` all versions that are live at
                some point, else the live rows. An input without rows may be missing.
            points: Where the view is wanted.

        Raises:
            EvaluationError: The view's SQL failed on some row; names the key.
            ValueError: The rows are not what the plan says, or an LSN is outside of 0 … 2**63-1.
        """
        if not len(points):
            return []
        tables = [_rows(plan, versions.get(plan.alias), points) for plan in self._plan.inputs]
        wanted = _points_table(points)
        try:
            return self._run(tables, wanted, len(points))
        except duckdb.Error as error:
            raise self._named(tables, wanted, points, error) from error

    def _run(self, tables: Sequence[pa.Table], wanted: pa.Table | None, count: int) -> Documents:
        named = {rows_table(number): table for number, table in enumerate(tables)}
        if wanted is None:
            query = self._latest = self._latest or self._prepared(self._plan.latest_statement, named)
        else:
            named[POINTS_TABLE] = wanted
            query = self._lifted = self._lifted or self._prepared(self._plan.lifted_statement, named)
        documents: Documents = [None] * count
        for point, document in query.rows(named):
            documents[point] = document
        return documents

    def _prepared(self, statement: str, tables: Mapping[str, pa.Table]) -> PreparedQuery:
        return PreparedQuery(statement, tables, memory_limit=self._memory_limit)

    def _named(
        self, tables: Sequence[pa.Table], wanted: pa.Table | None, points: Points, error: duckdb.Error
    ) -> EvaluationError:
        """The error with the key it belongs to, found by halving the keys."""
        low, high = 0, len(points.keys)
        while high - low > 1:
            middle = (low + high) // 2
            failure = self._failure(tables, wanted, points, (low, middle))
            error = failure or error
            low, high = (low, middle) if failure is not None else (middle, high)
        failure = self._failure(tables, wanted, points, (low, high))
        key = "" if failure is None else str(points.keys[low])
        return EvaluationError(self._plan.name, key, _first_line(failure or error))

    def _failure(
        self, tables: Sequence[pa.Table], wanted: pa.Table | None, points: Points, keys: tuple[int, int]
    ) -> duckdb.Error | None:
        """What fails when only these keys are evaluated."""
        try:
            chosen = None if wanted is None else _of_groups(wanted, keys)
            self._run([_of_groups(table, keys) for table in tables], chosen, len(points))
        except duckdb.Error as error:
            return error
        return None


def _rows(plan: InputPlan, versions: InputVersions | None, points: Points) -> pa.Table:
    if versions is None:
        versions = InputVersions([], [[] for _ in plan.columns], [], [])
    if len(versions.columns) != len(plan.columns):
        msg = f"input {plan.alias}: expected columns {plan.column_names}, got {len(versions.columns)}"
        raise ValueError(msg)
    names = [GROUP, *plan.column_names]
    arrays = [pa.array(versions.groups, pa.int32())]
    for column, values in zip(plan.columns, versions.columns, strict=True):
        arrays.append(_array(values, column.type.arrow, f"{plan.alias}.{column.name}"))
    if points.are_lifted:
        names += [FROM_LSN, TO_LSN]
        arrays += _intervals(plan, versions)
    return pa.Table.from_arrays(arrays, names=names)


def _intervals(plan: InputPlan, versions: InputVersions) -> list[pa.Array]:
    if versions.from_lsn is None or versions.to_lsn is None:
        msg = f"input {plan.alias}: rows at given LSNs need from_lsn and to_lsn"
        raise ValueError(msg)
    starts = _array(versions.from_lsn, pa.int64(), f"{plan.alias}.from_lsn")
    ends = _array(versions.to_lsn, pa.int64(), f"{plan.alias}.to_lsn")
    if len(starts) and (pc.min(starts).as_py() < 0 or not pc.all(pc.less(starts, ends)).as_py()):
        msg = f"input {plan.alias}: a row needs 0 <= from_lsn < to_lsn"
        raise ValueError(msg)
    return [starts, ends]


def _points_table(points: Points) -> pa.Table | None:
    if points.lsns is None:
        return None
    groups = range(len(points.keys)) if points.groups is None else points.groups
    lsns = _array(points.lsns, pa.int64(), "the LSN of a point")
    if pc.min(lsns).as_py() < 0:
        msg = "the LSN of a point is negative"
        raise ValueError(msg)
    numbers = pa.array(range(len(lsns)), pa.int32())
    return pa.Table.from_arrays([numbers, pa.array(groups, pa.int32()), lsns], names=[POINT, GROUP, LSN])


def _array(values: Sequence[Any], arrow: pa.DataType, name: str) -> pa.Array:
    try:
        return pa.array(values, arrow)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        msg = f"{name}: values do not fit the transport type {arrow}: {error}"
        raise ValueError(msg) from error


def _of_groups(table: pa.Table, keys: tuple[int, int]) -> pa.Table:
    groups = table[GROUP]
    return table.filter(pc.and_(pc.greater_equal(groups, keys[0]), pc.less(groups, keys[1])))


def _first_line(error: duckdb.Error) -> str:
    return str(error).splitlines()[0].rstrip(".")
