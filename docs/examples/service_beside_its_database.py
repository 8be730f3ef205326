"""A service whose messages to Kafka and whose database's changes are transactions of one source.

    python service_beside_its_database.py BOOTSTRAP DATABASE SOURCE

The service writes to its database only. Messages to others follow from the database's
transactions, read whole and in commit order. Each is written on: its rows and the messages that it makes in
one transaction, at the database's own commit, with the place where reading continues. So pipelines join both.
"""

import json
import sys
from typing import Any

from slackwater.cdc import decode_change
from slackwater.client import (
    ChangeTopics,
    ConsumerSettings,
    ProducerTransaction,
    TransactionalConsumer,
    TransactionalProducer,
)
from slackwater.protocol import KafkaSettings

TABLES = ("inventory.orders", "inventory.order_lines")
MAILS = "service.mail"


def write_on(transaction: ProducerTransaction, record: Any) -> None:
    """Writes a change of the database, and the message that it makes."""
    change, key = decode_change(record.value()), json.loads(record.key())
    before, after = (None if row is None else json.loads(bytes(row)) for row in (change.before, change.after))
    if after is None:
        transaction.delete(change.table, key, before=before)
    elif change.op == "u":
        transaction.upsert(change.table, key, after, before=before)
    else:
        transaction.insert(change.table, key, after)
    if change.table != TABLES[0]:
        return
    if after is None:
        transaction.delete(MAILS, key)
    else:
        transaction.upsert(MAILS, key, {"status": after["status"]})


def serve(kafka: KafkaSettings, database: str, source: str) -> None:
    """Writes the transactions of a database on, until it is stopped."""
    inputs, settings = ChangeTopics(source=database, tables=TABLES), ConsumerSettings(stores_positions=False)
    with (
        TransactionalProducer(kafka, source) as producer,
        TransactionalConsumer(kafka, inputs, group=source, settings=settings) as consumer,
    ):
        for table in (*TABLES, MAILS):
            producer.make_table(table)
        for found in consumer:
            with producer.transaction(found.commit, consumer=consumer) as transaction:
                for record in found:
                    write_on(transaction, record)


if __name__ == "__main__":
    serve(KafkaSettings(sys.argv[1]), sys.argv[2], sys.argv[3])
