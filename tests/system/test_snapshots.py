"""Snapshots of the real connector while writers write: what the pipeline shows is the view at every commit.

One run of everything: Connect is killed in the initial snapshot, which it takes again; then a table is read
once more by a blocking ad hoc snapshot, and both by an incremental one. The certifier knows every state from
the change topics without the ad hoc rows, so one that shows up too early, too late or twice is found.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from slackwater.cuts import CutLog
from slackwater.dev import DevStack, Lifetime
from slackwater.dev.processes import Launch, launch
from slackwater.protocol import KafkaSettings, SystemClock, parse_position
from slackwater.protocol.keys import data_topic, notification_topic
from slackwater_certify import Certificate, Connections, Mode, certify, load_specification
from slackwater_lab.database.statements import create_tables, write_first
from slackwater_lab.database.writers import Writers
from slackwater_lab.watching import Visibility
from slackwater_lab.workloads import WORKLOADS

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

SOURCE = "inv"
SIGNALS = "inventory.debezium_signal"
LINES, ORDERS = "inventory.order_lines", "inventory.orders"
WORKLOAD = WORKLOADS["orders"](7, 150)
GONE = range(1_000_000, 1_000_010)
"""Orders that are deleted between the interrupted snapshot and its repetition."""
SECONDS = 900.0


class Run:
    """The database, the connector, a sidecar and the orders pipeline."""

    def __init__(self, stack: DevStack, folder: Path, running: ExitStack) -> None:
        self.stack = stack
        self._folder = folder
        self._running = running
        self.clock = SystemClock()
        create_tables(self.dsn, WORKLOAD)
        write_first(self.dsn, WORKLOAD)
        self.execute(f"CREATE TABLE {SIGNALS} (id text PRIMARY KEY, type text, data text)")
        for order in GONE:
            self.execute(f"INSERT INTO {ORDERS} VALUES ({order}, 'gone', 'open', 0, 0, now())")  # noqa: S608
        self.visible = Visibility(self.bootstrap, "orders_with_lines", self.clock)
        self.visible.start()
        running.callback(self.visible.stop)
        redis = self.stack.redis.url
        self._servers = ["--bootstrap", self.bootstrap, "--redis-url", redis]
        self._start("sidecar", "sidecar", "--source", SOURCE)
        options = ("--checkpoint", str(folder / "checkpoint"), "--connect-url", self.stack.connect.address)
        self._start("pipeline", "run", str(WORKLOAD.pipeline), *options, "--master", "local[2]")

    @property
    def dsn(self) -> str:
        return self.stack.postgres.dsn()

    @property
    def bootstrap(self) -> str:
        return self.stack.kafka.bootstrap

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def kill_connector_in_snapshot(self) -> None:
        """The second table is locked, so that the snapshot stands still behind the first."""
        self.stack.start_connector((LINES, ORDERS, SIGNALS))
        with psycopg.connect(self.dsn) as connection:
            connection.execute(f"LOCK TABLE {ORDERS} IN ACCESS EXCLUSIVE MODE".encode())
            self.read_until(data_topic(SOURCE, LINES), lambda _: True)
            self._wait_until_snapshot_is_stored()
            self.stack.connect.kill()
        self.execute(f"DELETE FROM {ORDERS} WHERE id >= {GONE.start}")  # noqa: S608
        self.stack.connect.start()
        self.stack.wait_until_streaming()

    def _wait_until_snapshot_is_stored(self) -> None:
        """Before, only the empty offset of STARTED may be: Debezium would not take the snapshot again."""
        offsets = self.stack.connect.folder / "connect" / "offsets"
        deadline, pause = time.monotonic() + SECONDS, threading.Event()
        while not (offsets.exists() and b'"lsn"' in offsets.read_bytes()):
            assert time.monotonic() < deadline, "the connector stores no offset of a row"
            pause.wait(0.05)

    def snapshot(self, kind: str, *tables: str) -> None:
        """Asks for an ad hoc snapshot and waits until the connector has taken it."""
        data = json.dumps({"type": kind, "data-collections": tables})
        self.execute(f"INSERT INTO {SIGNALS} VALUES ('{kind}', 'execute-snapshot', '{data}')")  # noqa: S608
        title = "Initial Snapshot" if kind == "BLOCKING" else "Incremental Snapshot"
        seen = 0

        def is_over(notification: dict[str, Any]) -> bool:
            nonlocal seen
            if (notification["aggregate_type"], notification["type"]) == (title, "COMPLETED"):
                seen += 1
            return seen == (2 if kind == "BLOCKING" else 1)

        self.read_until(notification_topic(SOURCE), is_over)

    def read_until(self, topic: str, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Reads a topic from its beginning until a record is as wanted."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "test", "allow.auto.create.topics": False}
        )
        deadline = time.monotonic() + SECONDS
        try:
            while topic not in (topics := consumer.list_topics(timeout=120).topics):
                assert time.monotonic() < deadline, f"there is no topic {topic}"
            partitions = topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
            while True:
                message = consumer.poll(0.1)
                assert time.monotonic() < deadline, f"what was waited for is not in {topic}"
                if message is not None and message.value() and condition(json.loads(message.value() or b"")):
                    return
        finally:
            consumer.close()

    def wait_until_visible(self) -> None:
        """Everything that is committed now."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            found = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            connection.execute(f"UPDATE {ORDERS} SET id = id WHERE id = 1".encode())  # noqa: S608
        assert found is not None
        lsn, deadline, pause = parse_position(str(found[0])), time.monotonic() + SECONDS, threading.Event()
        while self.visible.newest_lsn < lsn:
            words = (self._folder / "pipeline.log").read_text()[-2000:]
            assert time.monotonic() < deadline, f"{self.visible.newest_lsn} of {lsn} is visible: {words}"
            pause.wait(0.05)

    def judge(self) -> Certificate:
        specification = load_specification(WORKLOAD.pipeline / "certify.toml")
        return certify(specification, Connections(bootstrap=self.bootstrap, dsn=self.dsn), mode=Mode.BOTH)

    def _start(self, name: str, *arguments: str) -> None:
        config = self._folder / f"{name}.toml"
        config.write_text(f'[run]\nindex_root = "{self._folder / "index"}"\n' if name == "pipeline" else "")
        argv = (sys.executable, "-m", "slackwater", "--config", str(config), *arguments, *self._servers)
        log = self._folder / f"{name}.log"
        process = launch(Launch(argv=argv, cwd=self._folder), log, Lifetime.EMBEDDED)
        self._running.callback(process.kill)


@pytest.fixture
def run(dev_stack: Callable[..., DevStack], tmp_path: Path) -> Iterator[Run]:
    stack = dev_stack(
        prefix=SOURCE,
        partitions=2,
        offset_flush_interval=timedelta(seconds=1),
        connector_overrides={
            "signal.data.collection": SIGNALS,
            "signal.enabled.channels": "source",
            "signal.poll.interval.ms": "100",
            "incremental.snapshot.chunk.size": "100",
            "snapshot.delay.ms": "1500",
        },
    )
    with ExitStack() as running:
        yield Run(stack, tmp_path, running)


def test_snapshots_never_show_what_was_not_so(run: Run) -> None:
    run.kill_connector_in_snapshot()
    writers = Writers(run.dsn, WORKLOAD, count=2, changes_per_second=150.0, clock=run.clock)
    writers.start()
    try:
        run.wait_until_visible()
        run.snapshot("BLOCKING", LINES)
        run.snapshot("INCREMENTAL", ORDERS, LINES)
        run.wait_until_visible()
    finally:
        writers.stop()
    run.wait_until_visible()

    certificate = run.judge()
    assert certificate.is_clean, certificate
    with closing(CutLog(SOURCE, KafkaSettings(run.bootstrap))) as log:
        cuts = [published.cut for published in log.tail(-1)]
    assert any(cut.late_snapshots for cut in cuts)
    assert any(cut.has_incremental_rows for cut in cuts)
