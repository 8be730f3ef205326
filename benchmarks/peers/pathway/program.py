"""The orders view in Pathway: its Debezium reader, a left join with the lines grouped by order.

The reader wants the envelope below ``payload``, as JSON with schemas has it; the topics hold JSON without
schemas. So a process of its own copies each topic with keys and values wrapped, and Pathway reads the copies.
"""

import argparse
import json
import multiprocessing
import sys
from typing import Any

import pathway as pw
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TABLES = ("orders", "order_lines")
COMMIT_MS = 100


class OrderRow(pw.Schema):
    """A row of ``inventory.orders``."""

    id: int = pw.column_definition(primary_key=True)
    customer: str
    status: str
    line_count: int
    total: str


class LineRow(pw.Schema):
    """A row of ``inventory.order_lines``."""

    id: int = pw.column_definition(primary_key=True)
    order_id: int
    product: str
    quantity: int
    price: str


class Documents:
    """Gathers the changes of one Pathway time and writes what is left of them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "lz4"})
        self._topic = topic
        self._changes: dict[int, dict[str, Any] | None] = {}

    def change(self, key: pw.Pointer, row: dict[str, Any], time: int, is_addition: bool) -> None:
        """A row of the result that came or went; an update is both, in either order."""
        if is_addition:
            self._changes[row["number"]] = row
        else:
            self._changes.setdefault(row["number"], None)

    def write(self, time: int) -> None:
        """Everything of this time is known."""
        for order_id, row in self._changes.items():
            value = None if row is None else json.dumps(_document(row)).encode()
            while True:
                try:
                    self._producer.produce(self._topic, value, str(order_id).encode())
                except BufferError:
                    self._producer.poll(1)
                else:
                    break
        self._changes.clear()
        self._producer.poll(0)


def _document(row: dict[str, Any]) -> dict[str, Any]:
    lines = row.pop("lines") or ()
    names = ("id", "product", "quantity", "price")
    return {"id": row.pop("number"), **row, "lines": [dict(zip(names, line, strict=True)) for line in lines]}


def main() -> None:
    """Runs until it is asked to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--bootstrap", "--input-prefix", "--output", "--folder"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    copies = {table: f"{arguments.output}.{table}" for table in TABLES}
    _create(arguments.bootstrap, list(copies.values()))
    copier = multiprocessing.get_context("spawn").Process(
        target=copy, args=(arguments.bootstrap, arguments.input_prefix, copies), daemon=True
    )
    copier.start()
    orders = _table(arguments.bootstrap, copies["orders"], OrderRow)
    lines = _table(arguments.bootstrap, copies["order_lines"], LineRow)
    documents = Documents(arguments.bootstrap, arguments.output)
    pw.io.subscribe(view(orders, lines), on_change=documents.change, on_time_end=documents.write)
    sys.stdout.write("reading\n")
    sys.stdout.flush()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


def view(orders: pw.Table, lines: pw.Table) -> pw.Table:
    """One row per order with its lines, ordered by id."""
    grouped = lines.groupby(pw.this.order_id).reduce(
        pw.this.order_id,
        lines=pw.reducers.sorted_tuple(
            pw.make_tuple(pw.this.number, pw.this.product, pw.this.quantity, pw.this.price)
        ),
    )
    joined = orders.join_left(grouped, pw.left.number == pw.right.order_id)
    return joined.select(
        pw.left.number, pw.left.customer, pw.left.status, pw.left.line_count, pw.left.total, pw.right.lines
    )


def _table(bootstrap: str, topic: str, schema: type[pw.Schema]) -> pw.Table:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": "20",
    }
    table = pw.io.debezium.read(settings, topic, schema=schema, autocommit_duration_ms=COMMIT_MS)
    return table.rename_by_dict({"id": "number"})  # `id` is the name of Pathway's own key


def _create(bootstrap: str, topics: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, 4, 1) for topic in topics]).values():
        future.result(30)


def copy(bootstrap: str, prefix: str, copies: dict[str, str]) -> None:
    """Copies change events, partition by partition, with key and envelope below ``payload``."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "copy", "fetch.wait.max.ms": 20})
    targets = {f"{prefix}.inventory.{table}": topic for table, topic in copies.items()}
    known = consumer.list_topics(timeout=30).topics
    consumer.assign(
        [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in targets
            for partition in known[topic].partitions
        ]
    )
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    while True:
        for message in consumer.consume(10_000, 0.05):
            if message.value() is None:
                continue  # a tombstone carries nothing
            key, value = (b'{"payload":' + part + b"}" for part in (message.key(), message.value()))
            while True:
                try:
                    producer.produce(targets[message.topic()], value, key, partition=message.partition())
                except BufferError:
                    producer.poll(1)
                else:
                    break
        producer.poll(0)


if __name__ == "__main__":
    main()
