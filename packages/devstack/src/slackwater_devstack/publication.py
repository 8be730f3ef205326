"""The publication that tells PostgreSQL which tables the connector reads."""

import psycopg
from psycopg import sql

from slackwater_devstack.errors import SettingsError


def ensure_publication(dsn: str, name: str, tables: tuple[str, ...]) -> None:
    """Create the publication, or give an existing one these tables. No tables: all, also later ones.

    An existing publication is never dropped: decoding of older changes would miss it.

    Raises:
        SettingsError: a table does not exist, or the publication is for all tables and should not be,
            or the other way round.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "SELECT puballtables FROM pg_publication WHERE pubname = %s"
        found = connection.execute(query, [name]).fetchone()
        if found is not None and bool(found[0]) != (not tables):
            existing = "all tables" if found[0] else "certain tables"
            raise SettingsError(
                "tables", ", ".join(tables) or "all", f"what publication {name} already has: {existing}"
            )
        if found is not None and not tables:
            return
        try:
            connection.execute(_statement(name, tables, exists=found is not None))
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            expected = f"existing tables, to be created before the connector starts ({error})"
            raise SettingsError("tables", ", ".join(tables), expected) from error


def is_streaming(dsn: str, slot: str) -> bool:
    """Whether a connector reads the slot now, that is after its snapshot.

    A slot is active while it is made, too, which comes before the snapshot.
    """
    query = """
        SELECT count(*) FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
        WHERE s.slot_name = %s AND r.state IN ('catchup', 'streaming')
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(query, [slot]).fetchone()
    return found is not None and bool(found[0])


def _statement(name: str, tables: tuple[str, ...], *, exists: bool) -> sql.Composed:
    publication = sql.Identifier(name)
    if not tables:
        return sql.SQL("CREATE PUBLICATION {} FOR ALL TABLES").format(publication)
    listed = sql.SQL(", ").join(sql.Identifier(*table.split(".")) for table in tables)
    form = "ALTER PUBLICATION {} SET TABLE {}" if exists else "CREATE PUBLICATION {} FOR TABLE {}"
    return sql.SQL(form).format(publication, listed)
