"""Answers the pages of a sidecar over HTTP: metrics, health, readiness, status."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from http import HTTPStatus

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from slackwater_protocol import OpenTransaction, format_position
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.status import describe_open

SILENT_AFTER = timedelta(seconds=30)
"""A loop that has not turned for so long is not healthy; one turn may wait for Kafka for seconds."""
_JSON = "application/json"

Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""


class SidecarPages:
    """Answers requests for the pages of one process. Thread-safe.

    Args:
        monitors: The sources it follows.
        registry: Holds the metrics.
    """

    def __init__(self, monitors: Sequence[SourceMonitor], registry: CollectorRegistry) -> None:
        self._monitors = monitors
        self._registry = registry
        self._pages: Mapping[str, Callable[[], Answer]] = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/status": self._status,
        }

    def answer(self, path: str) -> Answer:
        """Returns the page at a path, without query; one that lists the pages when there is none."""
        page = self._pages.get(path)
        if page is None:
            return _json(HTTPStatus.NOT_FOUND, {"error": f"no page {path}", "pages": list(self._pages)})
        return page()

    def _metrics(self) -> Answer:
        return HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)

    def _healthz(self) -> Answer:
        limit = SILENT_AFTER.total_seconds()
        silent = {m.source: m.silent_seconds for m in self._monitors if not m.has_ended}
        why = {s: f"its loop has not turned for {t:.0f} s" for s, t in silent.items() if t > limit}
        return _json(_ok(not why), {"healthy": not why, "why_not": why})

    def _readyz(self) -> Answer:
        reasons = {m.source: m.not_ready() for m in self._monitors}
        why = {source: reason for source, reason in reasons.items() if reason is not None}
        return _json(_ok(not why), {"ready": not why, "why_not": why})

    def _status(self) -> Answer:
        return _json(HTTPStatus.OK, {"sources": [_source(m) for m in self._monitors]})


def _source(monitor: SourceMonitor) -> dict[str, object]:
    status, cut = monitor.status, monitor.newest
    return {
        "source": monitor.source,
        "state": str(monitor.state),
        "detail": monitor.failure or monitor.waits_for or (status.detail if status else ""),
        "timeline": status.timeline if status else None,
        "frontier": format_position(cut.lsn) if cut else None,
        "newest_commit_ms": cut.commit_ts_ms if cut else None,
        "lag_ms": status.lag_ms if status else None,
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


def _ok(is_ok: bool) -> HTTPStatus:
    return HTTPStatus.OK if is_ok else HTTPStatus.SERVICE_UNAVAILABLE


def _json(status: HTTPStatus, content: Mapping[str, object]) -> Answer:
    return status, _JSON, json.dumps(content, indent=1).encode() + b"\n"
