"""The pages of a sidecar: metrics, health, readiness and status. Imported only to serve them."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

from starlette.routing import Route

from slackwater.command.http_server import service_routes
from slackwater.protocol import OpenTransaction, format_position
from slackwater_sidecar.metrics import sidecar_registry
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.status import describe_open

BLOCKED_AFTER = timedelta(seconds=30)
"""A loop that has not turned for longer is not healthy; one turn may wait for Kafka for seconds."""


def sidecar_routes(monitors: Sequence[SourceMonitor]) -> list[Route]:
    """Returns the pages of a process that follows these sources."""
    return service_routes(
        sidecar_registry(monitors),
        silent=lambda: {m.source: m.silent_seconds for m in monitors if not m.has_ended},
        blocked_after=BLOCKED_AFTER,
        not_ready=lambda: {m.source: m.not_ready() for m in monitors},
        status=lambda: {"sources": [_source(m) for m in monitors]},
    )


def _source(monitor: SourceMonitor) -> dict[str, object]:
    status, cut = monitor.status, monitor.newest
    return {
        "source": monitor.source,
        "state": str(monitor.state),
        "detail": monitor.failure or monitor.waits_for or (status.detail if status else ""),
        "timeline": status.timeline if status else None,
        "frontier": format_position(cut.lsn) if cut else None,
        "newest_commit_ms": cut.commit_ts_ms if cut else None,
        "delay_ms": status.delay_ms if status else None,
        "event_count": cut.event_count if cut else 0,
        "records_read": monitor.records,
        "records_per_second": round(status.records_per_second) if status else 0,
        "silent_seconds": round(monitor.silent_seconds, 3),
        "kafka_error": status.kafka_error if status else None,
        "redis_error": status.redis_error if status else None,
        **asdict(monitor.gauges),
        "open_transactions": [_open(t) for t in (status.open if status else ())],
    }


def _open(transaction: OpenTransaction) -> dict[str, object]:
    lsn = transaction.commit_lsn
    return {
        "xid": transaction.xid,
        "commit_lsn": format_position(lsn) if lsn else None,
        "since_ms": transaction.since_ms,
        "expected": transaction.expected,
        "received": transaction.received,
        "places": {place: list(offsets) for place, offsets in transaction.places.items()},
        "text": describe_open(transaction),
    }
