"""What is left of topics at the end: the source's rows and a view's documents, compared by SQL."""

from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
import msgspec
import pyarrow as pa

from slackwater_sql.catalog import Table
from slackwater_testing.errors import RunFailedError
from slackwater_testing.topics import read_to_end


@dataclass(frozen=True, slots=True)
class Check:
    """Two queries that must give the same row.

    Attributes:
        topic: Of a view's documents.
        found: Over the table ``documents (document JSON)``.
        expected: Over the source's tables, by their names without the schema, as they are at the end.
    """

    topic: str
    found: str
    expected: str


class _Envelope(msgspec.Struct, gc=False):
    after: msgspec.Raw = msgspec.Raw(b"null")


def check_final_state(
    bootstrap: str, source: str, tables: Mapping[str, Table], checks: tuple[Check, ...]
) -> list[tuple[str, ...]]:
    """Runs both queries of each check and returns their common answers, as text.

    Raises:
        RunFailedError: they differ.
    """
    decode = msgspec.json.Decoder(_Envelope).decode
    found = []
    with duckdb.connect() as database:
        for name, table in tables.items():
            values = newest_values(bootstrap, f"{source}.{name}").values()
            rows = (bytes(decode(value).after) for value in values if value is not None)
            _create(database, table, [row for row in rows if row != b"null"])
        for check in checks:
            documents = [
                value for value in newest_values(bootstrap, check.topic).values() if value is not None
            ]
            _load(database, documents)
            expected, got = (_row(database, query) for query in (check.expected, check.found))
            if expected != got:
                raise RunFailedError(f"the view in {check.topic}", f"is {got}, expected {expected}")
            found.append(got)
    return found


def newest_values(bootstrap: str, topic: str) -> dict[bytes | None, bytes | None]:
    """The last committed value of each key; None where it was a tombstone.

    Raises:
        RunFailedError: the topic cannot be read to its end.
    """
    return {message.key(): message.value() for message in read_to_end(bootstrap, topic)}


def _create(database: duckdb.DuckDBPyConnection, table: Table, rows: list[bytes]) -> None:
    """A table with these rows. Debezium writes decimals and times as text, which DuckDB casts exactly."""
    image = pa.table({"image": pa.array([row.decode() for row in rows], pa.string())})
    columns = ", ".join(
        f"(image->>'$.{column.name}')::{column.type.name} AS {column.name}"
        for column in table.columns
        if column.type.is_supported
    )
    database.register("images", image)
    database.execute(f"CREATE TABLE {table.name} AS SELECT {columns} FROM images")  # noqa: S608 - our names
    database.unregister("images")


def _load(database: duckdb.DuckDBPyConnection, documents: list[bytes]) -> None:
    texts = pa.table({"document": pa.array([document.decode() for document in documents], pa.string())})
    database.register("texts", texts)
    database.execute("CREATE OR REPLACE TABLE documents AS SELECT document::JSON AS document FROM texts")
    database.unregister("texts")


def _row(database: duckdb.DuckDBPyConnection, query: str) -> tuple[str, ...]:
    (row,) = database.execute(query).fetchall()
    return tuple(map(str, row))
