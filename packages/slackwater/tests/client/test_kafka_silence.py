"""What a client says while brokers do not answer."""

import subprocess
import sys

import pytest
from confluent_kafka import KafkaError

from slackwater.client.kafka import _note
from slackwater.kafka.retry import Retry
from slackwater.protocol import UnavailableError


def test_what_does_not_pass_is_an_error() -> None:
    refused = KafkaError(KafkaError._AUTHENTICATION, "wrong password")  # noqa: SLF001 - has no public name
    with pytest.raises(UnavailableError, match="Kafka refused the client: wrong password"):
        _note(Retry("Kafka"), refused)


PROGRAM = """
import logging

from slackwater.client.kafka import KafkaBroker
from slackwater.protocol import KafkaSettings

broker = KafkaBroker(KafkaSettings("127.0.0.1:1", {"compression.type": "none"}), "g", 1)
reader, member = broker.reader(), broker.member("g", "t", lambda _: None)
said = []
logging.getLogger("slackwater.kafka.retry").addFilter(lambda record: said.append(record) or True)
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
    assert lines[0].startswith(
        "Kafka at 127.0.0.1:1 does not answer (check that the brokers are up and reachable"
    )
