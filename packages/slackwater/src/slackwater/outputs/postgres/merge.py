"""Writes the documents of a view into its table: COPY into a temporary table, then one merge.

In addition to the view's columns, the temporary table contains the commit at which a row is shown, and
whether it is a delete. If a key has several documents in a batch, the table gets the newest, and the table of
versions gets all of them.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

import psycopg
from psycopg import sql

from slackwater.engine.payloads import Document
from slackwater.outputs.contract import OutputTable, UnfitValueError
from slackwater.outputs.errors import OutputRefusedError
from slackwater.outputs.postgres.answers import refusal
from slackwater.outputs.postgres.columns import NULL, RowReader
from slackwater.outputs.postgres.ledger import Database
from slackwater.outputs.postgres.tables import VALID_FROM, VALID_TO, TableForm, forms, names
from slackwater.protocol import SlackwaterError, format_position
from slackwater.sql.plan import OutputColumn

_COPY_ROWS: Final = 500
"""The number of lines that are passed to the connection at a time."""
_SHOWN_KEY: Final = 200
_LSN: Final = "slackwater_lsn"
_DELETED: Final = "slackwater_deleted"
_LINE_OF_COPY: Final = "line "


class TableWriter:
    """Writes the batches of one view over one connection.

    Args:
        pipeline: The name of the pipeline, for messages.
        output: The table.
        number: The number of the view.
        several: Whether a batch may have several documents of a key.
    """

    def __init__(self, pipeline: str, output: OutputTable, number: int, *, several: bool) -> None:
        self._pipeline = pipeline
        self._output = output
        self._several = several
        self._form, *self._versions = forms(output)
        self._staging_name = f"slackwater_staging_{number}"
        self._staging = sql.Identifier("pg_temp", self._staging_name)
        self._columns = self._form.columns
        self._row = RowReader(self._columns)
        by_name = {column.name: column for column in self._columns}
        self._key = RowReader([by_name[name] for name in output.key])
        positions = {column.name: position for position, column in enumerate(self._columns)}
        self._key_positions = [positions[name] for name in output.key]
        self._blank = [NULL] * len(self._columns)
        self._copy = sql.SQL("COPY {} FROM STDIN").format(self._staging)
        self._has_null_keys = False
        self._deletes = list(self._delete_statements())
        self._merge = [self._upsert(), *(self._insert_versions(form) for form in self._versions)]

    def prepare(self, connection: Database) -> None:
        """Creates the temporary table, once per connection and outside a transaction."""
        columns = [*self._columns, OutputColumn(_LSN, "bigint"), OutputColumn(_DELETED, "boolean")]
        body = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type)) for column in columns
        )
        made = sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS")
        connection.execute(made.format(sql.Identifier(self._staging_name), body))

    def copy(self, connection: Database, shown: Iterable[Document]) -> tuple[int, int]:
        """Copies documents to the database; the table does not contain them yet.

        Returns:
            The number of documents, and how many of them are deletes.

        Raises:
            OutputRefusedError: A value does not fit its column; the error names view, key and column.
            psycopg.Error: PostgreSQL's answer.
        """
        documents = deletes = 0
        self._has_null_keys = False
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
        """Merges the copied documents into the table, and into the table of its versions.

        Keys with NULL have separate statements, because no index finds them by equality.
        """
        for statement, is_for_null_keys in self._deletes:
            if not is_for_null_keys or self._has_null_keys:
                connection.execute(statement, prepare=True)
        for statement in self._merge:
            connection.execute(statement, prepare=True)

    def refused(
        self, connection: Database, error: psycopg.Error, shown: Callable[[], Iterable[Document]]
    ) -> SlackwaterError:
        """Returns the error to raise after an error that is not transient; it names the document if possible.

        Args:
            connection: A connection whose transaction has failed; it is rolled back.
            error: The answer.
            shown: Returns the documents again.
        """
        line = _line_of(error)
        if line is None and isinstance(error, psycopg.IntegrityError | psycopg.DataError):
            line = self._first_refused(connection, error, shown)
        found = None if line is None else next(islice(shown(), line - 1, None), None)
        what = self._named(None if found is None else found[:2])
        column = error.diag.column_name or _column_of(error)
        return refusal(self._pipeline, what + (f", column {column!r}" if column else ""), error)

    def _first_refused(
        self, connection: Database, error: psycopg.Error, shown: Callable[[], Iterable[Document]]
    ) -> int | None:
        """Returns the number of the first document that causes the same error, by bisection; None if unknown.

        All attempts are rolled back. They do not include the transaction's other views, so an error that
        depends on those is not found.
        """
        connection.execute("ROLLBACK")
        passing, failing = 0, sum(1 for _ in shown())
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if self._is_refused(connection, error, islice(shown(), middle)):
                failing = middle
            else:
                passing = middle
        is_found = self._is_refused(connection, error, islice(shown(), failing))
        return failing if is_found else None

    def _is_refused(self, connection: Database, error: psycopg.Error, shown: Iterable[Document]) -> bool:
        connection.execute("BEGIN")
        try:
            self.copy(connection, shown)
            self.merge(connection)
        except psycopg.Error as other:
            return other.sqlstate == error.sqlstate
        finally:
            connection.execute("ROLLBACK")
        return False

    def _line(self, lsn: int, key: bytes, document: bytes | None) -> str:
        try:
            if document is not None:
                fields = self._row.fields(document)
            else:
                fields = self._blank.copy()
                for position, field in zip(self._key_positions, self._key.fields(key), strict=True):
                    fields[position] = field
        except UnfitValueError as error:
            raise OutputRefusedError(
                self._pipeline,
                self._named((lsn, key)),
                str(error),
                "correct the value in the source database or change the view (a new revision), then start "
                "the pipeline again",
            ) from error

        if not self._has_null_keys:
            self._has_null_keys = any(fields[position] == NULL for position in self._key_positions)
        return "\t".join((*fields, str(lsn), "f\n" if document is not None else "t\n"))

    def _named(self, document: tuple[int, bytes] | None) -> str:
        what = f"view {self._output.view!r} in table {self._output.name}"
        if document is None:
            return what
        lsn, key = document
        shown = key.decode(errors="replace")[:_SHOWN_KEY]
        return f"a document of {what}, key {shown}, commit LSN {format_position(lsn)}"

    def _newest(self) -> sql.Composable:
        """Returns a query for the newest copied document of each key."""
        if not self._several:
            return self._staging
        lsn = sql.Identifier(_LSN)
        if not self._form.key:
            return sql.SQL("(SELECT * FROM {} ORDER BY {} DESC LIMIT 1)").format(self._staging, lsn)
        key = names(self._form.key)
        query = sql.SQL("(SELECT DISTINCT ON ({}) * FROM {} ORDER BY {}, {} DESC)")
        return query.format(key, self._staging, key, lsn)

    def _delete_statements(self) -> Iterator[tuple[sql.Composed, bool]]:
        """Yields statements that remove rows and end versions, each with whether it is for keys with NULL."""
        if not self._form.key:
            delete = sql.SQL("DELETE FROM {} WHERE EXISTS (SELECT FROM {})")
            yield delete.format(self._form.identifier, self._staging), False
        delete = sql.SQL("DELETE FROM {} t USING {} s WHERE s.{} AND {}")
        deleted = sql.Identifier(_DELETED)
        for is_same, is_for_null in self._is_same():
            yield delete.format(self._form.identifier, self._newest(), deleted, is_same), is_for_null
        for form in self._versions:
            for is_same, is_for_null in self._is_same() if self._form.key else [(sql.SQL("true"), False)]:
                yield self._end_versions(form, is_same), is_for_null

    def _upsert(self) -> sql.Composed:
        newest = self._newest()
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

    def _end_versions(self, form: TableForm, is_same: sql.Composable) -> sql.Composed:
        key, lsn, valid_to = self._output.key, sql.Identifier(_LSN), sql.Identifier(VALID_TO)
        first = sql.SQL("SELECT {}min({}) AS {} FROM {}{}").format(
            sql.SQL("{}, ").format(names(key)) if key else sql.SQL(""),
            lsn,
            lsn,
            self._staging,
            sql.SQL(" GROUP BY {}").format(names(key)) if key else sql.SQL(" HAVING count(*) > 0"),
        )
        update = sql.SQL("UPDATE {} t SET {} = s.{} FROM ({}) s WHERE t.{} IS NULL AND {}")
        return update.format(form.identifier, valid_to, lsn, first, valid_to, is_same)

    def _insert_versions(self, form: TableForm) -> sql.Composed:
        """Returns the statement that adds the new versions, each valid until the next one."""
        key, lsn, valid_to = self._output.key, sql.Identifier(_LSN), sql.Identifier(VALID_TO)
        columns = names([column.name for column in self._columns])
        partition = sql.SQL("PARTITION BY {} ").format(names(key)) if key else sql.SQL("")
        versions = sql.SQL("SELECT *, lead({}) OVER ({}ORDER BY {}) AS {} FROM {}").format(
            lsn, partition, lsn, valid_to, self._staging
        )
        return sql.SQL("INSERT INTO {} ({}, {}, {}) SELECT {}, {}, {} FROM ({}) s WHERE NOT {}").format(
            form.identifier, columns, sql.Identifier(VALID_FROM), valid_to,
            columns, lsn, valid_to, versions, sql.Identifier(_DELETED),
        )  # fmt: skip

    def _is_same(self) -> Iterator[tuple[sql.Composable, bool]]:
        """Yields conditions that rows `t` and `s` have the same key: without NULL, then with NULL."""
        key = [sql.Identifier(name) for name in self._output.key]
        if key:
            yield sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(name) for name in key), False
            both = sql.SQL(" AND ").join(
                sql.SQL("t.{0} IS NOT DISTINCT FROM s.{0}").format(name) for name in key
            )
            some = sql.SQL(" OR ").join(sql.SQL("s.{} IS NULL").format(name) for name in key)
            yield sql.SQL("({}) AND {}").format(some, both), True


def _line_of(error: psycopg.Error) -> int | None:
    """Returns the number of the COPY line that an error refers to; None if it refers to none."""
    context = error.diag.context or ""
    _, found, rest = context.partition(_LINE_OF_COPY)
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return int(digits) if found and digits else None


def _column_of(error: psycopg.Error) -> str | None:
    context = error.diag.context or ""
    _, found, rest = context.partition(", column ")
    return rest.partition(":")[0] if found else None
