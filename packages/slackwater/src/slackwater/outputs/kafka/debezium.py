"""Changes of documents as Debezium's PostgreSQL connector writes changes of rows. Pure.

A commit of the database is a transaction in the output, too, with its xid, its commit LSN and its time, and
with BEGIN and END that count its events in the outputs. The outputs of a pipeline are therefore a source like
the one that it reads. The initial snapshot, if nothing precedes it, is written as a snapshot: rows outside
transactions, at its LSN, with the notifications that count them. Changes that do not belong to a single
transaction (at the end of a batch, where rows of other snapshots may be shown) are a transaction whose xid no
database assigns.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import msgspec

from slackwater.cdc.change_writer import ChangeWriter, EventSource, WrittenCommit
from slackwater.engine.payloads import Document, DocumentBatch, malformed_batch, moved_before, unpack_change
from slackwater.outputs.avro import microseconds
from slackwater.outputs.batch import CommittedDocuments, CommitUnit
from slackwater.outputs.contract import UnfitValueError, is_nested, postgres_type
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.protocol import SNAPSHOT_XID, format_position
from slackwater.sql.plan import OutputColumn
from slackwater.sql.row_codec import INFINITE_DAYS

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_DAYS: Final = {text: days for days, text in INFINITE_DAYS.items()}
_MICROSECONDS: Final = {"-infinity": -(2**63), "infinity": 2**63 - 1}
_NULL: Final = b"null"
_dump = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class OrderRecord(NamedTuple):
    """A record of the transaction topic or of the notification topic."""

    topic: str
    key: bytes
    value: bytes
    unit: CommitUnit
    """The commit that the record describes."""


class BatchChanges:
    """The change events of one batch. Views may be processed in any order, each once."""

    def __init__(
        self, settings: KafkaSinkSettings, batch: DocumentBatch, units: Sequence[CommitUnit], now_ms: int
    ) -> None:
        self._settings = settings
        self._batch = batch
        source = EventSource(settings.prefix, settings.pipeline)
        self._commits = [(unit, ChangeWriter(source, _commit_of(unit), now_ms)) for unit in units]
        self._writers = {unit.commit_lsn: writer for unit, writer in self._commits}
        self._now_ms = now_ms
        self._moved: dict[int, Mapping[tuple[int, bytes], bytes]] = {}
        self.deletes = 0
        """The number of changes so far by which a document disappears."""

    def events(self, view: int, found: CommittedDocuments) -> Iterator[Document]:
        """Yields the events of a view's changes in a commit.

        Raises:
            UnfitValueError: Debezium's records cannot represent a value.
            StateError: A document is not a change.
        """
        output = self._settings.outputs[view]
        table = output.table
        assert table is not None  # noqa: S101 - for such outputs it is called
        schema, _, name = table.name.rpartition(".")
        write = self._writers[found.unit.commit_lsn].table(schema, name).event
        encode, encode_key = row_encoder(table.columns), row_encoder(table.columns, table.key)
        for lsn, key, before, after in self._changes(view, found, keys_move=output.keys_move):
            self.deletes += after is None
            try:
                event_key = encode_key(key)
                old, new = (None if image is None else encode(image) for image in (before, after))
            except UnfitValueError as error:
                at = f"key {key.decode()}, commit LSN {format_position(lsn)}"
                raise UnfitValueError(f"{at}: {error}") from error
            yield lsn, event_key, write(old, new)

    def order_records(self) -> Iterator[OrderRecord]:
        """Yields the records for the batch's transactions and the snapshot, after all views were processed.

        Every commit has records, even without a change, so that readers know how far the outputs are.
        """
        topics = self._settings.source_topics
        if topics is None:
            return
        for unit, writer in self._commits:
            if writer.commit.is_snapshot:
                yield from self._notifications(unit, writer.counts, topics.notifications)
            else:
                key, *boundaries = writer.boundaries()
                yield from (OrderRecord(topics.transactions, key, each, unit) for each in boundaries)

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
            raise malformed_batch(
                self._batch.batch_id, f"a document that is not a change: {error}"
            ) from error

    def _moved_before(self, view: int) -> Mapping[tuple[int, bytes], bytes]:
        if view not in self._moved:
            self._moved[view] = moved_before(partial(self._batch.chunks, view))
        return self._moved[view]

    def _notifications(
        self, unit: CommitUnit, counts: Mapping[str, int], topic: str
    ) -> Iterator[OrderRecord]:
        tables = [output.table.name for output in self._settings.outputs if output.table is not None]
        common = {"connector_name": self._settings.pipeline, "data_collections": ",".join(tables)}
        told: list[tuple[str, dict[str, str]]] = [("STARTED", {})]
        for table in tables:
            counted = {"scanned_collection": table, "total_rows_scanned": str(counts.get(table, 0))}
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
            yield OrderRecord(topic, key, _dump(notification), unit)


def _commit_of(unit: CommitUnit) -> WrittenCommit:
    """Returns the commit of a unit; a snapshot is written as a snapshot only if nothing precedes it."""
    is_snapshot = unit.xid == SNAPSHOT_XID and not unit.previous_lsn
    return WrittenCommit(unit.xid, unit.commit_lsn, unit.previous_lsn, unit.commit_ts_ms, is_snapshot)


@lru_cache(maxsize=1024)
def row_encoder(
    columns: tuple[OutputColumn, ...], names: tuple[str, ...] | None = None
) -> Callable[[bytes], bytes]:
    """Returns the function that converts documents, or keys, to Debezium's form, in which dates are integers.

    The function raises :class:`UnfitValueError`.
    """
    wanted = [column for column in columns if names is None or column.name in names]
    converters: dict[str, Callable[[str], Any]] = {
        column.name: str if is_nested(column.type) else _CONVERTERS[column.type]
        for column in wanted
        if is_nested(column.type) or column.type in _CONVERTERS
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
                    text = f"column {name!r}: Debezium's records cannot represent {value.decode()}"
                    raise UnfitValueError(text) from error
        return _dump(fields)

    return encode


def row_type(column_type: str) -> str:
    """Returns the PostgreSQL type whose values Debezium writes like those of a DuckDB type in events.

    Integers of 39 digits do not fit, because readers see them as decimals of DuckDB, which have at most 38.
    """
    return _ROW_TYPES.get(column_type) or postgres_type(column_type)


def _days(value: str) -> int:
    text = value.strip('"')
    return _DAYS[text] if text in _DAYS else date.fromisoformat(text).toordinal() - _EPOCH_DAY


def _time(value: str) -> int:
    return microseconds(value.strip('"'))


def _timestamp(value: str) -> int:
    text = value.strip('"')
    if text in _MICROSECONDS:
        return _MICROSECONDS[text]
    day, _, of_day = text.partition("T")
    return _days(day) * _DAY_US + _time(of_day)


_CONVERTERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "DATE": _days,
    "TIME": _time,
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), _timestamp),
    **dict.fromkeys(("UBIGINT", "HUGEINT", "UHUGEINT", "JSON"), str),
}
"""By DuckDB type, from a value's JSON in documents; values of all other types are the same in both forms."""
_ROW_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("UBIGINT", "HUGEINT", "UHUGEINT"), "numeric(38,0)"),
    **dict.fromkeys(("BIT", "INTERVAL", "TIME WITH TIME ZONE"), "text"),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), "timestamp"),
    "TIME": "time",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
}
"""By DuckDB type; all others are those of tables in PostgreSQL."""
