# ruff: noqa: S608 - statements are put together from names of this module
"""Columns of a real database are added and widened: when a run continues, and what carries its state over.

What each change alone does is shown without servers, in packages/slackwater/tests/engine/test_copied_state.py
and packages/slackwater/tests/pipeline/test_change_plan.py.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slackwater.cuts import CutLog
from slackwater.dev import DevStack
from slackwater.protocol import KafkaSettings
from slackwater.protocol.keys import HEADER_COMMIT_LSN
from slackwater_lab.database.statements import current_lsn
from slackwater_lab.programs import Product, slackwater_command, write_run_settings
from slackwater_lab.topics import read_to_end
from slackwater_lab.watching import wait_until

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

SECONDS = 900.0
TABLE = "public.items"
NARROW = "name varchar(10) NOT NULL, size int NOT NULL, price numeric(8, 2)"
WIDE = "name text NOT NULL, size bigint NOT NULL, price numeric(12, 2)"
ADDED = "ADD COLUMN note text, ADD COLUMN state varchar(9) NOT NULL DEFAULT 'new'"
ITEMS = f"SELECT TRANSACTIONALLY i.id, i.name, i.size, i.price FROM {TABLE} i"
STATES = (
    f"SELECT TRANSACTIONALLY i.state, count(*) AS n, sum(i.price) AS worth FROM {TABLE} i GROUP BY i.state"
)
FULL = f"ALTER TABLE {TABLE} REPLICA IDENTITY FULL;"


class Place:
    """A database with a connector and a sidecar, and folders and runs of a pipeline's revisions."""

    def __init__(self, stack: DevStack, product: Product, database: psycopg.Connection) -> None:
        self.stack, self.product, self.folder, self._database = stack, product, product.folder, database
        self.execute(f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, {NARROW}); {FULL}")
        self.insert(0, "name, size, price", "'changes', 0, NULL")
        self.insert(1, "name, size, price", "'one', 1, 1.10")
        stack.start_connector((TABLE,))
        stack.wait_until_streaming()
        product.start_sidecar()
        product.wait_for_cut_log(SECONDS)

    def execute(self, statements: str) -> None:
        for statement in filter(str.strip, statements.split(";")):
            self._database.execute(statement.encode())

    def insert(self, number: int, columns: str, values: str) -> None:
        self.execute(f"INSERT INTO {TABLE} (id, {columns}) VALUES ({number}, {values})")

    def rows(self, query: str) -> list[tuple[object, ...]]:
        return self._database.execute(query.replace("TRANSACTIONALLY", "").encode()).fetchall()

    def wait_for_cut(self) -> None:
        """Until a cut has everything that is committed; the update is in its last transaction."""
        lsn = current_lsn(self.stack.postgres.dsn())
        self.execute(f"UPDATE {TABLE} SET size = size + 1 WHERE id = 0")
        log = CutLog("inv", KafkaSettings(self.stack.kafka.bootstrap))

        def has_come() -> bool:
            newest = log.newest()
            return newest is not None and newest.cut.lsn > lsn

        assert wait_until(has_come, SECONDS, check=self.product.check)

    def write(self, revision: int, columns: str, views: Mapping[str, str], added: str = "") -> Path:
        folder = self.folder / f"items{revision}"
        shutil.rmtree(folder / "views", ignore_errors=True)
        (folder / "views").mkdir(parents=True, exist_ok=True)
        outputs = "".join(f"[outputs.{view}]\npartitions = 1\n" for view in views)
        (folder / "pipeline.toml").write_text(
            f'name = "items"\nsource = "inv"\nemit = "transactions"\nrevision = {revision}\n{outputs}'
        )
        alter = f"ALTER TABLE {TABLE} {added};" if added else ""
        (folder / "schema.sql").write_text(
            f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, {columns}); {FULL} {alter}"
        )
        for view, statement in views.items():
            (folder / "views" / f"{view}.sql").write_text(statement)
        return folder

    def arguments(self, command: str, folder: Path, *more: str) -> list[str]:
        settings = write_run_settings(self.folder / f"{folder.name}.toml", self.folder / folder.name)
        servers = ("--bootstrap", self.stack.kafka.bootstrap, "--redis-url", self.stack.redis.url)
        database = ("--postgres-url", self.stack.postgres.dsn(), "--connect-url", self.stack.connect.address)
        checkpoint = ("--checkpoint", str(self.folder / "checkpoint"))
        given = ("--config", str(settings), command, str(folder), *servers, *database, *checkpoint, *more)
        return list(slackwater_command(*given))

    def call(self, command: str, folder: Path, *more: str) -> "subprocess.CompletedProcess[str]":
        words = self.arguments(command, folder, *more)
        return subprocess.run(
            words, cwd=self.folder, capture_output=True, text=True, check=False, timeout=SECONDS
        )

    def run(self, folder: Path, *more: str) -> str:
        """Runs until everything is visible; returns the error, on one line, or nothing."""
        done = self.call("run", folder, "--master", "local[1]", "--available-now", *more)
        said = " ".join((done.stdout + done.stderr).split())
        return "" if done.returncode == 0 else said[said.rindex("error: ") :]

    def documents(self, topic: str) -> dict[int, dict[bytes, bytes | None]]:
        """By commit LSN the documents of a topic by key."""
        found: dict[int, dict[bytes, bytes | None]] = {}
        for message in read_to_end(self.stack.kafka.bootstrap, topic):
            headers: dict[str, Any] = dict(message.headers() or [])
            found.setdefault(int(headers[HEADER_COMMIT_LSN]), {})[message.key() or b""] = message.value()
        return found


def shown(documents: Mapping[int, Mapping[bytes, bytes | None]], up_to: int) -> dict[bytes, bytes | None]:
    """What a topic shows at a commit."""
    state: dict[bytes, bytes | None] = {}
    for lsn in sorted(lsn for lsn in documents if lsn <= up_to):
        state |= documents[lsn]
    return {key: value for key, value in state.items() if value is not None}


@pytest.fixture
def place(dev_stack: Callable[..., DevStack], tmp_path: Path) -> Iterator[Place]:
    stack = dev_stack(prefix="inv", partitions=2)
    with (
        Product(stack, tmp_path / "product") as product,
        psycopg.connect(stack.postgres.dsn(), autocommit=True) as database,
    ):
        yield Place(stack, product, database)


def test_wider_types_and_added_columns_are_carried_over_as_a_plan_says(place: Place) -> None:
    old = place.write(1, NARROW, {"items": ITEMS})
    assert not place.run(old)
    place.execute(
        f"ALTER TABLE {TABLE} {ADDED}; ALTER TABLE {TABLE} ALTER name TYPE text;"
        f"ALTER TABLE {TABLE} ALTER price TYPE numeric(12, 2); ALTER TABLE {TABLE} ALTER size TYPE bigint"
    )
    place.insert(2, "name, size, price", "'two', 2, 2.20")
    place.wait_for_cut()
    said = place.run(old)
    assert "table public.items: column size: ALTER COLUMN … TYPE bigint rewrote its values" in said
    assert "UPDATE public.items SET" in said
    place.execute(f"UPDATE {TABLE} SET size = size")
    place.wait_for_cut()
    assert not place.run(old), "events have told the values, and the columns are used by no view"

    views = {"items": ITEMS.replace("i.price", "i.price, i.note"), "states": STATES}
    new = place.write(1, WIDE, views, ADDED)
    refused = place.call("plan", new)
    assert refused.returncode == 1
    assert "set `revision = 2` in pipeline.toml, then: slackwater plan" in refused.stdout
    assert "--copy-state-of OLD" in place.run(new)

    new, file = place.write(2, WIDE, views, ADDED), place.folder / "items.plan"
    old = place.write(1, NARROW, {"items": ITEMS})
    copying = ("--copy-state-of", str(old))
    planned = place.call("plan", new, *copying, "--out", str(file), "--json")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    plan = json.loads(planned.stdout)
    assert (plan["begins"], plan["problems"]) == ("copied", [])
    assert {each["name"]: each["change"] for each in plan["outputs"]} == {
        "items.v2": "added", "states.v2": "added", "items": "left alone"
    }  # fmt: skip

    other = place.write(2, WIDE, views | {"states": STATES.replace("count(*)", "max(i.id)")}, ADDED)
    assert "does not hold: view states has another SQL" in place.run(other, *copying, "--plan", str(file))
    place.write(2, WIDE, views, ADDED)
    assert "the id of the checkpoint whose state is copied was" in place.run(new, "--plan", str(file))
    assert not (place.folder / "checkpoint.v2" / "slackwater.json").exists()

    given = ("--master", "local[1]", *copying, "--plan", str(file))
    program = place.product.start("run", place.arguments("run", new, *given))
    assert place.product.wait_until((place.folder / "checkpoint.v2" / "slackwater.json").exists, SECONDS)
    program.kill()
    place.product.programs.pop("run")
    place.insert(3, "name, size, price, note", "'a longer name', 5000000000, 12345678.90, 'three'")
    place.execute(f"UPDATE {TABLE} SET note = 'noted', state = 'old' WHERE id = 2")
    place.wait_for_cut()
    assert not place.run(new, *copying, "--plan", str(file))
    whole = place.write(3, WIDE, views, ADDED)
    assert not place.run(whole)

    for view in views:
        copied, rebuilt = (place.documents(f"{view}.v{revision}") for revision in (2, 3))
        begun = min(copied)
        later = sorted(lsn for lsn in rebuilt if lsn > begun)
        assert len(later) >= 2
        assert [lsn for lsn in sorted(copied) if lsn > begun] == later
        for lsn in (begun, *later):
            assert shown(copied, lsn) == shown(rebuilt, lsn), (view, lsn)
    newest = [json.loads(value or b"") for value in shown(rebuilt, max(rebuilt)).values()]
    found = {(each["state"], each["n"], str(each["worth"])) for each in newest}
    assert found == {(state, n, str(worth)) for state, n, worth in place.rows(STATES)}


def test_a_column_that_rows_have_values_in_is_not_carried_over(place: Place) -> None:
    old = place.write(1, NARROW, {"items": ITEMS})
    place.execute(f"ALTER TABLE {TABLE} {ADDED}")
    place.insert(2, "name, size, price, note", "'two', 2, 2.20, 'noted'")
    for _ in range(2):  # the second batch proves the first one
        place.wait_for_cut()
        assert not place.run(old)
    views = {"items": ITEMS.replace("i.price", "i.price, i.note")}
    new, copying = place.write(2, NARROW, views, ADDED), ("--copy-state-of", str(old))
    said = place.run(new, *copying)
    assert "column note is not kept, and rows may have values in it" in said
    assert "start without --copy-state-of" in said
    planned = place.call("plan", new, *copying)
    assert planned.returncode == 1
    assert "the run is refused" in planned.stdout
    assert not place.run(new), "the topics tell the values"
    place.execute(f"ALTER TABLE {TABLE} RENAME COLUMN name TO title")
    renamed = place.write(
        3,
        NARROW.replace("name", "alias"),
        {"items": ITEMS.replace("i.name", "i.title")},
        "ADD COLUMN title text",
    )
    said = place.run(renamed)
    assert "column title: rows from before it was added or renamed have another value than NULL" in said
