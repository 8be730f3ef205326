"""What is written while servers do not answer: a line, and not one for each attempt."""

import threading

import psycopg
import pytest

from slackwater.protocol import KafkaSettings, UnavailableError
from slackwater_messaging import DeliveryListener, Outbox, PollingRelay
from slackwater_messaging.reading import quiet

KAFKA = KafkaSettings("127.0.0.1:1")


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


def test_librdkafka_is_quiet_unless_it_is_told_to_speak() -> None:
    assert quiet(KAFKA).client_config["log_level"] == "2"
    assert quiet(KafkaSettings("a:1", {"log_level": "7"})).client_config["log_level"] == "7"


@pytest.mark.parametrize("error", [UnavailableError("away"), psycopg.OperationalError("away")])
@pytest.mark.parametrize("kind", ["relay", "listener"])
def test_a_relay_and_a_listener_say_once_that_they_wait(
    kind: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outbox, tries = Outbox("outbox"), []

    def fail(*_: object) -> int:
        tries.append(1)
        raise error

    runner: PollingRelay | DeliveryListener
    who = "the relay of outbox outbox" if kind == "relay" else "the listener of group g"
    if kind == "relay":
        runner = PollingRelay("", KAFKA, outbox)
    else:
        runner = DeliveryListener("", KAFKA, outbox, topics=["paid"], group="g")
    monkeypatch.setattr(runner, "run_once", fail)
    runner.run(Ten())
    runner.close()
    assert len(tries) == 10
    assert [each.getMessage() for each in caplog.records] == [f"{who}: away; trying again"]
