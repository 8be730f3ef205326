"""Supervision and the disk, with small real processes."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from slackwater_lab.chaos.disk import ForbiddenGrowth, make_disk
from slackwater_lab.chaos.system import Part, Supervised

SECONDS = 300.0


class Lamp:
    """A part that is well while it burns."""

    name = "lamp"

    def __init__(self) -> None:
        self.is_well = True
        self.started = threading.Event()

    def start(self) -> None:
        self.is_well = True
        self.started.set()

    def kill(self) -> None:
        self.is_well = False

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def test_what_dies_is_reported_and_started_again() -> None:
    lamp, deaths = Lamp(), []
    supervised = Supervised(cast("Part", lamp), lambda part: deaths.append(part.name))
    supervised.start()
    supervised.do(lambda part: part.kill())
    assert lamp.started.wait(SECONDS)
    supervised.stop()
    assert deaths == ["lamp"]
    assert lamp.is_well


def test_after_the_end_of_supervision_the_dead_stay_dead() -> None:
    lamp, deaths = Lamp(), list[Part]()
    supervised = Supervised(cast("Part", lamp), deaths.append)
    supervised.start()
    supervised.stop()
    supervised.do(lambda part: part.kill())
    assert not lamp.is_well
    assert deaths == []


def test_what_is_taken_away_is_started_only_when_it_may_be_back() -> None:
    lamp, deaths = Lamp(), threading.Event()
    supervised = Supervised(cast("Part", lamp), lambda part: deaths.set())
    supervised.is_kept_down = True
    supervised.start()
    supervised.do(lambda part: part.kill())
    assert not deaths.wait(1.0)
    supervised.is_kept_down = False
    assert lamp.started.wait(SECONDS)
    supervised.stop()


def test_a_full_disk_takes_no_byte_and_then_takes_them_again(tmp_path: Path) -> None:
    disk = make_disk(tmp_path / "place", lambda: [os.getpid()])
    if isinstance(disk, ForbiddenGrowth):  # we are the process: a signal comes instead of an error
        disk.close()
        return
    try:
        (disk.folder / "old").write_bytes(b"x" * 100_000)
        disk.fill()
        (disk.folder / "old").unlink()  # what is freed is taken as well, after a moment
        assert becomes_true(lambda: os.statvfs(disk.folder).f_bfree == 0)
        with pytest.raises(OSError) as full:  # noqa: PT011 - its number says which
            (disk.folder / "file").write_bytes(b"x" * 5000)
        assert full.value.errno == errno.ENOSPC
        disk.free()
        assert (disk.folder / "file").write_bytes(b"x" * 5000) == 5000
    finally:
        disk.close()


def test_without_rights_the_files_of_a_process_cannot_grow(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    disk = ForbiddenGrowth(tmp_path / "disk", lambda: [sleeper.pid])
    disk.fill()
    limits = Path(f"/proc/{sleeper.pid}/limits")
    assert limit_of(limits) == "0"
    disk.free()
    assert limit_of(limits) == "unlimited"


def becomes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    return condition()


def limit_of(limits: Path) -> str:
    line = next(line for line in limits.read_text().splitlines() if line.startswith("Max file size"))
    return line.split()[3]
