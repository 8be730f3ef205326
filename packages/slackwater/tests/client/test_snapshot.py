"""Views as of one commit, from topics that a pipeline has written, over a broker in memory and a real one.

How the promises were seen to fail. One commit: ``ends_at`` returns `newest`. Compaction while the topic is
read: ``_fold_newest`` returns its first position.
"""

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from slackwater.client import (
    NotVisibleError,
    ReadableStates,
    ReadLevel,
    StateNotKeptError,
    TopicOutput,
    TypedRows,
    ViewSnapshot,
    VisibleCommit,
    read_views,
    read_views_async,
    wait_visible,
    wait_visible_async,
)
from slackwater.client.snapshot import Key, common_position
from slackwater.client.transaction import Place
from slackwater.protocol import (
    CommitPosition,
    ConfigError,
    KafkaSettings,
    Lease,
    SystemClock,
    encode_lease_record,
    epoch_ms,
    lease_record_key,
)
from slackwater.protocol.keys import LEASES_TOPIC, commit_topic, progress_topic
from slackwater_lab.fakes.broker import MemoryBroker, MemoryReader
from slackwater_lab.fakes.outputs import Change, MemoryTopics, ViewWriter, World

NOTHING = timedelta(0)
Open = Callable[..., TopicOutput]


@pytest.fixture
def open_output(world: World) -> Iterator[Open]:
    found: list[TopicOutput] = []

    def make(name: str) -> TopicOutput:
        found.append(TopicOutput(world.kafka, name))
        return found[-1]

    yield make
    for each in found:
        each.close()


def rows(pipeline: ViewWriter, snapshot: ViewSnapshot) -> dict[str, dict[int, int]]:
    found = {}
    for view, topic in pipeline.views.items():
        documents = [json.loads(document) for document in snapshot.documents[topic]]
        found[view] = {document["id"]: document["value"] for document in documents}
        assert len(found[view]) == len(documents)
    return found


def at(lsn: int) -> CommitPosition:
    return CommitPosition(1, lsn)


def some_changes(rng: random.Random) -> list[Change]:
    picked = rng.sample([(view, key) for view in ("one", "two") for key in range(6)], rng.randrange(5))
    return [(view, key, rng.choice([None, rng.randrange(100)])) for view, key in picked]


@pytest.mark.full
def test_views_are_read_as_of_every_commit_that_was_published(world: World, open_output: Open) -> None:
    rng = random.Random(11)
    pipeline = ViewWriter(world, "one", "two")
    for _ in range(25):
        if rng.random() < 0.2:
            pipeline.publish(*some_changes(rng), commits=False)
        pipeline.publish(*some_changes(rng))
    output = open_output(pipeline.name)
    newest = read_views([output])
    assert (newest.source, newest.position) == ("inv", at(pipeline.lsn))
    assert rows(pipeline, newest) == pipeline.states[pipeline.lsn]
    for lsn in range(100, pipeline.lsn + 1, 50 if isinstance(world.kafka, MemoryBroker) else 450):
        snapshot = read_views([output], at=at(lsn))
        assert snapshot.position == at(lsn)
        assert rows(pipeline, snapshot) == pipeline.states[lsn - lsn % 100]


class BehindReader(MemoryReader):
    """Sees the end of commit topics before the marker of the newest transaction has arrived there."""

    def bounds(self, place: Place) -> tuple[int, int]:
        low, end = super().bounds(place)
        return low, end - 2 if place[0].endswith(commit_topic("")) else end


class BehindBroker(MemoryBroker):
    def reader(self) -> MemoryReader:
        return BehindReader(self)


def test_commit_records_are_waited_for_if_their_marker_arrives_after_that_of_the_progress() -> None:
    broker = BehindBroker()
    world = World(broker, MemoryTopics(broker), ExitStack())
    pipeline = ViewWriter(world, "one")
    for value in (10, 20, 30):
        pipeline.publish(("one", 1, value))
    with closing(TopicOutput(broker, pipeline.name)) as output:
        for lsn in pipeline.states:
            assert rows(pipeline, read_views([output], at=at(lsn))) == pipeline.states[lsn]
        states = output.states([pipeline.views["one"]])
    assert states is not None
    assert states.ends == [at(lsn) for lsn in (100, 200, 300)]


@pytest.mark.full
def test_pipelines_of_a_chain_are_read_together(world: World, open_output: Open) -> None:
    up, down = ViewWriter(world, "one"), ViewWriter(world, "two")
    down.source = f"{up.name}_prefix"
    up.publish(("one", 1, 10))
    down.publish(("two", 1, 20))
    outputs = [open_output(up.name), open_output(down.name)]
    for read in (read_views, partial(wait_visible, at=at(100))):
        with pytest.raises(ConfigError, match=f"{down.name} of {down.source}.*started with this version"):
            read(outputs, timeout=NOTHING)
    up.root = down.root = "inv"
    up.publish(("one", 1, 11))
    down.publish(("two", 1, 21))
    snapshot = read_views(outputs, timeout=NOTHING)
    assert (snapshot.source, snapshot.position, snapshot.is_consistent) == ("inv", at(200), True)
    assert wait_visible(outputs, at(200), timeout=NOTHING) == at(200)
    assert asyncio.run(read_views_async(outputs, timeout=NOTHING)) == snapshot


def test_a_lease_that_was_ended_is_refused(world: World, open_output: Open) -> None:
    pipeline = ViewWriter(world, "one")
    pipeline.publish(("one", 1, 10))
    lease = Lease(
        id=pipeline.name,
        source="inv",
        timeline=1,
        commit_lsn=100,
        pipelines=(pipeline.name,),
        holder="",
        taken_ms=0,
        expires_ms=2**50,
    )
    world.topics.make(LEASES_TOPIC)
    with pytest.raises(StateNotKeptError, match="was ended"):
        read_views([open_output(pipeline.name)], at=lease)  # compaction removes the end of a lease, too
    for record, is_held in ((None, False), (encode_lease_record(lease), True), (None, False)):
        world.topics.begin()
        world.topics.write((LEASES_TOPIC, 0), record, lease_record_key(lease))
        world.topics.end()
        if is_held:
            assert read_views([open_output(pipeline.name)], at=lease).position == at(100)
        else:
            with pytest.raises(StateNotKeptError, match="was ended"):
                read_views([open_output(pipeline.name)], at=lease)


def test_one_view_and_one_key_are_read(world: World, open_output: Open) -> None:
    pipeline = ViewWriter(world, "one", "two")
    pipeline.publish(("one", 1, 10), ("one", 2, 20), ("two", 1, 30))
    topic = pipeline.views["one"]
    found = read_views([open_output(pipeline.name)], [topic], key={"id": 2})
    assert {view: [json.loads(each) for each in held] for view, held in found.documents.items()} == {
        topic: [{"id": 2, "value": 20}]
    }


def test_a_key_that_no_view_has_is_refused_with_the_one_that_it_has(world: World, open_output: Open) -> None:
    pipeline = ViewWriter(world, "one", "two")
    pipeline.publish(("one", 1, 10), ("two", 1, 30))
    with pytest.raises(ConfigError, match="no view that was read has the key ids") as refused:
        read_views([open_output(pipeline.name)], [pipeline.views["one"]], key={"ids": 1})
    assert refused.value.hint.startswith("did you mean id?")
    assert f"the key of {pipeline.views['one']} is id" in refused.value.hint
    # One that holds no document at the moment is an answer.
    found = read_views([open_output(pipeline.name)], [pipeline.views["one"]], key={"id": 7})
    assert list(found.documents.values()) == [[]]


def test_what_is_not_visible_yet_is_said(world: World, open_output: Open) -> None:
    pipeline = ViewWriter(world, "one")
    pipeline.publish(("one", 1, 10))
    output = open_output(pipeline.name)
    with pytest.raises(
        NotVisibleError, match="newest visible commit is 1/0/64, but commit 1/0/65 was requested"
    ):
        read_views([output], at=at(101))
    with pytest.raises(NotVisibleError, match="newest visible commit is 1/0/64"):
        wait_visible([output], at(101), timeout=NOTHING)
    assert wait_visible([output], at(77), timeout=NOTHING) == at(100)


def test_states_of_batches_are_known_while_nothing_was_published_since(
    world: World, open_output: Open
) -> None:
    pipeline = ViewWriter(world, "one", "two", is_latest=True)
    pipeline.publish(("one", 1, 10), ("two", 1, 10))
    pipeline.publish(("two", 1, 11))
    pipeline.publish()
    output = open_output(pipeline.name)
    assert rows(pipeline, read_views([output])) == pipeline.states[300]
    assert rows(pipeline, read_views([output], at=at(200))) == pipeline.states[200]
    with pytest.raises(StateNotKeptError, match="publishes batches"):
        read_views([output], at=at(150))


def test_states_before_the_first_one_are_not_made_up(world: World, open_output: Open) -> None:
    pipeline = ViewWriter(world, "one")
    pipeline.batch_id, pipeline.lsn = 4, 500
    pipeline.states[500] = {"one": {}}
    pipeline.publish(("one", 1, 10))
    pipeline.publish(("one", 1, 11))
    with pytest.raises(StateNotKeptError, match="no state before 1/0/1F4"):
        read_views([open_output(pipeline.name)], at=at(400))


def test_unknown_views_and_pipelines_are_named(world: World, open_output: Open) -> None:
    pipeline = ViewWriter(world, "one")
    pipeline.publish(("one", 1, 10))
    with pytest.raises(ConfigError, match="view 'three' exists in none of"):
        read_views([open_output(pipeline.name)], ["three"])
    world.topics.make(progress_topic("nobody"))
    with pytest.raises(ConfigError, match="no pipeline 'nobody' has written"):
        read_views([open_output("nobody")])


def test_several_pipelines_are_read_at_the_commit_that_all_have_reached(
    world: World, open_output: Open
) -> None:
    first, second = ViewWriter(world, "one"), ViewWriter(world, "two")
    for number in range(3):
        first.publish(("one", 1, number))
    for number in range(5):
        second.publish(("two", 1, number))
    outputs = [open_output(first.name), open_output(second.name)]
    snapshot = read_views(outputs)
    assert snapshot.position == at(300)
    assert rows(first, snapshot) == first.states[300]
    assert rows(second, snapshot) == second.states[300]


def test_pipelines_that_publish_batches_are_read_where_batches_of_all_ended(
    world: World, open_output: Open
) -> None:
    first, second = ViewWriter(world, "one", is_latest=True), ViewWriter(world, "two", is_latest=True)
    first.publish(("one", 1, 1))
    for number in range(3):
        second.publish(("two", number, 1), ("two", 0, number))
    outputs = [open_output(first.name), open_output(second.name)]

    snapshot = read_views(outputs, timeout=NOTHING)

    assert (snapshot.position, snapshot.is_consistent) == (at(100), True)
    assert rows(first, snapshot) == first.states[100]
    assert rows(second, snapshot) == second.states[100]


def test_at_level_uncommitted_each_pipeline_is_read_at_its_own_commit(
    world: World, open_output: Open
) -> None:
    """The weaker level shows a pair of states that the database never had; the stronger one does not."""
    first, second = ViewWriter(world, "one", is_latest=True), ViewWriter(world, "two", is_latest=True)
    for number in range(1, 3):
        first.publish(("one", 1, number))
    for number in range(1, 5):
        second.publish(("two", 1, number))
    outputs = [open_output(first.name), open_output(second.name)]

    loose = read_views(outputs, level=ReadLevel.UNCOMMITTED)
    strict = read_views(outputs)

    assert (rows(first, loose)["one"], rows(second, loose)["two"]) == ({1: 2}, {1: 4})
    one, two = first.views["one"], second.views["two"]
    assert loose.positions == {one: at(200), two: at(400)}
    assert (loose.position, loose.is_consistent) == (at(200), False)
    assert rows(first, strict)["one"] == rows(second, strict)["two"] == {1: 2}
    assert strict.positions == {one: at(200), two: at(200)}


def test_a_commit_and_the_level_without_one_exclude_each_other(world: World, open_output: Open) -> None:
    pipeline = ViewWriter(world, "one")
    pipeline.publish(("one", 1, 1))
    with pytest.raises(ConfigError, match="commit 1/0/64 was requested at level uncommitted"):
        read_views([open_output(pipeline.name)], at=at(100), level=ReadLevel.UNCOMMITTED)


class StoppedClock(SystemClock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.moment = super().now()

    def now(self) -> datetime:
        return self.moment


KEPT = timedelta(minutes=10)
MARGIN = timedelta(minutes=1)


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture
def compacted(memory: World, clock: StoppedClock) -> Callable[[str], tuple[ViewWriter, TopicOutput]]:
    """Makes pipelines that publish batches of one view into a topic that is compacted after a while."""
    memory.kafka = broker = MemoryBroker(clock=clock)
    memory.topics = MemoryTopics(broker)

    def make(view: str) -> tuple[ViewWriter, TopicOutput]:
        pipeline = ViewWriter(memory, view, is_latest=True)
        broker.compaction_lags[pipeline.views[view]] = KEPT
        return pipeline, TopicOutput(broker, pipeline.name, clock)

    return make


Compacted = Callable[[str], tuple[ViewWriter, TopicOutput]]


def test_the_end_of_a_batch_is_readable_while_nothing_can_have_been_compacted(
    compacted: Compacted, clock: StoppedClock
) -> None:
    pipeline, output = compacted("one")
    pipeline.publish(("one", 1, 10))
    clock.moment += timedelta(hours=1)
    for value in (11, 12):
        pipeline.publish(("one", 1, value))
    clock.moment += KEPT - MARGIN - timedelta(milliseconds=1)

    assert rows(pipeline, read_views([output], at=at(200))) == pipeline.states[200]
    with pytest.raises(StateNotKeptError, match=r"no batch ends at .*, or its documents may already have"):
        read_views([output], at=at(100))

    clock.moment += timedelta(milliseconds=1)
    with pytest.raises(StateNotKeptError, match=r"no batch ends at .*, or its documents may already have"):
        read_views([output], at=at(200))
    assert rows(pipeline, read_views([output], at=at(300))) == pipeline.states[300]


@pytest.mark.integration
def test_the_configuration_of_a_topic_says_for_how_long_ends_of_batches_are_kept(kafka: World) -> None:
    pipeline = ViewWriter(kafka, "one", is_latest=True)
    for value in (10, 11):
        pipeline.publish(("one", 1, value))
    assert isinstance(kafka.kafka, KafkaSettings)
    with closing(TopicOutput(kafka.kafka, pipeline.name)) as output:
        for lag, is_kept in ((KEPT, True), (MARGIN, False), (timedelta(0), False)):
            lag_ms = int(lag.total_seconds() * 1000)
            configure(kafka.kafka, pipeline.views["one"], f"{lag_ms}")
            with (
                nullcontext()
                if is_kept
                else pytest.raises(StateNotKeptError, match="may already have been removed")
            ):
                assert rows(pipeline, read_views([output], at=at(100))) == pipeline.states[100]


def configure(kafka: KafkaSettings, topic: str, lag_ms: str) -> None:
    """Has a topic compacted after a while."""
    wanted = {"cleanup.policy": "compact", "min.compaction.lag.ms": lag_ms}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in wanted.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)


def test_a_lag_that_was_raised_does_not_bring_back_what_may_be_gone(
    compacted: Compacted, clock: StoppedClock
) -> None:
    pipeline, output = compacted("one")
    pipeline.publish(("one", 1, 10))
    clock.moment += MARGIN
    pipeline.publish(("one", 1, 11))
    clock.moment += KEPT - 2 * MARGIN + timedelta(milliseconds=1)
    pipeline.lag_ms, pipeline.raised_ms = int(KEPT / timedelta(milliseconds=1)), epoch_ms(clock.moment)
    pipeline.publish(("one", 1, 12))
    output._broker.compaction_lags[pipeline.views["one"]] = 10 * KEPT  # type: ignore[attr-defined]  # noqa: SLF001
    for later in (timedelta(0), KEPT):
        clock.moment += later
        with pytest.raises(StateNotKeptError, match="may already have been removed"):
            read_views([output], at=at(100))
        assert rows(pipeline, read_views([output], at=at(200))) == pipeline.states[200]


def test_between_the_ends_of_batches_nothing_is_readable(compacted: Compacted) -> None:
    pipeline, output = compacted("one")
    for value in (10, 11):
        pipeline.publish(("one", 1, value))
    with pytest.raises(StateNotKeptError, match="no batch ends at"):
        read_views([output], at=at(150))


def test_a_state_that_may_be_compacted_away_while_it_is_read_is_refused(
    compacted: Compacted, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, output = compacted("one")
    for value in (10, 11):
        pipeline.publish(("one", 1, value))
    fold = output._fold  # noqa: SLF001

    def slow_fold(*arguments: Any) -> int:
        count = fold(*arguments)
        clock.moment += KEPT
        return count

    monkeypatch.setattr(output, "_fold", slow_fold)
    with pytest.raises(StateNotKeptError, match="may already have been removed"):
        read_views([output], at=at(100))


def test_a_pipeline_that_is_behind_is_named(compacted: Compacted, clock: StoppedClock) -> None:
    (first, one), (second, two) = compacted("one"), compacted("two")
    first.publish(("one", 1, 1))
    second.publish(("two", 1, 1))
    stopped = clock.moment
    assert read_views([one, two], timeout=NOTHING).position == at(100)
    clock.moment += KEPT
    for number in range(3):
        second.publish(("two", 1, number))

    with pytest.raises(StateNotKeptError) as refused:
        read_views([one, two], timeout=NOTHING)

    assert f"'{first.name}' is behind, at 1/0/64 since {stopped:%Y-%m-%d %H:%M:%S} UTC" in str(refused.value)
    assert f"'{second.name}' can be read from 1/0/C8 to 1/0/190" in str(refused.value)
    assert rows(second, read_views([two])) == second.states[400], "alone it waits for nobody"


def states(newest: int, *ends: int, every_from: int | None = None) -> ReadableStates:
    return ReadableStates(
        VisibleCommit("inv", at(newest)),
        SystemClock().now(),
        [at(end) for end in ends],
        None if every_from is None else at(every_from),
    )


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([states(500)], 500),
        ([states(500), states(300)], None),
        ([states(500, 200, 300, 400), states(300, 100)], 300),
        ([states(500, 200, 300, 400), states(350, 100, 200)], 200),
        ([states(500, 100, 400), states(350, 200, 300), states(600, every_from=0)], None),
        ([states(500, every_from=0), states(300, every_from=0)], 300),
        ([states(500, every_from=310), states(300, every_from=0)], None),
        ([states(500, every_from=0), states(410, 200, 300, 400), states(350, 300, 310)], 300),
    ],
)
def test_the_newest_commit_at_which_all_can_be_read_is_found(
    outputs: list[ReadableStates], expected: int | None
) -> None:
    assert common_position(outputs) == (None if expected is None else at(expected))


def test_an_output_of_which_documents_were_removed_is_refused(memory: World) -> None:
    pipeline = ViewWriter(memory, "one", partitions=1)
    pipeline.publish(("one", 1, 10))
    pipeline.publish(("one", 1, 11))
    broker: MemoryBroker = memory.broker
    broker.truncate((pipeline.views["one"], 0), 1)
    with pytest.raises(StateNotKeptError, match="removed by retention"):
        read_views([TopicOutput(broker, pipeline.name)])


class CompactingBroker(MemoryBroker):
    """Publishes, and compacts what that replaces, when somebody begins to read the view."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.topic = topic
        self.steps: list[Callable[[], None]] = []

    def reader(self) -> MemoryReader:
        broker = self

        class Reader(MemoryReader):
            def begin(self, starts: dict[Place, int]) -> None:  # type: ignore[override]
                if any(topic.endswith(broker.topic) for topic, _ in starts) and broker.steps:
                    broker.steps.pop(0)()
                super().begin(starts)

        return Reader(self)


def test_a_document_that_is_compacted_away_while_it_is_read_is_found_in_its_newer_form(memory: World) -> None:
    broker = CompactingBroker("_one")
    memory.topics = MemoryTopics(broker)
    pipeline = ViewWriter(memory, "one", partitions=1, is_latest=True)
    for key in range(4):
        pipeline.publish(("one", key, 0))
    place = pipeline.views["one"], 0
    held = [record.offset() or 0 for record in broker.partition(place).records]

    def replace(*keys: int) -> Callable[[], None]:
        def publish() -> None:
            for key in keys:
                pipeline.publish(("one", key, pipeline.lsn))
                broker.remove(place, held[key])
                held[key] = broker.partition(place).records[-1].offset() or 0

        return publish

    broker.steps = [replace(1, 2), replace(2, 1, 3)]
    snapshot = read_views([TopicOutput(broker, pipeline.name)])
    assert snapshot.position == at(pipeline.lsn)
    assert rows(pipeline, snapshot) == pipeline.states[pipeline.lsn]


class Advancing:
    """An output that is one commit further each time it is asked."""

    pipeline = "p"

    def __init__(self, *lsns: int | None) -> None:
        self._lsns = iter(lsns)

    def views(self) -> Sequence[str]:
        return ["v"]

    def newest(self) -> VisibleCommit | None:
        lsn = next(self._lsns)
        return None if lsn is None else VisibleCommit("inv", at(lsn))

    def states(self, views: Sequence[str]) -> ReadableStates | None:
        newest = self.newest()
        return None if newest is None else ReadableStates(newest, SystemClock().now())

    def read(self, views: Sequence[str], position: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        raise StateNotKeptError("not now")

    def rows(self, view: str, position: CommitPosition) -> TypedRows:
        raise NotImplementedError

    def close(self) -> None: ...


def test_a_write_is_waited_for_in_all_outputs() -> None:
    both = [Advancing(None, 100, 200, 300), Advancing(500, 500, 500, 500)]
    assert wait_visible(both, at(250), timeout=timedelta(seconds=60)) == at(300)


def test_both_are_there_for_event_loops_too(world: World, open_output: Open) -> None:
    first, second = ViewWriter(world, "one"), ViewWriter(world, "two")
    first.publish(("one", 1, 1))
    for number in range(2):
        second.publish(("two", 1, number))
    outputs = [open_output(first.name), open_output(second.name)]

    async def act() -> None:
        snapshot = await read_views_async(outputs)
        assert snapshot.position == at(100)
        assert rows(second, snapshot) == second.states[100]
        assert await wait_visible_async(outputs, at(100), timeout=NOTHING) == at(100)
        with pytest.raises(NotVisibleError, match="newest visible commit is 1/0/64"):
            await wait_visible_async(outputs, at(200), timeout=NOTHING)

    asyncio.run(act())


def test_an_event_loop_waits_for_a_write_while_it_does_other_things() -> None:
    async def act() -> None:
        output = Advancing(None, 100, 200, 300)
        assert await wait_visible_async([output], at(250), timeout=timedelta(seconds=60)) == at(300)

    asyncio.run(act())


def test_a_look_that_has_begun_ends_before_a_cancelled_caller_goes_on() -> None:
    """Else it would continue with outputs that the caller closes."""

    class Slow(Advancing):
        begun, goes_on, is_over = threading.Event(), threading.Event(), False

        def newest(self) -> VisibleCommit | None:
            self.begun.set()
            assert self.goes_on.wait(60)
            self.is_over = True
            return None

    async def act() -> None:
        output = Slow()
        waiting = asyncio.ensure_future(wait_visible_async([output], at(1), timeout=timedelta(minutes=5)))
        while not output.begun.is_set():
            await asyncio.sleep(0.01)
        for _ in range(2):
            waiting.cancel()
            await asyncio.sleep(0)
        assert not waiting.done()
        output.goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert output.is_over

    asyncio.run(act())


def test_pipelines_of_two_databases_have_no_common_commit() -> None:
    class Other(Advancing):
        def views(self) -> Sequence[str]:
            return ["w"]

        def newest(self) -> VisibleCommit | None:
            return VisibleCommit("shop", at(1))

    with pytest.raises(ConfigError, match="different sources: p of inv, p of shop"):
        read_views([Advancing(1), Other()])
    with pytest.raises(ConfigError, match="different sources: p of inv, p of shop"):
        wait_visible([Advancing(1), Other()], at(1), timeout=NOTHING)
