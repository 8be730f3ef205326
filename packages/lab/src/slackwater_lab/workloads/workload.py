"""Workloads: tables, an endless seeded stream of business transactions, and what must always hold.

One description serves three drivers: writers that execute it in a real database, a generator that writes
Debezium-shaped topics without one, and load generators whose users are clients of the database.
"""

import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from slackwater.sql.catalog import Table
from slackwater.sql.postgres import parse_catalog

_MEMBER = Path(__file__).parents[3]
REPOSITORY = _MEMBER.parents[1]


def workload_pipeline(name: str) -> Path:
    """The folder of a pipeline that exists for a workload only."""
    return _MEMBER / "pipelines" / name


def repository_pipeline(name: str) -> Path:
    """The folder of one of the repository's pipelines, which are there to be read and tried."""
    return REPOSITORY / "pipelines" / name


def copy_pipeline(pipeline: Path, copy: Path, edit: Callable[[str], str]) -> Path:
    """Copies the folder of a pipeline, which must not exist, with another ``pipeline.toml``; returns it."""
    shutil.copytree(pipeline, copy)
    file = copy / "pipeline.toml"
    file.write_text(edit(file.read_text(encoding="utf-8")), encoding="utf-8")
    return copy


Value = int | str | bool | Decimal | None


@lru_cache(maxsize=1 << 16)
def money(cents: int) -> Decimal:
    """An amount with two digits after the point. Cached: rows share what they hold."""
    return Decimal(cents).scaleb(-2)


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
class BusinessTransaction:
    """A business transaction."""

    operations: tuple[Operation, ...]
    is_rolled_back: bool = False
    held_open_for: int = 0
    """How many other transactions of this workload commit between its last change and its own commit.

    The rows of such a transaction are not touched by its writer's next ``held_open_for`` transactions, and by
    other writers never.
    """


@dataclass(frozen=True, slots=True)
class Workload(ABC):
    """A kind of load. Every table has one primary key column ``id`` of type bigint.

    Picklable: the generator's processes are given it.
    """

    name: ClassVar[str]
    """A short name, used on command lines and in results."""
    seed: int
    size: int
    """Main rows at the start; what they are, each workload says."""
    pipeline: Path = field(kw_only=True)
    """Folder with ``schema.sql``, ``pipeline.toml``, the view and ``certify.toml``; each workload has its own
    by default. The same changes may be given to another pipeline over the same tables."""

    @abstractmethod
    def first(self) -> Iterator[BusinessTransaction]:
        """The transactions that make the initial rows; finite, executed by one writer before all others."""

    @abstractmethod
    def transactions(self, writer: int, writers: int) -> Iterator[BusinessTransaction]:
        """The endless stream of one of several writers, a pure function of the seed and both numbers.

        Rows that are set absolutely belong to one writer; rows that several writers change are changed by
        :class:`Plus` only, in an order of tables and keys that cannot deadlock.
        """

    def new_random(self, writer: int, writers: int) -> random.Random:
        """Makes the random numbers of one of several writers."""
        return random.Random(f"{self.name}/{self.seed}/{writer}/{writers}")

    @property
    def schema_text(self) -> str:
        return (self.pipeline / "schema.sql").read_text(encoding="utf-8")

    @property
    def tables(self) -> Mapping[str, Table]:
        """The declared tables by full name, in the order of the file."""
        path = str(self.pipeline / "schema.sql")
        return {table.full_name: table for table in parse_catalog({path: self.schema_text}).tables}
