"""Writes documents through the exactly-once Kafka sink, without Spark; prints one JSON line.

Arguments: bootstrap, documents per transaction, transactions.
"""

import json
import sys
from itertools import islice
from time import monotonic, process_time

from slackwater_engine.documents import DocumentBatch
from slackwater_engine.payloads import document_payloads
from slackwater_protocol import BatchHeader, KafkaSettings
from slackwater_spark.sink.kafka import KafkaSink, KafkaSinkSettings, OutputTopic

TEXT = '"customer":"customer-17","status":"open","line_count":3,"total":"123.45","lines":['
LINE = '{"id":%d,"product":"product-17","quantity":3,"price":"12.34"}'


def batch(number: int, documents: int) -> DocumentBatch:
    """A batch of documents of about 300 bytes, with keys of their own."""
    first = number * documents
    lines = ",".join(LINE % line for line in range(3))
    rows = (
        (number + 1, f'{{"id":{key}}}'.encode(), f'{{"id":{key},{TEXT}{lines}]}}'.encode())
        for key in range(first, first + documents)
    )
    header = BatchHeader(
        source="inv",
        timeline=1,
        from_lsn=number,
        to_lsn=number + 1,
        commit_ts_ms=1,
        event_count=documents,
        transactions=((number + 1, number + 1, 1),),
    )
    return DocumentBatch(number, header, {0: tuple(document_payloads(rows))}, f"state {number}")


def main() -> None:
    """Writes one batch to warm up, then the measured ones."""
    bootstrap, documents, transactions = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    outputs = (OutputTopic("bench"),)
    sink = KafkaSink(KafkaSinkSettings(pipeline="bench", outputs=outputs, kafka=KafkaSettings(bootstrap)))
    sink.open()
    sink.write("query", batch(0, documents))
    seconds = cpu = 0.0
    commits = []
    for each in (batch(number, documents) for number in islice(range(1, transactions + 1), transactions)):
        started, used = monotonic(), process_time()
        report = sink.write("query", each)
        seconds += monotonic() - started
        cpu += process_time() - used
        commits.append(report.commit_seconds)
    sink.close()
    found = {"seconds": seconds, "cpu_seconds": cpu, "commit_ms": [1000 * each for each in commits]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
