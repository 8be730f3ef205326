"""What is written while servers do not answer: a line, and not one for each attempt."""

import logging
import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError

from slackwater.protocol import KafkaSettings, SystemClock
from slackwater_messaging import DeliveryListener, MessagingUnavailableError, Outbox, PollingRelay
from slackwater_messaging.message import Place
from slackwater_messaging.receiving.group import GroupMember
from slackwater_messaging.retrying import Patience, RepeatedWarning, quiet

KAFKA = KafkaSettings("127.0.0.1:1")


class ManualClock(SystemClock):
    """Moves only when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class Ten(threading.Event):
    """Is set after ten looks."""

    def __init__(self) -> None:
        super().__init__()
        self._left = 10

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0

    def wait(self, timeout: float | None = None) -> bool:
        return False


def test_a_failure_that_lasts_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    warning = RepeatedWarning(logging.getLogger("slackwater_messaging.test"), "relay a", clock)
    for _ in range(13):
        warning.note("the broker is away")
        clock.seconds += 10
    warning.reset()
    warning.note("it is away again")
    assert [each.getMessage() for each in caplog.records] == [
        *(["relay a: the broker is away; retrying"] * 3),
        "relay a: it is away again; retrying",
    ]


def test_librdkafka_is_quiet_unless_it_is_told_to_speak() -> None:
    assert quiet(KAFKA).client_config["log_level"] == "2"
    assert quiet(KafkaSettings("a:1", {"log_level": "7"})).client_config["log_level"] == "7"


@pytest.mark.parametrize("error", [MessagingUnavailableError("away"), psycopg.OperationalError("away")])
@pytest.mark.parametrize("kind", ["relay", "listener"])
def test_a_relay_and_a_listener_say_once_that_they_wait(
    kind: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outbox, tries = Outbox("outbox"), []

    def fail(*_: object) -> int:
        tries.append(1)
        raise error

    runner: PollingRelay | DeliveryListener
    if kind == "relay":
        runner = PollingRelay("", KAFKA, outbox)
    else:
        runner = DeliveryListener("", KAFKA, outbox, topics=["paid"], group="g")
    monkeypatch.setattr(runner, "run_once", fail)
    runner.run(Ten())
    runner.close()
    assert len(tries) == 10
    assert [each.getMessage() for each in caplog.records] == ["outbox outbox: away; retrying"]


def test_patience_says_once_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    patience = Patience("receiver of group g", timedelta(minutes=5), clock)
    seconds = [patience.note(psycopg.OperationalError("away")) for _ in range(10)]
    assert seconds[0] < seconds[-1]
    assert [each.getMessage() for each in caplog.records] == ["receiver of group g: away; retrying"]


def test_patience_waits_twice_as_long_each_time_and_gives_up_at_its_limit_since_the_first_failure() -> None:
    clock = ManualClock()
    patience = Patience("receiver of group g", timedelta(minutes=5), clock)
    away = psycopg.OperationalError("away")
    assert [patience.note(away) for _ in range(8)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    for _ in range(3):
        clock.seconds += 100
        patience.note(away)
    clock.seconds += 1
    with pytest.raises(MessagingUnavailableError, match="gave up after 300 s of retries: away") as caught:
        patience.note(away)
    assert caught.value.__cause__ is away


def test_patience_begins_anew_after_a_success(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    patience = Patience("receiver of group g", timedelta(seconds=30), clock)
    away = psycopg.OperationalError("away")
    for _ in range(3):
        assert [patience.note(away), patience.note(away)] == [0.05, 0.1]
        clock.seconds += 20
        patience.reset()
    assert len(caplog.records) == 3


def test_a_member_of_a_group_says_once_that_kafka_is_away(caplog: pytest.LogCaptureFixture) -> None:
    class Away:
        def error(self) -> KafkaError:
            return KafkaError(KafkaError._ALL_BROKERS_DOWN)  # noqa: SLF001 - librdkafka's name

        def topic(self) -> None:
            return None

        def partition(self) -> None:
            return None

    member = GroupMember(KAFKA, ["said"], "g", latest=False, on_revoke=lambda _: None)
    member.places = (Place("said", 0),)
    away: Any = Away()
    for _ in range(10):
        member._take([away])  # noqa: SLF001
    member.close()
    (line,) = (each.getMessage() for each in caplog.records)
    assert line.startswith("group g: Kafka: ")
    assert "check that the brokers are up and reachable; retrying" in line
