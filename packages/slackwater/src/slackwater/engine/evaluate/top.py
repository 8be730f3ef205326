"""The first rows of an order, maintained from what changes: top-n of a group.

The rows are values of an ordered multiset, whose sort keys end with the identity of the rows, so that no two
are equal. A batch reads the rows that it changes, and as many of the others as can have one of the ranks.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile

from slackwater.engine.evaluate.multiset import NO_TEXTS, OrderedMultiset, Refusal, in_order
from slackwater.engine.index import Contents
from slackwater.sql.plan import Accumulator, Ranks

Row = tuple[bytes, str]
"""Sort key and text: see :mod:`slackwater.sql.plan`."""


class TopRows(OrderedMultiset):
    """The rows of a group during a batch, of which some ranks are shown."""

    def __init__(
        self, accumulator: Accumulator, contents: Contents, prefix: bytes, touched: Mapping[bytes, str]
    ) -> None:
        """Reads the rows as they were before the batch; see :class:`OrderedMultiset`."""
        super().__init__(contents, prefix, touched)
        assert accumulator.ranks is not None  # noqa: S101 - it is a TOP
        self._shows = accumulator.ranks
        self._is_ranked = accumulator.is_ranked
        others = in_order(contents, prefix, set(self._names))
        kept = [row for _, row in self._up_to_last(others)]
        live = zip(self._sort_keys, self._values, strict=True)
        self._rows = sorted([*kept, *((sort_key, value.text) for sort_key, value in live if value.count)])

    def add(
        self, additions: Mapping[bytes, int], refusal: Refusal, texts: Mapping[bytes, str] = NO_TEXTS
    ) -> None:
        """See :class:`OrderedMultiset`."""
        super().add(additions, refusal, texts)
        for sort_key in additions:
            value = self._values[self._ranks[sort_key]]
            at = bisect_left(self._rows, (sort_key,))
            is_there = at < len(self._rows) and self._rows[at][0] == sort_key
            self._rows[at : at + is_there] = [(sort_key, value.text)] if value.count else []

    def shown(self) -> tuple[str, ...]:
        """Returns the rows that are shown, in order, as JSON arrays: the rank, if wanted, and the columns."""
        rows = (each for each in self._up_to_last(self._rows) if each[0] >= self._shows.first)
        if not self._is_ranked:
            return tuple(text for _, (_, text) in rows)
        return tuple(f"[{rank}{text[_width(text) :]}" for rank, (_, text) in rows)

    def _up_to_last(self, rows: Iterable[Row]) -> Iterator[tuple[int, Row]]:
        return takewhile(lambda each: each[0] <= self._shows.last, _ranked(rows, self._shows))


def _ranked(rows: Iterable[Row], ranks: Ranks) -> Iterator[tuple[int, Row]]:
    """Yields rows in order with their ranks."""
    if ranks.function == "row_number":
        yield from enumerate(rows, 1)
        return
    tied, rank, is_dense = None, 0, ranks.function == "dense_rank"
    for number, (sort_key, text) in enumerate(rows, 1):
        order = sort_key[: int(text[1 : _width(text)])]
        if order != tied:
            tied, rank = order, rank + 1 if is_dense else number
        yield rank, (sort_key, text)


def _width(text: str) -> int:
    """Returns where the number ends with which a row's text begins."""
    return text.find(",") if "," in text else len(text) - 1


def without_common(shown: list[tuple[str, ...] | None]) -> list[tuple[str, ...] | None]:
    """Returns what is shown at points, without the rows that are shown at all of them: they do not change."""
    common = set(shown[0] or ()).intersection(*(each or () for each in shown))
    return [each and tuple(row for row in each if row not in common) for each in shown]
