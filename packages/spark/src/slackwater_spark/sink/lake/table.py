"""The contract of a lake's tables: what Delta and Iceberg have to do for the sink."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

Properties = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of a table, as one commit has made it."""

    id: int
    """Of Delta the version, of Iceberg the snapshot id."""
    properties: Properties
    """What its writer has noted in it, and what the library has added."""
    keeps_rows: bool = False
    """True if the commit says that the rows are those of the snapshot before, as after compaction."""
    restores: int | None = None
    """The snapshot whose rows it has again, if the commit says so."""


class LakeError(Exception):
    """Root of what the tables of a lake raise.

    ::

        LakeError
        ├── LakeUnavailableError     the same may succeed later
        ├── LakeRefusedError         it will not, unless somebody does something about it
        ├── SnapshotConflictError    somebody else has committed since the table was loaded
        └── SnapshotGoneError        a snapshot is not, or no longer, part of the table's history
    """


class LakeUnavailableError(LakeError):
    """The lake does not do its part, or nobody knows if it has: the same may succeed later."""


class LakeRefusedError(LakeError):
    """The lake refuses, and would the next time."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason, hint)
        self.reason = reason
        """The lake's own words."""
        self.hint = hint


class SnapshotConflictError(LakeError):
    """Somebody else has committed to the table since it was loaded; nothing was written."""


class SnapshotGoneError(LakeError):
    """A snapshot is not, or no longer, part of the table's history."""


class LakeTable(Protocol):
    """A table of a lake, as one run writes it; used by one thread at a time.

    Every method may block for the lake's own time-outs, and raises :class:`LakeUnavailableError` and
    :class:`LakeRefusedError`. What writes commits one snapshot on top of the one that was loaded or written
    last, and returns its id. It raises :class:`SnapshotConflictError` if the table has another one meanwhile,
    and never commits on top of that.
    """

    @property
    def name(self) -> str:
        """``schema.name``."""
        ...

    def load(self) -> Snapshot | None:
        """Returns the newest snapshot, on which what is written next is based; None: there is no table."""
        ...

    def schema(self) -> Any:
        """Returns the Arrow schema of the loaded table."""
        ...

    def snapshots_from(self, snapshot_id: int | None) -> list[Snapshot]:
        """Returns the commits from a snapshot to the loaded one, both included, ascending; None: all.

        Raises:
            SnapshotGoneError: The loaded snapshot does not descend from that one.
        """
        ...

    def create(self, schema: Any, properties: Properties) -> int:
        """Makes the table, without rows.

        Raises:
            SnapshotConflictError: It is there.
        """
        ...

    def append(self, rows: Any, properties: Properties) -> int:
        """Adds rows."""
        ...

    def replace(self, rows: Any, properties: Properties) -> int:
        """Puts rows in the place of all that there are."""
        ...

    def merge(self, changes: Any, key: Collection[str], properties: Properties) -> int:
        """Puts rows in the place of those with the same key; equal to NULL is NULL.

        Args:
            changes: Rows of the table's columns and of ``DELETED``: those only take rows away.
            key: Names of columns, at least one; each key is in the changes once.
            properties: To be noted in the snapshot.
        """
        ...

    def roll_back(self, snapshot_id: int, properties: Properties) -> int:
        """Gives the table the rows of one of its former snapshots; returns the newest one after that.

        Raises:
            SnapshotGoneError: Snapshot or files are no longer there.
        """
        ...

    def compact(self, properties: Properties) -> int:
        """Writes small files together, of bounded size; the rows stay. May find nothing to do.

        Raises:
            SnapshotConflictError: As all that writes; but a snapshot may have been made that has wrong rows.
                It does not say of itself that it keeps rows.
        """
        ...

    def read(self, snapshot_id: int) -> Any:
        """Returns the rows of a snapshot as an Arrow table.

        Raises:
            SnapshotGoneError: Snapshot or files are no longer there.
        """
        ...

    def expire(self, kept: Collection[int], before: datetime, now: datetime, properties: Properties) -> int:
        """Removes snapshots that were made before a time, and files that no other one has.

        Returns the newest snapshot after that; its rows are those of the one before.

        Args:
            kept: Stay readable, whatever their age, and so do the newest one and all those after it.
            before: The time.
            now: What the clock says.
            properties: To be noted, if removing makes a commit.
        """
        ...


class Lake(Protocol):
    """The place of tables."""

    @property
    def place(self) -> str:
        """Names the place for people, as in "asking the Delta tables in s3://lake"."""
        ...

    def table(self, name: str) -> LakeTable:
        """Returns the table ``schema.name``, whether it is there or not; asks nobody."""
        ...

    def close(self) -> None:
        """Lets go of connections; what is asked for later connects anew. Never raises."""
        ...
