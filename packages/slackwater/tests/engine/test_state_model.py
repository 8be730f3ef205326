"""Several runs over one checkpoint: whatever is lost or repeated, the output is that of one undisturbed run.

A world of runs, executors, a store and an output continues in random steps. Runs are killed between any two
steps, overtaken runs continue until the output refuses them, and later; tasks are repeated, on executors
whose indexes are of any batch or of attempts that were lost; the store lists what it likes of its newest
files. The output takes a batch and its progress record at once, as a Kafka transaction does, and compares.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

import pytest

from slackwater.engine import bucket as bucket_module
from slackwater.engine.bucket import update_current
from slackwater.engine.index import BucketIndex, Contents, IndexTransaction
from slackwater.engine.local import ChangeEvent, LocalEngine, MemoryTransaction
from slackwater.engine.payloads import Document, PackedPayload, decode_documents, documents_by_view, settled
from slackwater.engine.settings import StageSettings
from slackwater.engine.state import log as log_module
from slackwater.engine.state import manifest as keeper_module
from slackwater.engine.state import manifest as manifest_module
from slackwater.engine.state.entry import Change
from slackwater.engine.state.log import BucketLog, LogHead, LogUpdate, LogWrite, place_writes
from slackwater.engine.state.manifest import (
    SegmentReader,
    State,
    StateKeeper,
    history,
    read_state,
    segment_name,
    segment_path,
)
from slackwater.engine.state.store import MemoryStore
from slackwater.engine.task import PipelineTask
from slackwater.protocol import StateError
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

T = TypeVar("T")
Place = tuple[int, int]
PlaceContents = dict[Place, dict[bytes, bytes]]

TABLES = """
CREATE TABLE s.customers (id bigint PRIMARY KEY, region text);
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint, amount bigint);
ALTER TABLE s.customers REPLICA IDENTITY FULL;
ALTER TABLE s.orders REPLICA IDENTITY FULL;
"""
VIEW = """
SELECT TRANSACTIONALLY c.region, count(*) AS n, sum(o.amount) AS amount, max(o.amount) AS most
FROM s.customers c JOIN s.orders o ON o.customer_id = c.id GROUP BY c.region
"""
PLAN = compile_pipeline([("regions.sql", VIEW)], parse_catalog({"t.sql": TABLES}))
FINGERPRINT = "stages"
BUCKETS = 3
EXECUTORS = 2
MAX_RUNS = 3
RECENT = 12
"""Calls of the store for which a listing need not know of a file."""

WORLDS = 105
"""Of each kind, in blocks of `BLOCK`."""
BLOCK = 15
BLOCKS = [
    pytest.param(block, marks=() if block % 4 == 0 else pytest.mark.slow) for block in range(WORLDS // BLOCK)
]


def packed_history(rng: random.Random) -> list[list[ChangeEvent]]:
    """Commits of two tables."""
    rows: dict[str, dict[int, dict[str, Any]]] = {"customers": {}, "orders": {}}
    commits = []
    for number in range(rng.randint(8, 16)):
        changes: list[ChangeEvent] = []
        for _ in range(rng.randint(1, 3)):
            of_table: dict[str, dict[str, Any]] = {
                "customers": {"id": rng.randint(1, 3), "region": rng.choice("xy")},
                "orders": {"id": rng.randint(1, 5), "customer_id": rng.randint(1, 3), "amount": number},
            }
            table, row = rng.choice(list(of_table.items()))
            old = rows[table].pop(row["id"], None)
            before = None if old is None else json.dumps(old).encode()
            lsn = 100 * (number + 1)
            if old is not None and rng.random() < 0.3:
                changes.append((f"s.{table}", "d", lsn, before, None))
                continue
            rows[table][row["id"]] = row
            op = "c" if old is None else "u"
            changes.append((f"s.{table}", op, lsn, before, json.dumps(row).encode()))
        commits.append(changes)
    return commits


@dataclass(frozen=True)
class Expected:
    """What one undisturbed run makes of a history, commit by commit."""

    commits: list[list[ChangeEvent]]
    news: list[list[Document]]
    """The documents of each commit."""
    documents: list[dict[bytes, bytes]]
    """The view before the first commit, and after each."""
    contents: list[PlaceContents]
    """The same for stages."""


@lru_cache
def engine_of(*, every_commit: bool) -> LocalEngine:
    """Kept, since planning its statements costs DuckDB more than a history."""
    return LocalEngine(PLAN, buckets=BUCKETS, every_commit=every_commit)


@lru_cache
def task_of(number: int, *, every_commit: bool) -> PipelineTask:
    """The stages in a worker of one run, kept in the same way."""
    assert number < MAX_RUNS
    return PipelineTask(PLAN, StageSettings(buckets=BUCKETS, every_commit=every_commit))


@lru_cache(maxsize=8)
def expected_of(seed: int, *, every_commit: bool) -> Expected:
    commits = packed_history(random.Random(seed))
    engine = engine_of(every_commit=every_commit)
    engine.reset()
    documents: list[dict[bytes, bytes]] = [{}]
    contents, news = [contents_of(engine.store, engine.state)], []
    for changes in commits:
        news.append(engine.run(changes)[0])
        documents.append(folded(documents[-1], news[-1]))
        contents.append(contents_of(engine.store, engine.state))
    return Expected(commits, news, documents, contents)


def folded(before: dict[bytes, bytes], documents: Iterable[Document]) -> dict[bytes, bytes]:
    """The view after documents, none of which may say what is known."""
    after = dict(before)
    for _, key, document in documents:
        assert after.get(key) != document, "a document is repeated"
        if document is None:
            del after[key]
        else:
            after[key] = document
    return after


def contents_of(store: MemoryStore, state: State) -> PlaceContents:
    """Everything that a state holds, by what the store has."""
    source = SegmentReader(store)
    result: PlaceContents = {}
    for place, head in state.heads.items():
        transaction = MemoryTransaction({}, None)
        for changes in BucketLog(*place, head, source).changes():
            transaction.apply(changes)
        if transaction.contents:
            result[place] = transaction.contents
    return result


class KilledError(Exception):
    """The run's process is no more."""


class OvertakenError(Exception):
    """The output takes nothing more from this run."""


class TaskLostError(Exception):
    """The executor of a task is no more."""


class ForgetfulIndex:
    """May be at any moment what it has ever been on any executor, also while a task uses it."""

    def __init__(self, world: "World", place: Place) -> None:
        self._rng = world.rng
        self._seen = world.seen.setdefault(place, [({}, None)])
        self._entries: dict[bytes, bytes] = {}
        self._token: bytes | None = None

    def update(self, work: Callable[[IndexTransaction], T]) -> T:
        self._forget()
        again = True
        while again:
            transaction = MemoryTransaction(dict(self._entries), self._token)
            result = work(transaction)
            again = self._rng.random() < 0.1
        self._become(transaction.contents, transaction.token)
        return result

    @contextmanager
    def snapshot(self) -> Iterator[Contents]:
        self._forget()
        yield MemoryTransaction(self._entries, self._token)

    def load(self, batches: Iterable[Iterable[Change]], token: bytes) -> None:
        transaction = MemoryTransaction({}, token)
        for changes in batches:
            transaction.apply(changes)
        self._become(transaction.contents, token)

    def _become(self, entries: dict[bytes, bytes], token: bytes | None) -> None:
        self._entries, self._token = entries, token
        self._seen.append((entries, token))
        self._forget()

    def _forget(self) -> None:
        if self._rng.random() < 0.1:
            seen = self._seen[-5:] if self._rng.random() < 0.7 else self._seen
            self._entries, self._token = self._rng.choice(seen)


class LooseStore(MemoryStore):
    """Promises nothing but that what was written can be read."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world
        self._calls = 0
        self._changed: dict[str, int] = {}

    def write(self, name: str, data: bytes) -> None:
        self._world.interrupt()
        super().write(name, data)
        self._note(name)
        self._world.interrupt()

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._world.interrupt()
            super().delete([name])
            self._note(name)

    def list(self, folder: str) -> list[str]:
        self._world.interrupt()
        self._calls += 1
        found = super().list(folder)
        prefix = f"{folder}/"
        recent = {
            name.removeprefix(prefix)
            for name, call in self._changed.items()
            if name.startswith(prefix) and call > self._calls - RECENT
        }
        certain = [name for name in found if name not in recent]
        return [*certain, *(name for name in sorted(recent) if self._world.rng.random() < 0.5)]

    def _note(self, name: str) -> None:
        self._calls += 1
        self._changed[name] = self._calls


@dataclass(frozen=True)
class Progress:
    """The newest batch of the output."""

    batch_id: int
    state: str
    position: int


@dataclass
class Output:
    """Takes documents and progress at once, from the newest run alone; judges them."""

    world: "World"
    run: int = 0
    progress: Progress | None = None
    documents: dict[bytes, bytes] = field(default_factory=dict)

    def open(self) -> tuple[int, Progress | None]:
        self.run += 1
        return self.run, self.progress

    def commit(self, run: int, progress: Progress, documents: list[Document]) -> None:
        if run != self.run:
            raise OvertakenError
        before = self.progress or Progress(-1, "", 0)
        assert progress.batch_id == before.batch_id + 1
        expected = self.world.expected
        self.progress = progress
        if self.world.every_commit:
            news = expected.news[before.position : progress.position]
            assert sorted(documents) == sorted(each for of_commit in news for each in of_commit)
        self.documents = folded(self.documents, documents)
        assert self.documents == expected.documents[progress.position]
        state = read_state(self.world.store, progress.state, FINGERPRINT)
        assert (state.batch_id, state.position) == (progress.batch_id, {"at": progress.position})
        assert contents_of(self.world.store, state) == expected.contents[progress.position]


class World:
    """Everything, and chance."""

    def __init__(self, seed: int, expected: Expected, *, every_commit: bool, rules: "Rules") -> None:
        self.rng = random.Random(seed)
        self.every_commit = every_commit
        self.rules = rules
        self.expected = expected
        self.seen: dict[Place, list[tuple[dict[bytes, bytes], bytes | None]]] = {}
        self.executors: list[dict[Place, BucketIndex]] = [{} for _ in range(EXECUTORS)]
        self.store = LooseStore(self)
        self.output = Output(self)
        self.is_calm = False
        self._runs: dict[int, Iterator[None]] = {}
        """Runs that live, by their place."""
        self._active: list[int] = []
        """The places of those that are within a step; the last one interrupted the one before it."""

    def live(self) -> None:
        """Continues until all is published, in a disturbed time and in a calm one after it."""
        for _ in range(self.rng.randint(20, 160)):
            self._disturb()
        self.is_calm = True
        self._runs.clear()
        self._start(0)
        while self._runs:
            self._advance(0)
        assert self.output.progress is not None
        assert self.output.progress.position == len(self.expected.commits)

    def chance(self, probability: float) -> bool:
        """Whether something happens; nothing does in calm times."""
        return not self.is_calm and self.rng.random() < probability

    def interrupt(self) -> None:
        """Between two steps of a run another may make some, and the run may end."""
        if self.chance(0.15):
            self._advance(self.rng.randrange(MAX_RUNS))
        if self.chance(0.03):
            raise KilledError

    def _disturb(self) -> None:
        place = self.rng.randrange(MAX_RUNS)
        if place not in self._runs and (not self._runs or self.chance(0.2)):
            self._start(place)
        if self.chance(0.03):
            self._runs.pop(place, None)
        if self.chance(0.01):
            self.executors[self.rng.randrange(EXECUTORS)].clear()
        self._advance(place)

    def _start(self, place: int) -> None:
        self._runs[place] = Run(self, place).steps()

    def _advance(self, place: int) -> None:
        steps = self._runs.get(place)
        if steps is None or place in self._active:
            return
        self._active.append(place)
        try:
            next(steps)
        except (StopIteration, KilledError):
            self._runs.pop(place, None)
        finally:
            self._active.pop()
        self._check_that_the_state_is_there()

    def _check_that_the_state_is_there(self) -> None:
        if (progress := self.output.progress) is not None:
            state = read_state(self.store, progress.state, FINGERPRINT)
            assert {segment_path(name) for name in state.segments()} <= self.store.files.keys()


@dataclass(frozen=True)
class Rules:
    """How runs treat the state; whatever is not as it should be has to be seen."""

    adopts_early: bool = False
    """Before the output has the batch."""
    trusts_listing: bool = False
    """Continues from the newest manifest that it finds, not from the one that the progress names."""
    keeper: type[StateKeeper] = StateKeeper


class Run:
    """One run of the pipeline; a driver with its tasks."""

    def __init__(self, world: World, place: int) -> None:
        self._world = world
        self._rng = world.rng
        self._task = task_of(place, every_commit=world.every_commit)
        self._keeper = world.rules.keeper(world.store, FINGERPRINT)
        self._run, self._progress = world.output.open()

    def steps(self) -> Iterator[None]:
        """Between any two of them others may do something, or it may end."""
        try:
            yield from self._steps()
        except (StateError, OvertakenError):
            if self._run == self._world.output.run:
                raise
            yield from self._late_steps()

    def _steps(self) -> Iterator[None]:
        world, keeper = self._world, self._keeper
        name = "" if self._progress is None else self._progress.state
        if world.rules.trusts_listing:
            name = next(reversed(history(world.store)), "")
        keeper.open(name)
        yield
        while (position := self._position()) < len(world.expected.commits):
            if world.chance(0.1):
                keeper.sweep()
            end = min(position + self._rng.randint(1, 2), len(world.expected.commits))
            rows, writes, updates = self._job(position, end)
            yield
            name = keeper.prepare({"at": end}, writes, updates)
            yield
            if world.chance(0.1):  # what the batch is for another reason is planned again
                continue
            batch_id = keeper.state.batch_id + 1
            if world.rules.adopts_early:
                keeper.adopt(name)
                yield
            world.output.commit(self._run, Progress(batch_id, name, end), self._documents(batch_id, rows))
            yield
            if not world.rules.adopts_early:
                keeper.adopt(name)
            yield

    def _late_steps(self) -> Iterator[None]:
        """An overtaken run that has not noticed everything yet."""
        for _ in range(self._rng.randint(0, 4)):
            yield
            if self._rng.random() < 0.5:
                self._keeper.sweep()
            else:
                self._keeper.prepare({"at": -1}, [])

    def _position(self) -> int:
        position = self._keeper.state.position
        return 0 if position is None else int(position["at"])

    def _documents(self, batch_id: int, rows: Iterable[PackedPayload]) -> list[Document]:
        packed = documents_by_view(batch_id, rows).get(0, ())
        documents = [each for chunk in decode_documents(batch_id, packed) for each in chunk]
        return settled(documents, every_commit=self._world.every_commit)

    def _job(self, position: int, end: int) -> tuple[list[PackedPayload], list[LogWrite], list[LogUpdate]]:
        """The tasks of a batch: one for everything, or some for the buckets of each stage."""
        commits = self._world.expected.commits[position:end]
        engine = engine_of(every_commit=self._world.every_commit)
        packed = engine.payloads(
            [change for changes in commits for change in changes], self._rng.randint(1, 2)
        )
        rows = [(*name, *payload) for name, payloads in packed.items() for payload in payloads]
        if self._rng.random() < 0.5:
            return self._repeated(rows, None)
        writes: list[LogWrite] = []
        updates: list[LogUpdate] = []
        for stage in sorted(each.number for each in PLAN.stages):
            waiting = [row for row in rows if row[0] == stage]
            rows = [row for row in rows if row[0] != stage]
            for task in range(2):
                of_task = [row for row in waiting if row[1] % 2 == task]
                if of_task:
                    sent, own, placed = self._repeated(of_task, {stage})
                    rows += sent
                    writes += own
                    updates += placed
        return rows, writes, updates

    def _repeated(
        self, rows: Sequence[PackedPayload], stages: set[int] | None
    ) -> tuple[list[PackedPayload], list[LogWrite], list[LogUpdate]]:
        """Attempts of a task; one that ended well counts, not always the first or the last."""
        results: list[tuple[list[PackedPayload], list[LogWrite], list[LogUpdate]]] = []
        while not results or self._world.chance(0.2):
            self._world.interrupt()
            try:
                results.append(self._attempt(rows, stages))
            except TaskLostError:
                continue
        return self._rng.choice(results)

    def _attempt(
        self, rows: Sequence[PackedPayload], stages: set[int] | None
    ) -> tuple[list[PackedPayload], list[LogWrite], list[LogUpdate]]:
        world = self._world
        indexes = self._rng.choice(world.executors)
        payloads = self._rng.sample(rows, len(rows))

        def find(*place: int) -> BucketIndex:
            if world.chance(0.05):
                raise TaskLostError
            return indexes.setdefault((place[0], place[1]), ForgetfulIndex(world, (place[0], place[1])))

        source = SegmentReader(world.store)
        result = self._task.process(payloads, self._keeper.state, source, find, stages)
        if self._rng.random() < 0.5:
            return result.rows, result.writes, []
        name = segment_name(self._keeper.state.batch_id + 1, f"{self._rng.getrandbits(64):x}")
        data, updates = place_writes(name, result.writes)
        world.store.write(segment_path(name), data)
        return result.rows, [], updates


@contextmanager
def small_sizes(rng: random.Random) -> Iterator[pytest.MonkeyPatch]:
    """Everything that happens now and then happens in a short life, and again with the same seed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "MAX_BLOB_BYTES", 64)
        patch.setattr(log_module, "COMPACTION_SLACK_BYTES", rng.choice([0, 600]))
        patch.setattr(log_module, "SMALL_BYTES", rng.choice([-1, 60]))
        patch.setattr(log_module, "MIN_STEP_BYTES", 8)
        patch.setattr(log_module, "_BLOB_COST_BYTES", rng.choice([0, 8]))
        patch.setattr(manifest_module, "_SMALL_BYTES", 64)
        patch.setattr(bucket_module, "MAX_REPLAYED_BLOBS", rng.choice([2, 20]))
        patch.setattr(bucket_module, "MAX_TOGETHER_BYTES", rng.choice([-1, 1 << 20]))
        patch.setattr(manifest_module, "MAX_CHAIN", 3)
        patch.setattr(keeper_module, "KEPT_STATES", 2)
        patch.setattr(keeper_module, "_SWEEP_INTERVAL", rng.choice([1, 3]))
        patch.setattr("secrets.token_bytes", rng.randbytes)
        patch.setattr("uuid.uuid4", lambda: UUID(int=rng.getrandbits(128)))
        yield patch


def live(seed: int, *, every_commit: bool, rules: Rules | None = None) -> None:
    expected = expected_of(seed // 3, every_commit=every_commit)
    with small_sizes(random.Random(seed)):
        world = World(seed, expected, every_commit=every_commit, rules=rules or Rules())
        try:
            world.live()
        except Exception as error:
            error.add_note(f"seed {seed}, every commit: {every_commit}")
            raise


@pytest.mark.full
@pytest.mark.parametrize("every_commit", [False, True])
@pytest.mark.parametrize("block", BLOCKS)
def test_the_output_is_that_of_one_undisturbed_run(block: int, every_commit: bool) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        live(seed, every_commit=every_commit)


@pytest.mark.full
def test_the_worlds_are_disturbed_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above says is worth something: it happens, and often."""
    happened: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*args: Any, **arguments: Any) -> Any:
            happened[f"{owner.__name__}.{name}"] += 1
            return original(*args, **arguments)

        monkeypatch.setattr(owner, name, counted)

    count(bucket_module, "_replay")
    count(bucket_module, "_rebuild")
    count(bucket_module, "TogetherContents")
    count(log_module, "_without_oldest")
    count(ForgetfulIndex, "load")
    count(LooseStore, "delete")
    count(Run, "_late_steps")
    for error in (KilledError, OvertakenError, TaskLostError):
        count(error, "__init__")
    for seed in range(12):
        live(seed, every_commit=False)
    assert len(happened) == 10
    assert min(happened.values()) > 5, happened


def seen_to_fail(rules: Rules | None = None, *, worlds: int = 60) -> None:
    """The judge sees it soon."""
    with pytest.raises((AssertionError, StateError, KeyError)):
        live_all(range(worlds), rules)


def live_all(seeds: Iterable[int], rules: Rules | None) -> None:
    for seed in seeds:
        live(seed, every_commit=bool(seed % 2), rules=rules)


def test_without_the_tokens_of_indexes_it_would_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(log: BucketLog, index: BucketIndex, work: Callable[[IndexTransaction], T]) -> T:
        if log.head.token is not None:
            index.update(lambda contents: contents.set_token(log.head.token or contents.token or b""))
        return update_current(log, index, work)

    monkeypatch.setattr(bucket_module, "update_current", trusting)
    seen_to_fail()


def test_adopting_before_the_output_has_the_batch_would_not_do() -> None:
    seen_to_fail(Rules(adopts_early=True))


def test_going_on_from_the_newest_manifest_of_the_store_would_not_do() -> None:
    seen_to_fail(Rules(trusts_listing=True))


class ChainlessKeeper(StateKeeper):
    """Forgets that a state is read from several manifests."""

    def sweep(self) -> list[str]:
        kept = list(self._kept)
        try:
            self._kept.clear()
            self._kept.extend(State(s.name, s.batch_id, s.position, s.heads, (s.name,)) for s in kept)
            return super().sweep()
        finally:
            self._kept.clear()
            self._kept.extend(kept)


class GreedyKeeper(StateKeeper):
    """Removes whatever it does not need itself."""

    def _unneeded(self, folder: str, needed: set[str], newest: int) -> list[str]:
        return super()._unneeded(folder, needed, newest + 100)


@pytest.mark.parametrize("keeper", [ChainlessKeeper, GreedyKeeper])
def test_a_sweep_that_takes_more_would_be_noticed(keeper: type[StateKeeper]) -> None:
    seen_to_fail(Rules(keeper=keeper))


def test_a_log_of_which_the_wrong_end_is_dropped_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    after = LogUpdate.after

    def newest_first(self: LogUpdate, head: LogHead) -> LogHead:
        kept = head.blobs[: len(head.blobs) - self.dropped]
        return after(self, LogHead((*head.blobs[: self.dropped], *kept), head.log_bytes, 0))

    monkeypatch.setattr(LogUpdate, "after", newest_first)
    seen_to_fail()


def test_an_output_that_takes_its_progress_later_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Output.commit

    def in_two_steps(self: Output, run: int, progress: Progress, documents: list[Document]) -> None:
        before = self.progress
        commit(self, run, progress, documents)
        after, self.progress = self.progress, before
        self.world.interrupt()
        self.progress = after

    monkeypatch.setattr(Output, "commit", in_two_steps)
    seen_to_fail()
