"""Reads whole transactions on one core as fast as it goes; prints one JSON line.

Arguments: brokers; ``outputs`` or ``changes``; ``everything`` or ``units``; records to be read. Outputs are
written first, in transactions of this many rows (a fifth argument), 300-byte documents in four partitions.
Changes are those of source ``inv`` with tables ``inventory.orders`` and ``inventory.order_lines``; somebody
has written them, and their cuts. With ``--profile`` as the last argument the functions that take most of the
time go to standard error.
"""

import cProfile
import os
import pstats
import sys
from datetime import timedelta
from json import dumps
from time import monotonic, process_time, thread_time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.client import ByUnit, ChangeTopics, Everything, OutputTopics, TransactionalConsumer
from slackwater.protocol import CommitRecord, KafkaSettings, OffsetRange, encode_commit_record

OUTPUT, PARTITIONS = "bench_documents", 4
TABLES = ("inventory.orders", "inventory.order_lines")
DOCUMENT = (
    '{"id":%d,"customer":"customer-17","status":"open","line_count":3,"total":"123.45","lines":['
    + ",".join(['{"id":17,"product":"product-17","quantity":3,"price":"12.34"}'] * 3)
    + "]}"
)


def fill(bootstrap: str, records: int, rows: int) -> None:
    """Writes documents and commit records, as a pipeline with ``emit = "transactions"`` does."""
    commits = f"{OUTPUT}.commits"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(OUTPUT, PARTITIONS, 1), NewTopic(commits, 1, 1)]).values():
        made.result(60)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
            "linger.ms": 20,
            "compression.type": "lz4",
        }
    )
    ends = [0] * PARTITIONS
    for number in range(records // rows):
        begins = ends[:]
        for key in range(number * rows, (number + 1) * rows):
            partition = key % PARTITIONS
            producer.produce(OUTPUT, DOCUMENT % key, b'{"id":%d}' % key, partition)
            ends[partition] += 1
        ranges = {
            p: OffsetRange(end - begin, begin, end - 1)
            for p, (begin, end) in enumerate(zip(begins, ends, strict=True))
            if begin < end
        }
        producer.produce(commits, encode_commit_record(commit(number, ranges)), partition=0)
        if number % 100 == 0:
            producer.flush(60)
    producer.flush(60)


def commit(number: int, ranges: dict[int, OffsetRange]) -> CommitRecord:
    """A commit record of one transaction."""
    return CommitRecord(
        pipeline="bench",
        source="inv",
        timeline=1,
        commit_lsn=number + 1,
        previous_lsn=number,
        xid=number + 1,
        commit_ts_ms=1,
        offsets={OUTPUT: ranges},
        commit_ts_ns=1_000_000,
    )


def read(bootstrap: str, kind: str, share: str, records: int) -> dict[str, float]:
    """Reads this many records: processor time from the start, seconds from the second transaction on.

    Before the first one the group is joined, which takes seconds and no processor time.
    """
    outputs = OutputTopics(OUTPUT)
    inputs = outputs if kind == "outputs" else ChangeTopics(source="inv", tables=TABLES)
    divided = ByUnit(lambda record: record.key()) if share == "units" else Everything()
    wait = timedelta(seconds=1)
    transactions = count = 0
    used, own = process_time(), thread_time()
    with TransactionalConsumer(
        KafkaSettings(bootstrap), inputs, group=f"{kind}-{share}", share=divided
    ) as consumer:
        while (first := consumer.poll(wait)) is None:
            pass
        started, records = monotonic(), records - len(first.records)
        while count < records:
            transaction = consumer.poll(wait)
            if transaction is not None:
                transactions += 1
                for _ in transaction:
                    count += 1
        seconds, used, own = monotonic() - started, process_time() - used, thread_time() - own
    return {
        "records": count,
        "transactions": transactions,
        "seconds": seconds,
        "cpu_seconds": used,
        "librdkafka_cpu_seconds": used - own,
    }


def main() -> None:
    """Fills, if it has to, and reads."""
    arguments = [each for each in sys.argv[1:] if each != "--profile"]
    bootstrap, kind, share, records = arguments[:4]
    if kind == "outputs":
        fill(bootstrap, int(records), int(arguments[4]))
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    profile = cProfile.Profile()
    if len(arguments) < len(sys.argv) - 1:
        profile.enable()
    found = read(bootstrap, kind, share, int(records))
    profile.disable()
    if len(arguments) < len(sys.argv) - 1:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    sys.stdout.write(dumps(found) + "\n")


if __name__ == "__main__":
    main()
