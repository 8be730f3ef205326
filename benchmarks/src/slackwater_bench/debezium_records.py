"""Renders change events as Debezium 3.7 with schemaless JSON writes them.

Field order and null fields are those of the recordings in ``packages/cdc/tests/recordings``; a test
compares them. Rendering is by templates, since building dictionaries costs several times as much.
"""

from collections.abc import Callable
from dataclasses import dataclass

RunHeaders = list[tuple[str, str | bytes | None]]

CONNECTOR_HEADERS: RunHeaders = [
    ("__debezium.context.connectorLogicalName", b"bench"),
    ("__debezium.context.taskId", b"0"),
    ("__debezium.context.connectorName", b"postgresql"),
    ("__debezium.context.runId", b"01a1faaa-da20-78db-bee4-4f42745776ba"),
]


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of the database whose changes are rendered."""

    prefix: str
    database: str
    schema: str
    name: str

    @property
    def topic(self) -> str:
        """Debezium's topic for the table."""
        return f"{self.prefix}.{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a change event stands in its transaction."""

    xid: int
    lsn: int
    total_order: int
    order: int
    """Among the changes of the same table."""
    ts_ms: int
    """Commit time, milliseconds since the epoch."""


RowRenderer = Callable[[str, str, str, Place], bytes]


def row_renderer(table: SourceTable) -> RowRenderer:
    """A function ``(op, before, after, place) -> value``.

    ``before`` and ``after`` are JSON texts (``null`` where there is none).
    """
    head = '"source":{"version":"3.7.0.Final","connector":"postgresql","name":"' + table.prefix + '","ts_ms":'
    database = ',"snapshot":"false","db":"' + table.database + '","sequence":"[\\"'
    place = '"schema":"' + table.schema + '","table":"' + table.name + '","txId":'

    def render(op: str, before: str, after: str, at: Place) -> bytes:
        xid, lsn, ts_ms = at.xid, at.lsn, at.ts_ms
        return (
            f'{{"before":{before},"after":{after},{head}{ts_ms}{database}{lsn - 48}\\",\\"{lsn}\\"]",'
            f'"ts_us":{ts_ms}000,"ts_ns":{ts_ms}000000,{place}{xid},"lsn":{lsn},"xmin":null,"origin":null,'
            f'"origin_lsn":null}},"transaction":{{"id":"{xid}:{lsn}","total_order":{at.total_order},'
            f'"data_collection_order":{at.order}}},"op":"{op}","ts_ms":{ts_ms},"ts_us":{ts_ms}000,'
            f'"ts_ns":{ts_ms}000000}}'
        ).encode()

    return render


def begin_record(xid: int, lsn: int, ts_ms: int) -> tuple[bytes, bytes]:
    """Key and value of a BEGIN."""
    key = f'{{"id":"{xid}:{lsn}"}}'.encode()
    value = (
        f'{{"status":"BEGIN","id":"{xid}:{lsn}","event_count":null,"data_collections":null,"ts_ms":{ts_ms}}}'
    )
    return key, value.encode()


def end_record(xid: int, lsn: int, ts_ms: int, counts: dict[str, int]) -> tuple[bytes, bytes]:
    """Key and value of an END; ``counts`` maps ``schema.table`` to its number of change events."""
    key = f'{{"id":"{xid}:{lsn}"}}'.encode()
    collections = ",".join(f'{{"data_collection":"{t}","event_count":{n}}}' for t, n in counts.items())
    value = (
        f'{{"status":"END","id":"{xid}:{lsn}","event_count":{sum(counts.values())},'
        f'"data_collections":[{collections}],"ts_ms":{ts_ms}}}'
    )
    return key, value.encode()
