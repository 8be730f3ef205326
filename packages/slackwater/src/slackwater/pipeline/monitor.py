"""The measurements of a run and the spans of its transactions, for monitoring from outside."""

import logging
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from slackwater.protocol import SNAPSHOT_XID, Clock, SystemClock, epoch_ms, metrics
from slackwater.protocol.metrics import COMPONENTS, LOG_LEVELS, Distribution, Metric
from slackwater.protocol.tracing import TracedTransaction, TransactionSpan, pipeline_spans

if TYPE_CHECKING:  # it loads what plans batches, which need not be there before Spark starts
    from slackwater.pipeline.progress import BatchProgress

Value = float | Distribution
Values = Iterable[tuple[tuple[str, ...], Value]]
"""The values of the labels other than source and pipeline, and the value."""


_COUNTED: Final[Mapping[Metric, Callable[["BatchProgress"], int]]] = {
    metrics.RUN_BATCHES: lambda _: 1,
    metrics.RUN_COVERED_BATCHES: attrgetter("was_covered"),
    metrics.RUN_EVENTS: attrgetter("events"),
    metrics.RUN_TRANSACTIONS: attrgetter("transactions"),
    metrics.RUN_DOCUMENTS: attrgetter("documents"),
    metrics.RUN_DELETES: attrgetter("deletes"),
}
_PARTS: Final = (("plan",), ("read", "evaluate", "schedule"), ("state",), ("produce", "commit"))
"""The parts of a batch that belong to each step after the wait for it."""

_lsn = attrgetter("lsn")


class RunMonitor:
    """Counts what a run does, batch by batch. It is informed by the run and requests nothing.

    One thread informs it; any thread may read. A turn is a step of the run: of its start, or of the loop that
    searches for a batch, runs it, and makes it visible.
    """

    def __init__(self, pipeline: str, source: str, clock: Clock | None = None) -> None:
        self.pipeline = pipeline
        self.source = source
        self._clock = clock or SystemClock()
        self._started = self._clock.now().timestamp()
        self._turned_at = self._clock.monotonic()
        self._is_ready = False
        self._newest: BatchProgress | None = None
        self._counts: Counter[Metric] = Counter()
        self._parts: defaultdict[str, float] = defaultdict(float)
        self._stages: defaultdict[int, float] = defaultdict(float)
        self._delay = Distribution(metrics.RUN_DELAY.buckets)
        self._components = {
            component: Distribution(metrics.RUN_COMPONENT_DELAY.buckets) for component in COMPONENTS
        }
        self._durations = Distribution(metrics.RUN_BATCH_SECONDS.buckets)
        self._records = dict.fromkeys(LOG_LEVELS, 0)
        self._values: Mapping[Metric, Callable[[], Values]] = {
            metrics.RUN_STARTED: lambda: [((), self._started)],
            metrics.RUN_LAST_TURN_AGE: lambda: [((), self.silent_seconds)],
            metrics.RUN_COMMIT_LSN: lambda: [((), float(self._newest.commit_lsn if self._newest else 0))],
            metrics.RUN_COMMIT_AGE: self._commit_age,
            **{metric: partial(self._count, metric) for metric in _COUNTED},
            metrics.RUN_DELAY: lambda: [((), self._delay)],
            metrics.RUN_COMPONENT_DELAY: lambda: [
                ((component,), values) for component, values in self._components.items()
            ],
            metrics.RUN_BATCH_SECONDS: lambda: [((), self._durations)],
            metrics.RUN_PART_SECONDS: lambda: [((p,), value) for p, value in sorted(self._parts.items())],
            metrics.RUN_STAGE_SECONDS: lambda: _by_stage(self._stages),
            metrics.RUN_STATE_BYTES: lambda: _by_stage(self._newest.state_bytes if self._newest else {}),
            metrics.RUN_WITHHELD_KEYS: lambda: [
                ((view,), float(n)) for view, n in (self._newest.withheld if self._newest else {}).items()
            ],
            metrics.RUN_LOG_RECORDS: lambda: [((level,), float(n)) for level, n in self._records.items()],
        }

    def record_turn(self, is_current: bool = False) -> None:
        """Records a step of the run; `is_current` means that the views show all cuts that exist."""
        self._turned_at = self._clock.monotonic()
        self._is_ready = self._is_ready or is_current

    @property
    def silent_seconds(self) -> float:
        """The seconds since the last step of the run."""
        return self._clock.monotonic() - self._turned_at

    def not_ready(self) -> str | None:
        """Returns why the views may be out of date; None once a batch is visible or none was missing."""
        if self._is_ready:
            return None
        return "it has made no batch visible since it started, and has not found that none is missing"

    def record_batch(self, batch: "BatchProgress") -> None:
        """Counts a visible batch."""
        self._counts.update({metric: count(batch) for metric, count in _COUNTED.items()})
        for part, seconds in batch.seconds.items():
            self._parts[part] += seconds
        for work in batch.stage_work:
            self._stages[work.stage] += work.total_us / 1_000_000
        self._durations.observe(sum(batch.seconds.values()))
        self._delay.observe(max(0.0, batch.delay.total_seconds()))
        for component, seconds in component_seconds(batch).items():
            self._components[component].observe(seconds)
        self._newest = batch
        self.record_turn(True)

    def count_log_record(self, record: logging.LogRecord) -> None:
        """Counts a record of the log; called by any thread, under the lock of a handler."""
        if record.levelno >= logging.WARNING:
            self._records["error" if record.levelno >= logging.ERROR else "warning"] += 1

    def read(self, metric: Metric) -> list[tuple[tuple[str, ...], Value]]:
        """Returns the samples of a metric of :data:`slackwater.protocol.metrics.RUN_METRICS`."""
        return [((self.source, self.pipeline, *labels), value) for labels, value in self._values[metric]()]

    def _count(self, metric: Metric) -> Values:
        return [((), float(self._counts[metric]))]

    def _commit_age(self) -> Values:
        """Yields nothing before the first batch, because an age of 0 would look healthy."""
        if self._newest is not None:
            yield (), self._clock.now().timestamp() - self._newest.committed_at.timestamp()


def _by_stage(values: Mapping[int, float]) -> Values:
    return [((str(stage),), float(value)) for stage, value in sorted(values.items())]


def component_seconds(batch: "BatchProgress") -> Mapping[str, float]:
    """Returns what each component has added to the delay of the newest transaction of a batch.

    It is empty if it is not known when the transaction entered Kafka and its cut. Three clocks are involved,
    so negative durations are replaced by 0.
    """
    cut = batch.cuts[-1] if batch.cuts else None
    if cut is None or not cut.ended_ms or not cut.written_ms or cut.lsn != batch.commit_lsn:
        return {}
    moments = (epoch_ms(batch.committed_at), cut.ended_ms, cut.written_ms, epoch_ms(batch.visible_at))
    steps = zip(COMPONENTS, moments, moments[1:], strict=False)
    return {component: max(0, end - begin) / 1000 for component, begin, end in steps}


def batch_spans(batch: "BatchProgress", ratio: float) -> Iterator[TransactionSpan]:
    """Yields the spans of a visible batch's transactions, of which this ratio is traced, from 0 to 1."""
    for xid, lsn, _ in batch.commits:
        traced = TracedTransaction(batch.source, batch.timeline, xid, lsn)
        if xid == SNAPSHOT_XID or not traced.is_sampled(ratio):
            continue
        place = bisect_left(batch.cuts, lsn, key=_lsn)
        if place < len(batch.cuts) and (cut_ms := batch.cuts[place].written_ms):
            yield from pipeline_spans(traced, batch.pipeline, cut_ms, _ends_ms(batch))


def _ends_ms(batch: "BatchProgress") -> list[int]:
    """Returns when the wait for a batch, and each of its steps, ended, counted back from its visibility."""
    seconds = [sum(batch.seconds.get(part, 0.0) for part in parts) for parts in _PARTS]
    visible_ms = epoch_ms(batch.visible_at)
    left = accumulate(reversed(seconds), initial=0.0)
    return [visible_ms - round(each * 1000) for each in left][::-1]
