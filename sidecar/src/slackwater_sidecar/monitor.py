"""Shows other threads the loop that follows a source, and what is measured of it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.cuts import FrontierState
from slackwater.protocol import Clock, Cut, PublishedCut, encode_cut
from slackwater.protocol.metrics import (
    CUT_BYTES,
    DECISION_KINDS,
    PUBLICATION_DELAY_SECONDS,
    PUBLICATION_SECONDS,
    Distribution,
)
from slackwater_sidecar.status import SidecarStatus
from slackwater_sidecar.tracing import CutTracer
from slackwater_sidecar.watch import ConnectorWatch

_MEASURED_EVERY_SECONDS = 0.1
"""How often the size of a cut is measured: that takes an encoding."""
_REMEMBERED_ENDS = 10_000


class CommitDelays:
    """Measures how long commits wait from when their END was read until they are published.

    Remembers the newest END of each poll, up to a limit: while nothing is published, the oldest are kept.
    """

    def __init__(self) -> None:
        self._read: deque[tuple[int, float]] = deque()
        self._newest = 0

    def record_read(self, newest_lsn: int, now: float) -> None:
        """Notes up to where ENDs have been read."""
        if newest_lsn > self._newest:
            self._newest = newest_lsn
            if len(self._read) < _REMEMBERED_ENDS:
                self._read.append((newest_lsn, now))

    def take_published(self, lsn: int, now: float) -> list[float]:
        """Returns the delays, in seconds, of commits at or below a cut that was published now."""
        result = []
        while self._read and self._read[0][0] <= lsn:
            result.append(now - self._read.popleft()[1])
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Holds sizes inside a sidecar, as of its last status interval."""

    partitions_read: int = 0
    partitions_paused: int = 0
    queued_transactions: int = 0
    obstacles: int = 0
    stale_ends: int = 0
    held_back_offsets: int = 0


class SourceMonitor:
    """Shows one source as it is seen from outside its loop.

    Written by the source's thread only. Any thread may read: every field is replaced as a whole, so a reader
    sees values that are at most a moment apart.
    """

    def __init__(self, source: str, clock: Clock, tracer: CutTracer | None = None) -> None:
        self.source = source
        self.tracer = tracer
        """Traces its transactions; None: nobody does."""
        self.clock = clock
        self.watch: ConnectorWatch | None = None
        """Knows the source's connector, whose faults hold back cuts; None: nothing is known of it."""
        self.status: SidecarStatus | None = None
        """As of the last status interval; None before the first."""
        self.waits_for: str | None = None
        """Why the loop could not begin yet."""
        self.failure: str | None = None
        """Why the source is followed no more; None while it is, or when it was asked to stop."""
        self.has_ended = False
        self.gauges = Gauges()
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
        self.publication_seconds = Distribution(PUBLICATION_SECONDS.buckets)
        self.delay_seconds = Distribution(PUBLICATION_DELAY_SECONDS.buckets)
        self.cut_bytes = Distribution(CUT_BYTES.buckets)
        self._delays = CommitDelays()
        self._measured_at = float("-inf")
        self._turned_at = clock.monotonic()

    def record_turn(self) -> None:
        """Notes that the loop lives."""
        self._turned_at = self.clock.monotonic()

    def begin_timeline(self, newest: Cut | None) -> None:
        """Notes the cut from which a timeline is followed; delays are measured again."""
        self.newest = newest
        self._delays = CommitDelays()
        self._measured_at = float("-inf")

    def record_read(self, newest_lsn: int) -> None:
        """Notes up to where ENDs have been read by now."""
        self._delays.record_read(newest_lsn, self.clock.monotonic())
        if self.tracer is not None:
            self.tracer.record_read(newest_lsn)

    def record_found(self, cuts: Sequence[Cut]) -> None:
        """Notes cuts that are to be written."""
        if self.tracer is not None:
            self.tracer.record_found(cuts)

    def record_written(self, published: Sequence[PublishedCut]) -> None:
        """Notes cuts that this process has written now."""
        if self.tracer is not None:
            self.tracer.record_written(published)

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
        for delay in self._delays.take_published(newest.lsn, ended):
            self.delay_seconds.observe(delay)
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
        """Says why there is no cut and none can be made, or why none can follow; None when all is well."""
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
