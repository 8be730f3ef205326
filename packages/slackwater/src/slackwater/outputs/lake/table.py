"""The contract of a lake's tables: what Delta and Iceberg have to provide for runs and for clients."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

Properties = Mapping[str, str]
Key = Mapping[str, Any]
NO_KEY: Final[Key] = {}

DELETED: Final = "slackwater_deleted"
"""A column in addition to those of the view, which states whether a row deletes the row of its key."""

_NO_RIGHT: Final = re.compile(
    r"permission ?denied|operation not permitted|read-only file system|access[ _]?denied|forbidden|"
    r"unauthorized|not authorized|invalid ?access ?key|signature ?does ?not ?match|\b40[13]\b",
    re.IGNORECASE,
)
_PLACE: Final = re.compile(r"""(["'])(?:/|\w+://)[^"']*\1|(?<![\w<])(?:/|\w+://)\S*""")
"""A path or a URL: its words and numbers are names, and say nothing about rights."""
RIGHTS_HINT: Final = (
    "give the pipeline's user the right to read, write, list and delete there, then start the pipeline "
    "again; it continues where the ledger ends"
)
_SECRET: Final = re.compile(r"((?:secret|password|token|key)[^=:\s]*\s*[=:]\s*)\S+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a table after one commit."""

    id: int
    """The version in Delta, the snapshot id in Iceberg."""
    properties: Properties
    """What its writer has stored in it, and what the library has added."""
    keeps_rows: bool = False
    """Whether the commit declares that its rows are those of the previous snapshot, as after a compaction."""
    restores: int | None = None
    """The snapshot whose rows it restores, if the commit declares this."""


class LakeError(Exception):
    """The lake does not work, refuses, or the outcome is unknown.

    Args:
        reason: The lake's own message.
        hint: What somebody has to do before the same may succeed; empty if it may succeed later by itself.
    """

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason, hint)
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        return self.reason


class SnapshotConflictError(Exception):
    """Another writer has committed to the table since it was loaded; nothing was written."""


class SnapshotGoneError(Exception):
    """A snapshot is not, or no longer, part of the table's history."""


def lake_error(error: Exception) -> LakeError:
    """Returns the error to raise for an error of a library or of the storage."""
    reason = _SECRET.sub(r"\1…", " ".join(str(error).split())) or type(error).__name__
    return LakeError(reason, RIGHTS_HINT if _NO_RIGHT.search(_PLACE.sub("", reason)) else "")


class LakeTable(Protocol):
    """A table of a lake. Used by one thread at a time.

    Every method may block for the lake's own time-outs, and raises :class:`LakeError`. Methods that write
    commit one snapshot on top of the one that was last loaded or written, and return its id. They raise
    :class:`SnapshotConflictError` if the table has another one in the meantime, and never commit on top of
    that.
    """

    name: str
    """``schema.name``."""

    def load(self) -> Snapshot | None:
        """Returns the newest snapshot, on which the next write is based; None if there is no table."""

    def schema(self) -> Any:
        """Returns the Arrow schema of the loaded table."""

    def snapshots_from(self, snapshot_id: int | None) -> list[Snapshot]:
        """Returns the commits from a snapshot to the loaded one, including both, ascending; None for all.

        Raises:
            SnapshotGoneError: The loaded snapshot does not descend from that one.
            SnapshotConflictError: Another writer has committed since the table was loaded.
        """

    def create(self, schema: Any, properties: Properties) -> int:
        """Creates the table, without rows.

        Raises:
            SnapshotConflictError: It exists.
        """

    def append(self, rows: Any, properties: Properties) -> int:
        """Adds rows."""

    def replace(self, rows: Any, properties: Properties) -> int:
        """Replaces all rows."""

    def merge(self, changes: Any, key: Collection[str], properties: Properties) -> int:
        """Replaces the rows that have the same key; NULL is equal to NULL.

        Args:
            changes: Rows with the table's columns and ``DELETED``, which marks rows that are only removed.
            key: The names of at least one column; each key occurs once in the changes.
            properties: What is stored in the snapshot.
        """

    def roll_back(self, snapshot_id: int, properties: Properties) -> int:
        """Restores the rows of a former snapshot; returns the newest snapshot after that.

        Raises:
            SnapshotGoneError: The snapshot or its files no longer exist.
        """

    def compact(self, properties: Properties) -> int:
        """Rewrites small files into larger ones, up to a limit. The rows stay the same. It may do nothing.

        Raises:
            SnapshotConflictError: As for all methods that write; but a snapshot with wrong rows may have been
                committed. That snapshot does not declare that it keeps rows.
        """

    def read(self, snapshot_id: int | None, key: Key = NO_KEY) -> Any:
        """Returns rows as an Arrow table, at least all that have the key.

        Args:
            snapshot_id: The snapshot; None for the newest one. If there is no table, None is returned for it.
            key: The columns of a key with their values; empty for all rows.

        Raises:
            SnapshotGoneError: The snapshot or its files no longer exist.
        """

    def expire(self, kept: Collection[int], before: datetime, now: datetime, properties: Properties) -> int:
        """Removes snapshots that were made before a time, and files that no other snapshot has.

        Returns the newest snapshot after that; its rows are those of the previous one.

        Args:
            kept: Snapshots that stay readable, whatever their age, like the newest one and all after it.
            before: The time.
            now: The current time.
            properties: What is stored if the removal makes a commit.
        """


class Lake(Protocol):
    """A place that contains tables."""

    place: str
    """The name of the place in messages such as "asking the Delta tables in s3://lake"."""

    def table(self, name: str) -> LakeTable:
        """Returns the table ``schema.name``, whether or not it exists; sends no request."""

    def close(self) -> None:
        """Closes connections; later requests connect again. Never raises."""
