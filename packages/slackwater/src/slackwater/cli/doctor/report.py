"""What the doctor says of a source, for programs: ``slackwater doctor --json`` and the control plane."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slackwater.cli.doctor.facts import Finding, SourceFacts
from slackwater.control import PipelineNode
from slackwater.protocol import OpenTransaction, format_position


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedPartition:
    """A partition that rows of an open transaction are read from."""

    first: int | None
    """Offset of the first row that was read of it; None: there is none yet."""
    next: int
    """The next offset that the sidecar reads."""
    end: int | None
    """Where readers of committed records stop now; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedTransaction:
    """A transaction that is incomplete for longer than the sidecar's threshold."""

    xid: int
    commit_lsn: str | None
    """As PostgreSQL writes it; None: its END was not read."""
    since_ms: int
    """Since when it is waited for, milliseconds since the epoch."""
    expected: Mapping[str, int]
    """Rows by table, as END counts them."""
    received: Mapping[str, int]
    """Rows by table."""
    partitions: Mapping[str, AwaitedPartition]
    """By topic/partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """All that can be learnt of a source at one moment, and what is wrong with it."""

    source: str
    is_healthy: bool
    """Nothing was found."""
    state: str | None
    """As its sidecar says; None: no sidecar has said anything, or Redis cannot be asked."""
    timeline: int | None
    """Of the newest cut."""
    frontier: str | None
    """Commit LSN of the newest cut, as PostgreSQL writes it; None: there is none."""
    delay_ms: int | None
    """By how much the newest cut's commit is older than the time of the report."""
    newest_end: str | None
    """Commit LSN of the newest END in the transaction topic."""
    without_topic: tuple[str, ...]
    """Tables that count as empty, since they have no topic."""
    open_transactions: tuple[AwaitedTransaction, ...]
    """The one that is waited for first; its successors behind it."""
    pipelines: tuple[PipelineNode, ...]
    """Pipelines that read the source."""
    findings: tuple[Finding, ...]
    """The most fundamental first."""


def make_report(facts: SourceFacts, findings: Sequence[Finding]) -> SourceReport:
    """Puts the facts and what was found into the form that programs get."""
    cut, status = facts.cut, facts.status
    return SourceReport(
        source=facts.source,
        is_healthy=not findings,
        state=str(status.state) if status else None,
        timeline=cut.timeline if cut else None,
        frontier=format_position(cut.lsn) if cut else None,
        delay_ms=facts.now_ms - cut.commit_ts_ms if cut else None,
        newest_end=format_position(facts.newest_end.commit_lsn) if facts.newest_end else None,
        without_topic=facts.without_topic,
        open_transactions=tuple(_awaited(transaction, facts) for transaction in facts.open),
        pipelines=facts.pipelines,
        findings=tuple(findings),
    )


def _awaited(transaction: OpenTransaction, facts: SourceFacts) -> AwaitedTransaction:
    return AwaitedTransaction(
        xid=transaction.xid,
        commit_lsn=format_position(transaction.commit_lsn) if transaction.commit_lsn else None,
        since_ms=transaction.since_ms,
        expected=transaction.expected,
        received=transaction.received,
        partitions={
            name: AwaitedPartition(
                first=first if first >= 0 else None, next=position, end=end_of(name, facts)
            )
            for name, (first, position) in sorted(transaction.places.items())
        },
    )


def end_of(name: str, facts: SourceFacts) -> int | None:
    """Returns where readers of committed records stop in ``topic/partition``; None: it is not known."""
    topic, _, number = name.rpartition("/")
    known = facts.partitions.get((topic, int(number)))
    return None if known is None else known.stable_end
