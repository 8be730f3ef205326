"""The servers of a comparison; what counts the requests of clients, and what sees records become visible."""

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import TopicPartition

from slackwater.protocol import Clock
from slackwater_bench.bed import SOURCE
from slackwater_bench.scenario import RunContext
from slackwater_bench.usage import cpu_of
from slackwater_lab.errors import RunFailedError
from slackwater_lab.programs import Product
from slackwater_lab.servers.proxy import TcpProxy
from slackwater_lab.servers.stack import LabStack, LabStackSettings
from slackwater_lab.topics import open_consumer
from slackwater_lab.watching import Background, wait_until

_STATEMENTS = b"QE"
"""Query and Execute: each is one statement."""
_ROUND_TRIPS = b"QS"
"""Query and Sync: behind each the client waits for the server to be ready."""
_PROTOCOL_3 = 3
_WRITING = {
    0: "produce",
    8: "commit offsets",
    24: "add partitions",
    25: "add offsets",
    26: "end transaction",
    28: "commit offsets in a transaction",
}
"""The requests of Kafka's protocol that write, by number; what only asks or fetches is not counted."""
_ROUTE = "counted"
_START_SECONDS = 180.0
_SETTLE_SECONDS = 2.5
"""How long relays, which poll less and less often when there is nothing, take to settle down."""


class PostgresRequests:
    """Counts the statements and round trips of one connection to PostgreSQL."""

    def __init__(self, count: Counter[str]) -> None:
        self._count, self._buffer, self._has_started = count, bytearray(), False

    def __call__(self, chunk: bytes) -> None:
        """Takes what the client has sent."""
        self._buffer += chunk
        while self._take():
            pass

    def _take(self) -> bool:
        """Takes one message from the buffer; returns whether it was whole."""
        start = 1 if self._has_started else 0  # the first messages have no type
        if len(self._buffer) < start + 4:
            return False
        size = int.from_bytes(self._buffer[start : start + 4])
        if len(self._buffer) < start + size:
            return False
        if not self._has_started:
            self._has_started = int.from_bytes(self._buffer[4:6]) == _PROTOCOL_3
        else:
            self._count["statements"] += self._buffer[0] in _STATEMENTS
            self._count["round_trips"] += self._buffer[0] in _ROUND_TRIPS
        del self._buffer[: start + size]
        return True


class KafkaRequests:
    """Counts the requests of one connection to a broker that write something."""

    def __init__(self, count: Counter[str]) -> None:
        self._count, self._buffer = count, bytearray()

    def __call__(self, chunk: bytes) -> None:
        """Takes what the client has sent."""
        self._buffer += chunk
        while len(self._buffer) >= 6:
            size = int.from_bytes(self._buffer[:4])
            if len(self._buffer) < 4 + size:
                return
            self._count["kafka_requests"] += int.from_bytes(self._buffer[4:6]) in _WRITING
            del self._buffer[: 4 + size]


Watch = Callable[[], Callable[[bytes], None]]


def watching(kind: type[PostgresRequests] | type[KafkaRequests], count: Counter[str]) -> Watch:
    """Returns what a proxy needs to count all its connections together."""
    return lambda: kind(count)


@dataclass(frozen=True, slots=True)
class Servers:
    """PostgreSQL and Kafka, each directly and through a proxy that counts."""

    stack: LabStack
    context: RunContext
    counted_database: str
    count: Counter[str]
    """``statements`` and ``round_trips`` of PostgreSQL, ``kafka_requests`` that write."""

    @property
    def database(self) -> str:
        """Connection string."""
        return self.stack.postgres.dsn()

    @property
    def bootstrap(self) -> str:
        """Address of the broker."""
        return self.stack.kafka.bootstrap

    @property
    def counted_bootstrap(self) -> str:
        """Address of the broker's proxy."""
        return self.stack.kafka.bootstrap_over(_ROUTE)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for something.

        Raises:
            RunFailedError: It does not come in time.
        """
        if not wait_until(condition, _START_SECONDS, clock=self.context.clock):
            raise RunFailedError(what, f"did not come within {_START_SECONDS:g} s")

    def measure_idle(self, seconds: float) -> dict[str, float]:
        """Measures what the database has to do while nothing is sent: counted clients, and its processor."""
        pause, pid = threading.Event(), self.stack.postgres.pid
        pause.wait(_SETTLE_SECONDS)
        statements, cpu = self.count["statements"], cpu_of(pid)
        pause.wait(seconds)
        return {
            "statements_per_second": round((self.count["statements"] - statements) / seconds, 2),
            "cpu_percent": round(100 * (cpu_of(pid) - cpu) / seconds, 2),
        }


@contextmanager
def running_servers(
    context: RunContext, *, capture: bool = False, broker: Mapping[str, str] | None = None
) -> Iterator[Servers]:
    """Starts servers for the block, with a connector of all tables and a sidecar if messages are captured."""
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        stack = LabStack(
            LabStackSettings(
                folder=folder / "stack",
                prefix=SOURCE,
                partitions=2,
                connect=capture,
                redis=capture,
                kafka_routes=(_ROUTE,),
                kafka_heap="256m",
                postgres_overrides={"track_commit_timestamp": "on"},
                broker_overrides=broker or {},
                keep_data=False,
            )
        )
        count: Counter[str] = Counter()
        context.say("starting servers")
        with (
            stack,
            Product(stack, folder, clock=context.clock, command=context.environment.command) as product,
        ):
            proxy = TcpProxy(lambda: stack.postgres.port)
            proxy.watch = watching(PostgresRequests, count)
            proxy.start()
            stack.kafka.proxy(_ROUTE).watch = watching(KafkaRequests, count)
            dsn = stack.postgres.dsn().replace(f":{stack.postgres.port}/", f":{proxy.port}/")
            try:
                if capture:
                    _start_capture(stack, product)
                yield Servers(stack, context, dsn, count)
            finally:
                proxy.stop()


def _start_capture(stack: LabStack, product: Product) -> None:
    stack.start_connector()
    stack.wait_until_streaming()
    product.start_sidecar()
    product.wait_for_cut_log(_START_SECONDS)


class TopicWatch(Background):
    """Notes when a ``read_committed`` consumer sees each record of a topic for the first time."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, clock: Clock) -> None:
        super().__init__(f"watch-{topic}")
        self._consumer, self._clock = open_consumer(bootstrap), clock
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self.seen: list[tuple[float, bytes, bytes]] = []
        """Time, in seconds since the epoch, key and value."""

    def _work(self) -> None:
        with closing(self._consumer):
            while not self._stop.is_set():
                record = self._consumer.poll(0.1)
                if record is not None and record.error() is None:
                    now = self._clock.now().timestamp()
                    self.seen.append((now, record.key() or b"", record.value() or b""))
