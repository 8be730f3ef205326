"""What a batch's events do to the rows of one stage key. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from slackwater_engine.payloads import PackedRow

OPEN_LSN: Final = 2**63 - 1
"""End of a row version that is still live; the evaluator's constant."""

TRUNCATED: Final[tuple[()]] = ()
"""New contents of a row that vanishes if it is there."""

RowEvent = tuple[int, int, bytes, PackedRow | tuple[()]]
"""``(commit LSN, input, entry's name, new contents)``."""

Transitions = list[tuple[int, bytes | None]]
"""A row's new contents by commit LSN, ascending, each unlike the one before; None: not there."""

RowVersion = tuple[int, bytes, int, int]
"""``(input, row, from LSN, to LSN)``: a row with the commits ``[from, to)`` at which it was live."""

Merge = Callable[[int, int, tuple[bytes], bytes | None], bytes]
"""Completes a row that lacks values: takes commit LSN, input, the new contents and the row's last version."""

CheckDelete = Callable[[int, int], None]
"""Is told of commit LSN and input of a delete of a row that is not there."""


class RowRules:
    """How events are read; for one key at a time."""

    def __init__(self, *, merge: Merge, check_delete: CheckDelete, of_stages: Collection[int]) -> None:
        """Rules.

        Args:
            merge: For rows that lack values.
            check_delete: For deletes of rows that are not there.
            of_stages: Inputs whose rows come from earlier stages. A row that moves there between keys in a
                commit is deleted by one bucket and written by another, in any order: it is there.
        """
        self._merge = merge
        self._check_delete = check_delete
        self._of_stages = of_stages

    def changes(
        self, stored: Mapping[bytes, bytes], events: Iterable[RowEvent], lsn: int | None = None
    ) -> dict[bytes, Transitions]:
        """The rows that differ after some commit from before it.

        Args:
            stored: The rows before the batch, by entry's name, at least those that the events name.
            events: By commit LSN.
            lsn: Only the state after all events is wanted, and this is its LSN.
        """
        rows: dict[bytes, Transitions] = {}
        for commit_lsn, number, name, packed in events:
            at = commit_lsn if lsn is None else lsn
            known = rows.get(name)
            last = known[-1][1] if known else stored.get(name)
            row: bytes | None
            if not packed:
                if last is None and packed is None:
                    self._check_delete(commit_lsn, number)
                elif known and known[-1][0] == at and number in self._of_stages:
                    continue
                row = None
            else:
                row = packed if isinstance(packed, bytes) else self._merge(commit_lsn, number, packed, last)
            if known is None:
                rows[name] = [(at, row)]
            elif known[-1][0] == at:
                known[-1] = (at, row)
            else:
                known.append((at, row))
        return {
            name: kept for name, known in rows.items() if (kept := _without_repeats(stored.get(name), known))
        }


def versions_of(number: int, stored: bytes | None, transitions: Transitions) -> Iterator[RowVersion]:
    """The versions of a changed row, that of before the batch included."""
    row, start = stored, 0
    for lsn, changed in transitions:
        if row is not None:
            yield number, row, start, lsn
        row, start = changed, lsn
    if row is not None:
        yield number, row, start, OPEN_LSN


def _without_repeats(stored: bytes | None, transitions: Transitions) -> Transitions:
    """Those that change the row, which was `stored` before."""
    if len(transitions) == 1:
        return transitions if transitions[0][1] != stored else []
    kept: Transitions = []
    last = stored
    for lsn, row in transitions:
        if row != last:
            kept.append((lsn, row))
            last = row
    return kept
