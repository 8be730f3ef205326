"""A transaction or snapshot larger than memory is one for everybody: one cut, one batch, visible at once.

The sidecar has a limit on its memory that it would exceed if it kept rows; Spark has the memory that a
pipeline has by default, and the peaks of its Python workers are measured. ``make soak`` does it with
200,000 rows, and with 5,000,000.
"""

import json
import resource
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from slackwater.dev import KafkaBroker, RedisServer
from slackwater.protocol import decode_commit_record
from slackwater.protocol.keys import commit_topic
from slackwater_lab.fakes.sources import SyntheticSource
from slackwater_lab.programs import stated_connector

pytestmark = [pytest.mark.system, pytest.mark.spark]

PARTITIONS = 4
LINES_OF_ORDER = 4
XID = 700
FIRST_LSN = 1_000_000
MIB = 1 << 20
RUN: list[tuple[str, str | bytes | None]] = [
    ("__debezium.context.runId", b"01a1fab5-73cf-7783-b1b5-6df8869ef8b4")
]
PIPELINE = """
name = "shop"
source = "{source}"
emit = "latest"
[output]
topic = "{source}-shop"
partitions = 2
"""
SCHEMA = """
CREATE TABLE shop.orders (id bigint PRIMARY KEY, version int NOT NULL);
CREATE TABLE shop.lines (id bigint PRIMARY KEY, order_id bigint NOT NULL, quantity int NOT NULL);
ALTER TABLE shop.lines REPLICA IDENTITY FULL;
"""
VIEW = """
SELECT TRANSACTIONALLY o.id, count(l.id) AS lines, coalesce(sum(l.quantity), 0) AS quantity
FROM shop.orders o LEFT JOIN shop.lines l ON l.order_id = o.id GROUP BY o.id
"""


class Filler:
    """Writes one transaction as Debezium would: every order, then its lines, then END."""

    place = (
        '"snapshot":"false","sequence":"[\\"1\\",\\"2\\"]","schema":"shop","table":"%s","txId":700,"lsn":%d},'
        '"transaction":{"id":"700:%d","total_order":%d,"data_collection_order":%d},"op":"c","ts_ms":2}'
    )

    def __init__(self, source: SyntheticSource, rows: int) -> None:
        self.source = source
        self.orders = rows // (1 + LINES_OF_ORDER)
        self.rows = self.orders * (1 + LINES_OF_ORDER)
        self.counts = {"shop.orders": self.orders, "shop.lines": self.orders * LINES_OF_ORDER}
        self.commit_lsn = FIRST_LSN + 8 * self.rows + 8
        self._written = 0
        settings = {"linger.ms": 20, "compression.type": "lz4", "queue.buffering.max.kbytes": 64 * 1024}
        self._producer = Producer(
            {"bootstrap.servers": source.bootstrap, "enable.idempotence": True, **settings}
        )

    def fill(self) -> None:
        self.begin()
        for number in range(self.orders):
            self._put("orders", number, f'{{"id":{number},"version":1}}')
        for number in range(self.orders * LINES_OF_ORDER):
            order = number % self.orders
            self._put("lines", number, f'{{"id":{number},"order_id":{order},"quantity":{number % 7}}}')
        self._producer.flush()
        self.end()
        self.source.flush()

    def begin(self) -> None:
        self.source.announce_empty_tables()
        fields = {"status": "BEGIN", "id": f"{XID}:{FIRST_LSN}", "ts_ms": 1}
        self.source.put("transaction", 0, json.dumps(fields).encode())

    def end(self) -> None:
        collections = [{"data_collection": name, "event_count": n} for name, n in self.counts.items()]
        end = {"status": "END", "id": f"{XID}:{self.commit_lsn}", "ts_ms": 1, "event_count": self.rows}
        self.source.put("transaction", 0, json.dumps({**end, "data_collections": collections}).encode())

    def rest_of(self, table: str, lsn: int, number: int) -> str:
        return self.place % (table, lsn, lsn, self._written, number + 1)

    def _put(self, table: str, number: int, after: str) -> None:
        self._written += 1
        rest = self.rest_of(table, FIRST_LSN + 8 * self._written, number)
        value = f'{{"before":null,"after":{after},"source":{{"connector":"postgresql","ts_ms":1,{rest}'
        topic, key = f"{self.source.name}.shop.{table}", f'{{"id":{number}}}'
        while True:
            try:
                self._producer.produce(topic, value, key, partition=number % PARTITIONS, headers=RUN)
                return
            except BufferError:
                self._producer.poll(0.05)


class SnapshotFiller(Filler):
    """Writes an initial snapshot."""

    place = (
        '"snapshot":"true","sequence":"[null,\\"%d\\"]","schema":"shop","table":"%s","txId":700,"lsn":%d},'
        '"transaction":null,"op":"r","ts_ms":2}'
    )

    def __init__(self, source: SyntheticSource, rows: int) -> None:
        super().__init__(source, rows)
        self.commit_lsn = FIRST_LSN

    def begin(self) -> None:
        self._notify("STARTED")

    def end(self) -> None:
        for table, count in self.counts.items():
            self._notify("TABLE_SCAN_COMPLETED", scanned_collection=table, total_rows_scanned=str(count))
        self._notify("COMPLETED")

    def rest_of(self, table: str, lsn: int, number: int) -> str:
        return self.place % (FIRST_LSN, table, FIRST_LSN)

    def _notify(self, kind: str, **data: str) -> None:
        fields = {"type": kind, "aggregate_type": "Initial Snapshot", "additional_data": data, "timestamp": 1}
        self.source.put("notifications", 0, json.dumps(fields).encode())


@dataclass
class Program:
    """A process of the product, with the peak of each of its processes."""

    process: "subprocess.Popen[bytes]"
    log: Path
    peaks: Counter[int] = field(default_factory=Counter)
    """MiB of resident memory by process id; Python's processes only."""
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()

    def _look(self) -> None:
        root = psutil.Process(self.process.pid)
        while not self._stop.wait(0.2):
            with suppress(psutil.Error):
                for process in (root, *root.children(recursive=True)):
                    if Path(process.exe()).name.startswith("python"):
                        mib = process.memory_info().rss // MIB
                        self.peaks[process.pid] = max(self.peaks[process.pid], mib)

    @property
    def words(self) -> str:
        return self.log.read_text()[-2000:]

    def stop(self) -> None:
        self._stop.set()
        self.process.kill()
        self.process.wait()


@dataclass
class Shop:
    """A source of one transaction, and the pipeline that reads it."""

    source: SyntheticSource
    folder: Path
    running: ExitStack

    def start(self, name: str, *arguments: str, limit_mib: int | None = None) -> Program:
        servers = ["--bootstrap", self.source.bootstrap, "--redis-url", self.source.redis_url]
        config = self.folder / "settings.toml"
        config.write_text(stated_connector(self.source.name))
        command = [sys.executable, "-m", "slackwater", "--config", str(config), *arguments, *servers]

        def limit() -> None:
            if limit_mib is not None:
                resource.setrlimit(resource.RLIMIT_DATA, (limit_mib * MIB, limit_mib * MIB))

        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=limit,
            )
        program = Program(process, log)
        self.running.callback(program.stop)
        program.watch()
        return program

    def pipeline(self) -> Path:
        folder = self.folder / "shop"
        (folder / "views").mkdir(parents=True)
        (folder / "pipeline.toml").write_text(PIPELINE.format(source=self.source.name))
        (folder / "schema.sql").write_text(SCHEMA)
        (folder / "views" / "shop.sql").write_text(VIEW)
        return folder

    def visible(self) -> tuple[int, list[int]]:
        """Documents that a reader of committed records finds, and the LSNs of the commit records."""
        output = f"{self.source.name}-shop"
        settings = {
            "bootstrap.servers": self.source.bootstrap,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        consumer = Consumer(settings)
        places = [(output, 0), (output, 1), (commit_topic(output), 0)]
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
        documents, commits, ended = 0, [], 0
        while ended < len(places):
            for message in consumer.consume(10_000, 1.0):
                if message.error() is not None:
                    ended += 1
                elif message.topic() == output:
                    documents += 1
                else:
                    commits.append(decode_commit_record(message.value() or b"").commit_lsn)
        consumer.close()
        return documents, commits


@pytest.fixture
def shop(kafka_broker: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> Iterator[Shop]:
    tables = ("shop.orders", "shop.lines")
    source = SyntheticSource(kafka_broker.bootstrap, redis_server.url, tables=tables, partitions=PARTITIONS)
    source.create_silent()
    with ExitStack() as running:
        yield Shop(source, tmp_path, running)
    source.close()


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    pause = threading.Event()
    for _ in range(round(seconds * 20)):
        if condition():
            return True
        pause.wait(0.05)
    return False


HUGE = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("kind", "rows", "mib", "seconds"),
    [
        pytest.param(Filler, 200_000, 350, 1500, marks=pytest.mark.slow),
        pytest.param(Filler, 5_000_000, 1024, 1500, marks=HUGE),
        pytest.param(SnapshotFiller, 5_000_000, 1024, 1500, marks=HUGE),
    ],
)
def test_what_is_larger_than_memory_is_one_cut_and_one_batch(
    shop: Shop, kind: type[Filler], rows: int, mib: int, seconds: float
) -> None:
    filler = kind(shop.source, rows)
    sidecar = shop.start("sidecar", "sidecar", "--source", shop.source.name, limit_mib=mib)
    filler.fill()
    is_published = wait(lambda: shop.source.in_redis() == filler.commit_lsn, seconds)
    assert is_published, sidecar.words
    (cut,) = shop.source.logged()
    assert (cut.lsn, cut.event_count, cut.repeated) == (filler.commit_lsn, filler.rows, frozenset())

    checkpoint = str(shop.folder / "checkpoint")
    arguments = ("--checkpoint", checkpoint, "--master", "local[2]", "--available-now")
    pipeline = shop.start("pipeline", "run", str(shop.pipeline()), *arguments)
    assert wait(lambda: pipeline.process.poll() is not None, seconds), pipeline.words
    assert pipeline.process.returncode == 0, pipeline.words

    assert shop.visible() == (filler.orders, [filler.commit_lsn])
    assert max(sidecar.peaks.values()) < mib
    assert max(pipeline.peaks.values()) < mib, pipeline.peaks
