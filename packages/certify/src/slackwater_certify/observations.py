"""Reads outputs as a view's documents, and counts what is seen while they pass by."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from slackwater_certify.canonical import Document, DocumentReader, UnreadableValueError, digest
from slackwater_certify.certificate import Delays, Findings, Kind, TimeBucket
from slackwater_certify.output import Output
from slackwater_certify.replay import DocumentKey

MAX_BUCKETS = 48
MAX_KEPT_WRONG = 10_000
"""Wrong documents that are kept in full to measure how wrong they are."""


@dataclass(frozen=True, slots=True)
class ReadOutput:
    """Holds an output with its key and value, if these are understood."""

    output: Output
    key: DocumentKey = ()
    document: Document | None = None
    """None: the document is gone."""
    digest: bytes | None = None
    problem: str | None = None
    """Why key and value cannot be understood; None if they are."""


def read_outputs(
    outputs: Iterable[Output], reader: DocumentReader, observed: "Observations"
) -> Iterator[ReadOutput]:
    """Reads keys and values, and counts every output; those that cannot be understood are passed on, too."""
    for output in outputs:
        observed.record_output(output)
        try:
            read = _read_output(output, reader)
        except UnreadableValueError as error:
            read = ReadOutput(output, problem=str(error))
            observed.record_unreadable(output, str(error))
        yield read


def _read_output(output: Output, reader: DocumentReader) -> ReadOutput:
    if output.problem is not None:
        raise UnreadableValueError(output.problem)
    if output.document is None:
        return ReadOutput(output, reader.read_key(output.key))
    document = reader.document(output.document)
    return ReadOutput(output, reader.key_of(document), document, digest(document))


@dataclass(slots=True)
class Observations:
    """Collects findings, times, and the last value of every document while outputs pass by."""

    findings: Findings = field(default_factory=Findings)
    outputs: int = 0
    deletes: int = 0
    shown: dict[DocumentKey, bytes | None] = field(default_factory=dict)
    """The last value of every document, as a digest."""
    wrong: list[tuple[DocumentKey, Document]] = field(default_factory=list)
    unmeasured: int = 0
    """Wrong documents beyond those that are kept."""
    longest_wrong_ms: int = 0
    last_ms: int = 0
    delays: "array[int]" = field(default_factory=lambda: array("q"))
    _delayed_at: "array[int]" = field(default_factory=lambda: array("q"))
    _times: "array[int]" = field(default_factory=lambda: array("q"))
    _wrong_times: "array[int]" = field(default_factory=lambda: array("q"))
    _wrong_since: dict[DocumentKey, int] = field(default_factory=dict)

    def record_output(self, output: Output) -> None:
        """Counts an output."""
        self.outputs += 1
        self.deletes += output.document is None and output.problem is None
        self._times.append(output.visible_ms)
        self.last_ms = max(self.last_ms, output.visible_ms)

    def record_unreadable(self, output: Output, problem: str) -> None:
        """Counts an output that cannot be understood."""
        self._wrong_times.append(output.visible_ms)
        self.findings.add(Kind.TORN, f"{describe(output)}: {problem}")

    def record_right(self, read: ReadOutput) -> None:
        """Notes that a document shows what it may show."""
        self.shown[read.key] = read.digest
        since = self._wrong_since.pop(read.key, None)
        if since is not None:
            self._end_wrong(since, read.output.visible_ms)

    def record_wrong(self, read: ReadOutput, kind: Kind, text: str) -> None:
        """Notes that a document shows what it must not show."""
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
        """Notes from commit to visibility."""
        self._delayed_at.append(visible_ms)
        self.delays.append(visible_ms - commit_ms)

    def finish(self) -> None:
        """Ends the times of values that are still wrong: they were so until the last output."""
        for since in self._wrong_since.values():
            self._end_wrong(since, self.last_ms)

    def timeline(self) -> list[TimeBucket]:
        """Divides outputs over time into slices of equal length."""
        if not self._times:
            return []
        first = min(self._times)
        width = max(1, -(-(self.last_ms - first + 1) // MAX_BUCKETS))
        count = (self.last_ms - first) // width + 1
        seen, wrong = [0] * count, [0] * count
        delays: list[list[int]] = [[] for _ in range(count)]
        for at in self._times:
            seen[(at - first) // width] += 1
        for at in self._wrong_times:
            wrong[(at - first) // width] += 1
        for at, delay in zip(self._delayed_at, self.delays, strict=True):
            delays[min(max(0, (at - first) // width), count - 1)].append(delay)
        return [_bucket(first + i * width, seen[i], wrong[i], delays[i]) for i in range(count)]

    def _end_wrong(self, since: int, until: int) -> None:
        self.longest_wrong_ms = max(self.longest_wrong_ms, until - since)


def describe(output: Output, key: DocumentKey | None = None) -> str:
    """Names an output for a finding."""
    named = output.key if key is None else key[0] if len(key) == 1 else key
    claim = "" if output.lsn is None else f", commit LSN {output.lsn}"
    return f"document {named} at {output.place[0]}/{output.place[1]}{claim}"


def _bucket(start_ms: int, outputs: int, wrong: int, values: list[int]) -> TimeBucket:
    delays = Delays.from_values(values)
    if delays is None:
        return TimeBucket(start_ms, outputs, wrong, None, None)
    return TimeBucket(start_ms, outputs, wrong, delays.p50, delays.max)
