"""Several views in one topic: what is written, in which order, to which partitions."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from slackwater.engine.payloads import DocumentBatch
from slackwater.kafka.transactions import DeliveryReport, Headers, KafkaTransactions, partition_of
from slackwater.outputs.contract import Emit, OutputRefusedError
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic, column_text
from slackwater.outputs.kafka.topics import topic_rules
from slackwater.outputs.kafka.transaction import BatchTransaction
from slackwater.protocol import (
    CommitRecord,
    KafkaSettings,
    ProgressRecord,
    SlackwaterError,
    decode_commit_record,
)
from slackwater_lab.fakes.broker import memory_record

MakeBatch = Callable[..., DocumentBatch]
PROGRESS = ProgressRecord(pipeline="shop", query_id="q", batch_id=0, source="inv", timeline=1, commit_lsn=10)
SETTINGS = KafkaSinkSettings(
    pipeline="shop",
    outputs=tuple(
        OutputTopic("shop", 4, view=view, partition_by="customer_id", place=place, schema=f"{view}:1")
        for place, view in ((2, "lines"), (1, "orders"))
    ),
    emit=Emit.TRANSACTIONS,
    kafka=KafkaSettings("nowhere"),
)
LINES, ORDERS = 0, 1


class Partitions(KafkaTransactions):
    """Assigns offsets in the order of the records."""

    def __init__(self, refuses: bytes = b"none") -> None:
        self.topic: list[tuple[int, int, bytes, dict[str, Any]]] = []
        self.commits: list[CommitRecord] = []
        self._refuses = refuses
        self._due: list[tuple[DeliveryReport, int, int, bytes]] = []

    def _meaning(self, what: str, error: Any) -> SlackwaterError:
        raise AssertionError("it asks no Kafka")

    def begin(self) -> None: ...

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        report: DeliveryReport | None,
        partition: int = -1,
    ) -> None:
        if topic == "shop.commits":
            self.commits.append(decode_commit_record(value or b""))
        offset = sum(place == partition for place, *_ in self.topic)
        if topic == "shop":
            self.topic.append((partition, offset, key or b"", dict(headers)))
        if report is not None:
            self._due.append((report, partition, offset, key or b""))

    def serve(self) -> None: ...

    def flush(self, *how: Any) -> None:
        for report, partition, offset, key in self._due:
            error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED) if key == self._refuses else None
            report(error, memory_record(("shop", partition), offset, key, b""))


def key(customer: int, **others: int) -> bytes:
    return json.dumps({"customer_id": customer, **others}).encode()


def written(batch: DocumentBatch, producer: Partitions, **settings: Any) -> Partitions:
    write = BatchTransaction(replace(SETTINGS, **settings), producer, batch, lambda _: None)
    write.produce(PROGRESS)
    return producer


@pytest.fixture
def batch(make_batch: MakeBatch) -> DocumentBatch:
    """Customer 7 changes at commits 3 and 5, customer 8 at commit 3."""
    lines = [(5, key(7, line=1), b"5"), (3, key(7, line=1), b"3"), (3, key(8, line=2), b"3")]
    orders = [(5, key(7, order=1), None), (3, key(7, order=1), b"3")]
    return make_batch(0, lines, others={ORDERS: orders})


def test_a_partition_is_in_commit_order_and_in_each_commit_in_the_order_of_the_views(
    batch: DocumentBatch,
) -> None:
    producer = written(batch, Partitions())
    of_customer = [each for each in producer.topic if json.loads(each[2])["customer_id"] == 7]
    assert {partition for partition, *_ in of_customer} == {partition_of(b"7", 4)}
    found = [(int(h["slackwater-commit-lsn"]), h["slackwater-view"]) for *_, h in of_customer]
    assert found == [(3, b"orders"), (3, b"lines"), (5, b"orders"), (5, b"lines")]


def test_a_commit_record_has_the_offsets_of_its_documents_and_of_no_others(batch: DocumentBatch) -> None:
    producer = written(batch, Partitions())
    held = {
        record.commit_lsn: {
            (partition, offset)
            for partition, each in record.offsets.get("shop", {}).items()
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        for record in producer.commits
    }
    stamped: dict[int, set[tuple[int, int]]] = {lsn: set() for lsn in held}
    for partition, offset, _, headers in producer.topic:
        stamped[int(headers["slackwater-commit-lsn"])].add((partition, offset))
    assert held == stamped
    assert [record.record_count for record in producer.commits if record.offsets] == [3, 2]
    assert [record.schemas for record in producer.commits if record.offsets] == [
        {"shop": ("orders:1", "lines:1")}
    ] * 2
    assert [record.commit_lsn for record in producer.commits] == list(range(1, 11)), "one for each commit"


def test_with_latest_the_views_follow_each_other(batch: DocumentBatch) -> None:
    producer = written(batch, Partitions(), emit=Emit.LATEST)
    assert [h["slackwater-view"] for *_, h in producer.topic] == [b"orders"] * 2 + [b"lines"] * 3


def test_the_header_is_only_in_topics_of_several_views(batch: DocumentBatch) -> None:
    outputs = tuple(replace(each, name=f"of_{each.view}") for each in SETTINGS.outputs)
    written(batch, producer := Partitions(), outputs=(outputs[LINES], replace(outputs[ORDERS], name="shop")))
    assert [sorted(h) for *_, h in producer.topic] == [
        ["slackwater-commit-lsn", "slackwater-pipeline", "slackwater-xid"]
    ] * 2


def test_cloudevents_have_ids_that_are_unique_in_the_topic(batch: DocumentBatch) -> None:
    outputs = tuple(replace(each, cloudevents=True) for each in SETTINGS.outputs)
    producer = written(batch, Partitions(), outputs=outputs)
    ids = [headers["ce_id"] for *_, headers in producer.topic]
    assert len(set(ids)) == len(ids) == 5
    assert {headers["ce_source"] for *_, headers in producer.topic} == {b"/slackwater/shop/shop"}


def test_a_refused_document_is_named_with_its_own_view(batch: DocumentBatch) -> None:
    with pytest.raises(OutputRefusedError, match="a document of view 'orders' for topic 'shop', key"):
        written(batch, Partitions(refuses=key(7, order=1)))


def test_the_topic_and_its_commit_topic_are_made_once() -> None:
    assert [rule.name for rule in topic_rules(SETTINGS)] == [
        "shop.slackwater.progress",
        "shop",
        "shop.commits",
    ]
    assert SETTINGS.written_topics == ("shop.commits", "shop")
    assert SETTINGS.views_in_topics == {"shop": ("orders", "lines")}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("7", b"7"),
        ("null", b"null"),
        ('"a b"', b"a b"),
        ('"\\u00e4\\"\\n"', b'\xc3\xa4"\n'),
        ("true", b"true"),
        ('"3.50"', b"3.50"),
    ],
)
def test_the_partition_is_that_of_the_value_as_text(value: str, text: bytes) -> None:
    assert column_text(b'{"a":1,"customer_id":%s}' % value.encode(), "customer_id") == text


@pytest.mark.parametrize(
    ("text", "hashed"),
    [  # of org.apache.kafka.common.utils.Utils.murmur2, from Kafka's own UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_partitions_are_those_of_kafkas_java_producer(text: bytes, hashed: int) -> None:
    assert partition_of(text, 1_000) == (hashed & 0x7FFFFFFF) % 1_000
