"""Tables that a pipeline keeps in PostgreSQL, read while it is killed: every look at them is one commit.

A real source database, Debezium, the sidecar and ``slackwater run pipelines/shop_tables`` into another real
server. The certifier reads table and ledger in one transaction, again and again, and compares each look with
the state of the source after the commit that the ledger names, and the end with the source itself.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import ClassVar

import psycopg
import pytest

from slackwater.dev import DevStack, PostgresServer
from slackwater.outputs.contract import SinkStep
from slackwater.protocol import SystemClock
from slackwater_certify import (
    Certificate,
    Connections,
    Mode,
    Specification,
    certify,
    load_specification,
    watch_output,
)
from slackwater_certify.specification import ViewSpecification
from slackwater_lab.chaos.process import ControlFolder
from slackwater_lab.database.statements import create_tables, write_first, write_last
from slackwater_lab.database.writers import Writers
from slackwater_lab.programs import Product, Program, slackwater_command
from slackwater_lab.workloads.workload import (
    BusinessTransaction,
    Change,
    Delete,
    Insert,
    Update,
    Workload,
    money,
    repository_pipeline,
)

pytestmark = pytest.mark.chaos

FOLDER = repository_pipeline("shop_tables")
PRODUCTS, ORDERS, LINES = "shop.products", "shop.orders", "shop.lines"
STEPS = (SinkStep.PRODUCED, SinkStep.PROGRESS, SinkStep.COMMITTED)
SECONDS = 900.0
PRODUCT_COUNT = 20
AT = "2026-01-02T03:04:05.678900Z"


@dataclass(frozen=True, slots=True)
class ShopWorkload(Workload):
    """Orders come and go with their lines, lines change and move; ``size`` orders at the start."""

    name: ClassVar[str] = "shop"
    pipeline: Path = field(default=FOLDER, kw_only=True)

    def first(self) -> Iterator[BusinessTransaction]:
        """Yields the products, then the orders without lines."""
        yield BusinessTransaction(tuple(map(new_product, range(1, PRODUCT_COUNT + 1))))
        yield BusinessTransaction(tuple(map(new_order, range(1, self.size + 1))))

    def transactions(self, writer: int, writers: int) -> Iterator[BusinessTransaction]:
        """Yields changes of a writer's own orders and lines."""
        rng = self.new_random(writer, writers)
        order_ids, line_ids = count(self.size + 1 + writer, writers), count(1 + writer, writers)
        own: dict[int, list[int]] = {n: [] for n in range(1 + writer, self.size + 1, writers)}
        while True:
            kind = rng.choice((change, change, move, add, add, remove))
            yield BusinessTransaction(tuple(kind(rng, own, order_ids, line_ids)))


WORKLOAD = ShopWorkload(seed=7, size=40)
Own = dict[int, list[int]]
"""A writer's orders with their lines."""


def new_product(product_id: int) -> Insert:
    return Insert(PRODUCTS, {"id": product_id, "name": f"product {product_id}", "category": "c"})


def new_order(order_id: int) -> Insert:
    return Insert(ORDERS, {"id": order_id, "customer_id": 1, "status": "new", "placed_at": AT})


def add(rng: Random, own: Own, order_ids: Iterator[int], line_ids: Iterator[int]) -> list[Change]:
    """An order with lines."""
    order_id = next(order_ids)
    own[order_id] = [next(line_ids) for _ in range(rng.randint(1, 5))]
    changes: list[Change] = [new_order(order_id)]
    for line_id in own[order_id]:
        row = {"id": line_id, "order_id": order_id, "product_id": rng.randint(1, PRODUCT_COUNT)}
        price = money(rng.randint(100, 999))
        changes.append(Insert(LINES, {**row, "quantity": rng.randint(1, 9), "price": price}))
    return changes


def remove(rng: Random, own: Own, order_ids: Iterator[int], line_ids: Iterator[int]) -> list[Change]:
    """An order goes with all its lines."""
    if len(own) < 5:
        return add(rng, own, order_ids, line_ids)
    order_id = rng.choice(list(own))
    return [*(Delete(LINES, line_id) for line_id in own.pop(order_id)), Delete(ORDERS, order_id)]


def change(rng: Random, own: Own, order_ids: Iterator[int], line_ids: Iterator[int]) -> list[Change]:
    """An order and all its lines change."""
    order_id = rng.choice(list(own))
    quantity = {"quantity": rng.randint(1, 9), "product_id": rng.randint(1, PRODUCT_COUNT)}
    lines: list[Change] = [Update(LINES, line_id, quantity) for line_id in own[order_id]]
    return [*lines, Update(ORDERS, order_id, {"status": rng.choice(("open", "paid", "sent"))})]


def move(rng: Random, own: Own, order_ids: Iterator[int], line_ids: Iterator[int]) -> list[Change]:
    """A line moves to another order."""
    source, target = rng.choice(list(own)), rng.choice(list(own))
    if not own[source] or source == target:
        return add(rng, own, order_ids, line_ids)
    line_id = own[source].pop()
    own[target].append(line_id)
    return [Update(LINES, line_id, {"order_id": target})]


def specifications() -> Sequence[Specification]:
    """Of both views."""
    orders = load_specification(FOLDER)
    view = ViewSpecification(
        sql=FOLDER / "views" / "product_sales.sql",
        key=("id",),
        rows={PRODUCTS: ("id",), LINES: ("product_id",)},
    )
    output = replace(orders.output, name="shop_views.product_sales")
    return orders, replace(orders, output=output, view=view, invariants=())


class Shop:
    """The running system. Used by one thread.

    Args:
        product: Its programs.
        output: The server of the tables.
    """

    def __init__(self, product: Product, output: PostgresServer) -> None:
        self._product = product
        self._control = ControlFolder(product.folder / "control")
        self._output_dsn, self.source_dsn = output.dsn(), product.stack.postgres.dsn()
        self._writers = Writers(
            self.source_dsn, WORKLOAD, count=3, changes_per_second=150.0, clock=SystemClock()
        )
        self.without: tuple[str, ...] = ()
        """Mechanisms that are switched off from the next start on."""

    def command(self, name: str, *arguments: str) -> Sequence[str]:
        """The command line of a program; that of the pipeline obeys the control folder."""
        if name != "--config":
            return slackwater_command(name, *arguments)
        without = [word for mechanism in self.without for word in ("--without", mechanism)]
        module = "slackwater_lab.chaos.process"
        return (sys.executable, "-m", module, str(self._control.path), *without, name, *arguments)

    def start(self) -> None:
        """Starts the pipeline."""
        folder = self._product.folder
        self.pipeline = self._product.start_pipeline(FOLDER, "--master", "local[2]", local=folder)

    def write(self) -> None:
        """Lets the writers write."""
        self._writers.start()

    def finish(self) -> None:
        """Stops the writers and returns when their last commit is visible."""
        self._writers.stop()
        lsn = write_last(self.source_dsn, LINES)
        wait(lambda: self.position()[1] > lsn, self.pipeline)

    def close(self) -> None:
        """Stops the writers."""
        self._writers.stop()

    def position(self) -> tuple[int, int]:
        """The newest visible batch and its commit LSN; -1: there is none."""
        with psycopg.connect(self._output_dsn) as database:
            if database.execute("SELECT to_regclass('slackwater.ledger')").fetchone() == (None,):
                return -1, 0
            query = "SELECT batch_id, commit_lsn FROM slackwater.ledger WHERE pipeline = 'shop_tables'"
            row = database.execute(query).fetchone()
        return (-1, 0) if row is None else (row[0], row[1])

    def await_batches(self, number: int = 2) -> None:
        """Waits until this many more are visible."""
        enough = self.position()[0] + number
        wait(lambda: self.position()[0] >= enough, self.pipeline)

    def kill_at(self, step: SinkStep) -> None:
        """The run kills itself with SIGKILL when its sink reaches the step; returns when it is gone."""
        self._control.kill_at(step)
        wait(lambda: not self._control.deadly_step())
        wait(lambda: not self.pipeline.is_well)

    @contextmanager
    def watched(self, found: list[Certificate]) -> Iterator[None]:
        """Reads both tables within the block, and once more behind it; then judges what was seen."""
        is_over = threading.Event()
        addresses = Connections(
            bootstrap=self._product.bootstrap, dsn=self.source_dsn, output_dsn=self._output_dsn
        )
        with ThreadPoolExecutor() as threads:
            try:
                seen = [
                    (each, threads.submit(watch_output, each, addresses, is_over.is_set))
                    for each in specifications()
                ]
                yield
            finally:
                is_over.set()
        found += [
            certify(each, addresses, mode=Mode.BOTH, records=records.result()) for each, records in seen
        ]


def wait(condition: Callable[[], bool], program: Program | None = None) -> None:
    """Waits for a condition; fails at once when the program it depends on ends."""
    deadline, pause = SystemClock().monotonic() + SECONDS, threading.Event()
    while not condition():
        if program is not None:
            program.check()
        assert SystemClock().monotonic() < deadline, "not in time"
        pause.wait(0.05)


@pytest.fixture(scope="module")
def shop(
    dev_stack: Callable[..., DevStack],
    postgres_server: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shop]:
    """Everything runs, and something is visible."""
    stack = dev_stack(prefix="shop", database="shop", partitions=4)
    create_tables(stack.postgres.dsn(), WORKLOAD)
    write_first(stack.postgres.dsn(), WORKLOAD)
    stack.start_connector(tuple(WORKLOAD.tables))
    stack.wait_until_streaming()
    with ExitStack() as running:
        environment = running.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("SLACKWATER_POSTGRES_OUTPUT_URL", postgres_server.dsn())
        product = Product(
            stack, tmp_path_factory.mktemp("product"), command=lambda *words: found.command(*words)
        )
        found = Shop(running.enter_context(product), postgres_server)
        running.callback(found.close)
        product.start_sidecar()
        found.start()
        wait(lambda: found.position()[0] >= 0, found.pipeline)
        found.write()
        yield found


@pytest.mark.full
def test_a_run_says_that_it_waits_for_its_output_and_ends_in_order_meanwhile(
    shop: Shop, postgres_server: PostgresServer
) -> None:
    postgres_server.kill()
    try:
        wait(lambda: "waiting for PostgreSQL" in shop.pipeline.output(), shop.pipeline)
        shop.pipeline.stop()
    finally:
        postgres_server.start()
    assert "ended: asked by SIGTERM" in shop.pipeline.output()
    shop.start()
    shop.await_batches()


@pytest.mark.full
@pytest.mark.parametrize(
    "steps", [STEPS[-1:], pytest.param(STEPS[:-1], marks=pytest.mark.slow)], ids=["last", "others"]
)
def test_every_look_at_the_tables_of_a_run_that_is_killed_shows_one_commit_of_the_source(
    shop: Shop, steps: Sequence[SinkStep]
) -> None:
    certificates: list[Certificate] = []
    with shop.watched(certificates):
        for step in steps:
            shop.kill_at(step)
            shop.start()
            shop.await_batches()
        shop.pipeline.kill()
        shop.start()
        shop.await_batches()
        shop.finish()
    for certificate in certificates:
        assert certificate.examples == {}
        assert certificate.is_clean
        assert certificate.commits > len(steps) + 1
        assert certificate.snapshots > certificate.commits
        assert certificate.deletes > 0 or "product" in certificate.output


def test_without_one_transaction_a_look_finds_a_table_ahead_of_the_ledger(shop: Shop) -> None:
    shop.close()
    shop.pipeline.stop()
    shop.without = ("one-transaction",)
    certificates: list[Certificate] = []
    with shop.watched(certificates):
        shop.start()
        with psycopg.connect(shop.source_dsn) as source:
            source.execute("UPDATE shop.lines SET quantity = quantity + 1")
        shop.kill_at(SinkStep.PROGRESS)
    assert all(certificate.uncovered > 0 for certificate in certificates)
