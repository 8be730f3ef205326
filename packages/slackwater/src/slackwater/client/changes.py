"""Merges cuts with the change records between them. Pure: records in, whole transactions out."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slackwater.cdc import Change
from slackwater.cdc.batch import BatchTask, OffsetSpan, Record, TransactionTable
from slackwater.cdc.changes import BatchChanges
from slackwater.client.inputs import ChangeTopics, Share, select
from slackwater.client.merges import PartitionQueues, size_of
from slackwater.client.transaction import Commit, LanePosition, Piece, Place
from slackwater.protocol import (
    SNAPSHOT_XID,
    CommitPosition,
    CommittedTransaction,
    Cut,
    PublishedCut,
    StateError,
)
from slackwater.protocol.keys import cut_log_topic

_ENOUGH = 4
"""Cuts that are known in advance; each may list ten thousand transactions."""


class Located(NamedTuple):
    """A record of a cut, with the commit that it belongs to."""

    lsn: int
    change: Change
    record: Record

    @property
    def order(self) -> tuple[int, int]:
        """Sorts the records of a transaction: rows of a snapshot without a commit come before its changes."""
        return self.change.lsn or 0, self.change.total_order


@dataclass(slots=True)
class _Front:
    """The cut whose transactions are being handed out."""

    published: PublishedCut
    ends: dict[Place, int]
    transactions: deque[CommittedTransaction]
    task: BatchTask
    changes: BatchChanges | None
    """None: it can be found only when all of the cut was read."""
    located: dict[Place, deque[Located]] = field(default_factory=dict)
    by_lsn: dict[int, list[Located]] | None = None
    """All that has not been handed out, when all of the cut was read."""
    is_read: bool = False
    """Whether all of it was read, and every record has its commit."""
    is_large: bool = False
    """Whether its transactions are handed out while it is still being read."""
    is_open: bool = False
    """Whether a piece of its first transaction was handed out."""


class _Group:
    """Partitions whose transactions come in one order.

    Args:
        base: The newest cut that all of them have passed; None: there is none.
    """

    def __init__(
        self,
        inputs: ChangeTopics,
        share: Share,
        queues: PartitionQueues,
        lanes: Mapping[int, LanePosition],
        base: Cut | None,
    ) -> None:
        self._inputs, self._share, self._queues = inputs, share, queues
        self._lane = next(iter(lanes)) if share.is_by_partition else None
        self._done = {lane: position.done or CommitPosition(0, 0) for lane, position in sorted(lanes.items())}
        self._newest_done = max(self._done.values())
        self._reached = min(self._done.values())
        self._offsets = {} if base is None else inputs.places_of(base, self._lane)
        self.cuts: deque[PublishedCut] = deque()
        self._front: _Front | None = None
        self.held = 0
        """Bytes of records that were taken from the queues."""

    @property
    def waits(self) -> bool:
        return self._front is not None or bool(self.cuts)

    def next(self) -> Piece | None:
        """Returns the next transaction, or stretch of one; None: more has to be read."""
        while (front := self._front or self._begin()) is not None:
            if not front.is_read:
                is_read = not self._unread(front)
                if not is_read and front.changes is None:
                    return None
                self._locate(front)
                front.is_read = is_read
            if not front.transactions:
                self._finish(front)
            elif front.is_read:
                return self._of_read(front)
            else:
                front.is_large = front.is_large or bool(self._queues.paused((), self.held))
                return self._of_unread(front) if front.is_large else None
        return None

    def missing(self) -> list[Place]:
        """Returns the partitions that the next transaction waits for."""
        front = self._front or self._begin()
        if front is None:
            return []
        unread = self._unread(front)
        if not front.is_large or not front.transactions:
            return unread
        lsn = front.transactions[0].commit_lsn
        return [p for p in unread if not (at := front.located.get(p)) or at[-1].lsn <= lsn]

    def _begin(self) -> _Front | None:
        """Turns to the next cut that has something new."""
        while self.cuts:
            published = self.cuts.popleft()
            cut = published.cut
            if cut.timeline > self._reached.timeline:
                self._reached = CommitPosition(cut.timeline, 0)
            if cut.position <= self._reached:
                continue
            if cut.previous_lsn > self._reached.lsn:
                raise _hole(self._inputs.source, self._reached, published)
            self._front = self._front_of(published)
            return self._front
        return None

    def _front_of(self, published: PublishedCut) -> _Front:
        cut, inputs = published.cut, self._inputs
        transactions = deque(t for t in cut.transactions if t.commit_lsn > self._reached.lsn)
        lsns = {t.commit_lsn for t in transactions}
        task = BatchTask(
            (),
            TransactionTable(transactions),
            cut.repeated & lsns,
            None,
            late_snapshots=frozenset(cut.late_snapshots),
            has_incremental_rows=cut.has_incremental_rows,
            end_lsn=cut.lsn,
            has_whole_topics=self._lane is None,
        )
        is_plain = not (task.repeated or task.needs_look_ahead)
        changes = self._changes(task) if is_plain else None
        ends = inputs.places_of(cut, self._lane)
        for place, end in ends.items():
            start = self._offsets.get(place, 0)
            if start < end:
                self._queues.start(place, start).take_below(start)
        return _Front(published, ends, transactions, task, changes)

    def _changes(self, task: BatchTask) -> BatchChanges:
        inputs = self._inputs
        return BatchChanges(task, inputs.source, inputs.tables, topics=inputs.topics, to_json=inputs.to_json)

    def _unread(self, front: _Front) -> list[Place]:
        found = []
        for place, end in front.ends.items():
            start = self._offsets.get(place, 0)
            if start < end and self._queues.start(place, start).position < end:
                found.append(place)
        return found

    def _locate(self, front: _Front) -> None:
        """Finds the commits of the records that were read."""
        if front.by_lsn is not None:
            return
        spans = list(self._spans(front))
        if front.changes is None:
            self._locate_together(front, [(span, records) for span, records in spans if records])
            return
        for span, records in spans:
            if records:
                found = [Located(lsn, change, m) for m, change, lsn in front.changes.find(span, records)]
                front.located.setdefault((span.topic, span.partition), deque()).extend(found)
                self.held += size_of(each.record for each in found)

    def _spans(self, front: _Front) -> Iterator[tuple[OffsetSpan, list[Record]]]:
        for (topic, partition), end in front.ends.items():
            start = self._offsets.get((topic, partition), 0)
            if start < end:
                records = self._queues.start((topic, partition), start).take_below(end)
                yield OffsetSpan(topic, partition, start, end, 0), records

    def _locate_together(self, front: _Front, portions: list[tuple[OffsetSpan, list[Record]]]) -> None:
        """Finds changes of which some are repeated, or rows of snapshots whose place others decide."""
        changes = self._changes(front.task).look_ahead(lambda: portions)
        front.by_lsn = {}
        for span, records in portions:
            for record, change, lsn in changes.find(span, records):
                if lsn > self._reached.lsn:
                    front.by_lsn.setdefault(lsn, []).append(Located(lsn, change, record))
                    self.held += size_of((record,))
        self._list_outsiders(front, front.by_lsn)

    def _list_outsiders(self, front: _Front, by_lsn: Mapping[int, object]) -> None:
        """Lists the end of the cut if rows of snapshots were placed there and no transaction is."""
        listed = {t.commit_lsn for t in front.transactions}
        time = front.published.cut.commit_ts_ms
        outsiders = [CommittedTransaction(SNAPSHOT_XID, lsn, time) for lsn in by_lsn if lsn not in listed]
        if outsiders:
            found = sorted([*front.transactions, *outsiders], key=lambda t: t.commit_lsn)
            front.transactions = deque(found)

    def _of_read(self, front: _Front) -> Piece:
        """Returns the next transaction of a cut that was read to its end."""
        if front.by_lsn is None:
            front.by_lsn = {}
            for found in front.located.values():
                for each in found:
                    front.by_lsn.setdefault(each.lsn, []).append(each)
            front.located.clear()
        found_now = front.by_lsn.pop(front.transactions[0].commit_lsn, [])
        return self._piece(front, found_now, is_whole=True)

    def _of_unread(self, front: _Front) -> Piece | None:
        """Returns the next transaction of a large cut: whole, or what there is of a large one."""
        lsn = front.transactions[0].commit_lsn
        is_whole = not self.missing()
        if not (is_whole or front.is_open or self._queues.is_overfull(self.held)):
            return None
        found: list[Located] = []
        for at in front.located.values():
            while at and at[0].lsn <= lsn:
                found.append(at.popleft())
        return self._piece(front, found, is_whole=is_whole) if found or is_whole else None

    def _piece(self, front: _Front, found: list[Located], *, is_whole: bool) -> Piece:
        transaction, cut = front.transactions[0], front.published.cut
        found.sort(key=lambda each: each.order)
        records = [each.record for each in found]
        self.held -= size_of(records)
        position = CommitPosition(cut.timeline, transaction.commit_lsn)
        lanes = self._lanes_behind(position)
        mine, elsewhere = select(self._share, lanes, records)
        front.is_open = not is_whole
        is_end = len(front.transactions) == 1
        ends: Mapping[Place, int] = {}
        if self._share.is_by_partition:
            ends = front.ends if is_end else {place: self._offsets.get(place, 0) for place in front.ends}
        piece = Piece(
            Commit(
                source=cut.source,
                timeline=cut.timeline,
                lsn=transaction.commit_lsn,
                xid=transaction.xid,
                commit_ts_ms=transaction.commit_ts_ms,
                skipped=_skipped_with(transaction, cut, is_last=is_end),
            ),
            mine,
            is_whole,
            lanes,
            elsewhere,
            LanePosition(front.published.log_offset + is_end, position),
            ends,
        )
        if is_whole:
            front.transactions.popleft()
            self._reached = position
            if is_end:
                self._finish(front)
        return piece

    def _lanes_behind(self, position: CommitPosition) -> tuple[int, ...]:
        if position > self._newest_done:
            return tuple(self._done)
        return tuple(lane for lane, done in self._done.items() if done < position)

    def _finish(self, front: _Front) -> None:
        self._offsets = {**self._offsets, **front.ends}
        self._reached = front.published.cut.position
        self._front = None


def _skipped_with(transaction: CommittedTransaction, cut: Cut, *, is_last: bool) -> tuple[int, ...]:
    """Returns what was skipped: the transaction; with the last one of a cut also those without END."""
    listed = {t.xid for t in cut.transactions}
    return tuple(x for x in cut.skipped if x == transaction.xid or (is_last and x not in listed))


class ChangeMerge:
    """Finds each transaction's records among those of Debezium's topics, by the cuts of the sidecar.

    Records that no transaction between two cuts has are repetitions, and dropped. The records of a cut are
    held in memory until it was read, unless they are too many: then its transactions are handed out while it
    is read. Only a cut with repeated records or rows of ad hoc snapshots is always held.

    Args:
        base: By lane the newest cut that it has passed, for where its partitions are read on; None: nothing
            was read.
    """

    def __init__(
        self,
        inputs: ChangeTopics,
        share: Share,
        max_bytes: int,
        lanes: Mapping[int, LanePosition],
        base: Mapping[int, Cut | None],
    ) -> None:
        self.queues = PartitionQueues(max_bytes)
        groups = [{lane: at} for lane, at in lanes.items()] if share.is_by_partition else [dict(lanes)]
        self._groups = [
            _Group(inputs, share, self.queues, group, _oldest([base[lane] for lane in group]))
            for group in groups
            if group
        ]

    is_over = False

    @property
    def wants_commits(self) -> bool:
        """True if it can take more cuts."""
        return all(len(group.cuts) < _ENOUGH for group in self._groups)

    @property
    def waits(self) -> bool:
        """True if a cut is known of which not all was handed out."""
        return any(group.waits for group in self._groups)

    def expect(self, published: PublishedCut) -> None:
        """Takes the next cut of the log."""
        for group in self._groups:
            group.cuts.append(published)

    def paused(self) -> frozenset[Place]:
        """See :class:`PartitionQueues`."""
        held = sum(group.held for group in self._groups)
        return self.queues.paused({p for group in self._groups for p in group.missing()}, held)

    def next(self) -> Piece | None:
        """Returns the next transaction, or stretch of one; None: more has to be read."""
        return next((piece for group in self._groups if (piece := group.next()) is not None), None)


def _oldest(cuts: Sequence[Cut | None]) -> Cut | None:
    found = [cut for cut in cuts if cut is not None]
    return min(found, key=lambda cut: cut.position) if len(found) == len(cuts) else None


def _hole(source: str, reached: CommitPosition, published: PublishedCut) -> StateError:
    log = cut_log_topic(source)
    return StateError(
        f"cuts are missing in {log}: the consumer has processed {source} up to {reached}, but the next cut, "
        f"at offset {published.log_offset}, begins after {published.cut.previous_lsn}",
        "keep the cut log for as long as the data topics; to skip the gap, use seek() or start='latest'",
    )
