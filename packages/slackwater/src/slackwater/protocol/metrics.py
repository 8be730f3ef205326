"""The complete lists of the metrics that a sidecar, a run and a control plane expose at ``/metrics``.

Names carry their unit, in base units. Labels are bounded: sources, pipelines, views, states, kinds; never a
transaction, an offset or a text.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
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


_RUN = ("source", "pipeline")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_BYTES = tuple(float(4**exponent * 64) for exponent in range(9))


def _metric(
    kind: MetricKind, of: tuple[str, ...], name: str, text: str, *labels: str, buckets: tuple[float, ...] = ()
) -> Metric:
    return Metric(name=name, kind=kind, help=text, labels=(*of, *labels), buckets=buckets)


_gauge = partial(_metric, MetricKind.GAUGE, ("source",))
_counter = partial(_metric, MetricKind.COUNTER, ("source",))
_histogram = partial(_metric, MetricKind.HISTOGRAM, ("source",))
_run_gauge = partial(_metric, MetricKind.GAUGE, _RUN)
_run_counter = partial(_metric, MetricKind.COUNTER, _RUN)
_run_histogram = partial(_metric, MetricKind.HISTOGRAM, _RUN)
_whole_gauge = partial(_metric, MetricKind.GAUGE, ())
_whole_counter = partial(_metric, MetricKind.COUNTER, ())


SIDECAR_METRICS: tuple[Metric, ...] = (
    FRONTIER_LSN := _gauge("slackwater_frontier_lsn", "Commit LSN of the newest cut; 0 before the first."),
    TIMELINE := _gauge("slackwater_timeline", "The current timeline of the source."),
    COMMIT_AGE := _gauge(
        "slackwater_newest_commit_age_seconds",
        "Wall clock minus commit time of the newest cut's last commit.",
    ),
    STATE := _gauge(
        "slackwater_state", "1 for the current state of the source, 0 for the other states.", "state"
    ),
    LAST_TURN_AGE := _gauge(
        "slackwater_last_turn_age_seconds", "Time since the last iteration of the source's main loop."
    ),
    OPEN_TRANSACTIONS := _gauge(
        "slackwater_open_transactions",
        "Transactions that have been incomplete for longer than the threshold; at most 100.",
    ),
    OLDEST_OPEN_AGE := _gauge(
        "slackwater_oldest_open_transaction_age_seconds",
        "How long the oldest open transaction has been incomplete.",
    ),
    OBSTACLES := _gauge("slackwater_obstacles", "Records that no cut can pass; at most 100."),
    STALE_ENDS := _gauge(
        "slackwater_stale_ends", "ENDs read since the newest one that are not above it: repetitions."
    ),
    TROUBLE := _gauge(
        "slackwater_dependency_trouble", "1 while a dependency (kafka, redis) does not answer.", "dependency"
    ),
    PARTITIONS_READ := _gauge(
        "slackwater_partitions_read", "Partitions of data topics that this process reads."
    ),
    PARTITIONS_PAUSED := _gauge(
        "slackwater_partitions_paused",
        "Partitions in which reading is paused because they are far ahead of others.",
    ),
    HELD_BACK_OFFSETS := _gauge(
        "slackwater_held_back_offsets",
        "Offsets of the source's topics that cannot be read yet because their Kafka transaction is open.",
    ),
    QUEUE_LENGTH := _gauge(
        "slackwater_queued_transactions", "Transactions above the frontier whose END was read."
    ),
    RECORDS_READ := _counter("slackwater_records_read_total", "Records read from Kafka by this process."),
    EVENTS := _counter("slackwater_events_total", "Change events in cuts that this process published."),
    TRANSACTIONS := _counter(
        "slackwater_transactions_total",
        "Transactions with change events in cuts that this process published.",
    ),
    CUTS := _counter("slackwater_cuts_total", "Cuts that this process published."),
    SKIPPED_TRANSACTIONS := _counter(
        "slackwater_skipped_transactions_total",
        "Incomplete transactions that were released by an operator's decision.",
    ),
    AHEAD_MARKERS := _counter(
        "slackwater_ahead_publications_total",
        "Publications of markers of partitions that are ahead of the frontier.",
    ),
    DECISIONS := _counter(
        "slackwater_decisions_total", "Operators' decisions (skip, timeline) that were carried out.", "kind"
    ),
    REDIS_CORRECTIONS := _counter(
        "slackwater_redis_corrections_total", "How often Redis contradicted the cut log and was refilled."
    ),
    PUBLICATION_SECONDS := _histogram(
        "slackwater_publication_duration_seconds",
        "Time to write cuts to the cut log and Redis.",
        buckets=_SECONDS,
    ),
    PUBLICATION_DELAY_SECONDS := _histogram(
        "slackwater_publication_delay_seconds",
        "Time from reading an END record to publishing its commit; one sample per poll.",
        buckets=_SECONDS,
    ),
    CUT_BYTES := _histogram(
        "slackwater_cut_bytes", "Encoded size of cuts; at most ten samples per second.", buckets=_BYTES
    ),
)

DEPENDENCIES = ("kafka", "redis")
"""Values of the label ``dependency``."""
DECISION_KINDS = ("skip", "timeline")
"""Values of the label ``kind``."""

RUN_METRICS: tuple[Metric, ...] = (
    RUN_STARTED := _run_gauge(
        "slackwater_run_start_time_seconds",
        "Start time of the run, since the epoch; it changes with each restart.",
    ),
    RUN_LAST_TURN_AGE := _run_gauge(
        "slackwater_run_last_turn_age_seconds",
        "Time since the run last took a step; running a batch in Spark is one step.",
    ),
    RUN_COMMIT_LSN := _run_gauge(
        "slackwater_run_commit_lsn", "The views show all commits up to this LSN; 0 before the first batch."
    ),
    RUN_COMMIT_AGE := _run_gauge(
        "slackwater_run_newest_commit_age_seconds",
        "Wall clock minus commit time of the newest commit that the views show; absent before the first.",
    ),
    RUN_BATCHES := _run_counter("slackwater_run_batches_total", "Batches that have become visible."),
    RUN_COVERED_BATCHES := _run_counter(
        "slackwater_run_covered_batches_total",
        "Batches that were already in the output because the answer to their commit had been lost.",
    ),
    RUN_EVENTS := _run_counter("slackwater_run_events_total", "Change events in visible batches."),
    RUN_TRANSACTIONS := _run_counter(
        "slackwater_run_transactions_total", "Transactions with change events in visible batches."
    ),
    RUN_DOCUMENTS := _run_counter(
        "slackwater_run_documents_total", "Documents that were written, including deletes."
    ),
    RUN_DELETES := _run_counter("slackwater_run_deletes_total", "Deletes among the written documents."),
    RUN_DELAY := _run_histogram(
        "slackwater_run_delay_seconds",
        "Time from the commit of the newest transaction of each batch to its visibility.",
        buckets=_SECONDS,
    ),
    RUN_COMPONENT_DELAY := _run_histogram(
        "slackwater_run_component_delay_seconds",
        "Delay that connector, sidecar and pipeline each added; accurate up to clock differences.",
        "component",
        buckets=_SECONDS,
    ),
    RUN_BATCH_SECONDS := _run_histogram(
        "slackwater_run_batch_duration_seconds",
        "Time from choosing a batch to its visibility.",
        buckets=_SECONDS,
    ),
    RUN_PART_SECONDS := _run_counter(
        "slackwater_run_part_seconds_total", "Time that each part of processing batches has taken.", "part"
    ),
    RUN_STAGE_SECONDS := _run_counter(
        "slackwater_run_stage_seconds_total", "Total time of all tasks that evaluated a stage.", "stage"
    ),
    RUN_STATE_BYTES := _run_gauge(
        "slackwater_run_state_bytes", "Size of the state of a stage, before compression.", "stage"
    ),
    RUN_WITHHELD_KEYS := _run_gauge(
        "slackwater_run_withheld_keys", "Keys that are withheld because they cannot be evaluated.", "view"
    ),
    RUN_LOG_RECORDS := _run_counter(
        "slackwater_run_log_records_total", "Warnings and errors that the process has logged.", "level"
    ),
)

COMPONENTS = ("connector", "sidecar", "pipeline")
"""Values of the label ``component``, in the order of the data."""
LOG_LEVELS = ("warning", "error")
"""Values of the label ``level``."""

CONTROL_METRICS: tuple[Metric, ...] = (
    PIPELINES := _whole_gauge(
        "slackwater_pipelines", "Pipelines of the cluster that are in this state.", "state"
    ),
    VIEW_DELAY := _whole_gauge(
        "slackwater_view_delay_seconds",
        "Commit time of the database's newest cut minus that of the view; absent if unknown.",
        "source",
        "pipeline",
        "view",
    ),
    COMPONENT_DELAY := _whole_gauge(
        "slackwater_component_delay_seconds",
        "Delay that one pipeline, sidecar or connector adds; absent if unknown.",
        "kind",
        "name",
    ),
    DELAY_CAUSES := _whole_gauge(
        "slackwater_delay_causes", "Pipelines, sidecars or connectors that make views late.", "kind"
    ),
    PIPELINE_EVENTS := _whole_counter(
        "slackwater_pipeline_events_total",
        "Change events in all visible batches of the pipeline's newest run.",
        "pipeline",
    ),
    PIPELINE_DOCUMENTS := _whole_counter(
        "slackwater_pipeline_documents_total",
        "Documents that the pipeline's newest run has written, including deletes.",
        "pipeline",
    ),
    STATE_BYTES := _whole_gauge(
        "slackwater_state_bytes",
        "Size of the state of a pipeline, before compression; absent if unknown.",
        "pipeline",
    ),
    LEASES := _whole_gauge("slackwater_leases", "Leases of readers that are in this state.", "state"),
)


class Distribution:
    """Counts values by size, as a histogram needs them. Written by one thread, read by any."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Returns for each upper bound, as text, how many values are not above it; the last is ``+Inf``."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))
