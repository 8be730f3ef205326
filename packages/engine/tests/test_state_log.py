"""The log of a bucket: blobs, their numbers, and keeping it short without a pause."""

import random
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater_engine.bucket import update_current
from slackwater_engine.errors import EngineStateError
from slackwater_engine.index.contract import BucketIndex, IndexTransaction
from slackwater_engine.local import MemoryCell, MemoryIndex, MemoryMap
from slackwater_engine.state.entry import Change
from slackwater_engine.state.log import (
    MAX_BLOB_BYTES,
    MIN_STEP_BYTES,
    SMALL_BYTES,
    LogMeta,
    LogWrite,
    StateLog,
    changes_bytes,
    encoded_blobs,
    log_write,
)

VIEW = "fingerprint"


def name(number: int) -> bytes:
    return msgspec.msgpack.encode([number]) + b"\x01"


class Bucket:
    """A bucket that changes entries and does nothing else."""

    def __init__(self, index: BucketIndex | None = None) -> None:
        self.blobs = MemoryMap()
        self.log = StateLog(MemoryCell(), self.blobs)
        self.index = index or MemoryIndex()
        self.read: list[int] = []
        """Bytes of old blobs that each batch read."""
        self.written: list[int] = []
        """Bytes that each batch wrote."""
        self.batches = 0

    @property
    def meta(self) -> LogMeta | None:
        return self.log.meta(0, VIEW)

    def run(self, changes: list[Change]) -> None:
        """One batch."""
        before = self.meta
        self.batches += 1
        token = b"token %d" % self.batches

        def work(contents: IndexTransaction) -> LogWrite:
            return self._work(changes, token, before, contents)

        write = update_current(0, before, self.log, self.index, work)
        blobs = before.blobs if before else range(0)
        self.read.append(sum(changes_bytes(self.log.blob(0, number)) for number in blobs[: write.dropped]))
        self.written.append(changes_bytes(write.changes))
        self.log.write(write)

    def _work(
        self, changes: list[Change], token: bytes, before: LogMeta | None, contents: IndexTransaction
    ) -> LogWrite:
        old = contents.get_many(name for name, _ in changes)
        live = changes_bytes((n, v) for n, v in dict(changes).items() if v is not None)
        live -= changes_bytes(old.items())
        contents.apply(changes)
        contents.set_token(token)
        log_bytes, live_bytes = (before.log_bytes, before.live_bytes) if before else (0, 0)
        blobs = before.blobs if before else range(0)
        meta = LogMeta(VIEW, token, log_bytes + changes_bytes(changes), live_bytes + live, blobs)
        return log_write(0, changes, meta, self.log, contents)

    def contents(self) -> dict[bytes, bytes]:
        """What the index says."""
        return self.index.update(lambda contents: dict(contents.entries()))

    def logged(self) -> dict[bytes, bytes]:
        """What the log says."""
        result: dict[bytes, bytes] = {}
        meta = self.meta
        assert meta is not None
        for changes in self.log.changes(0, meta):
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
    blobs = list(encoded_blobs(changes))
    assert len(blobs) == changes_bytes(changes) // MAX_BLOB_BYTES + 1


def test_what_is_written_is_read_in_order(bucket: Bucket) -> None:
    batches: list[list[Change]] = [[(name(number), b"x")] for number in range(300)]
    written = LogMeta(VIEW, b"t", 0, 0)
    for changes in batches:
        written = bucket.log.write(LogWrite(changes, written))
    assert bucket.meta == written
    assert list(bucket.log.changes(0, written)) == batches


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_blob_is_an_error_that_names_it(bucket: Bucket, number: int) -> None:
    for i in range(3):
        bucket.run([(name(i), b"x")])
    bucket.blobs.removeKey((number.to_bytes(8, "big"),))
    assert bucket.meta is not None
    with pytest.raises(EngineStateError, match=f"expected blob {number}, found"):
        list(bucket.log.changes(0, bucket.meta))


def test_a_blob_too_many_is_an_error(bucket: Bucket) -> None:
    bucket.run([(name(1), b"x")])
    assert bucket.meta is not None
    bucket.blobs.updateValue(((7).to_bytes(8, "big"),), (b"",))
    with pytest.raises(EngineStateError, match="expected no blob, found blob 7"):
        list(bucket.log.changes(0, bucket.meta))


def test_a_large_log_is_kept_short_and_no_batch_does_much_more_than_its_own_size(bucket: Bucket) -> None:
    rng = random.Random(5)
    rows = 40_000
    for start in range(0, rows, 2_000):
        bucket.run([(name(number), rng.randbytes(100)) for number in range(start, start + 2_000)])
    assert bucket.meta is not None
    assert bucket.meta.live_bytes > 2 * SMALL_BYTES
    for _ in range(100):
        bucket.run([(name(rng.randrange(rows)), rng.randbytes(100)) for _ in range(1_000)])
    assert bucket.meta.log_bytes < 2.2 * bucket.meta.live_bytes
    own = 1_000 * 106
    assert max(bucket.read[20:]) <= MIN_STEP_BYTES + 2 * own + MAX_BLOB_BYTES
    assert sum(bucket.written[20:]) < 2.2 * 100 * own
    assert bucket.logged() == bucket.contents()


def test_a_small_log_is_written_anew_at_once(bucket: Bucket) -> None:
    for number in range(2_000):
        bucket.run([(name(number % 10), b"%d" % number + bytes(100))])
    assert bucket.meta is not None
    assert len(bucket.blobs.items) == len(bucket.meta.blobs) < 300
    assert sum(bucket.written) < 3 * 2_000 * 110
    assert bucket.logged() == bucket.contents()


def test_what_was_removed_does_not_come_back_with_an_old_blob(bucket: Bucket) -> None:
    """An old blob that has an entry is dropped before the blob that removes it, and also after."""
    rng = random.Random(7)
    for start in range(0, 30_000, 3_000):
        bucket.run([(name(number), rng.randbytes(100)) for number in range(start, start + 3_000)])
    bucket.run([(name(number), None) for number in range(0, 30_000, 2)])
    for number in range(40):
        bucket.run([(name(1), rng.randbytes(100 + number))])
    assert bucket.meta is not None
    assert bucket.meta.blobs.start > 0
    assert bucket.logged() == bucket.contents()
    assert bucket.logged().keys() == {name(number) for number in range(1, 30_000, 2)}


Batches = st.lists(
    st.lists(st.tuples(st.integers(0, 6).map(name), st.none() | st.binary(max_size=3)), min_size=1),
    min_size=1,
    max_size=30,
)


@given(Batches)
def test_log_and_index_say_the_same_whatever_is_dropped_when(batches: list[list[Change]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slackwater_engine.state.log.SMALL_BYTES", -1)
        patch.setattr("slackwater_engine.state.log.MIN_STEP_BYTES", 4)
        patch.setattr("slackwater_engine.state.log.COMPACTION_SLACK_BYTES", 0)
        patch.setattr("slackwater_engine.state.log._BLOB_COST_BYTES", 0)
        patch.setattr("slackwater_engine.state.log.MAX_BLOB_BYTES", 8)
        bucket = Bucket()
        for changes in batches:
            bucket.run(changes)
            assert bucket.logged() == bucket.contents()
            meta = bucket.meta
            assert meta is not None
            assert meta.live_bytes == changes_bytes(bucket.contents().items())
            assert meta.log_bytes == sum(map(changes_bytes, bucket.log.changes(0, meta)))
            bucket.index = MemoryIndex()


def test_an_index_that_another_process_takes_over_while_it_is_loaded_is_rebuilt_again(
    make_index: Callable[[], BucketIndex],
) -> None:
    class Contested:
        def __init__(self, index: BucketIndex) -> None:
            self.update, self._load = index.update, index.load

        def load(self, batches: object, token: bytes) -> None:
            self._load(batches, token)  # type: ignore[arg-type]  # handed on
            self._load([[(name(99), b"of another attempt")]], b"another token")

    bucket = Bucket(make_index())
    for number in range(3):
        bucket.run([(name(number), b"x")])
    bucket.index = Contested(make_index())
    bucket.run([(name(3), b"x")])
    assert bucket.contents() == bucket.logged() == {name(number): b"x" for number in range(4)}


def test_numbers_of_blobs_only_rise(bucket: Bucket) -> None:
    seen = []
    for number in range(1_000):
        bucket.run([(name(number % 3), bytes(number % 200))])
        assert bucket.meta is not None
        seen.append(bucket.meta.blobs.stop)
    assert all(before < after for before, after in pairwise(seen))
