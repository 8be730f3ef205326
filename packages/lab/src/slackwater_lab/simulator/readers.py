"""Readers of both scopes: the real planning and the real rules for rows, with a fold instead of Spark."""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import Consumer

from slackwater.cdc import BadInputError
from slackwater.cdc.avro import ToJson
from slackwater.cdc.batch import BatchTask, OffsetSpan
from slackwater.cdc.changes import BatchChanges
from slackwater.cuts import (
    CutLog,
    RecordsGoneError,
    RedisMarkerStore,
    TopicUnavailableError,
)
from slackwater.engine.settings import Scope
from slackwater.kafka.registry import RegistryUnavailableError, avro_to_json
from slackwater.pipeline.source.feed import Feed
from slackwater.pipeline.source.kafka_reader import SpanReader
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.planner import Planner
from slackwater.pipeline.source.position import Position
from slackwater.pipeline.source.task import translate_registry_errors
from slackwater.protocol import (
    ConfigError,
    InputError,
    KafkaSettings,
    RegistrySettings,
    Servers,
    SlackwaterError,
)
from slackwater.protocol.keys import data_topic
from slackwater_lab.debezium.records import partition_of
from slackwater_lab.simulator.avro import ADDRESS
from slackwater_lab.simulator.connector import Row, State, apply_change, key_bytes, row_of
from slackwater_lab.simulator.kafka import NOT_AT_ALL, Key, SimulatedConsumer
from slackwater_lab.simulator.oracle import Expected, ViolationError
from slackwater_lab.simulator.scenario import SOURCE, Feature
from slackwater_lab.simulator.stores import ProcessLog, ProcessStore
from slackwater_lab.simulator.world import Era, World

_Seen = tuple[int, str, str, bytes | None, Row | None, Row | None, int]
"""Commit LSN, table, operation, key, before, after, own LSN (-1: a snapshot row of no commit)."""

_SILENCE_SECONDS = 60.0
"""Of the simulated Kafka, which is never silent."""


@dataclass(slots=True)
class _Durable:
    """The state that survives a crash: checkpoint and output."""

    offset: dict[str, Any] | None
    planned: dict[str, Any] | None
    state: State
    is_whole: bool = True
    """Whether nothing was skipped."""


class Pipeline(ABC):
    """Plans, reads, commits; may die in between."""

    def __init__(self, world: World, era: Era, scope: Scope, tables: Collection[str]) -> None:
        self._world = world
        self._era = era
        self._options = SourceOptions(
            source=SOURCE,
            servers=Servers(KafkaSettings("simulated")),
            tables=tuple(sorted(tables)),
            timeline=era.timeline,
            parallelism=2,
            min_task_events=5,
            scope=scope,
        )
        self._durable = _Durable(None, None, {table: Counter() for table in self._options.tables})
        self._planner: Planner | None = None
        self._to_json = self._new_decoder()
        self._read: list[_Seen] | None = None
        self._first_read: list[_Seen] | None = None
        """What the first attempt at the planned batch read."""
        self.refusal = ""
        """Why the reader does not continue; empty while it does."""
        self.lacks = False
        """Whether Kafka has removed what it has not read yet."""

    @property
    def position(self) -> Position | None:
        """The place at which the next batch begins; None before the first start."""
        return None if self._durable.offset is None else self.planner.offset(self._durable.offset)

    @property
    def lsn(self) -> int:
        """The LSN of the commit record: the state shows everything up to this commit."""
        return 0 if self.position is None else self.position.lsn

    @property
    def shown_lsn(self) -> int:
        """Up to here everything has been read."""
        return self.lsn

    def needs(self, key: Key) -> int:
        """The first offset of a partition that it has not done with."""
        if key[0] not in self._options.topics:
            return NOT_AT_ALL
        return 0 if self.position is None else self.position.start_in(*key)

    def needs_log(self) -> int:
        """The first offset of the cut log that it has not done with."""
        return 0 if self.position is None or not self.position.lsns else self.position.floor

    @abstractmethod
    def _judge(self, rows: list[_Seen], start: Position, end: Position) -> None:
        """G3: every change of the batch's commits once, and nothing else; of those skipped some at most."""

    @abstractmethod
    def _judge_end(self, start: Position, end: Position) -> None:
        """G10: no batch passes the newest barrier that was known when it was planned."""

    @abstractmethod
    def _judge_state(self) -> None:
        """G1: the state is the database's."""

    @abstractmethod
    def _may_refuse(self, error: Exception) -> bool:
        """Says whether the query has a reason to stop for good."""

    @property
    def timeline(self) -> int:
        """Which it reads."""
        return self._era.timeline

    @property
    def name(self) -> str:
        """Its name in traces."""
        return "reader"

    def kill(self) -> None:
        """Forgets everything that is not in the checkpoint."""
        self._note("is killed" + (" with a batch planned" if self._durable.planned else ""))
        self._planner = self._read = None
        self._to_json = self._new_decoder()

    def _new_decoder(self) -> ToJson | None:
        avro = self._world.avro
        return (
            None
            if avro is None
            else translate_registry_errors(avro_to_json(RegistrySettings(url=ADDRESS), avro.send))
        )

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
        except SlackwaterError as error:
            is_away = isinstance(error, TopicUnavailableError) or isinstance(
                error.__cause__, RegistryUnavailableError
            )
            if not is_away:  # a log or a registry that does not answer is asked again
                self._refuse(error)

    def _plan(self, rng: random.Random) -> None:
        start = self._start()
        limit = rng.choice((1, 5, 30, None))
        end = self.planner.next(start, limit, None)
        if end != start:
            self._judge_end(start, end)
            self._durable.planned, self._first_read = end.to_json(), None
            self._note(f"plans {_place(start)}..{_place(end)}")

    def _read_batch(self) -> None:
        start, end = self._start(), self.planner.offset(self._durable.planned or {})
        tasks = self.planner.tasks(start, end)
        found = [row for task in tasks for row in self._rows(task)]
        rows = [row for row, _ in found]
        self._judge([row for row, is_free in found if not is_free], start, end)
        if self._first_read is not None and rows != self._first_read:
            batch = f"{_place(start)}..{_place(end)}"
            raise ViolationError("G3", f"batch {batch} has other rows at the second attempt")
        self._read = self._first_read = rows

    def _rows(self, task: BatchTask) -> Iterator[tuple[_Seen, bool]]:
        """Yields the rows of a task, each with whether it is a snapshot's that belongs to no commit."""
        for span in task.spans:
            self._check_readable(span)
        reader = SpanReader(
            cast(Consumer, SimulatedConsumer(self._world.broker)),
            timeout_seconds=_SILENCE_SECONDS,
            may_start_late=task.may_start_late,
        )
        portions = list(reader.read(task.spans))
        tables, to_json = self._options.tables, self._to_json
        changes = BatchChanges(task, SOURCE, tables, to_json=to_json).look_ahead(lambda: portions)
        for span, messages in portions:
            for message, change, commit_lsn in changes.find(span, messages):
                before, after = (None if v is None else bytes(v) for v in (change.before, change.after))
                is_listed = change.is_snapshot and change.lsn in task.table.snapshot_lsns
                is_free = change.xid is None and not is_listed
                rows = row_of(before), row_of(after)
                key = message.key() if to_json is None else to_json(message.key())
                lsn = -1 if is_free else change.lsn or 0
                yield (commit_lsn, change.table, change.op, key, *rows, lsn), is_free

    def _check_readable(self, span: OffsetSpan) -> None:
        end = self._world.broker.partitions[span.topic, span.partition].readable_end
        if span.to_offset > end:
            place = f"{span.topic}/{span.partition}"
            raise ViolationError(
                "G1", f"a batch ends at {span.to_offset} in {place}, which can be read to {end}"
            )

    def _compare(
        self, rows: list[_Seen], commits: list[tuple[Expected, int]], skipped: Collection[int]
    ) -> str:
        """Says what is wrong with the rows of a batch; empty when nothing is.

        Args:
            rows: What was read, without rows of no commit.
            commits: Commits and numbers of changes that have to be there.
            skipped: Transactions of which only what their cut ends behind has to be there.
        """
        expected = Counter[_Seen]()
        for commit, number in commits:
            if commit.xid in skipped and not self._is_below_cut(commit, number):
                continue
            change = commit.changes[number]
            has_key = change.op != "t" and not self._world.is_keyless(change.table)
            key = key_bytes(change.key) if has_key else None
            seen = (commit.lsn, change.table, change.op, key, change.before, change.after, change.lsn)
            expected[seen] += 1
        missing, too_many = expected - Counter(rows), Counter(rows) - expected
        if missing or too_many:
            return f"missing {_few(missing)}, too many {_few(too_many)}"
        return ""

    def _is_below_cut(self, commit: Expected, number: int) -> bool:
        """Says whether the first cut that has a commit ends behind one of its rows."""
        cuts = (published.cut for _, published in sorted(self._world.logged.items()))
        first = next(c for c in cuts if c.timeline == self.timeline and commit.lsn <= c.lsn)
        return any(
            offset < first.end_offsets[topic][partition]
            for (topic, partition), offset in commit.places.get(number, ())
        )

    def _commit(self, rows: list[_Seen]) -> None:
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
        self._note(f"commits up to {self.lsn}")
        self._judge_state()

    def _refuse(self, error: SlackwaterError) -> None:
        """A reader stops only where it may; it never shows what is wrong instead."""
        is_gone = isinstance(error, RecordsGoneError)
        if not (self.lacks if is_gone else self._may_refuse(error)):
            raise ViolationError("G4", f"the {self.name} stops: {error}")
        self.refusal = str(error)
        self._note(f"stops: {error}")

    @property
    def planner(self) -> Planner:
        """Recreated after a crash."""
        if self._planner is None:
            world = self._world
            feed = Feed(
                self._options,
                store=cast(RedisMarkerStore, ProcessStore(world, _nothing)),
                log=cast(CutLog, ProcessLog(world, _nothing)),
                monotonic=world.clock.monotonic,
            )
            self._planner = Planner(self._options, feed)
        return self._planner

    def _start(self) -> Position:
        """Finds the place at which the next batch begins."""
        if self._durable.offset is None:
            self._durable.offset = self.planner.start().to_json()
        return self.planner.offset(self._durable.offset)

    def _note(self, text: str) -> None:
        self._world.note(self.name, lambda: text)


class StrictPipeline(Pipeline):
    """Batches end at cuts."""

    def __init__(self, world: World, era: Era) -> None:
        super().__init__(world, era, Scope.STRICT, world.followed_tables)

    def _judge_end(self, start: Position, end: Position) -> None:
        read = [published.cut for offset, published in self._world.logged.items() if offset < end.log]
        known = [cut for cut in read if cut.timeline == self.timeline]
        barrier = max((cut.barrier_lsn for cut in known), default=0)
        passed = [cut for cut in known if cut.lsn > start.lsn]
        has_snapshot_rows = any(cut.late_snapshots or cut.has_incremental_rows for cut in passed)
        if start.lsn < barrier < end.lsn and not has_snapshot_rows:
            raise ViolationError("G10", f"batch {start.lsn}..{end.lsn} passes the barrier {barrier}")

    def _judge(self, rows: list[_Seen], start: Position, end: Position) -> None:
        skipped = self.planner.content(start, end).skipped
        commits = [c for c in self._era.oracle.between(start.lsn, end.lsn) if c.is_listed]
        batch = f"batch {start.lsn}..{end.lsn}"
        for commit in commits:
            if not commit.is_whole and commit.xid not in skipped:
                raise ViolationError("G1", f"{batch} does not say that {commit.xid} lacks rows")
        problem = self._compare(rows, [(c, number) for c in commits for number in c.changes], skipped)
        if problem:
            raise ViolationError("G3", f"{batch}: {problem}")
        self._durable.is_whole &= not skipped

    def _judge_state(self) -> None:
        if self._durable.is_whole:
            self._world.judge_state(self._era, self.lsn, self._durable.state)

    def _may_refuse(self, error: Exception) -> bool:
        """It may stop where rows without keys may be repeated; it never shows them twice."""
        return isinstance(error, BadInputError) and self._world.may_repeat_keyless_rows


def _place(position: Position) -> str:
    return str(position.lsns)


def _nothing() -> None:
    """A reader writes nothing, so it is killed between steps only."""


def _few(rows: Counter[_Seen]) -> str:
    listed = [str(row) for row in sorted(rows.elements(), key=str)]
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "") or "nothing"


class GroupPipeline(Pipeline):
    """Reads the tables with keys; a document is made of the rows of one key, of all tables."""

    def __init__(self, world: World, era: Era) -> None:
        tables = [name for name in world.followed_tables if not world.is_keyless(name)]
        super().__init__(world, era, Scope.AGGREGATE, tables)

    @property
    def name(self) -> str:
        """See the base."""
        return "groups"

    @property
    def shown_lsn(self) -> int:
        """See the base. Where a cut comes after groups ran ahead, the next commit record says so."""
        return min(self._lsns, default=0)

    @property
    def _lsns(self) -> tuple[int, ...]:
        return () if self.position is None else self.position.lsns

    def _judge_end(self, start: Position, end: Position) -> None:
        """See the base: a group may be ahead of every barrier."""

    def _judge(self, rows: list[_Seen], start: Position, end: Position) -> None:
        """Each group goes from its LSN to its next one."""
        truncates = [row for row in rows if row[2] == "t"]
        if truncates:  # a stage refuses them
            raise InputError(f"TRUNCATE: {truncates[0]}")
        before = start.lsns or (0,) * len(end.lsns)
        batch = f"batch {before}..{end.lsns}"
        if end.lsn < start.lsn or any(new < old for new, old in zip(end.lsns, before, strict=True)):
            raise ViolationError("scope", f"{batch}: a group goes back")
        commits = [
            (commit, number)
            for commit in self._era.oracle.between(min(before, default=0), max(end.lsns, default=0))
            for number, group in self._groups_of(commit, len(end.lsns)).items()
            if commit.is_listed and before[group] < commit.lsn <= end.lsns[group]
        ]
        problem = self._compare(rows, commits, self._era.oracle.skipped)
        if problem:
            raise ViolationError("G3", f"{batch}: {problem}")
        self._judge_passed(start.lsn, end.lsn, self.planner.content(start, end).skipped)

    def _judge_passed(self, after_lsn: int, up_to_lsn: int, skipped: Collection[int]) -> None:
        """Judges that what the commit record passes is whole, or named, and has no truncated table."""
        for commit in self._era.oracle.between(after_lsn, up_to_lsn):
            if commit.is_listed and not commit.is_whole and commit.xid not in skipped:
                raise ViolationError("scope", f"{commit.xid} is passed, which lacks rows, unnamed")
            if commit.xid in skipped:
                continue
            if any(c.op == "t" and c.table in self._options.tables for c in commit.changes.values()):
                raise ViolationError("scope", f"all groups pass the TRUNCATE of {commit.xid}")

    def _groups_of(self, commit: Expected, groups: int) -> dict[int, int]:
        """The group of each change of the tables that are read, by number; TRUNCATE is in none."""
        return {
            number: partition_of(key_bytes(change.key), groups)
            for number, change in commit.changes.items()
            if change.table in self._options.tables and change.op != "t"
        }

    def _judge_state(self) -> None:
        """Every document is that of the database after some commit: its group's."""
        for group, lsn in enumerate(self._lsns):
            if not self._is_comparable(lsn):
                continue
            expected = self._of_group(self._era.database.state_at(lsn), group)
            actual = self._of_group(self._durable.state, group)
            if actual != expected:
                raise ViolationError(
                    "scope", f"group {group} at {lsn} is {actual}, the database's {expected}"
                )

    def _is_comparable(self, lsn: int) -> bool:
        """Says whether nothing up to an LSN is lost, skipped or truncated."""
        oracle = self._era.oracle
        return all(
            commit.is_whole
            and commit.xid not in oracle.skipped
            and all(change.op != "t" for change in commit.changes.values())
            for commit in oracle.between(0, lsn)
        )

    def _of_group(self, state: State, group: int) -> dict[str, list[tuple[int, int]]]:
        world, groups = self._world, len(self._lsns)
        return {
            table: sorted(
                row
                for row in state[table].elements()
                if partition_of(key_bytes(row[0]), groups) == group and not world.is_dropped(table, row[0])
            )
            for table in self._options.tables
        }

    def _may_refuse(self, error: Exception) -> bool:
        """Topics must be partitioned alike, and stay so; no table may be truncated."""
        world = self._world
        counts = {world.broker.partition_count(data_topic(SOURCE, table)) for table in self._options.tables}
        if isinstance(error, ConfigError):
            return len(counts) > 1 or world.scenario.has(Feature.NEW_PARTITIONS)
        is_truncate = isinstance(error, InputError)
        return is_truncate and world.scenario.has(Feature.TRUNCATE)
