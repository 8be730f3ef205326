"""Readers: the real planning and the real rules for rows, with a fold instead of Spark."""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from confluent_kafka import Consumer

from slackwater_cdc.wire import ToJson
from slackwater_markers import (
    CutLog,
    CutLogError,
    CutLogTruncatedError,
    CutLogUnavailableError,
    MarkerStore,
)
from slackwater_registry import RegistrySettings, avro_to_json
from slackwater_simulator.avro import ADDRESS
from slackwater_simulator.broker import Key
from slackwater_simulator.connector import key_bytes, row_of
from slackwater_simulator.database import Row, State, apply_change
from slackwater_simulator.kafka import SimulatedConsumer
from slackwater_simulator.oracle import Expected, ViolationError
from slackwater_simulator.scenario import SOURCE, Feature
from slackwater_simulator.stores import ProcessLog, ProcessStore
from slackwater_spark.errors import SlackwaterSparkError
from slackwater_spark.scope import Scope
from slackwater_spark.source.avro import refusing
from slackwater_spark.source.batch import BatchContent, BatchTask
from slackwater_spark.source.batch_planner import BatchPlanner
from slackwater_spark.source.changes import BatchChanges, find_keyless, find_places
from slackwater_spark.source.cut_feed import CutFeed, FeedKey
from slackwater_spark.source.errors import (
    BadInputError,
    MissingCutsError,
    SchemaRegistryError,
    TruncatedTopicError,
)
from slackwater_spark.source.kafka_reader import SpanReader
from slackwater_spark.source.offset import SourceOffset
from slackwater_spark.source.options import SourceOptions
from slackwater_spark.source.plan import OffsetSpan
from slackwater_spark.source.readers import Planner

if TYPE_CHECKING:
    from slackwater_simulator.world import Era, World

Seen = tuple[int, str, str, bytes | None, Row | None, Row | None, int]
"""Commit LSN, table, operation, key, before, after, own LSN (-1: a snapshot row of no commit)."""
AnyPlanner = BatchPlanner[Any, Any]

NOT_AT_ALL = 1 << 62
"""Larger than any offset."""
_SILENCE_SECONDS = 60.0
"""Of the simulated Kafka, which is never silent."""


@dataclass(slots=True)
class Durable:
    """What survives a crash: checkpoint and output."""

    offset: dict[str, Any] | None
    planned: dict[str, Any] | None
    state: State
    is_whole: bool = True
    """Whether nothing was skipped."""


class Pipeline(ABC):
    """Plans, reads, commits; may die in between.

    Args:
        world: Where it runs.
        era: What it reads.
        scope: As in docs/scope.md.
        tables: Those that it reads.
    """

    def __init__(self, world: "World", era: "Era", scope: Scope, tables: Collection[str]) -> None:
        self._world = world
        self._era = era
        self._options = SourceOptions(
            source=SOURCE,
            bootstrap="simulated",
            tables=tuple(sorted(tables)),
            timeline=era.timeline,
            parallelism=2,
            min_task_events=5,
            scope=scope,
        )
        self._durable = Durable(None, None, {table: Counter() for table in self._options.tables})
        self._planner: AnyPlanner | None = None
        self._to_json = self._new_decoder()
        self._read: list[Seen] | None = None
        self._first_read: list[Seen] | None = None
        """What the first attempt at the planned batch read."""
        self.refusal = ""
        """Why the reader does not go on; empty while it does."""
        self.lacks = False
        """Whether Kafka has removed what it has not read yet."""

    @property
    @abstractmethod
    def lsn(self) -> int:
        """The state shows everything up to this commit."""

    @property
    def shown_lsn(self) -> int:
        """Up to here everything has been read."""
        return self.lsn

    @abstractmethod
    def needs(self, key: Key) -> int:
        """The first offset of a partition that it has not done with."""

    @abstractmethod
    def needs_log(self) -> int:
        """The first offset of the cut log that it has not done with."""

    @abstractmethod
    def _connect(self) -> AnyPlanner:
        """The planner of a new process."""

    @abstractmethod
    def _judge(self, rows: list[Seen], start: Any, end: Any) -> None:
        """G3: every change of the batch's commits once, and nothing else; of those skipped some at most."""

    @abstractmethod
    def _judge_state(self) -> None:
        """G1: the state is the database's."""

    @abstractmethod
    def _may_refuse(self, error: Exception) -> bool:
        """Whether the query has a reason to stop for good."""

    @property
    def timeline(self) -> int:
        """Which it reads."""
        return self._era.timeline

    @property
    def name(self) -> str:
        """In traces."""
        return "reader"

    def kill(self) -> None:
        """Forgets everything that is not in the checkpoint."""
        self._note("is killed" + (" with a batch planned" if self._durable.planned else ""))
        self._planner = self._read = None
        self._to_json = self._new_decoder()

    def _new_decoder(self) -> ToJson | None:
        avro = self._world.avro
        return None if avro is None else refusing(avro_to_json(RegistrySettings(url=ADDRESS), avro.get))

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
        except (CutLogUnavailableError, SchemaRegistryError):
            return
        except (SlackwaterSparkError, CutLogError) as error:
            self._refuse(error)

    def _plan(self, rng: random.Random) -> None:
        start = self._start()
        limit = rng.choice((1, 5, 30, None))
        end = self.planner.next(start, limit, None)
        if end != start:
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

    def _rows(self, task: BatchTask) -> Iterator[tuple[Seen, bool]]:
        """What a task yields, and whether it is a snapshot's row that belongs to no commit."""
        for span in task.spans:
            self._check_readable(span)
        reader = SpanReader(
            cast(Consumer, SimulatedConsumer(self._world.broker)),
            timeout_seconds=_SILENCE_SECONDS,
            may_start_late=task.may_start_late,
        )
        portions = list(reader.read(task.spans))
        tables, to_json = self._options.tables, self._to_json
        places = keyless = None
        if task.needs_look_ahead:
            places = find_places(task, SOURCE, tables, portions, to_json=to_json)
        if task.repeated and task.has_whole_topics:
            keyless = find_keyless(task, SOURCE, tables, portions, places=places, to_json=to_json)
        changes = BatchChanges(task, SOURCE, tables, places, to_json=to_json, keyless=keyless)
        for span, messages in portions:
            for message, change, commit_lsn in changes.of(span, messages):
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
        self, rows: list[Seen], commits: list[tuple[Expected, int]], skipped: Collection[int]
    ) -> str:
        """What is wrong with the rows of a batch; empty when nothing is.

        Args:
            rows: What was read, without rows of no commit.
            commits: Commits and numbers of changes that have to be there.
            skipped: Transactions of which some may be missing.
        """
        expected, may_miss = Counter[Seen](), Counter[Seen]()
        for commit, number in commits:
            change = commit.changes[number]
            has_key = change.op != "t" and not self._world.is_keyless(change.table)
            key = key_bytes(change.key) if has_key else None
            seen = (commit.lsn, change.table, change.op, key, change.before, change.after, change.lsn)
            expected[seen] += 1
            may_miss[seen] += commit.xid in skipped
        missing, too_many = expected - Counter(rows), Counter(rows) - expected
        if missing - may_miss or too_many:
            return f"missing {_few(missing)}, too many {_few(too_many)}"
        return ""

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
        self._note(f"commits up to {self.lsn}")
        self._judge_state()

    def _refuse(self, error: SlackwaterSparkError | CutLogError) -> None:
        """A reader stops only where it is told that it may; it never shows what is wrong instead."""
        is_gone = isinstance(error, TruncatedTopicError | MissingCutsError | CutLogTruncatedError)
        if not (self.lacks if is_gone else self._may_refuse(error)):
            raise ViolationError("G4", f"the {self.name} stops: {error}")
        self.refusal = str(error)
        self._note(f"stops: {error}")

    @property
    def planner(self) -> AnyPlanner:
        """Made anew after a crash."""
        if self._planner is None:
            self._planner = self._connect()
        return self._planner

    def _feed(self) -> tuple[FeedKey, MarkerStore, CutLog]:
        world = self._world
        log, store = ProcessLog(world, _nothing), ProcessStore(world, _nothing)
        key = FeedKey(SOURCE, self._era.timeline)
        return key, cast(MarkerStore, store), cast(CutLog, log)

    def _start(self) -> Any:
        """Where the next batch begins."""
        if self._durable.offset is None:
            self._durable.offset = self.planner.start().to_json()
        return self.planner.offset(self._durable.offset)

    def _note(self, text: str) -> None:
        self._world.note(self.name, lambda: text)


class StrictPipeline(Pipeline):
    """Batches end at cuts.

    Args:
        world: Where it runs.
        era: What it reads.
    """

    def __init__(self, world: "World", era: "Era") -> None:
        super().__init__(world, era, Scope.STRICT, world.followed_tables)

    @property
    def lsn(self) -> int:
        """See the base."""
        return int(self._durable.offset["lsn"]) if self._durable.offset else 0

    def needs(self, key: Key) -> int:
        """See the base."""
        if key[0] not in self._options.topics:
            return NOT_AT_ALL
        ends = self._durable.offset["end"].get(key[0], ()) if self._durable.offset else ()
        return ends[key[1]] if key[1] < len(ends) else 0

    def needs_log(self) -> int:
        """See the base. A record of another sidecar may lie below those that were used."""
        if self._durable.offset is None or not self.lsn:
            return 0
        log, read_to = self._world.log, int(self._durable.offset["log"])
        cuts = (c for c in log.tail(log.begin() - 1) if c.cut.timeline == self.timeline)
        return min((read_to, *(c.log_offset for c in cuts if c.cut.lsn > self.lsn)))

    def _connect(self) -> Planner:
        key, store, log = self._feed()
        feed = CutFeed(key, store=store, log=log, monotonic=self._world.clock.monotonic)
        return Planner(self._options, feed)

    def _judge(self, rows: list[Seen], start: SourceOffset, end: SourceOffset) -> None:
        skipped = BatchContent.of(self.planner.feed.between(start, end), start, end).skipped
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


def _place(offset: Any) -> str:
    return str(getattr(offset, "lsns", offset.lsn))


def _nothing() -> None:
    """A reader writes nothing, so it is killed between steps only."""


def _few(rows: Counter[Seen]) -> str:
    listed = [str(row) for row in sorted(rows.elements(), key=str)]
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "") or "nothing"
