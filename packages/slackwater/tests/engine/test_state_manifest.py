"""Manifests: immutable, named by their content, read in short chains; what is damaged or missing is named."""

import hashlib
import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import zstandard

from slackwater.engine.state import manifest as manifest_module
from slackwater.engine.state.log import EMPTY_LOG, Blob, LogHead, LogUpdate
from slackwater.engine.state.manifest import (
    MAX_CHAIN,
    NO_STATE,
    Manifest,
    State,
    WrittenManifest,
    batch_of,
    decode_manifest,
    history,
    manifest_path,
    next_state,
    read_state,
    segment_name,
    state_after,
)
from slackwater.engine.state.store import MemoryStore
from slackwater.protocol import StateError

FINGERPRINT = "stages"


class CountingStore(MemoryStore):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def read(self, name: str) -> bytes | None:
        self.reads += 1
        return super().read(name)


def added(number: int, bucket: int = 0, dropped: int = 0) -> LogUpdate:
    blob = Blob(segment_name(number, "s"), 0, 10, 20, b"%d" % number)
    return LogUpdate(1, bucket, dropped, (blob,), 20)


def step(store: MemoryStore, before: State, *updates: LogUpdate, position: Any = None) -> State:
    """A batch, written to the store."""
    state, manifest = next_state(before, FINGERPRINT, position or {"at": before.batch_id + 1}, updates)
    assert manifest.name == state.name
    store.write(manifest_path(manifest.name), manifest.data)
    return state


def chain_of(store: MemoryStore, length: int) -> list[State]:
    states = [NO_STATE]
    for number in range(length):
        states.append(step(store, states[-1], added(number, number % 3)))
    return states


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def test_what_is_written_is_the_state_that_is_read(store: CountingStore) -> None:
    for state in chain_of(store, 2 * MAX_CHAIN + 5):
        assert read_state(store, state.name, FINGERPRINT) == state


def test_no_name_is_no_state(store: CountingStore) -> None:
    assert read_state(store, "", FINGERPRINT) is NO_STATE
    assert NO_STATE.head(1, 0) is EMPTY_LOG
    assert (NO_STATE.batch_id, NO_STATE.position, NO_STATE.segments()) == (-1, None, set())


def test_a_state_says_where_all_logs_lie(store: CountingStore) -> None:
    *_, before, state = chain_of(store, 3)
    assert state.segments() == {segment_name(number, "s") for number in range(3)}
    assert state.head(1, 0).blobs == added(0).blobs
    assert state.head(1, 3) is state.head(2, 0) is EMPTY_LOG
    assert (state.batch_id, state.position) == (2, {"at": 2})
    assert before.segments() == {segment_name(number, "s") for number in range(2)}


def test_a_bucket_without_contents_is_in_no_state(store: CountingStore) -> None:
    before = step(store, NO_STATE, added(0), added(0, bucket=1))
    state = step(store, before, LogUpdate(1, 0, 1, (), 0))
    assert state.heads == {(1, 1): before.head(1, 1)}
    assert read_state(store, state.name, FINGERPRINT) == state


def test_few_manifests_are_read_for_a_state_however_many_there_are(store: CountingStore) -> None:
    lengths = []
    for state in chain_of(store, 4 * MAX_CHAIN)[1:]:
        store.reads = 0
        read_state(store, state.name, FINGERPRINT)
        assert store.reads == len(state.chain)
        lengths.append(store.reads)
    assert max(lengths) == MAX_CHAIN
    assert lengths == [1 + number % MAX_CHAIN for number in range(4 * MAX_CHAIN)]


def test_a_manifest_says_what_changed_and_every_so_often_all_there_is(store: CountingStore) -> None:
    states = chain_of(store, MAX_CHAIN + 1)
    manifests = [decode_manifest(each.name, store.files[manifest_path(each.name)]) for each in states[1:]]
    assert [each.is_whole for each in manifests] == [True, *[False] * (MAX_CHAIN - 1), True]
    assert all(len(each.updates) == 1 and not each.heads for each in manifests[1:-1])
    assert [head for *_, head in manifests[-1].heads] == [states[-1].head(1, each) for each in range(3)]
    assert [each.before for each in manifests] == ["", *(each.name for each in states[1:-1])]
    assert [each.batch_id for each in manifests] == list(range(MAX_CHAIN + 1))


def test_what_is_known_is_not_read_again(store: CountingStore) -> None:
    states = chain_of(store, 6)
    store.reads = 0
    found = read_state(store, states[-1].name, FINGERPRINT, {states[4].name: states[4]})
    assert (found, store.reads) == (states[-1], 2)
    assert read_state(store, states[-1].name, FINGERPRINT, {states[-1].name: states[-1]}) is states[-1]
    assert store.reads == 2


def test_a_state_follows_from_the_one_before_and_a_manifest_that_was_carried(store: CountingStore) -> None:
    states = chain_of(store, MAX_CHAIN + 1)
    for before, state in pairwise(states[1:]):
        manifest = decode_manifest(state.name, store.files[manifest_path(state.name)], FINGERPRINT)
        assert state_after(before, state.name, manifest) == state


def test_the_same_content_has_the_same_name_and_any_other_has_another() -> None:
    def named(*updates: LogUpdate, position: int = 1, fingerprint: str = FINGERPRINT) -> WrittenManifest:
        return next_state(NO_STATE, fingerprint, {"at": position}, updates)[1]

    assert named(added(0)) == named(added(0))
    others = [
        named(added(0)),
        named(added(1)),
        named(added(0, bucket=1)),
        named(),
        named(added(0), position=2),
        named(added(0), fingerprint="another"),
    ]
    assert len({each.name for each in others}) == len(others)


def test_a_whole_manifest_has_the_same_name_in_whatever_order_logs_were_begun() -> None:
    updates = [added(0, bucket=bucket) for bucket in range(4)]
    names = {next_state(NO_STATE, FINGERPRINT, {}, order)[0].name for order in (updates, updates[::-1])}
    assert len(names) == 1


def test_names_are_in_the_order_of_their_batches(store: CountingStore) -> None:
    states = chain_of(store, 12)
    store.write("manifests/notes.txt", b"")
    store.write("manifests/1-short", b"")
    random.Random(1).shuffle(names := list(store.files))
    store.files = {name: store.files[name] for name in names}
    assert history(store) == [state.name for state in states[1:]]
    assert [batch_of(name) for name in history(store)] == list(range(12))
    assert segment_name(9, "z") < segment_name(10, "a")
    assert batch_of(segment_name(10, "a")) == 10


@pytest.mark.parametrize("name", ["notes", "-a", "x1-a"])
def test_a_name_without_a_batch_is_an_error(name: str) -> None:
    with pytest.raises(StateError, match=f"manifest {name} of the state cannot be used"):
        batch_of(name)


def test_any_bit_that_differs_is_an_error_that_names_the_manifest(store: CountingStore) -> None:
    state = step(store, NO_STATE, added(0))
    data = store.files[manifest_path(state.name)]
    for place in range(len(data)):
        store.files[manifest_path(state.name)] = data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :]
        with pytest.raises(StateError, match=f"manifest {state.name} .*does not match its name.*Restore"):
            read_state(store, state.name, FINGERPRINT)


def test_a_manifest_in_the_place_of_another_is_an_error(store: CountingStore) -> None:
    first, second = chain_of(store, 2)[1:]
    store.files[manifest_path(first.name)] = store.files[manifest_path(second.name)]
    with pytest.raises(StateError, match=first.name):
        read_state(store, first.name, FINGERPRINT)


@pytest.mark.parametrize("missing", range(4))
def test_a_missing_manifest_of_the_chain_is_an_error_that_names_it(
    store: CountingStore, missing: int
) -> None:
    *_, state = chain_of(store, 4)
    store.delete([manifest_path(state.chain[missing])])
    with pytest.raises(StateError, match=f"no file manifests/{state.chain[missing]}"):
        read_state(store, state.name, FINGERPRINT)


@pytest.mark.parametrize("length", [1, 3])
def test_the_state_of_other_stages_is_refused(store: CountingStore, length: int) -> None:
    *_, state = chain_of(store, length)
    with pytest.raises(StateError, match="belongs to other stages"):
        read_state(store, state.name, "another view")
    assert decode_manifest(state.name, store.files[manifest_path(state.name)]).fingerprint == FINGERPRINT


def test_a_manifest_of_a_newer_version_is_refused(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_module, "_VERSION", 99)
    state = step(store, NO_STATE, added(0))
    monkeypatch.undo()
    with pytest.raises(StateError, match="version 99, expected 1"):
        read_state(store, state.name, FINGERPRINT)


@pytest.mark.parametrize("data", [b"", b"no zstd", zstandard.compress(b"no manifest")])
def test_what_is_no_manifest_is_an_error_even_under_its_own_name(store: CountingStore, data: bytes) -> None:
    name = segment_name(3, hashlib.sha256(data).hexdigest()[:32])
    store.write(manifest_path(name), data)
    with pytest.raises(StateError, match=f"manifest {name} of the state cannot be used"):
        read_state(store, name, FINGERPRINT)


def test_the_form_in_the_store_is_as_it_was() -> None:
    """A checkpoint outlives versions: a change of the form raises its version."""
    manifest = Manifest(
        version=1,
        batch_id=5,
        fingerprint="f",
        position={"lsn": 7},
        before="b",
        updates=(LogUpdate(1, 2, 3, (Blob("s", 4, 5, 6, b"t"),), 7),),
        heads=((1, 2, LogHead((Blob("s", 4, 5, 6, b"t"),), 8, 9)),),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(manifest)) == {
        "version": 1,
        "batch_id": 5,
        "fingerprint": "f",
        "position": {"lsn": 7},
        "before": "b",
        "updates": [[1, 2, 3, [["s", 4, 5, 6, b"t"]], 7]],
        "heads": [[1, 2, [[["s", 4, 5, 6, b"t"]], 8, 9]]],
    }
