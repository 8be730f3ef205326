"""The status of a sidecar, as a person sees it."""

from dataclasses import dataclass

from slackwater_markers import FrontierState
from slackwater_protocol import OpenTransaction, format_position


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarStatus:
    """A sidecar at one moment."""

    source: str
    timeline: int
    state: FrontierState
    detail: str
    """What a person needs to know beyond the state; empty when all is well."""
    lsn: int
    """Commit LSN of the frontier; 0 before the first cut."""
    event_count: int
    """Change events at or below the frontier."""
    records_read: int
    """Records read from Kafka since the start of the process."""
    records_per_second: float
    """Since the status before."""
    lag_ms: int | None
    """Wall clock minus commit time of the newest cut; None before the first cut."""
    open: tuple[OpenTransaction, ...]
    """Transactions that have been incomplete for long, next first."""
    redis_error: str | None
    """Why Redis is not up to date; None when it is, or when there is none."""
    kafka_error: str | None = None
    """Why Kafka cannot be read, or the cut log not be written; None when all is well."""


def format_status(status: SidecarStatus) -> str:
    """Returns a status as one line; several when transactions have been open for long."""
    parts = [
        f"{status.source} {status.state}",
        f"frontier {status.timeline}/{format_position(status.lsn)}" if status.lsn else "no cut yet",
        f"{status.event_count:,} events",
        f"{status.records_per_second:,.0f} records/s",
    ]
    if status.lag_ms is not None:
        parts.append(f"newest commit {status.lag_ms / 1000:.1f} s ago")
    if status.redis_error:
        parts.append(f"Redis is behind: {status.redis_error.partition(';')[0]}")
    if status.detail:
        parts.append(status.detail)
    lines = [" | ".join(parts)]
    lines += [f"  waits for {describe_open(t)}" for t in status.open[:5]]
    return "\n".join(lines)


def describe_open(transaction: OpenTransaction) -> str:
    """Says which transaction is open, and what is missing where."""
    name = f"transaction {transaction.xid}" if transaction.xid else "the initial snapshot"
    at = f" (commit {format_position(transaction.commit_lsn)})" if transaction.commit_lsn else ""
    tables = sorted({*transaction.expected, *transaction.received})
    counts = ", ".join(
        f"{t} {transaction.received.get(t, 0)}/{transaction.expected.get(t, '?')}" for t in tables
    )
    return f"{name}{at}: {transaction.hint}" + (f"; rows read: {counts}" if counts else "")
