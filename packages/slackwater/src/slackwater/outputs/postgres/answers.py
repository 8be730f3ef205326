"""PostgreSQL's answers to a sink: which errors are transient, and the remedies for the others."""

from typing import Final

import psycopg
from psycopg import errors

from slackwater.outputs.errors import OutputRefusedError
from slackwater.protocol import SlackwaterError, StateError

_AGAIN: Final = "then start the pipeline again"
_PASSING_CLASSES: Final = ("08", "40", "53", "55", "57", "58")
"""Connection, rollback by the server, resources such as a full disk, lock not available, server shutting down
or starting, and errors of the machine."""
_READ_ONLY: Final = "25006"
"""During a failover, a server does not accept writes yet."""
_CHANGED: Final = (
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.InvalidSchemaName,
    errors.InvalidColumnReference,
)
_ADVICE: Final = {
    "42501": "grant the pipeline's user USAGE on the schema and SELECT, INSERT, UPDATE, DELETE on the table "
    f"(and CREATE on schema and database if the pipeline has to create them), {_AGAIN}",
    "23505": "another unique constraint of the table forbids the view's rows: drop it, or make it "
    f"DEFERRABLE INITIALLY DEFERRED if a value only moves between rows, {_AGAIN}",
    "23502": "allow NULL in the column; for a column of the view's key, replace the primary key with a "
    f"unique index with NULLS NOT DISTINCT on the same columns, {_AGAIN}",
    "23503": f"a foreign key of this or another table forbids it: drop the foreign key, {_AGAIN}",
    "23514": f"drop the check constraint, or change the view, {_AGAIN}",
}
_CHANGE_VIEW: Final = (
    f"correct the value in the source database or change the view (a new revision), {_AGAIN}"
)


def passes(error: psycopg.Error) -> bool:
    """Returns whether the same may succeed later without any change of the data."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state[:2] in _PASSING_CLASSES or state == _READ_ONLY


def reason(error: psycopg.Error) -> str:
    """Returns PostgreSQL's own message in one line; it never contains a password."""
    diagnosis = error.diag
    parts = [diagnosis.message_primary or str(error).strip() or type(error).__name__]
    parts += [part for part in (diagnosis.message_detail, diagnosis.message_hint) if part]
    return "; ".join(" ".join(part.split()) for part in parts)


def refusal(pipeline: str, what: str, error: psycopg.Error) -> SlackwaterError:
    """Returns the error to raise after an error that is not transient.

    Args:
        pipeline: The name of the pipeline.
        what: The view and its table, and the key if it is known.
        error: PostgreSQL's answer.
    """
    if isinstance(error, _CHANGED):
        return StateError(
            f"pipeline {pipeline!r}: {what} was changed since the pipeline wrote it: {reason(error)}",
            f"restore the table, {_AGAIN}; it continues where the output ends. If rows are lost, raise "
            "`revision` in pipeline.toml, which rebuilds the view in a new table",
        )
    return OutputRefusedError(pipeline, what, reason(error), _ADVICE.get(error.sqlstate or "", _CHANGE_VIEW))
