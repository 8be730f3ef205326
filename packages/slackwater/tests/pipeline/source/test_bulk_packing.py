"""Packing in bulk gives what packing one by one gives, whatever the records are."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message

from slackwater.cdc import BadInputError
from slackwater.cdc.batch import BatchTask, OffsetSpan, TransactionTable
from slackwater.cdc.changes import BatchChanges
from slackwater.engine.packer import EventPacker, PackingSpec, packing_spec
from slackwater.engine.payloads import Event, PackedPayload, decode_events
from slackwater.engine.table_packer import TablePacker
from slackwater.pipeline.source.task import IdlePackers, pack_changes
from slackwater.protocol import SNAPSHOT_XID, CommittedTransaction
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.row_codec import UNAVAILABLE

Value = Callable[..., bytes]
Record = Callable[..., Message]

TABLE, TOPIC = "s.lines", "inv.s.lines"
DDL = """
CREATE TABLE s.lines (
    id bigint PRIMARY KEY, order_id bigint, product text, data bytea, tags text[], sizes int[]
);
ALTER TABLE s.lines REPLICA IDENTITY FULL;
"""
JOINED = """
SELECT TRANSACTIONALLY a.id, count(b.id) AS n, max(b.product) AS p, max(a.data) AS d, max(b.tags) AS t,
    max(a.sizes) AS s
FROM s.lines a LEFT JOIN s.lines b ON b.order_id = a.id GROUP BY a.id
"""
GROUPED = (
    "SELECT TRANSACTIONALLY l.order_id, list(l.product ORDER BY l.id) AS p FROM s.lines l GROUP BY l.order_id"
)
BASE64_UNAVAILABLE = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
NUMBERS = list(UNAVAILABLE.encode())
SPAN = OffsetSpan(TOPIC, 0, 0, 10_000, 3, after_lsn=1_000, up_to_lsn=9_000)
COMMITS = {7: 1_500, 8: 2_500, 9: 8_500, 10: 9_500, 11: 500}
"""The last two are not in the span."""


def spec_of(view: str) -> PackingSpec:
    return packing_spec(compile_pipeline([("v.sql", view)], parse_catalog({"schema.sql": DDL})), 8)


def rows(spec: PackingSpec, messages: list[Message]) -> list[PackedPayload]:
    transactions = [CommittedTransaction(xid, lsn, 0) for xid, lsn in COMMITS.items()]
    transactions.append(CommittedTransaction(SNAPSHOT_XID, 3_000, 0))
    task = BatchTask((SPAN,), TransactionTable(transactions), repeated=frozenset({8_500}))
    portions = [(SPAN, messages[start : start + 40]) for start in range(0, len(messages), 40)]
    return pack_changes(IdlePackers(spec), BatchChanges(task, "inv", (TABLE,)), None, iter(portions))


def events_of(row: PackedPayload) -> list[Event]:
    _, bucket, _, payload = row
    return decode_events(bucket, payload)


class RandomRecords:
    """Records of all kinds, regular ones most of the time."""

    def __init__(self, seed: int, value: Value, record: Record) -> None:
        self._random, self._value, self._record = random.Random(seed), value, record

    def make(self, count: int) -> list[Message]:
        return [self._record(self._one(), topic=TOPIC, offset=n, key=b"%d" % n) for n in range(count)]

    def _one(self) -> bytes | None:
        kind, xid = self._random.random(), self._random.choice([7, 7, 7, 7, 7, 8, 8, 9, 10, 11, 12])
        lsn = COMMITS.get(xid, 400) - self._random.randrange(300)
        if kind < 0.03:
            return None
        if kind < 0.05:
            return self._value(None, 3_000, op="r", table=TABLE, snapshot="true", after=self._row())
        if kind < 0.07:
            return self._value(xid, lsn, op="t", table=TABLE)
        if kind < 0.4:
            return self._value(xid, lsn, op="c", table=TABLE, after=self._row())
        if kind < 0.6:
            return self._value(xid, lsn, op="d", table=TABLE, before=self._row())
        before = self._row()
        after = {**before, **self._random.choice([{}, {"order_id": 5}, {"product": "z"}, self._left_out()])}
        return self._value(xid, lsn, op="u", table=TABLE, before=before, after=after)

    def _left_out(self) -> dict[str, object]:
        left_out = {
            "product": UNAVAILABLE,
            "data": BASE64_UNAVAILABLE,
            "tags": [UNAVAILABLE],
            "sizes": NUMBERS,
        }
        name = self._random.choice(list(left_out))
        return {name: left_out[name]}

    def _row(self) -> dict[str, Any]:
        pick = self._random.choice
        return {
            "id": self._random.randrange(50),
            "order_id": pick([None, 1, 2, 2**40]),
            "product": pick([None, "", "p", f"not {UNAVAILABLE}"]),
            "data": pick([None, "AAEC"]),
            "tags": pick([None, [], ["a", None]]),
            "sizes": pick([None, [], [95, None]]),
            "unused": pick([None, 1.5, {"a": [1]}]),
        }


def not_regular(*_: object) -> None:
    raise ValueError


@pytest.mark.parametrize("view", [JOINED, GROUPED])
@pytest.mark.parametrize("seed", range(10))
def test_packing_in_bulk_gives_what_packing_one_by_one_gives(
    view: str, seed: int, row_value: Value, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, spec = RandomRecords(seed, row_value, record).make(400), spec_of(view)
    in_bulk = rows(spec, messages)
    monkeypatch.setattr(TablePacker, "decode", not_regular)
    one_by_one = rows(spec, messages)
    assert [events_of(row) for row in in_bulk] == [events_of(row) for row in one_by_one]
    assert in_bulk == one_by_one


def test_regular_records_are_packed_in_bulk(
    row_value: Value, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"id": 1, "order_id": 2, "product": "p", "data": None, "tags": None, "sizes": None}
    value = row_value(7, 1_400, op="u", table=TABLE, before=row, after={**row, "order_id": 3})
    monkeypatch.delattr(TablePacker, "add")
    found = rows(spec_of(GROUPED), [record(value, topic=TOPIC)])
    events = [event for row in found for event in events_of(row)]
    assert sorted(events, key=lambda event: event[2]) == [
        (1_500, 0, b"\x91\x02", b"\x91\x01", None, 201),
        (1_500, 0, b"\x91\x03", b"\x91\x01", b"\x93\x01\x03\xa1p", 200),
    ]


@pytest.mark.parametrize("key", [b'{"order_id":2}', None])
def test_a_primary_key_that_changes_in_one_record_leaves_the_old_one(
    key: bytes | None, row_value: Value, record: Record
) -> None:
    row = {"id": 1, "order_id": 2, "product": "p", "data": None, "tags": None, "sizes": None}
    value = row_value(7, 1_400, op="u", table=TABLE, before=row, after={**row, "id": 9})
    events = [
        event
        for row in rows(spec_of(GROUPED), [record(value, topic=TOPIC, key=key)])
        for event in events_of(row)
    ]
    assert [(event[3], event[4] is None) for event in events] == [(b"\x91\x01", True), (b"\x91\x09", False)]


def test_an_array_of_integers_that_a_record_leaves_out_marks_the_row_as_incomplete(
    row_value: Value, record: Record
) -> None:
    ddl = "CREATE TABLE s.lines (id bigint PRIMARY KEY, sizes int[])"
    view = "SELECT TRANSACTIONALLY l.id, l.sizes FROM s.lines l"
    spec = packing_spec(compile_pipeline([("v.sql", view)], parse_catalog({"schema.sql": ddl})), 8)
    value = row_value(7, 1_400, op="u", table=TABLE, after={"id": 1, "sizes": NUMBERS})
    (row,) = rows(spec, [record(value, topic=TOPIC)])
    ((*_, packed, _),) = events_of(row)
    assert isinstance(packed, tuple)


@pytest.mark.parametrize("value", [b"", b"null", b"{}", b'{"op":"u"}', b'{"op":"c"} {}', b"\xff"])
def test_what_is_no_change_event_is_bad_input_with_its_place(
    value: bytes, row_value: Value, record: Record
) -> None:
    good = row_value(
        7,
        1_400,
        table=TABLE,
        after=dict.fromkeys(("order_id", "product", "data", "tags", "sizes")) | {"id": 1},
    )
    with pytest.raises(BadInputError, match=rf"topic {TOPIC}, partition 0, offset 1\b"):
        rows(spec_of(GROUPED), [record(good, topic=TOPIC), record(value, topic=TOPIC, offset=1)])


def test_a_row_that_contradicts_its_table_is_bad_input_with_its_place(
    row_value: Value, record: Record
) -> None:
    row = dict.fromkeys(("order_id", "product", "data", "tags", "sizes"))
    good = row_value(7, 1_400, table=TABLE, after=row | {"id": 1})
    bad = row_value(7, 1_400, table=TABLE, after=row | {"id": "1"})
    with pytest.raises(BadInputError, match=rf"topic {TOPIC}, partition 0, offset 1\b.*id"):
        rows(spec_of(GROUPED), [record(good, topic=TOPIC), record(bad, topic=TOPIC, offset=1)])


def test_a_table_with_numbers_that_have_several_forms_is_packed_one_by_one() -> None:
    ddl = "CREATE TABLE s.t (id bigint PRIMARY KEY, x double precision)"
    view = "SELECT TRANSACTIONALLY t.id, max(t.x) AS x FROM s.t t GROUP BY t.id"
    spec = packing_spec(compile_pipeline([("v.sql", view)], parse_catalog({"schema.sql": ddl})), 8)
    with pytest.raises(ValueError, match=r"no record of s\.t"):
        EventPacker(spec).table("s.t").decode([b"{}"])


def test_events_are_in_order_however_often_they_are_made_bytes() -> None:
    spec = spec_of(GROUPED)

    def packed(settle_every: int) -> list[tuple[int, int, list[Event]]]:
        packer = EventPacker(spec)
        for number in range(200):
            row = {"id": number, "order_id": number % 3, "product": None}
            packer.table(TABLE).add("c", 1_000 + number, None, json.dumps(row).encode())
            if not number % settle_every:
                packer.settle()
        return [(stage, bucket, decode_events(bucket, each)) for stage, bucket, each in packer.payloads()]

    assert packed(1) == packed(7) == packed(1_000)
