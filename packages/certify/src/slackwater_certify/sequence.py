"""Judges outputs that claim no commit.

Each is a committed state of its document, and no document goes back. Of a table, all documents of a snapshot
are at one commit, and commits only go forward.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from slackwater_certify.certificate import Findings, Kind
from slackwater_certify.committed_states import DocumentVersions
from slackwater_certify.observations import Observations, ReadOutput
from slackwater_certify.replay import DocumentKey

_NOTHING = DocumentVersions()
_NOTHING.add(0, 0, None)


class SequenceJudge:
    """Takes the outputs of each document in their order.

    An output is matched with the next committed state that equals it: states may be skipped, since an output
    may show the newest of several at once, but not shown again.
    """

    def __init__(
        self,
        versions: Mapping[DocumentKey, DocumentVersions],
        observed: Observations,
        timed_since_ms: int | None = None,
    ) -> None:
        self._versions = versions
        self._observed = observed
        self._timed_since_ms = timed_since_ms or 0
        self._reached: dict[DocumentKey, int] = {}

    def judge(self, outputs: Iterable[ReadOutput]) -> None:
        """Judges them all."""
        for read in outputs:
            if read.problem is None:
                self._judge(read)

    def finish(self) -> None:
        """Counts as lost what was never shown."""
        for key, versions in self._versions.items():
            reached = self._reached.get(key, -1)
            shown = versions.digests[reached] if reached >= 0 else None
            if shown == versions.final:
                continue
            text = f"its last committed state, of LSN {versions.lsns[-1]}, was never shown"
            self._observed.findings.add(Kind.LOST, f"document {key}: {text}")

    def _judge(self, read: ReadOutput) -> None:
        versions = self._versions.get(read.key, _NOTHING)
        reached = self._reached.get(read.key, -1)
        found = _index(versions.digests, read.digest, reached + 1)
        if found is not None:
            self._reached[read.key] = found
            self._observed.record_right(read)
            if found and versions.times[found] >= self._timed_since_ms:
                self._observed.record_delay(read.output.visible_ms, versions.times[found])
        elif reached >= 0 and versions.digests[reached] == read.digest:
            self._observed.record_right(read)
            self._observed.findings.add(
                Kind.REPEATED, f"document {read.key} at {read.output.place}: shown before"
            )
        else:
            self._judge_unexpected(read, versions)

    def _judge_unexpected(self, read: ReadOutput, versions: DocumentVersions) -> None:
        older = _index(versions.digests, read.digest, 0)
        if older is None:
            self._observed.record_wrong(read, Kind.TORN, f"{read.document} is no committed state of it")
            return
        self._reached[read.key] = older
        text = f"goes back to the state of LSN {versions.lsns[older]}"
        self._observed.record_right(read)
        self._observed.findings.add(Kind.ORDER, f"document {read.key} at {read.output.place}: {text}")


def _index(digests: list[bytes | None], wanted: bytes | None, start: int) -> int | None:
    try:
        return digests.index(wanted, start)
    except ValueError:
        return None


class SnapshotJudge:
    """Counts for every commit how many documents show their state of that commit.

    A snapshot is consistent if there is a commit for which that is all of them. Changes are noted where a
    count begins and ends to hold, so one document costs the number of its versions, a snapshot the number of
    commits.
    """

    def __init__(self, versions: Mapping[DocumentKey, DocumentVersions], lsns: Sequence[int]) -> None:
        self._versions = versions
        self._lsns = [0, *lsns]
        self._steps = array("q", bytes(8 * (len(self._lsns) + 1)))
        self._shown: dict[DocumentKey, bytes | None] = {}
        self._strange: set[DocumentKey] = set()
        """Documents that show what no version of them, or no document at all, has."""
        self._reached = 0
        for each in versions.values():
            self._count(each, None, 1)

    def judge(self, outputs: Iterable[ReadOutput], findings: Findings) -> Iterator[ReadOutput]:
        """Passes outputs on, and judges every snapshot when its last one has passed."""
        number: int | None = None
        for read in outputs:
            if number is not None and read.output.place[0] != number:
                self._check(number, findings)
            number = read.output.place[0]
            if read.problem is None:
                self._change(read.key, read.digest)
            else:
                self._strange.add(read.output.place)
            yield read
        if number is not None:
            self._check(number, findings)

    def _change(self, key: DocumentKey, value: bytes | None) -> None:
        """Notes that a document shows another value from the next snapshot on."""
        versions = self._versions.get(key)
        if versions is not None:
            self._count(versions, self._shown.get(key), -1)
            self._count(versions, value, 1)
        self._shown[key] = value
        if value is not None and (versions is None or value not in versions.digests):
            self._strange.add(key)
        else:
            self._strange.discard(key)

    def _check(self, number: int, findings: Findings) -> None:
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

    def _count(self, versions: DocumentVersions, value: bytes | None, step: int) -> None:
        for number, digest in enumerate(versions.digests):
            if digest == value:
                self._steps[self._position(versions.lsns[number])] += step
                is_last = number + 1 == len(versions.digests)
                end = len(self._lsns) if is_last else self._position(versions.lsns[number + 1])
                self._steps[end] -= step

    def _position(self, lsn: int) -> int:
        return bisect_right(self._lsns, lsn) - 1
