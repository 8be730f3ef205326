"""The state of a run: prepared, adopted when it is true, and swept without taking what anybody needs."""

from collections.abc import Sequence

import pytest

from slackwater.engine.state import manifest
from slackwater.engine.state.entry import Change
from slackwater.engine.state.log import BucketLog, LogUpdate, LogWrite, pack_changes, place_writes
from slackwater.engine.state.manifest import (
    KEPT_STATES,
    MANIFESTS,
    MAX_CHAIN,
    NO_STATE,
    SEGMENTS,
    SegmentReader,
    State,
    StateKeeper,
    WrittenManifest,
    batch_of,
    decode_manifest,
    history,
    manifest_path,
    read_state,
    read_states,
    segment_name,
    segment_path,
)
from slackwater.engine.state.store import MemoryStore
from slackwater.protocol import StateError

FINGERPRINT = "stages"


def write(text: str, bucket: int = 0, dropped: int = 0) -> LogWrite:
    changes: list[Change] = [(text.encode(), text.encode())]
    blobs, data = pack_changes(changes)
    return LogWrite(1, bucket, dropped, blobs, len(text), data)


def keeper_of(store: MemoryStore, name: str = "") -> StateKeeper:
    keeper = StateKeeper(store, FINGERPRINT)
    keeper.open(name)
    return keeper


def batch(keeper: StateKeeper, *writes: LogWrite) -> State:
    """A batch that becomes true."""
    number = keeper.state.batch_id + 1
    keeper.adopt(keeper.prepare({"at": number}, writes or [write(str(number), number % 3)]))
    return keeper.state


def texts(store: MemoryStore, name: str) -> set[str]:
    """What a state holds, all of it read again."""
    state, source = read_state(store, name, FINGERPRINT), SegmentReader(store)
    return {
        text.decode()
        for place, head in state.heads.items()
        for changes in BucketLog(*place, head, source).changes()
        for text, _ in changes
    }


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_prepared_state_is_true_when_it_is_adopted(store: MemoryStore) -> None:
    keeper = keeper_of(store)
    name = keeper.prepare({"at": 7}, [write("a"), write("b", 1)])
    assert keeper.state is NO_STATE
    keeper.adopt(name)
    assert (keeper.state.name, keeper.state.batch_id, keeper.state.position) == (name, 0, {"at": 7})
    assert texts(store, name) == {"a", "b"}


def test_a_run_goes_on_from_the_state_that_the_progress_names(store: MemoryStore) -> None:
    keeper = keeper_of(store)
    states = [batch(keeper) for _ in range(5)]
    for state in states:
        another = StateKeeper(store, FINGERPRINT)
        assert another.open(state.name) == another.state == state
    assert texts(store, batch(another).name) == set("012345")


def test_nothing_is_in_the_store_before_all_it_names(store: MemoryStore) -> None:
    """A manifest that can be read has its segments."""
    order: list[str] = []
    put = store.write

    def noting(name: str, data: bytes) -> None:
        order.append(name.partition("/")[0])
        put(name, data)

    store.write = noting  # type: ignore[method-assign]  # to see in which order
    keeper_of(store).prepare({}, [write("a")])
    assert order == [SEGMENTS, MANIFESTS]


def test_a_batch_that_changes_nothing_has_a_manifest_and_no_segment(store: MemoryStore) -> None:
    keeper = keeper_of(store)
    keeper.adopt(keeper.prepare({"at": 1}, []))
    batch(keeper, write("a"))
    before = keeper.state
    keeper.adopt(keeper.prepare({"at": 2}, []))
    assert len(store.list(SEGMENTS)) == 1
    assert (keeper.state.batch_id, keeper.state.heads) == (2, before.heads)
    keeper.adopt(keeper.prepare({"at": 3}, [LogWrite(1, 0, 1, (), 0)]))
    assert (len(store.list(SEGMENTS)), keeper.state.heads) == (1, {})


def test_segments_that_tasks_have_written_count_like_its_own(store: MemoryStore) -> None:
    name = segment_name(0, "task")
    data, updates = place_writes(name, [write("b", 5), write("c", 1)])
    store.write(segment_path(name), data)
    keeper = keeper_of(store)
    keeper.adopt(keeper.prepare({}, [write("a", 3)], updates))
    assert texts(store, keeper.state.name) == {"a", "b", "c"}
    written = decode_manifest(keeper.state.name, store.files[manifest_path(keeper.state.name)])
    assert [bucket for _, bucket, _ in written.heads] == [1, 3, 5]


def test_the_order_in_which_tasks_end_does_not_matter(store: MemoryStore) -> None:
    keeper = keeper_of(store)
    batch(keeper)
    updates: list[LogUpdate] = place_writes("s", [write("a", 1), write("b", 2)])[1]
    assert keeper.prepare({}, [], updates) == keeper.prepare({}, [], updates[::-1])


def test_a_batch_may_be_prepared_again_otherwise_while_none_is_true(store: MemoryStore) -> None:
    keeper = keeper_of(store)
    batch(keeper, write("a"))
    lost = keeper.prepare({"at": 1}, [write("lost")])
    name = keeper.prepare({"at": 2}, [write("b")])
    with pytest.raises(StateError, match=f"{lost} of the state is not the one that was prepared last"):
        keeper.adopt(lost)
    keeper.adopt(name)
    assert (texts(store, keeper.state.name), keeper.state.batch_id) == ({"a", "b"}, 1)
    with pytest.raises(StateError, match="not the one that was prepared last"):
        keeper.adopt(name)
    assert keeper.state.batch_id == 1


def test_what_was_prepared_before_a_run_opens_again_cannot_be_adopted(store: MemoryStore) -> None:
    keeper = keeper_of(store)
    name = keeper.prepare({}, [write("a")])
    keeper.open("")
    with pytest.raises(StateError, match="not the one that was prepared last"):
        keeper.adopt(name)


def test_the_newest_manifest_is_known_if_this_run_has_written_it(store: MemoryStore) -> None:
    keeper = keeper_of(store)
    known = [keeper.newest_manifest]
    name = keeper.prepare({}, [write("a")])
    known.append(keeper.newest_manifest)
    keeper.adopt(name)
    known.append(keeper.newest_manifest)
    keeper.open(name)
    known.append(keeper.newest_manifest)
    assert known == [None, None, WrittenManifest(name, store.files[manifest_path(name)]), None]


def test_state_of_other_stages_is_refused(store: MemoryStore) -> None:
    state = batch(keeper_of(store))
    with pytest.raises(StateError, match="belongs to other stages"):
        StateKeeper(store, "another view").open(state.name)


def test_a_state_that_is_gone_is_an_error(store: MemoryStore) -> None:
    state = batch(keeper_of(store))
    store.delete([manifest_path(state.name)])
    with pytest.raises(StateError, match=state.name):
        StateKeeper(store, FINGERPRINT).open(state.name)


def test_a_state_can_be_opened_when_the_ones_before_it_were_swept(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MAX_CHAIN", 4)
    keeper = keeper_of(store)
    for _ in range(6):
        batch(keeper)
    oldest = read_states(store, keeper.state.name, FINGERPRINT)[0]
    assert oldest.before
    store.delete([manifest_path(oldest.before)])
    assert StateKeeper(store, FINGERPRINT).open(keeper.state.name) == keeper.state


class TestLostProgress:
    """The output says that there was no batch."""

    def test_is_an_error_when_batches_were_published(self, store: MemoryStore) -> None:
        keeper = keeper_of(store)
        for _ in range(3):
            batch(keeper)
            with pytest.raises(StateError, match="the output's progress records are gone"):
                StateKeeper(store, FINGERPRINT).open("")

    def test_is_none_when_no_batch_ever_became_true(self, store: MemoryStore) -> None:
        for text in ("a", "b"):
            keeper = keeper_of(store)
            keeper.prepare({}, [write(text)])
        assert StateKeeper(store, FINGERPRINT).open("") is NO_STATE

    def test_is_an_error_when_the_first_batch_became_true_and_the_run_ended_at_once(
        self, store: MemoryStore
    ) -> None:
        """The run that continues from it has a second batch at some time."""
        keeper = keeper_of(store)
        name = keeper.prepare({}, [write("a")])
        keeper_of(store, name).prepare({}, [write("b")])
        with pytest.raises(StateError, match="progress records are gone"):
            StateKeeper(store, FINGERPRINT).open("")

    def test_is_an_error_however_many_batches_were_swept(self, store: MemoryStore) -> None:
        keeper = keeper_of(store)
        for _ in range(40):
            batch(keeper)
        with pytest.raises(StateError, match="progress records are gone"):
            StateKeeper(store, FINGERPRINT).open("")


class TestPreparedPosition:
    """For outputs that receive a batch again exactly as it was."""

    def test_is_where_an_earlier_run_wanted_the_next_batch_to_end(self, store: MemoryStore) -> None:
        keeper = keeper_of(store)
        assert keeper.prepared_position() is None
        keeper.prepare({"at": 5}, [write("a")])
        assert keeper_of(store).prepared_position() == {"at": 5}

    def test_is_none_of_a_batch_that_is_true(self, store: MemoryStore) -> None:
        keeper = keeper_of(store)
        state = batch(keeper)
        assert keeper.prepared_position() is None
        keeper.prepare({"at": 9}, [write("b")])
        keeper.prepare({"at": 9}, [])
        assert keeper_of(store, state.name).prepared_position() == {"at": 9}

    def test_is_none_that_follows_another_state(self, store: MemoryStore) -> None:
        keeper = keeper_of(store)
        batch(keeper)
        lost = keeper.prepare({"at": 1}, [write("a")])
        keeper.adopt(keeper.prepare({"at": 2}, [write("b")]))
        keeper.prepare({"at": 3}, [])
        assert keeper_of(store, keeper.state.name).prepared_position() == {"at": 3}
        assert keeper_of(store, lost).prepared_position() is None

    def test_does_not_depend_on_batches_behind_it(self, store: MemoryStore) -> None:
        keeper = keeper_of(store)
        state = batch(keeper)
        keeper.adopt(keeper.prepare({"at": 5}, [write("a")]))
        name = keeper.prepare({"at": 6}, [write("b")])
        store.write(manifest_path(name), b"damaged")
        assert keeper_of(store, state.name).prepared_position() == {"at": 5}

    def test_is_an_error_if_it_cannot_be_read(self, store: MemoryStore) -> None:
        name = keeper_of(store).prepare({"at": 5}, [write("a")])
        store.write(manifest_path(name), b"damaged")
        with pytest.raises(StateError, match=name):
            keeper_of(store).prepared_position()


class TestSweeping:
    """What is removed, and what never is."""

    def test_the_newest_states_stay_readable(
        self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(manifest, "MAX_CHAIN", 8)
        keeper = keeper_of(store)
        states: list[tuple[State, set[str]]] = []
        for number in range(40):
            dropped = len(keeper.state.head(1, number % 3).blobs) if number % 7 == 0 else 0
            state = batch(keeper, write(str(number), number % 3, dropped))
            states.append((state, texts(store, state.name)))
            keeper.sweep()
            for state, expected in states[-KEPT_STATES:]:
                assert read_state(store, state.name, FINGERPRINT) == state
                assert texts(store, state.name) == expected

    @pytest.mark.parametrize("chain", [3, 64])
    def test_a_run_that_starts_keeps_them_readable_too(
        self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, chain: int
    ) -> None:
        """Behind a whole manifest, within a chain, and where a chain has just begun."""
        monkeypatch.setattr(manifest, "MAX_CHAIN", chain)
        states: list[tuple[State, set[str]]] = []
        for number in range(30):
            keeper = keeper_of(store, states[-1][0].name if states else "")
            state = batch(keeper, write(str(number), 0, len(keeper.state.head(1, 0).blobs)))
            states.append((state, texts(store, state.name)))
            keeper.sweep()
            for state, expected in states[-min(KEPT_STATES, chain + 1) :]:
                assert texts(store, state.name) == expected

    def test_what_older_states_alone_need_is_gone(self, store: MemoryStore) -> None:
        keeper = keeper_of(store)
        for number in range(4 * MAX_CHAIN):
            batch(keeper, write(str(number), 0, len(keeper.state.head(1, 0).blobs)))
        keeper.sweep()
        assert len(store.list(SEGMENTS)) == KEPT_STATES
        assert len(store.list(MANIFESTS)) <= MAX_CHAIN + KEPT_STATES
        assert keeper.sweep() == []

    def test_it_happens_by_itself(self, store: MemoryStore) -> None:
        keeper = keeper_of(store)
        most = 0
        for number in range(4 * MAX_CHAIN):
            batch(keeper, write(str(number), 0, len(keeper.state.head(1, 0).blobs)))
            most = max(most, len(store.list(SEGMENTS)))
        assert most < 2 * KEPT_STATES + MAX_CHAIN

    def test_what_lost_attempts_have_left_is_gone(self, store: MemoryStore) -> None:
        keeper = keeper_of(store)
        batch(keeper)
        lost = keeper.prepare({"at": -1}, [write("lost")])
        store.write(segment_path(segment_name(1, "task")), b"of a task that was repeated")
        state = batch(keeper)
        removed = keeper.sweep()
        assert manifest_path(lost) in removed
        assert segment_path(segment_name(1, "task")) in removed
        assert {batch_of(name) for name in store.list(SEGMENTS)} == {0, 1}
        assert (len(removed), texts(store, state.name)) == (3, {"0", "1"})

    def test_files_of_batches_that_this_run_has_not_adopted_stay(self, store: MemoryStore) -> None:
        """Whether a run that has taken over wrote them, or this one, which has not ended its batch."""
        keeper = keeper_of(store)
        for _ in range(3):
            batch(keeper)
        newer = keeper_of(store, keeper.state.name)
        for _ in range(MAX_CHAIN):
            batch(newer)
        keeper.prepare({}, [write("late")])
        before = set(store.files)
        removed = set(keeper.sweep())
        assert all(batch_of(name.partition("/")[2]) <= keeper.state.batch_id for name in removed)
        assert set(store.files) == before - removed
        assert texts(store, newer.state.name) == {str(number) for number in range(3 + MAX_CHAIN)}

    def test_a_run_that_was_overtaken_takes_nothing_that_the_newer_one_needs(
        self, store: MemoryStore
    ) -> None:
        older = keeper_of(store)
        for _ in range(5):
            batch(older)
        name = older.prepare({"at": 5}, [write("committed")])
        newer = keeper_of(store, name)  # the output took the batch, and then another run
        older.sweep()
        batch(newer)
        older.adopt(name)
        for _ in range(2 * KEPT_STATES):
            batch(newer, write("new", 0, len(newer.state.head(1, 0).blobs)))
            older.sweep()
            if newer.state.batch_id < 5 + KEPT_STATES:
                assert "committed" in texts(store, name)
            assert texts(store, newer.state.name) >= {"new"}
            newer.sweep()

    def test_what_is_no_file_of_a_batch_stays(self, store: MemoryStore) -> None:
        keeper = keeper_of(store)
        others = ["manifests/notes.txt", "segments/notes.txt", "slackwater.json"]
        for name in others:
            store.write(name, b"")
        for _ in range(40):
            batch(keeper)
        keeper.sweep()
        assert set(others) <= set(store.files)


def test_a_name_of_the_history_is_the_state_of_its_batch(store: MemoryStore) -> None:
    keeper = keeper_of(store)
    states: Sequence[State] = [batch(keeper) for _ in range(12)]
    assert history(store) == [state.name for state in states]
