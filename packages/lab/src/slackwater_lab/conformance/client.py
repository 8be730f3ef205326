"""Our own client as a reader of the cases: ``python -m slackwater_lab.conformance.client``."""

import json
import sys
import uuid
from typing import Any

from slackwater.cdc.batch import Record
from slackwater.client import ConsumerSettings, OutputTopics, TransactionalConsumer
from slackwater.client.transaction import LanePosition, Transaction
from slackwater.kafka.reader import TopicReader
from slackwater.protocol import KafkaSettings

_SECONDS = 120.0
_SUFFIX = ".commits"


def main(bootstrap: str, commits: str, start: str | None = None) -> None:
    """Prints transactions up to the present end of a commit topic."""
    with TopicReader({"bootstrap.servers": bootstrap}, _SECONDS) as reader:
        end = max((m.offset() or 0 for m in reader.newest((commits, 0))), default=-1) + 1
        case = commits.removesuffix(_SUFFIX).rpartition(".")[0]
        topics = [t for t in reader.topics() if t.startswith(f"{case}.") and not t.endswith(_SUFFIX)]
    with TransactionalConsumer(
        KafkaSettings(bootstrap),
        OutputTopics(*topics, commits=commits),
        group=uuid.uuid4().hex,
        positions=lambda _: None if start is None else str(LanePosition(int(start))),
        settings=ConsumerSettings(stores_positions=False),
    ) as consumer:
        reached = 0
        while reached < end:
            transaction = consumer.poll(0.1)
            if transaction is not None:
                sys.stdout.write(json.dumps(_printed(transaction)) + "\n")
                sys.stdout.flush()
            reached = max((place.offset for place in consumer.offsets()), default=0)


def _printed(transaction: Transaction) -> dict[str, Any]:
    commit = transaction.commit
    found = {"id": commit.id, "xid": commit.xid, "skipped": commit.skipped}
    return {**found, "documents": [_document(record) for record in transaction]}


def _document(record: Record) -> list[Any]:
    key, value = record.key(), record.value()
    place = [record.topic(), record.partition(), record.offset()]
    return [*place, key and key.decode(), None if value is None else value.decode()]


if __name__ == "__main__":
    main(*sys.argv[1:])
