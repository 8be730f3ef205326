"""Errors of this package, and the places in the user's files that they name.

Each error can be pickled, so that Spark can pass it between processes, and its `hint` says what to do::

    InputError
    └── SqlError
        ├── SqlTextError                a schema file or a view that its author has to correct
        ├── MissingTablesError          the database does not have the requested tables
        ├── RowContradictsSchemaError   a record does not match its declared table
        └── EvaluationError             a view's SQL failed on the rows of a key, or exceeded a limit
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath

from slackwater.protocol import InputError, format_position

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, order=True)
class TextPlace:
    """A place in a file. Lines and columns are counted from 1, as in an editor.

    Attributes:
        path: The file as the user named it.
        text: The text that the error refers to, shortened; may be empty.
    """

    path: str
    line: int
    column: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


class SqlError(InputError):
    """Root of this package's errors; `hint` is what is supported, or what to do."""

    def __str__(self) -> str:
        return f"{self.problem}. {self.hint}"


class SqlTextError(SqlError):
    """A schema file or a view contains a mistake, or something that is not supported.

    Attributes:
        problem: What was found and what was expected.
        others: Further mistakes that were found; these have no others.
    """

    def __init__(
        self, place: TextPlace, problem: str, hint: str, others: "tuple[SqlTextError, ...]" = ()
    ) -> None:
        super().__init__(problem, hint)
        self.args = place, problem, hint, others
        self.place = place
        self.others = others

    def __str__(self) -> str:
        at = f" at `{self.place.text}`" if self.place.text else ""
        own = f"{self.place}{at}: {self.problem}. {self.hint}"
        return "\n".join((own, *map(str, self.others)))


class Mistakes:
    """The mistakes in parts of texts that do not depend on each other, so that all are reported at once."""

    def __init__(self) -> None:
        self._found: dict[str, SqlTextError] = {}

    @contextmanager
    def part(self) -> Iterator[None]:
        """Keeps the mistakes of the block, which ends at the first one."""
        try:
            yield
        except SqlTextError as error:
            self.add(error)

    def add(self, error: SqlTextError) -> None:
        """Keeps a mistake, unless it is known."""
        for each in (error, *error.others):
            alone = SqlTextError(each.place, each.problem, each.hint)
            self._found.setdefault(str(alone), alone)

    def raise_any(self) -> None:
        """Raises the mistakes, if there are any.

        Raises:
            SqlTextError: The first one, with all others.
        """
        if self._found:
            first, *others = sorted(self._found.values(), key=lambda each: each.place)
            raise SqlTextError(first.place, first.problem, first.hint, tuple(others))


@dataclass(frozen=True)
class SourceText:
    """A text that a user wrote, with its file name. Translates offsets into places.

    Attributes:
        path: The file as the user named it.
    """

    path: str
    text: str

    @property
    def name(self) -> str:
        """The file's name without folder and extension."""
        return PurePath(self.path).stem

    def place(self, start: int, end: int) -> TextPlace:
        """Returns the place of the characters `[start, end)`; an offset beyond the text means its end."""
        start = max(0, min(start, len(self.text)))
        before = self.text[:start]
        line_start = before.rfind("\n") + 1
        shown = " ".join(self.text[start:end].split())
        if len(shown) > _SHOWN_CHARACTERS:
            shown = shown[: _SHOWN_CHARACTERS - 1] + "…"
        return TextPlace(self.path, before.count("\n") + 1, start - line_start + 1, shown)

    def error(self, start: int, end: int, problem: str, hint: str) -> SqlTextError:
        """Returns an error at the characters `[start, end)`; an offset before the text means its start."""
        return SqlTextError(self.place(max(start, 0), max(end, 0)), problem, hint)


class MissingTablesError(SqlError):
    """The database does not have the requested tables.

    Attributes:
        tables: The missing ones, as `schema.table`.
    """

    def __init__(self, tables: tuple[str, ...]) -> None:
        hint = 'Name tables schema.table, with names as in the database; quote others as in SQL: public."a.b"'
        super().__init__(f"the database has no table {', '.join(tables)}", hint)
        self.args = (tables,)
        self.tables = tables


class RowContradictsSchemaError(SqlError):
    """The row in a record does not match its declared table.

    Attributes:
        table: `schema.table`.
        column: The column's name; empty if the row as a whole cannot be read.
        expected: The JSON value that the declaration requires.
        got: What the record contains, shortened.
    """

    def __init__(self, table: str, column: str, expected: str, got: str, hint: str = "") -> None:
        where = f"column {column} of {table}" if column else f"a row of {table}"
        problem = f"{where} contradicts its declaration: expected {expected}, got {got}"
        super().__init__(problem, hint or _COMPARE_TABLES)
        self.args = table, column, expected, got, hint
        self.table = table
        self.column = column
        self.expected = expected
        self.got = got


class EvaluationError(SqlError):
    """The SQL of a view failed on the rows of a key, or exceeded a limit.

    Attributes:
        view: The view's name.
        key: The key on which it failed, as text; empty if the failure does not belong to one key.
        problem: What DuckDB reported, or which limit was exceeded.
        rows: The rows on which it failed, each preceded by its table's name, as far as they could be found.
        commit_lsn: Commit LSN of the newest of these rows; 0 if unknown.
        is_limit: Whether a limit was exceeded.
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
        super().__init__(problem, _COMPUTE_LESS if is_limit else _ACCEPT_VALUE)
        self.args = view, key, problem, rows, commit_lsn, is_limit
        self.view = view
        self.key = key
        self.rows = rows
        self.commit_lsn = commit_lsn
        self.is_limit = is_limit

    def not_withheld(self, why: str) -> "EvaluationError":
        """Returns the error for a key that is not withheld although its view withholds others."""
        problem = f"{self.problem}. Although on_error = quarantine, the key is not withheld, because {why}"
        return EvaluationError(self.view, self.key, problem, self.rows, self.commit_lsn)

    def __str__(self) -> str:
        of_key = f" for key {self.key}" if self.key else ""
        at = f", commit LSN {format_position(self.commit_lsn)}" if self.commit_lsn else ""
        rows = f" Evaluated rows: {'; '.join(self.rows)}." if self.rows else ""
        return f"view {self.view} cannot be evaluated{of_key}{at}: {self.problem}.{rows} {self.hint}"


_COMPARE_TABLES = (
    "Compare the declared tables with the database (slackwater schema check) and the settings of the "
    "connector: it sends neither generated columns nor the columns in column.exclude.list, so views "
    "cannot use them. If the table has changed, declare it again (slackwater schema pull) in a new "
    "revision of the pipeline; a column that rows before did not have, as ALTER TABLE … ADD COLUMN"
)
_ACCEPT_VALUE = (
    "Either correct the row in the database and start the pipeline again: with emit = latest it continues "
    "once the correction has reached Kafka. Or make the view accept the value, for example with TRY_CAST, "
    'or withhold such keys (on_error = "quarantine"), in a new revision of the pipeline'
)
_COMPUTE_LESS = (
    "Make the view compute less in a new revision of the pipeline, correct the values in the database, or "
    "raise the limit"
)
