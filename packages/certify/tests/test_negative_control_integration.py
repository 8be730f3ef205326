"""With alignment switched off the certifier must find torn documents; with it, none: over the same topics.

The pipeline is Slackwater's own frontier and engine, without Spark: what has been read at a cut
is joined and written with a commit record. Switched off means that a transaction counts as complete as soon
as its END is read.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from slackwater.cdc import Frontier
from slackwater.dev import KafkaBroker
from slackwater.engine.local import LocalEngine
from slackwater.protocol import CommitRecord, Cut, OffsetRange, encode_commit_record
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater_certify import Certificate, Connections, Mode, certify
from slackwater_lab.fakes.certified import PARTITIONS, SCHEMA, VIEW, SourceLog, Topics, line, order

pytestmark = pytest.mark.integration

ORDERS = 12


@pytest.fixture
def topics(kafka_broker: KafkaBroker, request: pytest.FixtureRequest, tmp_path: Path) -> Topics:
    return Topics(kafka_broker.bootstrap, request.node.name.replace("_", "-"), tmp_path)


@pytest.fixture
def engine() -> LocalEngine:
    plan = compile_pipeline([("view.sql", VIEW)], parse_catalog({"schema.sql": SCHEMA}))
    return LocalEngine(plan)


class Pipeline:
    """Frontier and engine over the topics; writes documents and commit records."""

    def __init__(self, topics: Topics, engine: LocalEngine) -> None:
        self._topics = topics
        self._engine = engine
        tables = frozenset({"shop.orders", "shop.lines"})
        self._frontier = Frontier(topics.prefix, complete_tables=tables)
        data = [f"{topics.prefix}.shop.{table}" for table in ("orders", "lines")]
        self._readers = {
            (topic, number): self._frontier.add_partition(topic, number, 0)
            for topic in data
            for number in range(PARTITIONS)
        }
        self._transactions = f"{topics.prefix}.transaction"
        self._consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": topics.prefix})
        places = [TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in self._readers]
        self._consumer.assign([*places, TopicPartition(self._transactions, 0, OFFSET_BEGINNING)])
        self._ends: dict[tuple[str, int], int] = defaultdict(int)
        self._rows: dict[int, list[tuple[str, str, bytes | None, bytes | None]]] = defaultdict(list)
        self._committed: dict[int, int] = {}
        self._producer = Producer({"bootstrap.servers": topics.bootstrap, "enable.idempotence": True})
        self._lsn = 0

    def read(self, count: int) -> None:
        """Reads this many records and publishes what the frontier says is complete."""
        while count > 0:
            messages = self._consumer.consume(count, 5)
            assert messages, "records that were written are not there"
            count -= len(messages)
            for message in messages:
                self._take(message)
        for _ in range(3):
            if self._frontier.end_offsets_wanted:
                self._frontier.end_offsets(dict(self._ends))
            self._frontier.advance()
            for cut in self._frontier.cuts():
                self._publish(cut)

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message: Message) -> None:
        assert message.error() is None
        spot, offset = (str(message.topic()), message.partition() or 0), message.offset() or 0
        value = message.value() or b""
        self._ends[spot] = offset + 1
        if spot[0] == self._transactions:
            self._frontier.read_transactions([(offset, value, offset)])
            return
        self._readers[spot].read([(offset, value)], "run", timestamp_ms=offset)
        event: dict[str, Any] = json.loads(value)
        images = [
            None if event[name] is None else json.dumps(event[name]).encode() for name in ("before", "after")
        ]
        row = (f"shop.{event['source']['table']}", event["op"], images[0], images[1])
        self._rows[event["source"]["txId"]].append(row)

    def _publish(self, cut: Cut) -> None:
        self._committed |= {each.xid: each.commit_lsn for each in cut.transactions}
        ready = [(self._committed[xid], xid) for xid in self._rows if xid in self._committed]
        changes = [
            (table, op, max(lsn, self._lsn + 1), before, after)
            for lsn, xid in sorted(ready)
            for table, op, before, after in self._rows.pop(xid)
        ]
        offsets: dict[int, list[int]] = defaultdict(list)

        def written(error: KafkaError | None, message: Message) -> None:
            assert error is None
            offsets[message.partition() or 0].append(message.offset() or 0)

        for _, key, document in self._engine.run(changes)[0]:
            headers: dict[str, str | bytes | None] = {"lsn": str(cut.lsn)}
            self._producer.produce(self._topics.output, document, key, headers=headers, on_delivery=written)
        self._producer.flush(30)
        record = CommitRecord(
            pipeline="orders",
            source=self._topics.prefix,
            timeline=1,
            commit_lsn=cut.lsn,
            previous_lsn=self._lsn,
            xid=None,
            commit_ts_ms=cut.commit_ts_ms,
            offsets={
                self._topics.output: {p: OffsetRange(len(o), min(o), max(o)) for p, o in offsets.items()}
            },
        )
        self._producer.produce(f"{self._topics.output}.commits", encode_commit_record(record), partition=0)
        self._producer.flush(30)
        self._lsn = cut.lsn


def run(topics: Topics, engine: LocalEngine) -> tuple[Certificate, Certificate]:
    """Lines reach the topics after the END of their transaction; judged with claims and without."""
    pipeline = Pipeline(topics, engine)
    log = SourceLog(topics.prefix)
    try:
        for number in range(1, ORDERS):
            log.records.clear()
            log.commit(
                ("orders", number, order(number, "3.00")),
                ("lines", 2 * number, line(2 * number, number, "1.00")),
                ("lines", 2 * number + 1, line(2 * number + 1, number, "2.00")),
            )
            late = [record for record in log.records if record.topic.endswith(".lines")]
            early = [record for record in log.records if record not in late]
            for records in (early, late):
                topics.write_source(records)
                pipeline.read(len(records))
    finally:
        pipeline.close()
    connections = Connections(bootstrap=topics.bootstrap)
    claiming = certify(topics.claiming, connections, mode=Mode.BOTH)
    return claiming, certify(topics.plain, connections, mode=Mode.BOTH)


@pytest.mark.full
def test_aligned_output_is_clean(topics: Topics, engine: LocalEngine) -> None:
    for certificate in run(topics, engine):
        assert certificate.examples == {}
        assert certificate.outputs == ORDERS - 1


@pytest.mark.full
def test_without_alignment_torn_documents_are_found(
    topics: Topics, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.cdc.completeness.counts_are_complete", lambda _: True)
    for certificate in run(topics, engine):
        assert certificate.torn > 0
        assert certificate.invariant_violations > 0
        assert certificate.largest_error == 3.0
