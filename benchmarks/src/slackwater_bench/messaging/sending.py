"""What a way of sending costs: statements and requests, latency, throughput, rows, load when idle.

And what it costs when hardly anything is sent: how soon a relay notices a message after a pause.
"""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from typing import Any

import psycopg

from slackwater_bench.latencies import summary
from slackwater_bench.messaging.servers import Servers, TopicWatch, running_servers
from slackwater_bench.scenario import Parameters, RunContext
from slackwater_lab.errors import RunFailedError
from slackwater_lab.messaging.sending.crash import PARTITIONS, new_order
from slackwater_lab.messaging.sending.service import Order, run_at_rate, run_delivery, start
from slackwater_lab.messaging.sending.ways import WAYS

VALUE_BYTES = 200
"""Of each message; there is one in each business transaction."""
WARM_UP = 20
COUNTED = 100
"""Messages over which statements and requests are counted."""
IDLE_SECONDS = 4.0
_CAPTURE_BATCH = 1_000
_MANY = 10_000_000
_LOOK_SECONDS = 0.1
_COMMITS = (
    "SELECT number, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM {} WHERE number >= %s"
)
_SIZES = """
SELECT coalesce(pg_total_relation_size(to_regclass(%s)), 0), pg_current_wal_lsn() - '0/0'
"""
COUNTS = ("statements", "round_trips", "kafka_requests")


def measure_sending(parameters: Parameters, context: RunContext) -> dict[str, Any]:
    """Measures a way of sending once; see ``messaging`` in scenarios.toml.

    Raises:
        TestingError: A process failed, or messages did not become visible.
    """
    name, rate = str(parameters["way"]), float(parameters["rate"])
    way = WAYS[name]
    with running_servers(context, capture=way.needs_capture) as servers:
        context.say(f"{name}: {COUNTED} messages are counted")
        with _working(servers, name, is_counted=True) as service:
            service.send(WARM_UP, rate=rate)
            before = servers.count.copy()
            service.send(WARM_UP, rate=rate)
            once = servers.count - before
            service.send(WARM_UP + COUNTED, rate=rate)
            found = servers.count - before - once - once  # what a start costs is taken off
            idle = servers.measure_idle(IDLE_SECONDS) if way.needs_delivery else _NOTHING_RUNS
        context.say(f"{name}: {rate:g} messages/s, then as many as it can")
        with _working(servers, name, is_counted=False) as service:
            service.send(WARM_UP, rate=rate)
            steady = service.send(_MANY, rate=rate, seconds=float(parameters["seconds"]))
            flat_out = service.send(_MANY, seconds=float(parameters["flat_out_seconds"]))
    return {
        "latency_ms": summary(steady.latencies_ms),
        "messages_per_second": round(flat_out.per_second, 1),
        "per_message": {name: round(found[name] / COUNTED, 2) for name in COUNTS},
        "idle": idle,
        "waiting_rows": flat_out.waiting_rows,
        "table_bytes_per_message": round(flat_out.table_growth / flat_out.messages),
        "wal_bytes_per_message": round(steady.wal_bytes / steady.messages),
        "messages": {"steady": steady.messages, "flat_out": flat_out.messages},
    }


def measure_after_pauses(parameters: Parameters, context: RunContext) -> dict[str, Any]:
    """Measures how long messages after a pause take, and the load without any; see scenarios.toml.

    Raises:
        RunFailedError: Messages did not become visible.
    """
    rng, pause, way = random.Random(7), threading.Event(), WAYS["polling"]
    with running_servers(context) as servers, _working(servers, "polling", is_counted=True) as service:
        order = replace(service.order, database=servers.database)
        with way.open(order, order.probe) as business:
            if parameters["relay"] == "polling":
                service.connection.execute(f"ALTER TABLE {order.outbox} DISABLE TRIGGER ALL".encode())
            service.delivery = start(service.order, run_delivery)
            for number in range(WARM_UP + int(parameters["messages"])):
                pause.wait(rng.uniform(0.5, 2.0) if number >= WARM_UP else 0)
                business.do(number + 1)
        sent = service.sent_since(1)
        idle = servers.measure_idle(float(parameters["idle_seconds"]))
    return {"latency_ms": summary(sent.latencies_ms), "idle": idle, "messages": len(sent.latencies_ms)}


_NOTHING_RUNS = {"statements_per_second": 0.0, "cpu_percent": 0.0}


@dataclass(slots=True)
class _Sent:
    """What was seen of messages that were sent."""

    committed: dict[int, float]
    """Time of the commit by business transaction, in seconds since the epoch."""
    seen: dict[int, float]
    """Time at which its message was visible."""
    waiting_rows: int
    """Rows of the table of messages, at most."""
    table_growth: int
    """Bytes, before the space of removed rows is used again."""
    wal_bytes: int

    @property
    def messages(self) -> int:
        return len(self.committed)

    @property
    def latencies_ms(self) -> list[float]:
        """From the commit until a message was visible, but for the first ones; below 0 if it was before."""
        warm = sorted(self.committed)[WARM_UP:]
        return [1000 * (self.seen[number] - self.committed[number]) for number in warm]

    @property
    def per_second(self) -> float:
        """From the first commit until everything was visible."""
        return self.messages / (max(self.seen.values()) - min(self.committed.values()))


@dataclass(slots=True)
class _Service:
    """A service that is started again for each piece of work, with what delivers for it and who watches."""

    servers: Servers
    order: Order
    watch: TopicWatch
    connection: psycopg.Connection[Any]
    delivery: BaseProcess | None = None
    next_number: int = 1

    def send(self, count: int, *, rate: float | None = None, seconds: float | None = None) -> _Sent:
        """Does business transactions; returns when all that are committed are visible.

        Raises:
            RunFailedError: The service failed, or messages did not become visible.
        """
        first, (size, wal) = self.next_number, self._sizes()
        process = start(
            replace(self.order, first=first, count=count, rate=rate, seconds=seconds), run_at_rate
        )
        waiting = self._watch_rows(process)
        if self.delivery is None:
            self.delivery = start(self.order, run_delivery)
        return replace(self.sent_since(first, size, wal), waiting_rows=waiting)

    def sent_since(self, first: int, size: int = 0, wal: int = 0) -> _Sent:
        """Returns what was seen of business transactions from a number on, once all are visible."""
        committed = dict(self.connection.execute(_COMMITS.format(self.order.table).encode(), [first]))
        self.next_number = max(committed) + 1
        self.servers.wait_until(lambda: len(self.watch.seen) >= self.next_number - 1, "the last message")
        grown, written = self._sizes()
        seen = {json.loads(value)["transaction"]: at for at, _, value in reversed(self.watch.seen)}
        return _Sent(committed, seen, 0, grown - size, written - wal)

    def _watch_rows(self, process: BaseProcess) -> int:
        """Waits for the end of a service; returns how many rows its table of messages had at most."""
        most = 0
        while process.is_alive():
            process.join(_LOOK_SECONDS)
            most = max(most, self._rows())
        if process.exitcode != 0:
            raise RunFailedError(self.order.way, f"the service ended with {process.exitcode}")
        return most

    def _rows(self) -> int:
        exists = self.connection.execute("SELECT to_regclass(%s) IS NOT NULL", [self.order.outbox])
        if exists.fetchone() != (True,):
            return 0
        query = f"SELECT count(*) FROM {self.order.outbox}"  # noqa: S608 - our own name
        found = self.connection.execute(query.encode()).fetchone()
        return 0 if found is None else int(found[0])

    def _sizes(self) -> tuple[int, int]:
        """Returns the bytes of the table of messages, and of everything that was ever written to the log."""
        found = self.connection.execute(_SIZES, [self.order.outbox]).fetchone()
        return (0, 0) if found is None else (int(found[0]), int(found[1]))


@contextmanager
def _working(servers: Servers, way: str, *, is_counted: bool) -> Iterator[_Service]:
    """A service of its own, whose requests are counted, or which is as fast as it can be."""
    order = replace(
        new_order(way, servers.database, servers.bootstrap),
        messages=1,
        value_bytes=VALUE_BYTES,
        rolled_back=0,
        capture_batch=_CAPTURE_BATCH,
    )
    used = order
    if is_counted:
        used = replace(order, database=servers.counted_database, bootstrap=servers.counted_bootstrap)
    with (
        TopicWatch(servers.bootstrap, order.topic, PARTITIONS, servers.context.clock) as watch,
        psycopg.connect(servers.database, autocommit=True) as connection,
    ):
        service = _Service(servers, used, watch, connection)
        try:
            yield service
        finally:
            if service.delivery is not None:
                service.delivery.kill()
                service.delivery.join()
