"""What a run of the demo found, its verdict, and the table people see."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from slackwater.demo.findings import Findings, Kind
from slackwater.demo.lag import LagSummary

_STATE_KINDS = (Kind.WRONG_STATE, Kind.LOST, Kind.REPEATED, Kind.LSN_ORDER, Kind.HOLE, Kind.UNCOVERED)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Numbers of one run. It passed only if something was measured and nothing was found."""

    seed: int
    seconds: float
    """How long the writers wrote."""
    writes: Counter[str]
    """What the writers did, see ``WriterStatistics.counts``."""
    source_transactions: int
    """With changes to the tables, found in the topics."""
    events: int
    """Change events in the topics, initial snapshot included."""
    commits: int
    """Commit records of the output."""
    documents: int
    """Documents in the output, without tombstones."""
    tombstones: int
    orders: int
    """In PostgreSQL at the end."""
    lag: LagSummary | None
    naive_published: int
    naive_torn: int
    findings: Findings = field(default_factory=Findings)

    @property
    def is_measured(self) -> bool:
        """Whether there was enough to judge: every part of the comparison has seen something."""
        return all((self.source_transactions, self.commits, self.documents, self.orders, self.lag))

    @property
    def has_passed(self) -> bool:
        """The verdict."""
        return self.is_measured and not self.findings

    def rows(self) -> Iterator[tuple[str, str]]:
        """The table."""
        committed, undone = self.writes["committed"], self.writes["rolled back"]
        speed = self.writes["row changes"] / self.seconds if self.seconds else 0
        yield (
            "transactions",
            f"{committed:,} committed, {undone:,} rolled back, {self.writes['retries']} retried",
        )
        yield "change events", f"{self.events:,} in Kafka, snapshot included; {speed:,.0f} written per second"
        yield (
            "published",
            f"{self.documents:,} documents, {self.tombstones:,} deletes, {self.commits:,} commits",
        )
        if self.lag:
            lag = (
                f"p50 {self.lag.p50_ms:,.0f} ms, p99 {self.lag.p99_ms:,.0f} ms, max {self.lag.max_ms:,.0f} ms"
            )
            yield "commit to visible", f"{lag} ({self.lag.transactions:,} transactions)"
        yield "(a) torn documents", f"{self.findings.count(Kind.TORN)} of {self.documents:,}"
        wrong = self.findings.count(Kind.WRONG_FINAL)
        yield "(b) final state", f"{wrong} of {self.orders:,} orders differ from PostgreSQL"
        states = self.findings.count(*_STATE_KINDS)
        yield "G1 prefix states", f"{states} deviations from the source's state at {self.commits:,} commits"
        share = 100 * self.naive_torn / self.naive_published if self.naive_published else 0
        naive = f"{self.naive_torn:,} of {self.naive_published:,} documents torn ({share:.1f} %)"
        yield "(c) without Slackwater", naive
        yield "result", self.verdict()

    def verdict(self) -> str:
        """One word, or why not."""
        if self.findings:
            return "FAILED: " + ", ".join(f"{n} x {kind}" for kind, n in self.findings.counts.items())
        return "passed" if self.is_measured else "FAILED: nothing was measured"

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        names = [each.name for each in fields(self) if each.type in (int, float)]
        return {name: getattr(self, name) for name in names} | {
            "writes": dict(self.writes),
            "lag": asdict(self.lag) if self.lag else None,
            "findings": dict(self.findings.counts),
            "examples": self.findings.examples,
            "passed": self.has_passed,
        }
