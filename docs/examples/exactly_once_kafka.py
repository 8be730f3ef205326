"""Writes a record to another topic for every transaction of a pipeline's output, exactly once.

    python exactly_once_kafka.py BOOTSTRAP OUTPUT_TOPIC GROUP TARGET_TOPIC MEMBER

What is written and the consumer's offsets are committed in one Kafka transaction. MEMBER is a name that this
process keeps when it starts again, and that no other member of the group has.
"""

import json
import sys

from confluent_kafka import Producer

from slackwater.client import ConsumerSettings, OutputTopics, Transaction, TransactionalConsumer
from slackwater.protocol import KafkaSettings


class Handler:
    """Turns transactions into records of another topic."""

    def __init__(self, bootstrap: str, target: str, member: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": member})
        self._producer.init_transactions()  # ends what this member had begun when it died
        self._target = target

    def process(self, transaction: Transaction, consumer: TransactionalConsumer) -> None:
        """Writes what follows from a transaction together with the offsets behind it, or nothing."""
        self._producer.begin_transaction()
        self.write(transaction)
        self.store(consumer)
        self._producer.commit_transaction()

    def write(self, transaction: Transaction) -> None:
        """The work itself."""
        found = [(record.value() or b"").decode() for record in transaction]
        self._producer.produce(
            self._target, json.dumps({"commit": transaction.commit.id, "documents": found})
        )

    def store(self, consumer: TransactionalConsumer) -> None:
        """Moves the group on; Kafka refuses to if this process is no longer a member."""
        self._producer.send_offsets_to_transaction(consumer.offsets(), consumer.group_metadata())


def main(bootstrap: str, topic: str, group: str, target: str, member: str) -> None:
    """Continues until it is stopped, or fails; start it again then."""
    handler = Handler(bootstrap, target, f"{group}-{member}")
    with TransactionalConsumer(
        KafkaSettings(bootstrap),
        OutputTopics(topic),
        group=group,
        settings=ConsumerSettings(stores_positions=False),
    ) as consumer:
        for transaction in consumer:
            handler.process(transaction, consumer)


if __name__ == "__main__":
    main(*sys.argv[1:])
