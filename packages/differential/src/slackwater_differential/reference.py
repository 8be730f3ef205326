"""The reference: DuckDB, asked for the view's SELECT on the tables as they are after each commit."""

from collections import Counter
from collections.abc import Sequence

import duckdb

from slackwater_differential.canonical import of_row
from slackwater_differential.history import SCHEMA, Commit, Table, quoted
from slackwater_differential.query import View

Rows = Counter[str]
"""The rows of a view as a bag of canonical texts."""


class Reference:
    """Tables in a database of its own. Not for several threads.

    Raises:
        duckdb.Error: from any method, when DuckDB cannot do what the case says.
    """

    def __init__(self, tables: Sequence[Table], views: Sequence[View]) -> None:
        self._views = views
        self._columns = {table.name: [column.position for column in table.columns] for table in tables}
        self._connection = _connection()
        try:
            self._create(tables, views)
        except duckdb.Error:
            self.__exit__()
            raise

    def _create(self, tables: Sequence[Table], views: Sequence[View]) -> None:
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

    def apply(self, commit: Commit) -> None:
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
        return Counter(of_row(names, values, types) for values in result.fetchall())


_idle: list[duckdb.DuckDBPyConnection] = []
"""Opening a database costs more than a small case."""


def _connection() -> duckdb.DuckDBPyConnection:
    if _idle:
        connection = _idle.pop()
    else:
        connection = duckdb.connect(":memory:", config={"threads": 1})
        for setting in ("TimeZone = 'UTC'", "enable_progress_bar = false"):
            connection.execute(f"SET {setting}")
        # It makes `count(x) FILTER (WHERE y IS NULL)` over a FULL JOIN count NULLs.
        connection.execute("SET disabled_optimizers = 'filter_pushdown'")
    connection.execute(f"CREATE SCHEMA {SCHEMA}; SET schema = '{SCHEMA}'").fetchall()
    return connection
