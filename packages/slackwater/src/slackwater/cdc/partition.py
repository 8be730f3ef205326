"""Reads one partition of a data topic, record by record. The hot loop of the sidecar is here.

Decoding needs no knowledge of other records, so it can be done in another process, which passes rows without
their data, column by column. :meth:`Partition.read_parsed` does with them what :meth:`Partition.read` does
with the records themselves.
"""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from slackwater.cdc.commits import Commits
from slackwater.cdc.envelope import UNREADABLE, Row, decode_row, xid_of
from slackwater.cdc.errors import UndecodableRecordError, keyless_evidence, missing_transaction
from slackwater.cdc.partition_queues import Obstacle, PartitionQueue
from slackwater.cdc.snapshots import LateRows, Snapshots
from slackwater.cdc.transaction import RunRows, Subscription, Track, Transaction
from slackwater.protocol import ConfigError, Evidence, SlackwaterError

_NO_XID = -1

_KEPT_BYTES = 200
_MAX_PLACES = 255


class RowColumns(NamedTuple):
    """Rows of transactions, in the order of their offsets."""

    places: list[tuple[str, str]]
    """Schemas and tables that have rows."""
    offsets: "array[int]"
    xids: "array[int]"
    orders: "array[int]"
    """``data_collection_order``."""
    place: bytearray
    """The index in ``places`` of each row's table."""
    flags: bytearray
    """1: a truncation, which has no key."""


class OtherRow(NamedTuple):
    """A record that belongs to no transaction, at its position between the rows."""

    offset: int
    row: Row
    value: bytes


class BadRow(NamedTuple):
    """A record that cannot be read."""

    offset: int
    reason: str
    value: bytes
    """The first 200 bytes."""

    @property
    def error(self) -> UndecodableRecordError:
        """The error that reading the record directly would have raised."""
        return UndecodableRecordError("change", self.reason, self.value)


Segment = RowColumns | OtherRow | BadRow


class ParsedRows(NamedTuple):
    """Records of one partition written by one run of the connector."""

    segments: list[Segment]
    position: int
    """The offset after the last record, tombstones included; 0 if there was no record."""


def parse_rows(records: Iterable[tuple[int, bytes | None]]) -> ParsedRows:
    """Decodes records (offset and value, offsets ascending); never raises because of their content."""
    segments: list[Segment] = []
    columns = _Columns()
    offset = -1
    for offset, value in records:
        if value is None:
            continue
        other = columns.add(offset, value)
        if other is None:
            continue
        if columns.offsets:
            segments.append(columns.taken())
        columns = _Columns()
        if isinstance(other, Row):
            columns.add_row(offset, other)
        else:
            segments.append(other)
    if columns.offsets:
        segments.append(columns.taken())
    return ParsedRows(segments, offset + 1)


class _Columns:
    def __init__(self) -> None:
        self.index: dict[tuple[str, str], int] = {}
        self.offsets: array[int] = array("q")
        self.xids: array[int] = array("q")
        self.orders: array[int] = array("q")
        self.place = bytearray()
        self.flags = bytearray()

    def add(self, offset: int, value: bytes) -> Row | OtherRow | BadRow | None:
        """Takes a record, or returns it if it does not fit: a row when there are too many tables."""
        try:
            row = decode_row(value)
        except UNREADABLE as error:
            return BadRow(offset, str(error), value[:_KEPT_BYTES])
        if row.transaction is None:
            if row.payload is not None:
                row = row.payload
            if row.transaction is None:
                return OtherRow(offset, row, value)
        if len(self.index) == _MAX_PLACES:
            return row
        try:
            self.add_row(offset, row)
        except UndecodableRecordError as error:
            return BadRow(offset, error.reason, value[:_KEPT_BYTES])
        return None

    def add_row(self, offset: int, row: Row) -> None:
        block, source = row.transaction, row.source
        if block is None:
            return
        self.xids.append(source.xid or xid_of(row))
        self.orders.append(block.data_collection_order)
        self.offsets.append(offset)
        key = source.schema, source.table
        index = self.index
        try:
            self.place.append(index[key])
        except KeyError:
            index[key] = len(index)
            self.place.append(index[key])
        self.flags.append(row.op == "t")

    def taken(self) -> RowColumns:
        return RowColumns(list(self.index), self.offsets, self.xids, self.orders, self.place, self.flags)


class Partition(PartitionQueue):
    """The reader of one partition: decodes its records and determines whose rows they are.

    A mark from 1 to 255 represents it in the tracks of transactions.
    """

    def __init__(
        self,
        topic: str,
        number: int,
        start: int,
        *,
        mark: int,
        subscription: Subscription,
        commits: Commits,
        snapshots: Snapshots,
    ) -> None:
        super().__init__(topic, number, start)
        self._mark = mark
        self._subscription = subscription
        self._commits = commits
        self._snapshots = snapshots
        self._is_keyless = self._is_exempt = False
        self._place = ("", "")
        self._name: str | None = None
        self._transaction: Transaction | None = None
        self._newest = 0
        self._rows: RunRows = RunRows("")

    def read(  # noqa: C901 - the hot loop: a function call per record costs more than the rest of it
        self,
        records: Iterable[tuple[int, bytes | None]],
        run: str = "",
        *,
        timestamp_ms: int = 0,
        is_keyless: bool = False,
    ) -> None:
        """Takes records, offsets ascending, all written by one run of the connector.

        Args:
            records: Offset and value; tombstones have None.
            run: The header ``__debezium.context.runId`` of these records; empty when they have none.
            timestamp_ms: The record timestamp of the last one.
            is_keyless: Whether the records have no keys, so that a repeated row may be in another partition.
        """
        self._begin(run, timestamp_ms, is_keyless=is_keyless)
        decode, mark, newest = decode_row, self._mark, 0
        seen: Track | None
        xid: int | None = _NO_XID
        table = schema = ""
        rows, seen = self._rows, None
        offset = self.position - 1
        for offset, value in records:
            if value is None:
                continue
            try:
                row = decode(value)
            except UNREADABLE as error:
                self._refuse(offset, UndecodableRecordError("change", str(error), value))
                continue
            block = row.transaction
            if block is None:
                unwrapped = self._outside(offset, row, value)
                if unwrapped is None or unwrapped.transaction is None:
                    xid = _NO_XID
                    continue
                row, block = unwrapped, unwrapped.transaction
            source, flags = row.source, row.op == "t"
            if flags or source.xid != xid or source.table != table or source.schema != schema:
                table, schema = source.table, source.schema
                xid = source.xid or _NO_XID
                seen = self._turn_to(offset, source.xid or _xid(row), (schema, table), flags)
                rows, newest = self._rows, self._newest
            if seen is None:
                continue
            order = block.data_collection_order
            try:
                if order > newest and not seen[order]:
                    seen[order] = mark
                    newest = order
                    rows.missing -= 1
                    continue
            except IndexError:
                newest = self._beyond(order, seen)
                continue
            self._again(order, seen)
        if offset >= self.position:
            self.position = offset + 1

    def read_parsed(
        self, parsed: ParsedRows, run: str = "", *, timestamp_ms: int = 0, is_keyless: bool = False
    ) -> None:
        """Takes records that were decoded elsewhere; otherwise like :meth:`read`."""
        self._begin(run, timestamp_ms, is_keyless=is_keyless)
        for segment in parsed.segments:
            if isinstance(segment, RowColumns):
                self._read_columns(segment)
            elif isinstance(segment, OtherRow):
                self._outside(segment.offset, segment.row, segment.value)
            else:
                self._refuse(segment.offset, segment.error)
        self.position = max(self.position, parsed.position)

    def _begin(self, run: str, timestamp_ms: int, *, is_keyless: bool) -> None:
        self.run, self._is_keyless = run, is_keyless
        self.timestamp_ms = timestamp_ms
        self._commits.read_run(run, timestamp_ms)

    def _read_columns(self, columns: RowColumns) -> None:
        """The hot loop of :meth:`read`, without decoding."""
        places, offsets, xids, orders, place_of, flags_of = columns
        mark, rows, newest = self._mark, self._rows, 0
        seen: Track | None = None
        last_xid = last_place = _NO_XID
        for offset, xid, order, place, flags in zip(offsets, xids, orders, place_of, flags_of, strict=True):
            if flags or xid != last_xid or place != last_place:
                last_xid, last_place = xid, place
                seen = self._turn_to(offset, xid, places[place], flags)
                rows, newest = self._rows, self._newest
            if seen is None:
                continue
            try:
                if order > newest and not seen[order]:
                    seen[order] = mark
                    newest = order
                    rows.missing -= 1
                    continue
            except IndexError:
                newest = self._beyond(order, seen)
                continue
            self._again(order, seen)

    def _turn_to(self, offset: int, xid: int | None, place: tuple[str, str], flags: int) -> Track | None:
        """Finds the track of a row's transaction and table; None if the row need not be tracked."""
        if xid is None:
            self._refuse(offset, UndecodableRecordError("change", "it names no transaction", b""))
            return None
        if place != self._place:
            self._place, self._name = place, self._subscription.table(place)
        table = self._name
        if table is None:
            return None
        transaction = self._commits.open.get(xid) or self._commits.open_transaction(xid)
        if transaction is None:
            return None
        self._transaction = transaction
        track = self._track(transaction, table)
        self.tables.add(table)
        has_no_key = self._is_keyless or bool(flags)
        if has_no_key or self.has_new_siblings:  # before the queue decides whether the row is scattered
            self.has_keyless_rows = True
            transaction.read_keyless()
        if self not in transaction.partitions:
            transaction.partitions[self] = offset
            self._firsts.append((transaction, offset, self.run))
            self._newest = 0
        else:
            self._return_to(offset, transaction, table, track)
        if has_no_key and self._subscription.exempt.get(table) is Evidence.OVERTAKEN:
            self._refuse(offset, keyless_evidence(table))
        return track

    def _return_to(self, offset: int, transaction: Transaction, table: str, track: Track) -> None:
        """Continues a transaction that has rows here; queues it again if others may be in between."""
        tracks = [track] if self._is_exempt else transaction.tracks_of(table)
        self._newest = max(0, *(t.rfind(self._mark) for t in tracks))
        newest = self._firsts[-1][0]
        if isinstance(newest, LateRows):
            transaction.is_behind_late_rows = True
        if newest is not transaction and transaction.may_be_scattered:
            self._firsts.append((transaction, offset, self.run))

    def _track(self, transaction: Transaction, table: str) -> Track:
        """Returns the track of a table in the current run, created if missing."""
        self._is_exempt = table in self._subscription.exempt
        if self._is_exempt:
            rows = self._rows = transaction.exempt_rows_of(self.run)
            return rows.track(table)
        is_same_run = transaction.has_counted_rows and transaction.run == self.run
        rows = self._rows = transaction if is_same_run else transaction.rows_of(self.run)
        track = rows.tracks.get(table)
        if track is None:
            track = rows.track(table)
            transaction.is_renumbered = transaction.is_renumbered or transaction.end is not None
        return track

    def _beyond(self, order: int, track: Track) -> int:
        """Takes a row whose number is larger than the track; returns the newest number."""
        transaction = self._transaction
        if transaction is not None and transaction.end is not None and not self._is_exempt:
            transaction.is_renumbered = True
        self._rows.add(track, order, self._mark)
        return order

    def _again(self, order: int, track: Track) -> None:
        """Takes a row whose number does not rise, or was read before.

        The same number as before is a plain repeat. Anything else shows a second numbering: in a partition
        the numbers of a transaction rise, and a repeated row has the same key, so it is in the same
        partition.
        """
        transaction, mark = self._transaction, self._mark
        if transaction is None:
            return
        transaction.is_repeated = True
        if self._is_exempt:
            self._rows.add(track, order, mark)
            return
        tracks = transaction.tracks_of(self._name or "")
        was_here = any(len(t) > order and t[order] == mark for t in tracks)
        if transaction.is_keyless or not was_here:
            transaction.is_renumbered = True
        self._rows.add(track, order, mark)

    def _outside(self, offset: int, row: Row, value: bytes) -> Row | None:
        """Handles everything without a transaction; returns the row if it was only wrapped."""
        if row.payload is not None:
            row = row.payload
            if row.transaction is not None:
                return row
        if row.source.is_initial_snapshot and row.source.lsn is not None:
            try:
                self._snapshots.read_row(self, offset, row, value)
            except UndecodableRecordError as error:
                self._refuse(offset, error)
        elif not row.op:
            self._refuse(offset, UndecodableRecordError("change", "it has no 'op'", value))
        elif row.source.is_incremental_snapshot:
            self._snapshots.read_incremental_row(self, offset, row)
        elif row.op != "m":
            table = f"{row.source.schema}.{row.source.table}"
            self._refuse(offset, missing_transaction(table))
        return None

    def _refuse(self, offset: int, error: SlackwaterError) -> None:
        is_setting = isinstance(error, ConfigError)
        obstacle = Obstacle(self.topic, self.number, offset, str(error), is_misconfiguration=is_setting)
        self._commits.add_obstacle(obstacle)
        self._firsts.append((obstacle, offset, self.run))


def _xid(row: Row) -> int | None:
    try:
        return xid_of(row)
    except UndecodableRecordError:
        return None
