"""Filling an index from a log: in bounded memory, beside the old one, and never half."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slackwater.engine import lmdb_index
from slackwater.engine.index import BucketIndex
from slackwater.engine.lmdb_index import LmdbIndex
from slackwater.engine.state.entry import Change
from slackwater.protocol import UnavailableError

MakeIndex = Callable[[], BucketIndex]
State = tuple[bytes | None, dict[bytes, bytes]]


def everything(index: BucketIndex) -> State:
    return index.update(lambda contents: (contents.token, dict(contents.entries())))


def history(batches: int, size: int) -> Iterator[list[Change]]:
    rng = random.Random(batches * size)
    for _ in range(batches):
        yield [
            (b"\x91%d" % rng.randrange(size * 3), rng.choice([None, b"v%d" % rng.random()]))
            for _ in range(size)
        ]


def contents_of(batches: Iterator[list[Change]]) -> dict[bytes, bytes]:
    result: dict[bytes, bytes] = {}
    for changes in batches:
        for name, value in changes:
            if value is None:
                result.pop(name, None)
            else:
                result[name] = value
    return result


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_index, "SORTED_BYTES", 2_000)
    monkeypatch.setattr(lmdb_index, "STEP_CHANGES", 50)


@pytest.mark.usefixtures("small_parts")
def test_a_loaded_index_has_what_the_changes_make_of_nothing(make_index: MakeIndex) -> None:
    index = make_index()
    index.update(lambda contents: contents.apply([(b"\x90", b"before")]))
    index.load(history(20, 100), b"token")
    assert everything(index) == (b"token", contents_of(history(20, 100)))


def test_an_index_loaded_from_nothing_is_empty_but_current(make_index: MakeIndex) -> None:
    index = make_index()
    index.load([], b"token")
    assert everything(index) == (b"token", {})


@pytest.mark.usefixtures("small_parts")
def test_a_load_that_fails_leaves_the_index_as_it_was(make_index: MakeIndex) -> None:
    def failing() -> Iterator[list[Change]]:
        yield from history(5, 100)
        raise ZeroDivisionError

    index = make_index()
    index.load([[(b"\x90", b"before")]], b"before")
    with pytest.raises(ZeroDivisionError):
        index.load(failing(), b"after")
    assert everything(index) == (b"before", {b"\x90": b"before"})


@pytest.mark.usefixtures("small_parts")
def test_a_new_index_that_vanishes_while_it_is_filled_is_an_error(index_folder: Path) -> None:
    """Without the check it would be complete as far as its token says, and lack what had been put before."""

    def vanishing() -> Iterator[list[Change]]:
        yield from history(5, 100)
        for draft in index_folder.parent.glob(".*"):
            shutil.rmtree(draft)
        yield from history(5, 100)

    index = LmdbIndex(index_folder)
    with pytest.raises(UnavailableError, match="was removed while it was filled"):
        index.load(vanishing(), b"token")
    assert everything(index) == (None, {})


def test_handles_of_other_processes_see_the_loaded_index(index_folder: Path) -> None:
    index, other = LmdbIndex(index_folder), LmdbIndex(index_folder)
    other.update(lambda contents: contents.set_token(b"before"))
    index.load([[(b"\x91", b"x")]], b"after")
    assert everything(other) == (b"after", {b"\x91": b"x"})


def test_drafts_of_processes_that_are_no_more_are_removed(index_folder: Path) -> None:
    abandoned = index_folder.with_name(f".{index_folder.name}.4194305")  # above the largest process id
    alive = index_folder.with_name(f".{index_folder.name}.1")
    abandoned.mkdir(parents=True)
    alive.mkdir()
    LmdbIndex(index_folder).load([], b"token")
    assert not abandoned.exists()
    assert alive.exists()
