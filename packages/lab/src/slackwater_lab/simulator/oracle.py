"""Judges what sidecars publish by what is in Kafka and in the database, however it was found."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slackwater.protocol import SNAPSHOT_XID, AheadMarkers, CommittedTransaction, Cut, Marker
from slackwater_lab.simulator.connector import Change
from slackwater_lab.simulator.kafka import Key

Ends = Mapping[str, Sequence[int]]

BARRIER_INTERVAL_MS = 50
"""Histories take seconds."""


class ViolationError(Exception):
    """Something that Slackwater promises did not hold."""

    def __init__(self, promise: str, text: str) -> None:
        super().__init__(promise, text)
        self.promise = promise
        """``G1`` … ``G5``, as in docs/guarantees.md."""
        self.text = text

    def __str__(self) -> str:
        return f"{self.promise}: {self.text}"


@dataclass(slots=True)
class Expected:
    """A commit as a reader must see it."""

    xid: int
    lsn: int
    changes: dict[int, Change]
    """Of the followed tables, those that arrive, by number."""
    is_listed: bool
    """Whether the table of transactions has it."""
    is_whole: bool = True
    """Whether all rows arrive; otherwise an operator has to let it pass."""
    places: dict[int, list[tuple[Key, int]]] = field(default_factory=dict)
    """Number of the change to all places where it is, in the order of writing."""
    ts_ms: int = 0
    """The time of the commit; 0 for a snapshot, and if END is lost."""


class Oracle:
    """Knows every row of every commit and all places where it is.

    Args:
        keyless: Topics of tables without keys: a repeated row may be in another partition.
    """

    def __init__(self, keyless: frozenset[str]) -> None:
        self._keyless = keyless
        self._commits: dict[int, Expected] = {}
        self._cuts: list[Cut] = []
        self._skips: list[tuple[int, frozenset[int]]] = []
        self._skipped: set[int] = set()

    @property
    def commits(self) -> list[Expected]:
        """In commit order, which is the order in which they are declared."""
        return list(self._commits.values())

    @property
    def skipped(self) -> frozenset[int]:
        """Transactions that cuts say operators have let pass."""
        return frozenset(self._skipped)

    @property
    def newest_cut_lsn(self) -> int:
        """The largest LSN in the cut log; 0 while that is empty."""
        return max((cut.lsn for cut in self._cuts), default=0)

    def between(self, after_lsn: int, up_to_lsn: int) -> list[Expected]:
        """Commits in ``(after, up to]``."""
        return [c for c in self.commits if after_lsn < c.lsn <= up_to_lsn]

    def add_commit(self, commit: Expected) -> None:
        """Declares a commit."""
        self._commits[commit.lsn] = commit

    def remove_commit(self, lsn: int) -> None:
        """Takes back a declaration: a snapshot did not come to its end, or the next one contains a commit."""
        self._commits.pop(lsn, None)

    def add_skip(self, lsn: int, readable: Mapping[Key, int]) -> None:
        """Says that operators let everything up to an LSN pass, while partitions can be read so far."""
        whole = [
            c.xid
            for c in self.between(0, lsn)
            if c.is_listed and c.is_whole and len(c.places) == len(c.changes) and _is_readable(c, readable)
        ]
        self._skips.append((lsn, frozenset(whole)))

    def add_row(self, identity: tuple[int, int], target: Key, offset: int) -> None:
        """Says that a change is somewhere in Kafka; rows of unknown commits do not matter."""
        commit = self._commits.get(identity[0])
        if commit is not None and identity[1] in commit.changes:
            commit.places.setdefault(identity[1], []).append((target, offset))

    def judge_cut(self, cut: Cut, readable: Mapping[Key, int], *, is_told_once: bool) -> None:
        """Checks a cut when it is appended to the cut log.

        Args:
            cut: The cut.
            readable: Up to where each partition can be read.
            is_told_once: Whether what was readable at a decision was whole as soon as it was read, so that it
                could not be skipped.

        Raises:
            ViolationError: with what is wrong.
        """
        self._judge_chain(cut)
        self._judge_listed(name(cut), cut.previous_lsn, cut.lsn, cut.transactions)
        for topic, ends in cut.end_offsets.items():
            for number, end in enumerate(ends):
                if end > readable.get((topic, number), 0):
                    raise ViolationError("G1", f"{name(cut)} ends at {end} in {topic}/{number}, not readable")
        if cut.previous_lsn == 0:
            self._judge_range(cut, 0, {})
        for start in self._cuts:
            if cut.previous_lsn <= start.lsn < cut.lsn:
                self._judge_range(cut, start.lsn, start.end_offsets)
        self._judge_later(cut)
        self._judge_skipped(cut, is_told_once=is_told_once)
        self._judge_barrier(cut)
        self._cuts.append(cut)

    def judge_ahead(self, ahead: AheadMarkers, readable: Mapping[Key, int]) -> None:
        """Checks markers of single partitions, and the table of transactions that goes with them.

        Raises:
            ViolationError: with what is wrong.
        """
        self.judge_markers(ahead.markers)
        for (topic, number), marker in ahead.markers.items():
            if marker.safe_offset > readable.get((topic, number), 0):
                raise ViolationError("markers", f"{marker} of {topic}/{number} is not readable yet")
        empty = {c.lsn for c in self.commits if not c.is_listed}
        listed = [t for t in ahead.transactions if t.commit_lsn not in empty]
        what = f"table of markers ahead {ahead.previous_lsn}..{ahead.lsn}"
        self._judge_listed(what, ahead.previous_lsn, ahead.lsn, listed)

    def judge_markers(self, markers: Mapping[Key, Marker]) -> None:
        """Checks that each marker is right for its partition.

        Raises:
            ViolationError: with the first that is not.
        """
        for commit in self.commits:
            if commit.xid in self._skipped or not commit.is_listed:
                continue
            for number, places in commit.places.items():
                for key in dict.fromkeys(key for key, _ in places):
                    marker = markers.get(key)
                    if marker is not None:
                        self._judge_marker(commit, number, key, marker)

    def _judge_marker(self, commit: Expected, number: int, key: Key, marker: Marker) -> None:
        places = self._commits[commit.lsn].places[number]
        first = next(offset for k, offset in places if k == key)
        is_below = first < marker.safe_offset
        is_safe = commit.lsn <= marker.safe_commit_lsn
        if is_safe and any(k != key for k, _ in places):
            return  # a repeat in another partition: there is no key, or the topic has grown
        if is_safe and self._commits[commit.lsn].changes[number].op == "t":
            return  # TRUNCATE, written for the first time after a crash, may come in any partition
        if is_below != is_safe:
            raise ViolationError(
                "markers",
                f"marker of {key[0]}/{key[1]} says LSN {marker.safe_commit_lsn} at offset "
                f"{marker.safe_offset}, but row {number} of commit {commit.lsn} is at {first}",
            )

    def _judge_chain(self, cut: Cut) -> None:
        if cut.previous_lsn > self.newest_cut_lsn or cut.lsn <= cut.previous_lsn:
            raise ViolationError("G1", f"{name(cut)} does not connect to an earlier cut")

    def _judge_listed(
        self, what: str, after_lsn: int, up_to_lsn: int, listed: Iterable[CommittedTransaction]
    ) -> None:
        may_lack = {c.lsn for c in self.commits if c.is_listed and not c.changes}
        actual = [(t.commit_lsn, t.xid) for t in listed if t.commit_lsn not in may_lack]
        self._forget_late_snapshots(after_lsn, up_to_lsn, {lsn for lsn, _ in actual})
        commits = self.between(after_lsn, up_to_lsn)
        expected = [(c.lsn, c.xid) for c in commits if c.is_listed and c.lsn not in may_lack]
        if actual != expected:
            raise ViolationError("G1", f"{what} lists {actual}, expected {expected}")

    def _forget_late_snapshots(self, after_lsn: int, up_to_lsn: int, listed: set[int]) -> None:
        """A snapshot that is not listed is shown with later commits; readers tell whether rightly so."""
        for commit in self.between(after_lsn, up_to_lsn):
            if commit.xid == SNAPSHOT_XID and commit.lsn not in listed:
                self.remove_commit(commit.lsn)

    def _judge_range(self, cut: Cut, after_lsn: int, start: Ends) -> None:
        """Every row of every commit of the cut is where a reader of the cut looks."""
        for commit in self.between(after_lsn, cut.lsn):
            if commit.xid in cut.skipped or not commit.is_listed:
                continue
            for number, change in commit.changes.items():
                places = commit.places.get(number, ())
                if not any(_end(start, k) <= o < _end(cut.end_offsets, k) for k, o in places):
                    raise ViolationError(
                        "G1",
                        f"{name(cut)} is too early: row {number} of {change.table} of transaction "
                        f"{commit.xid} (commit {commit.lsn}) is not between the cut at {after_lsn} and "
                        f"this one; it is at {_places(places)}",
                    )

    def _judge_skipped(self, cut: Cut, *, is_told_once: bool) -> None:
        """Judges that what is incomplete is named, and only that, and only when somebody has decided so."""
        self._skipped.update(cut.skipped)
        for commit in self.between(0, cut.lsn):
            if commit.is_whole or commit.xid in self._skipped:
                continue
            is_passed = commit.is_listed and commit.lsn > cut.previous_lsn
            below = [
                p for places in commit.places.values() for p in places if p[1] < _end(cut.end_offsets, p[0])
            ]
            if is_passed or below:
                raise ViolationError("G1", f"{name(cut)} passes {commit.xid}, of which something is lost")
        by_xid = {c.xid: c.lsn for c in self.commits}
        for xid in cut.skipped:
            decided = [is_told_once and xid in whole for lsn, whole in self._skips if lsn >= by_xid[xid]]
            if all(decided):
                raise ViolationError("G1", f"{name(cut)} skips {xid}: nobody decided so, or it was whole")

    def _judge_barrier(self, cut: Cut) -> None:
        """A barrier is a cut behind which commits are of another interval, whichever sidecar names it."""
        lsn = cut.barrier_lsn
        if not lsn:
            return
        if lsn != cut.lsn and all(lsn != earlier.lsn for earlier in self._cuts):
            raise ViolationError("G10", f"{name(cut)} names {lsn} as a barrier, where no cut ends")
        after = next((c for c in self.commits if c.lsn > lsn and c.ts_ms), None)
        before = [c for c in self.commits if c.lsn <= lsn and (c.ts_ms or c.xid == SNAPSHOT_XID)]
        if after is None or (before and before[-1].ts_ms and _interval(before[-1]) == _interval(after)):
            raise ViolationError("G10", f"{name(cut)} names {lsn} as a barrier, in the midst of an interval")

    def _judge_later(self, cut: Cut) -> None:
        """No row of a later commit lies below the end offsets: a reader from here on would miss it."""
        for lsn, commit in self._commits.items():
            if lsn <= cut.lsn:
                continue
            for number, places in commit.places.items():
                below = [p for p in places if p[1] < _end(cut.end_offsets, p[0])]
                has_key = below and below[0][0][0] not in self._keyless and commit.changes[number].op != "t"
                if below and (has_key or len(below) == len(places)):
                    raise ViolationError(
                        "G1",
                        f"{name(cut)} passes row {number} of a later commit {lsn} at {_places(below)}",
                    )


def _interval(commit: Expected) -> int:
    return commit.ts_ms // BARRIER_INTERVAL_MS


def name(cut: Cut) -> str:
    """A cut in messages."""
    return f"cut {cut.previous_lsn}..{cut.lsn}"


def _is_readable(commit: Expected, readable: Mapping[Key, int]) -> bool:
    return all(any(o < readable.get(k, 0) for k, o in places) for places in commit.places.values())


def _end(ends: Ends, key: Key) -> int:
    offsets = ends.get(key[0], ())
    return offsets[key[1]] if key[1] < len(offsets) else 0


def _places(places: Iterable[tuple[Key, int]]) -> str:
    return ", ".join(f"{topic}/{number}@{offset}" for (topic, number), offset in places) or "no place yet"
