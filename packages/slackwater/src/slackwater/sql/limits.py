"""What the SQL of views may do: DuckDB connections without access to files and network, and their limits.

DuckDB's memory limit does not count the values of functions: ``range(50000000)`` exceeds any limit unnoticed.
Therefore the growth of the process's data segment (heap and private memory, not mapped files) is limited
while a statement runs: an allocation beyond the limit fails, and DuckDB reports it. A thread interrupts
statements that run for too long.
"""

import atexit
import logging
import math
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:  # settings contain limits, and are read without DuckDB
    import duckdb

_GROWTH: Final = 3
"""During a statement, the process may grow by this many times DuckDB's memory limit: results are copied."""
_LOOK_SECONDS: Final = 0.5
_LEAST_GRACE_SECONDS: Final = 5.0
"""The least CPU time in which an interrupted statement has to end."""
_UNSTOPPABLE_EXIT_CODE: Final = 70
_SIZES: Final = "/proc/self/statm"
_PAGE_BYTES: Final = resource.getpagesize()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StatementLimits:
    """The resources that planning or evaluating one statement of a view may use; sent to the executors."""

    memory_mib: int = 512
    """DuckDB's limit for intermediate results; the process may grow by three times as much."""
    cpu_seconds: float = 120
    """The CPU time of the process that it may use: a slow or paused machine does not count."""

    @property
    def duckdb_memory(self) -> str:
        """The memory in the form of DuckDB's setting."""
        return f"{self.memory_mib}MiB"

    def problem(self, error: BaseException) -> str | None:
        """Describes an error that was raised because a limit was exceeded; None for any other error."""
        kind = type(error).__name__
        if kind == "InterruptException":
            return f"it took more than {self.cpu_seconds:g} s of CPU time (run.statement_seconds)"
        if kind in {"OutOfMemoryException", "MemoryError"}:
            reason = next(iter(str(error).splitlines()), "").rstrip(".") or "out of memory"
            return f"it needs more than the {self.memory_mib} MiB of run.statement_memory ({reason})"
        return None


DEFAULT_LIMITS: Final = StatementLimits()


class Interruptible(Protocol):
    """A DuckDB connection."""

    def interrupt(self) -> None:
        """Ends the running statement; may be called from any thread."""


@contextmanager
def bounded(connection: Interruptible, limits: StatementLimits, name: str) -> Iterator[None]:
    """Limits what the connection does in the block, which raises the connection's errors or `MemoryError`.

    DuckDB cannot be interrupted while it calls a function. If a statement continues for the same time after
    it was interrupted, the process exits, and its log names the statement, which might never return. Only
    this thread may use the connection. The log names what is computed.
    """
    statement = Statement(connection, time.process_time() + limits.cpu_seconds, limits.cpu_seconds, name)
    _running.enter(statement, limits.memory_mib * _GROWTH * 2**20)
    try:
        yield
    finally:
        _running.leave(statement)


@dataclass(slots=True, eq=False)
class Statement:
    """A running statement. Times are CPU seconds of the process."""

    connection: Interruptible
    until: float
    seconds: float
    name: str
    ends_process_at: float = math.inf
    """Infinite until the first interruption: a statement that reacts to it must have had the time to end."""


class RunningStatements:
    """The statements that run in this process."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Starts over in a forked process, which has neither the threads nor the statements of its parent."""
        self._lock = threading.Lock()
        self._data_bytes: dict[Statement, int] = {}
        """The size that the data segment may have for each statement."""
        self._sizes = os.open(_SIZES, os.O_RDONLY | os.O_CLOEXEC) if os.path.exists(_SIZES) else None
        """None (not Linux): only DuckDB limits memory."""
        self._before = (0, 0)
        """The process's own limits, which are restored afterwards."""
        self._watcher: threading.Thread | None = None
        self._over = threading.Event()

    def enter(self, statement: Statement, growth: int) -> None:
        """Limits a statement, during which the process may grow by this many bytes."""
        with self._lock:
            if not self._data_bytes:
                self._before = resource.getrlimit(resource.RLIMIT_DATA)
            self._data_bytes[statement] = self._size() + growth
            self._limit_memory()
            if self._watcher is None:
                self._watcher = threading.Thread(
                    target=self._watch, name="slackwater-statements", daemon=True
                )
                self._watcher.start()
                # A thread that is alive while the interpreter shuts down keeps objects of DuckDB alive, and
                # its binding reports each of them.
                atexit.register(self.end)

    def end(self) -> None:
        """Stops watching; returns when the thread has ended. Idempotent."""
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
        atexit.unregister(self.end)

    def leave(self, statement: Statement) -> None:
        """Removes a statement that has ended."""
        with self._lock:
            del self._data_bytes[statement]
            self._limit_memory()

    def _limit_memory(self) -> None:
        """Lets the process grow as far as the most generous statement allows."""
        if self._sizes is None:
            return
        soft, hard = self._before
        wanted = max(self._data_bytes.values(), default=soft)
        if wanted != soft:
            given = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
            wanted = min([wanted, *given])
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))

    def _size(self) -> int:
        """Returns the total of heap, private memory and stack of this process."""
        return 0 if self._sizes is None else int(os.pread(self._sizes, 100, 0).split()[5]) * _PAGE_BYTES

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            with self._lock:
                self.interrupt_overdue(time.process_time())

    def interrupt_overdue(self, now: float) -> None:
        """Interrupts statements that run for too long; ends the process if an interruption had no effect."""
        for statement in self._data_bytes:
            if now > statement.ends_process_at:
                _log.critical(
                    "view %s: a function took more than %g s and cannot be interrupted; this process exits",
                    statement.name,
                    statement.seconds,
                )
                os._exit(_UNSTOPPABLE_EXIT_CODE)
            if now > statement.until:
                grace = max(statement.seconds, _LEAST_GRACE_SECONDS)
                statement.ends_process_at = min(statement.ends_process_at, now + grace)
                statement.connection.interrupt()


_running = RunningStatements()
os.register_at_fork(after_in_child=_running.restart)


class _Kept(threading.local):
    """One connection per thread, because opening one costs more than reading a view."""

    connection: "duckdb.DuckDBPyConnection | None" = None
    process = 0


_kept = _Kept()
_inherited: "list[duckdb.DuckDBPyConnection | None]" = []
"""Connections of a parent process, which must not even be closed here."""


def open_connection(limits: StatementLimits = DEFAULT_LIMITS) -> "duckdb.DuckDBPyConnection":
    """Opens a database in memory that reads no files, loads no extensions and is deterministic.

    Intermediate results are limited, and nothing is spilled to disk.
    """
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "async_threads": 0,  # they read files
            "memory_limit": limits.duckdb_memory,
            "temp_directory": "",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET enable_external_access = false")
    return connection


@contextmanager
def scratch_database() -> Iterator["duckdb.DuckDBPyConnection"]:
    """Yields a connection for trying out SQL; everything that is created in it is removed afterwards."""
    connection = _connection()
    connection.begin()
    try:
        yield connection
    finally:
        connection.rollback()
        connection.execute("SET errors_as_json = false")


def _connection() -> "duckdb.DuckDBPyConnection":
    if _kept.process != os.getpid():
        _inherited.append(_kept.connection)
        _kept.connection, _kept.process = None, os.getpid()
    if _kept.connection is None:
        _kept.connection = open_connection()
    return _kept.connection
