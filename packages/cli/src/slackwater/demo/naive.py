"""The comparison: an ordinary consumer that joins what has arrived and publishes after each poll."""

import json
from collections.abc import Iterable
from typing import Any

from slackwater.demo.orders import ORDER_LINES, ORDERS, OrderTables, Row, torn


def read_change(value: bytes) -> tuple[str, int, Row | None] | None:
    """Table, key and new row (None: deleted) of a row event; None for events of other kinds."""
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
