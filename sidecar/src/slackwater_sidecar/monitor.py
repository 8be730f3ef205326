"""What other threads may know of the loop that follows a source."""

from dataclasses import dataclass

from slackwater_markers import FrontierState
from slackwater_protocol import Clock, Cut
from slackwater_protocol.metrics import (
    CUT_BYTES,
    DECISION_KINDS,
    PUBLICATION_DELAY_SECONDS,
    PUBLICATION_SECONDS,
)
from slackwater_sidecar.distribution import Distribution
from slackwater_sidecar.status import SidecarStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Sizes inside a sidecar, as of its last status interval."""

    partitions_read: int = 0
    partitions_paused: int = 0
    queued_transactions: int = 0
    obstacles: int = 0
    stale_ends: int = 0


class SourceMonitor:
    """One source as seen from outside its loop.

    Written by the source's thread only. Any thread may read: every field is replaced as a whole, so a reader
    sees values that are at most a moment apart.
    """

    def __init__(self, source: str, clock: Clock) -> None:
        self.source = source
        self.clock = clock
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
        self._turned_at = clock.monotonic()

    def turned(self) -> None:
        """Says that the loop lives."""
        self._turned_at = self.clock.monotonic()

    @property
    def silent_seconds(self) -> float:
        """Time since the loop last turned."""
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
        """Why there is no cut and none can be made, or why none can follow; None when all is well."""
        status = self.status
        if self.failure is not None or self.has_ended:
            return self.failure or "it was stopped"
        if self.waits_for is not None:
            return self.waits_for
        if status is None:
            return "the sidecar is starting"
        if status.kafka_error is not None:
            return status.kafka_error
        if status.state in _UNUSABLE or (status.state is FrontierState.WAITING and self.newest is None):
            return f"{status.state}: {status.detail}"
        return None


_UNUSABLE = frozenset({FrontierState.BAD_INPUT, FrontierState.MISCONFIGURED, FrontierState.REGRESSED})
