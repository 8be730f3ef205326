"""Debezium-shaped records for tests: bytes as the PostgreSQL connector writes them, without any database."""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from slackwater_lab.generator.debezium_records import begin_record, end_record

RUN_HEADER = "__debezium.context.runId"


def begin_value(xid: int, lsn: int, ts_ms: int = 0) -> bytes:
    """BEGIN in the transaction topic; the LSN is that of the first change, not of the commit."""
    return begin_record(xid, lsn, ts_ms)[1].encode()


def end_value(xid: int, commit_lsn: int, counts: Mapping[str, int], ts_ms: int = 0) -> bytes:
    """END in the transaction topic."""
    return end_record(xid, commit_lsn, ts_ms, counts.items())[1].encode()


def change_value(
    table: str,
    op: str,
    *,
    position: tuple[int, int],
    orders: tuple[int, int],
    after: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
    ts_ms: int = 0,
) -> bytes:
    """A streamed change.

    The position is xid and the change's own LSN, orders are ``data_collection_order`` and ``total_order``.
    """
    xid, lsn = position
    block = {"id": f"{xid}:{lsn}", "total_order": orders[1], "data_collection_order": orders[0]}
    source = _source(table, lsn=lsn, xid=xid, ts_ms=ts_ms, snapshot="false")
    return _dump(_envelope(op, source, block, before, after))


def snapshot_value(
    table: str, lsn: int, after: Mapping[str, Any], *, snapshot: str = "true", ts_ms: int = 0
) -> bytes:
    """A row of an initial snapshot; ``snapshot`` marks first and last ones as Debezium does."""
    source = _source(table, lsn=lsn, xid=700, ts_ms=ts_ms, snapshot=snapshot)
    return _dump(_envelope("r", source, None, None, after))


def blocking_value(table: str, lsn: int, after: Mapping[str, Any], *, ts_ms: int = 0) -> bytes:
    """A row of an ad hoc snapshot that pauses the stream at an LSN."""
    source = _source(table, lsn=lsn, xid=700, ts_ms=ts_ms, snapshot="true")
    return _dump(_envelope("r", source | {"sequence": f'["{lsn}","{lsn}"]'}, None, None, after))


def incremental_value(table: str, after: Mapping[str, Any], *, ts_ms: int = 0) -> bytes:
    """A row of an incremental snapshot: it has no LSN and belongs to no transaction."""
    source = _source(table, lsn=None, xid=None, ts_ms=ts_ms, snapshot="incremental")
    return _dump(_envelope("r", source, None, None, after))


def notification_value(kind: str, *, ts_ms: int = 0, **additional_data: str) -> bytes:
    """A notification of an initial snapshot; ``ts_ms`` by the connector's clock."""
    data = {"connector_name": "test", **additional_data}
    return _dump(
        {
            "id": "2eaf179c-d977-4b20-8135-79d0398fa1bb",
            "type": kind,
            "aggregate_type": "Initial Snapshot",
            "additional_data": data,
            "timestamp": ts_ms,
        }
    )


def snapshot_notifications(counts: Mapping[str, int], *, ts_ms: int = 0) -> list[bytes]:
    """All notifications of a snapshot that began at a time and found this many rows per table."""

    def value(kind: str, **data: str) -> bytes:
        return notification_value(kind, ts_ms=ts_ms, **data)

    scanned = [
        value("TABLE_SCAN_COMPLETED", scanned_collection=t, total_rows_scanned=str(n))
        for t, n in counts.items()
    ]
    return [value("STARTED"), *scanned, value("COMPLETED")]


def transaction_values(
    xid: int, first_lsn: int, rows: Sequence[tuple[str, Mapping[str, Any]]], ts_ms: int = 0
) -> tuple[bytes, list[tuple[str, bytes]], bytes]:
    """BEGIN, inserts (table, value) and END of a transaction; its commit LSN is ``first_lsn + len(rows)``."""
    counts: dict[str, int] = {}
    values = []
    for number, (table, after) in enumerate(rows):
        counts[table] = counts.get(table, 0) + 1
        position, orders = (xid, first_lsn + number), (counts[table], number + 1)
        value = change_value(table, "c", position=position, orders=orders, after=after, ts_ms=ts_ms)
        values.append((table, value))
    begin = begin_value(xid, first_lsn, ts_ms)
    return begin, values, end_value(xid, first_lsn + len(rows), counts, ts_ms)


def partition_of(key: bytes, partitions: int) -> int:
    """A partition by key: the same for the same key, otherwise without meaning."""
    return zlib.crc32(key) % partitions


def _envelope(
    op: str,
    source: Mapping[str, Any],
    block: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> dict[str, Any]:
    ts_ms = source["ts_ms"]
    return {
        "before": before,
        "after": after,
        "source": source,
        "transaction": block,
        "op": op,
        "ts_ms": ts_ms,
        "ts_us": ts_ms * 1000,
        "ts_ns": ts_ms * 1_000_000,
    }


def _source(table: str, *, lsn: int | None, xid: int | None, ts_ms: int, snapshot: str) -> dict[str, Any]:
    schema, _, name = table.partition(".")
    return {
        "version": "3.7.0.Final",
        "connector": "postgresql",
        "name": "test",
        "ts_ms": ts_ms,
        "snapshot": snapshot,
        "db": "postgres",
        "sequence": f'[null,"{lsn}"]',
        "ts_us": ts_ms * 1000,
        "ts_ns": ts_ms * 1_000_000,
        "schema": schema,
        "table": name,
        "txId": xid,
        "lsn": lsn,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }


def _dump(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
