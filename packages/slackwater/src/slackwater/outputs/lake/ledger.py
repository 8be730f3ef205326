"""The ledger: a table of the same lake that records which snapshots of a pipeline's tables belong together.

It has one row for each batch, with the commit of the source, the snapshot of every table that shows it, and
the progress record. A batch is visible when its row is. Rows are added on top of the previous commit of the
same run, so a run that takes over the ledger prevents all earlier ones from adding rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import Any, Final

import pyarrow as pa

from slackwater.outputs.lake.table import (
    Lake,
    LakeTable,
    Snapshot,
    SnapshotConflictError,
    SnapshotGoneError,
)
from slackwater.protocol import (
    CommitPosition,
    ConfigError,
    MalformedRecordError,
    ProgressRecord,
    StateError,
    decode_progress_record,
    encode_progress_record,
)
from slackwater.protocol.errors import run_overtaken
from slackwater.protocol.keys import lake_ledger

PIPELINE: Final = "slackwater.pipeline"
RUN: Final = "slackwater.run"

_ROWS: Final = pa.schema(
    [
        ("batch_id", pa.int64()),
        ("source", pa.string()),
        ("timeline", pa.int64()),
        ("previous_lsn", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("written_at", pa.timestamp("us", "UTC")),
        ("snapshots", pa.map_(pa.string(), pa.int64())),
        ("progress", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One visible batch."""

    progress: ProgressRecord
    previous_lsn: int
    """The commit LSN of the previous batch."""
    snapshots: dict[str, int]
    written_at: datetime

    @property
    def position(self) -> CommitPosition:
        """The commit at which the batch ends."""
        return CommitPosition(self.progress.timeline, self.progress.commit_lsn)


class Ledger:
    """The ledger of one pipeline, as one run writes it."""

    def __init__(self, lake: Lake, pipeline: str, run: str) -> None:
        self.name = lake_ledger(pipeline)
        """The name of its table, ``schema.name``."""
        self._table: LakeTable = lake.table(self.name)
        self._pipeline = pipeline
        self._run = run
        self._head: int | None = None
        self.newest: LedgerRow | None = None
        """The newest batch, as far as this run knows."""

    def read_newest(self) -> LedgerRow | None:
        """Returns the newest batch; changes nothing.

        Raises:
            ConfigError: The ledger belongs to another pipeline.
            StateError: It has another version, or was changed by another writer.
        """
        head = self._table.load()
        return None if head is None else self._newest_of(self._rows(head))

    def read_all(self) -> list[LedgerRow]:
        """Returns the existing rows, in no particular order; raises the same errors as `read_newest`."""
        head = self._table.load()
        return [] if head is None else self._rows(head)

    def take_over(
        self, keep_since: datetime, rooted: Callable[[ProgressRecord], ProgressRecord] = lambda same: same
    ) -> None:
        """Takes over the ledger for this run, so that no earlier run can add a row; omits old rows.

        `rooted` returns the newest progress as this run knows it.

        Raises:
            SnapshotConflictError: Another run committed at the same moment; try again.
            ConfigError: The ledger belongs to another pipeline.
            StateError: It has another version, or was changed by another writer.
        """
        head = self._table.load()
        if head is None:
            self._head, self.newest = self._table.create(_ROWS, self._properties), None
            return
        rows = self._rows(head)
        newest = self._newest_of(rows)
        if newest is not None:
            rows.remove(newest)
            newest = replace(newest, progress=rooted(newest.progress))
            rows.append(newest)
        self._replace(rows, keep_since)
        self.newest = newest

    def refresh(self) -> None:
        """Reads the outcome of a commit whose answer was lost.

        Raises:
            OvertakenError: Another run has taken over the ledger.
            StateError: The ledger does not exist any more.
        """
        head = self._table.load()
        if head is None:
            raise StateError(
                f"pipeline {self._pipeline!r}: its ledger {self.name} is gone, or this user may not read it",
                "restore it, then start the pipeline again; or start over: delete the pipeline's tables "
                "and checkpoint",
            )
        run = head.properties.get(RUN, "(none)")
        if run != self._run:
            raise run_overtaken(self._pipeline, f"the ledger {self.name} is of run {run}")
        if head.id != self._head:
            self._head, self.newest = head.id, self._newest_of(self._rows(head))

    def add(self, row: LedgerRow) -> None:
        """Makes a batch visible.

        Raises:
            SnapshotConflictError: The ledger has changed since this run wrote it last.
        """
        self._head = self._table.append(_table_of([row]), self._properties)
        self.newest = row

    def drop_old(self, keep_since: datetime, now: datetime) -> list[LedgerRow]:
        """Drops rows that were replaced before the given time; returns the others, ascending.

        Raises:
            SnapshotConflictError: The ledger has changed since this run last wrote it.
        """
        head = self._table.load()
        if head is None or head.id != self._head:
            raise SnapshotConflictError
        kept = self._replace(self._rows(head), keep_since)
        self._head = self._table.expire({self._head}, keep_since, now, self._properties)
        return kept

    @property
    def _properties(self) -> dict[str, str]:
        return {PIPELINE: self._pipeline, RUN: self._run}

    def _replace(self, rows: list[LedgerRow], keep_since: datetime) -> list[LedgerRow]:
        """Drops the oldest rows. Where a clock went back, it stops at the first row that is to be kept."""
        rows = sorted(rows, key=lambda row: row.progress.batch_id)
        old = list(takewhile(lambda row: row.written_at < keep_since, rows))
        kept = [*old[-1:], *rows[len(old) :]]
        self._head = self._table.replace(_table_of(kept), self._properties)
        return kept

    def _rows(self, head: Snapshot) -> list[LedgerRow]:
        owner = head.properties.get(PIPELINE)
        if owner is not None and owner != self._pipeline:
            raise ConfigError(
                f"pipeline {self._pipeline!r}: its ledger {self.name} belongs to pipeline {owner!r}",
                "give one of the two pipelines another name in pipeline.toml",
            )
        try:
            return rows_of(self._table.read(head.id))
        except (MalformedRecordError, SnapshotGoneError) as error:
            raise StateError(
                f"the ledger {self.name} of pipeline {self._pipeline!r} cannot be read: {error}",
                "restore it, or start over: delete it with the pipeline's tables and checkpoint",
            ) from error

    @staticmethod
    def _newest_of(rows: list[LedgerRow]) -> LedgerRow | None:
        return max(rows, key=lambda row: row.progress.batch_id, default=None)


def rows_of(table: Any) -> list[LedgerRow]:
    """Returns the rows of a ledger, in no particular order.

    Raises:
        MalformedRecordError: A row has another version, or was changed by another writer.
    """
    try:
        return [
            LedgerRow(
                decode_progress_record(row["progress"].encode()),
                row["previous_lsn"],
                dict(row["snapshots"]),
                row["written_at"],
            )
            for row in table.to_pylist()
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise MalformedRecordError("ledger", str(error)) from error


def _table_of(rows: list[LedgerRow]) -> Any:
    found = [
        {
            "batch_id": row.progress.batch_id,
            "source": row.progress.source,
            "timeline": row.progress.timeline,
            "previous_lsn": row.previous_lsn,
            "commit_lsn": row.progress.commit_lsn,
            "written_at": row.written_at,
            "snapshots": list(row.snapshots.items()),
            "progress": encode_progress_record(row.progress).decode(),
        }
        for row in rows
    ]
    return pa.Table.from_pylist(found, schema=_ROWS)
