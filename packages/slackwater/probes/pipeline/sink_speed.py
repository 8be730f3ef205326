"""Writes documents through an exactly-once sink, without Spark; prints one JSON line.

Arguments: brokers or the address of a PostgreSQL, documents per transaction, transactions, outputs among
which the documents are divided, and keys: the first transaction writes them all, the others change them again
and again; without that number every document has a key of its own.
"""

import json
import sys
from time import monotonic, process_time

from slackwater.engine.payloads import DocumentBatch, pack_items
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.outputs.sink import Sink
from slackwater.protocol import BatchHeader, KafkaSettings, PostgresSettings
from slackwater.sql.plan import OutputColumn

TEXT = '"customer":"customer-17","status":"open","line_count":3,"total":"123.45","lines":['
COLUMNS = {
    "id": "BIGINT",
    "customer": "VARCHAR",
    "status": "VARCHAR",
    "line_count": "INTEGER",
    "total": "DECIMAL(12,2)",
    "lines": "JSON",
}
LINE = '{"id":%d,"product":"product-17","quantity":3,"price":"12.34"}'


def batch(number: int, first: int, documents: int, outputs: int, keys: int) -> DocumentBatch:
    """A batch of documents of about 300 bytes, the next one for the next output."""
    lines = ",".join(LINE % line for line in range(3))
    rows = [
        (number + 1, f'{{"id":{key}}}'.encode(), f'{{"id":{key},{TEXT}{lines}]}}'.encode())
        for key in (each % keys for each in range(first, first + documents))
    ]
    by_output = {view: tuple(pack_items(rows[view::outputs])) for view in range(outputs)}
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


def sink_at(address: str, outputs: int) -> Sink:
    """The sink of brokers or of a database."""
    if not address.startswith("postgresql://"):
        topics = tuple(OutputTopic(f"bench_{number}") for number in range(outputs))
        return KafkaSink(KafkaSinkSettings(pipeline="bench", outputs=topics, kafka=KafkaSettings(address)))
    from slackwater.outputs.contract import OutputTable
    from slackwater.outputs.postgres.sink import PostgresSink
    from slackwater.outputs.postgres.tables import PostgresSinkSettings

    columns = tuple(OutputColumn(name, kind) for name, kind in COLUMNS.items())
    tables = tuple(
        OutputTable(name=f"bench.t{number}", columns=columns, key=("id",), view=f"t{number}")
        for number in range(outputs)
    )
    settings = PostgresSinkSettings(pipeline="bench", outputs=tables, postgres=PostgresSettings(address))
    return PostgresSink(settings)


def main() -> None:
    """Writes one batch to warm up, then the measured ones."""
    address, documents, transactions, outputs = sys.argv[1], *map(int, sys.argv[2:5])
    keys = int(sys.argv[5]) if len(sys.argv) > 5 else sys.maxsize
    first = documents if keys == sys.maxsize else keys
    sink = sink_at(address, outputs)
    sink.open()
    sink.write("query", batch(0, 0, first, outputs, keys))
    cpu = 0.0
    commits, writes = [], []
    for number in range(1, transactions + 1):
        each = batch(number, number * documents, documents, outputs, keys)
        started, used = monotonic(), process_time()
        report = sink.write("query", each)
        writes.append(1000 * (monotonic() - started))
        cpu += process_time() - used
        commits.append(report.commit_seconds)
    sink.close()
    commit_ms = [1000 * each for each in commits]
    found = {"seconds": sum(writes) / 1000, "cpu_seconds": cpu, "commit_ms": commit_ms, "write_ms": writes}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
