"""What a sink does when its topics are not as it left them, and when another run has begun."""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import Emit, SinkStep
from slackwater.outputs.kafka.answers import SinkProducer, TransactionFailedError
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.protocol import OvertakenError, ProgressRecord, StateError, encode_progress_record
from slackwater_lab.topics import make_topics

pytestmark = pytest.mark.integration

MakeBatch = Callable[..., DocumentBatch]
MakeSettings = Callable[..., KafkaSinkSettings]
Topics = Any  # the reader of conftest.py
Damage = Callable[["Broker", KafkaSinkSettings], None]
QUERY = "0f5c2f6e-query"


class Broker:
    """What somebody with the rights may do to topics."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def delete(self, *topics: str) -> None:
        done(self._admin.delete_topics(list(topics)).values())
        while self.topics().intersection(topics):
            pass

    def grow(self, topic: str, partitions: int) -> None:
        done(self._admin.create_partitions([NewPartitions(topic, partitions)]).values())

    def truncate(self, topic: str, partitions: Iterable[int], to: int) -> None:
        places = [TopicPartition(topic, partition, to) for partition in partitions]
        done(self._admin.delete_records(places).values())

    def write(self, topic: str) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        producer.produce(topic, b"foreign", b"key", partition=0)
        assert producer.flush(20) == 0

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=20).topics)


def done(futures: Iterable["Future[Any]"]) -> None:
    for future in futures:
        future.result(20)


@pytest.fixture
def broker(bootstrap: str) -> Broker:
    return Broker(bootstrap)


def run(settings: KafkaSinkSettings, batches: list[DocumentBatch], **options: Any) -> None:
    sink = KafkaSink(settings, **options)
    try:
        sink.open()
        for batch in batches:
            sink.write(QUERY, batch)
    finally:
        sink.close()


def out(settings: KafkaSinkSettings) -> str:
    return settings.outputs[0].name


def delete_output(broker: Broker, settings: KafkaSinkSettings) -> None:
    broker.delete(out(settings))


def delete_commits(broker: Broker, settings: KafkaSinkSettings) -> None:
    broker.delete(settings.outputs[0].commits)


def delete_progress(broker: Broker, settings: KafkaSinkSettings) -> None:
    broker.delete(settings.progress_topic)


def delete_progress_and_commits(broker: Broker, settings: KafkaSinkSettings) -> None:
    broker.delete(settings.progress_topic, *(output.commits for output in settings.outputs))


def replace_output(broker: Broker, settings: KafkaSinkSettings) -> None:
    delete_output(broker, settings)
    make_topics(broker.bootstrap, [out(settings)], 4)


def truncate_output(broker: Broker, settings: KafkaSinkSettings) -> None:
    broker.truncate(out(settings), range(4), to=1)


def add_partitions(broker: Broker, settings: KafkaSinkSettings) -> None:
    broker.grow(out(settings), 6)


def write_to_output(broker: Broker, settings: KafkaSinkSettings) -> None:
    broker.write(out(settings))


BETWEEN_RUNS: list[tuple[Damage, str]] = [
    (truncate_output, r"out': .*starts at offset 1.*retention"),
    (replace_output, "out': .*deleted and recreated"),
    (delete_commits, "out.commits': expected the topic .* found none"),
    (write_to_output, "out': expected only records.*record of another writer"),
    (add_partitions, r"out': expected 4 partition\(s\).*found 6"),
]


@pytest.mark.full
def test_topics_that_were_changed_between_two_runs_are_refused_until_they_are_accepted(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, broker: Broker
) -> None:
    """Accepted once, the next start finds them as they were left. All changes: test_guard.py."""
    settings = make_settings(Emit.TRANSACTIONS)
    run(settings, [make_batch(0), make_batch(1)])
    for number, (damage, told) in enumerate(BETWEEN_RUNS, start=2):
        damage(broker, settings)
        known = broker.topics()
        with pytest.raises(StateError, match=told) as refused:
            run(settings, [make_batch(number)])
        assert "--accept-changed-output" in str(refused.value)
        assert broker.topics() == known, "a refused start makes no topics"
        run(replace(settings, accept_changed_output=True), [])
        run(settings, [make_batch(number)])
        assert [p.batch_id for p in topics.progress(settings)] == list(range(number + 1))


@pytest.mark.full
@pytest.mark.parametrize("damage", [delete_progress, delete_progress_and_commits])
def test_an_output_that_outlived_its_progress_is_not_written_again(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    broker: Broker,
    damage: Damage,
) -> None:
    settings = make_settings()
    run(settings, [make_batch(0)])
    damage(broker, settings)
    with pytest.raises(StateError, match="nobody has written to yet"):
        run(settings, [make_batch(0)])
    assert len(topics.documents(settings)) == 10
    run(replace(settings, accept_changed_output=True), [make_batch(0)])
    assert len(topics.documents(settings)) == 20, "what is accepted"


def test_an_older_progress_than_the_commit_records_is_refused(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    """As after a loss of the newest records of the progress topic alone."""
    settings = make_settings()
    run(settings, [make_batch(0)])
    [older] = [r for r in topics.records(settings.progress_topic) if b'"batch_id":0' in (r.value or b"")]
    run(settings, [make_batch(1)])
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap, "enable.idempotence": True})
    producer.produce(settings.progress_topic, older.value, settings.pipeline.encode())
    assert producer.flush(20) == 0
    with pytest.raises(StateError, match=r"commit record of batch 0, at 0/A, found 0/14 of timeline 1"):
        run(settings, [make_batch(1)])


def test_an_output_to_which_somebody_else_has_written_is_not_taken(
    make_settings: MakeSettings, make_batch: MakeBatch, broker: Broker
) -> None:
    settings = make_settings()
    make_topics(broker.bootstrap, [out(settings)], 4)
    broker.write(out(settings))
    with pytest.raises(StateError, match=r"nobody has written to yet.*offset 0 of partition 0"):
        run(settings, [make_batch(0)])


def test_topics_may_be_made_anew_while_nothing_is_visible(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, broker: Broker
) -> None:
    settings = make_settings()
    run(settings, [])
    replace_output(broker, settings)
    delete_commits(broker, settings)
    run(settings, [make_batch(0)])
    assert len(topics.documents(settings)) == 10


def test_compaction_does_not_change_a_topic(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, broker: Broker
) -> None:
    """Aborted records and gaps, as compaction leaves them, do not count."""
    settings = make_settings()
    run(settings, [make_batch(0)])
    producer = SinkProducer(settings)
    producer.open()
    producer.begin()
    producer.produce(out(settings), b"x", b"aborted", [], None)
    producer.flush()
    producer.abort()
    producer.discard()
    run(settings, [make_batch(1)])
    assert len(topics.documents(settings)) == 20


def test_progress_of_an_older_version_is_continued(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    settings = make_settings()
    run(settings, [make_batch(0)])
    old = ProgressRecord(
        pipeline=settings.pipeline, query_id=QUERY, batch_id=0, source="inv", timeline=1, commit_lsn=10
    )
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap, "enable.idempotence": True})
    producer.produce(settings.progress_topic, encode_progress_record(old), settings.pipeline.encode())
    assert producer.flush(20) == 0
    run(settings, [make_batch(1)])
    assert [p.batch_id for p in topics.progress(settings)] == [0, 1]
    assert topics.progress(settings)[1].topics.keys() == {out(settings), settings.outputs[0].commits}


DELETIONS = [
    pytest.param(it, marks=pytest.mark.slow) for it in (delete_output, delete_commits, delete_progress)
]


@pytest.mark.full
@pytest.mark.parametrize("damage", [*DELETIONS, add_partitions, write_to_output])
def test_a_topic_that_is_changed_while_a_run_writes_ends_the_run(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    broker: Broker,
    damage: Damage,
) -> None:
    """Seen to be reported as brokers that do not answer, when the progress topic was deleted."""
    times = {"request_timeout": timedelta(seconds=5), "patience": timedelta(seconds=10)}
    settings = replace(make_settings(), **times)  # type: ignore[arg-type]
    sink = KafkaSink(settings)
    sink.open()
    sink.write(QUERY, make_batch(0))
    damage(broker, settings)
    with pytest.raises(StateError, match=r"deleted|found 6|another writer") as told:
        sink.write(QUERY, make_batch(1))
    sink.close()
    assert "--accept-changed-output" in str(told.value)
    if damage is not delete_progress:
        assert [p.batch_id for p in topics.progress(settings)] == [0]
    if damage is add_partitions:
        assert len(topics.documents(settings)) == 10


@pytest.mark.full
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(delete_output, marks=pytest.mark.slow),
        pytest.param(delete_commits, marks=pytest.mark.slow),
        replace_output,
        add_partitions,
        write_to_output,
    ],
)
def test_a_topic_of_several_views_that_is_changed_while_a_run_writes_ends_the_run_until_it_is_accepted(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    broker: Broker,
    in_one_topic: Callable[[KafkaSinkSettings], KafkaSinkSettings],
    damage: Damage,
) -> None:
    """The change is named once, whichever views are in the topic, and the next run accepts it."""

    def batch(number: int) -> DocumentBatch:
        return make_batch(number, others={1: [(10 * number + 1, b'{"id":1,"two":1}', b"two")]})

    times = {"request_timeout": timedelta(seconds=5), "patience": timedelta(seconds=10)}
    settings = replace(in_one_topic(make_settings(Emit.TRANSACTIONS)), **times)  # type: ignore[arg-type]
    sink = KafkaSink(settings)
    sink.open()
    sink.write(QUERY, batch(0))
    damage(broker, settings)
    with pytest.raises(StateError, match=r"deleted|found 6|another writer") as told:
        sink.write(QUERY, batch(1))
    sink.close()
    assert str(told.value).count(f"topic {out(settings)!r}") <= 1
    assert "--accept-changed-output" in str(told.value)
    assert [p.batch_id for p in topics.progress(settings)] == [0]
    run(replace(settings, accept_changed_output=True), [batch(1)])
    run(settings, [batch(2)])
    of_view = [record.headers.get("slackwater-view") for record in topics.documents(settings)]
    assert [of_view.count(view) for view in (b"one", b"two")] in ([30, 3], [20, 2])
    assert [p.batch_id for p in topics.progress(settings)] == [0, 1, 2]


@pytest.mark.full
@pytest.mark.parametrize("damage", [replace_output, add_partitions, write_to_output])
def test_a_run_that_accepts_changes_continues_in_a_topic_of_several_views(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    broker: Broker,
    in_one_topic: Callable[[KafkaSinkSettings], KafkaSinkSettings],
    damage: Damage,
) -> None:
    settings = in_one_topic(make_settings(Emit.TRANSACTIONS))
    sink = KafkaSink(replace(settings, accept_changed_output=True))
    sink.open()
    others = [{1: [(10 * n + 1, b'{"id":1,"two":1}', b"two")]} for n in range(3)]
    sink.write(QUERY, make_batch(0, others=others[0]))
    damage(broker, settings)
    for number in (1, 2):
        sink.write(QUERY, make_batch(number, others=others[number]))
    sink.close()
    known = {(each.partition, each.offset) for each in topics.documents(settings)}
    for commit in topics.commits(settings)[10:]:
        for partition, held in commit.offsets[out(settings)].items():
            assert known.issuperset((partition, n) for n in range(held.first_offset, held.last_offset + 1))
    run(settings, [make_batch(3)])


def test_what_was_aborted_is_not_taken_for_records_of_others(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailsOnce, "failures", 1)
    settings = make_settings()
    run(settings, [make_batch(0), make_batch(1)], connect=FailsOnce)
    assert len(topics.documents(settings)) == 20


def test_partitions_that_are_added_within_a_transaction_are_seen_before_it_is_visible(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, broker: Broker
) -> None:
    """Twin of a run that accepts them: there the same batch becomes visible."""

    class GrowAtBatchOne:
        def __call__(self, step: SinkStep, batch_id: int) -> None:
            if (step, batch_id) == (SinkStep.PRODUCED, 1):
                add_partitions(broker, settings)

    settings = make_settings()
    with pytest.raises(StateError, match=r"4 partition\(s\).*found 6"):
        run(settings, [make_batch(0), make_batch(1)], probe=GrowAtBatchOne())
    assert len(topics.documents(settings)) == 10


def test_partitions_that_are_added_while_a_run_writes_may_be_accepted(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = replace(make_settings(), accept_changed_output=True)
    sink = KafkaSink(settings)
    sink.open()
    sink.write(QUERY, make_batch(0))
    add_partitions(broker, settings)
    with caplog.at_level(logging.WARNING):
        sink.write(QUERY, make_batch(1))
        sink.write(QUERY, make_batch(2))
    sink.close()
    assert sum("accepted" in record.message for record in caplog.records) == 1
    assert len(topics.documents(settings)) == 30
    run(replace(settings, accept_changed_output=False), [make_batch(3)])


class FailsOnce(SinkProducer):
    """A transaction that fails, as when a run was paused for longer than it may be open."""

    failures = 1

    def flush(self, *how: Any) -> None:
        super().flush(*how)
        if type(self).failures > 0:
            type(self).failures -= 1
            raise TransactionFailedError("flush", "paused")


class OpenAt:
    """Begins another run at a step."""

    def __init__(self, other: KafkaSink, step: SinkStep) -> None:
        self._other, self._step = other, step

    def __call__(self, step: SinkStep, batch_id: int) -> None:
        if step is self._step:
            self._other.open()


def test_a_run_that_was_overtaken_never_writes_again_and_disturbs_nobody(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    settings = make_settings()
    opened: list[KafkaSinkSettings] = []

    def connect(settings: KafkaSinkSettings) -> SinkProducer:
        opened.append(settings)
        return SinkProducer(settings)

    older, newer = KafkaSink(settings), KafkaSink(settings, connect=connect)
    older.open()
    older.write(QUERY, make_batch(0))
    newer.open()
    for _ in range(2):
        with pytest.raises(OvertakenError, match="another run of pipeline"):
            older.write(QUERY, make_batch(1))
    newer.write(QUERY, make_batch(1))
    older.close()
    newer.write(QUERY, make_batch(2))
    newer.close()
    assert len(topics.documents(settings)) == 30
    assert len(opened) == 1, "the newer run was disturbed"


@pytest.mark.full
@pytest.mark.parametrize("step", [SinkStep.COLLECTED, SinkStep.PRODUCED])
def test_a_second_attempt_does_not_make_an_overtaken_run_take_over(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    monkeypatch: pytest.MonkeyPatch,
    step: SinkStep,
) -> None:
    monkeypatch.setattr(FailsOnce, "failures", 1)
    settings = make_settings()
    newer = KafkaSink(settings)
    older = KafkaSink(settings, probe=OpenAt(newer, step), connect=FailsOnce)
    older.open()
    with pytest.raises(OvertakenError, match="newest progress record is of run"):
        older.write(QUERY, make_batch(0))
    newer.write(QUERY, make_batch(0))
    newer.close()


def test_a_run_that_is_fenced_though_no_other_one_has_begun_goes_on(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    """So do an overtaken run that did not know yet, and a transaction that was open for too long."""
    settings = make_settings()
    sink = KafkaSink(settings)
    sink.open()
    sink.write(QUERY, make_batch(0))
    other = SinkProducer(settings)
    other.open()
    sink.write(QUERY, make_batch(1))
    other.discard()
    sink.close()
    assert len(topics.documents(settings)) == 20
    assert [p.batch_id for p in topics.progress(settings)] == [0, 1]


def test_a_start_that_dies_before_it_is_done_leaves_nothing_behind(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    class DiesInItsStart(SinkProducer):
        def commit(self) -> None:
            raise RuntimeError("killed")

    settings = make_settings()
    run(settings, [make_batch(0)])
    with pytest.raises(RuntimeError, match="killed"):
        KafkaSink(settings, connect=DiesInItsStart).open()
    run(settings, [make_batch(1)])
    assert len(topics.documents(settings)) == 20
