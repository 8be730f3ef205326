"""A reader: the real planning and the real rules for rows, with a fold instead of Spark."""

import random
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from slackwater_markers import CutLog, CutLogUnavailableError, MarkerStore
from slackwater_simulator.broker import Record
from slackwater_simulator.connector import key_bytes, row_of
from slackwater_simulator.database import Row, State, apply_change
from slackwater_simulator.oracle import ViolationError
from slackwater_simulator.scenario import SOURCE, Feature
from slackwater_simulator.stores import ProcessLog, ProcessStore
from slackwater_spark.source.batch import BatchContent, BatchTask
from slackwater_spark.source.changes import BatchChanges, find_keyless, find_places
from slackwater_spark.source.cut_feed import CutFeed, FeedKey
from slackwater_spark.source.errors import BadInputError, MissingCutsError
from slackwater_spark.source.offset import SourceOffset
from slackwater_spark.source.options import SourceOptions
from slackwater_spark.source.plan import OffsetSpan
from slackwater_spark.source.readers import Planner

if TYPE_CHECKING:
    from slackwater_simulator.world import Era, World

Seen = tuple[int, str, str, bytes | None, Row | None, Row | None, int]
"""Commit LSN, table, operation, key, before, after, own LSN (-1: a snapshot row of no commit)."""


@dataclass(frozen=True, slots=True)
class _Message:
    """What the rules ask of a consumed message."""

    record: Record
    place: int

    def topic(self) -> str:
        return self.record.target[0]

    def partition(self) -> int:
        return self.record.target[1]

    def offset(self) -> int:
        return self.place

    def key(self) -> bytes | None:
        return self.record.key

    def value(self) -> bytes | None:
        return self.record.value

    def headers(self) -> list[tuple[str, bytes]]:
        return []


@dataclass(slots=True)
class _Durable:
    """What survives a crash: checkpoint and output."""

    offset: dict[str, Any] | None
    planned: dict[str, Any] | None
    state: State
    is_whole: bool = True
    """Whether nothing was skipped."""


class Pipeline:
    """Plans, reads, commits; may die in between."""

    def __init__(self, world: "World", era: "Era") -> None:
        self._world = world
        self._era = era
        tables = tuple(sorted(world.followed_tables))
        self._options = SourceOptions(
            source=SOURCE,
            bootstrap="simulated",
            tables=tables,
            timeline=era.timeline,
            parallelism=2,
            min_task_events=5,
        )
        self._durable = _Durable(None, None, {table: Counter() for table in tables})
        self._planner: Planner | None = None
        self._read: list[Seen] | None = None
        self._first_read: list[Seen] | None = None
        """What the first attempt at the planned batch read."""
        self.refusal = ""
        """Why the reader does not go on; empty while it does."""

    @property
    def lsn(self) -> int:
        """The state shows everything up to this commit."""
        return int(self._durable.offset["lsn"]) if self._durable.offset else 0

    def kill(self) -> None:
        """Forgets everything that is not in the checkpoint."""
        self._world.note(
            "reader", lambda: "is killed" + (" with a batch planned" if self._durable.planned else "")
        )
        self._planner = self._read = None

    def step(self, rng: random.Random) -> None:
        """Does the next thing, if Kafka answers."""
        if self.refusal:
            return
        try:
            if self._durable.planned is None:
                self._plan(rng)
            elif self._read is None:
                self._read_batch()
            else:
                self._commit(self._read)
        except CutLogUnavailableError:
            return
        except MissingCutsError as error:
            raise ViolationError("G5", f"the reader finds no way on: {error}") from error

    def _plan(self, rng: random.Random) -> None:
        start = self._start()
        limit = rng.choice((1, 5, 30, None))
        end = self.planner.next(start, limit, None)
        if end.lsn > start.lsn:
            self._durable.planned, self._first_read = end.to_json(), None
            self._world.note("reader", lambda: f"plans {start.lsn}..{end.lsn}")

    def _read_batch(self) -> None:
        start, end = self._start(), self._offset(self._durable.planned or {})
        try:
            found = [row for task in self.planner.tasks(start, end) for row in self._rows(task)]
        except BadInputError as error:
            self._refuse(error)
            return
        rows = [row for row, _ in found]
        skipped = BatchContent.of(self.planner.feed.between(start, end), start, end).skipped
        self._judge([row for row, is_free in found if not is_free], start.lsn, end.lsn, skipped)
        self._durable.is_whole &= not skipped
        if self._first_read is not None and rows != self._first_read:
            raise ViolationError("G3", f"batch {start.lsn}..{end.lsn} has other rows at the second attempt")
        self._read = self._first_read = rows

    def _rows(self, task: BatchTask) -> Iterator[tuple[Seen, bool]]:
        """What a task yields, and whether it is a snapshot's row that belongs to no commit."""
        portions = [(span, cast(Any, self._messages(span))) for span in task.spans]
        tables = self._options.tables
        places = find_places(task, SOURCE, tables, portions) if task.needs_look_ahead else None
        keyless = None
        if task.repeated and task.has_whole_topics:
            keyless = find_keyless(task, SOURCE, tables, portions, places=places)
        changes = BatchChanges(task, SOURCE, tables, places, keyless=keyless)
        for span, messages in portions:
            for message, change, commit_lsn in changes.of(span, messages):
                before, after = (None if v is None else bytes(v) for v in (change.before, change.after))
                is_listed = change.is_snapshot and change.lsn in task.table.snapshot_lsns
                is_free = change.xid is None and not is_listed
                rows = row_of(before), row_of(after)
                lsn = -1 if is_free else change.lsn or 0
                yield (commit_lsn, change.table, change.op, message.key(), *rows, lsn), is_free

    def _messages(self, span: OffsetSpan) -> list[_Message]:
        partition = self._world.broker.partitions[span.topic, span.partition]
        if span.to_offset > partition.readable_end:
            raise ViolationError(
                "G1",
                f"a batch ends at {span.to_offset} in {span.topic}/{span.partition}, "
                f"readable to {partition.readable_end}",
            )
        return [_Message(r, offset) for offset, r in partition.read(span.from_offset, span.to_offset)]

    def _judge(self, rows: list[Seen], after_lsn: int, up_to_lsn: int, skipped: Collection[int]) -> None:
        """G3: every change of the batch's commits once, and nothing else; of those skipped some at most."""
        expected, may_miss = Counter[Seen](), Counter[Seen]()
        for commit in self._era.oracle.between(after_lsn, up_to_lsn):
            if not commit.is_listed:
                continue
            if not commit.is_whole and commit.xid not in skipped:
                raise ViolationError(
                    "G1", f"batch {after_lsn}..{up_to_lsn} does not say that {commit.xid} lacks rows"
                )
            for change in commit.changes.values():
                has_key = change.op != "t" and not self._world.is_keyless(change.table)
                key = key_bytes(change.key) if has_key else None
                seen = (commit.lsn, change.table, change.op, key, change.before, change.after, change.lsn)
                expected[seen] += 1
                may_miss[seen] += commit.xid in skipped
        missing, too_many = expected - Counter(rows), Counter(rows) - expected
        if missing - may_miss or too_many:
            text = f"batch {after_lsn}..{up_to_lsn}: missing {_few(missing)}, too many {_few(too_many)}"
            raise ViolationError("G3", text)

    def _commit(self, rows: list[Seen]) -> None:
        durable = self._durable
        has_truncates = self._world.scenario.has(Feature.TRUNCATE)
        for _, table, op, key, before, after, _ in sorted(rows, key=lambda r: (r[0], r[6] * has_truncates)):
            held = durable.state[table]
            if op == "t":
                held.clear()
            elif key is not None:
                row_id = (after or before or (-1, 0))[0]
                before = next((row for row in held if row[0] == row_id), None)
            apply_change(held, before, after)
        durable.offset, durable.planned = durable.planned or durable.offset, None
        self._read = None
        self._world.note("reader", lambda: f"commits up to {self.lsn}")
        if durable.is_whole:
            self._world.judge_state(self._era, self.lsn, durable.state)

    def _refuse(self, error: BadInputError) -> None:
        """A reader may stop where rows without keys may be repeated; it never shows them twice."""
        if not self._world.may_repeat_keyless_rows:
            raise ViolationError("G4", f"the reader stops: {error}")
        self.refusal = str(error)
        self._world.note("reader", lambda: f"stops: {error}")

    @property
    def planner(self) -> Planner:
        """Made anew after a crash."""
        if self._planner is None:
            world = self._world
            log, store = ProcessLog(world, _nothing), ProcessStore(world, _nothing)
            feed = CutFeed(
                FeedKey(SOURCE, self._era.timeline),
                store=cast(MarkerStore, store),
                log=cast(CutLog, log),
                monotonic=world.clock.monotonic,
            )
            self._planner = Planner(self._options, feed)
        return self._planner

    def _start(self) -> SourceOffset:
        """Where the next batch begins."""
        if self._durable.offset is None:
            self._durable.offset = self.planner.start().to_json()
        return self._offset(self._durable.offset)

    def _offset(self, data: dict[str, Any]) -> SourceOffset:
        return SourceOffset.from_json(data, source=SOURCE, timeline=self._era.timeline)


def _nothing() -> None:
    """A reader writes nothing, so it is killed between steps only."""


def _few(rows: Counter[Seen]) -> str:
    listed = [str(row) for row in sorted(rows.elements(), key=str)]
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "") or "nothing"
