"""The orders view as a hand-written fold: one thread, dictionaries, a document per changed order and poll."""

import argparse
import signal
import sys
from collections.abc import Iterator
from typing import Any

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

POLL_MESSAGES = 10_000
POLL_SECONDS = 0.1
TABLES = ("orders", "order_lines")

Row = dict[str, Any]


class Fold:
    """Orders and lines as far as they have been read."""

    def __init__(self) -> None:
        self._orders: dict[int, Row] = {}
        self._lines: dict[int, dict[int, Row]] = {}
        self._changed: set[int] = set()

    def apply(self, table: str, value: bytes) -> None:
        """One change event."""
        event = orjson.loads(value)
        before, after = event["before"], event["after"]
        if table == "orders":
            self._order(before, after)
        else:
            self._line(before, after)

    def documents(self) -> Iterator[tuple[int, bytes | None]]:
        """The orders that changed since the last call, and what they are now; None for a deleted one."""
        changed, self._changed = self._changed, set()
        for order_id in changed:
            order = self._orders.get(order_id)
            yield order_id, order and orjson.dumps(self._document(order))

    def _order(self, before: Row | None, after: Row | None) -> None:
        if after is not None:
            self._orders[after["id"]] = after
            self._changed.add(after["id"])
        elif before is not None and self._orders.pop(before["id"], None) is not None:
            self._changed.add(before["id"])

    def _line(self, before: Row | None, after: Row | None) -> None:
        if before is not None:
            self._lines.get(before["order_id"], {}).pop(before["id"], None)
            self._touch(before["order_id"])
        if after is not None:
            self._lines.setdefault(after["order_id"], {})[after["id"]] = after
            self._touch(after["order_id"])

    def _touch(self, order_id: int) -> None:
        if order_id in self._orders:
            self._changed.add(order_id)

    def _document(self, order: Row) -> Row:
        lines = self._lines.get(order["id"], {})
        columns = ("id", "customer", "status", "line_count", "total")
        return {
            **{name: order[name] for name in columns},
            "lines": [
                {name: line[name] for name in ("id", "product", "quantity", "price")}
                for _, line in sorted(lines.items())
            ],
        }


def main() -> None:
    """Runs until it is asked to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--bootstrap", "--input-prefix", "--output", "--folder"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    consumer = _consumer(arguments.bootstrap, arguments.input_prefix)
    producer = Producer({"bootstrap.servers": arguments.bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    sys.stdout.write("reading\n")
    sys.stdout.flush()
    fold = Fold()
    while not stopped:
        _read(fold, consumer.consume(POLL_MESSAGES, POLL_SECONDS))
        for order_id, document in fold.documents():
            _produce(producer, arguments.output, str(order_id).encode(), document)
        producer.poll(0)
    producer.flush()
    consumer.close()


def _consumer(bootstrap: str, prefix: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "fold",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        }
    )
    topics = [f"{prefix}.inventory.{table}" for table in TABLES]
    known = consumer.list_topics(timeout=30).topics
    consumer.assign(
        [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in topics
            for partition in known[topic].partitions
        ]
    )
    return consumer


def _read(fold: Fold, messages: list[Message]) -> None:
    for message in messages:
        if error := message.error():
            raise RuntimeError(str(error))
        value = message.value()
        if value is not None:  # a tombstone carries nothing
            fold.apply((message.topic() or "").rsplit(".", 1)[1], value)


def _produce(producer: Producer, topic: str, key: bytes, value: bytes | None) -> None:
    while True:
        try:
            producer.produce(topic, value, key)
        except BufferError:
            producer.poll(1)
        else:
            return


if __name__ == "__main__":
    main()
