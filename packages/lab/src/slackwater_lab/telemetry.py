"""What the product tells of itself, received as in production: by an OTLP collector and by Prometheus."""

import gzip
import json
import math
import shutil
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from slackwater.dev.server import LOOPBACK, free_port
from slackwater_lab.fakes.http import HttpFake

_ASK_SECONDS = 60.0
_SCRAPE = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: slackwater
    static_configs:
      - targets: {targets}
"""


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as it was sent."""

    service: str
    trace_id: int
    span_id: int
    parent_id: int | None
    name: str
    begin_ms: int
    end_ms: int
    attributes: Mapping[str, str | int]


class Collector(HttpFake):
    """An OpenTelemetry collector that keeps what it is sent: OTLP over HTTP, in protobuf. Its lists grow.

    Args:
        tls: What encrypts connections; None: nothing does.
        admits: Whether a request with these headers is taken; others get 401.
    """

    def __init__(
        self, tls: ssl.SSLContext | None = None, admits: Callable[[Message], bool] = lambda _: True
    ) -> None:
        super().__init__(tls)
        self.admits = admits
        self.refused = 0
        """Requests that were not taken."""
        self.spans: list[ReceivedSpan] = []
        self.metrics: list[Any] = []
        """Every metric of every export, as protobuf has it."""

    def answer(self, method: str, path: str, headers: Message, body: bytes) -> tuple[int, object]:
        """See the base."""
        del method
        if not self.admits(headers):
            self.refused += 1
            return HTTPStatus.UNAUTHORIZED, {}
        self._take(path, gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body)
        return HTTPStatus.OK, {}

    def _take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = str(_values(group.resource.attributes)["service.name"])
                self.spans += [_span(service, span) for scope in group.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics += [metric for scope in group.scope_metrics for metric in scope.metrics]


def _span(service: str, span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        trace_id=int.from_bytes(span.trace_id),
        span_id=int.from_bytes(span.span_id),
        parent_id=int.from_bytes(span.parent_span_id) or None,
        name=span.name,
        begin_ms=span.start_time_unix_nano // 1_000_000,
        end_ms=span.end_time_unix_nano // 1_000_000,
        attributes=_values(span.attributes),
    )


def _values(attributes: Any) -> dict[str, str | int]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def prometheus_program() -> str | None:
    """Returns where Prometheus is installed; None: it is not."""
    return shutil.which("prometheus")


class Prometheus:
    """A real one, which scrapes pages once a second, and is asked as Grafana asks it.

    Args:
        program: Where it is installed.
        folder: Its data and log; created.
        targets: ``HOST:PORT`` of each page; they need not answer yet.
    """

    def __init__(self, program: str, folder: Path, targets: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._address = f"{LOOPBACK}:{free_port()}"
        config = folder / "prometheus.yml"
        config.write_text(_SCRAPE.format(targets=json.dumps(list(targets))))
        self.command = (
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self._address}",
        )
        """Starts it; it ends with SIGTERM."""

    def answers(self, query: str) -> list[float]:
        """Asks for the values that a query has now; none while Prometheus does not answer yet.

        A quotient or a quantile of nothing is no value.

        Raises:
            ValueError: it refuses the query.
        """
        parameters = urlencode({"query": query})
        try:
            with urlopen(f"http://{self._address}/api/v1/query?{parameters}", timeout=_ASK_SECONDS) as page:
                answer: dict[str, Any] = json.load(page)
        except URLError as error:
            if getattr(error, "code", None) is not None:
                raise ValueError(f"{query}: {error}") from error
            return []
        values = [float(series["value"][1]) for series in answer["data"]["result"]]
        return [value for value in values if not math.isnan(value)]
