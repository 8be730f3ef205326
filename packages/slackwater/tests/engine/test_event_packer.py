import contextlib
import json
from collections.abc import Sequence
from typing import Any

import pytest

from slackwater.cdc.changes import SpanTransactions
from slackwater.engine.packer import EventPacker, PackingSpec, packing_spec
from slackwater.engine.payloads import Event, Events, bucket_of, decode_events
from slackwater.engine.settings import FormProof
from slackwater.engine.table_packer import TablePacker
from slackwater.protocol import InputError
from slackwater.sql.errors import RowContradictsSchemaError
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.row_codec import UNAVAILABLE

ORDERS, LINES = "inventory.orders", "inventory.order_lines"
KEY_1, KEY_2, KEY_NULL = b"\x91\x01", b"\x91\x02", b"\x91\xc0"
LINE_7 = b"\x91\x07"
SOURCE = {"schema": "s", "table": "t", "txId": 5, "lsn": 99}
WINDOW = SpanTransactions("s.t", {5: 100}.get, (), 0, 100)


@pytest.fixture
def spec(plan: EnginePlan) -> PackingSpec:
    return packing_spec(plan, 1)


def packed(spec: PackingSpec, *changes: tuple[str, str, Any, Any]) -> list[Event]:
    packer = EventPacker(spec)
    for lsn, (table, op, before, after) in enumerate(changes, 100):
        packer.table(table).add(op, lsn, _json(before), _json(after))
    return [event for _, bucket, payload in packer.payloads() for event in decode_events(bucket, payload)]


def _json(row: dict[str, Any] | None) -> bytes | None:
    return None if row is None else json.dumps(row).encode()


def order(order_id: int = 1, customer: str = "a") -> dict[str, Any]:
    return {"id": order_id, "customer": customer, "total": None}


def line(order_id: int | None, product: str = "x") -> dict[str, Any]:
    return {"id": 7, "order_id": order_id, "product": product}


@pytest.mark.parametrize("op", ["c", "r"])
def test_an_inserted_row_is_an_upsert_under_its_key(spec: PackingSpec, op: str) -> None:
    assert packed(spec, (LINES, op, None, line(1))) == [(100, 1, KEY_1, LINE_7, b"\x93\x07\x01\xa1x", 201)]


def test_an_update_that_keeps_the_key_is_one_upsert(spec: PackingSpec) -> None:
    events = packed(spec, (LINES, "u", line(1), line(1, "y")))
    assert events == [(100, 1, KEY_1, LINE_7, b"\x93\x07\x01\xa1y", 201)]


def test_an_update_that_changes_the_key_leaves_the_old_one(spec: PackingSpec) -> None:
    events = packed(spec, (LINES, "u", line(1), line(2)))
    assert [event[2:5] for event in events] == [
        (KEY_1, LINE_7, None),
        (KEY_2, LINE_7, b"\x93\x07\x02\xa1x"),
    ]


def test_an_update_needs_no_old_row_where_the_key_is_the_primary_key(spec: PackingSpec) -> None:
    assert [event[2] for event in packed(spec, (ORDERS, "u", None, order()))] == [KEY_1]


def test_an_update_without_the_old_row_names_the_remedy_where_rows_can_move(spec: PackingSpec) -> None:
    with pytest.raises(InputError, match=r"order_id.*ALTER TABLE inventory.order_lines REPLICA IDENTITY"):
        packed(spec, (LINES, "u", None, line(1)))


UNTOLD: dict[str, Any] = {
    "id": 0,
    "name": "",
    "a": 0,
    "n": "0.00",
    "made": "1970-01-01T00:00:00.000000Z",
    "tags": [],
    "is_new": False,
    "ratio": 0.0,
    "level": 5,
    "note": None,
}
"""What Debezium writes of a row with the key (0, "") if the database tells only the primary key."""


@pytest.mark.parametrize("told", [{}, {"id": 1, "name": "x", "a": 9}, {"level": 6}])
def test_a_delete_of_a_row_whose_key_is_zero_and_empty_is_packed(told: dict[str, Any]) -> None:
    for used in (tuple(UNTOLD), ("id", "name")):
        (event,) = packed(untold_spec(used), ("s.t", "d", UNTOLD | told, None))
        assert event[4] is None


@pytest.mark.parametrize(
    "told", [{"a": 9}, {"n": "0.01"}, {"made": "2020-01-01T00:00:00Z"}, {"tags": ["x"]}, {"is_new": True}]
)
def test_a_delete_that_tells_another_index_than_the_primary_key_is_refused(told: dict[str, Any]) -> None:
    (column,) = told
    for used in (tuple(UNTOLD), ("id", "name")):
        with pytest.raises(
            InputError, match=rf"s\.t tells no primary key, or not all of it, but column {column}: its REPL"
        ):
            packed(untold_spec(used), ("s.t", "d", UNTOLD | told, None))


FILLERS: dict[str, tuple[Any, Any]] = {
    "smallint": (1, 0),
    "bigint": (1, 0),
    "bigserial": (1, 0),
    "boolean": (True, False),
    "real": (1.5, 0.0),
    "float8": (1.5, 0.0),
    "numeric(10, 2)": ("1.25", "0.00"),
    "numeric": ("1.25", "0"),
    "text": ("a", ""),
    "varchar(9)": ("a", ""),
    "char(5)": ("a    ", ""),
    "citext": ("a", ""),
    "s.mood": ("ok", ""),
    "inet": ("10.0.0.1", ""),
    "date": (20778, 0),
    "time": (36672123456, 0),
    "time(3)": (36672123, 0),
    "timestamp": (1795255872123456, 0),
    "timestamp(3)": (1795255872123, 0),
    "timestamptz": ("2021-01-01T00:00:00.000000Z", "1970-01-01T00:00:00Z"),
    "uuid": ("550e8400-e29b-41d4-a716-446655440000", ""),
    "jsonb": ('{"a": 1}', ""),
    "bytea": ("3q2+7w==", ""),
    "interval": ("P0Y1M2DT0H0M0S", "P0Y0M0DT0H0M0S"),
    "bit(1)": (True, False),
    "bit(10)": ("gQI=", ""),
    "int4range": ("[1,6)", ""),
    "int[]": ([1], []),
    "text[]": (["a"], []),
    "bigint DEFAULT 7": (1, 7),
    "text DEFAULT 'x'": ("a", "x"),
    "date DEFAULT '2020-01-01'": (18628, 18262),
    "timestamptz DEFAULT now()": ("2021-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000000Z"),
    "uuid DEFAULT gen_random_uuid()": (
        "550e8400-e29b-41d4-a716-446655440000",
        "00000000-0000-0000-0000-000000000000",
    ),
}
"""By the declaration of a primary key: one, and what Debezium 3.7 writes for it if the database tells another
index. As observed: the test of all types behind a real connector finds out if it changes."""


@pytest.mark.parametrize("declared", FILLERS)
def test_a_key_of_any_type_that_the_database_has_not_told_deletes_no_row(declared: str) -> None:
    key, filler = FILLERS[declared]
    columns = f"key {declared} PRIMARY KEY, other int NOT NULL, note text"
    catalog = parse_catalog({"": f"CREATE TYPE s.mood AS ENUM ('ok'); CREATE TABLE s.t ({columns});"})
    chosen = "to_base64(key) AS key" if declared == "bytea" else "key"
    view = f"SELECT TRANSACTIONALLY note, {chosen} FROM s.t"  # noqa: S608 - our own
    spec = packing_spec(compile_pipeline([("v.sql", view)], catalog), 1)
    untold = {"key": filler, "other": 10, "note": None}
    for row in (untold, {**untold, "other": 11}):
        with pytest.raises(
            InputError, match=r"s\.t tells no primary key, or not all of it, but column other"
        ):
            packed(spec, ("s.t", "d", row, None))
    record = {"op": "d", "source": SOURCE, "transaction": {}, "before": untold, "after": None}
    packer = TablePacker([(*spec.inputs[0][1:], {})], 1)
    with contextlib.suppress(ValueError):  # the record is not regular
        assert packer.add_regular(packer.decode([json.dumps(record).encode()]), WINDOW) == 0
    (event,) = packed(spec, ("s.t", "d", {"key": key, "other": 0, "note": None}, None))
    assert event[4] is None
    (event,) = packed(spec, ("s.t", "d", {"key": key, "other": 10, "note": "n"}, None))
    assert event[4] is None, "no index of a replica identity has a column that may be NULL: this one is FULL"


def test_an_update_that_tells_another_index_than_the_primary_key_moves_no_row() -> None:
    catalog = parse_catalog({"": "CREATE TABLE s.t (id int PRIMARY KEY, k int NOT NULL);"})
    spec = packing_spec(compile_pipeline([("v.sql", "SELECT TRANSACTIONALLY id, k FROM s.t")], catalog), 1)
    with pytest.raises(InputError, match=r"s\.t tells no primary key.* but column k"):
        packed(spec, ("s.t", "u", {"id": 0, "k": 10}, {"id": 3, "k": 11}))
    (event,) = packed(spec, ("s.t", "u", {"id": 0, "k": 10}, {"id": 0, "k": 11}))
    assert event[4] is not None


@pytest.mark.parametrize("told", [{"id": 3, "k": 9}, {"part": 2, "k": 9}])
def test_a_delete_that_tells_an_index_with_a_part_of_the_primary_key_is_refused(told: dict[str, int]) -> None:
    columns = "id int, part int, k int NOT NULL, PRIMARY KEY (id, part)"
    catalog = parse_catalog({"": f"CREATE TABLE s.t ({columns});"})
    spec = packing_spec(compile_pipeline([("v.sql", "SELECT TRANSACTIONALLY id, part FROM s.t")], catalog), 1)
    untold = {"id": 0, "part": 0, "k": 0}
    with pytest.raises(InputError, match="not all of it, but column k"):
        packed(spec, ("s.t", "d", {**untold, **told}, None))
    (event,) = packed(spec, ("s.t", "d", {**untold, **told, "k": 0}, None))
    assert event[4] is None, "the primary key has a zero"


@pytest.mark.parametrize(("key", "count"), [(0, 0), (1, 1)])
def test_a_delete_whose_key_may_stand_for_an_unknown_one_is_no_regular_record(key: int, count: int) -> None:
    tables = parse_catalog({"": "CREATE TABLE s.t (id bigint PRIMARY KEY, k text NOT NULL);"})
    plan = compile_pipeline([("v.sql", "SELECT TRANSACTIONALLY id, k FROM s.t")], tables)
    record = {"op": "d", "source": SOURCE, "transaction": {}, "before": {"id": key, "k": "x"}, "after": None}
    packer = TablePacker([(*packing_spec(plan, 1).inputs[0][1:], {})], 1)
    assert packer.add_regular(packer.decode([json.dumps(record).encode()]), WINDOW) == count


def untold_spec(used: Sequence[str]) -> PackingSpec:
    columns = (
        "id int, name text, a int NOT NULL, n numeric(8, 2) NOT NULL, made timestamptz NOT NULL, "
        "tags text[] NOT NULL, is_new boolean NOT NULL, ratio float8 NOT NULL, "
        "level int DEFAULT 5 NOT NULL, note text"
    )
    catalog = parse_catalog({"": f"CREATE TABLE s.t ({columns}, PRIMARY KEY (id, name));"})
    view = f"SELECT TRANSACTIONALLY {', '.join(used)} FROM s.t"  # noqa: S608 - our own
    return packing_spec(compile_pipeline([("v.sql", view)], catalog), 1)


@pytest.mark.parametrize("is_regular", [True, False])
def test_an_update_without_the_old_row_of_a_table_that_is_declared_full_is_refused(
    *, is_regular: bool
) -> None:
    tables = "CREATE TABLE s.t (id bigint PRIMARY KEY, k text);"
    full = "ALTER TABLE s.t REPLICA IDENTITY FULL;"
    view = "SELECT TRANSACTIONALLY id, k FROM s.t"

    def update(ddl: str, before: dict[str, Any] | None) -> list[Event]:
        spec = packing_spec(compile_pipeline([("v.sql", view)], parse_catalog({"t.sql": ddl})), 1)
        after = {"id": 7, "k": "x"}
        if not is_regular:
            return packed(spec, ("s.t", "u", before, after))
        record = {"op": "u", "source": SOURCE, "transaction": {}, "before": before, "after": after}
        events: Events = {}
        packer = TablePacker([(*spec.inputs[0][1:], events)], 1)
        envelopes = packer.decode([json.dumps(record).encode()])
        if packer.add_regular(envelopes, WINDOW) == 0:
            packer.add("u", 100, _json(before), _json(after))
            packer.flush()
        return events[0]

    assert len(update(tables, None)) == len(update(tables + full, {"id": 7, "k": "y"})) == 1
    with pytest.raises(InputError, match=r"s\.t contains no old row, but .* FULL"):
        update(tables + full, None)


def test_a_delete_needs_the_primary_key_only_where_it_is_the_key(spec: PackingSpec) -> None:
    assert packed(spec, (ORDERS, "d", {"id": 1, "customer": None}, None)) == [
        (100, 0, KEY_1, KEY_1, None, 201)
    ]


def test_a_delete_is_packed_under_the_old_key(spec: PackingSpec) -> None:
    assert packed(spec, (LINES, "d", line(2), None)) == [(100, 1, KEY_2, LINE_7, None, 201)]


def test_rows_with_a_null_key_are_left_out_where_the_view_does_not_have_them(spec: PackingSpec) -> None:
    assert packed(spec, (LINES, "c", None, line(None)), (LINES, "d", line(None), None)) == []


def test_a_row_that_gets_or_loses_its_key_comes_and_goes(spec: PackingSpec) -> None:
    events = packed(spec, (LINES, "u", line(None), line(1)), (LINES, "u", line(1), line(None)))
    assert [(lsn, key, row is None) for lsn, _, key, _, row, _ in events] == [
        (100, KEY_1, False),
        (101, KEY_1, True),
    ]


def test_rows_with_a_null_key_are_a_group_where_the_view_has_them() -> None:
    tables = "CREATE TABLE s.t (id bigint PRIMARY KEY, k text); ALTER TABLE s.t REPLICA IDENTITY FULL;"
    view = "SELECT TRANSACTIONALLY t.k, list(t.id ORDER BY t.id) AS ids FROM s.t t GROUP BY t.k"
    plan = compile_pipeline([("v.sql", view)], parse_catalog({"t.sql": tables}))
    events = packed(packing_spec(plan, 1), ("s.t", "c", None, {"id": 7, "k": None}))
    assert [event[2] for event in events] == [KEY_NULL]


def test_a_value_that_the_record_leaves_out_marks_the_row_as_incomplete(spec: PackingSpec) -> None:
    (event,) = packed(spec, (ORDERS, "u", None, order(customer=UNAVAILABLE)))
    assert isinstance(event[4], tuple)


def test_a_value_that_the_record_leaves_out_is_taken_from_the_old_row(spec: PackingSpec) -> None:
    events = packed(spec, (LINES, "u", line(1), line(2, UNAVAILABLE)))
    assert events[1][4] == b"\x93\x07\x02\xa1x"


def test_a_row_that_moves_without_one_of_its_values_is_refused(spec: PackingSpec) -> None:
    with pytest.raises(InputError, match="TOAST"):
        packed(spec, (LINES, "u", line(1, UNAVAILABLE), line(2, UNAVAILABLE)))


def test_a_text_that_only_contains_the_placeholder_is_a_value(spec: PackingSpec) -> None:
    (event,) = packed(spec, (ORDERS, "c", None, order(customer=f"not {UNAVAILABLE}")))
    assert isinstance(event[4], bytes)


def test_a_truncate_goes_to_every_bucket_of_every_input_of_its_table(plan: EnginePlan) -> None:
    packer = EventPacker(packing_spec(plan, 5))
    packer.table(LINES).add("t", 100, None, None, 93)

    payloads = {bucket: decode_events(bucket, payload) for _, bucket, payload in packer.payloads()}
    assert payloads == {bucket: [(100, 1, b"", b"", None, 15)] for bucket in range(5)}


def test_an_event_says_how_far_it_lies_before_its_commit(spec: PackingSpec) -> None:
    packer = EventPacker(spec)
    for lsn in (97, 100, None):
        packer.table(ORDERS).add("c", 100, None, _json(order()), lsn)

    ((_, bucket, payload),) = packer.payloads()
    assert [event[5] for event in decode_events(bucket, payload)] == [6, 0, 201]


def test_an_event_says_whether_the_change_brings_another_row_under_its_key(spec: PackingSpec) -> None:
    changes = [
        ("c", None, line(1)),
        ("u", line(1), line(1, "y")),
        ("u", line(1), line(2)),
        ("d", line(2), None),
    ]
    packer = EventPacker(spec)
    for number, (op, before, after) in enumerate(changes):
        packer.table(LINES).add(op, 100, _json(before), _json(after), 90 + number)

    events = [event for _, bucket, payload in packer.payloads() for event in decode_events(bucket, payload)]
    assert [(event[2], event[4] is None, event[5] & 1) for event in events] == [
        (KEY_1, False, 0),
        (KEY_1, False, 1),
        (KEY_1, True, 1),
        (KEY_2, False, 0),
        (KEY_2, True, 1),
    ]


def test_old_rows_are_packed_on_request_and_only_of_tables_whose_records_have_them(spec: PackingSpec) -> None:
    packer = EventPacker(spec, keeps_old=True)
    packer.table(LINES).add("u", 100, _json(line(1)), _json(line(1, "y")), 90)
    packer.table(LINES).add("u", 100, _json(line(1, "y")), _json(line(2)), 91)
    packer.table(ORDERS).add("d", 100, _json({"id": 1, "customer": None}), None, 92)

    events = [event for _, bucket, payload in packer.payloads() for event in decode_events(bucket, payload)]
    assert [event[4] for event in events] == [
        None,
        (b"\x93\x07\x01\xa1y", b"\x93\x07\x01\xa1x"),
        (None, b"\x93\x07\x01\xa1y"),
        b"\x93\x07\x02\xa1x",
    ]


@pytest.mark.parametrize("keeps_old", [False, True])
def test_an_update_of_the_primary_key_may_be_one_record(spec: PackingSpec, keeps_old: bool) -> None:
    packer = EventPacker(spec, keeps_old=keeps_old)
    packer.table(LINES).add("u", 100, _json(line(1)), _json({**line(1), "id": 8}), 90)

    events = [event for _, bucket, payload in packer.payloads() for event in decode_events(bucket, payload)]
    old = (None, b"\x93\x07\x01\xa1x") if keeps_old else None
    assert [event[2:] for event in events] == [
        (KEY_1, LINE_7, old, 21),
        (KEY_1, b"\x91\x08", b"\x93\x08\x01\xa1x", 20),
    ]
    assert packer.table(LINES).is_key(b'{"id":7}')
    assert not any(map(packer.table(LINES).is_key, (None, b'{"order_id":1}', b'{"id":7,"order_id":1}')))


def test_an_operation_nobody_knows_is_refused(spec: PackingSpec) -> None:
    with pytest.raises(InputError, match="'m'"):
        packed(spec, (ORDERS, "m", None, None))


def test_a_table_the_view_does_not_read_is_refused(spec: PackingSpec) -> None:
    with pytest.raises(InputError, match=r"inventory\.notes"):
        packed(spec, ("inventory.notes", "c", None, order()))


@pytest.mark.parametrize("op", ["c", "u", "r", "d"])
def test_an_operation_without_its_row_is_refused(spec: PackingSpec, op: str) -> None:
    with pytest.raises(InputError, match=op):
        packed(spec, (ORDERS, op, None, None))


def test_a_row_that_contradicts_its_table_is_refused(spec: PackingSpec) -> None:
    with pytest.raises(RowContradictsSchemaError, match="customer"):
        packed(spec, (ORDERS, "c", None, order() | {"customer": 5}))


def test_payloads_come_by_bucket_and_leave_the_packer_empty(plan: EnginePlan) -> None:
    packer = EventPacker(packing_spec(plan, 8))
    for number in range(50):
        packer.table(ORDERS).add("c", 1, None, _json(order(number)))
    payloads = list(packer.payloads())
    buckets = [bucket for _, bucket, _ in payloads]
    assert buckets == sorted(set(buckets))
    events = [(bucket, event) for _, bucket, data in payloads for event in decode_events(bucket, data)]
    assert all(bucket_of(event[2], 8) == bucket for bucket, event in events)
    assert len(events) == 50
    assert list(packer.payloads()) == []


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_any_number_of_events_is_packed_as_an_array_of_so_many(spec: PackingSpec, count: int) -> None:
    """The header of an array takes another width from 16 and from 65,536 items on."""
    packer = EventPacker(spec)
    deleted = _json(order())
    for lsn in range(count):
        packer.table(ORDERS).add("d", lsn, deleted, None)
    packer.settle()
    (payload,) = [payload for _, _, payload in packer.payloads()]
    assert [event[0] for event in decode_events(0, payload)] == list(range(count))


def test_events_of_a_bucket_keep_their_order(spec: PackingSpec) -> None:
    events = packed(spec, *[(ORDERS, "u", None, order(1, str(n))) for n in range(100)])
    assert [event[0] for event in events] == list(range(100, 200))


def test_a_table_that_feeds_two_inputs_is_packed_for_both() -> None:
    tables = "CREATE TABLE s.t (id bigint PRIMARY KEY, p bigint); ALTER TABLE s.t REPLICA IDENTITY FULL;"
    view = (
        "SELECT TRANSACTIONALLY a.id, count(b.id) AS n FROM s.t a LEFT JOIN s.t b ON b.p = a.id GROUP BY a.id"
    )
    plan = compile_pipeline([("v.sql", view)], parse_catalog({"t.sql": tables}))
    events = packed(packing_spec(plan, 1), ("s.t", "c", None, {"id": 7, "p": 1}))
    assert [event[1:4] for event in events] == [(0, LINE_7, LINE_7), (1, KEY_1, LINE_7)]


def test_the_bucket_of_a_key_never_changes() -> None:
    """State in checkpoints depends on it."""
    assert [bucket_of(key, 64) for key in (KEY_1, KEY_2, KEY_NULL, b"\x91\xa3abc")] == [50, 8, 20, 6]


def test_a_change_is_packed_for_every_input_of_every_stage_that_reads_its_table() -> None:
    tables = """
    CREATE TABLE s.a (id bigint PRIMARY KEY, b bigint);
    CREATE TABLE s.b (id bigint PRIMARY KEY, c bigint);
    ALTER TABLE s.a REPLICA IDENTITY FULL;
    """
    views = {
        "pairs.sql": "SELECT TRANSACTIONALLY x.id, y.id AS other FROM s.a x JOIN s.a y ON y.b = x.b",
        "named.sql": "SELECT TRANSACTIONALLY a.id, b.c FROM s.a a JOIN s.b b ON b.id = a.b",
    }
    plan = compile_pipeline(list(views.items()), parse_catalog({"t.sql": tables}))
    spec = packing_spec(plan, 3)
    readers = {(i.stage, i.number) for i in spec.inputs if i.plan.table.full_name == "s.a"}
    assert len(readers) == 3
    packer = EventPacker(spec)
    packer.table("s.a").add("c", 10, None, b'{"id": 1, "b": 2}')
    events = [(stage, *event) for stage, _, data in packer.payloads() for event in decode_events(0, data)]
    assert {(stage, number) for stage, _, number, *_ in events} == readers
    packer.table("s.a").add("t", 20, None, None)
    truncates = [
        (stage, bucket, event[1])
        for stage, bucket, data in packer.payloads()
        for event in decode_events(bucket, data)
    ]
    assert sorted(truncates) == sorted((*reader[:1], b, reader[1]) for reader in readers for b in range(3))


def test_values_prove_their_form_if_nobody_knows_it() -> None:
    ddl = "CREATE TABLE s.t (id bigint PRIMARY KEY, stamp timestamp);"
    plan = compile_pipeline(
        [("v.sql", "SELECT TRANSACTIONALLY id, stamp FROM s.t")], parse_catalog({"": ddl})
    )
    milliseconds = ("s.t", "c", None, {"id": 7, "stamp": 1_795_255_872_123})
    assert len(packed(packing_spec(plan, 1), milliseconds)) == 1
    with pytest.raises(RowContradictsSchemaError, match=r"Set connect\.url"):
        packed(packing_spec(plan, 1, proof=FormProof.VALUES), milliseconds)
    after = {"field": "after", "fields": [{"field": "stamp", "name": "io.debezium.time.MicroTimestamp"}]}
    packer = EventPacker(packing_spec(plan, 1, proof=FormProof.VALUES))
    row, schema = _json({"id": 7, "stamp": 1_000}), json.dumps({"fields": [after]}).encode()
    packer.table("s.t").add("c", 100, None, row, None, schema)
    assert len(list(packer.payloads())) == 1, "the record's schema is proof"
    for op, old, new in (("c", None, row), ("u", row, row), ("r", None, row)):
        with pytest.raises(RowContradictsSchemaError, match="schema says"):
            packer.table("s.t").add(op, 100, old, new, None, schema.replace(b"MicroTimestamp", b"Timestamp"))
