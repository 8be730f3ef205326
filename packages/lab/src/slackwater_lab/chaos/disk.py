"""A disk that can be full: the pipeline's checkpoint, index and Spark's local files are on it."""

import atexit
import contextlib
import errno
import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import psutil

_SIZE = "512m"
_BALLAST = "ballast"
_PIECE_BYTES = 1 << 20
_REFILL_SECONDS = 0.01


class Disk(Protocol):
    """A folder whose room can be taken."""

    folder: Path
    how: str
    """What being full means here."""
    says: str
    """How the system words the error."""

    def fill(self) -> None:
        """Not a byte more."""

    def free(self) -> None:
        """Room again."""

    def close(self) -> None:
        """Gives everything back."""


class _SmallDisk:
    """A file system in memory of its own, filled by a ballast file; needs the right to mount.

    What others free while it is full is taken at once: a pipeline that deletes as much as it writes would
    not notice otherwise.
    """

    how = f"a file system of {_SIZE} filled to the last byte (ENOSPC)"
    says = os.strerror(errno.ENOSPC)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_free = threading.Event()
        self._filler: threading.Thread | None = None
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "slackwater-chaos", str(folder)]
        subprocess.run(command, check=True, capture_output=True)
        atexit.register(self.close)

    def fill(self) -> None:
        """Returns when there is no room; keeps it so until :meth:`free`."""
        if self._filler is None:
            self._is_free.clear()
            self._take_all()
            self._filler = threading.Thread(target=self._keep_full, name="disk-filler", daemon=True)
            self._filler.start()

    def free(self) -> None:
        """Removes the ballast; nothing happens when there is none."""
        if self._filler is not None:
            self._is_free.set()
            self._filler.join()
            self._filler = None
            (self.folder / _BALLAST).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmounts; idempotent."""
        self.free()
        atexit.unregister(self.close)
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)

    def _keep_full(self) -> None:
        while not self._is_free.wait(_REFILL_SECONDS):
            self._take_all()

    def _take_all(self) -> None:
        with (self.folder / _BALLAST).open("ab", buffering=0) as ballast:
            for size in (_PIECE_BYTES, 4096, 1):
                _write_until_full(ballast.fileno(), b"\0" * size)


class ForbiddenGrowth:
    """An ordinary folder; no file of the given processes may grow (RLIMIT_FSIZE). Needs no rights.

    A process that is started while the disk is full is not limited.
    """

    how = "no file of the pipeline's processes may grow (EFBIG)"
    says = os.strerror(errno.EFBIG)

    def __init__(self, folder: Path, processes: Callable[[], Iterable[int]]) -> None:
        self.folder = folder
        self._processes = processes
        folder.mkdir(parents=True)

    def fill(self) -> None:
        """Limits the processes that run now; those they start inherit it."""
        self._limit(0)

    def free(self) -> None:
        """Lifts the limit."""
        self._limit(resource.RLIM_INFINITY)

    def close(self) -> None:
        """Nothing to give back."""

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
