"""Outputs in the form in which they are judged, and what is observed while they are read.

In a topic, every record is an output; in a table, every document that differs from the previous snapshot.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slackwater_certify.canonical import Document, DocumentKey, DocumentReader, UnreadableValueError, digest
from slackwater_certify.certificate import Delays, Findings, Kind, TimeBucket

MAX_BUCKETS = 48
MAX_KEPT_WRONG = 10_000
"""The most wrong documents that are kept in full, to measure how wrong they are."""


OF_ANOTHER: Final = "it belongs to another output of the topic"
"""The problem of a record that is only counted."""


@dataclass(frozen=True, slots=True)
class Output:
    """A document that became visible, or was deleted."""

    place: tuple[int, int]
    """Partition and offset, or the number of the snapshot and the position in it."""
    visible_ms: int
    """When it became visible, in milliseconds since the epoch."""
    key: object = None
    """The decoded key of the record; None if the document contains it."""
    document: Mapping[str, Any] | None = None
    """None: the document was deleted."""
    lsn: int | None = None
    """The commit LSN that it claims to belong to."""
    problem: str | None = None
    """Why it cannot be read."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records of a partition that a commit record covers."""

    partition: int
    count: int
    first: int
    last: int
    """Inclusive."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit record: the output contains all source transactions up to an LSN."""

    timeline: int
    lsn: int
    previous_lsn: int
    commit_ts_ms: int
    visible_ms: int
    ranges: tuple[OffsetRange, ...]
    skipped: tuple[int, ...] = ()
    """The transactions that an operator has skipped, according to the record."""


@dataclass(frozen=True, slots=True)
class OutputRecords:
    """Everything that an adapter has read."""

    outputs: Iterable[Output]
    """In order within each partition; for snapshots, the changes from one to the next."""
    commits: Sequence[Commit] = ()
    snapshots: Sequence[int] | None = None
    """When each snapshot of a table was seen; outputs contain the number of theirs as the partition."""
    clock: str = "record timestamps"
    """The source of the times."""
    timed_since_ms: int | None = None
    """Delays are meaningful only for transactions committed since then; None: for all."""


@dataclass(frozen=True, slots=True)
class ReadOutput:
    """An output with its key and value, if they could be read."""

    output: Output
    key: DocumentKey = ()
    document: Document | None = None
    """None: the document was deleted."""
    digest: bytes | None = None
    problem: str | None = None
    """Why key and value cannot be read; None if they could."""


@dataclass(slots=True)
class Observations:
    """Collects findings, times, and the last value of every document while outputs are read."""

    findings: Findings = field(default_factory=Findings)
    outputs: int = 0
    deletes: int = 0
    shown: dict[DocumentKey, bytes | None] = field(default_factory=dict)
    """The digest of the last value of every document."""
    wrong: list[tuple[DocumentKey, Document]] = field(default_factory=list)
    unmeasured: int = 0
    """The number of wrong documents that were not kept."""
    longest_wrong_ms: int = 0
    last_ms: int = 0
    delays: "array[int]" = field(default_factory=lambda: array("q"))
    _delayed_at: "array[int]" = field(default_factory=lambda: array("q"))
    _times: "array[int]" = field(default_factory=lambda: array("q"))
    _wrong_times: "array[int]" = field(default_factory=lambda: array("q"))
    _wrong_since: dict[DocumentKey, int] = field(default_factory=dict)

    def read(self, outputs: Iterable[Output], reader: DocumentReader) -> Iterator[ReadOutput]:
        """Reads keys and values, and counts every output; also yields outputs that cannot be read."""
        for output in outputs:
            if output.problem is OF_ANOTHER:
                yield ReadOutput(output, problem=OF_ANOTHER)
                continue
            self.outputs += 1
            self.deletes += output.document is None and output.problem is None
            self._times.append(output.visible_ms)
            self.last_ms = max(self.last_ms, output.visible_ms)
            try:
                yield _read_output(output, reader)
            except UnreadableValueError as error:
                self._wrong_times.append(output.visible_ms)
                self.findings.add(Kind.TORN, f"{describe(output)}: {error}")
                yield ReadOutput(output, problem=str(error))

    def record_right(self, read: ReadOutput) -> None:
        """Records that a document shows a value that it may show."""
        self.shown[read.key] = read.digest
        since = self._wrong_since.pop(read.key, None)
        if since is not None:
            self._end_wrong(since, read.output.visible_ms)

    def record_wrong(self, read: ReadOutput, kind: Kind, text: str) -> None:
        """Records that a document shows a value that it must not show."""
        self.shown[read.key] = read.digest
        self._wrong_since.setdefault(read.key, read.output.visible_ms)
        self._wrong_times.append(read.output.visible_ms)
        self.findings.add(kind, f"{describe(read.output, read.key)}: {text}")
        if kind is Kind.TORN and read.document is not None:
            if len(self.wrong) < MAX_KEPT_WRONG:
                self.wrong.append((read.key, read.document))
            else:
                self.unmeasured += 1

    def record_delay(self, visible_ms: int, commit_ms: int) -> None:
        """Records the delay from commit to visibility."""
        self._delayed_at.append(visible_ms)
        self.delays.append(visible_ms - commit_ms)

    def finish(self) -> None:
        """Counts values that are still wrong as wrong until the last output."""
        for since in self._wrong_since.values():
            self._end_wrong(since, self.last_ms)

    def timeline(self) -> list[TimeBucket]:
        """Divides the outputs into time slices of equal length."""
        if not self._times:
            return []
        first = min(self._times)
        width = max(1, -(-(self.last_ms - first + 1) // MAX_BUCKETS))
        count = (self.last_ms - first) // width + 1
        seen, wrong = (Counter((at - first) // width for at in t) for t in (self._times, self._wrong_times))
        delays: list[list[int]] = [[] for _ in range(count)]
        for at, delay in zip(self._delayed_at, self.delays, strict=True):
            delays[min(max(0, (at - first) // width), count - 1)].append(delay)
        times = range(first, self.last_ms + 1, width)
        found = [each and (each.p50, each.max) for each in map(Delays.from_values, delays)]
        return [TimeBucket(times[i], seen[i], wrong[i], *(found[i] or (None, None))) for i in range(count)]

    def _end_wrong(self, since: int, until: int) -> None:
        self.longest_wrong_ms = max(self.longest_wrong_ms, until - since)


def _read_output(output: Output, reader: DocumentReader) -> ReadOutput:
    if output.problem is not None:
        raise UnreadableValueError(output.problem)
    if output.document is None:
        return ReadOutput(output, reader.read_key(output.key))
    document = reader.document(output.document)
    return ReadOutput(output, reader.key_of(document), document, digest(document))


def describe(output: Output, key: DocumentKey | None = None) -> str:
    """Returns the name of an output for a finding."""
    named = output.key if key is None else key[0] if len(key) == 1 else key
    claim = "" if output.lsn is None else f", commit LSN {output.lsn}"
    return f"document {named} at {output.place[0]}/{output.place[1]}{claim}"
