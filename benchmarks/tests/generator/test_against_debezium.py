"""The generator's records beside those that a real connector wrote for the same transactions."""

import re
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from slackwater_bench.database import Writers, create_tables, write_first
from slackwater_bench.generator.debezium_records import Connector, Headers
from slackwater_bench.generator.murmur2 import kafka_partition
from slackwater_bench.generator.share import Share
from slackwater_bench.workloads.orders import OrdersWorkload
from slackwater_bench.workloads.tables import tables_of
from slackwater_bench.workloads.tpcc import TpccWorkload
from slackwater_bench.workloads.transfers import TransfersWorkload
from slackwater_bench.workloads.workload import Workload
from slackwater_devstack import DevStack
from slackwater_protocol import SystemClock

pytestmark = pytest.mark.integration

WORKLOADS: list[Workload] = [OrdersWorkload(1, 40), TransfersWorkload(1, 20), TpccWorkload(1, 300)]
TRANSACTIONS = 150
PARTITIONS = 4
_MOMENTS = re.compile(
    r'("(?:ts_ms|ts_us|ts_ns|txId|lsn)":)\d+|("sequence":)"[^,]*,[^,]*"|("transaction":\{"id":)"[\d:]+"'
)


class Record(NamedTuple):
    """A record without what depends on the moment and the place in the log."""

    key: str
    value: str | None
    headers: str


def record(key: str, value: str | None, headers: Headers) -> Record:
    names = [(name, b"" if name.endswith("runId") else content) for name, content in headers]
    return Record(key, None if value is None else _MOMENTS.sub(r"\1\2\3?", value), str(names))


@pytest.fixture(scope="module")
def stack(dev_stack: Callable[..., DevStack]) -> DevStack:
    return dev_stack(redis=False, partitions=PARTITIONS)


def test_a_real_connector_writes_the_same_records(stack: DevStack) -> None:
    dsn = stack.postgres.dsn()
    for workload in WORKLOADS:
        create_tables(dsn, workload)
        write_first(dsn, workload)
    stack.start_connector([name for workload in WORKLOADS for name in tables_of(workload)])
    stack.wait_until_streaming()
    for workload in WORKLOADS:
        wanted = generated(workload, executed(dsn, workload))
        number = sum(map(len, wanted.values()))
        assert number > TRANSACTIONS
        assert streamed(stack.kafka.bootstrap, list(tables_of(workload)), number) == wanted


def executed(dsn: str, workload: Workload) -> int:
    """Executes transactions of one writer; returns how many, those that were rolled back included."""
    clock, pause = SystemClock(), threading.Event()
    writers = Writers(dsn, workload, count=1, changes_per_second=None, clock=clock)
    writers.start()
    deadline = clock.monotonic() + 60
    while writers.counts().committed < TRANSACTIONS:
        writers.raise_failure()
        assert clock.monotonic() < deadline
        pause.wait(0.01)
    writers.stop()
    return writers.counts().committed + writers.counts().rolled_back


def generated(workload: Workload, transactions: int) -> dict[tuple[str, int], list[Record]]:
    """Records by topic and partition."""
    found: dict[tuple[str, int], list[Record]] = {}

    class Beginning:
        """So many transactions after the first ones."""

        name, pipeline, first = workload.name, workload.pipeline, staticmethod(workload.first)

        def transactions(self, writer: int, writers: int) -> Any:
            return islice(workload.transactions(writer, writers), transactions)

    def put(topic: str, value: str | None, key: str, headers: Headers) -> None:
        place = topic, kafka_partition(key.encode(), PARTITIONS)
        found.setdefault(place, []).append(record(key, value, headers))

    share = Share(Beginning(), Connector("inv"), list(tables_of(workload)), put)
    share.begin()
    found.clear()
    share.advance(10**9)
    return found


def streamed(bootstrap: str, tables: list[str], number: int) -> dict[tuple[str, int], list[Record]]:
    """So many records of transactions, tombstones included, without those of the snapshot."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "compare", "enable.auto.commit": False})
    found: dict[tuple[str, int], list[Record]] = {}
    clock = SystemClock()
    deadline, missing = clock.monotonic() + 60, number
    try:
        topics = {f"inv.{table}" for table in tables} & set(consumer.list_topics(timeout=10).topics)
        consumer.assign([TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in range(PARTITIONS)])
        while missing:
            assert clock.monotonic() < deadline, f"{missing} records are missing"
            for message in consumer.consume(1_000, 0.5):
                if message.error() is None and b'"op":"r"' not in (message.value() or b""):
                    found.setdefault(place_of(message), []).append(record_of(message))
                    missing -= 1
    finally:
        consumer.close()
    return found


def place_of(message: Message) -> tuple[str, int]:
    return message.topic() or "", message.partition() or 0


def record_of(message: Message) -> Record:
    value, headers = message.value(), message.headers()
    assert isinstance(headers, list)
    return record((message.key() or b"").decode(), None if value is None else value.decode(), headers)
