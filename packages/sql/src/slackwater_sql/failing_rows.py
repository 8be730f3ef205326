"""Which key, rows and commit a failed statement failed for: found by evaluating ever smaller parts again."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from slackwater_sql.statement import FROM_LSN, GROUP, LSN, POINT, POINTS_TABLE

Tables = Mapping[str, pa.Table]
Fails = Callable[[Tables], Exception | None]
"""The statement over tables: what it fails with."""

_SHOWN_CHARACTERS: Final = 300


@dataclass(slots=True)
class FailingRows:
    """The smallest part of the tables that was found to fail.

    Attributes:
        error: What it fails with.
        group: Number of its key; None if the failure does not belong to one.
        commit_lsn: Of the newest of its rows; 0 if the tables do not say.
        rows: Its rows as a person reads them, of each input at most one.
    """

    error: Exception
    group: int | None = None
    commit_lsn: int = 0
    rows: list[str] = field(default_factory=list)


def failing_rows(
    tables: Tables, inputs: Mapping[str, str], error: Exception, fails: Fails, cpu_seconds: float
) -> FailingRows:
    """Halves the keys, and then the rows of the failing one.

    Args:
        tables: For which the statement failed; keys are numbered by their column `GROUP`, or else by `POINT`.
        inputs: What the user calls each table that has rows of his.
        error: What it failed with.
        fails: The statement.
        cpu_seconds: The search ends after so much time of this process with what it has.
    """
    until = time.process_time() + cpu_seconds
    column = GROUP if any(GROUP in table.column_names for table in tables.values()) else POINT
    found = FailingRows(error)
    low, high = 0, 1 + max(_largest(table, column) for table in tables.values())
    while high - low > 1 and time.process_time() < until:
        middle = (low + high) // 2
        failure = fails(_of_keys(tables, column, low, middle))
        found.error = failure or found.error
        low, high = (low, middle) if failure is not None else (middle, high)
    tables = _of_keys(tables, column, low, high)
    failure = fails(tables) if high - low == 1 else None
    if failure is None:
        return found
    found.error, found.group = failure, low
    for name in inputs:
        table = tables[name]
        while table.num_rows > 1 and time.process_time() < until:
            half = table.num_rows // 2
            parts = (table.slice(0, half), table.slice(half))
            smaller = next((part for part in parts if fails({**tables, name: part}) is not None), None)
            if smaller is None:
                break
            table = smaller
        tables = {**tables, name: table}
    found.commit_lsn = _commit_lsn([tables[name] for name in inputs], tables.get(POINTS_TABLE))
    found.rows = [_shown(inputs[name], tables[name]) for name in inputs if tables[name].num_rows == 1]
    return found


def _commit_lsn(rows: list[pa.Table], points: pa.Table | None) -> int:
    """From which on the newest of the rows is live; of accumulated values, at which they are."""
    if points is None:
        return 0
    if all(FROM_LSN in table.column_names for table in rows):
        newest = max(_largest(table, FROM_LSN) for table in rows)
        return newest or int(pc.min(points[LSN]).as_py() or 0)
    numbers = pa.concat_arrays([chunk for table in rows for chunk in table[POINT].chunks])
    return _largest(points.filter(pc.is_in(points[POINT], value_set=numbers)), LSN)


def _shown(name: str, table: pa.Table) -> str:
    (row,) = table.to_pylist()
    values: dict[str, Any] = {key: value for key, value in row.items() if not key.startswith("__slackwater_")}
    text = msgspec.json.encode(values).decode()
    return f"{name} {text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + '…'}"


def _of_keys(tables: Tables, column: str, low: int, high: int) -> Tables:
    """Of these numbers; tables without the column whole."""
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
