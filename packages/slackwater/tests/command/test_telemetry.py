"""What a collector gets by OTLP."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from slackwater.observe.telemetry import Samples, make_registry, sending_telemetry
from slackwater.protocol.metrics import Distribution, Metric, MetricKind
from slackwater.protocol.tracing import TracedTransaction, sidecar_spans
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.loading import load_settings
from slackwater.settings.model import TelemetrySection
from slackwater_lab.secured_servers import Certificate, certificate
from slackwater_lab.telemetry import Collector

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
    return TelemetrySection(otlp=collector.url, trace_ratio=1)


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


@pytest.mark.full
def test_a_collector_that_is_away_costs_nothing_but_the_loss(caplog: pytest.LogCaptureFixture) -> None:
    away = TelemetrySection(otlp="http://127.0.0.1:9", trace_ratio=1)
    with sending_telemetry(away, "run") as telemetry:
        assert telemetry is not None
        telemetry.send_metrics(make_registry(METRICS, read))
        telemetry.send(next(sidecar_spans(TRACED, 1, (2, 3, 4))))


def test_without_an_address_nothing_is_sent() -> None:
    with sending_telemetry(TelemetrySection(), "run") as telemetry:
        assert telemetry is None


# --- TLS and tokens

TOKEN = "token-of-a-test"


def server_tls(folder: Path, authority: Certificate, *, asks_clients: bool = False) -> ssl.SSLContext:
    """What a collector encrypts with; it may ask clients for a certificate of the authority."""
    own = certificate(folder, "collector", authority)
    context = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cafile=authority.path if asks_clients else None
    )
    context.load_cert_chain(own.path, own.key_path)
    context.verify_mode = ssl.CERT_REQUIRED if asks_clients else ssl.CERT_NONE
    return context


def send_all(settings: TelemetrySection) -> None:
    """Sends one export of metrics and one span."""
    with sending_telemetry(settings, "run") as telemetry:
        assert telemetry is not None
        telemetry.send_metrics(make_registry(METRICS, read))
        telemetry.send(next(sidecar_spans(TRACED, 1_000, (1_100, 1_200, 1_300))))


@pytest.mark.parametrize(("header", "value"), [("Authorization", f"Bearer {TOKEN}"), ("api-key", TOKEN)])
def test_a_collector_with_tls_that_asks_for_certificate_and_token_gets_everything(
    tmp_path: Path, header: str, value: str
) -> None:
    authority = certificate(tmp_path, "authority", None)
    own = certificate(tmp_path, "client", authority)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    tls = server_tls(tmp_path, authority, asks_clients=True)
    with Collector(tls, lambda headers: headers.get(header) == value) as collector:
        file = tmp_path / "slackwater.toml"
        file.write_text(
            f'[telemetry]\notlp = "{collector.url}"\ntrace_ratio = 1\ntoken_file = "token"\n'
            f'token_header = "{header}"\nssl_ca = "{authority.path}"\n'
            f'ssl_certificate = "{own.path}"\nssl_key = "{own.key_path}"\n'
        )
        send_all(load_settings({}, {}, file).settings.telemetry)
        assert collector.refused == 0
        assert {metric.name for metric in collector.metrics} == {"a", "b_bytes", "c_seconds"}
        assert [span.name for span in collector.spans] == ["transaction"]


@pytest.mark.full
def test_a_collector_whose_certificate_is_not_trusted_gets_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, other = (certificate(tmp_path, name, None) for name in ("authority", "other"))
    with Collector(server_tls(tmp_path, authority)) as collector:
        send_all(TelemetrySection(otlp=collector.url, trace_ratio=1, token=TOKEN, ssl_ca=Path(other.path)))
        assert (collector.metrics, collector.spans) == ([], [])
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("token", [None, "another"])
def test_a_collector_that_asks_for_a_token_refuses_others(
    token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with Collector(admits=lambda headers: headers.get("Authorization") == f"Bearer {TOKEN}") as collector:
        send_all(TelemetrySection(otlp=collector.url, trace_ratio=1, token=token))
        assert (collector.metrics, collector.spans) == ([], [])
        assert collector.refused >= 2
    assert "another" not in caplog.text


@pytest.mark.full
def test_a_collector_that_asks_for_a_certificate_refuses_who_has_none(tmp_path: Path) -> None:
    authority = certificate(tmp_path, "authority", None)
    with Collector(server_tls(tmp_path, authority, asks_clients=True)) as collector:
        send_all(TelemetrySection(otlp=collector.url, trace_ratio=1, ssl_ca=Path(authority.path)))
        assert (collector.metrics, collector.spans) == ([], [])


@pytest.mark.parametrize("name", ["ssl_ca", "ssl_certificate"])
def test_files_that_cannot_be_used_are_refused_before_anything_is_sent(tmp_path: Path, name: str) -> None:
    own = certificate(tmp_path, "client", None)
    files: dict[str, Any] = {
        "ssl_ca": Path(own.path),
        "ssl_certificate": Path(own.path),
        "ssl_key": Path(own.key_path),
    }
    given = TelemetrySection(otlp="https://127.0.0.1:9", **{**files, name: tmp_path / "missing.pem"})
    with pytest.raises(CommandConfigError, match=r"telemetry\.ssl_ca"), sending_telemetry(given, "run"):
        pass


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"otlp": "collector:4318"}, "expected http"),
        ({"otlp": "ftp://collector"}, "expected http"),
        ({"otlp": "https://ada:word@collector"}, "without user and password"),
        ({"otlp": "http://collector", "ssl_ca": "ca.pem"}, "begins with https"),
        ({"otlp": "https://collector", "ssl_key": "key.pem"}, "need each other"),
        ({"otlp": "https://collector", "token_header": "a b"}, "token_header"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(CommandConfigError, match=why):
        load_settings({f"telemetry.{name}": value for name, value in given.items()}, {})
