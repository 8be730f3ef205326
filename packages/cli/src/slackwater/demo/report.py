"""Reports a run of the demo: its numbers, the verdict, and the table that people see."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from slackwater_certify import Certificate
from slackwater_testing.database import WriterCounts


@dataclass(slots=True, kw_only=True)
class DemoReport:
    """Holds the numbers of one run, which passed only if something was measured and nothing was found."""

    seed: int
    seconds: float
    """How long the writers wrote."""
    writes: WriterCounts
    """What the writers did."""
    orders: int
    """In PostgreSQL at the end."""
    naive_published: int
    naive_torn: int
    certificate: Certificate

    @property
    def documents(self) -> int:
        """Documents in the output, without tombstones."""
        return self.certificate.outputs - self.certificate.deletes

    @property
    def is_measured(self) -> bool:
        """Says if there was enough to judge: every part of the comparison has seen something."""
        found = self.certificate
        return all((found.transactions, found.commits, self.documents, self.orders, found.delay_ms))

    @property
    def has_passed(self) -> bool:
        """Says if something was measured and nothing was wrong with it."""
        return self.is_measured and self.certificate.is_clean

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yields the rows of the table."""
        found = self.certificate
        writes = self.writes
        speed = writes.changes / self.seconds if self.seconds else 0
        yield (
            "transactions",
            f"{writes.committed:,} committed, {writes.rolled_back:,} rolled back, {writes.retried} retried",
        )
        yield (
            "change events",
            f"{found.events:,} in Kafka, snapshot included; {speed:,.0f} written per second",
        )
        yield (
            "published",
            f"{self.documents:,} documents, {found.deletes:,} deletes, {found.commits:,} commits",
        )
        if found.delay_ms:
            delay = found.delay_ms
            times = f"p50 {delay.p50:,.0f} ms, p99 {delay.p99:,.0f} ms, max {delay.max:,.0f} ms"
            yield "commit to visible", f"{times} ({delay.count:,} transactions)"
        yield "(a) torn documents", f"{found.torn + found.invariant_violations} of {self.documents:,}"
        wrong = found.final_differences + found.history_differences
        yield "(b) final state", f"{wrong} of {self.orders:,} orders differ from PostgreSQL"
        deviations = f"{self._deviations()} deviations from the source's state at {found.commits:,} commits"
        yield "G1 prefix states", deviations
        share = 100 * self.naive_torn / self.naive_published if self.naive_published else 0
        naive = f"{self.naive_torn:,} of {self.naive_published:,} documents torn ({share:.1f} %)"
        yield "(c) without Slackwater", naive
        yield "result", self.verdict()

    def verdict(self) -> str:
        """Says that the run passed, or why not."""
        if self.certificate.findings:
            return f"FAILED: {', '.join(self.certificate.examples)}"
        return "passed" if self.is_measured else "FAILED: nothing was measured"

    def as_json(self) -> dict[str, Any]:
        """Returns the numbers for ``--json``."""
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "writes": asdict(self.writes),
            "orders": self.orders,
            "documents": self.documents,
            "naive_published": self.naive_published,
            "naive_torn": self.naive_torn,
            "certificate": json.loads(self.certificate.to_json()),
            "passed": self.has_passed,
        }

    def _deviations(self) -> int:
        found = self.certificate
        wrong = found.wrong_lsn + found.order_violations + found.lost + found.repeated
        return wrong + found.uncovered + found.inconsistent_states
