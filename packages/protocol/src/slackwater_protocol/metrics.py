"""The closed lists of metrics: what a sidecar and a control plane expose at ``/metrics``, no more, no less.

Names carry their unit, in base units. Labels are bounded: sources, pipelines, views, states, kinds; never a
transaction, an offset or a text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """The behaviour of a metric over time."""

    COUNTER = "counter"
    """Only rises while a process lives."""
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
TIMELINE = _gauge("slackwater_timeline", "The timeline that is followed.")
COMMIT_AGE = _gauge(
    "slackwater_newest_commit_age_seconds", "Wall clock minus commit time of the newest cut's last commit."
)
STATE = _gauge("slackwater_state", "1 for the state the source is in, 0 for the others.", "state")
LAST_TURN_AGE = _gauge("slackwater_last_turn_age_seconds", "Time since the source's loop last turned.")
OPEN_TRANSACTIONS = _gauge(
    "slackwater_open_transactions", "Transactions incomplete for longer than the threshold; 100 at most."
)
OLDEST_OPEN_AGE = _gauge(
    "slackwater_oldest_open_transaction_age_seconds", "How long the oldest of them has been waited for."
)
OBSTACLES = _gauge("slackwater_obstacles", "Records that no cut can pass; 100 at most.")
STALE_ENDS = _gauge(
    "slackwater_stale_ends", "ENDs at or below the newest one since the last that was above it: repeats."
)
TROUBLE = _gauge(
    "slackwater_dependency_trouble", "1 while a dependency (kafka, redis) does not answer.", "dependency"
)
PARTITIONS_READ = _gauge("slackwater_partitions_read", "Partitions of data topics that are read.")
PARTITIONS_PAUSED = _gauge(
    "slackwater_partitions_paused", "Partitions whose reading is paused, since they are far ahead."
)
HELD_BACK_OFFSETS = _gauge(
    "slackwater_held_back_offsets",
    "Offsets of the source's topics that cannot be read: their Kafka transaction is open.",
)
QUEUE_LENGTH = _gauge(
    "slackwater_queued_transactions", "Transactions of which END was read and that are above the frontier."
)
RECORDS_READ = _counter("slackwater_records_read_total", "Records read from Kafka by this process.")
EVENTS = _counter("slackwater_events_total", "Change events in cuts that this process published.")
TRANSACTIONS = _counter(
    "slackwater_transactions_total", "Transactions with change events in cuts that this process published."
)
CUTS = _counter("slackwater_cuts_total", "Cuts that this process published.")
SKIPPED_TRANSACTIONS = _counter(
    "slackwater_skipped_transactions_total", "Incomplete transactions that an operator let pass."
)
AHEAD_MARKERS = _counter(
    "slackwater_ahead_publications_total", "Publications of markers of partitions beyond the frontier."
)
DECISIONS = _counter(
    "slackwater_decisions_total", "Operators' decisions (skip, timeline) that were obeyed.", "kind"
)
REDIS_CORRECTIONS = _counter(
    "slackwater_redis_corrections_total",
    "Times that Redis held what the cut log does not, and was filled anew.",
)
PUBLICATION_SECONDS = _histogram(
    "slackwater_publication_duration_seconds", "Time to write cuts to the cut log and Redis.", _SECONDS
)
PUBLICATION_DELAY_SECONDS = _histogram(
    "slackwater_publication_delay_seconds",
    "From reading an END record to publishing its commit; one sample per poll.",
    _SECONDS,
)
CUT_BYTES = _histogram("slackwater_cut_bytes", "Encoded size of cuts; sampled, ten a second at most.", _BYTES)

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


PIPELINES = Metric(
    name="slackwater_pipelines",
    kind=MetricKind.GAUGE,
    help="Pipelines of the cluster that are in this state.",
    labels=("state",),
)
VIEW_DELAY = Metric(
    name="slackwater_view_delay_seconds",
    kind=MetricKind.GAUGE,
    help="Newest cut of the database minus newest commit of the view, commit times; absent if not known.",
    labels=("source", "pipeline", "view"),
)
HOP_DELAY = Metric(
    name="slackwater_hop_delay_seconds",
    kind=MetricKind.GAUGE,
    help="What one pipeline, sidecar or connector adds to the delay; absent if not known.",
    labels=("kind", "name"),
)
CULPRITS = Metric(
    name="slackwater_culprits",
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
    help="Documents that the pipeline's newest run has written, deletes included.",
    labels=("pipeline",),
)
STATE_BYTES = Metric(
    name="slackwater_state_bytes",
    kind=MetricKind.GAUGE,
    help="What the stages of a pipeline keep, before compression; absent if not known.",
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
    HOP_DELAY,
    CULPRITS,
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
