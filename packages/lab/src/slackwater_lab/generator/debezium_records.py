"""Renders records byte for byte as Debezium 3.7 with schemaless JSON writes them.

A test replays recordings of a real connector. Rendering is by templates, since building dictionaries costs
several times as much: what is the same for a whole transaction is rendered once (:class:`Stamp`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Headers = list[tuple[str, str | bytes | None]]

VERSION = "3.7.0.Final"
RUN_ID = "01a1faaa-da20-78db-bee4-4f42745776ba"
NULL = "null"


@dataclass(frozen=True, slots=True)
class ConnectorIdentity:
    """The fields that identify a connector in its records."""

    prefix: str
    database: str = "inventory"
    version: str = VERSION
    run_id: str = RUN_ID

    def headers(self) -> Headers:
        """The headers of every data record and tombstone."""
        return [
            ("__debezium.context.connectorLogicalName", self.prefix.encode()),
            ("__debezium.context.taskId", b"0"),
            ("__debezium.context.connectorName", b"postgresql"),
            ("__debezium.context.runId", self.run_id.encode()),
        ]

    def new_key_headers(self, key: Mapping[str, object]) -> Headers:
        """The headers of the delete and the tombstone that a change of the key begins with."""
        return [("__debezium.newkey", _struct(key)), *self.headers()]

    def old_key_headers(self, key: Mapping[str, object]) -> Headers:
        """The headers of the insert that a change of the key ends with."""
        return [("__debezium.oldkey", _struct(key)), *self.headers()]


def _struct(key: Mapping[str, object]) -> bytes:
    return f"Struct{{{','.join(f'{name}={value}' for name, value in key.items())}}}".encode()


class Stamp(NamedTuple):
    """The parts of a row record that are the same in a whole transaction."""

    xid: int
    after_source: str
    """From the commit time in ``source`` to the row's LSN in ``sequence``."""
    before_table: str
    end: str
    """The time at which the connector rendered the record."""


def stamp(
    connector: ConnectorIdentity, xid: int, commit_us: int, previous_commit_lsn: int | None, rendered_ns: int
) -> Stamp:
    """Renders what is the same for all rows of a transaction.

    Args:
        connector: Whose records.
        xid: The transaction.
        commit_us: Its commit time, microseconds since the epoch.
        previous_commit_lsn: The commit LSN of the transaction before; None at the start of a connector.
        rendered_ns: When the connector saw it, nanoseconds since the epoch.
    """
    previous = NULL if previous_commit_lsn is None else f'\\"{previous_commit_lsn}\\"'
    return Stamp(
        xid,
        f'{commit_us // 1000},"snapshot":"false","db":"{connector.database}","sequence":"[{previous},\\"',
        f'\\"]","ts_us":{commit_us},"ts_ns":{commit_us}000,"schema":"',
        f'"ts_ms":{rendered_ns // 1_000_000},"ts_us":{rendered_ns // 1000},"ts_ns":{rendered_ns}}}',
    )


RowRenderer = Callable[[str, str, str, Stamp, int, int, int], str]
"""``(op, before, after, stamp, lsn, total_order, data_collection_order) -> value``.

``before`` and ``after`` are JSON texts, ``null`` where there is none.
"""


def row_renderer(connector: ConnectorIdentity, schema: str, table: str) -> RowRenderer:
    """Makes the function that renders the changes of one table."""
    source = (
        f'"source":{{"version":"{connector.version}","connector":"postgresql",'
        f'"name":"{connector.prefix}","ts_ms":'
    )
    place = f'{schema}","table":"{table}","txId":'

    def render(op: str, before: str, after: str, at: Stamp, lsn: int, total: int, order: int) -> str:
        xid, after_source, before_table, end = at
        return (
            f'{{"before":{before},"after":{after},{source}{after_source}{lsn}{before_table}{place}{xid},'
            f'"lsn":{lsn},"xmin":null,"origin":null,"origin_lsn":null}},"transaction":{{"id":"{xid}:{lsn}",'
            f'"total_order":{total},"data_collection_order":{order}}},"op":"{op}",{end}'
        )

    return render


def begin_record(xid: int, lsn: int, commit_ms: int) -> tuple[str, str]:
    """Key and value of a BEGIN."""
    return (
        f'{{"id":"{xid}:{lsn}"}}',
        f'{{"status":"BEGIN","id":"{xid}:{lsn}","event_count":null,"data_collections":null,"ts_ms":{commit_ms}}}',
    )


def end_record(xid: int, lsn: int, commit_ms: int, counts: Iterable[tuple[str, int]]) -> tuple[str, str]:
    """Key and value of an END.

    Args:
        xid: The transaction.
        lsn: Its commit LSN.
        commit_ms: Its commit time, milliseconds since the epoch.
        counts: Number of change events of each ``schema.table`` that has any; Debezium's order is arbitrary.
    """
    total, collections = 0, ""
    for table, number in counts:
        total += number
        collections += f',{{"data_collection":"{table}","event_count":{number}}}'
    return (
        f'{{"id":"{xid}:{lsn}"}}',
        f'{{"status":"END","id":"{xid}:{lsn}","event_count":{total},'
        f'"data_collections":[{collections[1:]}],"ts_ms":{commit_ms}}}',
    )
