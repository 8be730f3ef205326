"""Reads whole transactions from Debezium's topics by the cut log of their source, with a plain Kafka client.

    python whole_changes.py BOOTSTRAP CUT_LOG

Prints a line of JSON per transaction: its id, its xid, whether an operator skipped it, and its change events.
Ends at what is there now. For sources without snapshots. Comments name the requirements of
docs/specification.md.
"""

import json
import sys
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

VERSION = 2
OTHERS = ("markers", "refused", "skip", "timeline", "pass")


def consumer(bootstrap: str) -> Consumer:
    """Returns a consumer that sees committed Kafka transactions only."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "whole-changes",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )


def records(reader: Consumer, topic: str, partition: int, first: int, last: int) -> Iterator[Any]:
    """Yields the records at ``first`` … ``last``; waits while the partition ends at or below ``last``."""
    reader.assign([TopicPartition(topic, partition, first)])
    while True:
        message = reader.poll(60)
        if message is None:
            raise TimeoutError(f"{topic}/{partition} is silent")
        error = message.error()
        offset = message.offset() or 0
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name
                if offset > last:
                    return
            elif not error.retriable():
                raise RuntimeError(f"{topic}/{partition} cannot be read from offset {first}: {error.str()}")
        elif offset > last:
            return
        else:
            yield message
            if offset == last:
                return


def cuts(bootstrap: str, log: str) -> Iterator[dict[str, Any]]:
    """Yields the cuts that are in a log now."""
    reader = consumer(bootstrap)
    try:
        low, end = reader.get_watermark_offsets(TopicPartition(log, 0), timeout=60)
        for message in records(reader, log, 0, low, end - 1) if low < end else ():
            cut = json.loads(message.value())
            if cut["v"] > VERSION or cut.get("kind", OTHERS[0]) not in OTHERS:  # C5
                raise ValueError(f"a record of version {cut['v']} and kind {cut.get('kind')} is not known")
            if "kind" not in cut:
                yield cut
    finally:
        reader.close()


def table(cut: dict[str, Any], above: int) -> dict[int, int]:
    """Returns the commit LSN of each transaction above another one, by xid (C1)."""
    xids, lsns = accumulate(cut["xids"]), accumulate([cut["previous"], *cut["lsns"]])
    return {xid: lsn for xid, lsn in zip(xids, list(lsns)[1:], strict=True) if lsn > above}


def changes(reader: Consumer, cut: dict[str, Any], starts: dict[tuple[str, int], int]) -> Iterator[Any]:
    """Yields the records up to the end offsets of a cut, from those of the cut before it."""
    for topic, ends in cut["end"].items():
        for partition, end in enumerate(ends):
            start = starts.get((topic, partition), 0)
            yield from records(reader, topic, partition, start, end - 1) if start < end else ()
            starts[topic, partition] = max(start, end)


def whole_transactions(bootstrap: str, log: str) -> Iterator[dict[str, Any]]:
    """Yields each transaction with all of its change events, over all topics, in commit order."""
    reader, starts, timeline, position = consumer(bootstrap), dict[tuple[str, int], int](), 0, 0
    try:
        for cut in cuts(bootstrap, log):
            if cut["timeline"] > timeline:
                timeline, position = cut["timeline"], 0
            if (cut["timeline"], cut["lsn"]) <= (timeline, position):  # C4
                continue
            if cut["previous"] > position:  # C4
                raise ValueError(f"the log has no cut from {position} to {cut['previous']}")
            wanted, seen = table(cut, position), set[Any]()
            found: dict[int, list[Any]] = {xid: [] for xid in wanted}
            for record in changes(reader, cut, starts):
                event = json.loads(record.value() or b"null")
                if event is None or event["source"]["txId"] not in wanted:  # C2
                    continue
                source = event["source"]
                change = (source["txId"], source["lsn"], source["table"], event["op"], record.key())
                if change not in seen:  # C3
                    seen.add(change)
                    place = [record.topic(), record.partition(), record.offset()]
                    found[source["txId"]].append([*place, record.key().decode(), record.value().decode()])
            for xid, lsn in wanted.items():
                skipped = [xid] if xid in cut.get("skipped", []) else []
                yield {
                    "id": f"{timeline:08X}-{lsn:016X}",
                    "xid": xid,
                    "skipped": skipped,
                    "documents": found[xid],
                }
            position = cut["lsn"]
    finally:
        reader.close()


if __name__ == "__main__":
    for transaction in whole_transactions(*sys.argv[1:]):
        print(json.dumps(transaction), flush=True)  # noqa: T201 - its output
