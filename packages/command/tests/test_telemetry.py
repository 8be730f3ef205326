"""What a collector gets by OTLP."""

import pytest

from slackwater_command.exposition import Samples, make_registry
from slackwater_command.settings import TelemetrySection
from slackwater_command.telemetry import sending_telemetry
from slackwater_protocol.metrics import Distribution, Metric, MetricKind
from slackwater_protocol.tracing import TracedTransaction, sidecar_spans
from slackwater_testing.otlp import Collector

METRICS = (
    Metric(name="a_total", kind=MetricKind.COUNTER, help="Counts.", labels=("source",)),
    Metric(name="b_bytes", kind=MetricKind.GAUGE, help="Sizes.", labels=("source",)),
    Metric(
        name="c_seconds", kind=MetricKind.HISTOGRAM, help="Times.", labels=("source",), buckets=(1.0, 2.0)
    ),
)
TRACED = TracedTransaction("inv", 1, 7, 0x600)


def read(metric: Metric) -> Samples:
    times = Distribution((1.0, 2.0))
    for seconds in (0.5, 1.5, 1.5, 9.0):
        times.observe(seconds)
    values: dict[str, float | Distribution] = {"a_total": 3.0, "b_bytes": 8.0, "c_seconds": times}
    return [(("inv",), values[metric.name])]


def settings(collector: Collector) -> TelemetrySection:
    return TelemetrySection.model_validate({"otlp": collector.address, "trace_ratio": 1})


def test_metrics_are_those_of_the_registry() -> None:
    with Collector() as collector:
        with sending_telemetry(settings(collector), "run") as telemetry:
            assert telemetry is not None
            telemetry.send_metrics(make_registry(METRICS, read))
        found = {metric.name: metric for metric in collector.metrics}
    counter, gauge, histogram = found["a"], found["b_bytes"], found["c_seconds"]
    assert (counter.sum.is_monotonic, counter.sum.data_points[0].as_double) == (True, 3.0)
    assert (gauge.unit, gauge.gauge.data_points[0].as_double) == ("By", 8.0)
    (times,) = histogram.histogram.data_points
    assert (histogram.unit, times.count, times.sum, list(times.bucket_counts)) == ("s", 4, 12.5, [1, 2, 1])
    assert list(times.explicit_bounds) == [1.0, 2.0]
    assert {each.key: each.value.string_value for each in times.attributes} == {"source": "inv"}


def test_spans_have_their_ids_times_and_parents() -> None:
    sent = list(sidecar_spans(TRACED, 1_000, (1_100, 1_200, 1_300)))
    with Collector() as collector:
        with sending_telemetry(settings(collector), "sidecar") as telemetry:
            assert telemetry is not None
            for span in sent:
                telemetry.send(span)
        found = collector.spans
    assert [(s.span_id, s.parent_id, s.name, s.begin_ms, s.end_ms) for s in found] == [
        (s.span_id, s.parent_id, s.name, s.begin_ms, s.end_ms) for s in sent
    ]
    assert {s.trace_id for s in found} == {TRACED.trace_id}
    assert found[0].attributes == {"source": "inv", "timeline": 1, "xid": 7, "lsn": 0x600}
    assert found[0].service == "sidecar"


def test_a_collector_that_is_away_costs_nothing_but_the_loss(caplog: pytest.LogCaptureFixture) -> None:
    away = TelemetrySection.model_validate({"otlp": "http://127.0.0.1:9", "trace_ratio": 1})
    with sending_telemetry(away, "run") as telemetry:
        assert telemetry is not None
        telemetry.send_metrics(make_registry(METRICS, read))
        telemetry.send(next(sidecar_spans(TRACED, 1, (2, 3, 4))))


def test_without_an_address_nothing_is_sent() -> None:
    with sending_telemetry(TelemetrySection(), "run") as telemetry:
        assert telemetry is None
