"""Readers of topics are switched between revisions, over a broker in memory and a real one.

How the promises were seen to fail: reviewed mutants ``infra/mutants/reviewed/switches.toml``.
"""

import json
import random
from contextlib import closing
from datetime import timedelta

import pytest

from slackwater.client import (
    ByPartition,
    ByUnit,
    NotVisibleError,
    PipelineViews,
    StateNotKeptError,
    Transaction,
    TransactionalConsumer,
    read_views,
)
from slackwater.client.readers import Switched
from slackwater.client.topic_views import TopicReaders
from slackwater.client.transaction import LanePosition
from slackwater.protocol import CommitPosition, ConfigError, OvertakenError, StateError
from slackwater.protocol.keys import readers_topic
from slackwater_lab.fakes.broker import MemoryWriter
from slackwater_lab.fakes.outputs import ViewWriter, World

NOW = timedelta(0)
Seen = list[tuple[int, int]]
"""Commit and revision of each transaction."""


class Revisions:
    """Revisions of a pipeline with one view; a document of revision 2 has the value 2."""

    def __init__(self, world: World, *, is_latest: bool = False) -> None:
        self.world, self.name, self.is_latest = world, world.name, is_latest
        self.writers = {1: self._writer(1), 2: self._writer(2)}

    def _writer(self, revision: int) -> ViewWriter:
        name = self.name if revision == 1 else f"{self.name}.v{revision}"
        return ViewWriter(self.world, "one", is_latest=self.is_latest, name=name)

    def publish(self, revision: int, *lsns: int) -> None:
        for lsn in lsns:
            self.writers[revision].publish(("one", lsn % 4, revision), lsn=lsn)

    def switch(self, revision: int, *, accept_earlier: bool = False) -> Switched:
        writer, readers = self.writers[revision], TopicReaders(self.world.kafka, self.name)
        return readers.switch(writer.name, revision, writer.views, accept_earlier=accept_earlier, timeout=NOW)

    @property
    def inputs(self) -> PipelineViews:
        return PipelineViews(self.name, "one")


def seen(transactions: list[Transaction]) -> Seen:
    return [(each.commit.lsn, json.loads(next(iter(each)).value() or b"")["value"]) for each in transactions]


def at(lsn: int) -> CommitPosition:
    return CommitPosition(1, lsn)


@pytest.mark.full
def test_a_running_consumer_follows_a_switch_and_the_way_back_at_one_commit(world: World) -> None:
    revisions = Revisions(world)
    revisions.publish(1, 100, 200, 300)
    assert revisions.switch(1) == Switched(None, None, at(300))
    consumer = world.consumer(revisions.inputs)
    assert seen(world.read(consumer, 2)) == [(100, 1), (200, 1)]
    revisions.publish(2, 100, 200, 300, 400, 500)
    assert revisions.switch(2) == Switched(revisions.name, at(300), at(300))
    revisions.publish(1, 400, 500, 600)
    assert seen(world.read(consumer, 3)) == [(300, 1), (400, 2), (500, 2)]
    assert world.is_idle(consumer)  # although revision 1 has continued
    revisions.publish(2, 600)
    assert revisions.switch(1) == Switched(f"{revisions.name}.v2", at(600), at(600))
    revisions.publish(1, 700)
    assert seen(world.read(consumer, 2)) == [(600, 2), (700, 1)]
    assert world.is_idle(consumer)


def test_a_switch_repeats_nothing_that_was_processed_and_is_not_stored_yet(memory: World) -> None:
    revisions = Revisions(memory)
    revisions.publish(1, 100, 200)
    revisions.switch(1)
    consumer = memory.consumer(revisions.inputs, store_interval=timedelta(days=1))
    assert seen(memory.read(consumer, 2)) == [(100, 1), (200, 1)]
    revisions.publish(2, 100, 200, 300)
    revisions.switch(2)
    assert seen(memory.read(consumer, 1)) == [(300, 2)]
    assert memory.is_idle(consumer)


def test_a_member_that_takes_over_knows_the_switch_that_the_other_one_followed(memory: World) -> None:
    revisions = Revisions(memory)
    revisions.publish(1, 100)
    revisions.switch(1)
    first, waiting = memory.consumer(revisions.inputs), memory.consumer(revisions.inputs)
    assert seen(memory.read(first, 1)) == [(100, 1)]
    assert memory.is_idle(waiting)  # it has no lane, so it follows nothing
    revisions.publish(2, 100, 200)
    revisions.switch(2)
    assert seen(memory.read(first, 1)) == [(200, 2)]
    first.commit()
    first.close()
    revisions.publish(2, 300)
    assert seen(memory.read(waiting, 1)) == [(300, 2)]


@pytest.mark.full
def test_a_consumer_that_was_away_finishes_the_old_revision_first(world: World) -> None:
    revisions = Revisions(world)
    revisions.publish(1, 100, 200)
    revisions.switch(1)
    with world.consumer(revisions.inputs) as consumer:
        assert seen(world.read(consumer, 1)) == [(100, 1)]
    revisions.publish(2, 100, 200, 300)
    revisions.publish(1, 300)
    revisions.switch(2)
    revisions.publish(1, 400)
    revisions.publish(2, 400)
    with world.consumer(revisions.inputs) as again:
        assert seen(world.read(again, 3)) == [(200, 1), (300, 1), (400, 2)]
    with world.consumer(revisions.inputs) as finished:
        assert world.is_idle(finished)


@pytest.mark.full
def test_a_group_that_begins_reads_the_revision_that_is_read_now(world: World) -> None:
    revisions = Revisions(world)
    revisions.publish(1, 100)
    revisions.publish(2, 100, 200)
    revisions.switch(1)
    revisions.switch(2)
    assert seen(world.read(world.consumer(revisions.inputs, group="a"), 2)) == [(100, 2), (200, 2)]
    latest = world.consumer(revisions.inputs, group="b", latest=True)
    assert world.is_idle(latest)
    revisions.publish(1, 200)
    revisions.switch(1)  # before it has processed anything
    revisions.publish(1, 300)
    assert seen(world.read(latest, 1)) == [(300, 1)]


@pytest.mark.parametrize("is_latest", [False, True], ids=["oldest", "latest"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["away for too long", "killed"])
def test_a_group_that_has_stored_nothing_skips_nothing_after_a_switch(
    memory: World, *, is_latest: bool, is_killed: bool
) -> None:
    """The other revision has begun with a copied state, so it lacks what the group has not processed yet."""
    revisions = Revisions(memory)
    revisions.publish(1, 100, 200)
    revisions.switch(1)
    never = timedelta(days=1)
    consumer = memory.consumer(revisions.inputs, latest=is_latest, store_interval=never)
    assert memory.is_idle(consumer) if is_latest else seen(memory.read(consumer, 1)) == [(100, 1)]
    revisions.publish(1, 300, 400)
    revisions.publish(2, 400, 500)
    revisions.switch(2)
    if is_killed:
        consumer.close()  # which stores nothing, as nothing was processed
        consumer = memory.consumer(revisions.inputs, latest=is_latest)
    else:
        memory.broker.upset(f"{memory.name}.g")
    begins = [] if is_latest else [(100, 1), (200, 1)]
    assert seen(memory.read(consumer, 3 + len(begins))) == [*begins, (300, 1), (400, 1), (500, 2)]


def test_batches_are_left_where_both_revisions_end_one(world: World) -> None:
    revisions = Revisions(world, is_latest=True)
    revisions.publish(1, 100, 300)
    revisions.switch(1)
    consumer = world.consumer(revisions.inputs)
    assert seen(world.read(consumer, 1)) == [(100, 1)]
    revisions.publish(2, 200, 300)
    revisions.switch(2)
    revisions.publish(1, 350, 400)
    revisions.publish(2, 400, 500)
    assert seen(world.read(consumer, 3)) == [(300, 1), (400, 2), (500, 2)]


@pytest.mark.full
def test_who_has_passed_the_commit_goes_over_at_the_next_common_end(world: World) -> None:
    revisions = Revisions(world, is_latest=True)
    revisions.publish(1, 100, 150)
    revisions.publish(2, 100)
    revisions.switch(1)
    consumer = world.consumer(revisions.inputs)
    assert seen(world.read(consumer, 2)) == [(100, 1), (150, 1)]
    revisions.switch(2, accept_earlier=True)
    revisions.publish(2, 200)  # has changes up to 150, too
    assert world.is_idle(consumer)
    revisions.publish(1, 200)
    revisions.publish(2, 250)
    assert seen(world.read(consumer, 2)) == [(200, 1), (250, 2)]


def test_a_transaction_that_is_being_streamed_is_finished_before_a_switch(memory: World) -> None:
    revisions = Revisions(memory)
    revisions.publish(1, 100)
    revisions.publish(2, 100)
    revisions.switch(1)
    large = [("one", key, 1) for key in range(3000)]
    revisions.writers[1].publish(*large, lsn=200)
    consumer = memory.consumer(revisions.inputs, max_bytes=10_000)
    assert seen(memory.read(consumer, 1)) == [(100, 1)]
    (transaction,) = memory.read(consumer, 1)
    assert transaction.is_streamed
    assert revisions.switch(2, accept_earlier=True).position == at(100)
    revisions.publish(2, 150, 200, 300)
    assert len(list(transaction)) == len(large)
    assert seen(memory.read(consumer, 1)) == [(300, 2)]


def test_units_that_stand_in_different_revisions_come_together(memory: World) -> None:
    revisions = Revisions(memory)
    for revision in (1, 2):
        for lsn in range(100, 500, 100):
            keys = range(8) if (revision, lsn) != (2, 100) else range(1)
            revisions.writers[revision].publish(*[("one", key, revision) for key in keys], lsn=lsn)
    revisions.switch(1)
    revisions.switch(2)
    # The offset of a commit is another one in each of the logs.
    one, two = LanePosition(0, None, 1), LanePosition(6, at(300), 2)
    share = ByUnit(lambda record: record.key(), lanes=2)
    consumer = memory.consumer(revisions.inputs, share=share, positions=lambda lane: str((one, two)[lane]))
    found = [(each.lanes, *seen([each])[0]) for each in memory.read(consumer, 5)]
    assert found == [*(((0,), lsn, 1) for lsn in (100, 200, 300, 400)), ((1,), 400, 2)]


class Simulation:
    """Two revisions that continue as they like, readers that are switched, killed, and joined by others."""

    def __init__(self, world: World, seed: int, *, is_latest: bool) -> None:
        self.rng, self.world = random.Random(seed), world
        self.revisions = Revisions(world, is_latest=is_latest)
        self.is_latest = is_latest
        self.switches = self.moves = 0
        self.read: dict[int, int] = {}
        """By lane the revision."""
        self.previous: dict[tuple[int, int], int] = {}
        """By revision and commit of a batch the commit before it."""
        self.done = dict.fromkeys(range(2), 0)
        """By lane the commit that was processed."""
        self.stored: dict[int, str] = {}
        self.publish(1)
        self.publish(2)
        self.revisions.switch(1)
        self.members = [self.member(), self.member()]

    def member(self) -> TransactionalConsumer:
        share = ByUnit(lambda record: record.key(), lanes=2)
        return self.world.consumer(self.revisions.inputs, share=share, positions=self.stored.get)

    def publish(self, revision: int) -> None:
        """Publishes one more batch, which ends at the next barrier at the latest."""
        writer = self.revisions.writers[revision]
        before = writer.lsn
        barrier = before - before % 50 + 50
        lsn = self.rng.randrange(before + 10, barrier + 1, 10) if self.is_latest else before + 10
        self.previous[revision, lsn] = before
        writer.publish(*(("one", key, revision) for key in range(4)), lsn=lsn)

    def switch(self) -> None:
        try:
            self.revisions.switch(self.rng.choice((1, 2)), accept_earlier=self.rng.random() < 0.3)
            self.switches += 1
        except (NotVisibleError, StateNotKeptError):
            pass

    def poll(self) -> bool:
        number = self.rng.randrange(2)
        transaction = self.members[number].poll(NOW)
        if transaction is None:
            return False
        ((_, revision), *_) = seen([transaction])
        if self.rng.random() < 0.1:  # dies before it has done anything
            self.members[number].close()
            self.members[number] = self.member()
            return True
        for lane in transaction.lanes:
            assert self.previous[revision, transaction.commit.lsn] == self.done[lane]
            self.done[lane] = transaction.commit.lsn
            self.moves += self.read.get(lane) != revision
            self.read[lane] = revision
        self.stored.update(transaction.positions)
        return True

    def run(self, steps: int) -> None:
        does = [lambda: self.publish(1), lambda: self.publish(2), self.switch, *[self.poll] * 3]
        for _ in range(steps):
            self.rng.choice(does)()
        self.finish()

    def finish(self) -> None:
        """Lets both come to one commit, and members to the end."""
        end = max(writer.lsn for writer in self.revisions.writers.values()) // 50 * 50 + 50
        for revision, writer in self.revisions.writers.items():
            while writer.lsn < end:
                self.publish(revision)
        idle = 0
        while idle < 30:
            idle = 0 if self.poll() else idle + 1
        assert set(self.done.values()) == {end}


@pytest.mark.parametrize("is_latest", [False, True], ids=["transactions", "latest"])
@pytest.mark.parametrize("seed", range(4))
def test_every_commit_is_processed_once_however_readers_are_switched(
    memory: World, seed: int, *, is_latest: bool
) -> None:
    simulation = Simulation(memory, seed, is_latest=is_latest)
    simulation.run(800)
    assert simulation.switches > 10
    assert simulation.moves > 1


@pytest.mark.full
def test_views_are_read_from_the_revision_that_readers_were_switched_to(world: World) -> None:
    revisions = Revisions(world)
    revisions.publish(1, 100)
    revisions.publish(2, 100)
    for revision in (1, 2, 1):
        revisions.switch(revision)
        with closing(TopicReaders(world.kafka, revisions.name).open_current()) as output:
            snapshot = read_views([output])
        ((document,),) = snapshot.documents.values()
        assert json.loads(document)["value"] == revision


def test_a_switch_is_refused_that_would_take_something_from_readers(memory: World) -> None:
    revisions = Revisions(memory)
    with pytest.raises(ConfigError, match="has written to this Kafka"):
        revisions.switch(1)
    revisions.publish(1, 100, 200)
    revisions.switch(1)
    with pytest.raises(ConfigError, match="has written to this Kafka"):
        revisions.switch(2)
    revisions.publish(2, 100)
    with pytest.raises(NotVisibleError, match=r"is at 1/0/64, but readers are at 1/0/C8.*not switched"):
        revisions.switch(2)
    other = {"two": revisions.writers[2].views["one"]}
    with pytest.raises(ConfigError, match="lacks view 'one', which readers of"):
        TopicReaders(memory.kafka, revisions.name).switch(revisions.writers[2].name, 2, other, timeout=NOW)
    assert read_by(memory) == revisions.name
    assert revisions.switch(2, accept_earlier=True).position == at(100)
    assert read_by(memory) == f"{revisions.name}.v2"


def test_batches_without_a_common_end_are_a_reason_to_refuse(memory: World) -> None:
    revisions = Revisions(memory, is_latest=True)
    revisions.publish(1, 100)
    revisions.switch(1)
    revisions.publish(2, 50, 150)
    with pytest.raises(StateNotKeptError, match="no commit at which all of the pipelines can be read"):
        revisions.switch(2)
    assert read_by(memory) == revisions.name


def test_revisions_over_revisions_of_another_output_have_common_commits(memory: World) -> None:
    revisions = Revisions(memory)
    revisions.writers[2].source = "inv_v2"
    revisions.publish(1, 100)
    revisions.publish(2, 100, 200)
    revisions.switch(1)
    with pytest.raises(ConfigError, match=r"reads source 'inv' and .* reads 'inv_v2'"):
        revisions.switch(2)
    writer = revisions.writers[2]
    done = TopicReaders(memory.kafka, writer.name).switch(
        writer.name, 2, writer.views, source="root", timeout=NOW
    )
    assert done == Switched(revisions.name, at(100), at(100))
    found = TopicReaders(memory.kafka, revisions.name).newest_switch()
    assert found is not None
    assert found.source == "root"


def test_to_switch_again_changes_nothing(memory: World) -> None:
    revisions = Revisions(memory)
    revisions.publish(1, 100)
    revisions.switch(1)
    revisions.publish(1, 200)
    assert revisions.switch(1) == Switched(revisions.name, at(200), at(200))
    assert memory.broker.partition((readers_topic(revisions.name), 0)).end == 2  # with its marker


def test_of_two_who_switch_at_once_the_first_one_is_refused(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    revisions = Revisions(memory)
    revisions.publish(1, 100)
    revisions.publish(2, 100)
    revisions.switch(1)
    begin = MemoryWriter.begin

    def late(writer: MemoryWriter) -> None:
        monkeypatch.setattr(MemoryWriter, "begin", begin)
        revisions.switch(2)
        begin(writer)

    monkeypatch.setattr(MemoryWriter, "begin", late)
    with pytest.raises(OvertakenError):
        revisions.switch(2)
    assert read_by(memory) == f"{revisions.name}.v2"


def test_who_switches_sees_what_was_switched_before(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    revisions = Revisions(memory)
    revisions.publish(1, 100)
    revisions.publish(2, 100)
    revisions.switch(1)
    opened = MemoryWriter.open

    def late(writer: MemoryWriter) -> None:
        monkeypatch.setattr(MemoryWriter, "open", opened)
        revisions.switch(2)
        opened(writer)

    monkeypatch.setattr(MemoryWriter, "open", late)
    assert revisions.switch(2).before == f"{revisions.name}.v2"


def test_what_cannot_be_followed_is_refused(memory: World) -> None:
    revisions = Revisions(memory)
    for _ in range(2):
        with pytest.raises(ConfigError, match="were never switched to a revision"):
            memory.consumer(revisions.inputs)
        memory.topics.make(readers_topic(revisions.name))
    with pytest.raises(ConfigError, match="were never switched to a revision"):
        TopicReaders(memory.kafka, revisions.name).open_current()
    revisions.publish(1, 100)
    revisions.switch(1)
    with pytest.raises(ConfigError, match="revisions may differ in their partitions"):
        memory.consumer(revisions.inputs, share=ByPartition(revisions.writers[1].views["one"]))
    with pytest.raises(ConfigError, match="has no view 'two'"):
        memory.consumer(PipelineViews(revisions.name, "two"))
    with pytest.raises(ConfigError, match="no view was given"):
        PipelineViews(revisions.name)
    consumer = memory.consumer(revisions.inputs, positions=lambda _: str(LanePosition(0)))
    with pytest.raises(StateError, match="does not name a revision"):
        memory.read(consumer, 1)


def test_without_a_switch_there_is_nothing_to_follow(world: World) -> None:
    revisions = Revisions(world)
    assert TopicReaders(world.kafka, revisions.name).newest_switch() is None
    with pytest.raises(ConfigError, match="were never switched to a revision"):
        world.consumer(revisions.inputs)


@pytest.mark.full
def test_going_to_a_commit_goes_there_in_the_revision_that_is_read(world: World) -> None:
    revisions = Revisions(world)
    revisions.publish(1, 100, 200, 300)
    revisions.publish(2, 100, 200, 300)
    revisions.switch(1)
    consumer = world.consumer(revisions.inputs)
    assert seen(world.read(consumer, 3)) == [(100, 1), (200, 1), (300, 1)]
    revisions.switch(2)
    consumer.seek(200)
    assert seen(world.read(consumer, 2)) == [(200, 2), (300, 2)]


def read_by(world: World) -> str | None:
    found = TopicReaders(world.kafka, world.name).newest_switch()
    return None if found is None else found.pipeline
