"""What a run learns from the catalogue of the source's database, and what it remembers of it."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, LiteralString

import pytest

from slackwater.cli import main
from slackwater.pipeline import source_check
from slackwater.pipeline.checkpoint import Checkpoint
from slackwater.pipeline.definition import pipeline_definition
from slackwater.pipeline.source_check import CatalogueCheck
from slackwater.protocol import InputError, SystemClock
from slackwater.sql.postgres import parse_catalog

if TYPE_CHECKING:
    import psycopg

    from slackwater.dev import PostgresServer

pytestmark = pytest.mark.integration

TABLES = "CREATE TABLE checked.t (id int PRIMARY KEY, a int, b int);"
ROWS = "INSERT INTO checked.t VALUES (1, 1, 1)"
WAIT_SECONDS = 60.0


@pytest.fixture
def database(postgres_server: "PostgresServer") -> "Iterator[psycopg.Connection]":
    import psycopg

    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS checked CASCADE")
        connection.execute("DROP PUBLICATION IF EXISTS slackwater_checked")
        connection.execute(b"CREATE SCHEMA checked;" + TABLES.encode() + ROWS.encode())
        connection.execute("CREATE PUBLICATION slackwater_checked FOR ALL TABLES")
        yield connection
        connection.execute("DROP PUBLICATION slackwater_checked")


def checks(database: "psycopg.Connection", folder: Path, table: str = "checked.t") -> CatalogueCheck:
    definition = pipeline_definition(
        name="p",
        source="checked",
        catalog=parse_catalog({"schema.sql": TABLES.replace("checked.t", table)}),
        views={"v": f"SELECT TRANSACTIONALLY id, a FROM {table}"},  # noqa: S608 - our own
    )
    return CatalogueCheck(definition, database.info.dsn, "", Checkpoint(str(folder)))


def test_a_run_ends_by_name_at_what_leaves_no_event_and_does_not_forget_it(
    database: "psycopg.Connection", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_check, "CATALOGUE_SECONDS", 0.05)
    check = checks(database, tmp_path)
    assert check.first_look() == ()
    check.check()
    database.execute("ALTER TABLE checked.t ALTER b TYPE int USING b + 1")
    assert check.first_look() == (), "no view uses the column"
    check.begin()
    try:
        database.execute("ALTER TABLE checked.t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, a)")
        with pytest.raises(InputError, match=r"'p' stops: table checked\.t: its primary key was"):
            check_until_refused(check)
    finally:
        check.close()

    database.execute("ALTER TABLE checked.t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)")
    again = checks(database, tmp_path)
    assert [each.text.partition(";")[0] for each in again.first_look()] == [
        "its primary key was changed",
        "its declared primary key (id) is neither one in the database nor a unique index without NULL, so "
        "rows that are equal there would count as one",
    ]
    assert checks(database, tmp_path / "revision 2").first_look() == ()


def test_rows_that_were_written_again_let_a_run_continue(
    database: "psycopg.Connection", tmp_path: Path
) -> None:
    check = checks(database, tmp_path)
    check.first_look()
    check.check()
    database.execute("ALTER TABLE checked.t ALTER a TYPE int USING a + 1")
    for _ in range(2):
        assert "ALTER COLUMN … TYPE rewrote" in check.first_look()[0].text
        with pytest.raises(InputError):
            check.check()

    database.execute("UPDATE checked.t SET a = a")

    assert checks(database, tmp_path).first_look() == ()


def test_a_revision_that_begins_with_a_copied_state_compares_with_its_origin(
    database: "psycopg.Connection", tmp_path: Path
) -> None:
    check = checks(database, tmp_path / "1")
    check.first_look()
    check.check()
    database.execute("DROP TABLE checked.t")
    database.execute(TABLES.encode())

    found = checks(database, tmp_path / "2").first_look(Checkpoint(str(tmp_path / "1")))

    assert [each.text.partition(";")[0] for each in found] == [
        "it was dropped, and another table has its name now"
    ]


def test_a_database_with_none_of_the_tables_is_another_one(
    database: "psycopg.Connection", tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check = checks(database, tmp_path, "outputs.of_a_pipeline")

    assert check.first_look() == ()
    check.check()
    assert "postgres.url is no database of source checked" in caplog.text


def check_until_refused(check: CatalogueCheck) -> None:
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + WAIT_SECONDS
    while clock.monotonic() < deadline:
        check.check()
        pause.wait(0.02)


@pytest.mark.parametrize(
    ("statements", "code"),
    [
        ("CREATE UNIQUE INDEX u ON checked.t (id); ALTER TABLE checked.t REPLICA IDENTITY USING INDEX u", 0),
        ("CREATE UNIQUE INDEX u ON checked.t (id); ALTER TABLE checked.t REPLICA IDENTITY FULL", 0),
        ("CREATE UNIQUE INDEX u ON checked.t (id)", 0),  # PostgreSQL refuses updates and deletes
        ("ALTER TABLE checked.t ADD PRIMARY KEY (a)", 1),
        ("ALTER TABLE checked.t ALTER id DROP NOT NULL; CREATE UNIQUE INDEX u ON checked.t (id)", 1),
        (
            "CREATE UNIQUE INDEX u ON checked.t (id); ALTER TABLE checked.t ALTER a SET NOT NULL;"
            "CREATE UNIQUE INDEX w ON checked.t (a); ALTER TABLE checked.t REPLICA IDENTITY USING INDEX w",
            1,
        ),
    ],
)
def test_a_run_and_the_schema_check_accept_the_same_keys(
    database: "psycopg.Connection", tmp_path: Path, statements: LiteralString, code: int
) -> None:
    database.execute("ALTER TABLE checked.t DROP CONSTRAINT t_pkey")
    for statement in statements.split(";"):
        database.execute(statement)
    (tmp_path / "views").mkdir()
    (tmp_path / "pipeline.toml").write_text('name = "p"\nsource = "checked"\n')
    (tmp_path / "schema.sql").write_text(TABLES)
    (tmp_path / "views" / "v.sql").write_text("SELECT TRANSACTIONALLY id, a FROM checked.t")

    assert bool(checks(database, tmp_path / "c").first_look()) == bool(code)
    info = database.info
    url = f"postgresql://{info.user}@{info.host}:{info.port}/{info.dbname}"
    assert main.run(["schema", "check", str(tmp_path), "--postgres-url", url]) == code
