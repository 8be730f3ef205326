"""What a batch does to the rows of one stage key."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

from slackwater_spark.stage.wire import PackedRow

OPEN_LSN: Final = 2**63 - 1
"""End of a row version that is still live; the evaluator's constant."""

RowName = bytes
"""``tag + row`` of an entry: the input and the primary key. A tag alone, in events: TRUNCATE of the input."""

RowEvent = tuple[int, RowName, PackedRow]
"""``(commit LSN, row, new contents)``."""

Merge = Callable[[int, RowName, tuple[bytes], bytes | None], bytes]
"""Completes a row that lacks values: takes commit LSN, row, the new contents and the row's last version."""

CheckDelete = Callable[[int, RowName], None]
"""Is told of a delete of a row that is not there."""


@dataclass(frozen=True, slots=True)
class RowVersion:
    """A row with the commit LSNs ``[from_lsn, to_lsn)`` at which it was live."""

    name: RowName
    row: bytes
    from_lsn: int
    to_lsn: int


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """The rows of a key during a batch."""

    points: tuple[int, ...]
    """Commit LSNs at which some row changed, ascending; with `latest` only the last one."""
    versions: tuple[RowVersion, ...]
    """All that are live at some point."""
    changed: Mapping[RowName, bytes | None]
    """Rows that differ after the batch from before; None: no longer there."""


class GroupRules:
    """How the events of a key are read."""

    def __init__(self, *, merge: Merge, check_delete: CheckDelete, every_commit: bool) -> None:
        self._merge = merge
        self._check_delete = check_delete
        self._every_commit = every_commit

    def history(self, rows: Mapping[RowName, bytes], events: Sequence[RowEvent]) -> GroupHistory:
        """The history that these events, in commit order, make of the rows before the batch."""
        live = {name: RowVersion(name, row, 0, OPEN_LSN) for name, row in rows.items()}
        ended: list[RowVersion] = []
        points: list[int] = []
        for lsn, part in self._steps(events):
            net = self._net(live, part)
            changes = [(name, row) for name, row in net.items() if row != _row(live.get(name))]
            for name, row in changes:
                old = live.pop(name, None)
                if old is not None:
                    ended.append(RowVersion(name, old.row, old.from_lsn, lsn))
                if row is not None:
                    live[name] = RowVersion(name, row, lsn, OPEN_LSN)
            if changes:
                points.append(lsn)
        changed = {name: _row(live.get(name)) for name in _touched(rows, events)}
        return GroupHistory(
            points=tuple(points),
            versions=(*(v for v in ended if v.to_lsn > points[0]), *live.values()),
            changed={name: row for name, row in changed.items() if row != rows.get(name)},
        )

    def _steps(self, events: Sequence[RowEvent]) -> Iterator[tuple[int, Iterable[RowEvent]]]:
        if self._every_commit:
            return groupby(events, key=itemgetter(0))
        return iter([(events[-1][0], events)])

    def _net(
        self, live: Mapping[RowName, RowVersion], events: Iterable[RowEvent]
    ) -> dict[RowName, bytes | None]:
        net: dict[RowName, bytes | None] = {}
        for lsn, name, row in events:
            if isinstance(row, bytes):
                net[name] = row
                continue
            last = net[name] if name in net else _row(live.get(name))
            if row is not None:
                net[name] = self._merge(lsn, name, row, last)
            elif _is_truncate(name):
                net.update(dict.fromkeys(row for row in (*live, *net) if row.startswith(name)))
            else:
                if last is None:
                    self._check_delete(lsn, name)
                net[name] = None
        return net


def _touched(rows: Iterable[RowName], events: Iterable[RowEvent]) -> Iterable[RowName]:
    """The rows that events name, and all that a TRUNCATE means."""
    names = dict.fromkeys(name for _, name, _ in events)
    truncated = tuple(name for name in names if _is_truncate(name))
    return names | dict.fromkeys(row for row in rows if row.startswith(truncated)) if truncated else names


def _is_truncate(name: RowName) -> bool:
    return len(name) == 1


def _row(version: RowVersion | None) -> bytes | None:
    return None if version is None else version.row
