"""The examples of docs/messaging.md and docs/messaging-in-services.md, in their order, over real servers."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater_lab.fakes.outputs import ChangeWriter, KafkaTopics
from slackwater_lab.messaging.sending.world import World
from slackwater_messaging import AuditReport

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[3] / "docs"
TEXT = "".join((DOCS / page).read_text() for page in ("messaging.md", "messaging-in-services.md"))
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
ORDERS = 9


class Stop(threading.Event):
    """Ends what runs until it is set after a while."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0

    def is_set(self) -> bool:
        self._looks += 1
        return self._looks > 20

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(min(timeout or 0, 0.05))


@pytest.fixture
def world(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> Iterator[World]:
    made = World(postgres_server.dsn(), kafka_broker.bootstrap)
    yield made
    made.connection.close()


def run(world: World, block: str, names: dict[str, Any]) -> None:
    """Runs an example, with names that nobody else uses."""
    own = {
        "postgresql://app@localhost/shop": world.dsn,
        "localhost:9092": world.bootstrap,
        '"paid"': f'"{world.topic}"',
        '"inv"': f'"{world.name}"',
        '"outbox"': f'"{world.name}_shop"',
        "captured_outbox": f"{world.name}_captured",
        '"shop-': f'"{world.name}-',
        " orders ": f" {world.name}_orders ",
    }
    for found, replacement in own.items():
        block = block.replace(found, replacement)
    names["stop"] = Stop()
    exec(compile(block, "docs/messaging.md", "exec"), names)  # noqa: S102 - our own page


def play_connector(world: World) -> None:
    """Writes what a connector writes of the message of order 2."""
    table = f"public.{world.name}_captured"
    changes = ChangeWriter(KafkaTopics(world.bootstrap, f"{world.name}-connector"), world.name, {table: 1})
    row = {"id": 1, "topic": world.topic, "key": "Mg==", "value": "e30=", "headers": "[]"}
    changes.transaction([(table, 1, row | {"created_at": "2026-11-25T04:37:43.150517Z"}), (table, 1, None)])
    changes.cut()


@pytest.mark.full
def test_every_example_does_what_the_page_says(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    columns = "id bigint, status text, paid_at timestamptz DEFAULT now() - interval '9 min'"
    world.connection.execute(f"CREATE TABLE {world.name}_orders ({columns})".encode())
    fill = f"INSERT INTO {world.name}_orders SELECT n FROM generate_series(1, {ORDERS}) n"  # noqa: S608
    world.connection.execute(fill.encode())
    names: dict[str, Any] = {}
    try:
        for block in BLOCKS:
            if "CaptureRelay(kafka" in block:
                play_connector(world)
            run(world, block, names)
    finally:
        names["connection"].close()
        names["engine"].dispose()

    keys = sorted(int(record.key() or b"") for record in world.records())
    assert keys == [n for n in range(1, ORDERS + 1) if n != 8]  # its relay ran before
    found = world.connection.execute(
        f"SELECT count(*) FROM {world.name}_orders WHERE status = 'paid'".encode()  # noqa: S608
    )
    assert found.fetchone() == (ORDERS,)
    report = names["report"]
    assert isinstance(report, AuditReport)
    assert (report.committed, report.lost, report.ghosts) == (ORDERS, ("7", "8", "9"), ())
    assert "('7', '8', '9')" in capsys.readouterr().out


def test_the_page_has_an_example_of_every_way() -> None:
    text = "".join(BLOCKS)
    ways = ("Outbox(", "PollingRelay(", "CapturedOutbox(", "CaptureRelay(", "ChainedSender(", "SavedSender(")
    more = (
        "ProvenSender(",
        "DeliveryListener(",
        "PreparedSender(",
        "audit_messages(",
        "session_transaction(",
        "SenderPool(",
        "pool.transaction_async(",
    )
    assert [name for name in (*ways, *more) if name not in text] == []
