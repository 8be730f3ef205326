"""Writes the documents of a view into its table: COPY into a temporary table, then one merge.

The temporary table holds, beside the columns, the commit at which a row is shown and whether it is a delete.
If a key has several documents in a batch the newest counts for the table; the table of versions takes all.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import psycopg
from psycopg import sql

from slackwater_protocol import format_position
from slackwater_spark.errors import OutputRefusedError, PipelineError
from slackwater_spark.sink.postgres.answers import refusal
from slackwater_spark.sink.postgres.columns import RowReader, TableColumn, UnfitValueError
from slackwater_spark.sink.postgres.ledger import Database
from slackwater_spark.sink.postgres.settings import OutputTable
from slackwater_spark.sink.postgres.tables import VALID_FROM, VALID_TO, TableForm, forms, names

_COPY_ROWS: Final = 500
"""Lines that are handed to the connection at a time."""
_SHOWN_KEY: Final = 200
_LSN: Final = "slackwater_lsn"
_DELETED: Final = "slackwater_deleted"
_LINE_OF_COPY: Final = "line "

Shown = tuple[int, bytes, bytes | None]
"""The commit at which a document is shown, its key and the document; None: a delete."""


class TableWriter:
    """Writes the batches of one view over one connection.

    Args:
        pipeline: Its name, for messages.
        output: The table.
        number: The view's number.
        several: Whether a batch may have several documents of a key.
    """

    def __init__(self, pipeline: str, output: OutputTable, number: int, *, several: bool) -> None:
        self._pipeline = pipeline
        self._output = output
        self._several = several
        self._form, *self._versions = forms(output)
        self._staging_name = f"slackwater_staging_{number}"
        self._staging = sql.Identifier("pg_temp", self._staging_name)
        self._row = RowReader(output.columns)
        by_name = {column.name: column for column in output.columns}
        self._key = RowReader([by_name[name] for name in output.key])
        positions = {column.name: position for position, column in enumerate(output.columns)}
        self._key_positions = [positions[name] for name in output.key]
        self._blank = ["\\N"] * len(output.columns)
        self._copy = sql.SQL("COPY {} FROM STDIN").format(self._staging)
        self._merge = list(self._merge_statements())

    def prepare(self, connection: Database) -> None:
        """Makes the temporary table; once per connection, outside a transaction."""
        columns = [*self._output.columns, TableColumn(_LSN, "bigint"), TableColumn(_DELETED, "boolean")]
        body = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type)) for column in columns
        )
        made = sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS")
        connection.execute(made.format(sql.Identifier(self._staging_name), body))

    def copy(self, connection: Database, shown: Iterable[Shown]) -> tuple[int, int]:
        """Brings documents to the database; nothing of them is in the table yet.

        Returns:
            How many there are, and how many of them are deletes.

        Raises:
            OutputRefusedError: a value does not fit its column; names view, key and column.
            psycopg.Error: PostgreSQL's answer.
        """
        documents = deletes = 0
        lines: list[str] = []
        with connection.cursor() as cursor, cursor.copy(self._copy) as copy:
            for lsn, key, document in shown:
                lines.append(self._line(lsn, key, document))
                documents += 1
                deletes += document is None
                if len(lines) == _COPY_ROWS:
                    copy.write("".join(lines))
                    lines.clear()
            copy.write("".join(lines))
        return documents, deletes

    def merge(self, connection: Database) -> None:
        """Merges what was copied into the table, and into that of its versions."""
        for statement in self._merge:
            connection.execute(statement, prepare=True)

    def refused(self, error: psycopg.Error, shown: Iterable[Shown]) -> PipelineError:
        """Returns what to raise after an answer that does not pass; names the document if it is known.

        Args:
            error: The answer.
            shown: The documents once more.
        """
        line = _line_of(error)
        found = None if line is None else next(islice(shown, line - 1, None), None)
        what = self._named(None if found is None else found[:2])
        column = error.diag.column_name or _column_of(error)
        return refusal(self._pipeline, what + (f", column {column!r}" if column else ""), error)

    def _line(self, lsn: int, key: bytes, document: bytes | None) -> str:
        try:
            if document is not None:
                return "\t".join((*self._row.fields(document), str(lsn), "f\n"))
            fields = self._blank.copy()
            for position, field in zip(self._key_positions, self._key.fields(key), strict=True):
                fields[position] = field
            return "\t".join((*fields, str(lsn), "t\n"))
        except UnfitValueError as error:
            raise OutputRefusedError(
                self._pipeline,
                self._named((lsn, key)),
                str(error),
                "correct the value in the source database or change the view (a new revision), then start "
                "the pipeline again",
            ) from error

    def _named(self, document: tuple[int, bytes] | None) -> str:
        what = f"view {self._output.view!r} in table {self._output.full_name}"
        if document is None:
            return what
        lsn, key = document
        shown = key.decode(errors="replace")[:_SHOWN_KEY]
        return f"a document of {what}, key {shown}, commit LSN {format_position(lsn)}"

    def _merge_statements(self) -> Iterator[sql.Composed]:
        newest: sql.Composable = self._staging
        if self._several:
            key = names(self._form.key)
            pick = sql.SQL("DISTINCT ON ({}) *").format(key) if self._form.key else sql.SQL("*")
            order = sql.SQL("{}, ").format(key) if self._form.key else sql.SQL("")
            limit = sql.SQL("" if self._form.key else " LIMIT 1")
            newest = sql.SQL("(SELECT {} FROM {} ORDER BY {}{} DESC{})").format(
                pick, self._staging, order, sql.Identifier(_LSN), limit
            )
        yield self._delete(newest)
        yield self._upsert(newest)
        for form in self._versions:
            yield from self._keep_versions(form)

    def _delete(self, newest: sql.Composable) -> sql.Composed:
        if not self._form.key:
            return sql.SQL("DELETE FROM {} WHERE EXISTS (SELECT FROM {} s)").format(
                self._form.identifier, self._staging
            )
        return sql.SQL("DELETE FROM {} t USING {} s WHERE s.{} AND {}").format(
            self._form.identifier, newest, sql.Identifier(_DELETED), self._is_same("t", "s")
        )

    def _upsert(self, newest: sql.Composable) -> sql.Composed:
        columns = [column.name for column in self._form.columns]
        insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} s WHERE NOT {}").format(
            self._form.identifier, names(columns), names(columns), newest, sql.Identifier(_DELETED)
        )
        if not self._form.key:
            return insert
        others = [name for name in columns if name not in self._form.key]
        changes = sql.SQL(", ").join(
            sql.SQL("{} = EXCLUDED.{}").format(sql.Identifier(name), sql.Identifier(name)) for name in others
        )
        action = sql.SQL("UPDATE SET {}").format(changes) if others else sql.SQL("NOTHING")
        return sql.SQL("{} ON CONFLICT ({}) DO {}").format(insert, names(self._form.key), action)

    def _keep_versions(self, form: TableForm) -> Iterator[sql.Composed]:
        """Ends the versions that were current, then adds the new ones, each until the next."""
        key, lsn = self._output.key, sql.Identifier(_LSN)
        first = sql.SQL("SELECT {}min({}) AS {} FROM {}{}").format(
            sql.SQL("{}, ").format(names(key)) if key else sql.SQL(""),
            lsn,
            lsn,
            self._staging,
            sql.SQL(" GROUP BY {}").format(names(key)) if key else sql.SQL(" HAVING count(*) > 0"),
        )
        yield sql.SQL("UPDATE {} t SET {} = s.{} FROM ({}) s WHERE t.{} IS NULL AND {}").format(
            form.identifier, sql.Identifier(VALID_TO), lsn, first, sql.Identifier(VALID_TO),
            self._is_same("t", "s") if key else sql.SQL("true"),
        )  # fmt: skip
        columns = names([column.name for column in self._output.columns])
        partition = sql.SQL("PARTITION BY {} ").format(names(key)) if key else sql.SQL("")
        versions = sql.SQL("SELECT *, lead({}) OVER ({}ORDER BY {}) AS {} FROM {}").format(
            lsn, partition, lsn, sql.Identifier(VALID_TO), self._staging
        )
        yield sql.SQL("INSERT INTO {} ({}, {}, {}) SELECT {}, {}, {} FROM ({}) s WHERE NOT {}").format(
            form.identifier, columns, sql.Identifier(VALID_FROM), sql.Identifier(VALID_TO),
            columns, lsn, sql.Identifier(VALID_TO), versions, sql.Identifier(_DELETED),
        )  # fmt: skip

    def _is_same(self, one: str, other: str) -> sql.Composed:
        """Returns that two rows have one key. NULL is a value of a key, where the table allows it."""
        return sql.SQL(" AND ").join(
            sql.SQL("({a}.{n} = {b}.{n} OR ({a}.{n} IS NULL AND {b}.{n} IS NULL))").format(
                a=sql.Identifier(one), b=sql.Identifier(other), n=sql.Identifier(name)
            )
            for name in self._output.key
        )


def _line_of(error: psycopg.Error) -> int | None:
    """Returns the number of the line of COPY that an error is about; None if it is about none."""
    context = error.diag.context or ""
    _, found, rest = context.partition(_LINE_OF_COPY)
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return int(digits) if found and digits else None


def _column_of(error: psycopg.Error) -> str | None:
    context = error.diag.context or ""
    _, found, rest = context.partition(", column ")
    return rest.partition(":")[0] if found else None
