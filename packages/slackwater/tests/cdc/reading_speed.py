"""``python reading_speed.py``: the cost of a change record on its way into the frontier.

Prints CPU time per record in microseconds, the least of several alternating rounds: for decoding alone (the
light and the full view), and for reading (directly, and by way of columns that another process has decoded),
by the rows that a transaction has in the partition. The figures in ``docs/design/0008-speed.md``
come from here.
"""

import gc
import json
import sys
from collections.abc import Callable, Sequence
from time import process_time

from slackwater.cdc import Frontier
from slackwater.cdc.envelope import decode_full_row, decode_row
from slackwater.cdc.partition import parse_rows
from slackwater_lab.debezium.records import change_value

Records = Sequence[tuple[int, bytes]]

ROUNDS = 7
RECORDS = 60_000
BATCH = 5_000
"""Records that are read at once."""
_ROW = {
    "id": 7,
    "customer": 4711,
    "status": "shipped",
    "amount": "12.50",
    "note": "x" * 40,
    "at": 1_700_000_000,
}
_SOURCE = {
    "version": "3.6.3.Final",
    "connector": "postgresql",
    "name": "shop",
    "db": "shop",
    "ts_us": 1,
    "ts_ns": 2,
}


def update_records(rows_per_transaction: int) -> Records:
    """Updates like those of a real connector, each transaction with this many rows."""
    return [(offset, _update(*divmod(offset, rows_per_transaction))) for offset in range(RECORDS)]


def _update(transaction: int, row: int) -> bytes:
    place, orders = (transaction + 1, 1000 * transaction + row), (row + 1, row + 1)
    fields = json.loads(change_value("public.orders", "u", position=place, orders=orders, after=_ROW))
    source = _SOURCE | fields["source"] | {"sequence": '["24023128","24023128"]'}
    fields |= {"before": _ROW, "source": source, "ts_ms": 1_700_000_000_000}
    return json.dumps(fields, separators=(",", ":")).encode()


def _decode_light(records: Records) -> None:
    for _, value in records:
        decode_row(value)


def _decode_full(records: Records) -> None:
    for _, value in records:
        decode_full_row(value)


def _read_directly(records: Records) -> None:
    partition = Frontier("shop").add_partition("shop.public.orders", 0, 0)
    for first in range(0, len(records), BATCH):
        partition.read(records[first : first + BATCH], "run", timestamp_ms=1)


def _read_columns(records: Records) -> None:
    partition = Frontier("shop").add_partition("shop.public.orders", 0, 0)
    for first in range(0, len(records), BATCH):
        partition.read_parsed(parse_rows(records[first : first + BATCH]), "run", timestamp_ms=1)


WAYS: dict[str, Callable[[Records], None]] = {
    "light view": _decode_light,
    "full view": _decode_full,
    "read": _read_directly,
    "read by columns": _read_columns,
}


def microseconds(rows_per_transaction: int) -> dict[str, float]:
    """The CPU time per record of each way."""
    records = update_records(rows_per_transaction)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            gc.collect()
            started = process_time()
            way(records)
            seconds[name].append(process_time() - started)
    return {name: round(min(found) / len(records) * 1e6, 3) for name, found in seconds.items()}


def main() -> None:
    """Prints a line for each number of rows per transaction."""
    gc.disable()
    for rows in (1, 3, 20, 1000):
        sys.stdout.write(f"{rows} rows per transaction: {microseconds(rows)}\n")


if __name__ == "__main__":
    main()
