"""Metrics and traces: what Prometheus gets, and what an OpenTelemetry collector is sent, by OTLP over HTTP.

The metrics are those of a closed list, with its names, labels and meanings; both read them from one registry.
The SDK is an extra, which is imported only if something is to be sent.
"""

import logging
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from slackwater.protocol import SystemClock
from slackwater.protocol.metrics import Distribution, Metric, MetricKind
from slackwater.protocol.tracing import TransactionSpan
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import TelemetrySection

if TYPE_CHECKING:  # an extra
    from opentelemetry.sdk.metrics.export import Metric as SentMetric
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

_SCOPE: Final = "slackwater"
_NS_PER_MS: Final = 1_000_000
_UNITS: Final = {"_seconds": "s", "_bytes": "By"}
_TIMEOUT_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


Samples = Iterable[tuple[tuple[str, ...], float | Distribution]]
"""Values of all labels, in the order of the metric's, and the value; for a histogram its distribution."""


def make_registry(metrics: Sequence[Metric], read: Callable[[Metric], Samples]) -> CollectorRegistry:
    """Returns a registry with the metrics of a list.

    Samples are read by any thread, at each request.
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


@contextmanager
def sending_telemetry(settings: TelemetrySection, service: str) -> "Iterator[Telemetry | None]":
    """Yields what sends metrics and traces while the block lasts; None if none are to be sent.

    The service is ``sidecar`` or ``run``.

    Raises:
        CommandConfigError: A certificate or key of the settings cannot be used.
    """
    if settings.otlp is None:
        yield None
        return
    with closing(Telemetry(settings, service)) as telemetry:
        yield telemetry


class Telemetry:
    """Sends metrics and traces in its own threads; if a collector is away, they are lost without other cost.

    Raises:
        CommandConfigError: A certificate or key of the settings cannot be used.
    """

    def __init__(self, settings: TelemetrySection, service: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        address = (settings.otlp or "").rstrip("/")
        self.trace_ratio = settings.trace_ratio
        """The share of transactions that is traced, from 0 to 1."""
        self._interval = settings.interval.total_seconds()
        self._resource = Resource.create({"service.namespace": _SCOPE, "service.name": service})
        self._metrics = OTLPMetricExporter(f"{address}/v1/metrics", **_exporter_options(settings))
        self._spans = BatchSpanProcessor(
            OTLPSpanExporter(f"{address}/v1/traces", **_exporter_options(settings))
        )
        self._over = threading.Event()
        self._pushing: threading.Thread | None = None

    def send(self, span: TransactionSpan) -> None:
        """Queues a span to be sent soon; does not block. May be called by any thread."""
        self._spans.on_end(_readable(span, self._resource))

    def send_metrics(self, registry: CollectorRegistry) -> None:
        """Sends the metrics of a registry from now on, and again at the end."""
        self._pushing = threading.Thread(
            target=self._push, args=(registry,), name="otlp-metrics", daemon=True
        )
        self._pushing.start()

    def close(self) -> None:
        """Sends what is left and ends."""
        self._over.set()
        if self._pushing is not None:
            self._pushing.join()
        self._spans.shutdown()  # type: ignore[no-untyped-call]
        self._metrics.shutdown()

    def _push(self, registry: CollectorRegistry) -> None:
        began_ns = _now_ns()
        is_over = False
        while not is_over:
            is_over = self._over.wait(self._interval)
            self._metrics.export(metrics_data(registry, self._resource, began_ns, _now_ns()))


def _exporter_options(settings: TelemetrySection) -> dict[str, Any]:
    """Returns an exporter's arguments besides its address. Contains a secret."""
    import requests
    from requests.utils import get_environ_proxies

    _check_files(settings)
    session = requests.Session()
    # Environment variables would override the certificates of the settings, and .netrc the token.
    session.trust_env = False
    session.proxies.update(get_environ_proxies(settings.otlp or ""))
    trusted = ssl.get_default_verify_paths()
    files = {
        "certificate_file": settings.ssl_ca or trusted.cafile or trusted.capath,
        "client_certificate_file": settings.ssl_certificate,
        "client_key_file": settings.ssl_key,
    }
    given = {name: str(path) for name, path in files.items() if path is not None}
    return {"session": session, "headers": settings.headers(), "timeout": _TIMEOUT_SECONDS, **given}


def _check_files(settings: TelemetrySection) -> None:
    """Checks files before anything is sent: the exporter would fail with each request."""
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca)
        if settings.ssl_certificate is not None:
            context.load_cert_chain(settings.ssl_certificate, settings.ssl_key)
    except OSError as error:  # SSLError is one
        problem = "telemetry.ssl_ca, telemetry.ssl_certificate or its key cannot be used"
        raise CommandConfigError(problem, str(error)) from error


def _now_ns() -> int:
    return int(SystemClock().now().timestamp() * 1000) * _NS_PER_MS


def metrics_data(
    registry: CollectorRegistry, resource: "Resource", began_ns: int, now_ns: int
) -> "MetricsData":
    """Returns the metrics of a registry in OpenTelemetry's form, cumulative since a moment."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [_metric(family, began_ns, now_ns) for family in registry.collect()]
    scope = ScopeMetrics(InstrumentationScope(_SCOPE), [m for m in metrics if m.data.data_points], "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Family, began_ns: int, now_ns: int) -> "SentMetric":
    from opentelemetry.sdk.metrics import export

    cumulative = export.AggregationTemporality.CUMULATIVE
    data: Any
    if family.type == "histogram":
        data = export.Histogram(list(_histograms(family, began_ns, now_ns)), cumulative)
    else:
        points = [
            export.NumberDataPoint(dict(each.labels), began_ns, now_ns, each.value) for each in family.samples
        ]
        is_counter = family.type == "counter"
        data = export.Sum(points, cumulative, is_monotonic=True) if is_counter else export.Gauge(points)
    unit = next((unit for end, unit in _UNITS.items() if family.name.endswith(end)), "1")
    return export.Metric(family.name, family.documentation, unit, data)


def _histograms(family: Family, began_ns: int, now_ns: int) -> Iterator[Any]:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    counts: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        key = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if sample.name.endswith("_bucket"):
            counts.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[key] = sample.value
    for key, buckets in counts.items():
        bounds = [bound for bound, _ in buckets[:-1]]
        below = [0, *(int(count) for _, count in buckets)]
        steps = [after - before for before, after in pairwise(below)]
        none: Any = None  # the smallest and the largest value are unknown
        yield HistogramDataPoint(
            attributes=dict(key),
            start_time_unix_nano=began_ns,
            time_unix_nano=now_ns,
            count=below[-1],
            sum=sums.get(key, 0.0),
            bucket_counts=steps,
            explicit_bounds=bounds,
            min=none,
            max=none,
        )


def _readable(span: TransactionSpan, resource: "Resource") -> "ReadableSpan":
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, TraceFlags

    traced, flags = span.transaction, TraceFlags(TraceFlags.SAMPLED)
    parent_id = span.parent_id
    attributes: dict[str, str | int] = {
        "source": traced.source,
        "timeline": traced.timeline,
        "xid": traced.xid,
        "lsn": traced.commit_lsn,
    }
    if span.pipeline:
        attributes["pipeline"] = span.pipeline
    return ReadableSpan(
        span.name,
        context=SpanContext(traced.trace_id, span.span_id, is_remote=False, trace_flags=flags),
        parent=None
        if parent_id is None
        else SpanContext(traced.trace_id, parent_id, is_remote=True, trace_flags=flags),
        resource=resource,
        attributes=attributes,
        start_time=span.begin_ms * _NS_PER_MS,
        end_time=span.end_ms * _NS_PER_MS,
        instrumentation_scope=InstrumentationScope(_SCOPE),
    )
