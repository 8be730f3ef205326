"""What one changed row costs a pipeline's stages, by how many rows its group has; prints one JSON line.

Arguments: case, rows of the group, changes to measure. The stages run in this process with indexes on disk,
without Spark, whose cost per batch does not depend on groups. Every change is a batch of its own.
"""

import gc
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from statistics import median
from time import thread_time

from slackwater.engine.lmdb_index import LmdbIndex
from slackwater.engine.local import LocalEngine
from slackwater.engine.pack.packer import EventPacker
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

BUCKETS = 8
ROWS_PER_BATCH = 100_000
WARM_UP = 5

DDL = """
CREATE TABLE shop.customers (id bigint PRIMARY KEY, name text NOT NULL, note text);
CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer_id bigint NOT NULL);
CREATE TABLE shop.lines (id bigint PRIMARY KEY, order_id bigint NOT NULL, quantity int NOT NULL);
ALTER TABLE shop.orders REPLICA IDENTITY FULL;
ALTER TABLE shop.lines REPLICA IDENTITY FULL;
"""

Change = tuple[str, str, bytes | None, bytes]
"""Table, operation, the row before and after."""


@dataclass(frozen=True)
class Case:
    """A view, the rows of its largest group, and changes of which no result changes but their own."""

    view: str
    rows: Callable[[int], Iterator[Change]]
    change: Callable[[int, int], Change]
    """Of the number of rows and of the change's number."""


def line(number: int, quantity: int) -> bytes:
    """A line of the only order."""
    return b'{"id":%d,"order_id":1,"quantity":%d}' % (number, quantity)


def lines(size: int) -> Iterator[Change]:
    """An order with this many lines."""
    yield "shop.orders", "c", None, b'{"id":1,"customer_id":1}'
    for number in range(size):
        yield "shop.lines", "c", None, line(number, 1)


def changed_line(size: int, number: int) -> Change:
    """Another line each time."""
    place = number * 7_919 % size
    return "shop.lines", "u", line(place, 1), line(place, 2)


def orders(size: int) -> Iterator[Change]:
    """A customer with this many orders."""
    yield "shop.customers", "c", None, b'{"id":1,"name":"a","note":null}'
    for number in range(size):
        yield "shop.orders", "c", None, b'{"id":%d,"customer_id":1}' % number


def changed_note(_: int, number: int) -> Change:
    """A column that no document shows."""
    return "shop.customers", "u", None, b'{"id":1,"name":"a","note":"%d"}' % number


CASES = {
    "line of an order": Case(
        "SELECT TRANSACTIONALLY o.id, count(l.id) AS n, sum(l.quantity) AS total"
        " FROM shop.orders o LEFT JOIN shop.lines l ON l.order_id = o.id GROUP BY o.id",
        lines,
        changed_line,
    ),
    "customer of orders": Case(
        "SELECT TRANSACTIONALLY o.id, c.name"
        " FROM shop.orders o JOIN shop.customers c ON c.id = o.customer_id",
        orders,
        changed_note,
    ),
    "global sum": Case(
        "SELECT TRANSACTIONALLY count(*) AS n, sum(l.quantity) AS total FROM shop.lines l",
        lines,
        changed_line,
    ),
}


class Pipeline:
    """A view's stages in this process."""

    def __init__(self, view: str, folder: Path) -> None:
        plan = compile_pipeline([("view.sql", view)], parse_catalog({"schema.sql": DDL}))
        numbers = count()
        self._engine = LocalEngine(plan, lambda: LmdbIndex(folder / str(next(numbers))), buckets=BUCKETS)
        self._packer = EventPacker(self._engine.spec)
        self._tables = self._engine.spec.tables
        self._lsn = 0

    def run(self, changes: Iterable[Change]) -> tuple[int, float]:
        """A batch, all of it one transaction; documents and processor seconds."""
        self._lsn += 1
        for table, op, before, after in changes:
            if table in self._tables:
                self._packer.add(table, op, self._lsn, before, after)
        self._packer.touch(self._lsn)
        payloads: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        for stage, bucket, payload in self._packer.payloads():
            payloads.setdefault((stage, bucket), []).append((0, payload))
        began = thread_time()
        documents = self._engine.process(payloads)
        return sum(map(len, documents.values())), thread_time() - began


def main() -> None:
    """Fills a group, then changes it row by row."""
    case, size, changes = CASES[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])
    gc.disable()
    with tempfile.TemporaryDirectory(prefix="slackwater-engine-cost-") as folder:
        pipeline = Pipeline(case.view, Path(folder))
        rows, fill_seconds = case.rows(size), 0.0
        while batch := list(islice(rows, ROWS_PER_BATCH)):
            fill_seconds += pipeline.run(batch)[1]
        found = [pipeline.run([case.change(size, number)]) for number in range(WARM_UP + changes)][WARM_UP:]
    result = {
        "ms_per_change": round(1000 * median(seconds for _, seconds in found), 3),
        "ms_of_slowest_change": round(1000 * max(seconds for _, seconds in found), 3),
        "documents": sum(documents for documents, _ in found),
        "us_per_row_filled": round(1e6 * fill_seconds / size, 2),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
