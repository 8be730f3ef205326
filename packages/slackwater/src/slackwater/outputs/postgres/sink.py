"""The exactly-once PostgreSQL sink: one database transaction per batch, written by the driver.

A run takes over the pipeline's row in the ledger in `open`, after it has ended the session of the previous
run. Each batch is one transaction that locks this row, checks that it contains the id of this run, and writes
all views and the row itself. After any error, the connection is discarded. The next transaction reads the
ledger first, so a batch whose commit was not answered is found there, or is written again.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors

from slackwater.engine.documents import DocumentBatch
from slackwater.engine.settings import Scope
from slackwater.outputs.batch import (
    BatchCommits,
    Emit,
    check_owner,
    is_covered,
    progress_after,
)
from slackwater.outputs.contract import SinkProbe, SinkStep, WriteReport
from slackwater.outputs.postgres import ledger
from slackwater.outputs.postgres.answers import passes, reason, refusal, unavailable
from slackwater.outputs.postgres.ledger import Database
from slackwater.outputs.postgres.merge import Shown, TableWriter
from slackwater.outputs.postgres.settings import PostgresSinkSettings
from slackwater.outputs.postgres.tables import forms, prepare_tables, table_oids
from slackwater.outputs.postgres.watchdog import Watchdog
from slackwater.outputs.waiting import Attempts, Waiting
from slackwater.pipeline.errors import RunOvertakenError
from slackwater.protocol import (
    Clock,
    CommitPosition,
    MalformedRecordError,
    ProgressRecord,
    StateError,
    SystemClock,
    visible_progress,
)

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
_SESSION: Final = (
    "SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false), "
    "set_config('IntervalStyle', 'postgres', false), set_config('client_encoding', 'UTF8', false), "
    "CASE current_setting('synchronous_commit') WHEN 'off' "
    "THEN set_config('synchronous_commit', 'on', false) END"
)
"""Values of documents are read in the form in which they are written, and committed data is durable."""

T = TypeVar("T")
Connect = Callable[[PostgresSinkSettings], Database]


def connect(settings: PostgresSinkSettings) -> Database:
    """Connects to the database of the outputs.

    Raises:
        psycopg.Error: It does not answer, or refuses the connection.
    """
    return _connect(settings)


def is_alive(settings: PostgresSinkSettings, database: Database) -> bool:
    """Returns whether the server of a connection answers a new connection; a refusal is an answer, too.

    Blocks for a few seconds at most.
    """
    try:
        server = {"host": database.info.host, "hostaddr": database.info.hostaddr, "port": database.info.port}
        asked = {name: value for name, value in server.items() if value} | {"target_session_attrs": "any"}
        _connect(settings, **asked, connect_timeout=_SIGN_OF_LIFE_SECONDS).close()
    except psycopg.OperationalError as error:
        return error.sqlstate is not None
    return True


def _connect(settings: PostgresSinkSettings, **others: Any) -> Database:
    postgres = settings.postgres
    password = {} if postgres.password is None else {"password": postgres.password}
    return psycopg.connect(postgres.url, **{**_CONNECTION, **password, **others})


@dataclass(slots=True)
class _Written:
    documents: int = 0
    deletes: int = 0


class PostgresSink:
    """A :class:`~slackwater.outputs.contract.Sink` that writes a table per view."""

    def __init__(
        self,
        settings: PostgresSinkSettings,
        *,
        probe: SinkProbe | None = None,
        clock: Clock | None = None,
        connect: Connect = connect,
        waiting: Waiting | None = None,
    ) -> None:
        self._settings = settings
        self._probe: SinkProbe = probe or (lambda step, batch_id: None)
        self._clock = clock or SystemClock()
        self._connect = connect
        self._waiting = waiting or Waiting()
        self._watchdog = Watchdog(
            settings.request_timeout,
            lambda database: is_alive(settings, database),
            lambda: self._waiting.is_over,
            self._clock,
        )
        several = settings.emit is not Emit.LATEST or settings.scope is not Scope.STRICT
        self._writers = [
            TableWriter(settings.pipeline, output, number, several=several)
            for number, output in enumerate(settings.outputs)
        ]
        self._database: Database | None = None
        self._oids: dict[str, int] = {}
        self._run = uuid.uuid4().hex
        self._fenced: RunOvertakenError | None = None

    @property
    def place(self) -> str:
        """See :meth:`Sink.place`."""
        return f"PostgreSQL at {self._settings.postgres.place}"

    def check(self, query_id: str | None) -> None:
        """See :meth:`Sink.check`. It refuses if the ledger has the pipeline with another checkpoint."""

        def read() -> ProgressRecord | None:
            with self._connect(self._settings) as database, self._watchdog.watching(database):
                row = ledger.read(database, self._settings.pipeline) if ledger.exists(database) else None
                return None if row is None else visible_progress(row.progress)

        self._check_owner(self._patiently("its progress", self._settings.request_timeout, read), query_id)

    def open(self) -> ProgressRecord | None:
        """Takes over the pipeline: ends the previous run, creates and checks tables, then reads the progress.

        Raises:
            ConfigError: A table does not fit, or belongs to another pipeline.
            StateError: A table is not the one that the pipeline has written.
            OutputRefusedError: PostgreSQL does not allow what the pipeline has to do.
            UnavailableError: PostgreSQL does not answer.
        """
        return self._patiently("its outputs", self._settings.request_timeout, self._take_over)

    def write(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        """Makes a batch visible, or finds that it is. Idempotent across runs. Blocks until it is certain.

        Args:
            query_id: The id of the checkpoint.
            batch: The batch after the newest visible one.

        Raises:
            RunOvertakenError: Another run has taken over; stop. All later calls raise it, too.
            StateError: The progress belongs to another checkpoint, the batch does not continue it, or
                a table was changed while the run writes.
            OutputRefusedError: PostgreSQL rejects a row; nothing of the batch is visible.
            UnavailableError: All attempts failed.
            StateError: The batch was not written by a stage; nothing of it is visible.
        """
        if self._fenced is not None:
            raise self._fenced
        self._probe(SinkStep.COLLECTED, batch.batch_id)
        return self._patiently(
            f"batch {batch.batch_id}", self._settings.patience, lambda: self._write_once(query_id, batch)
        )

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

    def _patiently(self, what: str, patience: timedelta, attempt: Callable[[], T]) -> T:
        """Repeats an attempt while its errors are transient and the run is not to stop."""
        attempts = Attempts(what, self.place, patience, self._waiting, self._clock)
        while True:
            try:
                return attempt()
            except MalformedRecordError as error:
                pipeline = self._settings.pipeline
                raise StateError(
                    f"the row of pipeline {pipeline!r} in {ledger.LEDGER} cannot be read: {error.reason}",
                    "restore the row, or start over: delete it with the pipeline's tables and checkpoint",
                ) from error
            except psycopg.Error as error:
                self.close()
                if not passes(error):
                    raise refusal(self._settings.pipeline, what, error) from error
                if attempts.are_over:
                    raise unavailable(
                        self._settings.pipeline, what, attempts.number, reason(error)
                    ) from error
                attempts.pause(reason(error))

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
                ledger.claim(database, replace(newest, run=self._run))
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
            RunOvertakenError: It is not.
        """
        newest = ledger.lock_row(database, self._settings.pipeline)
        if newest.run != self._run:
            detail = f"the ledger's row is of run {newest.run or '(none)'}"
            self._fenced = RunOvertakenError(self._settings.pipeline, detail)
            raise self._fenced
        return newest

    def _write_once(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        database = self._database or self._take_over_again()
        with self._watchdog.watching(database):
            return self._write_to(database, query_id, batch)

    def _write_to(self, database: Database, query_id: str, batch: DocumentBatch) -> WriteReport:
        started, written = self._clock.monotonic(), _Written()
        try:
            self._begin(database)
            newest = self._own_row(database)
            visible = visible_progress(newest)
            self._check_owner(visible, query_id)
            was_covered = self._is_covered(batch, visible)
            if not was_covered:
                self._probe(SinkStep.BEGUN, batch.batch_id)
                written = self._produce(database, batch)
                ledger.note(database, progress_after(self._settings.pipeline, query_id, batch, self._run))
                self._probe(SinkStep.PROGRESS, batch.batch_id)
        except BaseException:
            self._roll_back(database)
            raise
        produced = self._clock.monotonic()
        self._commit(database)
        report = WriteReport(
            batch_id=batch.batch_id,
            header=batch.header,
            documents=written.documents,
            deletes=written.deletes,
            was_covered=was_covered,
            produce_seconds=produced - started,
            commit_seconds=self._clock.monotonic() - produced,
            visible_at=self._clock.now(),
        )
        if not was_covered:
            self._probe(SinkStep.COMMITTED, batch.batch_id)
        return report

    def _produce(self, database: Database, batch: DocumentBatch) -> _Written:
        settings, written = self._settings, _Written()
        commits = BatchCommits(batch, settings.emit, settings.scope)
        commits.check_views(len(settings.outputs))
        touched = [number for number in range(len(self._writers)) if batch.payloads.get(number)]
        for number in touched:
            with self._explained(database, number, commits):
                documents, deletes = self._writers[number].copy(database, self._shown(commits, number))
            written.documents += documents
            written.deletes += deletes
        self._probe(SinkStep.PRODUCED, batch.batch_id)
        for number in touched:
            with self._explained(database, number, commits):
                self._writers[number].merge(database)
        self._check_tables(database)
        self._probe(SinkStep.FLUSHED, batch.batch_id)
        return written

    def _shown(self, commits: BatchCommits, number: int) -> Iterator[Shown]:
        keys_move = self._settings.outputs[number].keys_move
        for committed in commits.documents(number, keys_move=keys_move):
            for _, key, document in committed.documents:
                yield committed.commit_lsn, key, document

    @contextmanager
    def _explained(self, database: Database, number: int, commits: BatchCommits) -> Iterator[None]:
        """Names view and document in errors that are not transient; the transaction has then ended."""
        try:
            yield
        except psycopg.Error as error:
            if passes(error):
                raise
            writer = self._writers[number]
            raise writer.refused(database, error, lambda: self._shown(commits, number)) from error

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
                    "restore the table, or raise `revision` in pipeline.toml, which rebuilds the views in "
                    "new tables",
                )

    def _begin(self, database: Database) -> None:
        database.execute("BEGIN")

    def _commit(self, database: Database) -> None:
        database.execute("COMMIT")

    def _roll_back(self, database: Database) -> None:
        with suppress(psycopg.Error):
            database.execute("ROLLBACK")

    def _check_owner(self, progress: ProgressRecord | None, query_id: str | None) -> None:
        kept_in = f"its row in {ledger.LEDGER}"
        check_owner(self._settings.pipeline, progress, query_id, kept_in)

    def _is_covered(self, batch: DocumentBatch, visible: ProgressRecord | None) -> bool:
        return is_covered(self._settings.pipeline, batch, visible)
