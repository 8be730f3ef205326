"""Errors of the Python API; those of the parts it calls pass as they are.

::

    ApiError
    ├── SessionSettingsError    a session of the user's own lacks what Slackwater needs
    ├── UndeclaredTableError    a table that no declaration tells about
    ├── InexactColumnsError     columns that no Spark type holds exactly
    ├── QueryShapeError         a query whose batches would not be whole transactions
    ├── OffsetLogError          a checkpoint's offset log does not say what a batch holds
    ├── StageDefinitionError    a stage cannot be made of these arguments
    ├── FunctionFailedError     the user's function raised
    └── DocumentError           the user's function returned what the declared type cannot hold
"""

from slackwater_protocol import SlackwaterError


class ApiError(SlackwaterError):
    """Root of the Python API's errors."""


class SessionSettingsError(ApiError):
    """A Spark session lacks settings."""

    def __init__(self, missing: tuple[tuple[str, str, str, bool], ...]) -> None:
        super().__init__(missing)
        self.missing = missing
        """Setting, value found, value required, and whether it can be set on the running session."""

    def __str__(self) -> str:
        lines = [
            f'  {name} is {found!r}: spark.conf.set("{name}", "{wanted}")'
            if can_be_set
            else f"  {name} is {found!r}, must be {wanted!r} before the session is made"
            for name, found, wanted, can_be_set in self.missing
        ]
        listed = "\n".join(lines)
        return (
            "the Spark session lacks settings that Slackwater needs; "
            f"slackwater_spark.session_builder() sets them all:\n{listed}"
        )


class UndeclaredTableError(ApiError):
    """A table whose columns and types nobody declared, or that is not read."""

    def __init__(self, table: str, problem: str, known: tuple[str, ...]) -> None:
        super().__init__(table, problem, known)
        self.table = table
        self.problem = problem
        self.known = known

    def __str__(self) -> str:
        known = f"; known are {', '.join(self.known)}" if self.known else ""
        return (
            f"table {self.table!r} {self.problem}{known}. Declare tables with schema=: CREATE TABLE text, "
            "the path of such a file (`slackwater schema pull` writes it), or a Catalog"
        )


class InexactColumnsError(ApiError):
    """Columns whose values no Spark type holds exactly."""

    def __init__(self, table: str, columns: tuple[tuple[str, str, str], ...]) -> None:
        super().__init__(table, columns)
        self.table = table
        self.columns = columns
        """Name, PostgreSQL type and why."""

    def __str__(self) -> str:
        reasons = "; ".join(f"{name} ({kind}): {reason}" for name, kind, reason in self.columns)
        names = ", ".join(repr(name) for name, _, _ in self.columns)
        return (
            f"{self.table} has columns without an exact Spark type: {reasons}. Read them as text with "
            f"as_text=[{names}]"
        )


class QueryShapeError(ApiError):
    """A query that would not see whole transactions."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem, hint)
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}"


class OffsetLogError(ApiError):
    """A checkpoint's offset log lacks a batch, or has it in another form."""

    def __init__(self, checkpoint: str, batch_id: int, problem: str) -> None:
        super().__init__(checkpoint, batch_id, problem)
        self.checkpoint = checkpoint
        self.batch_id = batch_id
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"the offset log in checkpoint {self.checkpoint} does not say what batch {self.batch_id} holds: "
            f"{self.problem}. Is `checkpoint` the folder of this very query, and does it read one source of "
            'format("slackwater")?'
        )


class StageDefinitionError(ApiError):
    """Arguments that make no stage."""

    def __init__(self, stage: str, argument: str, problem: str, hint: str) -> None:
        super().__init__(stage, argument, problem, hint)
        self.stage = stage
        self.argument = argument
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return f"stage {self.stage!r}: {self.argument} {self.problem}; {self.hint}"


class FunctionFailedError(ApiError):
    """A user's function raised an error on the rows of a key."""

    def __init__(self, stage: str, key: str, commit_lsn: int, error: str, place: str) -> None:
        super().__init__(stage, key, commit_lsn, error, place)
        self.stage = stage
        self.key = key
        self.commit_lsn = commit_lsn
        self.error = error
        """Class and message of what was raised."""
        self.place = place
        """File, line, function and text of the line in the user's code."""

    def __str__(self) -> str:
        return (
            f"the function of stage {self.stage!r} failed for key {self.key} at commit LSN "
            f"{self.commit_lsn}: {self.error}; {self.place}. The query stops here and loses nothing: with "
            "the function or the row corrected it goes on from this batch"
        )


class DocumentError(ApiError):
    """A user's function returned something else than its declared document."""

    def __init__(self, stage: str, key: str, commit_lsn: int, field: str, problem: str) -> None:
        super().__init__(stage, key, commit_lsn, field, problem)
        self.stage = stage
        self.key = key
        self.commit_lsn = commit_lsn
        self.field = field
        """Dotted path in the document; empty for the document as a whole."""
        self.problem = problem

    def __str__(self) -> str:
        what = f"field {self.field!r} of the document" if self.field else "the document"
        return (
            f"{what} that the function of stage {self.stage!r} returned for key {self.key} at commit LSN "
            f"{self.commit_lsn} is not what its schema says: {self.problem}"
        )
