"""Writes documents through the exactly-once Kafka sink, without Spark; prints one JSON line.

Arguments: bootstrap, documents per transaction, transactions, outputs among which the documents are divided.
"""

import json
import sys
from time import monotonic, process_time

from slackwater_engine.documents import DocumentBatch
from slackwater_engine.payloads import document_payloads
from slackwater_protocol import BatchHeader, KafkaSettings
from slackwater_spark.sink.kafka import KafkaSink, KafkaSinkSettings, OutputTopic

TEXT = '"customer":"customer-17","status":"open","line_count":3,"total":"123.45","lines":['
LINE = '{"id":%d,"product":"product-17","quantity":3,"price":"12.34"}'


def batch(number: int, documents: int, outputs: int) -> DocumentBatch:
    """A batch of documents of about 300 bytes, with keys of their own, the next one for the next output."""
    first = number * documents
    lines = ",".join(LINE % line for line in range(3))
    rows = [
        (number + 1, f'{{"id":{key}}}'.encode(), f'{{"id":{key},{TEXT}{lines}]}}'.encode())
        for key in range(first, first + documents)
    ]
    by_output = {view: tuple(document_payloads(rows[view::outputs])) for view in range(outputs)}
    header = BatchHeader(
        source="inv",
        timeline=1,
        from_lsn=number,
        to_lsn=number + 1,
        commit_ts_ms=1,
        event_count=documents,
        transactions=((number + 1, number + 1, 1),),
    )
    held = {view: payloads for view, payloads in by_output.items() if payloads}
    return DocumentBatch(number, header, held, f"state {number}")


def main() -> None:
    """Writes one batch to warm up, then the measured ones."""
    bootstrap, documents, transactions, outputs = sys.argv[1], *map(int, sys.argv[2:5])
    topics = tuple(OutputTopic(f"bench_{number}") for number in range(outputs))
    sink = KafkaSink(KafkaSinkSettings(pipeline="bench", outputs=topics, kafka=KafkaSettings(bootstrap)))
    sink.open()
    sink.write("query", batch(0, documents, outputs))
    seconds = cpu = 0.0
    commits = []
    for number in range(1, transactions + 1):
        each = batch(number, documents, outputs)
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
