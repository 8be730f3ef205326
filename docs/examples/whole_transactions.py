"""Reads whole transactions from a pipeline's output with a plain Kafka client, nothing else.

    python whole_transactions.py BOOTSTRAP COMMIT_TOPIC [REGISTRY]

With the address of a schema registry, the commit records are read in Avro. Prints a line of JSON per commit
record: the commit's id, its documents, and how many of them compaction has removed because a later commit
replaced them. Ends at what is there now.
"""

import json
import sys
from collections.abc import Callable, Iterator
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


Commit = tuple[str | None, int, list[tuple[str, int, int, int]]]
"""Id (None in old records), number of documents, and ranges: topic, partition, first and last offset."""


def from_json(value: bytes) -> Commit:
    """Reads a commit record in JSON."""
    commit = json.loads(value)
    ranges = [
        (topic, int(partition), first, last)
        for topic, partitions in commit["offsets"].items()
        for partition, (_, first, last) in partitions.items()
    ]
    count = sum(held[0] for partitions in commit["offsets"].values() for held in partitions.values())
    return commit.get("id"), count, ranges


def from_avro(registry: str) -> Callable[[bytes], Commit]:
    """Returns the function that reads commit records in Avro. Needs ``confluent-kafka[avro]``."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer

    deserialise = AvroDeserializer(SchemaRegistryClient({"url": registry}))

    def read(value: bytes) -> Commit:
        commit: Any = deserialise(value, None)
        ranges = [
            (topic["topic_name"], held["partition"], held["min_offset"], held["max_offset"])
            for topic in commit["topics"]
            for held in topic["offsets"]
        ]
        return commit["commit_id"], commit["record_count"], ranges

    return read


def whole_transactions(
    bootstrap: str, commit_topic: str, read: Callable[[bytes], Commit] = from_json
) -> Iterator[dict[str, Any]]:
    """Yields each commit with all of its documents, over all topics and partitions, in commit order."""
    commits, documents = consumer(bootstrap), consumer(bootstrap)
    try:
        low, end = commits.get_watermark_offsets(TopicPartition(commit_topic, 0), timeout=60)
        for message in records(commits, commit_topic, 0, low, end - 1) if low < end else ():
            commit_id, count, ranges = read(message.value())
            found = [
                [topic, (record.key() or b"").decode(), record.value() and record.value().decode()]
                for topic, partition, first, last in ranges
                for record in records(documents, topic, partition, first, last)
            ]
            yield {"id": commit_id, "documents": found, "removed": count - len(found)}
    finally:
        commits.close()
        documents.close()


if __name__ == "__main__":
    brokers, log, *registries = sys.argv[1:]
    for transaction in whole_transactions(brokers, log, *map(from_avro, registries)):
        print(json.dumps(transaction))  # noqa: T201 - its output
