"""The examples of docs/receiving-messages.md, over real servers."""

import importlib.util
import json
import re
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater_lab.topics import make_topics, read_to_end
from slackwater_messaging.receiving import ReceivedMessage

pytestmark = pytest.mark.integration
DOCS = Path(__file__).parents[4] / "docs"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "examples" / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ValueError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> str:
    name = f"e{uuid.uuid4().hex[:10]}"
    make_topics(kafka_broker.bootstrap, [name, f"{name}.out"], 1)
    return name


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    """A database of this test's own."""
    name = f"e{uuid.uuid4().hex[:10]}"
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return postgres_server.dsn(name)


def write(broker: KafkaBroker, topic: str, messages: Iterable[tuple[str, bytes]]) -> int:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    written = 0
    for key, value in messages:
        producer.produce(topic, value, key)
        written += 1
    producer.flush(30)
    return written


def receive(poll: Callable[[], int], count: int) -> None:
    """Receives until this many have come."""
    while count > 0:
        count -= poll()


def test_payments_are_booked_once(kafka_broker: KafkaBroker, topic: str, database: str) -> None:
    module = example("receive_with_a_table")
    payment = {"payment": 7, "account": "ada", "amount": 10}
    values = [json.dumps({**payment, "payment": n % 3}).encode() for n in range(9)]
    written = write(kafka_broker, topic, [("ada", value) for value in values])
    with psycopg.connect(database) as connection:
        module.create_tables(connection)
    with module.payments(kafka_broker.bootstrap, database, topic) as receiver:
        receive(lambda: receiver.poll(module.pay), written)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT * FROM balance").fetchall() == [("ada", 30)]
        request = ReceivedMessage(topic="", partition=0, offset=0, value=json.dumps(payment).encode())
        answers = [module.pay_on_request(connection, "request-1", request) for _ in range(2)]
        assert answers == [b'{"payment": 7, "balance": 40}'] * 2


@pytest.mark.full
@pytest.mark.parametrize("kind", ["filtered", "filters_alone"])
def test_clicks_are_counted_once(kafka_broker: KafkaBroker, topic: str, database: str, kind: str) -> None:
    module = example("receive_with_filters")
    inbox = getattr(module, kind)()
    written = write(kafka_broker, topic, [(str(n % 50), b"home") for n in range(100)])
    with psycopg.connect(database) as connection:
        module.create_tables(connection, inbox)
    with module.clicks(kafka_broker.bootstrap, database, topic, inbox) as receiver:
        receive(lambda: receiver.poll(module.count), written)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT * FROM clicks").fetchall() == [("home", 50)]


def test_messages_become_messages(kafka_broker: KafkaBroker, topic: str) -> None:
    module = example("receive_within_kafka")
    written = write(kafka_broker, topic, [("k", b"hello"), ("k", b"world")])
    shouter = module.Shouter(f"{topic}.out")
    with module.shouting(kafka_broker.bootstrap, topic) as processor:
        receive(lambda: processor.poll(shouter.process), written)
    outputs: list[bytes | None] = []
    while len(outputs) < written:  # brokers show what is committed a moment later
        outputs = [record.value() for record in read_to_end(kafka_broker.bootstrap, f"{topic}.out")]
    assert outputs == [b"HELLO", b"WORLD"]


def test_the_code_in_the_page_is_python_that_names_what_there_is() -> None:
    """Imports of the page are made, and everything compiles."""
    text = (DOCS / "receiving-messages.md").read_text()
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        compile(block, "receiving-messages.md", "exec")
        names: dict[str, Any] = {}
        imports = [line for line in block.splitlines() if re.match(r"(from|import) ", line)]
        exec("\n".join(imports), names)  # noqa: S102 - our own page
    named = re.findall(r"\]\((examples/\w+\.py)\)", text)
    assert len(named) >= 3
    assert [path for path in named if not (DOCS / path).exists()] == []
