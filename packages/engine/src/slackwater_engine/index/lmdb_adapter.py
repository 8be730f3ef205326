"""The part of LMDB that this package uses, typed; ``lmdb`` has no stubs, so `Any` stops here."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, cast

import lmdb

OPEN_FAILURES: tuple[type[Exception], ...] = (lmdb.Error,)
"""Everything LMDB raises; all of its errors derive from it."""

MapFull: type[Exception] = lmdb.MapFullError
MapResized: type[Exception] = lmdb.MapResizedError
DiskFull: type[Exception] = lmdb.DiskError


class Cursor(Protocol):
    """A place in the sorted entries."""

    def first(self) -> bool:
        """Moves to the first entry; False if there is none."""
        ...

    def set_range(self, key: bytes) -> bool:
        """Moves to the first entry at or after `key`; False if there is none."""
        ...

    def last(self) -> bool:
        """Moves to the last entry; False if there is none."""
        ...

    def prev(self) -> bool:
        """Moves to the entry before; False if there is none."""
        ...

    def getmulti(self, keys: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
        """The entries of those of the keys that are there."""
        ...

    def iterprev(self, keys: bool = True, values: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """Yields entries from the present one to the first."""
        ...

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """Yields entries from the present one to the last."""
        ...

    def key(self) -> bytes:
        """Name of the present entry; empty if there is none."""
        ...

    def putmulti(self, items: Iterable[tuple[bytes, bytes]], *, append: bool = False) -> tuple[int, int]:
        """Puts all; with `append` they are ascending and behind all that is there."""
        ...


class Database(Protocol):
    """The handle of an environment's only database."""


class Transaction(Protocol):
    """A transaction; one that only reads refuses changes."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        ...

    def put(self, key: bytes, value: bytes) -> bool:
        """Puts one."""
        ...

    def delete(self, key: bytes) -> bool:
        """Removes one; False if it is not there."""
        ...

    def cursor(self) -> Cursor:
        """A new cursor."""
        ...

    def drop(self, db: Database, delete: bool) -> None:
        """Removes all entries of a database."""
        ...

    def commit(self) -> None:
        """Ends it; may raise `MapFull`."""
        ...

    def abort(self) -> None:
        """Ends it without effect."""
        ...


class Environment(Protocol):
    """An open LMDB environment; at most one per folder and process."""

    def open_db(self) -> Database:
        """The only database."""
        ...

    def begin(self, *, write: bool) -> Transaction:
        """Waits for the writer lock, to write; may raise `MapResized`."""
        ...

    def set_mapsize(self, map_size: int) -> None:
        """Resizes the map; 0 takes the size another process has given it."""
        ...

    def info(self) -> dict[str, int]:
        """``map_size``, ``last_pgno``, ..."""
        ...

    def stat(self) -> dict[str, int]:
        """``psize``, ``entries``, ..."""
        ...

    def close(self) -> None:
        """Frees the handle."""
        ...


def open_environment(folder: Path, map_size: int) -> Environment:
    """Opens, or makes, the environment in this folder.

    Without sync: a crash of the process leaves it whole, a crash of the machine may not. Only this account
    may read what is in it.
    """
    environment = lmdb.open(
        str(folder),
        map_size=map_size,
        mode=0o600,
        max_dbs=0,
        sync=False,
        metasync=False,
        meminit=False,
        readahead=False,
    )
    return cast("Environment", environment)
