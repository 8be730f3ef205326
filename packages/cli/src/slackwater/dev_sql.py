"""SQL in the database of the local stack, for machines without a client of PostgreSQL."""

from collections.abc import Iterator, Sequence

import psycopg

from slackwater_command.errors import CommandInputError

Row = tuple[object, ...]


def run_sql(url: str, name: str, text: str) -> list[list[Sequence[str]]]:
    """Runs statements and returns, for each, the lines of a table: its rows below their columns' names.

    A statement that returns no rows has one line, such as ``INSERT 0 2``. Statements that are not between
    BEGIN and COMMIT are one transaction.

    Args:
        url: The database.
        name: The file of the statements, for errors.
        text: The statements.

    Raises:
        CommandInputError: PostgreSQL cannot be reached, or refuses a statement.
    """
    try:
        with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(text.encode())
            return list(_results(cursor))
    except psycopg.Error as error:
        place = error.diag.statement_position
        line = "" if place is None else f":{text.count(chr(10), 0, int(place) - 1) + 1}"
        reason = error.diag.message_primary or " ".join(str(error).split())
        raise CommandInputError(f"{name}{line}: {reason}", error.diag.message_hint or "") from error


def _results(cursor: psycopg.Cursor[Row]) -> Iterator[list[Sequence[str]]]:
    has_more: bool | None = True
    while has_more:
        if cursor.description is None:
            yield [[cursor.statusmessage or ""]]
        else:
            rows = [["" if value is None else str(value) for value in row] for row in cursor]
            yield [[column.name for column in cursor.description], *rows]
        has_more = cursor.nextset()
