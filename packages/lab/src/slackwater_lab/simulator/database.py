"""The simulated database: what each transaction really did, and the state after each."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slackwater_lab.simulator.scenario import PlannedChange, PlannedTransaction, SimulatedTable

Row = tuple[int, int]
"""Id and value."""
State = dict[str, Counter[Row]]
"""Rows of each table; at most one per id where there is a key."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one row, as logical decoding sees it."""

    table: str
    op: str
    before: Row | None
    after: Row | None
    lsn: int

    @property
    def key(self) -> int:
        """The id, which is the key where there is one."""
        row = self.after or self.before
        return -1 if row is None else row[0]


@dataclass(frozen=True, slots=True)
class SimulatedCommit:
    """A transaction that committed."""

    number: int
    xid: int
    lsn: int
    changes: tuple[Change, ...]
    ts_ms: int = 0
    """Commit time."""

    @property
    def first_lsn(self) -> int:
        """The LSN in BEGIN: of the first change."""
        return min((c.lsn for c in self.changes), default=self.lsn - 8)


class Database:
    """All commits in commit order, with the state after each.

    Args:
        tables: Captured or not.
        transactions: In commit order.
        backup: The state before the first one; None: there are no rows.
    """

    def __init__(
        self,
        tables: Sequence[SimulatedTable],
        transactions: Iterable[PlannedTransaction],
        backup: State | None = None,
    ) -> None:
        self._keyless = {table.name for table in tables if table.is_keyless}
        self.commits: list[SimulatedCommit] = []
        self._states: list[State] = [backup or {table.name: Counter() for table in tables}]
        for transaction in transactions:
            state = {name: Counter(rows) for name, rows in self._states[-1].items()}
            changes = [
                c for planned in transaction.changes for c in self._changes(state[planned.table], planned)
            ]
            self.commits.append(
                SimulatedCommit(transaction.number, transaction.xid, transaction.commit_lsn, tuple(changes))
            )
            self._states.append(state)

    def state_after(self, count: int) -> State:
        """The state after this many commits."""
        return self._states[count]

    def state_at(self, lsn: int) -> State:
        """The state after all commits at or below an LSN."""
        return self._states[sum(commit.lsn <= lsn for commit in self.commits)]

    def _changes(self, rows: Counter[Row], planned: PlannedChange) -> list[Change]:
        held = min((row for row in rows if row[0] == planned.key), default=None)
        new = (planned.key, planned.value)
        if planned.wish == "truncate":
            rows.clear()
            return [Change(planned.table, "t", None, None, planned.lsn)]
        if planned.table in self._keyless:
            after = None if planned.wish == "delete" and held else new
            before = None if planned.wish == "put" else held
        else:
            after, before = (None if planned.wish == "delete" and held else new), held
        if planned.wish == "move" and held and planned.table not in self._keyless:
            target = (planned.key + 100, planned.value)
            if not any(row[0] == target[0] for row in rows):
                return [
                    _apply(rows, Change(planned.table, "d", held, None, planned.lsn)),
                    _apply(rows, Change(planned.table, "c", None, target, planned.lsn)),
                ]
        op = "d" if after is None else "u" if before else "c"
        return [_apply(rows, Change(planned.table, op, before, after, planned.lsn))]


def _apply(rows: Counter[Row], change: Change) -> Change:
    apply_change(rows, change.before, change.after)
    return change


def apply_change(rows: Counter[Row], before: Row | None, after: Row | None) -> None:
    """Takes a row out and puts one in."""
    if before is not None:
        rows[before] -= 1
        if not rows[before]:
            del rows[before]
    if after is not None:
        rows[after] += 1
        if not rows[after]:
            del rows[after]
