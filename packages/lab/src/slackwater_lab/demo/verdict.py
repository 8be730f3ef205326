"""Has the certifier judge the run: every document, every commit, the final state. Reports its verdict."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

from slackwater.protocol.keys import commit_topic
from slackwater_certify import (
    Certificate,
    Connections,
    Mode,
    Specification,
    certify,
    load_specification,
    read_records,
)
from slackwater_lab.database.writers import WriterCounts
from slackwater_lab.demo.consumer import ConsumerReport
from slackwater_lab.errors import RunFailedError


def demo_specification(pipeline: Path, output: str) -> Specification:
    """Returns the pipeline's ``certify.toml``, for the topic it writes to.

    Raises:
        CertifyConfigError: there is none, or it cannot be used.
    """
    specification = load_specification(pipeline)
    topics = replace(specification.output, name=output, commits=commit_topic(output))
    return replace(specification, output=topics)


def judge(
    specification: Specification,
    *,
    bootstrap: str,
    dsn: str,
    arrivals: Mapping[int, int],
    since_ms: int,
    on_progress: Callable[[str], None],
) -> Certificate:
    """Compares output, source topics and database; nothing may be written meanwhile.

    Arrivals are when a reader had a commit record, by its LSN. Delays of transactions that were committed
    before ``since_ms`` are left out.

    Raises:
        RunFailedError: the database itself breaks the invariant.
        CertifyError: a topic cannot be read.
    """
    with psycopg.connect(dsn) as connection:
        broken = broken_orders(connection)
        if broken:
            raise RunFailedError("the writers", f"broke the invariant in PostgreSQL itself: {broken}")
    connections = Connections(bootstrap=bootstrap, dsn=dsn)
    records = read_records(specification, connections)
    commits = [
        replace(commit, visible_ms=arrivals.get(commit.lsn, commit.visible_ms)) for commit in records.commits
    ]
    return certify(
        specification,
        connections,
        mode=Mode.BOTH,
        records=replace(records, commits=commits, clock="arrival at a reader"),
        delays_since_ms=since_ms,
        on_progress=on_progress,
    )


def broken_orders(connection: psycopg.Connection[tuple[object, ...]]) -> list[tuple[int, int, Decimal]]:
    """Returns orders whose header contradicts their lines: then the workload, not Slackwater, is wrong."""
    rows = connection.execute(
        "SELECT o.id, o.line_count, o.total FROM inventory.orders o LEFT JOIN ("
        "  SELECT order_id, count(*) AS n, sum(quantity * price) AS amount"
        "  FROM inventory.order_lines GROUP BY order_id) l ON l.order_id = o.id "
        "WHERE o.line_count <> coalesce(l.n, 0) OR o.total <> coalesce(l.amount, 0) LIMIT 10"
    ).fetchall()
    return [(row[0], row[1], row[2]) for row in rows]  # type: ignore[misc]


def count_orders(dsn: str) -> int:
    """Counts the orders in PostgreSQL."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM inventory.orders").fetchone()
    return int(str(row[0])) if row else 0


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
    consumed: ConsumerReport
    """What a process with a consumer has read up to the end."""
    commit_records: int
    """Commits of the output that have documents."""
    certificate: Certificate

    @property
    def documents(self) -> int:
        """Documents in the output, without tombstones."""
        return self.certificate.outputs - self.certificate.deletes

    @property
    def is_measured(self) -> bool:
        """Says if there was enough to judge: every part of the comparison has seen something."""
        found = self.certificate
        return all(
            (found.transactions, found.commits, self.documents, self.orders, found.delay_ms, self._read)
        )

    @property
    def has_passed(self) -> bool:
        """Says if something was measured and nothing was wrong with it."""
        return self.is_measured and self.certificate.is_clean and not self.consumed_wrong

    @property
    def consumed_wrong(self) -> int:
        """Counts what a consumer was not given as it was committed: broken, disordered, missing, too much."""
        read, found = self.consumed, self.certificate
        pairs = (
            (read.changes.transactions, found.transactions),
            (read.changes.records, found.events),
            (read.output.transactions, self.commit_records),
            (read.output.records, found.outputs),
        )
        return read.wrong + sum(abs(have - wanted) for have, wanted in pairs)

    @property
    def _read(self) -> int:
        return min(self.consumed.changes.transactions, self.consumed.output.transactions)

    def rows(self) -> Iterator[tuple[str, str]]:
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
        read = self.consumed
        whole = f"{read.changes.transactions:,} transactions, {read.output.transactions:,} commits"
        view = f"{whole} read whole by another process, {self.consumed_wrong:,} broken or missing"
        yield "(d) a consumer's view", view
        yield "result", self.verdict()

    def verdict(self) -> str:
        """Says that the run passed, or why not."""
        if self.certificate.findings:
            return f"FAILED: {', '.join(self.certificate.examples)}"
        if self.is_measured and self.consumed_wrong:
            return f"FAILED: {self.consumed_wrong:,} differences in a consumer's view"
        return "passed" if self.is_measured else "FAILED: nothing was measured"

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "writes": asdict(self.writes),
            "orders": self.orders,
            "documents": self.documents,
            "naive_published": self.naive_published,
            "naive_torn": self.naive_torn,
            "consumed": asdict(self.consumed),
            "certificate": json.loads(self.certificate.to_json()),
            "passed": self.has_passed,
        }

    def _deviations(self) -> int:
        found = self.certificate
        wrong = found.wrong_lsn + found.order_violations + found.lost + found.repeated
        return wrong + found.uncovered + found.inconsistent_states
