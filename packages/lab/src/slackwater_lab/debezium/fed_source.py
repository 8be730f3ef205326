"""A frontier that is fed by hand in a test, and short names for the records."""

import json
from collections.abc import Mapping, Sequence

from slackwater.cdc.frontier import Frontier
from slackwater.cdc.partition import Partition
from slackwater.protocol import CommittedTransaction, Cut, Evidence
from slackwater_lab.debezium.records import begin_value, change_value, end_value, snapshot_value

SECOND = 1000
"""A second in milliseconds."""


class FedSource:
    """Feeds a frontier over tables a and b, two partitions each, and remembers what it was given.

    Args:
        evidence: By table, where it is not ``counts``.
        start: The cut to continue from.
        done: Transactions of earlier cuts.
        tables: Those that are followed; None: all.
        barrier_interval_ms: From one barrier to the next; 0: there are none.
        complete_tables: Those that need no snapshot; ``*``: all that the first one lacks.
    """

    def __init__(
        self,
        evidence: Mapping[str, Evidence] | None = None,
        *,
        start: Cut | None = None,
        done: Sequence[CommittedTransaction] = (),
        tables: frozenset[str] | None = None,
        barrier_interval_ms: int = 0,
        complete_tables: frozenset[str] = frozenset({"inv.a", "inv.b"}),
    ) -> None:
        self.frontier = Frontier(
            "s",
            evidence=evidence,
            start=start,
            done=done,
            tables=tables,
            barrier_interval_ms=barrier_interval_ms,
            complete_tables=complete_tables,
        )
        self.parts: dict[str, Partition] = {}
        for table in "ab":
            for number in (0, 1):
                first = start.end_offsets[f"s.inv.{table}"][number] if start else 0
                self.parts[f"{table}/{number}"] = self.frontier.add_partition(f"s.inv.{table}", number, first)
        self.told = start.transaction_offset if start else 0
        self.notified = 0
        self.ends: dict[tuple[str, int], int] = {}
        """The end offsets beyond what was read, by topic and partition."""

    def row(
        self, spot: str, *values: bytes | None, run: str = "r1", ms: int = 0, keyless: bool = False
    ) -> None:
        """Gives records to a partition, named like ``a/0``, written by a run at a time."""
        part = self.parts[spot]
        part.read(enumerate(values, part.position), run, timestamp_ms=ms, is_keyless=keyless)

    def tell(self, *values: bytes, ms: int = 0) -> None:
        """Gives records of the transaction topic, written at a time."""
        self.frontier.read_transactions((o, v, ms) for o, v in enumerate(values, self.told))
        self.told += len(values)

    def notify(self, *values: bytes) -> None:
        self.frontier.read_notifications(enumerate(values, self.notified))
        self.notified += len(values)

    def at_a_cut(self) -> "FedSource":
        """Returns itself, after it has published transaction 5."""
        self.tell(begin_value(5, 501), end(5, a=2))
        self.row("a/0", row(5, 1))
        self.row("a/1", row(5, 2))
        if xids(self.cuts()) != [[5]]:
            raise AssertionError("transaction 5 was not published")
        return self

    def readable(self) -> dict[tuple[str, int], int]:
        read = {p.key: p.position for p in self.parts.values()}
        told = {("s.notifications", 0): self.notified} if self.notified else {}
        return {**read, **told, ("s.transaction", 0): self.told, **self.ends}

    def cuts(self) -> list[Cut]:
        """Returns the frontier's cuts after it received the end offsets that it requests."""
        self.frontier.advance()
        for _ in range(5):
            if self.frontier.end_offsets_wanted:
                self.frontier.end_offsets(self.readable())
            self.frontier.advance()
        return self.frontier.cuts()

    def lsns(self) -> list[int]:
        return [t.commit_lsn for cut in self.cuts() for t in cut.transactions]

    def at_rest(self) -> list[Cut]:
        """Returns the frontier's cuts while nothing is written for long."""
        found = []
        for _ in range(3):
            self.frontier.rest(self.readable())
            found += self.cuts()
        return found


def xids(cuts: list[Cut]) -> list[list[int]]:
    """The transactions of each cut."""
    return [[t.xid for t in cut.transactions] for cut in cuts]


def row(
    xid: int, order: int = 1, *, table: str = "a", total: int | None = None, op: str = "c", lsn: int = 0
) -> bytes:
    """A change of a transaction, whose place in the log follows from the numbers if none is given."""
    after = None if op == "t" else {"id": order}
    position, orders = (xid, lsn or xid * 100 + order), (order, total or order)
    return change_value(f"inv.{table}", op, position=position, orders=orders, after=after)


def end(xid: int, *, ts_ms: int = 0, lsn: int = 0, **counts: int) -> bytes:
    """END of a transaction, with counts by table; its LSN follows from its number."""
    return end_value(xid, lsn or xid * 100 + 56, {f"inv.{t}": n for t, n in counts.items()}, ts_ms=ts_ms)


def snapshot_row(lsn: int, key: int = 1, *, ts_ms: int = 0, table: str = "a", mark: str = "true") -> bytes:
    """A row of an initial or an incremental snapshot."""
    return snapshot_value(f"inv.{table}", lsn, {"id": key}, snapshot=mark, ts_ms=ts_ms)


def blocking_row(key: int, *, read_at: int, lsn: int = 601) -> bytes:
    """A row of an ad hoc snapshot, read while the stream was at an LSN."""
    fields = json.loads(snapshot_row(lsn, key))
    fields["source"]["sequence"] = f'["556","{lsn}"]'
    fields["ts_ms"] = read_at
    return json.dumps(fields).encode()
