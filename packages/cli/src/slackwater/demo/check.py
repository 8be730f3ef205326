"""Judges a pipeline's output: documents against the invariant, commits, states, final state.

Works on records that were read before and does no input or output, so every check can be shown to fail.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from slackwater.demo.findings import Findings, Kind
from slackwater.demo.history import Change, SourceTransaction
from slackwater.demo.orders import Document, OrderTables, torn
from slackwater_protocol import CommitRecord, OffsetRange


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """One record of the output topic, as a ``read_committed`` consumer got it."""

    partition: int
    offset: int
    order_id: int
    commit_lsn: int | None
    """From the record's header."""
    document: Document | None
    """None: a tombstone, the order has left the view."""

    def __str__(self) -> str:
        return f"order {self.order_id} at {self.partition}/{self.offset}, commit LSN {self.commit_lsn}"


def read_order_id(key: bytes) -> int:
    """The order's id from a record key: a JSON object with one member, an array of one, or the bare value."""
    found: Any = json.loads(key)
    if isinstance(found, dict):
        found = next(iter(found.values()))
    elif isinstance(found, list):
        found = found[0]
    return int(found)


def check_documents(records: Iterable[OutputRecord], findings: Findings) -> int:
    """Checks each document against the invariant.

    Returns:
        How many documents were checked (tombstones are none).
    """
    checked = 0
    for record in records:
        if record.document is None:
            continue
        checked += 1
        problem = torn(record.document)
        if problem:
            findings.add(Kind.TORN, f"{record}: {problem}")
    return checked


def check_commits(
    commits: Sequence[CommitRecord],
    records: Mapping[tuple[int, int], OutputRecord],
    topic: str,
    findings: Findings,
) -> None:
    """Checks that commit LSNs only rise and that commit records and output records account for each other.

    Args:
        commits: in the order of their topic.
        records: by partition and offset.
        topic: the output topic.
        findings: receives what is wrong.
    """
    for before, after in pairwise(commits):
        text = f"commit record {after.commit_lsn} follows {before.commit_lsn}"
        if (after.timeline, after.commit_lsn) <= (before.timeline, before.commit_lsn):
            findings.add(Kind.LSN_ORDER, text)
        elif (after.timeline, after.previous_lsn) != (before.timeline, before.commit_lsn):
            findings.add(Kind.HOLE, f"{text}, but continues {after.previous_lsn}")
    covered: set[tuple[int, int]] = set()
    for commit in commits:
        for partition, offsets in commit.offsets.get(topic, {}).items():
            covered |= _check_range(commit, partition, offsets, records, findings)
    for place in sorted(records.keys() - covered):
        findings.add(Kind.UNCOVERED, f"{records[place]}: no commit record covers it")
    _check_partition_order(records, findings)


def _check_range(
    commit: CommitRecord,
    partition: int,
    offsets: OffsetRange,
    records: Mapping[tuple[int, int], OutputRecord],
    findings: Findings,
) -> set[tuple[int, int]]:
    places = {(partition, offset) for offset in range(offsets.first_offset, offsets.last_offset + 1)}
    found = places & records.keys()
    if len(found) != offsets.count:
        kind = Kind.LOST if len(found) < offsets.count else Kind.REPEATED
        text = f"commit {commit.commit_lsn} announces {offsets.count} records in partition {partition}"
        findings.add(kind, f"{text} at {offsets.first_offset}..{offsets.last_offset}, {len(found)} are there")
    for place in found:
        if records[place].commit_lsn != commit.commit_lsn:
            findings.add(Kind.UNCOVERED, f"{records[place]}: lies in the range of commit {commit.commit_lsn}")
    return found


def _check_partition_order(records: Mapping[tuple[int, int], OutputRecord], findings: Findings) -> None:
    ordered = [records[place] for place in sorted(records)]
    for before, after in pairwise(ordered):
        if before.partition == after.partition and (before.commit_lsn or 0) > (after.commit_lsn or 0):
            findings.add(Kind.LSN_ORDER, f"{after}: follows commit LSN {before.commit_lsn}")


def check_states(
    snapshot: Iterable[Change],
    transactions: Iterable[SourceTransaction],
    commits: Sequence[CommitRecord],
    records: Iterable[OutputRecord],
    findings: Findings,
) -> None:
    """Checks each commit's documents against the state of the source at its LSN.

    A commit must publish exactly the documents that differ from the commit before: a missing one is lost, an
    unchanged one is repeated, another value is wrong.
    """
    published: dict[int | None, dict[int, list[OutputRecord]]] = {}
    for record in records:
        published.setdefault(record.commit_lsn, {}).setdefault(record.order_id, []).append(record)
    replay = Replay(snapshot, transactions)
    for commit in commits:
        changed = replay.advance(commit.commit_lsn)
        _compare_commit(commit.commit_lsn, changed, published.get(commit.commit_lsn, {}), findings)
    for order_id in replay.advance(None):
        findings.add(Kind.LOST, f"order {order_id}: changed after the last commit record")


def _compare_commit(
    lsn: int,
    changed: Mapping[int, Document | None],
    published: Mapping[int, list[OutputRecord]],
    findings: Findings,
) -> None:
    for order_id, expected in changed.items():
        found = published.get(order_id)
        if not found:
            findings.add(Kind.LOST, f"order {order_id}: changed by commit {lsn}, nothing was published")
        elif found[0].document != expected:
            findings.add(Kind.WRONG_STATE, f"{found[0]}: got {found[0].document}, expected {expected}")
    for order_id, found in published.items():
        extra = len(found) - (1 if order_id in changed else 0)
        if extra > 0:
            findings.add(Kind.REPEATED, f"{found[-1]}: {extra} more than commit {lsn} changed")


class Replay:
    """The view, recomputed from the source's history and advanced from LSN to LSN."""

    def __init__(self, snapshot: Iterable[Change], transactions: Iterable[SourceTransaction]) -> None:
        self._tables = OrderTables()
        self._touched: set[int] = set()
        self.shown: dict[int, Document] = {}
        """What a right view shows at the LSN reached so far."""
        self._transactions = iter(transactions)
        self._next = next(self._transactions, None)
        self._apply(snapshot)

    def advance(self, lsn: int | None) -> dict[int, Document | None]:
        """Applies everything up to and including ``lsn`` (None: all); returns what differs from before."""
        while self._next is not None and (lsn is None or self._next.commit_lsn <= lsn):
            self._apply(self._next.changes)
            self._next = next(self._transactions, None)
        changed: dict[int, Document | None] = {}
        for order_id in sorted(self._touched):
            document = self._tables.document(order_id)
            if document != self.shown.get(order_id):
                changed[order_id] = document
                self._show(order_id, document)
        self._touched.clear()
        return changed

    def _apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._touched |= self._tables.apply(change.table, change.key, change.after)

    def _show(self, order_id: int, document: Document | None) -> None:
        if document is None:
            self.shown.pop(order_id, None)
        else:
            self.shown[order_id] = document


def final_documents(records: Iterable[OutputRecord]) -> dict[int, Document]:
    """The last value of every order that was not deleted; records of a partition come in their order."""
    documents: dict[int, Document] = {}
    for record in records:
        if record.document is None:
            documents.pop(record.order_id, None)
        else:
            documents[record.order_id] = record.document
    return documents


def check_final(
    published: Mapping[int, Document], database: Mapping[int, Document], findings: Findings
) -> None:
    """Compares the view's final state with what PostgreSQL says, document by document."""
    for order_id in sorted(published.keys() | database.keys()):
        got, expected = published.get(order_id), database.get(order_id)
        if got != expected:
            findings.add(Kind.WRONG_FINAL, f"order {order_id}: got {got}, PostgreSQL has {expected}")
