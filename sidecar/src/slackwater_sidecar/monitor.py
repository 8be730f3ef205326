"""Shows the loop that follows a source, and its measurements, to other threads."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slackwater.cuts import FrontierState
from slackwater.protocol import Clock, CommittedTransaction, Cut, PublishedCut, encode_cut, epoch_ms
from slackwater.protocol.metrics import (
    CUT_BYTES,
    DECISION_KINDS,
    PUBLICATION_DELAY_SECONDS,
    PUBLICATION_SECONDS,
    Distribution,
)
from slackwater.protocol.tracing import TracedTransaction, TransactionSpan, sidecar_spans
from slackwater_sidecar.status import SidecarStatus
from slackwater_sidecar.watch import ConnectorWatch

SendSpan = Callable[[TransactionSpan], None]
"""Sends a span on; must not block."""

_REMEMBERED_POLLS = 10_000
"""The number of polls, and of sampled transactions, that are remembered until their cut is written."""


class _Found(NamedTuple):
    transaction: CommittedTransaction
    ended_ms: int
    read_ms: int


class CutTracer:
    """Notes when sampled transactions were read, and sends their spans when their cut is written.

    A cut that another sidecar has written is traced by that one. Used by the source's thread.

    Args:
        source: Whose transactions.
        ratio: The share of them that is traced, from 0 to 1.
        send: Takes the spans.
        clock: The time.
    """

    def __init__(self, source: str, ratio: float, send: SendSpan, clock: Clock) -> None:
        self._source = source
        self._ratio = ratio
        self._send = send
        self._clock = clock
        self._polls: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED_POLLS)
        """The newest END of polls, and when it was read."""
        self._found: deque[_Found] = deque(maxlen=_REMEMBERED_POLLS)

    def record_read(self, newest_lsn: int) -> None:
        """Notes up to where ENDs have been read by now."""
        if not self._polls or newest_lsn > self._polls[-1][0]:
            self._polls.append((newest_lsn, self._now_ms()))

    def record_found(self, cuts: Sequence[Cut]) -> None:
        """Notes the sampled transactions of cuts that are to be written."""
        for cut in cuts:
            for transaction, ended_ms in zip(cut.transactions, cut.ends_ms, strict=False):
                traced = self._traced(cut, transaction)
                if ended_ms and not transaction.is_snapshot and traced.is_sampled(self._ratio):
                    read_ms = self._read_ms(transaction.commit_lsn)
                    self._found.append(_Found(transaction, ended_ms, read_ms))

    def record_written(self, published: Sequence[PublishedCut]) -> None:
        """Sends the spans of the sampled transactions of cuts that were written now."""
        now_ms = self._now_ms()
        for each in published:
            while self._found and self._found[0].transaction.commit_lsn <= each.cut.lsn:
                found = self._found.popleft()
                if found.transaction.commit_lsn > each.cut.previous_lsn:
                    ends = (found.ended_ms, found.read_ms, each.written_ms or now_ms)
                    traced = self._traced(each.cut, found.transaction)
                    for span in sidecar_spans(traced, found.transaction.commit_ts_ms, ends):
                        self._send(span)

    def _traced(self, cut: Cut, transaction: CommittedTransaction) -> TracedTransaction:
        return TracedTransaction(self._source, cut.timeline, transaction.xid, transaction.commit_lsn)

    def _read_ms(self, lsn: int) -> int:
        """Returns when the END of a transaction was read; LSNs are asked for in ascending order."""
        while len(self._polls) > 1 and self._polls[0][0] < lsn:
            self._polls.popleft()
        return self._polls[0][1] if self._polls else self._now_ms()

    def _now_ms(self) -> int:
        return epoch_ms(self._clock.now())


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
        """The reason why the source is no longer followed; None while it is, and after a request to stop."""
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
        """Records that the loop is alive."""
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
