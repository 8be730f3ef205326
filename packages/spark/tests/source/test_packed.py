"""Changes packed for a stage."""

from collections.abc import Callable
from dataclasses import replace

import pyarrow
import pytest
from confluent_kafka import Message
from pyspark.sql.types import StructType

from slackwater_engine.errors import BadInputError
from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.payloads import EMPTY_KEY, HEADER_BUCKET, TOUCH_INPUT, bucket_of, decode_events
from slackwater_engine.records.batch import BatchTask, OffsetSpan, TransactionTable
from slackwater_engine.records.changes import BatchChanges
from slackwater_protocol import BatchHeader, CommittedTransaction, encode_batch_header
from slackwater_spark.source.packed import PackedWriter
from slackwater_sql.compiler import compile_pipeline
from slackwater_sql.postgres import parse_catalog

Value = Callable[..., bytes]
Record = Callable[..., Message]
Portions = list[tuple[OffsetSpan, list[Message]]]

TOPIC = "inv.s.a"
SCHEMA = (
    StructType()
    .add("stage", "integer")
    .add("bucket", "integer")
    .add("sequence", "long")
    .add("payload", "binary")
)
DDL = "CREATE TABLE s.a (id bigint PRIMARY KEY, name text);"
VIEW = "SELECT TRANSACTIONALLY a.id, list(a.name ORDER BY a.name) AS names FROM s.a a GROUP BY a.id"


@pytest.fixture(scope="module")
def packing() -> str:
    plan = compile_pipeline([("v.sql", VIEW)], parse_catalog({"schema.sql": DDL}))
    return packing_spec(plan, 8).to_json()


@pytest.fixture
def write(packing: str) -> Callable[..., list[dict[str, object]]]:
    def write_all(portions: Portions, header: bytes | None = None) -> list[dict[str, object]]:
        table = TransactionTable([CommittedTransaction(7, 1000, 0)])
        changes = BatchChanges(BatchTask((), table), "inv", ("s.a",))
        batches = list(PackedWriter(packing, SCHEMA, changes).write(header, iter(portions)))
        return pyarrow.Table.from_batches(batches).to_pylist() if batches else []

    return write_all


Write = Callable[..., list[dict[str, object]]]

COUNT = "SELECT TRANSACTIONALLY count(*) AS n FROM s.a a"
HEADER = BatchHeader(
    source="inv",
    timeline=1,
    from_lsn=900,
    to_lsn=1100,
    commit_ts_ms=0,
    event_count=1,
    transactions=((7, 1000, 0), (8, 1100, 0)),
    skipped=(),
)


@pytest.mark.parametrize("header", [HEADER, replace(HEADER, transactions=())])
def test_a_group_of_no_columns_is_there_from_the_first_commit_on(header: BatchHeader) -> None:
    """Also when the batch has no row: a global aggregate of an empty table is a row."""
    spec = packing_spec(compile_pipeline([("v.sql", COUNT)], parse_catalog({"schema.sql": DDL})), 8)
    changes = BatchChanges(BatchTask((), TransactionTable([])), "inv", ("s.a",))
    writer = PackedWriter(spec.to_json(), SCHEMA, changes)
    rows = pyarrow.Table.from_batches(list(writer.write(encode_batch_header(header), iter([])))).to_pylist()
    lsn = 1000 if header.transactions else 1100
    assert [row["stage"] for row in rows] == [0, *spec.touched]
    (row, *_) = rows[1:]
    assert row["bucket"] == bucket_of(EMPTY_KEY, 8)
    assert decode_events(0, row["payload"]) == [(lsn, TOUCH_INPUT, EMPTY_KEY, b"", None, 0)]


@pytest.fixture
def portion(row_value: Value, record: Record) -> Callable[..., tuple[OffsetSpan, list[Message]]]:
    """A portion of a partition with rows of these ids."""

    def make(partition: int, sequence: int, *ids: object) -> tuple[OffsetSpan, list[Message]]:
        span = OffsetSpan(TOPIC, partition, 0, 100, sequence)
        values = [row_value(7, 900, table="s.a", after={"id": i, "name": "n"}) for i in ids]
        return span, [
            record(value, topic=TOPIC, partition=partition, offset=i) for i, value in enumerate(values)
        ]

    return make


Portion = Callable[..., tuple[OffsetSpan, list[Message]]]


def test_the_header_comes_first(write: Write, portion: Portion) -> None:
    rows = write([portion(0, 0, 1)], header=b"header")
    assert rows[0] == {"stage": 0, "bucket": HEADER_BUCKET, "sequence": 0, "payload": b"header"}
    assert len(rows) == 2


def test_a_batch_without_rows_is_only_its_header(write: Write) -> None:
    assert write([], header=b"header") == [
        {"stage": 0, "bucket": HEADER_BUCKET, "sequence": 0, "payload": b"header"}
    ]
    assert write([]) == []


def test_payloads_do_not_depend_on_how_partitions_interleave(write: Write, portion: Portion) -> None:
    a, b, later_a = portion(0, 4, 1, 2), portion(1, 5, 3), portion(0, 4, 9)
    assert write([a, b, later_a]) == write([b, a, later_a]) == write([a, later_a, b])


def test_a_payload_has_the_number_of_its_span(write: Write, portion: Portion) -> None:
    rows = write([portion(1, 5, 3), portion(0, 4, *range(100))])
    assert [row["sequence"] for row in rows] == [4] * 8 + [5]
    assert [row["bucket"] for row in rows[:8]] == list(range(8))


def test_a_row_that_contradicts_its_table_is_bad_input_with_its_place(write: Write, portion: Portion) -> None:
    with pytest.raises(BadInputError, match=rf"topic {TOPIC}, partition 3, offset 1.*id") as caught:
        write([portion(3, 0, 1, "one", 2)])
    assert caught.value.value.startswith(b'{"before":null')


def test_what_a_failed_task_had_packed_is_not_in_the_next_one(write: Write, portion: Portion) -> None:
    clean = write([portion(0, 0, 5)])
    with pytest.raises(BadInputError):
        write([portion(0, 0, 1, "one")])
    assert write([portion(0, 0, 5)]) == clean
