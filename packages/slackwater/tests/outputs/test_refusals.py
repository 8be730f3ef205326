"""What Kafka will not take however often it is tried: said at once, with what it is and what helps."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import Emit, OutputRefusedError
from slackwater.outputs.kafka.answers import SinkProducer, refusal
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.protocol import KafkaSettings
from slackwater_lab.topics import make_topics

MakeBatch = Callable[..., DocumentBatch]
MakeSettings = Callable[..., KafkaSinkSettings]
Topics = Any  # the reader of conftest.py
QUERY = "0f5c2f6e-query"
LIMIT = 20_000
SETTINGS = KafkaSinkSettings(
    pipeline="orders", outputs=(OutputTopic("totals"),), kafka=KafkaSettings("localhost:9092")
)


def noise(size: int) -> bytes:
    """Nothing that compresses."""
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize(
    ("code", "helps"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "grant the pipeline's user Write"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "on totals.commits, totals, orders.slackwater.progress, and"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id 'slackwater-orders'"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "and Create if they do not exist"),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, "transaction.max.timeout.ms"),
        (KafkaError.MSG_SIZE_TOO_LARGE, "raise max.message.bytes of the topic"),
        (KafkaError.INVALID_RECORD, "without a key"),
        (KafkaError.POLICY_VIOLATION, "create.topic.policy.class.name"),
        (KafkaError.INVALID_REPLICATION_FACTOR, "kafka.replication_factor"),
        (KafkaError.TOPIC_EXCEPTION, "name"),
        (KafkaError.INVALID_CONFIG, "configuration"),
        (KafkaError.UNSUPPORTED_VERSION, "upgrade"),
        (KafkaError.UNSUPPORTED_COMPRESSION_TYPE, "compression.type"),
    ],
)
def test_a_refusal_says_what_helps(code: int, helps: str) -> None:
    found = refusal(SETTINGS, "a record", KafkaError(code))
    assert found is not None
    assert helps in str(found)
    assert f"({KafkaError(code).name()})" in str(found)
    assert "the brokers are running" not in str(found)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TIMED_OUT,  # noqa: SLF001 - librdkafka's name
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - as above
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    ],
)
def test_what_may_pass_is_no_refusal(code: int) -> None:
    assert refusal(SETTINGS, "a record", KafkaError(code)) is None


def set_limit(settings: KafkaSinkSettings, limit: int) -> None:
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap})
    topic = settings.outputs[0].name
    make_topics(settings.kafka.bootstrap, [topic], 1)
    entry = ConfigEntry("max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)


def write(settings: KafkaSinkSettings, *batches: DocumentBatch) -> None:
    sink = KafkaSink(settings)
    try:
        sink.open()
        for batch in batches:
            sink.write(QUERY, batch)
    finally:
        sink.close()


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.parametrize("emit", list(Emit))
def test_a_document_above_the_limit_of_its_topic_is_named_with_the_ways_out(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, emit: Emit
) -> None:
    settings = make_settings(emit)
    settings = replace(settings, outputs=(replace(settings.outputs[0], view="orders"),))
    set_limit(settings, LIMIT)
    write(settings, make_batch(0))
    small = [(lsn, b'{"id":%d}' % lsn, noise(500)) for lsn in range(11, 20)]
    large = (17, b'{"id":4}', noise(LIMIT + 1))
    with pytest.raises(OutputRefusedError) as refused:
        write(settings, make_batch(1, [*small, large]))
    told = str(refused.value)
    assert f"a document of view 'orders' for topic '{settings.outputs[0].name}'" in told
    assert 'key {"id":4}, commit LSN 0/11, 20,001 bytes' in told
    assert "the topic's max.message.bytes is 20,000" in told
    assert "raise max.message.bytes of the topic" in told
    assert ("make it smaller in the database" in told) == (emit is Emit.LATEST)
    assert len(topics.documents(settings)) == 10
    set_limit(settings, 2 * LIMIT)
    write(settings, make_batch(1, [*small, large]))
    assert len(topics.documents(settings)) == 20


@pytest.mark.integration
def test_documents_below_the_limit_of_their_topic_are_written_however_many_there_are(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    """The producer's own batches would be larger than that: fails without its `batch.size`."""
    settings = make_settings()
    set_limit(settings, LIMIT)
    write(settings, make_batch(0, [(5, b"%d" % n, noise(5_000)) for n in range(40)]))
    assert len(topics.documents(settings)) == 40


@pytest.mark.integration
def test_only_the_topic_limits_the_size_of_a_document(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    """Compressed, as the broker counts; librdkafka's own limit of 1 MB is not in the way."""
    settings = make_settings()
    set_limit(settings, 4_000_000)
    write(settings, make_batch(0, [(5, b"a", noise(3_000_000)), (5, b"b", b"x" * 9_000_000)]))
    assert len(topics.documents(settings)) == 2


@pytest.mark.integration
def test_a_document_above_the_producers_own_limit_is_named_too(
    make_settings: MakeSettings, make_batch: MakeBatch
) -> None:
    settings = make_settings()
    settings = replace(settings, kafka=replace(settings.kafka, options={"message.max.bytes": "5000"}))
    with pytest.raises(
        OutputRefusedError, match=r"key k, commit LSN 0/5, 6,000 bytes.*message.max.bytes in the"
    ):
        write(settings, make_batch(0, [(5, b"k", noise(6_000))]))


@pytest.mark.integration
def test_a_transaction_time_out_that_the_broker_does_not_allow_is_said_at_once(
    make_settings: MakeSettings,
) -> None:
    tries: list[SinkProducer] = []

    class Counted(SinkProducer):
        def open(self) -> None:
            tries.append(self)
            super().open()

    settings = replace(make_settings(), transaction_timeout=timedelta(hours=1))
    with pytest.raises(OutputRefusedError, match=r"transaction\.max\.timeout\.ms"):
        KafkaSink(settings, connect=Counted).open()
    assert len(tries) == 1
