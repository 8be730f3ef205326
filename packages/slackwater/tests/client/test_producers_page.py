"""The examples of docs/producers.md, run as they are there."""

import re
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from slackwater.cdc import decode_change
from slackwater.client import OutputTopics, TransactionalConsumer
from slackwater.client.consumer import ConsumerSettings
from slackwater.protocol import CommitPosition
from slackwater.protocol.keys import commit_topic, data_topic
from slackwater_lab.fakes.broker import MemoryBroker
from slackwater_lab.fakes.outputs import Ticking, World

BLOCKS = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parents[4] / "docs/producers.md").read_text(), re.S
)


def keys(broker: MemoryBroker, source: str, table: str) -> list[list[str]]:
    """The keys and operations of each transaction of a source, in a table's topic."""
    inputs = OutputTopics(data_topic(source, table), commits=commit_topic(source))
    consumer = TransactionalConsumer(broker, inputs, group=uuid.uuid4().hex, clock=Ticking())
    found = [transaction for _ in range(TRIES) if (transaction := consumer.poll(0)) is not None]
    return [[f"{r.key()!r} {decode_change(r.value() or b'').op}" for r in each] for each in found]


TRIES = 20
"""How often a consumer looks for more; each time it does what is due by then."""


class Stopped(Exception):
    """Nothing more is to be read."""


def test_the_first_example_writes_a_transaction(
    memory: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slackwater.protocol.KafkaSettings", lambda _: memory.broker)
    exec(BLOCKS[0], {})  # noqa: S102 - the page's own
    assert capsys.readouterr().out == "1/0/1000000\n"
    (written,) = keys(memory.broker, "billing", "public.invoice")
    assert sorted(written) == ["b'{\"id\":5}' d", "b'{\"id\":6}' u", "b'{\"id\":7}' c"]


def test_the_second_example_writes_on_what_a_database_has_committed(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.name = "shop"
    changes = memory.changes({"inventory.orders": 2})
    for number in (1, 2):
        changes.transaction([("inventory.orders", number, {"id": number})])
    changes.cut()

    class UntilIdle(TransactionalConsumer):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings, clock=Ticking())

        def __iter__(self) -> Any:
            yield from (f for _ in range(TRIES) if (f := self.poll(timedelta())) is not None)
            raise Stopped

    monkeypatch.setattr("slackwater.client.TransactionalConsumer", UntilIdle)
    names: dict[str, Any] = {"kafka": memory.broker, "write_on": write_on}
    exec("from slackwater.client import TransactionalProducer", names)  # noqa: S102 - as in the first block
    with pytest.raises(Stopped):
        exec(BLOCKS[1], names)  # noqa: S102 - the page's own
    assert keys(memory.broker, "told", "service.mail") == [["b'{\"id\":1}' c"], ["b'{\"id\":2}' c"]]
    assert names["producer"].position == CommitPosition(1, 200)
    assert names["settings"] == ConsumerSettings(stores_positions=False)


def write_on(transaction: Any, record: Any) -> None:
    key = {"id": int(re.findall(r"\d+", record.key().decode())[0])}
    transaction.insert("service.mail", key, {})
