"""A disk that can be full: the pipeline's checkpoint, index and Spark's local files are on it."""

import atexit
import contextlib
import errno
import os
import resource
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

import psutil

from slackwater_lab.watching import Background

_SIZE = "512m"
_BALLAST = "ballast"
_PIECE_BYTES = 1 << 20
_REFILL_SECONDS = 0.01


class Disk(ABC):
    """A folder whose room can be taken."""

    how: ClassVar[str]
    """What being full means here."""
    says: ClassVar[str]
    """How the system words the error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    @abstractmethod
    def fill(self) -> None:
        """Not a byte more."""

    @abstractmethod
    def free(self) -> None:
        """Room again."""

    def close(self) -> None:  # noqa: B027 - a folder has nothing to give back
        """Gives everything back."""


class _Filler(Background):
    """Writes a file until it is stopped: what others free is taken at once."""

    def __init__(self, ballast: Path) -> None:
        super().__init__("disk-filler")
        self._ballast = ballast
        self.take_all()

    def take_all(self) -> None:
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (_PIECE_BYTES, 4096, 1):
                _write_until_full(ballast.fileno(), b"\0" * size)

    def _work(self) -> None:
        while not self._stop.wait(_REFILL_SECONDS):
            self.take_all()


class _SmallDisk(Disk):
    """A file system in memory of its own, filled by a ballast file; needs the right to mount.

    What others free while it is full is taken at once: a pipeline that deletes as much as it writes would
    not notice otherwise.
    """

    how = f"a file system of {_SIZE} filled to the last byte (ENOSPC)"
    says = os.strerror(errno.ENOSPC)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._filler: _Filler | None = None
        command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "slackwater-chaos", str(folder)]
        subprocess.run(command, check=True, capture_output=True)
        atexit.register(self.close)

    def fill(self) -> None:
        """Returns when there is no room; keeps it so until :meth:`free`."""
        if self._filler is None:
            self._filler = _Filler(self.folder / _BALLAST)
            self._filler.start()

    def free(self) -> None:
        """Removes the ballast; nothing happens when there is none."""
        if self._filler is not None:
            self._filler.stop()
            self._filler = None
            (self.folder / _BALLAST).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmounts; idempotent."""
        self.free()
        atexit.unregister(self.close)
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)


class ForbiddenGrowth(Disk):
    """An ordinary folder; no file of the given processes may grow (RLIMIT_FSIZE). Needs no rights.

    A process that is started while the disk is full is not limited.
    """

    how = "no file of the pipeline's processes may grow (EFBIG)"
    says = os.strerror(errno.EFBIG)

    def __init__(self, folder: Path, processes: Callable[[], Iterable[int]]) -> None:
        super().__init__(folder)
        self._processes = processes

    def fill(self) -> None:
        """Limits the processes that run now; those they start inherit it."""
        self._limit(0)

    def free(self) -> None:
        """Lifts the limit."""
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        for pid in self._processes():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                hard = process.rlimit(psutil.RLIMIT_FSIZE)[1]
                process.rlimit(psutil.RLIMIT_FSIZE, (size, hard))


def make_disk(folder: Path, processes: Callable[[], Iterable[int]]) -> Disk:
    """A small disk where that is allowed, else a folder whose users can be limited."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            return _SmallDisk(folder / "small-disk")
    return ForbiddenGrowth(folder / "disk", processes)


def _write_until_full(file: int, piece: bytes) -> None:
    while True:
        try:
            os.write(file, piece)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return
