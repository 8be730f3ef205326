"""Long interleaved transactions of orders, and short ones that commit while they are open.

Each leaves entries in a journal, too, a table without key: its repeated rows may stand in any partition.
"""

import random
from collections import Counter

import psycopg

LONG = 8
"""Long transactions of one backlog; all are open at once."""
ORDERS = (100, 1_000)
"""Least and most orders of a long transaction; each has two lines."""
SHORT = 5
"""Short transactions before and after the commit of each long one."""
SHARED_ORDERS = 50
"""What the short ones change."""

JOURNAL = "inventory.journal"
CREATE_JOURNAL = "CREATE TABLE inventory.journal (entry text NOT NULL)"

_CREATE_ORDERS = """
    INSERT INTO inventory.orders (id, customer, status, line_count, total, created_at)
    SELECT i, 'c' || i, 'new', 2, 2 * (1 + i %% 9), '2026-01-02 03:04:05.678Z'
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) i
"""
_CREATE_LINES = """
    INSERT INTO inventory.order_lines (id, order_id, product, quantity, price)
    SELECT 2 * i + line, i, 'p' || line, 1, 1 + i %% 9
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) i, generate_series(0, 1) line
"""
_CHANGE_LINES = "UPDATE inventory.order_lines SET quantity = quantity %% 9 + 1 WHERE order_id = %(id)s"
_CHANGE_ORDER = """
    UPDATE inventory.orders
    SET total = (SELECT sum(quantity * price) FROM inventory.order_lines WHERE order_id = %(id)s)
    WHERE id = %(id)s
"""
_WRITE_JOURNAL = """
    INSERT INTO inventory.journal
    SELECT 'orders ' || i %% 7 FROM generate_series(%(first)s::bigint, %(last)s::bigint) i
"""
_WRITE_ENTRY = "INSERT INTO inventory.journal VALUES ('order ' || %(id)s %% 5)"


class BacklogWriter:
    """Writes orders that keep the invariants of the orders pipeline.

    Args:
        dsn: The database.
        rng: Sizes of transactions and which orders change.
    """

    def __init__(self, dsn: str, rng: random.Random) -> None:
        self._dsn = dsn
        self._rng = rng
        self._next_order = 1

    def write_first(self) -> None:
        """The orders that short transactions change."""
        with psycopg.connect(self._dsn) as connection:
            orders = self._take(SHARED_ORDERS)
            connection.execute(_CREATE_ORDERS, orders)
            connection.execute(_CREATE_LINES, orders)

    def touch(self) -> None:
        """One short transaction."""
        with psycopg.connect(self._dsn) as connection:
            self._change(connection)

    def write(self) -> None:
        """A backlog: the rows of all long transactions; then each of them commits between short ones.

        So its rows lie before all these commits in the log: a connector that goes on inside it, from a
        position that the database has not heard of, gets the short ones again first and loses count.
        """
        connections = [psycopg.connect(self._dsn) for _ in range(LONG)]
        try:
            orders = [self._take(self._rng.randint(*ORDERS)) for _ in connections]
            for connection, share in zip(connections, orders, strict=True):
                connection.execute(_CREATE_ORDERS, share)
                connection.execute(_WRITE_JOURNAL, share)
                connection.execute(_CREATE_LINES, share)
            with psycopg.connect(self._dsn) as short:
                for connection in connections:
                    self._write_short(short)
                    connection.commit()
                    self._write_short(short)
        finally:
            for connection in connections:
                connection.close()

    def _write_short(self, connection: psycopg.Connection) -> None:
        for _ in range(SHORT):
            self._change(connection)
            connection.commit()

    def _change(self, connection: psycopg.Connection) -> None:
        order = {"id": self._rng.randint(1, SHARED_ORDERS)}
        connection.execute(_CHANGE_LINES, order)
        connection.execute(_CHANGE_ORDER, order)
        connection.execute(_WRITE_ENTRY, order)

    def _take(self, count: int) -> dict[str, int]:
        first, self._next_order = self._next_order, self._next_order + count
        return {"first": first, "last": self._next_order - 1}


def committed_entries(dsn: str) -> Counter[str]:
    """Reads the rows of the journal, by text."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT entry, count(*) FROM inventory.journal GROUP BY entry").fetchall()
    return Counter({str(entry): int(count) for entry, count in found})
