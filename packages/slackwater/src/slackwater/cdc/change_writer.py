"""Writes change events, BEGIN and END as Debezium's PostgreSQL connector does: what ``envelope`` reads.

For sources that no connector writes: pipelines whose outputs are tables, and services.
"""

from typing import Final, NamedTuple

import msgspec

from slackwater.cdc.postgres import OWN_VERSION, xid_of_position

_CONNECTOR: Final = "postgresql"
"""The dialect that is written: it defines what ``lsn``, ``txId`` and ``sequence`` mean."""
_NS_PER_MS: Final = 1_000_000
_NULL: Final = b"null"
_dump = msgspec.json.Encoder().encode


class EventSource(NamedTuple):
    """The origin that the events state."""

    name: str
    """The ``topic.prefix``."""
    database: str


class WrittenCommit(NamedTuple):
    """The commit whose changes are written."""

    xid: int | None
    """The transaction; 0 and None for something that the database did not do in a single transaction, which
    gets an xid that no database assigns."""
    lsn: int
    previous_lsn: int
    """The previous commit LSN; 0 if there is none."""
    ts_ms: int
    """Commit time, milliseconds since the epoch."""
    is_snapshot: bool = False
    """Whether it is an initial snapshot: its rows belong to no transaction."""


class Boundaries(NamedTuple):
    """BEGIN and END of a transaction."""

    key: bytes
    begin: bytes
    end: bytes


class ChangeWriter:
    """Writes and numbers the change events of one commit. Tables may be taken in any order."""

    def __init__(self, source: EventSource, commit: WrittenCommit, now_ms: int) -> None:
        self.source = source
        self.commit = commit
        self.counts: dict[str, int] = {}
        """Events by table, as ``schema.table``."""
        self.total = 0
        self.xid = commit.xid or xid_of_position(commit.lsn)
        """The xid in events, BEGIN and END."""
        self._tail = b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d}' % _times(now_ms)

    def table(self, schema: str, name: str) -> "TableChangeWriter":
        """Returns the writer of a table's events; each table has one at a time."""
        return TableChangeWriter(self, schema, name)

    def boundaries(self) -> Boundaries:
        """Returns BEGIN and END, which counts the events so far."""
        transaction_id = f"{self.xid}:{self.commit.lsn}"
        begin = {"status": "BEGIN", "id": transaction_id, "event_count": None, "data_collections": None}
        collections = [{"data_collection": t, "event_count": n} for t, n in self.counts.items()]
        end = {"status": "END", "id": transaction_id, "event_count": self.total}
        return Boundaries(
            _dump({"id": transaction_id}),
            _dump({**begin, "ts_ms": self.commit.ts_ms}),
            _dump({**end, "data_collections": collections, "ts_ms": self.commit.ts_ms}),
        )

    def template(self, schema: str, name: str) -> bytes:
        """Returns the text of a table's events, with gaps for what differs from event to event."""
        commit, is_snapshot = self.commit, self.commit.is_snapshot
        ts_ms, ts_us, ts_ns = _times(commit.ts_ms)
        source_block = {
            "version": OWN_VERSION,
            "connector": _CONNECTOR,
            "name": self.source.name,
            "ts_ms": ts_ms,
            "snapshot": "true" if is_snapshot else "false",
            "db": self.source.database,
            "ts_us": ts_us,
            "ts_ns": ts_ns,
            "schema": schema,
            "table": name,
            "txId": None if is_snapshot else self.xid,
            "xmin": None,
        }
        source = _dump(source_block)[:-1].replace(b"%", b"%%")
        previous = b"null" if is_snapshot else b'\\"%d\\"' % commit.previous_lsn
        block = _NULL
        if not is_snapshot:
            numbers = b'"total_order":%d,"data_collection_order":%d'
            block = b'{"id":"%d:%d",' % (self.xid, commit.lsn) + numbers + b"}"
        return (
            b'{"before":%b,"after":%b,"source":'
            + source
            + b',"sequence":"['
            + previous
            + b',\\"%d\\"]","lsn":%d},"transaction":'
            + block
            + b',"op":"%b",'
            + self._tail
        )


class TableChangeWriter:
    """Writes the change events of one table in a commit; see :meth:`ChangeWriter.table`."""

    def __init__(self, changes: ChangeWriter, schema: str, name: str) -> None:
        self.name = f"{schema}.{name}"
        self.number = changes.counts.get(self.name, 0)
        """Events of the table so far."""
        self._changes = changes
        self._is_snapshot = changes.commit.is_snapshot
        self._template = changes.template(schema, name)

    def event(self, before: bytes | None, after: bytes | None, *, op: bytes = b"", lsn: int = 0) -> bytes:
        """Returns the next event of the table.

        Args:
            before: The row before, as JSON; None if there was none, or it is unknown.
            after: The row after; None if there is none.
            op: What happened; empty if it follows from the rows.
            lsn: The LSN of the change itself; 0 for the commit's. Readers treat two changes of one key with
                equal LSN and ``op`` in one transaction as a repetition.
        """
        changes = self._changes
        number = self.number = self.number + 1
        total = changes.total = changes.total + 1
        changes.counts[self.name] = number
        lsn = lsn or changes.commit.lsn
        op = op or (b"c" if before is None else b"d" if after is None else b"u")
        images = _NULL if before is None else before, _NULL if after is None else after
        if self._is_snapshot:
            return self._template % (*images, lsn, lsn, b"r")
        return self._template % (*images, lsn, lsn, total, number, op)


def _times(ms: int) -> tuple[int, int, int]:
    """Returns a time in milliseconds, microseconds and nanoseconds."""
    return ms, ms * 1000, ms * _NS_PER_MS
