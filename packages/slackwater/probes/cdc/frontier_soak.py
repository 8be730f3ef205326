"""Feeds the frontier with generated records of very many transactions, without Kafka; prints one JSON line.

Arguments: millions of transactions, partitions. Every thousandth transaction is repeated from its BEGIN, and
every hundred thousandth begins a new run of the connector: so everything that remembers is used. Cuts are
taken as the sidecar takes them, and dropped.
"""

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import process_time

from slackwater.cdc import Frontier, Partition

SOURCE = "inv"
TABLE = "s.t"
ROWS = 2
BATCH = 1_000
RUN_TRANSACTIONS = 100_000
REPEATED = 1_000
SAMPLES = 20

VALUE = (
    '{{"before":null,"after":{{"id":{row}}},"source":{{"ts_ms":1,"snapshot":"false","schema":"s","table":"t",'
    '"txId":{xid},"lsn":{lsn}}},"transaction":{{"id":"{xid}:{lsn}","total_order":{order},'
    '"data_collection_order":{order}}},"op":"c"}}'
)
BEGIN = '{{"status":"BEGIN","id":"{xid}:{lsn}","event_count":null,"data_collections":null,"ts_ms":1}}'
END = (
    '{{"status":"END","id":"{xid}:{lsn}","event_count":2,'
    '"data_collections":[{{"data_collection":"s.t","event_count":2}}],"ts_ms":1}}'
)


class Feed:
    """One source; offsets are counted here."""

    def __init__(self, partitions: int) -> None:
        self.frontier = Frontier(SOURCE, complete_tables=frozenset({TABLE}))
        self.partitions: list[Partition] = [
            self.frontier.add_partition(f"{SOURCE}.{TABLE}", number, 0) for number in range(partitions)
        ]
        self.cuts = 0
        self._offset = 0

    def feed(self, first: int) -> None:
        """A thousand transactions."""
        run = f"run-{first // RUN_TRANSACTIONS:06d}"
        rows: dict[int, list[bytes]] = {}
        transactions: list[bytes] = []
        for number in range(first, first + BATCH):
            xid = 700 + number % (1 << 32)
            for _ in range(2 if number % REPEATED == 0 else 1):
                transactions += _transaction(xid, 1_000 * number, rows, len(self.partitions))
        for number, values in rows.items():
            partition = self.partitions[number]
            partition.read(enumerate(values, partition.position), run, timestamp_ms=first)
        self._offset += len(transactions)
        self.frontier.read_transactions((self._offset, value, first) for value in transactions)
        self.frontier.advance()
        if self.frontier.end_offsets_wanted:
            ends = {partition.key: partition.position for partition in self.partitions}
            self.frontier.end_offsets({**ends, (f"{SOURCE}.transaction", 0): self._offset + 1})
            self.frontier.advance()
        self.cuts += len(self.frontier.cuts())


def _transaction(xid: int, lsn: int, rows: dict[int, list[bytes]], partitions: int) -> Iterator[bytes]:
    yield BEGIN.format(xid=xid, lsn=lsn).encode()
    for order in range(1, ROWS + 1):
        value = VALUE.format(row=xid, xid=xid, lsn=lsn + 8 * order, order=order)
        rows.setdefault((xid * ROWS + order) % partitions, []).append(value.encode())
    yield END.format(xid=xid, lsn=lsn + 80).encode()


def resident_mib() -> float:
    """Reads the resident size of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * 4096 / 2**20, 1)


def main() -> None:
    """As the service does: without cyclic garbage collection."""
    total, partitions = int(float(sys.argv[1]) * 1_000_000), int(sys.argv[2])
    gc.disable()
    feed, resident = Feed(partitions), dict[int, float]()
    used = process_time()
    for first in range(0, total, BATCH):
        feed.feed(first)
        done = first + BATCH
        if done % max(BATCH, total // SAMPLES // BATCH * BATCH) == 0:
            resident[done] = resident_mib()
    found = {
        "transactions": total,
        "cpu_seconds": round(process_time() - used, 1),
        "cuts": feed.cuts,
        "is_at_the_end": feed.frontier.queue_length == 0,
        "resident_mib": resident,
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
