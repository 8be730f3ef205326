"""Errors of this package. Each one pickles, so that Spark can carry it between processes.

SqlError
├── SchemaError                 a declared table cannot be read, or is not what a view needs
├── ViewError                   a view's SQL is outside of what is supported
├── RowContradictsSchemaError   a record is not what its declared table says
└── EvaluationError             the view's SQL failed on the rows of a key
"""

from slackwater_protocol import format_lsn
from slackwater_sql.place import Place


class SqlError(Exception):
    """Root of this package's errors."""


class _PlacedError(SqlError):
    """An error in a text the user wrote.

    Attributes:
        place: Where in which file.
        problem: What was found and what was expected.
        hint: What is supported, or what to do.
    """

    def __init__(self, place: Place, problem: str, hint: str) -> None:
        super().__init__(place, problem, hint)
        self.place = place
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        at = f" at `{self.place.text}`" if self.place.text else ""
        return f"{self.place}{at}: {self.problem}. {self.hint}"


class SchemaError(_PlacedError):
    """A `CREATE TABLE` file holds something that cannot be read, or lacks something that is needed."""


class ViewError(_PlacedError):
    """A view's SQL cannot be kept up to date as written."""


class RowContradictsSchemaError(SqlError):
    """A record's row image is not what the declared table says.

    Attributes:
        table: `schema.table`.
        column: The column's name; empty if the row as a whole cannot be read.
        expected: The JSON value that the declaration asks for.
        got: What the record holds, shortened.
    """

    def __init__(self, table: str, column: str, expected: str, got: str) -> None:
        super().__init__(table, column, expected, got)
        self.table = table
        self.column = column
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        where = f"column {self.column} of {self.table}" if self.column else f"a row of {self.table}"
        return (
            f"{where} contradicts its declaration: expected {self.expected}, got {self.got}. "
            "Compare the declared tables with the database (slackwater schema check) and the settings of the "
            "connector: it sends neither generated columns nor those of column.exclude.list, so no view can "
            "use them. A table that has changed is declared anew (slackwater schema pull), for a new "
            "revision of the pipeline"
        )


class EvaluationError(SqlError):
    """The SQL of a view failed on the rows of a key, or took more than it may.

    Attributes:
        view: The view's name.
        key: The failing key as text; empty if the failure does not belong to one key.
        problem: What DuckDB reported, or which limit was met.
        rows: The rows that make it fail, each with its table's name before it, as far as they were found.
        commit_lsn: Of the newest of the rows; 0 if unknown.
        is_limit: A limit was met.
    """

    def __init__(
        self,
        view: str,
        key: str,
        problem: str,
        rows: tuple[str, ...] = (),
        commit_lsn: int = 0,
        is_limit: bool = False,
    ) -> None:
        super().__init__(view, key, problem, rows, commit_lsn, is_limit)
        self.view = view
        self.key = key
        self.problem = problem
        self.rows = rows
        self.commit_lsn = commit_lsn
        self.is_limit = is_limit

    def __str__(self) -> str:
        of_key = f" for key {self.key}" if self.key else ""
        at = f", commit LSN {format_lsn(self.commit_lsn)}" if self.commit_lsn else ""
        rows = f" Evaluated: {'; '.join(self.rows)}." if self.rows else ""
        ways_out = _WAYS_OUT_OF_LIMITS if self.is_limit else _WAYS_OUT_OF_VALUES
        return f"view {self.view} cannot be evaluated{of_key}{at}: {self.problem}.{rows} {ways_out}"


_WAYS_OUT_OF_VALUES = (
    "Either correct the row in the database and start the pipeline again: with emit = latest it goes on when "
    "the correction has reached Kafka. Or make the view accept the value, for instance with TRY_CAST, as a "
    "new revision of the pipeline"
)
_WAYS_OUT_OF_LIMITS = (
    "Make the view compute less, as a new revision of the pipeline, correct the values in the database, or "
    "raise the limit"
)
