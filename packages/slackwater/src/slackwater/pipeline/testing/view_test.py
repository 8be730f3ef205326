"""Tests of a pipeline's views, with transactions of plain rows."""

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

import duckdb
import pyarrow as pa

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.pipeline.definition import PipelineDefinition, used_columns
from slackwater.pipeline.folder import load_pipeline
from slackwater.pipeline.testing.table_rows import Event, PlainRow, TableRows
from slackwater.protocol import ConfigError, InputError
from slackwater.protocol.keys import table_name
from slackwater.settings.errors import did_you_mean
from slackwater.sql.catalog import Catalog, Column, TypeKind
from slackwater.sql.duckdb_sql import identifier
from slackwater.sql.limits import open_connection
from slackwater.sql.plan import PublishedView

PlainDocument = Mapping[str, object]
"""A document: values by the name of their column."""

_MOST_SHOWN: Final = 20
"""The maximum number of different documents that are shown."""
_ABSENT: Final = object()


class ViewTest:
    """Runs a pipeline's views on the rows of a test, without servers and without Spark.

    A transaction consists of all changes up to :meth:`commit`. The documents after it are those that the
    output would contain, because the engine is that of `slackwater run`. The state is in memory. Use it from
    one thread. What changes rows raises InputError if there is no such table, or no row that matches, if a
    value is impossible, or if the primary key exists; the error names table, column and value.

    Args:
        pipeline: The folder of the pipeline, or its definition: ``Pipeline(...).definition``.

    Raises:
        ConfigError: Something cannot be used; the error names the file and the key.
        SqlError: A schema or view file is not supported; the error contains the position.
    """

    def __init__(self, pipeline: str | Path | PipelineDefinition) -> None:
        if isinstance(pipeline, str | Path):
            pipeline = load_pipeline(Path(pipeline))
        self._definition = pipeline
        sql = self._definition.sql
        if sql is None:
            raise ConfigError(f"pipeline {self._definition.name!r} does not consist of SQL views")
        self._catalog: Catalog = sql.catalog
        plan = self._definition.plan
        self._views: Mapping[str, tuple[int, PublishedView]] = {
            view.name: (number, view) for number, view in enumerate(plan.views)
        }
        self._unpublished = set(sql.view_names) - set(self._views)
        self._engine = LocalEngine(plan, buckets=1, evaluators=self._definition.evaluators)
        self.reset()

    def reset(self) -> Self:
        """Removes all rows, as in a new test, but in a fraction of the time."""
        self._engine.reset()
        used = used_columns(self._definition.plan)
        self._tables = {
            each.full_name: TableRows(each, used.get(each.full_name, ())) for each in self._catalog.tables
        }
        self._open: list[tuple[TableRows, Event]] = []
        self._time: int | None = None
        self._documents: dict[str, dict[bytes, bytes]] = {name: {} for name in self._views}
        self._position = 0
        self._commits = 0
        return self

    @property
    def commits(self) -> int:
        """The number of transactions that were committed."""
        return self._commits

    def insert(self, table: str, *rows: PlainRow) -> Self:
        """Adds rows to a table, within the open transaction.

        Args:
            table: ``schema.table``, or the name alone if it is unambiguous.
            rows: Values by column: numbers, text, dates, `Decimal` and so on. Decimals, dates, times and
                UUIDs may be text. Columns that are omitted are NULL; those that no view reads may always be
                omitted.
        """
        found = self._table(table)
        for row in rows:
            self._add(found, found.insert(row))
        return self

    def update(self, table: str, *rows: PlainRow, where: PlainRow | None = None) -> Self:
        """Changes rows of a table, within the open transaction.

        Args:
            table: As for :meth:`insert`.
            rows: The values that change, together with the primary key of the row.
            where: If given, all rows with these values are changed instead; this may change the primary key.
        """
        found = self._table(table)
        for row in rows:
            self._add(found, found.update(row, where))
        return self

    def delete(self, table: str, *rows: PlainRow) -> Self:
        """Removes the rows with these values, e.g. this primary key, within the open transaction."""
        found = self._table(table)
        for row in rows:
            self._add(found, found.delete(row))
        return self

    def truncate(self, *tables: str) -> Self:
        """Removes all rows of tables, within the open transaction."""
        for table in tables:
            found = self._table(table)
            self._add(found, found.truncate())
        return self

    def sql(self, text: str) -> Self:
        """Runs INSERT, UPDATE and DELETE statements in DuckDB's SQL; ``COMMIT`` ends a transaction.

        Raises:
            InputError: There is another kind of statement, or a statement fails.
        """
        for step in run_sql(text, tuple(self._tables.values())):
            if step is None:
                self.commit()
            else:
                self._open += step
        return self

    def at(self, time: datetime | str) -> Self:
        """Sets the commit time of the open transaction and of those after it, which is ``now()`` in views.

        A time without a zone is in UTC. The clock of views does not go back.
        """
        try:
            found = datetime.fromisoformat(str(time))
        except ValueError as error:
            raise InputError(f"{time!r} is not a time", "write 2026-11-20T10:00:00Z") from error
        self._time = int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
        return self

    def commit(self) -> Self:
        """Ends the transaction, which the views then show.

        Raises:
            InputError: Views depend on the time, and it is not given.
            EvaluationError: The SQL of a view fails on the rows.
        """
        events: list[ChangeEvent] = []
        commit_lsn = self._position + len(self._open) + 1
        for table, (op, before, after) in self._open:
            self._position += 1
            events.append((table.table.full_name, op, commit_lsn, before, after, self._position))
        self._position = commit_lsn
        self._commits += 1
        self._open.clear()
        if self._time is None and self._engine.spec.timed:
            raise InputError("the views depend on the time", "say at which time the transaction commits: at")
        ticks = () if self._time is None else ((commit_lsn, self._time),)
        changed = self._engine.run(events, first_lsn=commit_lsn, ticks=ticks)
        for name, (number, _) in self._views.items():
            documents = self._documents[name]
            for _, key, document in changed.get(number, ()):
                if document is None:
                    documents.pop(key, None)
                else:
                    documents[key] = document
        return self

    def documents(self, view: str) -> list[dict[str, Any]]:
        """Returns the documents of a view after the last transaction, ordered by their keys.

        The values are those of the output's JSON: a decimal, date or time is text.

        Raises:
            InputError: There is no such view, or a transaction is open.
        """
        self._view(view)
        if self._open:
            count = len(self._open)
            changes = "1 change is" if count == 1 else f"{count} changes are"
            raise InputError(f"{changes} not yet committed", "call commit() first")
        keyed = [(_order(json.loads(key)), json.loads(d)) for key, d in self._documents[view].items()]
        return [document for _, document in sorted(keyed, key=lambda each: each[0])]

    def expect(self, view: str, documents: Sequence[PlainDocument]) -> Self:
        """Checks that these are all documents of a view after the last transaction, in any order.

        Args:
            view: The name of the view.
            documents: The expected documents. A number may stand for the text of a decimal: ``12.5`` for
                ``"12.50"``.

        Raises:
            AssertionError: They differ; the message describes the differences by key and column.
            InputError: As for :meth:`documents`, or an expected column does not exist.
        """
        found = self.documents(view)
        lines = _differences(self._view(view), documents, found)
        if lines:
            after = "transaction 1" if self._commits == 1 else f"{self._commits} transactions"
            raise AssertionError("\n".join([f"view {view} differs after {after}:", *lines]))
        return self

    def _add(self, table: TableRows, events: Sequence[Event]) -> None:
        self._open += [(table, event) for event in events]

    def _table(self, name: str) -> TableRows:
        with suppress(ConfigError):
            if (full_name := table_name(name)) in self._tables:
                return self._tables[full_name]
        schema, _, table = name.rpartition(".")
        found = [each for each in self._catalog.find(schema, table) if not schema or each.schema == schema]
        if len(found) == 1:
            return self._tables[found[0].full_name]
        if found:
            raise InputError(f"table {name} exists in several schemas", "write schema.table")
        meant = self._catalog.similar_names(schema, table)
        declared = ", ".join(self._tables)
        hint = f"did you mean {' or '.join(meant)}?" if meant else f"declared are {declared}"
        raise InputError(f"no table {name} is declared", hint)

    def _view(self, name: str) -> PublishedView:
        if name in self._views:
            return self._views[name][1]
        if name in self._unpublished:
            hint = "test the views that read it, or publish it"
            raise InputError(f"view {name} is not published (publish = false)", hint)
        hint = did_you_mean(name, self._views) or f"there are {', '.join(self._views)}"
        raise InputError(f"there is no view {name}", hint)


def _order(value: Any) -> Any:
    """Returns a value by which any JSON values can be sorted: numbers before texts, by size."""
    match value:
        case None:
            return (0,)
        case bool() | int() | float():
            return (1, value)
        case str():
            return (2, value)
        case list():
            return (3, [_order(each) for each in value])
        case _:
            return (4, [(name, _order(each)) for name, each in value.items()])


Step = list[tuple[TableRows, Event]] | None
"""The changes of a statement; None for COMMIT."""

_CHANGING = (duckdb.StatementType.INSERT, duckdb.StatementType.UPDATE, duckdb.StatementType.DELETE)
_MOMENTS = (TypeKind.DATE, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
_BEGINS = ("BEGIN", "START")
_COMMITS = ("COMMIT", "END")


def run_sql(text: str, tables: Sequence[TableRows]) -> Iterator[Step]:
    """Runs the statements one after the other, each on the rows at its start.

    Raises:
        InputError: A statement does not change rows, or it fails.
    """
    try:
        statements = duckdb.extract_statements(text)
    except duckdb.Error as error:
        raise InputError(f"the SQL cannot be parsed: {_first_line(error)}") from None
    if not statements:
        return
    with open_connection() as connection:
        _create(connection, tables)
        for statement in statements:
            sql = statement.query.strip().rstrip(";").strip()
            word = sql.upper().split(maxsplit=1)[0]
            if statement.type is duckdb.StatementType.TRANSACTION and word in (*_BEGINS, *_COMMITS):
                if word in _COMMITS:
                    yield None
                continue
            if statement.type not in _CHANGING:
                hint = "INSERT, UPDATE, DELETE and TRUNCATE change rows, COMMIT ends a transaction"
                raise InputError(f"{_quoted(sql)} does not change rows", hint)
            yield _changes(connection, sql, tables)


def _changes(
    connection: duckdb.DuckDBPyConnection, sql: str, tables: Sequence[TableRows]
) -> list[tuple[TableRows, Event]]:
    _fill(connection, tables)
    before = [_rows(connection, table) for table in tables]
    try:
        connection.execute(sql)
    except duckdb.Error as error:
        raise InputError(f"{_quoted(sql)} fails: {_first_line(error)}") from None
    after = [_rows(connection, table) for table in tables]
    changed = [(table, new) for table, old, new in zip(tables, before, after, strict=True) if new != old]
    return [(table, event) for table, rows in changed for event in table.replace(rows)]


def _create(connection: duckdb.DuckDBPyConnection, tables: Sequence[TableRows]) -> None:
    for schema in dict.fromkeys(each.table.schema for each in tables):
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {identifier(schema)}")
    for each in tables:
        columns = ", ".join(f"{identifier(column.name)} {column.type.duckdb}" for column in each.columns)
        connection.execute(f"CREATE TABLE {_name(each)} ({columns})")
    if any(each.table.schema == "public" for each in tables):
        connection.execute("SET schema = 'public'")


def _fill(connection: duckdb.DuckDBPyConnection, tables: Sequence[TableRows]) -> None:
    for each in tables:
        connection.execute(f"DELETE FROM {_name(each)}")  # noqa: S608
        if each.rows:
            arrays = [pa.array([row[c.name] for row in each.rows], c.type.arrow) for c in each.columns]
            names = [f"c{number}" for number in range(len(arrays))]
            connection.register("incoming", pa.table(arrays, names=names))
            values = (c.type.duckdb_expression(n) for c, n in zip(each.columns, names, strict=True))
            connection.execute(f"INSERT INTO {_name(each)} SELECT {', '.join(values)} FROM incoming")  # noqa: S608
            connection.unregister("incoming")


def _rows(connection: duckdb.DuckDBPyConnection, each: TableRows) -> list[PlainRow]:
    names = [column.name for column in each.columns]
    selected = ", ".join(map(_selected, each.columns))
    found: list[tuple[Any, ...]] = connection.execute(
        f"SELECT {selected} FROM {_name(each)}"  # noqa: S608
    ).fetchall()
    return [dict(zip(names, row, strict=True)) for row in found]


def _selected(column: Column) -> str:
    """Returns the expression that reads the column, because Python has no infinite dates."""
    name = identifier(column.name)
    return f"CAST({name} AS VARCHAR)" if column.type.kind in _MOMENTS else name


def _name(each: TableRows) -> str:
    return f"{identifier(each.table.schema)}.{identifier(each.table.name)}"


def _quoted(sql: str) -> str:
    line = " ".join(sql.split())
    return f"`{line[:77]}…`" if len(line) > 78 else f"`{line}`"


def _first_line(error: duckdb.Error) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def _differences(
    view: PublishedView, expected: Sequence[PlainDocument], found: Sequence[PlainDocument]
) -> list[str]:
    """Returns lines that describe the differences; empty if there are none. The order does not count."""
    _check_columns(view, expected)
    decimals = {column.name for column in view.outputs if "DECIMAL" in column.type}
    wanted = [(_comparable(row, decimals), row) for row in expected]
    there = [(_comparable(row, decimals), row) for row in found]
    missing, surplus = _without(wanted, there), _without(there, wanted)
    if not missing and not surplus:
        return []
    names = {column.name for column in view.outputs}
    key = view.key if set(view.key) <= names else ()
    by_key = _keyed(view.name, key, missing, decimals) if key else {}
    lines: list[list[str]] = []
    for of_document in surplus:
        other = by_key.pop(_key_of(key, of_document, decimals), None) if key else None
        if other is None:
            lines.append([f"  not expected: {_shown(of_document)}"])
        else:
            lines.append(
                [f"  {_shown_key(key, of_document)}:", *_columns(view, other, of_document, decimals)]
            )
    missed = list(by_key.values()) if key else missing
    lines += [[f"  missing: {_shown(each)}"] for each in missed]
    shown = [line for of_document in lines[:_MOST_SHOWN] for line in of_document]
    if len(lines) > _MOST_SHOWN:
        shown.append(f"  and {len(lines) - _MOST_SHOWN} more")
    return shown


def _check_columns(view: PublishedView, expected: Sequence[PlainDocument]) -> None:
    names = [column.name for column in view.outputs]
    for each in expected:
        if not isinstance(each, Mapping):
            raise InputError(
                f"a document of view {view.name} must be a mapping of columns to values, not {each!r}"
            )
        for name in each:
            if name not in names:
                hint = did_you_mean(name, names) or f"it has {', '.join(names)}"
                raise InputError(f"view {view.name} has no column {name}", hint)


def _without(
    some: Sequence[tuple[Hashable, PlainDocument]], others: Sequence[tuple[Hashable, PlainDocument]]
) -> list[PlainDocument]:
    """Returns the documents without an equal among others; each of these is the equal of only one."""
    left = Counter(comparable for comparable, _ in others)
    rest = []
    for comparable, row in some:
        if left[comparable] > 0:
            left[comparable] -= 1
        else:
            rest.append(row)
    return rest


def _keyed(
    view: str, key: Sequence[str], rows: Sequence[PlainDocument], decimals: set[str]
) -> dict[Hashable, PlainDocument]:
    found: dict[Hashable, PlainDocument] = {}
    for row in rows:
        if found.setdefault(_key_of(key, row, decimals), row) is not row:
            raise InputError(f"view {view}: {_shown_key(key, row)} is expected twice")
    return found


def _key_of(key: Sequence[str], row: PlainDocument, decimals: set[str]) -> Hashable:
    return _comparable({name: row.get(name) for name in key}, decimals)


def _columns(
    view: PublishedView, expected: PlainDocument, found: PlainDocument, decimals: set[str]
) -> Iterator[str]:
    for column in view.outputs:
        name = column.name
        want, have = expected.get(name, _ABSENT), found.get(name, _ABSENT)
        if _comparable({name: want}, decimals) != _comparable({name: have}, decimals):
            yield f"    {name}: expected {_shown(want)}, got {_shown(have)}"


def _comparable(row: PlainDocument, decimals: set[str]) -> Hashable:
    return frozenset((name, _value(value, is_decimal=name in decimals)) for name, value in row.items())


def _value(value: object, *, is_decimal: bool) -> Hashable:
    match value:
        case bool() | None:
            return ("constant", value)
        case int() | float() | Decimal():
            return ("number", Decimal(str(value)))
        case str():
            number = _number(value) if is_decimal else None
            return ("text", value) if number is None else ("number", number)
        case Mapping():
            fields = ((name, _value(each, is_decimal=is_decimal)) for name, each in value.items())
            return ("struct", frozenset(fields))
        case list() | tuple():
            return ("list", tuple(_value(each, is_decimal=is_decimal) for each in value))
        case datetime() | date() | time() | UUID():
            return ("text", _as_text(value))
    return ("other", value if isinstance(value, Hashable) else repr(value))


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _as_text(value: object) -> str:
    """Returns a value in the form that documents have."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return moment.isoformat(timespec="microseconds") + ("" if value.tzinfo is None else "Z")
    if isinstance(value, time):
        text = value.isoformat()
        return text.rstrip("0") if "." in text else text
    return str(value)


def _shown_key(key: Sequence[str], row: PlainDocument) -> str:
    return ", ".join(f"{name} = {_shown(row.get(name))}" for name in key)


def _shown(value: Any) -> str:
    """Writes a value as JSON, numbers with all their digits."""
    match value:
        case Mapping():
            return "{" + ", ".join(f"{json.dumps(n)}: {_shown(each)}" for n, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_shown, value)) + "]"
        case Decimal():
            return str(value)
        case bool() | int() | float() | None:
            return json.dumps(value)
    return "nothing" if value is _ABSENT else json.dumps(_as_text(value), ensure_ascii=False)
