"""How far each group of partitions goes in the next batch. Pure."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slackwater_spark.source.group_offset import GroupOffset, PartitionPosition
from slackwater_spark.source.marker_history import MarkerHistory

Positions = Mapping[str, tuple[PartitionPosition, ...]]

Histories = Mapping[str, Sequence[MarkerHistory]]
"""By topic and partition number."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the cut log says beyond a position."""

    histories: Histories
    covered_lsn: int
    """Up to here all commits are known."""
    exact_up_to_lsn: int = 0
    """Up to here a group may only stop where nothing has to be read again."""
    stops: Collection[int] = ()
    """LSNs of cuts that no group passes without stopping there."""


@dataclass(frozen=True, slots=True)
class GroupWindow:
    """What a batch takes of one group: commits in ``(after_lsn, up_to_lsn]``."""

    number: int
    after_lsn: int
    up_to_lsn: int
    table_from_lsn: int
    """From where on the commits of the records that are read must be known; at most ``after_lsn``."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How far the groups go."""

    lsns: tuple[int, ...]
    positions: Positions

    def size_after(self, start: GroupOffset) -> int:
        """Offsets to be read."""
        return sum(to - first for _, _, first, to in group_spans(start.positions, self.positions))


def advance(start: GroupOffset, known: Known, max_events: int | None) -> Spread | None:
    """The furthest that the markers allow, within a limit; None when no group can go on.

    The limit is shared fairly: groups with little to read go all the way, the others get equal parts of what
    is left, so one that has to catch up does not hold back the rest. Each group goes at least to its next
    marker.

    Args:
        start: Where the batch begins, its groups and positions known.
        known: What is known beyond it.
        max_events: Offsets that the batch may read.
    """
    groups = [_Group(number, start, known) for number in range(len(start.lsns))]
    moving = {group.number: group for group in groups if group.candidates}
    if not moving:
        return None
    shares = _fair_shares({n: group.size(group.candidates[-1]) for n, group in moving.items()}, max_events)
    targets = {n: group.furthest(shares[n]) for n, group in moving.items()}
    return Spread(
        tuple(targets.get(n, lsn) for n, lsn in enumerate(start.lsns)),
        {
            topic: tuple(
                _moved(position, known.histories[topic][n], targets[n])
                if n in targets
                else _resting(position)
                for n, position in enumerate(positions)
            )
            for topic, positions in start.positions.items()
        },
    )


def windows_between(start: GroupOffset, end: GroupOffset) -> list[GroupWindow]:
    """What a batch takes of each group that moves, by group."""
    result = []
    for number, up_to_lsn in enumerate(end.lsns):
        after_lsn = start.lsns[number] if start.lsns else 0
        if up_to_lsn > after_lsn:
            read = (
                start_of for start_of, end_of in _pairs(start, end, number) if end_of.read_to > start_of.start
            )
            table_from = min((position.lsn for position in read), default=after_lsn)
            result.append(GroupWindow(number, after_lsn, up_to_lsn, min(table_from, after_lsn)))
    return result


def group_spans(start: Positions, end: Positions) -> list[tuple[str, int, int, int]]:
    """``(topic, partition, from, to)`` of all that a batch reads, sorted; empty ones are left out."""
    return [
        (topic, number, before.start, after.read_to)
        for topic in sorted(end)
        for number, after in enumerate(end[topic])
        if after.read_to > (before := _position(start, topic, number)).start
    ]


class _Group:
    """The partitions of one number."""

    def __init__(self, number: int, start: GroupOffset, known: Known) -> None:
        self.number = number
        self._parts = [(ps[number], known.histories[topic][number]) for topic, ps in start.positions.items()]
        reached = start.lsns[number]
        available = min(known.covered_lsn, *(history.newest_lsn() for _, history in self._parts))
        available = min((available, *(lsn for lsn in known.stops if lsn > reached)))
        lsns = {lsn for _, history in self._parts for lsn in history.lsns(reached, available)}
        if available > reached:
            lsns.add(available)
        self.candidates = sorted(n for n in lsns if n >= known.exact_up_to_lsn or self._is_exact(n))
        """LSNs to which the group can go, ascending."""

    def size(self, lsn: int) -> int:
        """Offsets to be read on the way to an LSN."""
        return sum(_moved(*part, lsn).read_to - part[0].start for part in self._parts)

    def furthest(self, share: int | None) -> int:
        """The largest candidate within a number of offsets; beyond it only when there is no smaller one.

        On the way, only LSNs are taken that markers name so exactly that little is read again afterwards.
        """
        last = self.candidates[-1]
        if share is None or self.size(last) <= share:
            return last
        steps = [lsn for lsn in self.candidates if 2 * self._gain(lsn) >= self.size(lsn)]
        if not steps:
            return last
        return steps[max(0, bisect_right(steps, share, key=self.size) - 1)]

    def _is_exact(self, lsn: int) -> bool:
        return self._gain(lsn) == self.size(lsn)

    def _gain(self, lsn: int) -> int:
        """Offsets that need not be read again."""
        return sum(_moved(*part, lsn).start - part[0].start for part in self._parts)


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


def _moved(position: PartitionPosition, history: MarkerHistory, lsn: int) -> PartitionPosition:
    start, start_lsn = position.start, position.lsn
    below, above = history.at_or_below(lsn), history.at_or_above(lsn)
    if below is not None and below.safe_offset >= start:
        start, start_lsn = below.safe_offset, below.safe_commit_lsn
    return PartitionPosition(start, start_lsn, max(start, 0 if above is None else above.safe_offset))


def _resting(position: PartitionPosition) -> PartitionPosition:
    return PartitionPosition(position.start, position.lsn, position.start)


def _pairs(
    start: GroupOffset, end: GroupOffset, number: int
) -> Iterator[tuple[PartitionPosition, PartitionPosition]]:
    for topic, positions in end.positions.items():
        yield _position(start.positions, topic, number), positions[number]


def _position(positions: Positions, topic: str, number: int) -> PartitionPosition:
    """A topic that the positions do not know began at 0."""
    of_topic = positions.get(topic)
    return of_topic[number] if of_topic else PartitionPosition(0, 0, 0)
