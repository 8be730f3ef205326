"""Describes for people what the frontier waits for."""

from collections.abc import Iterable

from slackwater.cdc.completeness import counts_are_complete
from slackwater.cdc.initial_snapshot import Announcements, InitialSnapshot
from slackwater.cdc.partition_queues import PartitionQueue
from slackwater.cdc.snapshots import LateRows
from slackwater.cdc.transaction import Transaction
from slackwater.protocol import SNAPSHOT_XID, OpenTransaction

WAITS_FOR_OTHERS = "complete, waits for others"
"""The hint for a transaction that lacks nothing itself."""
UNDECIDED_SNAPSHOT = "initial snapshot, its announcements do not match its rows"
"""Begins the hint of a snapshot that may have to be taken again; the doctor searches for it."""


def open_transaction(
    transaction: Transaction, missing_tables: list[str], partitions: Iterable[PartitionQueue]
) -> OpenTransaction:
    """Returns a transaction above the frontier; ``since_ms`` is left at 0.

    Args:
        transaction: The transaction.
        missing_tables: Those of its tables of which no partition is known.
        partitions: The partitions of its tables.
    """
    end = transaction.end
    rows_of_all = [*transaction.runs, *(transaction.exempt or {}).values()]
    tables = {table: None for rows in rows_of_all for table in rows.tracks}
    return OpenTransaction(
        xid=transaction.xid,
        commit_lsn=None if end is None else end.commit_lsn,
        since_ms=0,
        expected={} if end is None else dict(end.counts),
        received={table: transaction.received(table) for table in tables},
        hint=_hint(transaction, missing_tables),
        places={f"{p.topic}/{p.number}": (transaction.partitions.get(p, -1), p.position) for p in partitions},
    )


def open_snapshot(snapshot: InitialSnapshot, announcements: Announcements) -> OpenTransaction:
    """Returns an initial snapshot above the frontier; ``since_ms`` is left at 0."""
    return OpenTransaction(
        xid=SNAPSHOT_XID,
        commit_lsn=snapshot.lsn,
        since_ms=0,
        expected=snapshot.expected(),
        received=snapshot.received(),
        hint=_snapshot_hint(snapshot, announcements),
    )


def late_rows(rows: LateRows) -> OpenTransaction:
    """Returns rows of an ad hoc snapshot that cannot be shown yet; ``since_ms`` is left at 0."""
    return OpenTransaction(
        xid=SNAPSHOT_XID,
        commit_lsn=rows.lsn,
        since_ms=0,
        expected={},
        received={},
        hint="rows of an ad hoc snapshot wait for a commit after it",
    )


def _snapshot_hint(snapshot: InitialSnapshot, announcements: Announcements) -> str:
    announced, newest = snapshot.announcement, announcements.newest()
    if newest is None:
        return (
            "initial snapshot without notifications: the row that ends it was not read, or others may follow"
        )
    if announced is None:
        return f"{UNDECIDED_SNAPSHOT}: its rows are older than every announcement of a snapshot"
    if announced.unreadable:
        return f"{UNDECIDED_SNAPSHOT}: a notification cannot be read: {announced.unreadable}"
    if announced.is_given_up:
        return f"{UNDECIDED_SNAPSHOT}: it was interrupted, and the connector did not take it again"
    if announced is not newest and not snapshot.is_counted():
        return f"{UNDECIDED_SNAPSHOT}: it was begun again, and no row of the newest attempt was read"
    if not snapshot.is_counted():
        return f"{UNDECIDED_SNAPSHOT}: rows are missing" if announced.is_completed else "initial snapshot"
    if snapshot.repeats_interrupted_one():
        return "initial snapshot, repeated after a crash: waits for a commit after it"
    return "initial snapshot"


def _hint(transaction: Transaction, missing_tables: list[str]) -> str:
    if transaction.end is None:
        return "END was not read"
    if missing_tables:
        return f"no topic was found for {', '.join(missing_tables)}"
    if transaction.is_renumbered:
        return "rows were numbered again after a connector restart"
    if not counts_are_complete(transaction):
        return "rows are missing"
    return WAITS_FOR_OTHERS
