"""Filling a new index from a log, beside the one it is going to replace."""

import os
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.index.folders import unusable_folder
from slackwater_engine.state.entry import Change

SORTED_BYTES: Final = 16 << 20
"""Of changes that are sorted before they are put: an index is filled fastest in its own order."""

STEP_CHANGES: Final = 2_048
"""Of one transaction: each may change a page of 4 KiB, which is kept in memory until the commit."""


class _Draft(Protocol):
    def update(self, work: "_Step") -> None: ...


class _Step:
    """Puts a part of the changes, if those before it are still there."""

    def __init__(self, folder: Path, number: int, part: Iterable[Change], token: bytes) -> None:
        self._folder = folder
        self._number = number
        self._part = part
        self._token = token

    def __call__(self, contents: IndexTransaction) -> None:
        expected = _progress(self._number) if self._number else None
        if contents.token != expected:
            reason = "the new index was removed while it was filled"
            raise unusable_folder(self._folder, reason)
        contents.apply(self._part)
        contents.set_token(self._token)


def fill(draft: _Draft, folder: Path, batches: Iterable[Iterable[Change]], token: bytes) -> None:
    """Makes the changes in an empty index in this folder; it gets the token at the end.

    Raises:
        EngineUnavailableError: the index lost what had been put; it says that it lost everything.
    """
    number = 0
    for part in _sorted_parts(batches):
        draft.update(_Step(folder, number, part, _progress(number + 1)))
        number += 1
    draft.update(_Step(folder, number, (), token))


def draft_folder(folder: Path) -> Path:
    """Where this process drafts an index; drafts of processes that are no more are removed."""
    for other in folder.parent.glob(f".{folder.name}.*"):
        process = other.suffix.removeprefix(".")
        if process == str(os.getpid()) or not Path("/proc", process).exists():
            shutil.rmtree(other, ignore_errors=True)
    return folder.with_name(f".{folder.name}.{os.getpid()}")


def _sorted_parts(batches: Iterable[Iterable[Change]]) -> Iterator[list[Change]]:
    """Later changes of a name replace earlier ones of the same run."""
    run: dict[bytes, bytes | None] = {}
    size = 0
    for changes in batches:
        for name, value in changes:
            run[name] = value
            size += len(name) + len(value or b"")
        if size >= SORTED_BYTES:
            yield from _parts(run)
            run, size = {}, 0
    yield from _parts(run)


def _parts(run: dict[bytes, bytes | None]) -> Iterator[list[Change]]:
    names = iter(sorted(run))
    while part := [(name, run[name]) for name in islice(names, STEP_CHANGES)]:
        yield part


def _progress(number: int) -> bytes:
    """A token no state has: those are random and longer."""
    return b"part %d" % number
