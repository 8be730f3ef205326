"""The rows of one table while a generator changes them, and the records that come of it."""

from collections.abc import Callable, Iterable

from slackwater_bench.generator.debezium_records import NULL, Connector, Headers, Stamp, row_renderer
from slackwater_bench.generator.images import Row, table_images
from slackwater_bench.workloads.workload import Delete, Insert, Plus, Update
from slackwater_sql.catalog import Table

Change = Insert | Update | Delete
Put = Callable[[str, str | None, str, Headers], None]
"""Takes ``(topic, value, key, headers)`` of one record; value None: a tombstone."""


def key_changes(changes: Iterable[Change]) -> int:
    """How many of the changes change a key. Each causes two change events, all others one."""
    return sum([1 for each in changes if type(each) is Update and "id" in each.changes])


class TableRows:
    """All rows of a table, and its topic.

    Args:
        connector: Whose records.
        table: The table.
        put: Takes the records, in order.
    """

    def __init__(self, connector: Connector, table: Table, put: Put) -> None:
        self.topic = f"{connector.prefix}.{table.schema}.{table.name}"
        self.rows: dict[int, Row] = {}
        images = table_images(table)
        self._connector = connector
        self._put = put
        self._new_row = images.row
        self._index, self._coerce = images.index, images.coerce
        self._image = images.full
        self._is_full = table.replica_identity_full
        self._old_image = images.full if self._is_full else images.key
        self._render = row_renderer(connector, table.schema, table.name)
        self._headers = connector.headers()

    def json(self, row_id: int) -> str:
        """A row as it stands, as Debezium writes it."""
        return self._image(self.rows[row_id])

    def apply(self, change: Change, at: Stamp, lsn: int, total: int, order: int) -> None:
        """Applies a change and puts what the connector writes for it.

        Args:
            change: Of this table.
            at: The transaction.
            lsn: The LSN of the change.
            total: ``total_order`` of its (first) event.
            order: ``data_collection_order`` of its (first) event.
        """
        kind = type(change)
        if kind is Update:
            self._update(change, at, lsn, total, order)  # type: ignore[arg-type]
        elif kind is Insert:
            row = self._new_row(change.row)  # type: ignore[union-attr]
            row_id = row[self._index["id"]]
            self.rows[row_id] = row
            value = self._render("c", NULL, self._image(row), at, lsn, total, order)
            self._put(self.topic, value, f'{{"id":{row_id}}}', self._headers)
        else:
            row_id = change.id  # type: ignore[union-attr]
            self._delete(self.rows.pop(row_id), row_id, self._headers, at, (lsn, total, order))

    def _update(self, change: Update, at: Stamp, lsn: int, total: int, order: int) -> None:
        row_id, index, coerce = change.id, self._index, self._coerce
        old = self.rows[row_id]
        row = old.copy()
        for name, value in change.changes.items():
            position = index[name]
            new = row[position] + value.amount if type(value) is Plus else value
            rounded = coerce.get(name)
            row[position] = new if rounded is None or new is None else rounded(new)
        if "id" in change.changes:
            self._change_key(row_id, old, row, at, (lsn, total, order))
            return
        self.rows[row_id] = row
        before = self._image(old) if self._is_full else NULL
        value = self._render("u", before, self._image(row), at, lsn, total, order)
        self._put(self.topic, value, f'{{"id":{row_id}}}', self._headers)

    def _delete(
        self, row: Row, row_id: int, headers: Headers, at: Stamp, place: tuple[int, int, int]
    ) -> None:
        key = f'{{"id":{row_id}}}'
        self._put(self.topic, self._render("d", self._old_image(row), NULL, at, *place), key, headers)
        self._put(self.topic, None, key, headers)

    def _change_key(self, old_id: int, old: Row, row: Row, at: Stamp, place: tuple[int, int, int]) -> None:
        """A delete and its tombstone under the old key, an insert under the new one."""
        new_id = row[self._index["id"]]
        del self.rows[old_id]
        self.rows[new_id] = row
        lsn, total, order = place
        self._delete(old, old_id, self._connector.new_key_headers({"id": new_id}), at, place)
        value = self._render("c", NULL, self._image(row), at, lsn, total + 1, order + 1)
        self._put(self.topic, value, f'{{"id":{new_id}}}', self._connector.old_key_headers({"id": old_id}))
