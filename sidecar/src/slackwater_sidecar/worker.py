"""A process that reads and decodes some of a source's partitions and hands on what is left of the records.

It decides nothing: what it reads is of use only to the process that owns the frontier, which tells it from
where to read and may begin anew with another worker at any moment.
"""

import faulthandler
import gc
import signal
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from confluent_kafka import Message

from slackwater_cdc.columns import ParsedRows, parse_rows
from slackwater_sidecar.consumption import CHUNK, Consumption, Failure, Key
from slackwater_sidecar.errors import SchemasUnavailableError
from slackwater_sidecar.segments import by_run, is_keyless, pairs, triples
from slackwater_sidecar.settings import SidecarSettings

_POLL_SECONDS = 0.02
_IDLE_SECONDS = 0.5


class Assign(NamedTuple):
    """An order: read further partitions, from these offsets."""

    starts: dict[Key, int]


class Hold(NamedTuple):
    """An order: pause some partitions, resume others."""

    pause: frozenset[Key]
    resume: frozenset[Key]


class RowsRead(NamedTuple):
    """Records of one partition of a data topic that one run of the connector has written."""

    key: Key
    parsed: ParsedRows
    run: str
    timestamp_ms: int
    is_keyless: bool
    records: int
    """How many there were, tombstones included."""


class OthersRead(NamedTuple):
    """Records of the transaction or the notification topic."""

    key: Key
    values: list[tuple[int, bytes | None, int]]
    """Offset, value, timestamp in milliseconds; at least one."""


class EndRead(NamedTuple):
    """A partition holds nothing more below an offset."""

    key: Key
    offset: int


class Ended(NamedTuple):
    """The last report of a worker that cannot go on."""

    traceback: str


Order = Assign | Hold
Report = RowsRead | OthersRead | EndRead | Failure


class WorkerSettings(NamedTuple):
    """What a worker is told at its start."""

    sidecar: SidecarSettings
    others: frozenset[str]
    """Topics that are no data topics."""
    partitions: int
    """How many all workers read together."""


def serve(connection: Connection, settings: WorkerSettings) -> None:
    """Obeys orders and reports until the other end of the connection is closed, in whatever way.

    Raises:
        SystemExit: it cannot go on; the other end was told why, since it has the log.
    """
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the owner ends this one
    gc.disable()  # nothing here makes cycles; looking for them takes a third of the time
    try:
        _serve(connection, settings)
    except (EOFError, ConnectionError):
        return
    except Exception:  # noqa: BLE001 - the boundary of the process
        connection.send(Ended(traceback.format_exc()))
        raise SystemExit(1) from None
    finally:
        connection.close()


def _serve(connection: Connection, settings: WorkerSettings) -> None:
    worker = _Worker(connection, settings)
    try:
        while True:
            worker.turn()
    finally:
        worker.close()


class _Worker:
    def __init__(self, connection: Connection, settings: WorkerSettings) -> None:
        self._connection = connection
        self._others = settings.others
        self._consumption = Consumption(settings.sidecar, settings.partitions, self)
        self._reports: list[Report] = []
        self._has_work = False

    def turn(self) -> None:
        while self._connection.poll(0 if self._has_work else _IDLE_SECONDS):
            self._obey(self._connection.recv())
        if self._has_work:
            self._poll()
        if self._reports:
            self._connection.send(self._reports)  # waits while the owner is behind: that bounds memory
            self._reports = []

    def _poll(self) -> None:
        try:
            self._consumption.poll(_POLL_SECONDS, CHUNK)
        except SchemasUnavailableError as error:
            self._reports.append(Failure("", 0, 0, False, False, error.reason, registry=error.address))

    def close(self) -> None:
        self._consumption.close()

    def take(self, topic: str, number: int, messages: Sequence[Message]) -> None:
        key = topic, number
        if topic in self._others:
            self._reports.append(OthersRead(key, list(triples(messages))))
            return
        keyless = is_keyless(messages)
        for run, part in by_run(messages):
            newest_ms = part[-1].timestamp()[1]
            parsed = parse_rows(pairs(part))
            self._reports.append(RowsRead(key, parsed, run, newest_ms, keyless, len(part)))

    def take_end(self, topic: str, number: int, offset: int) -> None:
        self._reports.append(EndRead((topic, number), offset))

    def take_failure(self, failure: Failure) -> None:
        self._reports.append(failure)

    def _obey(self, order: Order) -> None:
        if isinstance(order, Assign):
            self._consumption.assign(order.starts)
            self._has_work = True
            return
        if order.pause:
            self._consumption.pause(order.pause)
        if order.resume:
            self._consumption.resume(order.resume)
