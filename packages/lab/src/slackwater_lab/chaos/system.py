"""The running product with everything around it: two brokers, two sidecars, one pipeline, all supervised."""

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.dev import ConnectWorker, Server
from slackwater.outputs.contract import SinkKind
from slackwater.pipeline import load_pipeline
from slackwater.protocol import Clock, SlackwaterError, SystemClock
from slackwater.protocol.keys import data_topic, transaction_topic
from slackwater_lab.chaos.consumers import Consumers
from slackwater_lab.chaos.disk import make_disk
from slackwater_lab.chaos.output import make_output
from slackwater_lab.chaos.process import ControlFolder
from slackwater_lab.database.statements import create_tables, current_lsn, write_first, write_last
from slackwater_lab.database.writers import Writers
from slackwater_lab.errors import RunFailedError
from slackwater_lab.programs import Program, stated_connector, write_run_settings
from slackwater_lab.servers.proxy import TcpProxy
from slackwater_lab.servers.stack import LabStack, LabStackSettings
from slackwater_lab.watching import Background, wait_until
from slackwater_lab.workloads.workload import Workload

SOURCE = "inv"
LOCAL = "local[2]"
EXECUTORS = "local-cluster[2,1,1024]"
"""Executors are processes of their own, apart from the driver."""
_PARTITIONS = 4
_WRITERS = 3
_SLOW = _PARTITIONS - 1
"""The partition of each table that the second broker leads."""
_START_SECONDS = 600.0
_ADMIN_SECONDS = 120.0
_RESTART_PAUSE_SECONDS = 1.0
"""As systemd's RestartSec: long enough that a fault is seen by the others, short enough not to bore."""
_SUPERVISION_SECONDS = 0.25
"""Between two looks of a supervisor at its part."""
_ASK_SECONDS = 2.0
"""Between two questions to Connect about its connector."""

_log = logging.getLogger(__name__)


class ServerPart:
    """A server of the stack; a connector that failed counts as dead, as an operator would have it."""

    def __init__(self, name: str, server: Server) -> None:
        self.name = name
        self._server = server
        self._asked_at = float("-inf")

    @property
    def is_well(self) -> bool:
        """True if it runs and, for Connect, its connector has not failed; paused counts as well."""
        server = self._server
        if not server.is_running:
            return False
        if not isinstance(server, ConnectWorker) or time.monotonic() - self._asked_at < _ASK_SECONDS:
            return True
        self._asked_at = time.monotonic()
        return not server.state().trace

    def start(self) -> None:
        """Starts it and waits until clients can work with it."""
        self.kill()
        self._server.start()

    def kill(self) -> None:
        self._if_running(self._server.kill)

    def pause(self) -> None:
        self._if_running(self._server.pause)

    def resume(self) -> None:
        self._if_running(self._server.resume)

    def _if_running(self, action: Callable[[], None]) -> None:
        if self._server.is_running:
            action()


Part = Program | ServerPart


class Supervised(Background):
    """Starts a part again whenever it is dead, after a moment; leaves it dead or alive in the end.

    Only one thread at a time uses the part.
    """

    def __init__(self, part: Part, on_death: Callable[[Part], None]) -> None:
        super().__init__(f"supervisor-{part.name}")
        self.part = part
        self.is_kept_down = False
        """While it is true, a part that is dead is not started."""
        self._on_death = on_death
        self._using = threading.RLock()

    def do(self, action: Callable[[Part], None]) -> None:
        """Does something to the part while nobody else does; waits for a start in progress."""
        with self._using:
            action(self.part)

    def _work(self) -> None:
        while not self._stop.wait(_SUPERVISION_SECONDS):
            if self.is_kept_down or self.part.is_well:
                continue
            self._on_death(self.part)
            if self._stop.wait(_RESTART_PAUSE_SECONDS):
                return
            with self._using:
                try:
                    self.part.start()
                except SlackwaterError as error:
                    _log.warning("%s does not start: %s", self.part.name, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSettings:
    """One system."""

    folder: Path
    """Data and logs; must not exist yet."""
    workload: Workload
    changes_per_second: float = 300.0
    master: str = LOCAL
    """Where Spark runs at first."""
    output: SinkKind = SinkKind.KAFKA
    """Where the pipeline publishes."""
    has_consumers: bool = False
    """Whether services read the topics and the output, which is in Kafka then."""

    @property
    def logs(self) -> Path:
        """The folder of the product's logs; the servers' are below ``stack``."""
        return self.folder / "logs"


class System:
    """A context manager: nothing runs before or after. The parts are in :attr:`parts` by name."""

    def __init__(self, settings: SystemSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.master = settings.master
        """Where Spark runs from the pipeline's next start on."""
        self.without: tuple[str, ...] = ()
        """Mechanisms of the pipeline that are switched off from its next start on, see ``chaos.process``."""
        self.deaths: Counter[str] = Counter()
        self.last_words: list[tuple[str, str]] = []
        """Program and how its log ended, for each death that it chose itself."""
        self.definition = load_pipeline(settings.workload.pipeline)
        self.output = make_output(settings.output, settings.folder, self._driver_pids)
        self.stack = LabStack(
            LabStackSettings(
                folder=settings.folder / "stack",
                prefix=SOURCE,
                partitions=_PARTITIONS,
                second_kafka=True,
                kafka_routes=("connect", "sidecar", "pipeline", "consumers"),
                offset_flush_interval=timedelta(seconds=2),
                keep_data=False,
            )
        )
        self.parts: dict[str, Supervised] = {}
        self.consumers: Consumers | None = None
        """None: nobody reads."""
        self._running = ExitStack()

    def __enter__(self) -> "System":
        try:
            self._start()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def dsn(self) -> str:
        return self.stack.postgres.dsn()

    @property
    def bootstrap(self) -> str:
        """The first broker, not over a proxy."""
        return self.stack.kafka.bootstrap

    def control(self, part: str) -> ControlFolder:
        return ControlFolder(self.settings.folder / "control" / part)

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        return wait_until(condition, seconds, clock=self.clock)

    def database_lsn(self) -> int | None:
        """Every commit so far is below, every later one at or above; None: the database does not answer."""
        try:
            return current_lsn(self.dsn, connect_timeout=2)
        except psycopg.OperationalError:
            return None

    def write_last(self) -> int:
        """Commits one more change and returns an LSN below its commit."""
        return write_last(self.dsn, self.definition.tables[-1])

    def program(self, name: str) -> Program:
        part = self.parts[name].part
        if not isinstance(part, Program):
            raise TypeError(f"{name} is no program")
        return part

    def _start(self) -> None:
        settings, stack = self.settings, self.stack
        settings.folder.mkdir(parents=True)
        self.disk = make_disk(settings.folder, self._writing_pids)
        self._running.callback(self.disk.close)
        self._running.callback(self._stop_stack)
        self._running.enter_context(self.output)
        stack.start()
        create_tables(self.dsn, settings.workload)
        write_first(self.dsn, settings.workload)
        self._create_topics()
        self.redis_proxy = TcpProxy(lambda: stack.redis.port)
        self.redis_proxy.start()
        self._running.callback(self.redis_proxy.stop)
        self._start_programs()
        stack.start_connector(self.definition.tables)
        stack.wait_until_streaming()
        self.visible = self._running.enter_context(self.output.watch(self.bootstrap, self.clock))
        self._supervise()
        if not self.wait(lambda: self.visible.newest_lsn > 0, _START_SECONDS):
            raise RunFailedError(
                "the pipeline",
                f"nothing was visible after {_START_SECONDS:.0f} s, before any fault; logs: {settings.logs}\n"
                f"{self.program('pipeline').last_words()}",
            )
        self.writers = Writers(
            self.dsn,
            settings.workload,
            count=_WRITERS,
            changes_per_second=settings.changes_per_second,
            clock=self.clock,
        )
        self.writers.start()
        self._running.callback(self._stop_writers)
        if settings.has_consumers:
            self._start_consumers()

    def _create_topics(self) -> None:
        """Before the connector would: one partition of each table is led by the second broker."""
        leaders = [[2] if number == _SLOW else [1] for number in range(_PARTITIONS)]
        topics = [
            NewTopic(data_topic(SOURCE, table), _PARTITIONS, replica_assignment=leaders)
            for table in self.definition.tables
        ]
        topics.append(NewTopic(transaction_topic(SOURCE), 1, replica_assignment=[[1]]))
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for created in admin.create_topics(topics).values():
            created.result(_ADMIN_SECONDS)

    def _start_programs(self) -> None:
        folder = self.disk.folder
        pipeline = self.output.pipeline(self.settings.workload.pipeline, self.settings.folder / "pipeline")
        # Stated, because a run has to begin while Kafka Connect is dead, too.
        stated = stated_connector(SOURCE)
        config = write_run_settings(
            self.settings.folder / "pipeline.toml", folder, f"{self.output.settings}\n{stated}"
        )
        redis = f"redis://127.0.0.1:{self.redis_proxy.port}/0"
        for name in ("sidecar-1", "sidecar-2"):
            servers = ["--bootstrap", self.stack.kafka.bootstrap_over("sidecar"), "--redis-url", redis]
            command = ["--config", "/dev/null", "sidecar", "--source", SOURCE, *servers]
            self._add_program(name, partial(list, [str(self.control(name).path), *command]))
        servers = ["--bootstrap", self.stack.kafka.bootstrap_over("pipeline"), "--redis-url", redis]
        run = ["--config", str(config), "run", str(pipeline), *servers]
        run += ["--checkpoint", str(folder / "checkpoint"), "--allow-missing-tables"]
        self._add_program("pipeline", lambda: self._pipeline_arguments(run))

    def _pipeline_arguments(self, run: list[str]) -> list[str]:
        without = [argument for name in self.without for argument in ("--without", name)]
        return [str(self.control("pipeline").path), *without, *run, "--master", self.master]

    def _add_program(self, name: str, arguments: Callable[[], Sequence[str]]) -> None:
        command = (sys.executable, "-m", "slackwater_lab.chaos.process")
        program = Program(name, lambda: (*command, *arguments()), self.settings.logs)
        program.start()
        self.parts[name] = Supervised(program, self._died)
        self._running.callback(program.stop)

    def _supervise(self) -> None:
        stack = self.stack
        servers = {
            "broker": stack.kafka,
            "connect": stack.connect,
            "postgres": stack.postgres,
            "redis": stack.redis,
            **self.output.servers,
        }
        for name, server in servers.items():
            self.parts[name] = Supervised(ServerPart(name, server), self._died)
        for supervised in self.parts.values():
            self._running.enter_context(supervised)

    def _start_consumers(self) -> None:
        """The output exists: something of it is visible."""
        folder, route = self.settings.folder / "control", self.stack.kafka.bootstrap_over("consumers")
        self.consumers = Consumers(
            folder, self.settings.logs, dsn=self.dsn, bootstrap=self.bootstrap, route=route
        )
        self.consumers.create_database()
        for name, program in self.consumers.programs.items():
            program.start()
            self._running.callback(program.stop)
            self.parts[name] = self._running.enter_context(Supervised(program, self._died))

    def _died(self, part: Part) -> None:
        self.deaths[part.name] += 1
        if isinstance(part, Program):
            self.last_words.append((part.name, part.last_words()))

    def _stop_writers(self) -> None:
        try:
            self.writers.stop()
        except Exception as error:  # noqa: BLE001 - the run is over; while it mattered it was raised
            _log.warning("a writer failed: %s", error)

    def _stop_stack(self) -> None:
        for server in self.stack.servers:
            if server.is_paused:
                server.resume()
        self.stack.stop()

    def _driver_pids(self) -> Iterable[int]:
        """Lists the pipeline's driver, if it runs: it writes lakes."""
        pid = self.program("pipeline").pid
        return [] if pid is None else [pid]

    def _writing_pids(self) -> Iterable[int]:
        """Lists the processes that write to the pipeline's disk; not its driver, which writes the log."""
        pid = self.program("pipeline").pid
        try:
            return (
                [] if pid is None else [child.pid for child in psutil.Process(pid).children(recursive=True)]
            )
        except psutil.Error:
            return []
