"""The exactly-once PostgreSQL sink: one database transaction per batch, written by the driver.

A run takes over the pipeline's row in the ledger in `open`, after it has ended the session of the previous
run. Each batch is one transaction that locks this row, checks that it contains the id of this run, and writes
all views and the row itself. After any error, the connection is discarded. The next transaction reads the
ledger first, so a batch whose commit was not answered is found there, or is written again.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Unpack

import psycopg
from psycopg import errors

from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.batch import BatchCommits
from slackwater.outputs.contract import REBUILD, SinkStep, WriteReport
from slackwater.outputs.postgres import ledger
from slackwater.outputs.postgres.ledger import Database
from slackwater.outputs.postgres.merge import TableWriter, passes, reason, refusal
from slackwater.outputs.postgres.tables import PostgresSinkSettings, forms, prepare_tables, table_oids
from slackwater.outputs.sink import Failure, Sink, SinkOptions, Written
from slackwater.protocol import (
    Clock,
    CommitPosition,
    MalformedRecordError,
    ProgressRecord,
    StateError,
    visible_progress,
)
from slackwater.protocol.errors import run_overtaken

_LOCK_TIMEOUT: Final = "2s"
_CONNECTION: Final[dict[str, Any]] = {
    "autocommit": True,
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "fallback_application_name": "slackwater",
}
_SIGN_OF_LIFE_SECONDS: Final = 5
_LOOK_SECONDS: Final = 0.5
_SESSION: Final = (
    "SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false), "
    "set_config('IntervalStyle', 'postgres', false), set_config('client_encoding', 'UTF8', false), "
    + ledger.DURABLE
)
"""Values of documents are read in the form in which they are written, and committed data is durable."""

_log = logging.getLogger(__name__)

Connect = Callable[[PostgresSinkSettings], Database]


def connect(settings: PostgresSinkSettings, **others: Any) -> Database:
    """Connects to the database of the outputs, with other options of libpq if they are given.

    Raises:
        psycopg.Error: It does not answer, or refuses the connection.
    """
    postgres = settings.postgres
    password = {} if postgres.password is None else {"password": postgres.password}
    return psycopg.connect(postgres.url, **{**_CONNECTION, **password, **others})


def is_alive(settings: PostgresSinkSettings, database: Database) -> bool:
    """Returns whether the server of a connection answers a new connection; a refusal is an answer, too.

    Blocks for a few seconds at most.
    """
    try:
        server = {"host": database.info.host, "hostaddr": database.info.hostaddr, "port": database.info.port}
        asked = {name: value for name, value in server.items() if value} | {"target_session_attrs": "any"}
        connect(settings, **asked, connect_timeout=_SIGN_OF_LIFE_SECONDS).close()
    except psycopg.OperationalError as error:
        return error.sqlstate is not None
    return True


class PostgresSink(Sink):
    """A :class:`~slackwater.outputs.sink.Sink` that writes a table per view."""

    _settings: PostgresSinkSettings
    _failures = psycopg.Error, MalformedRecordError

    def __init__(
        self, settings: PostgresSinkSettings, *, connect: Connect = connect, **options: Unpack[SinkOptions]
    ) -> None:
        place, kept_in = f"PostgreSQL at {settings.postgres.place}", f"its row in {ledger.LEDGER}"
        super().__init__(settings, place, kept_in, **options)
        self._connect = connect
        self._watchdog = Watchdog(
            settings.request_timeout,
            lambda database: is_alive(settings, database),
            lambda: self._waiting.is_over,
            self._clock,
        )
        self._writers = [
            TableWriter(settings.pipeline, output, number, several=settings.has_versions)
            for number, output in enumerate(settings.outputs)
        ]
        self._database: Database | None = None
        self._oids: dict[str, int] = {}

    def hold(self, commits: Mapping[CommitPosition, datetime]) -> Mapping[CommitPosition, str]:
        """See :meth:`Sink.hold`. Tables with a history keep every state, other tables only the newest."""
        without = [output.view for output in self._settings.outputs if not output.history]
        if not without:
            return {}
        reason = (
            f"the tables of its views {', '.join(without)} contain only the newest state (set history = true)"
        )
        return dict.fromkeys(commits, reason)

    def close(self) -> None:
        """Ends an open transaction, and closes the connection. Idempotent, never raises."""
        database, self._database = self._database, None
        self._watchdog.close()
        if database is not None:
            with suppress(psycopg.Error):
                database.close()

    def _read(self) -> ProgressRecord | None:
        with self._connect(self._settings) as database, self._watchdog.watching(database):
            row = ledger.read(database, self._settings.pipeline) if ledger.exists(database) else None
            return None if row is None else visible_progress(row.progress)

    def _judged(self, what: str, error: Exception) -> Failure:
        pipeline = self._settings.pipeline
        if isinstance(error, MalformedRecordError):
            raise StateError(
                f"the row of pipeline {pipeline!r} in {ledger.LEDGER} cannot be read: {error.reason}",
                "restore the row, or start over: delete it with the pipeline's tables and checkpoint",
            ) from error
        self.close()
        assert isinstance(error, psycopg.Error)  # noqa: S101 - there are no other failures
        if not passes(error):
            raise refusal(pipeline, what, error) from error
        return Failure(reason(error))

    def _take_over(self) -> ProgressRecord | None:
        with self._session() as database:
            ledger.create_missing(database)
            with suppress(errors.InsufficientPrivilege):  # of another user: then its lock is waited for
                ledger.end_earlier_run(database, self._settings.pipeline)
            with database.transaction():
                newest = ledger.lock_row(database, self._settings.pipeline)
                ledger.begin_alone(database)
                progress = visible_progress(newest)
                self._oids = prepare_tables(database, self._settings, has_progress=progress is not None)
                # Of accepted tables it is not known since when their histories have everything.
                since = 0 if self._settings.accept_changed_output else newest.first_lsn
                ledger.claim(database, replace(self._rooted(newest), run=self._run, first_lsn=since))
        return progress

    def _take_over_again(self) -> Database:
        """Connects the same run again, unless another run has begun."""
        with self._session() as database, database.transaction():
            ledger.claim(database, self._own_row(database))
        return database

    @contextmanager
    def _session(self) -> Iterator[Database]:
        """Connects; the pipeline is taken over within the block."""
        database = self._database = self._connect(self._settings)
        with self._watchdog.watching(database):
            database.execute(_SESSION)
            database.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
            yield database
            for writer in self._writers:
                writer.prepare(database)
            database.execute("RESET lock_timeout")

    def _own_row(self, database: Database) -> ProgressRecord:
        """Locks the pipeline's row, if this run is still the one that may write.

        Raises:
            OvertakenError: It is not.
        """
        newest = ledger.lock_row(database, self._settings.pipeline)
        if newest.run != self._run:
            detail = f"the ledger's row is of run {newest.run or '(none)'}"
            raise run_overtaken(self._settings.pipeline, detail)
        return newest

    def _write_once(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        with self._watchdog.watching(self._database or self._take_over_again()):
            return super()._write_once(query_id, batch)

    @property
    def _connected(self) -> Database:
        """The connection of the batch, which is never another one than that of its transaction."""
        assert self._database is not None  # noqa: S101 - each attempt begins with one
        return self._database

    def _begin(self, batch: DocumentBatch) -> ProgressRecord | None:
        """Begins the transaction of a batch, which locks the pipeline's row."""
        self._connected.execute("BEGIN")
        return visible_progress(self._own_row(self._connected))

    def _put(self, batch: DocumentBatch, progress: ProgressRecord) -> Written:
        self._probe(SinkStep.BEGUN, batch.batch_id)
        written = self._produce(self._connected, batch)
        ledger.note(self._connected, progress)
        return written

    def _commit(self) -> None:
        self._connected.execute("COMMIT")

    def _discard(self) -> None:
        if self._database is not None:
            with suppress(psycopg.Error):
                self._database.execute("ROLLBACK")

    def _produce(self, database: Database, batch: DocumentBatch) -> Written:
        settings, written = self._settings, Written()
        keys_move = [output.keys_move for output in settings.outputs]
        commits = BatchCommits(batch, settings.emit, settings.scope, keys_move)
        touched = [number for number in range(len(self._writers)) if batch.payloads.get(number)]
        for number in touched:
            with self._explained(database, number, commits):
                documents, deletes = self._writers[number].copy(database, commits.shown(number))
            written.documents += documents
            written.deletes += deletes
        self._probe(SinkStep.PRODUCED, batch.batch_id)
        for number in touched:
            with self._explained(database, number, commits):
                self._writers[number].merge(database)
        self._check_tables(database)
        self._probe(SinkStep.FLUSHED, batch.batch_id)
        return written

    @contextmanager
    def _explained(self, database: Database, number: int, commits: BatchCommits) -> Iterator[None]:
        """Names view and document in errors that are not transient; the transaction has then ended."""
        try:
            yield
        except psycopg.Error as error:
            if passes(error):
                raise
            writer = self._writers[number]
            raise writer.refused(database, error, lambda: commits.shown(number)) from error

    def _check_tables(self, database: Database) -> None:
        """Refuses tables that were replaced since the start; they stay locked, so this cannot change.

        Raises:
            StateError: A table was replaced; the error names the first one.
        """
        all_forms = [form for output in self._settings.outputs for form in forms(output)]
        now = table_oids(database, all_forms)
        for form in all_forms:
            if now.get(form.full_name) != self._oids[form.full_name]:
                raise StateError(
                    f"pipeline {self._settings.pipeline!r}: table {form.full_name} was dropped, renamed or "
                    "recreated while the pipeline was writing to it; nothing of the batch is visible",
                    f"restore the table, or {REBUILD}",
                )


@dataclass(slots=True)
class Watchdog:
    """Ends connections to a server that hangs: watches one at a time, in a separate thread.

    If a process is stopped, or waits for a disk forever, its machine still acknowledges what it is sent. No
    TCP time-out therefore occurs, and the server's own ``statement_timeout`` hangs with it. But such a server
    does not answer a new connection either, while a server that is only slow does.
    """

    patience: timedelta
    """How long an answer may take before the server is checked."""
    is_alive: Callable[[Database], bool]
    """Checks the server of a connection; blocks for a limited time."""
    is_over: Callable[[], bool]
    """Returns True when the run is to stop; the server is then checked immediately."""
    clock: Clock
    _watched: tuple[Database, float] | None = None
    _end: threading.Event | None = None

    @contextmanager
    def watching(self, database: Database) -> Iterator[None]:
        """Ends the connection within the block if its server hangs; a waiting caller then gets an error."""
        if self._end is None:
            self._end = threading.Event()
            threading.Thread(
                target=self._watch, args=(self._end,), name="postgres-watchdog", daemon=True
            ).start()
        self._watched = database, self.clock.monotonic()
        try:
            yield
        finally:
            self._watched = None

    def close(self) -> None:
        """Ends the thread; the next block starts another one."""
        end, self._end = self._end, None
        if end is not None:
            end.set()

    def _watch(self, end: threading.Event) -> None:
        asked_at = 0.0
        while not end.wait(_LOOK_SECONDS):
            watched, now = self._watched, self.clock.monotonic()
            if watched is None:
                continue
            database, since = watched
            waited = now - max(since, asked_at)
            if waited < (_LOOK_SECONDS if self.is_over() else self.patience.total_seconds()):
                continue
            asked_at = now
            if self.is_alive(database):
                _log.info(
                    "PostgreSQL has been working on one statement, or waiting for a lock, for %.0f s",
                    now - since,
                )
            elif self._watched is watched:
                text = "PostgreSQL does not respond: closing its connection after %.0f s"
                _log.warning(text, now - since)
                _shut(database)


def _shut(database: Database) -> None:
    """Makes libpq see the end of its connection, because the connection itself is used by another thread."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(database.fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)
