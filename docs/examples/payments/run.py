"""Runs the example on real servers, kills its programs meanwhile, and shows what has come of it.

    python run.py [ORDERS]                         400; less than a minute

It starts PostgreSQL, Kafka, Debezium, Redis, a sidecar, the pipeline, both services and their relays.
"""

import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, takewhile
from pathlib import Path

import psycopg

from slackwater.dev import DevStack, DevStackSettings
from slackwater_certify import Connections, Mode, certify, load_specification, report
from slackwater_lab.database.statements import write_last
from slackwater_lab.programs import Product
from slackwater_lab.topics import read_to_end
from slackwater_lab.watching import Visibility

HERE = Path(__file__).resolve().parent
PIPELINE = HERE / "pipeline"
SPECIFICATIONS = (PIPELINE / "certify.toml", PIPELINE / "certify_accounts.toml")
SOURCE = "shop"
TABLES = tuple(f"shop.{name}" for name in ("orders", "parcels", "outbox")) + tuple(
    f"payments.{name}" for name in ("accounts", "payments", "outbox")
)
TOPICS = ("payment-requests", "payment-answers")
SECONDS = 600.0
"""How long to wait for anything, at most."""
SUMMARY = """
SELECT status, count(*), sum((SELECT count(*) FROM payments.payments AS p WHERE p.order_id = o.id)),
    sum((SELECT count(*) FROM shop.parcels AS s WHERE s.order_id = o.id))
FROM shop.orders AS o GROUP BY status ORDER BY status DESC
"""


def script(name: str, *arguments: str) -> Sequence[str]:
    """Returns the command line of a script of this folder."""
    return (sys.executable, str(HERE / name), *arguments)


def services(stack: DevStack, patience: float) -> Mapping[str, Sequence[str]]:
    """Returns the command line of each program; the shop asks again after this many seconds."""
    database, bootstrap = stack.postgres.dsn(), stack.kafka.bootstrap
    return {
        "shop": script("shop.py", "serve", database, bootstrap, str(patience)),
        "payments": script("payments.py", "serve", database, bootstrap),
        "shop-relay": script("relay.py", bootstrap, "shop.outbox"),
        "payments-relay": script("relay.py", bootstrap, "payments.outbox"),
    }


@contextmanager
def started(stack: DevStack, folder: Path, programs: Mapping[str, Sequence[str]]) -> Iterator[Product]:
    """Runs everything, in this folder, on a stack whose servers are up."""
    with Product(stack, folder) as product:
        database, bootstrap = stack.postgres.dsn(), product.bootstrap
        for name, *servers in (("shop.py", database), ("payments.py", database, bootstrap)):
            product.start("create", script(name, "create", *servers)).wait(SECONDS)
            product.stop("create")
        stack.start_connector(TABLES)
        stack.wait_until_streaming()
        product.start_sidecar()
        product.start_pipeline(PIPELINE, local=folder / "spark")
        product.wait_for_cut_log(SECONDS)
        for name, command in programs.items():
            product.start(name, command)
        yield product


def settle(product: Product, visible: Visibility) -> bool:
    """Waits until every order is answered, and all of it is in the views; returns whether it is."""
    database = product.stack.postgres.dsn()
    open_orders = "SELECT FROM shop.orders WHERE status = 'placed' LIMIT 1"
    with psycopg.connect(database, autocommit=True) as connection:
        answered = product.wait_until(lambda: connection.execute(open_orders).rowcount == 0, SECONDS)
    last = write_last(database, "shop.orders")
    return answered and product.wait_until(lambda: visible.newest_lsn >= last, SECONDS)


def main(orders: str = "400") -> None:
    """Runs it once."""
    folder = Path(tempfile.mkdtemp(prefix="payments-"))
    say(f"starting; logs are in {folder}")
    settings = DevStackSettings(folder=folder / "stack", prefix=SOURCE, database="shop", keep_data=False)
    with DevStack(settings) as stack:
        programs = services(stack, patience=2.0)
        with started(stack, folder / "programs", programs) as product:
            visible = product.watch(PIPELINE)
            customers = product.start("customers", script("shop.py", "order", stack.postgres.dsn(), orders))
            pause = threading.Event()
            for name in takewhile(lambda _: not pause.wait(2) and customers.is_well, cycle(programs)):
                say(f"killing {name}")
                product.programs[name].kill()
                product.start(name, programs[name])
            product.stop("customers")
            settle(product, visible)
            show(stack)


def show(stack: DevStack) -> None:
    """Writes what both services have stored and said, and whether the views were ever wrong."""
    with psycopg.connect(stack.postgres.dsn()) as connection:
        for status, count, payments, parcels in connection.execute(SUMMARY):
            say(f"{status:<17} {count} orders, {payments} payments, {parcels} parcels")
    for topic in TOPICS:
        messages = [(record.key(), record.value()) for record in read_to_end(stack.kafka.bootstrap, topic)]
        say(f"{topic:<17} {len(messages)} messages, {len(set(messages))} of them different")
    connections = Connections(bootstrap=stack.kafka.bootstrap, dsn=stack.postgres.dsn())
    for file in SPECIFICATIONS:
        say(f"\n{report(certify(load_specification(file), connections, mode=Mode.BOTH))}")


def say(text: str) -> None:
    """Writes a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
