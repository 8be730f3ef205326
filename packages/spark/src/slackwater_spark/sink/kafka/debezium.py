"""Changes of documents as Debezium's PostgreSQL connector writes changes of rows. Pure.

A commit of the database is a transaction here, too: with its xid, its commit LSN and its time, and with BEGIN
and END that count what of it is in the outputs. So the outputs of a pipeline are a source like the one it
reads. The initial snapshot, if nothing comes before it, is one here: rows outside transactions, at its LSN,
with the notifications that count them. What belongs to no single transaction (the end of a batch, where rows
of other snapshots may be shown) is a transaction whose xid no database assigns.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import msgspec

from slackwater_cdc.postgres import xid_of_position
from slackwater_engine.documents import DocumentBatch, malformed_batch, moved_before
from slackwater_engine.payloads import Document, unpack_change
from slackwater_protocol import SNAPSHOT_XID, format_position
from slackwater_spark.sink.batch import CommittedDocuments, CommitUnit
from slackwater_spark.sink.kafka.settings import KafkaSinkSettings, OutputTable
from slackwater_sql.row_codec import INFINITE_DAYS

_CONNECTOR: Final = "postgresql"
"""Whose dialect is written: it says what ``lsn``, ``txId`` and ``sequence`` mean."""
_NS_PER_MS: Final = 1_000_000
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_FRACTION_DIGITS: Final = 6
_DAYS: Final = {text: days for days, text in INFINITE_DAYS.items()}
_MICROSECONDS: Final = {"-infinity": -(2**63), "infinity": 2**63 - 1}
_NULL: Final = b"null"
_dump = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class UnfitValueError(ValueError):
    """A value that the type of its column has no form for; its text says column and value."""


class OrderRecord(NamedTuple):
    """A record of the transaction topic or of the notification topic."""

    topic: str
    key: bytes
    value: bytes
    unit: CommitUnit
    """The commit that it is about."""


@dataclass(slots=True)
class _Commit:
    """A commit, and how many of its changes were numbered."""

    unit: CommitUnit
    counts: dict[str, int] = field(default_factory=dict)
    """By table."""
    total: int = 0

    @property
    def is_snapshot(self) -> bool:
        """Whether it is the initial snapshot, with nothing before it."""
        return self.unit.xid == SNAPSHOT_XID and not self.unit.previous_lsn

    @property
    def xid(self) -> int:
        """The xid of its transaction."""
        return self.unit.xid or xid_of_position(self.unit.commit_lsn)


class BatchChanges:
    """The change events of one batch; views may be taken in any order, each once.

    Args:
        settings: Of the sink; at least one of its outputs is a table.
        batch: The batch; documents of such outputs are changes.
        units: Its commits, ascending.
        now_ms: The time of writing, milliseconds since the epoch.
    """

    def __init__(
        self, settings: KafkaSinkSettings, batch: DocumentBatch, units: Sequence[CommitUnit], now_ms: int
    ) -> None:
        self._settings = settings
        self._batch = batch
        self._commits = {unit.commit_lsn: _Commit(unit) for unit in units}
        self._now_ms = now_ms
        self._tail = b',"ts_ms":%d,"ts_us":%d,"ts_ns":%d}' % _times(now_ms)
        self._moved: dict[int, Mapping[tuple[int, bytes], bytes]] = {}
        self.deletes = 0
        """Changes so far by which a document vanishes."""

    def events(self, view: int, found: CommittedDocuments) -> Iterator[Document]:
        """Yields the events of a view's changes in a commit.

        Raises:
            UnfitValueError: A value has no form in Debezium's records.
            EngineStateError: A document is no change.
        """
        output = self._settings.outputs[view]
        table = output.table
        assert table is not None  # noqa: S101 - for such outputs it is called
        commit = self._commits[found.unit.commit_lsn]
        encode, encode_key = row_encoder(table.columns), row_encoder(table.columns, table.key)
        source = _dump(self._source(commit, table))
        number, total = commit.counts.get(table.full_name, 0), commit.total
        for lsn, key, before, after in self._changes(view, found, keys_move=output.keys_move):
            number, total = number + 1, total + 1
            self.deletes += after is None
            op = b"r" if commit.is_snapshot else b"c" if before is None else b"d" if after is None else b"u"
            block = _NULL
            if not commit.is_snapshot:
                block = b'{"id":"%d:%d","total_order":%d,"data_collection_order":%d}' % (
                    (commit.xid, commit.unit.commit_lsn, total, number)
                )
            try:
                images = tuple(_NULL if image is None else encode(image) for image in (before, after))
                event_key = encode_key(key)
            except UnfitValueError as error:
                at = f"key {key.decode()}, commit LSN {format_position(lsn)}"
                raise UnfitValueError(f"{at}: {error}") from error
            rest = source, block, op, self._tail
            yield (
                lsn,
                event_key,
                b'{"before":%b,"after":%b,"source":%b,"transaction":%b,"op":"%b"%b'
                % (
                    *images,
                    *rest,
                ),
            )
        if number:
            commit.counts[table.full_name], commit.total = number, total

    def order_records(self) -> Iterator[OrderRecord]:
        """Yields what tells of the batch's transactions and of the snapshot, once all views were taken.

        Every commit is told of, also without a change: so readers know how far the outputs are.
        """
        topics = self._settings.source_topics
        if topics is None:
            return
        for commit in self._commits.values():
            if commit.is_snapshot:
                yield from self._notifications(commit, topics.notifications)
            else:
                yield from _boundaries(commit, topics.transactions)

    def _changes(
        self, view: int, found: CommittedDocuments, *, keys_move: bool
    ) -> Iterator[tuple[int, bytes, bytes | None, bytes | None]]:
        try:
            moved = self._moved_before(view) if keys_move else {}
            for lsn, key, change in found.documents:
                before, after = unpack_change(change or b"")
                if moved and (lsn, key) in moved:
                    if after is None:
                        continue
                    before = moved[lsn, key]
                if before != after:
                    yield lsn, key, before, after
        except msgspec.MsgspecError as error:
            raise malformed_batch(self._batch.batch_id, f"a document that is no change: {error}") from error

    def _moved_before(self, view: int) -> Mapping[tuple[int, bytes], bytes]:
        if view not in self._moved:
            self._moved[view] = moved_before(partial(self._batch.chunks, view))
        return self._moved[view]

    def _source(self, commit: _Commit, table: OutputTable) -> dict[str, Any]:
        unit = commit.unit
        ts_ms, ts_us, ts_ns = _times(unit.commit_ts_ms)
        previous = None if commit.is_snapshot else str(unit.previous_lsn)
        return {
            "version": "slackwater",
            "connector": _CONNECTOR,
            "name": self._settings.prefix,
            "ts_ms": ts_ms,
            "snapshot": "true" if commit.is_snapshot else "false",
            "db": self._settings.pipeline,
            "sequence": _dump([previous, str(unit.commit_lsn)]).decode(),
            "ts_us": ts_us,
            "ts_ns": ts_ns,
            "schema": table.schema,
            "table": table.name,
            "txId": None if commit.is_snapshot else commit.xid,
            "lsn": unit.commit_lsn,
            "xmin": None,
        }

    def _notifications(self, commit: _Commit, topic: str) -> Iterator[OrderRecord]:
        tables = [output.table.full_name for output in self._settings.outputs if output.table is not None]
        common = {"connector_name": self._settings.pipeline, "data_collections": ",".join(tables)}
        told: list[tuple[str, dict[str, str]]] = [("STARTED", {})]
        for table in tables:
            counted = {"scanned_collection": table, "total_rows_scanned": str(commit.counts.get(table, 0))}
            told.append(("TABLE_SCAN_COMPLETED", {**counted, "status": "SUCCEEDED"}))
        for kind, data in (*told, ("COMPLETED", {})):
            notification = {
                "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._settings.prefix} {kind} {data}")),
                "type": kind,
                "aggregate_type": "Initial Snapshot",
                "additional_data": {**common, **data},
                "timestamp": self._now_ms,
            }
            key = _dump({"id": notification["id"]})
            yield OrderRecord(topic, key, _dump(notification), commit.unit)


def _boundaries(commit: _Commit, topic: str) -> Iterator[OrderRecord]:
    transaction_id = f"{commit.xid}:{commit.unit.commit_lsn}"
    key = _dump({"id": transaction_id})
    begin = {"status": "BEGIN", "id": transaction_id, "event_count": None, "data_collections": None}
    collections = [{"data_collection": t, "event_count": n} for t, n in commit.counts.items()]
    end = {"status": "END", "id": transaction_id, "event_count": commit.total}
    for record in (begin, {**end, "data_collections": collections}):
        value = _dump({**record, "ts_ms": commit.unit.commit_ts_ms})
        yield OrderRecord(topic, key, value, commit.unit)


@lru_cache(maxsize=1024)
def row_encoder(
    columns: tuple[tuple[str, str], ...], names: tuple[str, ...] | None = None
) -> Callable[[bytes], bytes]:
    """Returns what makes Debezium's form of documents, or of keys: in them, dates are texts, for example.

    What it returns raises :class:`UnfitValueError`.

    Args:
        columns: Names and DuckDB types of the view's columns.
        names: Those that are there; None: all.
    """
    converters = {
        name: found
        for name, column_type in columns
        if (names is None or name in names) and (found := _converter(column_type)) is not None
    }
    if not converters:
        return bytes

    def encode(document: bytes) -> bytes:
        fields: dict[str, Any] = _decode_object(document)
        for name, convert in converters.items():
            value = bytes(fields[name])
            if value != _NULL:
                try:
                    fields[name] = convert(value.decode())
                except ValueError as error:
                    text = (
                        f"column {name!r} holds {value.decode()}, for which Debezium's records have no form"
                    )
                    raise UnfitValueError(text) from error
        return _dump(fields)

    return encode


def row_type(column_type: str) -> str:
    """Returns the PostgreSQL type whose values Debezium writes like those of a DuckDB type in events.

    Integers of 39 digits do not fit: no decimal of DuckDB, as which readers see them, has so many.
    """
    if column_type.startswith("DECIMAL("):
        return column_type.replace("DECIMAL", "numeric")
    if column_type.endswith("]") or column_type.startswith(_NESTED):
        return "jsonb"
    return _ROW_TYPES.get(column_type, "text")


def _converter(column_type: str) -> Callable[[str], Any] | None:
    if column_type.endswith("]") or column_type.startswith(_NESTED):
        return str
    return _CONVERTERS.get(column_type)


def _days(value: str) -> int:
    text = value.strip('"')
    return _DAYS[text] if text in _DAYS else date.fromisoformat(text).toordinal() - _EPOCH_DAY


def _time(value: str) -> int:
    hours, minutes, seconds = value.strip('"').split(":")
    whole, _, fraction = seconds.partition(".")
    of_day = (int(hours) * 60 + int(minutes)) * 60 + int(whole)
    return of_day * 1_000_000 + int(fraction[:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, "0"))


def _timestamp(value: str) -> int:
    text = value.strip('"')
    if text in _MICROSECONDS:
        return _MICROSECONDS[text]
    day, _, of_day = text.partition("T")
    return _days(day) * _DAY_US + _time(of_day)


def _times(ms: int) -> tuple[int, int, int]:
    """Returns a time in milliseconds, microseconds and nanoseconds."""
    return ms, ms * 1000, ms * _NS_PER_MS


_NESTED: Final = ("STRUCT(", "MAP(", "UNION(")
_CONVERTERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "DATE": _days,
    "TIME": _time,
    "TIMESTAMP": _timestamp,
    "TIMESTAMP_S": _timestamp,
    "TIMESTAMP_MS": _timestamp,
    "UBIGINT": str,
    "HUGEINT": str,
    "UHUGEINT": str,
    "JSON": str,
}
"""By DuckDB type, from a value's JSON in documents; types that are not here stand in both forms alike."""
_ROW_TYPES: Final[Mapping[str, str]] = {
    "BOOLEAN": "boolean",
    "TINYINT": "smallint",
    "UTINYINT": "smallint",
    "SMALLINT": "smallint",
    "USMALLINT": "integer",
    "INTEGER": "integer",
    "UINTEGER": "bigint",
    "BIGINT": "bigint",
    "UBIGINT": "numeric(38,0)",
    "HUGEINT": "numeric(38,0)",
    "UHUGEINT": "numeric(38,0)",
    "FLOAT": "real",
    "DOUBLE": "double precision",
    "UUID": "uuid",
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_S": "timestamp",
    "TIMESTAMP_MS": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "BLOB": "bytea",
    "JSON": "jsonb",
}
"""By DuckDB type; all others are texts in events."""
