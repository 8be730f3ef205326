"""Writes the documents of a view into its table: COPY into a temporary table, then one merge.

PostgreSQL's answers are judged here, too: which errors are transient, and the remedies for the others.

In addition to the view's columns, the temporary table contains the commit at which a row is shown, and
whether it is a delete. If a key has several documents in a batch, the table gets the newest, and the table of
versions gets all of them.
"""

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
import psycopg
from psycopg import errors, sql

from slackwater.engine.payloads import Document
from slackwater.outputs.contract import (
    CHANGE_VALUE,
    OutputRefusedError,
    OutputTable,
    UnfitValueError,
    row_decoder,
    unfit_document,
)
from slackwater.outputs.postgres.ledger import Database
from slackwater.outputs.postgres.tables import VALID_FROM, VALID_TO, TableForm, declared, forms, names
from slackwater.protocol import SlackwaterError, StateError
from slackwater.sql.plan import OutputColumn

_COPY_ROWS: Final = 500
"""The number of lines that are passed to the connection at a time."""
_LSN: Final = "slackwater_lsn"
_DELETED: Final = "slackwater_deleted"
_LINE_OF_COPY: Final = re.compile(r"line (\d+)")
_COLUMN_OF_COPY: Final = re.compile(r", column ([^:]*)")
_ESCAPED: Final = re.compile(r"[\\\t\n\r]")
_ESCAPES: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_NULL: Final = "\\N"
"""The field for NULL."""
_LOOSE: Final = frozenset({"real", "double precision"})
"""Types whose JSON is a number or a string."""
_VERBATIM: Final = frozenset(
    {"boolean", "smallint", "integer", "bigint", "numeric(20,0)", "numeric(39,0)", "jsonb"}
)
"""Types whose JSON PostgreSQL can read without conversion."""
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


class RowReader:
    """Converts documents or keys to the fields of a line of COPY, in its text format.

    Args:
        columns: The columns, in the order of the fields; with PostgreSQL's types.
    """

    def __init__(self, columns: Sequence[OutputColumn]) -> None:
        self._decode = row_decoder([(column.name, _json_type(column.type)) for column in columns])
        self._columns = [(column.name, _field_of(column.type)) for column in columns]

    def fields(self, data: bytes) -> list[str]:
        """Returns the fields of a line, escaped.

        Raises:
            UnfitValueError: A value does not fit its column; the error names it.
        """
        found = []
        for value, (column, convert) in zip(self._decode(data), self._columns, strict=True):
            try:
                found.append(_NULL if value is None else convert(value))
            except ValueError as error:
                raise UnfitValueError(f"column {column!r}: {error}") from error
        return found


class TableWriter:
    """Writes the batches of one view over one connection."""

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
        self._blank = [_NULL] * len(self._columns)
        self._copy = sql.SQL("COPY {} FROM STDIN").format(self._staging)
        self._has_null_keys = False
        self._deletes = list(self._delete_statements())
        self._merge = [self._upsert(), *(self._insert_versions(form) for form in self._versions)]

    def prepare(self, connection: Database) -> None:
        """Creates the temporary table, once per connection and outside a transaction."""
        columns = [*self._columns, OutputColumn(_LSN, "bigint"), OutputColumn(_DELETED, "boolean")]
        body = sql.SQL(", ").join(declared(columns))
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
        context = error.diag.context or ""
        placed, in_column = _LINE_OF_COPY.search(context), _COLUMN_OF_COPY.search(context)
        line = int(placed[1]) if placed else None
        if line is None and isinstance(error, psycopg.IntegrityError | psycopg.DataError):
            line = self._first_refused(connection, error, shown)
        found = None if line is None else next(islice(shown(), line - 1, None), None)
        output = self._output
        what = output.title if found is None else output.document(*found[:2])
        column = error.diag.column_name or (in_column and in_column[1])
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
            raise unfit_document(self._pipeline, self._output, lsn, key, error) from error
        if not self._has_null_keys:
            self._has_null_keys = any(fields[position] == _NULL for position in self._key_positions)
        return "\t".join((*fields, str(lsn), "f\n" if document is not None else "t\n"))

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


def _json_type(column_type: str) -> Any:
    return msgspec.Raw if column_type in _LOOSE | _VERBATIM else str | None


def _field_of(column_type: str) -> Callable[[Any], str]:
    if column_type == "jsonb":
        return _json
    if column_type in _LOOSE:
        return _number
    if column_type in _VERBATIM:
        return _verbatim
    return _bytes if column_type == "bytea" else _text


def _text(value: str) -> str:
    if "\x00" in value:
        raise ValueError("the text contains a NUL character, which PostgreSQL does not accept")
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], value)


def _bytes(value: str) -> str:
    try:
        return "\\\\x" + b64decode(value, validate=True).hex()
    except Base64Error as error:
        raise ValueError(f"not base64: {error}") from error


def _verbatim(value: msgspec.Raw) -> str:
    text = bytes(value).decode()
    return _NULL if text == "null" else text


def _number(value: msgspec.Raw) -> str:
    return _verbatim(value).strip('"')


def _json(value: msgspec.Raw) -> str:
    text = _verbatim(value)
    return text if text == _NULL else _text(text)


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
    """Returns the error to raise after an error that is not transient."""
    if isinstance(error, _CHANGED):
        return StateError(
            f"pipeline {pipeline!r}: {what} was changed since the pipeline wrote it: {reason(error)}",
            f"restore the table, {_AGAIN}; it continues where the output ends. If rows are lost, raise "
            "`revision` in pipeline.toml, which rebuilds the view in a new table",
        )
    return OutputRefusedError(pipeline, what, reason(error), _ADVICE.get(error.sqlstate or "", CHANGE_VALUE))
