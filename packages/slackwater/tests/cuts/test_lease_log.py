"""One behaviour of all topics of leases."""

import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from confluent_kafka import Producer

from slackwater.cuts import LeaseLog, TopicUnavailableError
from slackwater.protocol import Hold, KafkaSettings, Lease, encode_lease_record, lease_record_key
from slackwater_lab.fakes.memory import InMemoryLeaseLog

LEASE = Lease(
    id="4f",
    source="inv",
    timeline=1,
    commit_lsn=7,
    pipelines=("orders",),
    holder="somebody",
    taken_ms=1_000,
    expires_ms=2_000,
)
HOLD = Hold(lease="4f", pipeline="orders", until_ms=2_000)

Append = Callable[[bytes, bytes | None], object]


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> str:
    """One of the test's own: in a cluster there is one for all."""
    name = f"leases-{uuid.uuid4().hex[:10]}"
    monkeypatch.setattr(LeaseLog, "topic", name)
    return name


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.integration)])
def log(request: pytest.FixtureRequest, topic: str) -> Iterator[LeaseLog]:
    if request.param == "memory":
        yield InMemoryLeaseLog()
    else:
        kafka = KafkaSettings(request.getfixturevalue("bootstrap"))
        kafka_log = LeaseLog(kafka, timeout=timedelta(seconds=30), replication_factor=1)
        yield kafka_log
        kafka_log.close()


@pytest.fixture
def append(request: pytest.FixtureRequest, log: LeaseLog, topic: str) -> Append:
    """Writes bytes, as anybody could."""
    if isinstance(log, InMemoryLeaseLog):
        return log.append
    producer = Producer(
        {"bootstrap.servers": request.getfixturevalue("bootstrap"), "enable.idempotence": True}
    )

    def write(key: bytes, value: bytes | None) -> None:
        producer.produce(topic, value, key)
        assert producer.flush(30) == 0

    return write


def test_without_a_topic_there_is_no_lease(log: LeaseLog) -> None:
    assert log.read() == []


def test_what_is_written_is_read_in_its_order_and_the_newest_of_each_key_counts(log: LeaseLog) -> None:
    log.ensure()
    log.write(LEASE, HOLD)
    assert log.read() == [LEASE, HOLD]
    renewed = replace(LEASE, expires_ms=3_000)
    log.write(renewed)
    assert log.read() == [HOLD, renewed]


def test_what_is_removed_is_gone_and_may_come_again(log: LeaseLog) -> None:
    log.ensure()
    log.write(LEASE, HOLD)
    log.remove([LEASE])
    assert log.read() == [HOLD]
    log.remove([HOLD])
    assert log.read() == []
    log.write(LEASE)
    assert log.read() == [LEASE]


def test_writing_and_removing_nothing_asks_nobody(log: LeaseLog) -> None:
    log.write()
    log.remove([])
    assert log.read() == []


def test_what_is_not_ours_is_passed_over_and_logged(
    log: LeaseLog, append: Append, caplog: pytest.LogCaptureFixture
) -> None:
    log.ensure()
    append(b"x", b"not JSON")
    append(b"other", encode_lease_record(LEASE))
    append(lease_record_key(LEASE), encode_lease_record(LEASE).replace(b'"v":2', b'"v":99'))
    log.write(HOLD)
    with caplog.at_level(logging.WARNING, "slackwater.cuts.compacted_topic"):
        assert log.read() == [HOLD]


def test_a_broker_that_is_away_is_an_error_with_advice() -> None:
    log = LeaseLog(KafkaSettings("127.0.0.1:1", {"log_level": "0"}), timeout=timedelta(milliseconds=200))
    for question in (log.read, log.ensure, lambda: log.write(LEASE), lambda: log.remove([LEASE])):
        with pytest.raises(TopicUnavailableError, match=r"slackwater\.leases.*; check that"):
            question()
    log.close()
