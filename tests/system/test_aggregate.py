"""Scope ``aggregate`` beside scope ``strict``: one partition stalls, the others' documents continue.

Real Kafka, Redis, sidecar and Spark; the test plays database and connector, and knows every document at every
commit. How it was seen to fail: when a group goes as far as its fastest partition (``max`` for ``min`` in
``groups.py``), the stalled partition's documents continue without the changes of their orders; when markers
ahead are not published, no documents continue.
"""

import json
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from slackwater.dev import KafkaBroker, Lifetime, RedisServer
from slackwater.dev.processes import Launch, launch
from slackwater.dev.server import log_tail
from slackwater.protocol import decode_commit_record
from slackwater.protocol.keys import commit_topic
from slackwater_lab.debezium.records import begin_value, change_value, end_value
from slackwater_lab.fakes.sources import SyntheticSource
from slackwater_lab.programs import stated_connector

pytestmark = [pytest.mark.integration, pytest.mark.spark]

SEED = 5
GROUPS = 3
ORDERS, LINES = "shop.orders", "shop.lines"
HELD = (ORDERS, 1)
SECONDS = 900.0
SCHEMA = """
CREATE TABLE shop.orders (id bigint PRIMARY KEY, version int NOT NULL);
CREATE TABLE shop.lines (order_id bigint, id bigint, quantity int NOT NULL, PRIMARY KEY (order_id, id));
"""
VIEW = """
SELECT TRANSACTIONALLY o.id, o.version, count(l.id) AS lines, coalesce(sum(l.quantity), 0) AS quantity
FROM shop.orders o LEFT JOIN shop.lines l ON l.order_id = o.id GROUP BY o.id
"""
Documents = dict[tuple[int, int], dict[str, int]]
"""By commit LSN and order."""


class Shop:
    """Orders and their lines, both in the partition of the order. Knows each document after each commit."""

    def __init__(self, source: SyntheticSource, seed: int) -> None:
        self._source = source
        self._rng = random.Random(seed)
        self._orders: dict[int, dict[int, int]] = {}
        self._xid = 700
        self._held: list[tuple[str, int, bytes, bytes]] = []
        self.is_holding = False
        self.documents: Documents = {}
        self.first_held_lsn = 0

    @property
    def lsn(self) -> int:
        """Of the newest commit."""
        return self._xid * 1000

    def commit(self, transactions: int) -> None:
        """Each changes orders of the first and the last group, most of all groups."""
        for _ in range(transactions):
            groups = {0, GROUPS - 1, self._rng.randrange(GROUPS)}
            self._transaction([group + GROUPS * self._rng.randrange(3) for group in sorted(groups)])
        self._source.flush()

    def release(self) -> None:
        """What was held back arrives."""
        self.is_holding = False
        for topic, partition, value, key in self._held:
            self._source.put(topic, partition, value, key)
        self._source.flush()

    def _transaction(self, order_ids: list[int]) -> None:
        self._xid += 1
        changes = [change for order_id in order_ids for change in self._order(order_id)]
        counts: dict[str, int] = {}
        now_ms = time.time_ns() // 1_000_000
        self._source.put("transaction", 0, begin_value(self._xid, self.lsn - 900, now_ms))
        for number, (table, op, row, key) in enumerate(changes, 1):
            counts[table] = counts.get(table, 0) + 1
            images = {"before": row} if op == "d" else {"after": row}
            value = change_value(
                table,
                op,
                position=(self._xid, self.lsn - 900 + number),
                orders=(counts[table], number),
                ts_ms=now_ms,
                **images,
            )
            self._put(table, key % GROUPS, value, row)
        self._source.put("transaction", 0, end_value(self._xid, self.lsn, counts, now_ms))

    def _put(self, table: str, partition: int, value: bytes, row: dict[str, int]) -> None:
        key = {"id": row["id"]} if table == ORDERS else {"order_id": row["order_id"], "id": row["id"]}
        record = table, partition, value, json.dumps(key).encode()
        if self.is_holding and (table, partition) == HELD:
            self.first_held_lsn = self.first_held_lsn or self.lsn
            self._held.append(record)
        else:
            self._source.put(*record)

    def _order(self, order_id: int) -> Iterator[tuple[str, str, dict[str, int], int]]:
        """Another version of the order, with another line and maybe without an old one."""
        lines = self._orders.setdefault(order_id, {})
        if len(lines) > 2:
            gone = self._rng.choice(list(lines))
            del lines[gone]
            yield LINES, "d", {"order_id": order_id, "id": gone, "quantity": 0}, order_id
        yield ORDERS, "u", {"id": order_id, "version": self._xid}, order_id
        lines[self._xid] = self._rng.randint(1, 99)
        yield LINES, "c", {"order_id": order_id, "id": self._xid, "quantity": lines[self._xid]}, order_id
        document = {
            "id": order_id,
            "version": self._xid,
            "lines": len(lines),
            "quantity": sum(lines.values()),
        }
        self.documents[self.lsn, order_id] = document


class Output:
    """What a ``read_committed`` reader has seen of a pipeline's output so far."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
            }
        )
        self._topics = topic, commit_topic(topic)
        self._is_assigned = False
        self.documents: Documents = {}
        self.repeated = 0
        self.commit_lsns: list[int] = []

    def read_on(self) -> None:
        if not self._is_assigned:
            topics = self._consumer.list_topics(timeout=120).topics
            if not all(topic in topics for topic in self._topics):
                return
            places = [TopicPartition(t, p, 0) for t in self._topics for p in topics[t].partitions]
            self._consumer.assign(places)
            self._is_assigned = True
        for message in self._consumer.consume(10_000, 0.05):
            assert message.error() is None
            if message.topic() == self._topics[1]:
                self.commit_lsns.append(decode_commit_record(message.value() or b"").commit_lsn)
                continue
            headers = dict(message.headers() or [])
            lsn = int(headers["slackwater-commit-lsn"] or 0)
            order = json.loads(message.key() or b"")["id"]
            self.repeated += (lsn, order) in self.documents
            self.documents[lsn, order] = json.loads(message.value() or b"null")

    def newest_lsn(self, group: int) -> int:
        return max((lsn for lsn, order in self.documents if order % GROUPS == group), default=0)

    def close(self) -> None:
        self._consumer.close()


class Run:
    """A sidecar and two pipelines over one source, as processes."""

    def __init__(self, source: SyntheticSource, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._servers = ["--bootstrap", source.bootstrap, "--redis-url", source.redis_url]
        self._running = ExitStack()
        self.outputs: dict[str, Output] = {}

    def start(self) -> None:
        self._start("sidecar", ["--config", "/dev/null", "sidecar", "--source", self._source.name])
        for scope in ("aggregate", "strict"):
            name = f"{scope}-{self._source.name}"
            self._start(
                scope, ["--config", str(self._settings(scope)), "run", str(self._pipeline(scope, name))]
            )
            output = self.outputs[scope] = Output(self._source.bootstrap, name)
            self._running.callback(output.close)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline, pause = time.monotonic() + SECONDS, threading.Event()
        while not condition():
            assert time.monotonic() < deadline, "\n".join(
                log_tail(self._folder / f"{program}.log") for program in ("sidecar", *self.outputs)
            )
            for output in self.outputs.values():
                output.read_on()
            pause.wait(0.05)

    def close(self) -> None:
        self._running.close()

    def _pipeline(self, scope: str, name: str) -> Path:
        folder = self._folder / scope
        (folder / "views").mkdir(parents=True)
        (folder / "schema.sql").write_text(SCHEMA)
        (folder / "views" / "totals.sql").write_text(VIEW)
        (folder / "pipeline.toml").write_text(
            f'name = "{name}"\nsource = "{self._source.name}"\nscope = "{scope}"\nemit = "transactions"\n'
            f'buckets = 4\n[output]\ntopic = "{name}"\npartitions = 2\n'
        )
        return folder

    def _settings(self, scope: str) -> Path:
        path = self._folder / f"{scope}.toml"
        local = self._folder / f"{scope}.local"
        local.mkdir()
        path.write_text(
            f"[run]\ncheckpoint = {json.dumps(str(self._folder / (scope + '.checkpoint')))}\n"
            f'master = "local[1]"\n[run.spark_conf]\n"spark.local.dir" = {json.dumps(str(local))}\n'
            f"{stated_connector(self._source.name)}"
        )
        return path

    def _start(self, program: str, arguments: list[str]) -> None:
        argv = (sys.executable, "-m", "slackwater", *arguments, *self._servers)
        log = self._folder / f"{program}.log"
        self._running.callback(launch(Launch(argv=argv, cwd=self._folder), log, Lifetime.EMBEDDED).kill)


@pytest.fixture
def source(kafka_broker: KafkaBroker, redis_server: RedisServer) -> Iterator[SyntheticSource]:
    source = SyntheticSource(
        kafka_broker.bootstrap, redis_server.url, tables=(ORDERS, LINES), partitions=GROUPS
    )
    source.create_all()
    yield source
    source.close()


@pytest.fixture
def run(source: SyntheticSource, tmp_path: Path) -> Iterator[Run]:
    run = Run(source, tmp_path)
    yield run
    run.close()


@pytest.mark.full
def test_a_stalled_partition_holds_back_its_own_documents_only(source: SyntheticSource, run: Run) -> None:
    sys.stdout.write(f"seed {SEED}\n")
    shop = Shop(source, SEED)
    shop.commit(30)
    run.start()
    aggregate, strict = run.outputs["aggregate"], run.outputs["strict"]
    run.wait_until(lambda: aggregate.documents == strict.documents == shop.documents)

    shop.is_holding = True
    shop.commit(60)
    almost_all = shop.lsn - 1000
    run.wait_until(lambda: min(aggregate.newest_lsn(0), aggregate.newest_lsn(2)) >= almost_all)
    assert max(strict.newest_lsn(group) for group in range(GROUPS)) < shop.first_held_lsn
    assert aggregate.newest_lsn(1) < shop.first_held_lsn
    assert aggregate.commit_lsns[-1] < shop.first_held_lsn
    assert aggregate.documents.items() <= shop.documents.items()

    shop.release()
    shop.commit(10)
    run.wait_until(lambda: aggregate.commit_lsns[-1] == strict.commit_lsns[-1] == shop.lsn)
    run.wait_until(lambda: aggregate.documents == strict.documents == shop.documents)
    assert (aggregate.repeated, strict.repeated) == (0, 0)
    assert aggregate.commit_lsns == sorted(aggregate.commit_lsns)
