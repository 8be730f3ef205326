"""Shows the loop that follows a source, and its measurements, to other threads: as metrics, and over HTTP."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from operator import itemgetter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from slackwater.cuts import FrontierState
from slackwater.observe.telemetry import Samples, make_registry
from slackwater.protocol import (
    Clock,
    Cut,
    OpenTransaction,
    PublishedCut,
    encode_cut,
    epoch_ms,
    format_position,
    metrics,
)
from slackwater.protocol.metrics import DECISION_KINDS, Distribution, Metric
from slackwater.protocol.tracing import TracedTransaction, TransactionSpan, sidecar_spans
from slackwater_sidecar.commits import SourceCommits
from slackwater_sidecar.status import SidecarStatus, describe_open
from slackwater_sidecar.watch import ConnectorWatch

if TYPE_CHECKING:  # only those import a web server that serve
    from starlette.routing import Route

SendSpan = Callable[[TransactionSpan], None]
"""Sends a span on; must not block."""

_MEASURED_EVERY_SECONDS = 0.1
"""How often the size of a cut is measured: that takes an encoding."""
_REMEMBERED_POLLS = 10_000
"""How many polls are remembered until their commits are published; of more, the oldest."""


class SourceMonitor:
    """Shows one source as it is seen from outside its loop.

    Written by the source's thread only. Any thread may read: every field is replaced as a whole, so a reader
    sees values that are at most a moment apart.

    ``send`` takes the spans of the share ``ratio`` of the transactions, from 0 to 1, whose cut this sidecar
    has written: another one traces its own. None: nobody traces.
    """

    def __init__(self, source: str, clock: Clock, send: SendSpan | None = None, ratio: float = 1.0) -> None:
        self.source = source
        self.clock = clock
        self._send = send
        self._ratio = ratio
        self.watch: ConnectorWatch | None = None
        """Knows the source's connector, whose faults hold back cuts; None: nothing is known of it."""
        self.status: SidecarStatus | None = None
        """As of the last status interval; None before the first."""
        self.waits_for: str | None = None
        """Why the loop could not begin yet."""
        self.commits: SourceCommits | None = None
        """Writes the source's commit records; None: nobody does."""
        self.failure: str | None = None
        """The reason why the source is no longer followed; None while it is, and after a request to stop."""
        self.has_ended = False
        self.newest: Cut | None = None
        """The newest cut that this process published or began with."""
        self.records = 0
        self.events = 0
        self.transactions = 0
        self.cuts = 0
        self.skipped = 0
        self.ahead = 0
        self.redis_corrections = 0
        self.decisions = dict.fromkeys(DECISION_KINDS, 0)
        self.publication_seconds = Distribution(metrics.PUBLICATION_SECONDS.buckets)
        self.delay_seconds = Distribution(metrics.PUBLICATION_DELAY_SECONDS.buckets)
        self.cut_bytes = Distribution(metrics.CUT_BYTES.buckets)
        self._polls: deque[tuple[int, float]] = deque()
        """The newest END of polls, ascending, and when it was read, until it is published."""
        self._newest_lsn = 0
        self._measured_at = float("-inf")
        self._turned_at = clock.monotonic()

    def record_turn(self) -> None:
        """Records that the loop is alive."""
        self._turned_at = self.clock.monotonic()

    def begin_timeline(self, newest: Cut | None) -> None:
        """Notes the cut from which a timeline is followed; delays are measured again."""
        self.newest = newest
        self._polls.clear()
        self._newest_lsn = 0
        self._measured_at = float("-inf")

    def record_read(self, newest_lsn: int) -> None:
        """Notes up to where ENDs have been read by now."""
        if newest_lsn > self._newest_lsn:
            self._newest_lsn = newest_lsn
            if len(self._polls) < _REMEMBERED_POLLS:
                self._polls.append((newest_lsn, self.clock.monotonic()))

    def record_written(self, published: Sequence[PublishedCut]) -> None:
        """Sends the spans of sampled transactions of cuts that this process has written now."""
        if self._send is None:
            return
        for each in published:
            cut = each.cut
            for transaction, ended_ms in zip(cut.transactions, cut.ends_ms, strict=False):
                lsn = transaction.commit_lsn
                traced = TracedTransaction(self.source, cut.timeline, transaction.xid, lsn)
                if ended_ms and not transaction.is_snapshot and traced.is_sampled(self._ratio):
                    ends = (ended_ms, self._read_ms(lsn), each.written_ms or epoch_ms(self.clock.now()))
                    for span in sidecar_spans(traced, transaction.commit_ts_ms, ends):
                        self._send(span)

    def _read_ms(self, lsn: int) -> int:
        """Returns when the END of a transaction was read, if that is known; else the present time."""
        now = self.clock.monotonic()
        at = bisect_left(self._polls, lsn, key=itemgetter(0))
        seconds = now - self._polls[at][1] if at < len(self._polls) else 0.0
        return epoch_ms(self.clock.now()) - round(1000 * seconds)

    def record_cuts(self, cuts: Sequence[Cut], started: float, ended: float) -> None:
        """Counts cuts that were published, at least one; the last publication took from start to end."""
        before, newest = self.newest, cuts[-1]
        is_first = before is None or before.timeline != newest.timeline
        self.events += newest.event_count - (0 if is_first or before is None else before.event_count)
        self.transactions += sum(len(cut.transactions) for cut in cuts)
        self.skipped += sum(len(cut.skipped) for cut in cuts)
        self.cuts += len(cuts)
        self.newest = newest
        self.publication_seconds.observe(ended - started)
        while self._polls and self._polls[0][0] <= newest.lsn:
            self.delay_seconds.observe(ended - self._polls.popleft()[1])
        if ended - self._measured_at >= _MEASURED_EVERY_SECONDS:
            self._measured_at = ended
            self.cut_bytes.observe(len(encode_cut(newest)))

    @property
    def silent_seconds(self) -> float:
        """Seconds since the loop last turned."""
        return self.clock.monotonic() - self._turned_at

    @property
    def state(self) -> FrontierState:
        """The state of the source, also before and after its loop."""
        if self.failure is not None:
            return FrontierState.FAILED
        if self.has_ended:
            return FrontierState.STOPPED
        return FrontierState.WAITING if self.status is None else self.status.state

    def not_ready(self) -> str | None:
        """Returns why there is no cut and none can be made, or why none can follow; None when all is well."""
        status = self.status
        if self.failure is not None or self.has_ended:
            return self.failure or "it was stopped"
        if self.waits_for is not None:
            return self.waits_for
        if status is None:
            return "the sidecar is starting"
        if status.kafka_error is not None:
            return status.kafka_error
        if status.state.is_refusal or (status.state is FrontierState.WAITING and self.newest is None):
            return f"{status.state}: {status.detail}"
        return None


def sidecar_registry(monitors: Sequence[SourceMonitor]) -> CollectorRegistry:
    """Returns a registry with the metrics of all sources of a process; any thread may ask it."""
    return make_registry(metrics.SIDECAR_METRICS, lambda metric: list(_samples(metric, monitors)))


def _samples(metric: Metric, monitors: Sequence[SourceMonitor]) -> Samples:
    for monitor in monitors:
        found = _READ[metric](monitor)
        for labels, value in [((), found)] if isinstance(found, int | float | Distribution) else found:
            yield (monitor.source, *labels), value


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


_READ: Mapping[Metric, Callable[[SourceMonitor], float | Distribution | Samples]] = {
    metrics.FRONTIER_LSN: lambda m: m.newest.lsn if m.newest else 0,
    metrics.TIMELINE: _timeline,
    metrics.COMMIT_AGE: _commit_age,
    metrics.STATE: _states,
    metrics.LAST_TURN_AGE: lambda m: m.silent_seconds,
    metrics.OPEN_TRANSACTIONS: lambda m: len(_open(m)),
    metrics.OLDEST_OPEN_AGE: _oldest_age,
    metrics.OBSTACLES: lambda m: m.status.obstacles if m.status else 0,
    metrics.STALE_ENDS: lambda m: m.status.stale_ends if m.status else 0,
    metrics.TROUBLE: _trouble,
    metrics.PARTITIONS_READ: lambda m: m.status.partitions_read if m.status else 0,
    metrics.PARTITIONS_PAUSED: lambda m: m.status.partitions_paused if m.status else 0,
    metrics.HELD_BACK_OFFSETS: lambda m: m.status.held_back_offsets if m.status else 0,
    metrics.QUEUE_LENGTH: lambda m: m.status.queued_transactions if m.status else 0,
    metrics.RECORDS_READ: lambda m: m.records,
    metrics.EVENTS: lambda m: m.events,
    metrics.TRANSACTIONS: lambda m: m.transactions,
    metrics.CUTS: lambda m: m.cuts,
    metrics.SKIPPED_TRANSACTIONS: lambda m: m.skipped,
    metrics.AHEAD_MARKERS: lambda m: m.ahead,
    metrics.REDIS_CORRECTIONS: lambda m: m.redis_corrections,
    metrics.DECISIONS: lambda m: [((kind,), float(count)) for kind, count in m.decisions.items()],
    metrics.PUBLICATION_SECONDS: lambda m: m.publication_seconds,
    metrics.PUBLICATION_DELAY_SECONDS: lambda m: m.delay_seconds,
    metrics.CUT_BYTES: lambda m: m.cut_bytes,
}


_SIZES = [field.name for field in fields(SidecarStatus) if field.default == 0]
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
        **{name: getattr(status, name, 0) for name in _SIZES},
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
