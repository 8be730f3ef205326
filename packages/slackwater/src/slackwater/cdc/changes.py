"""Finds the changes of a batch among records: drops those of others, refuses what it cannot understand.

A row of a snapshot that does not contain the LSN at which it is true gets its place in the commit order: the
commit LSN of the next change in its partition (incremental rows) or of its key (late rows), which it precedes
there; if there is none, the end of the batch. A document therefore never shows a row too early, and never an
older state after a newer one.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Self

from slackwater.cdc import Change, UndecodableRecordError, decode_change
from slackwater.cdc.batch import BatchTask, OffsetSpan, Record, bad_input
from slackwater.cdc.keyless import KeylessRows, UndecidableError
from slackwater.protocol import ConfigError, SourceTopics

if TYPE_CHECKING:
    from slackwater.cdc.avro import ToJson


_OPERATIONS = frozenset({"c", "u", "d", "r", "t"})
Located = tuple[Record, Change, int]
Portion = tuple[OffsetSpan, Sequence[Record]]
"""Records of a span, in their order."""


@dataclass(frozen=True, slots=True)
class SpanTransactions:
    """The transactions that a span of a partition contributes.

    Attributes:
        table: The only table of the partition's topic.
        commit_lsn_of: Commit LSN by transaction id; None if it is not in the batch.
        repeated: Commit LSNs of transactions whose rows have to be compared.
        after_lsn: Only commits above it count.
        up_to_lsn: Only commits up to it count.
    """

    table: str
    commit_lsn_of: Callable[[int], int | None]
    repeated: Collection[int]
    after_lsn: int
    up_to_lsn: int


class BatchChanges:
    """Finds a batch's changes among the records of its spans.

    Rows of commits outside a span's LSNs belong to another batch. Rows whose transaction is not in the
    batch's table repeat earlier ones, or belong to an initial snapshot that was restarted. All of them are
    dropped. Rows of transactions known to be in Kafka twice are compared by change identity ``(xid, lsn,
    table, op, key)``; only the first counts, whichever partition the others are in: partitions may have been
    added. For rows without keys see :class:`KeylessRows`, and for rows of snapshots that belong to no commit
    :class:`SnapshotPlaces`. A batch that may have such rows is read twice: first by :meth:`look_ahead`.

    Without topics, those that Debezium names after the tables are read; without a converter, values are JSON.
    """

    def __init__(
        self,
        task: BatchTask,
        source: str,
        tables: Sequence[str],
        *,
        topics: SourceTopics | None = None,
        to_json: "ToJson | None" = None,
    ) -> None:
        self._task = task
        self._keyless: KeylessRows | None = None
        self._by_xid = task.table.by_xid()
        self._snapshots = task.table.snapshot_lsns
        self._late = task.late_snapshots
        self._places: SnapshotPlaces | None = None
        self._repeated = task.repeated
        self._seen: set[tuple[object, ...]] = set()
        self._topics = topics or SourceTopics(source)
        self._shared = frozenset(self._topics.routed.values())
        self._tables = frozenset(tables)
        self._to_json = to_json
        self._by_topic: dict[str, frozenset[str]] = {}

    def look_ahead(self, portions: Callable[[], Iterable[Portion]]) -> Self:
        """Reads the spans to find the places of rows of snapshots, and the repeated rows without keys.

        Args:
            portions: Returns the spans with their records; called once for each kind that there may be.

        Raises:
            BadInputError: At the first record that cannot be understood.
        """
        task = self._task
        if task.needs_look_ahead:
            places = self._places = SnapshotPlaces(task.end_lsn)
            for message, change, commit_lsn in self._all(portions()):
                has_commit = change.xid is not None or change.lsn in self._snapshots
                places.read(message, change, commit_lsn if has_commit else None)
            self._seen.clear()
        if task.repeated and task.has_whole_topics:
            self._repeated, found = frozenset[int](), KeylessRows()
            without_key = ((span, [m for m in messages if m.key() is None]) for span, messages in portions())
            for message, change, commit_lsn in self._all(without_key):
                if commit_lsn in task.repeated and change.op != "t":
                    found.note(message, change)
            self._repeated, self._keyless = task.repeated, found
        return self

    def _all(self, portions: Iterable[Portion]) -> Iterator[Located]:
        return chain.from_iterable(self.find(span, messages) for span, messages in portions)

    def window(self, span: OffsetSpan) -> SpanTransactions | None:
        """Returns the interval of a span whose records may be regular; None if each needs :meth:`find`."""
        tables = self._tables_of(span.topic)
        if self._to_json is not None or len(tables) != 1:
            return None
        (table,) = tables
        return SpanTransactions(table, self._by_xid.get, self._repeated, span.after_lsn, span.up_to_lsn)

    def _tables_of(self, topic: str) -> frozenset[str]:
        tables = self._by_topic.get(topic)
        if tables is None:
            tables = frozenset(table for table in self._tables if self._topics.data(table) == topic)
            self._by_topic[topic] = tables
        return tables

    def find(self, span: OffsetSpan, messages: Sequence[Record]) -> Iterator[Located]:
        """Yields the changes among records of a span, in their order.

        Raises:
            BadInputError: At the first record that cannot be understood.
        """
        tables, to_json = self._tables_of(span.topic), self._to_json
        commit_lsn_of, repeated = self._by_xid.get, self._repeated
        after_lsn, up_to_lsn = span.after_lsn, span.up_to_lsn
        for message in messages:
            value = message.value()
            if value is None:
                continue
            try:
                change = decode_change(value if to_json is None else to_json(value) or b"")
            except (ConfigError, UndecodableRecordError) as error:
                raise bad_input(message, str(error)) from error
            is_odd = change.op not in _OPERATIONS or change.table not in tables
            if is_odd and self._may_be_left_out(message, change):
                continue
            xid = change.xid
            commit_lsn = commit_lsn_of(xid) if xid is not None else self._outside(span, message, change)
            if commit_lsn is None or not after_lsn < commit_lsn <= up_to_lsn:
                if change.op == "t" and span.is_of_group and (commit_lsn or 0) <= after_lsn:
                    self._refuse_passed_truncate(span, message, change)
                continue
            if commit_lsn in repeated and self._is_double(message, change):
                continue
            yield message, change, commit_lsn

    def _refuse_passed_truncate(self, span: OffsetSpan, message: Record, change: Change) -> None:
        """Refuses a TRUNCATE that comes too late for its group of partitions.

        It has no key: written for the first time after a crash, it may be in any partition. A group that has
        shown nothing yet omits what a snapshot contains.
        """
        if span.after_lsn:
            raise bad_input(
                message,
                f"TRUNCATE of {change.table}, in a commit that this group of partitions has passed or does "
                "not contain: scope 'aggregate' cannot apply it. Use DELETE, or scope 'strict'; to continue, "
                "take a new snapshot and start with a new checkpoint",
            )

    def _outside(self, span: OffsetSpan, message: Record, change: Change) -> int | None:
        """Returns the LSN of a snapshot's row that counts; None for one that does not."""
        if change.is_snapshot and change.lsn not in self._late:
            return change.lsn if change.lsn in self._snapshots else None
        if span.next_offset is not None and (message.offset() or 0) >= span.next_offset:
            return None  # the next batch reads it again, and what follows it
        if change.is_snapshot and message.key() is None:
            problem = f"a row of an ad hoc snapshot of {change.table}, which has no key"
            raise bad_input(message, f"{problem} to find newer changes by; give it a primary key")
        return min(self._places_for(message).commit_lsn(message, change), span.up_to_lsn)

    def _places_for(self, message: Record) -> "SnapshotPlaces":
        if self._places is None:
            problem = "a row of an ad hoc snapshot that no cut describes"
            raise bad_input(
                message, f"{problem}; let a sidecar of this version read the source from its start"
            )
        return self._places

    def _may_be_left_out(self, message: Record, change: Change) -> bool:
        """Returns True for logical messages, and for rows of other tables that share a topic."""
        if change.op == "m":
            return True
        if change.op not in _OPERATIONS:
            raise bad_input(message, f"operation {change.op!r}, expected one of c, r, u, d, t")
        expected = self._topics.data(change.table)
        if change.table in self._tables or message.topic() not in {expected, *self._shared}:
            problem = f"a change of table {change.table!r}, which is expected in topic {expected}"
            raise bad_input(message, f"{problem}; if topics are routed, set 'topics'")
        return True

    def _is_double(self, message: Record, change: Change) -> bool:
        key = message.key()
        if key is None and change.op != "t":
            return self._is_keyless_double(message, change)
        identity = (change.xid, change.lsn, change.table, change.op, key)
        if identity in self._seen:
            return True
        self._seen.add(identity)
        return False

    def _is_keyless_double(self, message: Record, change: Change) -> bool:
        problem = f"rows of {change.table}, which has no key, are in Kafka twice"
        if self._keyless is None:
            raise bad_input(
                message, f"{problem}, and not all of them are in this task; give it a primary key"
            )
        try:
            return self._keyless.is_double(message, change)
        except UndecidableError:
            problem = f"{problem}, and it cannot be determined which of them are the same row"
            raise bad_input(
                message, f"{problem}; give it a primary key and start with a new snapshot"
            ) from None


class SnapshotPlaces:
    """Collects, in a first reading of the spans, the changes that follow rows without a commit.

    Memory: one entry per run of incremental rows, and one per key that changes after a run of late ones.
    Spans must be whole: what follows a row must be in the same task.
    """

    def __init__(self, end_lsn: int) -> None:
        self._end_lsn = end_lsn
        self._partitions: dict[tuple[str, int], _Behind] = {}

    def read(self, message: Record, change: Change, commit_lsn: int | None) -> None:
        """Takes the next record of a partition that counts; ``commit_lsn`` is None for a row without one."""
        place = message.topic() or "", message.partition() or 0
        behind = self._partitions.get(place)
        if behind is None:
            if commit_lsn is not None:
                return
            behind = self._partitions[place] = _Behind()
        if commit_lsn is not None:
            behind.read_commit(message.offset() or 0, (change.table, message.key()), commit_lsn)
        elif change.is_snapshot:
            behind.has_new_late = True
        else:
            behind.has_new_incremental = True

    def commit_lsn(self, message: Record, change: Change) -> int:
        """Returns the commit LSN of a row without one; at most the end of the batch."""
        behind = self._partitions.get((message.topic() or "", message.partition() or 0), _NOTHING)
        if not change.is_snapshot:
            return self._next(behind.any_key, message)
        of_key = behind.by_key.get((change.table, message.key()), [])
        truncates = behind.by_key.get((change.table, None), [])
        return min(self._next(of_key, message), self._next(truncates, message))

    def _next(self, entries: "list[tuple[int, int]]", message: Record) -> int:
        number = bisect_right(entries, (message.offset() or 0, self._end_lsn))
        return entries[number][1] if number < len(entries) else self._end_lsn


class _Behind:
    """The first changes after runs of snapshot rows in one partition: offsets and commit LSNs."""

    def __init__(self) -> None:
        self.has_new_incremental = False
        """Whether an incremental row was read since the last change."""
        self.has_new_late = False
        self.any_key: list[tuple[int, int]] = []
        self.by_key: dict[tuple[str, bytes | None], list[tuple[int, int]]] = {}
        """The same for each table and key; no key: TRUNCATE."""
        self._stretch = 0

    def read_commit(self, offset: int, key: tuple[str, bytes | None], commit_lsn: int) -> None:
        """Takes a change of a commit."""
        if self.has_new_incremental:
            self.has_new_incremental = False
            self.any_key.append((offset, commit_lsn))
        if self.has_new_late:
            self.has_new_late = False
            self._stretch = offset
        if self._stretch:
            entries = self.by_key.setdefault(key, [])
            if not entries or entries[-1][0] < self._stretch:
                entries.append((offset, commit_lsn))


_NOTHING = _Behind()
