"""What a workload is: tables, an endless seeded stream of business transactions, what must always hold.

One description serves three drivers: writers that execute it in a real database, a generator that writes
Debezium-shaped topics without one, and load generators whose users are clients of the database.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Protocol

Value = int | str | bool | Decimal | None


@dataclass(frozen=True, slots=True)
class Plus:
    """A relative update of a numeric column: ``column = column + amount``.

    For columns that several writers change.
    """

    amount: int | Decimal


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row. Columns that are missing are NULL; the schemas declare no defaults.

    Timestamps are ISO texts in UTC, as Debezium writes them: ``2026-01-02T03:04:05.678901Z``.
    Decimals have exactly the scale of their column.
    """

    table: str
    row: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Update:
    """Sets columns of the row with primary key ``id``, which exists. ``id`` itself may be among them."""

    table: str
    id: int
    changes: Mapping[str, Value | Plus]


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes the row with primary key ``id``, which exists."""

    table: str
    id: int


@dataclass(frozen=True, slots=True)
class Read:
    """Reads the row with primary key ``id``. Changes nothing, so it leaves no trace in a log."""

    table: str
    id: int


@dataclass(frozen=True, slots=True)
class Undone:
    """Operations that ``ROLLBACK TO SAVEPOINT`` takes back at once: they leave no trace in a log."""

    operations: tuple[Insert | Update | Delete, ...]


Operation = Insert | Update | Delete | Read | Undone
Change = Insert | Update | Delete
"""What appears in a log."""
NO_CHANGES = (Read, Undone)
"""What does not, for ``isinstance``."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A business transaction."""

    operations: tuple[Operation, ...]
    is_rolled_back: bool = False
    held_open_for: int = 0
    """How many other transactions of this workload commit between its last change and its own commit.

    The rows of such a transaction are not touched by its writer's next ``held_open_for`` transactions, and by
    other writers never.
    """


class Workload(Protocol):
    """A kind of load. Every table has one primary key column ``id`` of type bigint."""

    @property
    def name(self) -> str:
        """A short name, used on command lines and in results."""
        ...

    @property
    def pipeline(self) -> Path:
        """Folder with ``schema.sql``, ``pipeline.toml``, the view and ``certify.toml``."""
        ...

    def first(self) -> Iterator[Transaction]:
        """The transactions that make the initial rows; finite, executed by one writer before all others."""
        ...

    def transactions(self, writer: int, writers: int) -> Iterator[Transaction]:
        """The endless stream of one of several writers, a pure function of the seed and both numbers.

        Rows that are set absolutely belong to one writer; rows that several writers change are changed by
        :class:`Plus` only, in an order of tables and keys that cannot deadlock.
        """
        ...


@dataclass(frozen=True, slots=True)
class PipelineOf:
    """The same changes, another pipeline."""

    workload: Workload
    pipeline: Path

    @property
    def name(self) -> str:
        """See the protocol."""
        return self.workload.name

    def first(self) -> Iterator[Transaction]:
        """See the protocol."""
        return self.workload.first()

    def transactions(self, writer: int, writers: int) -> Iterator[Transaction]:
        """See the protocol."""
        return self.workload.transactions(writer, writers)
