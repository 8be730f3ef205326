"""The log of a bucket: blobs, where they lie, keeping it short without a pause, and indexes that differ."""

import random
import re
from collections.abc import Callable, Iterable
from itertools import product

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from slackwater.engine import bucket as bucket_module
from slackwater.engine.bucket import MAX_REPLAYED_BLOBS, update_current
from slackwater.engine.index import BucketIndex, IndexTransaction
from slackwater.engine.local import MemoryIndex
from slackwater.engine.state import log as log_module
from slackwater.engine.state.entry import Change
from slackwater.engine.state.log import (
    EMPTY_LOG,
    MAX_BLOB_BYTES,
    MAX_STEP_BLOBS,
    MIN_STEP_BYTES,
    SMALL_BYTES,
    Blob,
    BucketLog,
    LogHead,
    LogWrite,
    changes_bytes,
    log_write,
    pack_changes,
    place_writes,
)
from slackwater.protocol import StateError

MakeIndex = Callable[[], BucketIndex]


def name(number: int) -> bytes:
    return msgspec.msgpack.encode([number]) + b"\x01"


class Segments:
    """Segments in memory; counts the blobs that are read of them."""

    def __init__(self) -> None:
        self.written: dict[str, bytes] = {}
        self.reads = 0

    def read(self, blob: Blob) -> bytes:
        self.reads += 1
        return self.written[blob.segment][blob.offset : blob.offset + blob.length]


class Bucket:
    """A bucket that changes entries and does nothing else."""

    def __init__(self, index: BucketIndex | None = None) -> None:
        self.segments = Segments()
        self.head = EMPTY_LOG
        self.index = index or MemoryIndex()
        self.read: list[int] = []
        """Bytes of old blobs that each batch read or dropped."""
        self.written: list[int] = []
        """Bytes that each batch wrote."""
        self.dropped: list[int] = []
        """Blobs that each batch dropped."""

    @property
    def log(self) -> BucketLog:
        return BucketLog(7, 3, self.head, self.segments)

    def run(self, changes: list[Change]) -> None:
        """One batch."""
        write = self.attempt(changes)
        self.read.append(sum(blob.size for blob in self.head.blobs[: write.dropped]))
        self.written.append(sum(blob.size for blob in write.blobs))
        self.dropped.append(write.dropped)
        segment = f"segment {len(self.written)}"
        self.segments.written[segment], (update,) = place_writes(segment, [write])
        self.head = update.after(self.head)

    def attempt(self, changes: list[Change]) -> LogWrite:
        """A batch of which only the index knows."""
        log = self.log

        def work(contents: IndexTransaction) -> LogWrite:
            old = contents.get_many(name for name, _ in changes)
            grown = changes_bytes((n, v) for n, v in dict(changes).items() if v is not None)
            contents.apply(changes)
            write = log_write(log, changes, grown - changes_bytes(old.items()), contents)
            if write.blobs:
                contents.set_token(write.blobs[-1].token)
            else:
                contents.clear()
            return write

        return update_current(log, self.index, work)

    def contents(self) -> dict[bytes, bytes]:
        """What the index says."""
        return self.index.update(lambda contents: dict(contents.entries()))

    def logged(self) -> dict[bytes, bytes]:
        """What the log says."""
        return folded(self.log.changes())


def folded(batches: Iterable[list[Change]]) -> dict[bytes, bytes]:
    result: dict[bytes, bytes] = {}
    for changes in batches:
        for key, value in changes:
            if value is None:
                result.pop(key, None)
            else:
                result[key] = value
    return result


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def test_a_large_batch_is_cut_into_blobs_of_bounded_size() -> None:
    changes: list[Change] = [(name(number), bytes(1000)) for number in range(5000)]
    blobs, _ = pack_changes(changes)
    assert len(blobs) == changes_bytes(changes) // MAX_BLOB_BYTES + 1
    assert sum(blob.size for blob in blobs) == changes_bytes(changes)
    assert max(blob.size for blob in blobs) < MAX_BLOB_BYTES + 1100
    assert len({blob.token for blob in blobs}) == len(blobs)


def test_no_changes_are_no_blob() -> None:
    assert pack_changes([]) == ((), b"")
    assert changes_bytes([]) == 0


def test_blobs_of_several_buckets_lie_side_by_side_in_one_segment() -> None:
    changes: dict[int, list[Change]] = {
        each: [(name(each), bytes(each)), (name(9), None)] for each in range(3)
    }
    writes = []
    for each, of_bucket in changes.items():
        (blob,), data = pack_changes(of_bucket)
        second = msgspec.structs.replace(blob, offset=len(data))
        writes.append(LogWrite(1, each, 0, (blob, second), 5, data * 2))
    segments = Segments()
    segments.written["a"], updates = place_writes("a", writes)
    assert [(update.stage, update.bucket) for update in updates] == [(1, each) for each in changes]
    assert sum(len(write.data) for write in writes) == len(segments.written["a"])
    for update in updates:
        log = BucketLog(1, update.bucket, update.after(EMPTY_LOG), segments)
        assert list(log.changes()) == [changes[update.bucket]] * 2


def test_a_head_follows_from_the_one_before_and_what_a_batch_drops_and_adds(bucket: Bucket) -> None:
    def blob(number: int) -> Blob:
        return Blob("s", number, 1, 10 + number, b"%d" % number)

    head = LogHead((blob(1), blob(2), blob(3)), 36, 20)
    write = LogWrite(1, 0, 2, (), 15)
    (update,) = place_writes("n", [write])[1]
    assert update.after(head) == LogHead((blob(3),), 13, 15)
    assert update.after(head).token == b"3"
    assert EMPTY_LOG.token is None


def test_what_is_written_is_read_in_order(bucket: Bucket) -> None:
    for number in range(100):
        bucket.run([(name(number), b"x")])
    assert list(bucket.log.changes()) == [[(name(number), b"x")] for number in range(100)]
    assert bucket.logged() == bucket.contents()


def test_a_blob_is_found_by_its_token(bucket: Bucket) -> None:
    for number in range(5):
        bucket.run([(name(number), b"x")])
    tokens = [blob.token for blob in bucket.head.blobs]
    assert [bucket.log.place_of(token) for token in tokens] == [1, 2, 3, 4, 5]
    assert bucket.log.place_of(b"of another log") is None


def test_a_flipped_bit_is_an_error_that_names_the_place_unless_it_changes_nothing(bucket: Bucket) -> None:
    bucket.run([(name(1), random.Random(3).randbytes(40))])
    expected = bucket.logged()
    data = bucket.segments.written["segment 1"]
    harmless = 0
    for place, bit in product(range(len(data)), range(8)):
        flipped = data[:place] + bytes((data[place] ^ 1 << bit,)) + data[place + 1 :]
        bucket.segments.written["segment 1"] = flipped
        try:
            found: object = bucket.logged()
        except StateError as error:
            found = str(error)
        if isinstance(found, str):
            assert re.search("stage 7, bucket 3: .* segment segment 1 at 0", found)
        else:
            assert found == expected
            harmless += 1
    assert harmless < 8, "only bits of the header that mean nothing to a reader"


def test_a_blob_that_is_in_the_place_of_another_one_is_an_error(bucket: Bucket) -> None:
    for number in (1, 2):
        bucket.run([(name(number), b"x")])
    written = bucket.segments.written
    assert len(written["segment 1"]) == len(written["segment 2"])
    written["segment 1"], written["segment 2"] = written["segment 2"], written["segment 1"]

    with pytest.raises(StateError, match=r"stage 7, bucket 3: .* segment 1 at 0 is not the blob"):
        list(bucket.log.changes())


def test_blobs_of_earlier_versions_are_read_without_a_token(bucket: Bucket) -> None:
    bucket.run([(name(1), b"x")])
    (blob,) = bucket.head.blobs
    bucket.segments.written["segment 1"] = bucket.segments.written["segment 1"][len(blob.token) :]
    old = msgspec.structs.replace(blob, token=blob.token[:8], length=blob.length - len(blob.token))
    bucket.head = LogHead((old,), blob.size, blob.size)

    assert list(bucket.log.changes()) == [[(name(1), b"x")]]


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_a_blob_that_is_cut_short_is_an_error(bucket: Bucket, kept: int) -> None:
    bucket.run([(name(1), random.Random(3).randbytes(40))])
    bucket.segments.written["segment 1"] = bucket.segments.written["segment 1"][:kept]
    with pytest.raises(StateError, match="stage 7, bucket 3"):
        list(bucket.log.changes())


def test_a_blob_of_something_else_is_an_error(bucket: Bucket) -> None:
    bucket.run([(name(1), b"x")])
    (blob,) = bucket.head.blobs
    other = blob.token + zstandard.compress(msgspec.msgpack.encode({"a": 1}))
    bucket.head = LogHead((msgspec.structs.replace(blob, length=len(other)),), 1, 1)
    bucket.segments.written["segment 1"] = other
    with pytest.raises(StateError, match="stage 7, bucket 3"):
        list(bucket.log.changes())


def test_a_large_log_is_kept_short_and_no_batch_does_much_more_than_its_own_size(bucket: Bucket) -> None:
    rng = random.Random(5)
    rows = 40_000
    for start in range(0, rows, 2_000):
        bucket.run([(name(number), rng.randbytes(100)) for number in range(start, start + 2_000)])
    assert bucket.head.live_bytes > 2 * SMALL_BYTES
    for _ in range(100):
        bucket.run([(name(rng.randrange(rows)), rng.randbytes(100)) for _ in range(1_000)])
    assert bucket.head.log_bytes < 2.2 * bucket.head.live_bytes
    own = 1_000 * 106
    assert max(bucket.read[20:]) <= MIN_STEP_BYTES + 2 * own + MAX_BLOB_BYTES
    assert sum(bucket.written[20:]) < 2.2 * 100 * own
    assert bucket.logged() == bucket.contents()


def test_a_large_log_of_tiny_blobs_is_kept_short_by_a_few_requests_at_a_time(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "SMALL_BYTES", 100_000)
    bucket.run([(name(number), bytes(100)) for number in range(1_100)])
    for number in range(2_000):
        bucket.run([(name(0), b"%d" % number)])
    assert 0 < max(bucket.dropped) <= MAX_STEP_BLOBS
    assert len(bucket.head.blobs) < 1_500
    assert bucket.logged() == bucket.contents()


def test_a_log_that_is_suddenly_much_too_long_is_shortened_step_by_step(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "SMALL_BYTES", 0)
    for number in range(400):
        bucket.run([(name(number), bytes(100))])
    assert sum(bucket.dropped) == 0
    bucket.run([(name(number), None) for number in range(350)])
    bucket.run([(name(0), b"x")])
    assert bucket.dropped[-2:] == [MAX_STEP_BLOBS] * 2
    monkeypatch.setattr(log_module, "MIN_STEP_BYTES", 2_000)
    bucket.run([(name(0), b"y")])
    assert 2_000 < bucket.read[-1] < 2_300
    assert bucket.logged() == bucket.contents()


def test_as_much_is_dropped_as_makes_the_log_short_enough_and_no_more(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant in ("SMALL_BYTES", "COMPACTION_SLACK_BYTES", "_BLOB_COST_BYTES"):
        monkeypatch.setattr(log_module, constant, 0)
    rng = random.Random(3)
    for number in range(30):
        bucket.run([(name(number), bytes(100))])
    for _ in range(300):
        bucket.run([(name(rng.randrange(30)), rng.randbytes(100))])
        assert bucket.head.log_bytes <= 2 * bucket.head.live_bytes
    assert 0 < max(bucket.dropped) < 30
    assert sum(bucket.dropped) < 3 * 300


def test_a_large_batch_drops_more_than_a_small_one(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in (("SMALL_BYTES", 0), ("COMPACTION_SLACK_BYTES", 0), ("MIN_STEP_BYTES", 1)):
        monkeypatch.setattr(log_module, constant, value)
    for number in range(40):
        bucket.run([(name(number), bytes(1_000))])
    bucket.run([(name(number), None) for number in range(35)])
    bucket.run([(name(50), b"small")])
    bucket.run([(name(51), bytes(10_000))])
    small, large = bucket.dropped[-2:]
    assert small == 1
    assert large > 5
    assert bucket.logged() == bucket.contents()


def test_an_index_that_was_built_anew_is_current_also_if_the_batch_changes_nothing(bucket: Bucket) -> None:
    for number in range(5):
        bucket.run([(name(number), b"x")])
    index = MemoryIndex()
    for _ in range(2):
        update_current(bucket.log, index, lambda _: None)
    assert bucket.segments.reads == 5


def test_removals_are_gone_when_nothing_older_is_left(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "SMALL_BYTES", 0)
    monkeypatch.setattr(log_module, "COMPACTION_SLACK_BYTES", 0)
    bucket.run([(name(number), bytes(20)) for number in range(100)])
    bucket.run([(name(number), None) for number in range(10, 100)])
    for number in range(40):
        bucket.run([(name(1), b"%d" % number)])
    assert all(value is not None for changes in bucket.log.changes() for _, value in changes)
    assert bucket.logged() == bucket.contents()


def test_a_small_log_is_written_anew_at_once(bucket: Bucket) -> None:
    for number in range(2_000):
        bucket.run([(name(number % 10), b"%d" % number + bytes(100))])
    assert len(bucket.head.blobs) < 300
    assert max(bucket.dropped) > MAX_STEP_BLOBS
    assert sum(bucket.written) < 3 * 2_000 * 110
    assert bucket.segments.reads == 0
    assert bucket.logged() == bucket.contents()


def test_what_was_removed_does_not_come_back_with_an_old_blob(bucket: Bucket) -> None:
    """An old blob that has an entry is dropped before the blob that removes it, and also after."""
    rng = random.Random(7)
    for start in range(0, 30_000, 3_000):
        bucket.run([(name(number), rng.randbytes(100)) for number in range(start, start + 3_000)])
    bucket.run([(name(number), None) for number in range(0, 30_000, 2)])
    for number in range(40):
        bucket.run([(name(1), rng.randbytes(100 + number))])
    assert sum(bucket.dropped) > 0
    assert bucket.logged() == bucket.contents()
    assert bucket.logged().keys() == {name(number) for number in range(1, 30_000, 2)}


Batches = st.lists(
    st.lists(
        st.tuples(st.integers(0, 6).map(name), st.none() | st.binary(max_size=3)),
        min_size=1,
        unique_by=lambda change: change[0],
    ),
    min_size=1,
    max_size=30,
)
Losses = st.lists(st.sampled_from(["nothing", "everything", "all since", "another attempt"]), max_size=30)


@given(Batches, Losses, st.booleans())
def test_log_and_index_say_the_same_whatever_is_dropped_or_lost_when(
    batches: list[list[Change]], losses: list[str], is_small: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "SMALL_BYTES", 12 if is_small else -1)
        patch.setattr(log_module, "MIN_STEP_BYTES", 4)
        patch.setattr(log_module, "COMPACTION_SLACK_BYTES", 0)
        patch.setattr(log_module, "_BLOB_COST_BYTES", 0)
        patch.setattr(log_module, "MAX_BLOB_BYTES", 8)
        bucket, expected = Bucket(), dict[bytes, bytes]()
        earlier: list[tuple[dict[bytes, bytes], bytes | None]] = []
        for number, changes in enumerate(batches):
            loss = losses[number] if number < len(losses) else "nothing"
            earlier.append((bucket.contents(), bucket.head.token))
            if loss == "everything":
                bucket.index = MemoryIndex()
            elif loss == "another attempt":
                bucket.attempt(changes[::2])
            elif loss == "all since":
                contents, token = earlier[number // 2]
                bucket.index = index_of(contents, token)
            bucket.run(changes)
            expected = folded([list(expected.items()), changes])
            assert bucket.logged() == bucket.contents() == expected
            assert bucket.head.live_bytes == changes_bytes(bucket.contents().items())
            assert bucket.head.log_bytes == sum(map(changes_bytes, bucket.log.changes()))


def index_of(contents: dict[bytes, bytes], token: bytes | None) -> MemoryIndex:
    index = MemoryIndex()

    def fill(transaction: IndexTransaction) -> None:
        transaction.apply(contents.items())
        if token is not None:
            transaction.set_token(token)

    index.update(fill)
    return index


def test_an_index_that_is_behind_reads_what_it_lacks_and_no_more(make_index: MakeIndex) -> None:
    bucket = Bucket(make_index())
    for number in range(10):
        bucket.run([(name(number), b"x")])
    behind, bucket.index = bucket.index, make_index()
    bucket.run([(name(3), None)])
    bucket.run([(name(4), b"y")])
    bucket.segments.reads, bucket.index = 0, behind
    bucket.run([(name(11), b"x")])
    assert bucket.segments.reads == 2
    assert bucket.contents() == bucket.logged()


def test_an_index_that_is_far_behind_is_loaded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loaded(MemoryIndex):
        loads = 0

        def load(self, batches: Iterable[Iterable[Change]], token: bytes) -> None:
            self.loads += 1
            super().load(batches, token)

    monkeypatch.setattr(bucket_module, "MAX_REPLAYED_BLOBS", 3)
    for lacking, loads in ((3, 0), (4, 1)):
        behind = Loaded()
        bucket = Bucket(behind)
        bucket.run([(name(0), b"x")])
        bucket.index = MemoryIndex()
        for number in range(lacking):
            bucket.run([(name(number), b"y")])
        bucket.index = behind
        bucket.run([(name(9), b"x")])
        assert behind.loads == loads
        assert bucket.contents() == bucket.logged()
    assert MAX_REPLAYED_BLOBS > 3


def test_an_index_that_is_ahead_or_of_another_attempt_is_made_anew(make_index: MakeIndex) -> None:
    bucket = Bucket(make_index())
    for number in range(3):
        bucket.run([(name(number), b"x")])
    bucket.attempt([(name(1), b"lost"), (name(8), b"lost")])
    bucket.run([(name(2), b"y")])
    assert bucket.contents() == bucket.logged() == {name(0): b"x", name(1): b"x", name(2): b"y"}


def test_an_index_that_another_process_takes_over_while_it_is_loaded_is_rebuilt_again(
    make_index: MakeIndex,
) -> None:
    class Contested:
        def __init__(self, index: BucketIndex) -> None:
            self.update, self.snapshot, self._load = index.update, index.snapshot, index.load

        def load(self, batches: object, token: bytes) -> None:
            self._load(batches, token)  # type: ignore[arg-type]  # handed on
            self._load([[(name(99), b"of another attempt")]], b"another token")

    bucket = Bucket(make_index())
    for number in range(3):
        bucket.run([(name(number), b"x")])
    bucket.index = Contested(make_index())
    bucket.run([(name(3), b"x")])
    assert bucket.contents() == bucket.logged() == {name(number): b"x" for number in range(4)}


def test_an_index_that_another_process_changes_between_two_missing_blobs_is_rebuilt(
    make_index: MakeIndex,
) -> None:
    """Neither are blobs added to contents that they do not follow, nor does what they say get lost."""

    class Contested:
        def __init__(self, index: BucketIndex, after: int) -> None:
            self.load, self.snapshot, self._index, self._left = index.load, index.snapshot, index, after

        def update(self, work: Callable[[IndexTransaction], object]) -> object:
            result = self._index.update(work)
            self._left -= 1
            if not self._left:
                self._index.load([[(name(99), b"of another attempt")]], b"another token")
            return result

    for after in (1, 2, 3):
        bucket = Bucket(make_index())
        bucket.run([(name(0), b"x")])
        behind, bucket.index = bucket.index, make_index()
        for number in range(1, 4):
            bucket.run([(name(number), b"x"), (name(number - 1), None)])
        bucket.index = Contested(behind, after)  # type: ignore[assignment]  # hands on what `work` returns
        bucket.run([(name(7), b"x")])
        assert bucket.contents() == bucket.logged() == {name(3): b"x", name(7): b"x"}
