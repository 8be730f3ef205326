"""What a sink does when Kafka reports errors: waits for those that pass, names the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from slackwater.engine.payloads import DocumentBatch
from slackwater.kafka.transactions import KafkaTransactions
from slackwater.outputs.contract import OutputRefusedError
from slackwater.outputs.kafka.answers import SinkProducer, TransactionFailedError, newest_progress
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.outputs.kafka.topics import SinkTopics
from slackwater.protocol import (
    KafkaSettings,
    OvertakenError,
    ProgressRecord,
    SlackwaterError,
    StateError,
    TopicState,
    UnavailableError,
    encode_progress_record,
)
from slackwater.protocol.errors import run_overtaken
from slackwater_lab.fakes.topics import FlakyConsumer

MakeBatch = Callable[..., DocumentBatch]
SETTINGS = KafkaSinkSettings(
    pipeline="p",
    outputs=(OutputTopic("out"),),
    kafka=KafkaSettings("nowhere:1"),
    request_timeout=timedelta(seconds=20),
)
PROGRESS = ProgressRecord(pipeline="p", query_id="q", batch_id=0, source="inv", timeline=1, commit_lsn=10)
TRANSIENT = ["NOT_LEADER_FOR_PARTITION", "NOT_COORDINATOR", "_TRANSPORT", "_TIMED_OUT"]
REFUSED = ["TOPIC_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION"]
PERMANENT = ["INVALID_REQUEST", "_INVALID_ARG"]
NOT_TRANSIENT = [
    *[(name, OutputRefusedError) for name in REFUSED],
    *[(name, UnavailableError) for name in PERMANENT],
]


def code(name: str) -> int:
    return int(getattr(KafkaError, name))


def short(settings: KafkaSinkSettings = SETTINGS) -> KafkaSinkSettings:
    return replace(settings, request_timeout=timedelta(milliseconds=200))


# --- reading the progress


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> FlakyConsumer:
    values = [encode_progress_record(PROGRESS)]
    consumer = FlakyConsumer({(SETTINGS.progress_topic, 0): values})
    monkeypatch.setattr("slackwater.kafka.reader.Consumer", lambda *_, **__: consumer)
    return consumer


@pytest.mark.parametrize("name", ["_TRANSPORT", "UNKNOWN_TOPIC_OR_PART"])
@pytest.mark.parametrize("succeeding", [0, 1, 2])
def test_the_progress_is_read_after_errors_that_pass_for_a_topic_that_exists(
    consumer: FlakyConsumer, name: str, succeeding: int
) -> None:
    consumer.errors = [KafkaError.NO_ERROR] * succeeding + [code(name)]
    assert newest_progress(SETTINGS) == PROGRESS
    assert (consumer.errors, consumer.is_closed) == ([], True)


@pytest.mark.parametrize(("name", "error"), NOT_TRANSIENT)
def test_reading_the_progress_fails_at_once_for_other_errors(
    consumer: FlakyConsumer, name: str, error: type[SlackwaterError]
) -> None:
    """Seen to wait for the whole time-out while every error was waited for."""
    consumer.errors = [code(name), code("_TRANSPORT")]
    with pytest.raises(error, match=r"reading p\.slackwater\.progress"):
        newest_progress(SETTINGS)
    assert len(consumer.errors) == 1


def test_progress_that_cannot_be_read_in_time_is_an_error_that_says_for_how_long(
    consumer: FlakyConsumer,
) -> None:
    consumer.errors = [code("NOT_LEADER_FOR_PARTITION")] * 10_000
    with pytest.raises(UnavailableError, match=r"tried for 0\.2 s: Broker: Not leader"):
        newest_progress(short())


# --- its topics


class FlakyAdmin:
    """Knows no topic until they are created; fails first."""

    def __init__(self, errors: list[int]) -> None:
        self.errors = errors
        self.created: list[str] = []

    def list_topics(self, timeout: float) -> Any:
        self._maybe_fail()
        return SimpleNamespace(topics={})

    def create_topics(self, topics: list[Any], request_timeout: float) -> dict[str, Any]:
        return {
            topic.topic: SimpleNamespace(result=lambda _, t=topic: self._create(t.topic)) for topic in topics
        }

    def _create(self, topic: str) -> None:
        self._maybe_fail()
        if topic in self.created:
            raise KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS))
        self.created.append(topic)

    def _maybe_fail(self) -> None:
        if self.errors and (error := self.errors.pop(0)):
            raise KafkaException(KafkaError(error))


def ensured(monkeypatch: pytest.MonkeyPatch, settings: KafkaSinkSettings, *names: str) -> FlakyAdmin:
    admin = FlakyAdmin([code(name) for name in names])
    monkeypatch.setattr("slackwater.outputs.kafka.topics.AdminClient", lambda *_: admin)
    topics = SinkTopics(settings)
    topics.create(topics.missing())
    return admin


@pytest.mark.parametrize("name", [*TRANSIENT, "NOT_CONTROLLER"])
@pytest.mark.parametrize("succeeding", [0, 1, 3])
def test_topics_are_created_after_transient_errors(
    monkeypatch: pytest.MonkeyPatch, name: str, succeeding: int
) -> None:
    """Also when some of them were created before the error."""
    admin = ensured(monkeypatch, SETTINGS, *["NO_ERROR"] * succeeding, name, name)
    assert admin.created == [SETTINGS.progress_topic, "out", SETTINGS.outputs[0].commits]
    assert admin.errors == []


@pytest.mark.parametrize(("name", "error"), [*NOT_TRANSIENT, ("POLICY_VIOLATION", OutputRefusedError)])
@pytest.mark.parametrize(
    ("succeeding", "what"), [(0, "the check of its topics"), (1, "the creation of topics p")]
)
def test_topics_that_may_not_be_created_are_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch, name: str, error: type[SlackwaterError], succeeding: int, what: str
) -> None:
    with pytest.raises(error, match=what):
        ensured(monkeypatch, SETTINGS, *["NO_ERROR"] * succeeding, name)


def test_topics_that_cannot_be_created_in_time_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match=r"tried for 0\.2 s"):
        ensured(monkeypatch, short(), *["NOT_CONTROLLER"] * 10_000)


@pytest.mark.parametrize(
    ("names", "limits"),
    [
        ([], {"out": 1000}),
        (["_TRANSPORT", "UNKNOWN_TOPIC_OR_PART"], {"out": 1000}),
        (["TOPIC_AUTHORIZATION_FAILED"], {}),
        (["INVALID_REQUEST"], {}),
    ],
)
def test_the_limit_of_an_output_is_waited_for_unless_it_may_not_be_known(
    monkeypatch: pytest.MonkeyPatch, names: list[str], limits: dict[str, int]
) -> None:
    """Without it the producer's batches might be larger than what the topic takes."""
    errors = [code(name) for name in names]

    class Describing:
        def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Any]:
            return {resource: SimpleNamespace(result=self._result) for resource in resources}

        def _result(self, _: float) -> Any:
            if errors:
                raise KafkaException(KafkaError(errors.pop(0)))
            return {"max.message.bytes": SimpleNamespace(value="1000")}

    monkeypatch.setattr("slackwater.outputs.kafka.topics.AdminClient", lambda *_: Describing())
    assert SinkTopics(SETTINGS).largest_records() == limits
    assert errors == []


# --- writing


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        *[(name, True) for name in TRANSIENT],
        *[(name, False) for name in PERMANENT],
        *[(name, OutputRefusedError) for name in REFUSED],
        ("INVALID_PRODUCER_EPOCH", OvertakenError),
        ("PRODUCER_FENCED", OvertakenError),
        ("_FENCED", OvertakenError),
    ],
)
def test_an_error_of_the_producer_is_fencing_or_a_refusal_or_may_pass_or_does_not(
    name: str, meaning: bool | type[SlackwaterError]
) -> None:
    producer = object.__new__(SinkProducer)
    producer._settings = SETTINGS
    error = producer._meaning("commit", KafkaException(KafkaError(code(name))))
    if isinstance(meaning, type):
        assert isinstance(error, meaning)
    else:
        assert isinstance(error, TransactionFailedError)
        assert error.is_transient is meaning


class UnsentRecords:
    """In place of librdkafka: of ten records, as many as are sent at all come one at each look."""

    def __init__(self, sent: int) -> None:
        self.left = 10
        self.looks = 0
        self._sent = sent

    def __len__(self) -> int:
        return self.left

    def flush(self, _: float) -> int:
        self.looks += 1
        self.left -= self.looks <= self._sent
        return self.left


def flushing(records: UnsentRecords, seconds: float) -> SinkProducer:
    producer = object.__new__(SinkProducer)
    producer._settings = SETTINGS
    producer._producer = records  # type: ignore[assignment]
    producer._timeout = seconds
    return producer


def test_records_are_waited_for_as_long_as_they_come() -> None:
    records = UnsentRecords(10)
    flushing(records, 0.1).flush()
    assert records.left == 0


def test_records_that_do_not_come_any_more_fail_the_transaction() -> None:
    records = UnsentRecords(4)
    with pytest.raises(TransactionFailedError, match=r"6 record\(s\) not acknowledged after 2 s"):
        flushing(records, 2.0).flush()
    assert records.looks == 4 + 4


def test_nothing_is_waited_for_behind_a_record_that_failed() -> None:
    """librdkafka sends nothing more of such a transaction, and reports nothing either."""
    records = UnsentRecords(4)
    flushing(records, 1e9).flush(lambda: records.looks == 6)
    assert (records.looks, records.left) == (6, 6)


@dataclass
class FakeTime:
    """Continues when a producer is opened."""

    seconds: float = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds


class OneFailure(KafkaTransactions):
    """Producers that fail to open, each after this many seconds, until the list is empty."""

    def __init__(self, time: FakeTime, *failures: Exception, seconds: float = 30.0) -> None:
        self.time = time
        self.failures = list(failures)
        self.seconds = seconds
        self.opened = self.discarded = 0

    def __call__(self, _: KafkaSinkSettings) -> "OneFailure":
        return self

    def _meaning(self, what: str, error: KafkaException) -> SlackwaterError:
        raise AssertionError("it asks no Kafka")

    def open(self) -> None:
        self.opened += 1
        self.time.seconds += self.seconds
        if self.failures:
            raise self.failures.pop(0)

    def check(self) -> None:
        pass

    def discard(self) -> None:
        self.discarded += 1

    def begin(self) -> None: ...

    def produce(self, *record: Any) -> None:
        self.reports = [*getattr(self, "reports", []), record[4]]

    def serve(self) -> None: ...

    def flush(self, *how: Any) -> None:
        for number, report in enumerate(self.reports):
            if report is not None:
                report(None, SimpleNamespace(partition=lambda: 0, offset=lambda n=number: n))

    def commit(self) -> None: ...

    def abort(self) -> None: ...


def failure(*, is_transient: bool) -> TransactionFailedError:
    return TransactionFailedError("open", "_TIMED_OUT: away", is_transient=is_transient)


class UnchangedTopics:
    """In place of the comparison with what the pipeline left; notes how long Kafka is asked."""

    states: Mapping[str, TopicState] = {}

    def __init__(self, settings: KafkaSinkSettings) -> None:
        assert settings.request_timeout == SETTINGS.patience

    def largest_records(self) -> Mapping[str, int]:
        return {}

    def check_identity(self) -> None: ...

    def check_progress_topic(self) -> None: ...

    def states_after(self, _: object) -> Mapping[str, TopicState]:
        return {}


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.outputs.kafka.sink.TopicGuard", UnchangedTopics)


@pytest.fixture
def no_progress(unchanged: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.outputs.kafka.sink.newest_progress", lambda _: None)


def write(producers: OneFailure, batch: DocumentBatch, settings: KafkaSinkSettings = SETTINGS) -> None:
    KafkaSink(settings, clock=producers.time, connect=producers).write("q", batch)


@pytest.mark.usefixtures("no_progress")
@pytest.mark.parametrize(
    "error", [failure(is_transient=True), run_overtaken("p", "a transaction that was timed out")]
)
def test_a_batch_outlives_an_outage_that_is_shorter_than_its_patience(
    make_batch: MakeBatch, error: SlackwaterError
) -> None:
    """Seen to end after three attempts while only attempts were counted."""
    producers = OneFailure(FakeTime(), *[error] * 3)
    write(producers, make_batch(0))
    assert (producers.opened, producers.discarded) == (4, 3)


@pytest.mark.usefixtures("no_progress")
def test_a_batch_is_given_up_when_its_patience_is_over(make_batch: MakeBatch) -> None:
    producers = OneFailure(FakeTime(), *[failure(is_transient=True)] * 100)
    with pytest.raises(UnavailableError, match=r"batch 0 in 4 attempts: open: _TIMED_OUT: away"):
        write(producers, make_batch(0))
    assert (producers.opened, producers.discarded) == (4, 4)


@pytest.mark.usefixtures("no_progress")
def test_a_batch_is_tried_a_few_times_however_long_each_attempt_takes(make_batch: MakeBatch) -> None:
    producers = OneFailure(FakeTime(), *[failure(is_transient=True)] * 2, seconds=500.0)
    write(producers, make_batch(0))
    assert producers.opened == 3


@pytest.mark.usefixtures("no_progress")
def test_errors_that_do_not_pass_get_no_more_than_the_attempts(make_batch: MakeBatch) -> None:
    producers = OneFailure(FakeTime(), *[failure(is_transient=False)] * 100, seconds=0.0)
    with pytest.raises(UnavailableError, match=r"in 3 attempts"):
        write(producers, make_batch(0))


@pytest.mark.usefixtures("unchanged")
def test_a_producer_that_another_run_has_fenced_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, make_batch: MakeBatch
) -> None:
    newest = iter([None, replace(PROGRESS, run="another")])
    monkeypatch.setattr("slackwater.outputs.kafka.sink.newest_progress", lambda _: next(newest))
    producers = OneFailure(FakeTime(), run_overtaken("p", "epoch"))
    with pytest.raises(OvertakenError):
        write(producers, make_batch(0))
    assert producers.opened == 1


@pytest.mark.usefixtures("unchanged")
def test_nothing_is_written_by_a_producer_whose_progress_could_not_be_read(
    monkeypatch: pytest.MonkeyPatch, make_batch: MakeBatch
) -> None:
    """Otherwise the next batch would be compared with progress from before the producer was opened."""
    answers: list[Exception | None] = [None, UnavailableError("away"), None, None]

    def read(settings: KafkaSinkSettings) -> ProgressRecord | None:
        assert settings.request_timeout == SETTINGS.patience
        if (answer := answers.pop(0)) is not None:
            raise answer
        return None

    monkeypatch.setattr("slackwater.outputs.kafka.sink.newest_progress", read)
    producers = OneFailure(FakeTime())
    sink = KafkaSink(SETTINGS, clock=producers.time, connect=producers)
    with pytest.raises(UnavailableError):
        sink.write("q", make_batch(0))
    assert producers.discarded == 1
    sink.write("q", make_batch(0))
    assert (producers.opened, answers) == (2, [])


@pytest.mark.usefixtures("no_progress")
def test_nothing_is_written_by_a_producer_whose_topics_were_changed(
    monkeypatch: pytest.MonkeyPatch, make_batch: MakeBatch
) -> None:
    changes = [StateError("the topic is gone")]

    def check(_: UnchangedTopics) -> None:
        if changes:
            raise changes.pop()

    monkeypatch.setattr(UnchangedTopics, "check_identity", check)
    producers = OneFailure(FakeTime())
    sink = KafkaSink(SETTINGS, clock=producers.time, connect=producers)
    with pytest.raises(StateError):
        sink.write("q", make_batch(0))
    assert producers.discarded == 1
    sink.write("q", make_batch(0))
    assert producers.opened == 2


@pytest.mark.parametrize(
    ("name", "is_transient"), [("_MSG_TIMED_OUT", True), ("INVALID_REQUIRED_ACKS", False)]
)
def test_the_first_failed_delivery_says_whether_trying_again_helps(
    make_batch: MakeBatch, name: str, is_transient: bool
) -> None:
    from slackwater.outputs.kafka.transaction import BatchTransaction

    class Losing(OneFailure):
        def flush(self, *how: Any) -> None:
            for report in self.reports:
                if report is not None:
                    lost = SimpleNamespace(
                        partition=lambda: 0, offset=lambda: 0, value=lambda: b"", key=lambda: b"k"
                    )
                    report(KafkaError(code(name)), lost)

    transaction = BatchTransaction(SETTINGS, Losing(FakeTime()), make_batch(0), lambda _: None)
    with pytest.raises(TransactionFailedError, match="records failed") as caught:
        transaction.produce(PROGRESS)
    assert caught.value.is_transient is is_transient
