"""The simulated connector: what Debezium writes over crashes and restarts.

It keeps to what was measured on the real one: emission in commit order; rows, BEGIN and END repeated after a
crash from some acknowledged position on; counters that continue or start again; ENDs with lower counts; BEGIN
and END of finished transactions with no count at all.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from slackwater.protocol.keys import data_topic, notification_topic, transaction_topic
from slackwater_lab.debezium.records import (
    begin_value,
    blocking_value,
    change_value,
    end_value,
    incremental_value,
    notification_value,
    partition_of,
    snapshot_value,
)
from slackwater_lab.simulator.kafka import Broker, SentRecord
from slackwater_lab.simulator.scenario import SOURCE, PlannedChange, PlannedTransaction, SimulatedTable

Row = tuple[int, int]
"""Id and value."""
State = dict[str, Counter[Row]]
"""Rows of each table; at most one per id where there is a key."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one row, as logical decoding sees it."""

    table: str
    op: str
    before: Row | None
    after: Row | None
    lsn: int

    @property
    def key(self) -> int:
        """The id, which is the key where there is one."""
        row = self.after or self.before
        return -1 if row is None else row[0]


@dataclass(frozen=True, slots=True)
class SimulatedCommit:
    """A transaction that committed."""

    number: int
    xid: int
    lsn: int
    changes: tuple[Change, ...]
    ts_ms: int = 0
    """Commit time."""

    @property
    def first_lsn(self) -> int:
        """The LSN in BEGIN: of the first change."""
        return min((c.lsn for c in self.changes), default=self.lsn - 8)


class Database:
    """All commits in commit order, with the state after each."""

    def __init__(
        self,
        tables: Sequence[SimulatedTable],
        transactions: Iterable[PlannedTransaction],
        backup: State | None = None,
    ) -> None:
        self._keyless = {table.name for table in tables if table.is_keyless}
        self.commits: list[SimulatedCommit] = []
        self._states: list[State] = [backup or {table.name: Counter() for table in tables}]
        for transaction in transactions:
            state = {name: Counter(rows) for name, rows in self._states[-1].items()}
            changes = [
                c for planned in transaction.changes for c in self._changes(state[planned.table], planned)
            ]
            self.commits.append(
                SimulatedCommit(transaction.number, transaction.xid, transaction.commit_lsn, tuple(changes))
            )
            self._states.append(state)

    def state_after(self, count: int) -> State:
        """The state after this many commits."""
        return self._states[count]

    def state_at(self, lsn: int) -> State:
        """The state after all commits at or below an LSN."""
        return self._states[sum(commit.lsn <= lsn for commit in self.commits)]

    def _changes(self, rows: Counter[Row], planned: PlannedChange) -> list[Change]:
        held = min((row for row in rows if row[0] == planned.key), default=None)
        new = (planned.key, planned.value)
        if planned.wish == "truncate":
            rows.clear()
            return [Change(planned.table, "t", None, None, planned.lsn)]
        if planned.table in self._keyless:
            after = None if planned.wish == "delete" and held else new
            before = None if planned.wish == "put" else held
        else:
            after, before = (None if planned.wish == "delete" and held else new), held
        if planned.wish == "move" and held and planned.table not in self._keyless:
            target = (planned.key + 100, planned.value)
            if not any(row[0] == target[0] for row in rows):
                return [
                    _apply(rows, Change(planned.table, "d", held, None, planned.lsn)),
                    _apply(rows, Change(planned.table, "c", None, target, planned.lsn)),
                ]
        op = "d" if after is None else "u" if before else "c"
        return [_apply(rows, Change(planned.table, op, before, after, planned.lsn))]


def _apply(rows: Counter[Row], change: Change) -> Change:
    apply_change(rows, change.before, change.after)
    return change


def apply_change(rows: Counter[Row], before: Row | None, after: Row | None) -> None:
    """Takes a row out and puts one in."""
    if before is not None:
        rows[before] -= 1
        if not rows[before]:
            del rows[before]
    if after is not None:
        rows[after] += 1
        if not rows[after]:
            del rows[after]


if TYPE_CHECKING:
    from slackwater_lab.simulator.world import World

TRANSACTIONS = (transaction_topic(SOURCE), 0)
NOTIFICATIONS = (notification_topic(SOURCE), 0)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A source offset: what is emitted next."""

    commit: int
    """Index in commit order."""
    item: int = 0
    """0: BEGIN; 1 … n: rows; n + 1: END."""
    base: int = 0
    """Rows before this one were counted by an earlier numbering."""


class SnapshotRows(NamedTuple):
    """The rows that a snapshot reads of a table."""

    table: str
    rows: list[Row]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Restart:
    """The way in which a run of the connector begins."""

    place: Place
    is_renumbering: bool = False
    """Whether the numbers of an open transaction start again."""
    replays: int = 0
    """The number of finished transactions for which BEGIN and an empty END come first."""


class Connector:
    """Emits commits as records, one item at a time."""

    def __init__(
        self,
        commits: list[SimulatedCommit],
        tables: Mapping[str, SimulatedTable],
        broker: Broker,
        keyless_partition: Callable[[int], int],
        way: "World",
    ) -> None:
        self._commits = commits
        self._tables = tables
        self._broker = broker
        self._keyless_partition = keyless_partition
        self._way = way
        self._header = ""
        self._restart = Restart(Place(0))
        self._prelude: deque[tuple[SentRecord, Place]] = deque()
        self._snapshot: deque[SentRecord] = deque()
        self._snapshot_lsn = 8
        """Of the newest initial snapshot; where the stream begins without one."""
        self.snapshot_records: list[SentRecord] = []
        """Everything that the newest initial snapshot consists of."""
        self.skip_records: list[SentRecord] = []
        """Everything that tells of a snapshot that was skipped."""
        self._unacknowledged: deque[tuple[list[SentRecord], Place]] = deque()
        self._numbering = -1, 0
        self._orders: list[int] = []
        self.place = Place(0)
        """What is emitted next."""
        self._furthest = Place(0)
        self.acknowledged = Place(0)
        """Everything before this is in Kafka and known to be."""
        self.run_count = 0
        self.is_in_snapshot = False
        """Whether an initial snapshot is not acknowledged as a whole: a restart would repeat it."""
        self.stored = [Place(0)]
        """Offsets that were flushed, oldest first; a restart goes back to one of them."""

    def start(self, restart: Restart, now_ms: int, *, has_headers: bool) -> None:
        """Begins a run."""
        self._restart, place = restart, restart.place
        self.run_count += 1
        self._header = _run_id(now_ms, self.run_count) if has_headers else ""
        self._unacknowledged.clear()
        self._prelude.clear()
        self.stored = [p for p in self.stored if p <= place] or [place]
        self.acknowledged = self.place = place
        if not restart.is_renumbering or place.item == 0:
            return
        for index in range(max(0, place.commit - restart.replays), place.commit):
            commit = self._commits[index]
            for value in (begin_value(commit.xid, commit.first_lsn), end_value(commit.xid, commit.lsn, {})):
                self._prelude.append((self._transaction_record(value, now_ms), place))
        commit = self._commits[place.commit]
        self.place = Place(place.commit, place.item, place.item - 1)
        begin = self._transaction_record(begin_value(commit.xid, commit.first_lsn), now_ms)
        self._prelude.append((begin, self.place))

    @property
    def is_repeating(self) -> bool:
        """True if an earlier run has emitted already what is emitted next."""
        return self.place < self._furthest

    def would_renumber_again(self, place: Place) -> bool:
        """Says whether the slot is still behind: the last run started numbers again and stored no offset."""
        return self._restart.is_renumbering and place == self._restart.place

    def next_records(self, now_ms: int) -> list[SentRecord] | None:
        """The next item's records, which may be none at all; None when there is nothing to emit."""
        if self._snapshot:
            record = self._snapshot.popleft()
            self._unacknowledged.append(([record], Place(0)))
            return [record]
        if self.is_in_snapshot:
            return None
        if self._prelude:
            record, after = self._prelude.popleft()
            self._unacknowledged.append(([record], after))
            return [record]
        if self.place.commit >= len(self._commits):
            return None
        commit, place = self._commits[self.place.commit], self.place
        if place.item == 0:
            value = begin_value(commit.xid, commit.first_lsn)
            records = [self._transaction_record(value, now_ms)] if self._way.has_begin(commit) else []
        elif place.item <= len(commit.changes):
            records = list(self._row_records(commit, place, now_ms))
        else:
            counts = _counts(commit.changes[place.base :])
            value = end_value(commit.xid, commit.lsn, counts, commit.ts_ms)
            records = [self._transaction_record(value, now_ms)] if self._way.has_end(commit) else []
        is_end = place.item > len(commit.changes)
        self.place = Place(place.commit + 1) if is_end else Place(place.commit, place.item + 1, place.base)
        self._furthest = max(self._furthest, self.place)
        self._unacknowledged.append((records, self.place))
        return records

    def note_acknowledgements(self) -> None:
        """Moves on what may be stored."""
        while self._unacknowledged and all(r.is_acknowledged for r in self._unacknowledged[0][0]):
            self.acknowledged = self._unacknowledged.popleft()[1]
        if self.is_in_snapshot and not self._snapshot and not self._unacknowledged:
            self.is_in_snapshot = False

    def flush(self) -> None:
        """Stores the offset, as Connect does now and then."""
        if self.acknowledged > self.stored[-1]:
            self.stored.append(self.acknowledged)

    def _row_records(self, commit: SimulatedCommit, place: Place, now_ms: int) -> Iterator[SentRecord]:
        number = place.item - 1
        change = commit.changes[number]
        if not self._way.arrives(commit, number):
            return
        value = change_value(
            change.table,
            change.op,
            position=(commit.xid, change.lsn),
            orders=(self._orders_of(place)[number], place.item - place.base),
            before=_row_fields(change.before),
            after=_row_fields(change.after),
            ts_ms=commit.ts_ms,
        )
        yield self._data_record(change, value, now_ms, (commit.lsn, number))
        if change.op == "d":
            yield self._data_record(change, None, now_ms, None)

    def _orders_of(self, place: Place) -> list[int]:
        """The number that each change of a commit has among those of its table."""
        numbering = place.commit, place.base
        if self._numbering != numbering:
            changes = self._commits[place.commit].changes
            counts, self._orders = dict[str, int](), [0] * place.base
            for change in changes[place.base :]:
                counts[change.table] = counts.get(change.table, 0) + 1
                self._orders.append(counts[change.table])
            self._numbering = numbering
        return self._orders

    def _data_record(
        self, change: Change, value: bytes | None, now_ms: int, identity: tuple[int, int] | None
    ) -> SentRecord:
        row_id = None if change.op == "t" else change.key
        return self._to_table(change.table, row_id, value, now_ms, identity)

    def _to_table(
        self,
        table: str,
        row_id: int | None,
        value: bytes | None,
        now_ms: int,
        identity: tuple[int, int] | None,
    ) -> SentRecord:
        topic = data_topic(SOURCE, table)
        count = self._broker.partition_count(topic)
        if row_id is None or self._tables[table].is_keyless:
            key, partition = None, self._keyless_partition(count)
        else:
            key = key_bytes(row_id)
            partition = partition_of(key, count)
        return SentRecord((topic, partition), key, value, self._header, now_ms, identity)

    def _transaction_record(self, value: bytes, now_ms: int) -> SentRecord:
        return SentRecord(TRANSACTIONS, b"", value, "", now_ms)

    # --- snapshots

    def chunk_records(self, table: str, rows: Iterable[Row], now_ms: int) -> list[SentRecord]:
        """Rows of an incremental snapshot; they have no run header."""
        records = []
        for row in rows:
            value = incremental_value(table, _row_fields(row) or {}, ts_ms=now_ms)
            records.append(replace(self._to_table(table, row[0], value, now_ms, None), run=""))
        return records

    def blocking_records(self, found: Sequence[SnapshotRows], *, is_announced: bool) -> list[SentRecord]:
        """Rows of an ad hoc snapshot at the position of the stream; each table has its own time."""
        records = [_notification("STARTED", found[0].now_ms)]
        for table, rows, now_ms in found:
            for row in rows:
                value = blocking_value(table, self._position_lsn(), _row_fields(row) or {}, ts_ms=now_ms)
                records.append(self._to_table(table, row[0], value, now_ms, None))
            counts = {"scanned_collection": table, "total_rows_scanned": str(len(rows))}
            records.append(_notification("TABLE_SCAN_COMPLETED", now_ms, **counts))
        records.append(_notification("COMPLETED", found[-1].now_ms))
        return [r for r in records if is_announced or r.target != NOTIFICATIONS]

    def _position_lsn(self) -> int:
        """The LSN of what was emitted last."""
        place = self.place
        if place.item < 2:
            return self._commits[place.commit - 1].lsn if place.commit else self._snapshot_lsn
        return self._commits[place.commit].changes[place.item - 2].lsn

    def skip_snapshot(self, now_ms: int) -> int:
        """Continues without a snapshot, after a start at which one failed; returns the items that say so.

        They are readable long before the first commit: a connector streams seconds after its start.
        """
        kinds = ("STARTED", "ABORTED", "SKIPPED") if self.run_count == 1 else ("SKIPPED",)
        records = [_notification(kind, now_ms) for kind in kinds]
        self.skip_records += records
        self._prelude.extendleft((record, self.place) for record in reversed(records))
        return len(records)

    def start_snapshot(
        self, lsn: int, rows: Mapping[str, list[Row]], now_ms: int, *, is_announced: bool
    ) -> None:
        """Begins an initial snapshot; streaming begins when all of it is acknowledged.

        In every other run its rows are stamped 1 ms before they are announced.
        """
        records: list[SentRecord] = []
        total = sum(map(len, rows.values()))
        done = 0

        def announce(kind: str, **data: str) -> None:
            if is_announced:
                records.append(_notification(kind, now_ms + self.run_count % 2, **data))

        announce("STARTED")
        for table, found in rows.items():
            for number, row in enumerate(found):
                done += 1
                if number == len(found) - 1:
                    announce(
                        "TABLE_SCAN_COMPLETED", scanned_collection=table, total_rows_scanned=str(len(found))
                    )
                mark = "last" if done == total else "first" if done == 1 else "true"
                value = snapshot_value(table, lsn, _row_fields(row) or {}, snapshot=mark, ts_ms=now_ms)
                records.append(self._to_table(table, row[0], value, now_ms, (lsn, done - 1)))
            if not found:
                announce("TABLE_SCAN_COMPLETED", scanned_collection=table, total_rows_scanned="0")
        announce("COMPLETED")
        self.snapshot_records, self._snapshot_lsn = records, lsn
        self._numbering = -1, 0
        self._snapshot, self.is_in_snapshot = deque(records), True


def _notification(kind: str, now_ms: int, **data: str) -> SentRecord:
    return SentRecord(NOTIFICATIONS, b"", notification_value(kind, ts_ms=now_ms, **data), "", now_ms)


def _run_id(now_ms: int, number: int) -> str:
    """As Debezium makes them: UUIDs of version 7, which say when the run began."""
    return str(UUID(int=now_ms << 80 | 7 << 76 | 2 << 62 | number))


def _row_fields(row: Row | None) -> dict[str, int] | None:
    """A row as the connector shows it."""
    return None if row is None else {"id": row[0], "v": row[1]}


def row_of(value: bytes | None) -> Row | None:
    """Reads the row of a JSON image; None where there is none."""
    if value is None:
        return None
    fields = json.loads(value)
    return fields["id"], fields["v"]


def key_bytes(row_id: int) -> bytes:
    """The key of a row, as JSON."""
    return b'{"id":%d}' % row_id


def _counts(changes: tuple[Change, ...]) -> dict[str, int]:
    return Counter(change.table for change in changes)
