"""Rows of snapshots among random commits, restarts and cuts: source and engine together.

The model writes what Debezium was seen to write (see the recordings of `slackwater.cdc`): a chunk of an
incremental snapshot holds what the database holds at the record's place; rows of a blocking snapshot hold
what it holds a few commits later, and may be inside a transaction; a restart repeats transactions.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slackwater.cdc.batch import BatchTask, OffsetSpan, TransactionTable
from slackwater.cdc.changes import BatchChanges, SnapshotPlaces
from slackwater.engine.local import LocalEngine
from slackwater.engine.packer import EventPacker
from slackwater.engine.payloads import Document
from slackwater.protocol import CommittedTransaction
from slackwater.sql.plan import EnginePlan

TOPIC = "inv.inventory.orders"
TABLE = "inventory.orders"
STEP = 800
KEYS = range(1, 6)
"""Without 0, which connectors write for unknown keys: its delete is refused while the row is unknown."""
State = dict[int, str]
Write = tuple[int, str | None]


@dataclass(frozen=True)
class Commit:
    writes: tuple[Write, ...]


@dataclass(frozen=True)
class Chunk:
    """Rows of an incremental snapshot: those of keys from `first` on."""

    first: int


@dataclass(frozen=True)
class Blocking:
    """A snapshot that sees `ahead` commits more than were written, behind `split` rows of the next one."""

    ahead: int
    split: int


@dataclass(frozen=True)
class Restart:
    """The connector writes the last `back` transactions again."""

    back: int


values = st.none() | st.sampled_from("abc")
commit = st.builds(
    Commit,
    st.lists(st.tuples(st.sampled_from(KEYS), values), min_size=1, max_size=4, unique_by=lambda w: w[0]).map(
        tuple
    ),
)
chunk = st.builds(Chunk, st.integers(0, 3))
blocking = st.builds(Blocking, st.integers(0, 3), st.integers(0, 2))
restart = st.builds(Restart, st.integers(1, 3))
streams = st.lists(commit | commit | chunk | blocking | restart, min_size=2, max_size=14)


@dataclass
class Place:
    """Of one record in its partition."""

    number: int
    """Of the commit, from 1; 0: a row of a snapshot."""
    tie: int = 0
    """The first cut, by its number of commits, that may hold a late row."""
    late: int | None = None
    """The LSN of a late row."""
    is_incremental: bool = False
    is_again: bool = False
    """A row of a transaction that the connector has written before."""


@dataclass
class World:
    """A database of one table and the partitions that a connector has written."""

    partitions: int
    hidden: int = 0
    """This many commits came before the table was captured."""
    records: list[list[tuple[bytes, bytes | None, Place]]] = field(default_factory=list)
    states: list[State] = field(default_factory=lambda: [{}])
    """After each commit."""
    repeated: set[int] = field(default_factory=set)
    position: int = 0
    """LSN of the newest row."""

    def play(self, stream: Sequence[Commit | Chunk | Blocking | Restart]) -> None:
        self.records = [[] for _ in range(self.partitions)]
        commits = [a for a in stream if isinstance(a, Commit)]
        for one in commits:
            state = {**self.states[-1], **dict(one.writes)}
            self.states.append({k: v for k, v in state.items() if v is not None})
        written, waiting = 0, None
        for action in stream:
            if isinstance(action, Commit):
                written += 1
                if written > self.hidden:
                    self._write(commits[written - 1], written, waiting, len(commits))
                    waiting = None
            elif written < self.hidden:
                continue
            elif isinstance(action, Chunk):
                self._snapshot(self.states[written], Place(0, is_incremental=True), action.first)
            elif isinstance(action, Restart):
                for number in range(max(written - action.back, self.hidden) + 1, written + 1):
                    self._write(commits[number - 1], number, None, len(commits), is_again=True)
                    self.repeated.add(number)
            elif action.split and waiting is None and written < len(commits):
                waiting = action
            else:
                self._block(action, written, len(commits))

    def _write(
        self, one: Commit, number: int, inside: Blocking | None, commits: int, *, is_again: bool = False
    ) -> None:
        before = dict(self.states[number - 1])
        for order, (key, value) in enumerate(one.writes):
            if inside is not None and order == min(inside.split, len(one.writes) - 1):
                self._block(inside, number, commits)
                inside = None
            if value is None and key not in before:
                continue
            op = "d" if value is None else "u" if key in before else "c"
            self.position = number * STEP - 8 * (len(one.writes) - order)
            source = {"snapshot": "false", "txId": number, "lsn": self.position}
            block = {"id": f"{number}:1", "total_order": order + 1, "data_collection_order": order + 1}
            self._append(key, row(op, key, value, source, block), Place(number, is_again=is_again))

    def _block(self, action: Blocking, seen: int, commits: int) -> None:
        number = min(seen + action.ahead, commits)
        source = {"snapshot": "true", "txId": 1, "lsn": self.position}
        tie = max(number, min(seen + 1, commits))
        for key, value in sorted(self.states[number].items()):
            self._append(key, row("r", key, value, source, None), Place(0, tie=tie, late=self.position))

    def _snapshot(self, state: State, place: Place, first: int) -> None:
        source = {"snapshot": "incremental", "txId": None, "lsn": None}
        for key, value in sorted(state.items()):
            if key >= first:
                self._append(key, row("r", key, value, source, None), place)

    def _append(self, key: int, value: bytes, place: Place) -> None:
        self.records[key % self.partitions].append((json.dumps({"id": key}).encode(), value, place))

    def ends(self, cut: int, choice: int) -> list[int]:
        """End offsets of the cut after this many commits; incremental rows may be below them or not."""
        result = []
        for records in self.records:
            places = [place for _, _, place in records]
            above = (o for o, p in enumerate(places) if p.number > cut or p.tie > cut)
            high = next(above, len(places))
            held = [o for o, p in enumerate(places[:high]) if p.number or p.late is not None]
            low = held[-1] + 1 if held else 0
            result.append(min(high, low + choice))
        return result

    def may_cut(self, cut: int) -> bool:
        """Whether no late rows precede rows of commits up to a cut that may not hold them."""
        for records in self.records:
            is_late = False
            for _, _, place in records:
                is_late = is_late or place.tie > cut
                if is_late and place.number and place.number <= cut and not place.is_again:
                    return False
        return True


def row(op: str, key: int, value: str | None, source: dict[str, Any], block: dict[str, Any] | None) -> bytes:
    after = None if value is None else {"id": key, "customer": value, "total": None}
    before = {"id": key, "customer": None, "total": None} if op == "d" else None
    origin = {**source, "schema": "inventory", "table": "orders", "ts_ms": 1}
    fields = {"before": before, "after": after, "source": origin, "transaction": block, "op": op, "ts_ms": 1}
    return json.dumps(fields).encode()


@dataclass
class Reader:
    """Reads batches of a world as a pipeline would."""

    world: World
    engine: LocalEngine
    start: int = 0
    positions: list[int] = field(default_factory=list)

    def read(self, cut: int, ends: Sequence[int], end_lsn: int, tasks: int) -> list[Document]:
        starts = self.positions or [0] * self.world.partitions
        spans = [
            OffsetSpan(TOPIC, n, starts[n], max(starts[n], ends[n]), n) for n in range(self.world.partitions)
        ]
        by_bucket: dict[int, list[tuple[int, bytes]]] = {}
        for number in range(tasks):
            mine = tuple(span for span in spans if span.sequence % tasks == number)
            for sequence, bucket, payload in self._pack(self._task(mine, cut, end_lsn)):
                by_bucket.setdefault(bucket, []).append((sequence, payload))
        self.start, self.positions = cut, [span.to_offset for span in spans]
        return self.engine.process({(1, bucket): payloads for bucket, payloads in by_bucket.items()})[0]

    def _task(self, spans: tuple[OffsetSpan, ...], cut: int, end_lsn: int) -> BatchTask:
        numbers = range(self.start + 1, cut + 1)
        late = {p.late for records in self.world.records for _, _, p in records if p.late is not None}
        return BatchTask(
            spans,
            TransactionTable(CommittedTransaction(n, n * STEP, 0) for n in numbers),
            frozenset(n * STEP for n in numbers if n in self.world.repeated),
            late_snapshots=frozenset(late),
            has_incremental_rows=True,
            end_lsn=end_lsn,
        )

    def _pack(self, task: BatchTask) -> list[tuple[int, int, bytes]]:
        tables = (TABLE,)
        changes = BatchChanges(task, "inv", tables)
        changes.look_ahead(lambda: ((span, self._messages(span)) for span in task.spans))
        result = []
        for span in task.spans:
            packer = EventPacker(self.engine.spec)
            for _, change, lsn in changes.find(span, self._messages(span)):
                before = None if change.before is None else bytes(change.before)
                after = None if change.after is None else bytes(change.after)
                packer.table(change.table).add(change.op, lsn, before, after, change.lsn)
            result += [(span.sequence, bucket, payload) for _, bucket, payload in packer.payloads()]
        return result

    def _messages(self, span: OffsetSpan) -> list[Message]:
        records = self.world.records[span.partition][span.from_offset : span.to_offset]
        return [
            Message(topic=TOPIC, partition=span.partition, offset=span.from_offset + n, key=key, value=value)
            for n, (key, value, _) in enumerate(records)
        ]


@dataclass(frozen=True)
class Reading:
    """How a world is read."""

    partitions: int
    tasks: int
    cuts: frozenset[int]
    """Where cuts are wanted, by number of commits."""
    choices: tuple[int, ...]


readings = st.builds(
    Reading,
    partitions=st.integers(1, 3),
    tasks=st.integers(1, 2),
    cuts=st.frozensets(st.integers(0, 14)),
    choices=st.lists(st.integers(0, 6), min_size=15, max_size=15).map(tuple),
)


def documents_of(world: World, reading: Reading, engine: LocalEngine) -> list[Document]:
    reader = Reader(world, engine)
    documents: list[Document] = []
    last = len(world.states) - 1
    for cut in sorted(reading.cuts):
        if world.hidden <= cut < last and world.may_cut(cut):
            documents += reader.read(cut, world.ends(cut, reading.choices[cut]), cut * STEP, reading.tasks)
    everything = [len(records) for records in world.records]
    return documents + reader.read(last, everything, last * STEP + 1, reading.tasks)


def customers(state: dict[int, Any]) -> State:
    return {key: document["customer"] for key, document in state.items()}


def replayed(documents: Sequence[Document], world: World) -> list[tuple[int, State]]:
    """What a reader of the documents knows at each LSN, with the number of commits up to there."""
    known: dict[int, Any] = {}
    result = []
    for lsn in sorted({d[0] for d in documents} | {n * STEP for n in range(len(world.states))}):
        for _, key, value in [d for d in documents if d[0] == lsn]:
            number = json.loads(key)["id"]
            known.pop(number, None)
            if value is not None:
                known[number] = json.loads(value)
        result.append((lsn // STEP, customers(known)))
    return result


quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(stream=streams, reading=readings)
@example(
    stream=[
        Commit(((1, "a"),)),
        Blocking(0, 1),
        Commit(((1, None), (2, "a"))),
        Commit(((1, None),)),
        Restart(2),
    ],
    reading=Reading(partitions=1, tasks=1, cuts=frozenset({2}), choices=(0,) * 15),
)  # the row of key 2 follows the snapshot inside its transaction, which is repeated later
def test_snapshots_of_a_table_that_is_known_change_nothing_at_any_commit(
    plan: EnginePlan, stream: list[Any], reading: Reading
) -> None:
    world = World(reading.partitions)
    world.play(stream)
    documents = documents_of(world, reading, LocalEngine(plan, every_commit=True))

    for number, state in replayed(documents, world):
        assert state == world.states[number]


@quick
@given(stream=streams, reading=readings, hidden=st.integers(1, 4), full=chunk | blocking)
def test_a_table_that_is_captured_later_shows_no_row_that_was_not_so_and_is_whole_after_a_snapshot(
    plan: EnginePlan, stream: list[Any], reading: Reading, hidden: int, full: Any
) -> None:
    commits = sum(isinstance(action, Commit) for action in stream)
    world = World(reading.partitions, min(hidden, commits))
    world.play([*stream, Chunk(0) if isinstance(full, Chunk) else full])
    documents = documents_of(world, reading, LocalEngine(plan, every_commit=True))

    for number, state in replayed(documents, world):
        assert state.items() <= world.states[number].items()
    assert replayed(documents, world)[-1][1] == world.states[-1]


def test_the_oracle_sees_rows_that_are_shown_at_the_end_of_their_batch(
    plan: EnginePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late rows shown last would undo what was committed after they were read."""
    world = World(partitions=1)
    world.play([Commit(((1, "a"),)), Blocking(1, 0), Commit(((1, "b"),)), Commit(((1, "c"),))])
    reading = Reading(partitions=1, tasks=1, cuts=frozenset(), choices=(0,) * 15)

    def final() -> State:
        engine = LocalEngine(plan, every_commit=True)
        return replayed(documents_of(world, reading, engine), world)[-1][1]

    assert final() == {1: "c"}
    monkeypatch.setattr(SnapshotPlaces, "commit_lsn", lambda *_: 4 * STEP)
    assert final() == {1: "b"}
