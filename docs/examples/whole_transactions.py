"""Reads whole transactions from a pipeline's output with a plain Kafka client, nothing else.

    python whole_transactions.py BOOTSTRAP COMMIT_TOPIC [OFFSET] [REGISTRY]

Begins at an offset of the commit topic, or with its first record, and ends at what is there now. With the
address of a schema registry, the commit records are read in Avro. Prints a line of JSON per commit record:
the commit's id, its transaction, its documents, and how many of them compaction has removed because a later
commit replaced them. Comments name the requirements of docs/specification.md.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

VERSION = 2


def consumer(bootstrap: str) -> Consumer:
    """Returns a consumer that sees committed Kafka transactions only."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "whole-transactions",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",  # R1
            "auto.offset.reset": "error",  # R13
            "enable.partition.eof": True,
        }
    )


def records(reader: Consumer, topic: str, partition: int, first: int, last: int) -> Iterator[Any]:
    """Yields the records at ``first`` … ``last``; offsets of markers are never delivered (R4).

    A partition also ends where a transaction begins whose marker has not arrived yet. Such an end is at or
    below ``last``: wait (R5). Only an end above it means that the rest was removed by compaction (R6).
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
                raise RuntimeError(f"{topic}/{partition} cannot be read from offset {first}: {error.str()}")
        elif (message.offset() or 0) > last:
            return
        else:
            yield message
            if message.offset() == last:
                return


Commit = tuple[dict[str, Any], int, list[tuple[str, int, int, int]]]
"""What is printed of it, number of documents, and ranges: topic, partition, first and last offset."""


def from_json(value: bytes) -> Commit:
    """Reads a commit record in JSON; fields that are not used here may be there or not (R8, R9)."""
    commit = json.loads(value)
    if commit["v"] > VERSION:  # R10
        raise ValueError(f"the commit record has version {commit['v']}; this reader knows {VERSION}")
    ranges = [
        (topic, int(partition), first, last)
        for topic, partitions in commit["offsets"].items()  # R3; there may be none (R7)
        for partition, (_, first, last) in partitions.items()
    ]
    count = sum(held[0] for partitions in commit["offsets"].values() for held in partitions.values())
    commit_id = f"{commit['timeline']:08X}-{commit['commit_lsn']:016X}"
    skipped = commit.get("skipped", [])  # R11
    return {"id": commit_id, "xid": commit["xid"], "skipped": skipped}, count, ranges


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
        return {"id": commit["commit_id"]}, commit["record_count"], ranges

    return read


def document(record: Any) -> list[Any]:
    """Returns the place of a document, its key, and its value; None: it was deleted."""
    key, value = record.key(), record.value()
    place = [record.topic(), record.partition(), record.offset()]
    return [*place, key and key.decode(), None if value is None else value.decode()]


def whole_transactions(
    bootstrap: str,
    commit_topic: str,
    offset: int | None = None,
    read: Callable[[bytes], Commit] = from_json,
) -> Iterator[dict[str, Any]]:
    """Yields each commit with all of its documents, over all topics and partitions, in commit order."""
    commits, documents = consumer(bootstrap), consumer(bootstrap)
    try:
        low, end = commits.get_watermark_offsets(TopicPartition(commit_topic, 0), timeout=60)
        start = low if offset is None else offset
        if not low <= start <= end:  # R12
            raise ValueError(f"{commit_topic} has the offsets {low} to {end}; {start} is needed")
        for message in records(commits, commit_topic, 0, start, end - 1) if start < end else ():  # R2
            commit, count, ranges = read(message.value())
            found = [
                document(record)
                for topic, partition, first, last in ranges
                for record in records(documents, topic, partition, first, last)
            ]
            yield {**commit, "documents": found, "removed": count - len(found)}
    finally:
        commits.close()
        documents.close()


if __name__ == "__main__":
    brokers, log, *others = sys.argv[1:]
    starts = [int(other) for other in others if other.isdigit()]
    registries = [other for other in others if not other.isdigit()]
    read_record = from_avro(registries[0]) if registries else from_json
    for transaction in whole_transactions(brokers, log, starts[0] if starts else None, read_record):
        print(json.dumps(transaction), flush=True)  # noqa: T201 - its output
