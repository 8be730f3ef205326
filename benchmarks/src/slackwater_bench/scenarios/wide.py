"""Wide: what a batch costs a pipeline of many stages, beside one of a single stage."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import cycle, islice, pairwise
from pathlib import Path
from statistics import median

from slackwater_bench.bed import SOURCE, Bed, output_of
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_bench.traffic import STRIDE, RowChange, TransactionAppender
from slackwater_bench.usage import batch_parts, cpu_between, cpu_use
from slackwater_lab.watching import CommitWatcher
from slackwater_lab.workloads.workload import REPOSITORY

LINES = "shop.lines"
INSERTED_TOGETHER = 100
"""Rows of one transaction of the initial state."""
_LINES_PER_ORDER = 3

_COLUMNS: Mapping[str, str] = {
    "shop.regions": '"name":"region-{row}-{version}"',
    "shop.categories": '"name":"category-{row}-{version}"',
    "shop.suppliers": '"name":"supplier-{row}-{version}"',
    "shop.customers": '"region_id":{regions},"name":"customer-{row}-{version}"',
    "shop.addresses": '"customer_id":{row},"city":"city-{row}-{version}"',
    "shop.products": '"category_id":{categories},"supplier_id":{suppliers},"name":"product-{row}-{version}"',
    "shop.stock": '"product_id":{row},"quantity":{quantity}',
    "shop.orders": '"customer_id":{customers},"address_id":{addresses},"status":"open-{version}"',
    LINES: '"order_id":{order},"product_id":{product},"quantity":{pieces},"price":"12.34"',
    "shop.payments": '"order_id":{row},"amount":"{amount}.00"',
    "shop.shipments": '"order_id":{row},"status":"packed-{version}"',
}
"""The columns beside the id, as JSON."""
PIPELINES = REPOSITORY / "benchmarks" / "pipelines"
MEASURED, REFERENCE = "wide", "narrow"
"""Folders of the pipelines."""
ORDERS = 5_000
WARM_UP_BATCHES = 2
START_SECONDS = 240.0
BATCH_SECONDS = 120.0


class Shop:
    """The shop and what its rows are now. For one thread.

    Args:
        orders: Their number, a multiple of ten; the other tables follow from it.
    """

    def __init__(self, orders: int) -> None:
        customers, products = orders // 5, orders // 10
        self.counts: Mapping[str, int] = {
            "shop.regions": 10,
            "shop.categories": 20,
            "shop.suppliers": 25,
            "shop.customers": customers,
            "shop.addresses": customers,
            "shop.products": products,
            "shop.stock": products,
            "shop.orders": orders,
            LINES: _LINES_PER_ORDER * orders,
            "shop.payments": orders,
            "shop.shipments": orders,
        }
        """Rows of each table; their ids begin with 1."""
        self._places = [(table, row) for table, count in self.counts.items() for row in range(1, count + 1)]
        random.Random(1).shuffle(self._places)
        self._versions = dict.fromkeys(self._places, 0)
        self._batches = 0

    def inserts(self) -> Iterator[list[RowChange]]:
        """Yields transactions that insert all rows, table by table."""
        rows = [
            RowChange(table, "c", row, "null", self._image(table, row))
            for table, count in self.counts.items()
            for row in range(1, count + 1)
        ]
        for first in range(0, len(rows), INSERTED_TOGETHER):
            yield rows[first : first + INSERTED_TOGETHER]

    def change(self, rows: int) -> list[RowChange]:
        """Makes a transaction that changes this many rows, each once.

        The first is a line, so that one row reaches most stages; the others are of all tables in proportion.
        Every call changes other rows than the call before, as long as there are any.

        Raises:
            ValueError: the shop has fewer rows.
        """
        if rows > len(self._places):
            raise ValueError(f"{rows} rows cannot be changed: the shop has {len(self._places)}")
        line = (LINES, 1 + self._batches * STRIDE % self.counts[LINES])
        first = self._batches * rows % len(self._places)
        others = islice(cycle(self._places), first, first + len(self._places))
        chosen = [line, *islice((place for place in others if place != line), rows - 1)]
        self._batches += 1
        return [self._update(table, row) for table, row in chosen]

    def _update(self, table: str, row: int) -> RowChange:
        before = self._image(table, row)
        self._versions[table, row] += 1
        return RowChange(table, "u", row, before, self._image(table, row))

    def _image(self, table: str, row: int) -> str:
        version = self._versions[table, row]
        parents = {name.removeprefix("shop."): 1 + row % count for name, count in self.counts.items()}
        columns = _COLUMNS[table].format(
            **parents,
            row=row,
            version=version,
            order=1 + (row - 1) // _LINES_PER_ORDER,
            product=1 + row * STRIDE % self.counts["shop.products"],
            quantity=100 + version,
            pieces=1 + version % 9,
            amount=10 + version,
        )
        return f'{{"id":{row},{columns}}}'


def run_wide(parameters: Parameters, context: RunContext) -> Measured:
    """One run: both pipelines, one after the other, on the same topics."""
    rows, batches = int(parameters["rows"]), int(parameters["batches"])
    shop = Shop(int(parameters.get("orders", ORDERS)))
    with Bed(context, kafka_heap="256m") as bed:
        appender = TransactionAppender(bed.bootstrap, SOURCE, 4, tables=tuple(shop.counts))
        appender.append_all(shop.inserts(), context.clock)
        bed.start_sidecar()
        found = {
            name: _measure(PIPELINES / name, shop, rows, batches, appender, bed, context)
            for name in (MEASURED, REFERENCE)
        }
    return wide_measured(found)


def _measure(
    pipeline: Path,
    shop: Shop,
    rows: int,
    batches: int,
    appender: TransactionAppender,
    bed: Bed,
    context: RunContext,
) -> dict[str, object]:
    """Batches of one pipeline; each is appended when the one before is visible."""
    clock = context.clock
    with closing(CommitWatcher(bed.bootstrap, output_of(pipeline), clock, bed.check)) as watcher:
        last, began = appender.append_all([shop.change(1)], clock), clock.monotonic()
        bed.start_pipeline(pipeline, "--checkpoint", str(bed.folder / "checkpoints" / pipeline.name))
        context.say(f"{pipeline.name}: the initial state becomes visible")
        started = watcher.until(last, START_SECONDS).at - began
        for _ in range(WARM_UP_BATCHES):
            watcher.until(appender.append_all([shop.change(rows)], clock), BATCH_SECONDS)
        transactions = [shop.change(rows) for _ in range(batches)]
        context.say(f"{pipeline.name}: {batches} batches of {rows:,} changed rows")
        used, log, before = cpu_use(bed.roles()), len(bed.log("pipeline")), len(watcher.seen)
        visible = [clock.monotonic()]
        for transaction in transactions:
            last = appender.append_all([transaction], clock)
            visible.append(watcher.until(last, BATCH_SECONDS).at)
        cpu, parts = cpu_between(used, cpu_use(bed.roles())), batch_parts(bed.log("pipeline")[log:])
        documents = sum(commit.documents for commit in watcher.seen[before:])
        bed.stop("pipeline")
    return {
        **period_summary(visible),
        "start_seconds": round(started, 2),
        "documents": round(documents / batches, 1),
        "batch_seconds": parts,
        "cpu_seconds": cpu,
    }


def period_summary(visible: Sequence[float]) -> dict[str, float]:
    """Median and maximum of the seconds from one to the next; at least two moments, ascending."""
    periods = [later - earlier for earlier, later in pairwise(visible)]
    return {"median": round(median(periods), 3), "max": round(max(periods), 3)}


def wide_measured(found: Mapping[str, Mapping[str, object]]) -> Measured:
    """The wide pipeline's median, and how many times that of the narrow one it is."""
    wide, narrow = (float(str(found[name]["median"])) for name in (MEASURED, REFERENCE))
    return Measured(wide, {**found, "ratio": round(wide / narrow, 2)})
