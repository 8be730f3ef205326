"""A bucket over several batches: index, log and token, and what happens when one of them is lost."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zstandard

from slackwater.engine.bucket import events_in_commit_order
from slackwater.engine.evaluate.latest import LARGE_KEY_ENTRIES
from slackwater.engine.index import BucketIndex
from slackwater.engine.local import ChangeEvent, LocalEngine, MemoryIndex
from slackwater.engine.packer import EventPacker
from slackwater.engine.payloads import Document, Event, pack_items
from slackwater.engine.state import log
from slackwater.engine.state.log import COMPACTION_SLACK_BYTES, BucketLog, LogHead
from slackwater.engine.state.manifest import NO_STATE, SegmentReader, segment_path
from slackwater.protocol import InputError, StateError
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.row_codec import UNAVAILABLE

MakeIndex = Callable[[], BucketIndex]
MakeEngine = Callable[..., LocalEngine]


def order(lsn: int, customer: str = "a", order_id: int = 1, op: str = "u") -> ChangeEvent:
    row = {"id": order_id, "customer": customer, "total": None}
    return "inventory.orders", op, lsn, None, json.dumps(row).encode()


def no_order(lsn: int, order_id: int = 1) -> ChangeEvent:
    return "inventory.orders", "d", lsn, json.dumps({"id": order_id}).encode(), None


def line(lsn: int, op: str, before: Any, after: Any) -> ChangeEvent:
    images = [None if row is None else json.dumps(row).encode() for row in (before, after)]
    return "inventory.order_lines", op, lsn, images[0], images[1]


LINE = {"id": 7, "order_id": 1, "product": "x"}


@pytest.fixture
def make_engine(plan: EnginePlan, make_index: MakeIndex) -> MakeEngine:
    def make(*, every_commit: bool = False) -> LocalEngine:
        return LocalEngine(plan, make_index, buckets=1, every_commit=every_commit)

    return make


@pytest.fixture
def engine(make_engine: MakeEngine) -> LocalEngine:
    return make_engine()


def shown(documents: list[Document]) -> list[tuple[int, Any, Any]]:
    return [(lsn, json.loads(k)["id"], d and json.loads(d)["customer"]) for lsn, k, d in documents]


def contents(engine: LocalEngine) -> list[tuple[bytes, bytes]]:
    return engine.indexes[1, 0].update(lambda c: list(c.entries()))


def head(engine: LocalEngine) -> LogHead:
    return engine.state.head(1, 0)


def logged(engine: LocalEngine) -> dict[bytes, bytes]:
    """What the log alone says the contents are."""
    result: dict[bytes, bytes] = {}
    for changes in BucketLog(1, 0, head(engine), SegmentReader(engine.store)).changes():
        for name, value in changes:
            if value is None:
                result.pop(name, None)
            else:
                result[name] = value
    return result


def test_a_document_is_exactly_the_json_of_the_view(engine: LocalEngine) -> None:
    documents = engine.run([order(100), line(100, "c", None, LINE)])[0]
    expected = b'{"id":1,"customer":"a","total":null,"line_count":1,"lines":[{"id":7,"product":"x"}]}'
    assert documents == [(100, b'{"id":1}', expected)]


def test_a_row_written_again_unchanged_emits_and_logs_nothing(engine: LocalEngine) -> None:
    engine.run([order(100)])
    before, batch = head(engine), engine.state.batch_id
    assert engine.run([order(200)])[0] == []
    assert (head(engine), engine.state.batch_id) == (before, batch + 1)


@pytest.mark.parametrize("every_commit", [False, True])
def test_a_document_that_other_rows_make_as_well_is_not_emitted_again(
    make_index: MakeIndex, every_commit: bool
) -> None:
    tables = (
        "CREATE TABLE s.t (id bigint PRIMARY KEY, k text NOT NULL); ALTER TABLE s.t REPLICA IDENTITY FULL;"
    )
    view = "SELECT TRANSACTIONALLY k, list(k) AS of_rows FROM s.t GROUP BY k"
    plan = compile_pipeline([("v.sql", view)], parse_catalog({"t": tables}))
    engine = LocalEngine(plan, make_index, buckets=1, every_commit=every_commit)
    first, second = (json.dumps({"id": number, "k": "a"}).encode() for number in (1, 2))
    assert len(engine.run([("s.t", "c", 100, None, first)])[0]) == 1
    before = contents(engine)

    assert engine.run([("s.t", "d", 200, first, None), ("s.t", "c", 200, None, second)])[0] == []
    assert contents(engine) != before


def test_the_only_group_of_a_view_is_there_from_the_first_commit_on_that_tells_so(
    make_index: MakeIndex,
) -> None:
    tables = "CREATE TABLE s.t (id bigint PRIMARY KEY, v text NOT NULL);"
    view = "SELECT TRANSACTIONALLY list(v) AS vs FROM s.t"
    plan = compile_pipeline([("v.sql", view)], parse_catalog({"t": tables}))
    engine = LocalEngine(plan, make_index, buckets=1, every_commit=True)
    packer = EventPacker(engine.spec)
    for lsn in (100, 200):
        packer.touch(lsn)
    payloads = [(number, payload) for number, (_, _, payload) in enumerate(packer.payloads())]

    documents = engine.process({(1, 0): payloads})[0]
    assert [(lsn, document) for lsn, _, document in documents] == [(100, b'{"vs":null}')]
    assert engine.process({(1, 0): payloads})[0] == []


def test_a_change_and_its_reversal_in_one_batch_emit_nothing(engine: LocalEngine) -> None:
    engine.run([order(100)])
    assert engine.run([order(200, "b"), order(300, "a")])[0] == []


def test_with_every_commit_a_change_and_its_reversal_are_both_emitted(make_engine: MakeEngine) -> None:
    engine = make_engine(every_commit=True)
    engine.run([order(100)])
    assert shown(engine.run([order(200, "b"), order(300, "a")])[0]) == [(200, 1, "b"), (300, 1, "a")]


def test_only_the_state_after_a_commit_is_emitted(make_engine: MakeEngine) -> None:
    engine = make_engine(every_commit=True)
    assert shown(engine.run([order(100, "a"), order(100, "b"), order(100, "c")])[0]) == [(100, 1, "c")]


def test_latest_documents_carry_the_newest_commit_of_the_bucket(engine: LocalEngine) -> None:
    documents = engine.run([order(100), order(300, order_id=2), order(200)])[0]
    assert shown(documents) == [(300, 1, "a"), (300, 2, "a")]


def test_a_key_that_leaves_the_view_is_deleted_once(engine: LocalEngine) -> None:
    engine.run([order(100)])
    assert shown(engine.run([no_order(200)])[0]) == [(200, 1, None)]
    assert engine.run([no_order(300)])[0] == []
    assert contents(engine) == []


def test_a_key_that_comes_and_goes_within_a_batch_is_never_seen(engine: LocalEngine) -> None:
    assert engine.run([order(100), no_order(200)])[0] == []


@pytest.mark.parametrize("every_commit", [False, True])
def test_a_delete_of_an_unknown_row_with_the_key_zero_is_accepted(
    make_engine: MakeEngine, every_commit: bool
) -> None:
    engine = make_engine(every_commit=every_commit)
    engine.run([order(100, order_id=0), order(100, order_id=1)])
    assert shown(engine.run([no_order(200, order_id=0)])[0]) == [(200, 0, None)]

    assert engine.run([no_order(300, order_id=0)])[0] == [], "the table may have been captured later"


def test_a_line_without_its_order_makes_no_document(engine: LocalEngine) -> None:
    assert engine.run([line(100, "c", None, LINE)])[0] == []
    assert shown(engine.run([order(200)])[0]) == [(200, 1, "a")]


def test_payloads_are_taken_by_sequence_and_commit(engine: LocalEngine) -> None:
    late, early = (engine.payloads([order(lsn, text)])[1, 0][0][1] for lsn, text in ((200, "b"), (100, "a")))
    assert shown(engine.process({(1, 0): [(1, late), (0, early)]})[0]) == [(200, 1, "b")]


def event(lsn: int, primary_key: bytes, *, lead: int = 0, key: bytes = b"\x91\x01") -> Event:
    return lsn, 0, key, primary_key, None, lead


def test_events_of_one_commit_stay_in_the_order_of_their_payloads_sequences() -> None:
    payloads = [(2, [event(5, b"c"), event(7, b"d")]), (1, [event(3, b"a"), event(5, b"b")])]
    assert [each[3] for each in events_in_commit_order(payloads)] == [b"a", b"b", b"c", b"d"]


def test_around_a_truncate_events_of_one_commit_are_in_the_order_of_the_log() -> None:
    truncate = event(5, b"", lead=20, key=b"")
    payloads = [
        (1, [event(5, b"after", lead=10), truncate]),
        (2, [event(5, b"before", lead=30), event(4, b"first")]),
    ]
    assert [each[3] for each in events_in_commit_order(payloads)] == [b"first", b"before", b"", b"after"]


@pytest.mark.parametrize("every_commit", [False, True])
@pytest.mark.parametrize("in_one_batch", [False, True])
def test_a_left_out_value_is_the_one_the_row_had(
    make_engine: MakeEngine, every_commit: bool, in_one_batch: bool
) -> None:
    engine = make_engine(every_commit=every_commit)
    update = json.dumps({"id": 1, "customer": UNAVAILABLE, "total": "1.00"}).encode()
    partial: ChangeEvent = ("inventory.orders", "u", 200, None, update)
    batches = [[order(100), partial]] if in_one_batch else [[order(100)], [partial]]
    documents = [document for batch in batches for document in engine.run(batch)[0]]
    last = json.loads(documents[-1][2] or b"")
    assert (last["customer"], last["total"]) == ("a", "1.00")


def test_a_left_out_value_of_an_unknown_row_is_an_error(engine: LocalEngine) -> None:
    update = json.dumps({"id": 1, "customer": UNAVAILABLE, "total": None}).encode()
    with pytest.raises(InputError, match=r'inventory\.orders, key \{"id":1\}, commit LSN 200'):
        engine.run([("inventory.orders", "u", 200, None, update)])


def test_a_row_that_leaves_a_key_it_was_never_under_is_an_error(engine: LocalEngine) -> None:
    """As when the old key is made up because the table's replica identity is not full."""
    engine.run([line(100, "c", None, LINE)])
    with pytest.raises(InputError, match="REPLICA IDENTITY FULL"):
        engine.run([line(200, "d", LINE | {"order_id": 0}, None)])


@pytest.mark.parametrize("every_commit", [False, True])
@pytest.mark.parametrize("in_one_batch", [False, True])
def test_a_row_that_leaves_a_key_twice_is_an_error(
    make_engine: MakeEngine, every_commit: bool, in_one_batch: bool
) -> None:
    engine = make_engine(every_commit=every_commit)
    created, *left = line(100, "c", None, LINE), line(200, "d", LINE, None), line(300, "d", LINE, None)
    if not in_one_batch:
        engine.run([created])
    with pytest.raises(InputError, match="commit LSN 300"):
        engine.run([created, *left] if in_one_batch else left)


@pytest.mark.parametrize("every_commit", [False, True])
def test_a_row_that_leaves_a_large_key_it_was_never_under_is_an_error(
    make_engine: MakeEngine, every_commit: bool
) -> None:
    engine = make_engine(every_commit=every_commit)
    engine.run([line(100, "c", None, LINE | {"id": number}) for number in range(LARGE_KEY_ENTRIES)])
    with pytest.raises(InputError, match="commit LSN 200"):
        engine.run([line(200, "d", LINE | {"id": 1_000}, None)])


def test_a_lost_index_is_rebuilt_from_the_log(engine: LocalEngine) -> None:
    engine.run([order(100), line(100, "c", None, LINE)])
    engine.run([order(200, "b")])
    before = contents(engine)
    engine.lose_index(1, 0)
    assert engine.run([order(300, "b")])[0] == []
    engine.run([order(400, "b", order_id=2)])
    assert contents(engine)[: len(before)] == before


def test_an_index_ahead_of_the_state_is_rebuilt(engine: LocalEngine) -> None:
    """The task was killed after it had committed the index; the batch runs again."""
    engine.run([order(100)])
    before = engine.state
    first = engine.run([order(200, "b"), order(200, "b", order_id=2)])[0]
    engine.return_to(before)
    assert engine.run([order(200, "b"), order(200, "b", order_id=2)])[0] == first
    assert dict(contents(engine)) == logged(engine)


def test_an_index_behind_the_state_catches_up(make_engine: MakeEngine, make_index: MakeIndex) -> None:
    """The batches in between ran on another executor."""
    engine = make_engine()
    engine.run([order(100), order(100, order_id=2), order(100, order_id=3)])
    behind = engine.indexes[1, 0]
    engine.indexes[1, 0] = make_index()
    engine.run([order(200, "b"), no_order(200, 2)])
    engine.run([order(300, "c", order_id=4)])
    engine.indexes[1, 0] = behind
    documents = engine.run([order(400, "b"), order(400, "a", order_id=2)])[0]
    assert shown(documents) == [(400, 2, "a")]
    assert dict(contents(engine)) == logged(engine)


def test_an_index_without_a_state_is_emptied(engine: LocalEngine) -> None:
    """The first batch was killed after it had committed the index."""
    first = engine.run([order(100)])[0]
    engine.return_to(NO_STATE)
    assert engine.run([order(100)])[0] == first


def test_without_the_token_check_a_repeated_batch_would_be_lost(engine: LocalEngine) -> None:
    """Shows that the tests above can fail: an index that lies about its token hides the batch."""
    engine.run([order(100)])
    before, token = engine.state, head(engine).token
    assert token is not None
    engine.run([order(200, "b")])
    engine.return_to(before)
    engine.indexes[1, 0].update(lambda c: c.set_token(token))
    assert engine.run([order(200, "b")])[0] == []


def test_an_index_is_as_far_as_the_log_however_many_blobs_a_batch_has(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MAX_BLOB_BYTES", 30)
    for lsn in (100, 200):
        engine.run([order(lsn, str(lsn), order_id=number) for number in range(5)])
        assert engine.indexes[1, 0].update(lambda contents: contents.token) == head(engine).token
    assert len(head(engine).blobs) > 5


def test_a_bucket_that_has_lost_its_last_entry_has_no_log(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "COMPACTION_SLACK_BYTES", 0)
    engine.run([order(100)])
    before = engine.state
    assert shown(engine.run([no_order(200)])[0]) == [(200, 1, None)]
    assert engine.state.heads == {}
    assert contents(engine) == []

    engine.return_to(before)
    assert shown(engine.run([no_order(200)])[0]) == [(200, 1, None)]
    assert shown(engine.run([order(300)])[0]) == [(300, 1, "a")]
    assert dict(contents(engine)) == logged(engine)


def test_the_log_is_compacted_to_what_is_live(engine: LocalEngine) -> None:
    rounds, customers = 40, 200
    for number in range(1, rounds):
        engine.run([order(number, f"{number} {'x' * 50}", order_id=i) for i in range(customers)])
    live_bytes = head(engine).live_bytes
    assert live_bytes == sum(len(name) + len(value) for name, value in contents(engine))
    assert head(engine).log_bytes <= 2 * live_bytes + COMPACTION_SLACK_BYTES
    assert len(head(engine).blobs) < rounds - 1
    assert logged(engine) == dict(contents(engine))


def test_live_bytes_follow_every_kind_of_change(engine: LocalEngine) -> None:
    engine.run([order(100), order(100, order_id=2), line(100, "c", None, LINE)])
    engine.run([order(200, "longer"), no_order(200, 2), line(200, "u", LINE, LINE | {"product": "y"})])
    engine.run([line(300, "d", LINE | {"product": "y"}, None)])
    assert head(engine).live_bytes == sum(len(name) + len(value) for name, value in contents(engine))


def test_a_damaged_log_is_an_error(engine: LocalEngine) -> None:
    engine.run([order(100)])
    for blob in head(engine).blobs:
        engine.store.files[segment_path(blob.segment)] = b"damaged"
    engine.lose_index(1, 0)
    with pytest.raises(StateError, match="stage 1, bucket 0"):
        engine.run([order(200)])


def test_a_payload_of_something_else_is_an_error(engine: LocalEngine) -> None:
    documents = next(pack_items([(1, b"k", None)]))
    with pytest.raises(StateError, match="bucket 0"):
        engine.process({(1, 0): [(0, documents)]})


def test_an_error_in_a_batch_changes_neither_index_nor_state(engine: LocalEngine) -> None:
    engine.run([order(100)])
    before = contents(engine), engine.state, dict(engine.store.files)
    with pytest.raises(InputError):
        engine.run([order(200, "b"), line(200, "d", LINE, None)])
    assert (contents(engine), engine.state, engine.store.files) == before


def test_keys_longer_than_an_index_entry_work(make_index: MakeIndex) -> None:
    tables = "CREATE TABLE s.t (id text PRIMARY KEY, v int NOT NULL);"
    view = "SELECT TRANSACTIONALLY t.id, t.v FROM s.t t"
    keys = ["x" * 600 + end for end in "ab"]
    plan = compile_pipeline([("v.sql", view)], parse_catalog({"t": tables}))
    engine = LocalEngine(plan, make_index, buckets=1)

    def write(lsn: int, value: int) -> list[Document]:
        rows = [json.dumps({"id": key, "v": value}).encode() for key in keys]
        return engine.run([("s.t", "c", lsn, None, row) for row in rows])[0]

    write(100, 1)
    engine.lose_index(1, 0)
    assert [json.loads(key)["id"] for _, key, _ in write(200, 2)] == keys


def test_documents_are_packed_in_order_in_payloads_of_bounded_size(engine: LocalEngine) -> None:
    documents = [(n, b"k", bytes(1 << 20)) for n in range(9)]
    payloads = list(pack_items(documents))
    assert len(payloads) == 3
    unpacked = [msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(p)) for p in payloads]
    assert [document[0] for payload in unpacked for document in payload] == list(range(9))
    assert list(pack_items([])) == []


def test_a_memory_index_is_the_default_of_a_local_stage(plan: EnginePlan) -> None:
    assert isinstance(LocalEngine(plan).indexes[1, 0], MemoryIndex)
