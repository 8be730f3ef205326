"""All servers of a stack, for as long as a process needs them or left running in their folder."""

import fcntl
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import orjson

from slackwater.cdc.connector import (
    publication_name,
    reading_properties,
    replication_name,
    table_list,
    topic_properties,
)
from slackwater.dev.java import Collector, Progress, Properties
from slackwater.dev.kafka import ConnectMode, ConnectWorker, KafkaBroker
from slackwater.dev.postgres import USER, PostgresServer
from slackwater.dev.processes import (
    Lifetime,
    failed_start,
    not_running,
    wrong_setting,
)
from slackwater.dev.redis_server import RedisServer
from slackwater.dev.server import (
    LOOPBACK,
    POLL_SECONDS,
    START_TIMEOUT,
    Deadline,
    RunState,
    Server,
    ServerStatus,
    log_tail,
)
from slackwater.protocol import ConfigError, StateError
from slackwater.protocol.keys import table_name

_AnyServer = TypeVar("_AnyServer", bound=Server)

_LOCK_FILE_NAME = ".devstack.lock"
_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_HEAP = re.compile(r"[1-9][0-9]*[mg]")
_FORMAT = 1
FILE_NAME = "devstack.json"
"""Names the processes, so that another process can recognise, judge and end them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevStackSettings:
    """One stack of servers on loopback with its data and logs in one folder."""

    folder: Path
    """Data, logs and the state file; created when missing."""
    prefix: str = "inv"
    """``topic.prefix`` of the connector: the name of the source."""
    database: str = "inventory"
    """Created when missing."""
    tables: tuple[str, ...] = ()
    """``schema.table`` each, for :func:`slackwater.dev.up`; empty: all tables, also later ones."""
    partitions: int = 4
    """Partitions of each data topic; transaction, notification and heartbeat topics have one."""
    postgres: bool = True
    kafka: bool = True
    redis: bool = True
    connect: bool = True
    """Whether the stack has a Connect worker; :func:`slackwater.dev.up` then starts it, too."""
    connect_mode: ConnectMode = ConnectMode.STANDALONE
    fsync: bool = False
    """Whether PostgreSQL survives a crash of the machine; a killed process it always survives."""
    kafka_heap: str = "128m"
    connect_heap: str = "256m"
    connect_collector: Collector = Collector.SERIAL
    offset_flush_interval: timedelta = timedelta(seconds=5)
    """Time between two positions that Connect stores, which determines how much is repeated after a kill."""
    heartbeat_interval: timedelta = timedelta(seconds=5)
    postgres_overrides: Mapping[str, str] = field(default_factory=dict)
    """Added to or replacing PostgreSQL's settings."""
    broker_overrides: Mapping[str, str] = field(default_factory=dict)
    """Added to or replacing the broker's properties."""
    worker_overrides: Mapping[str, str] = field(default_factory=dict)
    """Added to or replacing the Connect worker's properties."""
    connector_overrides: Mapping[str, str] = field(default_factory=dict)
    """Added to or replacing the connector's properties."""
    keep_data: bool = True
    """Whether the servers' data outlives the context manager; logs always do."""
    start_timeout: timedelta = START_TIMEOUT
    """For each server, downloads not included."""

    def __post_init__(self) -> None:
        """Refuse what no server could be started with."""
        object.__setattr__(self, "folder", self.folder.absolute())
        if not _PREFIX.fullmatch(self.prefix):
            raise wrong_setting("prefix", repr(self.prefix), "letters, digits, '.', '_' and '-'")
        if self.partitions < 1:
            raise wrong_setting("partitions", str(self.partitions), "at least 1")
        if self.connect and not (self.kafka and self.postgres):
            raise wrong_setting("connect", "True", "False in a stack without Kafka or PostgreSQL")
        object.__setattr__(self, "tables", checked_tables(self.tables))
        for name, heap in (("kafka_heap", self.kafka_heap), ("connect_heap", self.connect_heap)):
            if not _HEAP.fullmatch(heap):
                raise wrong_setting(name, repr(heap), "a size such as 256m or 1g")


def checked_tables(tables: Iterable[str]) -> tuple[str, ...]:
    """Return full names of tables; refuse what is not ``schema.table``, where SQL's quotes are allowed."""
    try:
        return tuple(map(table_name, tables))
    except ConfigError as error:
        raise wrong_setting("tables", error.problem, error.hint.removeprefix("expected ")) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """All servers of a folder."""

    prefix: str
    database: str
    servers: tuple[ServerStatus, ...]
    folder: Path = Path()

    @property
    def is_running(self) -> bool:
        """True if at least one server runs and none is missing."""
        states = {server.state for server in self.servers}
        return RunState.RUNNING in states and states <= {RunState.RUNNING, RunState.STOPPED}

    def server(self, name: str) -> ServerStatus | None:
        """The status of ``postgres``, ``kafka``, ``redis`` or ``connect``; None if the stack has it not."""
        return next((server for server in self.servers if server.name == name), None)


def write_state(state: StackStatus) -> None:
    """Replace the state file; a reader sees the old or the new one."""
    document = {"format": _FORMAT, **{each.name: getattr(state, each.name) for each in fields(state)}}
    path = state.folder / FILE_NAME
    incoming = path.with_name(f"{FILE_NAME}.{os.getpid()}")
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    incoming.write_bytes(orjson.dumps(document, str, options))  # paths become texts
    incoming.replace(path)


def read_state(folder: Path) -> StackStatus | None:
    """The state of a folder; None when no stack was ever started there.

    Raises:
        StateError: the file is damaged or of another version.
    """
    path = folder.absolute() / FILE_NAME
    try:
        document = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _unusable(path, f"is not JSON ({error})") from error
    if isinstance(document, dict) and document.get("format") != _FORMAT:
        raise _unusable(path, f"has format {document.get('format')}, expected {_FORMAT}")
    try:
        found = msgspec.convert(document, StackStatus, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        raise _unusable(path, f"lacks or garbles a field ({error})") from error
    return replace(found, folder=folder.absolute())


def _unusable(path: Path, reason: str) -> StateError:
    return StateError(f"state file {path}: {reason}", "delete it if nothing runs in that folder")


class DevStack:
    """PostgreSQL, Kafka, Redis and, when asked for, Connect with Debezium; a context manager.

    Entering starts the servers except Connect in parallel; leaving stops all. With ``Lifetime.EMBEDDED``
    nothing outlives this process, however it ends (Linux). Not for use by two threads at once, except that
    different servers may be killed and started from different threads.
    """

    def __init__(
        self,
        settings: DevStackSettings,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        progress: Progress | None = None,
    ) -> None:
        self.settings = settings
        self.lifetime = lifetime
        self._progress = progress
        self._servers: dict[str, Server] = {}
        self._adopted: set[str] = set()
        self._lock: int | None = None
        self._writing = threading.Lock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def postgres(self) -> PostgresServer:
        """The database. All four raise StateError when the stack has no such server."""
        return self._server(PostgresServer)

    @property
    def kafka(self) -> KafkaBroker:
        """The broker."""
        return self._server(KafkaBroker)

    @property
    def redis(self) -> RedisServer:
        """Redis."""
        return self._server(RedisServer)

    @property
    def connect(self) -> ConnectWorker:
        """The Connect worker; startable once :meth:`start_connector` has configured it."""
        return self._server(ConnectWorker)

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers in the order in which they can be started."""
        return tuple(self._servers.values())

    def start(self) -> None:
        """Start PostgreSQL, Kafka and Redis as the settings want, in parallel, and wait until all are ready.

        A detached stack takes over servers that already run in its folder.

        Raises:
            StateError: servers of another stack run in the folder.
            UnavailableError: this machine lacks something; see also :meth:`Server.start`.
        """
        self.settings.folder.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self._build()
            _start_together([server for server in self.servers if not isinstance(server, ConnectWorker)])
            if PostgresServer.name in self._adopted:
                self.postgres.ensure_database()  # it was started for another one, perhaps
            self._write_state()
        except BaseException:
            self._stop([server for server in self.servers if server.name not in self._adopted])
            raise

    def stop(self) -> None:
        """Stop all servers, Connect first, which stores its offsets; idempotent."""
        self._stop(self.servers)
        if not self.settings.keep_data:
            self.delete_data()

    def release(self) -> None:
        """Let other processes use the folder, for a detached stack that outlives this process."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def start_connector(self, tables: Sequence[str] = ()) -> None:
        """Create the publication, configure the connector and start Connect; returns when its task runs.

        The tables, ``schema.table`` each, must exist; empty: all tables, also later ones. Rows committed
        before are delivered by the snapshot. Called again, with more tables for example, it changes
        publication and connector.

        Raises:
            ConfigError: a table does not exist or its name is not ``schema.table``.
            UnavailableError: Connect or its connector failed.
        """
        wanted = checked_tables(tables)
        self.postgres.ensure_publication(publication_name(self.settings.prefix), wanted)
        properties = connector_properties(self.settings, self.postgres.port, wanted)
        self.connect.configure(
            self._connect_bootstrap,
            properties,
            self.settings.offset_flush_interval,
            self.settings.worker_overrides,
        )
        self.connect.apply()

    def wait_until_streaming(self, timeout: timedelta = timedelta(seconds=300)) -> None:
        """Return when the connector's snapshot is done and it follows the log: later commits are streamed.

        Raises:
            UnavailableError: it does not within the timeout, or Connect ended.
        """
        deadline = Deadline(timeout)
        slot = replication_name(self.settings.prefix)
        pause = threading.Event()
        while not self.postgres.is_streaming(slot):
            if deadline.is_expired or not self.connect.is_running:
                reason = f"slot {slot} is not read within {timeout.total_seconds():g} s"
                log_path = self.connect.log_path
                raise failed_start("connect", reason, log_path, log_tail(log_path))
            pause.wait(POLL_SECONDS)

    def status(self) -> StackStatus:
        """Return what runs now, and where."""
        records = tuple(server.record() for server in self.servers)
        settings = self.settings
        return StackStatus(
            folder=settings.folder, prefix=settings.prefix, database=settings.database, servers=records
        )

    def delete_data(self) -> None:
        """Remove the servers' data, but not the logs; nothing may run."""
        for server in self.servers:
            server.delete_data()

    def _build(self) -> None:
        """Make the server objects with the ports of an earlier run; detached: take over what runs."""
        state = read_state(self.settings.folder)
        records = {} if state is None else {record.name: record for record in state.servers}
        running = tuple(n for n, record in records.items() if record.process and record.process.is_alive)
        if running and self.lifetime is Lifetime.EMBEDDED:
            raise _folder_in_use(self.settings.folder, running)
        ports = {name: record.ports for name, record in records.items()}
        self._servers = {server.name: server for server in self._make_servers()}
        self._adopted = set()
        for name in running:
            if name in self._servers and self._servers[name].adopt(records[name]):
                self._adopted.add(name)
        for server in self.servers:
            server.prefer_ports(ports.get(server.name, {}))
            server.on_change = self._write_state
            server.progress = self._progress

    def _make_servers(self) -> Iterator[Server]:
        """Yields the server objects that the settings ask for, none of them started."""
        settings = self.settings
        if settings.postgres:
            yield self._make(
                PostgresServer,
                settings.folder,
                database=settings.database,
                fsync=settings.fsync,
                overrides=settings.postgres_overrides,
            )
        if settings.kafka:
            yield from self._make_brokers(heap=settings.kafka_heap, overrides=settings.broker_overrides)
        if settings.redis:
            yield self._make(RedisServer, settings.folder)
        if settings.connect:
            yield self._make(
                ConnectWorker,
                settings.folder,
                mode=settings.connect_mode,
                heap=settings.connect_heap,
                collector=settings.connect_collector,
            )

    def _make_brokers(self, **named: Any) -> list[Server]:
        return [self._make(KafkaBroker, self.settings.folder, **named)]

    def _make(self, kind: type[_AnyServer], *args: Any, **named: Any) -> _AnyServer:
        return kind(*args, **named, lifetime=self.lifetime, start_timeout=self.settings.start_timeout)

    @property
    def _connect_bootstrap(self) -> str:
        """The brokers as Connect reaches them."""
        return self.kafka.bootstrap

    def _stop(self, servers: Sequence[Server]) -> None:
        try:
            _stop_together([server for server in servers if isinstance(server, ConnectWorker)])
        finally:
            try:
                _stop_together([server for server in servers if not isinstance(server, ConnectWorker)])
            finally:
                self.release()

    def _server(self, kind: type[_AnyServer]) -> _AnyServer:
        server = self._servers.get(kind.name)
        if not isinstance(server, kind):
            raise not_running(kind.name, "use")
        return server

    def _write_state(self) -> None:
        with self._writing:
            write_state(self.status())

    def _take_lock(self) -> None:
        if self._lock is not None:
            raise _folder_in_use(self.settings.folder, ())
        lock = os.open(self.settings.folder / _LOCK_FILE_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise _folder_in_use(self.settings.folder, ()) from None
        self._lock = lock


def connector_properties(settings: DevStackSettings, port: int, tables: tuple[str, ...]) -> Properties:
    """Debezium with everything Slackwater reads: transaction metadata, notifications, heartbeats.

    No tables: every table of the publication.
    """
    exactly_once = settings.connect_mode is ConnectMode.EXACTLY_ONCE
    only = {"table.include.list": table_list(tables)} if tables else {}
    return {
        "name": settings.prefix,
        "database.hostname": LOOPBACK,
        "database.port": str(port),
        "database.user": USER,
        "database.password": "unused",
        "database.dbname": settings.database,
        **reading_properties(settings.prefix, round(settings.heartbeat_interval / timedelta(milliseconds=1))),
        **only,
        **({"exactly.once.support": "required"} if exactly_once else {}),
        # Debezium waits this long for a batch to fill; its default of half a second is most of the delay.
        "poll.interval.ms": "20",
        "statistics.metrics.enabled": "false",
        **topic_properties(settings.prefix, settings.partitions, 1),
        **settings.connector_overrides,
    }


def _start_together(servers: Sequence[Server]) -> None:
    """Start them in parallel.

    When one fails or we are interrupted, the others give up and the error is raised; servers that became
    ready before stay running.
    """
    with ThreadPoolExecutor(thread_name_prefix="devstack-start") as pool:
        futures = [pool.submit(server.start) for server in servers]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            for server in servers:
                server.cancel()
            raise


def _stop_together(servers: Sequence[Server]) -> None:
    """Stop them in parallel."""
    with ThreadPoolExecutor(thread_name_prefix="devstack-stop") as pool:
        for future in [pool.submit(server.stop) for server in servers]:
            future.result()


def up(settings: DevStackSettings, progress: Progress | None = None) -> StackStatus:
    """Start what is missing, connector included, and leave it running; returns when all is ready. Idempotent.

    When only the connector fails (for example because a table does not exist), the servers stay up.

    Raises:
        StateError: another process is starting or embedding a stack in this folder.
        UnavailableError: this machine lacks something, or a server did not become ready.
        ConfigError: the connector cannot read these tables.
    """
    stack = DevStack(settings, Lifetime.DETACHED, progress)
    stack.start()
    try:
        if settings.connect:
            stack.start_connector(settings.tables)
        return stack.status()
    finally:
        stack.release()


def status(folder: Path) -> StackStatus | None:
    """Return what runs in the folder; None when no stack was ever started there."""
    return read_state(folder)


def down(folder: Path) -> StackStatus | None:
    """Stop what runs in the folder, Connect first; None when no stack was ever started there. Idempotent.

    A process that merely has the number of one of ours is left alone. Data, logs and ports are kept.
    """
    state = read_state(folder)
    if state is None:
        return None
    records = {record.name: record for record in state.servers}
    for kind in _STOPPING_ORDER:
        record = records.get(kind.name)
        if record is not None and record.process is not None:
            record.process.stop(kind.stop_signal, kind.stop_patience)
            records[kind.name] = replace(record, process=None)
    stopped = replace(state, servers=tuple(records.values()))
    write_state(stopped)
    return stopped


_STOPPING_ORDER: tuple[type[Server], ...] = (
    ConnectWorker,
    KafkaBroker,
    PostgresServer,
    RedisServer,
)


def _folder_in_use(folder: Path, servers: tuple[str, ...]) -> StateError:
    names = ", ".join(servers) or "a stack that is starting"
    hint = "use another folder or run `slackwater dev down` first"
    return StateError(f"{names} already running in {folder}", hint)
