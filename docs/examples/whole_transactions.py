"""Reads whole transactions from a pipeline's output with a plain Kafka client, nothing else.

    python whole_transactions.py BOOTSTRAP COMMIT_TOPIC

Prints a line of JSON per commit record: the commit's id, its documents, and how many of them compaction has
removed because a later commit replaced them. Ends at what is there now.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition


def consumer(bootstrap: str) -> Consumer:
    """Returns a consumer that sees committed Kafka transactions only."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "whole-transactions",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )


def records(reader: Consumer, topic: str, partition: int, first: int, last: int) -> Iterator[Any]:
    """Yields the records at ``first`` … ``last``; offsets of markers are never delivered.

    A partition also ends where a transaction begins whose marker has not arrived yet. Such an end is at or
    below ``last``: wait. Only an end above it means that the rest was removed by compaction.
    """
    reader.assign([TopicPartition(topic, partition, first)])
    while True:
        message = reader.poll(60)
        if message is None:
            raise TimeoutError(f"{topic}/{partition} is silent")
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name
                if (message.offset() or 0) > last:
                    return
            elif not error.retriable():
                raise RuntimeError(error.str())
        elif (message.offset() or 0) > last:
            return
        else:
            yield message
            if message.offset() == last:
                return


def whole_transactions(bootstrap: str, commit_topic: str) -> Iterator[dict[str, Any]]:
    """Yields each commit with all of its documents, over all topics and partitions, in commit order."""
    commits, documents = consumer(bootstrap), consumer(bootstrap)
    try:
        low, end = commits.get_watermark_offsets(TopicPartition(commit_topic, 0), timeout=60)
        for message in records(commits, commit_topic, 0, low, end - 1) if low < end else ():
            commit = json.loads(message.value())
            found = [
                [topic, (record.key() or b"").decode(), record.value() and record.value().decode()]
                for topic, partitions in commit["offsets"].items()
                for partition, (_, first, last) in partitions.items()
                for record in records(documents, topic, int(partition), first, last)
            ]
            announced = sum(held[0] for each in commit["offsets"].values() for held in each.values())
            yield {"id": commit.get("id"), "documents": found, "removed": announced - len(found)}
    finally:
        commits.close()
        documents.close()


if __name__ == "__main__":
    for transaction in whole_transactions(*sys.argv[1:]):
        print(json.dumps(transaction))  # noqa: T201 - its output
