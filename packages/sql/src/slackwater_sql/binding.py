"""Types and remaining mistakes of a view, found by DuckDB's own binder on empty tables."""

import json
import re

import duckdb
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType

from slackwater_sql.errors import ViewError
from slackwater_sql.place import SourceText
from slackwater_sql.plan import InputPlan
from slackwater_sql.statement import GROUP, SplicedText, rows_table

_WORD = re.compile(r"\w+|\S")


def bind(
    connection: duckdb.DuckDBPyConnection,
    inputs: tuple[InputPlan, ...],
    source: SourceText,
    statement: SplicedText,
) -> tuple[DuckDBPyType, ...]:
    """Types of the view's columns.

    Args:
        connection: A connection of the view's session; gets the inputs registered.
        inputs: The inputs.
        source: The user's text, for places.
        statement: The rows of the view over live inputs; its first column is the point.

    Raises:
        ViewError: DuckDB cannot evaluate it: an unknown function, types that do not fit, …
    """
    for number, plan in enumerate(inputs):
        connection.register(rows_table(number), empty_rows(plan))
    connection.execute("SET errors_as_json = true")
    try:
        # Only execute() reports places; only sql() knows nested types.
        connection.execute(statement.text).fetchall()
    except duckdb.Error as error:
        raise _view_error(source, statement, error) from error
    finally:
        connection.execute("SET errors_as_json = false")
    return tuple(connection.sql(statement.text).types[1:])


def empty_rows(plan: InputPlan) -> pa.Table:
    """An input without rows, in transport form."""
    fields = [(GROUP, pa.int32()), *((column.name, column.type.arrow) for column in plan.columns)]
    return pa.schema(fields).empty_table()


def _view_error(source: SourceText, statement: SplicedText, error: duckdb.Error) -> ViewError:
    text = str(error)
    try:
        details = json.loads(text[text.index("{") :])
    except ValueError:
        details = {"exception_message": text}
    start = end = 0
    if "position" in details:
        byte = int(details["position"])
        start = statement.original_offset(len(statement.text.encode()[:byte].decode("utf-8", "ignore")))
        word = _WORD.match(source.text, start)
        end = word.end() if word else start
    problem = details["exception_message"].splitlines()[0].rstrip(".!")
    return ViewError(source.place(start, end), problem, "The SQL of views is DuckDB's")
