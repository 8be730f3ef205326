"""Judges cuts by what is in the topics, independently of how they were found."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slackwater.protocol import Cut

Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(slots=True)
class Oracle:
    """Knows every row of every commit and all places where it is."""

    commits: list[tuple[int, int]] = field(default_factory=list)
    """(commit LSN, xid) of all commits with rows, in commit order."""
    places: dict[int, dict[object, list[Place]]] = field(default_factory=dict)
    """Commit LSN, then row, to the places of the row."""

    def add_commit(self, xid: int, commit_lsn: int) -> None:
        """Declares a commit."""
        self.commits.append((commit_lsn, xid))
        self.places.setdefault(commit_lsn, {})

    def add_row(self, commit_lsn: int, row: object, place: Place) -> None:
        """Declares that a row is somewhere; once more for each repeat."""
        self.places.setdefault(commit_lsn, {}).setdefault(row, []).append(place)

    def complaints(self, cuts: Sequence[Cut], start: Cut | None = None) -> list[str]:
        """Everything that is wrong with a chain of cuts that continues from ``start``."""
        found: list[str] = []
        previous = start
        for cut in cuts:
            found += self._chain(cut, previous)
            found += self._table(cut)
            found += self._rows(cut, previous)
            previous = cut
        found += self._repeats(cuts, start)
        return found

    def _chain(self, cut: Cut, previous: Cut | None) -> Iterable[str]:
        lsn = previous.lsn if previous else 0
        if cut.previous_lsn != lsn or cut.lsn <= lsn:
            yield f"cut {cut.previous_lsn}..{cut.lsn} does not follow {lsn}"
        if previous is not None and any(
            end < _end(previous.end_offsets, topic, n)
            for topic, ends in cut.end_offsets.items()
            for n, end in enumerate(ends)
        ):
            yield f"end offsets of cut {cut.lsn} go back"

    def _table(self, cut: Cut) -> Iterable[str]:
        expected = [(lsn, xid) for lsn, xid in self.commits if cut.previous_lsn < lsn <= cut.lsn]
        actual = [(t.commit_lsn, t.xid) for t in cut.transactions]
        if actual != expected:
            yield f"cut {cut.lsn} names {actual}, expected {expected}"

    def _rows(self, cut: Cut, previous: Cut | None) -> Iterable[str]:
        """Every row of a commit of the cut is in the range of the cut."""
        for lsn, _ in self.commits:
            if not cut.previous_lsn < lsn <= cut.lsn:
                continue
            for row, places in self.places[lsn].items():
                if not any(_within(p, previous, cut) for p in places):
                    yield f"row {row} of commit {lsn} is not in cut {cut.previous_lsn}..{cut.lsn}"

    def _repeats(self, cuts: Sequence[Cut], start: Cut | None) -> Iterable[str]:
        """A reader of several cuts at once meets repeated rows only of the commits that the cuts name."""
        if not cuts:
            return
        named = frozenset().union(*(c.repeated for c in cuts))
        from_lsn = start.lsn if start else 0
        for lsn, _ in self.commits:
            if from_lsn < lsn <= cuts[-1].lsn and lsn not in named:
                for row, places in self.places[lsn].items():
                    if sum(_within(p, start, cuts[-1]) for p in places) > 1:
                        yield f"row {row} of commit {lsn} is repeated, no cut says so"


def _within(place: Place, previous: Cut | None, cut: Cut) -> bool:
    topic, partition, offset = place
    return (
        _end(previous.end_offsets if previous else {}, topic, partition)
        <= offset
        < _end(cut.end_offsets, topic, partition)
    )


def _end(ends: Mapping[str, tuple[int, ...]], topic: str, partition: int) -> int:
    offsets = ends.get(topic, ())
    return offsets[partition] if partition < len(offsets) else 0
