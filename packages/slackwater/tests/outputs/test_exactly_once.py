"""What a ``read_committed`` reader of a real broker sees of a sink that fails at every step."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from slackwater.cdc.batch import OffsetSpan
from slackwater.cuts import CutLog
from slackwater.dev import KafkaBroker
from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import Emit, SinkStep
from slackwater.outputs.kafka.answers import SinkProducer, TransactionFailedError, newest_progress
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.pipeline.source.kafka_reader import SpanReader, kept_consumer
from slackwater.protocol import (
    KafkaSettings,
    SkipDecision,
    StateError,
    SystemClock,
    UnavailableError,
    commit_id,
)
from slackwater_lab.fakes.registry import RegistryServer
from slackwater_lab.probes import CrashAt, CrashError, LookAt
from slackwater_lab.topics import make_topics

pytestmark = pytest.mark.integration

MakeBatch = Callable[..., DocumentBatch]
MakeSettings = Callable[..., KafkaSinkSettings]
Change = Callable[[KafkaSinkSettings], KafkaSinkSettings]
Topics = Any  # the reader of conftest.py
EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "whole_transactions.py"
QUERY = "0f5c2f6e-query"
STEPS_BEFORE_COMMIT = [step for step in SinkStep if step is not SinkStep.COMMITTED]


class CommitAnswerLost(SinkProducer):
    """The broker commits a batch, the answer never arrives."""

    losses = 1
    flushed = False

    def flush(self, *how: Any) -> None:
        super().flush(*how)
        self.flushed = True

    def commit(self) -> None:
        super().commit()
        self.lose("_TIMED_OUT")

    def lose(self, reason: str) -> None:
        cls = type(self)
        if self.flushed and cls.losses > 0:
            cls.losses -= 1
            raise TransactionFailedError("commit_transaction", reason)


class CommitRequestLost(CommitAnswerLost):
    """The request to commit never reaches the broker."""

    def commit(self) -> None:
        self.lose("_TIMED_OUT")
        super().commit()


class NoTransactions(SinkProducer):
    """The mechanism of G2 and G3 switched off: an idempotent producer that commits nothing."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        super().__init__(settings)
        self._producer = Producer({"bootstrap.servers": settings.kafka.bootstrap, "enable.idempotence": True})

    def open(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def commit(self) -> None:
        self.flush()


def run(
    settings: KafkaSinkSettings,
    batches: list[DocumentBatch],
    kind: type[KafkaSink] = KafkaSink,
    **options: Any,
) -> None:
    """A run as Spark drives it; leaves the producer as a crash would."""
    sink = kind(settings, **options)
    sink.open()
    for batch in batches:
        sink.write(QUERY, batch)
    sink.close()


def values(topics: Topics, settings: KafkaSinkSettings) -> list[bytes]:
    return sorted(record.value for record in topics.documents(settings))


def expected(*batches: DocumentBatch) -> list[bytes]:
    documents = [document for batch in batches for chunk in batch.chunks(0) for document in chunk]
    return sorted(value for _, _, value in documents if value is not None)


def test_batches_become_visible_with_their_commit_records_and_progress(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    settings, batches = make_settings(), [make_batch(n) for n in range(3)]
    run(settings, batches)
    assert values(topics, settings) == expected(*batches)
    assert [record.commit_lsn for record in topics.commits(settings)] == [10, 20, 30]
    assert [(p.batch_id, p.commit_lsn, p.query_id) for p in topics.progress(settings)] == [
        (0, 10, QUERY),
        (1, 20, QUERY),
        (2, 30, QUERY),
    ]


@pytest.mark.parametrize("emit", list(Emit))
@pytest.mark.parametrize("schemas", [[], ["two", "one"]], ids=["a topic", "one topic"])
def test_commit_records_name_exactly_the_offsets_of_the_documents(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    in_avro: Change,
    in_one_topic: Change,
    emit: Emit,
    schemas: list[str],
) -> None:
    """In both forms; those of a topic that views share name the schemas of all of them."""
    plain = in_avro(make_settings(emit))
    settings = in_one_topic(plain) if schemas else plain
    topic = settings.outputs[0].name
    of_two = [{1: [(10 * n + 3, b'{"id":%d,"two":%d}' % (i, i), b"{}") for i in range(4)]} for n in range(3)]
    run(settings, [make_batch(n, others=of_two[n] if schemas else None) for n in range(3)])
    by_commit: dict[int, dict[int, list[int]]] = {}
    for record in topics.documents(settings):
        lsn = int(record.headers["slackwater-commit-lsn"])
        by_commit.setdefault(lsn, {}).setdefault(record.partition, []).append(record.offset)
    commits = topics.commits(settings)
    told = {
        commit.commit_lsn: {
            p: (r.count, r.first_offset, r.last_offset) for p, r in commit.offsets[topic].items()
        }
        for commit in commits
    }
    assert told == {
        lsn: {p: (len(offsets), offsets[0], offsets[-1]) for p, offsets in partitions.items()}
        for lsn, partitions in by_commit.items()
    }
    assert all(a.commit_lsn == b.previous_lsn for a, b in pairwise(commits))
    assert [(each["commit_id"], each["topics"]) for each in topics.avro_commits(settings)] == [
        (
            commit_id(1, lsn),
            [
                {
                    "topic_name": topic,
                    "schema_names": schemas or [topic],
                    "offsets": [
                        {"partition": p, "min_offset": offsets[0], "max_offset": offsets[-1]}
                        for p, offsets in sorted(partitions.items())
                    ],
                }
            ],
        )
        for lsn, partitions in sorted(by_commit.items())
    ]
    assert sum(each.record_count for each in commits) == (42 if schemas else 30)


@pytest.mark.full
def test_commit_records_are_right_in_both_forms_though_compaction_has_removed_documents(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    in_avro: Change,
    registry: RegistryServer,
) -> None:
    """Read by the plain example. Every batch replaces all documents of the one before, except two."""
    settings = in_avro(replace(make_settings(Emit.LATEST, 2), keep=timedelta(0)))
    topic = settings.outputs[0].name

    def batch(number: int) -> DocumentBatch:
        keys = [*range(2 * number, 2 * number + 2), *range(100, 108)]
        return make_batch(number, [(10 * number + 1, b"%d" % key, b"batch %d" % number) for key in keys])

    run(settings, [batch(0), batch(1)])
    written = topics.documents(settings)
    compact(settings.kafka.bootstrap, topic)
    batches, clock = count(2), SystemClock()
    deadline = clock.monotonic() + 300
    while len(left := [each for each in topics.documents(settings) if each.value == b"batch 0"]) > 2:
        assert clock.monotonic() < deadline, "the broker compacts nothing"
        run(settings, [batch(next(batches))])
    assert all(each in written for each in left)
    for log in ([f"{topic}.commits"], [f"{topic}.commits-avro", registry.url]):
        arguments = [sys.executable, str(EXAMPLE), settings.kafka.bootstrap, *log]
        ran = subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=False)
        assert ran.returncode == 0, ran.stderr
        found = [json.loads(line) for line in ran.stdout.splitlines()]
        assert found[0]["removed"] == 8
        for number, each in enumerate(found):
            assert each["id"] == commit_id(1, 10 * number + 10)
            assert {document[4] for document in each["documents"]} == {f"batch {number}"}
            assert each["removed"] + len(each["documents"]) == 10
        held = [(p, offset, key.encode()) for _, p, offset, key, _ in found[0]["documents"]]
        assert held == [(each.partition, each.offset, each.key) for each in left]
        assert len(found[-1]["documents"]) == 10, "nothing has replaced them"


def compact(bootstrap: str, topic: str) -> None:
    """Has the broker compact a topic as soon as it can."""
    wanted = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in wanted.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(60)


def test_keys_go_to_the_partition_the_java_producer_would_choose(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    settings = make_settings(partitions=4)
    run(settings, [make_batch(0)])
    for record in topics.documents(settings):
        assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 4


def test_deletes_are_tombstones(make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics) -> None:
    settings = make_settings()
    run(settings, [make_batch(0, [(4, b"k", None)])])
    assert [(record.key, record.value) for record in topics.documents(settings)] == [(b"k", None)]


def test_without_transactions_a_batch_is_visible_in_parts(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    settings, seen = make_settings(), []
    probe = LookAt(SinkStep.FLUSHED, lambda: seen.append(len(topics.documents(settings))))
    run(settings, [make_batch(0)], probe=probe, connect=NoTransactions)
    assert seen == [10], "the visibility tests cannot fail"


@pytest.mark.full
@pytest.mark.parametrize("emit", [Emit.TRANSACTIONS, pytest.param(Emit.LATEST, marks=pytest.mark.slow)])
@pytest.mark.parametrize("step", list(SinkStep))
def test_a_crash_at_any_step_neither_loses_nor_repeats(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, step: SinkStep, emit: Emit
) -> None:
    settings, batches = make_settings(emit), [make_batch(n) for n in range(3)]
    with pytest.raises(CrashError):
        run(settings, batches, probe=CrashAt(step, 1))
    run(settings, batches[1:])
    assert values(topics, settings) == expected(*batches)
    assert [p.batch_id for p in topics.progress(settings)] == [0, 1, 2]


def test_without_transactions_a_crash_repeats_documents(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    settings, batches = make_settings(), [make_batch(n) for n in range(2)]
    with pytest.raises(CrashError):
        run(settings, batches, probe=CrashAt(SinkStep.FLUSHED, 1), connect=NoTransactions)
    run(replace(settings, accept_changed_output=True), batches[1:], connect=NoTransactions)
    assert len(values(topics, settings)) == 30, "the crash tests cannot fail"


@pytest.mark.full
@pytest.mark.parametrize("lost", [CommitAnswerLost, CommitRequestLost])
def test_an_undecided_commit_is_settled_by_a_new_producer(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    lost: type[CommitAnswerLost],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lost, "losses", 1)
    settings, batches = make_settings(), [make_batch(n) for n in range(2)]
    run(settings, batches, connect=lost)
    assert values(topics, settings) == expected(*batches)
    assert [p.batch_id for p in topics.progress(settings)] == [0, 1]


def test_commits_that_keep_failing_end_the_run_with_nothing_visible(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommitRequestLost, "losses", 99)
    settings = replace(make_settings(), attempts=2)
    with pytest.raises(UnavailableError, match="in 2 attempts"):
        run(settings, [make_batch(0)], connect=CommitRequestLost)
    assert values(topics, settings) == []


@pytest.mark.slow
def test_a_broker_that_restarts_is_waited_for_by_whoever_reads_or_writes(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, kafka_broker: KafkaBroker
) -> None:
    """The broker is killed when a batch is about to be committed, a task has begun and a plan is to be made.

    With no patience the batch is given up after its only attempt.
    """
    settings, batches = make_settings(partitions=1), [make_batch(n) for n in range(4)]
    is_killed = threading.Event()

    def kill() -> None:
        if not is_killed.is_set():
            kafka_broker.kill()
            is_killed.set()

    sink = KafkaSink(settings)
    sink.open()
    sink.write(QUERY, batches[0])
    sink.close()
    log = CutLog(settings.pipeline, settings.kafka, timeout=timedelta(seconds=120))
    log.ensure_topic(replication_factor=1)
    decision = SkipDecision(
        source=settings.pipeline, timeline=1, to_lsn=7, wall_ms=5, decided_by="ann", reason="lost"
    )
    log.append_records([decision])
    patient = replace(
        settings, attempts=1, request_timeout=timedelta(seconds=2), patience=timedelta(minutes=5)
    )
    writer = KafkaSink(patient, probe=LookAt(SinkStep.FLUSHED, kill))
    writer.open()
    span = OffsetSpan(settings.outputs[0].name, 0, 0, 40, 0)

    def write() -> None:
        for batch in batches[1:]:
            writer.write(QUERY, batch)

    def read() -> list[bytes | None]:
        with kept_consumer({"bootstrap.servers": settings.kafka.bootstrap}) as consumer:
            reader = SpanReader(consumer, timeout_seconds=300.0)
            return [message.value() for _, messages in reader.read([span]) for message in messages]

    is_back = threading.Event()

    def plan() -> None:
        while not is_back.is_set():
            assert [logged.record for logged in log.records(-1)] == [decision]

    with ThreadPoolExecutor() as threads:
        reading = threads.submit(read)
        writing = threads.submit(write)
        assert is_killed.wait(120)
        planning = threads.submit(plan)
        kafka_broker.start()
        is_back.set()
        planning.result(300)
        writing.result(300)
        assert set(reading.result(300)) <= set(expected(*batches))
    assert values(topics, settings) == expected(*batches)
    assert [p.batch_id for p in topics.progress(settings)] == [0, 1, 2, 3]
    writer.close()
    log.close()


def test_a_large_batch_gets_a_producer_whose_transactions_may_stand_open_longer(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.outputs.kafka.settings._SLOWEST_BYTES_PER_SECOND", 50)
    opened: list[float] = []

    def connect(settings: KafkaSinkSettings) -> SinkProducer:
        opened.append(settings.transaction_timeout.total_seconds())
        return SinkProducer(settings)

    settings = make_settings()
    batches = [make_batch(0), make_batch(1, [(11, b"a", b"x" * 100_000)]), make_batch(2)]
    run(settings, batches, connect=connect)

    assert opened == [60, 900, 60]
    assert values(topics, settings) == expected(*batches)


def test_a_new_run_ends_the_open_transaction_of_a_dead_one_at_once(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    settings = make_settings()
    dead = KafkaSink(settings, probe=CrashAt(SinkStep.PROGRESS, 0))
    dead.open()
    with pytest.raises(CrashError):
        dead.write(QUERY, make_batch(0))
    stuck = end_offsets(settings, "read_committed")
    alive = KafkaSink(settings)
    assert alive.open() is None
    assert stuck != end_offsets(settings, "read_uncommitted")
    assert end_offsets(settings, "read_committed") == end_offsets(settings, "read_uncommitted")
    alive.close()


def test_close_ends_an_open_transaction(make_settings: MakeSettings, make_batch: MakeBatch) -> None:
    settings = make_settings()
    sink = KafkaSink(settings, probe=CrashAt(SinkStep.PROGRESS, 0))
    sink.open()
    with pytest.raises(CrashError):
        sink.write(QUERY, make_batch(0))
    sink.close()
    assert end_offsets(settings, "read_committed") == end_offsets(settings, "read_uncommitted")


def test_progress_is_found_behind_many_aborted_transactions(
    make_settings: MakeSettings, make_batch: MakeBatch
) -> None:
    settings = make_settings()
    run(settings, [make_batch(0)])
    producer = SinkProducer(settings)
    producer.open()
    for _ in range(40):
        producer.begin()
        producer.produce(settings.progress_topic, b"x", b"aborted", [], None)
        producer.flush()
        producer.abort()
    progress = newest_progress(settings)
    producer.discard()
    assert progress is not None
    assert progress.batch_id == 0


def test_an_absent_progress_topic_is_no_progress(make_settings: MakeSettings) -> None:
    assert newest_progress(make_settings(), may_be_absent=True) is None


def test_an_empty_progress_topic_is_no_progress(make_settings: MakeSettings) -> None:
    sink = KafkaSink(make_settings())
    assert sink.open() is None
    sink.close()


def test_an_output_topic_with_other_partitions_is_refused(make_settings: MakeSettings) -> None:
    settings = make_settings(partitions=2)
    KafkaSink(settings).open()
    with pytest.raises(StateError, match=r"expected 3 partition\(s\), found 2"):
        KafkaSink(replace(settings, outputs=(replace(settings.outputs[0], partitions=3),))).open()


@pytest.mark.full
def test_all_views_of_a_batch_become_visible_at_once(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    settings = make_settings(views=2)
    batches = [make_batch(n, others={1: [(10 * n + 1, b"b", b"%d" % n)]}) for n in range(2)]
    seen: list[int] = []
    probe = LookAt(
        SinkStep.PROGRESS, lambda: seen.extend(len(topics.documents(settings, view=v)) for v in (0, 1))
    )
    run(settings, batches, probe=probe)
    assert seen == [0, 0, 10, 1]
    assert [len(topics.documents(settings, view=view)) for view in (0, 1)] == [20, 2]
    assert topics.commits(settings, view=0) == topics.commits(settings, view=1)
    assert set(topics.commits(settings)[0].offsets) == {output.name for output in settings.outputs}


def test_an_output_that_another_pipeline_has_written_is_refused(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics
) -> None:
    settings = make_settings()
    run(settings, [make_batch(0)])
    other = replace(settings, pipeline=f"{settings.pipeline}.v2")
    with pytest.raises(StateError, match=f"pipeline '{settings.pipeline}' wrote up to 0/A"):
        run(other, [make_batch(0)])
    assert len(topics.documents(settings)) == 10


def test_an_output_that_outlived_its_progress_is_refused(
    make_settings: MakeSettings, make_batch: MakeBatch
) -> None:
    settings = make_settings()
    run(settings, [make_batch(0)])
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap})
    for future in admin.delete_topics([settings.progress_topic]).values():
        future.result(300)
    with pytest.raises(StateError, match="wrote up to 0/A"):
        run(settings, [make_batch(0)])


def test_a_progress_topic_that_is_not_compacted_is_refused(make_settings: MakeSettings) -> None:
    settings = make_settings()
    make_topics(settings.kafka.bootstrap, [settings.progress_topic], 1)
    with pytest.raises(StateError, match=r"cleanup\.policy=compact"):
        KafkaSink(settings).open()


def test_a_broker_that_is_away_is_one_clear_error(make_settings: MakeSettings) -> None:
    settings = replace(
        make_settings(),
        kafka=KafkaSettings("127.0.0.1:1"),
        request_timeout=timedelta(seconds=1),
    )
    with pytest.raises(UnavailableError, match=r"Kafka at 127\.0\.0\.1:1 did not complete"):
        KafkaSink(settings).open()


def end_offsets(settings: KafkaSinkSettings, isolation: str) -> int:
    topic = settings.outputs[0].name
    consumer = Consumer(
        {"bootstrap.servers": settings.kafka.bootstrap, "group.id": "ends", "isolation.level": isolation}
    )
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, p), 20)[1]
            for p in consumer.list_topics(topic, 20).topics[topic].partitions
        ]
        return sum(ends)
    finally:
        consumer.close()


def murmur2(key: bytes) -> int:
    """Kafka's, as in ``org.apache.kafka.common.utils.Utils``."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(key)) & mask
    whole = len(key) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    tail = key[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
