"""Sessions, locks and transactions of the PostgreSQL sink, each by itself, over a real server."""

import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from slackwater.dev import PostgresServer
from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import Emit, OutputRefusedError, OutputTable, SinkStep
from slackwater.outputs.postgres import ledger
from slackwater.outputs.postgres.ledger import Database
from slackwater.outputs.postgres.sink import PostgresSink
from slackwater.outputs.postgres.tables import PostgresSinkSettings
from slackwater.outputs.sink import Waiting
from slackwater.protocol import OvertakenError, PostgresSettings, StateError
from slackwater.sql.plan import OutputColumn
from slackwater_lab.probes import LookAt

pytestmark = pytest.mark.integration

MakeBatch = Callable[..., DocumentBatch]
COLUMNS = (OutputColumn("id", "BIGINT"), OutputColumn("n", "SMALLINT"))


@pytest.fixture
def settings(postgres_server: PostgresServer) -> PostgresSinkSettings:
    schema = f"p{uuid.uuid4().hex[:12]}"
    table = OutputTable(name=f"{schema}.t", columns=COLUMNS, key=("id",), view="v")
    return PostgresSinkSettings(
        pipeline=schema,
        outputs=(table,),
        emit=Emit.TRANSACTIONS,
        postgres=PostgresSettings(postgres_server.dsn()),
    )


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        yield connection


Runs = tuple[PostgresSink, PostgresSink]


@pytest.fixture
def runs(settings: PostgresSinkSettings) -> Iterator[Runs]:
    """The sinks of an earlier run, which is open, and of a later one."""
    older, newer = PostgresSink(settings), PostgresSink(settings)
    older.open()
    yield older, newer
    for sink in (older, newer):
        sink.close()


def asked(database: Database, query: str, *parameters: object) -> list[Any]:
    return [row[0] for row in database.execute(query.encode(), parameters)]


def rows(database: Database, settings: PostgresSinkSettings) -> dict[int, int]:
    table = sql.Identifier(settings.pipeline, "t")
    found = database.execute(sql.SQL("SELECT id, n FROM {}").format(table))
    return {row[0]: row[1] for row in found}


def shown(lsn: int, key: int, n: int | None) -> tuple[int, bytes, bytes | None]:
    body = None if n is None else json.dumps({"id": key, "n": n}).encode()
    return lsn, json.dumps({"id": key}).encode(), body


def session_of(sink: PostgresSink) -> int:
    database = sink._database  # noqa: SLF001 - nobody else knows its session
    assert database is not None
    return database.info.backend_pid


def is_alive(database: Database, pid: int) -> bool:
    return bool(asked(database, "SELECT pid FROM pg_stat_activity WHERE pid = %s", pid))


def test_the_session_that_a_run_has_after_a_reconnect_is_noted_and_ended_by_the_next_run(
    settings: PostgresSinkSettings, runs: Runs, make_batch: MakeBatch, database: Database
) -> None:
    older, newer = runs
    asked(database, "SELECT pg_terminate_backend(%s, 60000)", session_of(older))
    older.write("q", make_batch(0, [shown(1, 1, 1)]))
    pid = session_of(older)
    assert asked(
        database, "SELECT backend_pid FROM slackwater.ledger WHERE pipeline = %s", settings.pipeline
    ) == [pid]
    newer.open()
    assert asked(database, "SELECT pg_terminate_backend(%s, 60000)", pid) in ([], [False])
    assert not is_alive(database, pid)
    with pytest.raises(OvertakenError):
        older.write("q", make_batch(1, [shown(11, 1, 2)]))
    assert rows(database, settings) == {1: 1}


def test_only_the_session_that_was_noted_is_ended(
    settings: PostgresSinkSettings, postgres_server: PostgresServer, database: Database
) -> None:
    """Another one may have got its number."""
    sink = PostgresSink(settings)
    sink.open()
    sink.close()
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as innocent:
        statement = "UPDATE slackwater.ledger SET backend_pid = %s WHERE pipeline = %s"
        database.execute(statement, (innocent.info.backend_pid, settings.pipeline))
        sink.open()
        assert asked(innocent, "SELECT 1") == [1]
    sink.close()


def test_a_run_touches_neither_session_nor_row_of_another_pipeline(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    table = replace(settings.outputs[0], name=f"{settings.pipeline}.other")
    other = PostgresSink(replace(settings, pipeline=f"{settings.pipeline}_other", outputs=(table,)))
    other.open()
    query = "SELECT l::text FROM slackwater.ledger l WHERE pipeline = %s"
    before = asked(database, query, f"{settings.pipeline}_other")
    sink = PostgresSink(settings)
    sink.open()
    sink.write("q", make_batch(0, [shown(1, 1, 1)]))
    assert asked(database, query, f"{settings.pipeline}_other") == before
    pid = session_of(other)
    other.write("q", make_batch(0, [shown(1, 1, 1)]))
    assert session_of(other) == pid
    for each in (sink, other):
        each.close()


def test_a_session_that_a_pooler_hands_from_one_run_to_the_next_is_not_ended(
    settings: PostgresSinkSettings, postgres_server: PostgresServer, make_batch: MakeBatch, database: Database
) -> None:
    settings = replace(settings, request_timeout=timedelta(0), patience=timedelta(0))
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as pooled:
        for number in range(2):
            sink = PostgresSink(settings, connect=lambda _: pooled)
            sink.open()
            sink.write("q", make_batch(number, [shown(10 * number + 1, 1, number)]))
            pooled.execute("DISCARD TEMP")
    assert rows(database, settings) == {1: 1}


def test_a_session_that_may_be_seen_but_not_ended_is_left_alone(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    """That of another user: who takes over waits for its lock."""
    older = PostgresSink(settings)
    older.open()
    user, schema = (sql.Identifier(name) for name in (f"u_{settings.pipeline}", settings.pipeline))
    for statement in (
        "CREATE ROLE {0} LOGIN IN ROLE pg_read_all_stats",
        "GRANT USAGE ON SCHEMA slackwater, {1} TO {0}",
        "GRANT ALL ON ALL TABLES IN SCHEMA slackwater, {1} TO {0}",
    ):
        database.execute(sql.SQL(statement).format(user, schema))
    url = settings.postgres.url.replace("//postgres@", f"//u_{settings.pipeline}@")
    newer = PostgresSink(replace(settings, postgres=PostgresSettings(url)))
    newer.open()
    assert is_alive(database, session_of(older))
    newer.write("q", make_batch(0, [shown(1, 1, 1)]))
    with pytest.raises(OvertakenError):
        older.write("q", make_batch(0, [shown(1, 1, 2)]))
    assert rows(database, settings) == {1: 1}
    for sink in (older, newer):
        sink.close()


def test_a_run_whose_session_nobody_could_end_is_overtaken_by_the_ledger_alone(
    settings: PostgresSinkSettings,
    runs: Runs,
    make_batch: MakeBatch,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older, newer = runs
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "end_earlier_run", lambda *_: None)
        newer.open()
    for _ in range(2):
        with pytest.raises(OvertakenError):
            older.write("q", make_batch(0, [shown(1, 1, 1)]))
    assert rows(database, settings) == {}
    newer.write("q", make_batch(0, [shown(1, 1, 2)]))
    assert rows(database, settings) == {1: 2}


def test_a_run_that_was_overtaken_does_not_come_back_with_another_session(
    settings: PostgresSinkSettings, runs: Runs, make_batch: MakeBatch, database: Database
) -> None:
    older, newer = runs
    newer.open()
    with pytest.raises(OvertakenError):
        older.write("q", make_batch(0, [shown(1, 1, 1)]))
    query = "SELECT backend_pid FROM slackwater.ledger WHERE pipeline = %s"
    assert asked(database, query, settings.pipeline) == [session_of(newer)]
    newer.write("q", make_batch(0, [shown(1, 1, 2)]))
    assert rows(database, settings) == {1: 2}


def test_a_run_that_was_overtaken_stays_so_whatever_the_ledger_says_later(
    settings: PostgresSinkSettings, runs: Runs, make_batch: MakeBatch, database: Database
) -> None:
    """Somebody may restore its row from a copy."""
    older, newer = runs
    query = "SELECT run, progress FROM slackwater.ledger WHERE pipeline = %s"
    [copy] = database.execute(query, (settings.pipeline,))
    newer.open()
    with pytest.raises(OvertakenError):
        older.write("q", make_batch(0, [shown(1, 1, 1)]))
    statement = "UPDATE slackwater.ledger SET run = %s, progress = %s WHERE pipeline = %s"
    database.execute(statement, (*copy, settings.pipeline))
    with pytest.raises(OvertakenError):
        older.write("q", make_batch(0, [shown(1, 1, 1)]))
    assert rows(database, settings) == {}


def test_of_two_runs_that_begin_a_pipeline_at_once_each_locks_its_row(
    settings: PostgresSinkSettings, postgres_server: PostgresServer, database: Database
) -> None:
    ledger.create_missing(database)
    with (
        ThreadPoolExecutor() as threads,
        psycopg.connect(postgres_server.dsn()) as first,
        psycopg.connect(postgres_server.dsn()) as second,
    ):
        ledger.lock_row(first, settings.pipeline)
        locking = threads.submit(ledger.lock_row, second, settings.pipeline)
        waiting = "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        while not asked(database, waiting, first.info.backend_pid):
            assert not locking.done()
        first.commit()
        locking.result(300)
        query = "SELECT 1 FROM slackwater.ledger WHERE pipeline = %s FOR SHARE NOWAIT"
        with pytest.raises(psycopg.errors.LockNotAvailable):
            asked(database, query, settings.pipeline)


@pytest.mark.full
@pytest.mark.parametrize("is_new", [True, False], ids=["of ledgers", "of tables"])
def test_the_creation_waits_for_runs_that_begin_at_the_same_time(
    settings: PostgresSinkSettings, postgres_server: PostgresServer, database: Database, is_new: bool
) -> None:
    if is_new:  # no run has been there
        database.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(settings.pipeline)))
        settings = replace(settings, postgres=PostgresSettings(postgres_server.dsn(settings.pipeline)))
    else:
        before = PostgresSink(replace(settings, pipeline=f"{settings.pipeline}_before", outputs=()))
        before.open()
        before.close()
    waits: list[str] = []
    with psycopg.connect(settings.postgres.url, autocommit=True) as other:
        exists = sql.SQL("SELECT to_regclass(%s) IS NOT NULL")
        made = ledger.LEDGER if is_new else settings.outputs[0].name

        def end(step: str) -> None:
            waits.append(step)
            assert other.execute(exists, (made,)).fetchone() == (False,)
            other.execute("SELECT pg_advisory_unlock_all()")

        other.execute("SELECT pg_advisory_lock(%s)", (ledger._LOCK,))  # noqa: SLF001 - its value says nothing
        sink = PostgresSink(settings, waiting=Waiting(on_step=end))
        sink.open()
        sink.close()
        assert other.execute(exists, (made,)).fetchone() == (True,)
    assert [("lock timeout" in step) for step in waits] == [True]


def test_the_ledger_says_when_the_newest_batch_was_written(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    sink = PostgresSink(settings)
    sink.open()
    for number in range(2):
        [before] = asked(database, "SELECT clock_timestamp()")
        sink.write("q", make_batch(number, []))
        query = "SELECT written_at FROM slackwater.ledger WHERE pipeline = %s AND written_at > %s"
        assert len(asked(database, query, settings.pipeline, before)) == 1
    sink.close()


@pytest.mark.parametrize("step", [SinkStep.BEGUN, SinkStep.FLUSHED])
def test_a_batch_holds_the_lock_of_the_ledger_s_row(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database, step: SinkStep
) -> None:
    query = "SELECT 1 FROM slackwater.ledger WHERE pipeline = %s FOR SHARE NOWAIT"
    refused: list[bool] = []

    def look() -> None:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            asked(database, query, settings.pipeline)
        refused.append(True)

    sink = PostgresSink(settings, probe=LookAt(step, look))
    sink.open()
    sink.write("q", make_batch(0, [shown(1, 1, 1)]))
    assert refused == [True]
    assert asked(database, query, settings.pipeline) == [1]
    sink.close()


def test_a_batch_that_is_refused_leaves_nothing_and_the_same_sink_goes_on(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    sink = PostgresSink(settings)
    sink.open()
    with pytest.raises(OutputRefusedError, match=r'key \{"id": 2\}'):
        sink.write("q", make_batch(0, [shown(1, 1, 1), shown(2, 2, 40_000)]))
    query = "SELECT 1 FROM slackwater.ledger WHERE pipeline = %s FOR UPDATE NOWAIT"
    assert asked(database, query, settings.pipeline) == [1], "its lock is free"
    assert rows(database, settings) == {}
    sink.write("q", make_batch(0, [shown(1, 1, 1), shown(2, 2, 4)]))
    assert rows(database, settings) == {1: 1, 2: 4}
    sink.close()


def test_an_error_in_the_middle_of_a_batch_ends_its_transaction_and_the_same_sink_goes_on(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    left = [ValueError("once")]

    def fail_once() -> None:
        if left:
            raise left.pop()

    sink = PostgresSink(settings, probe=LookAt(SinkStep.FLUSHED, fail_once))
    sink.open()
    with pytest.raises(ValueError, match="once"):
        sink.write("q", make_batch(0, [shown(1, 1, 1)]))
    query = "SELECT 1 FROM slackwater.ledger WHERE pipeline = %s FOR UPDATE NOWAIT"
    assert asked(database, query, settings.pipeline) == [1], "its lock is free"
    sink.write("q", make_batch(0, [shown(1, 1, 1)]))
    sink.write("q", make_batch(1, [shown(11, 1, 2)]))
    assert rows(database, settings) == {1: 2}
    sink.close()


@pytest.mark.parametrize("history", [False, True])
def test_of_several_documents_of_a_key_in_a_batch_the_table_has_the_newest(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database, history: bool
) -> None:
    settings = replace(settings, outputs=(replace(settings.outputs[0], history=history),))
    sink = PostgresSink(settings)
    sink.open()
    first = [shown(3, 1, 3), shown(1, 2, 1), shown(2, 2, None), shown(1, 3, None), shown(4, 3, 4)]
    sink.write("q", make_batch(0, [shown(1, 1, 1), shown(2, 1, 2), *first]))
    assert rows(database, settings) == {1: 3, 3: 4}
    second = [shown(11, 1, None), shown(12, 1, 5), shown(11, 3, 6), shown(12, 3, None), shown(12, 2, 7)]
    sink.write("q", make_batch(1, second))
    assert rows(database, settings) == {1: 5, 2: 7}
    if history:
        columns = sql.SQL("id, n, valid_from_lsn, valid_to_lsn")
        versions = sql.Identifier(settings.pipeline, "t_history")
        query = sql.SQL("SELECT {} FROM {} ORDER BY id, valid_from_lsn").format(columns, versions)
        assert database.execute(query).fetchall() == [
            (1, 1, 1, 2), (1, 2, 2, 3), (1, 3, 3, 11), (1, 5, 12, None),
            (2, 1, 1, 2), (2, 7, 12, None), (3, 4, 4, 11), (3, 6, 11, 12),
        ]  # fmt: skip
    sink.close()


@pytest.mark.parametrize(
    ("given", "used"), [("off", "on"), ("remote_write", "remote_write"), ("local", "local")]
)
def test_what_is_committed_is_durable_whatever_the_server_s_default_is(
    settings: PostgresSinkSettings, given: str, used: str
) -> None:
    separator = "&" if "?" in settings.postgres.url else "?"
    url = f"{settings.postgres.url}{separator}options=-c%20synchronous_commit%3D{given}"
    sink = PostgresSink(replace(settings, postgres=PostgresSettings(url)))
    sink.open()
    assert sink._database is not None  # noqa: SLF001 - nobody else can ask its session
    assert asked(sink._database, "SHOW synchronous_commit") == [used]  # noqa: SLF001
    sink.close()


def test_what_a_session_reads_and_writes_does_not_depend_on_the_server_s_defaults(
    settings: PostgresSinkSettings,
) -> None:
    separator = "&" if "?" in settings.postgres.url else "?"
    given = {"TimeZone": "Asia/Tokyo", "DateStyle": "SQL", "IntervalStyle": "iso_8601", "lock_timeout": "0"}
    options = "%20".join(f"-c%20{name}%3D{value}" for name, value in given.items())
    url = f"{settings.postgres.url}{separator}client_encoding=latin1&options={options}"
    sink = PostgresSink(replace(settings, postgres=PostgresSettings(url)))
    sink.open()
    session = sink._database  # noqa: SLF001 - nobody else can ask its session
    assert session is not None
    used = {name: asked(session, f"SHOW {name}")[0] for name in (*given, "client_encoding")}
    assert used.pop("DateStyle").startswith("ISO")
    assert used == {
        "TimeZone": "UTC",
        "IntervalStyle": "postgres",
        "lock_timeout": "0",
        "client_encoding": "UTF8",
    }
    sink.close()


def test_a_row_of_the_ledger_whose_columns_contradict_its_progress_is_refused(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    sink = PostgresSink(settings)
    sink.open()
    sink.write("q", make_batch(0, []))
    statement = "UPDATE slackwater.ledger SET commit_lsn = commit_lsn + 1 WHERE pipeline = %s"
    database.execute(statement, (settings.pipeline,))
    newer = PostgresSink(settings)
    for use in (lambda: newer.check("q"), lambda: sink.write("q", make_batch(1, [])), newer.open):
        with pytest.raises(StateError, match="contradict its progress"):
            use()
    for each in (sink, newer):
        each.close()


def test_a_table_of_versions_that_is_replaced_while_the_run_writes_stops_it(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    settings = replace(settings, outputs=(replace(settings.outputs[0], history=True),))
    sink = PostgresSink(settings)
    sink.open()
    schema = sql.Identifier(settings.pipeline)
    database.execute(sql.SQL("ALTER TABLE {}.t_history RENAME TO gone").format(schema))
    database.execute(sql.SQL("CREATE TABLE {0}.t_history (LIKE {0}.gone INCLUDING ALL)").format(schema))
    with pytest.raises(StateError, match="t_history was dropped, renamed or recreated"):
        sink.write("q", make_batch(0, [shown(1, 1, 1)]))
    assert rows(database, settings) == {}
    sink.close()


def test_of_several_rows_of_a_view_without_a_key_in_a_batch_the_table_has_the_newest(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    settings = replace(settings, outputs=(replace(settings.outputs[0], key=()),))
    sink = PostgresSink(settings)
    sink.open()
    found = [(lsn, b"{}", json.dumps({"id": 1, "n": lsn}).encode()) for lsn in (1, 2, 3)]
    sink.write("q", make_batch(0, found))
    assert rows(database, settings) == {1: 3}
    sink.close()
