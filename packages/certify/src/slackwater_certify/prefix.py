"""Judges snapshots of an output: all documents are at one commit, and commits only go forward."""

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from slackwater_certify.certificate import Findings, Kind
from slackwater_certify.fold import DocumentKey
from slackwater_certify.versions import KeyVersions


class PrefixJudge:
    """Counts for every commit how many documents show their state of that commit.

    A snapshot is consistent if there is a commit for which that is all of them. Changes are noted where a
    count begins and ends to hold, so one document costs the number of its versions, a snapshot the number of
    commits.
    """

    def __init__(self, versions: Mapping[DocumentKey, KeyVersions], lsns: Sequence[int]) -> None:
        self._versions = versions
        self._lsns = [0, *lsns]
        self._steps = array("q", bytes(8 * (len(self._lsns) + 1)))
        self._shown: dict[DocumentKey, bytes | None] = {}
        self._strange: set[DocumentKey] = set()
        """Documents that show what no version of them, or no document at all, has."""
        self._reached = 0
        for each in versions.values():
            self._count(each, None, 1)

    def change(self, key: DocumentKey, value: bytes | None) -> None:
        """A document shows another value from the next snapshot on."""
        versions = self._versions.get(key)
        if versions is not None:
            self._count(versions, self._shown.get(key), -1)
            self._count(versions, value, 1)
        self._shown[key] = value
        if value is not None and (versions is None or value not in versions.digests):
            self._strange.add(key)
        else:
            self._strange.discard(key)

    def mark_strange(self, key: DocumentKey) -> None:
        """A document cannot be read."""
        self._strange.add(key)

    def check(self, number: int, findings: Findings) -> None:
        """Judges the snapshot that all changes so far have led to."""
        counts = list(accumulate(self._steps[:-1]))
        wanted = len(self._versions)
        if not self._strange:
            for position in range(self._reached, len(counts)):
                if counts[position] == wanted:
                    self._reached = position
                    return
        best = max(counts)
        if best == wanted and not self._strange:
            lsn = self._lsns[counts.index(best)]
            text = f"snapshot {number} goes back behind commit {self._lsns[self._reached]}"
            findings.add(Kind.ORDER, f"{text}, to {lsn}")
            return
        off = wanted - best + len(self._strange)
        text = f"at no commit are all {wanted:,} documents as snapshot {number} shows them"
        findings.add(Kind.STATE, f"{text}; at least {off:,} are not, at the best one")

    def _count(self, versions: KeyVersions, value: bytes | None, step: int) -> None:
        for number, digest in enumerate(versions.digests):
            if digest == value:
                self._steps[self._position(versions.lsns[number])] += step
                is_last = number + 1 == len(versions.digests)
                end = len(self._lsns) if is_last else self._position(versions.lsns[number + 1])
                self._steps[end] -= step

    def _position(self, lsn: int) -> int:
        return bisect_right(self._lsns, lsn) - 1
