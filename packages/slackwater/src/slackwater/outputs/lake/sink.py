"""The exactly-once sink of lakes: one snapshot per table and batch, made visible by one row of the ledger.

A batch first becomes a snapshot of each table that it changes. Readers only learn of these snapshots when the
batch's row in the ledger names them, together with the progress record. Snapshots that no row names belong to
batches that were lost, and the next writer rolls the table back to the snapshot that the ledger names. They
cannot be adopted, because a batch that was lost is planned again and may end elsewhere.

A run takes over the ledger in `open`. From then on, earlier runs cannot add a row. If one of them still
commits a snapshot, it is rolled back like any other that the ledger does not name.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, Unpack

from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.batch import BatchCommits
from slackwater.outputs.contract import (
    REBUILD,
    OutputRefusedError,
    OutputTable,
    SinkSettings,
    SinkStep,
    WriteReport,
    table_lost,
    table_taken,
)
from slackwater.outputs.lake.columns import ChangeReader, type_texts
from slackwater.outputs.lake.ledger import PIPELINE, RUN, Ledger, LedgerRow
from slackwater.outputs.lake.table import (
    Lake,
    LakeError,
    LakeTable,
    Snapshot,
    SnapshotConflictError,
    SnapshotGoneError,
)
from slackwater.outputs.sink import Failure, Sink, SinkOptions, Written
from slackwater.protocol import (
    BatchHeader,
    CommitPosition,
    ConfigError,
    LakeSettings,
    ProgressRecord,
    StateError,
)
from slackwater.protocol.keys import lake_ledger

_CONFLICTS: Final = 4
"""The minimum number of attempts at a table that other writers change, however little time is left."""
_ALWAYS: Final = datetime.min.replace(tzinfo=UTC)
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_NOT_VISIBLE: Final = "nothing of the batch is visible"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSinkSettings(SinkSettings):
    """The tables of a pipeline in a lake."""

    outputs: tuple[OutputTable, ...]
    """The outputs by number of the view, each with a different table."""
    lake: LakeSettings


class LakeSink(Sink):
    """A :class:`~slackwater.outputs.sink.Sink` that writes a table of a lake per view."""

    _settings: LakeSinkSettings
    _failures = LakeError, SnapshotConflictError

    def __init__(self, settings: LakeSinkSettings, lake: Lake, **options: Unpack[SinkOptions]) -> None:
        kept_in = f"its ledger {lake_ledger(settings.pipeline)}"
        super().__init__(settings, lake.place, kept_in, **options)
        self._lake = lake
        self._ledger = Ledger(lake, settings.pipeline, self._run)
        self._tables = [lake.table(output.name) for output in settings.outputs]
        self._readers = [
            ChangeReader(settings.pipeline, output, several=settings.has_versions)
            for output in settings.outputs
        ]
        self._snapshots: dict[str, int] = {}
        """For each table, the snapshot that shows the newest visible batch."""
        self._is_settled = False
        """Whether the tables are known to match the ledger."""
        self._held_since = _ALWAYS
        """The ledger's rows since then are kept for readers; all of them until the readers are known."""
        self._put_row: LedgerRow | None = None
        """The row that makes the next batch visible."""

    def write(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        """See :meth:`Sink.write`. Now and then, it removes old snapshots after the batch."""
        report = super().write(query_id, batch)
        if (batch.batch_id + 1) % self._settings.lake.maintain_every == 0:
            self._expire()
        return report

    def hold(self, commits: Mapping[CommitPosition, datetime]) -> Mapping[CommitPosition, str]:
        """See :meth:`Sink.hold`. The ledger keeps its rows from the oldest of the commits on."""
        if not commits:
            self._held_since = _NEVER
            return {}
        what = "reading its ledger"
        rows = self._patiently(what, self._settings.request_timeout, self._ledger.read_all)
        written = {row.position: row.written_at for row in rows}
        held = [written[commit] for commit in commits if commit in written]
        self._held_since = min(held, default=_NEVER)
        reason = "its ledger has no batch that ends there"
        return {commit: reason for commit in commits if commit not in written}

    def close(self) -> None:
        """See :meth:`Sink.close`."""
        self._lake.close()

    def _read(self) -> ProgressRecord | None:
        found = self._ledger.read_newest()
        return None if found is None else found.progress

    def _judged(self, what: str, error: Exception) -> Failure:
        if isinstance(error, LakeError) and error.hint:
            raise OutputRefusedError(self._settings.pipeline, what, error.reason, error.hint) from error
        is_conflict = isinstance(error, SnapshotConflictError)
        reason = str(error) or "another writer has changed the tables"
        return Failure(reason, _CONFLICTS if is_conflict else 1)

    def _take_over(self) -> ProgressRecord | None:
        """Takes over the ledger, then creates tables or restores the snapshots that the ledger names."""
        self._ledger.take_over(self._keep_since(), self._rooted)
        self._settle()
        return self._visible

    @property
    def _visible(self) -> ProgressRecord | None:
        newest = self._ledger.newest
        return None if newest is None else newest.progress

    def _settle(self) -> None:
        """Restores in every table what the ledger names, and creates missing tables.

        Raises:
            ConfigError: A table does not fit, or belongs to another pipeline.
            StateError: A table was changed by others.
        """
        newest = self._ledger.newest
        for output, table in zip(self._settings.outputs, self._tables, strict=True):
            named = None if newest is None else newest.snapshots.get(output.name)
            head = table.load()
            is_lost = newest is not None and (named is None or head is None)
            if is_lost:
                self._accept_lost(output)
            if head is None:
                found = table.create(self._reader(output).schema, self._properties())
            else:
                self._check_form(output, table)
                found = (
                    self._adopt(output, table) if is_lost else self._settle_table(output, table, head, named)
                )
            self._snapshots[output.name] = found
        self._is_settled = True

    def _settle_table(self, output: OutputTable, table: LakeTable, head: Snapshot, named: int | None) -> int:
        """Rolls back what the ledger does not name; returns the snapshot that shows the ledger's rows."""
        mine = self._settings.pipeline
        try:
            above = table.snapshots_from(named)
            if named is not None and above.pop(0).properties.get(PIPELINE) != mine:
                raise SnapshotGoneError
        except SnapshotGoneError:
            self._accept_lost(output)
            return self._adopt(output, table)
        for snapshot in above:
            owner = snapshot.properties.get(PIPELINE, mine)
            if owner != mine:
                raise table_taken(mine, output.name, owner)
        restored = [n for n, each in enumerate(above, 1) if named is not None and each.restores == named]
        changed = [each for each in above[max(restored, default=0) :] if not each.keeps_rows]
        if not all(PIPELINE in snapshot.properties for snapshot in changed):
            self._accept_strangers(output, table, head, named)
            return self._adopt(output, table)
        if named is None:
            return table.replace(self._reader(output).schema.empty_table(), self._properties())
        if changed:
            self._roll_back(output, table, named)
        return named

    def _roll_back(self, output: OutputTable, table: LakeTable, named: int) -> None:
        """Rolls back batches that were lost."""
        try:
            table.roll_back(named, self._properties())
        except SnapshotGoneError:
            self._accept_lost(output)

    def _adopt(self, output: OutputTable, table: LakeTable) -> int:
        """Records in a table whose rows are accepted that it belongs to the pipeline."""
        return table.append(self._reader(output).schema.empty_table(), self._properties())

    def _accept_lost(self, output: OutputTable) -> None:
        """Refuses a table that has lost what the ledger names, unless the operator accepts it."""
        if not self._settings.accept_changed_output:
            found = ", or has lost the snapshot that the ledger names"
            raise table_lost(self._settings.pipeline, output, output.name, found, "the table")

    def _accept_strangers(
        self, output: OutputTable, table: LakeTable, head: Snapshot, named: int | None
    ) -> None:
        """Refuses rows that the pipeline has not written, unless the operator accepts them."""
        if self._settings.accept_changed_output or (named is None and not len(table.read(head.id))):
            return
        if named is None:
            raise ConfigError(
                f"pipeline {self._settings.pipeline!r}: table {output.name} contains rows that the "
                "pipeline has not written",
                f"empty or drop it, or name another table for view {output.view!r} in pipeline.toml",
            )
        raise StateError(
            f"pipeline {self._settings.pipeline!r}: another writer has changed rows of table {output.name} "
            f"of view {output.view!r}; {_NOT_VISIBLE}",
            f"restore snapshot {named} of the table; or {REBUILD}. --accept-changed-output continues with "
            "the rows as they are",
        )

    def _check_form(self, output: OutputTable, table: LakeTable) -> None:
        """Compares a table with what its view needs.

        Raises:
            ConfigError: They differ; the error names each difference.
        """
        there, wanted = type_texts(table.schema()), type_texts(self._reader(output).schema)
        differences = [
            f"column {name!r} is {there.get(name, 'missing')} instead of {wanted.get(name, 'missing')}"
            for name in dict.fromkeys((*wanted, *there))
            if there.get(name) != wanted.get(name)
        ]
        if differences:
            raise ConfigError(
                f"pipeline {self._settings.pipeline!r}: table {output.name} does not fit view "
                f"{output.view!r}: {'; '.join(differences)}; {_NOT_VISIBLE}",
                "restore the columns of the table; the pipeline continues where the ledger ends. Or "
                + REBUILD,
            )

    def _reader(self, output: OutputTable) -> ChangeReader:
        return self._readers[self._settings.outputs.index(output)]

    def _begin(self, batch: DocumentBatch) -> ProgressRecord | None:
        self._ledger.refresh()
        return self._visible

    def _put(self, batch: DocumentBatch, progress: ProgressRecord) -> Written:
        self._probe(SinkStep.BEGUN, batch.batch_id)
        if not self._is_settled:
            self._settle()
        self._is_settled = False
        written = Written()
        snapshots = self._produce(batch, written)
        self._put_row = LedgerRow(progress, batch.header.from_lsn, snapshots, self._clock.now())
        return written

    def _commit(self) -> None:
        row = self._put_row
        assert row is not None  # noqa: S101 - it was put
        self._ledger.add(row)
        self._snapshots = row.snapshots
        self._is_settled = True

    def _discard(self) -> None:
        """Leaves snapshots that no row names to the next attempt, or the next run, which rolls them back."""

    def _produce(self, batch: DocumentBatch, written: Written) -> dict[str, int]:
        """Commits a snapshot to each table that the batch changes; returns the snapshots of all tables."""
        settings, snapshots = self._settings, dict(self._snapshots)
        keys_move = [output.keys_move for output in settings.outputs]
        commits = BatchCommits(batch, settings.emit, settings.scope, keys_move)
        properties = self._properties(batch.batch_id, batch.header)
        is_due = (batch.batch_id + 1) % settings.lake.maintain_every == 0
        has_begun = False
        for number, (output, table) in enumerate(zip(settings.outputs, self._tables, strict=True)):
            if not batch.payloads.get(number):
                continue
            changes = self._readers[number].read(commits.shown(number))
            written.documents += changes.documents
            written.deletes += changes.deletes
            if output.key:
                snapshots[output.name] = table.merge(changes.rows, output.key, properties)
            else:
                snapshots[output.name] = table.replace(changes.remaining, properties)
            if is_due:
                snapshots[output.name] = table.compact(properties)
            if not has_begun:
                has_begun = True
                self._probe(SinkStep.PRODUCED, batch.batch_id)
        self._probe(SinkStep.FLUSHED, batch.batch_id)
        return snapshots

    def _expire(self) -> None:
        """Removes what is older than the setting and not held for a reader; after a failure, more remains.

        Tables judge by time: snapshots of rows that seem to have been replaced before it, because a clock
        went back, are named.
        """
        try:
            now = self._clock.now()
            before = self._keep_since()
            kept = self._ledger.drop_old(before, now)
            needed = [row for row, later in pairwise(kept) if later.written_at < before]
            for table in self._tables:
                names = {row.snapshots[table.name] for row in (kept[0], *needed)}
                table.expire(names | {self._snapshots[table.name]}, before, now, self._properties())
        except (LakeError, SnapshotConflictError, SnapshotGoneError) as error:
            self._is_settled = False
            _log.warning("%s: old snapshots could not be removed yet: %s", self.place, error)

    def _keep_since(self) -> datetime:
        return min(self._clock.now() - self._settings.lake.keep, self._held_since)

    def _properties(self, batch_id: int | None = None, header: BatchHeader | None = None) -> dict[str, str]:
        """Returns the properties of snapshots: who has written them, and what they contain."""
        noted: dict[str, Any] = {PIPELINE: self._settings.pipeline, RUN: self._run}
        if header is not None:
            noted |= {
                "slackwater.batch": batch_id,
                "slackwater.source": header.source,
                "slackwater.timeline": header.timeline,
                "slackwater.previous_lsn": header.from_lsn,
                "slackwater.commit_lsn": header.to_lsn,
            }
        return {name: str(value) for name, value in noted.items()}
