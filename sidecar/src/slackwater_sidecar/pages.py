"""What others see of a sidecar over HTTP: metrics, health, readiness and status."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from slackwater.cuts import FrontierState
from slackwater.observe.exposition import make_registry
from slackwater.protocol import OpenTransaction, format_position, metrics
from slackwater.protocol.metrics import Distribution, Metric
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.status import describe_open

if TYPE_CHECKING:  # only those import a web server that serve
    from starlette.routing import Route

Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values of the labels beyond the source, and the value."""


def sidecar_registry(monitors: Sequence[SourceMonitor]) -> CollectorRegistry:
    """Returns a registry with the metrics of all sources of a process; any thread may ask it."""
    return make_registry(metrics.SIDECAR_METRICS, lambda metric: list(_samples(metric, monitors)))


def _samples(
    metric: Metric, monitors: Sequence[SourceMonitor]
) -> Iterator[tuple[tuple[str, ...], float | Distribution]]:
    for monitor in monitors:
        if metric in _DISTRIBUTIONS:
            yield (monitor.source,), _DISTRIBUTIONS[metric](monitor)
        else:
            for labels, value in _READ[metric](monitor):
                yield (monitor.source, *labels), value


def _one(read: Callable[[SourceMonitor], float]) -> Callable[[SourceMonitor], Samples]:
    return lambda monitor: [((), read(monitor))]


def _open(monitor: SourceMonitor) -> Sequence[OpenTransaction]:
    return monitor.status.open if monitor.status else ()


def _wall_ms(monitor: SourceMonitor) -> float:
    return monitor.clock.now().timestamp() * 1000


def _oldest_age(monitor: SourceMonitor) -> float:
    since = [t.since_ms for t in _open(monitor)]
    return max(0.0, _wall_ms(monitor) - min(since)) / 1000 if since else 0.0


def _commit_age(monitor: SourceMonitor) -> Samples:
    """Nothing before the first cut: an age of 0 would look healthy."""
    if monitor.newest is not None:
        yield (), (_wall_ms(monitor) - monitor.newest.commit_ts_ms) / 1000


def _states(monitor: SourceMonitor) -> Samples:
    now = monitor.state
    return [((str(state),), float(state is now)) for state in FrontierState]


def _trouble(monitor: SourceMonitor) -> Samples:
    status = monitor.status
    kafka = monitor.waits_for is not None or (status is not None and status.kafka_error is not None)
    redis = status is not None and status.redis_error is not None
    return [((name,), float(is_away)) for name, is_away in (("kafka", kafka), ("redis", redis))]


def _timeline(monitor: SourceMonitor) -> float:
    if monitor.status is not None:
        return monitor.status.timeline
    return monitor.newest.timeline if monitor.newest else 0


_READ: Mapping[Metric, Callable[[SourceMonitor], Samples]] = {
    metrics.FRONTIER_LSN: _one(lambda m: m.newest.lsn if m.newest else 0),
    metrics.TIMELINE: _one(_timeline),
    metrics.COMMIT_AGE: _commit_age,
    metrics.STATE: _states,
    metrics.LAST_TURN_AGE: _one(lambda m: m.silent_seconds),
    metrics.OPEN_TRANSACTIONS: _one(lambda m: len(_open(m))),
    metrics.OLDEST_OPEN_AGE: _one(_oldest_age),
    metrics.OBSTACLES: _one(lambda m: m.gauges.obstacles),
    metrics.STALE_ENDS: _one(lambda m: m.gauges.stale_ends),
    metrics.TROUBLE: _trouble,
    metrics.PARTITIONS_READ: _one(lambda m: m.gauges.partitions_read),
    metrics.PARTITIONS_PAUSED: _one(lambda m: m.gauges.partitions_paused),
    metrics.HELD_BACK_OFFSETS: _one(lambda m: m.gauges.held_back_offsets),
    metrics.QUEUE_LENGTH: _one(lambda m: m.gauges.queued_transactions),
    metrics.RECORDS_READ: _one(lambda m: m.records),
    metrics.EVENTS: _one(lambda m: m.events),
    metrics.TRANSACTIONS: _one(lambda m: m.transactions),
    metrics.CUTS: _one(lambda m: m.cuts),
    metrics.SKIPPED_TRANSACTIONS: _one(lambda m: m.skipped),
    metrics.AHEAD_MARKERS: _one(lambda m: m.ahead),
    metrics.REDIS_CORRECTIONS: _one(lambda m: m.redis_corrections),
    metrics.DECISIONS: lambda m: [((kind,), float(count)) for kind, count in m.decisions.items()],
}

_DISTRIBUTIONS: Mapping[Metric, Callable[[SourceMonitor], Distribution]] = {
    metrics.PUBLICATION_SECONDS: lambda m: m.publication_seconds,
    metrics.PUBLICATION_DELAY_SECONDS: lambda m: m.delay_seconds,
    metrics.CUT_BYTES: lambda m: m.cut_bytes,
}


BLOCKED_AFTER = timedelta(seconds=30)
"""A loop that has not turned for longer is not healthy; one turn may wait for Kafka for seconds."""


def sidecar_routes(monitors: Sequence[SourceMonitor]) -> "list[Route]":
    """Returns the pages of a process that follows these sources."""
    from slackwater.command.http_server import service_routes  # which takes a while to import

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
        "open_transactions": [_open_json(t) for t in (status.open if status else ())],
    }


def _open_json(transaction: OpenTransaction) -> dict[str, object]:
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
