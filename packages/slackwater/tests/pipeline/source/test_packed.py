"""Changes packed for a stage."""

from collections.abc import Callable

import pytest
from confluent_kafka import Message

from slackwater.cdc import BadInputError
from slackwater.cdc.batch import BatchTask, OffsetSpan, TransactionTable
from slackwater.cdc.change_writer import ChangeWriter, EventSource, WrittenCommit
from slackwater.cdc.changes import BatchChanges
from slackwater.engine.packer import PackingSpec, packing_spec
from slackwater.engine.payloads import (
    EMPTY_KEY,
    TOUCH_INPUT,
    TOUCH_SEQUENCE,
    PackedPayload,
    bucket_of,
    decode_events,
)
from slackwater.engine.settings import FormProof
from slackwater.pipeline.source.task import IdlePackers, pack_changes
from slackwater.protocol import CommittedTransaction
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

Value = Callable[..., bytes]
Record = Callable[..., Message]
Portions = list[tuple[OffsetSpan, list[Message]]]
Write = Callable[..., list[PackedPayload]]

TOPIC = "inv.s.a"
DDL = "CREATE TABLE s.a (id bigint PRIMARY KEY, name text);"
VIEW = "SELECT TRANSACTIONALLY a.id, list(a.name ORDER BY a.name) AS names FROM s.a a GROUP BY a.id"


COUNT = "SELECT TRANSACTIONALLY count(*) AS n FROM s.a a"


def spec_of(view: str, proof: FormProof = FormProof.CONFIGURATION) -> PackingSpec:
    plan = compile_pipeline([("v.sql", view)], parse_catalog({"schema.sql": DDL}))
    return packing_spec(plan, 8, proof=proof)


@pytest.fixture
def write() -> Write:
    packers = IdlePackers(spec_of(VIEW))

    def write_all(portions: Portions, touch_lsn: int | None = None) -> list[PackedPayload]:
        table = TransactionTable([CommittedTransaction(7, 1000, 0)])
        changes = BatchChanges(BatchTask((), table), "inv", ("s.a",))
        return pack_changes(packers, changes, touch_lsn, iter(portions))

    return write_all


@pytest.fixture
def no_changes() -> BatchChanges:
    return BatchChanges(BatchTask((), TransactionTable([])), "inv", ("s.a",))


def test_a_group_of_no_columns_is_there_from_the_first_commit_on(no_changes: BatchChanges) -> None:
    """Also when the batch has no row: a global aggregate of an empty table is a row."""
    spec = spec_of(COUNT)
    rows = pack_changes(IdlePackers(spec), no_changes, 1000, iter([]))
    assert [(stage, bucket, sequence) for stage, bucket, sequence, _ in rows] == [
        (stage, bucket_of(EMPTY_KEY, 8), TOUCH_SEQUENCE) for stage in spec.touched
    ]
    assert spec.touched
    for _, bucket, _, payload in rows:
        assert decode_events(bucket, payload) == [(1000, TOUCH_INPUT, EMPTY_KEY, b"", None, 0)]


def test_only_one_task_of_a_batch_says_that_groups_of_no_columns_are_there(
    no_changes: BatchChanges,
) -> None:
    assert pack_changes(IdlePackers(spec_of(COUNT)), no_changes, None, iter([])) == []


def test_groups_that_have_columns_are_not_touched(write: Write) -> None:
    assert write([], touch_lsn=1000) == []


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


def test_payloads_do_not_depend_on_how_partitions_interleave(write: Write, portion: Portion) -> None:
    a, b, later_a = portion(0, 4, 1, 2), portion(1, 5, 3), portion(0, 4, 9)
    assert write([a, b, later_a]) == write([b, a, later_a]) == write([a, later_a, b])


def test_a_payload_has_the_number_of_its_span(write: Write, portion: Portion) -> None:
    rows = write([portion(1, 5, 3), portion(0, 4, *range(100))])
    assert [sequence for _, _, sequence, _ in rows] == [4] * 8 + [5]
    assert [bucket for _, bucket, _, _ in rows[:8]] == list(range(8))


def test_a_row_that_contradicts_its_table_is_bad_input_with_its_place(write: Write, portion: Portion) -> None:
    with pytest.raises(BadInputError, match=rf"topic {TOPIC}, partition 3, offset 1.*id") as caught:
        write([portion(3, 0, 1, "one", 2)])
    assert caught.value.value.startswith(b'{"before":null')


def test_what_a_failed_task_had_packed_is_not_in_the_next_one(write: Write, portion: Portion) -> None:
    clean = write([portion(0, 0, 5)])
    with pytest.raises(BadInputError):
        write([portion(0, 0, 1, "one")])
    assert write([portion(0, 0, 5)]) == clean


CHANGES: dict[str, dict[str, object]] = {
    "c": {"after": {"id": 1, "name": "n"}},
    "u": {"after": {"id": 1, "name": "m"}},
    "d": {"before": {"id": 1, "name": None}},
    "t": {},
}


@pytest.mark.parametrize("op", CHANGES)
def test_records_that_only_a_connector_can_have_written_are_refused_if_the_writer_is_the_proof(
    row_value: Value, record: Record, op: str
) -> None:
    """At any place among own ones; those of other commits, which are not shown, do not matter."""
    packers = IdlePackers(spec_of(VIEW, FormProof.WRITER))
    table = TransactionTable([CommittedTransaction(7, 1000, 0)])
    foreign = row_value(7, 900, op=op, table="s.a", **CHANGES[op])
    own = foreign.replace(b'"connector":"postgresql"', b'"version":"slackwater"')
    other = row_value(8, 900, op=op, table="s.a", **CHANGES[op])

    def pack(*values: bytes) -> list[PackedPayload]:
        span = OffsetSpan(TOPIC, 0, 0, 100, 0)
        messages = [record(value, topic=TOPIC, offset=n) for n, value in enumerate(values)]
        changes = BatchChanges(BatchTask((), table), "inv", ("s.a",))
        return pack_changes(packers, changes, None, iter([(span, messages)]))

    assert pack(own, other, own)
    for version in (b'"version":"3.7.0.Final"', b'"version":null', b'"connector":"slackwater"'):
        wrong = foreign.replace(b'"connector":"postgresql"', version)
        for values in ([wrong], [own, wrong], [wrong, own]):
            with pytest.raises(BadInputError, match=r"s\.a that neither a pipeline nor .*connect\.url"):
                pack(*values)
    assert IdlePackers(spec_of(VIEW)).take().takes_only_own is False


def test_what_a_pipeline_or_a_service_writes_is_proof(record: Record) -> None:
    """Many at a time, too: it is as fast as records of a connector that is known."""
    changes = ChangeWriter(EventSource("inv", "d"), WrittenCommit(7, 1000, 0, 9), 10)
    row = b'{"id": 1, "name": "n"}'
    values = [changes.table("s", "a").event(None, row), changes.table("s", "a").event(row, None)]
    packer = IdlePackers(spec_of(VIEW, FormProof.WRITER)).take()
    assert len(packer.table("s.a").decode(values)) == 2
