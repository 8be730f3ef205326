"""Writes changed rows through the sink of lakes, on a local disk and without Spark; prints one JSON line.

Arguments: delta or iceberg, rows in the table before, changed rows per batch, batches.
"""

import json
import random
import sys
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, process_time

from slackwater.engine.payloads import DocumentBatch, pack_items
from slackwater.outputs.contract import OutputTable
from slackwater.outputs.lake.delta import DeltaLake
from slackwater.outputs.lake.iceberg import IcebergLake
from slackwater.outputs.lake.sink import LakeSink, LakeSinkSettings
from slackwater.protocol import BatchHeader, LakeSettings
from slackwater.sql.plan import OutputColumn

COLUMNS = (
    OutputColumn("id", "BIGINT"),
    OutputColumn("customer", "VARCHAR"),
    OutputColumn("total", "DECIMAL(12,2)"),
    OutputColumn("lines", "STRUCT(id BIGINT, product VARCHAR, quantity INTEGER, price DECIMAL(10,2))[]"),
)
LINE = '{"id":%d,"product":"product-17","quantity":3,"price":"12.34"}'
LINES = ",".join(LINE % line for line in range(3))


def batch(number: int, keys: list[int]) -> DocumentBatch:
    """A batch of documents of about 250 bytes."""
    text = '{"id":%d,"customer":"customer-%d","total":"123.45","lines":[%s]}'
    rows = [(number + 1, b'{"id":%d}' % key, (text % (key, number, LINES)).encode()) for key in keys]
    header = BatchHeader(
        source="inv",
        timeline=1,
        from_lsn=number,
        to_lsn=number + 1,
        commit_ts_ms=1,
        event_count=len(keys),
        transactions=((number + 1, number + 1, 1),),
    )
    return DocumentBatch(number, header, {0: tuple(pack_items(rows))}, f"state {number}")


def sink_in(folder: Path, kind: str) -> LakeSink:
    """A sink of one table, compacted after every tenth batch."""
    options = {"type": "sql", "uri": f"sqlite:///{folder / 'catalogue.db'}", "warehouse": f"file://{folder}"}
    place = {"place": str(folder)} if kind == "delta" else {"place": "bench", "options": options}
    lake = LakeSettings(keep=timedelta(days=1), maintain_every=10, **place)
    output = OutputTable(name="s.orders", columns=COLUMNS, key=("id",), view="orders")
    settings = LakeSinkSettings(pipeline="bench", outputs=(output,), lake=lake)
    return LakeSink(settings, DeltaLake(lake) if kind == "delta" else IcebergLake(lake))


def main() -> None:
    """Fills the table, then writes the measured batches: of three rows two are there, one is new."""
    kind, filled, changed, batches = sys.argv[1], *map(int, sys.argv[2:5])
    drawn = random.Random(7)
    with TemporaryDirectory() as folder:
        sink = sink_in(Path(folder), kind)
        sink.open()
        sink.write("query", batch(0, list(range(filled))))
        seconds, cpu, next_key = [], 0.0, filled
        for number in range(1, batches + 1):
            new = max(1, changed // 3)
            keys = [*drawn.sample(range(filled), changed - new), *range(next_key, next_key + new)]
            next_key += new
            each = batch(number, keys)
            started, used = monotonic(), process_time()
            sink.write("query", each)
            seconds.append(monotonic() - started)
            cpu += process_time() - used
        sink.close()
    found = {"seconds": sum(seconds), "cpu_seconds": cpu, "batch_ms": [1000 * each for each in seconds]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
