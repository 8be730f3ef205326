"""Readers of an output while the broker of one partition has not received a transaction's marker yet."""

import importlib.util
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.client import TopicOutput
from slackwater.client import kafka as client_kafka
from slackwater.protocol import (
    CommitPosition,
    CommitRecord,
    KafkaSettings,
    OffsetRange,
    ProgressRecord,
    TopicState,
    encode_commit_record,
    encode_progress_record,
)
from slackwater_certify import kafka as certify_kafka
from slackwater_certify.kafka import follow_topic, read_topic
from slackwater_certify.output import OutputRecords
from slackwater_certify.specification import Connections, OutputKind, OutputSpecification
from slackwater_lab.conformance.command import java_reader
from slackwater_lab.conformance.runner import HOLD_SECONDS, ReaderProgram
from slackwater_lab.servers.proxy import TcpProxy
from slackwater_lab.servers.stack import LabStack

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "whole_transactions.py"
SECONDS = 120
LINK = "between"
PROBE = "the-markers-come-from-the-first-broker"
HASH = 31


@pytest.fixture(scope="module")
def stack(dev_stack: Callable[..., LabStack]) -> LabStack:
    """Two brokers that reach each other through proxies."""
    return dev_stack(
        postgres=False,
        redis=False,
        connect=False,
        second_kafka=True,
        kafka_routes=(LINK,),
        broker_overrides={"inter.broker.listener.name": LINK.upper()},
    )


@dataclass(slots=True)
class PipelineTopics:
    """Writes batches as a pipeline does; each of its topics has one partition, on a broker of its own."""

    bootstrap: str
    documents_at: int
    commits_at: int
    name: str = field(default_factory=lambda: f"p{uuid.uuid4().hex[:10]}")
    ends: dict[str, int] = field(default_factory=dict)
    _producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        """Makes the topics, and a producer whose coordinator is the first broker."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        places = {self.name: self.documents_at, self.commits: self.commits_at, self.progress: 1}
        topics = [NewTopic(topic, 1, replica_assignment=[[broker]]) for topic, broker in places.items()]
        for done in admin.create_topics(topics).values():
            done.result(SECONDS)
        self._producer = self._open(admin)

    @property
    def commits(self) -> str:
        return f"{self.name}.commits"

    @property
    def progress(self) -> str:
        return f"{self.name}.slackwater.progress"

    def write(self, number: int, before_commit: Callable[[], None] = lambda: None) -> None:
        """Writes two versions of one document, their commit record and the progress, in one transaction."""
        self._producer.begin_transaction()
        for value in ("first", "last"):
            self._produce(self.name, f'{{"id":1,"n":{number},"v":"{value}"}}'.encode(), b'{"id":1}')
        self._produce(self.commits, self._commit(number))
        self._produce(self.progress, self._progress(number), self.name.encode())
        before_commit()
        self._producer.commit_transaction(SECONDS)

    def _produce(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        def arrived(error: KafkaError | None, message: Message) -> None:
            assert error is None
            self.ends[topic] = (message.offset() or 0) + 1

        self._producer.produce(topic, value, key, 0, on_delivery=arrived)
        self._producer.flush(SECONDS)

    def _commit(self, number: int) -> bytes:
        last = self.ends[self.name] - 1
        return encode_commit_record(
            CommitRecord(
                pipeline=self.name,
                source="s",
                timeline=1,
                commit_lsn=number * 10,
                previous_lsn=number * 10 - 10,
                xid=number,
                commit_ts_ms=number,
                commit_ts_ns=number * 10**6,
                offsets={self.name: {0: OffsetRange(2, last - 1, last)}},
                schemas={self.name: ("v:1",)},
            )
        )

    def _progress(self, number: int) -> bytes:
        states = {topic: TopicState("", (0,), (self.ends[topic],)) for topic in (self.name, self.commits)}
        return encode_progress_record(
            ProgressRecord(
                pipeline=self.name,
                query_id="q",
                batch_id=number,
                source="s",
                timeline=1,
                commit_lsn=number * 10,
                topics=states,
            )
        )

    def _open(self, admin: AdminClient) -> Producer:
        """Chooses a transactional id; the coordinator is the leader of a partition that its hash names."""
        self._producer_of(PROBE)
        leaders = admin.list_topics("__transaction_state", SECONDS).topics["__transaction_state"].partitions
        names = (f"{self.name}-{number}" for number in range(1000))
        return self._producer_of(next(n for n in names if leaders[_hash(n) % len(leaders)].leader == 1))

    def _producer_of(self, name: str) -> Producer:
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": name})
        producer.init_transactions(SECONDS)
        return producer


def _hash(text: str) -> int:
    """Returns the absolute value of Java's ``String.hashCode``."""
    found = 0
    for character in text:
        found = (found * HASH + ord(character)) & 0xFFFFFFFF
    return min(found, 2**32 - found)


@contextmanager
def resumed_at_end(
    link: TcpProxy, topic: str, monkeypatch: pytest.MonkeyPatch, *modules: Any
) -> Iterator[None]:
    """Lets the link pass when a reader of a topic has come to, or asked for, the end that it can read."""

    class Watched(Consumer):
        def poll(self, timeout: float = -1) -> Message | None:
            message = super().poll(timeout)
            if message is not None and message.error() is not None and message.topic() == topic:
                link.resume()
            return message

        def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> Any:  # type: ignore[override]
            found = super().get_watermark_offsets(partition, timeout)
            if partition.topic == topic:
                link.resume()
            return found

    for module in modules:
        monkeypatch.setattr(module, "Consumer", Watched)
    try:
        yield
    finally:
        link.resume()


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("whole_transactions", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
def test_the_plain_example_waits_for_documents_whose_marker_is_on_its_way(
    stack: LabStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = PipelineTopics(stack.kafka.bootstrap, documents_at=2, commits_at=1)
    topics.write(1)
    module, link = example(), stack.second_kafka.proxy(LINK)
    topics.write(2, link.pause)
    with resumed_at_end(link, topics.name, monkeypatch, module):
        found = list(module.whole_transactions(stack.kafka.bootstrap, topics.commits))
    assert [each["removed"] for each in found] == [0, 0]
    assert [[json.loads(d[4])["n"] for d in each["documents"]] for each in found] == [[1, 1], [2, 2]]


@pytest.mark.full
def test_the_reader_in_java_waits_for_documents_whose_marker_is_on_its_way(
    stack: LabStack, tmp_path: Path
) -> None:
    topics = PipelineTopics(stack.kafka.bootstrap, documents_at=2, commits_at=1)
    topics.write(1)
    link = stack.second_kafka.proxy(LINK)
    topics.write(2, link.pause)
    reader = ReaderProgram([*java_reader(tmp_path), stack.kafka.bootstrap, topics.commits], SECONDS)
    try:
        reader.read(lines=1)
        reader.read(lines=2, seconds=HOLD_SECONDS)
        assert (len(reader.lines), reader.has_ended) == (1, False)
        link.resume()
        reader.read()
        assert reader.exit()[0] == 0
    finally:
        link.resume()
        reader.close()
    found = [json.loads(line)["documents"] for line in reader.lines]
    assert [[json.loads(d[4])["n"] for d in each] for each in found] == [[1, 1], [2, 2]]


def test_an_earlier_commit_is_read_whole_while_newer_commit_records_are_on_their_way(
    stack: LabStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = PipelineTopics(stack.kafka.bootstrap, documents_at=1, commits_at=2)
    topics.write(1)
    link = stack.second_kafka.proxy(LINK)
    topics.write(2, link.pause)
    with resumed_at_end(link, topics.commits, monkeypatch, client_kafka):
        output = TopicOutput(KafkaSettings(stack.kafka.bootstrap), topics.name)
        found = output.read([topics.name], CommitPosition(1, 10), None)
        output.close()
    assert [json.loads(each) for each in found.documents[topics.name]] == [{"id": 1, "n": 1, "v": "last"}]


def test_a_certificate_covers_the_documents_of_every_commit_record_that_it_has_read(
    stack: LabStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = PipelineTopics(stack.kafka.bootstrap, documents_at=2, commits_at=1)
    link = stack.second_kafka.proxy(LINK)
    specification = OutputSpecification(OutputKind.TOPIC, topics.name, topics.commits)
    connections = Connections(bootstrap=stack.kafka.bootstrap)
    reads: tuple[Callable[[], OutputRecords], ...] = (
        lambda: read_topic(specification, connections),
        lambda: follow_topic(specification, connections, lambda: True, lambda: 0),
    )
    for number, read in enumerate(reads, 1):
        topics.write(number, link.pause)
        with resumed_at_end(link, topics.name, monkeypatch, certify_kafka):
            records = read()
        assert len(list(records.outputs)) == 2 * len(records.commits) == 2 * number
