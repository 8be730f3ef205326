"""Errors of this package. Each one pickles, so that Spark can carry it between processes.

SqlError
├── SchemaError                 a declared table cannot be read, or is not what a view needs
├── ViewError                   a view's SQL is outside of what is supported
├── RowContradictsSchemaError   a record is not what its declared table says
└── EvaluationError             the view's SQL failed on the rows of a key
"""

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
            "connector. A table that has changed is declared anew (slackwater schema pull), for a new "
            "revision of the pipeline"
        )


class EvaluationError(SqlError):
    """The SQL of a view failed on the rows of a key.

    Attributes:
        view: The view's name.
        key: The failing key as text; empty if the failure does not belong to one key.
        problem: What DuckDB reported.
    """

    def __init__(self, view: str, key: str, problem: str) -> None:
        super().__init__(view, key, problem)
        self.view = view
        self.key = key
        self.problem = problem

    def __str__(self) -> str:
        of_key = f" for key {self.key}" if self.key else ""
        return (
            f"view {self.view} cannot be evaluated{of_key}: {self.problem}. "
            "Correct the row in the database, or make the view accept it (for instance with TRY_CAST)"
        )
