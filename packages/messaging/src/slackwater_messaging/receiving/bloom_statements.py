"""The SQL of filters that are kept by partition."""

from dataclasses import dataclass

from psycopg import sql

from slackwater_messaging.receiving.statements import identifier

_PLACE = sql.SQL("topic = %s AND partition = %s")


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
    """Locks the row of a partition, and returns the offset where reading goes on."""
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
