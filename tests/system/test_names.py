"""Names that topics, patterns or SQL without quotes do not allow: a real connector, and each command.

Judged by comparing each view with its table, and one of them by the certifier.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from slackwater.cli import main
from slackwater.dev import ConnectMode
from slackwater.protocol import parse_position
from slackwater.protocol.keys import data_topic, quoted_table
from slackwater_lab.programs import Product, slackwater_command

if TYPE_CHECKING:
    from slackwater_lab.servers.pytest_plugin import DevStackFactory

pytestmark = [pytest.mark.system, pytest.mark.slow]

SECONDS = 600.0
SCHEMA = "Größe, %"
NAMES = (
    "a.b",
    "Orders",
    "orders",
    "😀 party",
    "with space ",
    "quo\"te'd",
    "hy-phen",
    "größe",
    "100%_$1",
    "ü" * 31 + "x",
    "select",
    "back\\slash",
    ".of.parts.",
)
PARTITIONED = NAMES[-1]
COLUMNS = ("a.b", "after", "Before", "select", "größe 😀", "lsn")
DOTTED = f"{SCHEMA}.a.b"


def identifiers(*names: str) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


class Tables:
    """The tables, and every kind of change of their rows."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def make(self) -> None:
        self._connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
        for name in NAMES:
            columns = sql.SQL(", ").join(sql.SQL("{} text").format(sql.Identifier(each)) for each in COLUMNS)
            form = "CREATE TABLE {} (id int PRIMARY KEY, {})"
            if name == PARTITIONED:
                form += " PARTITION BY RANGE (id)"
            self._connection.execute(sql.SQL(form).format(self.table(name), columns))
        for number, (low, high) in enumerate(((0, 10), (10, 1000))):
            form = "CREATE TABLE {} PARTITION OF {} FOR VALUES FROM ({}) TO ({})"
            part = self.table(f"{PARTITIONED}{number}")
            self._connection.execute(sql.SQL(form).format(part, self.table(PARTITIONED), low, high))

    def table(self, name: str) -> sql.Identifier:
        return sql.Identifier(SCHEMA, name)

    def insert(self, name: str, *keys: int) -> None:
        for key in keys:
            values = [key, *(f"{name} {column} {key}" for column in COLUMNS)]
            form = sql.SQL("INSERT INTO {} VALUES ({})")
            self._connection.execute(
                form.format(self.table(name), sql.SQL(", ").join(map(sql.Literal, values)))
            )

    def change(self) -> None:
        for name in NAMES:
            with self._connection.transaction():
                self.insert(name, 3, 4, 5)
                self._run("UPDATE {} SET {} = 'new' WHERE id IN (1, 4)", name, "a.b")
                self._run("UPDATE {} SET id = id + 100, {} = id::text WHERE id IN (2, 3)", name, "select")
            with self._connection.transaction():
                self._run("DELETE FROM {} WHERE id = 5 AND {} IS NOT NULL", name, "after")
                self._run("UPDATE {} SET {} = NULL WHERE id = 1", name, "größe 😀")
        self._connection.execute(sql.SQL("TRUNCATE {}").format(self.table("größe")))
        self.insert("größe", 7)

    def rows(self, name: str) -> list[dict[str, Any]]:
        query = sql.SQL("SELECT to_jsonb(t) FROM {} t ORDER BY id").format(self.table(name))
        return [row for (row,) in self._connection.execute(query)]

    def position(self) -> int:
        row = self._connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        return parse_position(str(row[0]))

    def _run(self, form: str, name: str, column: str) -> None:
        statement = sql.SQL(form).format(self.table(name), sql.Identifier(column))
        self._connection.execute(statement)


def write_pipeline(folder: Path) -> None:
    (folder / "views").mkdir(parents=True)
    topics = f"[topics]\n'{quoted_table(DOTTED)}' = \"{data_topic('inv', DOTTED)}\"\n"
    (folder / "pipeline.toml").write_text(f'name = "odd"\nsource = "inv"\n{topics}')
    for number, name in enumerate(NAMES):
        columns = identifiers("id", *COLUMNS).as_string()
        table = quoted_table(f"{SCHEMA}.{name}")
        view = f"SELECT TRANSACTIONALLY {columns} FROM {table}"  # noqa: S608 - our own
        (folder / "views" / f"v{number}.sql").write_text(view)
    (folder / "certified").mkdir()
    (folder / "certified" / "certify.toml").write_text(
        f"""
[output]
kind = "topic"
name = "v0"
commits = "v0.commits"
[source]
name = "inv"
schema = "schema.sql"
[view]
sql = "../views/v0.sql"
key = ["id"]
[view.rows]
'{quoted_table(DOTTED)}' = ["id"]
"""
    )


class Commands:
    """Runs commands as users write them, within this process."""

    def __init__(self, settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._settings, self._capsys = settings, capsys

    def run(self, *arguments: object, code: int = 0) -> str:
        self._capsys.readouterr()
        done = main.run(["--config", str(self._settings), *map(str, arguments)])
        told = self._capsys.readouterr()
        assert done == code, told.err + told.out
        return told.out


def test_tables_of_any_name_are_shown_as_they_are(
    dev_stack: "DevStackFactory", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = dev_stack(prefix="other", connect_mode=ConnectMode.DISTRIBUTED, partitions=1)
    settings, pipeline = tmp_path / "slackwater.toml", tmp_path / "odd"
    settings.write_text(
        f'source = "inv"\n[kafka]\nbootstrap = "{stack.kafka.bootstrap}"\nreplication_factor = 1\n'
        f'[connect]\ndatabase_password = "unused"\n[redis]\nurl = "{stack.redis.url}"\n'
        f'[postgres]\nurl = "{stack.postgres.dsn()}"\n'
    )
    write_pipeline(pipeline)
    command = Commands(settings, capsys)
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE public.first (id int PRIMARY KEY)")
        stack.start_connector(("public.first",))
        tables = Tables(connection)
        tables.make()
        for name in NAMES:
            tables.insert(name, 1, 2)
        connector = ("--schema", SCHEMA, "--user", "postgres")
        assert quoted_table(DOTTED) in command.run("connector", "print", *connector)
        connect = ("--connect-url", stack.connect.address)
        command.run("connector", "apply", *connector, *connect)
        command.run("schema", "pull", "--schema", SCHEMA, "--output", pipeline / "schema.sql")
        of_one = ("--table", quoted_table(DOTTED), "--output", pipeline / "certified" / "schema.sql")
        command.run("schema", "pull", *of_one)
        command.run("schema", "check", pipeline)
        with Product(stack, tmp_path / "product") as product:
            options = ("--config", str(settings))
            product.start("sidecar", slackwater_command(*options, "sidecar", *connect))
            run = ("run", str(pipeline), "--checkpoint", str(tmp_path / "checkpoint"), *connect)
            product.start("pipeline", slackwater_command(*options, *run, "--master", "local[2]"))
            visible = product.watch(pipeline)
            tables.change()
            last = tables.position()
            tables.insert("a.b", 1000)
            assert product.wait_until(lambda: visible.newest_lsn > last, SECONDS), product.log("pipeline")

            shown = json.loads(command.run("read", pipeline, "--json"))["views"]
            for number, name in enumerate(NAMES):
                found = sorted(shown[f"v{number}"], key=lambda row: int(row["id"]))
                assert found == tables.rows(name), name
            tried = ("run", pipeline, "--checkpoint", tmp_path / "tried", "--dry-run", *connect)
            lines = command.run(*tried, code=1).splitlines()
            problems = [line for line in lines if line.startswith("problem")]
            assert len(problems) == 2
            assert all("the name 'odd' is taken" in line for line in problems), "the run is there"
            for name in NAMES:
                table = f"{SCHEMA}.{name}"
                assert f"ok       table {table}: topic {data_topic('inv', table)}" in lines
            granted = command.run("acl", "pipeline", pipeline, "--user", "u")
            assert data_topic("inv", f"{SCHEMA}.😀 party") in granted
            examined = command.run("doctor")
            assert f"{len(NAMES)} of tables" in examined
            command.run("certify", pipeline / "certified", "--mode", "both")
            reader = ("--source", "inv", "--table", quoted_table(DOTTED), "--group", "g", "--user", "u")
            assert data_topic("inv", DOTTED) in command.run("acl", "reader", *reader)
            assert "a.b after" in command.run("preview", pipeline, "--commits", "3")
