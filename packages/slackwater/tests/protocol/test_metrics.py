"""The list of metrics keeps its own rules."""

import re

from slackwater.protocol import metrics
from slackwater.protocol.metrics import (
    CONTROL_METRICS,
    RUN_METRICS,
    SIDECAR_METRICS,
    Metric,
    MetricKind,
)

ALL = (*SIDECAR_METRICS, *RUN_METRICS, *CONTROL_METRICS)

UNITS = ("_seconds", "_bytes", "_total", "_lsn", "_timeline", "_state")
COUNTED = (
    "pipelines",
    "causes",
    "leases",
    "transactions",
    "obstacles",
    "keys",
    "ends",
    "trouble",
    "read",
    "paused",
    "offsets",
)
BOUNDED_LABELS = {
    "source",
    "state",
    "dependency",
    "kind",
    "pipeline",
    "view",
    "name",
    "component",
    "part",
    "stage",
    "level",
}


def test_every_metric_of_the_module_is_in_the_list_once() -> None:
    defined = [value for value in vars(metrics).values() if isinstance(value, Metric)]
    assert sorted(m.name for m in defined) == sorted(m.name for m in ALL)
    assert len({m.name for m in ALL}) == len(ALL)


def test_names_say_whose_they_are_and_end_in_a_base_unit_or_what_is_counted() -> None:
    for metric in ALL:
        assert re.fullmatch(r"slackwater_[a-z_]+", metric.name)
        assert metric.name.endswith(UNITS) or metric.name.rpartition("_")[2] in COUNTED, metric.name
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)


def test_labels_are_bounded() -> None:
    for metric in ALL:
        assert set(metric.labels) <= BOUNDED_LABELS
    assert all(metric.labels[0] == "source" for metric in SIDECAR_METRICS)
    assert all(metric.labels[:2] == ("source", "pipeline") for metric in RUN_METRICS)


def test_only_histograms_have_buckets_and_these_rise() -> None:
    for metric in ALL:
        assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_every_metric_explains_itself_in_a_sentence() -> None:
    for metric in ALL:
        assert metric.help.endswith("."), metric.name
