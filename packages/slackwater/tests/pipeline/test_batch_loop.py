"""The order in which a batch is planned, computed, kept and made visible; what goes wrong in between."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from slackwater.cdc.batch import BatchTask, PlannedBatch, TransactionTable
from slackwater.engine.payloads import DocumentBatch, PackedPayload
from slackwater.engine.state.log import Blob, LogWrite, place_writes
from slackwater.engine.state.manifest import StateKeeper, read_state, segment_name, segment_path
from slackwater.engine.state.store import MemoryStore
from slackwater.outputs.contract import WriteReport
from slackwater.pipeline import BatchProgress, RunMonitor
from slackwater.pipeline.batch_job import BatchResult, KnownState
from slackwater.pipeline.copied_state import CopiedBatch
from slackwater.pipeline.runner import BatchLoop
from slackwater.pipeline.source.planner import PlannedCut
from slackwater.protocol import BatchHeader, OvertakenError, SystemClock, UnavailableError
from slackwater.protocol.errors import run_overtaken
from slackwater.sql.plan import EnginePlan

Hook = Callable[[], object]
STAGES = "stages"


class Place:
    """A position: one commit each."""

    def __init__(self, lsn: int) -> None:
        self.lsn = lsn

    def to_json(self) -> dict[str, Any]:
        return {"lsn": self.lsn}


class MovableClock:
    """A clock that stands still until it is asked to move."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds


class World:
    """A source, jobs, a store and an output; remembers in which order they were used."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.hooks: dict[str, Hook] = {}
        """By what happens: called once, then forgotten."""
        self.store = MemoryStore()
        self.stop = threading.Event()
        self.is_spark_lost = False
        self.newest = 3
        """The LSN that the source has reached."""
        self.visible_before = 0
        self.without_batch: set[int] = set()
        """LSNs with nothing to read below them."""
        self.asked: list[tuple[int, int | None, int | None]] = []
        self.known: list[KnownState] = []
        self.visible: list[DocumentBatch] = []
        self.told: list[BatchProgress] = []
        self.clock = MovableClock()
        self.monitor = RunMonitor("orders", "inv", self.clock)

    def did(self, what: str) -> None:
        self.happened.append(what)
        if (hook := self.hooks.pop(what, None)) is not None:
            hook()

    # as a planner

    def start(self) -> Place:
        return Place(0)

    def target(self) -> int:
        return 99

    def offset(self, data: dict[str, Any]) -> Place:
        return Place(data["lsn"])

    def next(self, start: Place, max_events: int | None, target: int | None) -> Place:
        self.asked.append((start.lsn, max_events, target))
        assert len(self.asked) < 200, "the run never ends"
        if start.lsn == self.newest and target is None:
            self.did("idle")
        return start if start.lsn == self.newest else Place(start.lsn + 1)

    def plan(self, start: Place, end: Place) -> PlannedBatch | None:
        self.did(f"plan {end.lsn}")
        if end.lsn in self.without_batch:
            return None
        header = BatchHeader(
            source="inv",
            timeline=1,
            from_lsn=start.lsn,
            to_lsn=end.lsn,
            commit_ts_ms=1_000,
            event_count=2,
            transactions=((7, end.lsn, 1_000),),
        )
        return PlannedBatch(header, (BatchTask((), TransactionTable([])),))

    def cuts(self, header: BatchHeader) -> list[PlannedCut]:
        return [PlannedCut(header.to_lsn, 1_200, 1_500)]

    # as jobs

    def run(self, batch_id: int, planned: PlannedBatch, state: KnownState) -> BatchResult:
        self.known.append(state)
        self.did(f"run {batch_id}")
        rows: list[PackedPayload] = [(-1, 0, 0, b"document %d" % planned.header.to_lsn)]
        data = b"%d" % batch_id
        blob = Blob("", 0, len(data), 1, b"token %d" % batch_id)
        segment = segment_name(batch_id, f"attempt{len(self.known)}")
        written, updates = place_writes(segment, [LogWrite(1, 1, 0, (blob,), 1, data)])
        self.store.write(segment_path(segment), written)
        return BatchResult(rows, [LogWrite(1, 0, 0, (blob,), 1, data)], updates, 0.1, 0.2)

    def check(self) -> None:
        if self.is_spark_lost:
            raise ConnectionError("Spark's JVM ended")

    # as a sink

    def write(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        assert query_id == "q"
        assert read_state(self.store, batch.state, STAGES).batch_id == batch.batch_id, "it is kept first"
        self.did(f"write {batch.batch_id}")
        self.visible.append(batch)
        return WriteReport(
            batch_id=batch.batch_id,
            header=batch.header,
            documents=2,
            deletes=1,
            was_covered=False,
            produce_seconds=0.3,
            commit_seconds=0.4,
            visible_at=datetime.fromtimestamp(3, UTC),
        )

    @property
    def keeper(self) -> StateKeeper:
        """Of a run that begins where the output says."""
        world = self

        class Keeper(StateKeeper):
            def prepare(self, *arguments: Any) -> str:
                world.did(f"prepare {self.state.batch_id + 1}")
                return super().prepare(*arguments)

            def adopt(self, name: str) -> None:
                super().adopt(name)
                world.did(f"adopt {self.state.batch_id}")

        keeper = Keeper(self.store, STAGES)
        keeper.open(self.visible[-1].state if self.visible else "")
        return keeper

    def go(self, *, available_now: bool = True, repeats: bool = False, beginning: int | None = None) -> None:
        self.happened.clear()
        parts: Any = self
        BatchLoop(
            between_batches=lambda: None,
            on_turn=self.monitor.record_turn,
            on_computed=lambda _: None,
            pipeline="orders",
            query_id="q",
            plan=EnginePlan((), ()),
            planner=parts,
            jobs=parts,
            keeper=self.keeper,
            sink=parts,
            clock=SystemClock(),
            stop=self.stop,
            on_batch=self._tell,
            max_events=50,
            repeats=repeats,
            beginning=None if beginning is None else self.copied(beginning),
        ).run(available_now=available_now)

    @staticmethod
    def copied(lsn: int) -> CopiedBatch:
        """The first batch of a pipeline that begins with a state as of this LSN."""
        header = BatchHeader(
            source="inv",
            timeline=1,
            from_lsn=0,
            to_lsn=lsn,
            commit_ts_ms=1_000,
            event_count=0,
            transactions=((0, lsn, 1_000),),
        )
        end: Any = Place(lsn)
        return CopiedBatch(header, (), end)

    def _tell(self, batch: BatchProgress) -> None:
        self.monitor.record_batch(batch)
        self.told.append(batch)
        self.did(f"tell {batch.batch_id}")


@pytest.fixture
def world() -> World:
    return World()


def one_batch(number: int) -> list[str]:
    steps = (f"plan {number + 1}", *(f"{step} {number}" for step in ("run", "prepare", "write", "adopt")))
    return [*steps, f"tell {number}"]


def test_the_state_of_a_batch_is_kept_before_it_is_visible_and_true_afterwards(world: World) -> None:
    world.go()
    assert world.happened == [*one_batch(0), *one_batch(1), *one_batch(2)]
    assert [batch.batch_id for batch in world.visible] == [0, 1, 2]
    assert [batch.payloads for batch in world.visible] == [{0: (b"document %d" % n,)} for n in (1, 2, 3)]


def test_a_state_has_what_tasks_have_written_and_what_they_have_handed_over(world: World) -> None:
    world.go()
    heads = read_state(world.store, world.visible[-1].state, STAGES).heads
    assert {place: len(head.blobs) for place, head in heads.items()} == {(1, 0): 3, (1, 1): 3}


def prepared_up_to(world: World, lsn: int) -> None:
    """A run of which the newest batch, up to a commit, did not become visible."""
    world.go()
    keeper = StateKeeper(world.store, STAGES)
    keeper.open(world.visible[-1].state)
    keeper.prepare({"lsn": lsn}, [])
    world.newest, world.visible_before = 8, len(world.visible)


def test_an_output_that_is_told_batches_again_gets_the_one_that_was_prepared_and_then_others(
    world: World,
) -> None:
    prepared_up_to(world, 6)
    world.go(repeats=True)
    assert [batch.header.to_lsn for batch in world.visible[world.visible_before :]] == [6, 7, 8]


def test_an_output_that_keeps_earlier_runs_away_gets_another_batch(world: World) -> None:
    prepared_up_to(world, 6)
    world.go()
    assert [batch.header.to_lsn for batch in world.visible[world.visible_before :]] == [4, 5, 6, 7, 8]


def test_a_run_that_takes_what_is_there_asks_for_its_end_once(world: World) -> None:
    world.go()
    assert world.asked == [(0, 50, 99), (1, 50, 99), (2, 50, 99), (3, 50, 99)]


def test_the_next_run_goes_on_where_the_output_ends(world: World) -> None:
    world.go()
    world.newest = 4
    world.go()
    assert world.happened == one_batch(3)
    assert world.asked[4:] == [(3, 50, 99), (4, 50, 99)]


def test_workers_are_told_the_newest_manifests_that_this_run_has_written(world: World) -> None:
    world.newest = 20
    world.go()
    names = ["", *(batch.state for batch in world.visible)]
    assert [known.name for known in world.known] == names[:20]
    for number, known in enumerate(world.known):
        told = [manifest.name for manifest in known.manifests]
        assert told == names[max(1, number - 15) : number + 1]


@pytest.mark.parametrize(("limit", "told"), [(1, [0, 0, 0]), (500, [0, 1, 2])])
def test_manifests_that_are_too_large_together_stay_in_the_store(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: int, told: list[int]
) -> None:
    monkeypatch.setattr("slackwater.pipeline.runner._CARRIED_MANIFEST_BYTES", limit)
    world.newest = 9
    world.go()
    sizes = {name.partition("/")[2]: len(data) for name, data in world.store.files.items()}
    names = ["", *(batch.state for batch in world.visible)]
    for number, known in enumerate(world.known):
        own = [manifest.name for manifest in known.manifests]
        assert sum(sizes[name] for name in own) <= limit
        assert own == names[number + 1 - len(own) : number + 1]
    assert [len(known.manifests) for known in world.known][:3] == told
    assert len(world.known[8].manifests) < 8


def fails(error: Exception) -> Hook:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("step", ["run 1", "prepare 1", "write 1"])
def test_a_batch_that_fails_before_it_is_visible_is_planned_anew_by_the_next_run(
    world: World, step: str
) -> None:
    """It may end elsewhere then; what the attempt has left in the store is of no interest."""
    world.hooks[step] = fails(UnavailableError("away"))
    with pytest.raises(UnavailableError):
        world.go()
    assert world.happened[-1] == step
    assert [batch.batch_id for batch in world.visible] == [0]
    world.newest = 5
    world.go()
    assert world.happened == [step for number in range(1, 5) for step in one_batch(number)]
    assert [batch.header.from_lsn for batch in world.visible] == list(range(5))
    found = read_state(world.store, world.visible[-1].state, STAGES)
    assert [blob.token for blob in found.head(1, 0).blobs] == [b"token %d" % n for n in range(5)]


@pytest.mark.parametrize("step", ["adopt 1", "tell 1"])
def test_a_batch_that_is_visible_is_not_computed_again(world: World, step: str) -> None:
    world.hooks[step] = fails(UnavailableError("the disk is full"))
    with pytest.raises(UnavailableError):
        world.go()
    assert [batch.batch_id for batch in world.visible] == [0, 1]
    world.go()
    assert world.happened == one_batch(2)


def test_a_run_that_begins_with_a_copied_state_goes_on_behind_it(world: World) -> None:
    world.newest = 6
    world.go(beginning=4)
    assert world.happened == [
        *one_batch(0)[1:],
        *(step.replace("plan 2", "plan 5") for step in one_batch(1)),
        *(step.replace("plan 3", "plan 6") for step in one_batch(2)),
    ]
    assert [batch.header.to_lsn for batch in world.visible] == [4, 5, 6]
    world.newest = 7
    world.go(beginning=6)
    assert [batch.header.to_lsn for batch in world.visible] == [4, 5, 6, 7], "it has begun already"


def test_a_run_that_is_to_stop_does_not_begin_with_a_copied_state(world: World) -> None:
    world.stop.set()
    world.go(beginning=4)
    assert world.happened == []


def test_a_run_that_was_overtaken_ends(world: World) -> None:
    world.hooks["write 1"] = fails(run_overtaken("orders", "epoch"))
    with pytest.raises(OvertakenError):
        world.go()
    assert world.happened[-1] == "write 1"


@pytest.mark.parametrize(
    ("step", "last", "visible"),
    [
        ("plan 2", "run 1", 1),
        ("run 1", "run 1", 1),
        ("prepare 1", "tell 1", 2),
        ("write 1", "tell 1", 2),
        ("tell 1", "tell 1", 2),
    ],
)
def test_a_run_that_is_to_stop_finishes_what_it_has_begun_to_keep_and_begins_nothing(
    world: World, step: str, last: str, visible: int
) -> None:
    world.hooks[step] = world.stop.set
    world.go()
    assert world.happened[-1] == last
    assert len(world.visible) == visible
    world.stop.clear()
    world.go()
    assert [batch.header.to_lsn for batch in world.visible] == [1, 2, 3]


def test_a_run_that_is_to_stop_before_it_begins_does_nothing(world: World) -> None:
    world.stop.set()
    world.go()
    assert world.happened == []


def test_a_live_run_waits_for_what_is_new_until_it_is_stopped(world: World) -> None:
    def more() -> None:
        world.newest += 1
        world.hooks["idle"] = world.stop.set

    world.hooks["idle"] = more
    world.go(available_now=False)
    assert world.happened == [*one_batch(0), *one_batch(1), *one_batch(2), "idle", *one_batch(3), "idle"]
    assert {target for _, _, target in world.asked} == {None}


def test_an_idle_run_ends_when_spark_is_lost(world: World) -> None:
    def lose() -> None:
        world.is_spark_lost = True

    world.hooks["idle"] = lose
    with pytest.raises(ConnectionError, match="JVM ended"):
        world.go(available_now=False)
    assert len(world.visible) == 3


def test_a_stretch_without_anything_to_read_is_no_batch(world: World) -> None:
    world.without_batch = {1, 3}
    world.go()
    assert world.happened == ["plan 1", "plan 2", *one_batch(0)[1:], "plan 3"]
    assert [(batch.batch_id, batch.header.to_lsn) for batch in world.visible] == [(0, 2)]


def test_a_batch_is_told_with_what_its_parts_took(world: World) -> None:
    world.newest = 1
    world.go()
    [batch] = world.told
    assert (batch.batch_id, batch.commit_lsn, batch.events, batch.transactions) == (0, 1, 2, 1)
    assert (batch.documents, batch.deletes, batch.was_covered) == (2, 1, False)
    assert batch.delay.total_seconds() == 2.0
    assert list(batch.seconds) == ["plan", "read", "evaluate", "schedule", "state", "produce", "commit"]
    assert [batch.seconds[name] for name in ("read", "evaluate", "produce", "commit")] == [0.1, 0.2, 0.3, 0.4]
    assert all(seconds >= 0 for seconds in batch.seconds.values()), "also where clocks do not agree"


def test_files_of_attempts_that_were_lost_are_removed_some_time_later(world: World) -> None:
    world.hooks["write 0"] = fails(UnavailableError("away"))
    with pytest.raises(UnavailableError):
        world.go()
    lost = set(world.store.files)
    assert lost
    world.newest = 40
    world.go()
    assert not lost & set(world.store.files)


@pytest.mark.parametrize("step", ["plan 2", "run 1", "prepare 1", "write 1"])
def test_a_step_that_does_not_end_makes_the_run_silent_and_the_next_one_ends_that(
    world: World, step: str
) -> None:
    seen: list[float] = []

    def block() -> None:
        world.clock.seconds += 40
        seen.append(world.monitor.silent_seconds)

    world.hooks[step] = block
    following = {"plan 2": "run 1", "run 1": "prepare 1", "prepare 1": "write 1", "write 1": "adopt 1"}[step]
    if following != "adopt 1":
        world.hooks[following] = lambda: seen.append(world.monitor.silent_seconds)
    world.go()
    assert seen[0] == 40
    assert seen[1:] in ([], [0])
    assert world.monitor.silent_seconds == 0


def test_a_run_is_ready_once_a_batch_is_visible(world: World) -> None:
    before: list[str | None] = []
    world.hooks["adopt 0"] = lambda: before.append(world.monitor.not_ready())
    world.hooks["plan 2"] = lambda: before.append(world.monitor.not_ready())
    world.go()
    assert before == [
        "it has made no batch visible since it started, and has not found that none is missing",
        None,
    ]


def test_a_run_is_ready_once_it_finds_that_nothing_is_missing(world: World) -> None:
    world.go()
    world.monitor = RunMonitor("orders", "inv", world.clock)
    world.hooks["idle"] = world.stop.set
    world.go(available_now=False)
    assert world.monitor.not_ready() is None


def test_a_run_without_any_cut_is_not_ready(world: World) -> None:
    world.newest = 0
    world.hooks["idle"] = world.stop.set
    world.go(available_now=False)
    assert world.monitor.not_ready() is not None
    assert world.monitor.silent_seconds == 0
