"""The comparison: an ordinary consumer that joins what has arrived and publishes after each poll."""

from collections.abc import Iterable

from slackwater.demo.history import read_change
from slackwater.demo.orders import OrderTables, torn


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
                change = found[1]
                touched |= self._tables.apply(change.table, change.key, change.after)
        for order_id in touched:
            document = self._tables.document(order_id)
            if document is not None:
                self.published += 1
                self.torn += torn(document) is not None
