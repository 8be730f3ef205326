"""The index of a bucket in an LMDB environment on the executor's local disk.

``lmdb`` has no type stubs; its objects do not leave this module.
"""

import errno
import os
import resource
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb

from slackwater.engine.index import Contents, IndexTransaction
from slackwater.engine.state.entry import META_NAME, Change, Entry
from slackwater.protocol import UnavailableError, make_private_folder

T = TypeVar("T")

INITIAL_MAP_BYTES: Final = 64 << 20
"""The address space of a new index, which is doubled whenever it is full. The file is only as large as its
contents."""

MAX_OPEN_INDEXES: Final = 512
"""The limit per process, if the process may have this many files open; each index takes two descriptors."""

SORTED_BYTES: Final = 16 << 20
"""The size of the changes that are sorted before they are put, because an index is filled fastest in its own
order."""

STEP_CHANGES: Final = 2_048
"""The number of changes of one transaction. Each may change a page of 4 KiB, which stays in memory until the
commit."""

_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


class LmdbIndex:
    """Implements :class:`~slackwater.engine.index.BucketIndex`; processes may share a folder.

    An index is discarded if its folder cannot be read, if it was written before the machine last started, or
    if its file is shorter than its header states.
    """

    def __init__(self, folder: Path, *, initial_map_bytes: int = INITIAL_MAP_BYTES) -> None:
        self._folder = folder
        self._map_bytes = initial_map_bytes
        self._environment: Any = None
        self._inode = 0

    def update(self, work: Callable[[IndexTransaction], T]) -> T:
        """Runs `work` in a write transaction."""
        discarded = False
        while True:
            try:
                return self._attempt(work)
            except lmdb.MapFullError:
                self._resize(2)
            except lmdb.MapResizedError:
                self._resize(0)
            except lmdb.DiskError as error:
                raise unusable_folder(self._folder, str(error)) from error
            except lmdb.Error as error:
                if discarded:
                    raise unusable_folder(self._folder, str(error)) from error
                discarded = True
                self._discard()
            except OSError as error:
                raise unusable_folder(self._folder, str(error)) from error

    @contextmanager
    def snapshot(self) -> Iterator[Contents]:
        """Provides the contents in a read transaction."""
        try:
            environment = self._opened()
            try:
                transaction = environment.begin(write=False)
            except lmdb.MapResizedError:
                self._resize(0)
                transaction = environment.begin(write=False)
            try:
                yield _LmdbTransaction(transaction, environment.open_db)
            finally:
                transaction.abort()
        except (lmdb.Error, OSError) as error:
            raise unusable_folder(self._folder, str(error)) from error

    def load(self, batches: Iterable[Iterable[Change]], token: bytes) -> None:
        """Fills a new index in another folder, and then moves it to the place of this one."""
        try:
            draft = LmdbIndex(_draft_folder(self._folder), initial_map_bytes=self._map_bytes)
            try:
                draft._fill(self._folder, batches, token)
            finally:
                draft.close()
            self._replace_by(draft)
        except OSError as error:
            raise unusable_folder(self._folder, str(error)) from error

    def close(self) -> None:
        """Releases the handle; the index is opened again when it is needed."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _fill(self, place: Path, batches: Iterable[Iterable[Change]], token: bytes) -> None:
        """Applies the changes to this new index, which will be moved to `place`. The token is set at the end.

        Raises:
            UnavailableError: The index has lost everything that had been put.
        """
        number = 0
        for changes in _sorted_steps(batches):
            self._put_step(place, number, changes, _progress(number + 1))
            number += 1
        self._put_step(place, number, (), token)

    def _put_step(self, place: Path, number: int, changes: Iterable[Change], token: bytes) -> None:
        """Puts some of the changes, if the previous ones are still there."""
        expected = _progress(number) if number else None

        def put(contents: IndexTransaction) -> None:
            if contents.token != expected:
                raise unusable_folder(place, "the new index was removed while it was filled")
            contents.apply(changes)
            contents.set_token(token)

        self.update(put)

    def _attempt(self, work: Callable[[IndexTransaction], T]) -> T:
        environment = self._opened()
        transaction = environment.begin(write=True)
        try:
            result = work(_LmdbTransaction(transaction, environment.open_db))
            transaction.commit()
        except BaseException:
            transaction.abort()
            raise
        return result

    def _opened(self) -> Any:
        if self._environment is not None and self._inode_now() == self._inode:
            return self._environment
        self.close()
        if not _is_usable(self._folder):
            self._discard()
        make_private_folder(self._folder)
        (self._folder / "boot-id").write_text(_boot_id())
        environment = _open_environment(self._folder, self._map_bytes)
        self._environment, self._inode = environment, self._inode_now()
        self._map_bytes = max(self._map_bytes, environment.info()["map_size"])
        if _is_shorter_than_it_says(self._folder / "data.mdb", environment):
            self._discard()
            return self._opened()
        return environment

    def _inode_now(self) -> int:
        try:
            return (self._folder / "data.mdb").stat().st_ino
        except FileNotFoundError:
            return -1

    def _resize(self, factor: int) -> None:
        environment = self._opened()
        environment.set_mapsize(self._map_bytes * factor)
        self._map_bytes = environment.info()["map_size"]

    def _replace_by(self, draft: "LmdbIndex") -> None:
        for is_last in (False, False, True):
            self._discard()
            try:
                draft._folder.rename(self._folder)  # noqa: SLF001 - of this class
            except OSError as error:
                # Another process has made the folder again in between.
                if is_last or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                self._map_bytes = draft._map_bytes  # noqa: SLF001 - as above
                return

    def _discard(self) -> None:
        self.close()
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folder)


class OpenIndexes:
    """The indexes that a process has open; the least recently used are closed. Use it from one thread."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit or open_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._open: OrderedDict[Path, LmdbIndex] = OrderedDict()

    def get(self, folder: Path) -> LmdbIndex:
        """Returns the index in this folder; it is the same object for as long as it is open."""
        index = self._open.pop(folder, None) or LmdbIndex(folder)
        self._open[folder] = index
        while len(self._open) > self._limit:
            self._open.popitem(last=False)[1].close()
        return index

    def close(self) -> None:
        """Closes all indexes."""
        while self._open:
            self._open.popitem()[1].close()


def open_limit(descriptors: int) -> int:
    """Returns the maximum number of indexes for a process that may open this many files (-1: no limit)."""
    return MAX_OPEN_INDEXES if descriptors < 0 else max(1, min(MAX_OPEN_INDEXES, descriptors // 4))


class _LmdbTransaction:
    """Implements :class:`~slackwater.engine.index.IndexTransaction`."""

    def __init__(self, transaction: Any, database: Callable[[], Any]) -> None:
        self._transaction = transaction
        self._database = database
        self._cursor = transaction.cursor()

    @property
    def token(self) -> bytes | None:
        token: bytes | None = self._transaction.get(META_NAME)
        return token

    def get(self, name: bytes) -> bytes | None:
        value: bytes | None = self._transaction.get(name)
        return value

    def get_many(self, names: Iterable[bytes]) -> dict[bytes, bytes]:
        return dict(self._cursor.getmulti(sorted(names)))

    def scan(self, prefix: bytes, *, descending: bool = False, start: bytes | None = None) -> Iterator[Entry]:
        cursor = self._transaction.cursor()
        if descending:
            found = _go_to_last(cursor, prefix) if start is None else _go_to_last_until(cursor, start)
        else:
            found = cursor.set_range(prefix if start is None else start)
        if not found:
            return
        for entry in cursor.iterprev() if descending else cursor.iternext():
            if not entry[0].startswith(prefix):
                return
            yield entry

    def group(self, prefix: bytes, limit: int | None = None) -> list[Entry]:
        found: list[Entry] = []
        if not self._cursor.set_range(prefix):
            return found
        for entry in islice(self._cursor.iternext(), limit):
            if not entry[0].startswith(prefix):
                break
            found.append(entry)
        return found

    def entries(self) -> Iterator[Entry]:
        if self._cursor.first():
            for entry in self._cursor.iternext():
                if entry[0] != META_NAME:
                    yield entry

    def apply(self, changes: Iterable[Change]) -> None:
        last = dict(changes)
        puts = [(name, value) for name in sorted(last) if (value := last[name]) is not None]
        if puts:
            is_behind_all = not self._cursor.last() or self._cursor.key() < puts[0][0]
            self._cursor.putmulti(puts, append=is_behind_all)
        for name, value in last.items():
            if value is None:
                self._transaction.delete(name)

    def clear(self) -> None:
        self._transaction.drop(self._database(), delete=False)

    def set_token(self, token: bytes) -> None:
        self._transaction.put(META_NAME, token)


def _go_to_last(cursor: Any, prefix: bytes) -> bool:
    """Moves to the last entry that is not after all that start with `prefix`; False if there is none."""
    stem = prefix.rstrip(b"\xff")
    behind = stem[:-1] + bytes((stem[-1] + 1,)) if stem else b""
    found: bool = cursor.prev() if behind and cursor.set_range(behind) else cursor.last()
    return found


def _go_to_last_until(cursor: Any, name: bytes) -> bool:
    """Moves to the last entry that is not after `name`; False if there is none."""
    found: bool = cursor.set_range(name)
    if not found:
        found = cursor.last()
    elif cursor.key() != name:
        found = cursor.prev()
    return found


def _open_environment(folder: Path, map_bytes: int) -> Any:
    """Opens the environment in this folder, or creates it; a process has at most one per folder.

    The files are not synced: the environment survives a crash of the process, but maybe not one of the
    machine. Only this account can read the files.
    """
    return lmdb.open(
        str(folder),
        map_size=map_bytes,
        mode=0o600,
        max_dbs=0,
        sync=False,
        metasync=False,
        meminit=False,
        readahead=False,
    )


def _draft_folder(folder: Path) -> Path:
    """Returns the folder of this process's new index, and removes those of processes that no longer exist."""
    for other in folder.parent.glob(f".{folder.name}.*"):
        process = other.suffix.removeprefix(".")
        if process == str(os.getpid()) or not Path("/proc", process).exists():
            shutil.rmtree(other, ignore_errors=True)
    return folder.with_name(f".{folder.name}.{os.getpid()}")


def _sorted_steps(batches: Iterable[Iterable[Change]]) -> Iterator[list[Change]]:
    """Yields the changes in sorted runs; later changes of a name replace earlier ones of the same run."""
    run: dict[bytes, bytes | None] = {}
    size = 0
    for changes in batches:
        for name, value in changes:
            run[name] = value
            size += len(name) + len(value or b"")
        if size >= SORTED_BYTES:
            yield from _steps(run)
            run, size = {}, 0
    yield from _steps(run)


def _steps(run: dict[bytes, bytes | None]) -> Iterator[list[Change]]:
    names = iter(sorted(run))
    while step := [(name, run[name]) for name in islice(names, STEP_CHANGES)]:
        yield step


def _progress(number: int) -> bytes:
    """Returns a token that no state has, because tokens of states are random and longer."""
    return b"part %d" % number


def _is_usable(folder: Path) -> bool:
    try:
        return (folder / "boot-id").read_text() == _boot_id()
    except (OSError, UnicodeDecodeError):
        return False


def _is_shorter_than_it_says(data: Path, environment: Any) -> bool:
    """Returns whether the file is shorter than its header states.

    A truncated file would end the process with SIGBUS when the missing pages are accessed.
    """
    pages: int = environment.info()["last_pgno"] + 1
    size: int = environment.stat()["psize"]
    return data.stat().st_size < pages * size


def _boot_id() -> str:
    """Returns a text that changes whenever the machine starts; empty if the system does not provide one."""
    try:
        return _BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""


INDEXES: Final = "slackwater"
"""The folder below a root: ``slackwater/<query id>/stage-<number>/<bucket>/``."""

UNUSED_AFTER: Final = timedelta(days=7)
"""An index that has not changed for this time is removed. If its query is still in use, it creates the index
again."""


def index_folder(root: Path, query_id: str, stage: str, bucket: int) -> Path:
    """Returns the folder of a bucket's index."""
    return root / INDEXES / query_id / stage / str(bucket)


def unusable_folder(folder: Path | str, reason: str) -> UnavailableError:
    """Returns the error for a folder that cannot contain an index."""
    return UnavailableError(
        f"index folder {folder}: {reason}; check that the disk is not full and the folder is writable. "
        "Nothing "
        "is lost: the state is in the checkpoint. SPARK_LOCAL_DIRS, or run.index_root, names another folder"
    )


def remove_unused_indexes(root: Path, now: datetime, unused_for: timedelta = UNUSED_AFTER) -> list[Path]:
    """Removes the indexes of queries whose indexes have all not changed for a time; returns their folders.

    Several processes may do this at the same time, and may use what is removed, because an index is a cache
    that may disappear.
    """
    folders = root / INDEXES
    removed = []
    for of_query in sorted(folders.iterdir()) if folders.is_dir() else ():
        if now - _last_change(of_query) > unused_for:
            shutil.rmtree(of_query, ignore_errors=True)
            removed.append(of_query)
    return removed


def _last_change(of_query: Path) -> datetime:
    newest = 0.0
    for path in (of_query, *of_query.glob("*/*"), *of_query.glob("*/*/data.mdb")):
        try:
            newest = max(newest, path.stat().st_mtime)
        except FileNotFoundError:
            continue
    return datetime.fromtimestamp(newest, UTC)
