"""The source's transactions, put together from Debezium's topics alone, after the fact.

Everything is in the topics by then, so no frontier is needed: rows are matched to END records by xid.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slackwater.demo.orders import ORDER_LINES, ORDERS, Row


@dataclass(frozen=True, slots=True)
class Change:
    """One row as a transaction left it; ``after`` is None for a deleted one."""

    table: str
    key: int
    after: Row | None


@dataclass(frozen=True, slots=True)
class SourceTransaction:
    """A committed transaction with changes to the demo's tables."""

    commit_lsn: int
    commit_ts_ms: int
    changes: tuple[Change, ...]


def read_change(value: bytes) -> tuple[int | None, Change] | None:
    """Reads a Debezium row event.

    Returns:
        The transaction's xid (None for a snapshot row) and the change; None for events of other kinds.
    """
    event: dict[str, Any] = json.loads(value)
    table = f"{event['source']['schema']}.{event['source']['table']}"
    if event["op"] not in "crud" or table not in (ORDERS, ORDER_LINES):
        return None
    row = event["after"] or event["before"]
    change = Change(table, row["id"], event["after"])
    transaction = event.get("transaction")
    return (int(transaction["id"].partition(":")[0]) if transaction else None), change


class SourceHistory:
    """Collects records of the data topics and the transaction topic in any order across partitions."""

    def __init__(self) -> None:
        self._snapshot: dict[tuple[str, int], Change] = {}
        self._rows: dict[int, dict[tuple[str, int], Change]] = {}
        self._commits: dict[int, tuple[int, int]] = {}
        self.events = 0
        """Row events read, including those of the snapshot."""

    def add_row(self, value: bytes) -> None:
        """Takes a data record. Within a partition in order: the last one of a row counts."""
        found = read_change(value)
        if found is None:
            return
        xid, change = found
        self.events += 1
        rows = self._snapshot if xid is None else self._rows.setdefault(xid, {})
        rows[change.table, change.key] = change

    def add_transaction_record(self, value: bytes) -> None:
        """Takes a record of the transaction topic. Of repeated END records the first one counts."""
        record = json.loads(value)
        if record["status"] == "END":
            xid, _, lsn = record["id"].partition(":")
            self._commits.setdefault(int(xid), (int(lsn), record["ts_ms"]))

    def snapshot(self) -> tuple[Change, ...]:
        """The rows of the initial snapshot."""
        return tuple(self._snapshot.values())

    def transactions(self) -> Iterator[SourceTransaction]:
        """Every transaction with changes, in commit order."""
        commits = sorted((lsn, ts, xid) for xid, (lsn, ts) in self._commits.items() if xid in self._rows)
        for lsn, ts, xid in commits:
            yield SourceTransaction(lsn, ts, tuple(self._rows[xid].values()))

    def unfinished(self) -> list[int]:
        """Transactions with rows but without END; empty once everything has been read."""
        return sorted(self._rows.keys() - self._commits.keys())
