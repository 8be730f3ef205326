"""Compares with an ordinary consumer that joins what has arrived and publishes after each poll.

It shares no code with the libraries that are judged: the view is recomputed from nothing but dictionaries.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from slackwater_lab.topics import follow
from slackwater_lab.watching import Background

ORDERS = "inventory.orders"
ORDER_LINES = "inventory.order_lines"

Row = Mapping[str, Any]
"""A row as Debezium writes it: decimals are strings."""
Document = Mapping[str, Any]
"""An order with its lines, as in the output topic."""


def torn(document: Document) -> str | None:
    """Names what contradicts the invariant in a document; None when nothing does; the unreadable is torn."""
    try:
        lines = document["lines"]
        count, total = document["line_count"], Decimal(document["total"])
        amount = sum((line["quantity"] * Decimal(line["price"]) for line in lines), Decimal(0))
    except (KeyError, TypeError, InvalidOperation) as error:
        return f"not an order document: {type(error).__name__}: {error}"
    if count != len(lines):
        return f"line_count is {count}, but there are {len(lines)} lines"
    if total != amount:
        return f"total is {total}, but the lines add up to {amount}"
    return None


class OrderTables:
    """Holds both tables in memory, indexed by order. Rows are applied one at a time."""

    def __init__(self) -> None:
        self._orders: dict[int, Row] = {}
        self._lines: dict[int, Row] = {}
        self._by_order: dict[int, dict[int, Row]] = {}

    def apply(self, table: str, key: int, after: Row | None) -> set[int]:
        """Puts or, with None, deletes a row.

        Returns:
            The orders whose document this may have changed: one, or two when a line moves.
        """
        if table == ORDERS:
            if after is None:
                self._orders.pop(key, None)
            else:
                self._orders[key] = after
            return {key}
        return self._apply_line(key, after)

    def document(self, order_id: int) -> Document | None:
        """Returns the order with its lines by id; None when there is no such order."""
        order = self._orders.get(order_id)
        if order is None:
            return None
        lines = self._by_order.get(order_id, {})
        return order_document(order, (lines[line_id] for line_id in sorted(lines)))

    def _apply_line(self, key: int, after: Row | None) -> set[int]:
        touched = set()
        before = self._lines.pop(key, None)
        if before is not None:
            touched.add(before["order_id"])
            del self._by_order[before["order_id"]][key]
        if after is not None:
            self._lines[key] = after
            self._by_order.setdefault(after["order_id"], {})[key] = after
            touched.add(after["order_id"])
        return touched


def order_document(order: Row, lines: Iterable[Row]) -> Document:
    """Returns an order in the shape of ``pipelines/orders``."""
    return {
        "id": order["id"],
        "customer": order["customer"],
        "status": order["status"],
        "line_count": order["line_count"],
        "total": order["total"],
        "created_at": with_microseconds(order["created_at"]),
        "lines": [{name: line[name] for name in ("id", "product", "quantity", "price")} for line in lines],
    }


def with_microseconds(timestamp: str) -> str:
    """Returns a UTC timestamp with all six decimals; Debezium leaves out zeros at the end."""
    seconds, _, fraction = timestamp.removesuffix("Z").partition(".")
    return f"{seconds}.{fraction:0<6}Z"


def read_change(value: bytes) -> tuple[str, int, Row | None] | None:
    """Returns table, key and new row (None: deleted) of a row event; None for events of other kinds."""
    event: dict[str, Any] = json.loads(value)
    table = f"{event['source']['schema']}.{event['source']['table']}"
    if event["op"] not in "crud" or table not in (ORDERS, ORDER_LINES):
        return None
    row = event["after"] or event["before"]
    return table, row["id"], event["after"]


class NaiveJoin:
    """Counts what such a reader would have published. Nothing of Slackwater is involved."""

    def __init__(self) -> None:
        self._tables = OrderTables()
        self.published = 0
        """Documents it would have written."""
        self.torn = 0
        """Those among them that contradict the invariant."""

    def poll(self, values: Iterable[bytes]) -> None:
        """Takes what one poll returned and 'publishes' every document that it touched."""
        touched: set[int] = set()
        for value in values:
            found = read_change(value)
            if found is not None:
                touched |= self._tables.apply(*found)
        for order_id in touched:
            document = self._tables.document(order_id)
            if document is not None:
                self.published += 1
                self.torn += torn(document) is not None


class NaiveReader(Background):
    """Runs the naive join over the data topics as they grow."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        super().__init__("naive-reader")
        self._source = (bootstrap, topics)
        self.join = NaiveJoin()

    def _work(self) -> None:
        bootstrap, topics = self._source
        for messages in follow(bootstrap, topics, self._stop, batch=500, wait_seconds=0.05):
            self.join.poll(value for message in messages if (value := message.value()) is not None)
