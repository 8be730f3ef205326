"""Looking into a store: which state is shown, what it holds, and what of it is damaged."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.state.inspection import (
    find_damage,
    find_state,
    kept_rows,
    manifest_history,
    stage_states,
)
from slackwater.engine.state.log import LogHead
from slackwater.engine.state.manifest import (
    MAX_CHAIN,
    PUBLISHED,
    State,
    StateKeeper,
    decode_manifest,
    manifest_path,
    segment_path,
)
from slackwater.engine.state.store import MemoryStore
from slackwater.protocol import ConfigError, StateError
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

BUCKETS = 3
OTHER = "SELECT TRANSACTIONALLY o.id, o.total FROM inventory.orders o"
TABLES = "CREATE TABLE inventory.orders (id bigint PRIMARY KEY, customer text NOT NULL, total numeric(12,2));"


def order(lsn: int, number: int, customer: str = "a") -> ChangeEvent:
    row = {"id": number, "customer": customer, "total": None}
    return "inventory.orders", "u", lsn, None, json.dumps(row).encode()


def line(lsn: int, number: int, order_id: int) -> ChangeEvent:
    row = {"id": number, "order_id": order_id, "product": "x"}
    return "inventory.order_lines", "c", lsn, None, json.dumps(row).encode()


@pytest.fixture
def engine(plan: EnginePlan) -> LocalEngine:
    engine = LocalEngine(plan, buckets=BUCKETS)
    engine.run([order(100, number) for number in range(10)])
    engine.run([line(200, number, number % 2) for number in range(20)])
    return engine


class TestFindingAState:
    """What is certainly true comes before what is newer."""

    def test_without_any_there_is_none(self) -> None:
        with pytest.raises(StateError, match="no state yet"):
            find_state(MemoryStore())

    def test_the_first_is_true_when_it_was_noted_so(self) -> None:
        store = MemoryStore()
        keeper = StateKeeper(store, "stages")
        name = keeper.prepare({"at": 1}, [])
        found = find_state(store)
        assert (found.state.name, found.is_true, found.fingerprint) == (name, False, "stages")
        keeper.adopt(name)
        assert store.files[PUBLISHED] == name.encode()
        found = find_state(store)
        assert (found.state.name, found.is_true) == (name, True)

    def test_one_that_another_follows_is_true_and_the_newest_is_not_known_to_be(self) -> None:
        store = MemoryStore()
        keeper = StateKeeper(store, "stages")
        for number in range(2 * MAX_CHAIN + 2):
            name = keeper.prepare({"at": number}, [])
            keeper.prepare({"at": -number}, [])
            if number:
                found = find_state(store)
                assert found.is_true
                assert found.state.batch_id in {number - 1, number - 2}
                assert found.state.position == {"at": found.state.batch_id}
            keeper.adopt(keeper.prepare({"at": number}, []))
        assert name == keeper.state.name

    def test_of_rivals_before_a_whole_manifest_the_one_that_it_follows_is_true(self) -> None:
        store = MemoryStore()
        keeper = StateKeeper(store, "stages")
        for number in range(MAX_CHAIN):
            lost = keeper.prepare({"at": -1}, [])
            keeper.adopt(keeper.prepare({"at": number}, []))
        true = keeper.state.name
        whole = keeper.prepare({"at": MAX_CHAIN}, [])
        assert decode_manifest(whole, store.files[manifest_path(whole)]).is_whole
        assert manifest_path(lost) in store.files
        found = find_state(store)
        assert (found.state.name, found.is_true) == (true, True)

    def test_manifests_are_listed_with_what_they_say(self) -> None:
        store = MemoryStore()
        keeper = StateKeeper(store, "stages")
        names = []
        for number in range(3):
            names.append(keeper.prepare({"at": number}, []))
            keeper.adopt(names[-1])
        facts = manifest_history(store)
        assert [name for name, _ in facts] == names
        assert [each.before for _, each in facts] == ["", *names[:-1]]
        assert [(each.batch_id, each.position) for _, each in facts] == [(n, {"at": n}) for n in range(3)]

    def test_a_damaged_manifest_is_named(self, engine: LocalEngine) -> None:
        engine.store.files[manifest_path(engine.state.name)] = b"damaged"
        with pytest.raises(StateError, match=engine.state.name):
            find_state(engine.store)


def test_without_the_contents_no_blob_is_read(engine: LocalEngine) -> None:
    store = MemoryStore()
    store.files = {name: data for name, data in engine.store.files.items() if "segments" not in name}
    (stage,) = stage_states(store, engine.state)
    assert stage.contents is None
    heads = [engine.state.head(1, bucket) for bucket in range(BUCKETS)]
    assert [each.bucket for each in stage.buckets] == list(range(BUCKETS))
    assert stage.live_bytes == sum(head.live_bytes for head in heads)
    assert stage.log_bytes == sum(head.log_bytes for head in heads)
    assert stage.blobs == sum(len(head.blobs) for head in heads) > BUCKETS
    assert stage.compressed_bytes == sum(map(len, segments(engine)))
    sizes = [each.head.live_bytes for each in stage.largest_buckets(2)]
    assert sizes == sorted((head.live_bytes for head in heads), reverse=True)[:2]


def segments(engine: LocalEngine) -> list[bytes]:
    return [data for name, data in engine.store.files.items() if name.startswith("segments/")]


def test_contents_are_counted_over_all_buckets(engine: LocalEngine) -> None:
    (stage,) = stage_states(engine.store, engine.state, top=2)
    assert stage.contents is not None
    assert {kind: amount.entries for kind, amount in stage.contents.kinds.items()} == {
        "documents": 10,
        "input 0": 10,
        "input 1": 20,
    }
    assert stage.contents.keys == 10
    assert [each.entries for each in stage.contents.largest] == [12, 12]
    assert sum(amount.size for amount in stage.contents.kinds.values()) == stage.live_bytes
    assert sum(each.contents.keys for each in stage.buckets if each.contents) == 10


def test_a_state_that_can_be_read_has_no_damage(engine: LocalEngine) -> None:
    assert list(find_damage(engine.store, engine.state)) == []


def test_each_blob_that_cannot_be_read_is_named(engine: LocalEngine) -> None:
    gone, flipped = (head.blobs[0] for head in (engine.state.head(1, 0), engine.state.head(1, 1)))
    assert gone.segment == flipped.segment
    path = segment_path(flipped.segment)
    data = bytearray(engine.store.files[path])
    data[flipped.offset + flipped.length // 2] ^= 1
    engine.store.files[path] = bytes(data)
    (damage,) = find_damage(engine.store, engine.state)
    assert "stage 1, bucket 1" in damage
    assert f"segment {flipped.segment} at {flipped.offset}" in damage

    engine.store.delete([path])
    damages = list(find_damage(engine.store, engine.state))
    assert len(damages) == BUCKETS
    assert all(path in each for each in damages)


def test_a_blob_that_is_whole_but_not_the_one_that_was_written_is_named(engine: LocalEngine) -> None:
    state = engine.state
    head = state.head(1, 0)
    first, *others = head.blobs
    heads = dict(state.heads)
    heads[1, 0] = LogHead((replace(first, size=first.size + 1), *others), head.log_bytes, head.live_bytes)
    changed = State(state.name, state.batch_id, state.position, heads, state.chain)
    (damage,) = find_damage(engine.store, changed)
    assert damage == (
        f"stage 1, bucket 0: segment {first.segment} at {first.offset} has {first.size} bytes, "
        f"expected {first.size + 1}"
    )


def key(plan: EnginePlan, engine: LocalEngine, **columns: Any) -> Any:
    found = find_state(engine.store)
    return kept_rows(engine.store, found, plan, columns, buckets=BUCKETS, limit=4)


def test_rows_of_a_key_are_found_by_its_columns(plan: EnginePlan, engine: LocalEngine) -> None:
    engine.run([])
    (kept,) = key(plan, engine, id=1)
    assert kept.stage == 1
    assert kept.rows["o (inventory.orders)"] == ({"id": 1, "customer": "a", "total": None},)
    assert [row["id"] for row in kept.rows["l (inventory.order_lines)"]] == [1, 3, 5, 7]
    assert [dict(each.rows) for each in key(plan, engine, id=99)] == [{}]


def test_a_key_that_no_stage_has_is_an_error_that_says_which_there_are(
    plan: EnginePlan, engine: LocalEngine
) -> None:
    with pytest.raises(ConfigError, match=r'key {"nr":1}: no stage .*; the key columns are stage 1: id'):
        key(plan, engine, nr=1)
    with pytest.raises(ConfigError, match="id is bigint"):
        key(plan, engine, id="x")


def test_rows_of_other_views_are_not_read_as_if_they_were_of_these(engine: LocalEngine) -> None:
    other = compile_pipeline([("v.sql", OTHER)], parse_catalog({"t.sql": TABLES}))
    assert not find_state(engine.store).is_of(other)
    with pytest.raises(ConfigError, match="belongs to other views"):
        key(other, engine, id=1)


def test_a_state_knows_the_stages_that_it_is_of(plan: EnginePlan, engine: LocalEngine) -> None:
    assert find_state(engine.store).is_of(plan)
