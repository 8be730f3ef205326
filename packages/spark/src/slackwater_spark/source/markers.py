"""The markers that somebody may still need, and how far they let each group of partitions go. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, zip_longest
from operator import le
from typing import NamedTuple

from slackwater_spark.source.position import Offsets, Position, TopicPosition


class GroupMarker(NamedTuple):
    """Markers of the partitions that a group has of one topic."""

    lsn: int
    """Every record of a commit at or below this LSN is in its partition, below the partition's offset."""
    offsets: Offsets
    """The first offsets that may belong to later commits."""


class MarkerHistory:
    """A group's markers in one topic, by LSN. In any order, also of several sidecars, and each repeatedly."""

    __slots__ = ("_lsns", "_offsets")

    def __init__(self) -> None:
        self._lsns: list[int] = []
        self._offsets: list[Offsets] = []

    def add(self, lsn: int, offsets: Offsets) -> None:
        """Adds a marker. Of equal offsets only the first and the last are kept: they say it all."""
        lsns, known = self._lsns, self._offsets
        if not lsns or lsn > lsns[-1]:
            if len(known) > 1 and known[-1] == offsets == known[-2]:
                lsns[-1] = lsn
            else:
                lsns.append(lsn)
                known.append(offsets)
            return
        place = bisect_left(lsns, lsn)
        if lsns[place] != lsn:
            lsns.insert(place, lsn)
            known.insert(place, offsets)

    def drop_to(self, lsn: int) -> None:
        """Forgets the markers at or below an LSN."""
        place = bisect_right(self._lsns, lsn)
        del self._lsns[:place], self._offsets[:place]

    def newest_lsn(self) -> int:
        """Returns the LSN of the newest marker; 0 if there is none."""
        return self._lsns[-1] if self._lsns else 0

    def lsns(self, after_lsn: int, up_to_lsn: int) -> list[int]:
        """Returns the LSNs of the markers in ``(after_lsn, up_to_lsn]``."""
        return self._lsns[bisect_right(self._lsns, after_lsn) : bisect_right(self._lsns, up_to_lsn)]

    def at_or_below(self, lsn: int) -> GroupMarker | None:
        """Returns the newest marker that is not above an LSN."""
        place = bisect_right(self._lsns, lsn)
        return GroupMarker(self._lsns[place - 1], self._offsets[place - 1]) if place else None

    def at_or_above(self, lsn: int) -> GroupMarker | None:
        """Returns the oldest marker that is not below an LSN."""
        place = bisect_left(self._lsns, lsn)
        return GroupMarker(self._lsns[place], self._offsets[place]) if place < len(self._lsns) else None


@dataclass(frozen=True, slots=True)
class KnownMarkers:
    """The markers beyond a position, as far as the cut log has been read."""

    histories: Mapping[str, Sequence[MarkerHistory]]
    """By topic, for each group."""
    covered_lsn: int
    """Up to here all commits are known."""
    exact_up_to_lsn: int = 0
    """Up to here a group may only stop where nothing has to be read again."""
    stops: Collection[int] = ()
    """LSNs of cuts that no group passes without stopping there."""
    barriers: Sequence[int] = ()
    """LSNs, ascending. No group goes beyond the newest one that it can reach, unless it stands there."""


def advance(start: Position, known: KnownMarkers, max_events: int | None) -> Position | None:
    """Takes groups as far as the markers allow, within a limit; None when no group can go on.

    The limit is shared fairly: groups with little to read go all the way, the others get equal parts of what
    is left, so one that has to catch up does not hold back the rest. Each group goes at least to its next
    marker. Barriers that are behind a newer one are passed: who catches up takes large batches.

    Args:
        start: Where the batch begins, its groups and topics known.
        known: The markers beyond it.
        max_events: Offsets that the batch may read.

    Returns:
        ``start`` with other LSNs and positions in topics; what it says of the cut log is the caller's.
    """
    groups = (_Group(number, start, known) for number in range(len(start.lsns)))
    moving = {group.number: group for group in groups if group.last is not None}
    if not moving:
        return None
    shares = _fair_shares({number: group.largest_size for number, group in moving.items()}, max_events)
    targets = {number: group.furthest(shares[number]) for number, group in moving.items()}
    lsns = tuple(targets.get(number, lsn) for number, lsn in enumerate(start.lsns))
    topics = {
        topic: tuple(
            moving[n].step(targets[n]).positions[place] if n in targets else _resting(position)
            for n, position in enumerate(positions)
        )
        for place, (topic, positions) in enumerate(start.topics.items())
    }
    return replace(start, lsns=lsns, topics=topics)


def move_position(position: TopicPosition, history: MarkerHistory, lsn: int) -> TopicPosition:
    """Moves a group's position in a topic to where it stands after a batch that took it to an LSN.

    The batch reads to the oldest marker at or above the LSN, the next one goes on at the newest marker at or
    below it. Where these are the same offsets, no commit up to the LSN begins beyond them.
    """
    start, start_lsn = position.start, position.lsn
    below, above = history.at_or_below(lsn), history.at_or_above(lsn)
    if below is not None and below.lsn >= start_lsn:
        start, start_lsn = _largest(start, below.offsets), below.lsn
    read_to = start if above is None else _largest(start, above.offsets)
    return TopicPosition(start, lsn if read_to == start else start_lsn, read_to)


@dataclass(frozen=True, slots=True)
class _Step:
    """The cost of going to an LSN, and the positions there."""

    positions: tuple[TopicPosition, ...]
    """In each topic."""
    gain: int
    """Offsets that need not be read again."""
    size: int
    """Offsets to be read."""


class _Group:
    """A group on its way from a position to one of its markers."""

    def __init__(self, number: int, start: Position, known: KnownMarkers) -> None:
        self.number = number
        self._parts = [(ps[number], known.histories[topic][number]) for topic, ps in start.topics.items()]
        self._passed = sum(sum(position.start) for position, _ in self._parts)
        self._exact_up_to_lsn = known.exact_up_to_lsn
        self._reached = start.lsns[number]
        self._steps: dict[int, _Step] = {}
        newest = min((known.covered_lsn, *(history.newest_lsn() for _, history in self._parts)))
        reachable = min((newest, *(lsn for lsn in known.stops if lsn > self._reached)))
        ahead = known.barriers[bisect_right(known.barriers, self._reached) :]
        within = ahead[: bisect_right(ahead, reachable)]
        self._barriers = [lsn for lsn in within if self._may_stop(lsn)]
        self._available = self._barriers[-1] if self._barriers else reachable

    @cached_property
    def last(self) -> int | None:
        """The largest LSN to which the group can go; None if there is none."""
        if self._available <= self._reached:
            return None
        if self._may_stop(self._available):
            return self._available
        return next((lsn for lsn in reversed(self._candidates) if self._may_stop(lsn)), None)

    @property
    def largest_size(self) -> int:
        """The number of offsets to be read on the way to the largest LSN."""
        return 0 if self.last is None else self.step(self.last).size

    def furthest(self, share: int | None) -> int:
        """Returns the largest LSN within a number of offsets; beyond it only when there is no smaller one.

        On the way, only LSNs are taken that markers name so exactly that little is read again afterwards.
        """
        last = self._reached if self.last is None else self.last
        if share is None or self.step(last).size <= share:
            return last
        if barrier := self._barrier_within(share):
            return barrier
        candidates = self._candidates
        within = bisect_right(candidates, share, key=lambda lsn: self.step(lsn).size)
        preferred = chain(reversed(candidates[:within]), candidates[within:])
        return next((lsn for lsn in preferred if self._is_worth_it(lsn)), last)

    def _barrier_within(self, share: int) -> int:
        """Returns the newest barrier that makes use of at least half of a share; 0 if there is none."""
        within = bisect_right(self._barriers, share, key=lambda lsn: self.step(lsn).size)
        newest = self._barriers[within - 1] if within else 0
        return newest if within and self._is_worth_it(newest) and 2 * self.step(newest).size >= share else 0

    def step(self, lsn: int) -> _Step:
        """Returns the cost of going to an LSN, and the positions there."""
        found = self._steps.get(lsn)
        if found is None:
            positions = tuple(move_position(position, history, lsn) for position, history in self._parts)
            gain = sum(sum(position.start) for position in positions) - self._passed
            size = sum(sum(position.read_to) for position in positions) - self._passed
            found = self._steps[lsn] = _Step(positions, gain, size)
        return found

    @cached_property
    def _candidates(self) -> list[int]:
        """The LSNs of the markers that can be reached, ascending."""
        within: Iterable[list[int]] = (h.lsns(self._reached, self._available) for _, h in self._parts)
        return sorted({self._available}.union(*within))

    def _may_stop(self, lsn: int) -> bool:
        if lsn >= self._exact_up_to_lsn:
            return True
        step = self.step(lsn)
        return step.gain == step.size

    def _is_worth_it(self, lsn: int) -> bool:
        step = self.step(lsn)
        return 2 * step.gain >= step.size and self._may_stop(lsn)


def _fair_shares(sizes: Mapping[int, int], budget: int | None) -> dict[int, int | None]:
    if budget is None:
        return dict.fromkeys(sizes)
    shares: dict[int, int | None] = {}
    left = budget
    for place, number in enumerate(sorted(sizes, key=sizes.__getitem__)):
        share = min(sizes[number], left // (len(sizes) - place))
        shares[number] = share
        left -= share
    return shares


def _resting(position: TopicPosition) -> TopicPosition:
    return TopicPosition(position.start, position.lsn, position.start)


def _largest(one: Offsets, other: Offsets) -> Offsets:
    """Returns the larger offset of each partition; ``other`` itself where it has all of them."""
    if len(one) <= len(other) and all(map(le, one, other)):
        return other
    return tuple(max(pair) for pair in zip_longest(one, other, fillvalue=0))
