"""The markers that may still be needed, and how far they let each group of partitions advance. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, zip_longest
from operator import le
from typing import NamedTuple

from slackwater.pipeline.source.position import Offsets, Position, TopicPosition


class GroupMarker(NamedTuple):
    """The markers of a group's partitions of one topic."""

    lsn: int
    """Every record of a commit at or below this LSN is below the offset of its partition."""
    offsets: Offsets
    """The first offsets that may belong to later commits."""


class MarkerHistory:
    """A group's markers in one topic, by LSN.

    They may arrive in any order, from several sidecars, and repeatedly.
    """

    __slots__ = ("_lsns", "_offsets")

    def __init__(self) -> None:
        self._lsns: list[int] = []
        self._offsets: list[Offsets] = []

    def add(self, lsn: int, offsets: Offsets) -> None:
        """Adds a marker. Of markers with equal offsets, only the first and the last are kept."""
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
        """Removes the markers at or below an LSN."""
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
    """The markers after a position, as far as the cut log has been read."""

    histories: Mapping[str, Sequence[MarkerHistory]]
    """The histories of each group, by topic."""
    covered_lsn: int
    """The LSN up to which all commits are known."""
    exact_up_to_lsn: int = 0
    """The LSN up to which a group may only stop where nothing has to be read again."""
    stops: Collection[int] = ()
    """The LSNs of cuts at which every group must stop."""
    barriers: Sequence[int] = ()
    """LSNs, ascending. No group advances beyond the newest one that it can reach, unless it is already
    there."""


def advance(start: Position, known: KnownMarkers, max_events: int | None) -> Position | None:
    """Advances groups as far as the markers allow, within a limit; None if no group can advance.

    The limit is shared fairly: groups with little to read advance completely, and the others get equal parts
    of the rest, so that a group that has to catch up does not delay the others. Each group advances at least
    to its next marker. A barrier is passed if a newer one can be reached, so that catching up takes large
    batches.

    Returns:
        ``start`` with other LSNs and positions in topics; the caller sets its positions in the cut log.
    """
    groups = (_Group(number, start, known) for number in range(len(start.lsns)))
    moving = {group.number: group for group in groups if group.last is not None}
    if not moving:
        return None
    shares = _fair_shares(
        {number: group.step(group.last or 0).size for number, group in moving.items()}, max_events
    )
    targets = {number: group.furthest(shares[number]) for number, group in moving.items()}
    lsns = tuple(targets.get(number, lsn) for number, lsn in enumerate(start.lsns))
    topics = {
        topic: tuple(
            moving[n].step(targets[n]).positions[place]
            if n in targets
            else replace(position, read_to=position.start)
            for n, position in enumerate(positions)
        )
        for place, (topic, positions) in enumerate(start.topics.items())
    }
    return replace(start, lsns=lsns, topics=topics)


def move_position(position: TopicPosition, history: MarkerHistory, lsn: int) -> TopicPosition:
    """Returns a group's position in a topic after a batch that advanced the group to an LSN.

    The batch reads to the oldest marker at or above the LSN, and the next one continues at the newest marker
    at or below it. If these have the same offsets, no commit up to the LSN begins after them.
    """
    start, start_lsn = position.start, position.lsn
    below, above = history.at_or_below(lsn), history.at_or_above(lsn)
    if below is not None and below.lsn >= start_lsn:
        start, start_lsn = _largest(start, below.offsets), below.lsn
    read_to = start if above is None else _largest(start, above.offsets)
    return TopicPosition(start, lsn if read_to == start else start_lsn, read_to)


@dataclass(frozen=True, slots=True)
class _Step:
    """The cost of advancing to an LSN, and the positions there."""

    positions: tuple[TopicPosition, ...]
    """The position in each topic."""
    gain: int
    """The number of offsets that do not have to be read again."""
    size: int
    """The number of offsets to be read."""


class _Group:
    """A group between a position and its markers."""

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
        """The largest LSN to which the group can advance; None if there is none."""
        if self._available <= self._reached:
            return None
        if self._may_stop(self._available):
            return self._available
        return next((lsn for lsn in reversed(self._candidates) if self._may_stop(lsn)), None)

    def furthest(self, share: int | None) -> int:
        """Returns the largest LSN within a number of offsets, or the smallest LSN if that is larger.

        It only uses LSNs whose markers are exact enough that little has to be read again afterwards.
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
        """Returns the newest barrier that uses at least half of a share; 0 if there is none."""
        within = bisect_right(self._barriers, share, key=lambda lsn: self.step(lsn).size)
        newest = self._barriers[within - 1] if within else 0
        return newest if within and self._is_worth_it(newest) and 2 * self.step(newest).size >= share else 0

    def step(self, lsn: int) -> _Step:
        """Returns the cost of advancing to an LSN, and the positions there."""
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


def _largest(one: Offsets, other: Offsets) -> Offsets:
    """Returns the larger offset of each partition; ``other`` itself if it has all of them."""
    if len(one) <= len(other) and all(map(le, one, other)):
        return other
    return tuple(max(pair) for pair in zip_longest(one, other, fillvalue=0))
