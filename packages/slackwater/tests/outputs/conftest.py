import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from io import BytesIO
from typing import Any, cast

import fastavro
import msgspec
import pytest
import zstandard
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from slackwater.dev import KafkaBroker
from slackwater.engine.payloads import Document, DocumentBatch
from slackwater.outputs.contract import Emit
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.protocol import (
    BatchHeader,
    CommitFormat,
    CommitRecord,
    KafkaSettings,
    ProgressRecord,
    RegistrySettings,
    SchemaLanguage,
    commit_schema,
    decode_commit_record,
    decode_progress_record,
)
from slackwater_lab.fakes.registry import RegistryServer
from slackwater_lab.servers.registry import RegistryNode

MakeBatch = Callable[..., DocumentBatch]
MakeSettings = Callable[..., KafkaSinkSettings]
SECONDS_TO_ANSWER = 300.0


@dataclass(frozen=True, slots=True)
class Record:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]


class TopicReader:
    """Reads what a new consumer would see."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def records(self, topic: str, isolation: str = "read_committed") -> list[Record]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": uuid.uuid4().hex,
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            partitions = consumer.list_topics(topic, SECONDS_TO_ANSWER).topics[topic].partitions
            consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
            return self._read(consumer, len(partitions))
        finally:
            consumer.close()

    @staticmethod
    def _read(consumer: Consumer, unfinished: int) -> list[Record]:
        found: list[Record] = []
        while unfinished:
            message = consumer.poll(SECONDS_TO_ANSWER)
            assert message is not None, "the broker does not answer"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error  # noqa: SLF001 - librdkafka's name
                unfinished -= 1
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            headers = dict(cast("list[tuple[str, bytes]]", message.headers() or []))
            found.append(Record(partition, offset, message.key(), message.value(), headers))
        return sorted(found, key=lambda r: (r.partition, r.offset))

    def exist(self, names: Iterable[str]) -> bool:
        known = AdminClient({"bootstrap.servers": self._bootstrap}).list_topics(timeout=SECONDS_TO_ANSWER)
        return not known.topics.keys().isdisjoint(names)

    def documents(
        self, settings: KafkaSinkSettings, isolation: str = "read_committed", view: int = 0
    ) -> list[Record]:
        return self.records(settings.outputs[view].name, isolation)

    def commits(self, settings: KafkaSinkSettings, view: int = 0) -> list[CommitRecord]:
        return [decode_commit_record(r.value or b"") for r in self.records(settings.outputs[view].commits)]

    def avro_commits(self, settings: KafkaSinkSettings, view: int = 0) -> list[Any]:
        """The commit records in Avro, as a plain reader sees them; they say the same as those in JSON."""
        schema = fastavro.parse_schema(json.loads(commit_schema(SchemaLanguage.AVRO)))
        found = [
            fastavro.schemaless_reader(BytesIO((r.value or b"")[5:]), schema, None)
            for r in self.records(f"{settings.outputs[view].name}.commits-avro")
        ]
        assert found == [
            {
                "commit_id": each.commit_id,
                "producer_name": settings.pipeline,
                "commit_epoch_ns": each.commit_ts_ns,
                "record_count": each.record_count,
                "topics": [
                    {
                        "topic_name": topic,
                        "schema_names": list(each.schemas[topic]),
                        "offsets": [
                            {"min_offset": r.first_offset, "max_offset": r.last_offset, "partition": p}
                            for p, r in ranges.items()
                        ],
                    }
                    for topic, ranges in each.offsets.items()
                ],
            }
            for each in self.commits(settings, view)
        ]
        return found

    def progress(self, settings: KafkaSinkSettings) -> list[ProgressRecord]:
        """One record per batch: without those in which a new run says again what the one before has said."""
        found = [decode_progress_record(r.value or b"") for r in self.records(settings.progress_topic)]
        before = [-1, *(record.batch_id for record in found)]
        return [r for r, batch_id in zip(found, before, strict=False) if r.batch_id != batch_id]


def packed(documents: list[Document]) -> tuple[bytes, ...]:
    """Two payloads."""
    pack = zstandard.ZstdCompressor(level=1).compress
    return tuple(pack(msgspec.msgpack.encode(half)) for half in (documents[1::2], documents[::2]))


@pytest.fixture(scope="session")
def bootstrap(kafka_broker: KafkaBroker) -> str:
    return kafka_broker.bootstrap


@pytest.fixture
def topics(bootstrap: str) -> TopicReader:
    return TopicReader(bootstrap)


@pytest.fixture
def registry(request: pytest.FixtureRequest) -> Iterator[RegistryServer | RegistryNode]:
    """One that knows nothing yet: in memory, or the one that a test is parametrised with."""
    if getattr(request, "param", "in memory") == "apicurio":
        node: RegistryNode = request.getfixturevalue("registry_node")
        node.clear()
        yield node
        return
    with RegistryServer() as running:
        yield running


def with_avro_commits(
    settings: KafkaSinkSettings, registry: RegistryServer | RegistryNode
) -> KafkaSinkSettings:
    outputs = tuple(replace(output, commit_format=CommitFormat.AVRO) for output in settings.outputs)
    return replace(settings, outputs=outputs, registry=RegistrySettings(url=registry.url))


@pytest.fixture
def in_avro(registry: RegistryServer | RegistryNode) -> Callable[[KafkaSinkSettings], KafkaSinkSettings]:
    """Lets settings have commit records in Avro, too."""
    return lambda settings: with_avro_commits(settings, registry)


@pytest.fixture
def in_one_topic() -> Callable[[KafkaSinkSettings], KafkaSinkSettings]:
    """Lets settings have the views one and two in the topic of their first view; two is written first."""

    def share(settings: KafkaSinkSettings) -> KafkaSinkSettings:
        topic = replace(settings.outputs[0], partition_by="id")
        return replace(settings, outputs=(replace(topic, view="one", place=1), replace(topic, view="two")))

    return share


@pytest.fixture
def make_settings(bootstrap: str) -> MakeSettings:
    """Settings of a pipeline nobody else has."""

    def make(emit: Emit = Emit.LATEST, partitions: int | None = None, views: int = 1) -> KafkaSinkSettings:
        name = f"p{uuid.uuid4().hex[:12]}"
        return KafkaSinkSettings(
            pipeline=name,
            outputs=tuple(OutputTopic(f"{name}.out{view or ''}", partitions) for view in range(views)),
            emit=emit,
            kafka=KafkaSettings(bootstrap),
            replication_factor=1,
            request_timeout=timedelta(seconds=60),
        )

    return make


@pytest.fixture
def make_batch() -> MakeBatch:
    """Batches of ten LSNs each: batch n holds the transactions 10n+1 ... 10n+10; two payloads.

    Without another name, the state after it is called "state n".
    """

    def make(
        batch_id: int,
        documents: list[Document] | None = None,
        *,
        from_lsn: int | None = None,
        to_lsn: int | None = None,
        timeline: int = 1,
        others: dict[int, list[Document]] | None = None,
        state: str = "",
    ) -> DocumentBatch:
        start = 10 * batch_id if from_lsn is None else from_lsn
        end = start + 10 if to_lsn is None else to_lsn
        lsns = range(start + 1, end + 1)
        header = BatchHeader(
            source="inv",
            timeline=timeline,
            from_lsn=start,
            to_lsn=end,
            commit_ts_ms=1_000 * end,
            event_count=7,
            transactions=tuple((500 + lsn, lsn, 1_000 * lsn) for lsn in lsns),
        )
        if documents is None:
            documents = [(lsn, b'{"id":%d}' % lsn, b"batch %d lsn %d" % (batch_id, lsn)) for lsn in lsns]
        views = {0: documents} if others is None else {0: documents, **others}
        payloads = {view: packed(found) for view, found in views.items()}
        return DocumentBatch(batch_id, header, payloads, state or f"state {batch_id}")

    return make
