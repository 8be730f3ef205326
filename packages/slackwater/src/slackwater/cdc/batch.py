"""A batch of a source: its transactions, the spans of partitions with their records, and its tasks. Pure."""

import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final, Protocol

from slackwater.cdc.errors import BadInputError
from slackwater.protocol import BatchHeader, CommittedTransaction

MAX_LSN = 2**63 - 1
_SHOWN_BYTES: Final = 200
"""The number of a value's first bytes that an error shows."""

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class Record(Protocol):
    """The part of ``confluent_kafka.Message`` that is used here."""

    def topic(self) -> str | None:
        """Returns the name of the topic."""

    def partition(self) -> int | None:
        """Returns the number of the partition."""

    def offset(self) -> int | None:
        """Returns the place in the partition."""

    def timestamp(self) -> tuple[int, int]:
        """Returns the kind of its time, and the time in milliseconds since the epoch."""

    def key(self) -> bytes | None:
        """Returns the key; None if the record has none."""

    def value(self) -> bytes | None:
        """Returns the value; None in a tombstone."""

    def headers(
        self,
    ) -> Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]] | None:
        """Returns names and values of the headers; None if there are none."""


def place_of(record: Record) -> Place:
    """Returns the place of a record that was read from Kafka."""
    return record.topic() or "", record.partition() or 0, record.offset() or 0


def bad_input(record: Record, problem: str) -> BadInputError:
    """Returns the error for a record, with its place and the first bytes of its value."""
    return BadInputError(*place_of(record), problem, (record.value() or b"")[:_SHOWN_BYTES])


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """A part of one partition that a batch contains."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    """Exclusive."""
    sequence: int
    """Position among all spans of the batch, by topic, partition and offset; in scope ``aggregate`` with the
    partition in its high bits."""
    after_lsn: int = 0
    """Only commits above this LSN belong to the batch."""
    up_to_lsn: int = MAX_LSN
    """Only commits up to this LSN belong to the batch."""
    next_offset: int | None = None
    """The offset at which the next batch continues in the partition, if that is below the end of this one
    (scope ``aggregate``); None: at its end."""

    is_of_group: bool = False
    """Whether its partition advances by its own markers (scope ``aggregate``)."""

    @property
    def size(self) -> int:
        """The number of its offsets; an upper bound of its records."""
        return self.to_offset - self.from_offset


@dataclass(frozen=True, slots=True)
class BatchContent:
    """The transactions of a batch, and what is special about them."""

    transactions: tuple[CommittedTransaction, ...]
    """In commit order."""
    repeated: frozenset[int]
    """Commit LSNs with rows that may be in Kafka twice."""
    commit_ts_ms: int
    """Commit time of the newest transaction."""
    skipped: tuple[int, ...] = ()
    """Xids of the transactions that an operator skipped although rows of them were missing."""

    late_snapshots: frozenset[int] = frozenset()
    """``source.lsn`` of snapshots with rows in the batch that are newer than it."""
    has_incremental_rows: bool = False
    """Whether it contains rows of an incremental snapshot."""

    @property
    def may_split(self) -> bool:
        """Whether a partition may be divided between tasks.

        It may not if repeated rows have to be found, or if changes after a snapshot's row matter.
        """
        return not (self.repeated or self.late_snapshots or self.has_incremental_rows)


class TransactionTable:
    """The commit that each row belongs to; small when pickled, quick to look up after :meth:`by_xid`."""

    __slots__ = ("_data", "_snapshots")

    def __init__(self, transactions: Iterable[CommittedTransaction]) -> None:
        streamed = array("q")
        snapshots = []
        xid = lsn = 0
        for transaction in transactions:
            if transaction.is_snapshot:
                snapshots.append(transaction.commit_lsn)
                continue
            streamed.extend((transaction.xid - xid, transaction.commit_lsn - lsn))
            xid, lsn = transaction.xid, transaction.commit_lsn
        self._data = zlib.compress(streamed.tobytes(), 1)
        self._snapshots = tuple(snapshots)

    @property
    def snapshot_lsns(self) -> frozenset[int]:
        """The LSNs of the initial snapshots whose rows belong to the batch."""
        return frozenset(self._snapshots)

    def by_xid(self) -> dict[int, int]:
        """Returns the commit LSN of each transaction of the batch."""
        steps = array("q")
        steps.frombytes(zlib.decompress(self._data))
        return dict(zip(accumulate(steps[0::2]), accumulate(steps[1::2]), strict=True))


@dataclass(frozen=True, slots=True)
class BatchTask:
    """One task: spans of partitions, and the transactions that count. Contains no secrets."""

    spans: tuple[OffsetSpan, ...]
    table: TransactionTable = field(repr=False)
    repeated: frozenset[int] = frozenset()
    touch_lsn: int | None = None
    """The LSN of the batch's first commit, set in one task: from then on, groups without columns exist."""
    ticks: tuple[tuple[int, int], ...] = ()
    """For the same task, the LSN of each commit that moves the clock, and the newest commit time so far, in
    seconds since the epoch."""
    may_start_late: bool = False
    """Whether records below a partition's earliest offset may be missing."""
    late_snapshots: frozenset[int] = frozenset()
    has_incremental_rows: bool = False
    end_lsn: int = MAX_LSN
    """The commit LSN at which the batch ends."""
    has_whole_topics: bool = False
    """Whether this task reads whole topics: a row without a key may be repeated anywhere in its topic."""

    @property
    def size(self) -> int:
        """The number of offsets that it reads; an upper bound of its records."""
        return sum(span.size for span in self.spans)

    @property
    def needs_look_ahead(self) -> bool:
        """Whether it matters what follows rows of snapshots; then its partitions are whole."""
        return bool(self.late_snapshots) or self.has_incremental_rows


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch that is to be read."""

    header: BatchHeader
    tasks: tuple[BatchTask, ...]
    """At least one."""


def ticks_of(transactions: Iterable[tuple[int, int, int]], from_ms: int) -> tuple[tuple[int, int], ...]:
    """Returns the LSNs of the transactions ``(xid, commit LSN, commit time in ms)`` that move the clock.

    The clock is the newest commit time so far, in whole seconds since the epoch; before them it is `from_ms`.
    """
    found: list[tuple[int, int]] = []
    clock = from_ms // 1000
    for _, lsn, ms in transactions:
        if ms // 1000 > clock or (not found and clock):
            clock = max(clock, ms // 1000)
            found.append((lsn, clock))
    return tuple(found)


def in_one_task(tasks: Sequence[BatchTask]) -> BatchTask:
    """Returns the task that reads everything that the tasks of a batch read."""
    return replace(
        tasks[0],
        spans=tuple(span for task in tasks for span in task.spans),
        touch_lsn=next((task.touch_lsn for task in tasks if task.touch_lsn is not None), None),
        ticks=next((task.ticks for task in tasks if task.ticks), ()),
        has_whole_topics=True,
    )


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """The rule by which a batch is divided."""

    parallelism: int
    min_task_events: int
    target_task_events: int

    def tasks(self, size: int) -> int:
        """Returns the number of tasks for this many offsets, at least 1."""
        wanted = min(self.parallelism, size // self.min_task_events)
        return max(1, wanted, -(-size // self.target_task_events))


def plan_tasks(
    spans: Iterable[tuple[str, int, int, int]],
    policy: TaskPolicy,
    *,
    may_split: bool,
    keep_topics: bool = False,
) -> list[list[OffsetSpan]]:
    """Divides a batch into tasks of about equal size.

    Each is a part of the sorted spans, so sequences rise from task to task.

    Args:
        spans: ``(topic, partition, from, to)``, sorted, none of them empty.
        policy: How many tasks there are at most; none of them is empty.
        may_split: Whether a partition may be divided between tasks. Not if repeated rows have to be found,
            since a row and its repetition must be in one task.
        keep_topics: Whether all spans of a topic must be in one task, because of repeated rows without keys.
    """
    todo = list(spans)
    size = sum(to - first for _, _, first, to in todo)
    count = policy.tasks(size)
    tasks: list[list[OffsetSpan]] = [[] for _ in range(count)]
    done = sequence = task = 0
    previous = ""
    for topic, partition, from_offset, to_offset in todo:
        for first, last in _pieces(done, from_offset, to_offset, size / count if may_split else None):
            if not keep_topics or topic != previous:
                middle = done + (first - from_offset) + (last - first) / 2
                task = min(count - 1, int(middle * count / size))
            previous = topic
            sequence += _append(tasks[task], OffsetSpan(topic, partition, first, last, sequence))
        done += to_offset - from_offset
    return [task for task in tasks if task]


def _append(task: list[OffsetSpan], span: OffsetSpan) -> int:
    """Adds a span, or lengthens the last one that it continues; returns how many were added."""
    before = task[-1] if task else None
    if before is None or (before.topic, before.partition) != (span.topic, span.partition):
        task.append(span)
        return 1
    task[-1] = OffsetSpan(span.topic, span.partition, before.from_offset, span.to_offset, before.sequence)
    return 0


def _pieces(done: int, from_offset: int, to_offset: int, share: float | None) -> list[tuple[int, int]]:
    """Divides a span where a task's share ends."""
    if share is None:
        return [(from_offset, to_offset)]
    size = to_offset - from_offset
    borders = [from_offset]
    number = int(done / share) + 1
    while (border := round(number * share) - done) < size:
        if border > 0:
            borders.append(from_offset + border)
        number += 1
    return list(zip(borders, [*borders[1:], to_offset], strict=True))
