"""What a way of receiving costs: statements and requests, latency, throughput, rows, load when idle."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import psycopg

from slackwater_bench.latencies import summary
from slackwater_bench.messaging.crashes import RECEIVED
from slackwater_bench.messaging.sending import COUNTED, COUNTS, IDLE_SECONDS, WARM_UP
from slackwater_bench.messaging.servers import Servers, TopicWatch, running_servers
from slackwater_bench.scenario import Parameters, RunContext
from slackwater_lab.messaging.receiving.member import Twin, Way
from slackwater_lab.messaging.receiving.world import PARTITIONS, World, stop
from slackwater_lab.topics import read_to_end

MAX_BATCH = 500
_EFFECTS = "SELECT item, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM {}.effect"
_SIZES = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' AND c.relname NOT IN ('effect', 'answer')
"""


def measure_receiving(parameters: Parameters, context: RunContext) -> dict[str, Any]:
    """Measures a way of receiving once; see ``messaging`` in scenarios.toml.

    Raises:
        TestingError: A process failed, or messages were not processed.
    """
    name, rate = str(parameters["way"]), float(parameters["rate"])
    way, seconds = RECEIVED[name], float(parameters["seconds"])
    with running_servers(context) as servers:
        context.say(f"{name}: {COUNTED} messages are counted")
        with _World.open(servers, way, is_counted=True) as world:
            world.receive(WARM_UP, rate)
            before = servers.count.copy()
            world.receive(COUNTED, rate)
            found = servers.count - before
            idle = servers.measure_idle(IDLE_SECONDS)
        context.say(f"{name}: {rate:g} messages/s, then as many as it can")
        with _World.open(servers, way, is_counted=False) as world:
            world.receive(WARM_UP, rate)
            start = world.written
            world.receive(int(rate * seconds), rate)
            latencies = world.latencies_ms(start + WARM_UP)
            world.stop()  # filters are written now, and not among the backlog's rows
            size, backlog = world.table_bytes(), int(parameters["backlog"])
            per_second = world.receive_backlog(backlog)
            grown = world.table_bytes() - size
    return {
        "latency_ms": summary(latencies),
        "messages_per_second": round(per_second, 1),
        "per_message": {name: round(found[name] / COUNTED, 2) for name in COUNTS},
        "idle": idle,
        "table_bytes_per_message": round(grown / backlog),
        "messages": {"steady": len(latencies), "flat_out": backlog},
    }


class _World:
    """A member, what it is to receive, and when its effects were there."""

    def __init__(
        self,
        servers: Servers,
        world: World,
        watch: TopicWatch,
        connection: psycopg.Connection[Any],
        *,
        is_counted: bool,
    ) -> None:
        self._servers, self._world, self._watch, self._connection = servers, world, watch, connection
        self._route: dict[str, Any] = (
            {"bootstrap": servers.counted_bootstrap, "dsn": servers.counted_database} if is_counted else {}
        )
        """Where members look for the servers."""
        self._member: BaseProcess | None = None
        self.written = 0
        """Messages, whose keys are their numbers."""

    @classmethod
    @contextmanager
    def open(cls, servers: Servers, way: Way | Twin | None, *, is_counted: bool) -> Iterator["_World"]:
        world = World(servers.bootstrap, servers.database, way, is_measured=True, max_batch=MAX_BATCH)
        outputs, clock = f"{world.settings.topic}.out", servers.context.clock
        with (
            TopicWatch(servers.bootstrap, outputs, PARTITIONS, clock) as watch,
            psycopg.connect(servers.database, autocommit=True) as connection,
        ):
            made = cls(servers, world, watch, connection, is_counted=is_counted)
            try:
                yield made
            finally:
                made.stop()

    def receive(self, count: int, rate: float) -> None:
        """Has this many messages written at intended times; returns when all were processed."""
        if self._member is None:
            self._member = self._world.start(**self._route)
        self._append(count, rate)
        self._wait()

    def receive_backlog(self, count: int) -> float:
        """Has this many messages written while nobody receives, and then a member; returns its messages/s."""
        first = self.written
        self._append(count, None)
        self._member = self._world.start(**self._route)
        self._wait()
        times = sorted(at for number, at in self._effects().items() if number >= first)
        return (count - MAX_BATCH) / (times[-1] - times[0])  # a batch is there at once

    def latencies_ms(self, first: int) -> list[float]:
        """From the append of messages from a number on until their effects were committed."""
        appended = {
            int(record.key() or b""): record.timestamp()[1] / 1000
            for record in read_to_end(self._servers.bootstrap, self._world.settings.topic)
        }
        return [1000 * (at - appended[number]) for number, at in self._effects().items() if number >= first]

    def table_bytes(self) -> int:
        """What the inbox takes in the database."""
        found = self._connection.execute(_SIZES, [self._world.settings.schema]).fetchone()
        return 0 if found is None else int(found[0])

    def stop(self) -> None:
        """Ends the member."""
        if self._member is not None:
            stop(self._member)
            self._member = None

    def _append(self, count: int, rate: float | None) -> None:
        self._world.append(range(self.written, self.written + count), rate)
        self.written += count

    def _wait(self) -> None:
        self._servers.wait_until(lambda: self._count() >= self.written, "the last effect")

    def _count(self) -> int:
        if self._world.settings.way is None:
            return len(self._watch.seen)
        query = f"SELECT count(*) FROM {self._world.settings.schema}.effect".encode()  # noqa: S608 - our own name
        found = self._connection.execute(query).fetchone()
        return 0 if found is None else int(found[0])

    def _effects(self) -> dict[int, float]:
        """Returns when each message's effect was there: committed, or within Kafka visible."""
        if self._world.settings.way is None:
            return {int(key): at for at, key, _ in self._watch.seen}
        query = _EFFECTS.format(self._world.settings.schema).encode()
        return {int(item): at for item, at in self._connection.execute(query)}
