"""Gives rows of snapshots that belong to no commit their place in the commit order.

Two kinds of snapshot rows carry no LSN at which they are true:

- a row of an *incremental* snapshot is what the database held at the record's place in its partition;
- a *late* row, of an ad hoc snapshot that blocked the stream or of an initial one that was repeated, is newer
  than its place: changes that it contains already may stand behind it, in the same batch.

So the former takes the commit LSN of the next change behind it in its partition, the latter that of the next
change of the same key, each standing before that change; without one, the end of the batch. A document thus
never shows a row before it was so, and never an older state after a newer one.
"""

from bisect import bisect_right

from slackwater_cdc import Change
from slackwater_engine.records.record import Record


class SnapshotPlaces:
    """Collects, in a first reading of the spans, the changes that stand behind rows without a commit.

    Memory: one entry per stretch of incremental rows, and one per key that changes behind a stretch of late
    ones. Spans must be whole: what stands behind a row has to be in the same task.
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
        """Returns the commit LSN that a row without one takes; at most the end of the batch."""
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
    """The first changes behind stretches of snapshot rows in one partition: offsets and commit LSNs."""

    __slots__ = ("_stretch", "any_key", "by_key", "has_new_incremental", "has_new_late")

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
