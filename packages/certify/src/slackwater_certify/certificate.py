"""The result of judging an output: counts, examples and delays, which can be written as text or JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

MAX_EXAMPLES = 3


class Mode(StrEnum):
    """How an output is judged."""

    ORACLE = "oracle"
    """Against the committed states, recomputed from the change topics."""
    INVARIANT = "invariant"
    """Against SQL that is true of every committed state."""
    BOTH = "both"


class Kind(StrEnum):
    """What can be wrong with an output; each is named after the field of a certificate that counts it."""

    TORN = "torn"
    WRONG_LSN = "wrong LSN"
    ORDER_VIOLATIONS = "order violation"
    LOST = "lost"
    REPEATED = "repeated"
    UNCOVERED = "outside its commit record"
    INCONSISTENT_STATES = "inconsistent state"
    FINAL_DIFFERENCES = "final difference"
    HISTORY_DIFFERENCES = "history differs from the database"
    INVARIANT_VIOLATIONS = "invariant violation"

    @property
    def counter(self) -> str:
        """The field of a certificate that counts this."""
        return self.name.lower()


@dataclass(slots=True)
class Findings:
    """Counts of what is wrong, with the first few of each kind as examples."""

    counts: Counter[Kind] = field(default_factory=Counter)
    examples: dict[Kind, list[str]] = field(default_factory=dict)

    def add(self, kind: Kind, text: str, count: int = 1) -> None:
        """Counts a finding."""
        self.counts[kind] += count
        texts = self.examples.setdefault(kind, [])
        if len(texts) < MAX_EXAMPLES:
            texts.append(text)


@dataclass(frozen=True, slots=True)
class Delays:
    """Percentiles in milliseconds: each is the smallest value that this percentage does not exceed."""

    count: int
    p50: int
    p90: int
    p99: int
    max: int

    @classmethod
    def from_values(cls, values: Iterable[int]) -> "Delays | None":
        """Computes the percentiles; returns None if there are no values."""
        ordered = sorted(values)
        if not ordered:
            return None
        p50, p90, p99 = (ordered[max(0, -(-len(ordered) * percent // 100) - 1)] for percent in (50, 90, 99))
        return cls(len(ordered), p50, p90, p99, ordered[-1])


@dataclass(frozen=True, slots=True)
class TimeBucket:
    """One time slice of the chart."""

    start_ms: int
    outputs: int
    wrong: int
    delay_p50_ms: int | None
    delay_max_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The result of judging an output: what was seen, and what was wrong with it."""

    output: str
    mode: Mode
    clock: str
    """Where the times of visibility come from."""
    outputs: int
    """Documents and deletes that were judged; for a table, the changes from one snapshot to the next."""
    deletes: int
    """Deletes among the outputs."""
    documents: int
    """Documents in the final state of the output."""
    withheld: int = 0
    """Documents that the view cannot be evaluated for in the final state, so that there must be none."""
    commits: int
    """Commit records."""
    snapshots: int
    """States of the whole output, if it is a table."""
    transactions: int
    """Committed transactions with changes to the declared tables."""
    events: int
    """Change events read, including repeats and snapshot rows."""
    torn: int
    """Outputs that match no committed state of their document, or cannot be read."""
    wrong_lsn: int
    """Outputs that match a committed state, but not that of the commit they claim."""
    largest_error: float
    """The largest difference between a number and the nearest committed state, or invariant error."""
    longest_wrong_seconds: float
    """The longest time for which a document showed a wrong value."""
    order_violations: int
    """Documents, LSNs or commit records that went backwards."""
    lost: int
    """Changes that should have been published and were not."""
    repeated: int
    """Documents that were published more often than they changed."""
    uncovered: int
    """Records that are not covered by the commit record of their LSN."""
    inconsistent_states: int
    """Snapshots that do not match any single commit."""
    final_differences: int
    """Documents whose last value differs from the database or, without one, from the topics."""
    history_differences: int
    """Documents on which topics and database disagree, which puts the measurement itself in doubt."""
    invariant_violations: int
    delay_ms: Delays | None
    """The time from the commit in the database to visibility."""
    timeline: Sequence[TimeBucket]
    examples: Mapping[str, Sequence[str]]
    """A few examples of each kind of finding."""
    notes: Sequence[str] = ()
    """Remarks for the reader."""

    @property
    def is_clean(self) -> bool:
        """Returns whether something was judged and nothing was found."""
        return self.findings == 0 and self.outputs > 0

    @property
    def findings(self) -> int:
        """Returns the total number of findings."""
        return sum(getattr(self, kind.counter) for kind in Kind)

    def to_json(self) -> str:
        """Returns the certificate and its verdict as JSON."""
        return json.dumps(asdict(self) | {"is_clean": self.is_clean}, indent=2)


_BARS = " ▁▂▃▄▅▆▇█"


def report(certificate: Certificate) -> str:
    """Returns the verdict, the counts, a chart over time and examples, as lines of text."""
    return "\n".join(_lines(certificate)) + "\n"


def _lines(certificate: Certificate) -> Iterator[str]:
    rows = [*_what(certificate), *_counts(certificate), *_delay(certificate)]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        yield f"{name:<{width}}  {text}".rstrip()
    yield f"{'verdict':<{width}}  {_verdict(certificate)}"
    yield from _chart(certificate)
    for kind, texts in certificate.examples.items():
        yield ""
        yield f"{kind}, for example:"
        for text in texts:
            yield f"  {text[:400]}"
    for note in certificate.notes:
        yield f"note: {note}"


def _what(certificate: Certificate) -> Iterator[tuple[str, str]]:
    yield "output", certificate.output
    if certificate.mode is not Mode.INVARIANT:
        changes = f"{certificate.events:,} change events in {certificate.transactions:,} transactions"
        yield "judged against", f"every committed state of {changes}"
    if certificate.mode is not Mode.ORACLE:
        yield "judged by", "the invariants of certify.toml"
    seen = f"{certificate.outputs:,}, {certificate.deletes:,} of them deletes"
    if certificate.snapshots:
        seen += f", in {certificate.snapshots:,} snapshots"
    if certificate.commits:
        seen += f", in {certificate.commits:,} commits"
    yield "outputs seen", seen


def _counts(certificate: Certificate) -> Iterator[tuple[str, str]]:
    if certificate.mode is not Mode.INVARIANT:
        share = 100 * certificate.torn / certificate.outputs if certificate.outputs else 0
        yield "torn", f"{certificate.torn:,} match no committed state ({share:.1f} %)"
        yield "wrong LSN", f"{certificate.wrong_lsn:,} match a different commit than the one they claim"
        yield "largest error", f"{certificate.largest_error:,.10g}"
        yield "longest wrong", f"{certificate.longest_wrong_seconds:,.1f} s"
        yield "order violations", f"{certificate.order_violations:,}"
        yield "lost", f"{certificate.lost:,}"
        yield "repeated", f"{certificate.repeated:,}"
        if certificate.commits:
            yield "outside commits", f"{certificate.uncovered:,}"
    elif certificate.torn:
        yield "unreadable", f"{certificate.torn:,}"
    if certificate.snapshots:
        yield "whole snapshots", f"{certificate.inconsistent_states:,} do not match any single commit"
    if certificate.mode is not Mode.ORACLE:
        yield "invariants", f"{certificate.invariant_violations:,} violations"
        if certificate.mode is Mode.INVARIANT:
            yield "largest error", f"{certificate.largest_error:,.10g}"
    if certificate.withheld:
        yield "withheld", f"{certificate.withheld:,} documents that the view fails on, and so does the judge"
    yield "final state", f"{certificate.final_differences:,} of {certificate.documents:,} documents differ"
    if certificate.history_differences:
        yield "topics", f"{certificate.history_differences:,} documents differ between topics and database"


def _delay(certificate: Certificate) -> Iterator[tuple[str, str]]:
    delays = certificate.delay_ms
    if delays is not None:
        values = f"p50 {delays.p50:,} ms, p90 {delays.p90:,} ms, p99 {delays.p99:,} ms, max {delays.max:,} ms"
        yield "commit to visible", f"{values} (by {certificate.clock})"


def _verdict(certificate: Certificate) -> str:
    if certificate.outputs == 0:
        return "NOTHING WAS JUDGED: the output is empty"
    return "clean" if certificate.is_clean else f"VIOLATED: {certificate.findings:,} findings"


def _chart(certificate: Certificate) -> Iterator[str]:
    timeline = certificate.timeline
    if len(timeline) < 2:
        return
    width_ms = timeline[1].start_ms - timeline[0].start_ms
    yield ""
    yield f"over {len(timeline) * width_ms / 1000:,.1f} s, {width_ms:,} ms per column, maximum on the right"
    series: list[tuple[str, Sequence[int], str]] = [
        ("outputs", [bucket.outputs for bucket in timeline], ""),
        ("wrong", [bucket.wrong for bucket in timeline], ""),
        ("delay p50", [bucket.delay_p50_ms or 0 for bucket in timeline], " ms"),
    ]
    for name, values, unit in series:
        yield f"  {name:<10}│{_bars(values)}│ {max(values):,}{unit}"


def _bars(values: Sequence[int]) -> str:
    top = max(*values, 1)
    return "".join(_BARS[-(-max(0, value) * (len(_BARS) - 1) // top)] for value in values)
