"""The demo's tables, and how a statement becomes SQL."""

from decimal import Decimal
from typing import LiteralString

import psycopg
from psycopg import sql

from slackwater.demo.statements import (
    AdjustOrder,
    DeleteLines,
    DeleteOrders,
    InsertLines,
    InsertOrder,
    MoveLine,
    RepriceLines,
    RollbackTo,
    Savepoint,
    SetStatus,
    Statement,
    UpdateLine,
)
from slackwater.demo.workload import SHARED_ORDERS

TABLES = ("inventory.orders", "inventory.order_lines")

SCHEMA: LiteralString = """
CREATE SCHEMA inventory;
CREATE TABLE inventory.orders (
    id         bigint PRIMARY KEY,
    customer   text NOT NULL,
    status     text NOT NULL,
    line_count int NOT NULL,
    total      numeric(12, 2) NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE TABLE inventory.order_lines (
    id       bigint PRIMARY KEY,
    order_id bigint NOT NULL,
    product  text NOT NULL,
    quantity int NOT NULL,
    price    numeric(10, 2) NOT NULL
);
CREATE INDEX order_lines_order_id ON inventory.order_lines (order_id);
ALTER TABLE inventory.order_lines REPLICA IDENTITY FULL;
"""

Cursor = psycopg.Cursor[tuple[object, ...]]


def create_tables(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Creates the demo's schema and its shared orders, committed."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(SCHEMA)
        cursor.execute(
            "INSERT INTO inventory.orders SELECT i, 'shared', 'new', 0, 0, now() "
            "FROM generate_series(1, %s) i",
            [SHARED_ORDERS],
        )


def execute(cursor: Cursor, statement: Statement) -> None:
    """Runs one statement in the cursor's open transaction.

    Raises:
        psycopg.Error: whatever the database says.
    """
    match statement:
        case InsertLines() | UpdateLine() | RepriceLines() | MoveLine() | DeleteLines():
            _change_lines(cursor, statement)
        case InsertOrder() | AdjustOrder() | SetStatus() | DeleteOrders():
            _change_orders(cursor, statement)
        case Savepoint(name):
            cursor.execute(sql.SQL("SAVEPOINT {}").format(sql.Identifier(name)))
        case RollbackTo(name):
            cursor.execute(sql.SQL("ROLLBACK TO SAVEPOINT {}").format(sql.Identifier(name)))


def _change_lines(
    cursor: Cursor, statement: InsertLines | UpdateLine | RepriceLines | MoveLine | DeleteLines
) -> None:
    match statement:
        case InsertLines(lines):
            columns: list[list[object]] = [
                [line.id for line in lines],
                [line.order_id for line in lines],
                [line.product for line in lines],
                [line.quantity for line in lines],
                [line.price for line in lines],
            ]
            cursor.execute(
                "INSERT INTO inventory.order_lines (id, order_id, product, quantity, price) "
                "SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::numeric[])",
                columns,
            )
        case UpdateLine(line_id, quantity, price):
            cursor.execute(
                "UPDATE inventory.order_lines SET quantity = %s, price = %s WHERE id = %s",
                [quantity, price, line_id],
            )
        case RepriceLines(prices):
            cursor.execute(
                "UPDATE inventory.order_lines l SET price = p.price "
                "FROM unnest(%s::bigint[], %s::numeric[]) AS p(id, price) WHERE l.id = p.id",
                [[line_id for line_id, _ in prices], [price for _, price in prices]],
            )
        case MoveLine(line_id, to_order):
            cursor.execute(
                "UPDATE inventory.order_lines SET order_id = %s WHERE id = %s", [to_order, line_id]
            )
        case DeleteLines(ids):
            cursor.execute("DELETE FROM inventory.order_lines WHERE id = ANY(%s)", [list(ids)])


def _change_orders(cursor: Cursor, statement: InsertOrder | AdjustOrder | SetStatus | DeleteOrders) -> None:
    match statement:
        case InsertOrder(order_id, customer, status, line_count, total):
            cursor.execute(
                "INSERT INTO inventory.orders VALUES (%s, %s, %s, %s, %s, now())",
                [order_id, customer, status, line_count, total],
            )
        case AdjustOrder(order_id, line_count, total):
            cursor.execute(
                "UPDATE inventory.orders SET line_count = line_count + %s, total = total + %s WHERE id = %s",
                [line_count, total, order_id],
            )
        case SetStatus(order_id, status):
            cursor.execute("UPDATE inventory.orders SET status = %s WHERE id = %s", [status, order_id])
        case DeleteOrders(ids):
            cursor.execute("DELETE FROM inventory.orders WHERE id = ANY(%s)", [list(ids)])


def broken_orders(connection: psycopg.Connection[tuple[object, ...]]) -> list[tuple[int, int, Decimal]]:
    """Orders whose header contradicts their lines. Not empty: the workload, not Slackwater, is wrong."""
    rows = connection.execute(
        "SELECT o.id, o.line_count, o.total FROM inventory.orders o LEFT JOIN ("
        "  SELECT order_id, count(*) AS n, sum(quantity * price) AS amount"
        "  FROM inventory.order_lines GROUP BY order_id) l ON l.order_id = o.id "
        "WHERE o.line_count <> coalesce(l.n, 0) OR o.total <> coalesce(l.amount, 0) LIMIT 10"
    ).fetchall()
    return [(row[0], row[1], row[2]) for row in rows]  # type: ignore[misc]


def count_orders(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    """How many orders there are."""
    row = connection.execute("SELECT count(*) FROM inventory.orders").fetchone()
    return int(str(row[0])) if row else 0
