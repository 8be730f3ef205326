"""What every index promises, and what only the one on disk must withstand."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.engine.index import BucketIndex, IndexTransaction
from slackwater.engine.lmdb_index import LmdbIndex, OpenIndexes, open_limit
from slackwater.engine.local import MemoryIndex
from slackwater.engine.state.entry import (
    ACCUMULATORS_TAG,
    DOCUMENT_TAG,
    MAX_INPUTS,
    META_NAME,
    MULTISET_TAG,
    OWNER_TAG,
    input_tag,
    part,
)
from slackwater.protocol import UnavailableError

MakeIndex = Callable[[], BucketIndex]

ENTRIES = [(b"\x91\x01\x00", b"hash"), (b"\x91\x01\x01\x91\x01", b"row"), (b"\x91\x02\x01\x91\x01", b"other")]


def fill(contents: IndexTransaction) -> None:
    contents.apply(ENTRIES)
    contents.set_token(b"t1")


def everything(index: BucketIndex) -> tuple[bytes | None, list[tuple[bytes, bytes]]]:
    return index.update(lambda contents: (contents.token, list(contents.entries())))


def test_a_new_index_is_empty_and_has_no_token(make_index: MakeIndex) -> None:
    assert everything(make_index()) == (None, [])


def test_a_group_is_what_starts_with_its_prefix(make_index: MakeIndex) -> None:
    index = make_index()
    index.update(fill)
    assert index.update(lambda contents: contents.group(b"\x91\x01")) == ENTRIES[:2]
    assert index.update(lambda contents: contents.group(b"\x91\x03")) == []


def test_entries_come_sorted_without_the_token(make_index: MakeIndex) -> None:
    index = make_index()
    index.update(fill)
    assert everything(index) == (b"t1", ENTRIES)


def test_changes_replace_and_remove(make_index: MakeIndex) -> None:
    index = make_index()
    index.update(fill)
    index.update(
        lambda contents: contents.apply([(ENTRIES[0][0], None), (ENTRIES[1][0], b"new"), (b"absent", None)])
    )
    assert everything(index)[1] == [(ENTRIES[1][0], b"new"), ENTRIES[2]]


@pytest.mark.parametrize("names", [(b"\x91\x03",), (b"\x91\x03", b"\x91\x04"), (b"\x91\x02", b"\x91\x04")])
def test_changes_may_begin_at_the_last_entry_before_it_or_behind_it(
    make_index: MakeIndex, names: tuple[bytes, ...]
) -> None:
    index = make_index()
    index.update(lambda contents: contents.apply([(b"\x91\x01", b"a"), (b"\x91\x03", b"b")]))
    index.update(lambda contents: contents.apply([(name, b"new") for name in names]))
    expected = {b"\x91\x01": b"a", b"\x91\x03": b"b"} | dict.fromkeys(names, b"new")
    assert everything(index) == (None, sorted(expected.items()))


def test_the_last_change_of_an_entry_counts(make_index: MakeIndex) -> None:
    index = make_index()
    index.update(lambda contents: contents.apply([(b"a", b"1"), (b"a", None), (b"b", None), (b"b", b"2")]))
    assert everything(index)[1] == [(b"b", b"2")]


def test_a_transaction_sees_its_own_changes(make_index: MakeIndex) -> None:
    def work(contents: IndexTransaction) -> list[tuple[bytes, bytes]]:
        fill(contents)
        contents.clear()
        contents.apply(ENTRIES[2:])
        return contents.group(b"\x91")

    assert make_index().update(work) == ENTRIES[2:]


def test_work_that_fails_changes_nothing(make_index: MakeIndex) -> None:
    index = make_index()
    index.update(fill)

    def failing(contents: IndexTransaction) -> None:
        contents.clear()
        contents.set_token(b"t2")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        index.update(failing)
    assert everything(index) == (b"t1", ENTRIES)


def test_entries_are_read_by_name(make_index: MakeIndex) -> None:
    names = [name for name, _ in ENTRIES]
    index = make_index()
    index.update(fill)
    assert index.update(lambda contents: contents.get(names[1])) == b"row"
    assert index.update(lambda contents: contents.get(b"absent")) is None
    assert index.update(lambda contents: contents.get_many([names[2], b"absent", names[0]])) == {
        names[0]: b"hash",
        names[2]: b"other",
    }


def test_what_a_transaction_has_put_or_removed_is_what_it_reads(make_index: MakeIndex) -> None:
    def work(contents: IndexTransaction) -> tuple[object, ...]:
        contents.apply([(b"b1", b"1"), (b"b2", b"2"), (b"b3", b"3")])
        contents.apply([(b"b1", None), (b"b3", None)])
        return (
            contents.get(b"b1"),
            contents.get_many([b"b1", b"b2"]),
            next(contents.scan(b"b"), None),
            next(contents.scan(b"b", descending=True), None),
        )

    assert make_index().update(work) == (None, {b"b2": b"2"}, (b"b2", b"2"), (b"b2", b"2"))


def test_a_scan_reads_while_other_reads_go_on(make_index: MakeIndex) -> None:
    def work(contents: IndexTransaction) -> list[bytes]:
        fill(contents)
        read = []
        for name, _ in contents.scan(b"\x91\x01"):
            read.append(name)
            assert next(contents.scan(b"\x91\x02", descending=True)) == ENTRIES[2]
            assert contents.get(name) is not None
        return read

    assert make_index().update(work) == [name for name, _ in ENTRIES[:2]]


few_bytes = st.binary(min_size=1, max_size=3).map(
    lambda data: bytes((b"\x01", b"\x02", b"\xff")[b % 3][0] for b in data)
)


@settings(deadline=None)
@given(names=st.sets(few_bytes, max_size=12), prefix=few_bytes)
def test_both_kinds_of_index_read_a_prefix_from_either_end_alike(names: set[bytes], prefix: bytes) -> None:
    def work(contents: IndexTransaction) -> tuple[object, ...]:
        contents.clear()
        contents.apply([(name, name) for name in names])
        upwards = list(contents.scan(prefix))
        downwards = list(contents.scan(prefix, descending=True))
        return contents.group(prefix), upwards, downwards

    expected = sorted((name, name) for name in names if name.startswith(prefix))
    with TemporaryDirectory() as folder:
        indexes: tuple[BucketIndex, ...] = (
            MemoryIndex(),
            LmdbIndex(Path(folder) / "0", initial_map_bytes=1 << 20),
        )
        for index in indexes:
            assert index.update(work) == (expected, expected, expected[::-1])
        cast("LmdbIndex", indexes[1]).close()


keys = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=400), min_size=1, max_size=2)


@given(one=keys, other=keys)
def test_no_group_is_within_another(one: list[object], other: list[object]) -> None:
    first, second = (part(msgspec.msgpack.encode(key)) for key in (one, other))
    assert (one == other) == first.startswith(second) == (first == second)
    assert not META_NAME.startswith(first)
    assert len(first) <= 240


def test_tags_of_inputs_are_no_others() -> None:
    others = {DOCUMENT_TAG, ACCUMULATORS_TAG, MULTISET_TAG, OWNER_TAG}
    assert others.isdisjoint(input_tag(number) for number in range(MAX_INPUTS))
    with pytest.raises(ValueError, match="input 239 of a stage"):
        input_tag(MAX_INPUTS)


def test_it_is_there_again_when_the_process_is_another(index_folder: Path) -> None:
    first = LmdbIndex(index_folder)
    first.update(fill)
    first.close()
    assert everything(LmdbIndex(index_folder)) == (b"t1", ENTRIES)


def test_two_open_handles_see_each_others_changes(index_folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from slackwater.engine.lmdb_index import LmdbIndex\n"
        "LmdbIndex(Path(sys.argv[1])).update(lambda c: (c.apply([(b'other', b'1')]), c.set_token(b't2')))"
    )
    index = LmdbIndex(index_folder)
    index.update(fill)
    subprocess.run([sys.executable, "-c", code, str(index_folder)], check=True)
    assert everything(index) == (b"t2", [*sorted([*ENTRIES, (b"other", b"1")])])


def test_a_process_killed_within_a_transaction_leaves_it_as_it_was(index_folder: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from slackwater.engine.lmdb_index import LmdbIndex\n"
        "LmdbIndex(Path(sys.argv[1])).update(lambda c: (c.clear(), os.kill(os.getpid(), 9)))"
    )
    index = LmdbIndex(index_folder)
    index.update(fill)
    killed = subprocess.run([sys.executable, "-c", code, str(index_folder)], check=False)
    assert killed.returncode == -9
    assert everything(index) == (b"t1", ENTRIES)


def test_a_folder_wiped_under_an_open_index_gives_an_empty_one(index_folder: Path) -> None:
    index = LmdbIndex(index_folder)
    index.update(fill)
    shutil.rmtree(index_folder)
    assert everything(index) == (None, [])


def garbage(data: Path) -> None:
    data.write_bytes(os.urandom(data.stat().st_size))


def truncated(data: Path) -> None:
    os.truncate(data, data.stat().st_size - 4096)


def emptied(data: Path) -> None:
    os.truncate(data, 0)


def earlier_boot(data: Path) -> None:
    (data.parent / "boot-id").write_text("another")


@pytest.mark.parametrize("damage", [garbage, truncated, emptied, earlier_boot])
def test_a_file_that_cannot_be_trusted_is_thrown_away(
    index_folder: Path, damage: Callable[[Path], None]
) -> None:
    index = LmdbIndex(index_folder)
    index.update(fill)
    index.close()
    damage(index_folder / "data.mdb")
    assert everything(LmdbIndex(index_folder)) == (None, [])


def many() -> Iterator[tuple[bytes, bytes]]:
    for number in range(2000):
        yield b"%08d" % number, b"x" * 500


def test_the_map_grows_when_it_is_full(index_folder: Path) -> None:
    index = LmdbIndex(index_folder, initial_map_bytes=64 << 10)
    attempts: list[int] = []

    def work(contents: IndexTransaction) -> None:
        attempts.append(1)
        contents.apply(many())

    index.update(work)
    assert len(attempts) > 1
    assert everything(index)[1] == list(many())


def test_a_map_that_another_process_has_grown_is_taken_over(index_folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from slackwater.engine.lmdb_index import LmdbIndex\n"
        "many = [(b'%08d' % n, b'x' * 500) for n in range(2000)]\n"
        "LmdbIndex(Path(sys.argv[1])).update(lambda c: c.apply(many))"
    )
    index = LmdbIndex(index_folder, initial_map_bytes=64 << 10)
    index.update(lambda contents: contents.set_token(b"t1"))
    subprocess.run([sys.executable, "-c", code, str(index_folder)], check=True)
    assert everything(index) == (b"t1", list(many()))


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match=str(tmp_path / "file")):
        LmdbIndex(tmp_path / "file" / "0").update(fill)


def test_indexes_beyond_the_limit_are_closed_and_come_back(tmp_path: Path) -> None:
    opened = OpenIndexes(limit=2)
    for number in range(5):
        opened.get(tmp_path / str(number)).update(fill)
    assert [everything(opened.get(tmp_path / str(number))) for number in range(5)] == [(b"t1", ENTRIES)] * 5
    opened.close()


def test_an_index_that_stays_open_is_the_same_object(tmp_path: Path) -> None:
    opened = OpenIndexes(limit=2)
    assert opened.get(tmp_path / "0") is opened.get(tmp_path / "0")


@pytest.mark.parametrize(("descriptors", "indexes"), [(1024, 256), (1 << 20, 512), (-1, 512), (3, 1)])
def test_open_indexes_leave_descriptors_for_others(descriptors: int, indexes: int) -> None:
    assert open_limit(descriptors) == indexes
