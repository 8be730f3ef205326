"""What the PostgreSQL sink does with a real server's tables, values and failures."""

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from slackwater.dev import PostgresServer
from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import Emit, OutputRefusedError, OutputTable, SinkStep, postgres_type
from slackwater.outputs.postgres import sink as postgres_sink
from slackwater.outputs.postgres.ledger import Database
from slackwater.outputs.postgres.sink import PostgresSink
from slackwater.outputs.postgres.tables import PostgresSinkSettings
from slackwater.outputs.sink import Waiting
from slackwater.protocol import ConfigError, PostgresSettings, StateError, UnavailableError
from slackwater.sql.plan import OutputColumn

pytestmark = pytest.mark.integration

MakeBatch = Callable[..., DocumentBatch]
QUERY = "q"
TYPES = {
    "id": "BIGINT",
    "name": "VARCHAR",
    "price": "DECIMAL(38,18)",
    "rate": "DOUBLE",
    "at": "TIMESTAMP WITH TIME ZONE",
    "day": "DATE",
    "data": "BLOB",
    "lines": "JSON",
}


@pytest.fixture
def schema(postgres_server: PostgresServer) -> str:
    return f"p{uuid.uuid4().hex[:12]}"


@pytest.fixture
def settings(schema: str, postgres_server: PostgresServer) -> PostgresSinkSettings:
    columns = tuple(OutputColumn(name, kind) for name, kind in TYPES.items())
    table = OutputTable(name=f"{schema}.t", columns=columns, key=("id",), view="v")
    return PostgresSinkSettings(
        pipeline=schema, outputs=(table,), postgres=PostgresSettings(postgres_server.dsn())
    )


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        yield connection


def execute(database: Database, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    cursor = database.execute(statement.encode(), parameters or None)
    return [] if cursor.description is None else cursor.fetchall()


def document(number: int, **values: object) -> tuple[int, bytes, bytes]:
    row = dict.fromkeys(TYPES) | {"id": number} | values
    return 1, json.dumps({"id": number}).encode(), json.dumps(row).encode()


def gone(number: int) -> tuple[int, bytes, None]:
    return 1, json.dumps({"id": number}).encode(), None


def run(settings: PostgresSinkSettings, *batches: DocumentBatch, **options: Any) -> None:
    sink = PostgresSink(settings, **options)
    try:
        sink.open()
        for batch in batches:
            sink.write(QUERY, batch)
    finally:
        sink.close()


def test_values_of_every_type_arrive_exactly(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    values = {
        "name": "tab\t back\\slash \\N\nünï",
        "price": "12345678901234567890.000000000000000001",
        "rate": "NaN",
        "at": "2026-11-20T10:11:12.123456Z",
        "day": "2026-11-20",
        "data": "AP8=",
        "lines": [{"a": "x\ty", "b": None}],
    }
    run(settings, make_batch(0, [document(1, **values), document(2)]))
    found = execute(
        database,
        "SELECT name, price::text, rate::text, at AT TIME ZONE 'UTC' = '2026-11-20 10:11:12.123456', "  # noqa: S608
        f"day::text, data, lines FROM {settings.pipeline}.t ORDER BY id",
    )
    assert found[0] == (
        values["name"], values["price"], "NaN", True, "2026-11-20", b"\x00\xff", values["lines"]
    )  # fmt: skip
    assert set(found[1]) == {None}


def test_rows_are_added_changed_and_deleted(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    first = make_batch(0, [document(n, name="old") for n in range(1, 4)])
    run(settings, first, make_batch(1, [document(2, name="new"), gone(3), gone(9), document(4)]))
    found = execute(database, f"SELECT id, name FROM {settings.pipeline}.t ORDER BY id")  # noqa: S608
    assert found == [(1, "old"), (2, "new"), (4, None)]


@pytest.mark.parametrize("emit", list(Emit))
def test_null_is_a_value_of_a_key_where_the_table_allows_it(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database, emit: Emit
) -> None:
    columns = (OutputColumn("a", "VARCHAR"), OutputColumn("n", "BIGINT"))
    table = replace(settings.outputs[0], columns=columns, key=("a",), history=emit is Emit.TRANSACTIONS)
    settings = replace(settings, outputs=(table,), emit=emit)
    run(settings)
    for name, columns_of_key in (("t", "a"), ("t_history", "a, valid_from_lsn"))[: 1 + table.history]:
        made = f"{settings.pipeline}.{name}"
        execute(database, f"ALTER TABLE {made} DROP CONSTRAINT {name}_pkey, ALTER a DROP NOT NULL")
        execute(database, f"CREATE UNIQUE INDEX ON {made} ({columns_of_key}) NULLS NOT DISTINCT")
    key, other = b'{"a": null}', b'{"a": "x"}'
    rows = [(1, key, b'{"a": null, "n": 1}'), (1, other, b'{"a": "x", "n": 1}')]
    run(settings, make_batch(0, rows), make_batch(1, [(11, key, b'{"a": null, "n": 2}')]))
    query = f"SELECT a, n FROM {settings.pipeline}.t ORDER BY a"  # noqa: S608
    assert execute(database, query) == [("x", 1), (None, 2)]
    run(settings, make_batch(2, [(21, key, None)]))
    assert execute(database, query) == [("x", 1)]
    if table.history:
        query = f"SELECT n, valid_to_lsn FROM {settings.pipeline}.t_history WHERE a IS NULL ORDER BY n"  # noqa: S608
        assert execute(database, query) == [(1, 11), (2, 21)]


def test_a_view_without_a_key_has_one_row(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    table = replace(settings.outputs[0], key=(), columns=(OutputColumn("n", "BIGINT"),))
    settings = replace(settings, outputs=(table,))
    run(
        settings,
        *(make_batch(n, [(10 * n + 1, b"{}", b'{"n": %d}' % n)]) for n in range(2)),
        make_batch(2, []),
    )
    assert execute(database, f"SELECT n FROM {settings.pipeline}.t") == [(1,)]  # noqa: S608


def test_versions_say_from_which_commit_to_which_they_are_valid(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    table = replace(settings.outputs[0], history=True)
    settings = replace(settings, outputs=(table,), emit=Emit.TRANSACTIONS)

    def at(lsn: int, found: tuple[int, bytes, bytes | None]) -> tuple[int, bytes, bytes | None]:
        return lsn, *found[1:]

    batches = [
        make_batch(0, [at(2, document(1, name="a")), at(5, document(1, name="b")), at(6, document(2))]),
        make_batch(1, [at(12, gone(1)), at(15, document(1, name="c"))]),
        make_batch(2, [at(21, gone(1)), at(22, gone(2))]),
    ]
    run(settings, *batches)
    query = f"SELECT id, name, valid_from_lsn, valid_to_lsn FROM {settings.pipeline}.t_history ORDER BY 1, 3"  # noqa: S608
    assert execute(database, query) == [
        (1, "a", 2, 5), (1, "b", 5, 12), (1, "c", 15, 21), (2, None, 6, 22)
    ]  # fmt: skip
    assert execute(database, f"SELECT id FROM {settings.pipeline}.t") == []  # noqa: S608


def test_one_snapshot_shows_all_tables_at_the_commit_of_the_ledger(
    settings: PostgresSinkSettings, make_batch: MakeBatch, postgres_server: PostgresServer
) -> None:
    run(settings, make_batch(0, [document(1, name="at 10")]))
    with psycopg.connect(postgres_server.dsn()) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        lsn = "SELECT commit_lsn FROM slackwater.ledger WHERE pipeline = %s"
        assert reader.execute(lsn, (settings.pipeline,)).fetchone() == (10,)
        run(settings, make_batch(1, [document(1, name="at 20")]))
        assert execute(reader, f"SELECT name FROM {settings.pipeline}.t") == [("at 10",)]  # noqa: S608
        assert reader.execute(lsn, (settings.pipeline,)).fetchone() == (10,)
        reader.rollback()
        assert execute(reader, f"SELECT name FROM {settings.pipeline}.t") == [("at 20",)]  # noqa: S608


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("CREATE TABLE {0}.t (id bigint PRIMARY KEY)", "no column 'name' of type text"),
        (None, ""),
        (
            "ALTER TABLE {0}.t ALTER price TYPE numeric(10,2)",
            "'price' is numeric(10,2) instead of numeric(38,18)",
        ),
        ("ALTER TABLE {0}.t DROP CONSTRAINT t_pkey", 'ADD PRIMARY KEY ("id")'),
        ("ALTER TABLE {0}.t ADD x int NOT NULL", "'x', which the view does not have, does not accept NULL"),
        ("ALTER TABLE {0}.t ADD x int NOT NULL DEFAULT 1, ADD y int", ""),
        (
            "ALTER TABLE {0}.t DROP CONSTRAINT t_pkey; CREATE UNIQUE INDEX ON {0}.t (id) NULLS NOT DISTINCT",
            "",
        ),
        ("INSERT INTO {0}.t (id) VALUES (7)", "contains rows that the pipeline has not written"),
        ("DROP TABLE {0}.t; CREATE VIEW {0}.t AS SELECT 1", "is not a table"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_what_helps(
    settings: PostgresSinkSettings, database: Database, statement: str | None, says: str
) -> None:
    columns = ", ".join(f"{name} {postgres_type(kind)}" for name, kind in TYPES.items())
    execute(database, f"CREATE SCHEMA {settings.pipeline}")
    if statement is None or not statement.startswith("CREATE TABLE"):
        execute(database, f"CREATE TABLE {settings.pipeline}.t ({columns}, PRIMARY KEY (id))")
    if statement is not None:
        execute(database, statement.format(settings.pipeline))
    if not says:
        run(settings)
        return
    with pytest.raises(ConfigError) as caught:
        run(settings)
    assert says in str(caught.value)


def test_two_pipelines_do_not_share_a_table(settings: PostgresSinkSettings, make_batch: MakeBatch) -> None:
    run(settings, make_batch(0, [document(1)]))
    with pytest.raises(ConfigError, match=f"is written by pipeline '{settings.pipeline}'"):
        run(replace(settings, pipeline="another", accept_changed_output=True))


@pytest.mark.parametrize(
    ("spoil", "documents", "says"),
    [
        ("", [document(1), document(2, name="a\x00b")], ['key {"id": 2}', "column 'name'", "NUL"]),
        ("", [document(1), document(2, at="soon")], ['key {"id": 2}', "column 'at'", "invalid input"]),
        ("", [document(1), document(2, lines=["\x00"])], ["column 'lines'", "Unicode escape"]),
        (
            "ALTER TABLE {0}.t ADD UNIQUE (name)",
            [document(n, name=f"{2 if n == 60 else n}") for n in range(100)],
            ["(name)=(2)", 'key {"id": 60}'],
        ),
        (
            "ALTER TABLE {0}.t ALTER name SET NOT NULL",
            [document(1)],
            ["allow NULL", "column 'name'", 'key {"id": 1}'],
        ),
        (
            "ALTER TABLE {0}.t ADD CHECK (id < 2)",
            [document(1), gone(7), document(2)],
            ["check constraint", 'key {"id": 2}'],
        ),
    ],
)
def test_a_row_that_the_table_refuses_is_named_and_can_be_mended(
    settings: PostgresSinkSettings,
    make_batch: MakeBatch,
    database: Database,
    spoil: str,
    documents: list[Any],
    says: list[str],
) -> None:
    run(settings)
    if spoil:
        execute(database, spoil.format(settings.pipeline))
    with pytest.raises(OutputRefusedError) as caught:
        run(settings, make_batch(0, documents))
    assert all(word in str(caught.value) for word in [*says, "view 'v'"]), str(caught.value)
    assert execute(database, f"SELECT id FROM {settings.pipeline}.t") == []  # noqa: S608
    run(settings, make_batch(0, [document(1, name="b")]))
    assert execute(database, f"SELECT id FROM {settings.pipeline}.t") == [(1,)]  # noqa: S608


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE {0}.t",
        "ALTER TABLE {0}.t DROP COLUMN name",
        "ALTER TABLE {0}.t RENAME TO gone; CREATE TABLE {0}.t (LIKE {0}.gone INCLUDING ALL)",
    ],
)
def test_a_table_that_is_changed_while_the_run_writes_stops_it(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database, statement: str
) -> None:
    sink = PostgresSink(settings)
    sink.open()
    sink.write(QUERY, make_batch(0, [document(1)]))
    execute(database, statement.format(settings.pipeline))
    with pytest.raises(StateError, match=r"since the pipeline wrote it|while the pipeline was writing"):
        sink.write(QUERY, make_batch(1, [document(2)]))
    sink.close()
    ledger = "SELECT batch_id FROM slackwater.ledger WHERE pipeline = %s"
    assert execute(database, ledger, settings.pipeline) == [(0,)]


def test_a_table_that_was_made_anew_is_refused_unless_that_is_accepted(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    run(settings, make_batch(0, [document(1)]))
    execute(database, f"DROP TABLE {settings.pipeline}.t")
    with pytest.raises(StateError, match="is not the one that its batches were written to"):
        run(settings)
    run(replace(settings, accept_changed_output=True), make_batch(1, [document(2)]))
    assert execute(database, f"SELECT id FROM {settings.pipeline}.t") == [(2,)]  # noqa: S608
    run(settings)


class AnswerLost(PostgresSink):
    """The server commits, the answer never arrives."""

    losses = 1
    is_late = True

    def _commit(self) -> None:
        if self.is_late:
            super()._commit()
        self.lose()
        if not self.is_late:
            super()._commit()

    def lose(self) -> None:
        if type(self).losses:
            type(self).losses -= 1
            raise psycopg.OperationalError("the connection is lost")


class RequestLost(AnswerLost):
    """The request to commit never reaches the server."""

    is_late = False


@pytest.mark.parametrize(("kind", "was_covered"), [(AnswerLost, True), (RequestLost, False)])
def test_after_a_commit_without_an_answer_the_ledger_is_asked(
    settings: PostgresSinkSettings,
    make_batch: MakeBatch,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[AnswerLost],
    was_covered: bool,
) -> None:
    monkeypatch.setattr(kind, "losses", 1)
    sink = kind(settings)
    sink.open()
    assert sink.write(QUERY, make_batch(0, [document(1)])).was_covered is was_covered
    sink.close()
    assert execute(database, f"SELECT id FROM {settings.pipeline}.t") == [(1,)]  # noqa: S608


def test_a_server_that_restarts_is_waited_for(
    settings: PostgresSinkSettings, make_batch: MakeBatch, postgres_server: PostgresServer
) -> None:
    is_killed = threading.Event()

    def kill(step: SinkStep, batch_id: int) -> None:
        if step is SinkStep.FLUSHED and batch_id == 1 and not is_killed.is_set():
            postgres_server.kill()
            is_killed.set()

    patient = replace(settings, patience=timedelta(minutes=5))
    batches = [make_batch(n, [document(n)]) for n in range(3)]
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(run, patient, *batches, probe=kill)
        assert is_killed.wait(120)
        postgres_server.start()
        writing.result(300)
    with psycopg.connect(postgres_server.dsn()) as database:
        found = execute(database, f"SELECT id FROM {settings.pipeline}.t ORDER BY 1")  # noqa: S608
    assert found == [(0,), (1,), (2,)]


def test_a_server_that_stays_away_is_one_clear_error_without_the_password(
    settings: PostgresSinkSettings,
) -> None:
    away = PostgresSettings("postgresql://u@127.0.0.1:1/d", "s3cret")
    sink = PostgresSink(replace(settings, postgres=away, request_timeout=timedelta(0)))
    with pytest.raises(
        UnavailableError, match="check the server and its address, then start the pipeline again"
    ) as caught:
        sink.open()
    assert "s3cret" not in str(caught.value)


DISK_FULL = """
CREATE FUNCTION {0}.full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'No space left on device'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON {0}.t EXECUTE FUNCTION {0}.full_disk()
"""


def test_a_server_whose_disk_is_full_is_waited_for(
    settings: PostgresSinkSettings, make_batch: MakeBatch, database: Database
) -> None:
    """The server's answer is what matters, so a trigger gives it."""
    run(settings)
    execute(database, DISK_FULL.format(settings.pipeline))
    steps: list[str] = []

    def on_step(step: str) -> None:
        steps.append(step)
        if len(steps) == 3:
            execute(database, f"DROP TRIGGER full_disk ON {settings.pipeline}.t")

    run(settings, make_batch(0, [document(1)]), waiting=Waiting(on_step=on_step))
    assert len(steps) == 3
    assert all(": batch 0, until" in step and "No space left on device" in step for step in steps)
    assert execute(database, f"SELECT id FROM {settings.pipeline}.t") == [(1,)]  # noqa: S608


def test_of_two_pipelines_that_begin_at_once_one_gets_the_table(
    settings: PostgresSinkSettings, database: Database
) -> None:
    run(settings)  # the ledger is there
    table = replace(settings.outputs[0], name=f"{settings.pipeline}.shared")
    both = [replace(settings, pipeline=f"{settings.pipeline}_{n}", outputs=(table,)) for n in range(2)]

    def begin(one: PostgresSinkSettings) -> str:
        try:
            run(one)
        except ConfigError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor() as threads:
        first, second = sorted(threads.map(begin, both))
    assert first == ""
    assert f"table {settings.pipeline}.shared is written by pipeline" in second


def test_a_lock_of_somebody_else_is_waited_for_however_long_it_lasts(
    settings: PostgresSinkSettings,
    make_batch: MakeBatch,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server gives signs of life, so the connection is left alone; the log says so."""
    impatient = replace(settings, request_timeout=timedelta(seconds=1), patience=timedelta(0))
    run(impatient)
    is_said = threading.Event()
    monkeypatch.setattr(logging.getLogger(postgres_sink.__name__), "info", lambda *_: is_said.set())
    with ThreadPoolExecutor() as threads, database.transaction():
        execute(database, f"LOCK TABLE {settings.pipeline}.t")
        writing = threads.submit(run, impatient, make_batch(0, [document(1)]))
        assert is_said.wait(120)
        assert not writing.done()
    writing.result(300)
    assert execute(database, f"SELECT id FROM {settings.pipeline}.t") == [(1,)]  # noqa: S608


def test_a_right_that_is_missing_is_named(settings: PostgresSinkSettings, database: Database) -> None:
    run(settings)
    user = f"u{uuid.uuid4().hex[:8]}"
    execute(database, f"CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA slackwater TO {user}")
    address = settings.postgres.url.replace("//postgres@", f"//{user}@")
    with pytest.raises(OutputRefusedError, match=r"permission denied.*; grant the pipeline's user"):
        run(replace(settings, postgres=PostgresSettings(address)))
