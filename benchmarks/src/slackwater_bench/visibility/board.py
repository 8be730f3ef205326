"""What the probe has seen so far: samples to be fetched once, Prometheus metrics."""

import threading
from collections import deque
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from slackwater_bench.visibility.matching import Sample

BUCKETS_SECONDS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
KEPT_SAMPLES = 500_000
"""Older ones are dropped when nobody fetches them; the metrics keep counting."""


class Board:
    """Written by the thread that reads Kafka, read by those that serve HTTP."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._delay = Histogram(
            "slackwater_commit_to_visible_seconds",
            "From the commit in the database to visibility for a read_committed consumer.",
            registry=self.registry,
            buckets=BUCKETS_SECONDS,
        )
        self._waiting = Gauge(
            "slackwater_transactions_not_visible",
            "Transactions whose END record was read and that no commit record covers yet.",
            registry=self.registry,
        )
        self._commits = Counter(
            "slackwater_commit_records", "Commit records that became visible.", registry=self.registry
        )
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=KEPT_SAMPLES)

    def post(self, samples: Iterable[Sample], *, waiting: int, commits: int) -> None:
        """Adds what one poll of the topics gave."""
        found = list(samples)
        for sample in found:
            self._delay.observe(sample.delay_ms / 1000)
        self._waiting.set(waiting)
        self._commits.inc(commits)
        with self._lock:
            self._samples.extend(found)

    def take(self) -> list[Sample]:
        """All samples since the call before."""
        with self._lock:
            samples = list(self._samples)
            self._samples.clear()
        return samples
