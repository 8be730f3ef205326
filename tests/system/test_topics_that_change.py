"""One run in which almost everything happens to topics that may: the sidecar's cuts stay right.

The connector writes exactly once (offsets have gaps, records of killed runs are hidden) and an SMT drops rows
that END counts; partitions and tables are added, transactions are prepared, a table is truncated. What is
true comes from the database's own log.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from slackwater.cuts import FrontierState, RedisMarkerStore
from slackwater.dev import ConnectMode, DevStack
from slackwater.protocol import Cut, OpenTransaction, SystemClock
from slackwater_lab.debezium.recording import Recording, RowIdentity
from slackwater_lab.programs import Product
from slackwater_lab.servers.database_log import DatabaseLog
from slackwater_lab.topics import TopicRecorder
from slackwater_lab.watching import read_cuts

pytestmark = [pytest.mark.system, pytest.mark.slow]

ITEMS, MOVED, LATER = "inventory.items", "inventory.moved", "inventory.later"
PARTITIONS, MORE_PARTITIONS = 2, 4
CONNECTOR = {
    "tombstones.on.delete": "false",
    "skipped.operations": "none",
    # The deleting half of a key update goes nowhere, but END counts it.
    "transforms": "drop",
    "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
    "transforms.drop.predicate": "moved",
    "predicates": "moved",
    "predicates.moved.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
    "predicates.moved.name": "__debezium.newkey",
}
DDL = """
CREATE SCHEMA inventory;
CREATE TABLE inventory.items (id int PRIMARY KEY, note text);
CREATE TABLE inventory.moved (id int PRIMARY KEY, note text);
INSERT INTO inventory.moved VALUES (1, 'before the connector'), (2, 'too');
"""
SECONDS = 900.0


@dataclass(frozen=True)
class Outcome:
    recording: Recording
    truth: dict[int, list[RowIdentity]]
    cuts: list[Cut]
    stalled: OpenTransaction
    """What the sidecar named while it went by counts."""
    stalled_at: int
    """The newest cut then."""
    moving_xid: int
    prepared_xid: int


class Story:
    """What happens, in order."""

    def __init__(self, stack: DevStack, product: Product, recorder: TopicRecorder, tables: list[str]) -> None:
        self.stack, self.product, self.recorder, self.tables = stack, product, recorder, tables
        self.dsn = stack.postgres.dsn()
        self.store = RedisMarkerStore.connect(stack.redis.url)
        self._next = 1

    def execute(self, *statements: str) -> int:
        """One transaction; returns its xid."""
        with psycopg.connect(self.dsn) as connection:
            for statement in statements:
                connection.execute(statement.encode())
            row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        return int(row[0])

    def insert(self, table: str, count: int) -> list[str]:
        first, self._next = self._next, self._next + count
        return [
            f"INSERT INTO {table} SELECT i, 'n' || i FROM generate_series({first}, {self._next - 1}) i"  # noqa: S608
        ]

    def write(self, transactions: int) -> None:
        for _ in range(transactions):
            changes = [line for table in self.tables if table != MOVED for line in self.insert(table, 7)]
            self.execute(*changes, f"UPDATE {ITEMS} SET note = 'x' WHERE id % 5 = 0")  # noqa: S608
        self.execute(f"DELETE FROM {ITEMS} WHERE id % 3 = 0")  # noqa: S608

    def add_partitions(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.stack.kafka.bootstrap})
        asked = admin.create_partitions([NewPartitions(f"inv.{ITEMS}", MORE_PARTITIONS)])
        for answer in asked.values():
            answer.result(300)

    def prepare(self) -> int:
        """A prepared transaction around which others commit; returns its xid."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("BEGIN")
            for line in self.insert(ITEMS, 5):
                connection.execute(line.encode())
            row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
            connection.execute("PREPARE TRANSACTION 'prepared'")
            self.write(2)
            connection.execute("COMMIT PREPARED 'prepared'")
        assert row is not None
        return int(row[0])

    def add_table(self) -> None:
        self.execute(f"CREATE TABLE {LATER} (id int PRIMARY KEY, note text)")
        self.tables.append(LATER)
        self.stack.start_connector(self.tables)

    def kill_connector(self) -> None:
        """In the middle of writing."""
        self.write(10)
        self.recorder.read()
        self.stack.connect.kill()
        self.write(3)
        self.stack.connect.start()

    def await_cut(self, what: str) -> None:
        """Waits until everything committed so far is in a cut."""
        last = self.execute(*self.insert(ITEMS, 1))

        def is_there() -> bool:
            newest = self.store.newest("inv", 1)
            return newest is not None and any(t.xid == last for t in newest.cut.transactions)

        assert self.product.wait_until(is_there, SECONDS), f"{what}: {self.sidecar_says()}"

    def sidecar_says(self) -> str:
        return self.product.programs["sidecar"].last_words()

    def await_stall(self, xid: int) -> OpenTransaction:
        def found() -> list[OpenTransaction]:
            status = self.store.status("inv")
            is_stalled = status is not None and status.state is FrontierState.STALLED
            return [t for t in self.store.open("inv") if t.xid == xid] if is_stalled else []

        assert self.product.wait_until(lambda: bool(found()), SECONDS), self.sidecar_says()
        return found()[0]


def truth_of(log: DatabaseLog) -> dict[int, list[RowIdentity]]:
    """The rows that the connector writes: without those that the SMT drops."""
    return {
        transaction.xid: [
            (c.lsn, c.table, c.op, c.key)
            for c in transaction.changes
            if not (c.table == MOVED and c.op == "d")
        ]
        for transaction in log.transactions()
    }


@pytest.fixture(scope="module")
def outcome(dev_stack: Callable[..., DevStack], tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Everything happens once; the tests look at what is left."""
    folder: Path = tmp_path_factory.mktemp("topics")
    stack = dev_stack(
        prefix="inv",
        partitions=PARTITIONS,
        connect_mode=ConnectMode.EXACTLY_ONCE,
        connector_overrides=CONNECTOR,
        worker_overrides={"producer.metadata.max.age.ms": "500"},
    )
    try:
        return happen(stack, folder)
    finally:
        stack.stop()


def happen(stack: DevStack, folder: Path) -> Outcome:
    clock, started = SystemClock(), SystemClock().monotonic()

    def say(line: str) -> None:
        sys.stdout.write(f"{clock.monotonic() - started:6.1f} s  {line}\n")

    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
        connection.execute(DDL)
    log = DatabaseLog(stack.postgres.dsn())
    log.begin()
    with ExitStack() as running:
        product = running.enter_context(Product(stack, folder))
        product.start_sidecar()
        recorder = running.enter_context(TopicRecorder(stack.kafka.bootstrap, "inv"))
        stack.start_connector([ITEMS, MOVED])
        stack.wait_until_streaming()
        story = Story(stack, product, recorder, [ITEMS, MOVED])
        story.write(10)
        story.await_cut("from the beginning")
        say("partitions")
        story.add_partitions()
        write_until(story, lambda: recorder.recording.end((f"inv.{ITEMS}", MORE_PARTITIONS - 1)) > 0)
        prepared_xid = story.prepare()
        story.execute(f"TRUNCATE {ITEMS}")
        story.await_cut("with more partitions, a prepared transaction and TRUNCATE")
        say("a kill")
        story.kill_connector()
        story.await_cut("after a kill of the connector")
        say("a table")
        story.add_table()
        story.write(5)
        story.await_cut("with one more table")
        say("dropped rows")
        moving_xid = story.execute(f"UPDATE {MOVED} SET id = id + 100", *story.insert(ITEMS, 3))  # noqa: S608
        story.write(2)
        stalled, newest = story.await_stall(moving_xid), story.store.newest("inv", 1)
        say("other evidence")
        product.start_sidecar("--evidence", ",".join(f"{table}=offsets" for table in story.tables))
        story.write(2)
        story.await_cut("by offsets")
        say("read")
        story.store.close()
        return Outcome(
            recording=recorder.read_to_end(),
            truth=truth_of(log),
            cuts=[seen.cut for seen in read_cuts(stack.kafka.bootstrap, "inv")],
            stalled=stalled,
            stalled_at=newest.cut.lsn if newest else 0,
            moving_xid=moving_xid,
            prepared_xid=prepared_xid,
        )


def write_until(story: Story, condition: Callable[[], bool]) -> None:
    """Writes on; producers hear of new partitions after a while."""
    for _ in range(60):
        story.write(1)
        story.recorder.read(0.1)
        if condition():
            return
        threading.Event().wait(0.1)
    raise AssertionError("the connector does not write to the new partitions")


def test_what_was_to_happen_has_happened(outcome: Outcome) -> None:
    recording = outcome.recording
    counts = {xid: ends[0][1] for xid, ends in recording.ends_of_transactions().items()}
    assert counts[outcome.moving_xid] == len(outcome.truth[outcome.moving_xid]) + 2
    assert any(row.identity[2] == "t" for row in recording.rows())
    assert {row.spot[1] for row in recording.rows() if row.spot[0] == f"inv.{ITEMS}"} == set(range(4))
    assert any(row.identity[1] == LATER for row in recording.rows())
    assert outcome.prepared_xid in outcome.truth
    records = [record for spot in recording.topics for record in recording.topics[spot]]
    assert len(records) < sum(map(recording.end, recording.topics)), "no Kafka transaction left a gap"
    assert all(record.value is not None for record in records), "there is a tombstone"


def test_the_topics_hold_every_row_of_the_database_once(outcome: Outcome) -> None:
    rows = [row for row in outcome.recording.rows() if row.xid in outcome.truth]
    assert len(rows) == len({(row.xid, row.identity) for row in rows})
    streamed: dict[int, set[RowIdentity]] = {xid: set() for xid in outcome.truth}
    for row in rows:
        streamed[row.xid].add(row.identity)
    assert streamed == {xid: set(identities) for xid, identities in outcome.truth.items()}


def test_every_commit_is_in_one_cut_with_all_rows_that_were_written(outcome: Outcome) -> None:
    oracle = outcome.recording.oracle(outcome.truth)
    assert oracle.complaints(outcome.cuts) == []
    assert outcome.cuts[-1].lsn >= oracle.commits[-1][0]


def test_a_cut_that_ended_before_its_last_row_would_be_found(outcome: Outcome) -> None:
    *before, last = [cut for cut in outcome.cuts if cut.transactions]
    row = next(row for row in outcome.recording.rows() if row.xid == last.transactions[-1].xid)
    ends = {topic: list(offsets) for topic, offsets in last.end_offsets.items()}
    ends[row.spot[0]][row.spot[1]] = row.offset
    early = replace(last, end_offsets={topic: tuple(offsets) for topic, offsets in ends.items()})
    oracle = outcome.recording.oracle(outcome.truth)
    assert any("is not in cut" in complaint for complaint in oracle.complaints([*before, early]))


def test_by_counts_nothing_passed_the_transaction_whose_rows_were_dropped(outcome: Outcome) -> None:
    commit_lsn = outcome.recording.ends_of_transactions()[outcome.moving_xid][0][0]
    stalled = outcome.stalled
    assert outcome.stalled_at < commit_lsn
    assert stalled.commit_lsn == commit_lsn
    assert stalled.expected[MOVED] == 4
    assert stalled.received[MOVED] == 2
    assert any(place.startswith(f"inv.{MOVED}/") for place in stalled.places)
