"""Generated topics in a real broker, read by the real sidecar."""

import threading
import uuid

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from slackwater.cuts import CutLog
from slackwater.dev import KafkaBroker
from slackwater.protocol import Cut, KafkaSettings, Servers, SystemClock
from slackwater_lab.errors import RunFailedError
from slackwater_lab.generator.fill import Filled, TopicFiller, TopicOutput
from slackwater_lab.workloads import WORKLOADS
from slackwater_lab.workloads.huge import HugeWorkload
from slackwater_lab.workloads.orders import OrdersWorkload
from slackwater_lab.workloads.workload import Workload
from slackwater_sidecar import SidecarSettings, run_sidecar

pytestmark = pytest.mark.integration

PARTITIONS = 3
EVENTS = 3_000


def filler(broker: KafkaBroker, workload: Workload, prefix: str) -> TopicFiller:
    return TopicFiller(broker.bootstrap, workload, prefix=prefix, partitions=PARTITIONS)


def new_prefix() -> str:
    return f"g{uuid.uuid4().hex[:8]}"


def records(broker: KafkaBroker, topics: list[str]) -> list[Message]:
    """Everything in the topics."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": new_prefix(), "enable.partition.eof": True}
    )
    found: list[Message] = []
    try:
        known = consumer.list_topics(timeout=120).topics
        parts = [TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in known[t].partitions]
        consumer.assign(parts)
        at_end = 0
        while at_end < len(parts):
            messages = consumer.consume(10_000, 10)
            assert messages, "the broker does not answer"
            at_end += sum(message.error() is not None for message in messages)
            found += [message for message in messages if message.error() is None]
    finally:
        consumer.close()
    return found


def cut_at(broker: KafkaBroker, prefix: str, filled: Filled) -> Cut:
    """The sidecar's cut at the last commit."""
    stop, log, clock = threading.Event(), CutLog(prefix, KafkaSettings(broker.bootstrap)), SystemClock()
    log.ensure_topic()
    settings = SidecarSettings(source=prefix, servers=Servers(KafkaSettings(broker.bootstrap)))
    sidecar = threading.Thread(target=run_sidecar, args=(settings, stop))
    sidecar.start()
    try:
        deadline = clock.monotonic() + 900
        while (newest := log.newest()) is None or newest.cut.lsn < filled.last_commit_lsn:
            assert clock.monotonic() < deadline, f"the sidecar stays at {newest}"
            stop.wait(0.05)
        return newest.cut
    finally:
        stop.set()
        sidecar.join()
        log.close()


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [name if name == "orders" else pytest.param(name, marks=pytest.mark.slow) for name in sorted(WORKLOADS)],
)
def test_the_sidecar_reads_all_that_was_generated(kafka_broker: KafkaBroker, name: str) -> None:
    workload = HugeWorkload(1, 60, 2_000) if name == "huge" else WORKLOADS[name](1, 60)
    prefix = new_prefix()
    topics = filler(kafka_broker, workload, prefix)
    first = topics.fill(1)
    second = topics.fill(EVENTS)
    assert second.events >= EVENTS
    assert second.last_commit_lsn > first.last_commit_lsn
    cut = cut_at(kafka_broker, prefix, second)
    assert cut.lsn == second.last_commit_lsn
    assert cut.event_count == first.events + second.events


@pytest.mark.slow
def test_records_of_a_key_are_in_one_of_all_partitions(kafka_broker: KafkaBroker) -> None:
    prefix = new_prefix()
    filler(kafka_broker, OrdersWorkload(4, 40), prefix).fill(100)
    found = records(kafka_broker, [f"{prefix}.inventory.orders"])
    assert {message.partition() for message in found} == set(range(PARTITIONS))
    places = {(message.key(), message.partition()) for message in found}
    assert len(places) == len({message.key() for message in found})


def test_a_broker_that_is_gone_is_named() -> None:
    output = TopicOutput("127.0.0.1:1")
    output.put("t", "v", "k", [])
    with pytest.raises(RunFailedError, match=r"127\.0\.0\.1:1 did not take all records: 1 records are left"):
        output.flush(0.2)
