"""Change events: their contents, and that the outputs of a pipeline are a source to a sidecar's frontier."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from slackwater.cdc import Frontier, decode_change
from slackwater.cdc.envelope import Begin, End, decode_notification, decode_transaction
from slackwater.cdc.postgres import xid_of_position
from slackwater.engine.payloads import Document, DocumentBatch, pack_change
from slackwater.outputs.batch import BatchCommits
from slackwater.outputs.contract import Emit, OutputTable, UnfitValueError
from slackwater.outputs.kafka.debezium import (
    BatchChanges,
    OrderRecord,
    row_encoder,
    row_type,
)
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.protocol import Cut, KafkaSettings, StateError
from slackwater.sql.plan import OutputColumn
from slackwater.sql.postgres import parse_catalog, table_statement
from slackwater.sql.row_codec import RowCodec

MakeBatch = Callable[..., DocumentBatch]
COLUMNS = (OutputColumn("id", "BIGINT"), OutputColumn("n", "INTEGER"))
ORDERS, TOTALS = (
    OutputTable(name=f"public.{name}", columns=COLUMNS, key=("id",)) for name in ("orders", "totals")
)
SETTINGS = KafkaSinkSettings(
    pipeline="p",
    outputs=(
        OutputTopic("out.public.orders", table=ORDERS),
        OutputTopic("out.public.totals", table=TOTALS, keys_move=True),
        OutputTopic("plain"),
    ),
    prefix="out",
    emit=Emit.TRANSACTIONS,
    kafka=KafkaSettings("nowhere"),
)
NOW_MS = 1_700_000_000_000
Event = tuple[int, Any, Any]
"""Number of the view, key and value."""


def change(lsn: int, row_id: int, before: int | None, after: int | None) -> Document:
    """The number `n` of a row from one value to another."""
    images = [None if n is None else b'{"id":%d,"n":%d}' % (row_id, n) for n in (before, after)]
    return lsn, b'{"id":%d}' % row_id, pack_change(*images)


def written(
    batch: DocumentBatch, settings: KafkaSinkSettings = SETTINGS
) -> tuple[list[Event], list[OrderRecord], BatchChanges]:
    commits = BatchCommits(batch, Emit.TRANSACTIONS, settings.scope, (False, False))
    changes = BatchChanges(settings, batch, commits.units, NOW_MS)
    events: list[Event] = []
    for view in (0, 1):
        for found in commits.documents(view):
            for _, key, value in changes.events(view, found):
                events.append((view, json.loads(key), json.loads(value or b"null")))
    return events, list(changes.order_records()), changes


def of_transactions(records: Iterable[OrderRecord]) -> list[Begin | End]:
    return [decode_transaction(r.value) for r in records if r.topic == "out.transaction"]


def snapshot_batch(make_batch: MakeBatch, documents: list[Document], **others: Any) -> DocumentBatch:
    """The first batch: a snapshot at 5, and the transaction 507 at 7."""
    batch = make_batch(0, documents, to_lsn=7, **others)
    return replace(batch, header=replace(batch.header, transactions=((0, 5, 5000), (507, 7, 7000))))


class Source:
    """The topics of the outputs, one partition each, as a frontier reads them."""

    def __init__(self) -> None:
        self._frontier = Frontier("out")
        self._parts = [self._frontier.add_partition(output.name, 0, 0) for output in SETTINGS.outputs[:2]]
        self._told = self._notified = 0

    def read(self, events: Iterable[Event], records: Iterable[OrderRecord]) -> list[Cut]:
        for view, _, value in events:
            self._parts[view].read([(self._parts[view].position, json.dumps(value).encode())])
        for topic, _, value, _ in records:
            if topic == "out.transaction":
                self._frontier.read_transactions([(self._told, value, NOW_MS)])
                self._told += 1
            else:
                self._frontier.read_notifications([(self._notified, value)])
                self._notified += 1
        for _ in range(5):
            self._frontier.advance()
            ends = {part.key: part.position for part in self._parts} | {("out.transaction", 0): self._told}
            if self._notified:
                ends["out.notifications", 0] = self._notified
            if self._frontier.end_offsets_wanted:
                self._frontier.end_offsets(ends)
        assert self._frontier.obstacles == []
        assert self._frontier.regression is None
        return self._frontier.cuts()


def test_an_event_says_what_was_what_is_and_which_transaction_did_it(make_batch: MakeBatch) -> None:
    documents = [change(1, 7, None, 1), change(2, 7, 1, 2), change(3, 7, 2, None)]
    events, _, changes = written(make_batch(0, documents))
    assert [event[1] for event in events] == [{"id": 7}] * 3
    assert [event[2]["op"] for event in events] == ["c", "u", "d"]
    assert [event[2]["before"] for event in events] == [None, {"id": 7, "n": 1}, {"id": 7, "n": 2}]
    assert [event[2]["after"] for event in events] == [{"id": 7, "n": 1}, {"id": 7, "n": 2}, None]
    assert changes.deletes == 1
    update = events[1][2]
    assert update["transaction"] == {"id": "502:2", "total_order": 1, "data_collection_order": 1}
    assert (update["ts_ms"], update["ts_us"], update["ts_ns"]) == (NOW_MS, NOW_MS * 1000, NOW_MS * 10**6)
    source = update["source"]
    assert (source["name"], source["schema"], source["table"]) == ("out", "public", "orders")
    assert (source["txId"], source["lsn"], source["ts_ms"], source["snapshot"]) == (502, 2, 2000, "false")
    assert source["sequence"] == '["1","2"]'
    decoded = decode_change(json.dumps(update).encode())
    assert (decoded.table, decoded.xid, decoded.order, decoded.commit_ts_ms) == (
        "public.orders",
        502,
        1,
        2000,
    )


def test_changes_are_numbered_in_the_transaction_and_in_the_table(make_batch: MakeBatch) -> None:
    orders = [change(4, 1, None, 1), change(4, 2, None, 1), change(5, 3, None, 1)]
    events, records, _ = written(make_batch(0, orders, others={1: [change(4, 9, None, 1)]}))
    blocks = [event[2]["transaction"] for event in events]
    numbers = [(b["id"], b["total_order"], b["data_collection_order"]) for b in blocks]
    assert sorted(numbers) == [("504:4", 1, 1), ("504:4", 2, 2), ("504:4", 3, 1), ("505:5", 1, 1)]
    ends = {r.commit_lsn: r for r in of_transactions(records) if isinstance(r, End)}
    assert ends[4] == End(504, 4, 4000, {"public.orders": 2, "public.totals": 1})
    assert ends[5].counts == {"public.orders": 1}


def test_every_transaction_of_the_database_begins_and_ends_also_one_without_a_change(
    make_batch: MakeBatch,
) -> None:
    _, records, _ = written(make_batch(0, [change(4, 1, None, 1)]))
    told = of_transactions(records)
    assert [type(record) for record in told] == [Begin, End] * 10
    assert [r.commit_lsn for r in told if isinstance(r, End)] == list(range(1, 11))
    assert [json.loads(record.key) for record in records[:2]] == [{"id": "501:1"}] * 2


def test_the_end_of_a_batch_above_its_last_transaction_is_one_of_its_own(make_batch: MakeBatch) -> None:
    """Rows of ad hoc snapshots belong to no transaction; without them readers learn how far the output is."""
    batch = make_batch(0, [], to_lsn=3)
    above = replace(batch, header=replace(batch.header, to_lsn=9))
    assert of_transactions(written(above)[1])[-1] == End(xid_of_position(9), 9, 3000, {})
    shown = make_batch(0, [change(9, 1, None, 1)], to_lsn=3)
    events, records, _ = written(replace(shown, header=replace(shown.header, to_lsn=9)))
    assert events[0][2]["source"]["txId"] == xid_of_position(9)
    assert of_transactions(records)[-1] == End(xid_of_position(9), 9, 3000, {"public.orders": 1})


def test_the_initial_snapshot_is_one_again_with_its_notifications(make_batch: MakeBatch) -> None:
    documents = [change(5, 1, None, 1), change(5, 2, None, 1), change(7, 1, 1, 2)]
    events, records, _ = written(snapshot_batch(make_batch, documents))
    assert [event[2]["op"] for event in events] == ["r", "r", "u"]
    assert [event[2]["transaction"] and event[2]["transaction"]["id"] for event in events] == [
        None,
        None,
        "507:7",
    ]
    source = events[0][2]["source"]
    assert (source["snapshot"], source["lsn"], source["txId"]) == ("true", 5, None)
    assert source["sequence"] == '[null,"5"]'
    told = [decode_notification(r.value) for r in records if r.topic == "out.notifications"]
    assert [n.type for n in told] == ["STARTED", "TABLE_SCAN_COMPLETED", "TABLE_SCAN_COMPLETED", "COMPLETED"]
    assert {**told[1].scanned(), **told[2].scanned()} == {"public.orders": 2, "public.totals": 0}


def test_a_snapshot_behind_commits_is_a_transaction(make_batch: MakeBatch) -> None:
    """A second initial snapshot would stop a reader: rows that vanished before it are named by nobody."""
    batch = make_batch(0, [change(3, 1, None, 1), change(5, 1, 1, 2)], to_lsn=5)
    batch = replace(batch, header=replace(batch.header, transactions=((503, 3, 3000), (0, 5, 5000))))
    events, records, _ = written(batch)
    assert [event[2]["op"] for event in events] == ["c", "u"]
    assert [r.xid for r in of_transactions(records)] == [503, 503, xid_of_position(5), xid_of_position(5)]
    assert all(record.topic == "out.transaction" for record in records)


def test_a_key_that_moved_between_buckets_has_one_event(make_batch: MakeBatch) -> None:
    """Also none, if its document stays the same."""
    moved = [change(4, 1, None, 2), change(4, 1, 1, None), change(4, 2, None, 5), change(4, 2, 5, None)]
    events, records, _ = written(make_batch(0, [], others={1: [*moved, change(5, 1, 2, None)]}))
    assert [(e[2]["op"], e[2]["before"], e[2]["after"]) for e in events] == [
        ("u", {"id": 1, "n": 1}, {"id": 1, "n": 2}),
        ("d", {"id": 1, "n": 2}, None),
    ]
    ends = {r.commit_lsn: r.counts for r in of_transactions(records) if isinstance(r, End)}
    assert (ends[4], ends[5]) == ({"public.totals": 1}, {"public.totals": 1})


def test_plain_documents_are_no_changes(make_batch: MakeBatch) -> None:
    with pytest.raises(StateError, match="a document that is not a change"):
        written(make_batch(0))


def test_a_frontier_reads_the_outputs_up_to_the_commits_of_the_database(make_batch: MakeBatch) -> None:
    source = Source()
    events, records, _ = written(
        snapshot_batch(make_batch, [change(5, 1, None, 1), change(7, 1, 1, 2)], others={})
    )
    first = source.read(events, records)
    assert [(t.xid, t.commit_lsn, t.commit_ts_ms) for cut in first for t in cut.transactions] == [
        (0, 5, 5000),
        (507, 7, 7000),
    ]
    more = make_batch(
        1,
        [change(9, 1, 2, 3), change(12, 2, None, 1)],
        from_lsn=7,
        to_lsn=12,
        others={1: [change(12, 2, None, 1)]},
    )
    events, records, _ = written(more)
    (cut,) = source.read(events, records)
    assert (cut.lsn, cut.repeated, cut.skipped) == (12, frozenset(), ())
    assert [(t.xid, t.commit_lsn) for t in cut.transactions] == [(509, 9), (512, 12)]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_frontier_waits_for_an_event_that_it_has_not_read(make_batch: MakeBatch, lost: int) -> None:
    """The twin of the test above: the counts of END and of the notifications are what it goes by."""
    events, records, _ = written(
        snapshot_batch(make_batch, [change(5, 1, None, 1), change(5, 2, None, 1), change(7, 3, None, 1)])
    )
    (*_, newest) = [0, *(cut.lsn for cut in Source().read(events[:lost] + events[lost + 1 :], records))]
    assert newest == (5 if lost == 2 else 0)


@pytest.mark.parametrize(
    ("column_type", "document", "event"),
    [
        ("DATE", '"2026-11-20"', 20777),
        ("DATE", '"1969-12-31"', -1),
        ("DATE", '"infinity"', 2_146_033_979),
        ("TIME", '"10:11:12.5"', 36_672_500_000),
        ("TIME", '"24:00:00"', 86_400_000_000),
        ("TIMESTAMP", '"1970-01-02T00:00:01.000002"', 86_401_000_002),
        ("TIMESTAMP_MS", '"1969-12-31T23:59:59.500000"', -500_000),
        ("TIMESTAMP", '"-infinity"', -(2**63)),
        ("TIMESTAMP WITH TIME ZONE", '"2026-11-20T10:11:12.123456Z"', "2026-11-20T10:11:12.123456Z"),
        ("HUGEINT", "170141183460469231731687303715884105727", "170141183460469231731687303715884105727"),
        ("DECIMAL(12,2)", '"3.50"', "3.50"),
        ("JSON", '{"a": 1.0}', '{"a": 1.0}'),
        ("STRUCT(a INTEGER)[]", '[{"a":1}]', '[{"a":1}]'),
        ("MAP(VARCHAR, INTEGER)", '{"a":1}', '{"a":1}'),
        ("BLOB", '"AQI="', "AQI="),
        ("DATE", "null", None),
    ],
)
def test_values_have_debezium_s_forms(column_type: str, document: str, event: Any) -> None:
    encode = row_encoder(
        (OutputColumn("id", "BIGINT"), OutputColumn("x", column_type), OutputColumn("f", "DOUBLE"))
    )
    found = encode(b'{"id":1,"x":%b,"f":0.10}' % document.encode())
    assert json.loads(found) == {"id": 1, "x": event, "f": 0.1}


@pytest.mark.parametrize(
    ("column_type", "document"),
    [
        ("UTINYINT", "255"),
        ("USMALLINT", "65535"),
        ("UINTEGER", "4294967295"),
        ("UBIGINT", "18446744073709551615"),
        ("HUGEINT", "-99999999999999999999999999999999999999"),
        ("DECIMAL(38,2)", '"3.50"'),
        ("FLOAT", '"NaN"'),
        ("DOUBLE", "0.5"),
        ("BOOLEAN", "true"),
        ("VARCHAR", '"é"'),
        ("UUID", '"6f1ed002-ab5c-4f4b-8d1a-0b4c1b9d2f8e"'),
        ("DATE", '"2026-11-20"'),
        ("TIME", '"10:11:12.5"'),
        ("TIMESTAMP", '"2026-11-20T10:11:12.123456"'),
        ("TIMESTAMP_S", '"2026-11-20T10:11:12.000000"'),
        ("TIMESTAMP WITH TIME ZONE", '"2026-11-20T10:11:12.123456Z"'),
        ("BLOB", '"AQI="'),
        ("JSON", '{"a":1}'),
        ("STRUCT(a INTEGER)[]", '[{"a":1}]'),
        ("INTERVAL", '"1 day"'),
    ],
)
def test_a_reader_that_declares_the_table_understands_the_events(column_type: str, document: str) -> None:
    columns = (OutputColumn("id", "BIGINT"), OutputColumn("The x", column_type))
    types = [(column.name, row_type(column.type)) for column in columns]
    (table,) = parse_catalog({"s.sql": table_statement("public", "orders", types, ["id"])}).tables
    assert (table.full_name, table.primary_key, table.replica_identity_full) == (
        "public.orders",
        ("id",),
        True,
    )
    row = row_encoder(columns)(b'{"id":1,"The x":%b}' % document.encode())
    row_id, value = RowCodec(table, ["id", "The x"]).decode(row)
    assert row_id == 1
    assert value == json.loads(row)["The x"] or column_type == "FLOAT"
    assert RowCodec(table, ["The x"]).decode(row_encoder(columns)(b'{"id":1,"The x":null}')) == (None,)


def test_a_value_without_a_form_is_named(make_batch: MakeBatch) -> None:
    encode = row_encoder((OutputColumn("day", "DATE"),))
    with pytest.raises(
        UnfitValueError, match=r"column 'day': Debezium's records cannot represent \"0044-03-15 \(BC\)\""
    ):
        encode(b'{"day":"0044-03-15 (BC)"}')


def test_keys_have_the_forms_of_their_columns(make_batch: MakeBatch) -> None:
    days = OutputTable(
        name="public.days", columns=(OutputColumn("day", "DATE"), OutputColumn("until", "DATE")), key=("day",)
    )
    outputs = (OutputTopic("out.public.days", table=days), SETTINGS.outputs[1])
    documents = [(1, b'{"day":"1970-01-02"}', pack_change(None, b'{"day":"1970-01-02","until":null}'))]
    events, _, _ = written(make_batch(0, documents), replace(SETTINGS, outputs=outputs))
    assert [(event[1], event[2]["after"]) for event in events] == [({"day": 1}, {"day": 1, "until": None})]
