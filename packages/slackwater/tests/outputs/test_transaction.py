from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from slackwater.cdc.commit_avro import encode_commit_avro
from slackwater.engine.payloads import Document, DocumentBatch
from slackwater.engine.settings import Scope
from slackwater.kafka.transactions import DeliveryReport, Headers, KafkaTransactions
from slackwater.outputs.batch import commit_units
from slackwater.outputs.contract import Emit, OutputRefusedError, SinkStep
from slackwater.outputs.kafka.answers import TransactionFailedError
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.kafka.transaction import BatchTransaction
from slackwater.protocol import (
    KafkaSettings,
    ProgressRecord,
    SlackwaterError,
    StateError,
    decode_commit_record,
    decode_progress_record,
)
from slackwater_lab.fakes.broker import memory_record

MakeBatch = Callable[..., DocumentBatch]
Produced = tuple[str, bytes | None, bytes | None, Headers]


class FakeProducer(KafkaTransactions):
    """Acknowledges on flush; partition = first byte of the key modulo 2, or 0."""

    def __init__(self, *, loses: bytes = b"none", refuses: Mapping[bytes, KafkaError] | None = None) -> None:
        self.calls: list[str] = []
        self.produced: list[Produced] = []
        self._due: list[tuple[DeliveryReport, int]] = []
        self._ends = [100, 200]
        self._loses = loses
        self._refuses = refuses or {}
        self._refused: list[tuple[DeliveryReport, bytes, int]] = []

    def _meaning(self, what: str, error: KafkaException) -> SlackwaterError:
        raise AssertionError("it asks no Kafka")

    def open(self) -> None:
        self.calls.append("open")

    def begin(self) -> None:
        self.calls.append("begin")

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        report: DeliveryReport | None,
        partition: int = -1,
    ) -> None:
        self.calls.append(topic)
        self.produced.append((topic, key, value, headers))
        if report is not None and key is not None and key in self._refuses:
            self._refused.append((report, key, len(value or b"")))
        elif report is not None and key != self._loses:
            self._due.append((report, key[0] % 2 if key else 0))

    def serve(self) -> None:
        pass

    def flush(self, *how: Any) -> None:
        self.calls.append("flush")
        for report, partition in self._due:
            report(None, memory_record(("", partition), self._ends[partition], None, None))
            self._ends[partition] += 1
        self._due.clear()
        for report, key, size in self._refused:
            report(self._refuses[key], memory_record(("", 0), -1, key, b"x" * size))

    def commit(self) -> None:
        self.calls.append("commit")

    def abort(self) -> None:
        self.calls.append("abort")

    def check(self) -> None:
        pass

    def discard(self) -> None:
        self.calls.append("discard")


PROGRESS = ProgressRecord(
    pipeline="orders", query_id="q", batch_id=0, source="inv", timeline=1, commit_lsn=10
)


def written(
    batch: DocumentBatch,
    emit: Emit,
    producer: FakeProducer | None = None,
    scope: Scope = Scope.STRICT,
    topics: tuple[str, ...] = ("out",),
    *,
    keys_move: bool = False,
    begins: Mapping[str, bytes] = MappingProxyType({}),
) -> FakeProducer:
    producer = producer or FakeProducer()
    settings = KafkaSinkSettings(
        pipeline="orders",
        outputs=tuple(OutputTopic(topic, keys_move=keys_move) for topic in topics),
        emit=emit,
        scope=scope,
        kafka=KafkaSettings("nowhere"),
        commit_begins=begins,
    )
    write = BatchTransaction(settings, producer, batch, lambda step: producer.calls.append(f"[{step}]"))
    write.produce(PROGRESS)
    write.commit()
    return producer


def of_topic(producer: FakeProducer, topic: str) -> list[Produced]:
    return [record for record in producer.produced if record[0] == topic]


def test_records_are_produced_in_the_order_that_makes_offsets_known(make_batch: MakeBatch) -> None:
    producer = written(make_batch(0, [(10, b"a", b"1"), (10, b"b", None)]), Emit.LATEST)
    assert producer.calls == [
        "begin",
        f"[{SinkStep.BEGUN}]",
        "out",
        "out",
        f"[{SinkStep.PRODUCED}]",
        "flush",
        f"[{SinkStep.FLUSHED}]",
        "out.commits",
        f"[{SinkStep.COMMIT_RECORDS}]",
        "orders.slackwater.progress",
        "commit",
    ]


def test_latest_stamps_every_document_with_the_cut(make_batch: MakeBatch) -> None:
    producer = written(make_batch(0, [(3, b"a", b"1"), (7, b"b", None)]), Emit.LATEST)
    headers = [("slackwater-commit-lsn", b"10"), ("slackwater-pipeline", b"orders")]
    assert sorted(of_topic(producer, "out"), key=str) == [
        ("out", b"a", b"1", headers),
        ("out", b"b", None, headers),
    ]


def test_latest_writes_one_commit_record_with_the_offsets_of_the_batch(make_batch: MakeBatch) -> None:
    producer = written(make_batch(0, [(3, b"a", b"1"), (7, b"b", None), (7, b"d", b"2")]), Emit.LATEST)
    (record,) = [decode_commit_record(value or b"") for _, _, value, _ in of_topic(producer, "out.commits")]
    assert (record.commit_lsn, record.previous_lsn, record.xid, record.commit_ts_ms) == (10, 0, None, 10_000)
    found = {p: (r.count, r.first_offset, r.last_offset) for p, r in record.offsets["out"].items()}
    assert found == {0: (2, 100, 101), 1: (1, 200, 200)}


def test_each_commit_record_is_written_in_avro_too_with_the_same_headers(make_batch: MakeBatch) -> None:
    topic, batch = "out.commits-avro", make_batch(0, [(3, b"a", b"1")])
    producer = written(batch, Emit.TRANSACTIONS, begins={topic: b"\0\0\0\0\7"})
    assert [(key, value, headers) for _, key, value, headers in of_topic(producer, topic)] == [
        (None, b"\0\0\0\0\7" + encode_commit_avro(decode_commit_record(value or b"")), headers)
        for _, _, value, headers in of_topic(producer, "out.commits")
    ]
    assert len(of_topic(producer, topic)) == 10


def test_a_batch_without_documents_still_says_how_far_it_goes(make_batch: MakeBatch) -> None:
    producer = written(make_batch(0, []), Emit.LATEST)
    (record,) = [decode_commit_record(value or b"") for _, _, value, _ in of_topic(producer, "out.commits")]
    assert (record.commit_lsn, dict(record.offsets)) == (10, {})
    ((_, key, value, _),) = of_topic(producer, "orders.slackwater.progress")
    assert (key, decode_progress_record(value or b"")) == (b"orders", PROGRESS)


def test_transactions_are_written_in_commit_order_with_their_own_lsn_and_xid(make_batch: MakeBatch) -> None:
    producer = written(make_batch(0, [(7, b"b", b"2"), (3, b"a", b"1"), (7, b"c", None)]), Emit.TRANSACTIONS)
    stamps = [dict(headers)["slackwater-commit-lsn"] for *_, headers in of_topic(producer, "out")]
    xids = [dict(headers)["slackwater-xid"] for *_, headers in of_topic(producer, "out")]
    assert stamps == [b"3", b"7", b"7"]
    assert xids == [b"503", b"507", b"507"]


def test_documents_of_a_single_commit_are_not_put_into_order(
    make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be more of them than fit into memory."""
    monkeypatch.delattr("slackwater.outputs.batch.in_commit_order")
    batch = make_batch(0, [(1, b"b", b"2"), (1, b"a", b"1")], to_lsn=1)
    producer = written(batch, Emit.TRANSACTIONS)
    assert sorted(value or b"" for _, _, value, _ in of_topic(producer, "out")) == [b"1", b"2"]


def test_every_source_transaction_has_a_commit_record_with_its_own_offsets(make_batch: MakeBatch) -> None:
    documents = [(7, b"b", b"2"), (3, b"a", b"1"), (7, b"d", b"3")]
    producer = written(make_batch(0, documents), Emit.TRANSACTIONS)
    records = [decode_commit_record(value or b"") for _, _, value, _ in of_topic(producer, "out.commits")]
    assert [(r.previous_lsn, r.commit_lsn, r.xid) for r in records] == [
        (lsn - 1, lsn, 500 + lsn) for lsn in range(1, 11)
    ]
    counts = {r.commit_lsn: sum(o.count for o in r.offsets["out"].values()) for r in records if r.offsets}
    assert counts == {3: 1, 7: 2}


def test_a_batch_that_ends_above_its_last_transaction_is_closed_by_a_record(make_batch: MakeBatch) -> None:
    header = make_batch(0).header
    wider = type(header)(
        source="inv",
        timeline=1,
        from_lsn=0,
        to_lsn=50,
        commit_ts_ms=9,
        event_count=7,
        transactions=header.transactions[:2],
    )
    units = commit_units(wider, Emit.TRANSACTIONS)
    assert [(u.previous_lsn, u.commit_lsn, u.xid) for u in units] == [(0, 1, 501), (1, 2, 502), (2, 50, None)]


def test_a_document_of_a_foreign_transaction_is_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(StateError, match="commit LSN 99"):
        written(make_batch(0, [(99, b"a", b"1")]), Emit.TRANSACTIONS)


@pytest.mark.parametrize("emit", list(Emit))
def test_documents_go_to_the_topic_of_their_view_and_commit_records_name_all_topics(
    make_batch: MakeBatch, emit: Emit
) -> None:
    batch = make_batch(0, [(3, b"a", b"1")], others={1: [(3, b"b", b"2"), (7, b"c", None)]})
    producer = written(batch, emit, topics=("out", "totals"))
    assert {key for _, key, _, _ in of_topic(producer, "out")} == {b"a"}
    assert {key for _, key, _, _ in of_topic(producer, "totals")} == {b"b", b"c"}
    commits = [value for _, _, value, _ in of_topic(producer, "out.commits")]
    assert commits == [value for _, _, value, _ in of_topic(producer, "totals.commits")]
    records = [decode_commit_record(value or b"") for value in commits]
    counts = dict.fromkeys(("out", "totals"), 0)
    for record in records:
        assert record.commit_ts_ns == record.commit_ts_ms * 10**6
        assert record.schemas == {topic: (topic,) for topic in record.offsets}
        for topic, ranges in record.offsets.items():
            counts[topic] += sum(each.count for each in ranges.values())
    assert counts == {"out": 1, "totals": 2}
    if emit is Emit.TRANSACTIONS:
        assert [(r.commit_lsn, sorted(r.offsets)) for r in records if r.offsets] == [
            (3, ["out", "totals"]),
            (7, ["totals"]),
        ]


def test_each_view_is_written_in_commit_order(make_batch: MakeBatch) -> None:
    batch = make_batch(0, [(7, b"a", b"1"), (3, b"a", b"2")], others={1: [(9, b"b", b"3"), (1, b"b", b"4")]})
    producer = written(batch, Emit.TRANSACTIONS, topics=("out", "totals"))
    found = [(topic, value) for topic, _, value, _ in producer.produced if topic in {"out", "totals"}]
    assert found == [("out", b"2"), ("out", b"1"), ("totals", b"4"), ("totals", b"3")]


@pytest.mark.parametrize("emit", list(Emit))
def test_the_delete_of_a_key_that_moved_to_another_bucket_is_not_written(
    make_batch: MakeBatch, emit: Emit
) -> None:
    moved: list[Document] = [(3, b"a", b"1"), (3, b"a", None), (3, b"b", None)]
    producer = written(make_batch(0, moved), emit, keys_move=True)
    assert [(key, value) for _, key, value, _ in of_topic(producer, "out")] == [(b"a", b"1"), (b"b", None)]
    assert len(of_topic(written(make_batch(0, moved), emit), "out")) == 3, "the test cannot fail"


def test_documents_of_a_view_that_has_no_output_are_refused(make_batch: MakeBatch) -> None:
    batch = make_batch(0, [], others={1: [(3, b"b", b"2")]})
    producer = FakeProducer()
    with pytest.raises(StateError, match=r"documents of view 1, of 1 view\(s\)"):
        written(batch, Emit.LATEST, producer)
    assert producer.calls == []


def test_an_unacknowledged_document_fails_the_transaction(make_batch: MakeBatch) -> None:
    producer = FakeProducer(loses=b"b")
    with pytest.raises(TransactionFailedError, match="1 of 2 records failed"):
        written(make_batch(0, [(3, b"a", b"1"), (7, b"b", b"2")]), Emit.LATEST, producer)
    assert "commit" not in producer.calls


TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


def test_the_largest_of_the_documents_that_are_too_large_is_named_with_its_own_commit(
    make_batch: MakeBatch,
) -> None:
    """Others fail with it when they are sent together."""
    batch = make_batch(0, [(3, b"a", b"1"), (7, b"b", b"22"), (7, b"a", b"333"), (8, b"d", b"1")])
    producer = FakeProducer(refuses={b"a": TOO_LARGE, b"b": TOO_LARGE, b"d": DENIED})
    with pytest.raises(OutputRefusedError) as refused:
        written(batch, Emit.LATEST, producer)
    told = str(refused.value)
    assert "view 'out' for topic 'out', key a, commit LSN 0/7, 3 bytes: " in told
    assert "make it smaller" in told
    assert "commit" not in producer.calls


def test_a_document_that_may_not_be_written_is_not_said_to_be_too_large(make_batch: MakeBatch) -> None:
    batch = make_batch(0, [(3, b"a", b"1")], others={1: [(7, b"b", b"2")]})
    producer = FakeProducer(refuses={b"b": DENIED})
    with pytest.raises(OutputRefusedError, match=r"view 'totals'.*grant the pipeline's user") as refused:
        written(batch, Emit.TRANSACTIONS, producer, topics=("out", "totals"))
    assert "smaller" not in str(refused.value)
    assert "max.message.bytes" not in str(refused.value)


def with_skipped(batch: DocumentBatch, *xids: int) -> DocumentBatch:
    return replace(batch, header=replace(batch.header, skipped=xids))


def skipped_by_xid(producer: FakeProducer) -> list[tuple[int | None, tuple[int, ...]]]:
    records = [decode_commit_record(value or b"") for _, _, value, _ in of_topic(producer, "out.commits")]
    return [(record.xid, record.skipped) for record in records]


def test_latest_names_skipped_transactions_in_the_record_of_the_batch(make_batch: MakeBatch) -> None:
    assert skipped_by_xid(written(with_skipped(make_batch(0, []), 503, 507), Emit.LATEST)) == [
        (None, (503, 507))
    ]


def test_transactions_names_a_skipped_transaction_in_its_own_record(make_batch: MakeBatch) -> None:
    batch = with_skipped(make_batch(0, [], to_lsn=3), 502, 77)
    expected = [(501, ()), (502, (502,)), (503, (77,))]
    assert skipped_by_xid(written(batch, Emit.TRANSACTIONS)) == expected


def of_groups(batch: DocumentBatch, to_lsn: int) -> DocumentBatch:
    """All groups have reached an LSN, some are further: up to the batch's last transaction."""
    return replace(batch, header=replace(batch.header, to_lsn=to_lsn))


@pytest.mark.parametrize(("emit", "has_xid"), [(Emit.LATEST, False), (Emit.TRANSACTIONS, True)])
def test_in_scope_aggregate_each_document_has_its_own_lsn_and_the_batch_one_commit_record(
    make_batch: MakeBatch, emit: Emit, has_xid: bool
) -> None:
    batch = of_groups(make_batch(0, [(7, b"b", b"2"), (3, b"a", b"1"), (7, b"d", None)]), 2)
    producer = written(batch, emit, scope=Scope.AGGREGATE)
    stamps = [dict(headers)["slackwater-commit-lsn"] for *_, headers in of_topic(producer, "out")]
    xids = [dict(headers).get("slackwater-xid") for *_, headers in of_topic(producer, "out")]
    assert stamps == [b"3", b"7", b"7"]
    assert xids == ([b"503", b"507", b"507"] if has_xid else [None] * 3)
    [(_, _, value, headers)] = of_topic(producer, "out.commits")
    record = decode_commit_record(value or b"")
    assert (record.previous_lsn, record.commit_lsn, record.xid) == (0, 2, None)
    assert dict(headers)["slackwater-commit-lsn"] == b"2"
    assert sum(r.count for r in record.offsets["out"].values()) == 3


def test_in_scope_aggregate_a_document_from_before_the_batch_is_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(StateError, match="commit LSN 10"):
        written(make_batch(1, [(10, b"a", b"1")]), Emit.LATEST, scope=Scope.AGGREGATE)


def test_in_scope_aggregate_rows_of_snapshots_may_be_shown_between_transactions(
    make_batch: MakeBatch,
) -> None:
    batch = of_groups(make_batch(0, [(99, b"a", b"1")]), 2)
    for emit in Emit:
        [(*_, headers)] = of_topic(written(batch, emit, scope=Scope.AGGREGATE), "out")
        assert dict(headers)["slackwater-commit-lsn"] == b"99"
        assert "slackwater-xid" not in dict(headers)


def test_documents_of_several_commits_are_put_into_order_over_all_payloads(make_batch: MakeBatch) -> None:
    documents: list[Document] = [(7, b"b", b"1"), (3, b"a", b"2"), (3, b"e", b"3"), (7, b"c", b"4")]
    producer = written(make_batch(0, documents), Emit.TRANSACTIONS)
    stamps = [dict(headers)["slackwater-commit-lsn"] for *_, headers in of_topic(producer, "out")]
    assert stamps == [b"3", b"3", b"7", b"7"]


def test_a_batch_that_stays_where_it_began_has_a_record(make_batch: MakeBatch) -> None:
    header = make_batch(4, [], from_lsn=40, to_lsn=40).header
    (unit,) = commit_units(header, Emit.TRANSACTIONS)
    assert (unit.commit_lsn, unit.previous_lsn, unit.xid) == (40, 40, None)


def test_documents_and_deletes_are_counted(make_batch: MakeBatch) -> None:
    settings = KafkaSinkSettings(
        pipeline="orders", outputs=(OutputTopic("out"),), kafka=KafkaSettings("nowhere")
    )
    batch = make_batch(0, [(3, b"a", b"1"), (7, b"b", None), (7, b"d", b"2")])
    counted, _ = BatchTransaction(settings, FakeProducer(), batch, lambda _: None).produce(PROGRESS)
    assert (counted.documents, counted.deletes) == (3, 1)
