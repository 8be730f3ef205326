"""Connectors that continue without a snapshot: what it would have contained is not shown, and all say so.

Four real connectors read one database: one fails in its first snapshot and is started again; one takes no
snapshots; one leaves a table out of its snapshot; one does everything right. Then each lacking connector gets
what the messages ask for, and what is shown is the whole table.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from urllib.request import Request, urlopen

import psycopg
import pytest

from slackwater.cdc.connector import publication_name, reading_properties, replication_name, topic_properties
from slackwater.cuts import CutLog, FrontierState, FrontierStatus, RedisMarkerStore
from slackwater.dev import DevStack, Lifetime
from slackwater.dev.processes import Launch, launch
from slackwater.protocol import Cut, KafkaSettings

pytestmark = [pytest.mark.system, pytest.mark.slow]

SOURCES = ("failed", "never", "partly", "right")
SIGNALS = "shop.signals"
SECONDS = 240.0


class World:
    """A database with two tables that have rows, and what follows it."""

    def __init__(self, stack: DevStack, folder: Path, running: ExitStack) -> None:
        self.stack, self.folder = stack, folder
        self.execute(
            "CREATE SCHEMA shop",
            "CREATE TABLE shop.a (id int PRIMARY KEY, v text)",
            "CREATE TABLE shop.b (id int PRIMARY KEY, v text)",
            f"CREATE TABLE {SIGNALS} (id text PRIMARY KEY, type text, data text)",
            "INSERT INTO shop.a VALUES (1, 'before')",
            "INSERT INTO shop.b VALUES (1, 'before')",
        )
        stack.start_connector(("shop.a",))
        for source in SOURCES:
            self.execute(f'CREATE PUBLICATION "{publication_name(source)}" FOR ALL TABLES')
        servers = ("--bootstrap", stack.kafka.bootstrap, "--redis-url", stack.redis.url)
        named = [word for source in SOURCES for word in ("--source", source)]
        argv = (sys.executable, "-m", "slackwater", "sidecar", *named, *servers)
        process = launch(Launch(argv=argv, cwd=folder), folder / "sidecar.log", Lifetime.EMBEDDED)
        running.callback(process.kill)

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.stack.postgres.dsn(), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def connect(self, source: str, **changes: str) -> None:
        address = self.stack.postgres
        self._ask(
            "PUT",
            f"{source}/config",
            {
                **reading_properties(source),
                "database.hostname": "127.0.0.1",
                "database.port": str(address.port),
                "database.user": "postgres",
                "database.password": "unused",
                "database.dbname": self.stack.settings.database,
                "poll.interval.ms": "20",
                "heartbeat.interval.ms": "500",
                "signal.data.collection": SIGNALS,
                "signal.enabled.channels": "source",
                "signal.poll.interval.ms": "100",
                **topic_properties(source, 2, 1),
                **{name.replace("_", "."): value for name, value in changes.items()},
            },
        )

    def fail_in_snapshot(self, source: str) -> None:
        """Starts the connector and makes its first snapshot fail before that of any table begins.

        By then Connect has stored the offset of the notification STARTED, which is empty, and no other one.
        """
        # A slot cannot be created while the transaction that holds the lock is open.
        self.execute(f"SELECT pg_create_logical_replication_slot('{replication_name(source)}', 'pgoutput')")
        with psycopg.connect(self.stack.postgres.dsn()) as holder:
            holder.execute("LOCK TABLE shop.b IN ACCESS EXCLUSIVE MODE")
            wait = str(round(SECONDS * 1000))
            self.connect(
                source, snapshot_locking_mode="shared", snapshot_lock_timeout_ms=wait, errors_max_retries="0"
            )
            until(lambda: self._has_stored_offset(source), "Connect stores the offset of STARTED")
            until(self._cancel_waiting_for_lock, "the snapshot waits for the lock")
            until(lambda: self.task_state(source) == "FAILED", "the snapshot fails")

    def _cancel_waiting_for_lock(self) -> bool:
        with psycopg.connect(self.stack.postgres.dsn(), autocommit=True) as connection:
            return bool(
                connection.execute(
                    "SELECT pg_cancel_backend(pid) FROM pg_locks"
                    " WHERE NOT granted AND relation = 'shop.b'::regclass"
                ).fetchall()
            )

    def _has_stored_offset(self, source: str) -> bool:
        file = self.stack.connect.folder / "connect" / "offsets"
        return file.exists() and f'["{source}",'.encode() in file.read_bytes()

    def restart(self, source: str) -> None:
        self._ask("POST", f"{source}/restart?includeTasks=true", None)

    def task_state(self, source: str) -> str:
        tasks = self._ask("GET", f"{source}/status", None)["tasks"]
        return str(tasks[0]["state"]) if tasks else ""

    def forget_position(self, source: str) -> None:
        self._ask("PUT", f"{source}/stop", None)
        until(lambda: not self._ask("GET", f"{source}/status", None)["tasks"], "the connector stops")
        self._ask("DELETE", f"{source}/offsets", None)
        until(lambda: self._has_dropped_slot(replication_name(source)), "the connector lets go of its slot")
        self._ask("PUT", f"{source}/resume", None)

    def _has_dropped_slot(self, slot: str) -> bool:
        try:
            self.execute(f"SELECT pg_drop_replication_slot('{slot}')")
        except psycopg.errors.ObjectInUse:
            return False
        return True

    def _ask(self, method: str, path: str, body: dict[str, str] | None) -> dict[str, list[dict[str, str]]]:
        request = Request(  # noqa: S310 - loopback
            f"{self.stack.connect.address}/connectors/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urlopen(request, timeout=60) as answer:  # noqa: S310
            text = answer.read()
        found: dict[str, list[dict[str, str]]] = json.loads(text) if text else {}
        return found

    def status(self, source: str) -> FrontierStatus | None:
        with closing(RedisMarkerStore.connect(self.stack.redis.url)) as store:
            return store.status(source)

    def newest(self, source: str) -> Cut | None:
        with closing(CutLog(source, KafkaSettings(self.stack.kafka.bootstrap))) as log:
            published = log.newest()
        return None if published is None else published.cut

    def says(self, source: str, state: FrontierState, *words: str) -> bool:
        status = self.status(source)
        return status is not None and status.state is state and all(word in status.detail for word in words)

    def names(self, source: str) -> tuple[str, ...] | None:
        cut = self.newest(source)
        return None if cut is None else cut.without_snapshot

    def shows(self, source: str, table: str) -> bool:
        names = self.names(source)
        return names is not None and f"{source}.{table}" not in names

    def command(self, *words: str) -> str:
        servers = ("--bootstrap", self.stack.kafka.bootstrap, "--redis-url", self.stack.redis.url)
        argv = (sys.executable, "-m", "slackwater", *words, *servers)
        done = subprocess.run(
            argv, cwd=self.folder, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        return done.stdout + done.stderr


def until(condition: Callable[[], bool], what: str) -> None:
    deadline, pause = time.monotonic() + SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, what
        pause.wait(0.2)


@pytest.fixture
def world(dev_stack: Callable[..., DevStack], tmp_path: Path) -> Iterator[World]:
    with ExitStack() as running:
        stack = dev_stack(prefix="other", partitions=2, offset_flush_interval=timedelta(seconds=1))
        yield World(stack, tmp_path, running)


def test_nothing_is_shown_of_a_table_without_a_snapshot(world: World) -> None:
    world.fail_in_snapshot("failed")
    world.restart("failed")
    world.connect("never", snapshot_mode="no_data")
    world.connect("partly", snapshot_include_collection_list=r"shop\.a")
    world.connect("right")
    for source in SOURCES:
        until(lambda source=source: world.task_state(source) == "RUNNING", f"{source} runs")  # type: ignore[misc]
    until(lambda: world.names("right") is not None, "the first cut of a connector with a snapshot")
    world.execute("INSERT INTO shop.a VALUES (2, 'after')", "UPDATE shop.b SET v = 'after'")

    until(lambda: world.shows("right", "shop.b"), "both tables are complete")
    until(
        lambda: "partly.shop.b" in (world.names("partly") or ()), "the cut names the table that was left out"
    )
    assert world.shows("partly", "shop.a")
    until(lambda: world.says("partly", FrontierState.RUNNING, "partly.shop.b", "execute-snapshot"), "status")
    assert "no complete snapshot of the tables of" in world.command("doctor", "--source", "partly")
    for source, reason in (
        ("failed", "failed in its first snapshot"),
        ("never", "skipped its first snapshot"),
    ):
        wanted = (source, FrontierState.MISCONFIGURED, "has had no snapshot", reason)
        until(lambda wanted=wanted: world.says(*wanted), f"{source} says why")  # type: ignore[misc]
        assert world.newest(source) is None
        assert reason in world.command("doctor", "--source", source)

    world.forget_position("failed")
    until(lambda: world.names("failed") is not None, "a new snapshot ends the wait")
    assert world.shows("failed", "shop.a")
    assert world.shows("failed", "shop.b")
    data = json.dumps({"type": "BLOCKING", "data-collections": ["shop.b"]})
    world.execute(f"INSERT INTO {SIGNALS} VALUES ('one', 'execute-snapshot', '{data}')")  # noqa: S608

    def is_complete() -> bool:
        world.execute("UPDATE shop.a SET v = v WHERE id = 2")
        return world.shows("partly", "shop.b")

    until(is_complete, "the ad hoc snapshot counts")
