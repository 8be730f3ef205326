"""What a client says while brokers do not answer."""

import logging
import subprocess
import sys

import pytest
from confluent_kafka import KafkaError

from slackwater.client.kafka import BrokerSilence
from slackwater.protocol import SystemClock, UnavailableError
from slackwater_lab.fakes.outputs import Ticking

DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "all brokers are down")  # noqa: SLF001 - has no public name


def test_dozens_of_errors_are_one_line_that_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    silence = BrokerSilence("kafka:9092", SystemClock())
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            silence.note(DOWN)
    (line,) = caplog.messages
    assert line.startswith(
        "Kafka at kafka:9092 does not answer: all brokers are down; reading continues when"
    )
    assert "check that the brokers are up and reachable" in line


def test_while_it_lasts_it_is_said_again_every_minute(caplog: pytest.LogCaptureFixture) -> None:
    silence = BrokerSilence("kafka:9092", Ticking())
    for _ in range(121):
        silence.note(DOWN)
    assert len(caplog.messages) == 3


def test_what_does_not_pass_is_an_error() -> None:
    silence = BrokerSilence("kafka:9092", SystemClock())
    with pytest.raises(UnavailableError, match="Kafka refused the client: wrong password"):
        silence.note(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))  # noqa: SLF001


PROGRAM = """
import logging

from slackwater.client.kafka import KafkaBroker
from slackwater.protocol import KafkaSettings

broker = KafkaBroker(KafkaSettings("127.0.0.1:1", {"compression.type": "none"}), "g", 1)
reader, member = broker.reader(), broker.member("g", "t", None, lambda _: None)
said = []
logging.getLogger("slackwater.client.kafka").addFilter(lambda record: said.append(record) or True)
while not said:
    reader.read(0.05)
    member.poll(0.05)
for _ in range(20):
    reader.read(0.05)
    member.poll(0.05)
"""


def test_librdkafka_itself_says_nothing_on_standard_error() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    lines = ran.stderr.splitlines()
    assert len(lines) == 1, ran.stderr
    assert lines[0].startswith("Kafka at 127.0.0.1:1 does not answer")
