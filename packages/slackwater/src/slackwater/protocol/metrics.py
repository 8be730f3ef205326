"""The complete lists of the metrics that a sidecar, a run and a control plane expose at ``/metrics``.

Names carry their unit, in base units. Labels are bounded: sources, pipelines, views, states, kinds; never a
transaction, an offset or a text.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate


class MetricKind(StrEnum):
    """The behaviour of a metric over time."""

    COUNTER = "counter"
    """Only increases while a process runs."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of the list."""

    name: str
    """The name as it is exposed, with its unit; counters end in ``_total``."""
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ("source",)
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, ascending, without infinity."""


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.GAUGE, help=text, labels=("source", *labels))


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.COUNTER, help=text, labels=("source", *labels))


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name=name, kind=MetricKind.HISTOGRAM, help=text, buckets=buckets)


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_BYTES = tuple(float(4**exponent * 64) for exponent in range(9))

FRONTIER_LSN = _gauge("slackwater_frontier_lsn", "Commit LSN of the newest cut; 0 before the first.")
TIMELINE = _gauge("slackwater_timeline", "The current timeline of the source.")
COMMIT_AGE = _gauge(
    "slackwater_newest_commit_age_seconds", "Wall clock minus commit time of the newest cut's last commit."
)
STATE = _gauge("slackwater_state", "1 for the current state of the source, 0 for the other states.", "state")
LAST_TURN_AGE = _gauge(
    "slackwater_last_turn_age_seconds", "Time since the last iteration of the source's main loop."
)
OPEN_TRANSACTIONS = _gauge(
    "slackwater_open_transactions",
    "Transactions that have been incomplete for longer than the threshold; at most 100.",
)
OLDEST_OPEN_AGE = _gauge(
    "slackwater_oldest_open_transaction_age_seconds",
    "How long the oldest open transaction has been incomplete.",
)
OBSTACLES = _gauge("slackwater_obstacles", "Records that no cut can pass; at most 100.")
STALE_ENDS = _gauge(
    "slackwater_stale_ends", "ENDs read since the newest one that are not above it: repetitions."
)
TROUBLE = _gauge(
    "slackwater_dependency_trouble", "1 while a dependency (kafka, redis) does not answer.", "dependency"
)
PARTITIONS_READ = _gauge("slackwater_partitions_read", "Partitions of data topics that this process reads.")
PARTITIONS_PAUSED = _gauge(
    "slackwater_partitions_paused",
    "Partitions in which reading is paused because they are far ahead of others.",
)
HELD_BACK_OFFSETS = _gauge(
    "slackwater_held_back_offsets",
    "Offsets of the source's topics that cannot be read yet because their Kafka transaction is open.",
)
QUEUE_LENGTH = _gauge("slackwater_queued_transactions", "Transactions above the frontier whose END was read.")
RECORDS_READ = _counter("slackwater_records_read_total", "Records read from Kafka by this process.")
EVENTS = _counter("slackwater_events_total", "Change events in cuts that this process published.")
TRANSACTIONS = _counter(
    "slackwater_transactions_total", "Transactions with change events in cuts that this process published."
)
CUTS = _counter("slackwater_cuts_total", "Cuts that this process published.")
SKIPPED_TRANSACTIONS = _counter(
    "slackwater_skipped_transactions_total",
    "Incomplete transactions that were released by an operator's decision.",
)
AHEAD_MARKERS = _counter(
    "slackwater_ahead_publications_total",
    "Publications of markers of partitions that are ahead of the frontier.",
)
DECISIONS = _counter(
    "slackwater_decisions_total", "Operators' decisions (skip, timeline) that were carried out.", "kind"
)
REDIS_CORRECTIONS = _counter(
    "slackwater_redis_corrections_total",
    "How often Redis contradicted the cut log and was refilled.",
)
PUBLICATION_SECONDS = _histogram(
    "slackwater_publication_duration_seconds", "Time to write cuts to the cut log and Redis.", _SECONDS
)
PUBLICATION_DELAY_SECONDS = _histogram(
    "slackwater_publication_delay_seconds",
    "Time from reading an END record to publishing its commit; one sample per poll.",
    _SECONDS,
)
CUT_BYTES = _histogram(
    "slackwater_cut_bytes", "Encoded size of cuts; at most ten samples per second.", _BYTES
)

DEPENDENCIES = ("kafka", "redis")
"""Values of the label ``dependency``."""
DECISION_KINDS = ("skip", "timeline")
"""Values of the label ``kind``."""

SIDECAR_METRICS: tuple[Metric, ...] = (
    FRONTIER_LSN,
    TIMELINE,
    COMMIT_AGE,
    STATE,
    LAST_TURN_AGE,
    OPEN_TRANSACTIONS,
    OLDEST_OPEN_AGE,
    OBSTACLES,
    STALE_ENDS,
    TROUBLE,
    PARTITIONS_READ,
    PARTITIONS_PAUSED,
    HELD_BACK_OFFSETS,
    QUEUE_LENGTH,
    RECORDS_READ,
    EVENTS,
    TRANSACTIONS,
    CUTS,
    SKIPPED_TRANSACTIONS,
    AHEAD_MARKERS,
    DECISIONS,
    REDIS_CORRECTIONS,
    PUBLICATION_SECONDS,
    PUBLICATION_DELAY_SECONDS,
    CUT_BYTES,
)
"""Everything a sidecar exposes."""


def _run(name: str, kind: MetricKind, text: str, *labels: str, buckets: tuple[float, ...] = ()) -> Metric:
    return Metric(name=name, kind=kind, help=text, labels=("source", "pipeline", *labels), buckets=buckets)


RUN_STARTED = _run(
    "slackwater_run_start_time_seconds",
    MetricKind.GAUGE,
    "Start time of the run, since the epoch; it changes with each restart.",
)
RUN_LAST_TURN_AGE = _run(
    "slackwater_run_last_turn_age_seconds",
    MetricKind.GAUGE,
    "Time since the run last took a step; running a batch in Spark is one step.",
)
RUN_COMMIT_LSN = _run(
    "slackwater_run_commit_lsn",
    MetricKind.GAUGE,
    "The views show all commits up to this LSN; 0 before the first batch.",
)
RUN_COMMIT_AGE = _run(
    "slackwater_run_newest_commit_age_seconds",
    MetricKind.GAUGE,
    "Wall clock minus commit time of the newest commit that the views show; absent before the first.",
)
RUN_BATCHES = _run("slackwater_run_batches_total", MetricKind.COUNTER, "Batches that have become visible.")
RUN_COVERED_BATCHES = _run(
    "slackwater_run_covered_batches_total",
    MetricKind.COUNTER,
    "Batches that were already in the output because the answer to their commit had been lost.",
)
RUN_EVENTS = _run("slackwater_run_events_total", MetricKind.COUNTER, "Change events in visible batches.")
RUN_TRANSACTIONS = _run(
    "slackwater_run_transactions_total",
    MetricKind.COUNTER,
    "Transactions with change events in visible batches.",
)
RUN_DOCUMENTS = _run(
    "slackwater_run_documents_total", MetricKind.COUNTER, "Documents that were written, including deletes."
)
RUN_DELETES = _run("slackwater_run_deletes_total", MetricKind.COUNTER, "Deletes among the written documents.")
RUN_DELAY = _run(
    "slackwater_run_delay_seconds",
    MetricKind.HISTOGRAM,
    "Time from the commit of the newest transaction of each batch to its visibility.",
    buckets=_SECONDS,
)
RUN_COMPONENT_DELAY = _run(
    "slackwater_run_component_delay_seconds",
    MetricKind.HISTOGRAM,
    "Delay that connector, sidecar and pipeline each added; accurate up to clock differences.",
    "component",
    buckets=_SECONDS,
)
RUN_BATCH_SECONDS = _run(
    "slackwater_run_batch_duration_seconds",
    MetricKind.HISTOGRAM,
    "Time from choosing a batch to its visibility.",
    buckets=_SECONDS,
)
RUN_PART_SECONDS = _run(
    "slackwater_run_part_seconds_total",
    MetricKind.COUNTER,
    "Time that each part of processing batches has taken.",
    "part",
)
RUN_STAGE_SECONDS = _run(
    "slackwater_run_stage_seconds_total",
    MetricKind.COUNTER,
    "Total time of all tasks that evaluated a stage.",
    "stage",
)
RUN_STATE_BYTES = _run(
    "slackwater_run_state_bytes",
    MetricKind.GAUGE,
    "Size of the state of a stage, before compression.",
    "stage",
)
RUN_LOG_RECORDS = _run(
    "slackwater_run_log_records_total",
    MetricKind.COUNTER,
    "Warnings and errors that the process has logged.",
    "level",
)

COMPONENTS = ("connector", "sidecar", "pipeline")
"""Values of the label ``component``, in the order of the data."""
LOG_LEVELS = ("warning", "error")
"""Values of the label ``level``."""

RUN_METRICS: tuple[Metric, ...] = (
    RUN_STARTED,
    RUN_LAST_TURN_AGE,
    RUN_COMMIT_LSN,
    RUN_COMMIT_AGE,
    RUN_BATCHES,
    RUN_COVERED_BATCHES,
    RUN_EVENTS,
    RUN_TRANSACTIONS,
    RUN_DOCUMENTS,
    RUN_DELETES,
    RUN_DELAY,
    RUN_COMPONENT_DELAY,
    RUN_BATCH_SECONDS,
    RUN_PART_SECONDS,
    RUN_STAGE_SECONDS,
    RUN_STATE_BYTES,
    RUN_LOG_RECORDS,
)
"""Everything that a run of a pipeline exposes."""


PIPELINES = Metric(
    name="slackwater_pipelines",
    kind=MetricKind.GAUGE,
    help="Pipelines of the cluster that are in this state.",
    labels=("state",),
)
VIEW_DELAY = Metric(
    name="slackwater_view_delay_seconds",
    kind=MetricKind.GAUGE,
    help="Commit time of the database's newest cut minus that of the view; absent if unknown.",
    labels=("source", "pipeline", "view"),
)
COMPONENT_DELAY = Metric(
    name="slackwater_component_delay_seconds",
    kind=MetricKind.GAUGE,
    help="Delay that one pipeline, sidecar or connector adds; absent if unknown.",
    labels=("kind", "name"),
)
DELAY_CAUSES = Metric(
    name="slackwater_delay_causes",
    kind=MetricKind.GAUGE,
    help="Pipelines, sidecars or connectors that make views late.",
    labels=("kind",),
)
PIPELINE_EVENTS = Metric(
    name="slackwater_pipeline_events_total",
    kind=MetricKind.COUNTER,
    help="Change events in all visible batches of the pipeline's newest run.",
    labels=("pipeline",),
)
PIPELINE_DOCUMENTS = Metric(
    name="slackwater_pipeline_documents_total",
    kind=MetricKind.COUNTER,
    help="Documents that the pipeline's newest run has written, including deletes.",
    labels=("pipeline",),
)
STATE_BYTES = Metric(
    name="slackwater_state_bytes",
    kind=MetricKind.GAUGE,
    help="Size of the state of a pipeline, before compression; absent if unknown.",
    labels=("pipeline",),
)
LEASES = Metric(
    name="slackwater_leases",
    kind=MetricKind.GAUGE,
    help="Leases of readers that are in this state.",
    labels=("state",),
)

CONTROL_METRICS: tuple[Metric, ...] = (
    PIPELINES,
    VIEW_DELAY,
    COMPONENT_DELAY,
    DELAY_CAUSES,
    PIPELINE_EVENTS,
    PIPELINE_DOCUMENTS,
    STATE_BYTES,
    LEASES,
)
"""Everything a control plane exposes."""


def series_of(metric: Metric) -> Iterator[str]:
    """Yields the names under which a metric's values appear: a histogram has three."""
    if metric.kind is MetricKind.HISTOGRAM:
        yield from (f"{metric.name}_bucket", f"{metric.name}_count", f"{metric.name}_sum")
    else:
        yield metric.name


class Distribution:
    """Counts values by size, as a histogram needs them. Written by one thread, read by any."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """Sum of all values."""

    def observe(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Returns for each upper bound, as text, how many values are not above it; the last is ``+Inf``."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))
