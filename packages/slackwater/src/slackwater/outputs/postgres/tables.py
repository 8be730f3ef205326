"""The tables of the views: their columns, created if they do not exist, otherwise compared with the views."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from slackwater.outputs.contract import (
    HISTORY_SUFFIX,
    OutputTable,
    SinkSettings,
    postgres_type,
    table_lost,
    table_taken,
)
from slackwater.outputs.postgres import ledger
from slackwater.outputs.postgres.ledger import Database
from slackwater.protocol import ConfigError, PostgresSettings
from slackwater.sql.plan import OutputColumn

_LONGEST_NAME: Final = 63
"""PostgreSQL's limit for names, in bytes."""

_REPLACED: Final = ": it was dropped, renamed or recreated"
_RESTORED: Final = "the table and its row in the ledger"
_FORGOTTEN: Final = f" and delete its row in {ledger.TABLES}"

VALID_FROM = "valid_from_lsn"
VALID_TO = "valid_to_lsn"
_LSN = "bigint"

_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod),
       attnotnull AND NOT atthasdef AND attidentity = '' AND attgenerated = ''
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""
_UNIQUE_KEYS = """
SELECT i.indisprimary, (SELECT array_agg(a.attname::text) FROM pg_attribute a
                        WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))
FROM pg_index i
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
  AND i.indexprs IS NULL AND (i.indisprimary OR (to_jsonb(i) ->> 'indnullsnotdistinct')::boolean)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSinkSettings(SinkSettings):
    """The tables of a pipeline in a database."""

    outputs: tuple[OutputTable, ...]
    postgres: PostgresSettings


@dataclass(frozen=True, slots=True)
class TableForm:
    """A table as a view needs it."""

    schema: str
    name: str
    columns: tuple[OutputColumn, ...]
    """The types are those of PostgreSQL's ``format_type``."""
    key: tuple[str, ...]

    @property
    def full_name(self) -> str:
        """``schema.name``."""
        return f"{self.schema}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        """The name for statements."""
        return sql.Identifier(self.schema, self.name)


def stored_columns(columns: Iterable[OutputColumn]) -> tuple[OutputColumn, ...]:
    """Returns columns with the types that PostgreSQL has for them."""
    return tuple(OutputColumn(column.name, postgres_type(column.type)) for column in columns)


def check_names(view: str, columns: Iterable[OutputColumn]) -> None:
    """Refuses columns whose names PostgreSQL would change.

    Raises:
        ConfigError: There is one; the error names it.
    """
    for column in columns:
        if len(column.name.encode()) > _LONGEST_NAME or "\x00" in column.name:
            raise ConfigError(
                f"view {view!r}: column name {column.name!r} has more than {_LONGEST_NAME} bytes, the "
                "maximum in PostgreSQL",
                "give the column a shorter name with AS",
            )


def forms(output: OutputTable) -> Iterator[TableForm]:
    """Yields the tables of a view: its own, then the one with its versions."""
    schema, _, name = output.name.rpartition(".")
    columns = stored_columns(output.columns)
    yield TableForm(schema, name, columns, output.key)
    if output.history:
        columns += (OutputColumn(VALID_FROM, _LSN), OutputColumn(VALID_TO, _LSN))
        yield TableForm(schema, name + HISTORY_SUFFIX, columns, (*output.key, VALID_FROM))


def prepare_tables(
    database: Database, settings: PostgresSinkSettings, *, has_progress: bool
) -> dict[str, int]:
    """Creates the missing tables, checks the others, and records all of them in the ledger.

    It is called in the transaction in which a run takes over the pipeline.

    Returns:
        The object id of each table by its full name.

    Raises:
        ConfigError: A table does not fit, or belongs to another pipeline.
        StateError: A table that the pipeline has written does not exist, or was replaced.
    """
    known = ledger.tables(database)
    found: dict[str, int] = {}
    for output in settings.outputs:
        for form in forms(output):
            name = form.full_name
            owner = known.get(name)
            if owner is not None and owner.pipeline != settings.pipeline:
                raise table_taken(settings.pipeline, name, owner.pipeline, _FORGOTTEN)
            oid = find_table(database, form)
            is_ours = owner is not None and owner.oid == oid
            if has_progress and not is_ours and not settings.accept_changed_output:
                raise table_lost(settings.pipeline, output, name, _REPLACED, _RESTORED)
            if oid is None:
                oid = _create(database, form)
            elif not is_ours and not settings.accept_changed_output and _has_rows(database, form):
                raise ConfigError(
                    f"pipeline {settings.pipeline!r}: table {name} contains rows that the pipeline has not "
                    "written",
                    f"empty it (TRUNCATE {form.identifier.as_string(database)}), or name another table for "
                    f"view {output.view!r} in pipeline.toml",
                )
            check_form(database, form, oid, output)
            if not ledger.take_table(database, settings.pipeline, output.view, name, oid):
                other = ledger.tables(database)[name].pipeline
                raise table_taken(settings.pipeline, name, other, _FORGOTTEN)
            found[name] = oid
    return found


def find_table(database: Database, form: TableForm) -> int | None:
    """Returns the object id of an ordinary or partitioned table; None if it does not exist."""
    row = database.execute(
        "SELECT c.oid::bigint, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s",
        (form.schema, form.name),
    ).fetchone()
    if row is None:
        return None
    if row[1] not in ("r", "p"):
        raise ConfigError(
            f"{form.full_name} is not a table",
            "name a table in pipeline.toml, or a name that does not exist yet",
        )
    return int(row[0])


def table_oids(database: Database, forms: Sequence[TableForm]) -> dict[str, int]:
    """Returns the object ids of the tables that exist, by full name."""
    rows = database.execute(
        "SELECT n.nspname || '.' || c.relname, c.oid::bigint FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN unnest(%s::text[], %s::text[]) AS w (space, name) ON n.nspname = space AND c.relname = name",
        ([form.schema for form in forms], [form.name for form in forms]),
        prepare=True,
    )
    return dict(rows.fetchall())


def declared(columns: Iterable[OutputColumn]) -> list[sql.Composed]:
    """Returns the declarations of columns in a CREATE TABLE."""
    return [sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(c.type)) for c in columns]


def names(columns: Sequence[str]) -> sql.Composed:
    """Returns the names of columns, quoted, with commas."""
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def check_form(database: Database, form: TableForm, oid: int, output: OutputTable) -> None:
    """Compares a table with what its view needs.

    Raises:
        ConfigError: They differ; the error names each difference, and a statement that repairs it.
    """
    there = {name: (kind, is_required) for name, kind, is_required in database.execute(_COLUMNS, (oid,))}
    differences, helps = [], []
    wanted = {column.name: column.type for column in form.columns}
    for name, kind in wanted.items():
        quoted = sql.Identifier(name).as_string(database)
        if name not in there:
            differences.append(f"no column {name!r} of type {kind}")
            helps.append(f"ADD COLUMN {quoted} {kind}")
        elif there[name][0] != kind:
            differences.append(f"column {name!r} is {there[name][0]} instead of {kind}")
            helps.append(f"ALTER COLUMN {quoted} TYPE {kind} USING {quoted}::{kind}")
    for name, (_, is_required) in there.items():
        if is_required and name not in wanted:
            differences.append(f"column {name!r}, which the view does not have, does not accept NULL")
            helps.append(f"ALTER COLUMN {sql.Identifier(name).as_string(database)} DROP NOT NULL")
    keys = [set(columns) for _, columns in database.execute(_UNIQUE_KEYS, (oid,))]
    if form.key and set(form.key) not in keys:
        key = names(form.key).as_string(database)
        differences.append(f"no primary key ({key})")
        helps.append(f"ADD PRIMARY KEY ({key})")
    if differences:
        raise ConfigError(
            f"table {form.full_name} does not fit view {output.view!r}: {'; '.join(differences)}",
            f"ALTER TABLE {form.identifier.as_string(database)} {', '.join(helps)}; or, if no batch was "
            "published, drop the table, and the pipeline creates it again",
        )


def _create(database: Database, form: TableForm) -> int:
    known = database.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (form.schema,)).fetchone()
    if known is None:
        database.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(form.schema)))
    parts = declared(form.columns)
    if form.key:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(names(form.key)))
    body = sql.SQL(", ").join(parts)
    database.execute(sql.SQL("CREATE TABLE {} ({})").format(form.identifier, body))
    oid = find_table(database, form)
    assert oid is not None  # noqa: S101 - made in this transaction
    return oid


def _has_rows(database: Database, form: TableForm) -> bool:
    return (
        database.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(form.identifier)).fetchone() is not None
    )
