"""Writes documents through an exactly-once sink, without Spark; prints one JSON line.

Arguments: brokers, the address of a PostgreSQL, ``delta`` or ``iceberg`` (on a local disk); documents per
transaction, transactions, outputs among which the documents are divided, and keys: the first transaction
writes them all, the others change them again and again, in a lake at random places and one of three is new.
Without that number every document has a key of its own.
"""

import json
import random
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, process_time

from slackwater.engine.payloads import DocumentBatch, pack_items
from slackwater.outputs.contract import OutputTable
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.outputs.sink import Sink
from slackwater.protocol import BatchHeader, KafkaSettings, LakeSettings, PostgresSettings
from slackwater.sql.plan import OutputColumn

LAKES = ("delta", "iceberg")
LINE = '{"id":%d,"product":"product-17","quantity":3,"price":"12.34"}'
LINES = f'"total":"123.45","lines":[{",".join(LINE % line for line in range(3))}]'
TEXT = f'"customer":"customer-17","status":"open","line_count":3,{LINES}'
COLUMNS = {
    "id": "BIGINT",
    "customer": "VARCHAR",
    "status": "VARCHAR",
    "line_count": "INTEGER",
    "total": "DECIMAL(12,2)",
    "lines": "JSON",
}
LAKE_COLUMNS = {
    "id": "BIGINT",
    "customer": "VARCHAR",
    "total": "DECIMAL(12,2)",
    "lines": "STRUCT(id BIGINT, product VARCHAR, quantity INTEGER, price DECIMAL(10,2))[]",
}


def batch(number: int, keys: Sequence[int], outputs: int, *, is_lake: bool) -> DocumentBatch:
    """A batch of documents of about 300 bytes, in a lake 250, the next one for the next output."""
    text = f'"customer":"customer-{number}",{LINES}' if is_lake else TEXT
    rows = [(number + 1, b'{"id":%d}' % key, f'{{"id":{key},{text}}}'.encode()) for key in keys]
    by_output = {view: tuple(pack_items(rows[view::outputs])) for view in range(outputs)}
    header = BatchHeader(
        source="inv",
        timeline=1,
        from_lsn=number,
        to_lsn=number + 1,
        commit_ts_ms=1,
        event_count=len(keys),
        transactions=((number + 1, number + 1, 1),),
    )
    held = {view: payloads for view, payloads in by_output.items() if payloads}
    return DocumentBatch(number, header, held, f"state {number}")


def sequential_keys(documents: int, filled: int | None) -> Iterator[Sequence[int]]:
    """The keys of each transaction."""
    yield range(filled or documents)
    for number in count(1):
        keys = range(number * documents, (number + 1) * documents)
        yield [key % filled for key in keys] if filled else keys


def random_keys(documents: int, filled: int) -> Iterator[Sequence[int]]:
    """The keys of each transaction: of three documents two are there, one is new."""
    yield range(filled)
    drawn, new = random.Random(7), max(1, documents // 3)
    for first in count(filled, new):
        yield [*drawn.sample(range(filled), documents - new), *range(first, first + new)]


def sink_at(address: str, outputs: int, folder: Path) -> Sink:
    """The sink of brokers, of a database, or of a lake that is compacted after every tenth batch."""
    declared = LAKE_COLUMNS if address in LAKES else COLUMNS
    columns = tuple(OutputColumn(name, kind) for name, kind in declared.items())
    tables = tuple(
        OutputTable(name=f"bench.t{number}", columns=columns, key=("id",), view=f"t{number}")
        for number in range(outputs)
    )
    if address in LAKES:
        from slackwater.outputs.lake.delta import DeltaLake
        from slackwater.outputs.lake.iceberg import IcebergLake
        from slackwater.outputs.lake.sink import LakeSink, LakeSinkSettings

        options = {
            "type": "sql",
            "uri": f"sqlite:///{folder / 'catalogue.db'}",
            "warehouse": f"file://{folder}",
        }
        place = {"place": str(folder)} if address == "delta" else {"place": "bench", "options": options}
        lake = LakeSettings(keep=timedelta(days=1), maintain_every=10, **place)
        settings = LakeSinkSettings(pipeline="bench", outputs=tables, lake=lake)
        return LakeSink(settings, DeltaLake(lake) if address == "delta" else IcebergLake(lake))
    if address.startswith("postgresql://"):
        from slackwater.outputs.postgres.sink import PostgresSink
        from slackwater.outputs.postgres.tables import PostgresSinkSettings

        postgres = PostgresSettings(address)
        return PostgresSink(PostgresSinkSettings(pipeline="bench", outputs=tables, postgres=postgres))
    topics = tuple(OutputTopic(f"bench_{number}") for number in range(outputs))
    return KafkaSink(KafkaSinkSettings(pipeline="bench", outputs=topics, kafka=KafkaSettings(address)))


def main() -> None:
    """Writes one batch to fill outputs and to warm up, then the measured ones."""
    address, documents, transactions, outputs = sys.argv[1], *map(int, sys.argv[2:5])
    filled, is_lake = int(sys.argv[5]) if len(sys.argv) > 5 else None, address in LAKES
    keys = random_keys(documents, filled or 0) if is_lake else sequential_keys(documents, filled)
    cpu = 0.0
    commits, writes = [], []
    with TemporaryDirectory() as folder:
        sink = sink_at(address, outputs, Path(folder))
        sink.open()
        sink.write("query", batch(0, next(keys), outputs, is_lake=is_lake))
        for number in range(1, transactions + 1):
            each = batch(number, next(keys), outputs, is_lake=is_lake)
            started, used = monotonic(), process_time()
            report = sink.write("query", each)
            writes.append(1000 * (monotonic() - started))
            cpu += process_time() - used
            commits.append(1000 * report.commit_seconds)
        sink.close()
    found = {"seconds": sum(writes) / 1000, "cpu_seconds": cpu, "commit_ms": commits, "write_ms": writes}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
