"""The demo's writers, readers and judge against real servers; the pipeline is a loop over the history."""

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaError, Message, Producer

from slackwater.cli.topics import read_to_end
from slackwater.dev import DevStack
from slackwater.protocol import (
    CommitRecord,
    KafkaSettings,
    OffsetRange,
    SystemClock,
    UnavailableError,
    encode_commit_record,
)
from slackwater.protocol.keys import HEADER_COMMIT_LSN, commit_topic, data_topic, transaction_topic
from slackwater_certify import Certificate
from slackwater_certify.history import CommittedTransaction, History, RowChange
from slackwater_certify.view import load_view
from slackwater_lab.database.statements import create_tables, write_first
from slackwater_lab.database.writers import Writers
from slackwater_lab.demo.naive import ORDER_LINES, ORDERS, Document, NaiveReader, OrderTables
from slackwater_lab.demo.run import TABLES
from slackwater_lab.demo.verdict import broken_orders, count_orders, demo_specification, judge
from slackwater_lab.topics import make_topics
from slackwater_lab.workloads.huge import MixedWorkload

pytestmark = pytest.mark.integration

COLUMNS = {
    ORDERS: ("id", "customer", "status", "line_count", "total", "created_at"),
    ORDER_LINES: ("id", "order_id", "product", "quantity", "price"),
}
PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"
WORKLOAD = MixedWorkload(3, 300)


@dataclass
class Source:
    bootstrap: str
    dsn: str
    naive: NaiveReader

    def judge(self, output: str) -> Certificate:
        return judge(
            demo_specification(PIPELINE, output),
            bootstrap=self.bootstrap,
            dsn=self.dsn,
            arrivals={},
            since_ms=0,
            on_progress=lambda _: None,
        )


@pytest.fixture(scope="module")
def source(dev_stack: Callable[..., DevStack]) -> Source:
    """What four writers left behind after a few thousand changes; nothing changes any more."""
    stack = dev_stack(tables=TABLES)
    dsn, bootstrap = stack.postgres.dsn(), stack.kafka.bootstrap
    create_tables(dsn, WORKLOAD)
    write_first(dsn, WORKLOAD)
    stack.start_connector(TABLES)
    stack.wait_until_streaming()
    naive = NaiveReader(bootstrap, [data_topic("inv", table) for table in TABLES])
    naive.start()
    try:
        write(dsn)
        last = write_last(dsn)
        await_condition(lambda: has_arrived(bootstrap, last))
    finally:
        naive.stop()
    naive.raise_failure()
    return Source(bootstrap, dsn, naive)


def write(dsn: str) -> None:
    writers = Writers(dsn, WORKLOAD, count=4, changes_per_second=5_000, clock=SystemClock())
    writers.start()
    try:
        await_condition(lambda: writers.counts().committed >= 600)
    finally:
        writers.stop()


def write_last(dsn: str) -> int:
    """Commits one more change; returns its xid."""
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE inventory.orders SET status = 'last' WHERE id = 1")
        row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return int(row[0])


def await_condition(condition: Callable[[], bool], seconds: float = 60) -> None:
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + seconds
    while not condition():
        assert clock.monotonic() < deadline, "the condition did not come true in time"
        pause.wait(0.1)


def read_history(bootstrap: str) -> History:
    view = load_view(demo_specification(PIPELINE, "any"))
    history = History(view.tables)
    for message in read_to_end(KafkaSettings(bootstrap), [data_topic("inv", table) for table in TABLES]):
        value = message.value()
        if value is not None:
            history.add_row(value)
    for message in read_to_end(KafkaSettings(bootstrap), [transaction_topic("inv")]):
        history.add_transaction_record(message.value() or b"")
    return history


def has_arrived(bootstrap: str, xid: int) -> bool:
    """Whether the transaction and all before it are in the topics, with all their rows."""
    try:
        transactions = list(read_history(bootstrap).transactions())
    except UnavailableError:  # the connector creates topics with their first record
        return False
    return (
        bool(transactions)
        and transactions[-1].xid == xid
        and all(len(each.changes) == each.announced for each in transactions)
    )


class Replay:
    """The demo's view from dictionaries alone: neither SQL nor anything of a pipeline."""

    def __init__(self, history: History) -> None:
        self._tables = OrderTables()
        self._touched: set[int] = set()
        self._shown: dict[int, Document] = {}
        self._apply(history.snapshot())

    def advance(self, transactions: Iterable[CommittedTransaction]) -> dict[int, Document | None]:
        """Applies transactions; returns the documents that differ from before."""
        for transaction in transactions:
            self._apply(transaction.changes)
        touched, self._touched = self._touched, set()
        changed: dict[int, Document | None] = {}
        for order_id in sorted(touched):
            document = self._tables.document(order_id)
            if document != self._shown.get(order_id):
                changed[order_id] = document
                self._show(order_id, document)
        return changed

    def _show(self, order_id: int, document: Document | None) -> None:
        if document is None:
            self._shown.pop(order_id, None)
        else:
            self._shown[order_id] = document

    def _apply(self, changes: Iterable[RowChange]) -> None:
        for change in changes:
            values = change.after
            after = None if values is None else dict(zip(COLUMNS[change.table], values, strict=True))
            self._touched |= self._tables.apply(change.table, int(str(change.key[0])), after)


class ReferencePipeline:
    """Writes what a right pipeline would, each batch in one Kafka transaction; can be made wrong."""

    def __init__(self, bootstrap: str, output: str) -> None:
        self._bootstrap = bootstrap
        self._output = output
        self._offsets: dict[int, list[int]] = {}

    def write(self, wrong: Callable[[Document], Document] = lambda document: document) -> None:
        history = read_history(self._bootstrap)
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": f"reference-{self._output}"}
        )
        producer.init_transactions()
        make_topics(self._bootstrap, [self._output], 4)
        make_topics(self._bootstrap, [commit_topic(self._output)], 1)
        replay, previous, transactions = Replay(history), 0, list(history.transactions())
        for first in range(0, len(transactions), 25):
            batch = transactions[first : first + 25]
            changed = replay.advance(batch)
            shown = {key: document and wrong(document) for key, document in changed.items()}
            self._write_batch(producer, batch[-1].commit_lsn, previous, shown)
            previous = batch[-1].commit_lsn

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


@pytest.mark.full
def test_a_right_output_is_found_to_be_right(source: Source) -> None:
    ReferencePipeline(source.bootstrap, "right").write()
    certificate = source.judge("right")
    assert certificate.examples == {}
    assert certificate.is_clean
    assert certificate.outputs > 500
    assert certificate.events > 1_000
    assert count_orders(source.dsn) == certificate.documents > 100


@pytest.mark.full
def test_an_output_with_torn_documents_is_found_to_be_wrong(source: Source) -> None:
    def without_last_line(document: Document) -> Document:
        return {**document, "lines": document["lines"][:-1]}

    ReferencePipeline(source.bootstrap, "wrong").write(without_last_line)
    certificate = source.judge("wrong")
    assert certificate.torn > 100
    assert certificate.invariant_violations >= certificate.torn
    assert certificate.final_differences > 0
    assert certificate.history_differences == 0


def test_a_reader_without_slackwater_publishes_torn_documents(source: Source) -> None:
    assert source.naive.join.published > 0
    assert source.naive.join.torn > 0
