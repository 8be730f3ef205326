"""What DuckDB itself says of a view's text: names and types of the columns, and remaining mistakes."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath

import duckdb
from duckdb.sqltypes import DuckDBPyType

from slackwater_sql.errors import ViewError
from slackwater_sql.frontend.text import Splice, ViewText, original_offset, spliced
from slackwater_sql.limits import DEFAULT_LIMITS, bounded

_LESS = "What is constant in a view is computed once, when it is planned; write less of it"
_WORD = re.compile(r"\w+|\S")


@contextmanager
def planned(connection: duckdb.DuckDBPyConnection, text: ViewText) -> Iterator[None]:
    """Bounds the planning of a view: DuckDB computes what is constant in it.

    Raises:
        ViewError: Planning takes too much, or the view is nested too deeply.
    """
    try:
        with bounded(connection, DEFAULT_LIMITS, PurePath(text.path).stem):
            yield
    except (duckdb.Error, MemoryError) as error:
        problem = DEFAULT_LIMITS.problem(error)
        if problem is None:
            raise
        raise text.error(0, 0, f"the view cannot be planned: {problem}", _LESS) from error
    except RecursionError as error:
        start = text.deepest()
        problem = "the view is nested too deeply, or has too many queries, joins or conditions"
        raise text.error(start, start, problem, "Write parts of it as other views") from error


def bind(
    connection: duckdb.DuckDBPyConnection, text: ViewText, splices: Sequence[Splice]
) -> tuple[tuple[str, ...], tuple[DuckDBPyType, ...]]:
    """Names and types of a view's columns.

    Args:
        connection: Has all tables and views that the text reads.
        text: The view.
        splices: What DuckDB is to read instead.

    Raises:
        ViewError: DuckDB cannot evaluate it: an unknown function, types that do not fit, …
    """
    statement = spliced(text.query, 0, len(text.query), splices)
    run(connection, text, splices, statement)
    rows = connection.sql(statement)
    return tuple(rows.columns), tuple(rows.types)


def bind_view(
    connection: duckdb.DuckDBPyConnection, text: ViewText, splices: Sequence[Splice], name: str
) -> None:
    """Let other views read this one under a quoted name.

    Raises:
        ViewError: DuckDB cannot evaluate it.
    """
    statement = spliced(text.query, 0, len(text.query), splices)
    run(connection, text, splices, statement)
    connection.execute(f"CREATE OR REPLACE VIEW {name} AS {statement}")


def run(
    connection: duckdb.DuckDBPyConnection, text: ViewText, splices: Sequence[Splice], statement: str
) -> None:
    """Evaluate the statement on no rows.

    Raises:
        ViewError: DuckDB cannot.
    """
    connection.execute("SET errors_as_json = true")
    try:
        # Only execute() reports places; only sql() knows nested types.
        connection.execute(statement).fetchall()
    except duckdb.Error as error:
        raise _view_error(text, splices, statement, error) from error
    connection.execute("SET errors_as_json = false")


def _view_error(text: ViewText, splices: Sequence[Splice], statement: str, error: duckdb.Error) -> ViewError:
    message = str(error)
    try:
        details = json.loads(message[message.index("{") :])
    except ValueError:
        details = {"exception_message": message}
    start = end = 0
    if "position" in details:
        byte = int(details["position"])
        start = original_offset(splices, len(statement.encode()[:byte].decode("utf-8", "ignore")))
        word = _WORD.match(text.sql, start)
        end = word.end() if word else start
    limit = DEFAULT_LIMITS.problem(error)
    if limit is not None:
        return text.error(start, end, f"the view cannot be planned: {limit}", _LESS)
    problem = details["exception_message"].splitlines()[0].rstrip(".!")
    return text.error(start, end, problem, "The SQL of views is DuckDB's")
