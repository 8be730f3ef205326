"""The demo's writers, readers and judge against real servers; the pipeline is a loop over the history."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

import psycopg
import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.demo.check import Replay
from slackwater.demo.database import TABLES, broken_orders, create_tables, read_documents
from slackwater.demo.findings import Kind
from slackwater.demo.judge import Evidence, judge, read_history
from slackwater.demo.observers import NaiveReader
from slackwater.demo.orders import Document
from slackwater.demo.writers import Writers, write_first_rows
from slackwater.errors import TopicUnavailableError
from slackwater_devstack import DevStack
from slackwater_protocol import CommitRecord, OffsetRange, SystemClock, encode_commit_record
from slackwater_protocol.keys import HEADER_COMMIT_LSN, commit_topic, data_topic

pytestmark = pytest.mark.integration


@dataclass
class Source:
    bootstrap: str
    dsn: str
    naive: NaiveReader

    def judge(self, output: str) -> Evidence:
        return judge(bootstrap=self.bootstrap, dsn=self.dsn, source="inv", tables=TABLES, output=output)


@pytest.fixture(scope="module")
def source(dev_stack: Callable[..., DevStack]) -> Source:
    """What four writers left behind after a few thousand changes; nothing changes any more."""
    stack = dev_stack(tables=TABLES)
    dsn, bootstrap = stack.postgres.dsn(), stack.kafka.bootstrap
    with psycopg.connect(dsn) as connection:
        create_tables(connection)
    write_first_rows(dsn, seed=3, writer=90, transactions=100)
    stack.start_connector(TABLES)
    stack.wait_until_streaming()
    naive = NaiveReader(bootstrap, [data_topic("inv", table) for table in TABLES])
    naive.start()
    try:
        write(dsn)
        await_condition(lambda: replayed(bootstrap) == documents(dsn))
    finally:
        naive.stop()
    naive.raise_failure()
    return Source(bootstrap, dsn, naive)


def write(dsn: str) -> None:
    writers = Writers(dsn, seed=3, count=4, changes_per_second=5_000, clock=SystemClock())
    writers.start()
    try:
        await_condition(lambda: writers.statistics.counts()["committed"] >= 600)
    finally:
        writers.stop()


def await_condition(condition: Callable[[], bool], seconds: float = 60) -> None:
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + seconds
    while not condition():
        assert clock.monotonic() < deadline, "the condition did not come true in time"
        pause.wait(0.1)


def documents(dsn: str) -> dict[int, Document]:
    with psycopg.connect(dsn) as connection:
        return read_documents(connection)


def replayed(bootstrap: str) -> dict[int, Document]:
    try:
        history = read_history(bootstrap, "inv", TABLES)
    except TopicUnavailableError:  # the connector creates topics with their first record
        return {}
    replay = Replay(history.snapshot(), history.transactions())
    replay.advance(None)
    return dict(replay.shown)


class ReferencePipeline:
    """Writes what a right pipeline would, each batch in one Kafka transaction; can be made wrong."""

    def __init__(self, bootstrap: str, output: str) -> None:
        self._bootstrap = bootstrap
        self._output = output
        self._offsets: dict[int, list[int]] = {}

    def write(self, wrong: Callable[[Document], Document] = lambda document: document) -> None:
        history = read_history(self._bootstrap, "inv", TABLES)
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": f"reference-{self._output}"}
        )
        producer.init_transactions()
        topics = [NewTopic(self._output, 4, 1), NewTopic(commit_topic(self._output), 1, 1)]
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        for created in admin.create_topics(topics).values():
            created.result(30)
        replay = Replay(history.snapshot(), history.transactions())
        lsns, previous = iter([t.commit_lsn for t in history.transactions()]), 0
        while batch := list(islice(lsns, 25)):
            changed = replay.advance(batch[-1])
            shown = {key: document and wrong(document) for key, document in changed.items()}
            self._write_batch(producer, batch[-1], previous, shown)
            previous = batch[-1]

    def _write_batch(
        self, producer: Producer, lsn: int, previous: int, changed: Mapping[int, Document | None]
    ) -> None:
        self._offsets = {}
        producer.begin_transaction()
        for key, document in changed.items():
            value = None if document is None else json.dumps(document).encode()
            headers: dict[str, str | bytes | None] = {HEADER_COMMIT_LSN: str(lsn).encode()}
            producer.produce(
                self._output, value, f'{{"id":{key}}}', headers=headers, on_delivery=self._report
            )
        producer.flush()
        record = CommitRecord(
            pipeline="reference",
            source="inv",
            timeline=1,
            commit_lsn=lsn,
            previous_lsn=previous,
            xid=None,
            commit_ts_ms=0,
            offsets={
                self._output: {p: OffsetRange(len(o), min(o), max(o)) for p, o in self._offsets.items()}
            },
        )
        producer.produce(commit_topic(self._output), encode_commit_record(record))
        producer.commit_transaction()

    def _report(self, error: KafkaError | None, message: Message) -> None:
        assert error is None
        self._offsets.setdefault(message.partition() or 0, []).append(message.offset() or 0)


def test_the_writers_keep_the_invariant_in_postgresql(source: Source) -> None:
    with psycopg.connect(source.dsn) as connection:
        assert broken_orders(connection) == []


def test_a_right_output_is_found_to_be_right(source: Source) -> None:
    ReferencePipeline(source.bootstrap, "right").write()
    evidence = source.judge("right")
    assert evidence.findings.counts == {}
    assert len(evidence.records) > 500
    assert evidence.history.events > 1_000
    assert evidence.orders > 100


def test_an_output_with_torn_documents_is_found_to_be_wrong(source: Source) -> None:
    def without_last_line(document: Document) -> Document:
        return {**document, "lines": document["lines"][:-1]}

    ReferencePipeline(source.bootstrap, "wrong").write(without_last_line)
    findings = source.judge("wrong").findings
    assert {Kind.TORN, Kind.WRONG_STATE, Kind.WRONG_FINAL} == set(findings.counts)
    assert findings.count(Kind.TORN) > 100


def test_a_reader_without_slackwater_publishes_torn_documents(source: Source) -> None:
    assert source.naive.join.published > 0
    assert source.naive.join.torn > 0
