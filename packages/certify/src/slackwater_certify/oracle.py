"""Judges outputs by the committed states of their documents.

An output that claims a commit must be the state at its LSN, and each change must be published exactly once.
Any other output must be a committed state of its document, and no document may go back to an earlier one. In
a snapshot of a table, all documents must be at one commit, and snapshots must not go back.
"""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise

from slackwater_certify.canonical import DocumentKey
from slackwater_certify.certificate import Findings, Kind
from slackwater_certify.committed_states import CommittedStates, DocumentVersions
from slackwater_certify.history import Skip
from slackwater_certify.output import (
    Commit,
    Observations,
    OffsetRange,
    Output,
    OutputRecords,
    ReadOutput,
    describe,
)


def judge_by_states(
    outputs: Iterator[ReadOutput],
    records: OutputRecords,
    committed: CommittedStates,
    observed: Observations,
    since_ms: int | None,
) -> None:
    """Judges outputs by the committed states; delays of transactions before ``since_ms`` are left out."""
    first = next(outputs, None)  # shows whether outputs have LSNs
    has_claims = bool(records.commits) or (first is not None and first.output.lsn is not None)
    if first is not None:
        outputs = chain([first], outputs)
    if records.snapshots is not None:
        snapshots = _SnapshotJudge(committed.by_key, [lsn for lsn, _ in committed.transactions])
        outputs = snapshots.judge(outputs, observed.findings)
    if has_claims:
        _ClaimJudge(committed.by_key, observed, records.commits).judge(outputs)
    else:
        _SequenceJudge(committed.by_key, observed, since_ms).judge(outputs)
    if records.commits:
        _check_skips(records.commits, committed.skips, observed.findings)
        _add_commit_delays(records.commits, committed.transactions, observed, since_ms)


def _check_skips(commits: Sequence[Commit], skips: Mapping[int, Skip], findings: Findings) -> None:
    """Compares the skips in commit records, which readers rely on, with those in cuts."""
    listed = {xid for commit in commits for xid in commit.skipped}
    for xid in sorted(listed - skips.keys()):
        findings.add(Kind.LOST, f"a commit record says that transaction {xid} was skipped, but no cut does")
    for xid in sorted(skips.keys() - listed):
        skip = skips[xid]
        if any(c.timeline == skip.timeline and c.previous_lsn < skip.lsn <= c.lsn for c in commits):
            text = f"transaction {xid}, commit {skip.lsn}, was skipped, but no commit record says so"
            findings.add(Kind.LOST, text)


class _ClaimJudge:
    """Judges outputs with an LSN, from a header or from the commit record that covers them.

    Commit records must cover all records, and announce exactly as many as there are.
    """

    def __init__(
        self,
        versions: Mapping[DocumentKey, DocumentVersions],
        observed: Observations,
        commits: Sequence[Commit],
    ) -> None:
        self._versions = versions
        self._observed = observed
        self._commits = commits
        self._ranges: defaultdict[int, list[tuple[OffsetRange, Commit]]] = defaultdict(list)
        for commit in commits:
            for each in commit.ranges:
                insort(self._ranges[each.partition], (each, commit), key=_first_offset)
        self._covered: Counter[tuple[int, int]] = Counter()
        """By partition and first offset of a range: the number of its records."""
        self._published: dict[DocumentKey, list[int]] = {}
        self._last: dict[int, int] = {}
        """By partition: the LSN of the newest output."""

    def judge(self, outputs: Iterable[ReadOutput]) -> None:
        """Judges all outputs, then the commit records, then whether every change was published once."""
        for read in outputs:
            lsn = self._claimed(read.output)
            if read.problem is None:
                self._judge(read, lsn)
        _check_chain(self._commits, self._observed.findings)
        if self._commits:
            self._check_coverage()
            boundaries = sorted({commit.lsn for commit in self._commits})
        else:
            boundaries = sorted({lsn for lsns in self._published.values() for lsn in lsns})
        for key, versions in self._versions.items():
            self._check_published(key, versions, boundaries)
        for key in self._published.keys() - self._versions.keys():
            self._repeated(key, Counter(self._published[key]))

    def _claimed(self, output: Output) -> int | None:
        commit = self._commit_of(output)
        lsn = output.lsn if output.lsn is not None else commit.lsn if commit else None
        findings = self._observed.findings
        if self._commits and commit is None:
            findings.add(Kind.UNCOVERED, f"{describe(output)}: no commit record covers it")
        elif lsn is None:
            findings.add(Kind.UNCOVERED, f"{describe(output)}: it has no commit LSN")
        elif commit is not None and commit.lsn != lsn:
            findings.add(Kind.UNCOVERED, f"{describe(output)}: lies in the range of commit {commit.lsn}")
        if lsn is not None:
            if lsn < self._last.get(output.place[0], lsn):
                text = f"follows commit LSN {self._last[output.place[0]]}"
                findings.add(Kind.ORDER_VIOLATIONS, f"{describe(output)}: {text}")
            self._last[output.place[0]] = lsn
        return lsn

    def _commit_of(self, output: Output) -> Commit | None:
        """Returns the commit record that covers an output, and counts the output."""
        (partition, offset), ranges = output.place, self._ranges[output.place[0]]
        position = bisect_right(ranges, offset, key=_first_offset) - 1
        if position < 0 or ranges[position][0].last < offset:
            return None
        self._covered[partition, ranges[position][0].first] += 1
        return ranges[position][1]

    def _check_coverage(self) -> None:
        """Compares the number of records that commit records announce with the number that was found."""
        for commit in self._commits:
            for each in commit.ranges:
                found = self._covered[each.partition, each.first]
                if found != each.count:
                    text = f"commit {commit.lsn} announces {each.count} records in partition {each.partition}"
                    text += f" at offsets {each.first} to {each.last}, but there are {found}"
                    kind = Kind.LOST if found < each.count else Kind.REPEATED
                    self._observed.findings.add(kind, text, abs(found - each.count))

    def _judge(self, read: ReadOutput, lsn: int | None) -> None:
        versions = self._versions.get(read.key)
        digests: list[bytes | None] = versions.digests if versions else [None]
        if lsn is not None:
            self._published.setdefault(read.key, []).append(lsn)
        if read.digest not in digests:
            self._observed.record_wrong(read, Kind.TORN, f"{read.document} is not a committed state of it")
            return
        number = versions.at(lsn) if versions and lsn is not None else 0
        if lsn is not None and digests[number] != read.digest and versions is not None:
            other = versions.lsns[digests.index(read.digest)]
            self._observed.record_wrong(read, Kind.WRONG_LSN, f"it is the state of LSN {other}")
            return
        self._observed.record_right(read)
        if not self._commits and versions is not None and lsn is not None and number:
            self._observed.record_delay(read.output.visible_ms, versions.times[number])

    def _check_published(
        self, key: DocumentKey, versions: DocumentVersions, boundaries: Sequence[int]
    ) -> None:
        """Compares the published documents with the changes between boundaries."""
        published = Counter(self._published.get(key, ()))
        before: bytes | None = None
        for number, lsn in enumerate(versions.lsns):
            boundary = bisect_left(boundaries, lsn)
            is_last = number + 1 == len(versions.lsns)
            if not is_last and bisect_left(boundaries, versions.lsns[number + 1]) == boundary:
                continue
            value = versions.digests[number]
            if value == before:
                continue
            before = value
            if boundary == len(boundaries):
                text = f"changed by commit {lsn}, after the last published commit"
                self._observed.findings.add(Kind.LOST, f"document {key}: {text}")
            elif published[boundaries[boundary]]:
                published[boundaries[boundary]] -= 1
            else:
                text = f"changed by commit {lsn}, but commit {boundaries[boundary]} does not publish it"
                self._observed.findings.add(Kind.LOST, f"document {key}: {text}")
        self._repeated(key, +published)

    def _repeated(self, key: DocumentKey, published: Mapping[int, int]) -> None:
        for lsn, count in published.items():
            text = f"{count} more documents than commit {lsn} changed"
            self._observed.findings.add(Kind.REPEATED, f"document {key}: {text}", count)


def _first_offset(covered: tuple[OffsetRange, Commit]) -> int:
    return covered[0].first


def _check_chain(commits: Sequence[Commit], findings: Findings) -> None:
    """Checks that commit LSNs ascend, and that each commit record continues where the previous one ended."""
    for before, after in pairwise(commits):
        text = f"commit record {after.lsn} follows {before.lsn}"
        if (after.timeline, after.lsn) <= (before.timeline, before.lsn):
            findings.add(Kind.ORDER_VIOLATIONS, text)
        elif after.timeline == before.timeline and after.previous_lsn != before.lsn:
            findings.add(Kind.ORDER_VIOLATIONS, f"{text}, but continues {after.previous_lsn}")


def _add_commit_delays(
    commits: Sequence[Commit],
    transactions: Iterable[tuple[int, int]],
    observed: Observations,
    since_ms: int | None,
) -> None:
    """Records when a commit record covered each transaction, (LSN, commit time) in commit order."""
    number = 0
    for lsn, time_ms in transactions:
        while number < len(commits) and commits[number].lsn < lsn:
            number += 1
        if number == len(commits):
            return
        if since_ms is None or time_ms >= since_ms:
            observed.record_delay(commits[number].visible_ms, time_ms)


_NOTHING = DocumentVersions()
_NOTHING.add(0, 0, None)


class _SequenceJudge:
    """Judges the outputs of each document in their order.

    An output is matched with the next committed state that equals it. States may be skipped, because an
    output may show only the newest of several, but they must not be shown again.
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
        """Judges all outputs; last states that were never shown count as lost."""
        for read in outputs:
            if read.problem is None:
                self._judge(read)
        for key, versions in self._versions.items():
            reached = self._reached.get(key, -1)
            shown = versions.digests[reached] if reached >= 0 else None
            if shown == versions.digests[-1]:
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
            self._observed.record_wrong(read, Kind.TORN, f"{read.document} is not a committed state of it")
            return
        self._reached[read.key] = older
        text = f"goes back to the state of LSN {versions.lsns[older]}"
        self._observed.record_right(read)
        self._observed.findings.add(
            Kind.ORDER_VIOLATIONS, f"document {read.key} at {read.output.place}: {text}"
        )


def _index(digests: list[bytes | None], wanted: bytes | None, start: int) -> int | None:
    try:
        return digests.index(wanted, start)
    except ValueError:
        return None


class _SnapshotJudge:
    """Counts for every commit how many documents show their state at that commit.

    A snapshot is consistent if all documents do so for some commit. Only the commits at which a count changes
    are stored, so the cost of a document is its number of versions, and that of a snapshot the number of
    commits.
    """

    def __init__(self, versions: Mapping[DocumentKey, DocumentVersions], lsns: Sequence[int]) -> None:
        self._versions = versions
        self._lsns = [0, *lsns]
        self._steps = array("q", bytes(8 * (len(self._lsns) + 1)))
        self._shown: dict[DocumentKey, bytes | None] = {}
        self._strange: set[DocumentKey] = set()
        """Documents that show something which no version of them contains, or that should not exist."""
        self._reached = 0
        for each in versions.values():
            self._count(each, None, 1)

    def judge(self, outputs: Iterable[ReadOutput], findings: Findings) -> Iterator[ReadOutput]:
        """Yields outputs, and judges every snapshot after its last output."""
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
        """Records that a document shows another value."""
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
        """Judges the snapshot that results from all changes so far."""
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
            findings.add(Kind.ORDER_VIOLATIONS, f"{text}, to {lsn}")
            return
        off = wanted - best + len(self._strange)
        text = f"at no commit do all {wanted:,} documents match snapshot {number}"
        findings.add(Kind.INCONSISTENT_STATES, f"{text}; at the best one, at least {off:,} differ")

    def _count(self, versions: DocumentVersions, value: bytes | None, step: int) -> None:
        for number, digest in enumerate(versions.digests):
            if digest == value:
                self._steps[self._position(versions.lsns[number])] += step
                is_last = number + 1 == len(versions.digests)
                end = len(self._lsns) if is_last else self._position(versions.lsns[number + 1])
                self._steps[end] -= step

    def _position(self, lsn: int) -> int:
        return bisect_right(self._lsns, lsn) - 1
