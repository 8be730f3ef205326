"""What each kind of output does so that readers can read a state for as long as they need it; real servers.

How the promises were seen to fail: ``hold`` of each sink returns an empty dictionary and does nothing; each
condition of ``TopicGuard.hold`` left out.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from slackwater.client import StateNotKeptError, TopicOutput, read_views
from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import Emit, OutputRefusedError
from slackwater.outputs.kafka.answers import newest_progress
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.outputs.kafka.topics import SinkTopics
from slackwater.protocol import (
    CommitPosition,
    OvertakenError,
    ProgressRecord,
    SystemClock,
    TopicState,
    epoch_ms,
)

pytestmark = pytest.mark.integration

MakeBatch = Callable[..., DocumentBatch]
QUERY = "0f5c2f6e-query"
KEEP = timedelta(minutes=5)
KEEP_MS = 300_000
HOUR = timedelta(hours=1)
HOUR_MS = 3_600_000


class MovedClock(SystemClock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.moment = super().now().replace(microsecond=0)

    def now(self) -> datetime:
        return self.moment


def at(batch_id: int) -> CommitPosition:
    return CommitPosition(1, 10 * batch_id + 10)


class Topic:
    """The output topic of a pipeline of one view."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self.settings = settings
        self.name = settings.outputs[0].name

    @property
    def lag_ms(self) -> int:
        return SinkTopics(self.settings).compaction_lags()[self.name]

    def set_config(self, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.settings.kafka.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(60)

    @property
    def written(self) -> TopicState:
        """As the newest progress record has it."""
        progress = newest_progress(self.settings)
        assert isinstance(progress, ProgressRecord)
        return progress.topics[self.name]


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def settings(make_settings: Callable[..., KafkaSinkSettings]) -> KafkaSinkSettings:
    return replace(make_settings(Emit.LATEST), keep=KEEP)


@pytest.fixture
def topic(settings: KafkaSinkSettings) -> Topic:
    return Topic(settings)


@contextmanager
def opened(settings: KafkaSinkSettings, clock: MovedClock) -> Iterator[KafkaSink]:
    with closing(KafkaSink(settings, clock=clock)) as sink:
        sink.open()
        yield sink


def document(batch_id: int) -> list[tuple[int, bytes, bytes]]:
    return [(10 * batch_id + 5, b'{"id": 1}', b'{"id": 1, "value": %d}' % batch_id)]


def test_compacted_topics_keep_what_was_replaced_until_the_last_reader_is_done(
    settings: KafkaSinkSettings, topic: Topic, clock: MovedClock, make_batch: MakeBatch
) -> None:
    with opened(settings, clock) as sink:
        sink.write(QUERY, make_batch(0, document(0)))
        assert sink.hold({at(0): clock.moment + HOUR, at(1): clock.moment + 2 * HOUR}) == {}
        assert topic.lag_ms == KEEP_MS + 2 * HOUR_MS
        assert (topic.written.lag_ms, topic.written.raised_ms) == (KEEP_MS, epoch_ms(clock.moment))

        sink.write(QUERY, make_batch(1, document(1)))
        assert topic.written.lag_ms == KEEP_MS, "later batches say so, too"

        raised_ms = topic.written.raised_ms
        clock.moment += HOUR
        sink.hold({at(1): clock.moment + 3 * HOUR})
        assert topic.lag_ms == KEEP_MS + 4 * HOUR_MS, "counted from when it was first raised"
        assert topic.written.raised_ms == raised_ms

        sink.hold({at(1): clock.moment + HOUR})
        assert topic.lag_ms == KEEP_MS + 4 * HOUR_MS, "never shorter while there is a reader"

        sink.hold({})
        assert topic.lag_ms == KEEP_MS
        sink.write(QUERY, make_batch(2, document(2)))
        assert topic.written.lag_ms is None


def test_without_readers_nothing_is_asked_or_written(
    settings: KafkaSinkSettings, topic: Topic, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(settings, clock) as sink:
        monkeypatch.setattr(SinkTopics, "_ask", None)
        assert sink.hold({}) == {}


def test_a_state_is_read_by_the_rules_of_readers_while_it_is_held_and_not_afterwards(
    settings: KafkaSinkSettings, topic: Topic, clock: MovedClock, make_batch: MakeBatch
) -> None:
    with (
        opened(settings, clock) as sink,
        closing(TopicOutput(settings.kafka, settings.pipeline, clock)) as output,
    ):
        for number in range(2):
            sink.write(QUERY, make_batch(number, document(number)))
        clock.moment += timedelta(minutes=3)
        sink.hold({at(0): clock.moment + HOUR})
        clock.moment += HOUR
        assert read_views([output], at=at(0)).documents == {topic.name: [b'{"id": 1, "value": 0}']}
        sink.hold({})
        with pytest.raises(StateNotKeptError, match="may already have been removed"):
            read_views([output], at=at(0))


def test_a_state_that_is_held_too_late_is_not_read(
    settings: KafkaSinkSettings, clock: MovedClock, make_batch: MakeBatch
) -> None:
    with (
        opened(settings, clock) as sink,
        closing(TopicOutput(settings.kafka, settings.pipeline, clock)) as output,
    ):
        for number in range(2):
            sink.write(QUERY, make_batch(number, document(number)))
        clock.moment += KEEP
        sink.hold({at(0): clock.moment + HOUR})
        with pytest.raises(StateNotKeptError, match="may already have been removed"):
            read_views([output], at=at(0))


def killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_run_that_is_killed_before_topics_are_raised_counts_from_when_the_next_one_raises_them(
    settings: KafkaSinkSettings,
    topic: Topic,
    clock: MovedClock,
    make_batch: MakeBatch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(settings, clock) as sink:
        sink.write(QUERY, make_batch(0, document(0)))
        with monkeypatch.context() as patch:
            patch.setattr(SinkTopics, "set_compaction_lags", killed)
            with pytest.raises(KeyboardInterrupt):
                sink.hold({at(0): clock.moment + 2 * HOUR})
    assert (topic.written.lag_ms, topic.lag_ms) == (KEEP_MS, KEEP_MS)
    clock.moment += HOUR
    with opened(settings, clock) as sink:
        sink.hold({at(0): clock.moment + HOUR})
        assert topic.written.raised_ms == epoch_ms(clock.moment)
        assert topic.lag_ms == KEEP_MS + HOUR_MS


def test_a_run_that_is_killed_while_topics_are_raised_leaves_them_to_the_next_one(
    settings: KafkaSinkSettings, topic: Topic, clock: MovedClock, make_batch: MakeBatch
) -> None:
    with opened(settings, clock) as sink:
        sink.write(QUERY, make_batch(0, document(0)))
        sink.hold({at(0): clock.moment + HOUR})
    raised = topic.written
    clock.moment += timedelta(minutes=1)
    with opened(settings, clock) as sink:
        assert replace(topic.written, end=raised.end) == raised
        sink.hold({at(0): clock.moment + timedelta(minutes=1)})
        assert topic.written.raised_ms == raised.raised_ms
    with opened(settings, clock) as sink:
        sink.hold({})
        assert topic.lag_ms == KEEP_MS


def test_a_topic_that_is_not_compacted_keeps_everything_anyway(
    make_settings: Callable[..., KafkaSinkSettings], clock: MovedClock, make_batch: MakeBatch
) -> None:
    settings = make_settings(Emit.TRANSACTIONS)
    with opened(settings, clock) as sink:
        sink.write(QUERY, make_batch(0, document(0)))
        before = newest_progress(settings)
        assert sink.hold({at(0): clock.moment + HOUR}) == {}
        assert newest_progress(settings) == before


def test_a_broker_that_does_not_allow_it_is_a_refusal(
    settings: KafkaSinkSettings, topic: Topic, clock: MovedClock, make_batch: MakeBatch
) -> None:
    with opened(settings, clock) as sink:
        sink.write(QUERY, make_batch(0, document(0)))
        topic.set_config("max.compaction.lag.ms", str(KEEP_MS))
        with pytest.raises(OutputRefusedError, match=r"min\.compaction\.lag\.ms"):
            sink.hold({at(0): clock.moment + HOUR})
        sink.write(QUERY, make_batch(1, document(1)))


def test_a_run_that_was_overtaken_raises_nothing(
    settings: KafkaSinkSettings, topic: Topic, clock: MovedClock, make_batch: MakeBatch
) -> None:
    with opened(settings, clock) as sink:
        sink.write(QUERY, make_batch(0, document(0)))
        with opened(settings, clock), pytest.raises(OvertakenError):
            sink.hold({at(0): clock.moment + HOUR})
        assert topic.lag_ms == KEEP_MS
