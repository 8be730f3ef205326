"""SQL in the database of the local stack, for machines without a client of PostgreSQL."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import psycopg

from slackwater.protocol import InputError

Row = tuple[object, ...]

_COPY: Final = re.compile(
    r"^(?P<statement>COPY [^;\n]* FROM stdin[^;\n]*);[ \t]*\n(?P<rows>(?:.*\n)*?)\\\.[ \t]*(?:\n|\Z)",
    re.MULTILINE | re.IGNORECASE,
)
_RESTRICTION: Final = re.compile(r"^\\(?:un)?restrict .*$", re.MULTILINE)


def run_sql(url: str, name: str, text: str) -> list[list[Sequence[str]]]:
    """Runs statements and returns, for each, the lines of a table: its rows below their columns' names.

    A statement that returns no rows has one line, such as ``INSERT 0 2``. Statements that are not between
    BEGIN and COMMIT are one transaction. What ``pg_dump`` writes can be run, rows of COPY included.

    Args:
        url: The database.
        name: The file of the statements, for errors.
        text: The statements.

    Raises:
        InputError: PostgreSQL cannot be reached, or refuses a statement.
    """
    parts, start = list(_parts(text)), 0
    try:
        with psycopg.connect(url, autocommit=True) as connection, ExitStack() as ending:
            if len(parts) > 1:
                ending.enter_context(connection.transaction())
            cursor = ending.enter_context(connection.cursor())
            results: list[list[Sequence[str]]] = []
            for part in parts:
                start, statements, rows = part
                results += _run(cursor, statements, rows)
            return results
    except psycopg.Error as error:
        place = error.diag.statement_position
        line = "" if place is None else f":{text.count(chr(10), 0, start + int(place) - 1) + 1}"
        reason = error.diag.message_primary or " ".join(str(error).split())
        raise InputError(f"{name}{line}: {reason}", error.diag.message_hint or "") from error


def _parts(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Yields statements with the place where they begin; of a COPY that reads rows also these."""
    done = 0
    for found in _COPY.finditer(text):
        if before := _without_restrictions(text[done : found.start()]):
            yield done, before, None
        yield found.start(), found["statement"], found["rows"]
        done = found.end()
    if not done or text[done:].strip():
        yield done, _without_restrictions(text[done:]), None


def _without_restrictions(text: str) -> str:
    """Returns statements without the commands by which a dump protects psql from its own text."""
    return _RESTRICTION.sub("", text)


def _run(cursor: psycopg.Cursor[Row], statements: str, rows: str | None) -> list[list[Sequence[str]]]:
    if rows is None:
        cursor.execute(statements.encode())
        return list(_results(cursor))
    with cursor.copy(statements.encode()) as copy:
        copy.write(rows)
    return [[[cursor.statusmessage or ""]]]


def _results(cursor: psycopg.Cursor[Row]) -> Iterator[list[Sequence[str]]]:
    has_more: bool | None = True
    while has_more:
        if cursor.description is None:
            yield [[cursor.statusmessage or ""]]
        else:
            rows = [["" if value is None else str(value) for value in row] for row in cursor]
            yield [[column.name for column in cursor.description], *rows]
        has_more = cursor.nextset()
