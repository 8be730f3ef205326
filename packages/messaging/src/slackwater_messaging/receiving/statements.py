"""The SQL of the inbox table, for connections of either kind, and of filters that are kept by partition."""

from dataclasses import dataclass
from datetime import timedelta

from psycopg import sql

from slackwater_messaging.errors import MessagingConfigError

CLEAN_AT_ONCE = 1_000
"""Keys that one cleaning deletes at most: a transaction of some milliseconds."""
_MAX_SHARDS = 1024
_PLACE = sql.SQL("topic = %s AND partition = %s")


def identifier(name: str, suffix: str = "") -> sql.Identifier:
    """Returns ``schema.table`` or ``table`` as an identifier.

    Raises:
        MessagingConfigError: It is not one or two names, or too long.
    """
    parts = f"{name}{suffix}".split(".")
    if len(parts) > 2 or not all(0 < len(part.encode()) <= 63 for part in parts):
        problem = f"{name}{suffix!s} is not a valid name of a table"
        raise MessagingConfigError(problem, "expected table or schema.table, at most 63 bytes each")
    return sql.Identifier(*parts)


def check_remember(table: str, remember: timedelta) -> timedelta:
    """Returns how long keys are kept.

    Raises:
        MessagingConfigError: It is no time.
    """
    if remember <= timedelta(0):
        raise MessagingConfigError(f"{table}: remember is {remember}", "expected a positive duration")
    return remember


@dataclass(frozen=True, slots=True)
class TableStatements:
    """The statements of one inbox table."""

    create: tuple[sql.Composed, ...]
    insert: sql.Composed
    """Inserts keys, sorted, so that no two wait for each other; returns those that were new."""
    insert_answered: sql.Composed
    """Inserts keys that are new with their answers."""
    answers: sql.Composed
    store_answers: sql.Composed
    clean: sql.Composed


def table_statements(name: str, shards: int) -> TableStatements:
    """Returns the statements of a table with this many shards.

    Raises:
        MessagingConfigError: A name or the number cannot be used.
    """
    if not 1 <= shards <= _MAX_SHARDS:
        raise MessagingConfigError(f"{name}: shards is {shards}", f"expected 1 to {_MAX_SHARDS}")
    table = identifier(name)
    return TableStatements(
        create=_create(name, shards),
        insert=sql.SQL(
            "INSERT INTO {} (key) SELECT key FROM unnest(%s::bytea[]) AS key ORDER BY key"
            " ON CONFLICT DO NOTHING RETURNING key"
        ).format(table),
        insert_answered=sql.SQL(
            "INSERT INTO {} (key, answer) SELECT key, answer"
            " FROM unnest(%s::bytea[], %s::bytea[]) AS new (key, answer) ORDER BY key"
        ).format(table),
        answers=sql.SQL("SELECT key, answer FROM {} WHERE key = ANY (%s::bytea[])").format(table),
        store_answers=sql.SQL(
            "UPDATE {} AS inbox SET answer = given.answer"
            " FROM unnest(%s::bytea[], %s::bytea[]) AS given (key, answer) WHERE inbox.key = given.key"
        ).format(table),
        clean=sql.SQL(
            "DELETE FROM {0} WHERE key = ANY (ARRAY (SELECT key FROM {0}"
            " WHERE received_at < now() - %s::interval ORDER BY received_at LIMIT %s FOR UPDATE SKIP LOCKED))"
        ).format(table),
    )


def _create(name: str, shards: int) -> tuple[sql.Composed, ...]:
    table = identifier(name)
    made = [
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (key bytea PRIMARY KEY,"
            " received_at timestamptz NOT NULL DEFAULT now(), answer bytea) PARTITION BY HASH (key)"
        ).format(table)
    ]
    made += [
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} PARTITION OF {} FOR VALUES WITH (MODULUS {}, REMAINDER {})"
        ).format(identifier(name, f"_{shard}"), table, sql.Literal(shards), sql.Literal(shard))
        for shard in range(shards)
    ]
    index = sql.Identifier(f"{name.rpartition('.')[2]}_received_at")
    made.append(sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} (received_at)").format(index, table))
    return tuple(made)


@dataclass(frozen=True, slots=True)
class FilterStatements:
    """The statements of one table of filters."""

    create: tuple[sql.Composed, ...]
    load: sql.Composed
    store: sql.Composed
    drop: sql.Composed


@dataclass(frozen=True, slots=True)
class PositionStatements:
    """The statements of the positions of partitions, and of the keys that are in no stored filter yet."""

    create: tuple[sql.Composed, ...]
    begin: sql.Composed
    """Makes the row of a partition unless it is there."""
    lock: sql.Composed
    """Locks the row of a partition, and returns the offset at which reading continues."""
    advance: sql.Composed
    """Sets that offset if it is the expected one: who comes second finds another, and changes no row."""
    journal: sql.Composed
    note: sql.Composed
    """Adds the keys of a batch to the journal."""
    drop_journal: sql.Composed


def filter_statements(name: str) -> FilterStatements:
    """Returns the statements of ``<name>_filters``.

    Raises:
        MessagingConfigError: It cannot be a table's name.
    """
    filters = identifier(name, "_filters")
    return FilterStatements(
        create=(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (topic text, partition int, window_ms bigint, number int,"
                " filter bytea NOT NULL, PRIMARY KEY (topic, partition, window_ms, number))"
            ).format(filters),
            # A filter is as good as random: compressing it costs time and saves nothing.
            sql.SQL("ALTER TABLE {} ALTER COLUMN filter SET STORAGE EXTERNAL").format(filters),
        ),
        load=sql.SQL("SELECT filter FROM {} WHERE {}").format(filters, _PLACE),
        store=sql.SQL(
            "INSERT INTO {} (topic, partition, window_ms, number, filter) VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT (topic, partition, window_ms, number) DO UPDATE SET filter = excluded.filter"
        ).format(filters),
        drop=sql.SQL("DELETE FROM {} WHERE {} AND window_ms = %s AND number = %s").format(filters, _PLACE),
    )


def position_statements(name: str) -> PositionStatements:
    """Returns the statements of ``<name>_positions`` and ``<name>_journal``.

    Raises:
        MessagingConfigError: They cannot be tables' names.
    """
    positions, journal = identifier(name, "_positions"), identifier(name, "_journal")
    return PositionStatements(
        create=(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (topic text, partition int, next_offset bigint NOT NULL,"
                " PRIMARY KEY (topic, partition))"
            ).format(positions),
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (topic text, partition int, next_offset bigint,"
                " time_ms bigint NOT NULL, digests bytea NOT NULL,"
                " PRIMARY KEY (topic, partition, next_offset))"
            ).format(journal),
        ),
        begin=sql.SQL(
            "INSERT INTO {} (topic, partition, next_offset) VALUES (%s, %s, -1) ON CONFLICT DO NOTHING"
        ).format(positions),
        lock=sql.SQL("SELECT next_offset FROM {} WHERE {} FOR UPDATE").format(positions, _PLACE),
        advance=sql.SQL("UPDATE {} SET next_offset = %s WHERE {} AND next_offset = %s").format(
            positions, _PLACE
        ),
        journal=sql.SQL("SELECT time_ms, digests FROM {} WHERE {} ORDER BY next_offset").format(
            journal, _PLACE
        ),
        note=sql.SQL(
            "INSERT INTO {} (topic, partition, next_offset, time_ms, digests) VALUES (%s, %s, %s, %s, %s)"
        ).format(journal),
        drop_journal=sql.SQL("DELETE FROM {} WHERE {} AND next_offset <= %s").format(journal, _PLACE),
    )
