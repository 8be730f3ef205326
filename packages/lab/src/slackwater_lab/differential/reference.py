"""The reference: DuckDB, asked for the view's SELECT on the tables as they are after each commit."""

import base64
import json
import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import duckdb
from duckdb.sqltypes import DuckDBPyType

from slackwater_lab.differential.history import SCHEMA, DrawnCommit, DrawnTable, quoted
from slackwater_lab.differential.query import View

_NUMBERS = frozenset(
    {
        "tinyint",
        "smallint",
        "integer",
        "bigint",
        "hugeint",
        "utinyint",
        "usmallint",
        "uinteger",
        "ubigint",
        "uhugeint",
    }
)


def of_document(document: bytes) -> str:
    """The canonical text of a document."""
    return _of_json(document.decode())


def _of_row(names: list[str], values: tuple[Any, ...], types: list[DuckDBPyType]) -> str:
    """The canonical text of the document of a row that DuckDB gave."""
    fields = zip(names, values, types, strict=True)
    return _object([(name, _of_value(value, of_type)) for name, value, of_type in fields])


def _of_json(text: str) -> str:
    return _canonical(json.loads(text, object_pairs_hook=_Pairs, parse_float=Decimal, parse_int=Decimal))


class _Pairs(list[tuple[str, Any]]):
    """An object with its keys in their order."""


def _canonical(value: Any) -> str:
    if isinstance(value, _Pairs):
        return _object([(name, _canonical(item)) for name, item in value])
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, Decimal):
        return _number(value)
    return json.dumps(value, ensure_ascii=False)


def _object(fields: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{value}" for name, value in fields) + "}"


def _number(value: Decimal) -> str:
    if value == 0:
        return "0"
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _text(characters: str) -> str:
    return json.dumps(characters, ensure_ascii=False)


def _of_value(value: Any, of_type: DuckDBPyType) -> str:
    if value is None:
        return "null"
    if str(of_type) == "JSON":
        return _of_json(value)
    kind = of_type.id.strip('"')
    if kind in _NUMBERS:
        return str(value)
    if kind in {"list", "array"}:
        element = of_type.children[0][1]
        return "[" + ",".join(_of_value(each, element) for each in value) + "]"  # type: ignore[arg-type]
    if kind == "struct":
        return _object([(n, _of_value(value[n], t)) for n, t in of_type.children])  # type: ignore[arg-type]
    return _of_scalar(value)


def _of_scalar(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return _of_float(value)
        case Decimal():
            return _text(format(value, "f"))
        case bytes():
            return _text(base64.b64encode(value).decode())
        case datetime():
            suffix = "" if value.tzinfo is None else "Z"
            moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return _text(moment.isoformat(timespec="microseconds") + suffix)
        case time():
            text = value.isoformat()
            return _text(text.rstrip("0") if "." in text else text)
        case date():
            return _text(value.isoformat())
    return _text(str(value))


def _of_float(value: float) -> str:
    if math.isnan(value):
        return _text("NaN")
    if math.isinf(value):
        return _text("Infinity" if value > 0 else "-Infinity")
    return _number(Decimal(repr(value)))


Rows = Counter[str]
"""The rows of a view as a bag of canonical texts."""


class Reference:
    """Tables in a database of its own. Not for several threads.

    Raises:
        duckdb.Error: from any method, when DuckDB cannot do what the case says.
    """

    def __init__(self, tables: Sequence[DrawnTable], views: Sequence[View]) -> None:
        self._views = views
        self._columns = {table.name: [column.position for column in table.columns] for table in tables}
        self._connection = _connection()
        try:
            self._create(tables, views)
        except duckdb.Error:
            self.__exit__()
            raise

    def _create(self, tables: Sequence[DrawnTable], views: Sequence[View]) -> None:
        for table in tables:
            columns = ", ".join(f"{quoted(c.name)} {c.type.duckdb}" for c in table.columns)
            self._connection.execute(f"CREATE TABLE {table.name} ({columns})")
        for view in views:
            self._connection.execute(f"CREATE VIEW {view.name} AS\n{view.reference_sql()}")

    def __enter__(self) -> "Reference":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.execute(f"SET schema = 'main'; DROP SCHEMA {SCHEMA} CASCADE").fetchall()
        _idle.append(self._connection)

    def apply(self, commit: DrawnCommit) -> None:
        """Brings the tables to the state after a commit."""
        for name, rows in commit.touched:
            self._connection.execute(f"DELETE FROM {name}")
            if rows:
                positions = self._columns[name]
                values = ", ".join(
                    "(" + ", ".join("NULL" if (v := row[p]) is None else v.sql for p in positions) + ")"
                    for row in rows
                )
                self._connection.execute(f"INSERT INTO {name} VALUES {values}")

    def rows(self) -> tuple[Rows, ...]:
        """The rows of each view now."""
        return tuple(self._rows_of(view) for view in self._views)

    def _rows_of(self, view: View) -> Rows:
        result = self._connection.execute(view.reference_sql())
        names = [column[0] for column in result.description]
        types = [column[1] for column in result.description]
        return Counter(_of_row(names, values, types) for values in result.fetchall())


_idle: list[duckdb.DuckDBPyConnection] = []
"""Opening a database costs more than a small case."""


def _connection() -> duckdb.DuckDBPyConnection:
    if _idle:
        connection = _idle.pop()
    else:
        connection = duckdb.connect(":memory:", config={"threads": 1})
        for setting in ("TimeZone = 'UTC'", "enable_progress_bar = false"):
            connection.execute(f"SET {setting}")
        # The one makes `count(x) FILTER (WHERE y IS NULL)` over a FULL JOIN count NULLs; the other mixes up
        # the columns of a join that two branches of a UNION have in common.
        connection.execute("SET disabled_optimizers = 'filter_pushdown,common_subplan'")
    connection.execute(f"CREATE SCHEMA {SCHEMA}; SET schema = '{SCHEMA}'").fetchall()
    return connection
