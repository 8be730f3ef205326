"""Exports the metrics of a closed list to Prometheus: names, labels and meanings are those of the list."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from slackwater.protocol.metrics import Distribution, Metric, MetricKind

Samples = Iterable[tuple[tuple[str, ...], float | Distribution]]
"""Values of all labels, in the order of the metric's, and the value; for a histogram its distribution."""


def make_registry(metrics: Sequence[Metric], read: Callable[[Metric], Samples]) -> CollectorRegistry:
    """Returns a registry with the metrics of a list.

    Args:
        metrics: The list.
        read: Returns the samples of a metric; called by any thread, at each request.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ListCollector(metrics, read))
    return registry


class _ListCollector(Collector):
    def __init__(self, metrics: Sequence[Metric], read: Callable[[Metric], Samples]) -> None:
        self._metrics = metrics
        self._read = read

    def collect(self) -> Iterator[Family]:
        """Yields one family for each metric of the list, in its order."""
        for metric in self._metrics:
            yield _family(metric, self._read(metric))


def _family(metric: Metric, samples: Samples) -> Family:
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in samples:
            if isinstance(value, Distribution):
                histogram.add_metric(labels, value.cumulative(), value.total)
        return histogram
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        if not isinstance(value, Distribution):
            family.add_metric(labels, value)
    return family
