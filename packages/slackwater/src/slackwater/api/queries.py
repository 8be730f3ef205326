"""SQL over views of several outputs, topics, PostgreSQL tables and lake tables alike, as of one commit."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any, Final

import duckdb
import pyarrow as pa

from slackwater.client import PipelineOutput, ReadLevel, TypedRows
from slackwater.client.snapshot import check_source, commit_to_read, views_by_output
from slackwater.protocol import Clock, CommitPosition, ConfigError, Lease
from slackwater.sql.duckdb_sql import identifier, literal

_DOCUMENTS: Final = 10_000
"""The number of documents that are copied at a time."""
_SAME: Final = re.compile(
    r"boolean|smallint|integer|bigint|numeric\(\d+,\d+\)|real|double precision|uuid|date|interval|bit varying"
    r"|time(stamp)? with(out)? time zone|HUGEINT|DOUBLE|BOOLEAN"
)
"""Types that DuckDB knows by these names; PostgreSQL's other types are text."""


_SESSION: Final = "SET TimeZone = 'UTC'; SET python_enable_replacements = false"
"""A name that is no view is an error, not a variable of the program."""


@contextmanager
def open_views(
    outputs: Sequence[PipelineOutput],
    views: Sequence[str] = (),
    *,
    at: CommitPosition | Lease,
    clock: Clock | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens a DuckDB database that contains views as of a commit, until the end of the block.

    SQL names a view by its name in the output in double quotes, or, if no other view has the same, by the
    last part of that name. Columns have the types of the output: those of the table, or in a topic those of
    JSON, where nested values are JSON and whole numbers HUGEINT. The views are copied one after the other,
    into a file that is removed at the end; of an output in Kafka or in a lake, the one that is copied is held
    in memory.

    Args:
        outputs: One per pipeline, all of the same source or chain.
        views: Names of views, as the outputs know them; empty: all views of all outputs.
        at: The commit, or a lease that ``take_lease`` returned. Without a lease, later views may have been
            removed while the first ones are copied, which is an error.
        clock: Tells whether the lease is over.

    Raises:
        ConfigError: As ``read_views``; or values of a view cannot be represented.
        NotVisibleError, StateNotKeptError, UnavailableError: As ``read_views``.
    """
    commit_to_read(outputs, at, ReadLevel.COMMITTED, clock)  # refuses a lease that is over
    position = at.position if isinstance(at, Lease) else at
    wanted = [(each, name) for each, names in views_by_output(outputs, views).items() for name in names]
    sources = [(f"lease {at.id}", at.source)] if isinstance(at, Lease) else []
    short = Counter(short_name(name).lower() for _, name in wanted)
    with (
        TemporaryDirectory(prefix="slackwater-views-") as folder,
        closing(duckdb.connect(f"{folder}/views.duckdb")) as database,
    ):
        database.execute(_SESSION)
        for output, name in wanted:
            rows = output.rows(name, position)
            sources.append((output.pipeline, rows.source))
            check_source(sources)
            try:
                _copy(database, identifier(name), rows)
            except (duckdb.Error, pa.ArrowInvalid) as error:
                problem = f"view {name!r} of pipeline {output.pipeline!r} cannot be queried: {error}"
                hint = (
                    "read its documents instead (`read_views`); those that need a schema registry are no JSON"
                )
                raise ConfigError(problem, hint) from error
            if short[short_name(name).lower()] == 1 and short_name(name) != name:
                database.execute(f"CREATE VIEW {identifier(short_name(name))} AS FROM {identifier(name)}")
            if name.count(".") == 1:
                schema, table = map(identifier, name.split("."))
                database.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                database.execute(f"CREATE VIEW {schema}.{table} AS FROM {identifier(name)}")
        yield database


def short_name(view: str) -> str:
    """Returns the last part of the name of a view in its output."""
    return view.replace("/", ".").rpartition(".")[2]


def _copy(database: duckdb.DuckDBPyConnection, table: str, rows: TypedRows) -> None:
    if rows.table is not None:
        database.register("slackwater_rows", rows.table)
        database.execute(f"CREATE TABLE {table} AS FROM slackwater_rows")
        database.unregister("slackwater_rows")
        return
    database.execute("CREATE OR REPLACE TEMP TABLE slackwater_documents (document JSON)")
    documents = iter(rows.documents)
    while chunk := list(islice(documents, _DOCUMENTS)):
        column = pa.array(chunk, pa.binary()).cast(pa.string())
        database.register("slackwater_rows", pa.table({"document": column}))
        database.execute("INSERT INTO slackwater_documents FROM slackwater_rows")
        database.unregister("slackwater_rows")
    types = rows.types or _json_types(database)
    values = ", ".join(f"{_value(name, kind)} AS {identifier(name)}" for name, kind in types.items())
    rows_as_typed = f"SELECT {values or 'document'} FROM slackwater_documents"  # noqa: S608 - made of ids
    database.execute(f"CREATE TABLE {table} AS {rows_as_typed}")
    database.execute("DROP TABLE slackwater_documents")


def _value(column: str, kind: str) -> str:
    """Returns SQL for the value of a column in a document."""
    text = f"(document ->> {_path(column)})"
    if kind == "JSON":
        return f"CASE WHEN {text} IS NOT NULL THEN document -> {_path(column)} END"
    if kind == "jsonb":
        return f"CAST({text} AS JSON)"
    if kind == "bytea":
        return f"from_base64({text})"
    if kind == "numeric(39,0)":  # one digit more than DuckDB's decimals have
        return f"CAST({text} AS HUGEINT)"
    return f"CAST({text} AS {kind})" if _SAME.fullmatch(kind) else text


def _json_types(database: duckdb.DuckDBPyConnection) -> Mapping[str, str]:
    """Returns the types of the members of documents that no type is declared for; none: there are none."""
    found = _one(database, "SELECT json_group_structure(document) FROM slackwater_documents")
    members = json.loads(found or "{}")
    if not isinstance(members, dict):
        raise duckdb.DataError(f"its documents are not JSON objects, but {members}")
    return {name: _json_type(database, name, kind) for name, kind in members.items()}


def _json_type(database: duckdb.DuckDBPyConnection, member: str, kind: object) -> Any:
    if kind in ("UBIGINT", "BIGINT", "DOUBLE"):
        text = f"document ->> {_path(member)}"
        is_whole = f"bool_and(regexp_full_match({text}, '-?[0-9]+'))"
        return _one(database, f"SELECT if({is_whole}, 'HUGEINT', 'DOUBLE') FROM slackwater_documents")  # noqa: S608 - a path
    return kind if kind in ("BOOLEAN", "VARCHAR") else "JSON"


def _path(member: str) -> str:
    quoted = member.replace("\\", "\\\\").replace('"', '\\"')
    return literal(f'$."{quoted}"')


def _one(database: duckdb.DuckDBPyConnection, query: str) -> Any:
    row = database.execute(query).fetchone()
    return None if row is None else row[0]
