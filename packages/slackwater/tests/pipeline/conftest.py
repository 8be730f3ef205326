import json
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import duckdb
import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from slackwater.cuts import CutLog, FrontierState, FrontierStatus, RedisMarkerStore
from slackwater.dev import KafkaBroker, RedisServer
from slackwater.protocol import CommittedTransaction, Cut, KafkaSettings
from slackwater.protocol.keys import data_topic
from slackwater_lab.topics import make_topics

REPOSITORY = Path(__file__).parents[4]
ORDERS_PIPELINE = REPOSITORY / "pipelines" / "orders"
ORDERS, LINES = "inventory.orders", "inventory.order_lines"
PARTITIONS = {ORDERS: 4, LINES: 4}
SECONDS_TO_FINISH = 1500.0
SECONDS_TO_ANSWER = 300.0
CREATED_AT = "2026-01-02T03:04:05.678900Z"

Row = dict[str, Any]


class Inventory:
    """Plays database, connector and sidecar: random business transactions, and cuts when asked for.

    In every committed state an order's line_count and total agree with its lines.
    """

    def __init__(self, bootstrap: str, redis_url: str, seed: int) -> None:
        self.source = f"src-{uuid.uuid4().hex[:10]}"
        self.bootstrap, self.redis_url = bootstrap, redis_url
        self.orders: dict[int, Row] = {}
        self.lines: dict[int, Row] = {}
        self.events = 0
        self._random = random.Random(seed)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._log = CutLog(self.source, KafkaSettings(bootstrap))
        self._store = RedisMarkerStore.connect(redis_url)
        self._log.ensure_topic(replication_factor=1)
        self._ends = {data_topic(self.source, table): [0] * n for table, n in PARTITIONS.items()}
        for topic, ends in self._ends.items():
            make_topics(bootstrap, [topic], len(ends))
        self._lsn = self._previous_lsn = self._id = 0
        self._uncut: list[CommittedTransaction] = []
        self._changes: list[tuple[str, Row | None, Row | None]] = []

    @property
    def lsn(self) -> int:
        """Of the newest commit."""
        return self._lsn

    @property
    def ends(self) -> dict[str, tuple[int, ...]]:
        """Where the topics of the tables end, by partition."""
        return {topic: tuple(ends) for topic, ends in self._ends.items()}

    def run(self, transactions: int) -> None:
        """This many random transactions, with a cut after every few."""
        for _ in range(transactions):
            self.transaction()
            if self._random.random() < 0.2:
                self.cut()
        self.cut()

    def transaction(self) -> None:
        """A few changes to some orders and their lines."""
        for _ in range(self._random.randint(1, 3)):
            choice = self._random.random()
            known = list(self.orders)
            if len(known) < 2 or choice < 0.4:
                self._new_order()
            elif choice < 0.5:
                self._delete_order(self._random.choice(known))
            elif choice < 0.7:
                self._move_line(*self._random.sample(known, 2))
            else:
                self._change_order(self._random.choice(known))
        self.commit()

    def commit(self, at_ms: int | None = None) -> int:
        """Writes the collected changes as one transaction; its commit LSN."""
        xid, now_ms = 700 + len(self._uncut) + self._lsn, time_ms() if at_ms is None else at_ms
        first, self._lsn = self._lsn, self._lsn + 1000
        for order, (table, before, after) in enumerate(self._changes, 1):
            self._write(table, before, after, xid, first + order, order)
        self.events += len(self._changes)
        self._changes.clear()
        self._uncut.append(CommittedTransaction(xid, self._lsn, now_ms))
        return self._lsn

    def put(self, table: str, row: Row | None, old: Row | None) -> None:
        """One row change: insert, update or delete."""
        rows = self.orders if table == ORDERS else self.lines
        if row is None:
            assert old is not None
            del rows[old["id"]]
        else:
            rows[row["id"]] = row
        self._changes.append((table, old, row))

    def raw(self, table: str, key: bytes, value: bytes) -> None:
        """A record as it is, in partition 0, as part of what is committed next."""
        topic = data_topic(self.source, table)
        self._producer.produce(topic, value, key, partition=0)
        self._ends[topic][0] += 1

    def cut(self) -> int:
        """Declares all that is committed complete; its LSN."""
        assert self._producer.flush(SECONDS_TO_ANSWER) == 0
        newest = self._uncut[-1] if self._uncut else CommittedTransaction(0, self._lsn, time_ms())
        cut = Cut(
            source=self.source,
            timeline=1,
            lsn=self._lsn,
            previous_lsn=self._previous_lsn,
            commit_ts_ms=newest.commit_ts_ms,
            event_count=self.events,
            transactions=tuple(self._uncut),
            end_offsets={topic: tuple(ends) for topic, ends in self._ends.items()},
            transaction_offset=0,
        )
        status = FrontierStatus(state=FrontierState.RUNNING, wall_ms=time_ms(), sidecar="test")
        for published in self._log.append([cut]):
            self._store.put_cut(published, status)
        self._uncut, self._previous_lsn = [], self._lsn
        return self._lsn

    def newest_cuts(self) -> list[Cut]:
        """The newest cut, if there is one."""
        newest = self._log.newest()
        return [] if newest is None else [newest.cut]

    def view(self) -> dict[int, Row]:
        """The view over the current rows, computed by DuckDB in one piece."""
        sql = (ORDERS_PIPELINE / "views" / "orders_with_lines.sql").read_text()
        sql = sql.replace("TRANSACTIONALLY", "").replace("GROUP BY o.id", "GROUP BY ALL")
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'; CREATE SCHEMA inventory;")
            connection.execute((ORDERS_PIPELINE / "schema.sql").read_text().partition("-- A line")[0])
            for table, rows in ((ORDERS, self.orders), (LINES, self.lines)):
                for row in rows.values():
                    marks = ",".join("?" * len(row))
                    connection.execute(f"INSERT INTO {table} VALUES ({marks})", list(row.values()))  # noqa: S608
            found = connection.execute(f"SELECT to_json(v) FROM ({sql}) v").fetchall()  # noqa: S608
        return {row["id"]: row for row in (json.loads(text, parse_float=Decimal) for (text,) in found)}

    def _new_order(self) -> None:
        order: Row = {"id": self._next_id(), "customer": f"c{self._random.randint(1, 9)}", "status": "new"}
        order |= {"line_count": 0, "total": "0.00", "created_at": CREATED_AT}
        lines = [self._line(order["id"]) for _ in range(self._random.randint(0, 4))]
        for line in lines:
            self.put(LINES, line, None)
        self.put(ORDERS, self._summed(order), None)

    def _delete_order(self, order_id: int) -> None:
        for line in self._lines_of(order_id):
            self.put(LINES, None, line)
        self.put(ORDERS, None, self.orders[order_id])

    def _move_line(self, source: int, target: int) -> None:
        lines = self._lines_of(source)
        if lines:
            line = self._random.choice(lines)
            self.put(LINES, {**line, "order_id": target}, line)
        for order_id in (source, target):
            old = self.orders[order_id]
            self.put(ORDERS, self._summed(old), old)

    def _change_order(self, order_id: int) -> None:
        old = self.orders[order_id]
        for line in self._lines_of(order_id)[:1]:
            self.put(LINES, None, line)
        self.put(LINES, self._line(order_id), None)
        self.put(ORDERS, self._summed({**old, "status": f"s{self._random.randint(1, 9)}"}), old)

    def _line(self, order_id: int) -> Row:
        price = f"{self._random.randint(1, 999)}.{self._random.randint(10, 99)}"
        line = {"id": self._next_id(), "order_id": order_id, "product": "pé"}
        return line | {"quantity": self._random.randint(1, 5), "price": price}

    def _lines_of(self, order_id: int) -> list[Row]:
        return [line for line in self.lines.values() if line["order_id"] == order_id]

    def _summed(self, order: Row) -> Row:
        lines = self._lines_of(order["id"])
        total = sum((line["quantity"] * Decimal(line["price"]) for line in lines), Decimal("0.00"))
        return {**order, "line_count": len(lines), "total": str(total)}

    def _next_id(self) -> int:
        self._id += 1
        return self._id

    def _write(
        self, table: str, before: Row | None, after: Row | None, xid: int, lsn: int, order: int
    ) -> None:
        topic, row = data_topic(self.source, table), after or before or {}
        partition = row["id"] % PARTITIONS[table]
        key = json.dumps({"id": row["id"]}).encode()
        old = before if table == LINES or after is None else None  # only lines have REPLICA IDENTITY FULL
        op = "c" if before is None else "d" if after is None else "u"
        value = debezium_value(self.source, table, op, old, after, xid, lsn, order)
        records = [value] if op != "d" else [value, None]
        for content in records:
            self._producer.produce(topic, content, key, partition=partition)
        self._producer.poll(0)
        self._ends[topic][partition] += len(records)


def debezium_value(
    source: str, table: str, op: str, before: Row | None, after: Row | None, xid: int, lsn: int, order: int
) -> bytes:
    schema, _, name = table.partition(".")
    block = {"version": "slackwater", "name": source, "ts_ms": time_ms(), "snapshot": "false", "db": "d"}
    block |= {"schema": schema, "table": name, "txId": xid, "lsn": lsn}
    transaction = {"id": f"{xid}:{lsn}", "total_order": order, "data_collection_order": order}
    value = {"before": before, "after": after, "source": block, "transaction": transaction, "op": op}
    return json.dumps(value | {"ts_ms": time_ms()}).encode()


def time_ms() -> int:
    return time.time_ns() // 1_000_000


class PipelineProcess:
    """A running ``child.py``."""

    def __init__(self, order: dict[str, Any], log: Path) -> None:
        self.order = order
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("child.py"), json.dumps(order)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.batches: list[dict[str, Any]] = []
        self.last: dict[str, Any] = {}
        self._lines: Queue[str | None] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def await_batch(self, is_wanted: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """Waits until a batch is wanted."""
        while True:
            news = self._next()
            assert news is not None, f"the run ended with {self.last}"
            if "batch" in news and is_wanted(news):
                return news

    def await_end(self) -> int:
        """Waits for the end; the exit code."""
        while self._next() is not None:
            pass
        return self.process.wait(SECONDS_TO_ANSWER)

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self.process.poll() is not None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.await_end()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS_TO_ANSWER)

    def descendants(self) -> list[psutil.Process]:
        """Spark's JVM and Python workers."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def _next(self) -> dict[str, Any] | None:
        try:
            line = self._lines.get(timeout=SECONDS_TO_FINISH)
        except Empty:
            pytest.fail(f"nothing from the run for {SECONDS_TO_FINISH:g} s")
        if line is None:
            return None
        self.last = json.loads(line)
        if "batch" in self.last:
            self.batches.append(self.last)
        return self.last


class OutputReader:
    """What a new ``read_committed`` reader sees of a topic."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def records(self, topic: str) -> list[tuple[int, int, bytes | None, bytes | None]]:
        """``(commit LSN, partition, key, value)`` by partition and offset."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        found = []
        try:
            partitions = consumer.list_topics(topic, SECONDS_TO_ANSWER).topics[topic].partitions
            for partition in partitions:
                consumer.assign([TopicPartition(topic, partition, 0)])
                while (message := consumer.poll(SECONDS_TO_ANSWER)) is not None:
                    error = message.error()
                    if error is not None:
                        assert error.code() == KafkaError._PARTITION_EOF, error  # noqa: SLF001 - its name
                        break
                    headers: dict[str, Any] = dict(message.headers() or [])
                    lsn = int(headers["slackwater-commit-lsn"])
                    found.append((lsn, partition, message.key(), message.value()))
        finally:
            consumer.close()
        return found

    def has_records(self, topic: str) -> bool:
        """Whether the topic is there and a reader finds something in it."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": uuid.uuid4().hex})
        try:
            known = topic in consumer.list_topics(timeout=SECONDS_TO_ANSWER).topics
        finally:
            consumer.close()
        return known and bool(self.records(topic))

    def final_state(self, topic: str) -> dict[int, Any]:
        """The newest document of each key."""
        return final_state(self.records(topic))

    def assert_view(self, inventory: Inventory) -> None:
        """Final state as in the database, no document torn, none written twice for one commit."""
        records = self.records(f"out-{inventory.source}")
        assert as_numbers(final_state(records)) == as_numbers(inventory.view())
        assert [
            record for record in records if record[3] is not None and is_torn(json.loads(record[3]))
        ] == []
        assert len({(lsn, key) for lsn, _, key, _ in records}) == len(records)
        assert len({partition for _, partition, _, _ in records}) > 1


def final_state(records: Iterable[tuple[int, int, bytes | None, bytes | None]]) -> dict[int, Any]:
    """The newest document of each key."""
    state: dict[int, Any] = {}
    for _, _, key, value in records:
        order_id = json.loads(key or b"")["id"]
        state.pop(order_id, None)
        if value is not None:
            state[order_id] = json.loads(value)
    return state


def is_torn(document: dict[str, Any]) -> bool:
    total = sum((line["quantity"] * Decimal(line["price"]) for line in document["lines"]), Decimal(0))
    return document["line_count"] != len(document["lines"]) or Decimal(document["total"]) != total


def as_numbers(state: dict[int, Any]) -> dict[int, Any]:
    """Decimals compare by value, whatever their spelling in JSON."""
    return {
        order_id: {
            **{name: value for name, value in document.items() if name != "created_at"},
            "total": Decimal(document["total"]),
            "lines": [{**line, "price": Decimal(line["price"])} for line in document["lines"]],
        }
        for order_id, document in state.items()
    }


@pytest.fixture
def inventory(kafka_broker: KafkaBroker, redis_server: RedisServer) -> Inventory:
    return Inventory(kafka_broker.bootstrap, redis_server.url, seed=7)


@pytest.fixture
def output(kafka_broker: KafkaBroker) -> OutputReader:
    return OutputReader(kafka_broker.bootstrap)


@pytest.fixture
def start_pipeline(inventory: Inventory, tmp_path: Path) -> Iterator[Callable[..., PipelineProcess]]:
    """Starts the orders pipeline over the inventory; the same checkpoint and names each time."""
    started: list[PipelineProcess] = []

    def start(*, settings: dict[str, Any] | None = None, **order: Any) -> PipelineProcess:
        defaults = {
            "bootstrap": inventory.bootstrap,
            "redis_url": inventory.redis_url,
            "checkpoint": str(tmp_path / "checkpoint"),
            "available_now": True,
            "master": "local[2]",
            "replication_factor": 1,
        }
        full = {
            "folder": str(ORDERS_PIPELINE),
            "source": inventory.source,
            "name": f"p-{inventory.source}",
            "topic": f"out-{inventory.source}",
            "settings": {**defaults, **(settings or {})},
            **order,
        }
        process = PipelineProcess(full, tmp_path / "child.log")
        started.append(process)
        return process

    yield start
    for process in started:
        if process.process.poll() is None:
            process.kill()
