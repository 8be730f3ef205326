"""The servers of a comparison, and proxies that count what is asked of them."""

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slackwater_bench.bed import SOURCE
from slackwater_bench.messaging.requests import KafkaRequests, PostgresRequests, watching
from slackwater_bench.scenario import RunContext
from slackwater_bench.usage import cpu_of
from slackwater_lab.errors import RunFailedError
from slackwater_lab.programs import Product
from slackwater_lab.servers.proxy import TcpProxy
from slackwater_lab.servers.stack import LabStack, LabStackSettings
from slackwater_lab.watching import wait_until

_ROUTE = "counted"
_START_SECONDS = 180.0
_SETTLE_SECONDS = 2.5
"""How long relays, which poll less and less often when there is nothing, take to settle down."""


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

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = _START_SECONDS) -> None:
        """Waits for something.

        Raises:
            RunFailedError: It does not come in time.
        """
        if not wait_until(condition, seconds, clock=self.context.clock):
            raise RunFailedError(what, f"did not come within {seconds:g} s")

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
