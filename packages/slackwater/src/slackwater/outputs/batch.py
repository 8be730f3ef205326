"""The rules of a batch that are the same for every sink. Pure.

They determine whether a batch continues what the output contains, which commits it makes visible, and which
documents belong to each commit.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

from slackwater.engine.payloads import Document, DocumentBatch, in_commit_order, malformed_batch
from slackwater.engine.settings import Scope
from slackwater.outputs.contract import Emit
from slackwater.protocol import BatchHeader, ProgressRecord, StateError, format_position


def check_owner(pipeline: str, progress: ProgressRecord | None, query_id: str | None, kept_in: str) -> None:
    """Refuses a run whose checkpoint has not written the pipeline's progress.

    Raises:
        StateError: The progress belongs to another query.
    """
    if progress is not None and progress.query_id != query_id:
        mine = f"is of query {query_id}" if query_id else "is new"
        raise StateError(
            f"the name {pipeline!r} is taken: {kept_in} was written by query {progress.query_id}, the given "
            f"checkpoint {mine}",
            "use the checkpoint of that query to continue, or another pipeline name for a second pipeline. "
            + starting_over(pipeline),
        )


def starting_over(pipeline: str) -> str:
    """Returns what to type if the checkpoint of a pipeline, given with its revision, is lost; a hint."""
    name, _, revision = pipeline.rpartition(".v")
    name, following = (name, int(revision) + 1) if name and revision.isdecimal() else (pipeline, 2)
    return (
        f"If the checkpoint is lost, `slackwater pipeline reset {pipeline}` starts the pipeline over with "
        f"the same outputs. To build the views beside them instead, set `revision = {following}` in "
        f"pipeline.toml, start `slackwater run` again, and type `slackwater revise rollout {name} --to "
        f"{following}`"
    )


def progress_after(pipeline: str, query_id: str, batch: DocumentBatch, run: str = "") -> ProgressRecord:
    """Returns the progress record that becomes visible together with a batch."""
    return ProgressRecord(
        pipeline=pipeline,
        query_id=query_id,
        batch_id=batch.batch_id,
        source=batch.header.source,
        timeline=batch.header.timeline,
        commit_lsn=batch.header.to_lsn,
        run=run,
        state=batch.state,
    )


def is_covered(pipeline: str, batch: DocumentBatch, progress: ProgressRecord | None) -> bool:
    """Returns whether the output already contains this batch.

    It is True for the newest visible batch, if the answer to its commit was lost, and False for the batch
    that continues it.

    Raises:
        StateError: It is neither, so that writing it would repeat or lose records.
    """
    batch_id, header = batch.batch_id, batch.header
    if progress is None:
        if batch_id == 0:
            return False
        raise _mismatch(pipeline, batch_id, header, progress, "its progress records are gone")
    if (batch_id, batch.state) == (progress.batch_id, progress.state):
        return True
    continues = (header.timeline, header.from_lsn) == (progress.timeline, progress.commit_lsn)
    if batch_id != progress.batch_id + 1 or not continues:
        reason = "the batch does not follow it"
        raise _mismatch(pipeline, batch_id, header, progress, reason)
    return False


@dataclass(frozen=True, slots=True)
class CommitUnit:
    """The commits of the source that one commit record covers: those in ``(previous_lsn, commit_lsn]``."""

    commit_lsn: int
    previous_lsn: int
    xid: int | None
    """The source's transaction, if it is exactly one."""
    commit_ts_ms: int
    skipped: tuple[int, ...] = ()
    """The transactions in it that an operator skipped although rows were missing."""


class CommittedDocuments(NamedTuple):
    """Some documents of a view with the same commit."""

    unit: CommitUnit
    commit_lsn: int
    """The commit LSN in the documents."""
    xid: int | None
    """Its transaction, if ``emit`` distinguishes single transactions."""
    documents: Iterable[Document]


def commit_units(header: BatchHeader, emit: Emit, scope: Scope = Scope.STRICT) -> list[CommitUnit]:
    """Returns the commit records of a batch, ascending, covering ``(from_lsn, to_lsn]`` without gaps.

    With ``latest``, there is one for the batch, and so there is in scope ``aggregate``, with the LSN that all
    groups have reached. With ``transactions``, there is one for each source transaction with a change event,
    also if it changed nothing in the view. If the batch ends above the last of them (or contains none), a
    record without xid completes it. Each record contains the skipped transactions in it; the last one also
    contains those whose commit is not in the header.
    """
    if emit is Emit.LATEST or scope is Scope.AGGREGATE:
        return [CommitUnit(header.to_lsn, header.from_lsn, None, header.commit_ts_ms, header.skipped)]
    units = []
    previous = header.from_lsn
    unnamed = dict.fromkeys(header.skipped)
    for xid, commit_lsn, commit_ts_ms in header.transactions:
        skipped = (xid,) if xid in unnamed else ()
        unnamed.pop(xid, None)
        units.append(CommitUnit(commit_lsn, previous, xid, commit_ts_ms, skipped))
        previous = commit_lsn
    if previous < header.to_lsn or not units:
        units.append(CommitUnit(header.to_lsn, previous, None, header.commit_ts_ms))
    units[-1] = replace(units[-1], skipped=(*units[-1].skipped, *unnamed))
    return units


class BatchCommits:
    """The commits of one batch, and the documents of each view in the order in which they are written.

    Args:
        keys_move: For each view, whether a document's key may move from one bucket to another. The delete
            that is sent in that case is omitted.

    Raises:
        StateError: There are documents of a view that has no output; the error names the view.
    """

    def __init__(self, batch: DocumentBatch, emit: Emit, scope: Scope, keys_move: Sequence[bool]) -> None:
        self.batch = batch
        self._emit = emit
        self._scope = scope
        self._keys_move = keys_move
        self.units = commit_units(batch.header, emit, scope)
        foreign = sorted(set(batch.payloads) - set(range(len(keys_move))))
        if foreign:
            reason = f"documents of view {foreign[0]}, of {len(keys_move)} view(s)"
            raise malformed_batch(batch.batch_id, reason)

    def documents(self, view: int) -> Iterator[CommittedDocuments]:
        """Yields a view's documents; those of a key are in the order of its commits.

        Raises:
            StateError: A document belongs to no commit of the batch, or cannot be read.
        """
        whole = self.units[0]
        is_latest, is_strict = self._emit is Emit.LATEST, self._scope is Scope.STRICT
        if is_latest and is_strict:
            for chunk in self._chunks(view):
                yield CommittedDocuments(whole, whole.commit_lsn, None, chunk)
            return
        xids = {commit_lsn: xid for xid, commit_lsn, _ in self.batch.header.transactions}
        by_lsn = {unit.commit_lsn: unit for unit in self.units}
        for commit_lsn, documents in groupby(self._in_commit_order(view), itemgetter(0)):
            unit = by_lsn.get(commit_lsn)
            if not is_strict:  # rows of snapshots may be shown at LSNs that no transaction has
                unit = whole if commit_lsn > whole.previous_lsn else None
            if unit is None:
                raise malformed_batch(
                    self.batch.batch_id,
                    f"a document of commit LSN {commit_lsn}, which is not in the batch's header",
                )
            xid = None if is_latest else xids.get(commit_lsn)
            yield CommittedDocuments(unit, commit_lsn, xid, documents)

    def shown(self, view: int) -> Iterator[Document]:
        """Yields a view's documents with the LSNs at which they are shown; raises like :meth:`documents`."""
        for committed in self.documents(view):
            for _, key, document in committed.documents:
                yield committed.commit_lsn, key, document

    def _in_commit_order(self, view: int) -> Iterable[Document]:
        """Sorts a view's documents unless they have one commit, because they may not fit into memory."""
        if self._scope is Scope.STRICT and len(self.units) == 1:
            return chain.from_iterable(self._chunks(view))
        return in_commit_order(self._chunks(view))

    def _chunks(self, view: int) -> Iterator[list[Document]]:
        if not self._keys_move[view]:
            return self.batch.chunks(view)
        return self.batch.settled(view, every_commit=self._emit is Emit.TRANSACTIONS)


def _mismatch(
    pipeline: str, batch_id: int, header: BatchHeader, progress: ProgressRecord | None, reason: str
) -> StateError:
    span = f"({format_position(header.from_lsn)}, {format_position(header.to_lsn)}]"
    held = "no batch at all"
    if progress is not None:
        at = format_position(progress.commit_lsn)
        held = f"batch {progress.batch_id} at {at} of timeline {progress.timeline}"
    return StateError(
        f"pipeline {pipeline!r}: the run continues with batch {batch_id} {span} of timeline "
        f"{header.timeline}, but the output contains {held}: {reason}",
        "writing it would repeat or lose records: use the newest checkpoint of this pipeline. "
        + starting_over(pipeline),
    )
