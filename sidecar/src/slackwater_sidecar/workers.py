"""Worker processes that read for one frontier, and the pool that distributes partitions among them.

A worker reads and decodes some of a source's partitions and hands on what is left of the records. It decides
nothing: what it reads is of use only to the process that owns the frontier, which tells it from where to read
and may start over with another worker at any moment.
"""

import faulthandler
import gc
import logging
import multiprocessing
import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from slackwater.cdc.partition import ParsedRows, parse_rows
from slackwater_sidecar.consumption import (
    CHUNK,
    MAX_RECORDS,
    Consumption,
    Failure,
    Pairs,
    PartitionId,
    RecordSink,
    SchemasUnavailableError,
)
from slackwater_sidecar.settings import SidecarSettings

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_IDLE_SECONDS = 0.5
_END_SECONDS = 1.0


WorkerSettings = tuple[SidecarSettings, frozenset[str], int]
"""Tells a worker at its start what to read and how: what its :class:`Consumption` is made of."""
_Order = tuple[str, tuple[Any, ...]]
"""Orders a worker to call a method of its :class:`Consumption`."""
_Report = tuple[str, tuple[Any, ...], Mapping[str, Any]]
"""A call of a :class:`RecordSink`: what a worker would otherwise give to the frontier."""
_Turn = tuple[list[_Report], int]
"""What one turn of a worker has read, and the number of records. A text instead says why the worker cannot
continue; nothing follows."""


class _Member:
    """A worker process as its owner sees it, with the partitions that it reads."""

    def __init__(self, settings: WorkerSettings) -> None:
        context = multiprocessing.get_context("spawn")  # librdkafka's threads do not survive a fork
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(theirs, settings), name="slackwater-worker", daemon=True
        )
        self.process.start()
        theirs.close()
        self.keys: set[PartitionId] = set()

    def tell(self, order: _Order) -> None:
        """Sends an order; that a worker has ended is noticed when its reports end."""
        try:
            self.connection.send(order)
        except OSError:
            return

    def join(self) -> bool:
        """Waits until the process has ended; returns whether it did so by itself, without being killed."""
        self.process.join(_END_SECONDS)
        if not self.process.is_alive():
            return True
        self.process.kill()
        self.process.join()
        return False


class WorkerPool:
    """Distributes partitions among workers, and replaces those that end. Used by one thread.

    Implements :class:`~slackwater_sidecar.reader.RecordReader`.
    """

    def __init__(self, settings: WorkerSettings, size: int) -> None:
        self._settings = settings
        self._size = size
        self._members: list[_Member] = []
        self._orphans: set[PartitionId] = set()

    @property
    def orphans(self) -> frozenset[PartitionId]:
        """Partitions that nobody reads, because their process has ended: assign them again."""
        return frozenset(self._orphans)

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [member.process.pid or 0 for member in self._members]

    def assign(self, starts: Mapping[PartitionId, int]) -> None:
        """Lets partitions be read from these offsets, each by the worker with the fewest.

        Starts the processes that are missing.
        """
        self._members += [_Member(self._settings) for _ in range(self._size - len(self._members))]
        shares: dict[int, dict[PartitionId, int]] = {}
        for key, start in starts.items():
            number, member = min(enumerate(self._members), key=lambda m: len(m[1].keys))
            member.keys.add(key)
            shares.setdefault(number, {})[key] = start
        for number, share in shares.items():
            self._members[number].tell(("assign", (share,)))
        self._orphans -= set(starts)

    def hold(self, pause: frozenset[PartitionId], resume: frozenset[PartitionId]) -> None:
        """Pauses and resumes partitions."""
        for member in self._members:
            share = pause & member.keys, resume & member.keys
            if any(share):
                member.tell(("hold", share))

    def read(self, sink: RecordSink, timeout_seconds: float) -> int:
        """Hands over what has come, in the order of each process; waits for the first at most the time-out.

        Returns:
            The number of records, about.
        """
        count, before = 0, -1
        while before < count < MAX_RECORDS:
            before = count
            for reports, records in self._receive(0.0 if count else timeout_seconds):
                for method, args, named in reports:
                    getattr(sink, method)(*args, **named)
                count += records
        return count

    def close(self) -> None:
        """Ends all processes."""
        for member in self._members:
            member.connection.close()
        for member in self._members:
            member.join()
        self._members = []

    def _receive(self, timeout_seconds: float) -> Iterator[_Turn]:
        by_connection = {member.connection: member for member in self._members}
        for connection in wait(list(by_connection), timeout_seconds):
            if not isinstance(connection, Connection):
                continue
            member = by_connection[connection]
            try:
                turn = connection.recv()
            except (EOFError, OSError):
                self._bury(member)
                continue
            if isinstance(turn, str):
                logger.error("worker %s failed: %s", member.process.pid, turn)
            else:
                yield turn

    def _bury(self, member: _Member) -> None:
        """Makes its partitions orphans; another worker reads again what this one did not send."""
        member.connection.close()
        if member.join():
            how = f"ended with exit code {_explained(member.process.exitcode)}"
        else:
            how = "stopped responding and was terminated"
        self._members.remove(member)
        self._orphans |= member.keys
        logger.warning(
            "worker %s %s; its %d partitions are reassigned",
            member.process.pid,
            how,
            len(member.keys),
        )


def _serve(connection: Connection, settings: WorkerSettings) -> None:
    """Carries out orders and reports until the other end of the connection is closed, in whatever way.

    Raises:
        SystemExit: It cannot continue; the other end knows why, since it has the log.
    """
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the owner ends this one
    gc.disable()  # nothing here makes cycles; looking for them takes a third of the time
    try:
        with closing(_Worker(connection, settings)) as worker:
            while True:
                worker.turn()
    except (EOFError, ConnectionError):
        return
    except Exception:  # noqa: BLE001 - the boundary of the process
        connection.send(traceback.format_exc())
        raise SystemExit(1) from None
    finally:
        connection.close()


class _Worker:
    """Runs in its own process; reports what it would otherwise give to the frontier."""

    def __init__(self, connection: Connection, settings: WorkerSettings) -> None:
        self._connection = connection
        self._consumption = Consumption(*settings)
        self._reports: list[_Report] = []
        self._has_work = False

    def turn(self) -> None:
        while self._connection.poll(0 if self._has_work else _IDLE_SECONDS):
            method, args = self._connection.recv()
            getattr(self._consumption, method)(*args)
            self._has_work = True
        records = self._read() if self._has_work else 0
        if self._reports:
            reports, self._reports = self._reports, []
            self._connection.send((reports, records))  # waits while the owner is behind: bounds memory

    def close(self) -> None:
        self._consumption.close()

    def take_rows(
        self, key: PartitionId, rows: Pairs | ParsedRows, run: str, timestamp_ms: int, *, is_keyless: bool
    ) -> None:
        parsed = rows if isinstance(rows, ParsedRows) else parse_rows(rows)
        self._note("take_rows", key, parsed, run, timestamp_ms, is_keyless=is_keyless)

    def take_others(self, key: PartitionId, records: Sequence[tuple[int, bytes | None, int]]) -> None:
        self._note("take_others", key, records)

    def take_end(self, key: PartitionId, offset: int) -> None:
        self._note("take_end", key, offset)

    def take_failure(self, failure: Failure) -> None:
        self._note("take_failure", failure)

    def _note(self, method: str, *args: object, **named: object) -> None:
        self._reports.append((method, args, named))

    def _read(self) -> int:
        try:
            return self._consumption.read(self, _POLL_SECONDS, CHUNK)
        except SchemasUnavailableError as error:
            self.take_failure(Failure("", 0, 0, False, False, error.reason, registry=error.address))
            return 0


def _explained(code: int | None) -> str:
    if code is None or code >= 0:
        return str(code)
    name = signal.Signals(-code).name
    why = ": killed, possibly by the kernel because memory ran out" if -code == signal.SIGKILL else ""
    return f"{code} ({name}{why})"
