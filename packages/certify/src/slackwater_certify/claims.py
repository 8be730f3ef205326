"""Judges outputs that claim commits: each is the state of its LSN, each change is published exactly once."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from slackwater_certify.certificate import Findings, Kind
from slackwater_certify.committed_states import DocumentVersions
from slackwater_certify.observations import Observations, ReadOutput, describe, first_at_or_after
from slackwater_certify.output import Commit, OffsetRange, Output
from slackwater_certify.replay import DocumentKey


class CommitCoverage:
    """Knows which commit record covers which records; checks that both account for each other."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        self._ranges: dict[int, list[tuple[int, int, int]]] = {}
        self._announced: list[tuple[Commit, OffsetRange]] = []
        for number, commit in enumerate(commits):
            for each in commit.ranges:
                self._ranges.setdefault(each.partition, []).append((each.first, each.last, number))
                self._announced.append((commit, each))
        for ranges in self._ranges.values():
            ranges.sort()
        self._commits = commits
        self._found: Counter[tuple[int, int]] = Counter()

    def commit_of(self, output: Output) -> Commit | None:
        """Finds the commit record that covers an output; counts the output there."""
        ranges = self._ranges.get(output.partition, [])
        position = bisect_right(ranges, output.place[1], key=lambda each: each[0]) - 1
        if position < 0 or ranges[position][1] < output.place[1]:
            return None
        number = ranges[position][2]
        self._found[output.partition, ranges[position][0]] += 1
        return self._commits[number]

    def check(self, findings: Findings) -> None:
        """Compares how many records were announced with how many were there."""
        for commit, each in self._announced:
            found = self._found[each.partition, each.first]
            if found == each.count:
                continue
            text = f"commit {commit.lsn} announces {each.count} records in partition {each.partition}"
            kind = Kind.LOST if found < each.count else Kind.REPEATED
            place = f"at offsets {each.first} to {each.last}"
            findings.add(kind, f"{text} {place}, {found} are there", abs(found - each.count))


class ClaimJudge:
    """Takes outputs with an LSN, from a header or from the commit record that covers them."""

    def __init__(
        self,
        versions: Mapping[DocumentKey, DocumentVersions],
        observed: Observations,
        commits: Sequence[Commit],
    ) -> None:
        self._versions = versions
        self._observed = observed
        self._commits = commits
        self._coverage = CommitCoverage(commits)
        self._published: dict[DocumentKey, list[int]] = {}
        self._last: dict[int, int] = {}
        """By partition: the LSN of its newest output."""

    def judge(self, outputs: Iterable[ReadOutput]) -> None:
        """Judges them all."""
        for read in outputs:
            lsn = self._claimed(read.output)
            if read.problem is None:
                self._judge(read, lsn)

    def finish(self) -> None:
        """Checks the commit records, and that every change was published once."""
        check_chain(self._commits, self._observed.findings)
        if self._commits:
            self._coverage.check(self._observed.findings)
            boundaries = sorted({commit.lsn for commit in self._commits})
        else:
            boundaries = sorted({lsn for lsns in self._published.values() for lsn in lsns})
        for key, versions in self._versions.items():
            self._check_published(key, versions, boundaries)
        for key in self._published.keys() - self._versions.keys():
            self._repeated(key, Counter(self._published[key]))

    def _claimed(self, output: Output) -> int | None:
        commit = self._coverage.commit_of(output) if self._commits else None
        lsn = output.lsn if output.lsn is not None else commit.lsn if commit else None
        findings = self._observed.findings
        if self._commits and commit is None:
            findings.add(Kind.UNCOVERED, f"{describe(output)}: no commit record covers it")
        elif lsn is None:
            findings.add(Kind.UNCOVERED, f"{describe(output)}: it has no commit LSN")
        elif commit is not None and commit.lsn != lsn:
            findings.add(Kind.UNCOVERED, f"{describe(output)}: lies in the range of commit {commit.lsn}")
        if lsn is not None:
            if lsn < self._last.get(output.partition, lsn):
                text = f"follows commit LSN {self._last[output.partition]}"
                findings.add(Kind.ORDER, f"{describe(output)}: {text}")
            self._last[output.partition] = lsn
        return lsn

    def _judge(self, read: ReadOutput, lsn: int | None) -> None:
        versions = self._versions.get(read.key)
        digests: list[bytes | None] = versions.digests if versions else [None]
        if lsn is not None:
            self._published.setdefault(read.key, []).append(lsn)
        if read.digest not in digests:
            self._observed.record_wrong(read, Kind.TORN, f"{read.document} is no committed state of it")
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
        """Compares what was published with what changed from boundary to boundary."""
        published = Counter(self._published.get(key, ()))
        before: bytes | None = None
        for number, lsn in enumerate(versions.lsns):
            boundary = first_at_or_after(boundaries, lsn)
            is_last = number + 1 == len(versions.lsns)
            if not is_last and first_at_or_after(boundaries, versions.lsns[number + 1]) == boundary:
                continue
            value = versions.digests[number]
            if value == before:
                continue
            before = value
            if boundary == len(boundaries):
                text = f"changed by commit {lsn}, after the last that was published"
                self._observed.findings.add(Kind.LOST, f"document {key}: {text}")
            elif published[boundaries[boundary]]:
                published[boundaries[boundary]] -= 1
            else:
                text = f"changed by commit {lsn}, but commit {boundaries[boundary]} does not publish it"
                self._observed.findings.add(Kind.LOST, f"document {key}: {text}")
        self._repeated(key, +published)

    def _repeated(self, key: DocumentKey, published: Mapping[int, int]) -> None:
        for lsn, count in published.items():
            text = f"{count} more than commit {lsn} changed"
            self._observed.findings.add(Kind.REPEATED, f"document {key}: {text}", count)


def check_chain(commits: Sequence[Commit], findings: Findings) -> None:
    """Commit LSNs rise, and every commit record goes on where the one before ended."""
    for before, after in pairwise(commits):
        text = f"commit record {after.lsn} follows {before.lsn}"
        if (after.timeline, after.lsn) <= (before.timeline, before.lsn):
            findings.add(Kind.ORDER, text)
        elif after.timeline == before.timeline and after.previous_lsn != before.lsn:
            findings.add(Kind.ORDER, f"{text}, but continues {after.previous_lsn}")


def add_commit_delays(
    commits: Sequence[Commit],
    transactions: Iterable[tuple[int, int]],
    observed: Observations,
    since_ms: int | None,
) -> None:
    """Notes when each transaction, (LSN, commit time) in commit order, was covered by a commit record."""
    number = 0
    for lsn, time_ms in transactions:
        while number < len(commits) and commits[number].lsn < lsn:
            number += 1
        if number == len(commits):
            return
        if since_ms is None or time_ms >= since_ms:
            observed.record_delay(commits[number].visible_ms, time_ms)
