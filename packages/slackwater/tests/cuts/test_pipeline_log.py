"""One behaviour of all topics of pipelines."""

import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from slackwater.cuts import PipelineLog, TopicUnavailableError
from slackwater.protocol import (
    KafkaSettings,
    PipelineEntry,
    PipelineRegistration,
    PipelineReport,
    SystemClock,
    encode_pipeline_record,
    pipeline_record_key,
)
from slackwater_lab.fakes.memory import InMemoryPipelineLog
from slackwater_lab.fakes.topics import REGISTRATION

REPORT = PipelineReport(pipeline="orders", run="r", batch_id=1, timeline=1, commit_lsn=7)

Append = Callable[[bytes, bytes | None], None]


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> str:
    """One of the test's own: in a cluster there is one for all."""
    name = f"pipelines-{uuid.uuid4().hex[:10]}"
    monkeypatch.setattr(PipelineLog, "topic", name)
    return name


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.integration)])
def log(request: pytest.FixtureRequest, topic: str) -> Iterator[PipelineLog]:
    if request.param == "memory":
        yield InMemoryPipelineLog()
    else:
        kafka_log = new_log(request.getfixturevalue("bootstrap"))
        yield kafka_log
        kafka_log.close()


@pytest.fixture
def append(request: pytest.FixtureRequest, log: PipelineLog, topic: str) -> Append:
    """Writes bytes, as anybody could."""
    if isinstance(log, InMemoryPipelineLog):
        return lambda key, value: (log.append(key, value), None)[1]
    producer = Producer(
        {"bootstrap.servers": request.getfixturevalue("bootstrap"), "enable.idempotence": True}
    )

    def write(key: bytes, value: bytes | None) -> None:
        producer.produce(topic, value, key)
        assert producer.flush(30) == 0

    return write


def new_log(bootstrap: str) -> PipelineLog:
    return PipelineLog(KafkaSettings(bootstrap), timeout=timedelta(seconds=30), replication_factor=1)


def records(entries: list[PipelineEntry]) -> list[PipelineRegistration | PipelineReport]:
    return [entry.record for entry in entries]


def test_without_a_topic_nothing_is_known(log: PipelineLog) -> None:
    assert log.read() == []


def test_what_is_registered_is_read_with_its_place_and_time(log: PipelineLog) -> None:
    log.ensure()
    before_ms = SystemClock().now().timestamp() * 1000
    offset = log.register(REGISTRATION)
    [entry] = log.read()
    assert (entry.record, entry.offset) == (REGISTRATION, offset)
    assert abs(entry.written_ms - before_ms) < 3_600_000, "a time, in milliseconds"


def test_a_topic_that_exists_is_left_as_it_is(log: PipelineLog) -> None:
    log.ensure()
    log.register(REGISTRATION)
    log.ensure()
    assert records(log.read()) == [REGISTRATION]


def test_the_registration_and_the_newest_report_of_each_run_remain_in_order(log: PipelineLog) -> None:
    log.ensure()
    other, again = replace(REGISTRATION, run="another"), replace(REGISTRATION, owner="again")
    log.register(REGISTRATION)
    log.register(other)
    for batch in (1, 2, 3):
        log.report(replace(REPORT, batch_id=batch))
    log.register(again)
    assert records(log.read()) == [other, replace(REPORT, batch_id=3), again]


def test_reading_again_finds_what_is_new_and_nothing_twice(log: PipelineLog) -> None:
    log.ensure()
    log.register(REGISTRATION)
    assert records(log.read()) == [REGISTRATION]
    other = replace(REGISTRATION, pipeline="others")
    log.register(other)
    assert records(log.read()) == records(log.read()) == [REGISTRATION, other]


def test_what_is_forgotten_is_gone_and_may_come_again(log: PipelineLog) -> None:
    log.ensure()
    log.register(REGISTRATION)
    log.report(REPORT)
    log.register(replace(REGISTRATION, run="stays"))
    log.forget("orders", "r")
    log.forget("orders", "never was there")
    assert records(log.read()) == [replace(REGISTRATION, run="stays")]
    log.register(REGISTRATION)
    assert records(log.read())[-1] == REGISTRATION


def test_what_is_not_ours_or_newer_is_passed_over_and_said(
    log: PipelineLog, append: Append, caplog: pytest.LogCaptureFixture
) -> None:
    log.ensure()
    data = encode_pipeline_record(REGISTRATION)
    append(b"somebody", b"else")
    append(b"newer", data.replace(b'"v":2', b'"v":3'))
    append(b"another key", data)
    log.register(REGISTRATION)
    with caplog.at_level(logging.WARNING):
        assert records(log.read()) == [REGISTRATION]
    assert [text for text in ("not a readable", "version 3", "unknown key") if text not in caplog.text] == []


def test_a_registration_that_is_overwritten_with_something_else_is_gone(
    log: PipelineLog, append: Append
) -> None:
    log.ensure()
    log.register(REGISTRATION)
    append(pipeline_record_key(REGISTRATION), b"{}")
    assert log.read() == []


@pytest.mark.integration
def test_readers_of_kafka_find_what_others_have_written_before_and_after(topic: str, bootstrap: str) -> None:
    writer, reader = new_log(bootstrap), new_log(bootstrap)
    writer.ensure()
    writer.register(REGISTRATION)
    assert records(reader.read()) == [REGISTRATION]
    writer.report(REPORT)
    writer.close()
    assert records(reader.read()) == [REGISTRATION, REPORT], "what waits is written when a log is closed"
    reader.close()


@pytest.mark.integration
def test_a_topic_that_was_made_anew_is_read_from_its_start(topic: str, bootstrap: str) -> None:
    log = new_log(bootstrap)
    log.ensure()
    for run in "abcdefghi":  # a topic that is longer now than it was looks like the one before
        log.register(replace(REGISTRATION, run=run))
    assert len(log.read()) == 9
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    other = new_log(bootstrap)
    until_made(other)
    other.register(REGISTRATION)
    assert records(log.read()) == [REGISTRATION]
    log.close()
    other.close()


def until_made(log: PipelineLog) -> None:
    """A broker may take a while to delete a topic, and then denies that it may be made."""
    log.ensure()
    while True:
        try:
            log.register(replace(REGISTRATION, run="probe"))
        except TopicUnavailableError:
            log.ensure()
        else:
            log.forget(REGISTRATION.pipeline, "probe")
            return


@pytest.mark.integration
def test_the_topic_is_compacted_and_has_the_time_of_the_broker(topic: str, bootstrap: str) -> None:
    log = new_log(bootstrap)
    log.ensure()
    log.close()
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = admin.describe_configs([resource])[resource].result(30)
    assert config["cleanup.policy"].value == "compact"
    assert config["message.timestamp.type"].value == "LogAppendTime"


def test_a_broker_that_is_away_is_an_error_with_advice_and_costs_reports_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = PipelineLog(
        KafkaSettings("127.0.0.1:1", {"log_level": "0"}),
        timeout=timedelta(milliseconds=200),
        replication_factor=1,
    )
    for question in (log.read, log.ensure, lambda: log.register(REGISTRATION), lambda: log.forget("p", "q")):
        with pytest.raises(TopicUnavailableError, match=r"slackwater\.pipelines.*; check that"):
            question()
    with caplog.at_level(logging.WARNING, "slackwater.cuts.compacted_topic"):
        log.report(REPORT)
        log.report(REPORT)
        log.close()
    assert caplog.text.count("was lost") == 1
