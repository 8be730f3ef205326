"""The source in a real Spark, over real Kafka and Redis; cuts are made by the test instead of a sidecar.

How the tests of the promises were seen to fail. Prefix consistency (G1) and parallelism (G6): when
``Feed`` takes each partition's end one record before or after the cut's. Exactly once (G3): when
``BatchChanges`` takes rows of any transaction. Disposable Redis (G5): when ``Feed`` asks only Redis.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import redis
from confluent_kafka import Producer
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from slackwater.cuts import CutLog, FrontierState, FrontierStatus, RedisMarkerStore
from slackwater.dev import KafkaBroker, RedisServer
from slackwater.protocol import SNAPSHOT_XID, CommittedTransaction, Cut, KafkaSettings, PublishedCut
from slackwater.protocol.keys import cuts_key
from slackwater_lab.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.spark]

TABLES = {"inventory.orders": 4, "inventory.order_lines": 3}
"""Number of partitions by table."""
STATUS = FrontierStatus(state=FrontierState.RUNNING, wall_ms=0, sidecar="test")
COMMIT_MS = 1_795_206_861_409
LSN_STEP = 1000


class Database:
    """Plays connector and sidecar: writes transactions over both tables, publishes cuts when told to."""

    def __init__(self, source: str, bootstrap: str, redis_url: str, row_value: Callable[..., bytes]) -> None:
        self.source, self.bootstrap, self.redis_url = source, bootstrap, redis_url
        self._row_value = row_value
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._ends = {f"{source}.{table}": [0] * n for table, n in TABLES.items()}
        self.log = CutLog(source, KafkaSettings(bootstrap))
        self.log.ensure_topic(replication_factor=1)
        self.store = RedisMarkerStore.connect(redis_url)
        for topic, ends in self._ends.items():
            make_topics(bootstrap, [topic], len(ends))
        self.changes: dict[int, int] = {}
        """Commit LSN of each whole transaction to the number of its changes."""
        self.cuts: list[PublishedCut] = []
        self._open: list[CommittedTransaction] = []
        self._lsn = self._previous = self._next_key = 0

    def transaction(self, lines: int) -> int:
        """One order and its lines; returns the commit LSN."""
        first = self._lsn
        self._lsn += LSN_STEP
        xid = 700 + self._lsn // LSN_STEP
        order = self._key()
        self.row("inventory.orders", xid, first + 1, order, {"id": order, "lines": lines})
        for line in range(lines):
            key = self._key()
            self.row("inventory.order_lines", xid, first + 2 + line, key, {"id": key, "order": order})
        self._open.append(CommittedTransaction(xid, self._lsn, COMMIT_MS))
        self.changes[self._lsn] = 1 + lines
        return self._lsn

    def snapshot(self, lsn: int, *, rows: int, is_void: bool = False) -> None:
        """Rows of an initial snapshot; void when it is started again afterwards."""
        for key in range(rows):
            self.row("inventory.orders", None, lsn, key, {"id": key}, op="r", snapshot="true")
        if not is_void:
            self._lsn = lsn
            self._open.append(CommittedTransaction(SNAPSHOT_XID, lsn, COMMIT_MS))
            self.changes[lsn] = rows

    def row(self, table: str, xid: int | None, lsn: int, key: int, after: object, **fields: object) -> None:
        value = self._row_value(xid, lsn, table=table, after=after, **fields)
        self.write(table, key % TABLES[table], value, key)

    def write(self, table: str, partition: int, value: bytes, key: int) -> None:
        topic = f"{self.source}.{table}"
        self._producer.produce(topic, value, msgspec.json.encode({"id": key}), partition=partition)
        self._ends[topic][partition] += 1

    def cut(self, repeated: frozenset[int] = frozenset(), *, to_redis: bool = True) -> PublishedCut:
        """Publishes everything committed so far."""
        assert self._producer.flush(20) == 0
        cut = Cut(
            source=self.source,
            timeline=1,
            lsn=self._lsn,
            previous_lsn=self._previous,
            commit_ts_ms=COMMIT_MS,
            event_count=sum(self.changes.values()),
            transactions=tuple(self._open),
            end_offsets={topic: tuple(ends) for topic, ends in self._ends.items()},
            transaction_offset=0,
            repeated=repeated,
        )
        self._previous, self._open = self._lsn, []
        [published] = self.log.append([cut])
        self.cuts.append(published)
        if to_redis:
            self.store.put_cut(published, STATUS)
        return published

    def flush(self) -> None:
        """Makes rows readable that no cut covers."""
        assert self._producer.flush(20) == 0

    def lose_redis(self) -> None:
        with redis.Redis.from_url(self.redis_url) as client:
            client.delete(cuts_key(self.source, 1))

    def _key(self) -> int:
        self._next_key += 1
        return self._next_key


@dataclass
class Run:
    """What the batches of a query held."""

    batches: list[list[Row]] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]

    def collect(self, frame: DataFrame, batch_id: int) -> None:
        self.partitions.append(frame.rdd.getNumPartitions())
        self.batches.append(frame.collect())


@pytest.fixture
def database(
    source: str, kafka_broker: KafkaBroker, redis_server: RedisServer, row_value: Callable[..., bytes]
) -> Iterator[Database]:
    database = Database(source, kafka_broker.bootstrap, redis_server.url, row_value)
    yield database
    database.log.close()
    database.store.close()


class Query:
    """A streaming query with its checkpoint; each run processes what is available."""

    def __init__(self, spark: SparkSession, database: Database, checkpoint: Path, **options: object) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._options = {
            "source": database.source,
            "bootstrap": database.bootstrap,
            "redis_url": database.redis_url,
            "tables": ",".join(TABLES),
            **{name: str(value) for name, value in options.items()},
        }

    def run(self, consume: Callable[[DataFrame, int], None] | None = None) -> Run:
        run = Run()
        frame = self._spark.readStream.format("slackwater").options(**self._options).load()
        query = (
            frame.writeStream.foreachBatch(consume or run.collect)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return run

    def read(self) -> list[Row]:
        return self._spark.read.format("slackwater").options(**self._options).load().collect()


def changes_of(rows: list[Row]) -> dict[int, int]:
    """Number of rows by commit LSN."""
    counts: dict[int, int] = {}
    for row in rows:
        counts[row.commit_lsn] = counts.get(row.commit_lsn, 0) + 1
    return counts


def assert_whole(run: Run, database: Database) -> None:
    """Each batch holds the next transactions, all of each, and ends at a cut."""
    cuts = {c.cut.lsn for c in database.cuts}
    done = 0
    for batch in run.batches:
        counts = changes_of(batch)
        assert counts == {lsn: n for lsn, n in database.changes.items() if done < lsn <= max(counts)}
        assert max(counts) in cuts
        done = max(counts)


@pytest.mark.full
def test_batches_hold_whole_transactions_in_the_limit_at_cuts(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    for _ in range(8):
        for _ in range(5):
            database.transaction(lines=4)
        database.cut()
    database.transaction(lines=4)
    database.flush()
    database.changes.popitem()
    run = Query(spark, database, tmp_path, max_events_per_batch=60).run()
    assert_whole(run, database)
    assert [len(batch) for batch in run.batches] == [50, 50, 50, 50]


def test_a_row_says_where_it_comes_from(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    commit_lsn = database.transaction(lines=1)
    database.cut()
    [order] = [r for r in Query(spark, database, tmp_path).run().rows if r.table == "inventory.orders"]
    assert order.commit_ts.timestamp() * 1000 == COMMIT_MS
    assert {k: v for k, v in order.asDict().items() if k != "commit_ts"} == {
        "source": database.source,
        "table": "inventory.orders",
        "op": "c",
        "key": '{"id":1}',
        "before": None,
        "after": '{"id":1,"lines":1}',
        "xid": 701,
        "commit_lsn": commit_lsn,
        "order_in_transaction": 1,
        "partition": 1,
        "offset": 0,
    }


def test_snapshot_rows_come_with_the_lsn_of_the_snapshot(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    database.snapshot(400, rows=6, is_void=True)
    database.snapshot(500, rows=6)
    database.cut()
    rows = Query(spark, database, tmp_path).run().rows
    assert [(r.op, r.commit_lsn, r.xid, r.order_in_transaction) for r in rows] == [("r", 500, None, None)] * 6


@pytest.mark.full
def test_a_restarted_query_goes_on_where_it_was(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    query = Query(spark, database, tmp_path)
    database.transaction(lines=3)
    database.cut()
    assert len(query.run().rows) == 4
    assert query.run().rows == []
    database.transaction(lines=2)
    database.cut()
    assert changes_of(query.run().rows) == {2 * LSN_STEP: 3}


@pytest.mark.full
def test_a_planned_batch_is_replayed_with_redis_gone(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    class CrashError(Exception):
        pass

    crashed = Run()

    def crash(frame: DataFrame, batch_id: int) -> None:
        crashed.collect(frame, batch_id)
        raise CrashError

    query = Query(spark, database, tmp_path, max_events_per_batch=20)
    for _ in range(4):
        database.transaction(lines=9)
        database.cut()
    with pytest.raises(StreamingQueryException, match="CrashError"):
        query.run(crash)
    database.lose_redis()
    database.transaction(lines=9)
    database.cut(to_redis=False)
    run = query.run()
    assert sorted(run.batches[0]) == sorted(crashed.batches[0])
    assert_whole(run, database)
    assert len(run.rows) == 50


def test_a_query_works_without_redis(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    database.transaction(lines=3)
    database.cut(to_redis=False)
    away = Query(spark, database, tmp_path, redis_url="redis://127.0.0.1:1/0")
    assert len(away.run().rows) == 4


@pytest.mark.full
def test_parallel_tasks_read_the_same_rows(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    for _ in range(50):
        database.transaction(lines=9)
    database.cut()
    one = Query(spark, database, tmp_path / "1", parallelism=1, min_task_events=1).run()
    four = Query(spark, database, tmp_path / "4", parallelism=4, min_task_events=1).run()
    assert (one.partitions, four.partitions) == ([1], [4])
    assert sorted(one.rows) == sorted(four.rows)
    assert_whole(four, database)


@pytest.mark.full
def test_repeated_rows_are_read_once(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    """The connector repeats a whole transaction, first before and then after the cut that ends it."""
    lsn = database.transaction(lines=2)
    after = {"id": 1, "lines": 2}
    database.row("inventory.orders", 701, 1, 1, after)
    database.cut(frozenset({lsn}))
    database.row("inventory.orders", 701, 1, 1, after)
    database.transaction(lines=1)
    database.cut()
    options = {"max_events_per_batch": 1, "parallelism": 4, "min_task_events": 1}
    run = Query(spark, database, tmp_path, **options).run()
    assert [changes_of(batch) for batch in run.batches] == [{lsn: 3}, {lsn + LSN_STEP: 2}]


def test_everything_up_to_the_newest_cut_can_be_read_at_once(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    query = Query(spark, database, tmp_path)
    assert query.read() == []
    for _ in range(3):
        database.transaction(lines=4)
        database.cut()
    assert changes_of(query.read()) == database.changes


@pytest.mark.full
def test_bad_input_stops_the_query_with_its_place_and_loses_nothing(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    database.transaction(lines=1)
    database.write("inventory.order_lines", 2, b"\xff not json", 1)
    database.cut()
    with pytest.raises(StreamingQueryException) as caught:
        Query(spark, database, tmp_path).run()
    message = str(caught.value)
    assert f"bad input at topic {database.source}.inventory.order_lines, partition 2, offset" in message
    assert "not json" in message


def test_options_are_checked_when_the_frame_is_made(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="did you mean tables"):
        spark.readStream.format("slackwater").options(source="a", bootstrap="b", table="c.d").load()
