"""The bed of a run: servers and the product's programs in a folder of its own; nothing outlives it."""

import tempfile
import threading
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from slackwater.cuts import CutLog
from slackwater.dev import DevStack, DevStackSettings
from slackwater.protocol import KafkaSettings, PublishedCut
from slackwater_bench.scenario import RunContext
from slackwater_lab.errors import RunFailedError
from slackwater_lab.programs import Product
from slackwater_lab.workloads.workload import repository_pipeline

SOURCE = "inv"
ORDERS_PIPELINE = repository_pipeline("orders")


class Bed(Product):
    """The product on servers of its own: Kafka and Redis, with PostgreSQL and Connect when wanted.

    Args:
        context: Of the run.
        partitions: Of topics that the broker or the connector makes.
        has_database: Whether PostgreSQL and Connect are needed.
        kafka_heap: Of the broker; the default does for a few dozen partitions.
    """

    def __init__(
        self,
        context: RunContext,
        *,
        partitions: int = 4,
        has_database: bool = False,
        kafka_heap: str = "128m",
    ) -> None:
        self._context = context
        self._temporary = tempfile.TemporaryDirectory(prefix="slackwater-bench-", ignore_cleanup_errors=True)
        folder = Path(self._temporary.name)
        stack = DevStack(
            DevStackSettings(
                folder=folder / "stack",
                prefix=SOURCE,
                partitions=partitions,
                postgres=has_database,
                connect=has_database,
                keep_data=False,
                kafka_heap=kafka_heap,
            )
        )
        super().__init__(stack, folder, clock=context.clock, command=context.environment.command)

    def __enter__(self) -> Self:
        self._context.say("starting servers")
        try:
            self.stack.start()
        except BaseException:
            self._temporary.cleanup()
            raise
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.stack.stop()
        self._temporary.cleanup()

    def rest(self, seconds: float) -> None:
        """Lets everything run for a while.

        Raises:
            ProgramEndedError: something does not run any more.
        """
        clock, pause = self._context.clock, threading.Event()
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            self.check()
            pause.wait(min(1.0, left))

    def wait_for_cut(self, lsn: int, seconds: float) -> PublishedCut:
        """Waits for the first cut at or above an LSN.

        Raises:
            RunFailedError: there is none in time.
            ProgramEndedError: something does not run any more.
        """
        clock = self._context.clock
        log, deadline, position = (
            CutLog(SOURCE, KafkaSettings(self.bootstrap)),
            clock.monotonic() + seconds,
            -1,
        )
        try:
            while clock.monotonic() < deadline:
                self.check()
                for published in log.tail(position):
                    position = published.log_offset
                    if published.cut.lsn >= lsn:
                        return published
        finally:
            log.close()
        raise RunFailedError("the sidecar", f"published no cut at {lsn} within {seconds:g} s")

    def roles(self) -> Mapping[str, int]:
        """Process id of everything that runs, servers included."""
        roles = {name: pid for name, program in self.programs.items() if (pid := program.pid) is not None}
        for server in self.stack.servers:
            if server.is_running:
                roles[server.name] = server.pid
        return roles


def output_of(pipeline: Path) -> str:
    """Output topic of the pipeline in a folder; the first of several, which become visible together."""
    definition = tomllib.loads((pipeline / "pipeline.toml").read_text())
    outputs = [definition["output"]] if "output" in definition else [*definition["outputs"].values()]
    topic: str = outputs[0]["topic"]
    return topic
