"""Repeated rows of tables without keys: they may be in any partition, and equal rows may be two rows.

A run of the connector writes every row at most once under one number, so within a run equal rows with
different numbers are different rows. Between runs the numbers of a transaction either continue, or start
again lower, all by the same distance. Rows that both runs have written reveal the distance; then the number
shows which rows are the same, however many of them are equal.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

from slackwater.cdc import Change
from slackwater.cdc.batch import Place, Record, place_of

RUN_HEADER = "__debezium.context.runId"
_MAX_PAIRS = 1_000_000
"""Pairs of rows compared to find a distance; a COPY of many rows has one LSN for hundreds of them."""

Content = tuple[int, str, bytes]
"""LSN, operation, digest of the row before and after."""


class KeylessRow(NamedTuple):
    """A change of a table without a key, of one transaction."""

    run: str
    order: int
    """Among the changes of its table in the transaction, as its run numbered them."""
    content: Content
    place: Place


class UndecidableError(Exception):
    """Equal rows may or may not be repetitions of each other."""


class KeylessRows:
    """Collects the rows of repeated transactions and finds those that are repetitions."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int | None, str], list[KeylessRow]] = {}
        self._doubles: frozenset[Place] | None = None

    def note(self, message: Record, change: Change) -> None:
        """Takes a row; all rows of a transaction and table must be added before the first query."""
        digest = blake2b(digest_size=16)
        for part in (change.before, change.after):
            digest.update(b"-" if part is None else b"+" + bytes(part))
        row = KeylessRow(
            _run(message),
            change.order,
            (change.lsn or 0, change.op, digest.digest()),
            place_of(message),
        )
        self._rows.setdefault((change.xid, change.table), []).append(row)

    def is_double(self, message: Record, change: Change) -> bool:
        """Returns whether another place holds the same row, and that one counts.

        Raises:
            UndecidableError: It cannot be determined.
        """
        key = change.xid, change.table
        rows = self._rows.get(key)
        if rows is not None:
            self._doubles = (self._doubles or frozenset()) | doubles_of(rows)
            del self._rows[key]
        return self._doubles is not None and place_of(message) in self._doubles


def doubles_of(rows: Iterable[KeylessRow]) -> frozenset[Place]:
    """Returns the places, among rows of one transaction and table, that repeat a row at another place.

    Which copy of a row counts does not depend on the order in which the rows are given.

    Raises:
        UndecidableError: It cannot be determined.
    """
    numberings: dict[str, dict[int, KeylessRow]] = {}
    doubles: set[Place] = set()
    for row in sorted(rows, key=lambda row: (row.run, row.order, row.place)):
        _add(numberings.setdefault(row.run, {}), row.order, row, doubles)
    parts: list[dict[int, KeylessRow]] = []
    for numbering in numberings.values():
        merged, apart = dict(numbering), []
        for part in parts:
            distance = _distance(part, merged)
            if distance is None:
                apart.append(part)
            else:
                moved, merged = merged, dict(part)
                for order, row in moved.items():
                    _add(merged, order + distance, row, doubles)
        parts = [*apart, merged]
    return frozenset(doubles)


def _add(numbering: dict[int, KeylessRow], order: int, row: KeylessRow, doubles: set[Place]) -> None:
    known = numbering.setdefault(order, row)
    if known is row:
        return
    if known.content != row.content:
        raise UndecidableError
    doubles.add(row.place)


def _distance(known: Mapping[int, KeylessRow], run: Mapping[int, KeylessRow]) -> int | None:
    """Returns the number to add to those of a run to get those of known rows; None if no row is in both."""
    places, others = _unique(known), _unique(run)
    contents = {row.content for row in known.values()}
    if not any(row.content in contents for row in run.values()):
        return None
    in_both = places.keys() & others.keys()
    candidates = {0} | {places[content] - others[content] for content in in_both} | _by_lsn(known, run)
    possible = [distance for distance in candidates if _contradicts_nothing(known, run, distance)]
    if 0 in possible:  # the same row under the same number: continued numbers are the usual case
        possible = [d for d in possible if d == 0 or any(order + d in known for order in run)]
    if len(possible) != 1 or not _is_supported(known, run, possible[0], in_both):
        raise UndecidableError
    return possible[0]


def _by_lsn(known: Mapping[int, KeylessRow], run: Mapping[int, KeylessRow]) -> set[int]:
    """Returns the distances at which rows of one LSN may be the same, or be neighbours."""
    orders, others = _orders_by_lsn(known), _orders_by_lsn(run)
    in_both = orders.keys() & others.keys()
    if sum(len(orders[lsn]) * len(others[lsn]) for lsn in in_both) > _MAX_PAIRS:
        raise UndecidableError
    found: set[int] = set()
    for lsn in in_both:
        found |= {order - other for order in orders[lsn] for other in others[lsn]}
        found |= {max(orders[lsn]) + 1 - min(others[lsn]), min(orders[lsn]) - 1 - max(others[lsn])}
    return found


def _orders_by_lsn(numbering: Mapping[int, KeylessRow]) -> dict[int, list[int]]:
    result: dict[int, list[int]] = {}
    for order, row in numbering.items():
        result.setdefault(row.content[0], []).append(order)
    return result


def _contradicts_nothing(
    known: Mapping[int, KeylessRow], run: Mapping[int, KeylessRow], distance: int
) -> bool:
    together = [(known[o + distance], row) for o, row in run.items() if o + distance in known]
    if any(one.content != other.content for one, other in together):
        return False
    merged = sorted([*known.items(), *((order + distance, row) for order, row in run.items())])
    lsns = [row.content[0] for _, row in merged]
    return all(lsn <= following for lsn, following in pairwise(lsns))


def _is_supported(
    known: Mapping[int, KeylessRow], run: Mapping[int, KeylessRow], distance: int, unique: Set[Content]
) -> bool:
    """Returns whether enough rows support a distance: rows of one LSN may look like others by chance."""
    shared = {known[o + distance].content for o in run if o + distance in known}
    if len({content[0] for content in shared}) > 1:
        return True
    return distance == 0 and not shared.isdisjoint(unique)


def _unique(numbering: Mapping[int, KeylessRow]) -> dict[Content, int]:
    """Returns the contents that occur once, and their numbers."""
    counts = Counter(row.content for row in numbering.values())
    return {row.content: order for order, row in numbering.items() if counts[row.content] == 1}


def _run(message: Record) -> str:
    value = dict(message.headers() or []).get(RUN_HEADER)
    return value.decode() if isinstance(value, bytes) else value or ""
