"""The part of LMDB that this package uses, typed; ``lmdb`` has no stubs, so `Any` stops here."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, cast

import lmdb

OPEN_FAILURES: tuple[type[Exception], ...] = (lmdb.Error,)
"""The base class of all errors that LMDB raises."""

MapFull: type[Exception] = lmdb.MapFullError
MapResized: type[Exception] = lmdb.MapResizedError
DiskFull: type[Exception] = lmdb.DiskError


class Cursor(Protocol):
    """A position in the sorted entries."""

    def first(self) -> bool:
        """Moves to the first entry; returns False if there is none."""
        ...

    def set_range(self, key: bytes) -> bool:
        """Moves to the first entry at or after `key`; returns False if there is none."""
        ...

    def last(self) -> bool:
        """Moves to the last entry; returns False if there is none."""
        ...

    def prev(self) -> bool:
        """Moves to the previous entry; returns False if there is none."""
        ...

    def getmulti(self, keys: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
        """Returns the entries of those of the keys that exist."""
        ...

    def iterprev(self, keys: bool = True, values: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """Yields entries from the current one to the first."""
        ...

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """Yields entries from the current one to the last."""
        ...

    def key(self) -> bytes:
        """Returns the name of the current entry; empty if there is none."""
        ...

    def putmulti(self, items: Iterable[tuple[bytes, bytes]], *, append: bool = False) -> tuple[int, int]:
        """Puts all items; with `append`, they must be ascending and after all existing entries."""
        ...


class Database(Protocol):
    """The handle of an environment's only database."""


class Transaction(Protocol):
    """A transaction. A read-only transaction rejects changes."""

    def get(self, key: bytes) -> bytes | None:
        """Returns the value, or None."""
        ...

    def put(self, key: bytes, value: bytes) -> bool:
        """Puts one entry."""
        ...

    def delete(self, key: bytes) -> bool:
        """Removes one entry; returns False if it does not exist."""
        ...

    def cursor(self) -> Cursor:
        """Returns a new cursor."""
        ...

    def drop(self, db: Database, delete: bool) -> None:
        """Removes all entries of a database."""
        ...

    def commit(self) -> None:
        """Commits the transaction; may raise `MapFull`."""
        ...

    def abort(self) -> None:
        """Ends the transaction without effect."""
        ...


class Environment(Protocol):
    """An open LMDB environment; at most one per folder and process."""

    def open_db(self) -> Database:
        """Returns the only database."""
        ...

    def begin(self, *, write: bool) -> Transaction:
        """Begins a transaction. To write, it waits for the writer lock. May raise `MapResized`."""
        ...

    def set_mapsize(self, map_size: int) -> None:
        """Resizes the map; 0 adopts the size that another process has set."""
        ...

    def info(self) -> dict[str, int]:
        """Returns ``map_size``, ``last_pgno``, ..."""
        ...

    def stat(self) -> dict[str, int]:
        """Returns ``psize``, ``entries``, ..."""
        ...

    def close(self) -> None:
        """Releases the handle."""
        ...


def open_environment(folder: Path, map_size: int) -> Environment:
    """Opens the environment in this folder, or creates it.

    The files are not synced: the environment survives a crash of the process, but maybe not one of the
    machine. Only this account can read the files.
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
