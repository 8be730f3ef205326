"""Reading blobs of segments with few requests."""

import random

import pytest

from slackwater.engine.state import manifest
from slackwater.engine.state.log import Blob
from slackwater.engine.state.manifest import SegmentReader
from slackwater.engine.state.store import MemoryStore
from slackwater.protocol import StateError


class CountingStore(MemoryStore):
    """Notes the parts that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[str, int, int]] = []

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        part = super().read_part(name, offset, length)
        self.parts.append((name, offset, len(part)))
        return part


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def blob(segment: str, offset: int, length: int) -> Blob:
    return Blob(segment, offset, length, length, b"")


def test_blobs_of_a_small_segment_are_read_with_one_request(store: CountingStore) -> None:
    data = random.Random(1).randbytes(1_000)
    store.write("segments/a", data)
    source = SegmentReader(store)
    for offset in range(0, 1_000, 50):
        assert source.read(blob("a", offset, 50)) == data[offset : offset + 50]
    assert store.parts == [("segments/a", 0, 1_000)]


def test_of_a_large_segment_only_what_is_wanted_is_read_beyond_its_beginning(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_SMALL_BYTES", 100)
    data = random.Random(1).randbytes(1_000)
    store.write("segments/a", data)
    source = SegmentReader(store)
    for offset, length in ((0, 100), (60, 41), (500, 30), (20, 80), (90, 10), (990, 10)):
        assert source.read(blob("a", offset, length)) == data[offset : offset + length]
    assert store.parts == [
        ("segments/a", 0, 100),
        ("segments/a", 60, 41),
        ("segments/a", 500, 30),
        ("segments/a", 990, 10),
    ]


def test_few_segments_are_kept_in_memory(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_KEPT_SEGMENTS", 3)
    source = SegmentReader(store)
    for number in range(5):
        store.write(f"segments/{number}", b"%d" % number)
        assert source.read(blob(str(number), 0, 1)) == b"%d" % number
    assert len(store.parts) == 5
    for number in (4, 3, 2):
        assert source.read(blob(str(number), 0, 1)) == b"%d" % number
    assert len(store.parts) == 5
    assert source.read(blob("0", 0, 1)) == b"0"
    assert len(store.parts) == 6


def test_a_missing_segment_is_an_error_that_names_it(store: CountingStore) -> None:
    with pytest.raises(StateError, match="no file segments/gone"):
        SegmentReader(store).read(blob("gone", 0, 1))


def test_a_segment_that_is_too_short_gives_less_which_no_checksum_agrees_with(store: CountingStore) -> None:
    store.write("segments/a", b"abc")
    assert SegmentReader(store).read(blob("a", 2, 5)) == b"c"
