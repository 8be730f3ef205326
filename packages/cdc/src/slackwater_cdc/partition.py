"""The rows of one partition, in the order in which they are read. The hot loop of the sidecar is here."""

from collections import deque
from collections.abc import Iterable

import msgspec

from slackwater_cdc.columns import IS_TRUNCATE, OtherRow, ParsedRows, RowColumns, xid_of
from slackwater_cdc.context import Context
from slackwater_cdc.envelope import UNREADABLE, Row
from slackwater_cdc.errors import (
    CdcError,
    KeylessEvidenceError,
    MissingTransactionMetadataError,
    UndecodableRecordError,
)
from slackwater_cdc.rows import RunRows, Track
from slackwater_cdc.transaction import LateRows, Obstacle, Pending, Transaction
from slackwater_protocol import Evidence

_decode = msgspec.json.Decoder(Row).decode
_NO_XID = -1
_UNKNOWN = 1 << 62


class Partition:
    """One partition of a data topic.

    The first records of transactions stand in commit order in a partition, so a queue of them gives the end
    offset of any cut.
    """

    __slots__ = (
        "_context",
        "_firsts",
        "_is_exempt",
        "_is_keyless",
        "_mark",
        "_name",
        "_newest",
        "_passed_sequence",
        "_place",
        "_rows",
        "_run",
        "_transaction",
        "has_keyless_rows",
        "has_new_siblings",
        "incremental_offset",
        "number",
        "position",
        "start",
        "tables",
        "timestamp_ms",
        "topic",
    )

    def __init__(self, context: Context, topic: str, number: int, start: int) -> None:
        self._context = context
        self.topic = topic
        self.number = number
        self.start = start
        """Where reading began."""
        self.position = start
        """The next offset to be read, as far as is known."""
        self.tables: set[str] = set()
        """Tables of which rows were read here."""
        self.timestamp_ms = 0
        """Record timestamp, at least, of what was read last."""
        self.has_new_siblings = False
        """Whether partitions were added to the topic: a row that comes again may be in another one."""
        self.has_keyless_rows = False
        """Whether a row that comes again may be in another partition: rows without keys, added partitions."""
        self.incremental_offset = -1
        """Offset of the newest row of an incremental snapshot; -1: none was read."""
        self._firsts: deque[tuple[Pending, int, str]] = deque()
        self._passed_sequence = 0
        self._mark = 1 + context.next_mark() % 255
        self._run = ""
        self._is_keyless = self._is_exempt = False
        self._place = ("", "")
        self._name: str | None = None
        self._transaction: Transaction | None = None
        self._newest = 0
        self._rows: RunRows = RunRows("")

    @property
    def key(self) -> tuple[str, int]:
        """Topic and number."""
        return self.topic, self.number

    @property
    def run(self) -> str:
        """The connector run that wrote what is being read; empty when its records do not say."""
        return self._run

    @property
    def backlog(self) -> int:
        """How many transactions above the frontier have rows here, at most."""
        return len(self._firsts)

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
        decode, mark, newest = _decode, self._mark, 0
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
            source = row.source
            if source.txId != xid or source.table != table or source.schema != schema:
                table, schema = source.table, source.schema
                xid = source.txId or _NO_XID
                flags = row.op == "t"
                seen = self._turn_to(offset, _xid(row), (schema, table), flags)
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

    def skip_to(self, position: int) -> None:
        """Says that there is nothing more to be read below an offset: gaps, markers of Kafka transactions."""
        self.position = max(self.position, position)

    def front(self) -> Pending | None:
        """The first in the queue that is not done; None when nothing here is above the frontier."""
        firsts = self._firsts
        while firsts and firsts[0][0].is_done:
            done = firsts.popleft()[0]
            if isinstance(done, Transaction):
                self._passed_sequence = max(self._passed_sequence, done.sequence or 0)
        return firsts[0][0] if firsts else None

    def end_offset(self) -> int:
        """End offset of a cut at the present frontier."""
        return self.position if self.front() is None else self._firsts[0][1]

    def last_sequence_before(self, transaction: Pending) -> int | None:
        """The largest sequence before the last rows of a transaction; None if something has none yet."""
        largest = found = 0
        for pending, _, _ in self._firsts:
            if pending is transaction:
                found = largest
            elif not pending.is_done and pending.sequence is None:
                largest = _UNKNOWN
            elif not pending.is_done:
                largest = max(largest, pending.sequence or 0)
        return None if found == _UNKNOWN else found

    def newest_sequence(self) -> int:
        """The largest sequence of a transaction with END that has rows here; 0 if there is none."""
        transactions = (p for p, _, _ in reversed(self._firsts) if isinstance(p, Transaction))
        known = (t.sequence for t in transactions if t.sequence is not None)
        return next(known, self._passed_sequence)

    def newest_certain(self) -> tuple[Transaction, int] | None:
        """The newest transaction with END and the offset of its first row, if nothing undecided lies before.

        Order within a partition is commit order, so all commits before that one are complete here.
        """
        firsts: dict[Transaction, int] = {}
        for pending, offset, _ in self._firsts:
            if pending.is_done:
                continue
            if pending.sequence is None or not isinstance(pending, Transaction):
                break
            firsts.setdefault(pending, offset)
        newest = max(firsts, key=lambda t: t.sequence or 0, default=None)
        return None if newest is None else (newest, firsts[newest])

    def first_offset(self, transaction: Transaction) -> int:
        """Offset of the first row of a transaction above the frontier; -1 if none was read."""
        return transaction.partitions.get(self, -1)

    def runs_after(self, sequence: int) -> frozenset[str]:
        """The connector runs that wrote rows of later commits here."""
        return frozenset(
            run
            for p, _, run in self._firsts
            if isinstance(p, Transaction) and p.sequence is not None and p.sequence > sequence
        )

    def has_streamed_rows(self) -> bool:
        """Whether a row of a transaction above the frontier was read here."""
        return any(isinstance(first[0], Transaction) for first in self._firsts)

    def add_first(self, pending: Pending, offset: int) -> None:
        """Puts something that holds back end offsets at the end of the queue."""
        self._firsts.append((pending, offset, self._run))

    def newest(self) -> Pending | None:
        """The last in the queue."""
        return self._firsts[-1][0] if self._firsts else None

    def _begin(self, run: str, timestamp_ms: int, *, is_keyless: bool) -> None:
        self._run, self._is_keyless = run, is_keyless
        self.timestamp_ms = timestamp_ms
        newest_ms = self._context.newest_ms
        if timestamp_ms > newest_ms.get(run, 0):
            newest_ms[run] = timestamp_ms

    def _read_columns(self, columns: RowColumns) -> None:
        """The hot loop of :meth:`read`, without decoding."""
        places, offsets, xids, orders, place_of, flags_of = columns
        mark, rows, newest = self._mark, self._rows, 0
        seen: Track | None = None
        last_xid = last_place = _NO_XID
        for offset, xid, order, place, flags in zip(offsets, xids, orders, place_of, flags_of, strict=True):
            if xid != last_xid or place != last_place:
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
        context = self._context
        if xid is None:
            self._refuse(offset, UndecodableRecordError("change", "it names no transaction", b""))
            return None
        if place != self._place:
            self._place, self._name = place, context.table(place)
        table = self._name
        if table is None:
            return None
        transaction = context.transactions.get(xid) or context.new_transaction(xid)
        if transaction is None:
            return None
        self._transaction = transaction
        track = self._track(transaction, table)
        self.tables.add(table)
        if self not in transaction.partitions:
            transaction.partitions[self] = offset
            self._firsts.append((transaction, offset, self._run))
            self._newest = 0
        else:
            self._return_to(offset, transaction, table, track)
        has_no_key = self._is_keyless or bool(flags & IS_TRUNCATE)
        if has_no_key or self.has_new_siblings:
            self.has_keyless_rows = True
            transaction.read_keyless()
        if has_no_key and self._context.exempt.get(table) is Evidence.OVERTAKEN:
            self._refuse(offset, KeylessEvidenceError(table))
        return track

    def _return_to(self, offset: int, transaction: Transaction, table: str, track: Track) -> None:
        """Goes on with a transaction that has rows here; queues it again if others may stand between."""
        tracks = [track] if self._is_exempt else transaction.tracks_of(table)
        self._newest = max(0, *(t.rfind(self._mark) for t in tracks))
        newest = self._firsts[-1][0]
        if isinstance(newest, LateRows):
            transaction.is_behind_late_rows = True
        if newest is not transaction and transaction.may_be_scattered:
            self._firsts.append((transaction, offset, self._run))

    def _track(self, transaction: Transaction, table: str) -> Track:
        """The track of a table in the run that is being read, made when missing."""
        self._is_exempt = table in self._context.exempt
        if self._is_exempt:
            rows = self._rows = transaction.exempt_rows_of(self._run)
            return rows.track(table)
        is_same_run = transaction.has_counted_rows and transaction.run == self._run
        rows = self._rows = transaction if is_same_run else transaction.rows_of(self._run)
        track = rows.tracks.get(table)
        if track is None:
            track = rows.track(table)
            transaction.is_renumbered = transaction.is_renumbered or transaction.end is not None
        return track

    def _beyond(self, order: int, track: Track) -> int:
        """A row whose number is larger than the track; returns the newest number."""
        transaction = self._transaction
        if transaction is not None and transaction.end is not None and not self._is_exempt:
            transaction.is_renumbered = True
        self._rows.add(track, order, self._mark)
        return order

    def _again(self, order: int, track: Track) -> None:
        """A row whose number does not rise, or was read before.

        The same number as at the first time is a plain repeat. Anything else shows a second numbering: in a
        partition the numbers of a transaction rise, and a repeated row has the same key, hence the same
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
        """Deals with everything that has no transaction; returns the row when it was only wrapped."""
        if row.payload is not None:
            row = row.payload
            if row.transaction is not None:
                return row
        if row.is_initial_snapshot and row.source.lsn is not None:
            try:
                self._context.snapshots.read_row(self, offset, row, value)
            except UndecodableRecordError as error:
                self._refuse(offset, error)
        elif not row.op:
            self._refuse(offset, UndecodableRecordError("change", "it has no 'op'", value))
        elif row.is_incremental_snapshot:
            self.incremental_offset = offset
            self._context.incremental_rows += 1
            self._context.waiting_incremental.setdefault(self, offset)
        elif row.op != "m":
            table = f"{row.source.schema}.{row.source.table}"
            self._refuse(offset, MissingTransactionMetadataError(table))
        return None

    def _refuse(self, offset: int, error: CdcError) -> None:
        wrong_setting = isinstance(error, MissingTransactionMetadataError | KeylessEvidenceError)
        obstacle = Obstacle(self.topic, self.number, offset, str(error), is_misconfiguration=wrong_setting)
        self._context.add_obstacle(obstacle)
        self._firsts.append((obstacle, offset, self._run))


def _xid(row: Row) -> int | None:
    try:
        return xid_of(row)
    except UndecodableRecordError:
        return None
