"""Which errors of Kafka are waited for, how long, and what is said meanwhile."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from slackwater.cuts import CutLog, RecordsGoneError, TopicUnavailableError
from slackwater.kafka.retry import KafkaRetry, Retry, is_transient
from slackwater.protocol import Cut, KafkaSettings, encode_log_record
from slackwater_lab.fakes.topics import FlakyConsumer

TRANSIENT = [
    "_ALL_BROKERS_DOWN",
    "_DESTROY_BROKER",
    "_ISR_INSUFF",
    "_MSG_TIMED_OUT",
    "_RESOLVE",
    "_RETRY",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_TRANSPORT",
    "_WAIT_CACHE",
    "_WAIT_COORD",
    "BROKER_NOT_AVAILABLE",
    "CONCURRENT_TRANSACTIONS",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "FETCH_SESSION_ID_NOT_FOUND",
    "INVALID_FETCH_SESSION_EPOCH",
    "KAFKA_STORAGE_ERROR",
    "LEADER_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "NOT_CONTROLLER",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "PREFERRED_LEADER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "REQUEST_TIMED_OUT",
    "THROTTLING_QUOTA_EXCEEDED",
    "UNKNOWN_LEADER_EPOCH",
]
PERMANENT = [
    "_AUTHENTICATION",
    "_AUTO_OFFSET_RESET",
    "_FATAL",
    "_FENCED",
    "_INVALID_ARG",
    "_SSL",
    "_STATE",
    "_UNKNOWN_PARTITION",
    "_UNKNOWN_TOPIC",
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "INVALID_PRODUCER_EPOCH",
    "MSG_SIZE_TOO_LARGE",
    "OFFSET_OUT_OF_RANGE",
    "POLICY_VIOLATION",
    "PRODUCER_FENCED",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_ALREADY_EXISTS",
    "TOPIC_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNKNOWN",
    "UNKNOWN_TOPIC_ID",
    "UNKNOWN_TOPIC_OR_PART",
    "UNSUPPORTED_VERSION",
]
ABSENT = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
LOST = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")


class FakeTime:
    """A clock that only advances during pauses."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pauses: list[float] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.seconds += seconds


def error_of(name: str, reason: str | None = None) -> KafkaException:
    code = getattr(KafkaError, name)
    return KafkaException(KafkaError(code) if reason is None else KafkaError(code, reason))


def retry_of(time: FakeTime, timeout: float = 30.0, **options: tuple[int, ...]) -> KafkaRetry:
    return KafkaRetry("read of topic t", timeout, clock=time, pause=time.pause, **options)


def failing(times: int, name: str) -> tuple[list[float], Callable[[float], str]]:
    seen: list[float] = []

    def request(seconds: float) -> str:
        seen.append(seconds)
        if len(seen) <= times:
            raise error_of(name)
        return "answer"

    return seen, request


@pytest.mark.parametrize("name", TRANSIENT)
def test_a_request_is_repeated_after_a_transient_error(name: str) -> None:
    time = FakeTime()
    seen, request = failing(3, name)
    assert retry_of(time).call(request) == "answer"
    assert len(seen) == 4


@pytest.mark.parametrize("name", PERMANENT)
def test_a_request_is_not_repeated_after_any_other_error(name: str) -> None:
    time = FakeTime()
    seen, request = failing(1, name)
    with pytest.raises(KafkaException) as caught:
        retry_of(time).call(request)
    assert caught.value.args[0].code() == getattr(KafkaError, name)
    assert (len(seen), time.pauses) == (1, [])


def test_what_librdkafka_calls_fatal_is_not_repeated_and_what_it_calls_retriable_is() -> None:
    assert not is_transient(KafkaError(KafkaError._TIMED_OUT, "t", True))  # noqa: SLF001
    assert is_transient(KafkaError(KafkaError.UNKNOWN, "t", False, True))
    assert not is_transient(KafkaError(KafkaError.UNKNOWN, "t", True, True))


def test_an_operation_may_name_further_errors() -> None:
    also = (KafkaError.UNKNOWN_TOPIC_OR_PART,)
    seen, request = failing(2, "UNKNOWN_TOPIC_OR_PART")
    assert retry_of(FakeTime(), also=also).call(request) == "answer"
    assert len(seen) == 3
    fatal = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "t", True)
    assert not retry_of(FakeTime(), also=also).is_transient(fatal)


def test_pauses_grow_and_end_at_the_deadline_with_what_and_how_long() -> None:
    time = FakeTime()
    seen, request = failing(1000, "NOT_LEADER_FOR_PARTITION")
    with pytest.raises(KafkaException, match="tried for 3 s: Broker: Not leader") as caught:
        retry_of(time, 3.0).call(request)
    assert caught.value.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION
    assert time.pauses[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert time.seconds == pytest.approx(3.0)
    assert seen[0] == 3.0
    assert seen[-1] == 0.001
    assert seen == sorted(seen, reverse=True)


def test_an_answer_that_never_comes_counts_as_a_time_out() -> None:
    answers = iter([TimeoutError(), None])

    def request(_: float) -> str:
        if (error := next(answers)) is not None:
            raise error
        return "answer"

    assert retry_of(FakeTime()).call(request) == "answer"


def test_errors_of_others_are_not_caught() -> None:
    def request(_: float) -> str:
        raise KafkaException("a text")

    with pytest.raises(KafkaException, match="a text"):
        retry_of(FakeTime()).call(request)


def test_waiting_is_logged_after_a_second_and_then_less_and_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = FakeTime()
    _, request = failing(304, "_TRANSPORT")
    with caplog.at_level(logging.WARNING):
        retry_of(time, 600).call(request)
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("Kafka: read of topic t: ")
    ends = [f"trying again, for {left} s at most" for left in (598, 593, 583, 563, 523, 463, 403, 343)]
    assert [text[-len(end) :] for text, end in zip(said, ends, strict=True)] == ends


def test_what_passes_within_a_second_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    _, request = failing(4, "_TRANSPORT")
    with caplog.at_level(logging.WARNING):
        retry_of(FakeTime()).call(request)
    assert caplog.records == []


# --- of what is no request to Kafka


def test_failures_are_waited_for_from_the_first_one_on(caplog: pytest.LogCaptureFixture) -> None:
    time = FakeTime()
    retry = Retry("receiver of group g", 30, clock=time, pause=time.pause)
    time.seconds += 3600
    assert not retry.is_over
    away = OSError("the database is away")
    for seconds in (0, 29):
        time.seconds += seconds
        retry.note(away)
        assert not retry.is_over
    time.seconds += 1
    assert (retry.is_over, retry.outcome) == (True, "tried for 30 s: the database is away")
    assert [each.getMessage() for each in caplog.records] == [
        "receiver of group g: the database is away; trying again, for 30 s at most",
        "receiver of group g: the database is away; trying again, for 1 s at most",
    ]


def test_after_a_success_time_pauses_and_lines_begin_again(caplog: pytest.LogCaptureFixture) -> None:
    time = FakeTime()
    retry = Retry("relay a", 30, clock=time, pause=time.pause)
    for _ in range(3):
        for _ in range(3):
            retry.note(OSError("away"))
            retry.pause()
        time.seconds += 29
        assert not retry.is_over
        retry.reset()
        assert retry.last_error is None
    assert time.pauses == [0.05, 0.1, 0.2] * 3
    assert len(caplog.records) == 3


def test_without_a_limit_failures_are_waited_for_without_end(caplog: pytest.LogCaptureFixture) -> None:
    time = FakeTime()
    retry = Retry("relay a", clock=time, pause=time.pause)
    for _ in range(10_000):
        retry.note(OSError("away"))
        retry.pause()
    assert not retry.is_over
    assert max(time.pauses) == 1.0
    assert {each.getMessage() for each in caplog.records} == {"relay a: away; trying again"}


# --- the cut log


Acknowledged = Callable[[KafkaError | None, Message], None]
SOURCE = "src"
TOPIC = "src.slackwater.cuts"


@pytest.fixture
def cut(make_cut: Callable[..., Cut]) -> Cut:
    return make_cut(SOURCE, 10)


def flaky_log(
    monkeypatch: pytest.MonkeyPatch, cuts: int, cut: Cut, *errors: str, seconds: float = 20
) -> tuple[CutLog, FlakyConsumer]:
    codes = [getattr(KafkaError, name) for name in errors]
    values = [encode_log_record(cut)] * cuts
    consumer = FlakyConsumer({(TOPIC, 0): values} if cuts else {}, codes)
    monkeypatch.setattr("slackwater.kafka.reader.Consumer", lambda *_, **__: consumer)
    return CutLog(SOURCE, KafkaSettings("nowhere:1"), timeout=timedelta(seconds=seconds)), consumer


@pytest.mark.parametrize("name", ["_AUTHENTICATION", "TOPIC_AUTHORIZATION_FAILED", "UNKNOWN"])
@pytest.mark.parametrize("succeeding", [0, 1])
def test_reading_the_cut_log_fails_at_once_for_other_errors(
    monkeypatch: pytest.MonkeyPatch, cut: Cut, name: str, succeeding: int
) -> None:
    log, consumer = flaky_log(monkeypatch, 3, cut, *["NO_ERROR"] * succeeding, name, "_TRANSPORT")
    with pytest.raises(TopicUnavailableError, match=r"read of Kafka topic src\.slackwater\.cuts failed"):
        log.tail(-1)
    assert len(consumer.errors) == 1, "asked again"


@pytest.mark.parametrize("name", LOST)
def test_offsets_that_are_gone_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, cut: Cut, name: str
) -> None:
    log, _ = flaky_log(monkeypatch, 3, cut, "NO_ERROR", name)
    with pytest.raises(RecordsGoneError):
        log.tail(-1)


@pytest.mark.parametrize("name", ABSENT)
def test_a_log_that_was_seen_is_waited_for_and_any_other_is_empty(
    monkeypatch: pytest.MonkeyPatch, cut: Cut, name: str
) -> None:
    log, _ = flaky_log(monkeypatch, 3, cut, name, "NO_ERROR", "NO_ERROR", name, name)
    assert log.end() == 0
    assert log.end() == 3
    assert log.end() == 3
    log, _ = flaky_log(monkeypatch, 3, cut, "NO_ERROR", name, name)
    assert len(log.tail(-1)) == 3


def test_a_log_that_stays_away_is_an_error_that_says_for_how_long(
    monkeypatch: pytest.MonkeyPatch, cut: Cut
) -> None:
    log, _ = flaky_log(monkeypatch, 3, cut, *["NOT_LEADER_FOR_PARTITION"] * 10_000, seconds=0.2)
    with pytest.raises(TopicUnavailableError, match=r"tried for 0.2 s: Broker: Not leader.*check that"):
        log.end()
    log, _ = flaky_log(monkeypatch, 3, cut, "NO_ERROR", *["_TRANSPORT"] * 1_000_000, seconds=0.2)
    with pytest.raises(TopicUnavailableError, match=r"at offset 0 of 3, tried for 0\.2 s: .*transport"):
        log.tail(-1)


def test_the_fake_reads_like_a_consumer(cut: Cut) -> None:
    consumer = FlakyConsumer({("t", 0): [b"a", b"b", b"c"]})
    consumer.assign([TopicPartition("t", 0, 1)])
    assert [m.value() for m in consumer.consume(1)] == [b"b"]
    assert [m.value() for m in consumer.consume(5)] == [b"c"]
    assert [m.offset() for m in consumer.consume(5)] == [3]
    assert consumer.consume(5) == []


class SilentProducer:
    """Acknowledges each record, of some without saying where it was written."""

    def __init__(self, offsets: list[int]) -> None:
        self._offsets = offsets

    def produce(self, topic: str, _: bytes, __: None, *, partition: int, on_delivery: Acknowledged) -> None:
        offset = self._offsets.pop(0)
        on_delivery(None, Message(topic=topic, partition=partition, offset=offset))

    def flush(self, _: float) -> int:
        return 0

    def purge(self) -> None: ...


def test_a_cut_that_is_acknowledged_without_its_offset_is_appended_again(
    monkeypatch: pytest.MonkeyPatch, cut: Cut
) -> None:
    """As the broker answers to a repeated batch of which it remembers only the number."""
    offsets = [7, -1001, 8, 9]  # as librdkafka names an offset that it does not know
    monkeypatch.setattr("slackwater.kafka.topic.Producer", lambda _: SilentProducer(offsets))
    log = CutLog(SOURCE, KafkaSettings("nowhere:1"))
    with pytest.raises(TopicUnavailableError, match="acknowledged without an offset"):
        log.append([cut, cut])
    assert [each.log_offset for each in log.append([cut, cut])] == [8, 9]
