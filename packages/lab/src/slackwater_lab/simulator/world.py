"""Everything in one process: who does what next is decided by one seeded generator."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from slackwater.cdc.initial_snapshot import ALL_TABLES
from slackwater.cuts import RecordsGoneError
from slackwater.protocol import (
    AheadMarkers,
    Cut,
    Evidence,
    LogRecord,
    Marker,
    PublishedCut,
    SkipDecision,
    TimelineDecision,
)
from slackwater.protocol.keys import data_topic
from slackwater_lab.fakes.memory import InMemoryCutLog, InMemoryMarkerStore
from slackwater_lab.simulator.avro import AvroConverter
from slackwater_lab.simulator.connector import (
    NOTIFICATIONS,
    TRANSACTIONS,
    Change,
    Connector,
    Database,
    Place,
    Restart,
    Row,
    SimulatedCommit,
    SnapshotRows,
    State,
)
from slackwater_lab.simulator.kafka import Broker, PlainProducer, SentRecord, TransactionalProducer
from slackwater_lab.simulator.oracle import Expected, Oracle, ViolationError
from slackwater_lab.simulator.scenario import SOURCE, Feature, Restore, Scenario

_JUDGED_TABLE = "inv.a"
"""The table for which other evidence than counts is chosen."""


_SECONDS_BETWEEN_SNAPSHOTS = 0.2
"""From the announcement of one to that of the next, at least: as docs/guarantees.md takes for granted."""
_SECONDS_OF_RESTORE = 60.0
_LSN_OF_RESTORE = 16
_NO_TIMELINE = 7
"""A timeline that no scenario reaches."""


class VirtualClock:
    """Moves only when a step says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> datetime:
        """The wall clock."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        """The same seconds."""
        return self.seconds

    @property
    def now_ms(self) -> int:
        """The present time for record timestamps."""
        return int(self.seconds * 1000)


@dataclass(slots=True)
class _Trace:
    """A record of what happened, for people; empty unless somebody wants it."""

    is_wanted: bool
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Era:
    """Everything that belongs to one timeline."""

    timeline: int
    database: Database
    oracle: Oracle


class World:
    """Database, connector, broker, cut log, Redis: what a simulation is about, without those who read it."""

    def __init__(self, scenario: Scenario, *, is_traced: bool = False) -> None:
        self.scenario = scenario
        self.rng = rng = random.Random(f"{scenario.seed}/{scenario.reduction.schedule}")
        self.clock = VirtualClock()
        self.trace = _Trace(is_traced)
        self.step = 0
        self._tables = {table.name: table for table in scenario.tables}
        self.followed_tables = frozenset(t.name for t in scenario.tables if t.is_followed)
        self.followed_tables_in_order = sorted(self.followed_tables)
        self.followed_topics = frozenset(data_topic(SOURCE, name) for name in self.followed_tables)
        self.eras = [Era(1, Database(scenario.tables, scenario.transactions), self._new_oracle())]
        self.broker = Broker()
        for table in scenario.tables:
            self.broker.add_topic(data_topic(SOURCE, table.name), table.partitions)
        self.broker.add_topic(TRANSACTIONS[0], 1)
        has_snapshots = any(map(scenario.has, (Feature.SNAPSHOT, Feature.BLOCKING, Feature.TIMELINES)))
        if has_snapshots and not scenario.has(Feature.UNANNOUNCED):
            self.broker.add_topic(NOTIFICATIONS[0], 1)
        self.commits: list[SimulatedCommit] = []
        """What the connector may read: commits that are streamed."""
        self.connector = self._new_connector()
        make = TransactionalProducer if scenario.has(Feature.EXACTLY_ONCE) else PlainProducer
        self.producer = make(self.broker, self._note_written)
        self.avro = AvroConverter(rng.choice((0, 24_000, 1 << 62))) if scenario.has(Feature.AVRO) else None
        self.log = InMemoryCutLog(SOURCE)
        self.logged: dict[int, PublishedCut] = {}
        """Every cut that was ever in the log, by offset."""
        self.store = InMemoryMarkerStore()
        self.store_copy: InMemoryMarkerStore | None = None
        self.is_redis_away = self.is_log_away = self.is_source_away = False
        self.publish_interval_ms = rng.choice((0, 5, 50))
        self._clocks_differ_by_ms = rng.choice((-900, 0, 900))
        self.restored_cuts = rng.choice((1, 3, 100))
        self.is_sidecar_input_removed = False
        """Whether Kafka has removed something that a sidecar has to read."""
        self.is_log_short = False
        """Whether that is from the cut log."""
        self._snapshot_lsn = 0
        self._decided_timeline = 1
        self._is_repeated = self._skips_snapshot = False
        self.committed = 0
        """How many of the database's commits have happened."""

    # --- timelines

    @property
    def era(self) -> Era:
        """The timeline on which the database is."""
        return self.eras[-1]

    @property
    def database(self) -> Database:
        """The database of the present timeline."""
        return self.era.database

    @property
    def oracle(self) -> Oracle:
        """The oracle of the present timeline."""
        return self.era.oracle

    def restore(self, restore: Restore) -> None:
        """The database continues from a backup; a new connector begins with a snapshot."""
        backup = self.database.state_after(int(restore.kept * self.committed))
        timeline = self.era.timeline + 1
        self.note("database", lambda: f"is restored: timeline {timeline} from {backup}")
        self.producer.kill()
        self.clock.seconds += _SECONDS_OF_RESTORE
        database = Database(self.scenario.tables, restore.transactions, backup)
        self.eras.append(Era(timeline, database, self._new_oracle()))
        self.commits, self.committed = [], 0
        self._snapshot_lsn, self._is_repeated = _LSN_OF_RESTORE, False
        self.connector = self._new_connector()
        self.start_snapshot()

    def decide_timeline(self) -> None:
        """An operator begins a new timeline when the status says that LSNs went back."""
        status = None if self.is_redis_away else self.store.status(SOURCE)
        if status is None or status.regression is None or self._decided_timeline == self.era.timeline:
            return
        has_rows = any(r.target[0] in self.followed_topics for r in self.connector.snapshot_records)
        if has_rows and not status.regression.has_snapshot:
            return
        self.note("operator", lambda: f"begins timeline {self.era.timeline}: {status.regression}")
        self._decided_timeline = self.era.timeline
        decision = TimelineDecision(
            source=SOURCE,
            timeline=self.era.timeline,
            transaction_offset=status.regression.transaction_offset,
            wall_ms=self.clock.now_ms,
            decided_by="operator",
        )
        self.log.append_records([decision])

    def _era_of(self, timeline: int) -> Era:
        if timeline > self._decided_timeline:
            raise ViolationError("G1", f"timeline {timeline} begins, and nobody has decided so")
        return self.eras[timeline - 1]

    def _new_oracle(self) -> Oracle:
        keyless = (t.name for t in self.scenario.tables if t.is_keyless)
        return Oracle(frozenset(data_topic(SOURCE, name) for name in keyless))

    def _new_connector(self) -> Connector:
        return Connector(self.commits, self._tables, self.broker, self.rng.randrange, self)

    # --- what processes tell

    def note(self, who: str, text: Callable[[], str]) -> None:
        """Adds a line to the trace."""
        if self.trace.is_wanted:
            self.trace.lines.append(f"{self.step:5} {self.clock.seconds - 1000:8.3f} s  {who:10} {text()}")

    def judge_cut(self, cut: Cut) -> None:
        """Checks a cut that a sidecar appends."""
        self.note("cut log", lambda: f"{cut.previous_lsn}..{cut.lsn} {_offsets(cut)}")
        oracle = self._era_of(cut.timeline).oracle
        oracle.judge_cut(cut, self.readable, is_told_once=self._is_told_once)

    def judge_record(self, record: LogRecord) -> None:
        """Checks what else a sidecar appends to the cut log."""
        if isinstance(record, AheadMarkers):
            self.note("cut log", lambda: f"markers ahead of {record.previous_lsn}: {dict(record.markers)}")
            self._era_of(record.timeline).oracle.judge_ahead(record, self.readable)

    @property
    def newest_cut(self) -> PublishedCut | None:
        """The newest that the log still has."""
        try:
            return self.log.newest()
        except RecordsGoneError:
            return None

    @property
    def readable(self) -> dict[tuple[str, int], int]:
        """Up to where each partition can be read."""
        return {key: partition.readable_end for key, partition in self.broker.partitions.items()}

    def judge_markers(self, timeline: int, markers: Mapping[tuple[str, int], Marker]) -> None:
        """Checks markers that a sidecar publishes."""
        self._era_of(timeline).oracle.judge_markers(markers)

    def judge_state(self, era: Era, lsn: int, state: State) -> None:
        """G1: a reader's state is the database's state at its LSN."""
        if any(not c.is_whole and not c.is_listed for c in era.oracle.between(0, lsn)):
            return  # without END nothing says where its rows belong
        expected = era.database.state_at(lsn)
        for table in self.followed_tables:
            rows = [r for r in expected[table].elements() if not self.is_dropped(table, r[0])]
            if sorted(state[table].elements()) != sorted(rows):
                raise ViolationError(
                    "G1",
                    f"at {lsn} the reader's {table} is {sorted(state[table].elements())}, "
                    f"the database's {sorted(rows)}",
                )

    @property
    def evidence(self) -> dict[str, Evidence]:
        """The kind of evidence by table, where it is not ``counts``."""
        if self.scenario.has(Feature.OFFSETS):
            return {_JUDGED_TABLE: Evidence.OFFSETS}
        return {_JUDGED_TABLE: Evidence.OVERTAKEN} if self.scenario.has(Feature.DROPPED) else {}

    @property
    def complete_tables(self) -> frozenset[str]:
        """Tables that need no snapshot: all, where the connector begins without one in an empty database.

        A snapshot without notifications has no row of tables that were empty: those are later ones.
        """
        if not self.scenario.has(Feature.SNAPSHOT):
            return frozenset(self._tables)
        return frozenset({ALL_TABLES} if self.scenario.has(Feature.UNANNOUNCED) else ())

    @property
    def lost_commit(self) -> Expected | None:
        """The transaction that lost a row, when it is committed."""
        return next((c for c in self.oracle.commits if not c.is_whole), None)

    def skip_lost(self) -> None:
        """An operator lets the transaction pass that lost a row."""
        lost = self.lost_commit
        if lost is not None:
            self.skip_to(lost.lsn if lost.is_listed else self._newest_lsn())

    def skip_to(self, lsn: int, *, is_elsewhere: bool = False) -> None:
        """An operator decides that everything up to an LSN may pass on the newest timeline.

        Args:
            lsn: The LSN.
            is_elsewhere: Whether the decision is about an earlier timeline, or one that does not exist.
        """
        timeline = self._decided_timeline
        if is_elsewhere:
            timeline = _NO_TIMELINE if timeline == 1 else timeline - 1
        self.note("operator", lambda: f"skips to {lsn} on timeline {timeline}")
        if not is_elsewhere:
            self._era_of(timeline).oracle.add_skip(lsn, self.readable)
        decision = SkipDecision(
            source=SOURCE, timeline=timeline, to_lsn=lsn, wall_ms=self.clock.now_ms, decided_by="operator"
        )
        self.log.append_records([decision])

    @property
    def _is_told_once(self) -> bool:
        """True if counts of END are all that is needed to know that a transaction is whole."""
        has = self.scenario.has
        is_exempt = has(Feature.DROPPED) or has(Feature.OFFSETS)
        return self.connector.run_count == 1 and not is_exempt and not has(Feature.DOUBLED)

    def is_keyless(self, table: str) -> bool:
        """Says whether a table has no key."""
        return self._tables[table].is_keyless

    @property
    def may_repeat_keyless_rows(self) -> bool:
        """True if a transaction with rows of a table without a key may have been written again."""
        return self.scenario.has(Feature.KEYLESS) and (self.may_repeat_rows or len(self.eras) > 1)

    @property
    def may_stall_without_keys(self) -> bool:
        """True if records without keys may have been written again: their place says nothing then."""
        has = self.scenario.has
        return (has(Feature.KEYLESS) or has(Feature.TRUNCATE)) and self.may_repeat_rows

    @property
    def may_repeat_rows(self) -> bool:
        """True if anything may have been written again."""
        return self.connector.run_count > 1 or self.scenario.has(Feature.DOUBLED)

    @property
    def is_subset(self) -> bool:
        """True if the sidecar follows only some tables."""
        return len(self.followed_tables) < len(self._tables)

    # --- database and connector

    @property
    def connector_ms(self) -> int:
        """The connector's clock."""
        return self.clock.now_ms + self._clocks_differ_by_ms

    def begin(self) -> None:
        """The connector's first start."""
        if self.scenario.snapshot_after is None:
            self.start_connector(Restart(Place(0)))
            return
        self.committed = self.scenario.snapshot_after
        self._skips_snapshot = self.scenario.has(Feature.SKIPPED_SNAPSHOT)
        if self._skips_snapshot:
            self.start_connector(Restart(Place(0)))
        else:
            self.start_snapshot()

    def retake_snapshot(self) -> None:
        """An operator has the connector take the snapshot that it skipped; what was committed is in it."""
        if not self._skips_snapshot:
            return
        self._skips_snapshot = False
        self._is_repeated = any(record.is_written for record in self.connector.skip_records)
        self.producer.kill()
        self.clock.seconds += _SECONDS_BETWEEN_SNAPSHOTS
        self._forget_snapshot()
        self.start_snapshot()

    def start_snapshot(self) -> None:
        """An initial snapshot, again when the one before was interrupted: that one is void.

        The first one shows the database at its LSN. A repeated one reads each table when it comes to it, so
        its rows may be newer than its LSN, and what changed them is streamed, too. (Of which a sidecar knows
        nothing when nothing of the first one reached it: that is not simulated.)
        """
        self._is_repeated |= any(r.is_written for r in self._needed_snapshot_records())
        if self.connector.snapshot_records:
            self._forget_snapshot()
        self.start_connector(Restart(Place(0)))
        self._snapshot_lsn = lsn = self._next_snapshot_lsn()
        rows: dict[str, list[Row]] = {}
        for table in self._tables:
            if self._is_repeated and self.rng.random() < 0.5:
                self.commit()
            rows[table] = sorted(self.database.state_after(self.committed)[table].elements())
        if not self._is_repeated:
            listed = [Change(t, "r", None, row, lsn) for t, found in rows.items() for row in found]
            changes = self.followed_changes(listed)
            self.oracle.add_commit(Expected(0, lsn, changes, is_listed=bool(changes)))
        self.note("connector", lambda: f"snapshot at {lsn}: {rows}")
        is_announced = not self.scenario.has(Feature.UNANNOUNCED)
        self.connector.start_snapshot(lsn, rows, self.connector_ms, is_announced=is_announced)

    def _next_snapshot_lsn(self) -> int:
        """Above the newest commit; that of the attempt before, a higher or a lower one."""
        newest = self._newest_lsn()
        if self._snapshot_lsn <= newest:
            return newest + 8
        return self.rng.choice((self._snapshot_lsn, self._snapshot_lsn, self._snapshot_lsn + 8, newest + 4))

    def kill_connector_in_snapshot(self) -> None:
        """Repeats the snapshot, unless all that a sidecar needs of it is in Kafka: then it counts."""
        if all(record.is_written for record in self._needed_snapshot_records()):
            self.connector.is_in_snapshot = False
            self.start_connector(Restart(Place(0)))
        else:
            self.start_snapshot()

    def _needed_snapshot_records(self) -> list[SentRecord]:
        wanted = {*self.followed_topics, NOTIFICATIONS[0]}
        return [r for r in self.connector.snapshot_records if r.target[0] in wanted]

    def _forget_snapshot(self) -> None:
        for lsn in (self._snapshot_lsn, *(c.lsn for c in self.commits)):
            self.oracle.remove_commit(lsn)
        self.commits.clear()

    def _newest_lsn(self) -> int:
        return self.database.commits[self.committed - 1].lsn if self.committed else 8

    def commit(self) -> None:
        """The database's next transaction commits."""
        left = len(self.database.commits) - self.committed
        if left == 0 or (left == 1 and (self.connector.is_in_snapshot or self._skips_snapshot)):
            return
        commit = replace(self.database.commits[self.committed], ts_ms=self.clock.now_ms)
        self.committed += 1
        self.commits.append(commit)
        followed = self.followed_changes(commit.changes)
        arriving = {n: c for n, c in followed.items() if self.arrives(commit, n)}
        is_whole = self._lost_change(commit) is None and (self.has_end(commit) or not followed)
        is_listed = bool(followed) and self.has_end(commit)
        end_ts_ms = commit.ts_ms if self.has_end(commit) else 0
        self.oracle.add_commit(
            Expected(commit.xid, commit.lsn, arriving, is_listed, is_whole, ts_ms=end_ts_ms)
        )
        self.note("database", lambda: f"commits {commit.xid} at {commit.lsn}: {_changes(commit)}")

    def followed_changes(self, changes: Sequence[Change]) -> dict[int, Change]:
        """Those of tables that the sidecar waits for, by number."""
        return {n: c for n, c in enumerate(changes) if c.table in self.followed_tables}

    def arrives(self, commit: SimulatedCommit, number: int) -> bool:
        """Says whether a change is neither dropped by a transform nor lost."""
        change = commit.changes[number]
        if self.is_dropped(change.table, change.key):
            return False
        return number != self._lost_change(commit)

    def is_dropped(self, table: str, row_id: int) -> bool:
        """Says whether a transform drops a row."""
        return self.scenario.has(Feature.DROPPED) and table == _JUDGED_TABLE and row_id % 3 == 1

    def has_end(self, commit: SimulatedCommit) -> bool:
        """Says whether END of a transaction is not lost."""
        return self._has("end", commit)

    def has_begin(self, commit: SimulatedCommit) -> bool:
        """Says whether BEGIN of a transaction is not lost."""
        return self._has("begin", commit)

    def _has(self, what: str, commit: SimulatedCommit) -> bool:
        lost = self.scenario.lost
        return lost is None or lost.what != what or lost.transaction != commit.number

    def _lost_change(self, commit: SimulatedCommit) -> int | None:
        """The number of the change of a transaction that is lost, if any is."""
        lost = self.scenario.lost
        if lost is None or lost.what != "row" or commit.number != lost.transaction:
            return None
        followed = list(self.followed_changes(commit.changes))
        return followed[int(lost.share * len(followed))] if followed else None

    def start_connector(self, restart: Restart) -> None:
        """Begins a run, some seconds after the one before."""
        self.clock.seconds += self.rng.choice((0.5, 3.0))
        has_headers = not self.scenario.has(Feature.NO_HEADERS)
        self.connector.start(restart, self.connector_ms, has_headers=has_headers)
        if self._skips_snapshot:
            self.flow(self.connector.skip_snapshot(self.connector_ms))
        self.note("connector", lambda: f"starts run {self.connector.run_count} at {restart.place}")

    def emit(self) -> None:
        """The connector hands a few items to its producer."""
        for _ in range(self.rng.choice((1, 3, 10, 40))):
            records = self.connector.next_records(self.connector_ms)
            for record in records or ():
                self.note("connector", lambda record=record: f"emits {_record(record)}")  # type: ignore[misc]
                self._send(record)
            if records is None:
                return

    def emit_chunk(self, rng: random.Random) -> None:
        """The connector emits a chunk of an incremental snapshot, at the place where it is.

        The signal that closes the chunk was committed just now, so it is not among commits that are repeated.
        """
        connector = self.connector
        if connector.is_in_snapshot or connector.place.item or connector.is_repeating:
            return
        table = rng.choice([name for name in self.followed_tables_in_order if not self.is_keyless(name)])
        emitted = self.committed - len(self.commits) + connector.place.commit
        rows = sorted(self.database.state_after(emitted)[table].elements())
        chosen = [row for row in rows if rng.random() < 0.5 and not self.is_dropped(table, row[0])]
        self.note("connector", lambda: f"emits a chunk of {table}: {chosen}")
        for record in connector.chunk_records(table, chosen, self.connector_ms):
            self._send(record)

    def emit_blocking(self, rng: random.Random) -> None:
        """The connector interrupts its stream for an ad hoc snapshot; the database continues meanwhile."""
        if self.connector.is_in_snapshot:
            return
        self.clock.seconds += _SECONDS_BETWEEN_SNAPSHOTS
        keyed = [name for name in self.followed_tables_in_order if not self.is_keyless(name)]
        found = []
        for table in rng.sample(keyed, rng.randint(1, len(keyed))):
            state = self.database.state_after(self.committed)[table]
            rows = sorted(row for row in state.elements() if not self.is_dropped(table, row[0]))
            found.append(SnapshotRows(table, rows, self.connector_ms))
            self.clock.seconds += rng.choice((0.001, 0.3))
            if rng.random() < 0.5:
                self.commit()
        self.note("connector", lambda: f"blocks for a snapshot: {found}")
        is_announced = not self.scenario.has(Feature.UNANNOUNCED)
        for record in self.connector.blocking_records(found, is_announced=is_announced):
            self._send(record)

    def _send(self, record: SentRecord) -> None:
        if self.avro is not None:
            self.avro.convert(record)
        self.producer.send(record)

    def produce(self) -> None:
        """The producer writes a batch."""
        done = self.producer.work(self.rng)
        if done:
            self.note("producer", lambda: done)

    def reveal(self) -> None:
        """More of a partition becomes readable."""
        hidden = self.broker.hidden()
        if not hidden:
            return
        partition = self.rng.choice(hidden)
        for record in partition.reveal(self.rng.choice((1, 3, 10, 100))):
            if isinstance(self.producer, PlainProducer):
                record.is_acknowledged = True
        self.note("broker", lambda: f"{_key(partition.key)} is readable to {partition.readable_end}")
        self.connector.note_acknowledgements()

    def flow(self, at_most: int = 1 << 30) -> None:
        """Everything that the connector can emit, or this many items, is written and readable."""
        for _ in range(at_most):
            records = self.connector.next_records(self.connector_ms)
            for record in records or ():
                self._send(record)
            while self.producer.work(self.rng):
                pass
            for partition in self.broker.hidden():
                for record in partition.reveal(1 << 30):
                    if isinstance(self.producer, PlainProducer):
                        record.is_acknowledged = True
            self.connector.note_acknowledgements()
            if records is None and self.producer.is_done and not self.broker.hidden():
                return

    def _note_written(self, record: SentRecord, offset: int) -> None:
        record.is_written = True
        if record.change is not None:
            self.oracle.add_row(record.change, record.target, offset)


def _key(key: tuple[str, int]) -> str:
    return f"{key[0]}/{key[1]}"


def _offsets(cut: Cut) -> str:
    return " ".join(f"{topic}{list(offsets)}" for topic, offsets in cut.end_offsets.items())


def _changes(commit: SimulatedCommit) -> str:
    return " ".join(f"{c.op}:{c.table}:{c.key}" for c in commit.changes) or "nothing"


def _record(record: SentRecord) -> str:
    what = f"row {record.change[1]} of {record.change[0]}" if record.change else ""
    if not what:
        what = "tombstone" if record.value is None else record.value[:80].decode()
    return f"{_key(record.target)} {what}"
