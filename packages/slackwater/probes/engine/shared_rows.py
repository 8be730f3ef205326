"""What it saves that stages which read the same tables by the same keys keep their rows once.

Prints one JSON line. Arguments: folder of pipelines/shop, `together` or `apart`, orders, events of large
batches to measure, small batches to measure. The stages run in this process with indexes on disk, without
Spark. `apart` plans every stage with rows of its own; only this probe can.
"""

import gc
import json
import random
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from statistics import median
from time import process_time

from slackwater.engine.lmdb_index import LmdbIndex
from slackwater.engine.local import LocalEngine
from slackwater.engine.pack.packer import EventPacker
from slackwater.sql.planner import cutting
from slackwater.sql.postgres import parse_catalog

BUCKETS = 8
ROWS_PER_BATCH = 50_000
ROWS_OF_SMALL_BATCH = 10
WARM_UP = 5
LINES_PER_ORDER = 5

Change = tuple[str, str, bytes | None, bytes]
"""Table, operation, the row before and after."""


class Shop:
    """The rows of the shop; for one thread."""

    def __init__(self, orders: int) -> None:
        self._orders = orders
        self._lines = orders * LINES_PER_ORDER
        self._customers, self._products = orders // 5, orders // 10
        self._versions: dict[tuple[str, int], int] = {}
        self._random = random.Random(1)

    def inserts(self) -> Iterator[Change]:
        """Yields all rows."""
        for number in range(self._customers):
            row = b'{"id":%d,"name":"customer-%d","country":"country-%d"}' % (number, number, number % 50)
            yield "shop.customers", "c", None, row
        for number in range(self._products):
            row = b'{"id":%d,"name":"product-%d","category":"category-%d"}' % (number, number, number % 20)
            yield "shop.products", "c", None, row
        for number in range(self._orders):
            yield "shop.orders", "c", None, self._order(number)
        for number in range(self._lines):
            yield "shop.lines", "c", None, self._line(number)

    def changes(self) -> Iterator[Change]:
        """Yields changes without end: nine lines for one order."""
        while True:
            table, size = (
                ("shop.orders", self._orders) if self._random.random() < 0.1 else ("shop.lines", self._lines)
            )
            number = self._random.randrange(size)
            image = self._order if table == "shop.orders" else self._line
            before = image(number)
            self._versions[table, number] = self._versions.get((table, number), 0) + 1
            yield table, "u", before, image(number)

    def _order(self, number: int) -> bytes:
        version = self._versions.get(("shop.orders", number), 0)
        return b'{"id":%d,"customer_id":%d,"status":"open-%d","placed_at":"2026-11-20T10:11:12.123456Z"}' % (
            number,
            number % self._customers,
            version,
        )

    def _line(self, number: int) -> bytes:
        version = self._versions.get(("shop.lines", number), 0)
        return b'{"id":%d,"order_id":%d,"product_id":%d,"quantity":%d,"price":"12.50"}' % (
            number,
            number // LINES_PER_ORDER,
            number * 7_919 % self._products,
            1 + version,
        )


class Pipeline:
    """The stages of a pipeline in this process."""

    def __init__(self, folder: Path, indexes: Path, *, is_together: bool) -> None:
        if not is_together:
            setattr(cutting, "with_shared_rows", lambda plan, _: plan)  # noqa: B010 - not a switch of the product
        views = [(path.name, path.read_text()) for path in sorted((folder / "views").glob("*.sql"))]
        catalog = parse_catalog({"schema.sql": (folder / "schema.sql").read_text()})
        self.plan = cutting.compile_pipeline(views, catalog)
        numbers = count()
        self.engine = LocalEngine(self.plan, lambda: LmdbIndex(indexes / str(next(numbers))), buckets=BUCKETS)
        self._packer = EventPacker(self.engine.spec)
        self._lsn = 0

    def run(self, changes: Iterable[Change]) -> tuple[int, float]:
        """A batch, all of it one transaction; documents and processor seconds."""
        changes = list(changes)
        self._lsn += 1
        began = process_time()
        for table, op, before, after in changes:
            self._packer.add(table, op, self._lsn, before, after)
        payloads: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        for stage, bucket, payload in self._packer.payloads():
            payloads.setdefault((stage, bucket), []).append((0, payload))
        documents = self.engine.process(payloads)
        return sum(map(len, documents.values())), process_time() - began


def main() -> None:
    """Fills the shop, then changes it in large and in small batches."""
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    orders, events, small = map(int, sys.argv[3:6])
    gc.disable()
    with tempfile.TemporaryDirectory(prefix="slackwater-shared-rows-") as indexes:
        pipeline = Pipeline(folder, Path(indexes), is_together=mode == "together")
        shop = Shop(orders)
        inserts, changes = shop.inserts(), shop.changes()
        while batch := list(islice(inserts, ROWS_PER_BATCH)):
            pipeline.run(batch)
        filled = pipeline.engine.state.stage_bytes()
        pipeline.run(islice(changes, ROWS_PER_BATCH))
        large = [pipeline.run(islice(changes, ROWS_PER_BATCH)) for _ in range(events // ROWS_PER_BATCH)]
        found = [pipeline.run(islice(changes, ROWS_OF_SMALL_BATCH)) for _ in range(WARM_UP + small)][WARM_UP:]
    seconds = sum(each for _, each in large)
    result = {
        "events_per_second": round(len(large) * ROWS_PER_BATCH / seconds),
        "state_bytes": sum(filled.values()),
        "state_bytes_by_stage": filled,
        "stages": len(pipeline.plan.stages),
        "ms_per_small_batch": round(1000 * median(each for _, each in found), 2),
        "documents": sum(each for each, _ in (*large, *found)),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
